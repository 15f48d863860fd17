//! Profiles that are asked for from outside: by the options, by another process, which writes to this one's
//! memory, by a signal, or by a tracer that attaches to the probes. Nothing runs in between, so those that
//! come later only leave a word, at which slow paths look. Other processes ask for statistics as well.

use crate::api::asked;
use crate::api::control::{self, CONTROL, ENDED, REFUSED, RUNNING, START, STOP, TOGGLE};
use crate::api::profile::{self, Error};
use crate::base::options;
use crate::os::{self, message};
use crate::sampling;
use crate::sync::AtomicBool;
use crate::sync::Ordering::{Acquire, Relaxed, Release};

/// Whether [`begin_profile`] has been called.
static BEGUN: AtomicBool = AtomicBool::new(false);

/// Starts the profile that the options ask for, or listens to the signal that they name. Called once, when
/// the process starts.
pub(super) fn begin() {
    begin_profile();
    let signal = options::get().profile_signal;
    if signal != 0 && os::is_confined() {
        message::line(format_args!("HAKMEM_PROFILE_SIGNAL: ignored: only few system calls may be made"));
    } else if signal != 0 {
        control::remember_folder(own_prefix());
        control::listen(signal);
    }
}

/// Starts the profile that the options ask for, unless that has been done. With the process's first
/// allocation, so that it has all of them. That may be one of the dynamic loader's, before the C library is
/// ready: only system calls are made here.
pub(super) fn begin_profile() {
    // Relaxed: only one caller goes on, and none waits for what it does.
    if BEGUN.load(Relaxed) || BEGUN.swap(true, Relaxed) {
        return;
    }
    let options = options::get();
    if options.profile.as_c_str().is_none() || options.profile_signal != 0 {
        return;
    }
    if !os::is_confined() {
        control::remember_folder(own_prefix());
    }
    if let Err(error) = start_own(false) {
        message::line(format_args!("HAKMEM_PROFILE: {error}"));
    }
}

/// Where profiles go as the options say.
fn own_prefix() -> &'static [u8] {
    options::get().profile.as_c_str().unwrap_or(c"hakmem").to_bytes()
}

/// Starts a profile as the options say. `late` says that the process may have allocated before.
fn start_own(late: bool) -> Result<(), Error> {
    let options = options::get();
    profile::start_to_file(Some(own_prefix()), options.profile_rate, options.profile_interval, late)
}

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
    let (request, statistics) = control::split(CONTROL.request.swap(0, Acquire));
    asked::obey(statistics);
    let on = profile::is_on();
    let state = match request {
        START => {
            let (rate, interval) = (CONTROL.rate.load(Relaxed), CONTROL.interval.load(Relaxed));
            answer(profile::start_to_file(None, rate as usize, interval, true))
        }
        TOGGLE if !on => answer(start_own(true)),
        STOP if !on => REFUSED + Error::NotRunning as u32,
        STOP | TOGGLE => {
            profile::stop();
            ENDED
        }
        // Another thread was faster, or there are only tracers, or statistics.
        _ => return,
    };
    CONTROL.state.store(state, Release);
}

/// What there is to say of a profile that was to begin.
fn answer(begun: Result<(), Error>) -> u32 {
    begun.map_or_else(|error| REFUSED + error as u32, |()| RUNNING)
}
