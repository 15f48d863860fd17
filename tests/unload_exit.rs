//! A process ends, and with it a Rust library that has Hakmem as its allocator, or shortly before.

#[path = "support/plugin.rs"]
mod plugin;
mod support;
#[path = "support/waiting.rs"]
mod waiting;

use plugin::{Plugin, is_mapped};
use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;
use support::{in_own_process, in_own_processes};

/// The plugin that a function closes at exit, after the allocator's own, and the thread that ends after that.
static AT_EXIT: OnceLock<(Plugin, libc::pthread_t)> = OnceLock::new();
static HAS_WORKED: AtomicBool = AtomicBool::new(false);
static MAY_END: AtomicBool = AtomicBool::new(false);

extern "C" fn close_at_exit() {
    let (plugin, thread) = AT_EXIT.get().unwrap();
    // SAFETY: nobody is inside; the thread is joined once.
    unsafe {
        assert_eq!(libc::dlclose(plugin.0), 0);
        assert!(!is_mapped(), "something keeps it");
        MAY_END.store(true, SeqCst);
        assert_eq!(libc::pthread_join(*thread, std::ptr::null_mut()), 0);
    }
}

/// A program closes its plugins in a function that it has registered with `atexit` before it opened them, so
/// it is called after theirs; and then its threads end.
#[test]
fn it_is_closed_at_exit_before_threads_end() {
    in_own_processes("it_is_closed_at_exit_before_threads_end", &[false, true], |background| {
        if background {
            // SAFETY: no other thread looks at the environment.
            unsafe { std::env::set_var("HAKMEM_BACKGROUND", "on") };
        }
        // SAFETY: the function neither takes nor returns anything.
        assert_eq!(unsafe { libc::atexit(close_at_exit) }, 0);
        let plugin = Plugin::load();
        extern "C" fn work(plugin: *mut c_void) -> *mut c_void {
            let plugin = Plugin(plugin);
            assert!(plugin.work(100_000) >= 100_000);
            HAS_WORKED.store(true, SeqCst);
            while !MAY_END.load(SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
            std::ptr::null_mut()
        }
        let mut thread = 0;
        // SAFETY: the function takes the plugin's handle.
        assert_eq!(unsafe { libc::pthread_create(&mut thread, std::ptr::null(), work, plugin.0) }, 0);
        assert!(plugin.work(5000) >= 5000);
        waiting::until("the thread does not work", || HAS_WORKED.load(SeqCst));
        assert!(AT_EXIT.set((plugin, thread)).is_ok());
    });
}

/// A process that may make few system calls ends as it would without the plugin.
#[test]
fn a_confined_process_ends_with_it() {
    in_own_process("a_confined_process_ends_with_it", || {
        // SAFETY: no other thread looks at the environment.
        unsafe {
            std::env::set_var("HAKMEM_FEW_SYSCALLS", "on");
            std::env::set_var("HAKMEM_PROFILE_SIGNAL", "USR2");
        }
        let plugin = Plugin::load();
        assert!(plugin.work(5000) >= 5000);
        // Read the number of the call; kill the process for this one, and allow all others.
        let code = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
        let mut filter = [
            code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
            code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_rt_sigaction as u32),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
            code(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // With the plugin, and without.
        for closes in [false, true] {
            // SAFETY: a filter that is valid while it is read; nobody is in the plugin.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                        && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                            == 0;
                    if closes {
                        libc::dlclose(plugin.0);
                    }
                    libc::exit(if set { 7 } else { 8 });
                }
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7, "{closes}: {status:#x}");
            }
        }
    });
}
