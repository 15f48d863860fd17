//! The fuzzer's kept corpus, and programs of random bytes, through the functions that the library exports:
//! C's and C++'s. `tests/fuzz_corpus.rs` replays the same in the core.

mod support;

use hakmem_shadow::functions::Functions;
use hakmem_shadow::operations;
use hakmem_shadow::random::{Random, number};
use hakmem_shadow::session::{self, Allowed};

#[test]
fn the_corpus_and_random_programs_through_the_library() {
    let functions = Functions::of_library(&support::lib());
    let allowed = Allowed { faults: false, figures: false, ..Allowed::ALL };
    let mut files: Vec<_> = std::fs::read_dir(support::root().join("tests/corpus"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 20);
    let mut operations = 0;
    for file in files.into_iter().step_by(3) {
        // What fails is the last one.
        println!("{}", file.display());
        let program = operations::program(&std::fs::read(file).unwrap());
        operations += session::run(program, &functions, allowed).operations;
    }
    let seed = number("HAKMEM_SHADOW_SEED", 1);
    for n in 0..number("HAKMEM_SHADOW_ROUNDS", 20) {
        println!("seed {seed}, program {n}");
        let bytes = Random::program(seed, n);
        operations += session::run(operations::program(&bytes), &functions, allowed).operations;
    }
    println!("{operations} operations");
    assert!(operations > 3000);
}
