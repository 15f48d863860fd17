//! The layout of a SuperSlab.

/// Size and alignment of a SuperSlab.
pub(crate) const SUPERSLAB: usize = 2 << 20;
/// Bytes of slab records at the start of a SuperSlab.
pub(crate) const HEADER: usize = 4096;
/// log2 of [`SLICE`].
pub(crate) const SLICE_SHIFT: u32 = 16;
/// The slice that the page map describes and spans are made of, in bytes. Not the system's page.
pub(crate) const SLICE: usize = 1 << SLICE_SHIFT;
/// Slices of a SuperSlab.
pub(crate) const SLICES: usize = SUPERSLAB >> SLICE_SHIFT;
/// Slices of the largest span: two such spans and the first slice make a SuperSlab. A larger one would lie in
/// a SuperSlab alone, and up to half of a huge page would stay resident for nothing.
pub(crate) const MAX_SPAN: usize = (SLICES - 1) / 2;
