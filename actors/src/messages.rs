//! Every message between actors, grouped by its receiver.
//!
//! Actors send messages and do not wait for answers. The only exceptions are [`Save`],
//! [`ListPlugins`] and the questions at the end of this page, which come from outside of the
//! actors.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use actix::{Message, Recipient};
use tokio::sync::{Notify, watch};

use crate::model::act::{Act, Hold};
use crate::model::audit::{Asker, AuditEntry};
use crate::model::event;
use crate::model::health::HealthPolicy;
use crate::model::history::Condition;
use crate::model::id::{Endpoint, Generation, PluginName, Process};
use crate::model::refused_manifest::RefusedManifest;
use crate::model::runs::Firing;
use crate::model::spec::MetricsPolicy;
use crate::model::verdict::Verdict;
use crate::model::view::PluginView;
use crate::model::vm_event::{Notification, Notified, NotifyError, VmEvent};
use crate::plugin::event::{Boot, Event, Order};
use crate::plugin::explain::Explanation;
use crate::plugin::state::{Policy, State};
use crate::ports::{
    Health, InboundMessage, MemoryUse, References, ServerKind, SweepManner, SweepReport, Write,
};
use crate::registry::catalogue::Refusal;
use crate::registry::entry::{Entry, Key, Offer, Registrant};
use crate::trace::Trace;

// === To the store ===

/// From everybody: make this durable. Answered when it is on the disk itself.
#[derive(Message, Debug, Default)]
#[rtype(result = "Result<(), SaveFailed>")]
pub struct Save {
    /// Records to write or delete, all or none.
    pub writes: Vec<Write>,
    /// Events to record, together with the writes. They reach the outbox when they are durable.
    pub events: Vec<event::NewEvent>,
    /// What people asked, for the audit record. It is recorded together with the writes.
    pub audit: Vec<AuditEntry>,
}

/// From senders that try again after a failure: make all of this durable, or nothing. Records that
/// cannot be written are not kept, and their events are not sent.
#[derive(Message, Debug, Default)]
#[rtype(result = "Result<LastEvent, SaveFailed>")]
pub struct SaveOrForget(pub Save);

/// The number of the last event that had been recorded when a save came; 0 for none. Events that are
/// recorded later have higher numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastEvent(pub u64);

/// From senders that can lose it: write this together with the next commit.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct SaveLazily(pub Vec<Write>);

/// The store could not write. It keeps what it could not write and tries again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("failed to save: {0}")]
pub struct SaveFailed(pub Arc<str>);

/// From the manager, when a plugin's actor died: the newest snapshot of that plugin. An error means
/// that the snapshots cannot be read.
#[derive(Message, Debug)]
#[rtype(result = "Result<Option<Vec<u8>>, Arc<str>>")]
pub struct LoadSnapshot(pub PluginName);

// === To a plugin ===

/// From the plugin's own effects, its timers and the monitor: something happened.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Happened(pub Event);

/// From the VM-event actor to the manager, and from there to each plugin: the running plugins are
/// about to get the `shutdown` event of the machine.
#[derive(Message, Clone, Debug)]
#[rtype(result = "()")]
pub struct ShutdownBegins {
    /// How each call ended, as soon as it has; closed when all have.
    pub answers: watch::Receiver<BTreeMap<PluginName, ShutdownAnswer>>,
    /// Wakes those that wait for one, in the order in which they began to: the watch alone wakes them
    /// in any order, and a simulated life has to follow from its seed.
    pub moved: Arc<Notify>,
}

/// How the call of one plugin with the `shutdown` event ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShutdownAnswer {
    /// The process that was called, where one ran.
    pub pid: Option<u32>,
    /// What became of the call.
    pub outcome: Notification,
}

/// From the manager: an order.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Deliver {
    /// The order's number.
    pub generation: Generation,
    /// What is wanted.
    pub order: Order,
    /// What it is part of.
    pub trace: Option<Arc<Trace>>,
}

/// From the monitor: what the plugin said of itself.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct HealthHeard {
    /// The process that said it.
    pub process: Process,
    /// What it said.
    pub health: Health,
}

/// From the manager: why are you in the state you are in?
#[derive(Message, Debug)]
#[rtype(result = "Explanation")]
pub struct ExplainYourself;

/// From the manager: nothing refers to you any more.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Leave;

// === To the manager ===

/// From the VM-event actor, once: the machine is known, so the plugins may be brought back.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Begin(pub Boot);

/// From the agent at SIGHUP, and from the manager to itself at the start: read the manifests of
/// local plugins and follow them.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct RescanLocal;

/// From the agent, when it ends together with its plugins: look after them no more. Answered when
/// no plugin's actor is left; what is durable of them stays, and so do orders that still come.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Dismiss;

/// From the control-plane actor and the local API: orders that are durable in the inbox.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Configure {
    /// Number of their inbox record.
    pub inbox: u64,
    /// The orders, in the sender's sequence.
    pub orders: Vec<NumberedOrder>,
    /// What a person asks of all plugins, instead of orders that name one.
    pub of_all: Option<AskedOfAll>,
}

/// What a person asks of all plugins.
#[derive(Clone, Debug)]
pub struct AskedOfAll {
    /// The number that it has for each plugin.
    pub generation: Generation,
    /// What is asked.
    pub act: Act,
    /// What it is part of.
    pub trace: Option<Arc<Trace>>,
}

impl Configure {
    /// Whether nothing is asked of anybody.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.orders.is_empty() && self.of_all.is_none()
    }
}

/// One order for one plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberedOrder {
    /// Its number.
    pub generation: Generation,
    /// The plugin it is for.
    pub name: PluginName,
    /// The revision as the order named it, repeated when it is refused; empty where it named none.
    pub revision: Arc<str>,
    /// What is wanted.
    pub order: Order,
    /// What it is part of.
    pub trace: Option<Arc<Trace>>,
}

/// From a plugin: it looks different now.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub enum Changed {
    /// Like this.
    Plugin(Box<PluginView>),
    /// As before, but for what it said of itself, and when. Every check brings it.
    Health {
        /// The plugin.
        name: PluginName,
        /// What it said, and when.
        heard: (Health, SystemTime),
        /// How it is since then.
        condition: Option<Condition>,
    },
}

/// From a plugin: the order is part of its durable state, so the inbox may forget it.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Taken {
    /// The plugin.
    pub name: PluginName,
    /// The order.
    pub generation: Generation,
}

/// From a plugin: nothing of it is left.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Retired {
    /// The plugin.
    pub name: PluginName,
    /// The newest order it knew.
    pub generation: Generation,
}

/// A sample of one plugin, for reports.
#[derive(Message, Clone, Copy, Debug, PartialEq)]
#[rtype(result = "()")]
pub struct Point {
    /// When it was taken.
    pub at: SystemTime,
    /// Percent of one core since the sample before.
    pub cpu_percent: f32,
    /// Memory of the whole tree, in bytes: [`MemoryUse::bytes`].
    pub memory_bytes: u64,
    /// CPU time of the whole tree since its process was started.
    pub cpu_time: Duration,
}

/// What a plugin's process was last measured to use, for those who look at it now. There is one from
/// the first look at a process on, which makes no [`Point`] yet: a report says what was used over
/// an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// When it was taken.
    pub at: SystemTime,
    /// Percent of one core since the last point, or since the first look; `None` of that.
    pub cpu_percent: Option<f32>,
    /// Memory of the whole tree.
    pub memory: MemoryUse,
    /// CPU time of the whole tree since its process was started.
    pub cpu_time: Duration,
}

/// From the metrics actor: the result of one sweep.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Sampled {
    /// What each plugin uses.
    pub readings: Vec<(PluginName, Reading)>,
    /// Samples for reports, of those of which one is due.
    pub points: Vec<(PluginName, Point)>,
}

/// From the control-plane actor: a report was acknowledged, so of each plugin's samples those up to
/// this many need not be kept.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct MetricsDelivered(pub Vec<(PluginName, u64)>);

/// From the control-plane actor and the local API: what runs. Answered from the roster once the
/// plugins of an earlier agent process are back in it.
#[derive(Message, Debug)]
#[rtype(result = "Vec<Listed>")]
pub struct ListPlugins;

/// From the report actor: what all plugins look like, by name. `None` while the plugins of an
/// earlier agent process are not all back, and when the agent ends.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "Option<Vec<Arc<PluginView>>>")]
pub struct ListViews;

/// From the local API and metrics: the manifests of local plugins that are refused, by the name of
/// their folder as it can be shown.
#[derive(Message, Debug)]
#[rtype(result = "BTreeMap<String, RefusedManifest>")]
pub struct RefusedManifests;

/// From the local API: the hold that plugins begin under that come later, if one is in force.
#[derive(Message, Debug)]
#[rtype(result = "Option<Hold>")]
pub struct HoldOfAll;

/// From the local API: how long these orders take at most that it is about to submit, by the deadlines
/// of the agent. Answered in their sequence.
#[derive(Message, Debug)]
#[rtype(result = "Vec<Duration>")]
pub struct HowLong(pub Vec<(PluginName, Order)>);

/// From the web console: what plugins used lately, oldest sample first.
#[derive(Message, Debug)]
#[rtype(result = "BTreeMap<PluginName, Vec<Point>>")]
pub struct ListUsage;

/// One plugin in an answer to [`ListPlugins`].
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// What it looks like.
    pub view: Arc<PluginView>,
    /// Its samples that were not reported yet, oldest first.
    pub points: Vec<Point>,
    /// How many samples of it there have been, the last of `points` included. Their times do not
    /// tell them apart: a clock can be set back.
    pub sampled: u64,
    /// What its last process was last measured to use.
    pub newest: Option<Reading>,
    /// Why its manifest on the machine has no effect, where it is refused.
    pub refusal: Option<RefusedManifest>,
}

impl Listed {
    /// The judgement of the plugin, as of now.
    #[must_use]
    pub fn verdict(&self, now: SystemTime) -> Verdict {
        let memory = self.usage().map(|reading| reading.memory.bytes);
        let verdict = Verdict::of(&self.view, memory, now);
        match &self.refusal {
            Some(refusal) => refusal.beside(verdict),
            None => verdict,
        }
    }

    /// What its process was last measured to use; `None` without a process, whatever the one before
    /// used.
    #[must_use]
    pub fn usage(&self) -> Option<Reading> {
        self.newest.filter(|_| self.view.pid.is_some())
    }
}

/// From the actors and commands that show it: how many orders the inbox keeps until their plugins
/// have made them durable.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "usize")]
pub struct CountInbox;

/// From the scheduler: a trigger fires for a plugin.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Fire {
    /// The plugin.
    pub name: PluginName,
    /// What the trigger names.
    pub firing: Firing,
}

/// From the scheduler: what is known of the machine changed.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct FactsMoved;

/// From the local API: why a plugin is in the state it is in. `None` where there is no such plugin.
#[derive(Message, Debug)]
#[rtype(result = "Option<Explained>")]
pub struct Explain(pub PluginName);

/// The answer to [`Explain`].
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// Why, by the plugin itself.
    pub explanation: Explanation,
    /// What its last process was last measured to use.
    pub newest: Option<Reading>,
    /// Why its manifest on the machine has no effect, where it is refused.
    pub refusal: Option<RefusedManifest>,
}

/// From the local API: end and delete what is there of a plugin that the agent does not know.
#[derive(Message, Debug)]
#[rtype(result = "Result<(), NotForgotten>")]
pub struct Forget(pub PluginName);

/// Why a plugin is not forgotten.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForgotten {
    /// The plugins of an earlier agent process are not all back.
    #[error("the agent does not know all of its plugins yet")]
    NotReady,
    /// The plugin is no unknown one.
    #[error("the agent knows this plugin")]
    Known,
    /// There is no state for it.
    #[error("the plugin cannot be removed: {0}")]
    Unnamed(String),
}

// === To the scheduler ===

/// From the manager: a one-shot plugin looks like this now.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Seen(pub Arc<PluginView>);

/// From the manager: the plugin is not a one-shot plugin any more, or was removed.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Unseen(pub PluginName);

/// From the local API: what makes a plugin run, and when.
#[derive(Message, Debug)]
#[rtype(result = "Vec<Planned>")]
pub struct PlanOf(pub PluginName);

/// One trigger of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Which.
    pub kind: TriggerKind,
    /// What became of it, in words.
    pub last: String,
    /// When it fires next, where that is known.
    pub next: Option<SystemTime>,
}

/// Kinds of triggers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TriggerKind {
    /// Every boot.
    Startup,
    /// Every instance.
    FirstBoot,
    /// Every so often.
    Interval(Duration),
}

/// From the sweep actor: which files must stay. `None` while not all plugins of an earlier agent
/// process are back, and when the agent ends.
#[derive(Message, Debug)]
#[rtype(result = "Option<References>")]
pub struct ListReferences;

// === To the sweep actor ===

/// From the local API: look for files that nothing refers to.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "Result<SweepReport, NotSwept>")]
pub struct SweepNow(pub SweepManner);

/// Why there was no sweep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSwept {
    /// The list of needed files is not known yet, or not any more.
    #[error("the agent does not know all of its plugins yet")]
    NotReady,
    /// What the agent knows is not what it would find after a crash.
    #[error("the store cannot be written, so nothing is deleted")]
    NotDurable,
    /// Another run is not over.
    #[error("a sweep is under way already")]
    UnderWay,
    /// It took too long.
    #[error("the sweep did not end within {} s", .0.as_secs())]
    TimedOut(std::time::Duration),
}

/// From the agent, when it was configured anew: restarts and probations go by this from now on. The
/// manager hands it to every plugin.
#[derive(Message, Clone, Debug)]
#[rtype(result = "()")]
pub struct UsePolicy(pub Arc<Policy>);

// === To the monitor ===

/// From the agent, when it was configured anew: health is checked and judged like this from now on.
#[derive(Message, Clone, Copy, Debug)]
#[rtype(result = "()")]
pub struct UseHealthPolicy(pub HealthPolicy);

/// From a plugin: report the exit of this process, and its health until then.
#[derive(Message)]
#[rtype(result = "()")]
pub struct Watch {
    /// The plugin.
    pub name: PluginName,
    /// Its process.
    pub process: Process,
    /// Where it answers; without it only its exit is watched.
    pub endpoint: Option<Endpoint>,
    /// The receiver of its exit and of the health verdicts.
    pub happened: Recipient<Happened>,
    /// The receiver of its health reports.
    pub heard: Recipient<HealthHeard>,
}

/// From a plugin: the agent is stopping that process, so its end is no crash.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Unwatch(pub PluginName);

// === To the metrics actor ===

/// From a plugin: measure this process.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Measure {
    /// The plugin.
    pub name: PluginName,
    /// Its process.
    pub process: Process,
    /// How often, and how much is kept.
    pub policy: MetricsPolicy,
    /// Memory that it may not stay over, in bytes.
    pub memory_limit: Option<u64>,
    /// Hears when it does.
    pub happened: Recipient<Happened>,
}

/// From a plugin: stop measuring.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Unmeasure(pub PluginName);

// === To the outbox, and to the report actor ===

/// From the store: these events are durable.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Enqueue(pub Vec<event::StoredEvent>);

/// From the link, to both: whether there is a control plane to send to.
#[derive(Message, Clone, Debug, PartialEq, Eq)]
#[rtype(result = "()")]
pub enum LinkChanged {
    /// A stream is registered.
    Connected {
        /// Counts the streams of this agent process.
        stream: u64,
        /// What its server announced itself as.
        server: ServerKind,
    },
    /// The agent has no stream.
    Disconnected {
        /// Why.
        reason: Arc<str>,
    },
}

// === To the control-plane actor ===

/// From the link: a message arrived. The link reads on when this was dealt with.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub struct Received(pub InboundMessage);

/// From the local API: orders of a user of this machine. Answered when they are durable; so is the
/// entry of the audit record about each then.
#[derive(Message, Debug)]
#[rtype(result = "Result<Submitted, SubmitError>")]
pub struct Submit {
    /// The orders.
    pub submission: Submission,
    /// Who gives them. What nobody asked has no entry in the audit record.
    pub asker: Option<Asker>,
    /// The W3C `traceparent` of what they are part of, where there is one.
    pub traceparent: Option<Box<str>>,
}

/// The orders of a user of this machine.
#[derive(Clone, Debug)]
pub enum Submission {
    /// An encoded `agent_controlplane.ConfigurePluginStates`.
    Configure(Vec<u8>),
    /// A fresh start of this plugin.
    Restart(PluginName),
    /// A run of this one-shot plugin, which is a fresh start of it.
    Run(PluginName),
    /// What a person asks of a plugin.
    Asked(PluginName, Act),
    /// What a person asks of all plugins. Its outcome names none.
    AskedOfAll(Act),
}

/// Why no order of a submission was taken.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SubmitError {
    /// The submission cannot be decoded. The reason says why.
    #[error("cannot decode the orders: {0}")]
    Malformed(Arc<str>),
    /// The orders could not be made durable.
    #[error(transparent)]
    NotSaved(#[from] SaveFailed),
}

/// The answer to a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The outcome of each order, in the sequence given.
    pub outcomes: Vec<OrderOutcome>,
    /// The last event of before: events about these orders have higher numbers.
    pub last_event: LastEvent,
}

/// What became of one order of a submission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderOutcome {
    /// The plugin's name as it was given.
    pub name: String,
    /// The order's number, or why it was refused.
    pub result: Result<Generation, String>,
}

// === To the registry ===

/// From the host socket: a plugin offers something. Answered when it is durable.
#[derive(Message, Debug)]
#[rtype(result = "Result<Arc<Entry>, NotRegistered>")]
pub struct Register {
    /// Who.
    pub by: Registrant,
    /// What; somebody answers there.
    pub offer: Offer,
}

/// From the host socket: a plugin takes something back. Answered when it is durable.
#[derive(Message, Debug)]
#[rtype(result = "Result<(), NotRegistered>")]
pub struct Deregister {
    /// Who.
    pub by: Registrant,
    /// What.
    pub key: Key,
}

/// Why nothing changed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum NotRegistered {
    /// It is not as the plugin thinks.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// It could not be made durable.
    #[error(transparent)]
    NotSaved(SaveFailed),
}

// === To the VM-event actor ===

/// From the agent, the local API and the command socket: send this event to every running plugin.
/// The answer comes when each plugin has answered or its time is up.
#[derive(Message, Clone, Debug)]
#[rtype(result = "Result<Vec<Notified>, NotifyError>")]
pub struct NotifyVm {
    /// What happens.
    pub event: VmEvent,
    /// What plugins are handed, byte for byte.
    pub request: Arc<str>,
    /// Longest that all of it may take.
    pub within: Duration,
}

// === Inside of actors ===

/// A plugin's actor has ended without notice: it panicked.
#[derive(Message, Debug)]
#[rtype(result = "()")]
pub(crate) struct Died {
    pub(crate) name: PluginName,
    pub(crate) life: u64,
}

/// The state of a plugin, for tests.
#[derive(Message, Debug)]
#[rtype(result = "State")]
pub struct Inspect;
