//! The front end of a compiler: Rust source is parsed into a syntax tree, names in it are changed, the tree
//! is written as source again.

use std::fmt::Write;

use hakmem_rust_programs::{Random, checksum, scale};
use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::visit_mut::{self, VisitMut};

/// Source with `count` types, each with an implementation.
fn source(count: usize) -> String {
    let mut random = Random::new(4);
    let mut text = String::new();
    for number in 0..count {
        let (a, b) = (random.below(1000), random.below(1000));
        write!(
            text,
            "/// The type number {number}.\n\
             #[derive(Clone, Debug, PartialEq)]\n\
             pub struct Type{number}<'a, T: Clone + Default> {{ pub name: &'a str, values: Vec<(u32, T)>, limit: [u8; {a}] }}\n\
             impl<'a, T: Clone + Default + Into<String>> Type{number}<'a, T> {{\n\
                 pub fn new(name: &'a str) -> Option<Self> {{ (!name.is_empty()).then(|| Self {{ name, values: Vec::new(), limit: [0; {a}] }}) }}\n\
                 pub fn work(&mut self, input: &[u32]) -> Result<u64, Box<dyn std::error::Error>> {{\n\
                     let mut total = {b}u64;\n\
                     for (index, value) in input.iter().enumerate().filter(|(index, _)| index % 3 != {b}) {{\n\
                         match value {{\n\
                             0 => continue,\n\
                             1..=9 if index > {a} => total += u64::from(*value) * {b},\n\
                             other => self.values.push((*other, T::default())),\n\
                         }}\n\
                         if total > {a} && (index & 1 == 0 || self.name.len() < {b}) {{ return Err(format!(\"{{total}} at {{index}}\").into()); }}\n\
                     }}\n\
                     Ok(total + self.values.len() as u64)\n\
                 }}\n\
             }}\n"
        )
        .expect("a String takes all");
    }
    text
}

/// Renames everything that begins with a capital, and counts what it sees.
#[derive(Default)]
struct Rename {
    names: usize,
    expressions: usize,
}

impl VisitMut for Rename {
    fn visit_ident_mut(&mut self, ident: &mut Ident) {
        let name = ident.to_string();
        if name.starts_with("Type") {
            *ident = Ident::new(&format!("Renamed{name}"), Span::call_site());
            self.names += 1;
        }
    }

    fn visit_expr_mut(&mut self, expression: &mut syn::Expr) {
        self.expressions += 1;
        visit_mut::visit_expr_mut(self, expression);
    }
}

fn main() {
    let count = scale(1500);
    let mut file = syn::parse_file(&source(count)).expect("it is Rust");
    let mut rename = Rename::default();
    rename.visit_file_mut(&mut file);
    assert_eq!(rename.names, 2 * count, "each type is named twice");
    let written = file.to_token_stream().to_string();
    let again = syn::parse_file(&written).expect("what was written is Rust");
    assert_eq!(again.items.len(), 2 * count);
    println!(
        "{} expressions, {} bytes, {:016x}",
        rename.expressions,
        written.len(),
        checksum(written.as_bytes())
    );
}
