//! How a SuperSlab is laid out.

/// Size and alignment of a SuperSlab.
pub(crate) const SUPERSLAB: usize = 2 << 20;
/// Bytes of slab records at the start of a SuperSlab.
pub(crate) const HEADER: usize = 4096;
/// log2 of the page that the map describes.
pub(crate) const PAGE_SHIFT: u32 = 16;
/// The page that the map describes and slabs are made of.
pub(crate) const PAGE: usize = 1 << PAGE_SHIFT;
/// Pages of a SuperSlab.
pub(crate) const PAGES: usize = SUPERSLAB >> PAGE_SHIFT;
/// The largest span: two of them and the first page make a SuperSlab. A larger one would lie in a SuperSlab alone, and half of a
/// huge page would stay resident for nothing.
pub(crate) const MAX_SPAN: usize = (PAGES - 1) / 2;
