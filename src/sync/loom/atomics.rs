//! Atomics of the same size as core's: the memory holds core's, and its address stands for one of loom's
//! while a model runs.

use super::{Ordering, RUNNING, SHORT, SPARES, site};
use core::sync::atomic as real;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::vec::Vec;

/// Whether the address is one of a static of this program, which goes on to exist.
fn is_static(address: usize) -> bool {
    unsafe extern "C" {
        static __data_start: u8;
        static _end: u8;
    }
    ((&raw const __data_start).addr()..(&raw const _end).addr()).contains(&address)
}

/// One of loom's atomics, bound to an address. It holds values as they differ from the one that lay there.
struct Bound<L> {
    cell: L,
    first: u64,
    last: Cell<u64>,
}

struct Pool<L> {
    spare: Vec<L>,
    bound: HashMap<usize, Rc<Bound<L>>>,
}

macro_rules! width {
    ($module:ident, $loom:ident, $int:ty, $real:ident) => {
        pub(super) mod $module {
            use super::*;
            pub(super) use loom::sync::atomic::$loom as Inner;

            std::thread_local! {
                static POOL: RefCell<Pool<Inner>> =
                    RefCell::new(Pool { spare: Vec::new(), bound: HashMap::new() });
            }

            pub(in crate::sync::loom) fn begin() {
                POOL.with_borrow_mut(|pool| {
                    pool.bound.clear();
                    pool.spare.clear();
                    pool.spare.extend((0..SPARES.get()).map(|_| Inner::new(0)));
                });
            }

            pub(in crate::sync::loom) fn end() {
                POOL.with_borrow_mut(|pool| {
                    for (&address, bound) in &pool.bound {
                        if is_static(address) {
                            // SAFETY: the address is that of an atomic of this width, in a static.
                            let at = unsafe { &*core::ptr::with_exposed_provenance::<real::$real>(address) };
                            at.store(bound.first as $int, Ordering::Relaxed);
                        }
                    }
                    let ended = (core::mem::take(&mut pool.bound), core::mem::take(&mut pool.spare));
                    // A model that has failed has taken loom's part of them along.
                    if std::thread::panicking() {
                        core::mem::forget(ended);
                    }
                });
            }

            /// The value that the atomic at this address is put back to, if it has been used.
            #[allow(dead_code)]
            pub(in crate::sync::loom) fn before(address: usize) -> Option<u64> {
                POOL.with_borrow(|pool| pool.bound.get(&address).map(|bound| bound.first))
            }

            pub(in crate::sync::loom) fn forget(stays: &impl Fn(&usize) -> bool) {
                POOL.with_borrow_mut(|pool| pool.bound.retain(|address, _| stays(address)));
            }

            /// Runs one operation. `on` gets loom's atomic and what values differ by; the result is the value
            /// that the memory has to have then, if another one, and what the operation returns.
            pub(super) fn with<T>(
                memory: &real::$real,
                on: impl FnOnce(&Inner, $int) -> (Option<$int>, T),
            ) -> T {
                let address = core::ptr::from_ref(memory).expose_provenance();
                let value = memory.load(Ordering::Relaxed);
                let bound = POOL.with_borrow_mut(|pool| {
                    let spare = &mut pool.spare;
                    let made = pool.bound.entry(address).or_insert_with(|| {
                        let cell = spare.pop().expect(SHORT);
                        Rc::new(Bound { cell, first: value as u64, last: Cell::new(value as u64) })
                    });
                    made.clone()
                });
                if bound.last.get() != value as u64 {
                    bound.last.set(value as u64);
                    bound.cell.store(value ^ bound.first as $int, Ordering::Relaxed);
                }
                let (now, result) = on(&bound.cell, bound.first as $int);
                if let Some(now) = now {
                    bound.last.set(now as u64);
                    memory.store(now, Ordering::Relaxed);
                }
                result
            }
        }
    };
}

width!(w8, AtomicU8, u8, AtomicU8);
width!(w32, AtomicU32, u32, AtomicU32);
width!(w64, AtomicU64, u64, AtomicU64);

/// An atomic of type `$t`, which the model has as an integer `$int` in the pool `$module`.
macro_rules! atomic {
    ($name:ident [$($p:ident)?], $t:ty, $module:ident, $int:ty, $real:ident, $of:expr, $to:expr) => {
        #[repr(transparent)]
        #[derive(Default)]
        pub(crate) struct $name<$($p)?>(real::$name<$($p)?>);

        #[allow(dead_code)]
        impl<$($p)?> $name<$($p)?> {
            pub(crate) const fn new(value: $t) -> Self {
                Self(real::$name::new(value))
            }
            /// # Safety
            /// As core's.
            pub(crate) const unsafe fn from_ptr<'a>(at: *mut $t) -> &'a Self {
                // SAFETY: by the caller's contract; the layouts are the same.
                unsafe { &*at.cast::<Self>() }
            }
            pub(crate) const fn as_ptr(&self) -> *mut $t {
                self.0.as_ptr()
            }
            fn memory(&self) -> &real::$real {
                // SAFETY: an atomic of the same size.
                unsafe { &*core::ptr::from_ref(self).cast() }
            }
            #[track_caller]
            pub(crate) fn load(&self, order: Ordering) -> $t {
                self.load_as(0, order)
            }
            #[track_caller]
            fn load_as(&self, slot: u8, order: Ordering) -> $t {
                if !RUNNING.get() {
                    return self.0.load(order);
                }
                let order = site(slot, order);
                $to($module::with(self.memory(), |cell, d| (None, cell.load(order) ^ d)))
            }
            #[track_caller]
            pub(crate) fn store(&self, value: $t, order: Ordering) {
                if !RUNNING.get() {
                    return self.0.store(value, order);
                }
                let (value, order): ($int, _) = ($of(value), site(0, order));
                $module::with(self.memory(), |cell, d| (Some(value), cell.store(value ^ d, order)))
            }
            #[track_caller]
            pub(crate) fn swap(&self, value: $t, order: Ordering) -> $t {
                if !RUNNING.get() {
                    return self.0.swap(value, order);
                }
                let (value, order): ($int, _) = ($of(value), site(0, order));
                $to($module::with(self.memory(), |cell, d| (Some(value), cell.swap(value ^ d, order) ^ d)))
            }
            #[track_caller]
            pub(crate) fn compare_exchange(
                &self,
                from: $t,
                to: $t,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$t, $t> {
                if !RUNNING.get() {
                    return self.0.compare_exchange(from, to, success, failure);
                }
                let (from, to): ($int, $int) = ($of(from), $of(to));
                let (success, failure) = (site(0, success), site(1, failure));
                $module::with(self.memory(), |cell, d| {
                    match cell.compare_exchange(from ^ d, to ^ d, success, failure) {
                        Ok(was) => (Some(to), Ok($to(was ^ d))),
                        Err(was) => (None, Err($to(was ^ d))),
                    }
                })
            }
            #[track_caller]
            pub(crate) fn compare_exchange_weak(
                &self,
                from: $t,
                to: $t,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$t, $t> {
                self.compare_exchange(from, to, success, failure)
            }
            #[track_caller]
            pub(crate) fn fetch_update(
                &self,
                set: Ordering,
                fetch: Ordering,
                mut f: impl FnMut($t) -> Option<$t>,
            ) -> Result<$t, $t> {
                // The first load is one with the second ordering.
                let mut before = self.load_as(1, fetch);
                while let Some(after) = f(before) {
                    match self.compare_exchange(before, after, set, fetch) {
                        Ok(was) => return Ok(was),
                        Err(was) => before = was,
                    }
                }
                Err(before)
            }
        }
    };
}

/// The operations of integers. With a first value of zero they are loom's own.
macro_rules! arithmetic {
    ($name:ident, $t:ty, $module:ident, $int:ty, $($op:ident: $f:expr),*) => {
        #[allow(dead_code)]
        impl $name {
            $(
                #[track_caller]
                pub(crate) fn $op(&self, by: $t, order: Ordering) -> $t {
                    if !RUNNING.get() {
                        return self.0.$op(by, order);
                    }
                    let f: fn($t, $t) -> $t = $f;
                    let weaker = site(0, order);
                    let own = $module::with(self.memory(), |cell, d| match d {
                        0 => {
                            let was = cell.$op(by as $int, weaker) as $t;
                            (Some(f(was, by) as $int), Some(was))
                        }
                        _ => (None, None),
                    });
                    // No closure: that would be another caller.
                    let Some(was) = own else {
                        let failed = Ordering::Relaxed;
                        return self.fetch_update(weaker, failed, |was| Some(f(was, by))).unwrap_or_else(|was| was);
                    };
                    was
                }
            )*
        }
    };
}

macro_rules! integer {
    ($name:ident, $t:ty, $module:ident, $int:ty, $real:ident) => {
        atomic!($name [], $t, $module, $int, $real, |v: $t| v as $int, |v: $int| v as $t);
        arithmetic!($name, $t, $module, $int,
            fetch_add: |a, b| a.wrapping_add(b), fetch_sub: |a, b| a.wrapping_sub(b),
            fetch_or: |a, b| a | b, fetch_and: |a, b| a & b);
    };
}

integer!(AtomicU8, u8, w8, u8, AtomicU8);
integer!(AtomicU32, u32, w32, u32, AtomicU32);
integer!(AtomicI32, i32, w32, u32, AtomicU32);
integer!(AtomicU64, u64, w64, u64, AtomicU64);
integer!(AtomicUsize, usize, w64, u64, AtomicU64);
// Smaller and larger of two need the sign.
macro_rules! extremes {
    ($name:ident, $t:ty) => {
        #[allow(dead_code)]
        impl $name {
            #[track_caller]
            pub(crate) fn fetch_max(&self, by: $t, order: Ordering) -> $t {
                self.fetch_update(order, Ordering::Relaxed, |was| Some(was.max(by))).unwrap_or_else(|was| was)
            }
            #[track_caller]
            pub(crate) fn fetch_min(&self, by: $t, order: Ordering) -> $t {
                self.fetch_update(order, Ordering::Relaxed, |was| Some(was.min(by))).unwrap_or_else(|was| was)
            }
        }
    };
}
extremes!(AtomicU32, u32);
extremes!(AtomicU64, u64);
extremes!(AtomicUsize, usize);
extremes!(AtomicI32, i32);
atomic!(AtomicBool [], bool, w8, u8, AtomicU8, |v: bool| v as u8, |v: u8| v != 0);
atomic!(AtomicPtr[T], *mut T, w64, u64, AtomicU64, |v: *mut T| v.expose_provenance() as u64, |v: u64| {
    core::ptr::with_exposed_provenance_mut(v as usize)
});
