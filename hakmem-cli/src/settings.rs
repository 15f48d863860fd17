//! The HAKMEM_ options of the program: what the user set, less the statistics, which `hakmem run` needs
//! itself.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::records::{self, Main, Record, Summary};
use crate::report;

/// Reads `NAME=VALUE`, for clap. The name comes out in full and in capitals.
pub fn pair(text: OsString) -> Result<(OsString, OsString), String> {
    use std::os::unix::ffi::OsStrExt;
    let Some(at) = text.as_bytes().iter().position(|&b| b == b'=') else {
        return Err("expected NAME=VALUE".into());
    };
    let (name, value) = (&text.as_bytes()[..at], OsStr::from_bytes(&text.as_bytes()[at + 1..]));
    let name = String::from_utf8_lossy(name).to_ascii_uppercase();
    let short = name.strip_prefix("HAKMEM_").unwrap_or(&name);
    if short.is_empty() || !short.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        return Err("NAME must be letters, digits and underscores".into());
    }
    if short == "LIB" {
        return Err("HAKMEM_LIB is no option of the library; use --lib PATH".into());
    }
    Ok((format!("HAKMEM_{short}").into(), value.into()))
}

/// Reads a size in bytes, with K, M or G for powers of 1024, for clap.
pub fn size(text: &str) -> Result<u64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1u64 << 10),
        Some((at, 'm' | 'M')) => (&text[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    let number: Option<u64> = digits.parse().ok();
    let bytes = number.and_then(|number| number.checked_mul(factor)).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "expected a size such as 64M".into())
}

/// What the user wants of the library's statistics by HAKMEM_STATS.
#[derive(Debug, PartialEq)]
enum Wanted {
    None,
    Table,
    Json,
}

/// The options of one run.
pub struct Settings {
    environment: Vec<(OsString, OsString)>,
    counts_all: bool,
    wanted: Wanted,
    file: Option<PathBuf>,
    /// `--stats`: the table on stderr, whatever else is wanted.
    table: bool,
}

impl Settings {
    /// Puts together `--set`, `--exact`, `--stats` and the environment.
    pub fn new(set: &[(OsString, OsString)], exact: bool, stats: bool) -> anyhow::Result<Self> {
        let mut settings = Self::with(set, exact, |name| std::env::var_os(name))?;
        settings.table = stats;
        Ok(settings)
    }

    fn with(
        set: &[(OsString, OsString)],
        exact: bool,
        inherited: impl Fn(&str) -> Option<OsString>,
    ) -> anyhow::Result<Self> {
        let last = |name: &str| set.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.clone());
        let mut environment = set.to_vec();
        if exact {
            if last("HAKMEM_MAGAZINE").is_some_and(|value| value != "off") {
                bail!("--exact and --set MAGAZINE=... contradict each other");
            }
            environment.push(("HAKMEM_MAGAZINE".into(), "off".into()));
        }
        let value = |name: &str| last(name).or_else(|| inherited(name)).filter(|value| !value.is_empty());
        let counts_all = exact || value("HAKMEM_MAGAZINE").is_some_and(|value| value == "off");
        let wanted = match value("HAKMEM_STATS").as_ref().map(|value| value.to_string_lossy()).as_deref() {
            None | Some("none") => Wanted::None,
            Some("table") => Wanted::Table,
            Some("json") => Wanted::Json,
            Some(other) => {
                // What the library would have said, and would have done.
                let other = report::printable(OsStr::new(other));
                report::say(&format!("hakmem: HAKMEM_STATS={other}: expected none, table or json; ignored"));
                Wanted::None
            }
        };
        let file = value("HAKMEM_STATS_FILE").map(PathBuf::from);
        Ok(Self { environment, counts_all, wanted, file, table: false })
    }

    /// What to add to the program's environment. The statistics in it are overruled by what the caller adds
    /// next.
    pub fn environment(&self) -> impl Iterator<Item = (&OsStr, &OsStr)> {
        self.environment.iter().map(|(name, value)| (name.as_os_str(), value.as_os_str()))
    }

    /// Whether the library counts every allocation.
    pub fn counts_all(&self) -> bool {
        self.counts_all
    }

    /// Hands out the statistics that the user asked for: of us, those of the program itself; of the library,
    /// which gave them to us instead as `text`, those of all processes that have ended. False if what was
    /// asked of us is not there or cannot be printed. The library itself would change no exit status.
    pub fn deliver(&self, name: &str, text: &str, summary: &Summary) -> bool {
        let own = match &summary.main {
            Main::Report(record) => Some(&**record),
            _ => None,
        };
        let table = |record: &Record| {
            let is_own = own.is_some_and(|own| own.line == record.line);
            report::table(is_own.then_some(name), record)
        };
        let exits = || records::exits(text).into_iter();
        let text: String = match (&self.wanted, &self.file) {
            (Wanted::None, _) => String::new(),
            (Wanted::Table, _) => exits().map(|record| table(&record)).collect(),
            (Wanted::Json, Some(_)) => text.to_string(),
            (Wanted::Json, None) => exits().map(|record| record.line + "\n").collect(),
        };
        let printed = match &self.file {
            Some(_) if text.is_empty() => true,
            Some(path) => {
                append(path, &text);
                true
            }
            None => report::show(text.as_bytes()),
        };
        match own {
            _ if !self.table => true,
            // It is among the others.
            Some(_) if self.wanted == Wanted::Table && self.file.is_none() => printed,
            Some(own) => report::show(table(own).as_bytes()),
            None => {
                report::show(report::no_table(name, &summary.main).as_bytes());
                false
            }
        }
    }
}

/// Appends `text` to the user's own file.
fn append(path: &Path, text: &str) {
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    if let Err(error) = file.and_then(|mut file| file.write_all(text.as_bytes())) {
        report::say(&format!("hakmem: HAKMEM_STATS_FILE={}: {error}", path.display()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(pairs: &[&str]) -> Vec<(OsString, OsString)> {
        pairs.iter().map(|text| pair(text.into()).unwrap()).collect()
    }

    #[test]
    fn names_come_with_or_without_prefix() {
        for text in ["PURGE_DELAY=5", "purge_delay=5", "HAKMEM_PURGE_DELAY=5", "hakmem_purge_delay=5"] {
            assert_eq!(pair(text.into()).unwrap(), ("HAKMEM_PURGE_DELAY".into(), "5".into()));
        }
        assert_eq!(pair("X=a=b".into()).unwrap().1, "a=b");
        assert_eq!(pair("X=".into()).unwrap().1, "");
    }

    #[test]
    fn bad_pairs_are_refused() {
        for text in ["", "=", "NAME", "=5", "HAKMEM_=5", "A B=5", "A-B=5", "LIB=/x", "HAKMEM_LIB=/x"] {
            assert!(pair(text.into()).is_err(), "{text:?}");
        }
    }

    #[test]
    fn exact_is_known_from_every_source() {
        let counts = |pairs: &[&str], exact, inherited: Option<&str>| {
            Settings::with(&set(pairs), exact, |name| {
                inherited.filter(|_| name == "HAKMEM_MAGAZINE").map(OsString::from)
            })
            .map(|settings| settings.counts_all)
        };
        assert!(!counts(&[], false, None).unwrap());
        assert!(counts(&[], true, None).unwrap());
        assert!(counts(&[], true, Some("on")).unwrap());
        assert!(counts(&[], false, Some("off")).unwrap());
        assert!(counts(&["MAGAZINE=off"], false, None).unwrap());
        assert!(!counts(&["MAGAZINE=off", "MAGAZINE=on"], false, None).unwrap());
        assert!(!counts(&["MAGAZINE=on"], false, Some("off")).unwrap());
        assert!(counts(&["MAGAZINE=on"], true, None).is_err());
    }

    #[test]
    fn statistics_are_taken_out() {
        let settings = Settings::with(&set(&["STATS=table"]), false, |_| None).unwrap();
        assert_eq!(settings.wanted, Wanted::Table);
        let settings =
            Settings::with(&[], false, |name| (name == "HAKMEM_STATS").then(|| "json".into())).unwrap();
        assert_eq!(settings.wanted, Wanted::Json);
        let settings = Settings::with(&set(&["STATS=bogus"]), false, |_| None).unwrap();
        assert_eq!(settings.wanted, Wanted::None);
    }

    #[test]
    fn sizes() {
        assert_eq!(size("12"), Ok(12));
        assert_eq!((size("1k"), size("2M"), size("3G")), (Ok(1024), Ok(2 << 20), Ok(3 << 30)));
        for wrong in ["", "0", "M", "1.5G", "-1", "1T", "99999999999G", "\u{e9}"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }
}
