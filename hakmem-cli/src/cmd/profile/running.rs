//! Takes a profile of a process that runs, or ends one that somebody else has begun.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use nix::unistd::{Gid, Uid, geteuid};

use super::take::conclude;
use super::{Args, Format, prepare_page};
use crate::attach::{Process, Waited};
use crate::profile::files::{EXTENSION, Files};
use crate::profile::goes_on;
use crate::{report, sys};

/// What to do about a program with Hakmem built in.
const BUILT_IN: &str = "start it with `hakmem profile -- PROGRAM`";
/// How long to wait for the end of the profile.
const LAST: Duration = Duration::from_secs(10);

/// Whose the process is.
struct Owner {
    /// Of the process.
    name: String,
    /// The number that the process itself has, which may be in a container.
    pid: String,
    user: u32,
    group: u32,
    groups: Vec<u32>,
}

impl Owner {
    fn of(pid: i32) -> anyhow::Result<Self> {
        let status = sys::proc_text(pid, "status").with_context(|| format!("process {pid}"))?;
        let numbers = |name: &str| -> Vec<u32> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
            line.split_whitespace().filter_map(|number| number.parse().ok()).collect()
        };
        // It goes to a terminal, perhaps root's, and the process gives itself any name.
        let name = report::printable(sys::proc_text(pid, "comm").unwrap_or_default().trim_end().as_ref());
        // The last ones are those by which files are opened.
        let last = |name: &str| numbers(name).last().copied();
        Ok(Self {
            name: name.trim().replace('/', "_"),
            pid: last("NSpid:").map_or_else(|| pid.to_string(), |pid| pid.to_string()),
            user: last("Uid:").unwrap_or_default(),
            group: last("Gid:").unwrap_or_default(),
            groups: numbers("Groups:"),
        })
    }
}

/// Takes a profile of a process that runs.
pub fn watch(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    refuse_options(args)?;
    if let Some(folder) = &args.report {
        prepare_page(folder)?;
    }
    let seconds = args.seconds.unwrap_or(30.0);
    let time = Duration::try_from_secs_f64(seconds)
        .ok()
        .filter(|time| !time.is_zero())
        .with_context(|| format!("--seconds {seconds}: expected a number above 0"))?;
    let mut process = Process::find(pid, BUILT_IN)?;
    let owner = Owner::of(pid)?;
    let name = &owner.name;
    let folder = args.out.clone().unwrap_or_else(|| format!("{name}.profile").into());
    let (rate, interval) = (args.rate.unwrap_or(512 << 10), args.interval.unwrap_or(Duration::from_secs(1)));
    ensure!(rate != 0, "--rate 0: expected 1 or more bytes");
    let files = place(&folder, &owner)?;
    let say = |what: &str| report::say(&format!("hakmem: {what}"));
    let begun = process.start(&files.prefix, rate, interval, say);
    let mut waited = begun.inspect_err(|_| files.leave())?;
    let answered = waited == Waited::Done;
    if answered {
        report::say(&format!(
            "hakmem: profile of {name}, process {pid}, for {seconds} s; Ctrl-C ends it sooner"
        ));
        waited = process.sleep(time)?;
    }
    let ended = waited == Waited::Done && process.stopped()?.is_some();
    // The user may have had enough of this as well: what there is to say about it is the same.
    let asks = waited != Waited::Gone && !ended;
    let silent = asks && process.stop(LAST)? != Waited::Gone && process.stopped()?.is_none();
    let mut going = goes_on::find(&files.prefix);
    // It may be as young as this command, and has just been asked.
    going.retain(|&other| other != pid);
    let say_who = || {
        if !going.is_empty() {
            report::say(&format!("hakmem: {}", goes_on::said(&going, "forked by it")));
        }
    };
    let written = files.written();
    if written.is_empty() {
        say_who();
        // Those that go on need it.
        if !(answered && silent) && going.is_empty() {
            files.leave();
        }
    }
    if silent && written.is_empty() {
        ensure!(
            answered,
            "no profile of process {pid}: it has not begun: its threads slept, or found every block in their own \
             caches; start it with `hakmem profile -- PROGRAM` or HAKMEM_PROFILE"
        );
        bail!(
            "no profile of process {pid} yet: it has taken no memory from a slab since; what it has gathered is \
             written when it does"
        );
    }
    ensure!(
        !written.is_empty() || answered || waited != Waited::Gone,
        "no profile of process {pid}: it has ended before it began one"
    );
    ensure!(
        !written.is_empty(),
        "no profile of process {pid}: it has not begun one, or may not write to {}",
        folder.display()
    );
    let whole = conclude(args, &written, &folder);
    say_who();
    Ok(if whole? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Ends a profile that somebody else has begun, and shows it.
pub fn stop(args: &Args, pid: i32) -> anyhow::Result<ExitCode> {
    refuse_options(args)?;
    let process = Process::find(pid, BUILT_IN)?;
    let owner = Owner::of(pid)?;
    let name = &owner.name;
    ensure!(process.stop(LAST)? != Waited::Gone, "process {pid} has ended, and its profile with it");
    match process.stopped()? {
        Some(true) => {}
        Some(false) => bail!("process {pid}: there is no profile"),
        None => {
            report::say(&format!(
                "hakmem: process {pid} has taken no memory from a slab since; its profile, if it has begun one, ends, \
                 and is written, when it does"
            ));
            return Ok(ExitCode::SUCCESS);
        }
    }
    let Some(prefix) = process.prefix()? else {
        report::say(&format!(
            "hakmem: the profile of {name}, process {pid}, has ended; the program began it, and has to write it"
        ));
        return Ok(ExitCode::SUCCESS);
    };
    let mut file = prefix.into_os_string();
    file.push(format!(".{}.{EXTENSION}", owner.pid));
    let file = PathBuf::from(file);
    // As for the name.
    let shown = report::printable(file.as_ref());
    ensure!(
        file.exists(),
        "the profile of process {pid} has ended, but there is no {shown}: it could not be written, or the process \
         sees other folders"
    );
    report::say(&format!("hakmem: the profile of {name}, process {pid}, has ended: {shown}"));
    let folder = file.parent().unwrap_or(Path::new("/")).to_path_buf();
    let whole = conclude(args, &[file], &folder)?;
    Ok(if whole { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn refuse_options(args: &Args) -> anyhow::Result<()> {
    for (given, name) in [
        (args.at.is_some(), "--at"),
        (args.format != Format::Table, "--format"),
        (args.lib.is_some(), "--lib"),
        (!args.set.is_empty(), "--set"),
    ] {
        ensure!(!given, "{name} is not for a process that runs already");
    }
    Ok(())
}

/// The files of a profile of this process.
fn place(folder: &Path, owner: &Owner) -> anyhow::Result<Files> {
    // Root may write everywhere, but it is the process that writes.
    let writer = (geteuid().is_root() && owner.user != 0)
        .then(|| (Uid::from_raw(owner.user), Gid::from_raw(owner.group)));
    let mut files = Files::new(folder, &owner.name, writer)?;
    let first = files.name().to_string();
    for number in 2.. {
        let Some(taken) = files.taken(&owner.pid) else { break };
        files = files.renamed(|_| format!("{first}-{number}"))?;
        if files.taken(&owner.pid).is_none() {
            report::say(&format!(
                "hakmem: {} is there already; this profile goes to {}.{}.{EXTENSION}",
                taken.display(),
                files.name(),
                owner.pid
            ));
        }
    }
    if writer.is_some() {
        let writes = || tempfile::tempfile_in(folder);
        if let Err(error) = sys::as_user(owner.user, owner.group, &owner.groups, writes) {
            files.leave();
            bail!(
                "the process's user, number {}, cannot write profiles to {} ({error}); name with --out a folder \
                 that it can write to",
                owner.user,
                folder.display()
            );
        }
    }
    Ok(files)
}
