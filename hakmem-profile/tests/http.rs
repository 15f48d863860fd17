//! The example that serves heap profiles, seen by HTTP's client and by `go tool pprof`.

mod support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use hakmem_profile::pprof::{self, Decoded};
use support::go;

/// The example while it runs.
struct Server {
    child: Child,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Builds the example as this test is built, and runs it.
    fn start() -> Self {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let exe = std::env::current_exe().unwrap();
        let folder = exe.ancestors().nth(2).unwrap();
        let release = folder.file_name().is_some_and(|name| name == "release");
        let flag = if release { "--release" } else { "--profile=dev" };
        let status = Command::new(cargo)
            .args(["build", "--quiet", "-p", "hakmem-profile", "--example", "pprof_http", flag])
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
            .status()
            .unwrap();
        assert!(status.success());
        let program = folder.join("examples/pprof_http");
        let mut child = Command::new(program).arg("0").stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().trim_start_matches("http://").trim_end_matches('/').to_string();
        Self { child, address }
    }

    /// The status and the body of what is at `url`.
    fn get(&self, url: &str) -> (String, Vec<u8>) {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // By which the server closes it.
        write!(stream, "GET {url} HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("the headers end");
        let status = String::from_utf8_lossy(&answer[..end]).lines().next().unwrap().to_string();
        (status, answer[end + 4..].to_vec())
    }

    /// The body, where all is well.
    fn body(&self, url: &str) -> Vec<u8> {
        let (status, body) = self.get(url);
        assert!(status.contains(" 200 "), "{status}: {}", String::from_utf8_lossy(&body));
        body
    }
}

/// MiB that a function of this name holds.
fn held(profile: &Decoded, function: &str) -> f64 {
    let at = profile.types.iter().position(|(name, _)| name == "inuse_space").unwrap();
    let is_its = |sample: &&pprof::Sample| {
        sample.frames.iter().any(|frame| frame.function.split("::").any(|part| part == function))
    };
    let bytes: i64 = profile.samples.iter().filter(is_its).map(|sample| sample.values[at]).sum();
    bytes as f64 / f64::from(1 << 20)
}

/// `go tool pprof -top` of a file or an address; `None` where there is no go.
fn top(what: &str) -> Option<String> {
    let go = go()?;
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(go);
    command.args(["tool", "pprof", "-top", "-nodecount=0", what]);
    command.env("PPROF_TMPDIR", folder.path()).env("GOTELEMETRY", "off");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    Some(text)
}

#[test]
fn a_server_shows_who_holds_its_memory() {
    let server = Server::start();
    assert!(server.get("/nowhere").0.contains(" 404 "));
    for wrong in ["/leak?bytes=abc", "/debug/pprof/heap?seconds=-1"] {
        assert!(server.get(wrong).0.contains(" 400 "), "{wrong}");
    }
    server.body("/leak?bytes=64000000");
    let bytes = server.body("/debug/pprof/heap");
    // Of 640 blocks of 100,000 bytes about one in six is sampled: 61 MiB ± 5.4.
    let leaked = held(&pprof::decode(&bytes).unwrap(), "keep_by_mistake");
    assert!((leaked - 61.0).abs() < 6.0 * 5.4, "{leaked}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("heap.pb.gz");
    std::fs::write(&path, &bytes).unwrap();
    for what in [path.to_str().unwrap(), &format!("http://{}/debug/pprof/heap", server.address)] {
        if let Some(top) = top(what) {
            assert!(top.contains("Type: inuse_space"), "{top}");
            assert!(top.contains("pprof_http::keep_by_mistake"), "{top}");
            // The allocator's own functions are not among the callers.
            assert!(!top.contains("hakmem::"), "{top}");
        }
    }
}

#[test]
fn a_server_shows_what_changes() {
    let server = Server::start();
    server.body("/leak?bytes=200000000");
    let (change, more) = thread::scope(|scope| {
        let change = scope.spawn(|| server.body("/debug/pprof/heap?seconds=1"));
        let mut more = 0;
        // Not for much longer than those seconds: what comes after them counts in the whole only.
        while !change.is_finished() && more < 60 {
            // So much that a few of them are enough for some samples, should the machine be busy.
            server.body("/leak?bytes=4000000");
            more += 1;
            thread::sleep(Duration::from_millis(50));
        }
        (pprof::decode(&change.join().unwrap()).unwrap(), more)
    });
    let all = held(&pprof::decode(&server.body("/debug/pprof/heap")).unwrap(), "keep_by_mistake");
    let change = held(&change, "keep_by_mistake");
    assert!(change > 0.0, "{change} MiB of {all}, {more} times");
    // Without the first 191 MiB, which are known to 9.6.
    assert!(change < all - 191.0 + 6.0 * 9.6, "{change} MiB of {all}, {more} times");
}
