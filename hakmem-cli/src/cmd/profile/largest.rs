//! The largest of many processes, which are shown; of all others only what they held is kept.

/// Processes that get tables of their own, at the most.
const MOST: usize = 5;

/// The largest, each with whatever there is of it: a build has thousands of processes, whose profiles do not
/// fit into memory together.
pub struct Largest<T> {
    /// The largest first, and of equal ones the first that came.
    kept: Vec<(f64, T)>,
    /// What each of all held at its peak, in the order in which they came.
    peaks: Vec<f64>,
}

impl<T> Largest<T> {
    /// None so far.
    pub fn new() -> Self {
        Self { kept: Vec::new(), peaks: Vec::new() }
    }

    /// One more, which held so many bytes at its peak.
    pub fn add(&mut self, peak: f64, one: T) {
        self.peaks.push(peak);
        let at = self.kept.partition_point(|(other, _)| other.total_cmp(&peak).is_ge());
        self.kept.insert(at, (peak, one));
        self.kept.truncate(MOST);
    }

    fn number(&self) -> usize {
        let largest = self.kept.first().map_or(0.0, |(peak, _)| *peak);
        let large = self.kept.iter().take_while(|(peak, _)| *peak >= largest / 20.0).count();
        large.max(1).min(self.kept.len())
    }

    /// Those to show: the largest, and what held a twentieth of that at least.
    pub fn shown(&self) -> impl Iterator<Item = &T> {
        self.kept[..self.number()].iter().map(|(_, one)| one)
    }

    /// How many others there are, and what they held together, each at its peak.
    pub fn others(&self) -> (usize, f64) {
        let mut peaks = self.peaks.clone();
        peaks.sort_by(|a, b| b.total_cmp(a));
        let others = &peaks[self.number()..];
        (others.len(), others.iter().sum())
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;

    #[test]
    fn only_the_largest_are_kept() {
        let alive = Rc::new(());
        let mut all = Largest::new();
        let mut number = 0;
        assert_eq!((all.shown().count(), all.others()), (0, (0, 0.0)));
        // 37 and 1000 have no divisor in common: each number below 1000 once, in no order.
        for i in 0..1000u32 {
            let peak = i * 37 % 1000;
            all.add(peak.into(), (peak, Rc::clone(&alive)));
            number = number.max(Rc::strong_count(&alive) - 1);
        }
        assert_eq!(number, MOST);
        assert_eq!(all.shown().map(|(peak, _)| *peak).collect::<Vec<_>>(), [999, 998, 997, 996, 995]);
        assert_eq!(all.others(), (995, f64::from((0..995).sum::<u32>())));
    }

    #[test]
    fn what_is_small_beside_the_largest_is_not_shown() {
        let shown = |peaks: &[f64]| {
            let mut all = Largest::new();
            peaks.iter().enumerate().for_each(|(i, peak)| all.add(*peak, i));
            (all.shown().copied().collect::<Vec<_>>(), all.others())
        };
        assert_eq!(shown(&[4.0, 100.0, 5.0, 1.0]), (vec![1, 2], (2, 5.0)));
        assert_eq!(shown(&[7.0, 7.0, 7.0]), (vec![0, 1, 2], (0, 0.0)));
        assert_eq!(shown(&[0.0, 0.0]), (vec![0, 1], (0, 0.0)));
    }
}
