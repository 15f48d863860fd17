//! Blocks of which a part is used.

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::{Meter, resident};
use crate::report::Report;
use crate::workload::{Figure, Limit, Parameter, Preset, Target, Workload};

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "part-used",
    models: "a program that fills its first blocks, and of the later ones, as of buffers, uses a part: what it does not \
             touch should not be resident",
    parameters: &[
        Parameter {
            name: "filled",
            default: 60,
            least: 0,
            most: 1 << 20,
            help: "MiB in blocks that are filled",
        },
        Parameter {
            name: "filled_size",
            default: 256 << 10,
            least: 8,
            most: 1 << 30,
            help: "bytes of each of these",
        },
        Parameter {
            name: "later",
            default: 120,
            least: 1,
            most: 1 << 20,
            help: "MiB in blocks made afterwards",
        },
        Parameter {
            name: "size",
            default: 256 << 10,
            least: 8,
            most: 1 << 30,
            help: "bytes of each of these",
        },
        Parameter {
            name: "front",
            default: 4_096,
            least: 8,
            most: 1 << 30,
            help: "bytes of its front that are used, at most all of it",
        },
        Parameter {
            name: "step",
            default: 4_096,
            least: 4_096,
            most: 1 << 30,
            help: "bytes from one word that is written in the front to the next",
        },
        Parameter { name: "zeroed", default: 0, least: 0, most: 1, help: "1: from calloc" },
    ],
    presets: &[
        Preset {
            name: "connections",
            values: &[("filled", 12), ("filled_size", 700), ("size", 16 << 10), ("front", 512)],
        },
        Preset { name: "buffers", values: &[("size", 512 << 10)] },
        Preset {
            name: "tables",
            values: &[
                ("filled", 16),
                ("filled_size", 8 << 20),
                ("later", 280),
                ("size", 56 << 20),
                ("front", 56 << 20),
                ("step", 2 << 20),
                ("zeroed", 1),
            ],
        },
        Preset {
            name: "arenas",
            values: &[("filled", 42), ("filled_size", 3 << 20), ("size", 3 << 20), ("front", 64 << 10)],
        },
    ],
    figures: &[
        Figure { key: "excess", label: "resident / pages touched", unit: "ratio" },
        Figure { key: "untouched", label: "resident, and not touched", unit: "bytes" },
    ],
    latency: false,
    primary: Some("excess"),
    targets: &[
        Target::of("", "excess", Limit::AtMost(1.35)),
        Target::of("connections", "excess", Limit::AtMost(1.35)),
        Target::of("buffers", "excess", Limit::AtMost(1.35)),
        Target::of("tables", "excess", Limit::AtMost(1.35)),
        Target::of("arenas", "excess", Limit::AtMost(1.35)),
    ],
};

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let (filled_size, size) = (settings.size("filled_size"), settings.size("size"));
    // Words are written where a word can lie.
    let (front, step) = (settings.size("front").min(size), settings.size("step") & !7);
    let zeroed = settings["zeroed"] != 0;
    let mut filled = Mapped::<usize>::new((settings.size("filled") << 20) / filled_size);
    let mut later = Mapped::<usize>::new((settings.size("later") << 20).div_ceil(size));
    // Else they would become resident with the blocks.
    filled.iter_mut().chain(later.iter_mut()).for_each(|place| *place = 1);
    let before = resident();
    let meter = Meter::start();
    for place in filled.iter_mut() {
        *place = block::make(heap, filled_size) as usize;
    }
    for place in later.iter_mut() {
        *place = block::make_part(heap, size, front, step, zeroed) as usize;
    }
    let live = filled.len() * filled_size + later.len() * size;
    let mut report = meter.finish((filled.len() + later.len()) as u64, live as u64);
    // SAFETY: asks for a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let pages = front.div_ceil(step.max(page));
    let touched = (filled.len() * filled_size + later.len() * (pages * page).min(size)) as f64;
    let resident = report.resident_after.saturating_sub(before) as f64;
    report.figures =
        vec![("excess".into(), resident / touched), ("untouched".into(), (resident - touched).max(0.0))];
    for (places, size) in [(&filled, filled_size), (&later, size)] {
        for &place in places.iter() {
            // SAFETY: made above with this size, and not used again.
            unsafe { block::drop(heap, place as *mut u8, size) };
        }
    }
    Ok(report)
}
