//! Interpreters and virtual machines: one script of mixed load each.

use crate::twin::{Twin, missing};

#[test]
fn perl_mixed_load() {
    if missing(&[("perl", "perl")]) {
        return;
    }
    Twin::new("perl", 90).compare(|side| {
        side.env("PERL_HASH_SEED", "0");
        side.file("work.pl", include_str!("work.pl"));
        side.run(&["perl", "work.pl"]);
    });
}

#[test]
fn node_mixed_load() {
    if missing(&[("node", "nodejs")]) {
        return;
    }
    Twin::new("node", 90).processes(3).compare(|side| {
        side.file("work.js", include_str!("work.js"));
        side.run(&["node", "work.js"]);
    });
}

#[test]
fn java_mixed_load() {
    if missing(&[("java", "openjdk-17-jdk-headless"), ("javac", "openjdk-17-jdk-headless")]) {
        return;
    }
    Twin::new("java", 120).processes(3).compare(|side| {
        side.file("Work.java", include_str!("Work.java"));
        side.run(&["javac", "-Xlint:all", "-Werror", "Work.java"]);
        for collector in ["-XX:+UseSerialGC", "-XX:+UseG1GC"] {
            side.run(&["java", "-Xmx512m", collector, "Work"]);
        }
    });
}

/// It loads its extensions with RTLD_DEEPBIND. With its own allocator over ours, and with ours alone.
#[test]
fn php_mixed_load() {
    if missing(&[("php", "php-cli")]) {
        return;
    }
    Twin::new("php", 120).processes(6).compare(|side| {
        side.file("work.php", include_str!("work.php"));
        for own in ["1", "0"] {
            side.env("USE_ZEND_ALLOC", own);
            side.run(&["php", "-d", "memory_limit=-1", "work.php"]);
        }
    });
}

#[test]
fn bash_mixed_load() {
    if missing(&[("bash", "bash")]) {
        return;
    }
    Twin::new("bash", 60).processes(100).compare(|side| {
        side.file("work.sh", include_str!("work.sh"));
        side.run(&["bash", "work.sh"]);
    });
}
