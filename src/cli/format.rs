//! How times, sizes and foreign text are written on the command line: as everywhere.

pub(super) use crate::words::{age, bytes, not_enforced, one_line, rfc3339, shortened, timestamp};
