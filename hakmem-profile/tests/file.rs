//! The raw file: what is written is read; what is cut is taken as far as it goes; what is damaged is refused.

mod support;

use hakmem_profile::file::{self, MAGIC, NO_TAG, Process, Site, StackEnd, Totals, Why, Writer, frame, kind};
use hakmem_profile::model::{By, Profile};
use hakmem_profile::symbols::Symbols;
use hakmem_profile::{pprof, suspects};
use support::{process, row, small, totals};

fn refused(bytes: &[u8]) -> String {
    let error = file::read(bytes).expect_err("it is no good file").to_string();
    assert!(!error.contains('\n'), "{error:?}");
    error
}

#[test]
fn what_is_written_is_read() {
    let raw = file::read(&small()).unwrap();
    assert_eq!(raw.process, process());
    assert_eq!((raw.modules.len(), raw.modules[0].len(), raw.stacks.len(), raw.sites.len()), (1, 3, 2, 3));
    assert_eq!(raw.modules[0][0].build_id, [0xab, 0xcd, 0xef]);
    assert_eq!(raw.stacks[1].addresses, [0x1000_0301, 0x3000_0001, 0x9000_0000]);
    assert_eq!((raw.stacks[0].end, raw.stacks[1].end), (StackEnd::Complete, StackEnd::Stopped));
    assert_eq!((raw.sites[1].tag, raw.sites[1].thread, raw.sites[1].size), (Some(0), 4712, 1 << 20));
    assert_eq!((raw.tags[&0].as_str(), raw.threads[&4712].as_str()), ("query 42", "worker"));
    assert_eq!(raw.snapshots.iter().map(|s| s.why).collect::<Vec<_>>(), [Why::Timer, Why::Timer, Why::End]);
    assert_eq!((raw.snapshots[1].totals, raw.snapshots[1].rows.len()), (totals(2), 1));
    assert_eq!(raw.lifetimes[&0], [(10, 12), (20, 4)]);
    assert_eq!((raw.end, raw.cut), (Some(Why::End), None));
}

/// A later file of the same process may have them in another order.
#[test]
fn stacks_are_in_the_order_of_their_identifiers() {
    let mut writer = Writer::new(&process());
    for ids in [[2u32, 0], [3, 1]] {
        writer.modules(&[]);
        for id in ids {
            let mut payload = 1u32.to_le_bytes().to_vec();
            payload.extend(id.to_le_bytes());
            payload.extend([0, 1, 0]);
            payload.extend(u64::from(id + 10).to_le_bytes());
            writer.push(kind::STACKS, &payload);
        }
    }
    for stack in [3, 0, 1, 2] {
        writer.site(&Site { stack, thread: 1, tag: None, size: 64 });
    }
    let raw = file::read(writer.bytes()).unwrap();
    let stacks: Vec<_> = raw.stacks.iter().map(|stack| (stack.addresses[0], stack.modules)).collect();
    assert_eq!(stacks, [(10, Some(0)), (11, Some(1)), (12, Some(0)), (13, Some(1))]);
    assert_eq!(raw.sites.iter().map(|site| site.stack).collect::<Vec<_>>(), [3, 0, 1, 2]);
}

#[test]
fn a_file_cut_anywhere_keeps_its_good_frames() {
    let whole = small();
    let all = file::read(&whole).unwrap();
    let mut snapshots = 0;
    for end in 0..whole.len() {
        let part = match file::read(&whole[..end]) {
            Ok(part) => part,
            Err(error) => {
                assert!(end < MAGIC.len() + 120, "{end}: {error}");
                continue;
            }
        };
        assert_eq!(part.process, all.process);
        assert_eq!(part.snapshots[..], all.snapshots[..part.snapshots.len()], "{end}");
        assert!(part.snapshots.len() >= snapshots && part.end.is_none(), "{end}");
        snapshots = part.snapshots.len();
        assert!(part.cut.is_none_or(|cut| cut < end && file::read(&whole[..cut]).unwrap().cut.is_none()));
    }
    assert_eq!(snapshots, 3);
}

#[test]
fn a_changed_bit_never_passes() {
    let whole = small();
    let good = file::read(&whole).unwrap();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            // A length that leads beyond the end looks as if the file were cut there.
            if let Ok(raw) = file::read(&bytes) {
                assert!(raw.cut.is_some_and(|cut| cut <= at), "byte {at}, bit {bit}");
                assert!(raw.snapshots.len() <= good.snapshots.len());
            }
        }
    }
    // In the middle of what is long enough, it is refused.
    let mut bytes = whole.clone();
    bytes[60] ^= 1;
    assert!(refused(&bytes).contains("damaged at byte 8"));
}

#[test]
fn a_torn_last_frame_is_an_end_that_is_missing() {
    let whole = small();
    let mut torn = whole.clone();
    let last = torn.len() - 1;
    torn[last] ^= 1;
    let cut = whole.len() - 20;
    assert_eq!(file::read(&torn).unwrap().cut, Some(cut));
    // As a machine that crashed leaves it.
    torn.extend([0; 4096]);
    assert_eq!(file::read(&torn).unwrap().cut, Some(cut));
    torn.push(1);
    assert!(refused(&torn).contains(&format!("damaged at byte {cut}")));
}

#[test]
fn foreign_files_are_refused_with_advice() {
    assert!(refused(b"").contains("take another"));
    assert!(refused(b"HAKP").contains("take another"));
    assert!(refused(&MAGIC).contains("take another"));
    assert!(refused(b"hello, world").contains("give a .hakprof file"));
    assert!(refused(b"HAKPROF2 and more").contains("hakmem command of that version"));
    let newer = Writer::with_version(&process(), 7);
    assert!(refused(newer.bytes()).contains("version 7"), "{}", refused(newer.bytes()));
}

/// `MAGIC`, the first frame and these.
fn with(frames: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = Writer::new(&process()).bytes().to_vec();
    frames.iter().for_each(|(kind, payload)| bytes.extend(frame(*kind, payload)));
    bytes
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn whole_frames_that_make_no_sense_are_refused() {
    let site = |stack, tag| [words(&[1, 0, stack, 9, tag]), 64u64.to_le_bytes().to_vec()].concat();
    let stack = [words(&[1, 0]), vec![0, 0, 0]].concat();
    assert!(refused(&with(&[(kind::SITES, site(3, NO_TAG))])).contains("a stack that was not defined"));
    let frames = [(kind::STACKS, stack.clone()), (kind::SITES, site(0, 5))];
    assert!(refused(&with(&frames)).contains("a tag that was not defined"));
    let twice = [(kind::STACKS, stack.clone()), (kind::STACKS, stack.clone())];
    assert!(refused(&with(&twice)).contains("defined twice"));
    assert!(refused(&with(&[(kind::LIFETIMES, [words(&[1, 8]), vec![0]].concat())])).contains("a site that"));
    assert!(refused(&with(&[(kind::END, words(&[9]))])).contains("a reason that does not exist"));
    assert!(refused(&with(&[(kind::END, words(&[1, 1]))])).contains("longer than"));
    assert!(refused(&with(&[(kind::END, vec![1])])).contains("shorter than"));
    // A number that no memory could hold things for.
    assert!(refused(&with(&[(kind::STACKS, words(&[u32::MAX]))])).contains("shorter than"));
    assert!(refused(&with(&[(kind::END, words(&[1])), (99, vec![])])).contains("goes on after its end"));
    let second = Writer::new(&process()).bytes()[MAGIC.len()..].to_vec();
    assert!(refused(&[with(&[]), second].concat()).contains("a second frame"));
    assert!(refused(&[&MAGIC[..], &frame(kind::THREADS, &words(&[0]))].concat()).contains("is missing"));
    let none = Process { rate: 0, ..process() };
    assert!(refused(Writer::new(&none).bytes()).contains("a rate of 0"));
    let mut back = Writer::new(&process());
    back.snapshot(9, Why::Timer, &Totals::default(), &[]);
    back.snapshot(8, Why::Timer, &Totals::default(), &[]);
    assert!(refused(back.bytes()).contains("older than the one before"));
    let mut nan = Writer::new(&process());
    nan.stack(&[], StackEnd::NoWalk);
    nan.site(&file::Site { stack: 0, thread: 1, tag: None, size: 8 });
    nan.snapshot(9, Why::End, &Totals::default(), &[(0, row(1, 1, 1, f64::NAN))]);
    assert!(refused(nan.bytes()).contains("figures that cannot be"));
}

/// Whatever a frame says, nothing that is made of a file that is accepted fails.
#[test]
fn frames_of_nonsense_do_no_harm() {
    let whole = small();
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    };
    let mut accepted = 0;
    for _ in 0..5000 {
        let mut bytes = MAGIC.to_vec();
        let mut at = MAGIC.len();
        while at < whole.len() {
            let length = u32::from_le_bytes(whole[at + 4..at + 8].try_into().unwrap()) as usize;
            let mut payload = whole[at + 8..at + 8 + length].to_vec();
            if random() % 6 == 0 && length > 0 {
                let place = random() % length;
                payload[place] = [0, 1, 0x7f, 0x80, 0xff, random() as u8][random() % 6];
                // The upper bytes of a number, too.
                let end = (place + random() % 8).min(length);
                payload[place..end].fill(0xff);
            }
            bytes.extend(frame(u32::from_le_bytes(whole[at..at + 4].try_into().unwrap()), &payload));
            at += length + 16;
        }
        let Ok(raw) = file::read(&bytes) else { continue };
        accepted += 1;
        let mut symbols = Symbols::with_debug_folder("/no/such/folder".into());
        let profile = Profile::new(raw, &mut symbols);
        for time in [None, Some(0), Some(1_500_000_000)] {
            let Some(moment) = profile.moment(time) else { continue };
            for by in [By::Site, By::Stack, By::Function, By::Thread, By::Tag] {
                for group in profile.groups(&moment, by) {
                    assert!(
                        group.figures.live.bytes.is_finite() && !group.figures.peak.interval().1.is_nan()
                    );
                }
            }
            pprof::decode(&pprof::encode(&profile, &moment, &mut symbols).unwrap()).unwrap();
        }
        suspects::find(&profile, usize::MAX);
        profile.live(&profile.pick(usize::MAX, 2));
        profile.timeline();
    }
    assert!(accepted > 250, "{accepted}");
}

#[test]
fn a_newer_allocator_may_say_more() {
    // Ten totals and no row.
    let mut payload = [5u64.to_le_bytes().to_vec(), words(&[0, 10])].concat();
    (1..=10u64).for_each(|n| payload.extend(n.to_le_bytes()));
    payload.extend(words(&[0]));
    let raw = file::read(&with(&[(kind::SNAPSHOT, payload)])).unwrap();
    let snapshot = &raw.snapshots[0];
    assert_eq!((snapshot.totals.resident, snapshot.totals.metadata, snapshot.lost), (1, 7, 8));
    assert_eq!(snapshot.totals.fresh, 9);
}
