//! What statistics say of guard pages.

/// Memory of the slots, in bytes, and what has happened.
#[derive(Default)]
pub(crate) struct Figures {
    /// How many blocks have been put into slots.
    pub(crate) samples: u64,
    /// How many are in use.
    pub(crate) blocks: u64,
    /// Bytes of these blocks.
    pub(crate) allocated: u64,
    /// Bytes of their pages.
    pub(crate) active: u64,
    /// Bytes of address space.
    pub(crate) mapped: u64,
    /// Bytes of the records, which are part of that.
    pub(crate) records: u64,
}
