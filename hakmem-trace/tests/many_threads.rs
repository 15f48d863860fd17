//! Recordings of programs that start very many threads. A process of its own, as it has a limit.

use std::os::unix::fs::FileExt;

use hakmem_trace::convert;
use hakmem_trace::raw::{self, CHUNK, HEADER, Kind, MAGIC};

const THREADS: u64 = 6000;

/// Each thread that lives for one allocation has a chunk of its own. Those of all together are more than
/// there is memory for, and they are needed one after the other.
#[test]
fn chunks_of_threads_are_read_when_their_turn_comes() {
    let file = tempfile::tempfile().unwrap();
    let header = [MAGIC, THREADS, THREADS, 0, 0];
    file.write_all_at(header.map(u64::to_ne_bytes).as_flattened(), 0).unwrap();
    for thread in 0..THREADS {
        let at = HEADER as u64 + thread * CHUNK as u64;
        let writer = [1, 0, thread as u32, 100, 50];
        file.write_all_at(writer.map(u32::to_ne_bytes).as_flattened(), at).unwrap();
        // The last one to start was the first one to have a chunk.
        let time = 2 * (THREADS - thread);
        let place = |kind| raw::place(kind, 0, 16);
        let events = [time, place(Kind::Allocate), 10 + thread, time + 1, place(Kind::Free)];
        file.write_all_at(events.map(u64::to_ne_bytes).as_flattened(), at + 64).unwrap();
    }
    file.set_len(raw::file_size(THREADS)).unwrap();

    let status = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = status.split_whitespace().next().unwrap().parse().unwrap();
    // SAFETY: this only asks the system.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as u64;
    let most = pages * page + THREADS * CHUNK as u64 / 2;
    let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
    // SAFETY: the limit is valid while it is read, and this process has no other use of its memory.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    let trace = convert(&file, true).unwrap().trace;
    let [process] = &trace.processes[..] else { panic!("{} processes", trace.processes.len()) };
    assert_eq!((process.facts.threads, process.facts.operations()), (THREADS as u32, 2 * THREADS));
    assert_eq!(process.facts.peak_live, 10 + THREADS - 1);
}
