//! Small blocks: size classes, the slabs of one heap, and a block's way home.

pub(crate) mod bins;
pub(crate) mod classes;
pub(crate) mod home;
pub(crate) mod leave;
pub(crate) mod sparse;
