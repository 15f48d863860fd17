//! `hakmem run` on a terminal: Ctrl-C arrives once, Ctrl-Z and `fg` work as for any program.

mod support;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use support::{clean, compile, eventually, fake, state};

/// A shell on a terminal of its own.
struct Terminal {
    shell: Child,
    keyboard: File,
    screen: Arc<Mutex<String>>,
}

impl Terminal {
    /// Runs `script`, with job control if `set -m` is in it; `$H` is the command and `$P` the program that
    /// prints its signals.
    fn start(script: &str) -> Self {
        let pty = nix::pty::openpty(None, None).unwrap();
        let (master, slave) = (File::from(pty.master), File::from(pty.slave));
        let mut shell = clean(Command::new("bash"));
        shell.args(["--norc", "-c", script]).env("HAKMEM_LIB", fake());
        shell.env("H", env!("CARGO_BIN_EXE_hakmem")).env("P", compile("signals.c", "signals", &[]));
        shell.stdin(slave.try_clone().unwrap()).stdout(slave.try_clone().unwrap()).stderr(slave);
        // SAFETY: plain system calls: a session of its own, with its stdin as the terminal.
        unsafe {
            shell.pre_exec(|| {
                nix::unistd::setsid()?;
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    -1 => Err(std::io::Error::last_os_error()),
                    _ => Ok(()),
                }
            });
        }
        let child = shell.spawn().unwrap();
        drop(shell);
        let screen = Arc::new(Mutex::new(String::new()));
        let (mut output, shown) = (master.try_clone().unwrap(), screen.clone());
        std::thread::spawn(move || {
            let mut bytes = [0; 1024];
            // The end shows as an error (EIO).
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                shown.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        });
        Self { shell: child, keyboard: master, screen }
    }

    fn screen(&self) -> String {
        self.screen.lock().unwrap().clone()
    }

    #[track_caller]
    fn wait_for(&self, text: &str) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(100);
        while !self.screen().contains(text) {
            assert!(std::time::Instant::now() < end, "waited in vain for {text:?} on:\n{}", self.screen());
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    fn press(&mut self, key: u8) {
        self.keyboard.write_all(&[key]).unwrap();
    }

    /// The process id that the program printed.
    fn program(&self) -> i32 {
        self.wait_for("ready ");
        eventually("a whole line", || self.screen().split("ready ").nth(1).is_some_and(|s| s.contains('\n')));
        self.screen().split("ready ").nth(1).unwrap().lines().next().unwrap().trim().parse().unwrap()
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

const CTRL_C: u8 = 3;
const CTRL_Z: u8 = 26;
const CTRL_BACKSLASH: u8 = 28;

/// Makes the terminal send a signal that the program prints as `name`, while the command is held so that its
/// own comes late and cannot coincide with the program's; then checks that it was not passed on.
fn arrives_once(name: &str, make: impl Fn(&mut Terminal)) {
    let mut terminal = Terminal::start("$H run $P; echo status=$?");
    let program = terminal.program();
    let stat = std::fs::read_to_string(format!("/proc/{program}/stat")).unwrap();
    let command: i32 = stat.rsplit(") ").next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    send(command, Signal::SIGSTOP);
    eventually("the command is held", || state(command) == Some('T'));
    make(&mut terminal);
    terminal.wait_for(name);
    send(command, Signal::SIGCONT);
    // This one is passed on, and after the other, if that were.
    terminal.wait_for("CONT");
    send(program, Signal::SIGTERM);
    terminal.wait_for("status=7");
    assert_eq!(terminal.screen().matches(name).count(), 1, "{}", terminal.screen());
}

#[test]
fn ctrl_c_arrives_once() {
    arrives_once("INT", |terminal| terminal.press(CTRL_C));
}

#[test]
fn ctrl_backslash_arrives_once() {
    arrives_once("QUIT", |terminal| terminal.press(CTRL_BACKSLASH));
}

#[test]
fn a_new_size_of_the_terminal_arrives_once() {
    arrives_once("WINCH", |terminal| {
        let size = libc::winsize { ws_row: 50, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        // SAFETY: the descriptor is open and the struct is what this request takes.
        unsafe { libc::ioctl(terminal.keyboard.as_raw_fd(), libc::TIOCSWINSZ, &size) };
    });
}

#[test]
fn ctrl_c_ends_both() {
    // bash would take it that it shall end too; dash with a trap goes on.
    let perl = r#"perl -e "\$|=1; print qq(up\n); sleep 60""#;
    let mut terminal = Terminal::start(&format!("sh -c 'trap : INT; $H run {perl}; echo status=$?'; :"));
    terminal.wait_for("up");
    terminal.press(CTRL_C);
    terminal.wait_for("status=130");
    assert!(terminal.screen().contains("without a report (killed by SIGINT)"), "{}", terminal.screen());
}

#[test]
fn ctrl_z_gives_the_shell_its_terminal_back() {
    let mut terminal = Terminal::start("set -m; $H run $P; echo stopped=$?; fg >/dev/null; echo status=$?");
    let program = terminal.program();
    terminal.press(CTRL_Z);
    terminal.wait_for("stopped=147");
    // The script has gone on to `fg` by now.
    terminal.wait_for("CONT");
    eventually("the program goes on", || state(program) != Some('T'));
    terminal.press(CTRL_C);
    terminal.wait_for("INT");
    send(program, Signal::SIGTERM);
    terminal.wait_for("status=7");
}

#[test]
fn a_program_that_stops_itself_gives_the_terminal_back_too() {
    for signal in ["STOP", "TSTP"] {
        let script = format!(
            "set -m; $H run -q perl -e 'kill {signal}, $$; exit 4'; echo stopped=$?; fg; echo status=$?"
        );
        let terminal = Terminal::start(&script);
        terminal.wait_for("stopped=147");
        terminal.wait_for("status=4");
    }
}

#[test]
fn a_background_program_that_reads_the_terminal_shows_as_stopped() {
    let terminal =
        Terminal::start("set -m; $H run -q cat & wait %1; echo stopped=$?; kill $!; fg; echo status=$?");
    // Here the kernel stops the whole group, us too, by SIGTTIN.
    terminal.wait_for("stopped=149");
    // `kill %1` would let it go on as well, and it might have ended before `fg`.
    terminal.wait_for("status=143");
}

#[cfg(feature = "profile")]
#[test]
fn a_long_profile_shows_in_the_title_that_it_is_alive() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    // Until the first title is there, which comes after 5 s. Others may follow, where the machine is busy.
    let wait = format!("until test -e {out}/go; do sleep 0.1; done; echo done");
    let script = format!("TERM=xterm $H profile --out {out} -- sh -c '{wait}'; echo status=$?");
    let terminal = Terminal::start(&script);
    terminal.wait_for("hakmem: profiling sh");
    terminal.wait_for("hakmem profile: sh, ");
    std::fs::write(folder.path().join("go"), "").unwrap();
    // The stand-in for the library writes no profile here.
    terminal.wait_for("status=1");
    let screen = terminal.screen();
    let (before, title) = screen.split_once("\u{1b}[22;0t\u{1b}]0;hakmem profile: sh, ").expect(&screen);
    let (elapsed, mut after) = title.split_once(" s\u{7}").expect(&screen);
    assert!(elapsed.parse::<f64>().unwrap() >= 5.0, "{screen:?}");
    while let Some((_, later)) =
        after.strip_prefix("\u{1b}]0;hakmem profile: sh, ").and_then(|next| next.split_once('\u{7}'))
    {
        after = later;
    }
    // Put back before anything else is said.
    assert!(
        !before.contains("done") && after.starts_with("done\r\n\u{1b}[23;0thakmem: no profile"),
        "{screen:?}"
    );
}

fn send(pid: i32, signal: Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal).unwrap();
}
