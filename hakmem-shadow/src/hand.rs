//! What one thread has, and how it does an operation.

use crate::block::{Block, Family};
use crate::faults;
use crate::functions::Functions;
use crate::operations::{Free, Operation, Request};
use crate::process;
use crate::session::{HAKMEM, Session};
use std::alloc::{GlobalAlloc, Layout};
use std::sync::atomic::Ordering::Relaxed;

/// The most blocks that a thread keeps.
const MOST_BLOCKS: usize = 12_000;
/// What `errno` is before each call.
const ERRNO: i32 = 77;

/// What `std::nothrow` is does not matter, only that it has an address.
static NOTHROW: u8 = 0;

/// A thread's blocks, and what it shares with the others.
pub(crate) struct Hand<'a> {
    pub(crate) session: &'a Session,
    pub(crate) number: usize,
    pub(crate) blocks: Vec<Block>,
    /// What to end the scope with, if the thread is in one.
    scope: Option<u32>,
}

fn errno() -> &'static std::cell::Cell<i32> {
    // SAFETY: this thread's own.
    unsafe { &*libc::__errno_location().cast() }
}

/// What `malloc` promises.
fn usual_align(size: usize) -> usize {
    if size <= 8 { 8 } else { 16 }
}

/// Frees a block in the way that fits its family. `errno` stays what it is.
pub(crate) fn free(functions: &Functions, block: Block, how: Free) {
    let (layout, family) = (block.layout, block.family);
    let at = block.release();
    let (size, align) = (layout.size(), layout.align());
    errno().set(ERRNO);
    // Both forms of each operator, by chance: of one and of many.
    let cxx = || (functions.cxx.expect("a block of C++'s"), at.addr() >> 4 & 1);
    // SAFETY: a block of that family and layout, and nobody else has it.
    unsafe {
        match (family, how) {
            (Family::Rust, _) => HAKMEM.dealloc(at, layout),
            (Family::C, Free::Sized) => (functions.free_sized)(at, size),
            (Family::C, Free::ByRealloc) => assert!((functions.realloc)(at, 0).is_null()),
            (Family::CAligned, Free::Sized) => (functions.free_aligned_sized)(at, align, size),
            (Family::C | Family::CAligned, _) => (functions.free)(at),
            (Family::Cxx, Free::Sized) => cxx().0.delete_sized[cxx().1](at, size),
            (Family::Cxx, _) => cxx().0.delete[cxx().1](at),
            (Family::CxxAligned, Free::Sized) => cxx().0.delete_sized_aligned[cxx().1](at, size, align),
            (Family::CxxAligned, _) => cxx().0.delete_aligned[cxx().1](at, align),
        }
    }
    assert_eq!(errno().get(), ERRNO, "{family:?} {how:?} has changed errno");
}

impl<'a> Hand<'a> {
    pub(crate) fn new(session: &'a Session, number: usize, blocks: Vec<Block>) -> Self {
        Self { session, number, blocks, scope: None }
    }

    /// Does the operations. True if the thread is to end.
    pub(crate) fn run(&mut self, operations: &[Operation]) -> bool {
        for operation in operations {
            self.session.done.fetch_add(1, Relaxed);
            if let Operation::Exit(late) = operation {
                if *late && !cfg!(miri) {
                    let late = self.blocks.split_off(self.blocks.len().saturating_sub(24));
                    let bytes: usize = late.iter().map(|block| block.layout.size()).sum();
                    self.session.bytes.fetch_sub(bytes, Relaxed);
                    process::free_at_exit(self.session.functions, late);
                }
                return true;
            }
            self.run_one(operation);
        }
        false
    }

    fn run_one(&mut self, operation: &Operation) {
        let allowed = &self.session.allowed;
        match *operation {
            Operation::Allocate(request, size, align) => self.allocate(request, size, align),
            Operation::Many(request, size, count) => {
                for _ in 0..count.min(allowed.most_at_once) {
                    self.allocate(request, size, 1);
                }
            }
            Operation::Free(index, how) => {
                if let Some(i) = index.checked_rem(self.blocks.len()) {
                    let block = self.blocks.swap_remove(i);
                    self.free(block, how);
                }
            }
            Operation::FreeMany(step, most, how) => {
                let from = self.blocks.len().saturating_sub(most);
                for (i, block) in self.blocks.split_off(from).into_iter().enumerate() {
                    if i % step == 0 { self.free(block, how) } else { self.blocks.push(block) }
                }
            }
            Operation::Resize(index, size) => self.resize(index, size),
            Operation::Grow(index, steps) => {
                for _ in 0..=steps {
                    let Some(i) = index.checked_rem(self.blocks.len()) else { return };
                    let size = self.blocks[i].layout.size();
                    self.resize(index, size + size / 2 + 1);
                }
            }
            Operation::Touch(index) => self.touch(index),
            Operation::Give(to, most) => {
                let from = self.blocks.len().saturating_sub(most);
                self.session.mailbox(to).lock().unwrap().append(&mut self.blocks.split_off(from));
            }
            Operation::Take(keep) => {
                let mut taken = std::mem::take(&mut *self.session.mailbox(self.number).lock().unwrap());
                if keep {
                    self.blocks.append(&mut taken);
                }
                taken.into_iter().for_each(|block| self.free(block, Free::Plain));
            }
            Operation::Scope(tag) => self.scope(tag),
            Operation::Fork(ref bytes) => {
                if self.session.may_fork() {
                    process::fork(self, bytes);
                }
            }
            Operation::Fail(kinds, pass, fail) => {
                if allowed.faults {
                    self.session.has_failed.store(true, Relaxed);
                    faults::plan(kinds, pass, fail);
                }
            }
            Operation::Exit(_) => unreachable!("{operation:?}"),
            ref other => self.session.of_the_process(other),
        }
    }

    /// Whether an allocation may be refused now.
    fn may_be_refused(&self, size: usize) -> bool {
        size >= process::absurd() || faults::are_planned() || self.session.refusing.load(Relaxed)
    }

    /// The size that is asked for, instead of one that would take too much memory here.
    fn within(&self, size: usize) -> usize {
        if size >= process::absurd() { size } else { size.min(self.session.allowed.largest) }
    }

    fn allocate(&mut self, request: Request, size: usize, align: usize) {
        let session = self.session;
        let (mut size, f) = (self.within(size), session.functions);
        if self.blocks.len() >= MOST_BLOCKS || size < process::absurd() && !session.has_room(size) {
            return;
        }
        let request = session.translated(request);
        let align = match request {
            Request::Rust | Request::RustZeroed => align,
            Request::PosixMemalign | Request::NewAligned => align.max(16),
            Request::Valloc | Request::Pvalloc => process::page_size(),
            Request::AlignedAlloc | Request::Memalign => align.max(usual_align(size)),
            _ => usual_align(size),
        };
        if matches!(request, Request::Rust | Request::RustZeroed) {
            size = size.max(1);
        }
        if request == Request::Pvalloc && size < process::absurd() {
            // Whole pages are what is asked for, and so what a sized free has to say.
            size = size.max(1).next_multiple_of(align);
        }
        let Ok(layout) = Layout::from_size_align(size, align) else {
            return self.expect_none(request, size);
        };
        let may_be_refused = self.may_be_refused(size);
        let (count, each) = if size % 8 == 0 { (size / 8, 8) } else { (1, size) };
        let null = std::ptr::null_mut();
        let cxx = || (f.cxx.expect("a request of C++'s"), size & 1);
        errno().set(ERRNO);
        // SAFETY: any sizes, a layout that is none of zero bytes, and alignments that are powers of two.
        let (at, family) = unsafe {
            match request {
                Request::Rust => (HAKMEM.alloc(layout), Family::Rust),
                Request::RustZeroed => (HAKMEM.alloc_zeroed(layout), Family::Rust),
                Request::Malloc => ((f.malloc)(size), Family::C),
                Request::Calloc => ((f.calloc)(count, each), Family::C),
                Request::Realloc => ((f.realloc)(null, size), Family::C),
                Request::ReallocArray => ((f.reallocarray)(null, count, each), Family::C),
                Request::PosixMemalign => {
                    let mut out = null;
                    let error = (f.posix_memalign)(&mut out, align, size);
                    assert!(error == if out.is_null() { libc::ENOMEM } else { 0 });
                    (out, Family::CAligned)
                }
                Request::AlignedAlloc => ((f.aligned_alloc)(align, size), Family::CAligned),
                Request::Memalign => ((f.memalign)(align, size), Family::CAligned),
                Request::Valloc => ((f.valloc)(size), Family::CAligned),
                Request::Pvalloc => ((f.pvalloc)(size), Family::CAligned),
                Request::New if !may_be_refused => (cxx().0.new[cxx().1](size), Family::Cxx),
                Request::NewAligned if !may_be_refused => {
                    (cxx().0.new_aligned[cxx().1](size, align), Family::CxxAligned)
                }
                Request::New | Request::NewNothrow | Request::NewAligned => {
                    (cxx().0.new_nothrow[cxx().1](size, (&raw const NOTHROW).cast()), Family::Cxx)
                }
            }
        };
        let error = errno().get();
        if at.is_null() {
            let refused = may_be_refused || session.may_have_refused();
            assert!(refused, "{request:?} of {layout:?} is refused");
            // The core's aligned allocation leaves it to who exports it.
            let sets = family == Family::C || f.cxx.is_some() && family == Family::CAligned;
            assert!(!sets || error == libc::ENOMEM, "{request:?} of {layout:?}: errno is {error}");
            session.refused.fetch_add(1, Relaxed);
            return;
        }
        assert_eq!(error, ERRNO, "{request:?} of {layout:?} has changed errno");
        if matches!(request, Request::Calloc | Request::RustZeroed) {
            // SAFETY: just allocated with that many bytes.
            unsafe { Block::expect_zero(at, size) };
        }
        let align = if family == Family::Cxx { usual_align(size) } else { align };
        self.keep(Block::new(at, Layout::from_size_align(size, align).unwrap(), family));
    }

    /// More bytes than there are addresses, in all and by a product that overflows.
    fn expect_none(&self, request: Request, size: usize) {
        let f = self.session.functions;
        errno().set(ERRNO);
        // SAFETY: any sizes.
        let at = unsafe {
            match request {
                Request::Calloc => (f.calloc)(size, 16),
                Request::ReallocArray => (f.reallocarray)(std::ptr::null_mut(), size, 16),
                _ => (f.malloc)(size),
            }
        };
        assert!(at.is_null() && errno().get() == libc::ENOMEM, "{size} bytes: {at:p}");
    }

    fn keep(&mut self, block: Block) {
        self.session.bytes.fetch_add(block.layout.size(), Relaxed);
        self.blocks.push(block);
    }

    pub(crate) fn free(&self, block: Block, how: Free) {
        self.session.bytes.fetch_sub(block.layout.size(), Relaxed);
        free(&self.session.functions, block, how);
    }

    fn resize(&mut self, index: usize, size: usize) {
        let Some(i) = index.checked_rem(self.blocks.len()) else { return };
        let size = self.within(size).max(1);
        let may_be_refused = self.may_be_refused(size);
        let (session, f) = (self.session, self.session.functions);
        let block = &mut self.blocks[i];
        let before = block.layout;
        if size < process::absurd() && !session.has_room(size) {
            return;
        }
        let align = match block.family {
            Family::Rust => before.align(),
            Family::C | Family::CAligned => usual_align(size),
            Family::Cxx | Family::CxxAligned => return,
        };
        if Layout::from_size_align(size, align).is_err() {
            return;
        }
        let mut error = 0;
        let family = block.family;
        let resized = block.resize(size, align, |at| {
            errno().set(ERRNO);
            // SAFETY: a block with this layout, or one of C's, and the new size makes a layout.
            let moved = unsafe {
                match family {
                    Family::Rust => HAKMEM.realloc(at, before, size),
                    _ if size % 3 == 0 => (f.reallocarray)(at, size / 3, 3),
                    _ => (f.realloc)(at, size),
                }
            };
            // At once: the map's lock is a system call now and then, too.
            error = errno().get();
            moved
        });
        if !resized {
            let refused = may_be_refused || session.may_have_refused();
            assert!(refused, "from {before:?} to {size}: refused");
            assert!(block.family == Family::Rust || error == libc::ENOMEM, "errno is {error}");
            session.refused.fetch_add(1, Relaxed);
            return;
        }
        assert_eq!(error, ERRNO, "realloc has changed errno");
        if block.family == Family::CAligned {
            block.family = Family::C;
        }
        session.bytes.fetch_add(size, Relaxed);
        session.bytes.fetch_sub(before.size(), Relaxed);
    }

    fn touch(&self, index: usize) {
        let Some(i) = index.checked_rem(self.blocks.len()) else { return };
        let block = &self.blocks[i];
        block.check();
        if block.family != Family::Rust {
            // SAFETY: a block of the library's.
            let usable = unsafe { (self.session.functions.usable_size)(block.at) };
            assert!(usable >= block.layout.size(), "{usable} bytes can be used of {block:?}");
        }
    }

    fn scope(&mut self, tag: u8) {
        const TAGS: [&std::ffi::CStr; 3] = [c"one", c"another", c"a third"];
        let f = self.session.functions;
        if let Some(before) = self.scope.take() {
            // SAFETY: what beginning it has returned.
            unsafe { (f.scope_end)(before) };
        }
        if tag != 0 {
            let tag = TAGS[usize::from(tag) % TAGS.len()];
            // SAFETY: a C string.
            self.scope = Some(unsafe { (f.scope_begin)(tag.as_ptr()) });
        }
    }
}

impl Drop for Hand<'_> {
    fn drop(&mut self) {
        faults::plan(0, 0, 0);
        if !std::thread::panicking() {
            self.scope(0);
        }
    }
}
