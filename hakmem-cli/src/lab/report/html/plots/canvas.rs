//! What all plots are drawn on and with: plotters' SVG backend, without font metrics, so that widths of texts
//! are guessed.

use maud::html;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::axis::Axis;
use crate::lab::report::html::palette::Look;

// The colours that are not subjects'. The page's style sheet knows them by these values and changes them
// where the reader prefers a dark page.
const INK: RGBColor = RGBColor(0x1F, 0x23, 0x28);
const MUTED: RGBColor = RGBColor(0x59, 0x63, 0x6E);
const GRID: RGBColor = RGBColor(0xD8, 0xDE, 0xE4);
const PAPER: RGBColor = RGBColor(0xFF, 0xFF, 0xFF);

/// plotters counts in whole pixels, so everything is drawn at this many times its size.
pub const FINE: i32 = 4;
/// Widths of a plot that shares a line of the page and of one that does not.
pub const HALF: i32 = 530;
pub const WHOLE: i32 = 1080;
/// The height of title and subtitle.
pub const HEAD: i32 = 50;
/// The height of the marks and the title below the x axis.
pub const FOOT: i32 = 46;

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub type Chart<'a> = ChartContext<'a, SVGBackend<'a>, Cartesian2d<Axis, Axis>>;
pub type Drawn<T = ()> = Result<T, DrawingAreaErrorKind<std::io::Error>>;

/// A document of this size with a heading, and what `draw` draws below it.
pub fn document(
    (title, subtitle): (&str, &str),
    (width, height): (i32, i32),
    draw: impl FnOnce(&Area) -> Drawn,
) -> String {
    let mut body = String::new();
    {
        let area = SVGBackend::with_string(&mut body, ((width * FINE) as u32, (height * FINE) as u32))
            .into_drawing_area();
        let all = || {
            area.fill(&PAPER)?;
            text(&area, &cut(title, width - 20, 14.0), (10, 17), 14.0, Ink::Strong, HPos::Left)?;
            text(&area, &cut(subtitle, width - 20, 11.5), (10, 36), 11.5, Ink::Muted, HPos::Left)?;
            draw(&area)?;
            area.present()
        };
        // Writing to a string does not fail; should a plot not fit into its space, the page says so in its
        // place.
        if let Err(e) = all() {
            return html! { p { (title) ": cannot be drawn: " (e) } }.into_string();
        }
    }
    let inner = body.split_once('>').map_or("", |(_, inner)| inner);
    let view = format!("0 0 {} {}", width * FINE, height * FINE);
    let start = html! { title { (title) } desc { (subtitle) } }.into_string();
    let label = html! { i aria-label=(title) {} }.into_string();
    let label = label.trim_start_matches("<i ").trim_end_matches("></i>");
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"{view}\" \
         role=\"img\" {label}>{start}{inner}"
    )
}

/// The colour of a text.
#[derive(Clone, Copy, PartialEq)]
pub enum Ink {
    Strong,
    Muted,
}

fn font(size: f64, ink: Ink) -> TextStyle<'static> {
    // The backend divides by 1.24.
    let family = ("sans-serif", size * 1.24 * f64::from(FINE));
    family.into_font().color(if ink == Ink::Strong { &INK } else { &MUTED })
}

/// Writes `string` beside `place`, at its middle height.
pub fn text(area: &Area, string: &str, place: (i32, i32), size: f64, ink: Ink, side: HPos) -> Drawn {
    let style = font(size, ink).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(string.to_string(), (place.0 * FINE, place.1 * FINE), style))
}

/// About how wide `string` is.
pub fn width(string: &str, size: f64) -> i32 {
    let wide = |c: char| match c {
        'i' | 'j' | 'l' | 't' | 'f' | 'I' | '.' | ',' | ':' | ';' | '|' | '\'' | ' ' | '(' | ')' | '['
        | ']' => 0.36,
        'm' | 'w' | 'M' | 'W' | '@' | '%' | '●' | '▲' | '○' => 0.95,
        c if c.is_uppercase() => 0.72,
        c if c.is_ascii() => 0.61,
        _ => 1.0,
    };
    (string.chars().map(wide).sum::<f64>() * size).ceil() as i32
}

/// `string` or as much of it as fits into `room`.
pub fn cut(string: &str, room: i32, size: f64) -> String {
    if width(string, size) <= room {
        return string.to_string();
    }
    let mut short = String::new();
    for c in string.chars() {
        short.push(c);
        if width(&short, size) + size as i32 > room {
            short.pop();
            break;
        }
    }
    short + "…"
}

/// The space around a chart: above, right, below, left.
pub struct Space(pub i32, pub i32, pub i32, pub i32);

/// Axes with marks, a grid and titles. `rows` are for named rows, which have no lines between them.
pub fn chart<'a>(
    area: &Area<'a>,
    space: Space,
    x: (Axis, &str),
    y: (Axis, &str),
    rows: bool,
) -> Drawn<Chart<'a>> {
    let Space(above, right, below, left) = space;
    let mut chart = ChartBuilder::on(area)
        .margin_top(above * FINE)
        .margin_right(right * FINE)
        .margin_left(8 * FINE)
        .x_label_area_size(below * FINE)
        .y_label_area_size((left - 8) * FINE)
        .build_cartesian_2d(x.0.clone(), y.0.clone())?;
    let plain = |text: &Axis, value: &f64| plotters::coord::ranged1d::ValueFormatter::format_ext(text, value);
    let mut mesh = chart.configure_mesh();
    mesh.light_line_style(TRANSPARENT)
        .bold_line_style(GRID.stroke_width(FINE as u32))
        .axis_style(MUTED.stroke_width(FINE as u32))
        .set_all_tick_mark_size(4 * FINE)
        .label_style(font(11.0, if rows { Ink::Strong } else { Ink::Muted }))
        .axis_desc_style(font(11.5, Ink::Strong));
    let x_text = |value: &f64| plain(&x.0, value);
    let y_text = |value: &f64| plain(&y.0, value);
    mesh.x_label_formatter(&x_text).y_label_formatter(&y_text).x_desc(x.1);
    if rows {
        mesh.disable_y_mesh();
    } else {
        mesh.y_desc(y.1);
    }
    mesh.draw()?;
    Ok(chart)
}

/// A straight line between two points of a chart.
pub fn line(chart: &mut Chart, from: (f64, f64), to: (f64, f64), look: Look, thick: i32) -> Drawn {
    strokes(chart, &[from, to], look.colour, look.again, thick)
}

/// A line through `points`.
pub fn strokes(
    chart: &mut Chart,
    points: &[(f64, f64)],
    colour: RGBColor,
    dashed: bool,
    thick: i32,
) -> Drawn {
    let style = colour.stroke_width((thick * FINE / 2) as u32);
    if dashed {
        chart.draw_series(DashedLineSeries::new(points.iter().copied(), 6 * FINE, 4 * FINE, style))?;
    } else {
        chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
    }
    Ok(())
}

/// A helping line: thin for separating, strong for a reference.
pub fn rule(chart: &mut Chart, from: (f64, f64), to: (f64, f64), strong: bool) -> Drawn {
    strokes(chart, &[from, to], if strong { MUTED } else { GRID }, false, if strong { 3 } else { 2 })
}

/// A dot with a rim that keeps it apart from its neighbours.
pub fn dot(chart: &mut Chart, place: (f64, f64), look: Look, radius: i32) -> Drawn {
    let radius = radius * FINE / 2;
    let outer = if look.again { look.colour } else { PAPER };
    let inner = if look.again { PAPER } else { look.colour };
    chart.draw_series([
        Circle::new(place, radius + FINE, outer.filled()),
        Circle::new(place, radius, inner.filled()),
    ])?;
    Ok(())
}

/// A legend of lines and names from (10, `top`) in as many lines as it needs; the height of those is
/// [`legend_height`].
pub fn legend(area: &Area, room: i32, top: i32, entries: &[(String, Look)]) -> Drawn {
    for ((x, y), (name, look)) in legend_places(room, entries).into_iter().zip(entries) {
        let (x, y) = (x, top + y);
        let style = look.colour.stroke_width((FINE * if look.prominent { 3 } else { 2 }) as u32);
        let parts: &[(i32, i32)] = if look.again { &[(0, 7), (11, 18)] } else { &[(0, 18)] };
        for (from, to) in parts {
            let ends = [from, to].map(|end| ((x + end) * FINE, y * FINE));
            area.draw(&PathElement::new(ends.to_vec(), style))?;
        }
        text(area, &cut(name, LEGEND_NAME, 11.5), (x + 23, y), 11.5, Ink::Strong, HPos::Left)?;
    }
    Ok(())
}

const LEGEND_NAME: i32 = 180;
const LEGEND_LINE: i32 = 17;

fn legend_places(room: i32, entries: &[(String, Look)]) -> Vec<(i32, i32)> {
    let (mut x, mut y) = (12, 0);
    let place = |(name, _): &(String, Look)| {
        let wide = 23 + width(&cut(name, LEGEND_NAME, 11.5), 11.5) + 14;
        if x > 12 && x + wide > room {
            (x, y) = (12, y + LEGEND_LINE);
        }
        x += wide;
        (x - wide, y)
    };
    entries.iter().map(place).collect()
}

/// How high the legend is.
pub fn legend_height(room: i32, entries: &[(String, Look)]) -> i32 {
    legend_places(room, entries).last().map_or(0, |(_, y)| y + LEGEND_LINE)
}
