//! Which process moves rollouts: the holder of the controller's lease.

use guest_fleet_ledger::records::gateway::GatewayRecord;
use guest_fleet_ledger::records::index::LeaseRecord;
use guest_fleet_ledger::{Bucket, Ledger, ReadError, records};

use super::controller::LEASE;

/// A process that holds the lease, or held it when it died.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Host on which it runs.
    pub host: String,
    /// Process id there.
    pub pid: u32,
}

/// Who holds the lease; `None` where it was given back, or nobody took it yet.
///
/// # Errors
/// The ledger cannot be read, or the lease is damaged.
pub async fn holder(ledger: &dyn Ledger) -> Result<Option<Holder>, ReadError> {
    let Some(found) = ledger.get(Bucket::Configuration, LEASE).await? else { return Ok(None) };
    let lease: LeaseRecord = records::decode(LEASE, &found.value).map_err(|error| {
        ReadError::Damaged { key: LEASE.to_owned(), problem: error.to_string() }
    })?;
    let is_held = !lease.owner.is_empty();
    Ok(is_held.then_some(Holder { host: lease.host, pid: lease.pid }))
}

// === impl Holder ===

impl Holder {
    /// Whether this gateway runs in the process.
    #[must_use]
    pub fn is(&self, gateway: &GatewayRecord) -> bool {
        self.pid == gateway.pid && self.host == gateway.host
    }
}
