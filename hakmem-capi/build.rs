//! How the shared library is linked.

fn main() {
    // A thread's exit hook lives in the library, so it must not be unloaded while threads run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Our own calls to our own functions need no lookup.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhakmem.so");
    // The `libc` crate leaves this to std when its feature `std` is on, and we have no std: it is on when
    // something else is built by the same call.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    println!("cargo::rerun-if-changed=build.rs");
}
