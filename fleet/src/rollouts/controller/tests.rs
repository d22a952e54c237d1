//! One controller after the other, and one agent that has an order.

use guest_fleet_core::journal::{Entry, Order, OrderState};
use guest_fleet_core::rollout::{DRY, Former, Grant, Plan, Rollout, Size, Strategy, Verb, Wave};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::time::UtcOnly;
use guest_fleet_core::view::{Archive, Assignment, Release, ReleaseName, Target};
use guest_fleet_ledger::MemoryLedger;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::configuration::{
    ASSIGNMENT, AssignmentRecord, ReleaseRecord, release_key,
};
use guest_fleet_ledger::records::gateway::GatewayRecord;
use guest_fleet_ledger::records::report::ReportRecord;
use guest_fleet_ledger::records::rollout::{ENDED_AGE, RolloutRecord, ended_key};

use super::*;
use crate::configuration::audit;
use crate::orders::tests::order;

mod repairs;

const WALL: u64 = 1_700_000_000;

/// Longer than any order may take that says nothing of its own.
const LONG: Duration = Duration::from_secs(1200);

/// A journal with the newest order of a plugin.
fn journal_of(
    target: Target,
    (assignment, rollout): (&str, &str),
    state: OrderState,
    at: Seconds,
) -> JournalRecord {
    let order = Order { rollout: rollout.to_owned(), ..order(target, assignment, state, at) };
    let mut journal = JournalRecord { version: 1, ..JournalRecord::default() };
    let entry = Entry { generation: 1, order: Some(order), ..Entry::default() };
    journal.plugins.entry("p".to_owned()).or_default().set(&entry);
    journal
}

struct World {
    ledger: Arc<MemoryLedger>,
    begun: Instant,
}

impl World {
    /// A rollout from 1 to 2 under way, and an agent that was sent 2 and has not answered.
    async fn new() -> Self {
        let world = Self { ledger: Arc::new(MemoryLedger::default()), begun: Instant::now() };
        for number in ["1", "2"] {
            let name = ReleaseName { plugin: "p".to_owned(), revision: number.to_owned() };
            let archives = [("any".to_owned(), Archive::default())].into();
            let record = ReleaseRecord::of(&name, &Release { archives, order: Vec::new() });
            world.put(Bucket::Configuration, &release_key(&name), record.encode_to_vec()).await;
        }
        let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
        let assignment = Assignment {
            plugin: "p".to_owned(),
            target: to.clone(),
            selector: Selector::all(),
            own_labels: OwnLabels::Ignored,
            priority: 0,
            attempt: 0,
            strategy: Strategy::default(),
            declared: None,
        };
        let key = format!("{ASSIGNMENT}a");
        let record = AssignmentRecord::of(&assignment).encode_to_vec();
        world.put(Bucket::Configuration, &key, record).await;
        let wave = Wave { size: Size::Percent(100), soak: 20, needs_approval: false };
        let mut rollout = Rollout::new(
            from,
            to.clone(),
            Plan { waves: vec![wave], budget: 1, ..Plan::default() },
        );
        rollout.ask(&Verb::Start, world.wall()).unwrap();
        let record = RolloutRecord::of(&AssignmentRollout::first("spring", "p", rollout));
        world.put(Bucket::Configuration, &rollout_key("a"), record.encode_to_vec()).await;
        let seen = std::time::UNIX_EPOCH + Duration::from_secs(WALL);
        let agent = AgentRecord {
            since: Some(seen.into()),
            seen: Some(seen.into()),
            ..AgentRecord::new("agent-1")
        };
        world.put(Bucket::Agents, "agent-1", agent.encode_to_vec()).await;
        let report = ReportRecord {
            version: 1,
            architecture: "amd64".to_owned(),
            ..ReportRecord::default()
        };
        world.put(Bucket::Reports, "agent-1", report.encode_to_vec()).await;
        let journal = journal_of(to, ("a", "spring"), OrderState::Sent, world.wall());
        world.put(Bucket::Journal, "agent-1", journal.encode_to_vec()).await;
        world
    }

    /// The same, where the agent has 2, and another one has 1 and did not take up its turn, when a person halted
    /// the rollout.
    async fn halted(budget: u32) -> Self {
        let world = Self::new().await;
        let record = world.journal("2", "spring");
        world.replace(Bucket::Journal, "agent-1", record).await;
        for bucket in [Bucket::Agents, Bucket::Reports] {
            let of_one = world.ledger.get(bucket, "agent-1").await.unwrap().expect("it is there");
            world.put(bucket, "agent-2", of_one.value.to_vec()).await;
        }
        world.put(Bucket::Journal, "agent-2", world.journal("1", "")).await;
        let mut found = world.found().await;
        let (now, rollout) = (world.wall(), &mut found.rollout);
        rollout.plan.budget = budget;
        let all = Grant { label: None, first: 0, last: u64::MAX, since: now };
        rollout.change(Change::Grant(all), now);
        rollout.ask(&Verb::Halt { reason: "a look".to_owned() }, now).unwrap();
        world.write(&found).await;
        world
    }

    /// A person takes the rollout back.
    async fn goes_back(&self) {
        let mut found = self.found().await;
        found.rollout.ask(&Verb::RollBack, self.wall()).unwrap();
        self.write(&found).await;
    }

    /// After how many seconds the first turn to go back came, where a process ends every three seconds.
    async fn goes_back_among_restarts(&self, lives: u32) -> Option<u64> {
        self.goes_back().await;
        let asked = self.wall();
        for _ in 0..lives {
            self.controls_and_ends(Duration::from_secs(3)).await;
            if let Some(grant) = self.found().await.rollout.grant {
                return Some(grant.since.since(asked));
            }
        }
        None
    }

    /// A journal with an order that was done.
    fn journal(&self, revision: &str, rollout: &str) -> Vec<u8> {
        let journal = journal_of(
            Target::Revision(revision.to_owned()),
            ("a", rollout),
            OrderState::Done { adopted: false },
            self.wall(),
        );
        journal.encode_to_vec()
    }

    async fn write(&self, found: &AssignmentRollout) {
        let record = RolloutRecord::of(found).encode_to_vec();
        self.replace(Bucket::Configuration, &rollout_key("a"), record).await;
    }

    async fn put(&self, bucket: Bucket, key: &str, value: Vec<u8>) {
        let write =
            Write { key: key.to_owned(), expected: Revision::ABSENT, value: Some(value.into()) };
        self.ledger.write(bucket, vec![write]).await.unwrap();
    }

    async fn replace(&self, bucket: Bucket, key: &str, value: Vec<u8>) {
        let found = self.ledger.get(bucket, key).await.unwrap().expect("it is there");
        let write =
            Write { key: key.to_owned(), expected: found.revision, value: Some(value.into()) };
        self.ledger.write(bucket, vec![write]).await.unwrap();
    }

    fn wall(&self) -> Seconds {
        Seconds(WALL + self.begun.elapsed().as_secs())
    }

    fn settings(&self) -> Settings {
        let begun = self.begun;
        Settings {
            wall: Arc::new(move || Seconds(WALL + begun.elapsed().as_secs())),
            zones: Arc::new(UtcOnly),
            jittered: Arc::new(|longest| longest),
            pace: Pace::default(),
        }
    }

    /// A controller for a while; then its process is gone.
    async fn controls(&self, lasts: Duration) {
        let running = run(self.ledger.clone(), self.settings(), CancellationToken::new());
        drop(tokio::time::timeout(lasts, running).await);
    }

    /// A controller for a while; then it gives its lease back.
    async fn controls_and_ends(&self, lasts: Duration) {
        let ending = CancellationToken::new();
        let ends = async {
            tokio::time::sleep(lasts).await;
            ending.cancel();
        };
        tokio::join!(run(self.ledger.clone(), self.settings(), ending.clone()), ends);
    }

    async fn found(&self) -> AssignmentRollout {
        let configuration = Configuration::load(&*self.ledger).await.unwrap();
        configuration.view().rollouts["a"].clone()
    }

    async fn state(&self) -> State {
        self.found().await.rollout.state
    }
}

#[tokio::test(start_paused = true)]
async fn an_order_without_an_answer_fails_in_the_end() {
    let world = World::new().await;
    world.controls(LONG).await;
    assert!(matches!(world.state().await, State::Halted(_)), "{:?}", world.state().await);
    // Its account says so, with the agent, and tells no turns.
    let account = world.found().await.account;
    let told: Vec<&str> = account.decisions.iter().map(|decided| decided.what.as_str()).collect();
    assert_eq!(told, ["rollout halt"]);
    assert_eq!(account.decisions[0].who, "the controller");
    let results = account.results.expect("it was counted");
    assert_eq!((results.targets, results.given, results.failures), (1, 1, 1));
    assert_eq!(results.failed[0].agent, "agent-1");
    assert_eq!(results.fingerprints, [(results.failed[0].fingerprint.clone(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn rollouts_that_ended_long_ago_go() {
    let world = World::new().await;
    let mut found = world.found().await;
    let year = ENDED_AGE.as_secs() + 1;
    let [old, new] = [year, 60].map(|age| ended_key("a", 1, Seconds(WALL - age)));
    // The last one of an assignment that was deleted.
    found.rollout.began = vec![Seconds(WALL - year)];
    found.rollout.state = State::Aborted;
    let value = RolloutRecord::of(&found).encode_to_vec();
    let (left, damaged) = (rollout_key("gone"), "ended/a/damaged".to_owned());
    for key in [&old, &new, &left, &damaged] {
        world.put(Bucket::Configuration, key, value.clone()).await;
    }
    world.controls(TIDY + Duration::from_secs(30)).await;
    let is_there =
        async |key: &str| world.ledger.get(Bucket::Configuration, key).await.unwrap().is_some();
    assert!(!is_there(&old).await && !is_there(&left).await);
    assert!(is_there(&new).await && is_there(&damaged).await && is_there(&rollout_key("a")).await);
    // The controller goes on with its lease.
    world.controls(LONG).await;
    assert!(matches!(world.state().await, State::Halted(_)), "{:?}", world.state().await);
}

#[tokio::test(start_paused = true)]
async fn nobody_fails_because_the_control_plane_was_away() {
    let world = World::new().await;
    world.controls(Duration::from_secs(30)).await;
    tokio::time::sleep(LONG).await;
    world.controls(Duration::from_secs(60)).await;
    assert!(matches!(world.state().await, State::Running(_)), "{:?}", world.state().await);
    // One that takes over from it knows since when agents could answer, and gives them no more time.
    for _ in 0..LONG.as_secs() / 60 {
        world.controls(Duration::from_secs(60)).await;
    }
    assert!(matches!(world.state().await, State::Halted(_)), "{:?}", world.state().await);
}

#[tokio::test(start_paused = true)]
async fn the_way_back_begins_in_the_first_round_where_there_is_room() {
    let world = World::halted(2).await;
    assert_eq!(world.goes_back_among_restarts(1).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn the_way_back_begins_however_often_controllers_end_where_there_is_no_room() {
    let world = World::halted(1).await;
    let took = world.goes_back_among_restarts(10).await.expect("it begins");
    assert!((DRY..DRY + 5).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn the_way_back_long_after_a_halt_waits_for_nothing() {
    let world = World::halted(1).await;
    for _ in 0..5 {
        world.controls_and_ends(Duration::from_secs(3)).await;
    }
    assert_eq!(world.goes_back_among_restarts(1).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn what_a_controller_told_of_other_grants_says_nothing_of_those_that_are_closed() {
    let world = World::halted(1).await;
    world.controls_and_ends(Duration::from_secs(30)).await;
    // The same agents had their turn once more, and it was closed a moment ago.
    let mut found = world.found().await;
    let (now, rollout) = (world.wall(), &mut found.rollout);
    rollout.ask(&Verb::Resume { reason: "known".to_owned() }, now).unwrap();
    let since = Seconds(WALL);
    rollout.change(Change::Grant(Grant { label: None, first: 0, last: u64::MAX, since }), now);
    rollout.ask(&Verb::Pause, now).unwrap();
    world.write(&found).await;
    let took = world.goes_back_among_restarts(10).await.expect("it begins");
    assert!((DRY..DRY + 5).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn agents_that_a_gateway_says_wait_to_join_are_rolled_out() {
    let world = World::new().await;
    // What the rollout led to is done, and the agent has its release from another assignment.
    let mut found = world.found().await;
    found.rollout.state = State::Done;
    world.write(&found).await;
    let journal = journal_of(
        Target::Revision("1".to_owned()),
        ("b", ""),
        OrderState::Done { adopted: false },
        world.wall(),
    );
    world.replace(Bucket::Journal, "agent-1", journal.encode_to_vec()).await;
    world.controls(Duration::from_secs(30)).await;
    assert_eq!(world.found().await.name, "spring", "no gateway says so");

    let joined = vec!["a".to_owned(), "unknown".to_owned()];
    let gateway = GatewayRecord { version: 1, joined, ..GatewayRecord::default() };
    world.put(Bucket::Configuration, "gateway/1", gateway.encode_to_vec()).await;
    world.controls(Duration::from_secs(30)).await;
    let begun = world.found().await;
    assert_eq!((begun.name.as_str(), begun.number), ("a-2", 2));
    assert_eq!(begun.rollout.from, Former::Each);
    assert!(begun.rollout.grant.is_some(), "its turn comes: {:?}", begun.rollout);
    let audit = audit::newest(&*world.ledger, 10).await.unwrap();
    let entry = audit.iter().find(|entry| entry.what == "rollout begin").expect("it is recorded");
    assert!(entry.why.contains("the assignment a"), "{}", entry.why);
}
