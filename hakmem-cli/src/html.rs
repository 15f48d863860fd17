//! A page that needs nothing beside it and no network: what the reports of the lab and of the profiler share.

use maud::{DOCTYPE, Markup, PreEscaped, html};

const STYLE: &str = include_str!("html.css");

/// A page. `style` and `script` are what it has beyond others.
pub fn page(title: &str, style: &str, header: Markup, main: Markup, footer: Markup, script: &str) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(style)) }
            }
            body {
                header { h1 { (title) } (header) }
                main { (main) }
                footer { p { (footer) } }
                @if !script.is_empty() { script { (PreEscaped(script)) } }
            }
        }
    }
}
