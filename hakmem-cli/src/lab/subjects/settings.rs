//! Settings of Hakmem as subjects, and whether the library takes them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use super::super::model::Subject;
use super::super::run::{self, Job};
use super::{Choice, subject};
use crate::settings::pair;

/// What the trial of a setting may take: it takes milliseconds.
const TRIAL: Duration = Duration::from_secs(10);

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

/// What the library has against the settings of `subject`, if anything. It ignores what it does not
/// understand, so the comparison would be of nothing. It is asked, by a program that does next to nothing, as
/// it alone knows its options: with --lib it may be of another version than this command.
fn complaint(subject: &Subject) -> anyhow::Result<Option<String>> {
    let program = std::env::current_exe().context("this command's own file")?.into_os_string();
    let arguments = ["--version".into()];
    let job = Job { program: &program, arguments: &arguments, input: None, timeout: TRIAL };
    let measured = run::run(&job, subject)?;
    // Options that come from the environment of this command hold for every run: a warning tells of those.
    let is_about = |line: &str, name: &str| {
        let rest = line.strip_prefix("hakmem: ").and_then(|line| line.strip_prefix(name));
        rest.is_some_and(|rest| rest.starts_with(['=', ':']))
    };
    let names = || subject.environment.iter().map(|(name, _)| name.as_str());
    let mut lines = measured.errors.lines();
    let line = lines.find(|line| names().any(|name| is_about(line, name)));
    Ok(line.map(|line| line.trim_start_matches("hakmem: ").to_string()))
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
