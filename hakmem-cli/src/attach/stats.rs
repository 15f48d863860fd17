//! Statistics of a process that runs. It puts them into its own memory as text, which is read there.

use std::fs::File;
use std::time::{Duration, Instant};

use anyhow::ensure;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::SigSet;

use super::{LOOK, Process, Waited, at, block, refused, signals};
use crate::sys;

/// The words that are for statistics begin with this, in libraries that can be asked.
const KNOWS: &[u8; 8] = b"HAKSTAT1";
/// The byte of [`at::REQUEST`] that is for statistics.
const BYTE: u64 = at::REQUEST + 1;
const STATS: u8 = 1;
const FORGET: u8 = 2;
/// The question is put again after this long: somebody's profile may have been asked for at the same moment,
/// or another thread have been at work.
const AGAIN: Duration = Duration::from_millis(500);
/// No text is longer: what is in the memory of another process may be anything.
const LONGEST: u64 = 1 << 20;

/// What came of a question.
pub enum Answer {
    /// The statistics.
    Text(String),
    /// There is no memory for it, or the process may make few system calls only.
    Refused,
    /// None, or not yet.
    None(Waited),
}

/// The words behind [`KNOWS`].
struct Words {
    asked: u32,
    answered: u32,
    text: u64,
    length: u64,
}

impl Process {
    /// Asks for statistics, as one line of JSON or as a table, and waits for them, but not beyond `limit`.
    pub fn stats(&self, json: bool, limit: Duration) -> anyhow::Result<Answer> {
        self.words()?;
        block()?;
        let (begun, signals) = (Instant::now(), signals());
        let _turn = match self.turn_for_stats(limit, &signals) {
            Ok(turn) => turn,
            Err(waited) => return Ok(Answer::None(waited)),
        };
        // Another number than of any question before: its answer may come only now. The form goes with it.
        let Ok(words) = self.words() else { return Ok(Answer::None(Waited::Gone)) };
        let mut number = (words.asked | 1).wrapping_add(1) | u32::from(json);
        let (mut asked, mut put) = (false, None);
        let answer = loop {
            // Not in the memory of a program that the process has become meanwhile.
            let Ok(words) = self.words() else { return Ok(Answer::None(Waited::Gone)) };
            if asked && words.answered == number {
                match self.text(&words) {
                    // A thread of the process that was told to forget an earlier answer may do so only now.
                    Err(_) if begun.elapsed() < limit => (asked, number) = (false, number.wrapping_add(2)),
                    answer => break answer,
                }
            }
            if !asked {
                match self.write(self.words + at::ASKED, &number.to_le_bytes()) {
                    Ok(()) => (asked, put) = (true, None),
                    Err(_) if self.words().is_err() => return Ok(Answer::None(Waited::Gone)),
                    Err(error) => return Err(error),
                }
            }
            if sys::next_signal(&signals, true).is_some() {
                break Ok(Answer::None(Waited::Stopped));
            }
            if begun.elapsed() >= limit {
                break Ok(Answer::None(Waited::Done));
            }
            if put.is_none_or(|put: Instant| put.elapsed() >= AGAIN) {
                match self.write(self.words + BYTE, &[STATS]) {
                    Err(error) if self.words().is_ok() => break Err(error),
                    _ => put = Some(Instant::now()),
                }
            }
            std::thread::sleep(LOOK);
        };
        // Also if there was none: it may come yet.
        let _ = self.write(self.words + BYTE, &[FORGET]);
        answer
    }

    /// Reads the words.
    fn words(&self) -> anyhow::Result<Words> {
        let mut bytes = [0; 32];
        // An older library may end before that.
        let read = self.read_raw(self.words + at::STATS, &mut bytes);
        match read.map_err(|error| (error.raw_os_error(), refused(self.pid, &error))) {
            Err((number, error)) if number != Some(libc::EFAULT) => return Err(error),
            done => ensure!(
                done.is_ok() && bytes.starts_with(KNOWS),
                "process {}: its library is older than this command, and cannot be asked for statistics: start \
                 it again on the one that `hakmem lib` prints",
                self.pid
            ),
        }
        let field = |at: usize, size: usize| {
            bytes[at..at + size].iter().rev().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
        };
        Ok(Words {
            asked: field(8, 4) as u32,
            answered: field(12, 4) as u32,
            text: field(16, 8),
            length: field(24, 8),
        })
    }

    /// What the process has answered.
    fn text(&self, words: &Words) -> anyhow::Result<Answer> {
        if words.text == 0 {
            return Ok(Answer::Refused);
        }
        let mut text = vec![0; words.length.min(LONGEST) as usize];
        self.read(words.text, &mut text)?;
        // It goes to a terminal, perhaps root's, and comes from whoever has that process.
        let text = String::from_utf8_lossy(&text);
        let shown = |c: char| if c.is_control() && c != '\n' { '?' } else { c };
        Ok(Answer::Text(text.chars().map(shown).collect()))
    }

    /// Keeps others of these commands from asking at once, but not those for profiles. Waits for them, unless
    /// that takes too long, or a signal comes.
    fn turn_for_stats(&self, limit: Duration, signals: &SigSet) -> Result<Option<Flock<File>>, Waited> {
        let Ok(mut folder) = File::open(format!("/proc/{}/task", self.pid)) else { return Ok(None) };
        let begun = Instant::now();
        loop {
            folder = match Flock::lock(folder, FlockArg::LockExclusiveNonblock) {
                Ok(turn) => return Ok(Some(turn)),
                Err((folder, Errno::EWOULDBLOCK)) if begun.elapsed() < limit => folder,
                Err((_, Errno::EWOULDBLOCK)) => return Err(Waited::Done),
                // Where there are no locks, nobody is kept away.
                Err(_) => return Ok(None),
            };
            if sys::next_signal(signals, true).is_some() {
                return Err(Waited::Stopped);
            }
            std::thread::sleep(LOOK);
        }
    }
}
