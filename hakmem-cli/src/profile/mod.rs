//! The heap profiler's reading side: what `hakmem profile` and `hakmem diff` share.
//!
//! `input` opens files, `table` shows them on the terminal, `json` for programs, `page` in a
//! browser, `alive` says that a long run
//! goes on. What the figures mean is in the crate `hakmem-profile`.

pub mod alive;
pub mod attach;
pub mod input;
pub mod json;
pub mod page;
pub mod table;
pub mod units;

use clap::ValueEnum;
use hakmem_profile::model;

/// What is looked at, for clap.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum What {
    /// What is held, at the end or at the time of --at
    Live,
    /// What was held when that was most
    Peak,
    /// What has been allocated
    Allocated,
    /// Memory that cannot be given back because of what is held
    Pinned,
}

impl From<What> for model::What {
    fn from(what: What) -> Self {
        match what {
            What::Live => Self::Live,
            What::Peak => Self::Peak,
            What::Allocated => Self::Allocated,
            What::Pinned => Self::Pinned,
        }
    }
}

/// What is added up, for clap.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum By {
    /// Call sites: the function that allocates, and its callers
    Site,
    /// Whole call stacks, with what passes allocations on
    Stack,
    /// Functions that allocate
    Function,
    /// Threads
    Thread,
    /// Tags that the program has set
    Tag,
}

impl From<By> for model::By {
    fn from(by: By) -> Self {
        match by {
            By::Site => Self::Site,
            By::Stack => Self::Stack,
            By::Function => Self::Function,
            By::Thread => Self::Thread,
            By::Tag => Self::Tag,
        }
    }
}
