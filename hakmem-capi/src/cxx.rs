//! C++'s `operator new` and `operator delete`, in all their forms.
//!
//! When there is no memory, `new` calls the new-handler until there is some or none is installed, and then
//! throws `std::bad_alloc`. Rust cannot throw, so the C++ library does it for us, where one is in the
//! process: the two functions of its that we need are referred to weakly.

use crate::wrapped;
use core::arch::global_asm;
use core::ffi::{c_char, c_void};
use hakmem_core::__c as core_c;
use replaced::{Form, Group};

mod replaced;

type Handler = unsafe extern "C-unwind" fn();

unsafe extern "C" {
    /// The weak references: the two addresses in libstdc++ or libc++, or null.
    static __hakmem_v0_cxx: [usize; 2];
}

global_asm!(
    ".pushsection .data.rel.ro.__hakmem_v0_cxx,\"aw\",@progbits",
    ".globl __hakmem_v0_cxx",
    ".hidden __hakmem_v0_cxx",
    ".weak _ZSt15get_new_handlerv",
    ".weak _ZSt17__throw_bad_allocv",
    ".p2align 3",
    "__hakmem_v0_cxx:",
    ".quad _ZSt15get_new_handlerv",
    ".quad _ZSt17__throw_bad_allocv",
    ".popsection",
);

/// Whether a C++ library was in the process at its start.
fn has_library() -> bool {
    // SAFETY: constant after loading.
    unsafe { __hakmem_v0_cxx[0] != 0 }
}

/// For the library's constructor. In a program without C++ it touches nothing, which would be resident.
#[inline]
pub(crate) fn on_load() {
    if has_library() {
        PLAIN.look(true, &PLAIN_FORMS);
        ALIGNED.look(true, &ALIGNED_FORMS);
    }
}

/// The address of a function of the C++ library, or 0. Where none was in the process at its start, one may
/// have come with a plugin: it is then not in the global scope, but `dlopen` knows it by name.
fn cxx(index: usize, name: *const c_char) -> usize {
    // SAFETY: constant after loading.
    let known = unsafe { __hakmem_v0_cxx[index] };
    if known != 0 {
        return known;
    }
    let Some(open) = wrapped::libcs_dlopen() else { return 0 };
    for library in [c"libstdc++.so.6", c"libc++.so.1", c"libc++abi.so.1"] {
        // SAFETY: the library is not loaded if it is not there.
        unsafe {
            let handle = open(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if !handle.is_null() {
                let found = libc::dlsym(handle, name).addr();
                if found != 0 {
                    return found;
                }
            }
        }
    }
    0
}

/// `std::get_new_handler()`.
fn handler() -> Option<Handler> {
    let address = cxx(0, c"_ZSt15get_new_handlerv".as_ptr());
    if address == 0 {
        return None;
    }
    // SAFETY: the C++ library's function, of that type.
    unsafe { core::mem::transmute::<usize, unsafe extern "C" fn() -> Option<Handler>>(address)() }
}

/// `operator new` off the fast path.
#[cold]
#[inline(never)]
extern "C-unwind" fn rest(size: usize) -> *mut c_void {
    let block = core_c::malloc(size);
    if block.is_null() { retry(size, 1, true) } else { block.cast() }
}

#[cold]
#[inline(never)]
extern "C-unwind" fn retry(size: usize, align: usize, throws: bool) -> *mut c_void {
    loop {
        let Some(handler) = handler() else {
            if !throws {
                return core::ptr::null_mut();
            }
            throw()
        };
        // SAFETY: what the program installed. It frees memory, throws, or ends the process.
        unsafe { handler() };
        let block = core_c::aligned(align, size);
        if !block.is_null() {
            return block.cast();
        }
    }
}

/// Throws `std::bad_alloc`.
#[cold]
extern "C-unwind" fn throw() -> ! {
    let throw = cxx(1, c"_ZSt17__throw_bad_allocv".as_ptr());
    if throw != 0 {
        // SAFETY: the C++ library's function, of that type; it unwinds through us.
        unsafe { core::mem::transmute::<usize, unsafe extern "C-unwind" fn()>(throw)() };
    }
    core_c::fatal("operator new: out of memory, and no C++ library to throw std::bad_alloc")
}

/// What to do about an alignment that is no power of two: what the C++ libraries do. No handler can help.
#[cold]
extern "C-unwind" fn impossible(throws: bool) -> *mut c_void {
    if throws { throw() } else { core::ptr::null_mut() }
}

/// A nothrow `new` calls the handler too, and answers null when the handler throws. Rust cannot catch that,
/// but the C++ library's own nothrow `new`, of that name, can: it is our `operator new` in a `catch`. Where
/// there is none, as in a fully static program, what the handler throws ends the process. `align` is 0 for
/// the forms without alignment.
#[cold]
#[inline(never)]
extern "C-unwind" fn retry_nothrow(size: usize, align: usize, name: *const c_char) -> *mut c_void {
    if handler().is_some() {
        // SAFETY: a C string.
        let next = unsafe { libc::dlsym(libc::RTLD_NEXT, name) };
        let nothrow = (&raw const NOTHROW).cast::<c_void>();
        if !next.is_null() {
            // SAFETY: the C++ library's function of that name, hence of that type.
            return unsafe {
                match align {
                    0 => core::mem::transmute::<*mut c_void, Nothrow>(next)(size, nothrow),
                    align => core::mem::transmute::<*mut c_void, NothrowAligned>(next)(size, align, nothrow),
                }
            };
        }
    }
    retry(size, align.max(1), false)
}

type Nothrow = unsafe extern "C-unwind" fn(usize, *const c_void) -> *mut c_void;
type NothrowAligned = unsafe extern "C-unwind" fn(usize, usize, *const c_void) -> *mut c_void;
/// Stands for `std::nothrow`, which has no contents.
static NOTHROW: u8 = 0;

macro_rules! name {
    ($name:ident) => {
        concat!(stringify!($name), "\0").as_ptr().cast::<c_char>()
    };
}

macro_rules! group {
    ($($name:literal $function:ident),*) => { Group::new([$(($name, || $function as *const c_void)),*]) };
}

/// The forms without an alignment. `new[]` calls `new`, each nothrow form its plain one, `delete[]` and the
/// sized forms `delete`.
static PLAIN: Group = group!(c"_Znwm" _Znwm, c"_Znam" _Znam, c"_ZdlPv" _ZdlPv, c"_ZdaPv" _ZdaPv);
/// The forms with one.
static ALIGNED: Group = group!(
    c"_ZnwmSt11align_val_t" _ZnwmSt11align_val_t, c"_ZnamSt11align_val_t" _ZnamSt11align_val_t,
    c"_ZdlPvSt11align_val_t" _ZdlPvSt11align_val_t, c"_ZdaPvSt11align_val_t" _ZdaPvSt11align_val_t
);

/// Operators that call nothing.
macro_rules! plain {
    ($abi:literal: $(
        $(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $body:expr;
    )*) => {$(
        $(#[$about])*
        ///
        /// # Safety
        ///
        /// As C++ says.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe, reason = "those of `new` need none")]
        pub unsafe extern $abi fn $name($($argument: $type),*) $(-> $result)? {
            // SAFETY: passed on.
            unsafe { $body }
        }
    )*};
}

/// Operators that call others where these are replaced: the C++ library's of that name do.
macro_rules! made_of_others {
    ($abi:literal $group:ident: $(
        $form:ident
        $(#[$about:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)? = $body:expr;
    )*) => {$(
        static $form: Form = Form::new(name!($name));

        $(#[$about])*
        ///
        /// # Safety
        ///
        /// As C++ says.
        #[unsafe(no_mangle)]
        pub unsafe extern $abi fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            #[allow(unused_unsafe, reason = "those of `new` need none")]
            unsafe extern $abi fn ours($($argument: $type),*) $(-> $result)? {
                // SAFETY: passed on.
                unsafe { $body }
            }

            #[cold]
            #[inline(never)]
            #[unsafe(link_section = "hakmem_rare")]
            unsafe extern $abi fn rest($($argument: $type),*) $(-> $result)? {
                match $form.find(&$group) {
                    // SAFETY: the C++ library's function of that name, hence of that type.
                    Some(address) => unsafe {
                        core::mem::transmute::<usize, unsafe extern $abi fn($($type),*) $(-> $result)?>(address)(
                            $($argument),*
                        )
                    },
                    // SAFETY: passed on.
                    None => unsafe { ours($($argument),*) },
                }
            }

            // SAFETY: passed on.
            unsafe { if $group.is_ours() { ours($($argument),*) } else { rest($($argument),*) } }
        }
    )*};
}

#[inline(always)]
extern "C-unwind" fn new(size: usize) -> *mut c_void {
    let block = core_c::malloc_hit(size);
    if block.is_null() { rest(size) } else { block.cast() }
}

#[inline(always)]
extern "C-unwind" fn new_nothrow(size: usize, name: *const c_char) -> *mut c_void {
    let block = core_c::malloc(size);
    if block.is_null() { retry_nothrow(size, 0, name) } else { block.cast() }
}

#[inline(always)]
extern "C-unwind" fn new_aligned(size: usize, align: usize) -> *mut c_void {
    if !align.is_power_of_two() {
        return impossible(true);
    }
    let block = core_c::aligned(align, size);
    if block.is_null() { retry(size, align, true) } else { block.cast() }
}

#[inline(always)]
extern "C-unwind" fn new_aligned_nothrow(size: usize, align: usize, name: *const c_char) -> *mut c_void {
    if !align.is_power_of_two() {
        return impossible(false);
    }
    let block = core_c::aligned(align, size);
    if block.is_null() { retry_nothrow(size, align, name) } else { block.cast() }
}

plain! { "C-unwind":
    /// `operator new`.
    fn _Znwm(size: usize) -> *mut c_void = new(size);
    /// `operator new`, aligned.
    fn _ZnwmSt11align_val_t(size: usize, align: usize) -> *mut c_void = new_aligned(size, align);
}

made_of_others! { "C-unwind" PLAIN:
    NEW_ARRAY
    /// `operator new[]`.
    fn _Znam(size: usize) -> *mut c_void = new(size);
    NEW_NOTHROW
    /// `operator new`, nothrow.
    fn _ZnwmRKSt9nothrow_t(size: usize, _nothrow: *const c_void) -> *mut c_void =
        new_nothrow(size, name!(_ZnwmRKSt9nothrow_t));
    NEW_ARRAY_NOTHROW
    /// `operator new[]`, nothrow.
    fn _ZnamRKSt9nothrow_t(size: usize, _nothrow: *const c_void) -> *mut c_void =
        new_nothrow(size, name!(_ZnamRKSt9nothrow_t));
}

made_of_others! { "C-unwind" ALIGNED:
    NEW_ARRAY_ALIGNED
    /// `operator new[]`, aligned.
    fn _ZnamSt11align_val_t(size: usize, align: usize) -> *mut c_void = new_aligned(size, align);
    NEW_ALIGNED_NOTHROW
    /// `operator new`, aligned, nothrow.
    fn _ZnwmSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, _nothrow: *const c_void) -> *mut c_void =
        new_aligned_nothrow(size, align, name!(_ZnwmSt11align_val_tRKSt9nothrow_t));
    NEW_ARRAY_ALIGNED_NOTHROW
    /// `operator new[]`, aligned, nothrow.
    fn _ZnamSt11align_val_tRKSt9nothrow_t(size: usize, align: usize, _nothrow: *const c_void) -> *mut c_void =
        new_aligned_nothrow(size, align, name!(_ZnamSt11align_val_tRKSt9nothrow_t));
}

/// What the sized forms say that they are when they report.
const DELETE: &str = "operator delete";

plain! { "C":
    /// `operator delete`.
    fn _ZdlPv(block: *mut c_void) = core_c::free(block.cast());
    /// `operator delete`, aligned.
    fn _ZdlPvSt11align_val_t(block: *mut c_void, _align: usize) = core_c::free(block.cast());
}

made_of_others! { "C" PLAIN:
    DELETE_ARRAY
    /// `operator delete[]`.
    fn _ZdaPv(block: *mut c_void) = core_c::free(block.cast());
    DELETE_NOTHROW
    /// `operator delete`, nothrow.
    fn _ZdlPvRKSt9nothrow_t(block: *mut c_void, _nothrow: *const c_void) = core_c::free(block.cast());
    DELETE_ARRAY_NOTHROW
    /// `operator delete[]`, nothrow.
    fn _ZdaPvRKSt9nothrow_t(block: *mut c_void, _nothrow: *const c_void) = core_c::free(block.cast());
    DELETE_SIZED
    /// `operator delete`, sized.
    fn _ZdlPvm(block: *mut c_void, size: usize) = core_c::free_sized(block.cast(), size, DELETE);
    DELETE_ARRAY_SIZED
    /// `operator delete[]`, sized.
    fn _ZdaPvm(block: *mut c_void, size: usize) = core_c::free_sized(block.cast(), size, DELETE);
}

made_of_others! { "C" ALIGNED:
    DELETE_ARRAY_ALIGNED
    /// `operator delete[]`, aligned.
    fn _ZdaPvSt11align_val_t(block: *mut c_void, _align: usize) = core_c::free(block.cast());
    DELETE_ALIGNED_NOTHROW
    /// `operator delete`, aligned, nothrow.
    fn _ZdlPvSt11align_val_tRKSt9nothrow_t(block: *mut c_void, _align: usize, _nothrow: *const c_void) =
        core_c::free(block.cast());
    DELETE_ARRAY_ALIGNED_NOTHROW
    /// `operator delete[]`, aligned, nothrow.
    fn _ZdaPvSt11align_val_tRKSt9nothrow_t(block: *mut c_void, _align: usize, _nothrow: *const c_void) =
        core_c::free(block.cast());
    DELETE_SIZED_ALIGNED
    /// `operator delete`, sized, aligned.
    fn _ZdlPvmSt11align_val_t(block: *mut c_void, size: usize, _align: usize) =
        core_c::free_aligned_sized(block.cast(), size, DELETE);
    DELETE_ARRAY_SIZED_ALIGNED
    /// `operator delete[]`, sized, aligned.
    fn _ZdaPvmSt11align_val_t(block: *mut c_void, size: usize, _align: usize) =
        core_c::free_aligned_sized(block.cast(), size, DELETE);
}

/// What a program that replaces operators of a group may come to need of the C++ library.
static PLAIN_FORMS: [&Form; 8] = [
    &NEW_ARRAY,
    &NEW_NOTHROW,
    &NEW_ARRAY_NOTHROW,
    &DELETE_ARRAY,
    &DELETE_NOTHROW,
    &DELETE_ARRAY_NOTHROW,
    &DELETE_SIZED,
    &DELETE_ARRAY_SIZED,
];
static ALIGNED_FORMS: [&Form; 8] = [
    &NEW_ARRAY_ALIGNED,
    &NEW_ALIGNED_NOTHROW,
    &NEW_ARRAY_ALIGNED_NOTHROW,
    &DELETE_ARRAY_ALIGNED,
    &DELETE_ALIGNED_NOTHROW,
    &DELETE_ARRAY_ALIGNED_NOTHROW,
    &DELETE_SIZED_ALIGNED,
    &DELETE_ARRAY_SIZED_ALIGNED,
];
