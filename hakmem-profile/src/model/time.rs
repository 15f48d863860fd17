//! How a profile was at a moment, and how it became so.

use std::collections::BTreeSet;

use super::{Moment, Profile};
use crate::file::{Row, Totals, Why};

impl Profile {
    /// The profile at the last snapshot until `time`, or at the last one of all. `None` where there is none.
    pub fn moment(&self, time: Option<u64>) -> Option<Moment> {
        let until = time.unwrap_or(u64::MAX);
        let after = self.raw.snapshots.partition_point(|snapshot| snapshot.time <= until);
        let at = after.checked_sub(1)?;
        let mut rows = self.rows(at);
        let snapshot = &self.raw.snapshots[at];
        let full = snapshot.why != Why::Timer;
        let mut peak_time = None;
        if let Some((peak, time)) = (!full).then(|| self.peak_before(at)).flatten() {
            rows.iter_mut().zip(peak).for_each(|(row, peak)| row.peak = peak);
            peak_time = time;
        }
        // The peak is sought where most is mapped, and that may not grow while more and more lives.
        let bytes = |of: fn(&Row) -> u64| -> f64 {
            rows.iter().enumerate().map(|(site, row)| self.bytes_of(site, of(row))).sum()
        };
        if bytes(|row| row.live) > bytes(|row| row.peak) {
            rows.iter_mut().for_each(|row| row.peak = row.live);
            peak_time = None;
        }
        let (time, totals) = (snapshot.time, snapshot.totals);
        Some(Moment { snapshot: at, time, totals, pinned_known: full, peak_time, rows })
    }

    /// The bytes that `n` samples of a site stand for.
    fn bytes_of(&self, site: usize, n: u64) -> f64 {
        n as f64 * self.raw.sites[site].size as f64 / self.probability[site]
    }

    /// The figures of all sites at snapshot `at`.
    fn rows(&self, at: usize) -> Vec<Row> {
        let mut rows = vec![Row::default(); self.raw.sites.len()];
        self.replay(at, |_, _, _| (), &mut rows);
        rows
    }

    /// Goes through the snapshots up to `at`, and calls `see` after each: its index, all rows, and what
    /// changed.
    pub(crate) fn replay(
        &self,
        at: usize,
        mut see: impl FnMut(usize, &[Row], &[(usize, Row, Row)]),
        rows: &mut [Row],
    ) {
        for (i, snapshot) in self.raw.snapshots.iter().enumerate().take(at + 1) {
            let mut changes = Vec::with_capacity(snapshot.rows.len());
            for &(site, new) in &snapshot.rows {
                let old = rows[site];
                rows[site] = match snapshot.why {
                    // The others are not up to date there.
                    Why::Timer => Row { allocated: new.allocated, live: new.live, ..old },
                    _ => new,
                };
                changes.push((site, old, rows[site]));
            }
            see(i, rows, &changes);
        }
    }

    /// What lived when most did, up to snapshot `at`, which does not tell: the last one that did, or a
    /// snapshot in which more lived, with its time.
    fn peak_before(&self, at: usize) -> Option<(Vec<u64>, Option<u64>)> {
        let bytes = |site: usize, n: u64| self.bytes_of(site, n);
        let (mut live, mut most, mut told) = (0.0, (0.0, None), None);
        let mut rows = vec![Row::default(); self.raw.sites.len()];
        self.replay(
            at,
            |i, rows, changes| {
                live += changes
                    .iter()
                    .map(|(site, old, new)| bytes(*site, new.live) - bytes(*site, old.live))
                    .sum::<f64>();
                if live > most.0 {
                    most = (live, Some(i));
                }
                if self.raw.snapshots[i].why != Why::Timer {
                    told = Some(i);
                    let peak: f64 = rows.iter().enumerate().map(|(site, row)| bytes(site, row.peak)).sum();
                    // Rounding must not make a snapshot win against what is exact.
                    if peak * 1.000_001 >= most.0 {
                        most = (peak, None);
                    }
                }
            },
            &mut rows,
        );
        match (most.1, told) {
            (Some(i), _) => {
                let lived = self.rows(i).iter().map(|row| row.live).collect();
                Some((lived, Some(self.raw.snapshots[i].time)))
            }
            (None, Some(i)) => Some((self.rows(i).iter().map(|row| row.peak).collect(), None)),
            (None, None) => None,
        }
    }

    /// Snapshots to look at among the first `number`, so many at most: all, or some evenly spread, with the
    /// first and the last.
    pub fn pick(&self, number: usize, most: usize) -> Vec<usize> {
        let number = number.min(self.raw.snapshots.len());
        if number <= most {
            return (0..number).collect();
        }
        (0..most).map(|i| i * (number - 1) / (most - 1)).collect()
    }

    /// For each of these snapshots, the stacks whose live bytes are not what they were at the one before, and
    /// what they are.
    pub fn live(&self, picked: &[usize]) -> Vec<Vec<(usize, f64)>> {
        let mut series = Vec::with_capacity(picked.len());
        let mut now = vec![0.0; self.stacks.len()];
        let mut changed = BTreeSet::new();
        let mut next = picked.iter().copied().peekable();
        self.replay(
            self.raw.snapshots.len(),
            |i, _, changes| {
                for (site, old, new) in changes.iter().filter(|(_, old, new)| old.live != new.live) {
                    now[self.of_site[*site]] += (new.live as f64 - old.live as f64) * self.weight(*site);
                    changed.insert(self.of_site[*site]);
                }
                if next.next_if_eq(&i).is_some() {
                    // What is left of a sum that has come down to nothing is rounding.
                    let value = |stack| (stack, if now[stack] < 0.5 { 0.0 } else { now[stack] });
                    series.push(std::mem::take(&mut changed).into_iter().map(value).collect());
                }
            },
            &mut vec![Row::default(); self.raw.sites.len()],
        );
        series
    }

    /// What memory was used for at each snapshot: its time, totals, and estimated live bytes.
    pub fn timeline(&self) -> Vec<(u64, Totals, f64)> {
        let mut live = 0.0;
        let mut points = Vec::new();
        let mut rows = vec![Row::default(); self.raw.sites.len()];
        self.replay(
            self.raw.snapshots.len(),
            |i, _, changes| {
                for (site, old, new) in changes {
                    live += (new.live as f64 - old.live as f64) * self.weight(*site);
                }
                let snapshot = &self.raw.snapshots[i];
                points.push((snapshot.time, snapshot.totals, live.max(0.0)));
            },
            &mut rows,
        );
        points
    }
}
