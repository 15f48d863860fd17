//! Profiles that are asked for from outside: by another process, which writes to this one's memory, or by a
//! signal. Nothing runs in between, so both only leave a word, at which slow paths look.

use crate::api::control::{CONTROL, ENDED, REFUSED, RUNNING, START, STOP, TOGGLE};
use crate::api::profile;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// Does what has been asked for, if anything has.
#[inline(always)]
pub(super) fn look() {
    if CONTROL.request.load(Relaxed) != 0 {
        obey();
    }
}

#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn obey() {
    // Acquire: pairs with the release in `ask`. Another process writes the request after the rest, too.
    let request = CONTROL.request.swap(0, Acquire);
    let on = profile::is_on();
    let state = match request {
        START | TOGGLE if !(on && request == TOGGLE) => {
            let (rate, interval) = (CONTROL.rate.load(Relaxed), CONTROL.interval.load(Relaxed));
            match profile::start_to_file(rate as usize, interval, true) {
                Ok(()) => RUNNING,
                Err(error) => REFUSED + error as u32,
            }
        }
        STOP | TOGGLE => {
            profile::stop();
            ENDED
        }
        // Another thread was faster.
        _ => return,
    };
    CONTROL.state.store(state, Release);
}
