//! What a sample of the heap profile costs, its call stack included, by the depth of the stack:
//! `cargo run --release -p hakmem-tests --example sample_cost`.

use std::hint::black_box;
use std::time::Instant;

#[global_allocator]
static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();

/// Nanoseconds for each of so many boxes that are made and dropped, below so many more frames.
#[inline(never)]
fn time(frames: u32, boxes: u32) -> f64 {
    if frames > 0 {
        return black_box(time(black_box(frames) - 1, boxes));
    }
    let start = Instant::now();
    (0..boxes).for_each(|i| drop(black_box(Box::new(i))));
    start.elapsed().as_nanos() as f64 / f64::from(boxes)
}

fn main() -> Result<(), hakmem::profile::Error> {
    println!("frames   without   sampled, ns for each box");
    for frames in [0, 10, 30, 90] {
        let without = time(frames, 1_000_000);
        hakmem::profile::start(1)?;
        // The first ones read where code is.
        time(frames, 100);
        let sampled = time(frames, 20_000);
        hakmem::profile::stop();
        println!("{frames:6} {without:9.1} {sampled:9.1}");
    }
    Ok(())
}
