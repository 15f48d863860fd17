//! Settings of Hakmem as subjects, and whether the library takes them.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, bail};

use super::super::model::Subject;
use super::super::run::{self, Job};
use super::{Choice, TRIAL, subject};
use crate::settings::pair;

/// A subject for every `--env` and `--preset`.
pub fn subjects(choice: &Choice, library: &Path, version: Option<String>) -> anyhow::Result<Vec<Subject>> {
    let mut subjects = Vec::new();
    for text in &choice.env {
        let text = text.to_str().with_context(|| format!("--env {text:?}: not UTF-8"))?;
        let mut subject = subject(&format!("hakmem {text}"), Some(library.into()), version.clone());
        subject.environment = environment(text).map_err(|why| anyhow::anyhow!("--env {text}: {why}"))?;
        if let Some(complaint) = complaint(&subject)? {
            bail!("--env {text}: the library says: {complaint}");
        }
        subjects.push(subject);
    }
    for preset in &choice.preset {
        let mut subject = subject(&format!("hakmem {preset}"), Some(library.into()), version.clone());
        subject.environment = vec![("HAKMEM_PRESET".into(), preset.clone())];
        subjects.push(subject);
    }
    Ok(subjects)
}

/// A name that no option has.
const NO_OPTION: &str = "HAKMEM_";

/// What the library has against the settings of `subject`, if anything. It ignores what it does not
/// understand, so the comparison would be of nothing. It is asked, by a program that does next to nothing, as
/// it alone knows its options: with --lib it may be of another version than this command.
fn complaint(subject: &Subject) -> anyhow::Result<Option<String>> {
    let program = std::env::current_exe().context("this command's own file")?.into_os_string();
    let arguments = ["--version".into()];
    let job = Job { program: &program, arguments: &arguments, input: None, timeout: TRIAL };
    let mut trial = subject.clone();
    trial.environment.push((NO_OPTION.into(), String::new()));
    let measured = run::run(&job, &trial)?;
    Ok(first_complaint(&subject.environment, &measured.errors))
}

/// The first of what the library says about these settings. What this command and the tests read is no option
/// either, though the library says nothing about that: it lists its options where it meets another name.
fn first_complaint(settings: &[(String, String)], said: &str) -> Option<String> {
    // Options that come from the environment of this command hold for every run: a warning tells of those.
    fn about<'a>(line: &'a str, name: &str) -> Option<&'a str> {
        let line = line.strip_prefix("hakmem: ")?;
        line.strip_prefix(name).filter(|rest| rest.starts_with(['=', ':'])).map(|_| line)
    }
    let names = || settings.iter().map(|(name, _)| name.as_str());
    if let Some(line) = said.lines().find_map(|line| names().find_map(|name| about(line, name))) {
        return Some(line.to_string());
    }
    let list =
        said.lines().filter_map(|line| about(line, NO_OPTION)).find_map(|line| line.split_once("known: "));
    let known: Vec<&str> = list?.1.split(", ").collect();
    let name = names().find(|name| !known.contains(name))?;
    Some(format!("{name}: unknown option; known: {}", known.join(", ")))
}

/// Reads `NAME=VALUE,NAME=VALUE`, where what has no `=` belongs to the value before it.
fn environment(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut settings: Vec<(String, String)> = Vec::new();
    for part in text.split(',') {
        match settings.last_mut() {
            Some((_, value)) if !part.contains('=') => *value += &format!(",{part}"),
            _ => {
                let (name, value) = pair(OsString::from(part))?;
                let word = |part: OsString| part.to_string_lossy().into_owned();
                settings.push((word(name), word(value)));
            }
        }
    }
    Ok(settings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_option_is_told() {
        let complaint = |names: &[&str], said: &str| {
            let settings: Vec<_> = names.iter().map(|name| (name.to_string(), "1".to_string())).collect();
            first_complaint(&settings, said)
        };
        let list = "hakmem: HAKMEM_: unknown option; known: HAKMEM_THP, HAKMEM_GUARD\n";
        assert_eq!(complaint(&["HAKMEM_THP", "HAKMEM_GUARD"], list), None);
        assert_eq!(
            complaint(&["HAKMEM_THP", "HAKMEM_GUA"], list).as_deref(),
            Some("HAKMEM_GUA: unknown option; known: HAKMEM_THP, HAKMEM_GUARD")
        );
        // A library without such a list is believed.
        assert_eq!(complaint(&["HAKMEM_X"], "hakmem: HAKMEM_: what?\nhello\n"), None);
        let other = "hakmem: HAKMEM_GUARD=x: expected a number\nhakmem: HAKMEM_THP=1: expected auto\n";
        assert_eq!(
            complaint(&["HAKMEM_THP"], &(other.to_string() + list)).as_deref(),
            Some("HAKMEM_THP=1: expected auto")
        );
    }

    #[test]
    fn settings_may_be_lists() {
        let owned = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect::<Vec<_>>()
        };
        assert_eq!(environment("thp=never"), Ok(owned(&[("HAKMEM_THP", "never")])));
        assert_eq!(
            environment("HARDENED=canary,zero,HAKMEM_THP=never,GUARD=on"),
            Ok(owned(&[("HAKMEM_HARDENED", "canary,zero"), ("HAKMEM_THP", "never"), ("HAKMEM_GUARD", "on")]))
        );
        assert_eq!(environment("HARDENED="), Ok(owned(&[("HAKMEM_HARDENED", "")])));
        assert!(environment("canary,HARDENED=zero").is_err() && environment("").is_err());
    }
}
