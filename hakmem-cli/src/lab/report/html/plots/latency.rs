//! Latencies of single calls, from the median to the slowest, on a logarithmic axis.

use hakmem_workloads::Percentiles;
use plotters::prelude::{Circle, Color, Cross, TriangleMarker};

use super::Plot;
use super::axis::Axis;
use super::canvas::{self, Drawn, FINE, FOOT, HALF, HEAD, Space};
use crate::lab::model::{Unit, Workload};
use crate::lab::report::html::palette::{Look, Palette};

/// Of malloc and free, both with the same axis; none where latencies were not measured.
pub fn both(workload: &Workload, slug: &str, palette: &Palette) -> [Option<Plot>; 2] {
    let rows: Vec<_> =
        workload.rows.iter().filter_map(|row| Some((row.subject.as_str(), row.latency.as_ref()?))).collect();
    if rows.is_empty() {
        return [None, None];
    }
    let all =
        rows.iter().flat_map(|(_, latency)| [figures(&latency.malloc), figures(&latency.free)]).flatten();
    let axis = Axis::logarithmic(all, Unit::Nanoseconds);
    let of = |call: &str, own: &dyn Fn(usize) -> [f64; 4]| {
        let points: Vec<_> =
            rows.iter().enumerate().map(|(i, (name, _))| (*name, palette.look(name), own(i))).collect();
        plot(workload, slug, call, &axis, &points)
    };
    [Some(of("malloc", &|i| figures(&rows[i].1.malloc))), Some(of("free", &|i| figures(&rows[i].1.free)))]
}

fn figures(of: &Percentiles) -> [f64; 4] {
    [of.p50, of.p99, of.p999, of.max]
}

fn plot(workload: &Workload, slug: &str, call: &str, axis: &Axis, points: &[(&str, Look, [f64; 4])]) -> Plot {
    let title = format!("{}: latency of {call}", workload.name);
    let runs = workload.rows.iter().map(|row| row.runs.len()).max().unwrap_or(0);
    let each = if runs == 1 { "1 run".to_string() } else { format!("medians of {runs} runs") };
    let subtitle = format!("● p50   ▲ p99   ○ p99.9   × slowest; {each}, without the clock's cost");
    let names: Vec<String> = points.iter().map(|(name, ..)| canvas::cut(name, 110, 11.0)).collect();
    let left = names.iter().map(|name| canvas::width(name, 11.0)).max().unwrap_or(0).max(40) + 16;
    let size = (HALF, HEAD + FOOT + points.len() as i32 * 24 + 10);
    let svg = canvas::document((&title, &subtitle), size, |area| {
        let x = (axis.clone(), "time of a call, logarithmic (less is better)");
        let mut chart = canvas::chart(area, Space(HEAD, 24, FOOT, left), x, (Axis::rows(&names), ""), true)?;
        for (i, (_, look, values)) in points.iter().enumerate() {
            let y = i as f64 + 0.5;
            let place = |value: f64| (value, y);
            canvas::line(&mut chart, place(values[0]), place(values[3]), *look, 3)?;
            markers(&mut chart, values.map(place), *look)?;
        }
        Ok(())
    });
    let note =
        format!("{subtitle}. A call of 0 ns took less than the timer can tell and is drawn at the left edge");
    Plot { file: format!("{slug}-latency-{call}"), title, note, wide: false, svg }
}

fn markers(chart: &mut canvas::Chart, places: [(f64, f64); 4], look: Look) -> Drawn {
    let solid = look.colour.filled();
    let stroke = look.colour.stroke_width(FINE as u32 * 2);
    let [middle, high, higher, slowest] = places;
    canvas::dot(chart, higher, Look { again: true, ..look }, 7)?;
    chart.draw_series([TriangleMarker::new(high, 6 * FINE, solid)])?;
    chart.draw_series([Cross::new(slowest, 5 * FINE, stroke)])?;
    chart.draw_series([Circle::new(middle, 5 * FINE, solid)])?;
    Ok(())
}
