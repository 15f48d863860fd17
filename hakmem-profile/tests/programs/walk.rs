//! The same in Rust: a method of a trait in a module.

mod shop {
    pub trait Buy {
        fn buy(&self, frames: &mut [usize; 64]) -> i32;
    }

    pub struct Basket;

    impl Buy for Basket {
        #[inline(never)]
        fn buy(&self, frames: &mut [usize; 64]) -> i32 {
            std::hint::black_box(unsafe { super::backtrace(frames.as_mut_ptr(), 64) })
        }
    }
}

unsafe extern "C" {
    fn backtrace(frames: *mut usize, most: i32) -> i32;
}

fn main() {
    let mut frames = [0; 64];
    let n = shop::Buy::buy(&shop::Basket, &mut frames);
    for frame in &frames[..n as usize] {
        println!("{frame:#x}");
    }
    print!("{}", std::fs::read_to_string("/proc/self/maps").unwrap());
}
