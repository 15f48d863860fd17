//! For tests: see [`is_so`].

pub(super) use crate::os::child::is_so;
