//! Whole installations, against real files and real sockets on loopback.
//!
//! `rig` has the pipeline in a temporary folder, `tarball` writes archives that no ordinary tool
//! would, `corpus` is full of those, `witness` notices what they change, `server` answers HTTP
//! badly on purpose.

mod adoption;
mod archives;
mod caching;
mod corpus;
mod crashes;
mod deltas;
mod downloads;
mod folders;
mod packing;
mod preflight;
mod rig;
mod server;
mod signatures;
mod tarball;
mod windows;
mod witness;
