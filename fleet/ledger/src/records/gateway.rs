//! That a gateway is there. Key: `gateway/<id>`, in the bucket of the configuration, because the
//! write proves up to where the gateway knows the configuration.

use prost::Message;
use prost_types::Timestamp;

use super::Versioned;

/// What the keys of gateways begin with.
pub const GATEWAY: &str = "gateway/";

/// A gateway that runs.
#[derive(Clone, PartialEq, Message)]
pub struct GatewayRecord {
    /// Version of the schema.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// Host on which it runs.
    #[prost(string, tag = "2")]
    pub host: String,
    /// Process id there.
    #[prost(uint32, tag = "3")]
    pub pid: u32,
    /// When it started.
    #[prost(message, optional, tag = "4")]
    pub since: Option<Timestamp>,
    /// Agents that are connected to it.
    #[prost(uint64, tag = "5")]
    pub agents: u64,
    /// When this record was written, on the gateway's clock. For people: whether a gateway lives is
    /// seen by whether its record changes.
    #[prost(message, optional, tag = "6")]
    pub beat: Option<Timestamp>,
    /// Version of its program.
    #[prost(string, tag = "7")]
    pub program: String,
    /// It takes no more streams and ends those it has.
    #[prost(bool, tag = "8")]
    pub is_draining: bool,
    /// The secrets that orders waited for lately.
    #[prost(message, repeated, tag = "9")]
    pub missing_secrets: Vec<MissingSecret>,
}

/// A secret that a gateway does not have.
#[derive(Clone, PartialEq, Message)]
pub struct MissingSecret {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What is wrong, and what to do.
    #[prost(string, tag = "2")]
    pub problem: String,
}

// === impl GatewayRecord ===

impl Versioned for GatewayRecord {
    const VERSION: u32 = 1;

    fn version(&self) -> u32 {
        self.version
    }
}
