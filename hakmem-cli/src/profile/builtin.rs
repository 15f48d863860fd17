//! Whether a program has Hakmem built in.

use std::path::Path;

use goblin::elf::Elf;
use goblin::elf::program_header::{PF_W, PT_LOAD};

use crate::attach::MAGIC;
use crate::elf::{Kind, kind};

/// What the words begin with by which a profile is asked for (`src/api/control.rs`); zeros follow. They are
/// in every build of Hakmem.
const WORDS: [u8; 32] = {
    let (name, mut words) = (MAGIC, [0; 32]);
    let mut i = 0;
    while i < name.len() {
        words[i] = name[i];
        i += 1;
    }
    words
};

/// Whether the program file at `path`, or the interpreter of the script there, has Hakmem built in: as Rust's
/// global allocator, or from `libhakmem.a`.
pub fn has_hakmem(path: &Path) -> bool {
    let Ok(bytes) = std::fs::read(path) else { return false };
    if let Kind::Script(interpreter) = kind(path) {
        let interpreter = Path::new(&interpreter);
        // It may be a script itself, even this one.
        return !matches!(kind(interpreter), Kind::Script(_)) && has_hakmem(interpreter);
    }
    let Ok(elf) = Elf::parse(&bytes) else { return false };
    // Among what can be written, where only the words themselves are: tools such as this one know their name.
    let writable = elf.program_headers.iter().filter(|p| p.p_type == PT_LOAD && p.p_flags & PF_W != 0);
    writable
        .filter_map(|segment| bytes.get(segment.file_range()))
        .any(|data| data.windows(WORDS.len()).any(|window| window == WORDS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_knows_the_name_does_not_have_it() {
        assert!(!has_hakmem(&std::env::current_exe().unwrap()));
        assert!(!has_hakmem(Path::new("/bin/sh")) && !has_hakmem(Path::new("/does/not/exist")));
    }
}
