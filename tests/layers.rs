//! Each folder of `src` uses only those below it, in the order of the table in `docs/architecture.md`, and
//! no files of a folder use each other in a circle.

use proc_macro2::LineColumn;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, ItemUse, Meta, UseTree};

/// One file using another.
struct Use {
    from: PathBuf,
    to: PathBuf,
    at: LineColumn,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All source files, relative to `src`.
fn files(folder: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.insert(path.strip_prefix(root().join("src")).unwrap().to_path_buf());
        }
    }
}

/// `a/b.rs` and `a/b/mod.rs` are the module `a::b`.
fn module(file: &Path) -> Vec<String> {
    let mut path: Vec<String> =
        file.with_extension("").iter().map(|part| part.to_str().unwrap().to_owned()).collect();
    if path.last().is_some_and(|last| last == "mod" || last == "lib") {
        path.pop();
    }
    path
}

/// Whether an item is for tests only.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string().replace(' ', "");
            condition == "test" || condition.starts_with("all(test,")
        }
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

/// Collects paths into the crate, absolute, from one file.
struct Paths {
    /// The module that is being read, modules within the file included.
    here: Vec<String>,
    modules: BTreeSet<Vec<String>>,
    found: Vec<(Vec<String>, LineColumn)>,
}

impl Paths {
    fn add(&mut self, path: &[String], at: LineColumn) {
        let mut absolute = match path.first().map(String::as_str) {
            Some("crate") => Vec::new(),
            Some("self" | "super") => self.here.clone(),
            // A child of this module, by its bare name.
            Some(first)
                if self.modules.contains(
                    &self
                        .here
                        .iter()
                        .map(String::as_str)
                        .chain([first])
                        .map(String::from)
                        .collect::<Vec<_>>(),
                ) =>
            {
                self.here.clone()
            }
            _ => return,
        };
        for part in path {
            match part.as_str() {
                "crate" | "self" => {}
                "super" => {
                    absolute.pop();
                }
                _ => absolute.push(part.clone()),
            }
        }
        self.found.push((absolute, at));
    }

    fn add_tree(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.add_tree(before, &path.tree);
                before.pop();
            }
            UseTree::Name(name) => self.add_leaf(before, name.ident.to_string(), name.span().start()),
            UseTree::Rename(rename) => self.add_leaf(before, rename.ident.to_string(), rename.span().start()),
            UseTree::Glob(glob) => self.add(before, glob.span().start()),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
        }
    }

    fn add_leaf(&mut self, before: &[String], name: String, at: LineColumn) {
        let path: Vec<String> = before.iter().cloned().chain([name]).collect();
        self.add(&path, at);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Mod(item) => &item.attrs,
            Item::Use(item) => &item.attrs,
            Item::Fn(item) => &item.attrs,
            _ => &Vec::new(),
        };
        if is_test(attributes) {
            return;
        }
        match item {
            Item::Mod(module) if module.content.is_some() => {
                self.here.push(module.ident.to_string());
                visit::visit_item(self, item);
                self.here.pop();
            }
            _ => visit::visit_item(self, item),
        }
    }

    // `pub(super)` uses nothing.
    fn visit_visibility(&mut self, _: &'ast syn::Visibility) {}

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        self.add(&parts, path.span().start());
        visit::visit_path(self, path);
    }
}

/// All uses of one file by another.
fn uses() -> Vec<Use> {
    let mut all = BTreeSet::new();
    files(&root().join("src"), &mut all);
    let modules: BTreeMap<Vec<String>, &PathBuf> = all.iter().map(|file| (module(file), file)).collect();
    let mut uses = Vec::new();
    for from in &all {
        let text = fs::read_to_string(root().join("src").join(from)).unwrap();
        let mut paths =
            Paths { here: module(from), modules: modules.keys().cloned().collect(), found: Vec::new() };
        paths.visit_file(&syn::parse_file(&text).unwrap());
        for (path, at) in paths.found {
            // The longest beginning that is a module; what follows is an item.
            let to = (0..=path.len()).rev().find_map(|n| modules.get(&path[..n]).copied()).unwrap();
            if to != from {
                uses.push(Use { from: from.clone(), to: to.clone(), at });
            }
        }
    }
    assert!(uses.len() > 200, "only {} uses found", uses.len());
    uses
}

/// The ranks of the table: 0 is the top. Several places in one row do not know each other.
fn ranks() -> Vec<(PathBuf, usize)> {
    let text = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let rows =
        text.lines().filter_map(|line| line.strip_prefix("| ")).filter_map(|row| row.split('|').next());
    let mut ranks = Vec::new();
    for (rank, cell) in rows.filter(|cell| cell.contains("`src/")).enumerate() {
        for place in cell.split('`').filter_map(|part| part.strip_prefix("src/")) {
            ranks.push((PathBuf::from(place), rank));
        }
    }
    assert!(ranks.len() >= 10, "no table of layers: {ranks:?}");
    ranks
}

/// The place in the table that a file belongs to.
fn rank<'a>(ranks: &'a [(PathBuf, usize)], file: &Path) -> Option<&'a (PathBuf, usize)> {
    ranks.iter().find(|(place, _)| file.starts_with(place))
}

fn shown(place: &Use) -> String {
    format!(
        "src/{}:{}:{} uses src/{}",
        place.from.display(),
        place.at.line,
        place.at.column + 1,
        place.to.display()
    )
}

/// Loom's models may look at anything.
fn is_model(file: &Path) -> bool {
    // And what stands for atomics while a model runs.
    file.iter().any(|part| part == "model" || part == "model.rs")
        || file.starts_with("sync/loom")
        || file == Path::new("sync/loom.rs")
}

#[test]
fn each_folder_uses_only_those_below_it() {
    let ranks = ranks();
    let mut wrong = Vec::new();
    for place in uses().iter().filter(|place| !is_model(&place.from) && !is_model(&place.to)) {
        let [from, to] = [&place.from, &place.to].map(|file| {
            rank(&ranks, file).unwrap_or_else(|| panic!("src/{} is not in the table", file.display()))
        });
        if from.0 != to.0 && from.1 >= to.1 {
            wrong.push(shown(place));
        }
    }
    assert!(wrong.is_empty(), "against the order of docs/architecture.md:\n{}", wrong.join("\n"));
}

#[test]
fn no_files_of_a_folder_use_each_other_in_a_circle() {
    let uses = uses();
    let inside: Vec<&Use> = uses
        .iter()
        .filter(|place| place.from.parent() == place.to.parent() && !is_model(&place.from))
        .collect();
    // What nothing that is left uses goes, and what uses nothing that is left, until nothing changes: what
    // stays then is in a circle, or between two.
    let mut left: BTreeSet<&Path> = inside.iter().flat_map(|place| [&*place.from, &*place.to]).collect();
    loop {
        let used_by = |file: &Path| {
            inside.iter().any(|p| p.to == file && left.contains(&*p.from) && left.contains(file))
        };
        let using = |file: &Path| {
            inside.iter().any(|p| p.from == file && left.contains(&*p.to) && left.contains(file))
        };
        let still: BTreeSet<&Path> =
            left.iter().copied().filter(|file| used_by(file) && using(file)).collect();
        if still.len() == left.len() {
            break;
        }
        left = still;
    }
    let circle: Vec<String> = inside
        .iter()
        .filter(|place| left.contains(&*place.from) && left.contains(&*place.to))
        .map(|place| shown(place))
        .collect();
    assert!(circle.is_empty(), "in a circle:\n{}", circle.join("\n"));
}

/// Names of atomics are paths into `core` or `std`.
struct Atomics(Vec<LineColumn>);

impl Atomics {
    fn is_one(path: &[String]) -> bool {
        path.len() > 2 && (path[0] == "core" || path[0] == "std") && path[1] == "sync" && path[2] == "atomic"
    }

    fn add_tree(&mut self, before: &mut Vec<String>, tree: &UseTree) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                if Self::is_one(before) {
                    self.0.push(path.ident.span().start());
                } else {
                    self.add_tree(before, &path.tree);
                }
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.add_tree(before, tree)),
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Atomics {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_tree(&mut Vec::new(), &item.tree);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let parts: Vec<String> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if Self::is_one(&parts) {
            self.0.push(path.span().start());
        }
        visit::visit_path(self, path);
    }
}

#[test]
fn atomics_come_from_one_place() {
    let mut all = BTreeSet::new();
    files(&root().join("src"), &mut all);
    let mut wrong = Vec::new();
    for file in all.iter().filter(|file| *file != Path::new("sync.rs") && !is_model(file)) {
        let text = fs::read_to_string(root().join("src").join(file)).unwrap();
        let mut atomics = Atomics(Vec::new());
        atomics.visit_file(&syn::parse_file(&text).unwrap());
        wrong.extend(atomics.0.iter().map(|at| format!("src/{}:{}", file.display(), at.line)));
    }
    assert!(wrong.is_empty(), "not from src/sync.rs:\n{}", wrong.join("\n"));
}

/// Where the crate cannot run, all that the compiler has to say is that. So each item of `lib.rs` but this
/// error is left out there.
#[test]
fn other_systems_get_one_error() {
    let items = syn::parse_file(&fs::read_to_string(root().join("src/lib.rs")).unwrap()).unwrap().items;
    let condition = |attributes: &[Attribute]| {
        let lists = attributes.iter().filter_map(|attribute| attribute.meta.require_list().ok());
        let conditions: Vec<_> = lists.filter(|list| list.path.is_ident("cfg")).collect();
        conditions.iter().map(|list| list.tokens.to_string().replace(' ', "")).collect::<String>()
    };
    let here = r#"all(target_os="linux",target_pointer_width="64""#;
    for item in &items {
        match item {
            Item::Mod(ItemMod { attrs, .. }) | Item::Use(ItemUse { attrs, .. }) => {
                assert!(condition(attrs).starts_with(here), "{:?}", item.span().start());
            }
            Item::Macro(error) => {
                assert!(error.mac.path.is_ident("compile_error"));
                assert_eq!(condition(&error.attrs), format!("not({here}))"));
            }
            _ => assert!(matches!(item, Item::Const(_)), "{:?}", item.span().start()),
        }
    }
    assert_eq!(items.iter().filter(|item| matches!(item, Item::Macro(_))).count(), 1);
}
