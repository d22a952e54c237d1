//! Sends the events of the machine (startup, shutdown, specialize, resume) to the plugins.
//!
//! ```text
//!   Machine (which boot) ─► VmEventActor ── Begin ──────────► manager
//!   agent, local API, command socket ── NotifyVm ─┐
//!                                                 ▼
//!         startup, once per boot ──────────► tell_all ── Apply ─► every running plugin, beside each other
//! ```
//!
//! The actor finds out whether the machine was restarted while the agent was away, lets the manager
//! begin, and sends `startup` when the plugins that start with the machine have started. The agent,
//! the local API and the command socket ask it to send `shutdown` and `specialize`. It records
//! nothing of what a plugin does with an event, only that `startup` is no longer owed. The plugins'
//! actors learn of a `shutdown` before it is sent, and who took it: an exit is no crash then.
//!
//! `resume` is sent after a pause of the machine, and only to plugins that ask for it: one that knows the
//! other events alone may take it for an error. A plugin asks with an entry in the registry, of the type
//! `vm-event` and with the name of the event.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use futures_util::future::join_all;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};
use tracing::field::Empty;
use tracing::{debug, error, info, warn};

use crate::crash_point;
use crate::error::Chain;
use crate::messages::{Begin, ListPlugins, Listed, NotifyVm, Save, ShutdownAnswer, ShutdownBegins};
use crate::model::id::PluginName;
use crate::model::pause::PauseKind;
use crate::model::spec::Config;
use crate::model::view::{Activity, PluginView, Reported};
use crate::model::vm_event::{Notification, Notified, NotifyError, VmEvent};
use crate::plugin::event::Boot;
use crate::ports::{Clock, Machine, Pauses, PluginRpc, Ports, RpcError, Storage, Table, Write};
use crate::registry::catalogue::Filter;
use crate::registry::view::RegistryView;
use crate::trace::{self, Trace};

/// Key of the boot that the agent last ran in, among the facts.
const BOOT: &[u8] = b"boot_id";

/// Key of the boot whose `startup` was not sent yet.
const STARTUP_OWED: &[u8] = b"startup_owed";

/// How long startup waits for plugins that start with the machine. A plugin that takes longer does
/// not get the event: it knows that it was just started.
pub const STARTUP_WAIT: Duration = Duration::from_secs(60);

/// Default for the longest time of a notification of all plugins: that of one Apply call.
pub const NOTIFY_WAIT: Duration = Duration::from_secs(5);

/// The type of an entry with which a plugin asks for an event that not all plugins get.
const ASKS: &str = "vm-event";

/// The VM-event actor.
pub struct VmEventActor {
    machine: Arc<dyn Machine>,
    storage: Arc<dyn Storage>,
    rpc: Arc<dyn PluginRpc>,
    clock: Arc<dyn Clock>,
    pauses: Arc<dyn Pauses>,
    handles: VmEventHandles,
    /// The wait before `startup` is sent.
    startup: Option<SpawnHandle>,
}

/// The receivers of the VM-event actor's messages.
#[derive(Clone)]
pub struct VmEventHandles {
    /// Makes facts durable.
    pub store: Recipient<Save>,
    /// Waits for the message to begin.
    pub begin: Recipient<Begin>,
    /// Knows what runs.
    pub list: Recipient<ListPlugins>,
    /// Learns that `shutdown` is about to be sent.
    pub shutdown: Recipient<ShutdownBegins>,
    /// Moves whenever the roster changes.
    pub roster: watch::Receiver<u64>,
    /// Who asks for events.
    pub offers: RegistryView,
}

/// To be written when the agent ends and its plugins with it: the next agent process finds none of
/// their processes, as after a restart of the machine, and starts them without taking that for
/// crashes. The plugins got `shutdown`, so they get `startup` too.
#[must_use]
pub fn forget_boot() -> Write {
    Write::Delete { table: Table::Facts, key: BOOT.to_vec() }
}

// === impl NotifyVm ===

impl NotifyVm {
    /// The agent's own event for all plugins.
    #[must_use]
    pub fn of(event: VmEvent) -> Self {
        Self { event, request: event.request(), within: NOTIFY_WAIT }
    }
}

// === impl VmEventActor ===

impl VmEventActor {
    /// An actor that looks at the machine when it is started.
    #[must_use]
    pub fn new(ports: Ports, handles: VmEventHandles) -> Self {
        let Ports { machine, storage, rpc, clock, pauses, .. } = ports;
        Self { machine, storage, rpc, clock, pauses, handles, startup: None }
    }

    fn compared(&mut self, last: Option<&[u8]>, owed: Option<&[u8]>, ctx: &mut Context<Self>) {
        let current = self.machine.boot_id();
        let is_current = |fact: Option<&[u8]>| fact == Some(current.0.as_bytes());
        let boot = if is_current(last) { Boot::Same } else { Boot::New };
        info!(?boot, boot_id = %current.0, "the boot id is known");
        crash_point::reach("before", "begin", "boot");
        self.handles.begin.do_send(Begin(boot));
        if boot == Boot::New {
            let fact = |key: &[u8]| Write::Put {
                table: Table::Facts,
                key: key.to_vec(),
                value: current.0.as_bytes().to_vec(),
            };
            // The next agent process takes this boot for a new one: no crash is reported, no more.
            self.save(vec![fact(BOOT), fact(STARTUP_OWED)], "cannot save the id of this boot", ctx);
        }
        if boot == Boot::New || is_current(owed) {
            self.tell_startup_when_started(ctx);
        }
    }

    /// Sends `startup` when every plugin that starts with the machine has started, or its time is
    /// up.
    fn tell_startup_when_started(&mut self, ctx: &mut Context<Self>) {
        let VmEventHandles { list, roster, .. } = self.handles.clone();
        let started = async move {
            let done = tokio::time::timeout(STARTUP_WAIT, have_started(list, roster)).await;
            if done.is_err() {
                warn!("some plugins take long to start; startup is sent to the others");
            }
        };
        let startup = ctx.spawn(started.into_actor(self).map(|(), this, ctx| {
            this.startup = None;
            this.tell_startup(ctx);
        }));
        self.startup = Some(startup);
    }

    /// Sends `startup`, at most once in a boot: the store records that it is no longer owed before
    /// any plugin gets it. When the agent is killed in between, the other plugins do not get it.
    fn tell_startup(&mut self, ctx: &mut Context<Self>) {
        let paid = Write::Delete { table: Table::Facts, key: STARTUP_OWED.to_vec() };
        let saving = self.handles.store.send(Save { writes: vec![paid], ..Save::default() });
        ctx.spawn(saving.into_actor(self).map(|result, this, ctx| {
            if let Ok(Err(error)) = result {
                error!(%error, "another start of the agent may send startup again");
            }
            let told = this.tell_all(NotifyVm::of(VmEvent::Startup));
            ctx.spawn(told.into_actor(this).map(|_, _, _| ()));
        }));
    }

    /// Sends the event to all running plugins at the same time, and returns the answer of each, in
    /// the order of their names. A plugin that hangs reaches its deadline and delays no other.
    fn tell_all(
        &self,
        NotifyVm { event, request, within }: NotifyVm,
    ) -> impl Future<Output = Result<Vec<Notified>, NotifyError>> + use<> {
        let (list, rpc) = (self.handles.list.clone(), self.rpc.clone());
        let answers = Answers::default();
        let asking = (event == VmEvent::Resume).then(|| self.who_asks_for(event));
        if event == VmEvent::Shutdown {
            // The manager passes this on before it answers with its list, so every plugin that gets
            // a call has it before the call is made.
            self.handles.shutdown.do_send(answers.begin());
        }
        let deadline = Instant::now() + within;
        let span = Trace::of_own("vm_event", event.name(), self.clock.now()).vm_event(event.name());
        let told = async move {
            let listed = timeout_at(deadline, list.send(ListPlugins)).await;
            let listed = listed.map_err(|_| NotifyError::NotReady)?;
            let mut plugins = listed.map_err(|_| NotifyError::Stopping)?;
            if let Some(asking) = asking {
                plugins.retain(|listed| asking.contains(&listed.view.name));
            }
            plugins.sort_by(|a, b| a.view.name.cmp(&b.view.name));
            let calls = plugins.iter().map(|Listed { view, .. }| {
                let (rpc, config) = (rpc.clone(), Config::Text(request.clone()));
                let span = tracing::error_span!("tell", plugin = %view.name, otel.end = Empty);
                let answers = &answers;
                trace::within(span, async move {
                    let told = tell(&*rpc, view, config, deadline, within).await;
                    let answer = ShutdownAnswer { pid: view.pid, outcome: told.outcome.clone() };
                    answers.add(told.plugin.clone(), answer);
                    told
                })
            });
            let told = join_all(calls).await;
            report(event, &told);
            Ok(told)
        };
        trace::within(span, told)
    }

    /// The plugins that ask for an event.
    fn who_asks_for(&self, event: VmEvent) -> BTreeSet<PluginName> {
        let filter = Filter { kind: ASKS.parse().ok(), name: event.name().parse().ok() };
        self.handles.offers.look(|catalogue| {
            catalogue.entries(&filter).map(|entry| entry.registrant.plugin.clone()).collect()
        })
    }

    /// Sends `resume` after each pause.
    fn follow_pauses(&self, ctx: &mut Context<Self>) {
        let (mut pauses, this) = (self.pauses.watch(), ctx.address().downgrade());
        let follow = async move {
            while pauses.changed().await.is_ok() {
                let kind = pauses.borrow_and_update().map(|pause| pause.kind);
                if !kind.is_some_and(PauseKind::resumes) {
                    continue;
                }
                let Some(this) = this.upgrade() else { return };
                this.do_send(Resumed);
            }
        };
        ctx.spawn(follow.into_actor(self));
    }

    fn save(&self, writes: Vec<Write>, complaint: &'static str, ctx: &mut Context<Self>) {
        let saving = self.handles.store.send(Save { writes, ..Save::default() });
        ctx.spawn(saving.into_actor(self).map(move |result, _, _| {
            if let Ok(Err(error)) = result {
                error!(%error, complaint);
            }
        }));
    }
}

impl Actor for VmEventActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        self.follow_pauses(ctx);
        let storage = self.storage.clone();
        let load = async move { storage.load(Table::Facts).await };
        ctx.wait(load.into_actor(self).map(|facts, this, ctx| {
            let facts = facts.unwrap_or_else(|error| {
                error!(error = %Chain(&error), "cannot read the facts about this machine");
                Vec::new()
            });
            let fact = |wanted: &[u8]| {
                facts.iter().find(|(key, _)| key == wanted).map(|(_, value)| value.as_slice())
            };
            this.compared(fact(BOOT), fact(STARTUP_OWED), ctx);
        }));
    }
}

/// Sent to itself: the machine stood still, and goes on.
#[derive(Message)]
#[rtype(result = "()")]
struct Resumed;

impl Handler<Resumed> for VmEventActor {
    type Result = ();

    fn handle(&mut self, _: Resumed, ctx: &mut Self::Context) {
        let told = self.tell_all(NotifyVm::of(VmEvent::Resume));
        ctx.spawn(told.into_actor(self).map(|_, _, _| ()));
    }
}

impl Handler<NotifyVm> for VmEventActor {
    type Result = ResponseFuture<Result<Vec<Notified>, NotifyError>>;

    fn handle(&mut self, notify: NotifyVm, ctx: &mut Self::Context) -> Self::Result {
        // No plugin must get `startup` after `shutdown`.
        if notify.event == VmEvent::Shutdown
            && let Some(startup) = self.startup.take()
        {
            ctx.cancel_future(startup);
        }
        Box::pin(self.tell_all(notify))
    }
}

/// The answers of plugins to the call of a shutdown, as they come.
#[derive(Default)]
struct Answers {
    all: watch::Sender<BTreeMap<PluginName, ShutdownAnswer>>,
    moved: Arc<Notify>,
}

// === impl Answers ===

impl Answers {
    fn begin(&self) -> ShutdownBegins {
        ShutdownBegins { answers: self.all.subscribe(), moved: self.moved.clone() }
    }

    fn add(&self, plugin: PluginName, answer: ShutdownAnswer) {
        self.all.send_modify(|all| drop(all.insert(plugin, answer)));
        self.moved.notify_waiters();
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        // No more come: those that wait find the sender gone.
        self.moved.notify_waiters();
    }
}

/// Resolves when no plugin is on its way to run any more.
async fn have_started(list: Recipient<ListPlugins>, mut roster: watch::Receiver<u64>) {
    loop {
        roster.mark_unchanged();
        match list.send(ListPlugins).await {
            Ok(plugins) if plugins.iter().any(|listed| is_starting(&listed.view)) => {}
            Ok(_) | Err(_) => return,
        }
        if roster.changed().await.is_err() {
            return;
        }
    }
}

/// Whether a plugin is about to run. One that is being downloaded or that crashed is not: it does
/// not belong to the start of the machine.
fn is_starting(view: &PluginView) -> bool {
    match view.state {
        // A plugin that was read back but whose process is not found yet is shown without an
        // endpoint. A one-shot plugin never has an endpoint, and gets no events.
        Reported::Running => view.endpoint.is_none() && view.spec.execution.one_shot().is_none(),
        Reported::Starting | Reported::Stopping | Reported::Stopped => {
            view.activity == Activity::Busy
        }
        Reported::Installing
        | Reported::InstallFailed
        | Reported::Crashed
        | Reported::ExecutionCompleted
        | Reported::ExecutionFailed => false,
    }
}

async fn tell(
    rpc: &dyn PluginRpc,
    view: &PluginView,
    config: Config,
    deadline: Instant,
    within: Duration,
) -> Notified {
    let outcome = match &view.endpoint {
        Some(endpoint) => {
            // The adapter has a deadline of its own, which may be later or not be kept.
            let call = timeout_at(deadline, rpc.apply(endpoint, Some(config))).await;
            match call.unwrap_or(Err(RpcError::TimedOut(within))) {
                Ok(()) => Notification::Delivered,
                Err(RpcError::Unimplemented) => Notification::NotInterested,
                Err(error) => Notification::Failed(error),
            }
        }
        None => Notification::NotRunning,
    };
    Notified { plugin: view.name.clone(), outcome }
}

fn report(event: VmEvent, told: &[Notified]) {
    let mut count = 0_usize;
    for Notified { plugin, outcome } in told {
        match outcome {
            Notification::Delivered => count += 1,
            Notification::NotInterested | Notification::NotRunning => {
                debug!(%event, %plugin, ?outcome, "not told");
            }
            Notification::Failed(error) => {
                warn!(%event, %plugin, %error, "a plugin did not take a VM event");
            }
        }
    }
    info!(%event, told = count, plugins = told.len(), "sent a VM event to the plugins");
}
