//! Writes the report that an agent sends to the gateway of a fleet.
//!
//! Equal facts make equal bytes, so that a report is sent only when something changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use guest_agent_proto::fleet as pb;
use prost::Message;

use super::{AgentFacts, MESSAGE_TYPE, go_architecture, type_url};
use crate::model::act::{Hold, LimitOverride};
use crate::model::deed::Numbered;
use crate::model::id::{BootId, PluginName};
use crate::model::spec::Limits;
use crate::model::verdict::failed_beside;
use crate::model::view::{PluginView, Reported};
use crate::ports::OutboundMessage;
use crate::text::shortened;

mod changes;
mod fault;

pub use fault::fault_of;

/// The type of a report.
const AGENT_REPORT: &str = "guest_agent.fleet.v1.AgentReport";

/// Most plugins of a report that are there, and most that are gone.
const PLUGINS_MAX: usize = 1000;

/// Largest report, in bytes.
const REPORT_MAX: usize = 1 << 20;

/// Longest text about the machine, in bytes.
const TEXT_MAX: usize = 256;

/// What the field of a plugin takes in a report beside the plugin, and the number of those that are
/// left out, in bytes.
const FIELD: usize = 6;

/// What the agent can do beyond the public protocol.
const CAPABILITIES: [&str; 2] = ["generations", "faults"];

/// What a report says of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostFacts {
    /// The machine's own labels.
    pub labels: Arc<BTreeMap<String, String>>,
    /// Its host name.
    pub host_name: String,
    /// The release of its kernel.
    pub kernel: String,
    /// Its boot.
    pub boot: BootId,
}

/// A report on plugins, sorted by name, on their faults, and on what is known of the plugins that a fleet
/// `numbered`. The sender sets the id.
#[must_use]
pub fn encode_report(
    agent: &AgentFacts,
    host: &HostFacts,
    (plugins, faults): (&[Arc<PluginView>], &BTreeMap<PluginName, pb::PluginFault>),
    numbered: &BTreeMap<PluginName, Numbered>,
) -> OutboundMessage {
    let text = |text: &str| shortened(text, TEXT_MAX).to_owned();
    let mut report = pb::AgentReport {
        labels: (*host.labels).clone(),
        agent_version: agent.version.clone(),
        os: std::env::consts::OS.to_owned(),
        architecture: go_architecture().to_owned(),
        kernel: text(&host.kernel),
        hostname: text(&host.host_name),
        boot_id: text(&host.boot.0),
        capabilities: CAPABILITIES.map(str::to_owned).into(),
        plugins: Vec::new(),
        plugins_left_out: 0,
    };
    let there: BTreeSet<&PluginName> = plugins.iter().map(|view| &view.name).collect();
    let reports = plugins.iter().take(PLUGINS_MAX);
    let reports = reports.map(|view| pb::PluginReport {
        fault: faults.get(&view.name).cloned(),
        ..plugin(view, numbered.get(&view.name))
    });
    let gone = numbered.iter().filter(|(name, _)| !there.contains(name));
    let all = plugins.len() + gone.clone().count();
    let gone = gone.take(PLUGINS_MAX).map(|(name, numbered)| pb::PluginReport {
        name: name.to_string(),
        generation: numbered.generation.get(),
        owners_changes: changes::of_gone(&numbered.deeds),
        ..Default::default()
    });
    let mut room = REPORT_MAX.saturating_sub(report.encoded_len() + FIELD);
    for plugin in reports.chain(gone) {
        let Some(left) = room.checked_sub(plugin.encoded_len() + FIELD) else { break };
        room = left;
        report.plugins.push(plugin);
    }
    report.plugins_left_out = u32::try_from(all - report.plugins.len()).unwrap_or(u32::MAX);
    OutboundMessage {
        id: String::new(),
        labels: BTreeMap::from([(MESSAGE_TYPE.to_owned(), AGENT_REPORT.to_owned())]),
        type_url: type_url(AGENT_REPORT),
        body: report.encode_to_vec(),
    }
}

fn plugin(view: &PluginView, numbered: Option<&Numbered>) -> pb::PluginReport {
    use pb::plugin_report::Installation;
    let current = view.current.as_deref();
    let is_coming = |state| matches!(state, Reported::Installing | Reported::Starting);
    let pending = match &view.pending {
        Some(pending) if is_coming(pending.state) => pending.revision.as_str(),
        Some(_) | None if current.is_none() && is_coming(view.state) => view.revision.as_str(),
        Some(_) | None => "",
    };
    let digest = current.and_then(|current| current.order_digest);
    let is_local = current.unwrap_or(&view.spec).is_local();
    let installation = if is_local { Installation::Local } else { Installation::Dynamic };
    pb::PluginReport {
        name: view.name.to_string(),
        revision: current.map(|current| current.revision.to_string()).unwrap_or_default(),
        pending_revision: pending.to_owned(),
        order_digest: digest.map(|digest| digest.as_bytes().to_vec()).unwrap_or_default(),
        generation: numbered.map_or(0, |numbered| numbered.generation.get()),
        installation: installation.into(),
        stopped_by_owner: view.stopped.is_some(),
        hold: view.held.as_ref().map(|held| hold(&held.hold)),
        // A fleet that ordered nothing of a plugin has nothing to compare it with.
        owners_changes: numbered.map_or_else(Vec::new, |it| changes::of(view, &it.deeds)),
        fault: None,
        dismissed: dismissed(view),
        owners_limits: view.limit_override.as_ref().map(owners_limits),
    }
}

fn owners_limits(own: &LimitOverride) -> pb::OwnersLimits {
    let Limits { memory_bytes, cpu_percent, tasks } = own.limits;
    pb::OwnersLimits { memory_bytes, cpu_percent, tasks, by: own.by.to_string() }
}

fn dismissed(view: &PluginView) -> Option<pb::DismissedFailure> {
    let (failed, by) = (failed_beside(view)?, view.history.dismissed.as_ref()?);
    Some(pb::DismissedFailure { revision: failed.revision.to_string(), by: by.to_string() })
}

/// People are shown who and why in one text.
fn hold(hold: &Hold) -> pb::Hold {
    let (by, reason) = hold.by.split_once(": ").unwrap_or((&hold.by, ""));
    pb::Hold { by: by.to_owned(), reason: reason.to_owned(), until: hold.until.map(Into::into) }
}

#[cfg(test)]
mod tests;
