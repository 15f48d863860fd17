//! What the control groups of this process leave it of memory: beyond that the kernel kills.

use std::fs;
use std::path::Path;

/// The files of one version of control groups.
struct Version {
    /// Where the group's folder is.
    mount: &'static str,
    limits: &'static [&'static str],
    usage: &'static str,
    /// In `memory.stat`: files, and records of them, which the kernel drops before it runs short.
    dropped: &'static [&'static str],
}

const V1: Version = Version {
    mount: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    dropped: &["total_inactive_file", "total_active_file"],
};
// Above `memory.high` the kernel does not kill, but holds up whoever asks for more.
const V2: Version = Version {
    mount: "sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    dropped: &["inactive_file", "active_file", "slab_reclaimable"],
};

/// Bytes that every group this process is in still allows, as far as they tell.
pub fn room() -> u64 {
    room_in(Path::new("/"))
}

fn room_in(root: &Path) -> u64 {
    let own = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    own.lines().filter_map(|line| of_hierarchy(root, line)).min().unwrap_or(u64::MAX)
}

/// Of a line like `0::/path` or `4:memory:/path`.
fn of_hierarchy(root: &Path, line: &str) -> Option<u64> {
    let mut fields = line.splitn(3, ':');
    let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let version = match controllers {
        "" => V2,
        list if list.split(',').any(|one| one == "memory") => V1,
        _ => return None,
    };
    let mount = root.join(version.mount);
    // In a container the path may be the host's and not lead anywhere; its end is where the container begins.
    let path = Path::new(path.trim_start_matches('/'));
    path.ancestors().filter_map(|group| of_group(&version, &mount.join(group))).min()
}

fn of_group(version: &Version, group: &Path) -> Option<u64> {
    let text = |name: &str| fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let limit = version.limits.iter().filter_map(|name| number(name)).min()?;
    let stat = text("memory.stat").unwrap_or_default();
    let lines = stat.lines().filter_map(|line| line.split_once(' '));
    let dropped = lines.filter(|(name, _)| version.dropped.contains(name));
    let dropped: u64 = dropped.filter_map(|(_, value)| value.parse::<u64>().ok()).sum();
    Some(limit.saturating_sub(number(version.usage)?.saturating_sub(dropped)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is left where these files are.
    fn room(files: &[(&str, &str)]) -> u64 {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }
        room_in(root.path())
    }

    const OWN: &str = "proc/self/cgroup";

    #[test]
    fn the_tightest_group_counts() {
        let inner = ("sys/fs/cgroup/a/b/memory.max", "1000");
        let used = ("sys/fs/cgroup/a/b/memory.current", "300");
        assert_eq!(room(&[(OWN, "0::/a/b"), inner, used]), 700);
        let outer = [("sys/fs/cgroup/a/memory.max", "900"), ("sys/fs/cgroup/a/memory.current", "500")];
        assert_eq!(room(&[&[(OWN, "0::/a/b"), inner, used], &outer[..]].concat()), 400);
        let stat = ("sys/fs/cgroup/a/memory.stat", "anon 5\ninactive_file 150");
        assert_eq!(room(&[&[(OWN, "0::/a/b"), inner, used, stat], &outer[..]].concat()), 550);
        let high = ("sys/fs/cgroup/a/b/memory.high", "350");
        assert_eq!(room(&[(OWN, "0::/a/b"), inner, used, high]), 50);
        assert_eq!(room(&[(OWN, "0::/a"), inner, used]), u64::MAX, "somebody else's");
    }

    #[test]
    fn no_limit_and_no_groups() {
        let unlimited = ("sys/fs/cgroup/a/memory.max", "max");
        let used = ("sys/fs/cgroup/a/memory.current", "300");
        assert_eq!(room(&[(OWN, "0::/a"), unlimited, used]), u64::MAX);
        assert_eq!(room(&[(OWN, "rubbish\n::\n9:cpu:/a")]), u64::MAX);
        assert_eq!(room(&[]), u64::MAX);
    }

    #[test]
    fn version_1_in_a_container_too() {
        let files = [
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "1000"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "600"),
            ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 100"),
        ];
        let own = (OWN, "4:cpu,cpuacct:/x\n7:memory:/docker/0123\n0::/x");
        assert_eq!(room(&[&[own], &files[..]].concat()), 500);
        let beyond = ("sys/fs/cgroup/memory/memory.usage_in_bytes", "2000");
        assert_eq!(room(&[own, files[0], beyond]), 0);
    }
}
