//! The path of an artifact, which orders and uploads name and the listener reads. Pure.

use super::digest::Digest;
use crate::records::configuration::escaped;

/// Where artifacts are.
pub(super) const FOLDER: &str = "/artifacts/";

/// The path of an artifact on a listener. A gateway puts it into orders, behind the endpoint.
#[must_use]
pub fn artifact_path(plugin: &str, digest: &Digest) -> String {
    format!("{FOLDER}{}/{digest}", escaped(plugin))
}
