//! How much memory the page map takes.

use crate::os;
use crate::superslab::layout::SLICE;
use crate::superslab::pagemap::{BRANCHES, Branch, DIRECT_LEAVES, DirectLeaf, LEAF, LEAVES, bytes_of};
use crate::sync::{AtomicPtr, Ordering};

/// The bytes of address space that the map takes, and an estimate of how many of them are resident, for
/// `superslabs` bytes of SuperSlabs and `direct` bytes of direct mappings: the entries for these, as if they
/// lay side by side, and a system page of every leaf.
pub(crate) fn figures(superslabs: usize, direct: usize) -> (usize, usize) {
    let [leaves, tables, branches] =
        [&LEAVES, &DIRECT_LEAVES, &BRANCHES].map(|count| count.load(Ordering::Relaxed));
    figures_of(leaves, tables, branches, superslabs, direct)
}

/// [`figures`], for so many leaves of the map, and leaves and branches of the side table.
pub(super) fn figures_of(
    leaves: usize,
    tables: usize,
    branches: usize,
    superslabs: usize,
    direct: usize,
) -> (usize, usize) {
    let (tables_bytes, branches_bytes) = (tables * bytes_of::<DirectLeaf>(), branches * bytes_of::<Branch>());
    let page = os::page_size();
    let part = |bytes: usize| bytes & !(page - 1);
    let map = leaves * page + part((superslabs + direct) / SLICE);
    let table = tables * page + part(direct / SLICE * size_of::<AtomicPtr<u8>>());
    let resident = map.min(leaves * LEAF) + table.min(tables_bytes) + branches * page;
    (leaves * LEAF + tables_bytes + branches_bytes, resident)
}
