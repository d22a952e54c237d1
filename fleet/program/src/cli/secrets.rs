//! The secrets that gateways miss, where somebody asks why nothing is ordered.

use std::collections::BTreeSet;

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_fleet_core::desired::Decision;
use guest_fleet_core::view::{ReleaseName, Target, View};
use guest_fleet_server::gateways::presence::{self, OLD};
use guest_fleet_server::secrets::reference::{SecretName, names};
use prost::Message;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;

/// A secret that a gateway misses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MissingSecretJson {
    /// Host of the gateway.
    pub gateway: String,
    /// Name of the secret.
    pub name: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// What the living gateways said lately.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn missing(context: &Context<'_>) -> Result<Vec<MissingSecretJson>, Failure> {
    let now = context.now.into();
    let mut found = Vec::new();
    for gateway in presence::list(context.ledger).await? {
        if gateway.age(now).is_none_or(|age| age >= OLD) {
            continue;
        }
        let host = &gateway.record.host;
        found.extend(gateway.record.missing_secrets.into_iter().map(|it| MissingSecretJson {
            gateway: host.clone(),
            name: it.name,
            problem: it.problem,
        }));
    }
    Ok(found)
}

/// Those of them that the release of a decision needs.
pub(crate) fn needed(
    view: &View,
    plugin: &str,
    decision: Option<&Decision>,
    missing: &[MissingSecretJson],
) -> Vec<MissingSecretJson> {
    let Some(Target::Revision(revision)) = decision.map(|decision| &decision.target) else {
        return Vec::new();
    };
    let name = ReleaseName { plugin: plugin.to_owned(), revision: revision.clone() };
    let config = view
        .releases
        .get(&name)
        .and_then(|release| ConfigurePlugin::decode(release.order.as_slice()).ok())
        .and_then(|order| order.manifest?.config);
    // What is wrong with a reference, a gateway says in its log.
    let names = config.map(|config| names(&config).unwrap_or_default()).unwrap_or_default();
    let names: BTreeSet<&str> = names.iter().map(SecretName::as_str).collect();
    missing.iter().filter(|it| names.contains(it.name.as_str())).cloned().collect()
}
