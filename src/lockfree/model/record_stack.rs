//! The stack of free heap records.

use crate::lockfree::record_stack::{RECORD_ALIGN, RecordStack};
use crate::sync::Node;
use crate::sync::loom::model;
use crate::sync::{AtomicPtr, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use std::ptr;

/// Lets a raw pointer move into a thread.
struct Carry<T>(*mut T);
// SAFETY: the test hands the node to one thread and uses it elsewhere only after `push`, as the stack allows.
unsafe impl<T> Send for Carry<T> {}

/// A heap record, as far as the stack goes.
#[repr(align(4096))]
struct Record {
    next: AtomicPtr<Record>,
    payload: UnsafeCell<u32>,
}

// SAFETY: the link is an atomic of its own, as in a heap, and neither function touches anything else.
unsafe impl Node for Record {
    unsafe fn next(node: *mut Self) -> *mut Self {
        // SAFETY: records are freed only at the end of the model, so `node` is valid; the link is atomic.
        unsafe { (*node).next.load(Ordering::Relaxed) }
    }
    unsafe fn set_next(node: *mut Self, next: *mut Self) {
        // SAFETY: records are freed only at the end of the model, so `node` is valid; the link is atomic.
        unsafe { (*node).next.store(next, Ordering::Relaxed) }
    }
}

fn record() -> *mut Record {
    assert_eq!(align_of::<Record>(), RECORD_ALIGN);
    Box::into_raw(Box::new(Record { next: AtomicPtr::new(ptr::null_mut()), payload: UnsafeCell::new(0) }))
}

/// Two threads pop, use and push back while two records circulate. No record is ever with two threads. ABA
/// would break this, too.
#[test]
fn recycled_records_belong_to_one_thread() {
    model(None, || {
        let stack = Arc::new(RecordStack::<Record>::new());
        let records = [record(), record()];
        // SAFETY: new records that nobody else knows and that are freed only at the end.
        unsafe {
            stack.push(records[0]);
            stack.push(records[1]);
        }
        let work = |stack: &RecordStack<Record>| {
            // SAFETY: records are freed only at the end of the model, and what was popped is ours until
            // pushed, which loom checks.
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
            // SAFETY: both threads have pushed the record back and ended; it is freed below.
            unsafe { sum += (*node).payload.with(|p| *p) };
        }
        assert_eq!(sum, total);
        let mut left = 0;
        // SAFETY: no record has been freed yet.
        while !unsafe { stack.pop() }.is_null() {
            left += 1;
        }
        assert_eq!(left, 2);
        for node in records {
            // SAFETY: both records are off the stack, and no thread uses them any more.
            drop(unsafe { Box::from_raw(node) });
        }
    });
}

/// A popped record holds all that its former thread wrote to it.
#[test]
fn a_popped_record_is_complete() {
    model(None, || {
        let stack = Arc::new(RecordStack::<Record>::new());
        let node = Carry(record());
        let address = node.0;
        let other = stack.clone();
        let pusher = thread::spawn(move || {
            let node = node;
            // SAFETY: the record is ours until pushed, and is freed only after this thread has ended.
            unsafe {
                (*node.0).payload.with_mut(|p| *p = 9);
                other.push(node.0);
            }
        });
        // SAFETY: the record is freed only at the end.
        let popped = unsafe { stack.pop() };
        if !popped.is_null() {
            // SAFETY: popped, so ours; loom checks it.
            assert_eq!(unsafe { (*popped).payload.with(|p| *p) }, 9);
        }
        pusher.join().unwrap();
        // SAFETY: the other thread has ended, and the stack is not used again.
        drop(unsafe { Box::from_raw(address) });
    });
}
