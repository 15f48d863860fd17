//! redis-server under redis-benchmark, then a known data set, a snapshot by a forked child, and a second life
//! from it.

use crate::inputs::Random;
use crate::twin::{Side, Twin, missing};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// A server that does not outlive its test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What redis-cli answers, without the line's end.
fn ask(side: &Side, command: &[&str]) -> String {
    let output = side.output(&[&["redis-cli", "-s", "redis.sock"], command].concat());
    String::from_utf8_lossy(&output.stdout).trim().to_string()
}

/// Waits until `done` says so.
fn wait(what: &str, mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(150), "{what}: still not after 150 s");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Starts a server on a socket in the side's folder (a relative name: a socket's path is short).
fn start(side: &Side) -> Server {
    // `--save ''` off: only the snapshots asked for. The I/O threads make several threads allocate and free.
    let options = "--port 0 --unixsocket redis.sock --dbfilename dump.rdb --enable-debug-command yes \
                   --io-threads 2 --io-threads-do-reads yes --appendonly no --loglevel warning --logfile redis.log";
    let mut command = side.command("redis-server");
    command.args(["--save", ""]).args(options.split_whitespace());
    let mut server = Server(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    let socket = side.dir.join("redis.sock");
    wait("redis-server listens", || {
        let status = server.0.try_wait().unwrap();
        assert!(status.is_none(), "redis-server ended at its start: {status:?}");
        std::os::unix::net::UnixStream::connect(&socket).is_ok()
    });
    wait("redis-server is loaded", || ask(side, &["PING"]) == "PONG");
    server
}

/// Shuts the server down and checks that it ended well.
fn stop(side: &Side, mut server: Server) {
    // redis-cli ends with an error or not, as the server hangs up before it has answered: either is right.
    let _ = side.command("redis-cli").args(["-s", "redis.sock", "SHUTDOWN", "NOSAVE"]).output();
    let mut status = None;
    wait("redis-server ends", || {
        status = server.0.try_wait().unwrap();
        status.is_some()
    });
    assert!(status.unwrap().success(), "redis-server ended with {status:?}");
}

/// Commands for `redis-cli --pipe`: every data type, overwritten, grown and deleted.
fn commands() -> String {
    let mut random = Random::new(9);
    let mut lines = String::new();
    for n in 0..60_000 {
        let key = random.below(5_000);
        let value = random.word().repeat(1 + random.below(30) as usize);
        lines.push_str(&match n % 12 {
            0..=2 => format!("SET string:{key} {value}\r\n"),
            3 => format!("APPEND string:{key} {value}\r\n"),
            4 => format!("LPUSH list:{} {value} {n}\r\n", key % 200),
            5 => format!("LTRIM list:{} 0 {}\r\n", key % 200, random.below(80)),
            6 | 7 => format!("HSET hash:{} {value} {n}\r\n", key % 300),
            8 => format!("SADD set:{} {value} {n}\r\n", key % 300),
            9 => format!("ZADD zset:{} {} {value}\r\n", key % 300, random.below(10_000)),
            10 => format!("SETRANGE string:{key} {} {value}\r\n", random.below(3_000)),
            _ => format!("DEL string:{key} set:{}\r\n", key % 300),
        });
    }
    lines
}

/// Loads, benchmarks, saves and reloads; records only what does not depend on the time or on chance.
fn steps(side: &mut Side, commands: &str) {
    side.file("commands", commands);
    let server = start(side);
    let info = ask(side, &["INFO", "server"]);
    let pid = info.lines().find_map(|line| line.trim().strip_prefix("process_id:")).unwrap();
    assert_eq!(pid, server.0.id().to_string(), "the server that answers is ours");

    let tests = "set,get,incr,lpush,rpush,lpop,rpop,sadd,hset,spop,zadd,zpopmin,lrange_100,mset";
    let random_keys = "5000";
    let benchmark = side.output(&[
        "redis-benchmark",
        "-s",
        "redis.sock",
        "-q",
        "-n",
        "20000",
        "-c",
        "20",
        "-P",
        "16",
        "-d",
        "200",
        "-r",
        random_keys,
        "-t",
        tests,
    ]);
    let report = String::from_utf8_lossy(&benchmark.stdout).replace('\r', "\n");
    let results = report.lines().filter(|line| line.contains("requests per second")).count();
    assert!(results >= 14, "redis-benchmark reports every test:\n{report}");
    // All 5,000 keys of SET and MSET, and of INCR's 5,000 counters all but about one in e^4; a few keys of
    // one each.
    let size: u64 = ask(side, &["DBSIZE"]).parse().unwrap();
    assert!((9_700..=10_010).contains(&size), "{size} keys after the benchmark");
    side.say("errors in the benchmark", ask(side, &["INFO", "errorstats"]).as_bytes());

    side.say("FLUSHALL", ask(side, &["FLUSHALL", "SYNC"]).as_bytes());
    let pipe = side.output(&["sh", "-c", "redis-cli -s redis.sock --pipe <commands"]);
    assert!(String::from_utf8_lossy(&pipe.stdout).contains("errors: 0, replies: 60000"), "{pipe:?}");
    let digest = ask(side, &["DEBUG", "DIGEST"]);
    assert!(digest.len() == 40 && !digest.trim_matches('0').is_empty(), "{digest}");
    for (what, answer) in [
        ("DIGEST", digest.clone()),
        ("DBSIZE", ask(side, &["DBSIZE"])),
        ("LRANGE", ask(side, &["LRANGE", "list:7", "0", "-1"])),
        ("ZRANGE", ask(side, &["ZRANGE", "zset:7", "0", "-1", "WITHSCORES"])),
        (
            "a script",
            ask(
                side,
                &[
                    "EVAL",
                    "local t = {} for i = 1, 50000 do t[i] = i .. 'x' end return #table.concat(t)",
                    "0",
                ],
            ),
        ),
        ("INFO keyspace", ask(side, &["INFO", "keyspace"])),
    ] {
        side.say(what, answer.as_bytes());
    }
    side.say("BGSAVE", ask(side, &["BGSAVE"]).as_bytes());
    wait("the snapshot is written", || {
        ask(side, &["INFO", "persistence"]).contains("rdb_bgsave_in_progress:0")
    });
    assert!(ask(side, &["INFO", "persistence"]).contains("rdb_last_bgsave_status:ok"));
    stop(side, server);

    let server = start(side);
    assert_eq!(ask(side, &["DEBUG", "DIGEST"]), digest, "the snapshot holds the same data");
    stop(side, server);
}

#[test]
fn redis_under_its_benchmark() {
    if missing(&[
        ("redis-server", "redis-server"),
        ("redis-benchmark", "redis-tools"),
        ("redis-cli", "redis-tools"),
    ]) {
        return;
    }
    let commands = commands();
    // The snapshot holds the time, the log the process id.
    Twin::new("redis", 60)
        .processes(10)
        .ignore("dump.rdb")
        .ignore("redis.log")
        .compare(|side| steps(side, &commands));
}
