//! An index in memory: a map from words to lists of strings, built, grown and pruned.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use hakmem_rust_programs::{Random, checksum, scale};

/// Not the standard one, whose random seed would make the work another in every run.
type Index = HashMap<String, Vec<String>, BuildHasherDefault<DefaultHasher>>;

fn main() {
    let count = scale(1_200_000);
    let mut random = Random::new(3);
    let mut index = Index::default();
    let mut added = 0;
    let mut removed = 0;
    for number in 0..count {
        let word = format!("word-{}", random.below(count / 8 + 1));
        let places = index.entry(word).or_default();
        places.push(format!("document {}, line {number}", random.below(10_000)));
        added += 1;
        if number % 5 == 4 {
            let word = format!("word-{}", random.below(count / 8 + 1));
            removed += index.remove(&word).map_or(0, |places| places.len());
        }
    }
    assert_eq!(index.values().map(Vec::len).sum::<usize>(), added - removed);
    // The order of a map is its own; a sum does not depend on it.
    let sum = index.iter().fold(0u64, |sum, (word, places)| {
        let of_places = places.iter().map(|place| checksum(place.as_bytes()));
        of_places.fold(sum, u64::wrapping_add).wrapping_add(checksum(word.as_bytes()))
    });
    println!("{} words, {} places, {sum:016x}", index.len(), added - removed);
}
