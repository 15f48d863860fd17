//! A server on tokio's threads: many connections as tasks, which send requests to workers as strings and get
//! strings back.

use std::sync::Arc;

use hakmem_rust_programs::{checksum, scale};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, oneshot};

const CONNECTIONS: usize = 200;
const WORKERS: usize = 4;
/// Requests of a connection that are on their way at a time.
const PIPELINE: usize = 8;

struct Request {
    line: String,
    fields: Vec<(String, String)>,
    answer: oneshot::Sender<Vec<String>>,
}

/// Answers requests until nobody sends any more; says how many.
async fn worker(mut requests: mpsc::Receiver<Request>) -> usize {
    let mut count = 0;
    while let Some(request) = requests.recv().await {
        let mut lines = vec![format!("HTTP/1.1 200 OK ({})", request.line)];
        for (name, value) in &request.fields {
            lines.push(format!("{name}: {}", value.to_uppercase()));
        }
        lines.push("x".repeat(64 + request.line.len() % 7 * 100));
        count += 1;
        // Each request is dropped by the worker, and each answer by the connection: memory goes both ways
        // between threads.
        request.answer.send(lines).expect("the connection waits");
    }
    count
}

/// Sends `requests` and sums up what comes back.
async fn connection(number: usize, requests: usize, workers: Arc<[mpsc::Sender<Request>]>) -> u64 {
    let mut sum = 0u64;
    let mut waiting = Vec::new();
    for request in 0..requests {
        let (answer, answered) = oneshot::channel();
        let fields = ["host", "accept", "cookie"].map(|name| (name.to_string(), format!("{name}-{request}")));
        let line = format!("GET /connection/{number}/request/{request}");
        let request = Request { line, fields: fields.into(), answer };
        workers[(number + waiting.len()) % WORKERS].send(request).await.expect("workers outlive connections");
        waiting.push(answered);
        if waiting.len() == PIPELINE {
            for answered in waiting.drain(..) {
                let lines = answered.await.expect("every request is answered");
                assert_eq!(lines.len(), 5);
                sum = lines.iter().fold(sum, |sum, line| sum.wrapping_add(checksum(line.as_bytes())));
            }
        }
    }
    sum
}

fn main() {
    let requests = scale(2000) / PIPELINE * PIPELINE;
    let runtime = Builder::new_multi_thread().worker_threads(2).build().expect("threads can be started");
    let (sum, count) = runtime.block_on(async move {
        let (senders, workers): (Vec<_>, Vec<_>) = (0..WORKERS)
            .map(|_| {
                let (sender, receiver) = mpsc::channel(256);
                (sender, tokio::spawn(worker(receiver)))
            })
            .unzip();
        let senders: Arc<[_]> = senders.into();
        let tasks: Vec<_> = (0..CONNECTIONS)
            .map(|number| tokio::spawn(connection(number, requests, senders.clone())))
            .collect();
        drop(senders);
        let (mut sum, mut count) = (0u64, 0);
        for task in tasks {
            sum = sum.wrapping_add(task.await.expect("no connection fails"));
        }
        for worker in workers {
            count += worker.await.expect("no worker fails");
        }
        (sum, count)
    });
    assert_eq!(count, CONNECTIONS * requests);
    println!("{count} requests, {sum:016x}");
}
