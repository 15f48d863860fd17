//! The threads of a run: one after the other, or all at once.

use crate::block::Block;
use crate::hand::Hand;
use crate::operations::{Operation, THREADS};
use crate::session::Session;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, Scope, ScopedJoinHandle};

/// A thread that does its parts when it is told to.
struct Worker<'scope> {
    parts: Sender<Vec<Operation>>,
    done: Receiver<()>,
    thread: ScopedJoinHandle<'scope, Vec<Block>>,
}

impl<'scope> Worker<'scope> {
    fn start(
        scope: &'scope Scope<'scope, '_>,
        session: &'scope Session,
        number: usize,
        blocks: Vec<Block>,
    ) -> Self {
        let ((parts, next), (tell, done)) = (channel::<Vec<Operation>>(), channel());
        let work = move || {
            let mut hand = Hand::new(session, number, blocks);
            for part in next {
                hand.run(&part);
                tell.send(()).unwrap();
            }
            std::mem::take(&mut hand.blocks)
        };
        Self { parts, done, thread: scope.spawn(work) }
    }

    fn end(self) -> Vec<Block> {
        drop(self.parts);
        self.thread.join().unwrap()
    }
}

/// One thread after the other does its part, in order.
pub(crate) fn run_in_turn(session: &Session, parts: Vec<(usize, Vec<Operation>)>) -> Hand<'_> {
    let mut main = Hand::new(session, 0, Vec::new());
    thread::scope(|scope| {
        let mut workers: [Option<Worker>; THREADS] = Default::default();
        let mut left: [Vec<Block>; THREADS] = Default::default();
        for (number, mut part) in parts {
            if number == 0 {
                // The thread that runs it all does not end.
                part.retain(|operation| !matches!(operation, Operation::Exit(_)));
                main.run(&part);
                continue;
            }
            let ends = matches!(part.last(), Some(Operation::Exit(_)));
            let blocks = &mut left[number];
            let worker = workers[number]
                .get_or_insert_with(|| Worker::start(scope, session, number, std::mem::take(blocks)));
            worker.parts.send(part).unwrap();
            let done = worker.done.recv().is_ok();
            if ends || !done {
                *blocks = workers[number].take().unwrap().end();
            }
        }
        workers.into_iter().flatten().for_each(|worker| main.blocks.append(&mut worker.end()));
        left.iter_mut().for_each(|blocks| main.blocks.append(blocks));
    });
    main
}

/// A thread, and its successors each time that it ends, until there is nothing more to do.
fn lane(
    session: &Session,
    number: usize,
    mut next: impl FnMut() -> Option<Vec<Operation>> + Send,
) -> Vec<Block> {
    let (mut blocks, mut goes_on) = (Vec::new(), true);
    while goes_on {
        let mut hand = Hand::new(session, number, std::mem::take(&mut blocks));
        let next = &mut next;
        let life = move || {
            let ended = loop {
                match next() {
                    None => break false,
                    Some(part) if hand.run(&part) => break true,
                    Some(_) => (),
                }
            };
            (std::mem::take(&mut hand.blocks), ended)
        };
        (blocks, goes_on) = thread::scope(|scope| scope.spawn(life).join().unwrap());
    }
    blocks
}

/// All threads at once.
pub(crate) fn run_together(
    session: &Session,
    lanes: Vec<impl FnMut() -> Option<Vec<Operation>> + Send>,
) -> Hand<'_> {
    let mut main = Hand::new(session, 0, Vec::new());
    thread::scope(|scope| {
        let threads: Vec<_> = lanes
            .into_iter()
            .enumerate()
            .map(|(number, next)| scope.spawn(move || lane(session, number, next)))
            .collect();
        threads.into_iter().for_each(|thread| main.blocks.append(&mut thread.join().unwrap()));
    });
    main
}
