//! How the shared library is linked.

fn main() {
    // A thread's exit hook lives in the library, so it must not be unloaded while threads run.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Our own calls to our own functions need no lookup.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // Without a number, so that a program that is linked in a clone finds it there; install.sh gives it one.
    let soname = std::env::var("HAKMEM_SONAME").unwrap_or_else(|_| "libhakmem.so".into());
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,{soname}");
    // The `libc` crate leaves this to std when its feature `std` is on, and we have no std: it is on when
    // something else is built by the same call.
    println!("cargo::rustc-cdylib-link-arg=-lc");
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=HAKMEM_SONAME");
}
