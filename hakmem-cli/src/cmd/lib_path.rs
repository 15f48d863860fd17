//! `hakmem lib`: the library's path, for scripts.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

/// Print the path of libhakmem.so, building it first if needed: LD_PRELOAD=$(hakmem lib) prog
#[derive(clap::Args)]
pub struct Args {
    /// The library to use, instead of looking for it
    #[arg(long, value_name = "PATH")]
    lib: Option<PathBuf>,
}

/// Prints the path.
pub fn execute(args: Args) -> anyhow::Result<ExitCode> {
    let library = crate::library::find(args.lib.as_deref())?;
    if !crate::preload::is_plain(&library) {
        crate::report::say(
            "hakmem: warning: the loader cannot take this path from LD_PRELOAD (white space, ':' or '$' in it)",
        );
    }
    crate::report::print(&[library.as_os_str().as_bytes(), b"\n"].concat())?;
    Ok(ExitCode::SUCCESS)
}
