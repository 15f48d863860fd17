//! The rare part: joining the recording, and a chunk for a thread.

use core::ffi::{CStr, c_char, c_int};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use crate::raw::{self, ChunkHeader, Header};

use crate::tls::Local;
use crate::write::PROCESS;

/// The recording, mapped; null before and without.
static FILE: AtomicPtr<Header> = AtomicPtr::new(null_mut());
/// Threads seen in this process.
static THREADS: AtomicU32 = AtomicU32::new(0);
/// The process that a forked child comes from: what it finds here when PROCESS is wiped.
static SELF: AtomicU32 = AtomicU32::new(0);
/// Of this process: the one it was forked from.
static PARENT: AtomicU32 = AtomicU32::new(0);

/// Whether this program image records. Never waited for: a child forked at the wrong moment would wait
/// forever.
static STATE: AtomicU32 = AtomicU32::new(UNKNOWN);
const UNKNOWN: u32 = 0;
/// Some thread is finding out; what others do meanwhile is not recorded. (The first allocation of a program
/// is made by its only thread.)
const JOINING: u32 = 1;
const ON: u32 = 2;
const OFF: u32 = 3;
/// The file is full, or its disk is.
const FULL: u32 = 4;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Claims a chunk for the thread and gives out `words` of it for an event of this `time`; null when it is not
/// recorded.
///
/// # Safety
///
/// `local` is the calling thread's.
#[cold]
#[inline(never)]
pub(crate) unsafe fn chunk(local: *mut Local, words: usize, time: u64) -> *mut u64 {
    // Acquire: pairs with the Release in `join`, which comes after FILE and PROCESS were set.
    match STATE.load(Ordering::Acquire) {
        ON => {}
        FULL => {
            refuse(time);
            return null_mut();
        }
        OFF | JOINING => return null_mut(),
        _ => {
            // SAFETY: the location is valid for the life of the thread; a program must not see our failures
            // there.
            let errno = unsafe { *libc::__errno_location() };
            let joined = join();
            // SAFETY: as above.
            unsafe { *libc::__errno_location() = errno };
            if !joined {
                return null_mut();
            }
        }
    }
    let file = FILE.load(Ordering::Relaxed);
    // SAFETY: mapped for good, with this many chunks behind it; chunk `index` is this thread's alone, because
    // nobody else got that number.
    unsafe {
        // Relaxed: a counter; what is in the chunk is nobody else's business until it is read from the file.
        let index = (*file).claimed.fetch_add(1, Ordering::Relaxed);
        // The sum is formed only for what is within the mapping.
        let place = (index < (*file).chunks)
            .then(|| file.byte_add(raw::HEADER + index as usize * raw::CHUNK).cast::<ChunkHeader>());
        let Some(header) = place.filter(|&header| has_room(header)) else {
            // Relaxed: a thread that sees it late comes here once more.
            STATE.store(FULL, Ordering::Relaxed);
            refuse(time);
            return null_mut();
        };
        let process = own_number(index as u32 + 1);
        if (*local).process != process {
            (*local).process = process;
            // Relaxed: numbers, no more.
            (*local).thread = THREADS.fetch_add(1, Ordering::Relaxed);
        }
        (*header).forked_from = PARENT.load(Ordering::Relaxed);
        (*header).thread = (*local).thread;
        (*header).pid = libc::getpid();
        (*header).parent_pid = libc::getppid();
        libc::prctl(libc::PR_GET_NAME, (&raw mut (*header).name).cast::<c_char>());
        // Release: pairs with the reader.
        (*header).process.store(process, Ordering::Release);
        let start = header.add(1).cast::<u64>();
        (*local).end = start.add(raw::ROOM / 8);
        (*local).cursor = start.add(words);
        start
    }
}

/// Whether the disk has room for a chunk, which it then sets aside. Without asking, the first write to a page
/// would end the program with SIGBUS where it has none: the file is sparse, and others fill the disk, too.
fn has_room(chunk: *mut ChunkHeader) -> bool {
    // SAFETY: the location is valid for the life of the thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above; the chunk is mapped for good, and its content stays. A program must not see our
    // failures in its errno.
    unsafe {
        let before = *errno;
        let populated = libc::madvise(chunk.cast(), raw::CHUNK, libc::MADV_POPULATE_WRITE) == 0;
        // Kernels before 5.14 do not know the request, and pages larger than a chunk are not taken in part:
        // there it is as if nobody had asked.
        let unknown = *errno == libc::EINVAL;
        *errno = before;
        populated || unknown
    }
}

/// An event of this `time` is lost: whatever comes later in time is of no use, also where other threads still
/// have room.
fn refuse(time: u64) {
    // SAFETY: mapped for good; only called when it is.
    let refused = unsafe { &(*FILE.load(Ordering::Relaxed)).refused };
    // Relaxed: a maximum, read from the file later. Asked first, so that the threads do not fight for the
    // line.
    if refused.load(Ordering::Relaxed) < !time {
        refused.fetch_max(!time, Ordering::Relaxed);
    }
}

/// The number of this process; `mine` becomes it if there is none yet, as at the start and in a forked child.
fn own_number(mine: u32) -> u32 {
    // SAFETY: the word of PROCESS is never unmapped.
    let word = unsafe { &*PROCESS.load(Ordering::Relaxed) };
    // Relaxed: only threads of this process use it, and for the first of them it is the program's order.
    match word.load(Ordering::Relaxed) {
        0 => {}
        number => return number,
    }
    // Whichever thread of the child is first; the others find its number. What a late one does to PARENT and
    // THREADS cannot happen, as a child has one thread until it allocates the memory of another.
    match word.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => {
            PARENT.store(SELF.load(Ordering::Relaxed), Ordering::Relaxed);
            SELF.store(mine, Ordering::Relaxed);
            THREADS.store(0, Ordering::Relaxed);
            mine
        }
        Err(number) => number,
    }
}

/// Maps the file that the environment names. False when there is none.
fn join() -> bool {
    // Relaxed: it decides only who does it.
    if STATE.compare_exchange(UNKNOWN, JOINING, Ordering::Relaxed, Ordering::Relaxed).is_err() {
        return false;
    }
    let mut path = [0u8; libc::PATH_MAX as usize];
    let joined = match find_path(&mut path) {
        Some(true) => match map(&path) {
            Ok(joined) => joined,
            Err(what) => {
                complain(what);
                false
            }
        },
        Some(false) => false,
        // A few calls of the loader pass unseen.
        None => {
            STATE.store(UNKNOWN, Ordering::Relaxed);
            return false;
        }
    };
    // Release: pairs with the Acquire in `chunk`.
    STATE.store(if joined { ON } else { OFF }, Ordering::Release);
    joined
}

/// Maps the file at `path`, and the word that is wiped in a child. False when there is no file:
/// `hakmem record` is done, and this was started by something that still runs in the background.
fn map(path: &[u8]) -> Result<bool, &'static [u8]> {
    // SAFETY: system calls on our own values; `path` ends with a 0. The header is read only after the file is
    // known to be as long as one, and mapped.
    unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 {
            if *libc::__errno_location() == libc::ENOENT {
                return Ok(false);
            }
            return Err(b"cannot open");
        }
        let size = libc::lseek(fd, 0, libc::SEEK_END);
        let usual = libc::PROT_READ | libc::PROT_WRITE;
        let map = |bytes| match size >= raw::HEADER as i64 {
            true => libc::mmap(null_mut(), bytes, usual, libc::MAP_SHARED, fd, 0),
            false => libc::MAP_FAILED,
        };
        let mapped = map(size as usize);
        // With a limit on its memory, a process may still have room to say that it could not take part.
        let only_header = if mapped == libc::MAP_FAILED { map(raw::HEADER) } else { mapped };
        libc::close(fd);
        if only_header == libc::MAP_FAILED {
            return Err(b"cannot map");
        }
        let file = only_header.cast::<Header>();
        if (*file).magic != raw::MAGIC || raw::file_size((*file).chunks) > size as u64 {
            libc::munmap(only_header, if mapped == libc::MAP_FAILED { raw::HEADER } else { size as usize });
            return Err(b"this is no recording:");
        }
        if mapped == libc::MAP_FAILED {
            // Relaxed: a count, read from the file later.
            (*file).failed.fetch_add(1, Ordering::Relaxed);
            libc::munmap(only_header, raw::HEADER);
            return Err(b"cannot map");
        }
        let page = libc::mmap(null_mut(), 4096, usual, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, 4096, libc::MADV_WIPEONFORK) != 0 {
            // Relaxed: a count, read from the file later.
            (*file).failed.fetch_add(1, Ordering::Relaxed);
            libc::munmap(mapped, size as usize);
            return Err(b"forks could not be told apart, so nothing goes to");
        }
        // Relaxed: published by STATE.
        FILE.store(file, Ordering::Relaxed);
        PROCESS.store(page.cast::<AtomicU32>(), Ordering::Relaxed);
    }
    Ok(true)
}

/// One line on standard error.
fn complain(what: &[u8]) {
    const PARTS: [&[u8]; 2] =
        [b"hakmem: this process is not recorded: ", b" the file of HAKMEM_RECORD_FILE\n"];
    let part =
        |bytes: &[u8]| libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let line = [part(PARTS[0]), part(what), part(PARTS[1])];
    // SAFETY: three live buffers. That nobody may be there to read it is no reason to fail.
    unsafe { libc::writev(libc::STDERR_FILENO, line.as_ptr(), line.len() as c_int) };
}

/// Copies the path from the environment, with a 0 behind it. False where there is none, `None` as long as the
/// loader has not come to set up the environment.
fn find_path(path: &mut [u8; libc::PATH_MAX as usize]) -> Option<bool> {
    // A process with more rights than its caller does not write where the caller says.
    // SAFETY: no preconditions.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return Some(false);
    }
    // SAFETY: the C library's own variable; read before the program can change it.
    let mut at = unsafe { environ };
    if at.is_null() {
        return None;
    }
    loop {
        // SAFETY: the array ends with a null pointer, and its entries are C strings.
        let entry = unsafe {
            if (*at).is_null() {
                return Some(false);
            }
            CStr::from_ptr(*at).to_bytes_with_nul()
        };
        let value = entry.strip_prefix(raw::VARIABLE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if let Some(value) = value.filter(|value| (2..=path.len()).contains(&value.len())) {
            path[..value.len()].copy_from_slice(value);
            return Some(true);
        }
        at = at.wrapping_add(1);
    }
}

// The header of the file is used as it lies there.
const _: () = assert!(size_of::<AtomicU64>() == 8);
