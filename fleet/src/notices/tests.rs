//! Notices of a fleet on a ledger in memory, on paused time.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::agent::AgentRecord;
use guest_fleet_ledger::records::audit::AUDIT_HEAD;
use guest_fleet_ledger::records::event::{Content, NOTICED, NoticedRecord};
use guest_fleet_ledger::records::gateway::{GATEWAY, GatewayRecord};
use guest_fleet_ledger::records::journal::JournalRecord;
use guest_fleet_ledger::records::rollout::ROLLOUT;
use guest_fleet_ledger::records::{self, Versioned};
use guest_fleet_ledger::{Bucket, Fate, Ledger, Log, MemoryLedger, SharedLedger, bounds};
use prost::Message;
use prost_types::Timestamp;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::configuration::change::{Becomes, Decision, Edit, change};
use crate::enroll::ends::{End, Renewal};
use crate::fold;

const START: u64 = 1_767_225_600;
const LONG: Duration = Duration::from_secs(300);

/// A fleet on paused time: its index is folded, and a gateway beats.
struct Fleet {
    ledger: MemoryLedger,
    shared: SharedLedger,
    wall: Wall,
    beats: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
    teller: Option<JoinHandle<()>>,
}

impl Fleet {
    async fn start() -> Self {
        let begin = Instant::now();
        let wall: Wall = Arc::new(move || Seconds(START + begin.elapsed().as_secs()));
        let ledger = MemoryLedger::new();
        let shared: SharedLedger = Arc::new(ledger.clone());
        let beats = Arc::new(AtomicBool::new(true));
        let mut fleet = Self { ledger, shared, wall, beats, tasks: Vec::new(), teller: None };
        let (ledger, wall, beats) = (fleet.ledger.clone(), fleet.wall.clone(), fleet.beats.clone());
        let beating = async move {
            loop {
                if beats.load(Ordering::Relaxed) {
                    ledger.put(Bucket::Configuration, &format!("{GATEWAY}g"), gateway(wall()));
                }
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
        };
        fleet.tasks.push(tokio::spawn(beating));
        let settings = fold::Settings { wall: fleet.wall.clone(), ..fold::Settings::default() };
        let ending = CancellationToken::new();
        fleet.tasks.push(tokio::spawn(fold::run(fleet.shared.clone(), settings, ending)));
        fleet
    }

    /// A fleet whose agents have streams, and that a process looks at.
    async fn looked_at(ids: &[&str]) -> Self {
        let mut fleet = Self::start().await;
        for id in ids {
            fleet.agent(id, "");
            fleet.stream(id, 0);
        }
        fleet.look();
        fleet.is_known().await;
        fleet
    }

    fn look(&mut self) {
        let settings = Settings { wall: self.wall.clone(), ..Settings::default() };
        let task = tokio::spawn(run(self.shared.clone(), settings, CancellationToken::new()));
        self.teller = Some(task);
    }

    /// The process that looks is killed.
    async fn kill(&mut self) {
        let teller = self.teller.take().expect("it looks");
        teller.abort();
        drop(teller.await);
    }

    fn agent(&self, id: &str, quarantine: &str) {
        let record = AgentRecord {
            version: AgentRecord::VERSION,
            since: stamp(START - 1000),
            seen: stamp(START - 400),
            quarantine: quarantine.to_owned(),
            ..AgentRecord::default()
        };
        self.ledger.put(Bucket::Agents, id, record.encode_to_vec());
    }

    /// The agent's stream began long ago, and ended then.
    fn stream(&self, id: &str, ended: u64) {
        let record = JournalRecord {
            version: JournalRecord::VERSION,
            session: "s".to_owned(),
            gateway: "g".to_owned(),
            begun: START - 500,
            ended,
            ..JournalRecord::default()
        };
        self.ledger.put(Bucket::Journal, id, record.encode_to_vec());
    }

    /// The kinds of all notices and their subjects, in the order of the log.
    async fn notices(&self) -> Vec<(String, Kind, NoticePart)> {
        let read = self.ledger.read(Log::Events, "", 0, bounds::PAGE).await.expect("no fault");
        let notices = read.iter().map(|entry| {
            let Content::Notice(kind, notice) = event::read(entry).expect("whole").content else {
                panic!("an event");
            };
            (entry.subject.clone(), kind, *notice)
        });
        notices.collect()
    }

    async fn until(&self, count: usize) -> Vec<(String, Kind, NoticePart)> {
        let waiting = async {
            loop {
                let notices = self.notices().await;
                if notices.len() >= count {
                    return notices;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let found = tokio::time::timeout(LONG, waiting).await.expect("they come");
        assert_eq!(found.len(), count, "{found:?}");
        found
    }

    /// Waits until all agents were looked at once.
    async fn is_known(&self) {
        let waiting = async {
            loop {
                let found =
                    self.ledger.get(Bucket::Configuration, NOTICED).await.expect("no fault");
                let noticed = found.map(|found| {
                    records::decode::<NoticedRecord>(NOTICED, &found.value).expect("whole")
                });
                if noticed.is_some_and(|noticed| noticed.offline.is_some()) {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::time::timeout(LONG, waiting).await.expect("all agents are looked at");
    }

    /// A decision about the rollout of `web-prod`.
    async fn decide(&self, what: &str, (before, after): (&str, &str)) {
        let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let decision = Decision {
            who: "the controller".to_owned(),
            what: what.to_owned(),
            why: "an agent failed".to_owned(),
            ..Decision::default()
        };
        let edit = Edit {
            key: format!("{ROLLOUT}web-prod"),
            before: text(before),
            after: text(after),
            record: Becomes::Elsewhere,
        };
        let plan = |_: &_| Ok::<_, std::convert::Infallible>((vec![edit.clone()], ()));
        change(&*self.shared, &decision, plan).await.expect("no fault");
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for task in self.tasks.iter().chain(&self.teller) {
            task.abort();
        }
    }
}

fn stamp(seconds: u64) -> Option<Timestamp> {
    Some(Timestamp { seconds: i64::try_from(seconds).expect("a time"), nanos: 0 })
}

fn gateway(now: Seconds) -> Vec<u8> {
    let record = GatewayRecord {
        version: GatewayRecord::VERSION,
        since: stamp(START - 1000),
        beat: stamp(now.0),
        ..GatewayRecord::default()
    };
    record.encode_to_vec()
}

fn kinds(notices: &[(String, Kind, NoticePart)]) -> Vec<(&str, Kind)> {
    notices.iter().map(|(subject, kind, _)| (subject.as_str(), *kind)).collect()
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_goes_and_comes_back_is_noticed_once_each() {
    let mut fleet = Fleet::start().await;
    fleet.agent("old", "");
    fleet.stream("old", START - 450);
    fleet.agent("web", "");
    fleet.stream("web", 0);
    fleet.look();
    fleet.is_known().await;
    // Agents that were offline before anybody looked are no news.
    assert_eq!(fleet.notices().await, []);
    fleet.stream("web", START);
    let went = fleet.until(1).await;
    assert_eq!(kinds(&went), [("web//", Kind::AgentOffline)]);
    let (_, _, notice) = &went[0];
    assert_eq!(
        notice.text,
        "the agent has had no stream since 2026-01-01T00:00:00Z; its plugins run on"
    );
    assert!((fleet.wall)().since(Seconds(START)) >= 120, "not before its time");
    // A process that takes over tells nothing again.
    fleet.kill().await;
    fleet.look();
    tokio::time::sleep(LONG).await;
    fleet.stream("web", 0);
    fleet.agent("old", "seen at two addresses");
    let all = fleet.until(3).await;
    let expected = [
        ("web//", Kind::AgentOffline),
        ("web//", Kind::AgentConnected),
        ("old//", Kind::AgentQuarantined),
    ];
    let mut found = kinds(&all);
    found[1..].sort_by_key(|(_, kind)| *kind);
    assert_eq!(found, expected);
    assert_eq!(all.iter().filter(|(.., it)| it.text.contains("seen at two addresses")).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn no_agent_is_noticed_before_it_could_connect_again() {
    let fleet = Fleet::looked_at(&["web"]).await;
    // The gateway dies, and with it every stream: agents have no chance to connect.
    fleet.beats.store(false, Ordering::Relaxed);
    fleet.stream("web", (fleet.wall)().0);
    tokio::time::sleep(LONG).await;
    assert_eq!(fleet.notices().await, []);
    fleet.beats.store(true, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(100)).await;
    assert_eq!(fleet.notices().await, [], "it may be on its way");
    assert_eq!(kinds(&fleet.until(1).await), [("web//", Kind::AgentOffline)]);
}

#[tokio::test(start_paused = true)]
async fn decisions_that_cannot_be_read_keep_no_agent_from_its_notice() {
    let fleet = Fleet::looked_at(&["web"]).await;
    fleet.ledger.put(Bucket::Configuration, AUDIT_HEAD, b"torn".to_vec());
    fleet.stream("web", (fleet.wall)().0);
    assert_eq!(kinds(&fleet.until(1).await), [("web//", Kind::AgentOffline)]);
}

#[tokio::test(start_paused = true)]
async fn agents_with_ids_beyond_the_bounds_of_subjects_have_notices_each() {
    let ids = ["~".repeat(199) + "a", "~".repeat(199) + "b"];
    let fleet = Fleet::looked_at(&ids.each_ref().map(String::as_str)).await;
    for id in &ids {
        fleet.stream(id, START);
    }
    let notices = fleet.until(2).await;
    assert_eq!(kinds(&notices), [("//", Kind::AgentOffline); 2]);
    let agents: Vec<&String> = notices.iter().flat_map(|(.., notice)| &notice.agents).collect();
    assert_eq!(agents, [&ids[0], &ids[1]]);
}

#[tokio::test(start_paused = true)]
async fn many_agents_that_go_at_once_have_one_notice() {
    let ids: Vec<String> = (0..30).map(|number| format!("a{number:02}")).collect();
    let fleet = Fleet::looked_at(&ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    for id in &ids {
        fleet.stream(id, START);
    }
    let notices = fleet.until(1).await;
    assert_eq!(kinds(&notices), [("//", Kind::AgentOffline)]);
    assert_eq!((notices[0].2.count, &notices[0].2.agents[..]), (30, &ids[..20]));
}

#[tokio::test(start_paused = true)]
async fn decisions_about_rollouts_are_noticed_in_order_and_whatever_is_killed() {
    let mut fleet = Fleet::start().await;
    fleet.decide("apply", ("", "winter: web 1 to 2, running, all at once")).await;
    fleet.look();
    fleet.is_known().await;
    let [draft, running, halted, done] = ["draft", "running", "halted", "done"]
        .map(|state| format!("spring: web 2 to 3, {state}, wave 1 of 2, budget 5"));
    fleet.decide("rollout create", ("winter: web 1 to 2, done, all at once", &draft)).await;
    fleet.decide("rollout start", (&draft, &running)).await;
    fleet.decide("rollout grant", (&running, &running)).await;
    fleet.decide("rollout halt", (&running, &halted)).await;
    fleet.until(2).await;
    fleet.kill().await;
    fleet.decide("rollout resume", (&halted, &running)).await;
    fleet.look();
    let summer = "summer: web 3 to 4, running, wave 1 of 2, budget 5";
    fleet.until(3).await;
    // The answer to an append is lost.
    fleet.ledger.script([Fate::Happened]);
    fleet.decide("rollout finish", (&running, &done)).await;
    fleet.decide("apply", (&done, summer)).await;
    let notices = fleet.until(5).await;
    let expected = [
        Kind::RolloutBegan,
        Kind::RolloutHalted,
        Kind::RolloutResumed,
        Kind::RolloutDone,
        Kind::RolloutBegan,
    ];
    assert_eq!(kinds(&notices), expected.map(|kind| ("//web-prod", kind)));
    let halted = &notices[1].2;
    assert_eq!(
        halted.text,
        "spring: web 2 to 3, halted, wave 1 of 2, budget 5; rollout halt by the controller: an agent failed"
    );
    assert_eq!(
        halted.fix,
        "`guest-fleet rollout show spring` shows the failures, `guest-fleet rollout rollback spring` goes back"
    );
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_noticed_when_its_end_comes_nearer_and_when_it_is_renewed() {
    let ledger = MemoryLedger::new();
    let day = 24 * 3600;
    let at =
        |days: u64| std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(START + days * day);
    let end = |days: u64, renewal| End {
        of: "authority",
        begins: at(0),
        ends: at(days),
        renewal,
        trouble: None,
    };
    let mut told = HashMap::new();
    let mut tell = async |days: u64, end: End| {
        let now = Seconds(START + days * day);
        let of = (&end, "host");
        certificates::tell(&ledger, of, &mut told, now).await.expect("no fault");
    };
    tell(1, end(400, Renewal::Theirs)).await;
    tell(399, end(400, Renewal::Ours)).await;
    for day in [350, 351, 390, 391, 401] {
        tell(day, end(400, Renewal::Theirs)).await;
    }
    for day in [402, 403] {
        tell(day, end(4000, Renewal::Theirs)).await;
    }
    let read = ledger.read(Log::Events, "", 0, 100).await.expect("no fault");
    let texts: Vec<String> = read
        .iter()
        .map(|entry| {
            assert_eq!(entry.subject, event::notice_subject("", "certificate authority"));
            match event::read(entry).expect("whole").content {
                Content::Notice(kind, notice) => format!("{}: {}", kind.name(), notice.text),
                Content::Event(_) => panic!("an event"),
            }
        })
        .collect();
    assert_eq!(
        texts,
        [
            "CERTIFICATE_ENDS: the certificate ends in 50 days, at 2027-02-05T00:00:00Z",
            "CERTIFICATE_ENDS: the certificate ends in 10 days, at 2027-02-05T00:00:00Z",
            "CERTIFICATE_ENDS: the certificate ended at 2027-02-05T00:00:00Z",
            "CERTIFICATE_RENEWED: the certificate was renewed and ends at 2036-12-14T00:00:00Z",
        ]
    );
}
