//! Why the metadata server gave no value.

use super::tree::TreeError;

/// Why the metadata server gave no value. Never contains an answer: that may be a secret.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The HTTP client cannot be made.
    #[error("failed to make an HTTP client")]
    Client {
        #[source]
        source: guest_agent_actors::ports::Cause,
    },
    /// The connection could not be made, or it broke.
    #[error("the metadata server cannot be reached")]
    Unreachable {
        #[source]
        source: reqwest::Error,
    },
    /// The answer took too long.
    #[error("the metadata server did not answer within {seconds} s")]
    TimedOut {
        /// The deadline.
        seconds: u64,
    },
    /// The server that answers is not a metadata server, but for example a captive portal.
    #[error(
        "the server that answers is not a metadata server: its answer has no header Metadata-Flavor"
    )]
    NotOne,
    /// The server answered that the value does not exist.
    #[error("the metadata server has no such value")]
    NotThere,
    /// Any other status.
    #[error("the metadata server answered with HTTP status {status}")]
    Status { status: u16 },
    /// The answer is longer than any valid one.
    #[error("the metadata server's answer is longer than {max} bytes")]
    TooLarge {
        /// The bound.
        max: usize,
    },
    /// The answer is not UTF-8.
    #[error("the metadata server's answer is not text")]
    NotText,
    /// The answer is not a tree of attributes.
    #[error("the metadata server's attributes cannot be read")]
    Tree(#[from] TreeError),
    /// A value is not valid.
    #[error("the metadata server gave a value that is not valid as {what}: {problem}")]
    Value {
        /// The name of the value.
        what: &'static str,
        /// What is wrong with it.
        problem: &'static str,
    },
}

// === impl MetadataError ===

impl MetadataError {
    /// Without the URL, which the message has already.
    pub(super) fn unreachable(error: reqwest::Error) -> Self {
        Self::Unreachable { source: error.without_url() }
    }
}
