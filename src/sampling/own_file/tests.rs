//! What becomes of the file of a profile when others meddle with it.

#![cfg(not(miri))]

use super::*;
use crate::sampling::store::{Sample, Store};
use std::ffi::CString;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use std::vec::Vec;
use std::{format, fs};

mod given_up;
mod snapshots;

/// The process's own profile, which one test has at a time.
struct Profile {
    folder: PathBuf,
    path: PathBuf,
    text: CString,
    _one: MutexGuard<'static, ()>,
}

impl Profile {
    fn new(name: &str) -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = std::env::temp_dir().join(format!("hakmem-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let path = folder.join("p.hakprof");
        let text = c_string(&path);
        with_store(true, |store| store.start(1 << 20, true, false)).unwrap();
        Self { folder, path, text, _one: one }
    }

    fn append(&self, why: Why) -> bool {
        append_to(&self.text, why, &[0; 8])
    }
    fn bytes(&self) -> Vec<u8> {
        fs::read(&self.path).unwrap()
    }

    /// Kind and content of each frame of the file, which is whole.
    fn all(&self) -> Vec<(u32, Vec<u8>)> {
        let bytes = self.bytes();
        let mut rest = bytes.strip_prefix(MAGIC).expect("it has its beginning");
        let mut found = Vec::new();
        while !rest.is_empty() {
            let (frame, others) = rest.split_at(number(rest, 4) as usize + 8);
            let check = frame.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            });
            assert_eq!(others[..8], check.to_le_bytes());
            found.push((number(frame, 0), frame[8..].to_vec()));
            rest = &others[8..];
        }
        found
    }

    /// How many frames of a kind the file has.
    fn frames(&self, kind: u32) -> usize {
        self.all().iter().filter(|frame| frame.0 == kind).count()
    }

    /// How often the file says what stands for others: as a stack, and as a thread.
    fn others(&self) -> [usize; 2] {
        let frames = self.all();
        let of = |kind| frames.iter().filter(move |frame| frame.0 == kind && number(&frame.1, 4) == u32::MAX);
        [STACKS, THREADS].map(|kind| of(kind).count())
    }

    /// The samples of all sites as the last snapshot and those before it say; and the sites without any.
    fn samples(&self) -> (u64, usize) {
        let mut rows = std::collections::BTreeMap::new();
        for (_, snapshot) in self.all().iter().filter(|frame| frame.0 == SNAPSHOT) {
            let first = 16 + 8 * number(snapshot, 12) as usize;
            for row in 0..number(snapshot, first) as usize {
                let at = first + 4 + row * 36;
                let (site, samples) = (number(snapshot, at), number(snapshot, at + 4));
                let before = rows.insert(site, u64::from(samples));
                assert_ne!(before, Some(0), "site {site} has gone already");
            }
        }
        (rows.values().sum(), rows.values().filter(|&&samples| samples == 0).count())
    }

    fn names(&self) -> usize {
        fs::read_dir(&self.folder).unwrap().count()
    }
}

/// Adds a sample at another place each time, so that there is something to write.
fn sample(number: usize) {
    let sample = Sample {
        address: number << 12,
        size: 4096,
        rate: 1 << 20,
        thread: 1,
        tag: 0,
        now: 0,
        mapped: 0,
        addresses: &[number],
        end: 0,
    };
    assert_eq!(with_store(true, |store| store.allocated(&sample, || [0; 16])), Some(true));
}

/// Adds one whose block is free again.
fn sample_freed(number: usize) {
    sample(number);
    with_store(true, |store| store.freed(number << 12, 1 << 20, 1)).unwrap();
}

/// What happens once while the file is being written.
static DURING: Mutex<Option<Box<dyn FnOnce() + Send>>> = Mutex::new(None);

pub(super) fn during_write() {
    let during = DURING.lock().unwrap().take();
    during.into_iter().for_each(|during| during());
}

impl Drop for Profile {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
        with_store(true, Store::clear);
    }
}

fn c_string(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

/// Whether a file of its own is written with all that there is.
fn write_anew(path: &Path) -> bool {
    crate::sampling::write_to(&c_string(path), Why::Asked, &[0; 8])
}

fn number(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

/// See `docs/profile-format.md`.
const PROCESS: u32 = 1;
const STACKS: u32 = 3;
const SITES: u32 = 5;
const THREADS: u32 = 6;
const SNAPSHOT: u32 = 7;

#[test]
fn nothing_stands_behind_the_end() {
    let profile = Profile::new("end");
    // What another allocator of this process has written stays while there is nothing to say; what is of
    // long ago does not.
    fs::write(&profile.path, "another's").unwrap();
    assert!(profile.append(Why::End));
    assert_eq!(profile.bytes(), b"another's");
    let file = fs::File::options().write(true).open(&profile.path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
    let mut lengths = [0; 4];
    for (length, why) in lengths.iter_mut().zip([Why::Timer, Why::End, Why::Timer, Why::End]) {
        assert!(profile.append(why));
        *length = profile.bytes().len();
    }
    assert!(0 < lengths[0] && lengths[0] < lengths[1]);
    assert_eq!(lengths[1..], [lengths[1]; 3]);
}

#[test]
fn what_is_ours_no_more_is_begun_anew() {
    let profile = Profile::new("ours");
    let (path, other) = (&profile.path, profile.folder.join("other"));
    let meddle: [&dyn Fn(); 5] = [
        // Another process's of the same number, as long as ours: it has another inode.
        &|| {
            fs::copy(path, &other).unwrap();
            fs::rename(&other, path).unwrap();
        },
        &|| fs::write(path, "").unwrap(),
        &|| fs::write(path, &profile.bytes()[..30]).unwrap(),
        &|| fs::write(path, [profile.bytes(), b"another's frame".to_vec()].concat()).unwrap(),
        &|| fs::remove_file(path).unwrap(),
    ];
    for (i, meddle) in meddle.into_iter().enumerate() {
        // Ours is appended to.
        for snapshot in 1..4 {
            sample(4 * i + snapshot);
            assert!(profile.append(Why::Timer));
            let expected = if i == 0 { snapshot } else { snapshot + 1 };
            let frames = [PROCESS, SNAPSHOT].map(|kind| profile.frames(kind));
            assert_eq!(frames, [1, expected], "{i}");
        }
        meddle();
        sample(4 * i + 4);
        assert!(profile.append(Why::Timer));
        // All sites in one.
        assert_eq!([PROCESS, SITES, SNAPSHOT].map(|kind| profile.frames(kind)), [1; 3], "{i}");
    }
    assert_eq!(profile.names(), 1);
}

#[test]
fn what_could_not_be_written_is_written_later() {
    let profile = Profile::new("later");
    let (path, aside) = (&profile.path, profile.folder.with_extension("aside"));
    // From the first one on.
    fs::rename(&profile.folder, &aside).unwrap();
    sample(1);
    assert!(!profile.append(Why::Timer) && !profile.append(Why::Timer));
    fs::rename(&aside, &profile.folder).unwrap();
    assert!(profile.append(Why::Timer));
    let rows = profile.bytes();
    assert_eq!([PROCESS, SITES, SNAPSHOT].map(|kind| profile.frames(kind)), [1; 3]);
    // What is there meanwhile stays as it was, and is gone on with.
    fs::rename(&profile.folder, &aside).unwrap();
    sample(2);
    assert!(!profile.append(Why::Timer) && !profile.append(Why::End));
    fs::rename(&aside, &profile.folder).unwrap();
    assert_eq!(profile.bytes(), rows);
    sample(3);
    assert!(profile.append(Why::Timer));
    assert_eq!(profile.samples(), (3, 0));
    assert!(profile.append(Why::End));
    assert!(profile.bytes().starts_with(&rows));
    assert_eq!([PROCESS, SITES, SNAPSHOT].map(|kind| profile.frames(kind)), [1, 2, 3]);
    assert!(path.exists());
}

/// Behind a part of a frame nothing could be read. A file that is open for reading stands for a disk that is
/// full: it cannot be written to.
#[test]
fn a_part_of_a_frame_is_cut_off() {
    let profile = Profile::new("part");
    fs::write(&profile.path, "whole").unwrap();
    let file = File::append_existing(&profile.text).unwrap();
    assert!(append(&file, b" and more").is_ok_and(|state| state == file.state()));
    assert!(file.cut(5));
    assert_eq!(profile.bytes(), b"whole");
    let unwritable = File::read_only(&profile.text).unwrap();
    assert!(append(&unwritable, b"no").is_err_and(|is_as_it_was| !is_as_it_was));
}

#[test]
fn a_link_in_the_place_of_the_file_that_is_not_whole_is_not_followed() {
    let profile = Profile::new("link");
    let target = profile.folder.join("target");
    fs::write(&target, "somebody's").unwrap();
    // SAFETY: the call has no preconditions.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let beside = format!("{}.{thread:010}.new", profile.path.display());
    symlink(&target, Path::new(&beside)).unwrap();
    assert!(profile.append(Why::Asked));
    assert_eq!((fs::read(&target).unwrap().as_slice(), profile.names()), (&b"somebody's"[..], 2));
    assert!(fs::symlink_metadata(&profile.path).unwrap().is_file());
    assert_eq!(profile.frames(SNAPSHOT), 1);
}

/// The path can be guessed, and in a folder that others may write to somebody may have put something there. A
/// pipe that nobody reads would be waited for.
#[test]
fn what_somebody_has_put_in_the_place_of_the_file_is_replaced_and_not_opened() {
    let profile = Profile::new("planted");
    let target = profile.folder.join("target");
    fs::write(&target, "somebody's").unwrap();
    for why in [Why::Timer, Why::Asked] {
        // At first the file is not there yet, and later it is the one that was appended to.
        let _ = fs::remove_file(&profile.path);
        symlink(&target, &profile.path).unwrap();
        sample(1);
        assert!(profile.append(why));
        assert_eq!(fs::read(&target).unwrap(), b"somebody's");
        assert!(fs::symlink_metadata(&profile.path).unwrap().is_file() && profile.frames(SNAPSHOT) == 1);
        fs::remove_file(&profile.path).unwrap();
        // SAFETY: a C string that outlives the call.
        assert_eq!(unsafe { libc::mkfifo(profile.text.as_ptr(), 0o600) }, 0);
        assert!(profile.append(why));
        assert!(fs::symlink_metadata(&profile.path).unwrap().is_file() && profile.frames(SNAPSHOT) == 1);
        // A link to the file itself leads to no other, and is none.
        let moved = profile.folder.join("moved");
        fs::rename(&profile.path, &moved).unwrap();
        symlink(&moved, &profile.path).unwrap();
        let before = fs::read(&moved).unwrap();
        assert!(profile.append(why));
        assert_eq!(fs::read(&moved).unwrap(), before);
        assert!(fs::symlink_metadata(&profile.path).unwrap().is_file() && profile.frames(SNAPSHOT) == 1);
    }
}

#[test]
fn long_paths_work() {
    let profile = Profile::new("deep");
    let mut deep = profile.folder.clone();
    while deep.as_os_str().len() < file::LONGEST - 202 {
        deep.push("d".repeat(200));
    }
    fs::create_dir_all(&deep).unwrap();
    for (length, works) in [(file::LONGEST, true), (file::LONGEST + 1, false)] {
        let path = deep.join("f".repeat(length - deep.as_os_str().len() - 1));
        assert_eq!(file::replace(&c_string(&path), b"bytes").is_some(), works);
        assert_eq!(path.exists(), works);
    }
}

/// What is not whole yet has a name of its own, which the file system takes if it takes the file's.
#[test]
fn long_names_work() {
    let profile = Profile::new("name");
    sample(1);
    for (i, name) in (1..256).map(|len| "n".repeat(len)).enumerate() {
        let path = profile.folder.join(&name);
        assert!(write_anew(&path), "{} bytes", name.len());
        assert!(path.exists() && profile.names() == i + 1);
    }
    let path = profile.folder.join("n".repeat(256));
    assert!(!write_anew(&path));
}

/// However long who writes has been waited for before.
#[test]
fn the_end_waits_for_who_writes() {
    let profile = Profile::new("waits");
    sample(1);
    let held = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _writes = FILE.lock_soon().unwrap();
            held.wait();
            while !FILE.is_waited_for() {
                std::thread::yield_now();
            }
            // So long nobody waits who may do without.
            std::thread::sleep(Duration::from_millis(20));
        });
        held.wait();
        assert!(profile.append(Why::End) && profile.path.exists());
    });
    assert_eq!(profile.frames(SNAPSHOT), 1);
}
