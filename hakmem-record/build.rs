//! How the shared library is linked.

fn main() {
    // Threads write through it to their end.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Our own calls to our own functions need no lookup.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libhakmem_record.so");
    println!("cargo::rerun-if-changed=build.rs");
}
