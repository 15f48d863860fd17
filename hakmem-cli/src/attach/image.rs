//! Looks a symbol up in a library as it lies in a process's memory: its file may have been replaced or
//! removed since, as by every build and every upgrade of a package.

use std::io;

const PT_LOAD: u64 = 1;
const PT_DYNAMIC: u64 = 2;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;

/// No more of anything is read: what is in the memory of another process may be anything.
const MOST: u64 = 4096;

/// Reads a process's memory.
pub type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> io::Result<()>;

/// The address of the symbol `name` of the library whose first byte is at `start`. `None` if there is no
/// library, or it has none of that name.
pub fn symbol(read: Read<'_>, start: u64, name: &str) -> io::Result<Option<u64>> {
    // The header is of 64 bytes; the fifth one says that addresses have 64 bits.
    let mut header = [0; 64];
    read(start, &mut header)?;
    if !header.starts_with(b"\x7fELF\x02") {
        return Ok(None);
    }
    let (mut first, mut dynamic) = (None, None);
    let (at, size, count) = (field(&header, 32, 8), field(&header, 54, 2), field(&header, 56, 2));
    for i in 0..count {
        let mut program = [0; 56];
        read(start.wrapping_add(at).wrapping_add(i * size), &mut program)?;
        let (kind, address, length) = (field(&program, 0, 4), field(&program, 16, 8), field(&program, 40, 8));
        match kind {
            PT_LOAD => first = first.or(Some(address & !0xfff)),
            PT_DYNAMIC => dynamic = Some((address, length)),
            _ => {}
        }
    }
    let (Some(first), Some((dynamic, length))) = (first, dynamic) else { return Ok(None) };
    let base = start.wrapping_sub(first);
    let mut tables = [0; 3];
    for i in 0..(length / 16).min(MOST) {
        let mut entry = [0; 16];
        read(base.wrapping_add(dynamic).wrapping_add(i * 16), &mut entry)?;
        let table = match field(&entry, 0, 8) {
            0 => break,
            DT_STRTAB => 0,
            DT_SYMTAB => 1,
            DT_GNU_HASH => 2,
            _ => continue,
        };
        // Some loaders leave in memory what was in the file, others write the address there.
        let value = field(&entry, 8, 8);
        tables[table] = if value < base { base.wrapping_add(value) } else { value };
    }
    let [strings, symbols, hashes] = tables;
    if tables.contains(&0) {
        return Ok(None);
    }
    let word = |at: u64| {
        let mut word = [0; 4];
        read(at, &mut word).map(|()| u64::from(u32::from_ne_bytes(word)))
    };
    let (buckets, from, filter) =
        (word(hashes)?, word(hashes.wrapping_add(4))?, word(hashes.wrapping_add(8))?);
    let hash = name.bytes().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
    if buckets == 0 {
        return Ok(None);
    }
    let bucket = hashes.wrapping_add(16 + filter * 8);
    let begin = word(bucket.wrapping_add(u64::from(hash) % buckets * 4))?;
    for number in begin..begin + MOST {
        if number < from {
            break;
        }
        let found = word(bucket.wrapping_add((buckets + number - from) * 4))?;
        if found | 1 == u64::from(hash | 1) {
            let mut symbol = [0; 24];
            read(symbols.wrapping_add(number * 24), &mut symbol)?;
            let mut text = vec![0; name.len() + 1];
            read(strings.wrapping_add(field(&symbol, 0, 4)), &mut text)?;
            if text.strip_suffix(&[0]) == Some(name.as_bytes()) {
                return Ok(Some(base.wrapping_add(field(&symbol, 8, 8))));
            }
        }
        // The last one of a bucket is odd.
        if found & 1 == 1 {
            break;
        }
    }
    Ok(None)
}

/// The number in `size` bytes at `at`.
fn field(bytes: &[u8], at: usize, size: usize) -> u64 {
    let mut number = [0; 8];
    let part = if cfg!(target_endian = "little") { &mut number[..size] } else { &mut number[8 - size..] };
    part.copy_from_slice(&bytes[at..at + size]);
    u64::from_ne_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn finds_what_the_loader_finds() {
        let memory = std::fs::File::open("/proc/self/mem").unwrap();
        let read = |at: u64, to: &mut [u8]| memory.read_exact_at(to, at);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let Some(line) = maps.lines().find(|line| line.contains("/libc.so")) else {
            println!("SKIPPED: there is no shared C library");
            return;
        };
        let start = u64::from_str_radix(line.split('-').next().unwrap(), 16).unwrap();
        for name in [c"getpid", c"qsort", c"environ"] {
            // SAFETY: looks a symbol up.
            let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
            assert_eq!(symbol(&read, start, name.to_str().unwrap()).unwrap(), Some(address as u64));
        }
        assert_eq!(symbol(&read, start, "no_such_symbol").unwrap(), None);
        // What is no library.
        assert_eq!(symbol(&read, &raw const maps as u64, "getpid").unwrap(), None);
    }
}
