//! For tests: the child of a fork, in which no other thread runs.

use crate::superslab::{orphans, span_index};

/// Whether `f` says so in a child, in which it can take spans and mappings, whatever other tests did.
pub(crate) fn is_so(f: impl FnOnce() -> bool) -> bool {
    crate::os::child::is_so(|| {
        span_index::inherit();
        orphans::inherit();
        super::inherit_cache();
        f()
    })
}
