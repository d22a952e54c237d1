//! That a gateway is there. Key: `gateway/<id>`, in the bucket of the configuration, because the
//! write proves up to where the gateway knows the configuration.

pub use super::generated::{GatewayRecord, MissingSecret};

/// What the keys of gateways begin with.
pub const GATEWAY: &str = "gateway/";

// === impl GatewayRecord ===

versioned!(GatewayRecord: 1);
