//! One life of a world, drawn from one seed: a script of orders, faults all along, then calm, and
//! the question whether everything came to what was ordered.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use guest_agent_actors::fakes::{Fate, Harness};
use guest_agent_actors::messages::{NotifyVm, Submission, Submit};
use guest_agent_actors::model::act::{Act, Hold, LimitOverride};
use guest_agent_actors::model::audit::{Asker, Via};
use guest_agent_actors::model::exit::ExitCause;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::origin::Origin;
use guest_agent_actors::model::spec::Limits;
use guest_agent_actors::model::vm_event::VmEvent;
use guest_agent_actors::ports::Table;
use guest_agent_actors::wire::{decode_orders, event_number};
use tokio::time::Instant;

use super::chance::Chance;
use super::fate::Doom;
use super::orders::{self, BYSTANDER, Install};
use super::server::Server;
use super::story::Refusals;

/// Longest time between two looks at the world.
const LOOK: Duration = Duration::from_secs(1);

/// What a run came to.
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) hash: Sha256Digest,
    pub(crate) tail: Vec<String>,
}

/// A world with its agent, its control plane and its fate.
pub(crate) struct Run {
    pub(crate) agent: Harness,
    pub(crate) doom: Doom,
    pub(crate) server: Server,
    chance: Chance,
    pub(crate) plugins: Vec<String>,
    pub(crate) refusals: BTreeMap<String, Refusals>,
    number: u64,
    /// Whether the control plane is a fleet, which numbers its orders.
    is_fleet: bool,
    boots: u64,
    /// Orders given on this machine that were answered as durable.
    submitted: Rc<RefCell<Vec<u64>>>,
    pub(crate) deeds: Deeds,
}

/// What was done to the world that excuses something.
#[derive(Debug, Default)]
pub(crate) struct Deeds {
    /// Plugins whose orders or record were lost with a torn record.
    pub(crate) lost: BTreeSet<String>,
    /// Plugins of whose events some were lost, or told by an agent that died before they were
    /// durable.
    pub(crate) untold: BTreeSet<String>,
    /// Events that were lost with a torn record.
    pub(crate) torn: BTreeSet<String>,
    pub(crate) clock_jumps: u64,
    pub(crate) facts_torn: bool,
    pub(crate) disk_faults: bool,
    pub(crate) reboots: u64,
}

/// Lives through the life of `seed`.
pub(crate) async fn live(seed: u64, prints: bool) -> Outcome {
    let mut run = Run::new(seed, prints);
    run.live().await;
    let ledger = run.doom.ledger();
    Outcome {
        violations: ledger.violations.clone(),
        hash: ledger.hash(),
        tail: ledger.tail.iter().cloned().collect(),
    }
}

// === impl Run ===

impl Run {
    fn new(seed: u64, prints: bool) -> Self {
        let mut chance = Chance::of(seed);
        let doom = Doom::new(chance.split(), prints);
        let mut agent = Harness::asleep();
        agent.settings.outbox.history = 20;
        agent.settings.policy.probation = Duration::from_secs(30);
        let fate: Arc<dyn Fate> = Arc::new(doom.clone());
        agent.world.set_fate(&fate);
        let server = Server::new(chance.split());
        let plugins = (0..=chance.below(4)).map(|n| format!("plugin-{n}")).collect();
        let is_fleet = chance.one_in(2);
        Self {
            agent,
            doom,
            server,
            chance,
            plugins,
            refusals: BTreeMap::new(),
            number: 0,
            is_fleet,
            boots: 1,
            submitted: Rc::default(),
            deeds: Deeds::default(),
        }
    }

    async fn live(&mut self) {
        self.wake().await;
        self.connect().await;
        let first = orders::install(BYSTANDER, &Install::of("g1"), 0);
        self.server.order(orders::encoded(vec![first]));
        self.pass(Duration::from_secs(5)).await;
        self.doom.ledger().calm = false;
        self.doom.log("TROUBLE BEGINS");
        let deeds = 4 + self.chance.below(36);
        let hurry = self.chance.pick(&[500, 5_000, 20_000, 60_000]);
        for _ in 0..deeds {
            self.act().await;
            let gap = if self.chance.one_in(4) { 0 } else { hurry };
            let gap = self.chance.time(Duration::from_millis(gap));
            self.pass(gap).await;
            if !self.doom.ledger().violations.is_empty() {
                return;
            }
        }
        self.calm_down().await;
        self.check_end().await;
    }

    // === What is done ===

    async fn act(&mut self) {
        match self.chance.below(100) {
            0..=39 => self.order(),
            40..=47 => self.submit().await,
            48..=61 => self.kill_plugin(),
            62..=71 => self.crash_agent().await,
            72..=79 => self.toggle_link().await,
            80..=85 => self.toggle_disk(),
            86..=89 => self.jump_clock(),
            90..=93 => self.shut_down().await,
            _ => {
                self.doom.log("asks what runs");
                self.server.ask();
            }
        }
    }

    fn order(&mut self) {
        let messages = if self.chance.one_in(4) { 2 } else { 1 };
        for _ in 0..messages {
            let count = if self.chance.one_in(3) { 1 + self.chance.below(4) } else { 1 };
            let drawn: Vec<_> = (0..count)
                .map(|_| {
                    self.number += 1;
                    orders::drawn(&self.plugins, &mut self.chance, self.number)
                })
                .collect();
            let plugin = drawn[0].plugin.as_ref().map(|plugin| plugin.name.clone());
            let body = orders::encoded(drawn);
            self.expect_refusals(&body, Origin::ControlPlane);
            let is_numbered = self.is_fleet && count == 1 && !self.chance.one_in(5);
            let id = match plugin.filter(|_| is_numbered) {
                Some(plugin) => self.server.order_numbered(body.clone(), &plugin),
                None => self.server.order(body.clone()),
            };
            let number = self.server.messages.last().and_then(|message| message.number.clone());
            self.doom.log(&format!("orders {id} {number:?}: {}", describe(&body)));
        }
    }

    /// Notes what may be refused of an order, and by which event.
    fn expect_refusals(&mut self, body: &[u8], origin: Origin) {
        for refusal in
            decode_orders(body, origin).expect("orders").into_iter().filter_map(Result::err)
        {
            let number = event_number(refusal.notice);
            self.refusals.entry(refusal.name).or_default().insert((number, refusal.revision));
        }
    }

    async fn submit(&mut self) {
        if !self.agent.is_awake() {
            return;
        }
        let index = usize::try_from(self.chance.below(self.plugins.len() as u64)).expect("small");
        let name = &self.plugins[index];
        self.number += 1;
        let submission = if self.chance.one_in(3) {
            let order = orders::drawn(&self.plugins, &mut self.chance, self.number);
            let body = orders::encoded(vec![order]);
            self.expect_refusals(&body, Origin::Local);
            self.doom.log(&format!("submits {}", describe(&body)));
            Submission::Configure(body)
        } else {
            let plugin = name.parse().expect("a name");
            let by = || "root: because".into();
            let hold = |ends: bool| {
                let since = std::time::SystemTime::UNIX_EPOCH;
                let later = since + Duration::from_secs(4_000_000_000);
                Act::Hold(Hold { by: by(), since, until: ends.then_some(later) })
            };
            let submission = match self.chance.below(13) {
                0 => Submission::Asked(plugin, Act::Stop(by())),
                1 | 2 => Submission::Asked(plugin, Act::Start),
                3 => Submission::Asked(plugin, Act::Rollback(by())),
                4 | 5 => Submission::Asked(plugin, Act::Release),
                6 => Submission::Asked(plugin, hold(false)),
                7 if self.chance.one_in(4) => Submission::AskedOfAll(hold(true)),
                8 => Submission::AskedOfAll(Act::Release),
                9 => {
                    let revision = self.chance.below(4).to_string().parse().expect("a revision");
                    Submission::Asked(plugin, Act::Dismiss { by: by(), revision })
                }
                10 => {
                    let memory_bytes = self.chance.one_in(2).then_some(96 << 20);
                    let limits = Limits { memory_bytes, ..Limits::default() };
                    let since = std::time::SystemTime::UNIX_EPOCH;
                    let own = memory_bytes.map(|_| LimitOverride { limits, by: by(), since });
                    Submission::Asked(plugin, Act::Limit(own))
                }
                _ => Submission::Restart(plugin),
            };
            self.doom.log(&format!("submits {submission:?}"));
            submission
        };
        let who = Asker { who: "a user".into(), via: Via::AgentSocket, detail: "".into() };
        let submit = Submit { submission, asker: Some(who), traceparent: None };
        let submitted = self.submitted.clone();
        self.agent
            .run(|system| {
                let to = system.control_plane.clone();
                let asking = async move {
                    if let Ok(Ok(answer)) = to.send(submit).await {
                        let outcomes = answer.outcomes.into_iter();
                        let numbers = outcomes.filter_map(|outcome| outcome.result.ok());
                        submitted.borrow_mut().extend(numbers.map(|generation| generation.0));
                    }
                };
                async move { drop(tokio::task::spawn_local(asking)) }
            })
            .await;
    }

    fn kill_plugin(&mut self) {
        let index = usize::try_from(self.chance.below(self.plugins.len() as u64)).expect("small");
        let name = self.plugins[index].clone();
        let cause = self.chance.pick(&[ExitCause::Exited(1), ExitCause::Signaled(11)]);
        self.doom.ledger().harmed.insert(name.clone());
        self.agent.world.launcher.exit(&name, cause);
    }

    /// Somebody says that the machine shuts down. It does not.
    async fn shut_down(&mut self) {
        if !self.agent.is_awake() {
            return;
        }
        self.doom.log("SAYS THAT THE MACHINE SHUTS DOWN");
        self.agent
            .run(|system| {
                let notified = system.vm_events.send(NotifyVm::of(VmEvent::Shutdown));
                async move { drop(tokio::task::spawn_local(notified)) }
            })
            .await;
    }

    async fn crash_agent(&mut self) {
        self.doom.log("KILLS THE AGENT");
        self.crash();
        if self.chance.one_in(4) {
            self.reboot();
        }
        if self.chance.one_in(5) {
            self.tear_a_record();
        }
        let pause = self.chance.time(Duration::from_secs(30));
        tokio::time::sleep(pause).await;
        self.end_what_is_due();
        self.wake().await;
        if !self.chance.one_in(4) {
            self.connect().await;
        }
    }

    fn crash(&mut self) {
        self.server.hang_up();
        self.agent.crash();
        let mut ledger = self.doom.ledger();
        ledger.dies = false;
        ledger.forget_leaving();
        // Events that were told but were not durable may be told again, as others.
        for (plugin, told) in &ledger.told {
            if told.iter().any(|told| !ledger.recorded.contains_key(&told.id)) {
                self.deeds.untold.insert(plugin.clone());
            }
        }
    }

    fn reboot(&mut self) {
        self.boots += 1;
        self.deeds.reboots += 1;
        self.doom.log("THE MACHINE RESTARTS");
        self.agent.world.machine.reboot(&format!("boot-{}", self.boots));
    }

    fn tear_a_record(&mut self) {
        let storage = &self.agent.world.storage;
        let all: Vec<(Table, Vec<u8>)> = Table::ALL
            .into_iter()
            .flat_map(|table| storage.keys(table).into_iter().map(move |key| (table, key)))
            .filter(|(_, key)| key.as_slice() != BYSTANDER.as_bytes())
            .collect();
        if all.is_empty() {
            return;
        }
        let index = usize::try_from(self.chance.below(all.len() as u64)).expect("small");
        let (table, key) = &all[index];
        let value = storage.read(*table, key).unwrap_or_default();
        self.doom.log(&format!("TEARS {table:?}/{}", key.escape_ascii()));
        match table {
            Table::Plugins => {
                self.deeds.lost.insert(String::from_utf8_lossy(key).into_owned());
            }
            Table::Inbox => {
                let number = u64::from_be_bytes(key.as_slice().try_into().expect("a number"));
                let ledger = self.doom.ledger();
                let in_it = ledger.accepted.range(number..number + 64);
                self.deeds.lost.extend(in_it.map(|(_, order)| order.name.to_string()));
            }
            Table::Outbox => {
                let event = guest_agent_actors::model::event::StoredEvent::decode(key, &value)
                    .expect("good");
                self.deeds.torn.insert(event.id.to_string());
                self.deeds.untold.insert(event.event.plugin.to_string());
            }
            Table::Facts => self.deeds.facts_torn = true,
            Table::History | Table::Registry | Table::Audit => {}
        }
        storage.plant(*table, key, &[0xff; 11]);
    }

    async fn toggle_link(&mut self) {
        if !self.agent.is_awake() {
            return;
        }
        if self.server.is_connected() && !self.chance.one_in(3) {
            self.doom.log("the stream ends");
            self.server.hang_up();
            self.agent.disconnect().await;
        } else {
            self.connect().await;
        }
    }

    async fn connect(&mut self) {
        self.doom.log("a stream is registered");
        self.server.connect(&self.agent).await;
    }

    fn toggle_disk(&mut self) {
        let mut ledger = self.doom.ledger();
        ledger.disk_full = !ledger.disk_full;
        let line = format!("the disk is full: {}", ledger.disk_full);
        ledger.log(&line);
        self.deeds.disk_faults = true;
    }

    fn jump_clock(&mut self) {
        let jump = self.chance.pick(&[1, 90, 3600, 86_400 * 400]);
        let back = self.chance.one_in(2);
        let jump = Duration::from_secs(jump);
        let clock = &self.agent.world.clock;
        let now = clock.now();
        clock.set(if back { now - jump } else { now + jump });
        self.deeds.clock_jumps += 1;
        self.doom.log(&format!("the clock jumps by {jump:?}, back: {back}"));
    }

    async fn wake(&mut self) {
        {
            let mut ledger = self.doom.ledger();
            ledger.life += 1;
            ledger.dies = false;
            ledger.all_disturbed();
            ledger.log("AN AGENT STARTS");
        }
        self.agent.wake().await;
    }

    // === Time ===

    /// Lets time pass, and the world go on meanwhile.
    pub(crate) async fn pass(&mut self, time: Duration) {
        let until = Instant::now() + time;
        loop {
            self.look().await;
            let left = until - Instant::now();
            if left.is_zero() {
                return;
            }
            let now = self.doom.ledger().now();
            let due = self.doom.ledger().exits.first().map(|(at, ..)| at.saturating_sub(now));
            let slice = left.min(LOOK).min(due.unwrap_or(LOOK)).max(Duration::from_millis(1));
            self.agent.pass(slice).await;
        }
    }

    /// Looks after the world: what is to end ends, an agent that died starts again, and the control
    /// plane sends what it has to.
    async fn look(&mut self) {
        self.end_what_is_due();
        let dies = self.doom.ledger().dies || self.agent.world.storage.has_crashed();
        let ended = self.agent.ended();
        if dies || ended.is_some() {
            self.doom.log(&format!("THE AGENT DIES {ended:?}"));
            self.crash();
            tokio::time::sleep(Duration::from_millis(100)).await;
            self.wake().await;
            self.connect().await;
        }
        let mistakes = self.agent.world.mistakes();
        if !mistakes.is_empty() {
            self.doom.ledger().violated(format!("{mistakes:?}"));
        }
        let ledger = self.doom.ledger();
        self.server.send(ledger.calm, |id| ledger.acknowledged.contains(id));
    }

    fn end_what_is_due(&mut self) {
        loop {
            let due = {
                let mut ledger = self.doom.ledger();
                let now = ledger.now();
                match ledger.exits.first() {
                    Some((at, ..)) if *at <= now => ledger.exits.pop_first(),
                    _ => None,
                }
            };
            let Some((_, name, pid, code)) = due else { return };
            let lives = self.doom.ledger().processes.get(&name).is_some_and(|p| p.pid == pid);
            if lives {
                self.agent.world.launcher.exit(&name, ExitCause::Exited(code));
            }
        }
    }

    /// From now on nothing goes wrong any more that is not in the nature of a revision.
    async fn calm_down(&mut self) {
        {
            let mut ledger = self.doom.ledger();
            ledger.calm = true;
            ledger.disk_full = false;
            ledger.log("CALM");
        }
        self.look().await;
        if !self.server.is_connected() {
            self.connect().await;
        }
    }

    /// Numbers of orders that the agent reported as durable to a user of this machine.
    pub(crate) fn submitted(&self) -> Vec<u64> {
        self.submitted.borrow().clone()
    }

    pub(crate) fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }
}

fn describe(body: &[u8]) -> String {
    use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
    use prost::Message;
    let orders = ConfigurePluginStates::decode(body).expect("orders").configure_plugins;
    let one =
        |order: guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin| {
            let plugin = order.plugin.unwrap_or_default();
            let manifest = order.manifest.unwrap_or_default();
            format!(
                "{} {} {} {:?} {:?} {}",
                order.action,
                plugin.name,
                plugin.revision_id,
                manifest.config,
                plugin.arguments,
                manifest.max_memory_usage_bytes
            )
        };
    orders.into_iter().map(one).collect::<Vec<_>>().join("; ")
}
