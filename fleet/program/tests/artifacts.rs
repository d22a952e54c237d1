//! Artifacts as operators and agents see them: real files, real sockets on loopback, a stand-in
//! for a bucket.

mod bucket;
mod certificates;
mod directory;
mod download;
mod full_disk;
mod harness;
mod hostile;
mod killed;
mod s3;
mod upload;
mod verbs;

use std::time::Duration;

/// Longer than anything takes; only a failing test waits for all of it.
const LONG: Duration = Duration::from_secs(30);
