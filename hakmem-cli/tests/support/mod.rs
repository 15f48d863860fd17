//! What the tests of the command share: the command, a stand-in for the library, and runs with a time limit.
#![allow(dead_code)]

pub mod disk;
#[cfg(feature = "profile")]
pub mod ends;
pub mod growing;
#[path = "../../../tests/support/limited.rs"]
pub mod limited;
#[cfg(feature = "profile")]
pub mod saved;
#[path = "../../../tests/support/skips.rs"]
pub mod skips;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

/// No run of a test takes longer, unless something hangs.
const LIMIT: Duration = Duration::from_secs(300);

/// What a run left.
pub struct Ended {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub fn stdout(&self) -> &str {
        std::str::from_utf8(&self.stdout).unwrap()
    }

    /// The only line on stderr.
    #[track_caller]
    pub fn line(&self) -> &str {
        assert!(
            self.stderr.ends_with('\n') && self.stderr.lines().count() == 1,
            "not one line: {:?}",
            self.stderr
        );
        self.stderr.trim_end()
    }
}

/// The command, as in an environment that knows nothing of Hakmem.
pub fn hakmem() -> Command {
    clean(Command::new(env!("CARGO_BIN_EXE_hakmem")))
}

/// `command` without what the surrounding test run may have set.
pub fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAKMEM_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    // Started in the background or by nohup, this process has some ignored, and the command would pass that
    // on. SAFETY: signal may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command
}

/// `hakmem run` with the stand-in for the library, and these arguments.
pub fn fake_run<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut command = hakmem();
    command.env("HAKMEM_LIB", fake()).arg("run").args(args);
    command
}

/// The stand-in for the library; see `fake/libfake.c`.
pub fn fake() -> PathBuf {
    compile("libfake.c", "libhakmem.so", &["-shared", "-fPIC"])
}

/// Compiles `fake/<source>` to a file `name`, once.
pub fn compile(source: &str, name: &str, args: &[&str]) -> PathBuf {
    compile_by("cc", source, name, args)
}

/// The same by this compiler.
pub fn compile_by(compiler: &str, source: &str, name: &str, args: &[&str]) -> PathBuf {
    static DONE: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let mut done = DONE.lock().unwrap();
    if done.insert(name.to_string()) {
        let fresh = place.with_file_name(format!("{name}.{}", std::process::id()));
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake").join(source);
        let mut cc = clean(Command::new(compiler));
        let status = cc.args(args).arg("-o").arg(&fresh).arg(source).status();
        let status = status.unwrap_or_else(|error| panic!("{compiler} is needed: {error}"));
        assert!(status.success(), "{compiler} {name}");
        // Put in place in one step: other test programs may be using an earlier one.
        std::fs::rename(&fresh, &place).unwrap();
    }
    place
}

/// Puts a copy of `source` at `place`. Another process writes it: had we it open for writing, then so would
/// every process that another test is just starting, and it could not be executed (ETXTBSY).
pub fn install(source: &Path, place: &Path, mode: &str) {
    let mut install = Command::new("install");
    assert!(install.args(["-m", mode]).arg(source).arg(place).status().unwrap().success());
}

/// Puts a script at `place`.
pub fn script(place: &Path, text: &str, mode: &str) -> PathBuf {
    let draft = place.with_extension("draft");
    std::fs::write(&draft, text).unwrap();
    install(&draft, place, mode);
    std::fs::remove_file(draft).unwrap();
    place.to_path_buf()
}

/// The real library: HAKMEM_LIB, or freshly built.
pub fn real() -> PathBuf {
    static REAL: OnceLock<PathBuf> = OnceLock::new();
    let build = || {
        if let Some(path) = std::env::var_os("HAKMEM_LIB") {
            return path.into();
        }
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.args(["build", "--release", "--quiet", "-p", "hakmem-capi"]).current_dir(root);
        assert!(
            command.status().expect("cargo runs").success(),
            "cargo build --release -p hakmem-capi failed"
        );
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
        target.join("release/libhakmem.so")
    };
    REAL.get_or_init(build).clone()
}

/// Runs `command` without input to its end.
pub fn run(command: &mut Command) -> Ended {
    finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
}

/// Waits for `child`; kills it and fails when it takes too long, or what it has left has its output.
pub fn finish(child: Child) -> Ended {
    let ended = limited::finish(LIMIT, child, "the command");
    Ended {
        status: ended.status,
        stdout: ended.stdout,
        stderr: String::from_utf8_lossy(&ended.stderr).into_owned(),
    }
}

/// Waits until `condition` holds.
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LIMIT, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The kernel's letter for the state of process `pid`: R running, S sleeping, T stopped, Z zombie.
pub fn state(pid: i32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
