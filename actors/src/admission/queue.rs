//! Which checks wait, which were answered, and whether an admission plugin is needed. Pure:
//! [`AdmissionQueue::step`] takes an input and returns the actions.
//!
//! ```text
//!   Absent ──asked──► Starting ──listed──► Serving ──hung up──► Lost
//!     ▲                  │ 30 s, ended, wrong version  │ ended    │ ended, 50 ms
//!     └──nobody waits── Pausing ◄──────────────────────┴──────────┘
//!                        └──somebody waits──► Starting
//! ```
//!
//! Callers with the same content share one check, and an answer of the plugin is remembered until
//! the settings are read again. Checks that a plugin cannot answer any more because it ended are
//! denied and not remembered: a later question goes to the next plugin process, which is started
//! after a growing pause.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::question::{CheckId, Metadatum, Offer, ProcessRun, Question};
use super::verdict::AdmissionVerdict;
use crate::model::id::Sha256Digest;
use crate::plugin::restart::RestartPolicy;
use crate::ports::{AdmissionCommand, ListRefused};

/// The supported version of the protocol.
const PROTOCOL_VERSION: i32 = 1;

/// How long a plugin may take from its launch to its ListAdmissions.
const CONNECT_WAIT: Duration = Duration::from_secs(30);

/// How long to wait for the exit status of a plugin that closed its stream.
const EXIT_WAIT: Duration = Duration::from_millis(50);

/// Most checks that may wait.
pub const OPEN_MAX: usize = 10_000;

/// Most answers that are remembered; the oldest goes first.
const ANSWERED_MAX: usize = 4096;

/// The pause before another plugin is started.
const PAUSES: RestartPolicy = RestartPolicy {
    initial: Duration::from_millis(200),
    max: Duration::from_secs(15),
    calm: Duration::from_secs(600),
};

/// The number of a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Asker(pub u64);

/// The settings of the admission plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gate {
    /// The command that starts the plugin; without it everything is admitted.
    pub command: Option<AdmissionCommand>,
    /// How long a caller waits for its verdict.
    pub timeout: Duration,
}

/// An input of the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A caller has a question.
    Asked {
        /// The caller. Each has a number of its own.
        asker: Asker,
        /// The control plane that deploys.
        service_url: Arc<str>,
        /// The question.
        question: Question,
        /// The time.
        at: SystemTime,
    },
    /// A caller does not wait any more.
    Forgotten {
        /// The caller.
        asker: Asker,
    },
    /// A plugin called ListAdmissions.
    Listed {
        /// The run of the plugin.
        life: ProcessRun,
        /// The version of the protocol that it speaks.
        protocol_version: i32,
    },
    /// A plugin called ResolveAdmission.
    Resolved {
        /// The run of the plugin.
        life: ProcessRun,
        /// The id of the check, as the plugin sent it.
        id: String,
        /// Its verdict.
        verdict: AdmissionVerdict,
    },
    /// A plugin closed its end of the stream.
    HungUp {
        /// The run of the plugin.
        life: ProcessRun,
    },
    /// A plugin's process ended, or could not be made.
    Ended {
        /// The run of the plugin.
        life: ProcessRun,
        /// How it ended, in words.
        how: Arc<str>,
    },
    /// A deadline has passed.
    DeadlinePassed(Wait),
    /// The settings were read again.
    Reconfigured(Gate),
    /// The agent is stopping.
    Closed,
}

/// The subject of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Wait {
    /// The verdict for a caller.
    Answer(Asker),
    /// A plugin's ListAdmissions.
    Connect(ProcessRun),
    /// How a plugin that closed its stream ended.
    Exit(ProcessRun),
    /// The pause before another plugin.
    Retry,
}

/// An action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Answer a caller. Each gets one answer.
    Tell {
        /// The caller.
        asker: Asker,
        /// The verdict.
        verdict: AdmissionVerdict,
    },
    /// Start a plugin; the input `Ended` follows at its end.
    Launch {
        /// The number of its run.
        life: ProcessRun,
        /// The command.
        command: AdmissionCommand,
    },
    /// Send a check on the plugin's stream.
    Offer {
        /// The run of the plugin.
        life: ProcessRun,
        /// The check.
        offer: Arc<Offer>,
    },
    /// Answer the ListAdmissions that was just made.
    AnswerList(Result<(), ListRefused>),
    /// Close the plugin's stream and ask the plugin to exit.
    End {
        /// The run of the plugin.
        life: ProcessRun,
        /// The reason, for the log; empty when nothing is wrong.
        why: Arc<str>,
    },
}

impl Default for Gate {
    fn default() -> Self {
        Self { command: None, timeout: Duration::from_secs(60) }
    }
}

/// The state of all checks.
#[derive(Clone, Debug)]
pub struct AdmissionQueue {
    salt: [u8; 32],
    gate: Gate,
    checks: BTreeMap<CheckId, Check>,
    /// The callers, by check.
    askers: BTreeMap<Asker, CheckId>,
    /// Checks that wait.
    open: usize,
    /// Checks that are answered, the oldest first.
    answered: VecDeque<CheckId>,
    plugin: Plugin,
    /// How many plugins in a row ended without an answer.
    failures: u32,
    last_life: ProcessRun,
    last_number: u64,
    closed: bool,
}

#[derive(Clone, Debug)]
struct Check {
    offer: Arc<Offer>,
    metadata: Vec<Metadatum>,
    state: Progress,
}

#[derive(Clone, Debug)]
enum Progress {
    /// The plugin has not answered.
    Open {
        /// The sequence in which checks came.
        number: u64,
        askers: Vec<Asker>,
        /// Set when the check was sent to the present plugin, to the number of its answers until
        /// then.
        offered: Option<u64>,
    },
    /// The plugin has answered.
    Answered(AdmissionVerdict),
}

/// The plugin that gets the questions.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Plugin {
    /// No plugin runs, and no check needs one.
    Absent,
    /// No plugin runs, and the next one has to wait.
    Pausing,
    /// It is started; its stream does not exist yet.
    Starting(ProcessRun),
    /// It has a stream, and has given so many answers.
    Serving(ProcessRun, u64),
    /// It closed its stream; its exit status may have the reason.
    Lost(ProcessRun),
}

// === impl AdmissionQueue ===

impl AdmissionQueue {
    /// An empty queue. The salt makes its ids unique.
    #[must_use]
    pub fn new(salt: [u8; 32], gate: Gate) -> Self {
        Self {
            salt,
            gate,
            checks: BTreeMap::new(),
            askers: BTreeMap::new(),
            open: 0,
            answered: VecDeque::new(),
            plugin: Plugin::Absent,
            failures: 0,
            last_life: ProcessRun(0),
            last_number: 0,
            closed: false,
        }
    }

    /// Takes an input, and returns the actions in order.
    #[must_use = "effects that are not carried out are lost"]
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let does = &mut effects;
        match event {
            Event::Asked { asker, service_url, question, at } => {
                self.asked(asker, &service_url, question, at, does);
            }
            Event::Forgotten { asker } => self.forget(asker),
            Event::Listed { life, protocol_version } => self.listed(life, protocol_version, does),
            Event::Resolved { life, id, verdict } => self.resolved(life, &id, &verdict, does),
            Event::HungUp { life } => {
                if matches!(self.plugin, Plugin::Serving(serving, _) if serving == life) {
                    self.plugin = Plugin::Lost(life);
                }
            }
            Event::Ended { life, how } => self.ended(life, &how, does),
            Event::DeadlinePassed(Wait::Answer(asker)) => self.too_late(asker, does),
            Event::DeadlinePassed(Wait::Connect(life)) => {
                if self.plugin == Plugin::Starting(life) {
                    let why = format!(
                        "the admission plugin did not call ListAdmissions within {}s",
                        CONNECT_WAIT.as_secs()
                    );
                    self.deny_all(&why, does);
                    self.let_go(life, &why, does);
                    self.fail();
                }
            }
            Event::DeadlinePassed(Wait::Exit(life)) => {
                if self.plugin == Plugin::Lost(life) {
                    let why = "the admission plugin closed its connection before it answered";
                    self.deny_offered(why, does);
                    self.let_go(life, why, does);
                    self.fail();
                }
            }
            Event::DeadlinePassed(Wait::Retry) => {
                if self.plugin == Plugin::Pausing {
                    self.plugin = Plugin::Absent;
                    self.launch_if_needed(does);
                }
            }
            Event::Reconfigured(gate) => self.reconfigured(gate, does),
            Event::Closed => {
                self.closed = true;
                self.close_checks(|_| true, &AdmissionVerdict::Closing, does);
                if let Some(life) = self.life() {
                    self.let_go(life, "", does);
                }
                self.plugin = Plugin::Absent;
            }
        }
        effects
    }

    /// The deadline of the plugin, if it has one, and its length from when it began.
    #[must_use]
    pub fn deadline(&self) -> Option<(Wait, Duration)> {
        match self.plugin {
            Plugin::Absent | Plugin::Serving(..) => None,
            Plugin::Pausing => Some((Wait::Retry, self.pause())),
            Plugin::Starting(life) => Some((Wait::Connect(life), CONNECT_WAIT)),
            Plugin::Lost(life) => Some((Wait::Exit(life), EXIT_WAIT)),
        }
    }

    /// How long a caller waits for its verdict.
    #[must_use]
    pub const fn patience(&self) -> Duration {
        self.gate.timeout
    }

    /// The plugin that gets the questions now, or that is being started for them.
    #[must_use]
    pub const fn life(&self) -> Option<ProcessRun> {
        match self.plugin {
            Plugin::Absent | Plugin::Pausing => None,
            Plugin::Starting(life) | Plugin::Serving(life, _) | Plugin::Lost(life) => Some(life),
        }
    }

    /// Whether there is no plugin to ask, so that everything is admitted.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.gate.command.is_none() && !self.closed
    }

    /// The number of checks that wait for an answer.
    #[must_use]
    pub const fn open(&self) -> usize {
        self.open
    }

    /// The metadata of a package's content, the newest first.
    #[must_use]
    pub fn describe(
        &self,
        service_url: &str,
        package: &str,
        sha256: Sha256Digest,
    ) -> Vec<Metadatum> {
        let id = CheckId::of(&self.salt, service_url, package, sha256);
        self.checks.get(&id).map(|check| check.metadata.clone()).unwrap_or_default()
    }

    fn asked(
        &mut self,
        asker: Asker,
        service_url: &Arc<str>,
        question: Question,
        at: SystemTime,
        does: &mut Vec<Effect>,
    ) {
        let mut tell = |verdict| does.push(Effect::Tell { asker, verdict });
        if self.closed {
            return tell(AdmissionVerdict::Closing);
        }
        if self.gate.command.is_none() {
            return tell(AdmissionVerdict::Admitted);
        }
        let Question { package, sha256, metadata } = question;
        let id = CheckId::of(&self.salt, service_url, &package, sha256);
        let metadata = metadata.into_iter().map(|(key, value)| Metadatum { key, value, at });
        if let Some(check) = self.checks.get_mut(&id) {
            check.metadata = newest_first(&check.metadata, metadata);
            match &mut check.state {
                Progress::Answered(verdict) => return tell(verdict.clone()),
                Progress::Open { askers, .. } => askers.push(asker),
            }
            self.askers.insert(asker, id);
            return;
        }
        if self.open >= OPEN_MAX {
            return tell(denied("too many checks wait for the admission plugin already"));
        }
        self.last_number += 1;
        let number = self.last_number;
        let service_url = service_url.clone();
        let offer = Arc::new(Offer { id: id.clone(), service_url, package, sha256 });
        let mut offered = None;
        if let Plugin::Serving(life, answers) = self.plugin {
            offered = Some(answers);
            does.push(Effect::Offer { life, offer: offer.clone() });
        }
        let state = Progress::Open { number, askers: vec![asker], offered };
        self.checks.insert(id.clone(), Check { offer, metadata: metadata.collect(), state });
        self.askers.insert(asker, id);
        self.open += 1;
        self.launch_if_needed(does);
    }

    fn forget(&mut self, asker: Asker) {
        let Some(id) = self.askers.remove(&asker) else { return };
        if let Some(Check { state: Progress::Open { askers, .. }, .. }) = self.checks.get_mut(&id) {
            askers.retain(|waiting| *waiting != asker);
            if askers.is_empty() {
                self.checks.remove(&id);
                self.open -= 1;
            }
        }
    }

    fn listed(&mut self, life: ProcessRun, protocol_version: i32, does: &mut Vec<Effect>) {
        let refuse = |why: &str| Effect::AnswerList(Err(ListRefused(why.into())));
        match self.plugin {
            Plugin::Starting(starting) if starting == life => {}
            Plugin::Serving(serving, _) | Plugin::Lost(serving) if serving == life => {
                does.push(refuse("ListAdmissions was called before; it may be called once"));
                return;
            }
            Plugin::Absent
            | Plugin::Pausing
            | Plugin::Starting(_)
            | Plugin::Serving(..)
            | Plugin::Lost(_) => {
                does.push(refuse(
                    "the agent does not use this plugin process any more; it must exit",
                ));
                return;
            }
        }
        if protocol_version != PROTOCOL_VERSION {
            let why = format!(
                "the admission plugin speaks version {protocol_version} of the protocol, this agent \
                 version {PROTOCOL_VERSION}; install a plugin of this version"
            );
            does.push(refuse(&why));
            self.deny_all(&why, does);
            self.let_go(life, &why, does);
            self.fail();
            return;
        }
        does.push(Effect::AnswerList(Ok(())));
        self.plugin = Plugin::Serving(life, 0);
        let mut waiting = Vec::with_capacity(self.open);
        for check in self.checks.values_mut() {
            if let Progress::Open { number, offered, .. } = &mut check.state {
                *offered = Some(0);
                waiting.push((*number, check.offer.clone()));
            }
        }
        waiting.sort_unstable_by_key(|(number, _)| *number);
        does.extend(waiting.into_iter().map(|(_, offer)| Effect::Offer { life, offer }));
    }

    fn resolved(
        &mut self,
        life: ProcessRun,
        id: &str,
        verdict: &AdmissionVerdict,
        does: &mut Vec<Effect>,
    ) {
        // An unknown id belongs to a check that was given up, or never existed: it is ignored.
        let Some((id, _)) = self.checks.get_key_value(id) else { return };
        let id = id.clone();
        match &mut self.plugin {
            Plugin::Serving(serving, answers) if *serving == life => *answers += 1,
            Plugin::Lost(lost) if *lost == life => {}
            Plugin::Absent
            | Plugin::Pausing
            | Plugin::Starting(_)
            | Plugin::Serving(..)
            | Plugin::Lost(_) => return,
        }
        let Some(check) = self.checks.get_mut(&id) else { return };
        let Progress::Open { askers, offered: Some(_), .. } = &mut check.state else { return };
        let askers = std::mem::take(askers);
        check.state = Progress::Answered(verdict.clone());
        self.failures = 0;
        self.open -= 1;
        self.answered.push_back(id);
        if self.answered.len() > ANSWERED_MAX
            && let Some(oldest) = self.answered.pop_front()
        {
            self.checks.remove(&oldest);
        }
        self.tell(askers, verdict, does);
    }

    fn ended(&mut self, life: ProcessRun, how: &str, does: &mut Vec<Effect>) {
        match self.plugin {
            Plugin::Starting(starting) if starting == life => {
                self.deny_all(&format!("the agent cannot ask the admission plugin: {how}"), does);
            }
            Plugin::Serving(serving, _) | Plugin::Lost(serving) if serving == life => {
                self.deny_offered(&format!("the admission plugin ended: {how}"), does);
            }
            // The process of a plugin that the agent does not use any more has ended, as it should.
            Plugin::Absent
            | Plugin::Pausing
            | Plugin::Starting(_)
            | Plugin::Serving(..)
            | Plugin::Lost(_) => return,
        }
        self.fail();
    }

    /// A caller has waited long enough. A plugin that has answered no check since it got this one
    /// hangs, and is replaced; the checks of the other callers go to the next plugin.
    fn too_late(&mut self, asker: Asker, does: &mut Vec<Effect>) {
        let Some(id) = self.askers.get(&asker).cloned() else { return };
        let offered = match self.checks.get(&id).map(|check| &check.state) {
            Some(Progress::Open { offered, .. }) => *offered,
            Some(Progress::Answered(_)) | None => None,
        };
        let seconds = self.gate.timeout.as_secs_f32();
        let why = format!("the admission plugin did not answer within {seconds}s");
        self.forget(asker);
        does.push(Effect::Tell { asker, verdict: denied(&why) });
        if let Plugin::Serving(life, answers) = self.plugin
            && offered == Some(answers)
        {
            self.let_go(life, &why, does);
            self.take_back();
            self.fail();
        }
    }

    fn reconfigured(&mut self, gate: Gate, does: &mut Vec<Effect>) {
        for id in std::mem::take(&mut self.answered) {
            self.checks.remove(&id);
        }
        let before = std::mem::replace(&mut self.gate, gate);
        if before.command == self.gate.command || self.closed {
            return;
        }
        if let Some(life) = self.life() {
            self.let_go(life, "", does);
            self.take_back();
        }
        self.failures = 0;
        self.plugin = Plugin::Absent;
        if self.gate.command.is_none() {
            self.close_checks(|_| true, &AdmissionVerdict::Admitted, does);
        }
        self.launch_if_needed(does);
    }

    fn launch_if_needed(&mut self, does: &mut Vec<Effect>) {
        if self.plugin != Plugin::Absent || self.open == 0 {
            return;
        }
        if let Some(command) = self.gate.command.clone() {
            self.last_life.0 += 1;
            let life = self.last_life;
            self.plugin = Plugin::Starting(life);
            does.push(Effect::Launch { life, command });
        }
    }

    /// The agent does not use the plugin any more. Its `Ended` comes later and is ignored.
    fn let_go(&mut self, life: ProcessRun, why: &str, does: &mut Vec<Effect>) {
        does.push(Effect::End { life, why: why.into() });
    }

    /// The plugin has ended or could not start, and should not have.
    fn fail(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.plugin = Plugin::Pausing;
    }

    fn pause(&self) -> Duration {
        let seed = u64::from_be_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|at: usize| self.salt[at]));
        PAUSES.pause(self.failures, 2, &seed.to_string())
    }

    /// The checks that were offered are to be offered to the next plugin.
    fn take_back(&mut self) {
        for check in self.checks.values_mut() {
            if let Progress::Open { offered, .. } = &mut check.state {
                *offered = None;
            }
        }
    }

    fn deny_all(&mut self, why: &str, does: &mut Vec<Effect>) {
        self.close_checks(|_| true, &denied(why), does);
    }

    fn deny_offered(&mut self, why: &str, does: &mut Vec<Effect>) {
        self.close_checks(|offered| offered.is_some(), &denied(why), does);
    }

    /// Ends checks that wait without an answer that would be remembered.
    fn close_checks(
        &mut self,
        which: impl Fn(Option<u64>) -> bool,
        verdict: &AdmissionVerdict,
        does: &mut Vec<Effect>,
    ) {
        let mut told = Vec::new();
        self.checks.retain(|_, check| match &mut check.state {
            Progress::Open { number, askers, offered } if which(*offered) => {
                told.push((*number, std::mem::take(askers)));
                false
            }
            Progress::Open { .. } | Progress::Answered(_) => true,
        });
        self.open -= told.len();
        told.sort_unstable_by_key(|(number, _)| *number);
        for (_, askers) in told {
            self.tell(askers, verdict, does);
        }
    }

    fn tell(&mut self, askers: Vec<Asker>, verdict: &AdmissionVerdict, does: &mut Vec<Effect>) {
        for asker in askers {
            self.askers.remove(&asker);
            does.push(Effect::Tell { asker, verdict: verdict.clone() });
        }
    }
}

fn denied(why: &str) -> AdmissionVerdict {
    AdmissionVerdict::Denied(why.into())
}

/// The entries of an order, before those of earlier orders with other values.
fn newest_first(before: &[Metadatum], newest: impl Iterator<Item = Metadatum>) -> Vec<Metadatum> {
    let mut all: Vec<Metadatum> = newest.collect();
    let is_new =
        |old: &&Metadatum| !all.iter().any(|new| new.key == old.key && new.value == old.value);
    let older: Vec<Metadatum> = before.iter().filter(is_new).cloned().collect();
    all.extend(older);
    all.truncate(METADATA_MAX);
    all
}

/// Most entries that are kept for one content.
const METADATA_MAX: usize = 1000;

#[cfg(test)]
mod tests;
