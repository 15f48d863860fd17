//! Profiles that are asked for from outside: by another process, which writes to this one's memory, by a
//! signal, or by a tracer that attaches to the probes. Nothing runs in between, so all of them only leave a
//! word, at which slow paths look.

use crate::api::control::{CONTROL, ENDED, REFUSED, RUNNING, START, STOP, TOGGLE};
use crate::api::profile;
use crate::sampling;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// Does what has been asked for, if anything has.
#[inline(always)]
pub(super) fn look() {
    if CONTROL.request.load(Relaxed) != 0 || sampling::tracers_have_changed() {
        obey();
    }
}

#[cold]
#[inline(never)]
#[unsafe(link_section = "hakmem_rare")]
fn obey() {
    if sampling::tracers_have_changed() {
        profile::follow_tracers();
    }
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
        // Another thread was faster, or there are only tracers.
        _ => return,
    };
    CONTROL.state.store(state, Release);
}
