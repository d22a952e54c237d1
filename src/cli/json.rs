//! What several JSON documents have in common. The documents themselves are beside the code that
//! prints them; `schemas.rs` lists them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use guest_agent_proto::agent_controlplane::plugin_event_message::PluginEventType;
use guest_agent_proto::fleet::PluginHealthEvent;
use guest_agent_proto::local;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Serialize;

use super::format::rfc3339;
use crate::display::values::Named;

/// Numbers that the values of an enum may have.
const NUMBERS: std::ops::Range<i32> = 1..100;

/// A time, as RFC 3339 writes it in UTC. Stands for the text in schemas.
pub(super) struct Time;

/// The name of a value of this enum. Stands for the text in schemas, which list the names.
pub(super) struct NameOf<T>(PhantomData<T>);

/// The name of an event's type, of the public protocol or of this agent's own.
pub(super) struct EventTypeName;

/// The agent itself.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Agent<'a> {
    /// Set while all plugins are held, those that come later included.
    hold: Option<Hold<'a>>,
    /// Address of the HTTP listener; empty without one.
    http: &'a str,
    /// Path of the unix socket on which HTTP is served too; empty without one.
    http_socket: &'a str,
    /// Whether connections to the address in `http` have TLS.
    http_tls: bool,
    /// The id of this machine.
    instance_id: &'a str,
    /// The machine; null from an agent that does not tell.
    machine: Option<Machine<'a>>,
    /// The link to the control plane in words; `link_connected` is the value for programs.
    link: &'a str,
    /// Whether the control plane is connected.
    link_connected: bool,
    /// Events that the control plane has not acknowledged.
    outbox_depth: u64,
    /// The agent's process.
    pid: i32,
    /// When the agent was started.
    #[schemars(with = "Option<Time>")]
    started_at: Option<String>,
    /// Problems of the agent itself, a sentence each; empty when it has none.
    troubles: &'a [String],
    /// The version of the agent that runs.
    version: &'a str,
}

/// The machine that the agent runs on. A text is empty where it is not known.
#[derive(Debug, Serialize, JsonSchema)]
struct Machine<'a> {
    /// The architecture of the processor, as uname(2) names it.
    architecture: &'a str,
    /// When it was booted.
    #[schemars(with = "Option<Time>")]
    booted_at: Option<String>,
    /// The host name.
    host: &'a str,
    /// The release of the kernel.
    kernel: &'a str,
    /// What people know it by: the section `[labels]` of the configuration.
    labels: BTreeMap<&'a str, &'a str>,
    /// The operating system, as os-release calls it for people.
    os: &'a str,
}

/// A person makes orders wait.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Hold<'a> {
    /// Who wants that, and why.
    by: &'a str,
    /// Since when.
    #[schemars(with = "Option<Time>")]
    since: Option<String>,
    /// When it ends by itself; null when a person is to end it.
    #[schemars(with = "Option<Time>")]
    until: Option<String>,
    /// The order that waits, in words; null while none does.
    waits: Option<&'a str>,
}

/// Something that a policy or an order restricts and this machine does not.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct NotEnforced<'a> {
    /// The restriction.
    what: &'a str,
    /// Why it is not enforced.
    why: &'a str,
    /// What can be done about it.
    fix: &'a str,
}

// === impl Time ===

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "date-time" })
    }
}

// === impl NameOf ===

impl<T: Named + TryFrom<i32>> JsonSchema for NameOf<T> {
    fn schema_name() -> Cow<'static, str> {
        "NameOf".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let values = NUMBERS.filter_map(|number| T::try_from(number).ok());
        let names: Vec<&str> = values.map(Named::name).collect();
        json_schema!({ "type": "string", "enum": names })
    }
}

// === impl EventTypeName ===

impl JsonSchema for EventTypeName {
    fn schema_name() -> Cow<'static, str> {
        "EventTypeName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let public = NUMBERS.filter_map(|number| PluginEventType::try_from(number).ok());
        let own = [PluginHealthEvent::PluginUnhealthy, PluginHealthEvent::PluginHealthy];
        let names: Vec<&str> = public.map(Named::name).chain(own.map(Named::name)).collect();
        json_schema!({ "type": "string", "enum": names })
    }
}

// === impl Agent ===

impl<'a> From<&'a local::AgentStatus> for Agent<'a> {
    fn from(agent: &'a local::AgentStatus) -> Self {
        Self {
            hold: agent.hold.as_ref().map(Hold::from),
            http: &agent.http,
            http_socket: &agent.http_socket,
            http_tls: agent.http_tls,
            instance_id: &agent.instance_id,
            machine: agent.machine.as_ref().map(Machine::from),
            link: &agent.link,
            link_connected: agent.link_connected,
            outbox_depth: agent.outbox_depth,
            pid: agent.pid,
            started_at: rfc3339(agent.started_at.as_ref()),
            troubles: &agent.troubles,
            version: &agent.version,
        }
    }
}

// === impl Machine ===

impl<'a> From<&'a local::Machine> for Machine<'a> {
    fn from(machine: &'a local::Machine) -> Self {
        let labels = machine.labels.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        Self {
            architecture: &machine.architecture,
            booted_at: rfc3339(machine.booted_at.as_ref()),
            host: &machine.host,
            kernel: &machine.kernel,
            labels: labels.collect(),
            os: &machine.os,
        }
    }
}

// === impl Hold ===

impl<'a> From<&'a local::Hold> for Hold<'a> {
    fn from(hold: &'a local::Hold) -> Self {
        Self {
            by: &hold.by,
            since: rfc3339(hold.since.as_ref()),
            until: rfc3339(hold.until.as_ref()),
            waits: present(&hold.waits),
        }
    }
}

// === impl NotEnforced ===

impl<'a> From<&'a local::NotEnforced> for NotEnforced<'a> {
    fn from(it: &'a local::NotEnforced) -> Self {
        Self { what: &it.what, why: &it.why, fix: &it.fix }
    }
}

/// A text that has something in it.
pub(super) fn present(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
