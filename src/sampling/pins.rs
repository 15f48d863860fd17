//! What the sampled blocks that live keep from going back to the system.

use crate::os::now_ns;
use crate::sampling::grown::Grown;
use crate::sampling::sites::place;
use crate::sampling::store::Store;
use crate::superslab::survey;
use core::ptr;

/// Finds out what each site pins: for every block that lives, the free bytes of its slab that are resident,
/// shared among the slab's blocks in use. Takes out blocks that are no blocks any more: their frees went by a
/// thread that was not armed.
pub(super) fn measure(store: &mut Store) {
    store.sites.iter_mut().for_each(|site| site.pinned = 0.0);
    let (live, sites) = (&store.live, &mut store.sites);
    let mut gone = Grown::<usize>::new();
    survey::each_slab_of(
        live.iter().map(|entry| (entry, ptr::with_exposed_provenance_mut(entry.address))),
        |entry, span| {
            let Some(span) = span else {
                // Without memory it stays until the next time.
                let _ = gone.push(entry.address);
                return;
            };
            let free = span.bytes.saturating_sub(span.used * span.stride + span.untouched);
            let at = place(sites, entry.site);
            if let Some(site) = at.and_then(|at| sites.get_mut(at)) {
                site.pinned += free as f64 / span.used.max(1) as f64;
            }
        },
    );
    for &address in gone.iter() {
        store.freed(address, store.rate(), now_ns());
    }
    gone.clear();
}

#[cfg(test)]
mod tests;
