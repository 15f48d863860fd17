//! A Rust library that has Hakmem as its allocator, loaded and unloaded by a host that has another one.

#[path = "support/plugin.rs"]
mod plugin;
mod support;
#[path = "support/waiting.rs"]
mod waiting;

use plugin::{Plugin, is_mapped, mapped_kib};
use std::ffi::{CStr, c_void};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use support::{in_own_process, in_own_processes};

/// Forks; the child ends by `exit`, with all that is to be done at exit.
fn fork_and_exit() {
    // SAFETY: the child does nothing but exit.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            libc::exit(0);
        }
        let mut status = 1;
        assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
        assert_eq!(status, 0);
    }
}

/// Nor if nobody stops it, and a block is in use: then what describes blocks stays, but nothing else.
#[test]
fn a_profile_leaves_nothing_behind() {
    in_own_process("a_profile_leaves_nothing_behind", || {
        // KiB of address space that stay behind.
        let rounds = |with_profile: bool, keeps: bool| {
            let before = mapped_kib();
            for _ in 0..10 {
                let plugin = Plugin::load();
                let words = if with_profile { plugin.profile(200) } else { plugin.work(200) };
                assert!(words >= 200);
                if keeps {
                    plugin.keep();
                }
                plugin.unload();
            }
            mapped_kib().saturating_sub(before)
        };
        rounds(true, false);
        let gone = rounds(true, false);
        let (without, with) = (rounds(false, true), rounds(true, true));
        println!("{gone} KiB; with a block in use {without} KiB, {with} KiB after a profile");
        assert!(gone <= 1024 && with <= without + 1024, "{gone}, {without}, {with} KiB");
    });
}

/// Hardened mode keeps what a thread has freed from being used again, also where the thread had nothing to do
/// but that, and has ended.
#[test]
fn what_is_in_quarantine_goes_as_well() {
    in_own_processes("what_is_in_quarantine_goes_as_well", &[()], |()| {
        // SAFETY: no other thread looks at the environment.
        unsafe { std::env::set_var("HAKMEM_HARDENED", "on") };
        // KiB of address space that stay behind.
        let rounds = |in_thread: bool| {
            let before = mapped_kib();
            for _ in 0..10 {
                let plugin = Plugin::load();
                let kept = plugin.keep().expose_provenance();
                let release = || plugin.release(std::ptr::with_exposed_provenance_mut(kept));
                if in_thread {
                    thread::scope(|scope| scope.spawn(release).join().unwrap());
                } else {
                    release();
                }
                plugin.unload();
            }
            mapped_kib().saturating_sub(before)
        };
        rounds(true);
        let (own, others) = (rounds(false), rounds(true));
        assert!(others <= own + 1024, "{own} KiB, {others} KiB where another thread has freed something");
    });
}

/// The thread that closes it has never called it.
#[test]
fn nothing_stays_of_what_threads_that_have_ended_have_used() {
    in_own_process("nothing_stays_of_what_threads_that_have_ended_have_used", || {
        // KiB of address space that stay behind.
        let rounds = |threads: usize| {
            let before = mapped_kib();
            for _ in 0..10 {
                let plugin = Plugin::load();
                for _ in 0..threads {
                    thread::scope(|scope| {
                        scope.spawn(|| assert!(plugin.work(200) >= 200)).join().unwrap();
                    });
                }
                plugin.unload();
            }
            mapped_kib().saturating_sub(before)
        };
        rounds(1);
        let (one, three) = (rounds(1), rounds(3));
        assert!(one <= 1024 && three <= 1024, "{one} KiB, {three} KiB after three threads");
    });
}

/// A thread that has used the plugin ends after the plugin has gone; the process forks; it exits.
#[test]
fn threads_forks_and_the_exit_find_nothing_that_has_gone() {
    in_own_process("threads_forks_and_the_exit_find_nothing_that_has_gone", || {
        let plugin = Plugin::load();
        let (used, use_it) = channel();
        let (end, ended) = channel::<()>();
        thread::scope(|scope| {
            let (plugin, used) = (&plugin, used);
            // Not one of Rust's own, whose runtime in the plugin would keep that loaded.
            let thread = scope.spawn(move || {
                assert!(plugin.work(1000) >= 1000);
                used.send(()).unwrap();
                let _ = ended.recv();
            });
            use_it.recv().unwrap();
            assert!(plugin.work(5000) >= 5000);
            // SAFETY: the thread is not inside.
            assert_eq!(unsafe { libc::dlclose(plugin.0) }, 0);
            println!("still mapped while a thread that has used it lives: {}", is_mapped());
            end.send(()).unwrap();
            // With all that it does at its end.
            thread.join().unwrap();
        });
        assert!(!is_mapped(), "something keeps it");
        fork_and_exit();
    });
}

#[test]
fn it_is_gone_at_once_and_comes_back() {
    in_own_process("it_is_gone_at_once_and_comes_back", || {
        let mut before = 0;
        for round in 0..60 {
            let plugin = Plugin::load();
            // The list of so many words is a mapping of its own, which has a table of its own.
            assert!(plugin.work(50_000 + round) >= 2000);
            plugin.unload();
            if round == 9 {
                before = mapped_kib();
            }
        }
        // Nothing stays behind.
        let after = mapped_kib();
        assert!(after <= before + 1024, "{before} KiB of address space after 10 rounds, {after} after 60");
        fork_and_exit();
    });
}

/// The C library calls a library's own `atexit` functions after the allocator has given all back.
#[test]
fn it_can_allocate_after_its_allocators_end() {
    in_own_process("it_can_allocate_after_its_allocators_end", || {
        for _ in 0..3 {
            let plugin = Plugin::load();
            let mut done = 0u8;
            // SAFETY: a function of that type; the byte lives until the plugin is gone.
            unsafe {
                let register = plugin.symbol(c"plugin_works_at_its_end");
                std::mem::transmute::<*mut c_void, extern "C" fn(*mut u8)>(register)(&raw mut done);
            }
            // A thread that has ended, which a scope does not wait for, leaves a record that is free.
            std::thread::scope(|scope| {
                scope.spawn(|| assert!(plugin.work(2000) >= 2000)).join().unwrap();
            });
            assert!(plugin.work(2000) >= 2000);
            plugin.unload();
            // SAFETY: written by the plugin.
            assert_eq!(unsafe { (&raw const done).read_volatile() }, 1, "it was not called");
        }
    });
}

/// What the host still holds stays where it is.
#[test]
fn blocks_in_use_stay() {
    in_own_process("blocks_in_use_stay", || {
        let plugin = Plugin::load();
        assert!(plugin.work(2000) >= 2000);
        let kept = plugin.keep();
        plugin.unload();
        // SAFETY: a string of the plugin's, in memory that nobody has given back.
        assert_eq!(unsafe { CStr::from_ptr(kept) }, c"kept by the host");
        // The plugin, loaded again, has a heap of its own.
        let plugin = Plugin::load();
        assert!(plugin.work(2000) >= 2000);
        plugin.unload();
        // SAFETY: as above.
        assert_eq!(unsafe { CStr::from_ptr(kept) }, c"kept by the host");
    });
}

/// With a thread of the allocator's own, and with statistics, which are then those of the plugin's life.
#[test]
fn its_own_thread_ends_and_its_statistics_are_printed() {
    let name = "its_own_thread_ends_and_its_statistics_are_printed";
    in_own_processes(name, &[()], |()| {
        let file = std::env::temp_dir().join(format!("hakmem-unload-{}.json", std::process::id()));
        let _ = std::fs::remove_file(&file);
        // SAFETY: no other thread looks at the environment.
        unsafe {
            std::env::set_var("HAKMEM_BACKGROUND", "on");
            std::env::set_var("HAKMEM_PURGE_DELAY", "5");
            std::env::set_var("HAKMEM_STATS", "json");
            std::env::set_var("HAKMEM_STATS_FILE", &file);
        }
        let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
        let before = threads();
        for round in 1..=10 {
            let plugin = Plugin::load();
            waiting::until("it has no thread", || {
                assert!(plugin.work(100_000) >= 100_000);
                threads() != before
            });
            plugin.unload();
            // The thread has ended; its entry goes a moment later.
            waiting::until("its thread is still there", || threads() == before);
            let text = std::fs::read_to_string(&file).unwrap();
            assert_eq!(text.matches("\"event\":\"exit\"").count(), round, "{text}");
        }
        std::fs::remove_file(&file).unwrap();
    });
}

/// What describes memory stays where a thread that has used the plugin goes on.
#[test]
fn little_stays_where_a_thread_that_has_used_it_goes_on() {
    in_own_process("little_stays_where_a_thread_that_has_used_it_goes_on", || {
        type Call = (usize, Sender<()>);
        let (calls, called) = channel::<Call>();
        extern "C" fn serve(calls: *mut c_void) -> *mut c_void {
            // SAFETY: the test passes a box of that type.
            let calls = unsafe { Box::from_raw(calls.cast::<Receiver<Call>>()) };
            while let Ok((plugin, done)) = calls.recv() {
                let plugin = Plugin(std::ptr::with_exposed_provenance_mut(plugin));
                assert!(plugin.work(5000) >= 5000);
                done.send(()).unwrap();
            }
            std::ptr::null_mut()
        }
        let mut thread = 0;
        let called = Box::into_raw(Box::new(called)).cast();
        // SAFETY: the function takes that box.
        assert_eq!(unsafe { libc::pthread_create(&mut thread, std::ptr::null(), serve, called) }, 0);
        let mut mapped = 0;
        for round in 0..30 {
            let plugin = Plugin::load();
            let (done, is_done) = channel();
            calls.send((plugin.0.expose_provenance(), done)).unwrap();
            is_done.recv().unwrap();
            plugin.unload();
            if round == 9 {
                mapped = mapped_kib();
            }
        }
        let each = mapped_kib().saturating_sub(mapped) / 20;
        println!("{each} KiB of addresses each time");
        assert!(each <= 16 * 1024, "{each} KiB");
        drop(calls);
        // SAFETY: joined once.
        assert_eq!(unsafe { libc::pthread_join(thread, std::ptr::null_mut()) }, 0);
    });
}
