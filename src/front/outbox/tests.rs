use super::*;

#[test]
fn slabs_of_four_neighbouring_superslabs_never_meet() {
    for first in 0..64usize {
        let mut seen = [false; BUNDLES];
        for slab in 0..4 * 32usize {
            let record = ((first + slab / 32) << 21) + slab % 32 * size_of::<Slab>();
            assert!(!core::mem::replace(&mut seen[place(ptr::without_provenance_mut(record))], true));
        }
    }
}
