//! The calls that a plugin answers.

use std::time::Duration;

use async_trait::async_trait;

use crate::model::id::Endpoint;
use crate::model::spec::Config;

/// The calls a running plugin answers, each with a deadline of its own.
#[async_trait]
pub trait PluginRpc: Send + Sync {
    /// A health check.
    async fn health(&self, endpoint: &Endpoint, timeout: Duration) -> Result<Health, RpcError>;

    /// A question only the plugin understands.
    async fn ask(&self, endpoint: &Endpoint, data: String) -> Result<Health, RpcError>;

    /// Hands over a configuration; `None` clears it.
    async fn apply(&self, endpoint: &Endpoint, config: Option<Config>) -> Result<(), RpcError>;
}

/// The health that a plugin reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Zero is healthy.
    pub code: i32,
    /// Lines that explain the code, or answer a question.
    pub results: Vec<String>,
}

/// Why a call to a plugin failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RpcError {
    /// The agent could not connect to the plugin, or the connection broke.
    #[error("the plugin cannot be reached: {0}")]
    Unreachable(String),
    /// The plugin did not answer within the deadline of the call.
    #[error("the plugin did not answer within {}s", .0.as_secs_f32())]
    TimedOut(Duration),
    /// The plugin does not implement the call.
    #[error("the plugin does not implement the call")]
    Unimplemented,
    /// The plugin answered with an error.
    #[error("the plugin answered {code}: {message}")]
    Refused {
        /// Name of the gRPC code.
        code: String,
        /// What it said.
        message: String,
    },
}
