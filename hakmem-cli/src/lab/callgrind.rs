//! Instructions of one object file, as callgrind counts them.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context, bail};

/// The object that callgrind names where it does not know better. It knows of code in `.text` and in linkage
/// tables only; tcmalloc, for one, has its `malloc` in a section of another name.
pub const UNKNOWN: &str = "???";

/// Instructions by the object file (library or program) that they are in.
#[derive(Debug, Default, PartialEq)]
pub struct Counts {
    objects: HashMap<String, u64>,
}

impl Counts {
    /// Reads the text of a file that callgrind wrote.
    ///
    /// Each line of costs gives a place and then the instructions there, which are of the object that `ob=`
    /// named last. A line after `calls=` repeats what was spent in the function called: it does not count.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let Some(events) = text.lines().find_map(|line| line.strip_prefix("events:")) else {
            bail!("not a file of callgrind's: no line says which events it counts");
        };
        let Some(column) = events.split_whitespace().position(|event| event == "Ir") else {
            bail!("callgrind counted {}, not instructions (Ir)", events.trim());
        };
        // How many numbers come before the costs: the line, and perhaps the address.
        let positions = text.lines().find_map(|line| line.strip_prefix("positions:"));
        let column = column + positions.map_or(1, |positions| positions.split_whitespace().count());

        let mut counts = Self::default();
        let mut objects = HashMap::new();
        let mut object = "";
        let mut inclusive = false;
        for line in text.lines() {
            if let Some((key, value)) = specification(line) {
                match key {
                    "ob" => object = resolve(value, &mut objects)?,
                    // Of a call, never of costs; but it may be where a name is told.
                    "cob" => _ = resolve(value, &mut objects)?,
                    "calls" => inclusive = true,
                    _ => {}
                }
            } else if line.starts_with(|c: char| c.is_ascii_digit() || "+-*".contains(c)) {
                if std::mem::take(&mut inclusive) {
                    continue;
                }
                // Costs that are left out at the end of a line are 0.
                if let Some(cost) = line.split_whitespace().nth(column) {
                    let cost: u64 = cost.parse().with_context(|| format!("not a cost: {line}"))?;
                    *counts.objects.entry(object.to_string()).or_default() += cost;
                }
            }
        }
        Ok(counts)
    }

    /// Instructions in all objects.
    pub fn total(&self) -> u64 {
        self.objects.values().sum()
    }

    /// Instructions where `is` says so of the object's path.
    pub fn of(&self, is: impl Fn(&Path) -> bool) -> u64 {
        self.objects.iter().filter(|(object, _)| is(Path::new(object))).map(|(_, count)| count).sum()
    }
}

/// Key and value of a line such as "fn=(12) name".
fn specification(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.split_once('=')?;
    key.bytes().all(|b| b.is_ascii_lowercase()).then_some((key, value))
}

/// The name in "name", in "(1) name", which also keeps it, or in "(1)", which repeats it.
fn resolve<'a>(value: &'a str, names: &mut HashMap<&'a str, &'a str>) -> anyhow::Result<&'a str> {
    let Some((number, name)) = value.strip_prefix('(').and_then(|rest| rest.split_once(')')) else {
        return Ok(value);
    };
    if !name.trim().is_empty() {
        names.insert(number, name.trim());
    }
    names.get(number).copied().with_context(|| format!("callgrind's file does not say what ({number}) is"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that spends 7 itself, calls the allocator (spends 11 + 4 there, 5 of libc's), in callgrind's
    /// form.
    const FILE: &str = "# callgrind format\nversion: 1\nevents: Ir\n\nob=(1) /bin/program\nfl=(1) loop.rs\n\
        fn=(1) rounds\n10 3\n+2 4\ncob=(2) /lib/liballoc.so\ncfi=(2) a.rs\ncfn=(2) malloc\ncalls=5 +3\n* 20\n\
        \nob=(2)\nfl=(2)\nfn=(2)\n5 11\n-1 4\n7\ncob=(3) /lib/libc.so.6\ncfn=(3) memset\ncalls=1 0 \n5 5\n\n\
        ob=(3)\nfl=(3) ???\nfn=(3)\n0 5\n\ntotals: 27\n";

    #[test]
    fn inclusive_costs_do_not_count() {
        let counts = Counts::parse(FILE).unwrap();
        let of = |name: &str| counts.of(|path| path == Path::new(name));
        assert_eq!((of("/bin/program"), of("/lib/liballoc.so"), of("/lib/libc.so.6")), (7, 15, 5));
        assert_eq!(counts.total(), 27, "what callgrind itself says");
        assert_eq!(of("/lib/libother.so"), 0);
    }

    #[test]
    fn other_columns() {
        let text =
            "positions: instr line\nevents: Dr Ir\nob=/bin/x\nfn=main\n0x10 3 100 8\n+4 +1 100 9\n* * 5\n";
        // Hexadecimal addresses begin with a digit, too.
        assert_eq!(Counts::parse(text).unwrap().total(), 17);
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |text: &str| Counts::parse(text).unwrap_err().to_string();
        assert!(error("hello").contains("not a file of callgrind's"));
        assert!(error("events: Cycles\n").contains("counted Cycles"));
        assert!(error("events: Ir\nob=(9)\n").contains("what (9) is"));
        assert!(error("events: Ir\nob=x\n3 many\n").contains("3 many"));
    }
}
