//! The damage, and the orders that are given meanwhile.
//!
//! One loop draws one thing after the other. The agent and the control plane can be away for a
//! while; then orders wait in the fleet's ledger, or until the local socket takes them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use guest_agent_lab::{Code, EndStream, Faults, RefusalForm, RefuseRegistrations};
use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::local;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::subjects::{Desired, Door, Subject};
use crate::harness::{Archive, ArchiveSpec, Bed, RESOURCE, processes, signal};

/// How many plugins there are.
const PLUGINS: usize = 30;

/// Good revisions that there are of each.
const REVISIONS: u32 = 4;

/// How often the agent's own events are read; it keeps the latest thousand.
const READING: Duration = Duration::from_secs(1);

/// Codes that an agent answers with an early return.
const CODES: [Code; 4] = [Code::Unavailable, Code::Cancelled, Code::Ok, Code::DeadlineExceeded];

/// The bed, and what is known of everything in it.
pub(super) struct World {
    pub(super) bed: Bed,
    rng: StdRng,
    pub(super) subjects: Vec<Subject>,
    pub(super) good: Vec<Archive>,
    /// When the agent, or the control plane, is to be back. `None`: it is there.
    agent_away: Option<Instant>,
    control_plane_away: Option<Instant>,
    /// Every event that the agent ever had on record, by id.
    pub(super) seen: BTreeMap<String, local::Event>,
    read_at: Instant,
    pub(super) tally: Tally,
}

/// How often what was done.
#[derive(Debug, Default)]
pub(super) struct Tally {
    installs: u32,
    bad_installs: u32,
    applies: u32,
    removals: u32,
    restarts: u32,
    agent_kills: u32,
    plugin_kills: u32,
    helper_kills: u32,
    link_troubles: u32,
    control_plane_restarts: u32,
}

// === impl World ===

impl World {
    /// Thirty plugins, all running.
    pub(super) async fn new(seed: u64) -> Self {
        // A plugin that a busy machine holds up must not be taken for hung.
        let bed = Bed::builder()
            .set("plugins.health_interval=2s")
            .set("plugins.health_timeout=20s")
            .start()
            .await;
        let mut good = Vec::new();
        for number in 1..=REVISIONS {
            let size = 50_000 * usize::try_from(number).unwrap();
            let spec = ArchiveSpec::trouble().padded(size);
            good.push(bed.archive(&format!("r{number}.tar"), spec).await);
        }
        let mut world = Self {
            bed,
            rng: StdRng::seed_from_u64(seed),
            subjects: (0..PLUGINS).map(Subject::new).collect(),
            good,
            agent_away: None,
            control_plane_away: None,
            seen: BTreeMap::new(),
            read_at: Instant::now(),
            tally: Tally::default(),
        };
        for number in 0..PLUGINS {
            world.install(number).await;
        }
        world.settle_owed().await;
        world.bed.until("everything runs", async || world.all_run().await.then_some(())).await;
        world
    }

    async fn all_run(&self) -> bool {
        let Ok(status) = self.bed.try_status().await else { return false };
        let running = status.plugins.iter().filter(|plugin| plugin.state == "RUNNING");
        running.count() == PLUGINS
    }

    /// Does damage and gives orders for so long. The agent is left alive towards the end, so that
    /// one life of it sees a lot.
    pub(super) async fn rage(&mut self, duration: Duration) {
        let began = Instant::now();
        while began.elapsed() < duration {
            let agent_may_die = began.elapsed() < duration * 7 / 10;
            match self.rng.random_range(0..100) {
                0..25 => self.install_random().await,
                25..32 => self.install_bad().await,
                32..42 => self.apply().await,
                42..48 => self.remove().await,
                48..52 => self.restart().await,
                52..72 => self.kill_process(),
                72..84 if agent_may_die => self.kill_agent().await,
                _ => self.trouble_the_link().await,
            }
            let pause = self.rng.random_range(0..150);
            tokio::time::sleep(Duration::from_millis(pause)).await;
            self.bring_back().await;
            self.settle_owed().await;
            if self.read_at.elapsed() > READING {
                self.read_events().await;
            }
        }
    }

    /// Everything is there and does as it should.
    pub(super) async fn end_the_damage(&mut self) {
        self.control_plane_away = self.control_plane_away.map(|_| Instant::now());
        self.agent_away = self.agent_away.map(|_| Instant::now());
        self.bring_back().await;
        self.bed.control_plane.set_faults(Faults::default());
        self.bed
            .until("the agent answers", async || self.bed.try_status().await.ok().map(drop))
            .await;
        let connected = self
            .bed
            .control_plane
            .gateway()
            .wait_connected(RESOURCE, Duration::from_secs(60))
            .await;
        self.bed.check("the agent is connected", connected);
        self.settle_owed().await;
    }

    /// Remembers the events that the agent has on record, if it answers.
    pub(super) async fn read_events(&mut self) {
        if self.agent_away.is_some() {
            return;
        }
        let Ok(events) = self.bed.recorded_events().await else { return };
        self.read_at = Instant::now();
        for event in events {
            if let Some(before) = self.seen.get(&event.id) {
                // A killed agent can forget an acknowledgement; the next one sends the event again.
                let before = local::Event { delivered: event.delivered, ..before.clone() };
                assert_eq!(before, event, "an event was changed after it was recorded");
            }
            self.seen.insert(event.id.clone(), event);
        }
    }

    async fn bring_back(&mut self) {
        if self.control_plane_away.is_some_and(|back| Instant::now() >= back) {
            self.control_plane_away = None;
            self.bed.start_control_plane().await;
        }
        if self.agent_away.is_some_and(|back| Instant::now() >= back) {
            self.agent_away = None;
            self.bed.spawn_agent();
            // Now and then it does not get far.
            if self.rng.random_bool(0.25) {
                let life = self.rng.random_range(0..200);
                tokio::time::sleep(Duration::from_millis(life)).await;
                self.kill_agent().await;
            }
        }
    }
}

// === impl World: orders ===

impl World {
    fn any(&mut self) -> usize {
        self.rng.random_range(0..PLUGINS)
    }

    async fn install_random(&mut self) {
        let number = self.any();
        self.install(number).await;
    }

    /// Orders any good revision, with any configuration or none.
    pub(super) async fn install(&mut self, number: usize) {
        let archive = self.good.choose(&mut self.rng).unwrap().clone();
        let config = match self.rng.random_range(0..4) {
            0 => String::new(),
            any => format!("configuration {any}"),
        };
        let order = self.subjects[number].install(&archive, &config);
        self.tally.installs += 1;
        self.give(number, order).await;
    }

    async fn install_bad(&mut self) {
        let number = self.any();
        self.tally.bad_installs += 1;
        let revision = format!("bad-{}", self.tally.bad_installs);
        let mut archive = self.good.choose(&mut self.rng).unwrap().clone();
        let mut argument = None;
        match self.rng.random_range(0..3) {
            0 => archive.sha256 = "0".repeat(64),
            1 => archive.url.push_str("-is-not-there"),
            _ => argument = Some("--exit-before-start=3"),
        }
        let order = self.subjects[number].install_bad(&revision, &archive, argument);
        self.give(number, order).await;
    }

    async fn apply(&mut self) {
        let number = self.any();
        self.tally.applies += 1;
        let config = format!("applied {}", self.tally.applies);
        if let Some(order) = self.subjects[number].apply(&config, &self.good) {
            self.give(number, order).await;
        }
    }

    /// Orders the removal of a plugin, and sometimes at once its installation.
    async fn remove(&mut self) {
        let number = self.any();
        // The agent tells of a plugin that it does not know; nothing comes of it.
        let order = self.subjects[number].remove();
        self.tally.removals += 1;
        self.give(number, order).await;
        if self.rng.random_bool(0.3) {
            self.install(number).await;
        }
    }

    async fn restart(&mut self) {
        let number = self.any();
        if self.agent_away.is_none() && self.subjects[number].desired != Desired::Gone {
            self.tally.restarts += 1;
            // A restart request that the agent did not receive loses nothing.
            drop(self.bed.try_restart(&self.subjects[number].name).await);
        }
    }

    async fn give(&mut self, number: usize, order: ConfigurePlugin) {
        let subject = &mut self.subjects[number];
        match subject.door {
            Door::LocalSocket => subject.owed.push(order),
            Door::ControlPlane => self.bed.declare(&[order]).await,
        }
    }

    /// Gives the orders that the local socket has still to take. One that was not answered is given
    /// again, which changes nothing if it was taken.
    pub(super) async fn settle_owed(&mut self) {
        if self.agent_away.is_some() {
            return;
        }
        for subject in &mut self.subjects {
            while let Some(order) = subject.owed.first() {
                let Ok(refused) = self.bed.try_configure_locally(vec![order.clone()]).await else {
                    return;
                };
                assert_eq!(refused, [""], "an order was refused");
                subject.owed.remove(0);
            }
        }
    }
}

// === impl World: damage ===

impl World {
    async fn kill_agent(&mut self) {
        if self.agent_away.is_some() {
            return;
        }
        self.tally.agent_kills += 1;
        self.bed.kill_agent_only().await;
        let away = Duration::from_millis(self.rng.random_range(0..500));
        self.agent_away = Some(Instant::now() + away);
    }

    /// Kills any process of any plugin: the plugin itself, or a helper of it.
    fn kill_process(&mut self) {
        let all = processes::all_below(&self.bed.state_root());
        let pids: Vec<u32> = all.keys().copied().collect();
        let Some(&pid) = pids.choose(&mut self.rng) else { return };
        let name = &all[&pid]["GUEST_AGENT_PLUGIN"];
        let helps = processes::parent(pid).is_some_and(|parent| all.contains_key(&parent));
        let subject = self.subjects.iter_mut().find(|subject| subject.name == *name).unwrap();
        if helps {
            self.tally.helper_kills += 1;
            subject.lost_helpers = true;
        } else {
            // A helper whose plugin was killed just now counts as the plugin, which is no harm.
            self.tally.plugin_kills += 1;
            subject.killed_at = Some(Instant::now());
        }
        signal(pid, Signal::SIGKILL);
    }

    async fn trouble_the_link(&mut self) {
        if self.control_plane_away.is_some() {
            return;
        }
        self.tally.link_troubles += 1;
        let code = *CODES.choose(&mut self.rng).unwrap();
        let some = self.rng.random_range(1..5);
        let faults = match self.rng.random_range(0..7) {
            0 => {
                let _not_connected_is_as_good = self.bed.control_plane.disconnect(RESOURCE, code);
                return;
            }
            1 => {
                self.tally.control_plane_restarts += 1;
                self.bed.stop_control_plane().await;
                let away = Duration::from_millis(self.rng.random_range(0..800));
                self.control_plane_away = Some(Instant::now() + away);
                return;
            }
            2 => Faults { drop_acknowledgements: some, ..Faults::default() },
            3 => Faults {
                delay_acknowledgements: Duration::from_millis(u64::from(some) * 50),
                ..Faults::default()
            },
            4 => Faults { exhaust_bodies: some, ..Faults::default() },
            5 => Faults {
                end_stream_after: Some(EndStream { frames: some * 3, code }),
                ..Faults::default()
            },
            _ => {
                let away = Duration::from_millis(self.rng.random_range(0..1000));
                let until = tokio::time::Instant::now() + away;
                let form = RefusalForm::StreamStatus;
                let refuse_registrations = Some(RefuseRegistrations { until, code, form });
                let _not_connected_is_as_good = self.bed.control_plane.disconnect(RESOURCE, code);
                Faults { refuse_registrations, ..Faults::default() }
            }
        };
        self.bed.control_plane.set_faults(faults);
    }
}
