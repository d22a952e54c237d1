//! What is forwarded: lines, and gaps in them.

use std::time::SystemTime;

use guest_agent_actors::model::id::{PluginName, RevisionId};

use crate::process::logs::forwarded::Forwarded;

/// One thing to tell a destination.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    pub(super) plugin: PluginName,
    /// The revision that wrote it, if that is known.
    pub(super) revision: Option<RevisionId>,
    /// When it was written, to about a second, if that is known.
    pub(super) at: Option<SystemTime>,
    /// When it was read.
    pub(super) seen: SystemTime,
    pub(super) content: Content,
    /// How far the log is forwarded with it.
    pub(super) after: Forwarded,
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A line, or a part of one, without its line feed.
    Line {
        /// As the plugin wrote it; may be any bytes.
        text: Vec<u8>,
        /// Which part of a line this is, from 1; `None` for a whole line.
        part: Option<u32>,
    },
    /// Bytes that were gone before they could be forwarded.
    Gap {
        /// How many; `None` where that cannot be told, because the log is another file.
        bytes: Option<u64>,
    },
}

// === impl Content ===

impl Content {
    /// What a record says, as a destination gets it.
    pub(super) fn text(&self) -> std::borrow::Cow<'_, [u8]> {
        match self {
            Self::Line { text, .. } => text.into(),
            Self::Gap { bytes } => told(*bytes).into_bytes().into(),
        }
    }

    /// How much of a log it stands for.
    pub(super) fn length(&self) -> u64 {
        match self {
            Self::Line { text, .. } => u64::try_from(text.len()).unwrap_or(u64::MAX),
            Self::Gap { .. } => 0,
        }
    }
}

/// A gap, in words.
pub(super) fn told(bytes: Option<u64>) -> String {
    match bytes {
        Some(bytes) => format!("{bytes} bytes of this log were cut before they were forwarded"),
        None => {
            "this log was replaced; what was not forwarded of the one before is lost".to_owned()
        }
    }
}
