//! That a gateway is there, or was. Key: `gateway/<id>`, and after its end `gateway-ended/<id>`, in the bucket of the
//! configuration, because the write proves up to where the gateway knows the configuration.

pub use super::generated::{GatewayEndRecord, GatewayRecord, MissingSecret};

/// The beginning of the keys of gateways.
pub const GATEWAY: &str = "gateway/";

/// The beginning of the keys of gateways that ended.
pub const GATEWAY_ENDED: &str = "gateway-ended/";

// === impl GatewayRecord ===

versioned!(GatewayRecord: 1);

// === impl GatewayEndRecord ===

versioned!(GatewayEndRecord: 1);
