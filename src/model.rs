//! Model tests, run by loom.
