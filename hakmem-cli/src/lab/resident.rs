//! Resident memory of a process group over time, sampled from /proc.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// The first interval between samples.
const INTERVAL: Duration = Duration::from_millis(5);
/// How often new members of the group are looked for: that means reading all of /proc.
const SCAN: Duration = Duration::from_millis(100);
/// With more samples than this every second one is dropped and the interval doubled.
const MOST: usize = 400;

/// Samples one process group.
pub struct Sampler {
    group: i32,
    start: Instant,
    interval: Duration,
    members: Vec<(i32, File)>,
    scanned: Instant,
    page: u64,
    samples: Vec<(f64, u64)>,
}

impl Sampler {
    /// Of the group that process `leader` leads, which was started at `start`.
    pub fn new(leader: i32, start: Instant) -> Self {
        // SAFETY: asks for a number.
        let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
        let members = open(leader).into_iter().collect();
        Self { group: leader, start, interval: INTERVAL, members, scanned: start, page, samples: Vec::new() }
    }

    /// How long to wait until the next sample.
    pub fn interval(&self) -> Duration {
        self.interval
    }

    /// Takes a sample.
    pub fn sample(&mut self) {
        if self.scanned.elapsed() >= SCAN {
            self.scan();
            self.scanned = Instant::now();
        }
        let page = self.page;
        let mut total = 0;
        // A process that is gone cannot be read any more.
        self.members.retain(|(_, file)| match resident_pages(file) {
            Some(pages) => {
                total += pages * page;
                true
            }
            None => false,
        });
        self.samples.push((self.start.elapsed().as_secs_f64(), total));
        if self.samples.len() > MOST {
            let mut keep = false;
            self.samples.retain(|_| {
                keep = !keep;
                keep
            });
            self.interval *= 2;
        }
    }

    /// Adds the members of the group that are not known yet.
    fn scan(&mut self) {
        let Ok(entries) = fs::read_dir("/proc") else { return };
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            if self.members.iter().any(|(member, _)| *member == pid) || group_of(pid) != Some(self.group) {
                continue;
            }
            self.members.extend(open(pid));
        }
    }

    /// The samples: seconds since the start, bytes.
    pub fn finish(mut self) -> Vec<(f64, u64)> {
        // The last one may have come when all were gone.
        while self.samples.last().is_some_and(|&(_, bytes)| bytes == 0) {
            self.samples.pop();
        }
        self.samples
    }
}

fn open(pid: i32) -> Option<(i32, File)> {
    Some((pid, File::open(format!("/proc/{pid}/statm")).ok()?))
}

fn resident_pages(file: &File) -> Option<u64> {
    let mut buffer = [0; 128];
    let read = file.read_at(&mut buffer, 0).ok()?;
    let text = std::str::from_utf8(&buffer[..read]).ok()?;
    text.split_whitespace().nth(1)?.parse().ok()
}

/// The process group of `pid`: the third field after the name, which is in brackets and may hold anything.
fn group_of(pid: i32) -> Option<i32> {
    let text = crate::sys::proc_text(pid, "stat").ok()?;
    text.rsplit_once(')')?.1.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_this_process_and_thins_them_out() {
        let own = std::process::id() as i32;
        let mut sampler = Sampler::new(own, Instant::now());
        sampler.group = group_of(own).unwrap();
        for _ in 0..=MOST {
            sampler.sample();
        }
        assert_eq!(sampler.interval(), INTERVAL * 2);
        let samples = sampler.finish();
        assert_eq!(samples.len(), MOST / 2 + 1);
        assert!(samples.iter().all(|&(_, bytes)| bytes > 1 << 16), "{samples:?}");
        assert!(samples.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
}
