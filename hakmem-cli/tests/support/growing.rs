//! A program whose memory grows, to be watched meanwhile.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{compile, eventually, hakmem, real};

/// A program that grows until this is dropped.
pub struct Growing(pub Child);

impl Growing {
    pub fn start(folder: &Path, set: &[(&str, &str)]) -> Self {
        let program = compile("grow.c", "grow", &["-g", "-O1"]);
        let mut command = Command::new(program);
        command.current_dir(folder).env("LD_PRELOAD", real()).envs(set.iter().copied());
        Self(command.stdin(Stdio::piped()).spawn().unwrap())
    }

    /// A watch of it that goes on until something ends it, and has written something.
    pub fn watched(&self, folder: &Path, out: &str) -> (Child, PathBuf) {
        let mut command = hakmem();
        command.current_dir(folder).args([
            "profile",
            "--seconds",
            "1000",
            "--rate",
            "4K",
            "--interval",
            "50ms",
        ]);
        command.args(["--out", out, "--pid", &self.pid()]).stdin(Stdio::null()).stderr(Stdio::piped());
        let command = command.spawn().unwrap();
        let file = folder.join(out).join(format!("grow.{}.hakprof", self.pid()));
        eventually("the first snapshot", || file.exists());
        (command, file)
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().unwrap().success());
    }
}
