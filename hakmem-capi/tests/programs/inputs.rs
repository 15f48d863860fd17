//! Inputs made by arithmetic, the same on every machine.

use std::fmt::Write as _;

/// A xorshift generator.
pub struct Random(u64);

impl Random {
    /// A generator that always gives the same numbers for the same `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    /// A made-up word of 2 to 13 letters; short ones are common.
    pub fn word(&mut self) -> String {
        let letters = 2 + self.below(6) + self.below(7);
        (0..letters).map(|_| char::from(b'a' + self.below(26) as u8)).collect()
    }
}

/// `lines` lines of a number and some words each.
pub fn text(seed: u64, lines: usize) -> String {
    let mut random = Random::new(seed);
    let mut text = String::new();
    for _ in 0..lines {
        write!(text, "{}", random.below(1_000_000)).unwrap();
        for _ in 0..=random.below(8) {
            write!(text, " {}", random.word()).unwrap();
        }
        text.push('\n');
    }
    text
}

/// A C file of `functions` functions, about 25 lines each, and a `main` that prints a sum over all of them.
pub fn c_source(functions: usize) -> String {
    let mut random = Random::new(3);
    let mut c = String::from("#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\n");
    c.push_str(
        "typedef struct node { struct node *next; long value; char name[24]; } node;\nlong table[4096];\n\n",
    );
    for n in 0..functions {
        let [a, b, d, e] = [7, 13, 31, 4096].map(|limit| 1 + random.below(limit));
        let callee = random.below(n.max(1) as u64);
        writeln!(c, "/* {} {} {} */", random.word(), random.word(), random.word()).unwrap();
        writeln!(c, "long f{n}(long x, const char *s) {{").unwrap();
        writeln!(c, "    long sum = x * {a} + {b};\n    node *list = NULL;").unwrap();
        writeln!(c, "    for (long i = 0; i < {b}; i++) {{\n        node *n = malloc(sizeof *n);").unwrap();
        writeln!(c, "        if (!n) abort();\n        n->next = list;\n        n->value = i * {d} ^ x;")
            .unwrap();
        writeln!(
            c,
            "        snprintf(n->name, sizeof n->name, \"%s-%ld\", s, i);\n        list = n;\n    }}"
        )
        .unwrap();
        writeln!(c, "    while (list) {{\n        node *next = list->next;").unwrap();
        writeln!(c, "        sum += list->value + (long)strlen(list->name);\n        free(list);").unwrap();
        writeln!(c, "        list = next;\n    }}").unwrap();
        writeln!(c, "    switch ((unsigned long)sum % 5) {{").unwrap();
        for case in 0..4 {
            let factor = random.below(1000);
            writeln!(
                c,
                "    case {case}: table[(unsigned long)(sum + {e}) % 4096] += sum * {factor}; break;"
            )
            .unwrap();
        }
        writeln!(c, "    default: sum ^= table[{e} % 4096];\n    }}").unwrap();
        if n > 0 {
            writeln!(c, "    if (x > 0) sum += f{callee}(x - 1, \"{}\");", random.word()).unwrap();
        }
        writeln!(c, "    return sum;\n}}\n").unwrap();
    }
    writeln!(c, "int main(void) {{\n    unsigned long all = 0;").unwrap();
    for n in 0..functions {
        writeln!(c, "    all = all * 31 + (unsigned long)f{n}({}, \"{}\");", n % 3, random.word()).unwrap();
    }
    writeln!(c, "    printf(\"%lu\\n\", all);\n    return 0;\n}}").unwrap();
    c
}

/// A stream for `git fast-import`: `commits` commits over 200 files, with a side branch merged again and
/// again.
pub fn git_history(commits: usize) -> String {
    let mut random = Random::new(5);
    let mut stream = String::new();
    let data = |stream: &mut String, text: &str| writeln!(stream, "data {}\n{text}", text.len()).unwrap();
    for n in 1..=commits {
        // Every tenth commit is on the side branch, and the one after it merges it.
        let branch = if n % 10 == 5 { "side" } else { "main" };
        let date = 1_500_000_000 + n * 3600;
        writeln!(stream, "commit refs/heads/{branch}\nmark :{n}").unwrap();
        writeln!(stream, "committer A. Tester <tester@example.org> {date} +0100").unwrap();
        data(&mut stream, &format!("Change {n}: {} {}\n", random.word(), random.word()));
        match n % 10 {
            5 => writeln!(stream, "from :{}", n - 1).unwrap(),
            6 => writeln!(stream, "from :{}\nmerge :{}", n - 2, n - 1).unwrap(),
            _ if n > 1 => writeln!(stream, "from :{}", n - 1).unwrap(),
            _ => {}
        }
        for _ in 0..=random.below(4) {
            let file = random.below(200);
            writeln!(stream, "M 100644 inline folder{}/file{file}.txt", file % 12).unwrap();
            // Mostly the same lines as before, so that there are deltas to find.
            let mut contents = text(file, 60);
            contents.insert_str(0, &text(random.below(1 << 40), 3));
            data(&mut stream, &contents);
        }
        if n % 100 == 0 {
            writeln!(stream, "tag v{n}\nfrom :{n}\ntagger A. Tester <tester@example.org> {date} +0100")
                .unwrap();
            data(&mut stream, &format!("Release {n}\n"));
        }
    }
    stream.push_str("done\n");
    stream
}
