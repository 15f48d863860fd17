//! Time and resident memory around the measured part.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

use crate::report::Report;

/// Resident bytes of this process. Allocates nothing.
pub fn resident() -> u64 {
    thread_local!(static STATM: File = File::open("/proc/self/statm").expect("/proc is mounted"));
    let mut buffer = [0u8; 128];
    let length = STATM.with(|file| file.read_at(&mut buffer, 0)).expect("statm can be read");
    let text = std::str::from_utf8(&buffer[..length]).expect("digits");
    let pages: u64 = text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number");
    // SAFETY: asks for a number.
    pages * unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64
}

/// Measures from `start` to `finish`.
pub struct Meter {
    before: u64,
    start: Instant,
}

impl Meter {
    /// Starts.
    pub fn start() -> Self {
        let before = resident();
        Self { before, start: Instant::now() }
    }

    /// Ends: `operations` were made, and `live` bytes are in live blocks now.
    pub fn finish(self, operations: u64, live: u64) -> Report {
        let elapsed_ns = self.start.elapsed().as_nanos() as u64;
        Report {
            operations,
            elapsed_ns,
            resident_before: self.before,
            resident_after: resident(),
            live_after: live,
            ..Report::default()
        }
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_memory_and_time() {
        let meter = Meter::start();
        let memory = crate::Mapped::<u8>::new(32 << 20);
        let report = meter.finish(7, memory.len() as u64);
        assert!(report.resident_after >= report.resident_before + (31 << 20), "{report:?}");
        assert!(report.elapsed_ns > 0 && report.operations == 7 && report.live_after == 32 << 20);
    }
}
