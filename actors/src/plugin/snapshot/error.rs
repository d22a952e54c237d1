//! Why a stored state cannot be used.

use crate::model::id::{IdError, PluginName};
use crate::model::spec::EntryPointError;

/// The version this agent writes.
pub(super) const VERSION: u32 = 1;

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// Not a record at all.
    #[error("the record cannot be decoded")]
    Decode(#[source] prost::DecodeError),
    /// Written by a later agent in a way this one does not know.
    #[error("the record has version {0}, this agent knows {VERSION}")]
    Version(u32),
    /// Something that every record has is not there.
    #[error("the record has no {0}")]
    Missing(&'static str),
    /// A name that was valid when it was written is not.
    #[error("the record has an impossible value")]
    Id(#[source] IdError),
    /// A path that was valid when it was written is not.
    #[error("the record names an impossible path")]
    EntryPoint(#[source] EntryPointError),
    /// A revision of another plugin stands in it.
    #[error("the record of {0} has a revision of {1}")]
    OtherPlugin(PluginName, PluginName),
    /// A number is out of its range.
    #[error("the record has an impossible {0}")]
    Range(&'static str),
}
