//! Puts revisions of plugins on disk.
