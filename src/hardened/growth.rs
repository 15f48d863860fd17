//! Which classes get big slabs: those of which the program uses much. A big slab can have huge pages, needs
//! few mappings, and a guard page for 2 MiB.
//!
//! All atomics here are relaxed: they are figures, on which no other memory depends.

use crate::base::table::Table;
use crate::os;
use crate::superslab::pagemap::KINDS;
use crate::superslab::thp;
use crate::sync::AtomicUsize;
use crate::sync::Ordering::Relaxed;

/// What one class has.
struct Class {
    /// Slices of slabs that have been used up once.
    filled: AtomicUsize,
    /// Big slabs that have not.
    open: AtomicUsize,
}

static OF: Table<Class, KINDS> = Table([const { Class::new() }; KINDS]);

/// So many slices of a class have to be filled for the first big slab: if that stays empty, it wastes twice
/// as much as they are.
const FROM: usize = 16;
/// And so many more for each that is not used up yet, but with another thread: together these waste at most
/// half as much as what is filled. With 16 threads they would waste more than there is in use.
const FROM_NEXT: usize = 64;

impl Class {
    const fn new() -> Self {
        Class { filled: AtomicUsize::new(0), open: AtomicUsize::new(0) }
    }

    fn wants_big(&self) -> bool {
        self.filled.load(Relaxed) >= FROM + FROM_NEXT * self.open.load(Relaxed)
    }

    fn made(&self, big: bool) {
        if big {
            self.open.fetch_add(1, Relaxed);
        }
    }

    fn filled(&self, slices: usize, big: bool) {
        self.filled.fetch_add(slices, Relaxed);
        if big {
            less(&self.open, 1);
        }
    }

    fn released(&self, slices: usize, big: bool, filled: bool) {
        if filled {
            less(&self.filled, slices);
        } else if big {
            less(&self.open, 1);
        }
    }
}

/// Whether the blocks of a slab that is not big are resident, none of which is fresh; the last one may not
/// have been touched yet. Long ones, of which a program may use a part, are what the kernel says, unless an
/// option says who has huge pages. If the kernel does not, they are not.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn are_filled(base: *mut u8, blocks: usize, stride: usize) -> bool {
    if !thp::is_long(stride) || !thp::is_ours() {
        return true;
    }
    let expected = (blocks - 1) * stride / os::page_size();
    // SAFETY: this only asks; a slab that is not big is shorter than 2 MiB.
    let resident = unsafe { os::resident_pages(base, blocks * stride) };
    expected != 0 && resident.is_some_and(|resident| thp::is_long_filled(resident, expected))
}

/// Subtracts, down to 0: a fork may have come between two of these.
fn less(from: &AtomicUsize, n: usize) {
    let _ = from.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(n)));
}

/// Whether the next slab of a class should be a big one.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn wants_big(class: usize) -> bool {
    OF[class].wants_big()
}

/// Notes a new slab of a class, which is big or not.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn made(class: usize, big: bool) {
    OF[class].made(big);
}

/// Notes that a slab of so many slices has no block left, for the first time.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn filled(class: usize, slices: usize, big: bool) {
    OF[class].filled(slices, big);
}

/// Notes that a slab is given back, which was `filled` once or not.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn released(class: usize, slices: usize, big: bool, filled: bool) {
    OF[class].released(slices, big, filled);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_big_slab_needs_as_much_that_is_filled() {
        let class = Class::new();
        (0..FROM - 1).for_each(|_| class.filled(1, false));
        assert!(!class.wants_big());
        class.filled(1, false);
        assert!(class.wants_big());
        class.made(false);
        assert!(class.wants_big());
        // One that is not used up yet, another thread's, say: not before there is as much more.
        class.made(true);
        class.filled(FROM_NEXT - 1, false);
        assert!(!class.wants_big());
        class.filled(1, false);
        assert!(class.wants_big());
        class.made(true);
        assert!(!class.wants_big());
        // One is used up.
        class.filled(FROM, true);
        assert!(class.wants_big());
        class.released(FROM, true, false);
        class.released(FROM + FROM_NEXT, false, true);
        assert!(class.wants_big());
        class.released(1, false, true);
        assert!(!class.wants_big());
    }
}
