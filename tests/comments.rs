//! Comments are as narrow as code, which rustfmt on stable Rust does not see to, and those about safety say
//! something.

use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, Lit, Meta, Signature};

/// The folders whose Rust files are looked at.
const FOLDERS: [&str; 13] = [
    "benches",
    "examples",
    "fuzz/fuzz_targets",
    "hakmem-capi/src",
    "hakmem-capi/tests",
    "hakmem-cli",
    "hakmem-profile",
    "hakmem-record",
    "hakmem-shadow",
    "hakmem-trace",
    "hakmem-workloads",
    "src",
    "tests",
];

fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            rust_files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn comments_are_at_most_as_wide_as_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let settings = std::fs::read_to_string(root.join("rustfmt.toml")).unwrap();
    let width = settings.lines().find_map(|line| line.strip_prefix("max_width = ")).unwrap();
    let width: usize = width.parse().unwrap();
    let mut files = Vec::new();
    FOLDERS.iter().for_each(|folder| rust_files(&root.join(folder), &mut files));
    assert!(files.len() > 100, "{} files", files.len());
    let mut wide = String::new();
    for file in files {
        let text = std::fs::read_to_string(&file).unwrap();
        for (number, line) in text.lines().enumerate() {
            if line.trim_start().starts_with("//") && line.chars().count() > width {
                let file = file.strip_prefix(root).unwrap().display();
                wide += &format!("{file}:{}: {} columns\n", number + 1, line.chars().count());
            }
        }
    }
    assert!(wide.is_empty(), "comments of more than {width} columns:\n{wide}");
}

/// Unsafe functions without a section that says what callers have to see to. Those of a trait's
/// implementation are described by the trait.
#[derive(Default)]
struct Undocumented {
    found: Vec<(String, usize)>,
}

impl Undocumented {
    fn look(&mut self, attributes: &[Attribute], signature: &Signature) {
        let is_heading = |attribute: &Attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("doc") => {
                matches!(&pair.value, Expr::Lit(lit) if matches!(&lit.lit, Lit::Str(s) if s.value().trim() == "# Safety"))
            }
            _ => false,
        };
        if signature.unsafety.is_some() && !attributes.iter().any(is_heading) {
            self.found.push((signature.ident.to_string(), signature.span().start().line));
        }
    }
}

impl<'ast> Visit<'ast> for Undocumented {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.look(&item.attrs, &item.sig);
        visit::visit_item_fn(self, item);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        if item.trait_.is_none() {
            visit::visit_item_impl(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.look(&item.attrs, &item.sig);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        self.look(&item.attrs, &item.sig);
    }
}

/// The library's source files.
fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut files = Vec::new();
    rust_files(&root.join("src"), &mut files);
    assert!(files.len() > 50, "{} files", files.len());
    let text = |file: &PathBuf| std::fs::read_to_string(file).unwrap();
    files.iter().map(|file| (file.strip_prefix(root).unwrap().display().to_string(), text(file))).collect()
}

#[test]
fn unsafe_functions_say_what_callers_have_to_see_to() {
    let mut wrong = String::new();
    for (file, text) in sources() {
        let mut undocumented = Undocumented::default();
        undocumented.visit_file(&syn::parse_file(&text).unwrap());
        for (name, line) in undocumented.found {
            wrong += &format!("{file}:{line}: {name}\n");
        }
    }
    assert!(wrong.is_empty(), "unsafe functions without `# Safety`:\n{wrong}");
}

#[test]
fn safety_comments_name_what_they_rely_on() {
    const EMPTY: [&str; 4] = ["passed on", "as above", "see above", "ours"];
    let mut wrong = String::new();
    for (file, text) in sources() {
        for (number, line) in text.lines().enumerate() {
            let Some(says) = line.trim().strip_prefix("// SAFETY: ") else { continue };
            if EMPTY.contains(&says.trim_end_matches('.')) {
                wrong += &format!("{file}:{}: {says}\n", number + 1);
            }
        }
    }
    assert!(wrong.is_empty(), "safety comments that say nothing:\n{wrong}");
}
