//! How the shared library is linked.

fn main() {
    // A thread's exit hook lives in the library, so it must not be unloaded while threads run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Our own calls to our own functions need no lookup.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhakmem.so");
    println!("cargo::rerun-if-changed=build.rs");
}
