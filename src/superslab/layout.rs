//! The layout of a SuperSlab.

/// Size and alignment of a SuperSlab.
pub(crate) const SUPERSLAB: usize = 2 << 20;
/// Bytes of slab records at the start of a SuperSlab.
pub(crate) const HEADER: usize = 4096;
/// log2 of [`PAGE`].
pub(crate) const PAGE_SHIFT: u32 = 16;
/// The page that the page map describes and spans are made of, in bytes. Not the system's page.
pub(crate) const PAGE: usize = 1 << PAGE_SHIFT;
/// Pages of a SuperSlab.
pub(crate) const PAGES: usize = SUPERSLAB >> PAGE_SHIFT;
/// Pages of the largest span: two such spans and the first page make a SuperSlab. A larger one would lie in a
/// SuperSlab alone, and up to half of a huge page would stay resident for nothing.
pub(crate) const MAX_SPAN: usize = (PAGES - 1) / 2;
