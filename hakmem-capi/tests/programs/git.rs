//! git: a history of its own making, and the project's own where the checkout has one.

use crate::inputs;
use crate::support;
use crate::twin::{Side, Twin, missing};

/// git without the user's or the machine's settings.
fn settle(side: &mut Side) {
    // A checkout that belongs to another user (a container's, say) is none of these tests' business.
    side.file(".gitconfig", "[safe]\n\tdirectory = *\n");
    side.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_PAGER", "cat");
    side.env("GIT_AUTHOR_DATE", "1600000000 +0000").env("GIT_COMMITTER_DATE", "1600000000 +0000");
}

/// Reads the whole history of the bare repository `repo` and packs it again, on one thread and on two.
fn read_and_pack(side: &mut Side, repo: &str) {
    let mut git = |step: &[&str]| side.run(&[&["git", "--git-dir", repo], step].concat());
    git(&["log", "--stat", "--all", "--date-order"]);
    git(&["log", "-p", "-M", "--all", "-50"]);
    // One thread: the pack is the same to the byte, and compared as a file at the end.
    git(&["-c", "pack.threads=1", "gc", "--quiet", "--aggressive", "--prune=now"]);
    git(&["fsck", "--full", "--strict"]);
}

#[test]
fn git_log_gc_and_fsck() {
    if missing(&[("git", "git")]) {
        return;
    }
    let history = inputs::git_history(500);
    Twin::new("git", 60).processes(20).compare(|side| {
        settle(side);
        side.file("history", &history);
        side.run(&["git", "init", "--quiet", "--bare", "--initial-branch=main", "repo.git"]);
        side.run(&["sh", "-c", "git --git-dir repo.git fast-import --quiet --done <history"]);
        read_and_pack(side, "repo.git");
        side.run(&["git", "--git-dir", "repo.git", "grep", "-c", "ab", "main~20", "--", "folder3"]);
        side.run(&["git", "--git-dir", "repo.git", "archive", "--output=main.tar", "main"]);
        side.run(&["git", "clone", "--quiet", "--no-local", "repo.git", "clone"]);
        side.run(&["git", "-C", "clone", "blame", "-s", "main", "--", "folder1/file1.txt"]);
        side.run(&["git", "-C", "clone", "diff", "--stat", "v100", "v400"]);
        side.run(&["git", "-C", "clone", "status", "--short", "--branch"]);
        // Two threads: which deltas they find is their race, so only the contents are compared, not the
        // files.
        side.run(&[
            "git",
            "-C",
            "clone",
            "-c",
            "pack.threads=2",
            "repack",
            "-adfq",
            "--depth=50",
            "--window=50",
        ]);
        side.run(&["git", "-C", "clone", "fsck", "--full"]);
        side.run(&["git", "-C", "clone", "cat-file", "--batch-all-objects", "--batch-check"]);
        std::fs::remove_dir_all(side.dir.join("clone/.git")).unwrap();
    });
}

#[test]
fn git_on_this_project() {
    if missing(&[("git", "git")]) {
        return;
    }
    let root = support::root();
    let has_commits = std::process::Command::new("git")
        // Also of a checkout that belongs to somebody else: see `settle`.
        .args(["-c", "safe.directory=*", "rev-parse", "--quiet", "--verify", "HEAD"])
        .current_dir(&root)
        .output()
        .is_ok_and(|output| output.status.success());
    if !has_commits {
        return support::skips::skip("the project's own history: this checkout has no commit");
    }
    Twin::new("git-own", 60).processes(8).compare(|side| {
        settle(side);
        // The end of it, so that this does not take longer with each commit.
        let clone = ["git", "clone", "--quiet", "--no-local", "--mirror", "--depth=150"];
        side.run(&[&clone[..], &[root.to_str().unwrap(), "own.git"]].concat());
        read_and_pack(side, "own.git");
    });
}
