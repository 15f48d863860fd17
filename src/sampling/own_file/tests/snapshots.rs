//! What the snapshots of a file say of each site.

use super::*;

/// A row of a snapshot: a site, and how many samples it has had, has now, and had at the peak.
type Row = (u32, [u64; 3]);

impl Profile {
    /// The rows of the last snapshot.
    fn last_rows(&self) -> Vec<Row> {
        let frames = self.all();
        let (_, snapshot) = frames.iter().rfind(|frame| frame.0 == SNAPSHOT).unwrap();
        let first = 16 + 8 * number(snapshot, 12) as usize;
        let rows = snapshot[first + 4..].chunks_exact(36);
        assert_eq!(rows.len(), number(snapshot, first) as usize);
        let long = |row: &[u8], at: usize| u64::from_le_bytes(row[at..at + 8].try_into().unwrap());
        rows.map(|row| (number(row, 0), [4, 12, 20].map(|at| long(row, at)))).collect()
    }
}

fn free(number: usize) {
    with_store(true, |store| store.freed(number << 12, 1 << 20, 1)).unwrap();
}

/// Else a reader of the file would see memory grow that does not.
#[test]
fn a_site_of_which_blocks_were_only_freed_is_in_the_next_snapshot() {
    let profile = Profile::new("freed");
    (1..=3).for_each(sample);
    assert!(profile.append(Why::Timer));
    let rows: Vec<Row> = profile.last_rows();
    assert!(rows.iter().map(|row| (row.0, row.1[0], row.1[1])).eq([(0, 1, 1), (1, 1, 1), (2, 1, 1)]));
    free(2);
    assert!(profile.append(Why::Timer));
    let [(1, [1, 0, _])] = profile.last_rows()[..] else { panic!("{:?}", profile.last_rows()) };
    // It says so once.
    assert!(profile.append(Why::Timer));
    assert_eq!(profile.last_rows(), []);
    [1, 3].into_iter().for_each(free);
    assert!(profile.append(Why::Timer));
    assert!(profile.last_rows().iter().map(|row| (row.0, row.1[0], row.1[1])).eq([(0, 1, 0), (2, 1, 0)]));
    // All of it went to the same file.
    assert_eq!([PROCESS, SNAPSHOT].map(|kind| profile.frames(kind)), [1, 4]);
}
