//! Misuse of Rust's interface, for the table in docs/security.md: as the C programs in hakmem-capi/tests/c
//! (support/security.h says how), with `GlobalAlloc`'s functions called directly. `KIND system` takes the
//! system's allocator instead of Hakmem, which is the one that is preloaded, if one is.

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::exit;

static HAKMEM: hakmem::Hakmem = hakmem::Hakmem::new();

const SIZES: [Size; 4] = [
    Size { name: "small", bytes: 32, number: 200, many: 2000 },
    Size { name: "medium", bytes: 5120, number: 40, many: 300 },
    Size { name: "large", bytes: 200 << 10, number: 6, many: 24 },
    Size { name: "huge", bytes: 4 << 20, number: 3, many: 8 },
];
const SECRET: u64 = 0x7365_6372_6574_3a20;

#[derive(Clone, Copy)]
struct Size {
    name: &'static str,
    bytes: usize,
    number: usize,
    many: usize,
}

#[derive(Clone, Copy)]
struct Block {
    at: *mut u8,
    layout: Layout,
    seed: u8,
    live: bool,
}

/// What the program believes to own, and the first effect of its misuse.
struct World {
    allocator: &'static dyn GlobalAlloc,
    blocks: Vec<Block>,
    effect: Option<&'static str>,
    size: Size,
    /// A block with neighbours on both sides.
    own: usize,
    state: u64,
}

/// The byte at a place of a block.
fn byte(seed: u8, place: usize) -> u8 {
    seed.wrapping_add((place * 7 + (place >> 8)) as u8)
}

impl World {
    fn had(&mut self, effect: &'static str) {
        self.effect.get_or_insert(effect);
    }

    /// Allocates a block, fills it, and returns its number.
    fn take(&mut self, layout: Layout) -> usize {
        // SAFETY: no size here is zero.
        let at = unsafe { self.allocator.alloc(layout) };
        self.enter(at, layout)
    }

    fn enter(&mut self, at: *mut u8, layout: Layout) -> usize {
        if at.is_null() {
            self.had("no memory");
        }
        let (begin, end) = (at as usize, at as usize + layout.size());
        let meets = |other: &Block| {
            other.live && begin < other.at as usize + other.layout.size() && (other.at as usize) < end
        };
        if self.blocks.iter().any(meets) {
            self.had("memory was handed out twice");
        }
        let seed = self.blocks.len() as u8;
        for place in 0..if at.is_null() { 0 } else { layout.size() } {
            // SAFETY: inside the block, if the allocator is right; finding out is what this is for.
            unsafe { at.add(place).write(byte(seed, place)) };
        }
        self.blocks.push(Block { at, layout, seed, live: !at.is_null() });
        self.blocks.len() - 1
    }

    fn look(&mut self, number: usize) {
        let Block { at, layout, seed, live } = self.blocks[number];
        // SAFETY: as in `enter`.
        let holds = |place: usize| unsafe { at.add(place).read() } == byte(seed, place);
        if live && !(0..layout.size()).all(holds) {
            self.had("the data of a block was changed");
        }
    }

    fn look_at_all(&mut self) {
        (0..self.blocks.len()).for_each(|number| self.look(number));
    }

    /// The block is no longer the program's, and still to be freed.
    fn drop(&mut self, number: usize) -> *mut u8 {
        self.blocks[number].live = false;
        std::hint::black_box(self.blocks[number].at)
    }

    fn give(&mut self, number: usize) {
        self.look(number);
        if self.blocks[number].live {
            let layout = self.blocks[number].layout;
            let at = self.drop(number);
            self.free(at, layout);
        }
    }

    fn free(&mut self, at: *mut u8, layout: Layout) {
        // SAFETY: none for those who misuse it: that is the point.
        unsafe { self.allocator.dealloc(std::hint::black_box(at), layout) };
    }

    fn some(&mut self) -> Layout {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let random = (self.state >> 33) as usize;
        of(if random % 8 == 7 { 1024 + random / 8 % 40000 } else { 1 + random / 8 % 512 })
    }

    fn history(&mut self) {
        for _ in 0..240 {
            let layout = self.some();
            self.take(layout);
        }
        (0..240).step_by(3).for_each(|number| self.give(number));
        let first = self.blocks.len();
        self.take_some(self.size.number);
        self.own = first + self.size.number / 2;
    }

    fn go_on(&mut self) {
        self.look_at_all();
        (0..self.blocks.len()).step_by(2).for_each(|number| self.give(number));
        for _ in 0..150 {
            let layout = self.some();
            self.take(layout);
        }
        for _ in 0..self.size.number / 2 + 2 {
            self.take(of(self.size.bytes));
            if self.size.bytes < 1 << 20 {
                self.take(of(self.size.bytes / 2));
                self.take(of(self.size.bytes * 2));
            }
        }
        self.look_at_all();
        (0..self.blocks.len()).for_each(|number| self.give(number));
    }

    fn take_some(&mut self, number: usize) {
        for _ in 0..number {
            self.take(of(self.size.bytes));
        }
    }

    fn take_many(&mut self) {
        self.take_some(self.size.many);
    }
}

fn of(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 8).unwrap()
}

/// Frees `own` with another layout.
fn freed_as(world: &mut World, layout: Layout) {
    let at = world.drop(world.own);
    world.free(at, layout);
}

/// Resizes `own` to twice its size, with a wrong old layout.
fn resized_as(world: &mut World, old: usize) {
    let at = world.drop(world.own);
    // SAFETY: it is not: that is the point.
    let new = unsafe { world.allocator.realloc(at, of(old), world.size.bytes * 2) };
    world.enter(new, of(world.size.bytes * 2));
}

fn twice(world: &mut World) {
    let at = world.drop(world.own);
    (0..2).for_each(|_| world.free(at, of(world.size.bytes)));
    world.take_many();
}

fn interior(world: &mut World) {
    let at = world.blocks[world.own].at.wrapping_add(16);
    world.free(at, of(world.size.bytes));
    world.take_many();
}

fn stack(world: &mut World) {
    let mut array = [0_u64; 64];
    world.free((&raw mut array).cast(), of(world.size.bytes));
    (0..world.size.many).for_each(|_| {
        let new = world.take(of(world.size.bytes));
        if world.blocks[new].at == (&raw mut array).cast() {
            world.had("memory that is no block was handed out");
        }
    });
}

fn over(world: &mut World) {
    let end = world.blocks[world.own].at.wrapping_add(world.size.bytes);
    // SAFETY: it is not: that is the point.
    unsafe { end.write_volatile(end.read_volatile() ^ 0x55) };
}

fn stale(world: &mut World) {
    let at = world.drop(world.own);
    world.free(at, of(world.size.bytes));
    let middle = at.wrapping_add(world.size.bytes / 2);
    // SAFETY: it is not: that is the point.
    unsafe { middle.write_volatile(middle.read_volatile() ^ 0x55) };
    world.take_many();
}

fn fresh(world: &mut World) {
    let at = world.drop(world.own);
    let words = world.size.bytes / 8;
    // SAFETY: of a block that is still allocated.
    (0..words).for_each(|word| unsafe { at.cast::<u64>().add(word).write_volatile(SECRET) });
    world.free(at, of(world.size.bytes));
    for _ in 0..world.size.number {
        // SAFETY: no size here is zero.
        let new = unsafe { world.allocator.alloc(of(world.size.bytes)) };
        // SAFETY: inside the block, though nobody has written there.
        if (0..words).any(|word| unsafe { new.cast::<u64>().add(word).read_volatile() } == SECRET) {
            world.had("the secret was read");
        }
        world.enter(new, of(world.size.bytes));
    }
}

struct Kind {
    group: &'static str,
    what: &'static str,
    misuse: fn(&mut World),
    /// Indices of the sizes that it is done with.
    sizes: &'static [usize],
    words: &'static str,
}

macro_rules! kinds {
    ($($group:literal $what:literal $sizes:expr, $words:literal, $misuse:expr;)*) => {
        [$(Kind { group: $group, what: $what, misuse: $misuse, sizes: &$sizes, words: $words }),*]
    };
}

const KINDS: &[Kind] = &kinds! {
    "wrong layout" "rust-half" [0, 1, 2, 3], "`dealloc` with half the size",
        |w| freed_as(w, of(w.size.bytes / 2));
    "wrong layout" "rust-double" [0, 1, 2, 3], "`dealloc` with twice the size",
        |w| freed_as(w, of(w.size.bytes * 2));
    "wrong layout" "rust-less" [0, 1, 2, 3], "`dealloc` with a byte less", |w| freed_as(w, of(w.size.bytes - 1));
    "wrong layout" "rust-16" [1, 2, 3], "`dealloc` with 16 bytes", |w| freed_as(w, of(16));
    "wrong layout" "rust-8m" [0, 1, 2], "`dealloc` with 8 MiB", |w| freed_as(w, of(8 << 20));
    "wrong layout" "rust-align" [0, 1, 2], "`dealloc` with an alignment of 4096",
        |w| freed_as(w, Layout::from_size_align(w.size.bytes, 4096).unwrap());
    "wrong layout" "rust-realloc-half" [0, 1, 2, 3], "`realloc` with half the size",
        |w| resized_as(w, w.size.bytes / 2);
    "wrong layout" "rust-realloc-double" [0, 1, 2, 3], "`realloc` with twice the size",
        |w| resized_as(w, w.size.bytes * 2);
    "Rust" "rust-twice" [0, 1, 2, 3], "`dealloc` twice in a row", twice;
    "Rust" "rust-interior" [0, 1, 2, 3], "`dealloc` of a pointer 16 bytes into a block", interior;
    "Rust" "rust-stack" [0, 1, 2, 3], "`dealloc` of the stack", stack;
    "Rust" "rust-over" [0, 1, 2, 3], "1 byte behind the end is written", over;
    "Rust" "rust-stale" [0, 1, 2, 3], "a byte of a freed block is written", stale;
    "Rust" "rust-fresh" [0, 1, 2, 3], "a secret of an earlier block is read", fresh;
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments == ["list"] {
        for kind in KINDS {
            for &size in kind.sizes {
                println!("{}\t{}/{}\t{}", kind.group, kind.what, SIZES[size].name, kind.words);
            }
        }
        return;
    }
    let (what, size) = arguments[0].split_once('/').expect("WHAT/SIZE");
    let mut size = *SIZES.iter().find(|one| one.name == size).expect("a size");
    // SAFETY: both only change what this process may do.
    unsafe {
        libc::setrlimit(libc::RLIMIT_CORE, &libc::rlimit { rlim_cur: 0, rlim_max: 0 });
        libc::alarm(30);
    }
    let system = arguments.get(1).is_some_and(|which| which == "system");
    let allocator: &'static dyn GlobalAlloc = if system { &System } else { &HAKMEM };
    if system {
        // What it serves without rounding up.
        let layout = of(size.bytes);
        // SAFETY: the size is not zero; freed as it was allocated; the system's blocks are the C library's.
        unsafe {
            let probe = System.alloc(layout);
            size.bytes = libc::malloc_usable_size(probe.cast());
            System.dealloc(probe, layout);
        }
    }
    let blocks = Vec::with_capacity(8192);
    let mut world = World { allocator, blocks, effect: None, size, own: 0, state: 1 };
    world.history();
    // `none/SIZE`: the same history without misuse.
    if what != "none" {
        (KINDS.iter().find(|kind| kind.what == what).expect("a kind").misuse)(&mut world);
    }
    world.go_on();
    if let Some(effect) = world.effect {
        println!("{effect}");
        exit(3);
    }
}
