//! What a fleet's control plane decides, as pure functions over plain records.
//!
//! No clock, no file, no socket, no dependency: the caller brings the time and the records.

#![warn(missing_docs)]
#![forbid(unsafe_code)]
