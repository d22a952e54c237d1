//! The status as scripts see it. Field names never change, and a field without a value is null, not
//! missing.

use guest_agent_proto::agent_controlplane::PluginType;
use guest_agent_proto::agent_controlplane::current_plugin_states::StatusValue;
use guest_agent_proto::local::{self, ExitKind, Installation, VerdictLevel};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::context::JsonForm;
use super::super::format::rfc3339;
use super::super::json::{self, Hold, NameOf, NotEnforced, Time, present};
use crate::display;
use crate::display::values::Named;

/// The version of the document.
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
    agent: Option<&'a local::AgentStatus>,
    form: JsonForm,
) -> Document<'a> {
    let plugins = plugins(shown.iter().copied());
    match form {
        JsonForm::Array => Document::Array(plugins),
        JsonForm::Object => {
            let agent = agent.map(json::Agent::from);
            let overview = Overview { schema_version: SCHEMA_VERSION, agent, plugins };
            Document::Object(Box::new(overview))
        }
    }
}

/// What `status` prints, in either form.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Document<'a> {
    /// Plugins alone, as before version 0.2.
    Array(Vec<Plugin<'a>>),
    /// The agent and its plugins.
    Object(Box<Overview<'a>>),
}

/// The agent and its plugins.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Overview<'a> {
    /// The version of this document. A change that a reader could trip over makes it grow.
    schema_version: u32,
    /// The agent itself.
    agent: Option<json::Agent<'a>>,
    /// The plugins that were asked for.
    plugins: Vec<Plugin<'a>>,
}

/// One plugin.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Plugin<'a> {
    /// Its name.
    name: &'a str,
    /// The revision that runs, or the one that is to run.
    revision: Option<&'a str>,
    /// Its state.
    #[schemars(with = "NameOf<StatusValue>")]
    state: &'a str,
    /// How much attention it needs; null from an agent that does not judge.
    #[schemars(with = "Option<NameOf<VerdictLevel>>")]
    verdict: Option<&'static str>,
    /// What the verdict is about, in a word.
    cause: Option<&'a str>,
    /// Why it is so, as a sentence.
    reason: Option<&'a str>,
    /// Since when the verdict holds.
    #[schemars(with = "Option<Time>")]
    since: Option<String>,
    /// When the agent takes the next step by itself.
    #[schemars(with = "Option<Time>")]
    until: Option<String>,
    /// The command that helps.
    help: Option<&'a str>,
    /// Whether it runs until it is stopped.
    #[schemars(with = "NameOf<PluginType>")]
    kind: &'a str,
    /// Whether it was ordered or came with the machine.
    #[schemars(with = "NameOf<Installation>")]
    installation: &'a str,
    /// Its process; null where none runs.
    pid: Option<u32>,
    /// When its process was started.
    #[schemars(with = "Option<Time>")]
    started_at: Option<String>,
    /// How often it was started again since it was installed.
    restarts: u32,
    /// How its last process ended.
    last_exit: Option<LastExit<'a>>,
    /// What it last said of its health.
    health: Option<Health<'a>>,
    /// The revision that is on its way, or that failed.
    pending: Option<Pending<'a>>,
    /// The SHA-256 of the configuration that it accepted.
    config_hash: Option<&'a str>,
    /// CPU time that it used lately, in percent of one core.
    cpu_percent: Option<f64>,
    /// Memory that it uses, in bytes: the figure that is compared with its limit.
    memory_bytes: Option<u64>,
    /// What that counts: working_set or resident.
    memory_basis: Option<&'a str>,
    /// Memory that its processes have mapped and that is resident, in bytes.
    resident_bytes: Option<u64>,
    /// The socket or the port that it listens on.
    address: Option<&'a str>,
    /// The folder with its files.
    install_path: Option<&'a str>,
    /// Restrictions that this machine does not enforce.
    not_enforced: Vec<NotEnforced<'a>>,
    /// Set while a person makes orders wait.
    hold: Option<Hold<'a>>,
    /// Why the last run of a one-shot plugin began.
    trigger: Option<&'a str>,
    /// When the trial of its revision ends as things stand; null while no revision on trial runs.
    #[schemars(with = "Option<Time>")]
    trial_ends: Option<String>,
    /// The limits that count; null from an agent of an older version.
    limits: Option<Limits>,
    /// The limits that a person gave over the limits of orders; null without any.
    limit_override: Option<LimitOverride<'a>>,
}

/// Limits of the processes of a plugin.
#[derive(Debug, Serialize, JsonSchema)]
struct Limits {
    /// Memory, in bytes; null without a limit.
    memory_bytes: Option<u64>,
    /// CPU time, in percent of one core; null without a limit.
    cpu_percent: Option<u32>,
    /// Processes and threads; null: the setting `plugins.max_tasks` counts.
    tasks: Option<u64>,
}

/// Limits that a person gave.
#[derive(Debug, Serialize, JsonSchema)]
struct LimitOverride<'a> {
    /// The limits; null in them is the limit of the order.
    limits: Limits,
    /// Who gave them, and why.
    by: &'a str,
    /// Since when.
    #[schemars(with = "Option<Time>")]
    since: Option<String>,
}

/// How a process ended.
#[derive(Debug, Serialize, JsonSchema)]
struct LastExit<'a> {
    /// How it ended.
    #[schemars(with = "NameOf<ExitKind>")]
    kind: &'a str,
    /// The exit code, of a process that exited.
    code: Option<i32>,
    /// The number of the signal, of a process that a signal ended.
    signal: Option<i32>,
    /// When it ended.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
    /// How it ended, in words.
    detail: Option<&'a str>,
    /// The most memory that the plugin had, in bytes, where memory ended it; null where that is not known.
    memory_peak_bytes: Option<u64>,
    /// The memory limit that the agent proposes, in bytes, where the limit ended it.
    proposed_memory_bytes: Option<u64>,
}

/// What a plugin said of its health.
#[derive(Debug, Serialize, JsonSchema)]
struct Health<'a> {
    /// Its code; 0 is healthy.
    code: i32,
    /// Its words.
    results: &'a [String],
    /// When it said so.
    #[schemars(with = "Option<Time>")]
    at: Option<String>,
}

/// A revision that is on its way, or that failed.
#[derive(Debug, Serialize, JsonSchema)]
struct Pending<'a> {
    /// The revision.
    revision: &'a str,
    /// Its state.
    #[schemars(with = "NameOf<StatusValue>")]
    state: &'a str,
    /// Why it failed, in words; null where it did not.
    error: Option<&'a str>,
    /// When it failed; null where it did not.
    failed_at: Option<String>,
    /// Who dismissed its failure, and why; null where nobody did.
    dismissed_by: Option<&'a str>,
}

// === impl Plugin ===

impl<'a> From<&'a local::PluginStatus> for Plugin<'a> {
    fn from(plugin: &'a local::PluginStatus) -> Self {
        let verdict = plugin.verdict.as_ref();
        Self {
            verdict: verdict.and_then(|_| present(display::level(plugin).name())),
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
                memory_peak_bytes: exit.memory_peak_bytes,
                proposed_memory_bytes: exit.proposed_memory_bytes,
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
                failed_at: rfc3339(pending.failed_at.as_ref()),
                dismissed_by: present(&pending.dismissed_by),
            }),
            config_hash: present(&plugin.config_hash),
            cpu_percent: plugin.cpu_percent,
            memory_bytes: plugin.memory_bytes,
            memory_basis: present(&plugin.memory_basis),
            resident_bytes: plugin.resident_bytes,
            address: present(&plugin.address),
            install_path: present(&plugin.install_path),
            not_enforced: plugin.not_enforced.iter().map(NotEnforced::from).collect(),
            hold: plugin.hold.as_ref().map(Hold::from),
            trigger: present(&plugin.trigger),
            trial_ends: rfc3339(plugin.trial_ends.as_ref()),
            limits: plugin.limits.map(Limits::from),
            limit_override: plugin.limit_override.as_ref().map(|own| LimitOverride {
                limits: own.limits.unwrap_or_default().into(),
                by: &own.by,
                since: rfc3339(own.since.as_ref()),
            }),
        }
    }
}

// === impl Limits ===

impl From<local::Limits> for Limits {
    fn from(limits: local::Limits) -> Self {
        let local::Limits { memory_bytes, cpu_percent, tasks } = limits;
        Self { memory_bytes, cpu_percent, tasks }
    }
}
