//! The status as scripts see it. Field names never change, and a field without a value is null, not
//! missing.

use guest_agent_proto::local;
use serde::Serialize;

use super::super::context::JsonForm;
use super::super::doctor::about;
use super::super::format::rfc3339;
use crate::display;
use crate::display::values::Named;

/// The version of the document. A change that a reader could trip over makes it grow.
const SCHEMA_VERSION: u32 = 1;

/// All plugins as JSON.
pub(crate) fn plugins<'a>(
    plugins: impl IntoIterator<Item = &'a local::PluginStatus>,
) -> Vec<Plugin<'a>> {
    plugins.into_iter().map(Plugin::from).collect()
}

/// The whole document, in this form.
pub(crate) fn document<'a>(
    shown: &[&'a local::PluginStatus],
    agent: Option<&local::AgentStatus>,
    form: JsonForm,
) -> Document<'a> {
    let plugins = plugins(shown.iter().copied());
    match form {
        JsonForm::Array => Document::Array(plugins),
        JsonForm::Object => {
            let agent = agent.map(about);
            Document::Object { schema_version: SCHEMA_VERSION, agent, plugins }
        }
    }
}

/// What `status --json` prints.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Document<'a> {
    /// Plugins alone, as before version 0.2.
    Array(Vec<Plugin<'a>>),
    /// The agent and its plugins.
    Object { schema_version: u32, agent: Option<serde_json::Value>, plugins: Vec<Plugin<'a>> },
}

/// One plugin.
#[derive(Debug, Serialize)]
pub(crate) struct Plugin<'a> {
    name: &'a str,
    revision: Option<&'a str>,
    state: &'a str,
    /// failing, degraded, held, busy or ok; null from an agent that does not judge.
    verdict: Option<&'static str>,
    /// What the verdict is about, in a word.
    cause: Option<&'a str>,
    /// Why it is so, as a sentence.
    reason: Option<&'a str>,
    since: Option<String>,
    /// When the agent takes the next step by itself.
    until: Option<String>,
    /// The command that helps.
    help: Option<&'a str>,
    kind: &'a str,
    installation: &'a str,
    pid: Option<u32>,
    started_at: Option<String>,
    restarts: u32,
    last_exit: Option<LastExit<'a>>,
    health: Option<Health<'a>>,
    pending: Option<Pending<'a>>,
    config_hash: Option<&'a str>,
    cpu_percent: Option<f64>,
    /// The figure that is compared with the memory limit.
    memory_bytes: Option<u64>,
    /// What that counts: working_set or resident.
    memory_basis: Option<&'a str>,
    resident_bytes: Option<u64>,
    address: Option<&'a str>,
    install_path: Option<&'a str>,
    not_enforced: Vec<NotEnforced<'a>>,
    /// Set while a person makes orders wait.
    hold: Option<Hold<'a>>,
    /// Why the last run of a one-shot plugin began.
    trigger: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct LastExit<'a> {
    kind: &'a str,
    code: Option<i32>,
    signal: Option<i32>,
    at: Option<String>,
    detail: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Health<'a> {
    code: i32,
    results: &'a [String],
    at: Option<String>,
}

#[derive(Debug, Serialize)]
struct Pending<'a> {
    revision: &'a str,
    state: &'a str,
    error: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct Hold<'a> {
    by: &'a str,
    since: Option<String>,
    until: Option<String>,
    /// The order that waits, in words.
    waits: Option<&'a str>,
}

#[derive(Debug, Serialize)]
struct NotEnforced<'a> {
    what: &'a str,
    why: &'a str,
    fix: &'a str,
}

// === impl Plugin ===

impl<'a> From<&'a local::PluginStatus> for Plugin<'a> {
    fn from(plugin: &'a local::PluginStatus) -> Self {
        let verdict = plugin.verdict.as_ref();
        Self {
            verdict: verdict.map(|_| display::level(plugin).name()),
            cause: verdict.and_then(|it| present(&it.cause)),
            reason: verdict.and_then(|it| present(&it.reason)),
            since: verdict.and_then(|it| rfc3339(it.since.as_ref())),
            until: verdict.and_then(|it| rfc3339(it.until.as_ref())),
            help: verdict.and_then(|it| present(&it.help)),
            name: &plugin.name,
            revision: present(&plugin.revision),
            state: &plugin.state,
            kind: &plugin.kind,
            installation: &plugin.installation,
            pid: plugin.pid,
            started_at: rfc3339(plugin.started_at.as_ref()),
            restarts: plugin.restarts,
            last_exit: plugin.last_exit.as_ref().map(|exit| LastExit {
                kind: &exit.kind,
                code: exit.code,
                signal: exit.signal,
                at: rfc3339(exit.at.as_ref()),
                detail: present(&exit.detail),
            }),
            health: plugin.health.as_ref().map(|health| Health {
                code: health.code,
                results: &health.results,
                at: rfc3339(health.at.as_ref()),
            }),
            pending: plugin.pending.as_ref().map(|pending| Pending {
                revision: &pending.revision,
                state: &pending.state,
                error: present(&pending.error),
            }),
            config_hash: present(&plugin.config_hash),
            cpu_percent: plugin.cpu_percent,
            memory_bytes: plugin.memory_bytes,
            memory_basis: present(&plugin.memory_basis),
            resident_bytes: plugin.resident_bytes,
            address: present(&plugin.address),
            install_path: present(&plugin.install_path),
            not_enforced: plugin
                .not_enforced
                .iter()
                .map(|it| NotEnforced { what: &it.what, why: &it.why, fix: &it.fix })
                .collect(),
            hold: plugin.hold.as_ref().map(|hold| Hold {
                by: &hold.by,
                since: rfc3339(hold.since.as_ref()),
                until: rfc3339(hold.until.as_ref()),
                waits: present(&hold.waits),
            }),
            trigger: present(&plugin.trigger),
        }
    }
}

fn present(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}
