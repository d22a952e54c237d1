//! What has to be so when it is calm.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use guest_agent_lab::AgentEvent;
use guest_agent_proto::local::{self, PluginStatus};
use nix::sys::signal::Signal;

use super::subjects::{Desired, Subject, Verdict};
use super::world::World;
use crate::harness::inspect::Kept;
use crate::harness::{Bed, RESOURCE, listing, processes, signal};

/// Longest that thirty plugins may take to come to rest on a machine that has other things to do.
const REST: Duration = Duration::from_secs(90);

/// How often it is looked whether everything rests.
const BEAT: Duration = Duration::from_millis(50);

/// Descriptors by which two lives of the agent may differ: one connection more to a
/// client that asks it.
const DESCRIPTOR_SLACK: usize = 3;

/// No plugin ran, and no caller waits.
const NOTHING_WAITS: Kept = Kept { plugins: Vec::new(), inbox: 0, outbox: 0, quarantined: 0 };

// === impl World: calm ===

impl World {
    /// Ends the damage and checks everything.
    pub(super) async fn calm_down(&mut self) {
        self.end_the_damage().await;
        self.everything_is_as_ordered().await;
        self.nothing_is_where_nothing_was_ordered();
        self.order_everything().await;
        self.everything_is_as_ordered().await;
        self.nothing_is_left_over().await;
        self.every_event_was_told_once().await;
        self.the_agent_holds_no_more_than_a_fresh_one().await;
        self.nothing_is_kept_of_what_is_gone().await;
    }

    /// Every plugin is as ordered last. One that was killed at a bad moment may have failed
    /// instead, if the agent reported it; ordered again it must not fail.
    async fn everything_is_as_ordered(&mut self) {
        let mut failed = self.at_rest().await;
        while !failed.is_empty() {
            for number in failed {
                eprintln!("{} could not do as ordered, and said so", self.subjects[number].name);
                self.subjects[number].killed_at = None;
                self.install(number).await;
            }
            self.settle_owed().await;
            failed = self.at_rest().await;
        }
    }

    /// Waits until every plugin is as ordered or has failed for a reason, and gives the latter.
    async fn at_rest(&self) -> Vec<usize> {
        let deadline = Instant::now() + REST;
        loop {
            let (failed, unrest) = self.look().await;
            if unrest.is_empty() {
                return failed;
            }
            if Instant::now() > deadline {
                self.bed.fail(format_args!("no rest within {REST:?}: {}", unrest.join("\n")));
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Who has failed for a reason, and what is not at rest.
    async fn look(&self) -> (Vec<usize>, Vec<String>) {
        let bed = &self.bed;
        let mut unrest = Vec::new();
        match bed.unanswered().await {
            0 => {}
            waiting => unrest.push(format!("{waiting} orders are on their way")),
        }
        let status = self.statuses().await;
        let mut failed = Vec::new();
        for (number, subject) in self.subjects.iter().enumerate() {
            let status = status.get(&subject.name);
            match subject.judge(status) {
                Verdict::AsOrdered => {}
                Verdict::FailedForAReason if self.failure_was_told(subject).await => {
                    failed.push(number);
                }
                Verdict::FailedForAReason => {
                    unrest.push(format!("{} failed and said nothing: {status:?}", subject.name));
                }
                Verdict::NotYet => {
                    let (name, desired) = (&subject.name, &subject.desired);
                    unrest.push(format!("{name} is to be {desired:?}, not {status:?}"));
                }
            }
            // A trial that is under way can still end badly.
            let files = on_disk(bed, subject);
            let needed = |file: &String| {
                status.is_some_and(|it| *file == it.revision || *file == it.rollback_to)
            };
            if status.is_some_and(|status| status.on_trial) || !files.iter().all(needed) {
                unrest.push(format!("{} has {files:?}", subject.name));
            }
        }
        (failed, unrest)
    }

    async fn failure_was_told(&self, subject: &Subject) -> bool {
        let Desired::Good { revision, .. } = &subject.desired else { return false };
        let told = self.bed.all_events_of(&subject.name).await;
        let of_failure = |kind: i32| [8, 13].contains(&kind);
        told.iter().any(|it| of_failure(it.event.event_type) && it.revision() == revision)
    }

    fn nothing_is_where_nothing_was_ordered(&self) {
        for subject in self.subjects.iter().filter(|subject| subject.desired == Desired::Gone) {
            let name = &subject.name;
            assert_eq!(self.bed.processes(name), [0_u32; 0], "processes of {name} are left");
            for folder in [self.bed.plugin_dir(name), self.bed.plugin_state(name)] {
                assert!(!folder.exists(), "{} is left", folder.display());
            }
        }
    }

    /// Orders a good revision of each removed or failed plugin.
    async fn order_everything(&mut self) {
        for number in 0..self.subjects.len() {
            if !matches!(self.subjects[number].desired, Desired::Good { .. }) {
                self.install(number).await;
            }
        }
        self.settle_owed().await;
    }

    /// One process of each plugin, its helpers, its socket, its revision, and nothing else.
    async fn nothing_is_left_over(&self) {
        let bed = &self.bed;
        let status = self.statuses().await;
        let all = processes::all_below(&bed.state_root());
        let mut sockets = BTreeSet::new();
        let mut known = BTreeSet::new();
        for subject in &self.subjects {
            let status = &status[&subject.name];
            let pid = status.pid.unwrap();
            let of_plugin = all.iter().filter(|(_, it)| it["GUEST_AGENT_PLUGIN"] == subject.name);
            let (own, others): (Vec<u32>, Vec<u32>) =
                of_plugin.map(|(pid, _)| *pid).partition(|it| *it == pid);
            assert_eq!(own, [pid], "{} is not the process that runs", subject.name);
            let strangers: Vec<_> =
                others.iter().filter(|it| processes::parent(**it) != Some(pid)).collect();
            assert!(strangers.is_empty(), "{}: {strangers:?} outlived theirs", subject.name);
            if subject.lost_helpers {
                assert!(others.len() <= subject.helpers, "{}: {others:?}", subject.name);
            } else {
                assert_eq!(others.len(), subject.helpers, "{}: {others:?}", subject.name);
            }
            known.extend(own.into_iter().chain(others));
            sockets.insert(status.address.trim_start_matches("unix:").to_owned());
        }
        let strangers: Vec<_> = all.keys().filter(|pid| !known.contains(pid)).collect();
        assert!(strangers.is_empty(), "these belong to nobody: {strangers:?}");

        let found: BTreeSet<_> = listing(&bed.dir().join("run/plugins"))
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let unknown: Vec<_> = found.symmetric_difference(&sockets).collect();
        assert!(unknown.is_empty(), "these sockets are left, or missing: {unknown:?}");
    }

    async fn statuses(&self) -> BTreeMap<String, PluginStatus> {
        let status = self.bed.try_status().await;
        let status = self.bed.check("the agent answers", status);
        status.plugins.into_iter().map(|plugin| (plugin.name.clone(), plugin)).collect()
    }

    /// The control plane and the agent tell the same story: each event once, under one id, in
    /// order.
    async fn every_event_was_told_once(&mut self) {
        self.all_is_delivered().await;
        self.read_events().await;
        let told = self.bed.control_plane.events(RESOURCE);
        let mut by_id: BTreeMap<&str, &AgentEvent> = BTreeMap::new();
        for event in &told {
            let twice = by_id.insert(&event.message_id, event);
            assert!(twice.is_none(), "told twice: {event:?}");
        }
        for (id, event) in &self.seen {
            let Some(told) = by_id.get(id.as_str()) else { panic!("never told: {event:?}") };
            assert_eq!(content(event), content_told(told), "an event was sent with other content");
        }
        let unknown: Vec<_> =
            told.iter().filter(|event| !self.seen.contains_key(&event.message_id)).collect();
        assert!(unknown.is_empty(), "told, but not on the agent's record: {unknown:?}");
        for subject in &self.subjects {
            let of = |plugin: &str| plugin == subject.name;
            let told: Vec<_> = told.iter().filter(|event| of(event.plugin())).collect();
            let told: Vec<&str> = told.iter().map(|event| event.message_id.as_str()).collect();
            let mut recorded: Vec<_> =
                self.seen.values().filter(|event| of(&event.plugin)).collect();
            recorded.sort_by_key(|event| event.seq);
            let recorded: Vec<&str> = recorded.iter().map(|event| event.id.as_str()).collect();
            assert_eq!(told, recorded, "events of {} were sent out of order", subject.name);
        }
        eprintln!("{} events, each told once", told.len());
    }

    async fn all_is_delivered(&self) {
        self.bed
            .within(REST, "every event is acknowledged", async || {
                let status = self.bed.try_status().await.ok()?;
                (status.agent?.outbox_depth == 0).then_some(())
            })
            .await;
    }

    /// What a life of damage left open, against an agent that was just started with the same
    /// plugins. Each has launched all of them: an agent holds more of a plugin that it launched
    /// than of one that it found.
    async fn the_agent_holds_no_more_than_a_fresh_one(&mut self) {
        self.relaunch_all().await;
        let worn = self.bed.descriptors();
        let before = self.statuses().await;
        assert!(self.bed.stop_agent().await.success());
        let kept = self.bed.kept().await;
        let plugins: Vec<_> = self.subjects.iter().map(|it| it.name.clone()).collect();
        assert_eq!(kept, Kept { plugins, ..NOTHING_WAITS });

        self.bed.start_agent().await;
        let after = self.statuses().await;
        for (name, before) in before {
            let after = &after[&name];
            assert_eq!((before.pid, before.restarts), (after.pid, after.restarts), "{name}");
        }
        self.relaunch_all().await;
        let fresh = self.bed.descriptors();
        let (open, usual): (usize, usize) = (worn.values().sum(), fresh.values().sum());
        assert!(open <= usual + DESCRIPTOR_SLACK, "worn: {worn:?}\nfresh: {fresh:?}");
    }

    /// Kills every plugin; waits until it runs again and was asked for its health, so that all
    /// connections are there.
    async fn relaunch_all(&self) {
        let before = self.statuses().await;
        for status in before.values() {
            signal(status.pid.unwrap(), Signal::SIGKILL);
        }
        self.bed
            .within(REST, "every plugin runs again and says how it is", async || {
                let plugins = self.bed.try_status().await.ok()?.plugins;
                let all = plugins.iter().all(|it| {
                    let anew = it.pid.is_some() && it.pid != before[&it.name].pid;
                    anew && it.state == "RUNNING" && it.health.is_some()
                });
                (all && plugins.len() == self.subjects.len()).then_some(())
            })
            .await;
    }

    /// Removes everything; then the store holds nothing but the events that were sent.
    async fn nothing_is_kept_of_what_is_gone(&mut self) {
        let orders = self.subjects.iter_mut().map(Subject::remove).collect();
        self.bed.configure(orders).await;
        self.everything_is_as_ordered().await;
        self.nothing_is_where_nothing_was_ordered();
        self.all_is_delivered().await;
        assert!(self.bed.stop_agent().await.success());
        assert_eq!(self.bed.kept().await, NOTHING_WAITS);
        self.bed.start_agent().await;
    }
}

/// The revisions of a plugin that are on disk, and whatever else is in its folder.
fn on_disk(bed: &Bed, subject: &Subject) -> Vec<String> {
    let mut files = bed.revisions(&subject.name);
    files.retain(|name| name != "current");
    files
}

/// What an event says: when, of what, which kind, in which words.
type Content = (Option<(i64, i32)>, String, String, String, String);

fn content(event: &local::Event) -> Content {
    let at = event.at.map(|at| (at.seconds, at.nanos));
    let (plugin, revision) = (event.plugin.clone(), event.revision.clone());
    (at, plugin, revision, event.r#type.clone(), event.details.clone())
}

fn content_told(told: &AgentEvent) -> Content {
    let at = told.event.event_timestamp.map(|at| (at.seconds, at.nanos));
    let (plugin, revision) = (told.plugin().to_owned(), told.revision().to_owned());
    (at, plugin, revision, told.kind().as_str_name().to_owned(), told.details().into_owned())
}
