//! Counts of a whole fleet, from a ledger with a real index.

use std::collections::BTreeMap;

use guest_fleet_core::fold::Word;
use guest_fleet_core::journal::{Entry, OrderState};
use guest_fleet_core::presence::Presence;
use guest_fleet_core::progress::Stand;
use guest_fleet_core::repair::{Repair, Stop};
use guest_fleet_core::rollout::{Cause, Plan, Rollout, Size, Stage, State, StateKind, Wave};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{
    Archive, Assignment, AssignmentRollout, Release, ReleaseName, Target,
};
use guest_fleet_ledger::records::Numbered;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::configuration::{
    ASSIGNMENT, AssignmentRecord, ReleaseRecord, release_key,
};
use guest_fleet_ledger::records::gateway::{GATEWAY, GatewayRecord};
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::progress::{ProgressRecord, StandPart, progress_key};
use guest_fleet_ledger::records::repair::{RepairRecord, repair_key};
use guest_fleet_ledger::records::report::ReportRecord;
use guest_fleet_ledger::records::rollout::{RolloutRecord, rollout_key};
use guest_fleet_ledger::{Bucket, Faults, Ledger, Revision, SharedLedger, Write};
use prost::Message;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::fold;
use crate::fold::reader::Index;
use crate::gateways::presence::Activity;
use crate::observe::fleet::{
    AgentCounts, FleetCounts, FleetReader, ProgressCounts, ROLLOUTS, RolloutCounts,
};
use crate::orders::tests::order;

/// Counts with something of each.
pub(super) fn counts() -> FleetCounts {
    let state = "waiting for approval";
    FleetCounts {
        agents: Some(AgentCounts {
            age: Duration::from_secs(7),
            presences: [(Presence::NeverSeen, 3)].into(),
            standings: [(Word::OutOfMemory, 2)].into(),
        }),
        gateways: [(Activity::Silent, 1)].into(),
        rollouts: [(state, 1)].into(),
        live: vec![RolloutCounts {
            assignment: "web".to_owned(),
            state,
            wave: 2,
            waves: 3,
            progress: Some(ProgressCounts { targets: 9, given: 6, failed: 4, silent: 1 }),
        }],
        stops: [("many_drifted", 1)].into(),
    }
}

async fn put(ledger: &dyn Ledger, bucket: Bucket, key: &str, record: impl Message) {
    let value = Some(record.encode_to_vec().into());
    let write = Write { key: key.to_owned(), expected: Revision::ABSENT, value };
    ledger.write(bucket, vec![write]).await.expect("written");
}

fn target(revision: &str) -> Target {
    Target::Revision(revision.to_owned())
}

async fn assign(ledger: &dyn Ledger, name: &str, plugin: &str) {
    let assignment = Assignment {
        plugin: plugin.to_owned(),
        target: target("1"),
        selector: Selector::all(),
        own_labels: OwnLabels::Ignored,
        priority: 0,
        attempt: 0,
        strategy: Default::default(),
        declared: None,
    };
    let key = format!("{ASSIGNMENT}{name}");
    put(ledger, Bucket::Configuration, &key, AssignmentRecord::of(&assignment)).await;
    let name = ReleaseName { plugin: plugin.to_owned(), revision: "1".to_owned() };
    let archives = [("any".to_owned(), Archive::default())].into();
    let release = ReleaseRecord::of(&name, &Release { archives, order: Vec::new() });
    put(ledger, Bucket::Configuration, &release_key(&name), release).await;
}

/// A rollout of an assignment in its second wave of two.
async fn rolls(ledger: &dyn Ledger, assignment: &str, state: State) {
    let wave = |percent| Wave { size: Size::Percent(percent), soak: 20, needs_approval: false };
    let plan = Plan { waves: vec![wave(50), wave(100)], ..Plan::default() };
    let mut rollout = Rollout::new(target("0"), target("1"), plan);
    (rollout.state, rollout.wave) = (state, 1);
    let record = RolloutRecord::of(&AssignmentRollout::first("r", "p", rollout));
    put(ledger, Bucket::Configuration, &rollout_key(assignment), record).await;
}

/// An agent that never connected, with an order for the plugin `p` of assignment `a`.
async fn agent(ledger: &dyn Ledger, id: &str, state: Option<OrderState>) {
    let now = SystemTime::now();
    let record = AgentRecord { since: Some(now.into()), ..AgentRecord::new(id) };
    put(ledger, Bucket::Agents, id, record).await;
    let report =
        ReportRecord { version: 1, architecture: "amd64".to_owned(), ..ReportRecord::default() };
    put(ledger, Bucket::Reports, id, report).await;
    let Some(state) = state else { return };
    let at = Seconds(seconds(now) - 3600);
    let order = order(target("1"), "a", state, at);
    let entry = Entry { generation: 1, order: Some(order), ..Entry::default() };
    let mut journal = JournalRecord {
        version: 1,
        session: format!("session-of-{id}"),
        gateway: "one".to_owned(),
        begun: at.0,
        ..JournalRecord::default()
    };
    journal.plugins.entry("p".to_owned()).or_default().set(&entry);
    put(ledger, Bucket::Journal, id, journal).await;
}

fn seconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).expect("a time").as_secs()
}

/// Lets a process fold until the index is whole.
async fn indexed(ledger: &SharedLedger) {
    let ending = CancellationToken::new();
    let folding =
        tokio::spawn(fold::run(ledger.clone(), fold::Settings::default(), ending.clone()));
    let whole = async {
        loop {
            let index = Index::open(&**ledger).await.expect("read");
            if index.and_then(|index| index.as_of()).is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), whole).await.expect("an index");
    ending.cancel();
    folding.await.expect("it ends");
}

async fn gateway(ledger: &dyn Ledger, id: &str, age: u64, is_draining: bool) {
    let beat = SystemTime::now() - Duration::from_secs(age);
    let record = GatewayRecord {
        version: 1,
        beat: Some(beat.into()),
        is_draining,
        ..GatewayRecord::default()
    };
    put(ledger, Bucket::Configuration, &format!("{GATEWAY}{id}"), record).await;
}

/// The kinds of which there are some.
fn some<K: Ord + Copy>(counts: &BTreeMap<K, u64>) -> Vec<(K, u64)> {
    counts.iter().map(|(key, count)| (*key, *count)).filter(|(_, count)| *count > 0).collect()
}

async fn look(reader: &FleetReader, ledger: &MemoryLedger) -> Option<Arc<FleetCounts>> {
    reader.look(ledger, SystemTime::now()).await
}

#[tokio::test(start_paused = true)]
async fn agents_are_counted_by_presence_and_by_what_became_of_their_orders() {
    let memory = MemoryLedger::new();
    let reader = FleetReader::default();
    let before = look(&reader, &memory).await.expect("a ledger that answers");
    assert_eq!(before.agents, None, "nobody counted yet");
    assert_eq!(before.gateways.len(), Activity::ALL.len(), "{before:?}");

    assign(&memory, "a", "p").await;
    gateway(&memory, "one", 1, false).await;
    gateway(&memory, "two", 1, true).await;
    gateway(&memory, "three", 60, false).await;
    agent(&memory, "done", Some(OrderState::Done { adopted: false })).await;
    let failed = OrderState::Failed { reason: "why".to_owned() };
    agent(&memory, "failed", Some(failed)).await;
    agent(&memory, "new", None).await;
    let ledger: SharedLedger = Arc::new(memory.clone());
    indexed(&ledger).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    let counts = look(&reader, &memory).await.expect("a ledger that answers");
    let agents = counts.agents.as_ref().expect("an index");
    let presences = [(Presence::Connected, 2), (Presence::NeverSeen, 1)];
    assert_eq!(some(&agents.presences), presences);
    assert_eq!(agents.presences.len(), Presence::ALL.len(), "{agents:?}");
    let standings = [(Word::Waits, 1), (Word::Done, 1), (Word::Failed, 1)];
    assert_eq!(some(&agents.standings), standings);
    assert_eq!(agents.standings.len(), Word::ALL.len(), "{agents:?}");
    assert!(agents.age < Duration::from_secs(60), "{agents:?}");
    let each = [(Activity::Serving, 1), (Activity::Draining, 1), (Activity::Silent, 1)];
    assert_eq!(some(&counts.gateways), each);
}

#[tokio::test]
async fn rollouts_and_stops_are_those_that_people_are_shown() {
    let ledger = MemoryLedger::new();
    for name in ["a", "b", "c", "d"] {
        assign(&ledger, name, name).await;
    }
    rolls(&ledger, "a", State::Running(Stage::Approval)).await;
    rolls(&ledger, "b", State::Done).await;
    rolls(&ledger, "c", State::Halted(Cause::Person("why".to_owned()))).await;
    // Its assignment was deleted.
    rolls(&ledger, "gone", State::Halted(Cause::Restored)).await;
    let stands = [(Stand::Failed, 2), (Stand::Crashed, 3), (Stand::Silent, 4), (Stand::Done, 5)];
    let stands = stands.map(|(stand, count)| StandPart { stand: stand.number(), count });
    let progress = ProgressRecord {
        version: 1,
        rollout: "r".to_owned(),
        targets: 30,
        given: 14,
        stands: stands.into(),
        ..ProgressRecord::default()
    };
    put(&ledger, Bucket::Index, &progress_key("c"), progress.clone()).await;
    // It is that of the rollout before.
    let former = ProgressRecord { rollout: "q".to_owned(), ..progress };
    put(&ledger, Bucket::Index, &progress_key("a"), former).await;
    for (name, stop) in [
        ("d", Stop::Many { drifted: 5, of: 6 }),
        ("gone", Stop::LedgerWentBack { agent: "one".to_owned(), generation: 3 }),
    ] {
        let repair = Repair { stop: Some(stop), ..Repair::default() };
        let key = repair_key(name);
        put(&ledger, Bucket::Configuration, &key, RepairRecord::of(&repair)).await;
    }
    let counts = look(&FleetReader::default(), &ledger).await.expect("a ledger that answers");
    let states = [("done", 1), ("halted", 1), ("waiting for approval", 1)];
    assert_eq!(some(&counts.rollouts), states);
    assert_eq!(counts.rollouts.len(), StateKind::ALL.len());
    let halted = RolloutCounts {
        assignment: "c".to_owned(),
        state: "halted",
        wave: 2,
        waves: 2,
        progress: Some(ProgressCounts { targets: 30, given: 14, failed: 5, silent: 4 }),
    };
    let waiting = RolloutCounts {
        assignment: "a".to_owned(),
        state: "waiting for approval",
        progress: None,
        ..halted
    };
    assert_eq!(counts.live, [halted, waiting]);
    assert_eq!(some(&counts.stops), [("many_drifted", 1)]);
}

#[tokio::test]
async fn a_page_shows_a_hundred_rollouts_one_by_one_and_halted_ones_first() {
    let ledger = MemoryLedger::new();
    for number in 0..ROLLOUTS + 5 {
        let name = format!("a{number:03}");
        assign(&ledger, &name, &name).await;
        let is_last = number == ROLLOUTS + 4;
        let halted = State::Halted(Cause::Restored);
        let state = if is_last { halted } else { State::Running(Stage::Reaching) };
        rolls(&ledger, &name, state).await;
    }
    let counts = look(&FleetReader::default(), &ledger).await.expect("a ledger that answers");
    let first: Vec<&str> = counts.live.iter().take(3).map(|it| it.assignment.as_str()).collect();
    assert_eq!(first, ["a104", "a000", "a001"]);
    assert_eq!(counts.live.len(), ROLLOUTS);
    assert_eq!(counts.rollouts["running"], 104, "all are counted");
}

#[tokio::test(start_paused = true)]
async fn a_ledger_that_is_away_or_slow_makes_a_page_without_counts_and_is_not_asked_for_a_while() {
    let ledger = MemoryLedger::new();
    let reader = FleetReader::default();
    ledger.set_faults(Faults { unavailable: 1.0, ..Faults::default() });
    assert_eq!(look(&reader, &ledger).await, None);
    ledger.set_faults(Faults::default());
    assert_eq!(look(&reader, &ledger).await, None, "it was asked a moment ago");
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(look(&reader, &ledger).await.is_some());

    ledger.set_faults(Faults { latency: Duration::from_secs(60), ..Faults::default() });
    assert!(look(&reader, &ledger).await.is_some(), "what was read a moment ago");
    tokio::time::advance(Duration::from_secs(10)).await;
    let began = tokio::time::Instant::now();
    assert_eq!(look(&reader, &ledger).await, None);
    assert_eq!(began.elapsed(), Duration::from_secs(2));
    ledger.set_faults(Faults::default());
    tokio::time::advance(Duration::from_secs(10)).await;
    assert!(look(&reader, &ledger).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_look_reads_the_same_for_few_agents_and_for_many() {
    let reads = async |agents: usize| {
        let ledger = Arc::new(MemoryLedger::new());
        assign(&*ledger, "a", "p").await;
        for number in 0..agents {
            let state = OrderState::Done { adopted: false };
            agent(&*ledger, &format!("agent-{number}"), Some(state)).await;
        }
        let shared: SharedLedger = ledger.clone();
        indexed(&shared).await;
        let figures = Arc::<Figures>::default();
        let observed = ObservedLedger::new(ledger, figures.clone());
        let reader = FleetReader::default();
        let counts = reader.look(&*observed, SystemTime::now()).await.expect("counts");
        let counted = counts.agents.as_ref().expect("an index").standings[&Word::Done];
        assert_eq!(counted, u64::try_from(agents).expect("a number"));
        let reads = || -> u64 { figures.now().ledger.values().map(|it| it.took.count()).sum() };
        let once = reads();
        reader.look(&*observed, SystemTime::now()).await.expect("counts");
        assert_eq!(reads(), once, "the second look is answered from the first");
        once
    };
    assert_eq!(reads(3).await, reads(700).await);
}
