//! Colours: each subject has one through the whole page.

use plotters::style::RGBColor;

use crate::lab::model::Subject;

/// Hakmem's, which no other subject gets. This one and the next five are Okabe and Ito's, which stay apart
/// for the colour-blind; all have enough contrast on white and on nearly black.
const HAKMEM: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
const OTHERS: [RGBColor; 8] = [
    RGBColor(0x1F, 0x7F, 0xC4),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0xC9, 0x96, 0x10),
    RGBColor(0x45, 0xB5, 0xD8),
    RGBColor(0x8C, 0x6B, 0xD1),
    RGBColor(0x8B, 0x8F, 0x94),
    RGBColor(0x9A, 0x63, 0x24),
];

/// How a subject is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Look {
    /// Its colour.
    pub colour: RGBColor,
    /// Whether lines are dashed and dots hollow, because another subject has the same colour.
    pub again: bool,
    /// Whether it is the one to look at: its lines are thicker.
    pub prominent: bool,
}

/// The looks of all subjects.
pub struct Palette(Vec<(String, Look)>);

impl Palette {
    /// Hakmem, or its first setting, is prominent; the others take the colours in turn.
    pub fn new(subjects: &[Subject]) -> Self {
        let exact = subjects.iter().position(|subject| subject.name == "hakmem");
        let hakmem = exact.or_else(|| subjects.iter().position(|subject| subject.name.starts_with("hakmem")));
        let mut turn = 0;
        let look = |(i, subject): (usize, &Subject)| {
            let look = if Some(i) == hakmem {
                Look { colour: HAKMEM, again: false, prominent: true }
            } else {
                turn += 1;
                let again = (turn - 1) / OTHERS.len() % 2 == 1;
                Look { colour: OTHERS[(turn - 1) % OTHERS.len()], again, prominent: false }
            };
            (subject.name.clone(), look)
        };
        Self(subjects.iter().enumerate().map(look).collect())
    }

    /// How the subject of this name is drawn.
    pub fn look(&self, name: &str) -> Look {
        let known = self.0.iter().find(|(known, _)| known == name);
        known.map_or(Look { colour: OTHERS[6], again: true, prominent: false }, |(_, look)| *look)
    }

    /// The subject's colour for a style sheet.
    pub fn css(&self, name: &str) -> String {
        let RGBColor(red, green, blue) = self.look(name).colour;
        format!("#{red:02X}{green:02X}{blue:02X}")
    }
}
