//! One stream of one agent: its task, which alone writes the agent's journal while it lives.

mod ending;
mod events;
mod journal;
mod keeping;
mod looking;
mod looks;
mod needs;
mod recorded;
mod reported;
mod sending;
mod steps;
mod upkeep;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use guest_agent_proto::agent_communication::{ErrorReason, MessageBody};
use guest_agent_proto::agent_controlplane::{AgentInfo, CurrentPluginStates};
use guest_agent_proto::fleet::AgentReport;
use guest_agent_proto::rpc;
use guest_agent_serve_kit::lock::lock;
use guest_fleet_core::desired::desired;
use guest_fleet_core::journal::{self as core_journal, Generations, Next, Situation};
use guest_fleet_core::view::Target;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::report::ReportRecord;
use guest_fleet_sessions::desk::{OpenSession, busy_pause};
use guest_fleet_sessions::messages::{self, unpacked};
use guest_fleet_sessions::refusal;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tonic::{Code, Status};

use super::compose;
use super::observed::{self, Told};
use super::shared::{Shared, UnknownAgents, unavailable};
use super::view::Known;
use crate::chain::Chain;
use crate::gateways::needs::Needs;
use crate::simulated::removed::{self, Guard};
use journal::{Journal, SaveError};
use keeping::Keeping;
use looks::{Looks, Source};
use sending::{Sending, carry_out};

/// How long an acknowledgement is awaited before an order is sent again.
const RESEND: Duration = Duration::from_secs(2);

/// How often an order is sent on one stream before the stream is of no use.
const ATTEMPTS: u32 = 5;

/// Most orders that are recorded with one write of the journal; the others follow.
const ORDERS_AT_ONCE: usize = 32;

/// Most bytes of orders that one write of the journal adds.
const BYTES_AT_ONCE: usize = 2 << 20;

/// How soon it is looked again whether the view is from after the fence.
const VIEW_PAUSE: Duration = Duration::from_millis(200);

/// How often everything is looked at where nothing changed: holds end, windows open.
const LOOK: Duration = Duration::from_secs(10);

/// How often at most it is asked after something happened with its plugins.
const RELIST: Duration = Duration::from_secs(5);

/// What reaches the task.
pub(super) enum Input {
    /// A body came.
    Received { id: String, body: MessageBody, done: oneshot::Sender<Result<(), rpc::Status>> },
    /// A message was answered.
    Answered { id: String, status: Option<rpc::Status> },
    /// The agent's record may have changed.
    RecordChanged,
}

/// The task.
pub(super) struct AgentTask {
    shared: Arc<Shared>,
    session: Arc<OpenSession>,
    inputs: mpsc::Receiver<Input>,
    record: AgentRecord,
    journal: Journal,
    told: Told,
    /// The last events, by plugin.
    logged: HashMap<String, recorded::Logged>,
    /// Orders that were handed over on this stream and not answered, by plugin. The guards look
    /// here, so that what is taken out does not leave any more.
    flights: Arc<Mutex<BTreeMap<String, Flight>>>,
    keeping: Keeping,
    /// Since when the former session of the agent gives no orders any more, on the clock since boot;
    /// zero where there was none.
    fenced_at: Duration,
    asked_at: Option<Instant>,
    /// When the list came that was taken in last, for agents that send no report.
    observed_at: Option<Instant>,
    /// When it is recorded again that the agent was seen.
    seen_next: Instant,
    looks: Looks,
}

struct Flight {
    message_id: String,
    resend_at: Instant,
    sendings: u32,
    unanswered: u32,
}

// === impl AgentTask ===

impl AgentTask {
    /// Reads what the ledger knows of the agent, and fences the session before this one.
    pub(super) async fn begin(
        shared: Arc<Shared>,
        session: Arc<OpenSession>,
        inputs: mpsc::Receiver<Input>,
    ) -> Result<Self, Status> {
        let unreadable = |error: &dyn std::error::Error| {
            tracing::error!(resource = %session.resource, error = %Chain(error), "the agent's records were not read");
            Status::unavailable("the agent's records cannot be read now")
        };
        let found = recorded::load(&*shared.ledger, &session.resource).await;
        let record = match found.map_err(|error| unreadable(&error))? {
            Some(record) => record,
            None if shared.settings.unknown_agents == UnknownAgents::TakenIn => {
                recorded::take_in(&*shared.ledger, &session.resource, shared.now())
                    .await
                    .map_err(|error| unreadable(&error))?
            }
            None => {
                return Err(Status::permission_denied(format!(
                    "the agent `{}` is not enrolled in this fleet, whose ledger has no record of it: make a \
                     token (`guest-fleet token create`) and run `guest-agent enroll` on it",
                    session.resource
                )));
            }
        };
        let now = shared.settings.environment.wall();
        let record = match recorded::is_outdated(&record, shared.now()) {
            true => {
                recorded::seen(&*shared.ledger, &session.resource, shared.now()).await;
                AgentRecord { archived: None, ..record }
            }
            false => record,
        };
        let mut begun = None;
        let journal = Journal::open(
            shared.ledger.clone(),
            shared.settings.environment.clone(),
            shared.settings.figures.clone(),
            shared.settings.spans.clone(),
            (&session.resource, shared.views.id()),
            now,
            &mut begun,
        );
        let journal = journal.await.map_err(|error| {
            if let Some(ending) = begun {
                tokio::spawn(ending.record(shared.clone()));
            }
            unreadable(&error)
        })?;
        let seen_next = Instant::now()
            + recorded::SEEN
            + shared.settings.environment.jittered(recorded::SEEN_SPREAD);
        let had_former = journal.draft().fenced().is_some();
        let since_boot = shared.settings.environment.since_boot();
        let fenced_at = if had_former { since_boot } else { Duration::ZERO };
        let looks = Looks::new(&journal);
        Ok(Self {
            shared,
            session,
            inputs,
            told: Told::by(&record),
            record,
            journal,
            logged: HashMap::new(),
            flights: Arc::default(),
            keeping: Keeping::default(),
            fenced_at,
            asked_at: None,
            observed_at: None,
            seen_next,
            looks,
        })
    }

    pub(super) async fn run(mut self) {
        let ending = self.shared.ending.clone();
        let ended = tokio::select! {
            biased;
            // Whatever is being done: a write that was begun is carried out or not, whole. The end of the gateway
            // is that of all its sessions.
            () = ending.cancelled() => None,
            ended = self.serve() => Some(ended),
        };
        // Nothing that waits for room in the transport leaves any more.
        lock(&self.flights).clear();
        self.shared.views.needs(self.session.stream, Needs::default());
        let is_over = ended.is_some();
        if let Some(Err(status)) = ended {
            tracing::info!(resource = %self.session.resource, %status, "the agent's stream is ended");
            self.session.end(status);
        }
        if is_over {
            let (shared, ending) = (self.shared.clone(), self.journal.ending());
            // Messages that still wait are answered: nobody takes them.
            drop(self);
            ending.record(shared).await;
        }
    }

    async fn serve(&mut self) -> Result<(), Status> {
        self.ask();
        let shared = self.shared.clone();
        loop {
            let changed = shared.views.changed();
            tokio::pin!(changed);
            // A change while it acts counts as well.
            changed.as_mut().enable();
            let next = self.act().await?;
            tokio::select! {
                biased;
                input = self.inputs.recv() => match input {
                    Some(input) => self.input(input).await?,
                    None => return Ok(()),
                },
                () = changed => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    async fn input(&mut self, input: Input) -> Result<(), Status> {
        match input {
            Input::Received { id, body, done } => {
                let recorded = self.received(&id, &body).await;
                let (answer, ending) = match recorded {
                    Ok(()) => (Ok(()), None),
                    Err(Refused::Message(status)) => (Err(status), None),
                    Err(Refused::Stream(status)) => {
                        (Err(unavailable("another session took over")), Some(status))
                    }
                };
                // It fails only when the session gave up waiting.
                drop(done.send(answer));
                ending.map_or(Ok(()), Err)
            }
            Input::Answered { id, status } => self.answered(&id, status.as_ref()).await,
            Input::RecordChanged => {
                match recorded::load(&*self.shared.ledger, &self.session.resource).await {
                    Ok(Some(record)) => {
                        // It is connected: so it is in no archive.
                        if record.archived.is_some() {
                            let now = self.shared.now();
                            recorded::seen(&*self.shared.ledger, &record.id, now).await;
                        }
                        self.record = AgentRecord { archived: None, ..record };
                    }
                    Ok(None) => {
                        return Err(Status::permission_denied(
                            "the agent was taken out of the fleet",
                        ));
                    }
                    Err(error) => tracing::warn!(
                        resource = %self.session.resource,
                        error = %Chain(&error),
                        "the agent's record was not read again"
                    ),
                }
                Ok(())
            }
        }
    }

    async fn received(&mut self, id: &str, body: &MessageBody) -> Result<(), Refused> {
        match messages::message_type(body) {
            messages::PLUGIN_EVENT => self.event(id, unpacked(body)?).await,
            messages::CURRENT_PLUGIN_STATES => {
                let request = body.labels.get(messages::REQUEST_ID).map_or("", String::as_str);
                let states = observed::bounded_list(unpacked::<CurrentPluginStates>(body)?);
                let is_newest = self.told.list(states, request, Instant::now());
                let source = if is_newest { Source::List } else { Source::OtherList };
                self.observe(source).await.map_err(Refused::from)
            }
            messages::AGENT_INFO => {
                self.told.info(unpacked::<AgentInfo>(body)?);
                Ok(())
            }
            messages::AGENT_REPORT => {
                let report = observed::bounded(unpacked::<AgentReport>(body)?);
                let (agent, now) = (self.session.resource.clone(), self.shared.now());
                reported::claimed(&*self.shared.ledger, &agent, &report, now).await;
                // It may be in quarantine since this very report, and gets no order then.
                if let Ok(Some(record)) = recorded::load(&*self.shared.ledger, &agent).await {
                    self.record = record;
                }
                self.keep(reported::of_report(&report)).await;
                self.told.report(report);
                self.observe(Source::Report).await.map_err(Refused::from)
            }
            other => {
                // A newer agent may know more; a refusal would make it send the message for ever.
                tracing::debug!(message_type = other, "a message is not kept");
                Ok(())
            }
        }
    }

    /// Keeps a report or a list in the ledger.
    async fn keep(&mut self, report: ReportRecord) {
        self.keeping.keep(&self.shared, &self.session.resource, report).await;
    }

    async fn answered(&mut self, id: &str, status: Option<&rpc::Status>) -> Result<(), Status> {
        let Some(plugin) = self.journal.carried_by(id) else { return Ok(()) };
        let is_busy = status.is_some_and(|s| s.code == i32::from(Code::ResourceExhausted));
        if is_busy {
            if let Some(flight) = lock(&self.flights).get_mut(&plugin) {
                // The agent answers and is only busy: the stream is of use.
                flight.unanswered = 0;
                flight.resend_at = Instant::now() + busy_pause(flight.sendings);
            }
            return Ok(());
        }
        let refused = status.filter(|status| status.code != 0);
        let told = match refused {
            Some(status) => core_journal::Told::Refused(&status.message),
            None => core_journal::Told::Acknowledged,
        };
        let now = self.shared.settings.environment.wall();
        let saved = self.journal.change(|journal| journal.told(&plugin, &told, now)).await;
        match saved {
            Ok(()) => {
                lock(&self.flights).remove(&plugin);
                Ok(())
            }
            Err(SaveError::Replaced) => Err(journal::replaced()),
            // It stays in flight, is sent again, and the agent answers again.
            Err(SaveError::Failed | SaveError::Outdated) => Ok(()),
        }
    }

    /// Orders what is due; returns when to look again.
    async fn act(&mut self) -> Result<Instant, Status> {
        let now = Instant::now();
        let look = now + self.shared.settings.environment.jittered(LOOK);
        if self.keeping.due().is_some_and(|at| at <= now) {
            self.keep_again().await?;
        }
        self.look_after(now).await;
        // Without a fresh view nothing leaves; its renewal wakes this task.
        let Some(known) = self.shared.views.fresh() else { return Ok(now + RESEND) };
        // The former session may have ordered on a newer view than this one, and its order must not be
        // taken back by an older wish.
        if known.as_of.is_none_or(|as_of| as_of < self.fenced_at) && !removed::is_view_age() {
            self.shared.views.want();
            return Ok(now + VIEW_PAUSE);
        }
        let planned = match self.observe_list(now).await {
            Ok(()) => self.plan(&known, now).await,
            Err(error) => Err(error),
        };
        let (sendings, more) = match planned {
            Ok(planned) => planned,
            Err(SaveError::Replaced) => return Err(journal::replaced()),
            Err(SaveError::Failed | SaveError::Outdated) => return Ok(now + RESEND),
        };
        // The journal took time.
        if known.as_of.is_some_and(|as_of| self.shared.views.is_fresh(as_of))
            || removed::is(Guard::ViewAgeAfterJournal)
        {
            for sending in sendings {
                self.hand_over(sending, &known, now)?;
            }
        }
        // What is due and waits for a list is sent when that comes.
        let resends = |flight: &Flight| (flight.resend_at > now).then_some(flight.resend_at);
        let resend = lock(&self.flights).values().filter_map(resends).min();
        let known_at = self.told.known_at().filter(|at| *at > now);
        let relist = self.told.needs_list().then(|| self.asked_at.unwrap_or(now) + RELIST);
        let relist = relist.filter(|at| *at > now);
        let second_look = self.looks.due(self.shared.settings.drift_apart);
        let second_look = second_look.filter(|at| *at > now);
        let more = more.then_some(now);
        let soonest = [Some(look), resend, known_at, relist, second_look, self.keeping.due(), more];
        Ok(soonest.into_iter().flatten().min().unwrap_or(look))
    }

    /// Whether the agent keeps generations.
    fn generations(&self) -> Generations {
        self.told.generations(self.shared.settings.late_orders)
    }

    /// Decides, and records what is to be sent. True when there is more than one write takes.
    async fn plan(
        &mut self,
        known: &Known,
        now: Instant,
    ) -> Result<(Vec<Sending>, bool), SaveError> {
        let view = known.configuration.view();
        let agent = self.decided_on(now);
        let settings = &self.shared.settings;
        let wall = settings.environment.wall();
        let decisions = desired(view, &agent, wall, &*settings.zones);
        let plugins = self.told.plugins(now);
        let generations = self.generations();
        let mut journal = self.journal.draft();
        let needs = needs::Ground {
            view,
            agent: &agent,
            decisions: &decisions,
            repairs: settings.repairs,
            now: wall,
            zones: &*settings.zones,
        }
        .needs(&journal, |plugin| self.told.plugin(plugins.as_ref(), plugin));
        self.shared.views.needs(self.session.stream, needs);
        let mut sendings = Vec::new();
        let mut bytes = 0;
        let mut more = false;
        // What may not be handed over any more, or was settled by an event, is not waited for either.
        lock(&self.flights).retain(|plugin, flight| {
            (decisions.get(plugin).is_some_and(|decision| decision.permission.is_go())
                || removed::is(Guard::Supersede))
                && journal.is_unanswered(plugin, &flight.message_id)
        });
        for (plugin, decision) in &decisions {
            if !decision.permission.is_go() {
                continue;
            }
            let composed = self.shared.composer.body(
                &known.configuration,
                plugin,
                &decision.target,
                &agent.architecture,
            );
            let body = match composed {
                Ok(body) => body,
                Err(error) => {
                    lock(&self.flights).remove(plugin);
                    let order = journal.entry(plugin).order;
                    if error.is_for_a_moment() {
                        self.shared.views.want();
                    } else if order
                        .is_none_or(|it| !(it.asks_for(decision) && it.state.is_settled()))
                    {
                        tracing::warn!(resource = %agent.id, plugin, %error, "an order cannot be made");
                    }
                    continue;
                }
            };
            let mut observed = self.told.plugin(plugins.as_ref(), plugin);
            if removed::is(Guard::RemoveWhatIsThere) && decision.target == Target::Absent {
                observed.get_or_insert_default().pending = Some(String::new());
            }
            let entry = journal.entry(plugin);
            let situation = Situation {
                observed: observed.as_ref(),
                generations,
                fenced: journal.fenced(),
                leave: needs::leave(view, decision, &agent, &entry),
                now: wall,
            };
            let next = core_journal::next(decision, &body.digests, &entry, &situation);
            if !matches!(next, Next::Order { .. } | Next::Repeat | Next::Again) {
                // What was handed over before is not what is wanted now, or was answered.
                lock(&self.flights).remove(plugin);
            }
            let is_new = matches!(next, Next::Order { .. } | Next::Repeat);
            if is_new && (sendings.len() >= ORDERS_AT_ONCE || bytes >= BYTES_AT_ONCE) {
                more = true;
                continue;
            }
            bytes += if is_new { body.bytes.len() } else { 0 };
            // What an agent without generations has done already, it must not be sent again.
            let is_known = generations == Generations::Kept || observed.is_some();
            let is_due = |id: &str| {
                let flights = lock(&self.flights);
                let flight = flights.get(plugin).filter(|flight| flight.message_id == id);
                is_known && flight.is_none_or(|flight| now >= flight.resend_at)
            };
            let of = (plugin.as_str(), observed.as_ref());
            sendings.extend(carry_out(&mut journal, of, decision, &body, next, wall, is_due));
        }
        if removed::is(Guard::Supersede) {
            sendings.extend(
                journal.names().iter().filter_map(|plugin| sending::again(&journal, plugin)),
            );
        }
        if removed::is(Guard::JournalFirst) {
            for sending in sendings.drain(..) {
                drop(self.hand_over(sending, known, now));
            }
        }
        let views = &self.shared.views;
        let is_valid = || {
            known.as_of.is_some_and(|as_of| views.is_fresh(as_of))
                || removed::is(Guard::ViewAgeBeforeJournal)
        };
        self.journal.save(journal, is_valid).await?;
        Ok((sendings, more))
    }

    /// Hands an order to the stream, guarded.
    fn hand_over(&mut self, sending: Sending, known: &Known, now: Instant) -> Result<(), Status> {
        let Sending { plugin, message_id, generation, body } = sending;
        let mut flights = lock(&self.flights);
        let former = flights.get(&plugin).filter(|flight| flight.message_id == message_id);
        let (sendings, unanswered) =
            former.map_or((0, 0), |flight| (flight.sendings, flight.unanswered));
        if unanswered >= ATTEMPTS {
            return Err(refusal(
                Code::DeadlineExceeded,
                ErrorReason::MessageNotAcked,
                "an order was sent several times and never acknowledged",
            ));
        }
        self.told.outdated(&plugin);
        let (guarded, views) = (self.flights.clone(), self.shared.views.clone());
        let as_of = known.as_of.unwrap_or_default();
        let (guarded_plugin, guarded_id) = (plugin.clone(), message_id.clone());
        // Asked here, because another thread may ask the guard.
        let is_unguarded = removed::is(Guard::ViewAgeAtHandOver);
        let figures = self.shared.settings.figures.clone();
        let guard = Box::new(move || {
            let flights = lock(&guarded);
            let flight = flights.get(&guarded_plugin);
            let leaves = (views.is_fresh(as_of) || is_unguarded)
                && flight.is_some_and(|flight| flight.message_id == guarded_id);
            if leaves {
                figures.order_frame();
            }
            leaves
        });
        let frame = compose::frame(&message_id, generation, body);
        let is_queued = self.session.hand_over(frame, guard);
        let flight = Flight {
            message_id,
            // Where the queue was full, it is tried again like an order without an answer.
            resend_at: now + RESEND,
            sendings: sendings.saturating_add(1),
            unanswered: unanswered + u32::from(is_queued),
        };
        // The guard is asked on another task, which finds the flight: the lock is still held.
        flights.insert(plugin, flight);
        Ok(())
    }
}

/// Why a message of an agent was not taken.
enum Refused {
    /// The agent should send it again, or cannot.
    Message(rpc::Status),
    /// The stream ends.
    Stream(Status),
}

impl From<rpc::Status> for Refused {
    fn from(status: rpc::Status) -> Self {
        Self::Message(status)
    }
}

impl From<SaveError> for Refused {
    fn from(error: SaveError) -> Self {
        match error {
            SaveError::Replaced => Self::Stream(journal::replaced()),
            SaveError::Failed | SaveError::Outdated => {
                Self::Message(unavailable("the ledger did not take it"))
            }
        }
    }
}
