//! Doubly linked lists through their members.

use crate::sync::Ordering::Release;
use crate::sync::compiler_fence;
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr;

/// The neighbours of a member: next, null at the end; and previous, which of the first one is the last one.
pub(crate) struct Links<T> {
    pub(crate) next: Cell<*mut T>,
    prev: Cell<*mut T>,
}

impl<T> Links<T> {
    /// The links of something that is in no list.
    pub(crate) const fn new() -> Self {
        Self { next: Cell::new(ptr::null_mut()), prev: Cell::new(ptr::null_mut()) }
    }
}

/// Something that can be a member of a list. If it can be in several lists at the same time, `Which` tells
/// them apart.
///
/// # Safety
///
/// `links` returns the same ones each time. Nothing else touches them while the member is in a list.
pub(crate) unsafe trait Linked<Which = ()>: Sized {
    /// Its links.
    ///
    /// # Safety
    ///
    /// The member is valid, and so far as it is in a list, the caller has the right to that list.
    unsafe fn links<'a>(member: *mut Self) -> &'a Links<Self>;
}

/// A list. A fork may stop a thread after any store of a change, so the list is whole forwards after each of
/// them.
///
/// Whoever calls one of its functions has the right to the list, and every member stays valid until it is
/// taken out.
pub(crate) struct List<T, Which = ()> {
    first: *mut T,
    which: PhantomData<Which>,
}

impl<T: Linked<Which>, Which> List<T, Which> {
    /// An empty one.
    pub(crate) const fn new() -> Self {
        Self { first: ptr::null_mut(), which: PhantomData }
    }

    /// The first member, or null.
    #[inline]
    pub(crate) fn first(&self) -> *mut T {
        self.first
    }

    /// The member behind `member`, or null.
    ///
    /// # Safety
    ///
    /// `member` is in a list that is the caller's.
    #[inline]
    pub(crate) unsafe fn next(member: *mut T) -> *mut T {
        // SAFETY: a member of the caller's list.
        unsafe { T::links(member) }.next.get()
    }

    /// The last member, or null.
    pub(crate) fn last(&self) -> *mut T {
        // SAFETY: the list is the caller's, and so is its first member, if there is one.
        unsafe { if self.first.is_null() { self.first } else { T::links(self.first).prev.get() } }
    }

    /// The member in front of `member`, or null.
    ///
    /// # Safety
    ///
    /// `member` is in a list that is the caller's.
    pub(crate) unsafe fn previous(member: *mut T) -> *mut T {
        // SAFETY: members of the caller's list. In front of the first one is the last one, which has none
        // behind it.
        unsafe {
            let previous = T::links(member).prev.get();
            if T::links(previous).next.get().is_null() { ptr::null_mut() } else { previous }
        }
    }

    /// Puts `member` in front.
    ///
    /// # Safety
    ///
    /// The member is valid, the caller's, and in no list.
    #[inline]
    pub(crate) unsafe fn push_front(&mut self, member: *mut T) {
        let first = self.first;
        // No reference to a member as a whole: of what is not its links another thread may be writing.
        // SAFETY: the caller's member, and the first one of the caller's list.
        let (links, before) =
            unsafe { (T::links(member), if first.is_null() { None } else { Some(T::links(first)) }) };
        links.next.set(first);
        links.prev.set(before.map_or(member, |links| links.prev.get()));
        compiler_fence(Release);
        if let Some(before) = before {
            before.prev.set(member);
        }
        self.first = member;
    }

    /// Puts `member` at the end.
    ///
    /// # Safety
    ///
    /// As [`List::push_front`].
    #[inline]
    pub(crate) unsafe fn push_back(&mut self, member: *mut T) {
        let first = self.first;
        if first.is_null() {
            // SAFETY: by this function's contract.
            return unsafe { self.push_front(member) };
        }
        // SAFETY: the caller's member, and the first and the last one of the caller's list.
        unsafe {
            let last = T::links(first).prev.get();
            T::links(member).next.set(ptr::null_mut());
            T::links(member).prev.set(last);
            compiler_fence(Release);
            T::links(last).next.set(member);
            T::links(first).prev.set(member);
        }
    }

    /// Takes `member` out.
    ///
    /// # Safety
    ///
    /// The member is in this list.
    #[inline]
    pub(crate) unsafe fn remove(&mut self, member: *mut T) {
        // SAFETY: members of the caller's list.
        unsafe {
            let (next, prev) = (T::links(member).next.get(), T::links(member).prev.get());
            if self.first == member {
                self.first = next;
            } else {
                T::links(prev).next.set(next);
            }
            compiler_fence(Release);
            let behind = if next.is_null() { self.first } else { next };
            if !behind.is_null() {
                T::links(behind).prev.set(prev);
            }
        }
    }

    /// Takes the first member out.
    ///
    /// # Safety
    ///
    /// The list is the caller's.
    pub(crate) unsafe fn pop_front(&mut self) -> Option<*mut T> {
        let first = self.first;
        if first.is_null() {
            return None;
        }
        // SAFETY: a member of this list.
        unsafe { self.remove(first) };
        Some(first)
    }

    /// Repairs the links backwards after a fork has stopped another thread in the middle of a change. Returns
    /// how many members there are.
    ///
    /// # Safety
    ///
    /// The list is the caller's.
    pub(crate) unsafe fn mend(&mut self) -> usize {
        let (mut member, mut last, mut count) = (self.first, ptr::null_mut::<T>(), 0);
        while !member.is_null() {
            // SAFETY: forwards the list is whole.
            let links = unsafe { T::links(member) };
            // Written to only where it has to be: what is not, parent and child go on sharing.
            if links.prev.get() != last && !last.is_null() {
                links.prev.set(last);
            }
            (last, member) = (member, links.next.get());
            count += 1;
        }
        if !last.is_null() {
            // SAFETY: forwards the list is whole, so this is its first member.
            let links = unsafe { T::links(self.first) };
            if links.prev.get() != last {
                links.prev.set(last);
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(loom))]
    use crate::sync::{AtomicUsize, Ordering::Relaxed};

    struct Item {
        links: Links<Item>,
    }

    // SAFETY: always the same field, which nothing else touches.
    unsafe impl Linked for Item {
        unsafe fn links<'a>(member: *mut Self) -> &'a Links<Self> {
            // SAFETY: valid.
            unsafe { &(*member).links }
        }
    }

    /// As of a slab, whose owner puts back a block while a visitor has its links.
    #[cfg(not(loom))]
    struct Shared {
        links: Links<Shared>,
        other: usize,
    }

    // SAFETY: always the same field, which nothing else touches.
    #[cfg(not(loom))]
    unsafe impl Linked for Shared {
        unsafe fn links<'a>(member: *mut Self) -> &'a Links<Self> {
            // SAFETY: valid.
            unsafe { &(*member).links }
        }
    }

    /// What Miri would report.
    #[test]
    #[cfg(not(loom))]
    fn only_the_links_of_a_member_are_touched() {
        let item =
            || std::boxed::Box::into_raw(std::boxed::Box::new(Shared { links: Links::new(), other: 0 }));
        let (first, second) = (item(), item());
        let mut list = List::<Shared>::new();
        // SAFETY: members of our own, which stay until the end; another thread writes what is not links.
        unsafe {
            list.push_front(first);
            let other = AtomicUsize::from_ptr(&raw mut (*first).other);
            std::thread::scope(|threads| {
                threads.spawn(|| other.store(1, Relaxed));
                list.push_front(second);
                list.remove(first);
                list.push_back(first);
                assert!(list.first() == second && list.last() == first);
            });
            [first, second].into_iter().for_each(|item| drop(std::boxed::Box::from_raw(item)));
        }
    }

    fn members(list: &List<Item>) -> Vec<*mut Item> {
        let mut found = Vec::new();
        let mut at = list.first();
        while !at.is_null() {
            found.push(at);
            // SAFETY: a member.
            at = unsafe { List::<Item>::next(at) };
        }
        let mut back = Vec::new();
        let mut at = list.last();
        while !at.is_null() {
            back.insert(0, at);
            // SAFETY: a member.
            at = unsafe { List::<Item>::previous(at) };
        }
        assert_eq!(found, back);
        found
    }

    #[test]
    fn members_come_and_go_anywhere() {
        let items: Vec<*mut Item> =
            (0..4).map(|_| Box::into_raw(Box::new(Item { links: Links::new() }))).collect();
        let [a, b, c, d] = [items[0], items[1], items[2], items[3]];
        let mut list = List::<Item>::new();
        assert!(list.first().is_null());
        // SAFETY: valid, ours, and in the list or not as it has to be.
        unsafe {
            assert!(list.pop_front().is_none() && list.mend() == 0);
            list.push_back(b);
            list.push_front(a);
            list.push_back(c);
            list.push_back(d);
            assert_eq!(members(&list), [a, b, c, d]);
            list.remove(b);
            assert_eq!(members(&list), [a, c, d]);
            list.remove(d);
            assert_eq!(members(&list), [a, c]);
            list.remove(a);
            assert_eq!(members(&list), [c]);
            list.push_front(b);
            list.push_front(a);
            Item::links(a).prev.set(b);
            Item::links(c).prev.set(a);
            assert_eq!(list.mend(), 3);
            assert_eq!(members(&list), [a, b, c]);
            assert_eq!([list.pop_front(), list.pop_front(), list.pop_front()], [Some(a), Some(b), Some(c)]);
            assert!(members(&list).is_empty());
            items.into_iter().for_each(|item| drop(Box::from_raw(item)));
        }
    }
}
