//! What goes wrong in a world, drawn from its seed, and a ledger of what really happened in it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use guest_agent_actors::fakes::{Answer, Asked, Committing, Delivery, Fact, Fate, Reply};
use guest_agent_actors::keys::key_number;
use guest_agent_actors::manager::recovery::decode_inbox;
use guest_agent_actors::messages::NumberedOrder;
use guest_agent_actors::model::event::StoredEvent;
use guest_agent_actors::model::id::{Endpoint, Sha256Digest};
use guest_agent_actors::model::spec::{Config, PluginSpec};
use guest_agent_actors::plugin::event::Order;
use guest_agent_actors::plugin::snapshot::Snapshot;
use guest_agent_actors::plugin::state::Phase;
use guest_agent_actors::ports::{OutboundMessage, Table, Write};
use guest_agent_actors::records::{InboxContent, InboxEntry, read_generation};
use guest_agent_proto::agent_controlplane as pb;
use prost::Message;
use tokio::time::Instant;

use super::chance::Chance;
use super::orders::{ALL, BYSTANDER, Nature, REFUSED, nature};
use super::story::Told;

/// Lines of a trace that are kept to explain a failure.
const TAIL: usize = 250;

/// How often things go wrong in one world: once in so many times, never for zero.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    pub(crate) failures: u64,
    pub(crate) delays: u64,
    pub(crate) silence: u64,
    pub(crate) panics: u64,
    pub(crate) deaths: u64,
    pub(crate) commits: u64,
    pub(crate) crashes: u64,
    pub(crate) frames: u64,
}

/// The fate of a world. Shared by the fakes and the run that watches them.
#[derive(Clone)]
pub(crate) struct Doom(Arc<Mutex<Ledger>>);

/// A process that lives.
#[derive(Clone, Debug)]
pub(crate) struct Alive {
    pub(crate) pid: u32,
    pub(crate) spec: PluginSpec,
    /// What it was last told.
    pub(crate) config: Option<Config>,
}

/// What really happened.
pub(crate) struct Ledger {
    chance: Chance,
    trouble: Trouble,
    began: Instant,
    pub(crate) calm: bool,
    pub(crate) disk_full: bool,
    /// Whether the agent is to die now.
    pub(crate) dies: bool,
    /// Counts the agents.
    pub(crate) life: u64,
    /// Processes that will end by themselves: when, of which plugin, which, and with which code.
    pub(crate) exits: BTreeSet<(Duration, String, u32, i32)>,
    /// Plugins that took the `shutdown` event of the machine and are about to end, or did.
    leaving: BTreeSet<String>,
    pub(crate) processes: BTreeMap<String, Alive>,
    /// Launches, by plugin, since the plugin was last disturbed; see `disturbed`.
    launches: BTreeMap<String, (Instant, u32)>,
    /// Started processes, by plugin and revision.
    pub(crate) started: BTreeMap<(String, String), u32>,
    /// Plugins that something went wrong with.
    pub(crate) harmed: BTreeSet<String>,
    /// Orders that were durable in the inbox.
    pub(crate) accepted: BTreeMap<u64, NumberedOrder>,
    /// The same in the order in which they became durable, also those whose number another one got
    /// later.
    pub(crate) in_order: Vec<NumberedOrder>,
    /// How often each message was taken, by its body.
    pub(crate) taken: BTreeMap<Vec<u8>, u32>,
    /// The messages in the order in which they were taken, by their bodies.
    pub(crate) bodies: Vec<Vec<u8>>,
    /// The highest number of a fleet's order that was durable, by plugin.
    pub(crate) numbers: BTreeMap<String, u64>,
    inboxes: BTreeSet<(u64, Vec<u8>)>,
    /// Events that were durable and that a public server takes: agent, number and plugin by id.
    pub(crate) recorded: BTreeMap<String, (u64, u64, String)>,
    /// Every event that was heard, by id, with its body.
    pub(crate) heard: BTreeMap<String, Vec<u8>>,
    pub(crate) told: BTreeMap<String, Vec<Told>>,
    /// Messages whose acknowledgement arrived.
    pub(crate) acknowledged: BTreeSet<String>,
    /// Process of the bystander that is on record as running.
    bystander: Option<u32>,
    /// Samples in reports that were heard and not confirmed, by plugin; the newest report so far.
    unreleased: BTreeMap<String, BTreeSet<(i64, i32)>>,
    newest_report: u64,
    pub(crate) violations: Vec<String>,
    hash: Sha256Digest,
    pub(crate) tail: VecDeque<String>,
    prints: bool,
}

// === impl Trouble ===

impl Trouble {
    /// How bad a world is. Most have only some of all troubles, so that long sequences happen too.
    pub(crate) fn drawn(chance: &mut Chance) -> Self {
        let mut rate = |rates: &[u64]| chance.pick(rates);
        Self {
            failures: rate(&[0, 0, 20, 8, 4]),
            delays: rate(&[0, 10, 4, 2]),
            silence: rate(&[0, 0, 40, 15]),
            panics: rate(&[0, 0, 0, 60, 25]),
            deaths: rate(&[0, 0, 60, 25]),
            commits: rate(&[0, 0, 30, 8]),
            crashes: rate(&[0, 0, 20, 8]),
            frames: rate(&[0, 0, 10, 4]),
        }
    }
}

// === impl Doom ===

impl Doom {
    pub(crate) fn new(mut chance: Chance, prints: bool) -> Self {
        let trouble = Trouble::drawn(&mut chance);
        let mut ledger = Ledger {
            chance,
            trouble,
            began: Instant::now(),
            calm: true,
            disk_full: false,
            dies: false,
            life: 0,
            exits: BTreeSet::new(),
            leaving: BTreeSet::new(),
            processes: BTreeMap::new(),
            launches: BTreeMap::new(),
            started: BTreeMap::new(),
            harmed: BTreeSet::new(),
            accepted: BTreeMap::new(),
            in_order: Vec::new(),
            taken: BTreeMap::new(),
            bodies: Vec::new(),
            numbers: BTreeMap::new(),
            inboxes: BTreeSet::new(),
            recorded: BTreeMap::new(),
            heard: BTreeMap::new(),
            told: BTreeMap::new(),
            acknowledged: BTreeSet::new(),
            bystander: None,
            unreleased: BTreeMap::new(),
            newest_report: 0,
            violations: Vec::new(),
            hash: Sha256Digest::of(b""),
            tail: VecDeque::new(),
            prints,
        };
        ledger.log(&format!("{trouble:?}"));
        Self(Arc::new(Mutex::new(ledger)))
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.0.lock().expect("nobody panics with the ledger in hand")
    }

    pub(crate) fn log(&self, line: &str) {
        self.ledger().log(line);
    }
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn log(&mut self, line: &str) {
        let mut text = String::new();
        let at = self.now();
        write!(text, "{:>9}.{:03} {line}", at.as_secs(), at.subsec_millis()).expect("memory");
        self.hash = Sha256Digest::of(&[self.hash.as_bytes(), text.as_bytes()].concat());
        if self.prints {
            println!("{text}");
        }
        if self.tail.len() == TAIL {
            self.tail.pop_front();
        }
        self.tail.push_back(text);
    }

    pub(crate) const fn hash(&self) -> Sha256Digest {
        self.hash
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn violated(&mut self, what: String) {
        self.log(&format!("VIOLATION {what}"));
        self.violations.push(what);
    }

    fn harm(&mut self, name: &str) {
        self.harmed.insert(name.to_owned());
    }

    /// Something happened to a plugin that may start it again at once.
    pub(crate) fn disturbed(&mut self, name: &str) {
        self.launches.remove(name);
    }

    /// An agent starts.
    pub(crate) fn all_disturbed(&mut self) {
        self.launches.clear();
        // Samples are not kept beyond an agent.
        self.unreleased.clear();
    }

    /// Restarts are bounded by the backoff policy: about so many doublings of its first pause as
    /// fit into the time, then one try in half of its longest, each of at most three launches.
    fn launched(&mut self, name: &str) {
        let now = Instant::now();
        let (since, count) = self.launches.entry(name.to_owned()).or_insert((now, 0));
        *count += 1;
        let millis = u64::try_from((now - *since).as_millis()).unwrap_or(u64::MAX);
        let allowed =
            3 * (8 + (1 + millis / 50).ilog2() + u32::try_from(millis / 150_000).unwrap_or(0));
        if *count > allowed {
            let message = format!("{name} was launched {count} times within {millis} ms");
            self.violated(message);
        }
    }

    /// The process at an endpoint of the fake launcher.
    fn at(&self, endpoint: &Endpoint) -> Option<(String, &Alive)> {
        let mut parts = endpoint.as_str().split('/').skip(2);
        let (name, pid) = (parts.next()?, parts.next()?);
        let alive = self.processes.get(name)?;
        (alive.pid.to_string() == pid).then(|| (name.to_owned(), alive))
    }

    fn dies_after(&mut self, name: &str, delay: Duration) {
        self.ends_after(name, delay, 9);
    }

    fn ends_after(&mut self, name: &str, delay: Duration, code: i32) {
        if let Some(alive) = self.processes.get(name) {
            self.exits.insert((self.began.elapsed() + delay, name.to_owned(), alive.pid, code));
        }
    }

    /// The agent died: how those that were leaving exited, or that they were about to, it may not
    /// have known.
    pub(crate) fn forget_leaving(&mut self) {
        self.harmed.append(&mut self.leaving);
    }

    fn draw(&mut self, what: &'static str, name: &str) -> Answer {
        let plugin = name.split(' ').next().unwrap_or_default().to_owned();
        let revision = name.split(' ').nth(1).unwrap_or_default();
        match (what, nature(revision)) {
            ("unpack", Nature::CannotInstall) => return Answer::Fail("bad archive".to_owned()),
            ("launch revision", Nature::CannotStart) => {
                return Answer::Fail("bad build".to_owned());
            }
            _ => {}
        }
        if self.calm || plugin == BYSTANDER {
            return Answer::Succeed;
        }
        let Trouble { failures, delays, silence, panics, deaths, crashes, frames, .. } =
            self.trouble;
        if what == "acknowledge" {
            let lost = self.chance.one_in(frames);
            return if lost { Answer::Fail("lost".to_owned()) } else { Answer::Succeed };
        }
        if what == "sample" {
            return if self.chance.one_in(silence) { Answer::Never } else { Answer::Succeed };
        }
        if matches!(what, "spawn" | "launch" | "stop") && self.chance.one_in(crashes) {
            self.harm(&plugin);
            let delay = self.chance.time(Duration::from_millis(500));
            self.dies_after(&plugin, delay);
        }
        if self.chance.one_in(deaths) {
            self.dies = true;
            return Answer::Never;
        }
        let answer = if self.chance.one_in(panics) {
            Answer::Panic
        } else if self.chance.one_in(silence) {
            Answer::Never
        } else if self.chance.one_in(failures) {
            let why = self.chance.pick(&["no space left on device", "permission denied"]);
            let delay = self.chance.time(Duration::from_secs(20));
            Answer::LateFail(delay, why.to_owned())
        } else if self.disk_full && matches!(what, "download" | "unpack") {
            Answer::Fail("no space left on device".to_owned())
        } else if self.chance.one_in(delays) {
            Answer::Late(self.chance.time(Duration::from_secs(90)))
        } else {
            Answer::Succeed
        };
        if !matches!(answer, Answer::Succeed | Answer::Late(_)) || answer == Answer::Panic {
            self.harm(&plugin);
            self.disturbed(&plugin);
        }
        if let Answer::Late(_) = answer {
            // Slow may be too slow.
            self.harm(&plugin);
        }
        answer
    }

    fn draw_reply(
        &mut self,
        what: &'static str,
        endpoint: &Endpoint,
        config: Option<&Config>,
    ) -> Reply {
        let Some((name, alive)) = self.at(endpoint) else { return Reply::Unreachable };
        let nature = nature(alive.spec.revision.as_str());
        let by_nature = match (what, nature) {
            ("health", Nature::Unwell) => Reply::Bad(5, "not well".to_owned()),
            ("apply", Nature::CannotApply) => Reply::Unimplemented,
            ("apply", _) if config == Some(&Config::Text(REFUSED.into())) => {
                Reply::Bad(3, "refused".to_owned())
            }
            _ => Reply::Good,
        };
        if self.calm || name == BYSTANDER {
            return by_nature;
        }
        let Trouble { failures, silence, panics, crashes, .. } = self.trouble;
        if self.chance.one_in(crashes * 4) {
            self.harm(&name);
            let delay = self.chance.time(Duration::from_secs(6));
            self.dies_after(&name, delay);
        }
        let reply = if self.chance.one_in(panics * 20) {
            Reply::Panic
        } else if self.chance.one_in(silence) {
            Reply::Forever
        } else if self.chance.one_in(failures) {
            let reply = self.chance.below(4);
            match reply {
                0 => Reply::Silence,
                1 => Reply::Unreachable,
                2 => Reply::Unimplemented,
                _ => Reply::Bad(13, "internal".to_owned()),
            }
        } else {
            by_nature
        };
        if reply != Reply::Good {
            self.harm(&name);
        }
        if reply == Reply::Good && is_shutdown(config) && self.chance.one_in(2) {
            let delay = self.chance.time(Duration::from_secs(8));
            self.ends_after(&name, delay, 0);
            self.leaving.insert(name);
        }
        reply
    }

    fn committed(&mut self, writes: &[Write]) {
        let deleted: BTreeSet<(Table, &[u8])> = writes
            .iter()
            .filter_map(|write| match write {
                Write::Delete { table, key } => Some((*table, key.as_slice())),
                Write::Put { .. } => None,
            })
            .collect();
        for write in writes {
            let Write::Put { table, key, value } = write else { continue };
            match table {
                Table::Outbox => {
                    let event = StoredEvent::decode(key, value).expect("a good record");
                    let plugin = event.event.plugin.to_string();
                    let place = (self.life, event.seq, plugin);
                    // The server has no type for the others.
                    if event.event.kind.is_public() {
                        self.recorded.entry(event.id.to_string()).or_insert(place);
                    }
                }
                // Withdrawn in the same breath.
                Table::Inbox if deleted.contains(&(*table, key.as_slice())) => {}
                Table::Inbox => self.accept(key, value),
                Table::Plugins if key.as_slice() == BYSTANDER.as_bytes() => {
                    let snapshot = Snapshot::decode(value).expect("a good record");
                    self.bystander = match snapshot.state.phase {
                        Phase::Running { process, .. } => Some(process.pid),
                        _ => None,
                    };
                }
                Table::Facts => {
                    if let Some((plugin, newest)) = read_generation(key, value).expect("good") {
                        let number = self.numbers.entry(plugin.to_string()).or_default();
                        *number = newest.generation.get().max(*number);
                    }
                }
                Table::Plugins | Table::History | Table::Registry | Table::Audit => {}
            }
        }
    }

    fn accept(&mut self, key: &[u8], value: &[u8]) {
        let entry = InboxEntry::decode(value).expect("a good record");
        let inbox = key_number(key).expect("a number");
        let configure = decode_inbox(inbox, &entry).expect("orders");
        let of_all = configure.of_all.into_iter().map(|asked| NumberedOrder {
            generation: asked.generation,
            name: ALL.parse().expect("a name"),
            revision: "".into(),
            order: Order::Asked(asked.act),
            trace: None,
        });
        for order in configure.orders.into_iter().chain(of_all) {
            self.disturbed(order.name.as_str());
            // A number comes again when the count of numbers was torn and nothing has the number
            // any more.
            let before = self.accepted.insert(order.generation.0, order.clone());
            if before.as_ref() != Some(&order) {
                self.in_order.push(order);
            }
        }
        if let InboxContent::Configure(body) = entry.content
            && self.inboxes.insert((inbox, body.clone()))
        {
            self.bodies.push(body.clone());
            *self.taken.entry(body).or_default() += 1;
        }
    }

    fn hear(&mut self, message: &OutboundMessage) {
        let kind = message.labels.get("message_type").map(String::as_str);
        if kind == Some("agent_controlplane.CurrentPluginStates") {
            return self.hear_report(message);
        }
        if kind != Some("agent_controlplane.PluginEventMessage") {
            return;
        }
        if let Some(before) = self.heard.get(&message.id) {
            if *before != message.body {
                self.violated(format!("{} was told twice, and differently", message.id));
            }
            return;
        }
        self.heard.insert(message.id.clone(), message.body.clone());
        let event = pb::PluginEventMessage::decode(&*message.body).expect("a good event");
        let details = String::from_utf8(event.event_details.unwrap_or_default()).expect("text");
        self.log(&format!(
            "TOLD {} {} {} ({}) {details}",
            event.plugin_name, event.event_type, event.revision_id, message.id
        ));
        if event.event_type > 15 {
            self.violated(format!("{} has a type that the server does not know", message.id));
        }
        let told = Told {
            id: message.id.clone(),
            number: event.event_type,
            revision: event.revision_id,
            details,
        };
        self.told.entry(event.plugin_name).or_default().push(told);
    }

    /// A sample that was reported and not confirmed has to be in the next report again.
    fn hear_report(&mut self, message: &OutboundMessage) {
        let Some(number) = message.labels.get("request_id").and_then(|id| id.parse().ok()) else {
            return;
        };
        if number <= self.newest_report {
            return;
        }
        self.newest_report = number;
        for (name, samples) in samples_of(message) {
            let before = self.unreleased.insert(name.clone(), samples.clone()).unwrap_or_default();
            // The oldest go when there are too many.
            if samples.len() < 60 && !before.is_subset(&samples) {
                self.violated(format!("samples of {name} were dropped before they were confirmed"));
            }
        }
    }

    fn confirm(&mut self, message: &OutboundMessage) {
        for (name, samples) in samples_of(message) {
            if let Some(unreleased) = self.unreleased.get_mut(&name) {
                unreleased.retain(|sample| !samples.contains(sample));
            }
        }
    }

    fn note(&mut self, fact: Fact<'_>) {
        match fact {
            Fact::Installed(spec) => {
                self.log(&format!("installed {} {}", spec.name, spec.revision));
            }
            Fact::Deleted(name, revision) => {
                self.log(&format!("deleted {name} {revision:?}"));
                if revision.is_none() {
                    self.unreleased.remove(name);
                }
                let used = self.processes.get(name).filter(|alive| {
                    revision.is_none_or(|revision| revision == alive.spec.revision.as_str())
                });
                if used.is_some() {
                    self.violated(format!("{name} {revision:?} is deleted while it runs"));
                }
            }
            Fact::Spawned(spec, process) => {
                self.log(&format!("spawned {} {} as {}", spec.name, spec.revision, process.pid));
                let (pid, name) = (process.pid, spec.name.to_string());
                let alive = Alive { pid, spec: spec.clone(), config: spec.config.clone() };
                if let Some(other) = self.processes.insert(name.clone(), alive) {
                    self.violated(format!("{name} runs twice: {} and {pid}", other.pid));
                }
                self.launched(&name);
            }
            Fact::Started(spec, process) => {
                self.log(&format!("started {} {}", spec.name, process.pid));
                let (name, revision) = (spec.name.to_string(), spec.revision.to_string());
                if nature(&revision) == Nature::Dies {
                    let delay = self.chance.time(Duration::from_secs(20));
                    self.dies_after(&name, delay);
                }
                *self.started.entry((name, revision)).or_default() += 1;
            }
            Fact::LaunchFailed(spec) => self.log(&format!("failed to launch {}", spec.name)),
            Fact::Ended(name, process, cause, asked) => {
                self.log(&format!("ended {name} {} {cause} {asked:?}", process.pid));
                self.processes.remove(name);
                if name == BYSTANDER && asked == Asked::Yes && self.bystander == Some(process.pid) {
                    self.violated("the bystander was stopped while it ran".to_owned());
                }
            }
            Fact::Limited(name, process, limits) => {
                self.log(&format!("limited {name} {} {limits:?}", process.pid));
                let alive = self.processes.get_mut(name);
                if let Some(alive) = alive.filter(|alive| alive.pid == process.pid) {
                    alive.spec.limits = limits;
                }
            }
            Fact::Applied(endpoint, config) => {
                self.log(&format!("applied {endpoint} {}", show(config)));
                if !is_vm_event(config)
                    && let Some((name, _)) = self.at(endpoint)
                    && let Some(alive) = self.processes.get_mut(&name)
                {
                    alive.config = config.cloned();
                }
            }
            Fact::Committed(writes, durability) => {
                let mut keys: Vec<String> = writes.iter().map(show_write).collect();
                // A commit is atomic, so the order of what is in it says nothing; and it differs from run to
                // run where plugins wait for one `watch`, whose receivers tokio wakes in random order.
                keys.sort_unstable();
                self.log(&format!("committed {durability:?} {}", keys.join(" ")));
                self.committed(writes);
            }
            Fact::Heard(message) => self.hear(message),
            Fact::Confirmed(message) => {
                self.log(&format!("confirmed {}", message.id));
                self.confirm(message);
            }
            Fact::Acknowledged(receipt) => {
                self.log(&format!("acknowledged {} on {}", receipt.message_id, receipt.stream));
                self.acknowledged.insert(receipt.message_id.clone());
            }
        }
    }
}

fn samples_of(message: &OutboundMessage) -> Vec<(String, BTreeSet<(i64, i32)>)> {
    let states = pb::CurrentPluginStates::decode(&*message.body).unwrap_or_default();
    let samples = |state: pb::current_plugin_states::DaemonPluginState| {
        let times = state.current_plugin_metrics.into_iter().filter_map(|metric| metric.timestamp);
        (state.name, times.map(|at| (at.seconds, at.nanos)).collect())
    };
    states.daemon_plugin_states.into_iter().map(samples).collect()
}

/// Events of the machine are handed over like configurations, and are none.
fn is_vm_event(config: Option<&Config>) -> bool {
    matches!(config, Some(Config::Text(text)) if text.starts_with("{\"Command\":\"VmEvent\""))
}

fn is_shutdown(config: Option<&Config>) -> bool {
    is_vm_event(config) && matches!(config, Some(Config::Text(text)) if text.contains("shutdown"))
}

pub(crate) fn show(config: Option<&Config>) -> String {
    match config {
        Some(Config::Text(text)) => format!("{text:?}"),
        Some(other) => format!("{other:?}"),
        None => "no configuration".to_owned(),
    }
}

fn show_write(write: &Write) -> String {
    let (sign, table, key) = match write {
        Write::Put { table, key, .. } => ('+', table, key),
        Write::Delete { table, key } => ('-', table, key),
    };
    match key_number(key) {
        Some(number) => format!("{sign}{table:?}/{number}"),
        None if key.len() > 30 => format!("{sign}{table:?}/…"),
        None => format!("{sign}{table:?}/{}", key.escape_ascii()),
    }
}

// === impl Fate for Doom ===

impl Fate for Doom {
    fn answer(&self, what: &'static str, name: &str) -> Answer {
        let mut ledger = self.ledger();
        let answer = ledger.draw(what, name);
        ledger.log(&format!("{what} {name}: {answer:?}"));
        answer
    }

    fn reply(&self, what: &'static str, endpoint: &Endpoint, config: Option<&Config>) -> Reply {
        let mut ledger = self.ledger();
        let reply = ledger.draw_reply(what, endpoint, config);
        ledger.log(&format!("{what} {endpoint} {}: {reply:?}", show(config)));
        reply
    }

    fn delivery(&self, message: &OutboundMessage) -> Delivery {
        let mut ledger = self.ledger();
        let frames = if ledger.calm { 0 } else { ledger.trouble.frames };
        let delivery = if ledger.chance.one_in(frames) {
            match ledger.chance.below(5) {
                0 => Delivery::Lose,
                1 => Delivery::LoseAcknowledgement,
                2 => Delivery::Exhausted,
                3 => Delivery::Refuse,
                _ => Delivery::Late(ledger.chance.time(Duration::from_millis(1900))),
            }
        } else {
            Delivery::Acknowledge
        };
        ledger.log(&format!("deliver {}: {delivery:?}", message.id));
        delivery
    }

    fn commit(&self, _: &[Write]) -> Committing {
        let mut ledger = self.ledger();
        let Trouble { commits, deaths, .. } = ledger.trouble;
        if ledger.calm {
            return Committing::Succeed;
        }
        let verdict = if ledger.disk_full {
            Committing::Fail
        } else if ledger.chance.one_in(deaths) {
            ledger.dies = true;
            if ledger.chance.one_in(2) { Committing::DieBefore } else { Committing::DieAfter }
        } else if ledger.chance.one_in(commits) {
            match ledger.chance.below(3) {
                0 => Committing::Fail,
                1 => Committing::Late(ledger.chance.time(Duration::from_secs(1))),
                _ => Committing::Late(ledger.chance.time(Duration::from_secs(20))),
            }
        } else {
            Committing::Succeed
        };
        if verdict != Committing::Succeed {
            ledger.log(&format!("commit: {verdict:?}"));
        }
        verdict
    }

    fn happened(&self, fact: Fact<'_>) {
        self.ledger().note(fact);
    }
}
