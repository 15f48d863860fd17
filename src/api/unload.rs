//! The end: of the process, or of this code when the shared library that it is part of is unloaded.
//!
//! `dlclose` unmaps a Rust library that was opened with `dlopen` and has this allocator as its own. After
//! that nothing of ours may be called: no exit hook of a thread, no handler, no thread of our own. Blocks
//! that are still in use stay mapped. Everything else goes.
//!
//! A library cannot always tell why its `.fini_array` runs. At exit the C library calls all handlers, the
//! last registered one first: among them ours, and one of its own that goes through the `.fini_array` of
//! every library. `dlclose` goes through that of one library only. So [`withdraw`] and [`unload`] do what is
//! right for a library that goes, and harmless in a process that ends.

use crate::api::{control, profile_file, report};
use crate::base::options;
use crate::front::{registry, thread};
use crate::guard;
use crate::reclaim::background;
use crate::reclaim::purge::{self, Extent};
use crate::superslab::{pagemap, pool};
use crate::sync::AtomicBool;
use crate::sync::Ordering::AcqRel;
use crate::{large, os, sampling, stats};
use core::ffi::c_void;

/// Whether there is something to do at the end: since [`init`], and until somebody does it.
static TO_DO: AtomicBool = AtomicBool::new(false);
/// Whether something may still be called that must not be once this code is gone: since [`init`], until the
/// library's end. A library can also be unloaded by a function that is called at exit, after [`at_exit`].
static IS_CALLED: AtomicBool = AtomicBool::new(false);

unsafe extern "C" {
    /// What `atexit` calls. `atexit` itself is in an archive, not in a shared library, and whether a shared
    /// library of ours is linked with that archive depends on what else is built.
    fn __cxa_atexit(f: extern "C" fn(*mut c_void), argument: *mut c_void, library: *const c_void) -> i32;
}

/// Registers what is to be done at the end. Called once.
pub(crate) fn init() {
    // AcqRel, here and below: each change pairs with the one before.
    TO_DO.swap(true, AcqRel);
    IS_CALLED.swap(true, AcqRel);
    // SAFETY: the handler has the type that the C library asks for, and never unwinds. It is registered as
    // this library's, so it is called before this code is unmapped.
    unsafe { __cxa_atexit(at_exit, core::ptr::null_mut(), imp::object().handle) };
}

/// Registers a handler for the child of a fork. Whether there was memory for that.
pub(crate) fn at_fork(child: unsafe extern "C" fn()) -> bool {
    // What glibc's `pthread_atfork` calls, by way of a jump table that the linker would put behind our code:
    // the kernel would map 64 KiB around it that nothing else needs.
    #[cfg(target_env = "gnu")]
    {
        type Handler = Option<unsafe extern "C" fn()>;
        unsafe extern "C" {
            fn __register_atfork(before: Handler, parent: Handler, child: Handler, of: *const c_void) -> i32;
        }
        // SAFETY: the handler is a function that takes nothing and never unwinds. The C library forgets it
        // when it unloads the library that this is part of.
        unsafe { __register_atfork(None, None, Some(child), imp::object().handle) == 0 }
    }
    #[cfg(not(target_env = "gnu"))]
    // SAFETY: as above; the C library finds out by itself whose handler it is.
    unsafe {
        libc::pthread_atfork(None, None, Some(child)) == 0
    }
}

/// The handler for the end of the process, and for that of this library.
extern "C" fn at_exit(_: *mut c_void) {
    if TO_DO.swap(false, AcqRel) {
        profile_file::finish();
        report::print_at_exit();
    }
}

/// What `.fini_array` calls.
extern "C" fn fini() {
    if !can_be_unloaded(imp::object().dynamic) || !IS_CALLED.swap(false, AcqRel) {
        return;
    }
    let is_first = TO_DO.swap(false, AcqRel);
    if is_first {
        profile_file::finish();
        report::print_at_exit();
    }
    // A process that may not make the calls that all of it needs, and that is about to end, is not to end by
    // them: that it goes on without this code is less likely.
    withdraw(is_first || !os::is_confined());
    if is_first {
        unload();
    }
}

/// Leaves nothing behind that could be called: no thread and no handler either, if `all` is to go.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
fn withdraw(all: bool) {
    if all {
        background::stop();
        control::stop_listening(options::get().profile_signal);
        guard::uninstall();
    }
    thread::unhook();
}

/// Leaves no memory behind except that of blocks in use.
#[cold]
#[unsafe(link_section = "hakmem_rare")]
fn unload() {
    purge::purge_from(Extent::Pages);
    let mut others = false;
    registry::each_owned(|_| others = true);
    // What other threads may be using, in a process that ends, stays if any have heaps. Whoever samples has
    // one, so nobody walks a stack or has the store now, and with the rate gone nobody will.
    if others {
        return;
    }
    sampling::unmap();
    stats::forget();
    #[cfg(feature = "profile")]
    crate::stacks::modules::unmap();
    // What follows describes blocks in use, so it stays if there are any.
    if os::held::bytes() == large::kept() && !guard::in_use() {
        guard::unmap();
        registry::unmap();
        pagemap::unmap();
        pool::unmap();
        os::process::unmap();
    }
    // What the system does not even take back now stays mapped. Nobody could use it.
    os::give_back_left();
}

/// An entry of the dynamic section, which tells the loader about a program or library.
#[repr(C)]
struct Dynamic {
    tag: i64,
    value: u64,
}

/// Whether this code is part of a library that the loader may unload. `entries` is the dynamic section of
/// that library or program; null in a static program.
fn can_be_unloaded(mut entries: *const Dynamic) -> bool {
    const END: i64 = 0;
    /// Only programs have this entry.
    const DEBUG: i64 = 21;
    const FLAGS_1: i64 = 0x6fff_fffb;
    const NODELETE: u64 = 8;
    while !entries.is_null() {
        // SAFETY: the linker ends the section with an entry of the tag `END`, at which the loop stops.
        let entry = unsafe { &*entries };
        match entry.tag {
            END => return true,
            DEBUG => return false,
            FLAGS_1 if entry.value & NODELETE != 0 => return false,
            _ => entries = entries.wrapping_add(1),
        }
    }
    false
}

/// What the linker tells about the library or program that this code is part of. Null where there is nothing,
/// or nothing is known.
#[repr(C)]
#[derive(Clone, Copy)]
struct Object {
    /// The handle by which the C library knows it.
    handle: *const c_void,
    /// Its dynamic section.
    dynamic: *const Dynamic,
}

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux", not(miri)))]
mod imp {
    use super::Object;
    use core::arch::{asm, global_asm};

    // The references are weak, because programs may be static, or linked without the compiler's start files.
    global_asm!(
        ".pushsection .data.rel.ro.{name}.object,\"aw\",@progbits",
        ".weak __dso_handle",
        ".hidden __dso_handle",
        ".weak _DYNAMIC",
        ".hidden _DYNAMIC",
        ".globl {name}.object",
        ".hidden {name}.object",
        ".p2align 3",
        "{name}.object:",
        ".quad __dso_handle",
        ".quad _DYNAMIC",
        ".popsection",
        name = sym crate::front::heap::EMPTY,
    );

    pub(super) fn object() -> Object {
        let object: *const Object;
        // SAFETY: computes the address of the two words above, which are this library's own data and constant
        // after loading.
        unsafe {
            #[cfg(target_arch = "x86_64")]
            asm!(
                "lea {}, [rip + {name}.object]",
                out(reg) object,
                name = sym crate::front::heap::EMPTY,
                options(pure, nomem, nostack, preserves_flags)
            );
            #[cfg(target_arch = "aarch64")]
            asm!(
                "adrp {0}, {name}.object",
                "add {0}, {0}, :lo12:{name}.object",
                out(reg) object,
                name = sym crate::front::heap::EMPTY,
                options(pure, nomem, nostack, preserves_flags)
            );
            *object
        }
    }
}

#[cfg(any(miri, not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))))]
mod imp {
    pub(super) fn object() -> super::Object {
        super::Object { handle: core::ptr::null(), dynamic: core::ptr::null() }
    }
}

// SAFETY: the section holds pointers to functions, which the loader calls once; ones without parameters are
// allowed.
#[used]
#[cfg_attr(all(target_os = "linux", not(miri)), unsafe(link_section = ".fini_array"))]
static FINI: extern "C" fn() = fini;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_libraries_that_stay_are_told_from_those_that_go() {
        let entries = |tags: &[(i64, u64)]| -> Vec<Dynamic> {
            tags.iter().map(|&(tag, value)| Dynamic { tag, value }).collect()
        };
        let can = |tags: &[(i64, u64)]| can_be_unloaded(entries(tags).as_ptr());
        assert!(can(&[(1, 5), (0x6fff_fffb, 1), (0, 0)]));
        assert!(!can(&[(1, 5), (21, 0), (0, 0)]), "a program");
        assert!(!can(&[(0x6fff_fffb, 9), (0, 0)]), "linked with -z nodelete");
        assert!(!can_be_unloaded(core::ptr::null()), "a static program");
        // This test is a program.
        assert!(cfg!(miri) || !can_be_unloaded(imp::object().dynamic));
    }
}
