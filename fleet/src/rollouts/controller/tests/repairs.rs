//! Drifted agents, and a ledger that went back.

use guest_fleet_core::drift::{Drift, Lack, OwnersChange, OwnersKind};
use guest_fleet_core::repair::{PAUSE, Repair, Stop};
use guest_fleet_core::view::Policy;
use guest_fleet_ledger::records::configuration::{POLICY, PolicyRecord};
use guest_fleet_ledger::records::repair::{RepairRecord, UnknownPart, repair_key};

use super::*;

/// The step in which a test looks at what a controller did.
const STEP: Duration = Duration::from_millis(500);

/// An assignment that is done, and so many agents that have it.
async fn done(agents: usize) -> World {
    let world = World::new().await;
    let mut found = world.found().await;
    found.rollout.state = State::Done;
    world.write(&found).await;
    for number in 1..=agents {
        let id = format!("agent-{number}");
        if number > 1 {
            for bucket in [Bucket::Agents, Bucket::Reports] {
                let one = world.ledger.get(bucket, "agent-1").await.unwrap().expect("it is there");
                world.put(bucket, &id, one.value.to_vec()).await;
            }
            world.put(Bucket::Journal, &id, Vec::new()).await;
        }
        world.stands(&id, 1, None).await;
    }
    world
}

impl World {
    /// The newest order of an agent is done, with this generation, or drifted since.
    async fn stands(&self, id: &str, generation: u64, lack: Option<Lack>) {
        let target = Target::Revision("2".to_owned());
        let state = OrderState::Done { adopted: false };
        let mut journal = journal_of(target, ("a", ""), state, self.wall());
        let record = journal.plugins.get_mut("p").expect("it is there");
        let mut entry = record.entry(id).unwrap();
        let order = entry.order.as_mut().expect("an order");
        order.generation = generation;
        order.drift = lack.map(|lack| Drift { lack, since: self.wall() });
        record.set(&entry);
        self.replace(Bucket::Journal, id, journal.encode_to_vec()).await;
    }

    /// A gateway tells with its heartbeat what it needs.
    async fn tells(&self, drifted: &[&str], unknown: Vec<UnknownPart>) {
        let drifted = drifted.iter().map(|name| (*name).to_owned()).collect();
        let gateway = GatewayRecord { version: 1, drifted, unknown, ..GatewayRecord::default() };
        self.put(Bucket::Configuration, "gateway/1", gateway.encode_to_vec()).await;
    }

    async fn repair(&self) -> Repair {
        let configuration = Configuration::load(&*self.ledger).await.unwrap();
        configuration.view().repairs.get("a").cloned().unwrap_or_default()
    }

    /// Does for a while what gateways do: an agent that may be ordered again has it a moment later. When
    /// that was, in seconds from now.
    async fn repairs(&self, lasts: Duration) -> Vec<(u64, String)> {
        let (begun, mut repaired): (_, Vec<(u64, String)>) = (Instant::now(), Vec::new());
        while begun.elapsed() < lasts {
            for (agent, generation) in self.repair().await.leave {
                // A leave stays for a moment after it was used.
                if generation == 1 && repaired.iter().all(|(_, known)| *known != agent) {
                    self.stands(&agent, 2, None).await;
                    repaired.push((begun.elapsed().as_secs(), agent));
                }
            }
            tokio::time::sleep(STEP).await;
        }
        repaired
    }

    /// The same beside a controller.
    async fn mends(&self, lasts: Duration) -> Vec<(u64, String)> {
        tokio::join!(self.repairs(lasts), self.controls(lasts)).0
    }

    async fn audited(&self, what: &str) -> usize {
        let entries = audit::newest(&*self.ledger, 100).await.unwrap();
        entries.iter().filter(|entry| entry.what == what).count()
    }
}

/// Long enough for four repairs. Agents count as away after half an hour.
const MINUTES: Duration = Duration::from_secs(400);

#[tokio::test(start_paused = true)]
async fn drifted_agents_are_ordered_again_one_after_the_other_after_a_minute() {
    let world = done(30).await;
    for id in ["agent-3", "agent-7", "agent-12"] {
        world.stands(id, 1, Some(Lack::WentBack)).await;
    }
    // Nobody looks for them where no gateway says that there are some.
    assert_eq!(world.mends(MINUTES).await, []);
    world.tells(&["a", "unknown"], Vec::new()).await;
    let repaired = world.mends(MINUTES).await;
    let agents: Vec<&str> = repaired.iter().map(|(_, agent)| agent.as_str()).collect();
    assert_eq!(agents, ["agent-12", "agent-3", "agent-7"]);
    for pair in repaired.windows(2) {
        assert!(pair[1].0 - pair[0].0 >= PAUSE, "{repaired:?}");
    }
    assert_eq!(world.repair().await.leave.len(), 0);
    assert_eq!(world.audited("assignment pause").await, 0);
    // One that drifts again just now waits its minute, under any lease.
    world.stands("agent-3", 1, Some(Lack::Differs)).await;
    let again = world.mends(MINUTES).await;
    assert!(matches!(again.as_slice(), [(60..=70, agent)] if agent == "agent-3"), "{again:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leave_that_a_dead_controller_gave_is_taken_back_before_the_next_one() {
    let world = done(30).await;
    world.tells(&["a"], Vec::new()).await;
    for id in ["agent-3", "agent-7"] {
        world.stands(id, 1, Some(Lack::WentBack)).await;
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    // It dies a moment after it wrote the leave, and for long nobody comes.
    world.controls(Duration::from_secs(1)).await;
    assert_eq!(world.repair().await.leave.len(), 1);
    tokio::time::sleep(MINUTES).await;
    let (begun, mut was_empty) = (Instant::now(), None);
    let watch = async {
        loop {
            let leave = world.repair().await.leave;
            match was_empty {
                None if leave.is_empty() => was_empty = Some(begun.elapsed()),
                Some(at) if !leave.is_empty() => return begun.elapsed() - at,
                _ => {}
            }
            tokio::time::sleep(STEP).await;
        }
    };
    let (paused, ()) = tokio::join!(watch, world.controls(Duration::from_secs(200)));
    assert!(paused >= Duration::from_secs(PAUSE - 1), "{paused:?}");
}

#[tokio::test(start_paused = true)]
async fn many_that_drift_at_once_stop_repairs_until_they_are_few_or_a_person_resumes() {
    let world = done(12).await;
    world.tells(&["a"], Vec::new()).await;
    for number in 1..=4 {
        world.stands(&format!("agent-{number}"), 1, Some(Lack::WentBack)).await;
    }
    assert_eq!(world.mends(MINUTES).await, []);
    assert_eq!(world.repair().await.stop, Some(Stop::Many { drifted: 4, of: 12 }));
    assert_eq!(world.audited("assignment pause").await, 1);
    // A person lets it go on, although they are many.
    let resumed = world.repair().await.resumed(world.wall());
    let record = RepairRecord::of(&resumed).encode_to_vec();
    world.replace(Bucket::Configuration, &repair_key("a"), record).await;
    assert_eq!(world.mends(MINUTES).await.len(), 4);
    assert!(!world.repair().await.is_resumed, "few are left");
    // The next time the cause ends by itself.
    for number in 1..=4 {
        world.stands(&format!("agent-{number}"), 1, Some(Lack::WentBack)).await;
    }
    assert_eq!(world.mends(MINUTES).await, []);
    world.stands("agent-4", 3, None).await;
    assert_eq!(world.mends(MINUTES).await.len(), 3);
    assert_eq!(world.repair().await.stop, None);
    assert_eq!(world.audited("assignment resume").await, 1);
}

#[tokio::test(start_paused = true)]
async fn what_a_person_on_the_machine_did_stays_unless_a_policy_undoes_it() {
    let world = done(12).await;
    world.tells(&["a"], Vec::new()).await;
    let by_owner = |kind| Some(Lack::ByOwner(OwnersChange { kind, by: "root".to_owned() }));
    world.stands("agent-1", 1, by_owner(OwnersKind::Removed)).await;
    world.stands("agent-2", 1, by_owner(OwnersKind::Stopped)).await;
    assert_eq!(world.mends(MINUTES).await, []);
    let policy = Policy { selector: Selector::all(), by_rollout: false, undoes_owners: true };
    let record = PolicyRecord::of(&policy).encode_to_vec();
    world.put(Bucket::Configuration, &format!("{POLICY}undo"), record).await;
    let repaired = world.mends(MINUTES).await;
    let agents: Vec<&str> = repaired.iter().map(|(_, agent)| agent.as_str()).collect();
    assert_eq!(agents, ["agent-1"], "an order starts nothing that a person stopped");
}

#[tokio::test(start_paused = true)]
async fn an_assignment_pauses_where_the_ledger_went_back_and_its_rollout_stands_still() {
    let world = World::new().await;
    let unknown = |generation| UnknownPart {
        assignment: "a".to_owned(),
        agent: "agent-9".to_owned(),
        generation,
    };
    world.tells(&[], vec![unknown(WALL - 50), UnknownPart::default()]).await;
    world.controls(LONG).await;
    let (agent, generation) = ("agent-9".to_owned(), WALL - 50);
    assert_eq!(world.repair().await.stop, Some(Stop::LedgerWentBack { agent, generation }));
    assert_eq!(world.audited("assignment pause").await, 1);
    assert!(matches!(world.state().await, State::Running(_)), "nothing is held against it");
    let resumed = world.repair().await.resumed(world.wall());
    let record = RepairRecord::of(&resumed).encode_to_vec();
    world.replace(Bucket::Configuration, &repair_key("a"), record).await;
    world.controls(LONG).await;
    // The gateway has not told anything new, so that the same pauses nothing; and the rollout is counted again.
    assert_eq!(world.repair().await.stop, None);
    assert!(matches!(world.state().await, State::Halted(_)), "{:?}", world.state().await);
}

#[tokio::test(start_paused = true)]
async fn records_of_repairs_go_that_say_nothing_any_more() {
    let world = done(1).await;
    let old = Seconds(WALL - 7200);
    let records = [
        ("a", Repair { at: old, ..Repair::default() }),
        ("gone", Repair { accepted: 5, at: Seconds(WALL), ..Repair::default() }),
    ];
    for (name, repair) in &records {
        let record = RepairRecord::of(repair).encode_to_vec();
        world.put(Bucket::Configuration, &repair_key(name), record).await;
    }
    world.controls(TIDY + Duration::from_secs(30)).await;
    for (name, _) in &records {
        let found = world.ledger.get(Bucket::Configuration, &repair_key(name)).await.unwrap();
        assert_eq!(found, None, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_of_repairs_that_cannot_be_read_pauses_its_assignment_alone() {
    let world = done(12).await;
    world.put(Bucket::Configuration, &repair_key("a"), vec![0xff; 9]).await;
    world.tells(&["a"], Vec::new()).await;
    world.stands("agent-1", 1, Some(Lack::WentBack)).await;
    assert_eq!(world.mends(MINUTES).await, []);
    assert_eq!(world.repair().await.stop, Some(Stop::Unreadable), "nobody writes over it");
    let configuration = Configuration::load(&*world.ledger).await.unwrap();
    assert!(configuration.view().holds.is_empty());
    let resumed = world.repair().await.resumed(world.wall());
    let record = RepairRecord::of(&resumed).encode_to_vec();
    world.replace(Bucket::Configuration, &repair_key("a"), record).await;
    assert_eq!(world.mends(MINUTES).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_rollout_begins_for_agents_that_come_to_a_paused_assignment() {
    let world = done(1).await;
    let target = Target::Revision("1".to_owned());
    let state = OrderState::Done { adopted: false };
    let elsewhere = journal_of(target, ("b", ""), state, world.wall());
    world.replace(Bucket::Journal, "agent-1", elsewhere.encode_to_vec()).await;
    let joined = vec!["a".to_owned()];
    let gateway = GatewayRecord { version: 1, joined, ..GatewayRecord::default() };
    world.put(Bucket::Configuration, "gateway/1", gateway.encode_to_vec()).await;
    let stop = Stop::LedgerWentBack { agent: "agent-1".to_owned(), generation: 9 };
    let paused = Repair { stop: Some(stop), ..Repair::default() };
    let record = RepairRecord::of(&paused).encode_to_vec();
    world.put(Bucket::Configuration, &repair_key("a"), record).await;
    world.controls(Duration::from_secs(60)).await;
    assert_eq!(world.found().await.name, "spring");
    let record = RepairRecord::of(&paused.resumed(world.wall())).encode_to_vec();
    world.replace(Bucket::Configuration, &repair_key("a"), record).await;
    world.controls(Duration::from_secs(60)).await;
    assert_ne!(world.found().await.name, "spring");
}
