//! Operators that the program replaces.
//!
//! C++ lets a program replace some operators, and says what it gets of the others: they call the plain ones,
//! by name. Ours call nothing, so when they are not alone the others of their group have to be the C++
//! library's own, which do as C++ says.

use crate::wrapped;
use core::ffi::{CStr, c_char, c_void};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};

/// The forms of which some call others: those without an alignment, or those with one.
pub(super) struct Group {
    /// Relaxed, here and in [`Form`]: each is a value that every thread would find alike.
    state: AtomicU8,
    /// What the program may replace and ours would not call.
    called: [Named; 4],
}

/// Nobody has looked yet.
const UNKNOWN: u8 = 0;
/// All are ours, or those that are not cannot be told from ours.
const OURS: u8 = 1;
/// The program, or a library before this one, has at least one of its own.
const REPLACED: u8 = 2;

/// The name of a form, and where ours is.
type Named = (&'static CStr, fn() -> *const c_void);

impl Group {
    pub(super) const fn new(called: [Named; 4]) -> Self {
        Self { state: AtomicU8::new(UNKNOWN), called }
    }

    /// Whether ours may serve. False also while nobody has looked.
    #[inline(always)]
    pub(super) fn is_ours(&self) -> bool {
        self.state.load(Relaxed) == OURS
    }

    /// Looks whose operators the program sees, if there is a C++ library that could have others call them; if
    /// they are not all ours, looks for the C++ library's `forms`, too. When this library is loaded, so that
    /// no lock of the loader's is taken later; or before, by the constructor of a library that comes earlier.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn look(&self, library: bool, forms: &[&Form]) {
        let replaced = library
            && wrapped::is_seen()
            && self.called.iter().any(|(name, ours)| wrapped::seen(name).cast_const() != ours());
        if replaced {
            forms.iter().for_each(|form| _ = form.look());
        }
        self.state.store(if replaced { REPLACED } else { OURS }, Relaxed);
    }
}

/// One operator of the C++ library.
pub(super) struct Form {
    /// Its name, a C string.
    name: *const c_char,
    address: AtomicUsize,
}

// SAFETY: the name is a constant.
unsafe impl Sync for Form {}

/// There is none.
const NONE: usize = 1;

impl Form {
    pub(super) const fn new(name: *const c_char) -> Self {
        Self { name, address: AtomicUsize::new(0) }
    }

    #[unsafe(link_section = "hakmem_rare")]
    fn look(&self) -> usize {
        // SAFETY: a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name) }.addr().max(NONE);
        self.address.store(found, Relaxed);
        found
    }

    /// Where the C++ library has this operator, if it is to be used.
    #[cold]
    #[inline(never)]
    #[unsafe(link_section = "hakmem_rare")]
    pub(super) fn find(&self, group: &Group) -> Option<usize> {
        if group.state.load(Relaxed) == UNKNOWN {
            group.look(super::has_library(), &[]);
        }
        if group.is_ours() {
            return None;
        }
        let known = self.address.load(Relaxed);
        let address = if known != 0 { known } else { self.look() };
        (address != NONE).then_some(address)
    }
}
