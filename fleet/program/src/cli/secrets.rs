//! The secrets that gateways miss or that were overwritten, where somebody asks for them or why nothing is
//! ordered.

use std::collections::BTreeMap;

use guest_fleet_core::desired::Decision;
use guest_fleet_core::view::{ReleaseName, Target, View};
use guest_fleet_server::gateways::presence::{self, OLD, Presence};
use guest_fleet_server::secrets::recorded::of_order;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;
use super::text::one_line;

/// A secret that a gateway cannot use: its file is missing, or is another one than the fleet knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct MissingSecretJson {
    /// Host of the gateway.
    pub gateway: String,
    /// Name of the secret, with its version.
    pub name: String,
    /// What is wrong, and what to do.
    pub problem: String,
}

/// The secrets that living gateways told lately.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn missing(context: &Context<'_>) -> Result<Vec<MissingSecretJson>, Failure> {
    let mut found = Vec::new();
    for gateway in living(context).await? {
        let host = &gateway.record.host;
        found.extend(gateway.record.missing_secrets.into_iter().map(|it| MissingSecretJson {
            gateway: host.clone(),
            name: it.name,
            problem: it.problem,
        }));
    }
    Ok(found)
}

/// A line for each secret and problem, with the gateways that have it.
pub(crate) fn lines<'a>(missing: impl IntoIterator<Item = &'a MissingSecretJson>) -> Vec<String> {
    let mut hosts: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for MissingSecretJson { gateway, name, problem } in missing {
        hosts.entry((name, problem)).or_default().push(gateway);
    }
    let line = |((name, problem), hosts): (_, Vec<&str>)| {
        one_line(&format!("secret {name} on {}: {problem}", hosts.join(", ")))
    };
    hosts.into_iter().map(line).collect()
}

/// Says them below what was said before, with a gap.
pub(crate) fn say_below<'a>(
    missing: impl IntoIterator<Item = &'a MissingSecretJson>,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let lines = lines(missing);
    if !lines.is_empty() {
        context.say(format_args!(""))?;
    }
    lines.iter().try_for_each(|line| context.say(format_args!("{line}")))
}

/// Hosts of living gateways with secrets, by the key that they mark secrets with; the key of most first.
///
/// # Errors
/// The ledger cannot be read.
pub(crate) async fn hosts_by_key(context: &Context<'_>) -> Result<Vec<Vec<String>>, Failure> {
    let mut hosts: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    for gateway in living(context).await? {
        if !gateway.record.secrets_key.is_empty() {
            hosts.entry(gateway.record.secrets_key).or_default().push(gateway.record.host);
        }
    }
    let mut hosts: Vec<Vec<String>> = hosts.into_values().collect();
    hosts.iter_mut().for_each(|hosts| hosts.sort());
    hosts.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
    Ok(hosts)
}

async fn living(context: &Context<'_>) -> Result<Vec<Presence>, Failure> {
    let now = context.now.into();
    let mut gateways = presence::list(context.ledger).await?;
    gateways.retain(|gateway| gateway.age(now).is_some_and(|age| age < OLD));
    Ok(gateways)
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
    // A gateway that knows more references than this program may wait for others.
    let names = view.releases.get(&name).and_then(|release| of_order(&release.order));
    let names = names.unwrap_or_default();
    let is_needed = |it: &&MissingSecretJson| names.iter().any(|name| name.as_str() == it.name);
    missing.iter().filter(is_needed).cloned().collect()
}
