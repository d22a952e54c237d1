//! What `logs` prints for scripts. Field names never change.

use schemars::JsonSchema;
use serde::Serialize;

use super::super::json::Time;

/// A part of a log.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum LogJson<'a> {
    /// A line, or a part of one that is longer than 64 KiB.
    Data {
        /// When it was printed, with `--timestamps`; null where that is not known.
        #[serde(skip_serializing_if = "Option::is_none")]
        #[schemars(with = "Option<Time>")]
        at: Option<Option<String>>,
        /// What was printed, with the end of the line; what is no UTF-8 is replaced.
        data: &'a str,
        /// The plugin that printed it; only where several logs are shown, and empty for the agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        plugin: Option<&'a str>,
    },
    /// A gap.
    Skipped {
        /// The plugin whose log has it; only where several logs are shown.
        #[serde(skip_serializing_if = "Option::is_none")]
        plugin: Option<&'a str>,
        /// Bytes that were cut off the log before they could be read.
        skipped: u64,
    },
}
