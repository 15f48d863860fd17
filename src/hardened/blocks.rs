//! Large blocks of the hardened heap are allocated and freed. A freed one cannot be touched, and its
//! addresses are not used again before others have been freed.

use crate::base::counters::LARGE_FREES;
use crate::hardened::kept::set_aside;
use crate::hardened::large::Large;
use crate::hardened::mappings::{self, hand_out};
use crate::hardened::reused;
use crate::hardened::unmapping::{ASIDE, MOST_HOLES, UNGUARDED, give_back_aside, keep, unmap};
use crate::large::huge;
use crate::lockfree::waker;
use crate::os;
use crate::superslab::pagemap;
use crate::superslab::slab::Allocation;
use crate::superslab::thp::HUGE_PAGE;
use crate::sync::Ordering::Relaxed;

/// A block of `size` bytes, at most `isize::MAX`, at a multiple of `align`. It is zero. One that `grows` gets
/// as much address space again behind it, and begins with a page.
#[unsafe(link_section = "hakmem_rare")]
pub(super) fn alloc(size: usize, align: usize, grows: bool) -> Allocation {
    let grows = grows && align <= os::page_size();
    // In a shorter one none fits between its guard pages. Who asks for new ones is counted, and has none now
    // and then.
    let huge = size >= HUGE_PAGE
        && (!grows && reused::has_huge(size)
            || huge::wants_huge_mapping(size, false)
            || grows && huge::wants_huge_copy(size));
    if !grows {
        if let Some(block) = reused::again(size, align, huge) {
            return Allocation { ptr: block, zeroed: true };
        }
    }
    let mut record = mappings::map(size, align, grows.then_some(0), huge);
    // SAFETY: just mapped, and nobody else's; the block has `size` bytes.
    if record.is_some_and(|record| !unsafe { reused::take_pages(record, size) }) {
        record = mappings::map(size, align, grows.then_some(0), huge);
    }
    let Some(record) = record else {
        // Twice the address space may be too much where once is not.
        return if grows { alloc(size, align, false) } else { Allocation::NONE };
    };
    // SAFETY: just mapped, and nobody else's.
    unsafe {
        let block = (*record).block();
        hand_out(record, block, size, align);
        Allocation { ptr: block, zeroed: true }
    }
}

impl Large {
    /// Frees the block, which begins at `block`, on behalf of `function`.
    ///
    /// # Safety
    ///
    /// The program does not use the block any more.
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) unsafe fn free(&self, block: *mut u8, function: &str) {
        if !self.give_up(block, function) {
            return;
        }
        self.count(0);
        LARGE_FREES.fetch_add(1, Relaxed);
        // As it was taken: by `self` the record could not be written to that is made of it next.
        let this = pagemap::hardened(block).cast::<Large>();
        // SAFETY: held, so nobody else gives the mapping back.
        unsafe {
            if !self.guarded.get() {
                let before = UNGUARDED.fetch_sub(1, Relaxed);
                if before > MOST_HOLES && self.len.get() <= ASIDE {
                    self.resident.store(!os::purge(self.base.get(), self.len.get()), Relaxed);
                    if set_aside(this) {
                        return;
                    }
                }
                // By what was there before: so exactly one thread finds it, however many are here.
                if before == MOST_HOLES / 2 + 1 {
                    give_back_aside();
                }
            }
            let stays = reused::wants_pages(self) && os::protect(self.base.get(), self.len.get(), false);
            self.resident.store(stays, Relaxed);
            if !stays && !os::make_inaccessible(self.base.get(), self.len.get()) {
                unmap(this);
                return;
            }
            if stays {
                self.freed.store(os::now_ms(), Relaxed);
            }
            keep(this);
            if stays {
                // As for slabs: first it is counted, under a lock that the background thread does not take.
                waker::notify_unlocked();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hardened::kept::QUARANTINE;
    use crate::hardened::unmapping::mapped;
    use crate::hardened::{child, large};
    use crate::superslab::pagemap;

    /// Without the quarantine, as here, too: to map each anew would cost several times as much.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn the_pages_of_a_freed_block_serve_the_next_one() {
        let block = alloc(100_000, 16, false).ptr;
        // SAFETY: our own block, which is freed once.
        unsafe {
            block.write_bytes(7, 100_000);
            large::of(pagemap::hardened(block).cast(), block).unwrap().free(block, "free");
        }
        let again = alloc(100_000, 16, false);
        assert!(again.ptr == block && again.zeroed);
        // SAFETY: ours again.
        assert!(unsafe { core::slice::from_raw_parts(block, 100_000) }.iter().all(|&byte| byte == 0));
    }

    /// It would be set aside, but a signal handler that frees it has interrupted who has the lock.
    #[test]
    #[cfg_attr(miri, ignore)]
    fn what_cannot_be_set_aside_is_unmapped() {
        let is_so = || {
            crate::hardened::inherit();
            let block = alloc(100_000, 16, false).ptr;
            // SAFETY: the record of a block.
            let large = unsafe { large::of(pagemap::hardened(block).cast(), block) }.unwrap();
            let (len, before) = (large.len.get(), mapped().0);
            UNGUARDED.store(MOST_HOLES + 1, Relaxed);
            let held = QUARANTINE.lock_soon();
            // SAFETY: our own block, which is freed once.
            unsafe { large.free(block, "free") };
            held.is_some() && !large.guarded.get() && mapped().0 == before - len
        };
        assert!(child::is_so(is_so));
    }
}
