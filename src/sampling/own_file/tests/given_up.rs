//! What the file says of sites that were given up.

use super::*;

/// What is given up is charged to others in the file, too, also after it could not be written.
#[test]
fn the_file_agrees_when_sites_are_given_up() {
    let profile = Profile::new("given-up");
    with_store(true, |store| store.bounds.sites = 20).unwrap();
    let mut number = 1;
    for round in 0..6 {
        for _ in 0..35 {
            sample_freed(number);
            number += 1;
        }
        if round == 3 {
            // Nobody may write there; and what was given up meanwhile is said later.
            let folder = profile.folder.with_extension("away");
            fs::rename(&profile.folder, &folder).unwrap();
            assert!(!profile.append(Why::Timer));
            fs::rename(&folder, &profile.folder).unwrap();
        } else {
            assert!(profile.append(Why::Timer));
            assert_eq!(profile.samples().0, number as u64 - 1);
        }
    }
    assert!(profile.samples().1 > 0 && profile.frames(PROCESS) == 1);
    let (folds, gone) = with_store(true, |store| (store.folds, store.gone.len())).unwrap();
    assert!(profile.append(Why::End) && folds >= 10, "{folds}");
    assert_eq!((profile.samples().0, profile.others()), (number as u64 - 1, [1, 1]));
    // What the file knows of is not kept.
    assert!(gone < 20, "{gone}");
    // One that is written anew has what is left only.
    let new = profile.folder.join("new.hakprof");
    assert!(write_anew(&new));
    fs::rename(&new, &profile.path).unwrap();
    assert_eq!((profile.samples(), profile.others()), ((number as u64 - 1, 0), [1, 1]));
}

/// What is written may say of some sites that they have gone. If more go meanwhile, and the write fails,
/// nobody knows any more what the file is to be told.
#[test]
fn what_is_given_up_during_a_write_that_fails_is_not_forgotten() {
    let profile = Profile::new("meanwhile");
    let bound = 2000;
    with_store(true, |store| store.bounds.sites = bound).unwrap();
    let some = |numbers: std::ops::Range<usize>| numbers.for_each(sample_freed);
    some(1..bound);
    assert!(profile.append(Why::Timer));
    // The file is not told of these.
    let middle = bound + bound * 3 / 4;
    some(bound..middle);
    let folds = || with_store(true, |store| (store.folds, store.gone.len())).unwrap();
    let before = folds();
    assert!(before.0 > 0 && before.1 > 0);
    let aside = profile.folder.join("aside");
    fs::rename(&profile.path, &aside).unwrap();
    let folder = profile.folder.with_extension("away");
    *DURING.lock().unwrap() = Some(Box::new({
        let (from, to) = (profile.folder.clone(), folder.clone());
        move || {
            (middle..3 * bound).for_each(sample_freed);
            // Nobody may write there.
            fs::rename(from, to).unwrap();
        }
    }));
    assert!(!profile.append(Why::Timer));
    assert_ne!(folds(), before);
    fs::rename(&folder, &profile.folder).unwrap();
    fs::rename(&aside, &profile.path).unwrap();
    sample(3 * bound);
    assert!(profile.append(Why::Timer));
    assert_eq!(profile.samples().0, 3 * bound as u64);
}
