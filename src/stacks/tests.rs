//! Tests of walks.

#![cfg(not(miri))]

mod libraries;

use super::*;
use crate::os::child;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;

/// What a walk has found.
#[derive(Clone, Copy)]
struct Walk {
    pcs: [usize; DEEPEST],
    captured: Captured,
}

impl Walk {
    #[inline(never)]
    fn now() -> Self {
        // While another test's thread reads the first list, no walk gets anywhere, and none waits.
        while modules::version() == 0 && !modules::reread(true) {
            std::thread::yield_now();
        }
        let mut pcs = [0; DEEPEST];
        let captured = capture(&mut pcs);
        Self { pcs, captured }
    }

    fn pcs(&self) -> &[usize] {
        &self.pcs[..self.captured.depth]
    }

    #[track_caller]
    fn assert_complete(&self) {
        assert_eq!(self.captured.end, End::Complete, "{:x?}", self.pcs());
        // Below are at least the test, a closure of a thread, the start of one in Rust and in C.
        assert!(self.captured.depth > 4, "{:x?}", self.pcs());
    }

    /// Whether a frame is in this module.
    fn has(&self, path: &str) -> bool {
        let (mut found, mut modules) = (false, 0);
        let mut each = |module: modules::Module<'_>| {
            modules += 1;
            let is_it = String::from_utf8_lossy(module.path).contains(path);
            found |= is_it && self.pcs().iter().any(|pc| (module.start..module.end).contains(pc));
        };
        while modules::each(&mut each).is_none() {}
        assert!(modules > 3, "{modules} modules");
        found
    }
}

thread_local! {
    static LAST: Cell<Option<Walk>> = const { Cell::new(None) };
}

/// Walks, and leaves what was found to [`last`].
extern "C" fn walk_now() {
    LAST.set(Some(Walk::now()));
}

fn last() -> Walk {
    LAST.take().expect("nobody has walked")
}

#[inline(never)]
fn nest(depth: usize) -> Walk {
    if depth == 0 {
        return Walk::now();
    }
    let walk = nest(black_box(depth) - 1);
    black_box(walk)
}

#[test]
fn a_thread_is_walked_to_its_start() {
    let walk = nest(20);
    walk.assert_complete();
    // The call in `nest` that is repeated.
    let most = walk.pcs().iter().map(|pc| walk.pcs().iter().filter(|other| *other == pc).count()).max();
    assert_eq!(most, Some(20));
    // Again by what was remembered.
    let again = nest(20);
    assert_eq!(walk.captured, again.captured);
    assert_eq!(walk.pcs()[1..21], again.pcs()[1..21]);

    let deep = nest(2 * DEEPEST);
    assert_eq!(deep.captured, Captured { depth: DEEPEST, end: End::Full });
    let mut few = [0; 3];
    assert_eq!(capture(&mut few), Captured { depth: 3, end: End::Full });
    assert_eq!(capture(&mut []), Captured { depth: 0, end: End::Full });
    std::thread::spawn(|| nest(3).assert_complete()).join().unwrap();
}

#[test]
fn a_callback_of_the_c_library_is_walked_through() {
    /// # Safety
    ///
    /// None is needed.
    unsafe extern "C" fn compare(_: *const c_void, _: *const c_void) -> c_int {
        walk_now();
        0
    }
    let mut numbers = [3, 1, 2];
    // SAFETY: an array of 3 elements of that size.
    unsafe { libc::qsort(numbers.as_mut_ptr().cast(), 3, 4, Some(compare)) };
    let walk = last();
    if cfg!(target_env = "gnu") {
        walk.assert_complete();
        assert!(walk.has("libc.so"));
    } else {
        // musl's functions have neither unwind tables nor frame pointers: a walk ends in the caller of one.
        assert!(walk.captured.end == End::Stopped && walk.captured.depth >= 3);
    }
}

/// Raises a signal whose handler walks, on an alternate stack if that is to be.
fn walk_in_handler(is_alternate: bool) -> Walk {
    extern "C" fn handle(_: c_int) {
        walk_now();
    }
    let len = 64 << 10;
    let memory = os::map_uncounted(len);
    // SAFETY: all zeros is a valid `sigaction` and `stack_t`; the memory is not used by anybody else, and
    // stays until the old stack is set again. The handler touches nothing but a variable of this thread.
    unsafe {
        let mut stack: libc::stack_t = std::mem::zeroed();
        let mut old = stack;
        (stack.ss_sp, stack.ss_size) = (memory.cast(), len);
        assert_eq!(libc::sigaltstack(&stack, &mut old), 0);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as extern "C" fn(c_int) as usize;
        action.sa_flags = if is_alternate { libc::SA_ONSTACK } else { 0 };
        assert_eq!(libc::sigaction(libc::SIGUSR2, &action, ptr::null_mut()), 0);
        libc::raise(libc::SIGUSR2);
        assert_eq!(libc::sigaltstack(&old, ptr::null_mut()), 0);
        os::discard_uncounted(memory, len);
    }
    last()
}

#[test]
fn a_signal_handler_is_walked_through_on_any_stack() {
    for is_alternate in [false, true] {
        walk_in_handler(is_alternate).assert_complete();
    }
}

/// Code without unwind tables: a frame with a frame pointer, from which the argument is called.
#[cfg(target_arch = "x86_64")]
const COMPILED: &[u8] = b"\x55\x48\x89\xe5\x48\x83\xec\x20\xff\xd7\xc9\xc3";
#[cfg(target_arch = "aarch64")]
const COMPILED: &[u8] = b"\xfd\x7b\xbe\xa9\xfd\x03\x00\x91\x00\x00\x3f\xd6\xfd\x7b\xc2\xa8\xc0\x03\x5f\xd6";

#[test]
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn code_made_at_run_time_is_walked_by_frame_pointers() {
    // While another test's thread reads the maps, this one does not.
    if !child::is_alone() {
        return;
    }
    for _ in 0..3 {
        let len = os::page_size();
        // SAFETY: a mapping of its own; the code in it is a function of that type.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let code = libc::mmap(ptr::null_mut(), len, access, flags, -1, 0);
            assert_ne!(code, libc::MAP_FAILED);
            COMPILED.as_ptr().copy_to(code.cast(), COMPILED.len());
            assert_eq!(libc::mprotect(code, len, libc::PROT_READ | libc::PROT_EXEC), 0);
            let call: extern "C" fn(extern "C" fn()) = std::mem::transmute(code);
            call(walk_now);
            let (from, to) = (code.expose_provenance(), code.expose_provenance() + len);
            let walk = last();
            walk.assert_complete();
            assert!(walk.pcs().iter().any(|&pc| from < pc && pc < to));
            modules::reread(true);
            assert!(modules::find(from).is_some_and(|code| code.base == 0), "it is no file");
            libc::munmap(code, len);
        }
    }
}

#[test]
fn what_is_no_stack_ends_a_walk() {
    let real = nest(10);
    let len = 16 * os::page_size();
    let memory = os::map_uncounted(len);
    let start = memory.expose_provenance();
    let usable = len - os::page_size();
    // SAFETY: mapped just now; the last page is not used again.
    assert_eq!(unsafe { libc::mprotect(memory.add(usable).cast(), os::page_size(), libc::PROT_NONE) }, 0);
    let words = usable / size_of::<usize>();
    let mut x = 88172645463325252u64;
    let mut random = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as usize
    };
    let mut ends = [0; 4];
    for _ in 0..3000 {
        for i in 0..words {
            let word = match random() % 8 {
                0 | 1 => start + random() % len,
                2..5 => real.pcs()[random() % real.captured.depth],
                5 => random() % 5000,
                6 => start.wrapping_sub(8),
                _ => random(),
            };
            // SAFETY: within what is accessible.
            unsafe { memory.cast::<usize>().add(i).write(word) };
        }
        let mut any = || match random() % 16 {
            0 => random(),
            1 => 0,
            2 => usize::MAX - 7,
            _ => (start + random() % len) & !7,
        };
        let registers = [any(), any(), any()];
        let pc = if any() % 4 == 0 { any() } else { real.pcs()[any() % real.captured.depth] };
        let frame = Frame { pc, registers, is_exact: false, is_sp_a_guess: any() % 32 == 0 };
        let mut pcs = [0; DEEPEST];
        ends[walk(frame, Stack::at((&raw const pcs).expose_provenance()), &mut pcs).end as usize] += 1;
    }
    println!("{ends:?}");
    assert!(ends[End::Stopped as usize] > 2000);
    // SAFETY: mapped above. Its last page cannot be touched, as what is kept after a refusal must be.
    assert!(unsafe { os::unmap_uncounted(memory, len) } == os::Unmapped::Gone);
}

#[test]
fn a_pc_in_no_module_ends_a_walk_soon() {
    let word = [1usize; 8];
    let sp = (&raw const word).expose_provenance();
    let start = std::time::Instant::now();
    for i in 0..10_000 {
        let frame = Frame { pc: 4096 + i, registers: [sp, sp, 0], is_exact: false, is_sp_a_guess: false };
        let mut pcs = [0; DEEPEST];
        assert_eq!(walk(frame, Stack::at((&raw const pcs).expose_provenance()), &mut pcs).end, End::Stopped);
    }
    println!("{:?}", start.elapsed());
}

#[test]
fn the_child_of_a_fork_walks() {
    assert!(child::is_so(|| {
        let end = nest(5).captured.end;
        modules::reread(true);
        end == End::Complete
    }));
}

#[test]
fn threads_walk_while_mappings_come_and_go() {
    nest(1).assert_complete();
    let rounds = if std::env::var_os("HAKMEM_LONG").is_some() { 100_000 } else { 3000 };
    let is_done = crate::sync::AtomicBool::new(false);
    let done = || is_done.load(crate::sync::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (len, mut lists) = (os::page_size(), 0);
            while lists == 0 || !done() {
                let access = libc::PROT_READ | libc::PROT_EXEC;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                // SAFETY: a mapping of its own, which nobody uses.
                unsafe {
                    let code = libc::mmap(ptr::null_mut(), len, access, flags, -1, 0);
                    lists += usize::from(modules::reread(true));
                    libc::munmap(code, len);
                }
                lists += usize::from(modules::reread(true));
                // Other tests need the lock, too.
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        });
        let walkers: Vec<_> = (0..3)
            .map(|_| {
                scope.spawn(|| {
                    for i in 0..rounds {
                        if i % 16 == 0 {
                            KNOWN.clear();
                        }
                        nest(i % 8).assert_complete();
                    }
                })
            })
            .collect();
        let results: Vec<_> = walkers.into_iter().map(|walker| walker.join()).collect();
        is_done.store(true, crate::sync::Ordering::Relaxed);
        results.into_iter().for_each(|result| result.unwrap());
    });
}

/// Runs a thread on a stack of `len` bytes; how many of them it has used.
fn stack_used(len: usize, main: extern "C" fn(*mut c_void) -> *mut c_void) -> usize {
    let stack = os::map_uncounted(len);
    // SAFETY: the stack is mapped, and the thread has ended before it is read and unmapped.
    unsafe {
        stack.write_bytes(0xa5, len);
        let mut attributes = std::mem::zeroed();
        let mut thread = std::mem::zeroed();
        assert_eq!(libc::pthread_attr_init(&mut attributes), 0);
        assert_eq!(libc::pthread_attr_setstack(&mut attributes, stack.cast(), len), 0);
        assert_eq!(libc::pthread_create(&mut thread, &attributes, main, ptr::null_mut()), 0);
        libc::pthread_attr_destroy(&mut attributes);
        assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
        let unused = (0..len).take_while(|&i| *stack.add(i) == 0xa5).count();
        os::discard_uncounted(stack, len);
        len - unused
    }
}

#[test]
fn little_stack_is_used() {
    extern "C" fn nothing(_: *mut c_void) -> *mut c_void {
        black_box(&mut [0; 64]);
        ptr::null_mut()
    }
    extern "C" fn cold_thread(_: *mut c_void) -> *mut c_void {
        KNOWN.clear();
        modules::reread(true);
        assert_eq!(capture(black_box(&mut [0; 64])).end, End::Complete);
        ptr::null_mut()
    }
    extern "C" fn warm(_: *mut c_void) -> *mut c_void {
        capture(black_box(&mut [0; 64]));
        ptr::null_mut()
    }
    if !child::is_alone() {
        return;
    }
    // The second time, the walk's way is known.
    let [nothing, cold, _, warm] = [nothing, cold_thread, warm, warm].map(|main| stack_used(128 << 10, main));
    println!("{nothing} bytes of stack without a walk, {cold} with a cold one, {warm} with a warm one");
    // A debug build takes more.
    assert!(cfg!(debug_assertions) || cold < nothing + 4608);
    // The smallest stack that a thread may have.
    let least = if cfg!(debug_assertions) { 32 << 10 } else { 0 };
    stack_used(libc::PTHREAD_STACK_MIN.max(least), cold_thread);
}

#[test]
fn modules_have_paths_and_build_ids() {
    if !child::is_alone() {
        return;
    }
    modules::reread(true);
    let (mut named, mut with_id) = (0, 0);
    let each = |module: modules::Module<'_>| {
        assert!(module.start < module.end && module.offset % 4096 == 0);
        named += usize::from(!module.path.is_empty());
        with_id += usize::from(module.build_id.len() >= 8);
    };
    assert!(modules::each(each).is_some_and(|version| version > 0));
    assert!(named >= 2 && with_id >= 1, "{named} {with_id}");
}
