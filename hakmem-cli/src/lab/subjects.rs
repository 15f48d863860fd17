//! What is compared: the allocators of this machine, and settings of Hakmem.

mod folder;
mod linked;
mod loadable;
mod own;
mod settings;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail, ensure};

pub use self::linked::common_name;
pub use self::own::GLIBC;
use super::model::{Missing, Subject};
use crate::{elf, library};

/// Ours.
pub const HAKMEM: &str = "hakmem";

/// What a trial before the measurements may take: it takes milliseconds.
const TRIAL: Duration = Duration::from_secs(10);

/// The values of HAKMEM_PRESET (docs/options.md).
const PRESETS: [&str; 4] = ["balanced", "throughput", "memory", "latency"];

/// An allocator that distributions package.
struct Peer {
    name: &'static str,
    files: &'static [&'static str],
    package: &'static str,
}

const PEERS: [Peer; 3] = [
    Peer { name: "jemalloc", files: &["libjemalloc.so.2", "libjemalloc.so"], package: "libjemalloc2" },
    Peer {
        name: "mimalloc",
        files: &["libmimalloc.so.3", "libmimalloc.so.2", "libmimalloc.so"],
        package: "libmimalloc2.0 (Debian 12) or libmimalloc3",
    },
    Peer {
        name: "tcmalloc",
        files: &["libtcmalloc_minimal.so.4", "libtcmalloc_minimal.so"],
        package: "libtcmalloc-minimal4",
    },
];

/// What to compare, for clap.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Choice {
    /// Compare only these, of glibc (musl, where the program is linked to that), hakmem, jemalloc, mimalloc,
    /// tcmalloc (default: all that are found)
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub allocators: Vec<String>,

    /// Another allocator to preload; can be repeated
    #[arg(long = "with", value_name = "NAME=PATH", value_parser = named_path)]
    pub with: Vec<(String, PathBuf)>,

    /// Preload every NAME.so in this folder, too, as allocator NAME (benches/peers/build.sh makes such a
    /// folder)
    #[arg(long, value_name = "DIR")]
    pub peers: Option<PathBuf>,

    /// Compare Hakmem with Hakmem under this setting, with or without HAKMEM_ prefix; NAME=VALUE,NAME=VALUE
    /// sets several at once, and a value may be a list (HARDENED=canary,zero); can be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<OsString>,

    /// Compare Hakmem with Hakmem under this preset (HAKMEM_PRESET); can be repeated
    #[arg(long, value_name = "PRESET", value_parser = PRESETS)]
    pub preset: Vec<String>,

    /// What the others are compared with (default: glibc or musl, or hakmem where its settings are compared)
    #[arg(long, value_name = "NAME")]
    pub baseline: Option<String>,

    /// Hakmem's library, instead of looking for it
    #[arg(long, value_name = "PATH")]
    pub lib: Option<PathBuf>,
}

/// What was found.
pub struct Found {
    /// To compare, the order of the reports.
    pub subjects: Vec<Subject>,
    /// Looked for in vain.
    pub missing: Vec<Missing>,
    /// For each subject, why it cannot be preloaded, if so.
    pub broken: Vec<Option<String>>,
    /// One of the subjects.
    pub baseline: String,
}

/// Reads `NAME=PATH`, for clap.
pub fn named_path(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => Ok((name.to_string(), path.into())),
        _ => Err("expected NAME=PATH".into()),
    }
}

impl Choice {
    /// Finds what was chosen for workers. Settings of Hakmem are compared with its defaults alone, unless
    /// allocators are named.
    pub fn find(&self) -> anyhow::Result<Found> {
        self.look(own::of_workers(), self.has_settings() && self.allocators.is_empty())
    }

    /// The same for a program.
    pub fn find_for(&self, program: &OsStr) -> anyhow::Result<Found> {
        self.look(own::of(program), self.has_settings() && self.allocators.is_empty())
    }

    /// The same for workers, with settings of Hakmem beside the other allocators.
    pub fn find_all(&self) -> anyhow::Result<Found> {
        self.look(own::of_workers(), false)
    }

    fn has_settings(&self) -> bool {
        !self.env.is_empty() || !self.preset.is_empty()
    }

    /// The libraries that --peers and --with name. Each can be preloaded: what would have no figures is said
    /// before the others are measured.
    fn named(&self) -> anyhow::Result<Vec<Subject>> {
        let mut named = Vec::new();
        let peers = self.peers.as_deref().map(folder::libraries).transpose()?.unwrap_or_default();
        for (name, path, version) in peers {
            let real = loadable::checked(&path).with_context(|| format!("--peers: {}", path.display()))?;
            named.push(subject(&name, Some(real), version));
        }
        for (name, path) in &self.with {
            let real =
                loadable::checked(path).with_context(|| format!("--with {name}={}", path.display()))?;
            named.push(subject(name, Some(real), package_version(path)));
        }
        Ok(named)
    }

    fn look(&self, own: Subject, settings_only: bool) -> anyhow::Result<Found> {
        let mut found =
            Found { subjects: Vec::new(), missing: Vec::new(), broken: Vec::new(), baseline: String::new() };
        let wanted = |name: &str| {
            if self.allocators.is_empty() {
                !settings_only || name == HAKMEM
            } else {
                self.allocators.iter().any(|chosen| chosen == name)
            }
        };
        for name in &self.allocators {
            let known = [own.name.as_str(), HAKMEM].into_iter().chain(PEERS.iter().map(|peer| peer.name));
            if !known.clone().any(|known| known == name) {
                if own::is_one(name) {
                    bail!("--allocators {name}: the program's own C library is called {} here", own.name);
                }
                let list: Vec<_> = known.collect();
                bail!(
                    "--allocators {name}: not one of {}; name a file by --with {name}=PATH",
                    list.join(", ")
                );
            }
        }
        let named = self.named()?;
        if wanted(&own.name) {
            found.add(own, None);
        }
        if wanted(HAKMEM) || settings_only {
            let path = library::find(self.lib.as_deref())?;
            loadable::ask_loader(&path).with_context(|| path.display().to_string())?;
            ensure!(
                elf::is_hakmem(&path),
                "{}: not Hakmem's library; --with NAME=PATH compares another allocator",
                path.display()
            );
            let version = own::hakmems_version(&path).map(|version| format!("Hakmem {version}"));
            found.add(subject(HAKMEM, Some(path.clone()), version.clone()), None);
            for subject in settings::subjects(self, &path, version)? {
                found.add(subject, None);
            }
        } else if self.has_settings() {
            bail!("--env and --preset are settings of Hakmem, which --allocators leaves out");
        } else if self.lib.is_some() {
            bail!("--lib is Hakmem's library, which --allocators leaves out");
        }
        for peer in PEERS.iter().filter(|peer| wanted(peer.name)) {
            match peer.files.iter().find_map(|file| locate(file)) {
                Some(path) => {
                    let version = package_version(&path);
                    found.add_library(peer.name, path, version);
                }
                None => found.missing.push(Missing {
                    name: peer.name.to_string(),
                    hint: format!("not installed; Debian's package is {}", peer.package),
                }),
            }
        }
        for named in named {
            found.add(named, None);
        }
        found.check(self.baseline.as_deref(), settings_only)?;
        Ok(found)
    }
}

impl Found {
    /// Leaves the baseline and, beside it, the very same under another name.
    pub fn only_baseline_twice(&mut self) {
        let i =
            self.subjects.iter().position(|s| s.name == self.baseline).expect("checked when it was chosen");
        let mut same = self.subjects[i].clone();
        let broken = self.broken[i].clone();
        same.name += " again";
        self.subjects = vec![self.subjects[i].clone(), same];
        self.broken = vec![broken.clone(), broken];
        self.missing.clear();
    }

    fn add(&mut self, subject: Subject, broken: Option<String>) {
        self.subjects.push(subject);
        self.broken.push(broken);
    }

    fn add_library(&mut self, name: &str, path: PathBuf, version: Option<String>) {
        let (path, broken) = match path.canonicalize().map_err(anyhow::Error::from) {
            Ok(real) => {
                let broken = elf::check_library(&real).err();
                (real, broken)
            }
            Err(error) => (path, Some(error)),
        };
        let broken = broken.map(|error| format!("{}: {error:#}", path.display()));
        self.add(subject(name, Some(path), version), broken);
    }

    /// Settles the baseline and refuses what would make no sense.
    fn check(&mut self, baseline: Option<&str>, settings_only: bool) -> anyhow::Result<()> {
        for (i, subject) in self.subjects.iter().enumerate() {
            if self.subjects[..i].iter().any(|other| other.name == subject.name) {
                bail!("two allocators called {}", subject.name);
            }
        }
        let has = |name: &str| self.subjects.iter().any(|subject| subject.name == name);
        self.baseline = match baseline {
            Some(name) if has(name) => name.to_string(),
            Some(name) => {
                let names: Vec<_> = self.subjects.iter().map(|subject| subject.name.as_str()).collect();
                bail!("--baseline {name}: not compared here; there are {}", names.join(", "))
            }
            None if settings_only => HAKMEM.to_string(),
            None => {
                let is_own = |subject: &&Subject| subject.library.is_none() && own::is_one(&subject.name);
                match self.subjects.iter().find(is_own).or(self.subjects.first()) {
                    Some(subject) => subject.name.clone(),
                    None => bail!("nothing to compare: none of the chosen allocators is installed"),
                }
            }
        };
        Ok(())
    }
}

fn subject(name: &str, library: Option<PathBuf>, version: Option<String>) -> Subject {
    Subject { name: name.to_string(), library, version, ..Subject::default() }
}

/// Where a distribution, or the user, puts libraries.
fn locate(file: &str) -> Option<PathBuf> {
    let own = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&own).chain(
        [
            &format!("/usr/local/lib/{}-linux-gnu", std::env::consts::ARCH),
            "/usr/local/lib",
            &format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH),
            &format!("/lib/{}-linux-gnu", std::env::consts::ARCH),
            "/usr/lib64",
            "/usr/lib",
            "/lib64",
            "/lib",
        ]
        .map(PathBuf::from),
    );
    folders.filter(|folder| folder.is_absolute()).map(|folder| folder.join(file)).find(|path| path.is_file())
}

/// The version of the Debian package that `path` is from, where there is dpkg.
fn package_version(path: &Path) -> Option<String> {
    // dpkg may know the file by its name in /lib or in /usr/lib.
    let names = [path.to_path_buf(), path.canonicalize().ok()?];
    let output = |arguments: &[&OsStr]| {
        let output = Command::new("dpkg-query").args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let owner = names.iter().find_map(|name| output(&["--search".as_ref(), name.as_os_str()]))?;
    let package = owner.lines().next()?.rsplit_once(": ")?.0.split(',').next()?.to_string();
    output(&["--show".as_ref(), "--showformat=${Package} ${Version}".as_ref(), package.as_ref()])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(allocators: &[&str]) -> Choice {
        Choice { allocators: allocators.iter().map(ToString::to_string).collect(), ..Choice::default() }
    }

    fn names(found: &Found) -> Vec<&str> {
        found.subjects.iter().map(|subject| subject.name.as_str()).collect()
    }

    #[test]
    fn a_peer_that_is_broken_has_a_row_and_a_reason() {
        let mut found = choice(&["glibc"]).find().unwrap();
        found.add_library("text", "/etc/passwd".into(), None);
        assert_eq!(names(&found), ["glibc", "text"]);
        assert_eq!(found.broken[0], None);
        assert!(found.broken[1].as_ref().unwrap().contains("not an ELF file"));
        assert_eq!(found.baseline, "glibc");
    }

    #[test]
    fn a_library_that_is_named_and_broken_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("text.so"), "GROUP ( libc.so.6 )").unwrap();
        let error = |choice: Choice| format!("{:#}", choice.find().err().unwrap());
        let with = |path: &str| {
            let with = vec![("libc".into(), locate("libc.so.6").unwrap()), ("x".into(), path.into())];
            Choice { with, ..choice(&["glibc"]) }
        };
        assert!(error(with("/no/such.so")).starts_with("--with x=/no/such.so: No such file"));
        assert_eq!(error(with("/etc/passwd")), "--with x=/etc/passwd: not an ELF file");
        let peers = Choice { peers: Some(folder.path().into()), ..choice(&["glibc"]) };
        assert!(error(peers).ends_with("/text.so: not an ELF file"));
    }

    #[test]
    fn nonsense_is_refused() {
        let error = |choice: Choice| choice.find().err().unwrap().to_string();
        assert!(error(choice(&["nosuch"])).contains("nosuch: not one of glibc, hakmem, jemalloc"));
        let mut twice = choice(&["glibc"]);
        twice.with = vec![("glibc".into(), locate("libc.so.6").unwrap())];
        assert!(error(twice).contains("two allocators called glibc"));
        let mut base = choice(&["glibc"]);
        base.baseline = Some("other".into());
        assert!(error(base).contains("there are glibc"));
        let mut env = choice(&["glibc"]);
        env.preset = vec!["memory".into()];
        assert!(error(env).contains("leaves out"));
        let mut lib = choice(&["glibc"]);
        lib.lib = locate("libc.so.6");
        assert_eq!(error(lib.clone()), "--lib is Hakmem's library, which --allocators leaves out");
        lib.allocators.push("hakmem".into());
        assert!(error(lib).contains("not Hakmem's library; --with NAME=PATH compares"));
        assert!(named_path("x").is_err() && named_path("=x").is_err() && named_path("x=").is_err());
    }

    #[test]
    fn libraries_are_looked_for_where_distributions_put_them() {
        assert!(locate("libc.so.6").is_some());
        assert_eq!(locate("libno-such-library.so.1"), None);
    }
}
