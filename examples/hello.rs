//! The least that a program needs to run on Hakmem: `cargo run --example hello`.

#[global_allocator]
static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();

fn main() {
    let words: Vec<String> = (1..=3).map(|i| format!("hello {i}")).collect();
    println!("{}", words.join(", "));
    assert!(hakmem::stats().allocated_bytes > 0, "Hakmem serves this program");
    println!("served by Hakmem {}", hakmem::VERSION);
}
