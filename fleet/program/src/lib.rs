//! The command line of `guest-fleet`, as a library; the program is beside it.

#![warn(missing_docs)]

pub mod cli;
