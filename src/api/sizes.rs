//! How many bytes a block has, and how many one would have.

use crate::api::hardened;
#[cfg(not(any(feature = "asan", feature = "valgrind")))]
use crate::api::slow_path;
#[cfg(any(feature = "asan", feature = "valgrind"))]
use crate::api::watched;
use crate::large;
#[cfg(not(any(feature = "asan", feature = "valgrind")))]
use crate::superslab::pagemap;
use crate::tiny::classes::{class_of, stride};
use core::alloc::Layout;

/// With the features `asan` and `valgrind` blocks have what was asked for, and not a byte more.
const WATCHED: bool = cfg!(any(feature = "asan", feature = "valgrind"));

/// The bytes that a block has: at least what was asked for. 0 for null.
///
/// This is the size of its class, or as it was rounded up: [`good_size`] says the same in advance, unless
/// `realloc` has made it shorter or longer where it lies. It is
/// exactly what was asked for in hardened mode, and with the features `asan` and `valgrind`.
///
/// Made for those who count what things cost. What lies beyond the size in the layout is not the program's
/// where the block came from [`std::alloc`](https://doc.rust-lang.org/std/alloc/): the compiler takes it to
/// end there. Nor is it zeroed by `alloc_zeroed`, or copied by `realloc`. Who has use for all bytes asks for
/// [`good_size`] of them.
///
/// `dealloc` and `realloc` still want the layout that the block was allocated with (or the size that
/// `realloc` gave it last), and not one of the size that this returns.
///
/// What is seen not to be a block in use is reported as any other misuse, which ends the process by default;
/// where it does not, this returns 0.
///
/// # Safety
///
/// `block` is null, or a block of this allocator that is in use: one that [`Hakmem`](crate::Hakmem) has
/// allocated, and that nobody frees or resizes meanwhile. What has no bytes (an empty `Vec`, a `Box<()>`) has
/// no block.
///
/// ```
/// #[global_allocator]
/// static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();
///
/// fn main() {
///     let text = String::from("a string whose buffer has as many bytes as it is long");
///     // SAFETY: the buffer of a string that is not empty is a block, and this is the program's allocator.
///     let bytes = unsafe { hakmem::usable_size(text.as_ptr()) };
///     assert!(bytes >= text.capacity());
/// }
/// ```
pub unsafe fn usable_size(block: *const u8) -> usize {
    let block = block.cast_mut();
    if block.is_null() {
        return 0;
    }
    #[cfg(any(feature = "asan", feature = "valgrind"))]
    // SAFETY: the caller's clause is the same.
    return unsafe { watched::usable(block, "usable_size") };
    #[cfg(not(any(feature = "asan", feature = "valgrind")))]
    slow_path::usable(block, pagemap::kind(block), "usable_size")
}

/// How many bytes an allocation of `layout` really gets: the size of its class; above 64 KiB a multiple of 64
/// KiB; above 960 KiB, or at multiples of more than 64 KiB, the system's pages. At least the size in the
/// layout; who asks for this many instead wastes nothing, and gets as many.
///
/// The layout of that size and the same alignment is valid. A layout that no memory could serve has the size
/// that it says. So have all in hardened mode, for which the options count (they are read when the process
/// allocates its first block), and with the features `asan` and `valgrind`. A block above 960 KiB may get
/// more, if it is made from one that was freed and kept. [`usable_size`] says what a block has got.
///
/// ```
/// use std::alloc::Layout;
///
/// let layout = Layout::array::<u8>(1100).unwrap();
/// assert_eq!(hakmem::good_size(layout), 1280);
/// let buffer: Vec<u8> = Vec::with_capacity(hakmem::good_size(layout));
/// ```
pub fn good_size(layout: Layout) -> usize {
    bytes_for(layout.size(), layout.align())
}

/// [`good_size`] of what C's `malloc` would be asked for.
pub fn good_size_in_c(size: usize) -> usize {
    bytes_for(size, 16)
}

fn bytes_for(size: usize, align: usize) -> usize {
    const MOST: usize = isize::MAX as usize;
    if WATCHED || size > MOST || hardened::is_on() {
        return size;
    }
    match stride(class_of(size, align) as usize) {
        0 => large::bytes_for(size, align).filter(|&bytes| bytes <= MOST).unwrap_or(size),
        stride => stride as usize,
    }
}
