//! What is known of sites.

use super::What;
use crate::estimate::Estimate;

/// How long blocks lived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lifetimes {
    /// Blocks freed after 2^b to 2^(b+1) ns.
    pub(super) freed: Vec<f64>,
    /// Blocks that live.
    pub(super) alive: f64,
    /// Blocks that were freed, nobody knows after how long.
    pub(super) unknown: f64,
    /// No block lived longer than this many ns.
    pub(super) longest: f64,
}

/// The figures of a site, or of several.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// What is held.
    pub live: Estimate,
    /// What was held when that was most.
    pub peak: Estimate,
    /// What has been allocated.
    pub allocated: Estimate,
    /// Bytes that cannot be given back because of what is held.
    pub pinned: f64,
    /// How long blocks lived; of an earlier moment than the last that is not known.
    pub lifetimes: Lifetimes,
}

impl Figures {
    /// Adds those of others.
    pub fn add(&mut self, other: Figures) {
        self.live += other.live;
        self.peak += other.peak;
        self.allocated += other.allocated;
        self.pinned += other.pinned;
        self.lifetimes.add(&other.lifetimes);
    }

    /// The bytes of what is asked for.
    pub fn bytes(&self, what: What) -> f64 {
        match what {
            What::Pinned => self.pinned,
            _ => self.estimate(what).bytes,
        }
    }

    /// The estimate of what is asked for; of what is live, where memory pinned by that is.
    pub fn estimate(&self, what: What) -> &Estimate {
        match what {
            What::Live | What::Pinned => &self.live,
            What::Peak => &self.peak,
            What::Allocated => &self.allocated,
        }
    }
}

impl Lifetimes {
    fn add(&mut self, other: &Lifetimes) {
        self.freed.resize(self.freed.len().max(other.freed.len()), 0.0);
        self.freed.iter_mut().zip(&other.freed).for_each(|(sum, one)| *sum += one);
        self.alive += other.alive;
        self.unknown += other.unknown;
        self.longest = self.longest.max(other.longest);
    }

    /// The ns that a share of the blocks lived at the most; infinite where that many live still. `None` where
    /// that is not known.
    pub fn quantile(&self, share: f64) -> Option<f64> {
        let freed: f64 = self.freed.iter().sum();
        let all = freed + self.alive;
        if all <= 0.0 || self.unknown > 0.01 * (all + self.unknown) {
            return None;
        }
        let mut left = share * all;
        for (b, &count) in self.freed.iter().enumerate() {
            if count > 0.0 && left <= count {
                // As if evenly spread over the octave.
                return Some((b as f64 + left / count).exp2().min(self.longest));
            }
            left -= count;
        }
        Some(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_have_quantiles() {
        let lifetimes =
            Lifetimes { freed: vec![0.0, 0.0, 0.0, 10.0, 30.0], alive: 60.0, unknown: 0.0, longest: 20.0 };
        assert_eq!(lifetimes.quantile(0.05), Some(3.5f64.exp2()));
        assert_eq!(lifetimes.quantile(0.1), Some(16.0));
        assert_eq!(lifetimes.quantile(0.14), Some((4.0f64 + 4.0 / 30.0).exp2()));
        assert_eq!(lifetimes.quantile(0.25), Some(20.0));
        assert_eq!(lifetimes.quantile(0.5), Some(f64::INFINITY));
        assert_eq!(Lifetimes::default().quantile(0.5), None);
        assert_eq!(Lifetimes { unknown: 5.0, ..lifetimes }.quantile(0.5), None);
    }
}
