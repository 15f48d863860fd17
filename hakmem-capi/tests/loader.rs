//! Libraries that a program loads while it runs, in the ways that could give them another allocator.

mod support;

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use support::{compile, expect_ok, lib_dir, preloaded, scratch};

const LIMIT: Duration = Duration::from_secs(60);

/// The host, a library with a search path of its own, and the plugin that lies there.
fn programs(plugin_flags: &[&str]) -> [PathBuf; 3] {
    let host = compile("gcc", "loader_host.c", &["-ldl"]);
    let plugin = compile("gcc", "loader_plugin.c", &[&["-shared", "-fPIC"], plugin_flags].concat());
    let folder = scratch("loader").join(format!("plugins-{:?}", std::thread::current().id()));
    std::fs::create_dir_all(&folder).unwrap();
    let lies = folder.join("libloader_plugin.so");
    std::fs::copy(plugin, &lies).unwrap();
    let path = format!("-Wl,--enable-new-dtags,-rpath,{}", folder.display());
    let middle = compile("gcc", "loader_middle.c", &["-shared", "-fPIC", &path, "-ldl"]);
    [host, middle, lies]
}

fn run(mode: &str, [host, middle, plugin]: &[PathBuf; 3], env: &[(&str, &str)]) {
    expect_ok(preloaded(host).arg(mode).arg(middle).arg(plugin).envs(env.iter().copied()), LIMIT);
}

#[test]
fn deepbind_gives_nobody_another_allocator() {
    run("one", &programs(&[]), &[]);
    run("one", &programs(&[]), &[("HAKMEM_DEEPBIND", "remove")]);
}

#[test]
fn the_flag_can_be_left_alone() {
    run("kept", &programs(&[]), &[("HAKMEM_DEEPBIND", "keep")]);
}

#[test]
fn the_loader_knows_who_calls() {
    run("search", &programs(&[]), &[]);
}

#[test]
fn a_namespace_has_an_allocator_of_its_own() {
    run("namespace", &programs(&[]), &[]);
}

/// Its keys for thread-local data are the same as the program's, and so are the places of their values.
#[test]
fn a_namespace_with_keys_of_its_own_takes_no_heap_from_us() {
    let plugin = compile("gcc", "loader_keys.c", &["-DPLUGIN", "-shared", "-fPIC", "-pthread"]);
    let host = compile("gcc", "loader_keys.c", &["-pthread", "-ldl"]);
    expect_ok(Command::new(&host).arg(&plugin), LIMIT);
    expect_ok(preloaded(&host).arg(&plugin), LIMIT);
}

#[test]
fn libraries_linked_symbolic_share_ours() {
    run("one", &programs(&["-Wl,-Bsymbolic"]), &[]);
}

#[test]
fn errors_are_the_loaders() {
    run("errors", &programs(&[]), &[]);
}

#[test]
fn a_static_program_can_load() {
    let archive = lib_dir().join("libhakmem.a").display().to_string();
    let args = ["-static", "-Wl,--whole-archive", &archive, "-Wl,--no-whole-archive"];
    expect_ok(&mut Command::new(compile("gcc", "loader_static.c", &args)), LIMIT);
}
