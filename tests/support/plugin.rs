//! A plugin that has Hakmem as its allocator, and what is left of it.
#![allow(dead_code)]

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The plugin of `examples/plugin.rs`, built if need be, as this test is (`cargo test --release` tests a
/// release build).
fn plugin() -> CString {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    let path = PATH.get_or_init(|| {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let exe = std::env::current_exe().unwrap();
        let profile = exe.ancestors().nth(2).unwrap();
        let name = profile.file_name().unwrap().to_str().unwrap();
        let profile_flag = if name == "release" { "--release" } else { "--profile=dev" };
        let status = Command::new(cargo)
            .args(["build", "--quiet", "-p", "hakmem-tests", "--example", "plugin", profile_flag])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .expect("cargo runs");
        assert!(status.success());
        profile.join("examples/libplugin.so")
    });
    CString::new(path.to_str().unwrap()).unwrap()
}

/// The plugin, loaded.
pub struct Plugin(pub *mut c_void);

// SAFETY: any thread may call it.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

impl Plugin {
    pub fn load() -> Plugin {
        // SAFETY: a library of ours.
        let handle = unsafe { libc::dlopen(plugin().as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        // SAFETY: the loader's message.
        assert!(!handle.is_null(), "{:?}", unsafe { CStr::from_ptr(libc::dlerror()) });
        Plugin(handle)
    }

    pub fn symbol(&self, name: &CStr) -> *mut c_void {
        // SAFETY: an open handle.
        let symbol = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!symbol.is_null(), "{name:?}");
        symbol
    }

    pub fn work(&self, words: usize) -> usize {
        // SAFETY: a function of that type.
        let work = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(usize) -> usize>(self.symbol(c"plugin_work"))
        };
        work(words)
    }

    pub fn profile(&self, words: usize) -> usize {
        // SAFETY: a function of that type.
        let profile = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(usize) -> usize>(self.symbol(c"plugin_profile"))
        };
        profile(words)
    }

    pub fn keep(&self) -> *mut c_char {
        // SAFETY: a function of that type.
        let keep = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn() -> *mut c_char>(self.symbol(c"plugin_keep"))
        };
        keep()
    }

    pub fn release(&self, text: *mut c_char) {
        // SAFETY: a function of that type, and a string of `keep`'s.
        unsafe {
            let release = self.symbol(c"plugin_release");
            std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_char)>(release)(text);
        }
    }

    /// Unloads it, and sees that it is gone.
    pub fn unload(self) {
        // SAFETY: nobody is inside.
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0);
        assert!(!is_mapped(), "the plugin is still mapped");
    }
}

pub fn is_mapped() -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains("libplugin")
}

pub fn mapped_kib() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
