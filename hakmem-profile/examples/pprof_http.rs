//! A server that shows who holds its memory, as Go's servers do: `cargo run --example pprof_http -- 6060`.
//!
//! ```sh
//! curl 'localhost:6060/leak?bytes=50000000'
//! go tool pprof -top http://localhost:6060/debug/pprof/heap
//! go tool pprof -top 'http://localhost:6060/debug/pprof/heap?seconds=10'   # what changes meanwhile
//! go tool pprof -http=: http://localhost:6060/debug/pprof/heap             # in the browser
//! ```
//!
//! Whoever can reach that address learns the names of the program's functions, and makes it work: bind it to
//! one that is not public, as here. Here the program finds the names itself; to spare it that, hand out the
//! file that `hakmem::profile::write` makes, and show it by `hakmem profile FILE` elsewhere.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use hakmem_profile::file::{self, Raw};
use hakmem_profile::model::{Moment, Profile};
use hakmem_profile::pprof;
use hakmem_profile::symbols::Symbols;
use tiny_http::{Request, Response, Server};

#[global_allocator]
static GLOBAL: hakmem::Hakmem = hakmem::Hakmem::new();

/// What was never meant to stay.
static LEAKED: Mutex<Vec<Vec<u8>>> = Mutex::new(Vec::new());

/// Keeps `bytes` more, in pieces.
#[inline(never)]
fn keep_by_mistake(bytes: usize) {
    const PIECE: usize = 100_000;
    let pieces = (0..bytes).step_by(PIECE).map(|from| vec![1; PIECE.min(bytes - from)]);
    LEAKED.lock().unwrap().extend(pieces);
}

/// What has been gathered until now.
fn gathered() -> anyhow::Result<Raw> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("heap.hakprof");
    hakmem::profile::write(path.to_str().context("the path of the temporary folder is no text")?)?;
    Ok(file::read(&std::fs::read(&path)?)?)
}

/// A gathered profile, and the moment at which it was.
fn resolved(raw: Raw, symbols: &mut Symbols) -> anyhow::Result<(Profile, Moment)> {
    let profile = Profile::new(raw, symbols);
    let moment = profile.moment(None).context("nothing was gathered")?;
    Ok((profile, moment))
}

/// The heap profile, or how it changes in that many seconds.
fn heap(seconds: Option<u64>) -> anyhow::Result<Vec<u8>> {
    // Work for the profile is not the server's.
    let _scope = hakmem::scope("pprof");
    let before = match seconds {
        Some(seconds) => {
            let before = gathered()?;
            thread::sleep(Duration::from_secs(seconds));
            Some(before)
        }
        None => None,
    };
    let after = gathered()?;
    // Gone afterwards, with all that it knows.
    let symbols = &mut Symbols::new();
    let before = before.map(|raw| resolved(raw, symbols)).transpose()?;
    let (profile, moment) = resolved(after, symbols)?;
    let before = before.as_ref().map(|(profile, moment)| (profile, moment));
    pprof::encode_since(before, (&profile, &moment), symbols)
}

/// The number behind `name=` in a query, if that is there.
fn number(query: &str, name: &str) -> anyhow::Result<Option<u64>> {
    let value = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value.map(|text| text.parse().with_context(|| format!("{name}={text}: expected a number"))).transpose()
}

fn answer(url: &str) -> (u16, Vec<u8>) {
    let (path, query) = url.split_once('?').unwrap_or((url, ""));
    let said = |status, text: String| (status, format!("{text}\n").into_bytes());
    match path {
        "/debug/pprof/heap" => match number(query, "seconds").map(heap) {
            Ok(Ok(bytes)) => (200, bytes),
            Ok(Err(error)) => said(500, format!("{error:#}")),
            Err(error) => said(400, format!("{error:#}")),
        },
        "/leak" => match number(query, "bytes") {
            Ok(bytes) => {
                keep_by_mistake(bytes.unwrap_or(1 << 20) as usize);
                said(200, "kept".into())
            }
            Err(error) => said(400, format!("{error:#}")),
        },
        "/" => said(200, "/leak?bytes=N  /debug/pprof/heap?seconds=N".into()),
        _ => said(404, "no such page".into()),
    }
}

fn serve(request: Request) {
    let (status, body) = answer(request.url());
    // Who asked may have gone.
    let _ = request.respond(Response::from_data(body).with_status_code(status));
}

fn main() -> anyhow::Result<()> {
    let port = std::env::args().nth(1).unwrap_or("6060".into());
    let port: u16 = port.parse().with_context(|| format!("{port}: expected the number of a port"))?;
    hakmem::profile::start(hakmem::profile::DEFAULT_RATE)?;
    let server =
        Server::http(("127.0.0.1", port)).map_err(|error| anyhow::anyhow!("port {port}: {error}"))?;
    let server = Arc::new(server);
    println!("http://{}/", server.server_addr());
    // A profile over some seconds keeps a thread busy.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let server = server.clone();
            thread::spawn(move || server.incoming_requests().for_each(serve))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    Ok(())
}
