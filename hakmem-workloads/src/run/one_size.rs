//! Blocks of one size, to see at which sizes an allocator does well.

use super::{Context, Error};
use crate::block;
use crate::heap::Heap;
use crate::mapped::Mapped;
use crate::meter::Meter;
use crate::report::Report;
use crate::workload::{Parameter, Preset, Workload};

/// A preset for either mode of each size: KiB, MiB of volume (so that a run takes some time, and not too
/// much), blocks live at once.
macro_rules! presets {
    ($($size:literal $volume:literal $live:literal $plain:literal $grown:literal;)*) => {
        &[$(
            Preset { name: $plain, values: &[("size", $size << 10), ("volume", $volume), ("live", $live)] },
            Preset { name: $grown, values: &[("size", $size << 10), ("volume", $volume), ("live", 1), ("grow", 1)] },
        )*]
    };
}

/// The declaration.
pub static WORKLOAD: Workload = Workload {
    name: "one-size",
    models: "blocks of one size in turn: allocated, written and freed, or grown to it by doubling from a page",
    parameters: &[
        Parameter { name: "size", default: 64 << 10, least: 64, most: 1 << 40, help: "bytes of a block" },
        Parameter {
            name: "volume",
            default: 512,
            least: 1,
            most: 1 << 20,
            help: "MiB allocated, written (a word of every 4 KiB) and freed",
        },
        Parameter { name: "live", default: 2, least: 1, most: 1 << 10, help: "blocks live at once" },
        Parameter {
            name: "grow",
            default: 0,
            least: 0,
            most: 1,
            help: "1: each begins with 4 KiB and is doubled by realloc until it has its size",
        },
    ],
    presets: presets! {
        32 16384 2 "32k" "grow-32k";
        64 16384 2 "64k" "grow-64k";
        128 16384 2 "128k" "grow-128k";
        256 16384 2 "256k" "grow-256k";
        512 8192 2 "512k" "grow-512k";
        1024 8192 2 "1m" "grow-1m";
        2048 8192 2 "2m" "grow-2m";
        4096 4096 2 "4m" "grow-4m";
        8192 4096 2 "8m" "grow-8m";
        16384 2048 2 "16m" "grow-16m";
        32768 1024 2 "32m" "grow-32m";
        65536 1024 2 "64m" "grow-64m";
        131072 1024 2 "128m" "grow-128m";
        262144 1024 1 "256m" "grow-256m";
        524288 1024 1 "512m" "grow-512m";
    },
    figures: &[],
    latency: false,
    primary: None,
    targets: &[],
};

/// What a block that grows begins with.
const START: usize = 4096;

/// Runs it.
pub fn run<H: Heap>(context: &Context<H>) -> Result<Report, Error> {
    let (heap, settings) = (context.heap, context.settings);
    let size = settings.size("size");
    let count = ((settings.size("volume") << 20) / size).max(1);
    let live = settings.size("live").min(count);
    let grow = settings["grow"] == 1;
    let mut ring = Mapped::<usize>::new(live);
    let mut operations = 0;
    let meter = Meter::start();
    for i in 0..count + live {
        if i >= live {
            // SAFETY: made `live` rounds ago with this size, and overwritten or not used again.
            unsafe { block::drop(heap, ring[i % live] as *mut u8, size) };
        }
        if i < count {
            let (block, calls) = if grow { grown(heap, size) } else { (block::make(heap, size), 1) };
            ring[i % live] = block as usize;
            operations += calls + 1;
        }
    }
    Ok(meter.finish(operations, 0))
}

/// A block that came to its size by doubling, and the calls that took.
fn grown<H: Heap>(heap: &H, to: usize) -> (*mut u8, u64) {
    let mut size = START.min(to);
    let mut block = block::make(heap, size);
    let mut calls = 1;
    while size < to {
        let next = (size * 2).min(to);
        // SAFETY: live, of this size, and its old address is overwritten.
        block = unsafe { block::resize(heap, block, size, next) };
        size = next;
        calls += 1;
    }
    (block, calls)
}
