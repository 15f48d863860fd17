//! The stack of free heap records.

use crate::lockfree::record_stack::{RECORD_ALIGN, RecordStack};
use crate::sync::Node;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicPtr, Ordering};
use loom::thread;
use std::ptr;

/// Makes raw pointers movable into a thread.
struct Carry<T>(*mut T);
// SAFETY: the tests hand each node to one thread.
unsafe impl<T> Send for Carry<T> {}

/// A heap record, as the recycling stack sees one.
#[repr(align(4096))]
struct Record {
    next: AtomicPtr<Record>,
    payload: UnsafeCell<u32>,
}

// SAFETY: the link is an atomic of its own, as in a heap.
unsafe impl Node for Record {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: passed on.
        unsafe { (*node).next.load(Ordering::Relaxed) }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: passed on.
        unsafe { (*node).next.store(next, Ordering::Relaxed) }
    }
}

fn record() -> *mut Record {
    assert_eq!(align_of::<Record>(), RECORD_ALIGN);
    Box::into_raw(Box::new(Record { next: AtomicPtr::new(ptr::null_mut()), payload: UnsafeCell::new(0) }))
}

/// Two threads pop, use and push back while two records circulate: no record is ever with two threads, which is also
/// what ABA would break.
#[test]
fn recycled_records_belong_to_one_thread() {
    loom::model(|| {
        let stack = Arc::new(RecordStack::<Record>::new());
        let records = [record(), record()];
        // SAFETY: fresh records that live until the end.
        unsafe {
            stack.push(records[0]);
            stack.push(records[1]);
        }
        let work = |stack: &RecordStack<Record>| {
            // SAFETY: records live until the end of the model; what is popped is ours, which loom checks.
            unsafe {
                let node = stack.pop();
                if !node.is_null() {
                    (*node).payload.with_mut(|p| *p += 1);
                    stack.push(node);
                }
                !node.is_null() as u32
            }
        };
        let other = stack.clone();
        let thread = thread::spawn(move || work(&other) + work(&other));
        let mine = work(&stack);
        let total = mine + thread.join().unwrap();
        let mut sum = 0;
        for node in records {
            // SAFETY: as above; both are back.
            unsafe { sum += (*node).payload.with(|p| *p) };
        }
        assert_eq!(sum, total);
        let mut left = 0;
        // SAFETY: as above.
        while !unsafe { stack.pop() }.is_null() {
            left += 1;
        }
        assert_eq!(left, 2);
        for node in records {
            // SAFETY: off the stack, and the threads have ended.
            drop(unsafe { Box::from_raw(node) });
        }
    });
}

/// A record arrives with what its former thread left in it.
#[test]
fn a_popped_record_is_complete() {
    loom::model(|| {
        let stack = Arc::new(RecordStack::<Record>::new());
        let node = Carry(record());
        let address = node.0;
        let other = stack.clone();
        let pusher = thread::spawn(move || {
            let node = node;
            // SAFETY: ours until pushed.
            unsafe {
                (*node.0).payload.with_mut(|p| *p = 9);
                other.push(node.0);
            }
        });
        // SAFETY: records live until the end.
        let popped = unsafe { stack.pop() };
        if !popped.is_null() {
            // SAFETY: ours now; loom checks it.
            assert_eq!(unsafe { (*popped).payload.with(|p| *p) }, 9);
        }
        pusher.join().unwrap();
        // SAFETY: nobody uses it any more.
        drop(unsafe { Box::from_raw(address) });
    });
}
