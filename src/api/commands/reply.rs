//! The replies and their status numbers. The protocol of earlier agents defines the numbers.

use std::time::Duration;

use guest_agent_actors::model::vm_event::Notified;
use serde::Serialize;

use crate::api::outcome::{SUCCESS, plugin_status};

/// The reply to a request that was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Reply {
    pub(super) status: i32,
    pub(super) status_message: String,
}

/// One plugin's part of the reply to `VmEvent`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct PluginReply {
    status: i32,
    status_message: String,
    plugin: String,
}

/// The reply to `agent.config.getoption`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct OptionReply {
    status: i32,
    status_message: String,
    option: String,
    value: String,
}

// === impl Reply ===

impl Reply {
    fn new(status: i32, message: impl Into<String>) -> Self {
        Self { status, status_message: message.into() }
    }

    pub(super) fn no_such_command(name: &str) -> Self {
        let name: String = name.chars().take(100).collect();
        Self::new(101, format!("the command {name:?} is unknown"))
    }

    pub(super) fn invalid_json(problem: &str) -> Self {
        Self::new(102, format!("the request is not valid: {problem}"))
    }

    pub(super) fn connection(error: &std::io::Error) -> Self {
        Self::new(103, format!("the connection broke: {error}"))
    }

    /// To a caller that sent no complete request while others needed its place.
    pub(super) fn made_room() -> Self {
        Self::new(
            103,
            "no complete request came before others needed the place; send it again, at once",
        )
    }

    /// To a caller for whom there is no place.
    pub(super) fn crowded() -> Self {
        Self::new(106, "too many commands are under way; try again")
    }

    pub(super) fn timed_out(waited: Duration) -> Self {
        Self::new(104, format!("no complete request within {}s", waited.as_secs_f32()))
    }

    pub(super) fn handler_failed(problem: &str) -> Self {
        Self::new(105, problem)
    }

    /// To a caller that may not use this socket.
    pub(super) fn forbidden(problem: &str) -> Self {
        Self::new(107, problem)
    }

    pub(super) fn internal(problem: &str) -> Self {
        Self::new(106, problem)
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        bytes(self)
    }
}

// === impl PluginReply ===

impl PluginReply {
    pub(super) fn of(notified: &Notified) -> Self {
        let (status, status_message) = plugin_status(&notified.outcome);
        Self { status, status_message, plugin: notified.plugin.as_str().to_owned() }
    }
}

// === impl OptionReply ===

impl OptionReply {
    fn new(status: i32, message: &str, option: String, value: String) -> Self {
        Self { status, status_message: message.to_owned(), option, value }
    }

    pub(super) fn found(option: String, value: String) -> Self {
        Self::new(SUCCESS, "", option, value)
    }

    pub(super) fn unknown(option: String) -> Self {
        Self::new(1, "the option is unknown", option, String::new())
    }

    pub(super) fn missing() -> Self {
        Self::new(2, "the request names no Option", String::new(), String::new())
    }

    pub(super) fn malformed(option: String) -> Self {
        Self::new(3, "an option is written as Section.Key", option, String::new())
    }

    pub(super) fn to_json(&self) -> Vec<u8> {
        bytes(self)
    }
}

/// An array of replies.
pub(super) fn array(replies: &[PluginReply]) -> Vec<u8> {
    bytes(&replies)
}

fn bytes(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("numbers and texts have a JSON form")
}
