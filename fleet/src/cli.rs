//! The verbs of the command line, as functions.

pub mod artifact;
