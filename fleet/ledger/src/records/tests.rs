//! Records that were written stay readable: one of each kind as bytes of its schema.
//!
//! A line of `schema-1.txt` and `schema-2.txt` is never changed. A record that changes its form gets a version and a file of its
//! own; `PRINT_FIXTURES=1 cargo test records::tests -- --nocapture` prints what the present code writes.

use std::collections::BTreeMap;

use data_encoding::HEXLOWER;
use guest_fleet_core::account::{Account, Decided, Failed, Results};
use guest_fleet_core::drift::{Drift, Lack, OwnersChange, OwnersKind};
use guest_fleet_core::gate::{Halt, Meter};
use guest_fleet_core::repair::{Repair, Stop};
use guest_fleet_core::rollout::{
    Cause, Closed, Gives, Grant, HaltedRelease, Label, OnHalt, Past, Plan, REMEMBERED, Rollout,
    Size, Stage, State, WAVES, Wave,
};
use guest_fleet_core::selector::{OwnLabels, Selector};
use guest_fleet_core::target::Target;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{AssignmentRollout, Before};
use prost_types::Timestamp;

use super::agent::{AgentRecord, Boot, Certificate};
use super::audit::{AuditChange, AuditHead, AuditRecord};
use super::configuration::{
    ArchiveRecord, AssignmentRecord, DefaultsRecord, HoldRecord, PolicyRecord, ReleaseRecord,
    StrategyPart, StrategyWavePart, WeeklyPart, WindowRecord,
};
use super::event::{AgentSetPart, EventRecord, NoticePart, NoticedRecord, PendingNoticePart};
use super::gateway::GatewayEndRecord;
use super::index::{
    AgentPart, CellRecord, CheckpointRecord, CursorRecord, DirectoryRecord, EventPart, GatesRecord,
    HoldEnd, LeafEntry, LeafRecord, LeaseRecord, MoveRecord, OrderPart, PluginPart, ProcessPart,
    ReportPart, ReportedPart, RowRecord, SessionPart, ShapeRecord, WantedPart, WindowHours,
};
use super::journal::{EntryRecord, JournalRecord, OrderRecord};
use super::progress::{
    FacetPart, FailedPart, FingerprintPart, KeptPart, MeterPart, ProgressRecord, StandPart,
};
use super::repair::{DriftPart, LeavePart, RepairRecord, StopPart};
use super::report::{
    DismissedPart, FaultPart, OwnersLimitsPart, ReportRecord, ReportedHold, ReportedPlugin,
};
use super::rollout::{
    BeforePart, CausePart, ClosedPart, DecisionPart, GrantPart, HaltedPart, LabelPart, PastPart,
    ResultsPart, RolloutRecord, WavePart,
};
use super::secret::{SecretMark, SecretRecord};
use super::webhook::WebhookRecord;
use super::{Versioned, decode};

const AT: Option<Timestamp> = Some(Timestamp { seconds: 1_767_225_600, nanos: 5 });

fn text(text: &str) -> String {
    text.to_owned()
}

fn map(key: &str, value: &str) -> BTreeMap<String, String> {
    BTreeMap::from([(text(key), text(value))])
}

#[track_caller]
fn check<R: Versioned + PartialEq + std::fmt::Debug>(name: &str, record: &R, fixture: &str) {
    if std::env::var_os("PRINT_FIXTURES").is_some() {
        println!("fixture {name} {}", HEXLOWER.encode(&record.encode_to_vec()));
        return;
    }
    let bytes: Vec<u8> = (0..fixture.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&fixture[at..at + 2], 16).expect("hexadecimal digits"))
        .collect();
    assert_eq!(decode::<R>(name, &bytes).as_ref(), Ok(record), "{name} cannot be read any more");
}

fn hours() -> WeeklyPart {
    WeeklyPart { days: vec![0, 4], opens: 60, minutes: 90, zone: text("UTC") }
}

fn of_all(rollout: Rollout) -> AssignmentRollout {
    AssignmentRollout::first("spring", "p", rollout)
}

fn fixture(name: &str) -> &'static str {
    let [one, two] = [include_str!("tests/schema-1.txt"), include_str!("tests/schema-2.txt")];
    let found = one.lines().chain(two.lines()).find_map(|line| {
        let (key, value) = line.split_once(' ')?;
        (key == name).then_some(value)
    });
    found.unwrap_or_default()
}

#[test]
fn every_record_of_schema_1_is_readable() {
    let release = ReleaseRecord {
        version: 1,
        plugin: text("monitor"),
        revision: text("1.2"),
        archives: BTreeMap::from([(
            text("amd64"),
            ArchiveRecord { digest: text("00ff"), url: text("https://example.org/a") },
        )]),
        order: vec![8, 1],
    };
    check("release", &release, fixture("release"));
    let assignment = AssignmentRecord {
        version: 1,
        plugin: text("monitor"),
        revision: text("1.2"),
        selector: text("env = prod"),
        trusts_own_labels: true,
        priority: -3,
        attempt: 2,
        strategy: None,
        declared: None,
    };
    check("assignment", &assignment, fixture("assignment"));
    let by_hand = AssignmentRecord { declared: Some(text("1.1")), ..assignment.clone() };
    check("assignment-by-hand", &by_hand, fixture("assignment-by-hand"));
    let wave = |count, percent| WavePart { count, percent, ..WavePart::default() };
    let strategy = StrategyPart {
        waves: vec![
            StrategyWavePart { wave: Some(wave(5, None)), soak: Some(60) },
            StrategyWavePart { wave: Some(wave(0, Some(100))), soak: None },
        ],
        soak: Some(600),
        budget: Some(20),
        approval: Some(true),
        windows: vec![hours()],
        on_halt: 2,
    };
    let rolled = AssignmentRecord { strategy: Some(strategy.clone()), ..assignment };
    check("assignment-strategy", &rolled, fixture("assignment-strategy"));
    let defaults = DefaultsRecord { version: 1, rollout: Some(strategy) };
    check("defaults", &defaults, fixture("defaults"));
    let policy =
        PolicyRecord { version: 1, selector: text("env = prod"), ..PolicyRecord::default() };
    check("policy", &policy, fixture("policy"));
    let undo = PolicyRecord { allows_at_once: true, undoes_owners: true, ..policy };
    check("policy-undo", &undo, fixture("policy-undo"));
    let hold = HoldRecord {
        version: 1,
        selector: text("all"),
        plugins: vec![text("monitor")],
        reason: text("incident"),
        by: text("alice@ops"),
        until: 1_767_225_600,
        trusts_own_labels: true,
        by_hand: true,
    };
    check("hold", &hold, fixture("hold"));
    let window = WindowRecord {
        version: 1,
        selector: text("all"),
        plugins: vec![text("monitor")],
        days: vec![0, 6],
        opens: 120,
        minutes: 90,
        zone: text("Europe/Zurich"),
        trusts_own_labels: true,
    };
    check("window", &window, fixture("window"));
}

#[test]
fn every_record_of_an_agent_of_schema_1_is_readable() {
    let mut agent = AgentRecord::new("a-1");
    agent.operator_labels = map("env", "prod");
    agent.token_labels = map("zone", "eu-1");
    agent.own_labels = map("rack", "r7");
    agent.since = AT;
    agent.seen = AT;
    agent.certificates = vec![Certificate {
        serial: text("0a"),
        key_digest: text("ff"),
        issued: AT,
        ends: AT,
        revoked: AT,
    }];
    agent.token = text("image");
    agent.quarantine = text("two machines");
    agent.archived = AT;
    agent.is_ephemeral = true;
    agent.boots = vec![Boot { id: text("b1"), seen: AT }];
    agent.revoked = AT;
    agent.revoked_before = AT;
    check("agent", &agent, fixture("agent"));
    let order = OrderRecord {
        generation: 7,
        revision: text("1.2"),
        digest: vec![1; 32],
        assignment: text("monitor-prod"),
        attempt: 2,
        repeats: 1,
        made: 1_767_225_600,
        since: 1_767_225_601,
        state: 6,
        reason: text("no space"),
        message_id: text("m-1"),
        body: vec![1, 2, 3],
        rollout: text(""),
        replaced: None,
        declared: Vec::new(),
        drift: None,
    };
    let entry = EntryRecord { generation: 7, order: Some(order), ..EntryRecord::default() };
    let journal = JournalRecord {
        version: 1,
        session: text("s-1"),
        fenced: 5,
        plugins: BTreeMap::from([(text("monitor"), entry)]),
        told: BTreeMap::new(),
        // Came later.
        gateway: text(""),
        begun: 0,
        ended: 0,
    };
    check("journal", &journal, fixture("journal"));
    let mut declared = journal.clone();
    let entry = declared.plugins.get_mut("monitor").expect("it is there");
    entry.order.as_mut().expect("an order").declared = vec![2; 32];
    check("journal-declared", &declared, fixture("journal-declared"));
    let entry = declared.plugins.get_mut("monitor").expect("it is there");
    (entry.repairs, entry.repaired) = (2, 1_767_225_700);
    entry.order.as_mut().expect("an order").drift = Some(drift());
    check("journal-drifted", &declared, fixture("journal-drifted"));
    let ended = JournalRecord { gateway: text("g-1"), begun: 6, ended: 7, ..declared };
    check("journal-ended", &ended, fixture("journal-ended"));
    let hold = ReportedHold { by: text("root"), reason: text("busy"), until: AT };
    let report = ReportRecord {
        version: 1,
        architecture: text("amd64"),
        os: text("Debian 13"),
        kernel: text("6.12"),
        hostname: text("db-1"),
        agent_version: text("0.1.0"),
        capabilities: vec![text("generations")],
        boot_id: text("b1"),
        plugins: vec![ReportedPlugin {
            name: text("monitor"),
            revision: text("1.1"),
            pending_revision: text("1.2"),
            digest: vec![1; 32],
            generation: 7,
            is_local: true,
            stopped_by_owner: true,
            hold: Some(hold),
            status: text("RUNNING"),
            fault: None,
            dismissed: None,
            owners_limits: None,
        }],
        at: AT,
        // Came later.
        tells_faults: false,
        plugins_left_out: 0,
    };
    check("report", &report, fixture("report"));
    let mut faulty = report;
    faulty.plugins[0].fault = Some(fault());
    (faulty.tells_faults, faulty.plugins_left_out) = (true, 3);
    check("report-faulty", &faulty, fixture("report-faulty"));
    let dismissed = DismissedPart { revision: text("1.2"), by: text("root: known") };
    faulty.plugins[0].dismissed = Some(dismissed);
    check("report-dismissed", &faulty, fixture("report-dismissed"));
    let (memory_bytes, cpu_percent, tasks) = (Some(96 << 20), Some(50), None);
    let by = text("root: backfill");
    let limits = OwnersLimitsPart { memory_bytes, cpu_percent, tasks, by };
    faulty.plugins[0].owners_limits = Some(limits);
    check("report-owners-limits", &faulty, fixture("report-owners-limits"));
}

#[test]
fn every_audit_record_of_schema_1_is_readable() {
    let entry = AuditRecord {
        version: 1,
        number: 3,
        at: AT,
        who: text("alice@ops"),
        from: text("guest-fleet 0.1.0 on ops"),
        what: text("apply"),
        why: text("ticket 7"),
        changes: vec![AuditChange { key: text("hold/x"), before: text("old"), after: text("new") }],
        previous: vec![9; 32],
        id: text("id"),
    };
    check("audit", &entry, fixture("audit"));
    let head = AuditHead { version: 1, number: 3, digest: vec![9; 32] };
    check("audit-head", &head, fixture("audit-head"));
}

fn fault() -> FaultPart {
    FaultPart {
        level: 2,
        cause: 4,
        reason: text("code 7: no disk"),
        since: Some(1_767_225_640),
        worded: 1_767_225_645,
    }
}

#[test]
fn the_end_of_a_gateway_of_schema_1_is_readable() {
    let end = GatewayEndRecord { version: 1, ended: 1_767_225_650 };
    check("gateway-end", &end, fixture("gateway-end"));
}

#[test]
fn notices_of_schema_1_are_readable() {
    let part = NoticePart {
        kind: 1,
        plugin: text("web"),
        text: text("21 agents have no stream"),
        fix: text("`guest-fleet agents --offline` lists them"),
        agents: vec![text("web-05")],
        count: 21,
    };
    let pending = PendingNoticePart {
        subject: text("web-05//"),
        id: text("AGENT_OFFLINE-3"),
        notice: Some(part.clone()),
    };
    check("notice", &EventRecord::of_notice(AT, part), fixture("notice"));
    let part = |agent: &str, beyond| AgentSetPart { agents: vec![text(agent)], beyond };
    let (offline, quarantined) = (Some(part("web-05", 0)), Some(part("web-06", 1001)));
    let pending = vec![pending];
    let noticed = NoticedRecord { version: 1, audit: 7, offline, quarantined, pending, looks: 3 };
    check("noticed", &noticed, fixture("noticed"));
}

fn drift() -> DriftPart {
    DriftPart { lack: 3, since: 1_767_225_650, change: 2, by: text("root: a test") }
}

#[test]
fn the_record_of_a_repair_of_schema_1_is_readable() {
    let leave = LeavePart { agent: text("web-05"), generation: 7 };
    let stop = StopPart { cause: 2, drifted: 4, of: 10, agent: text("web-06"), generation: 9 };
    let repair = RepairRecord {
        version: 1,
        leave: vec![leave],
        at: 1_767_225_600,
        stop: Some(stop),
        is_resumed: true,
        accepted: 8,
        last: text(""),
    };
    check("repair", &repair, fixture("repair"));
}

#[test]
fn repairs_and_drift_are_the_same_after_their_records() {
    let leave = [(text("web-05"), 7)];
    let stops = [
        None,
        Some(Stop::Many { drifted: 4, of: 10 }),
        Some(Stop::LedgerWentBack { agent: text("web-06"), generation: 9 }),
        Some(Stop::Unreadable),
    ];
    for stop in stops {
        let repair = Repair {
            leave: leave.clone().into(),
            at: Seconds(5),
            stop,
            is_resumed: true,
            accepted: 8,
            last: text("web-05"),
        };
        assert_eq!(RepairRecord::of(&repair).repair("k"), Ok(repair));
    }
    let owners = OwnersKind::ALL.map(|kind| OwnersChange { kind, by: text("root") });
    let lacks = [Lack::WentBack, Lack::Differs].into_iter();
    for lack in lacks.chain(owners.map(Lack::ByOwner)) {
        let drift = Drift { lack, since: Seconds(6) };
        assert_eq!(DriftPart::of(&drift).drift("k"), Ok(drift));
    }
    let unknown = RepairRecord {
        stop: Some(StopPart { cause: 9, ..StopPart::default() }),
        ..RepairRecord::default()
    };
    assert!(unknown.repair("k").is_err());
    assert!(DriftPart { lack: 9, ..drift() }.drift("k").is_err());
    assert!(DriftPart { change: 9, ..drift() }.drift("k").is_err());
}

#[test]
fn the_record_of_a_secret_of_schema_1_is_readable() {
    let mark =
        SecretMark { key: vec![3; 8], mark: vec![4; 32], at: 1_767_225_600, host: text("gw-1") };
    check("secret", &SecretRecord { version: 1, marks: vec![mark] }, fixture("secret"));
}

#[test]
fn the_cursor_of_a_webhook_of_schema_1_is_readable() {
    let cursor =
        WebhookRecord { version: 1, holder: text("a1"), position: 42, since: AT, delivered: AT };
    check("webhook", &cursor, fixture("webhook"));
}

#[test]
fn every_record_of_a_rollout_of_schema_1_is_readable() {
    let label = || Some(LabelPart { key: text("ring"), value: text("canary") });
    let wave =
        |count, percent, label| WavePart { count, percent, label, soak: 60, needs_approval: true };
    let rollout = RolloutRecord {
        version: 1,
        name: text("spring"),
        plugin: text("monitor"),
        from: text("1.2"),
        to: text("1.3"),
        waves: vec![wave(0, None, label()), wave(5, None, None), wave(0, Some(100), None)],
        budget: 10,
        state: 4,
        stage: 2,
        soaking_since: 7,
        cause: Some(CausePart {
            kind: 5,
            text: text("exit 1"),
            wave: 1,
            failed: 9,
            expected: 1.5,
            evidence: 6.5,
            limit: 5.25,
        }),
        wave: 1,
        grant: Some(GrantPart { label: label(), first: 1, last: u64::MAX, since: 8 }),
        epoch: 2,
        resumed: 9,
        began: vec![3, 4],
        is_dry: false,
        // Came later: what was written before reads so.
        earlier: Vec::new(),
        past: None,
        from_each: false,
        number: 0,
        before: None,
        halted: Vec::new(),
        marks_orders: false,
        windows: Vec::new(),
        goes_back: false,
        decisions: Vec::new(),
        results: None,
        replaced_by: String::new(),
        closed: None,
    };
    check("rollout", &rollout, fixture("rollout"));
    let past = PastPart { name: text("winter"), began: 1, succeeded: 99, failed: 1 };
    let remembers = RolloutRecord { earlier: vec![past.clone()], past: Some(past), ..rollout };
    check("rollout-remembers", &remembers, fixture("rollout-remembers"));
    let (selector, trusts_own_labels) = (text("env = prod"), true);
    let each = RolloutRecord {
        version: 2,
        from: text(""),
        from_each: true,
        number: 3,
        before: Some(BeforePart { is_new: false, selector, trusts_own_labels }),
        halted: vec![HaltedPart { revision: text("1.2"), at: 7, cause: remembers.cause.clone() }],
        marks_orders: true,
        windows: vec![hours()],
        goes_back: true,
        ..remembers
    };
    check("rollout-of-each", &each, fixture("rollout-of-each"));
    let closed = Some(ClosedPart { closings: 4, gives: 1, grant: each.grant.clone() });
    let closes = RolloutRecord { grant: None, closed: closed.clone(), ..each.clone() };
    check("rollout-that-closes", &closes, fixture("rollout-that-closes"));
    let failed = FailedPart {
        agent: text("a-1"),
        wave: 1,
        at: 8,
        fingerprint: text("failed: exit 1"),
        reason: text("exit 1"),
    };
    let fingerprint = FingerprintPart { text: text("failed: exit 1"), count: 1 };
    let decision =
        DecisionPart { who: text("alice"), what: text("rollout halt"), why: text("slow"), at: 9 };
    let told = RolloutRecord {
        decisions: vec![decision],
        results: Some(ResultsPart {
            at: 9,
            targets: 100,
            given: 12,
            failures: 1,
            fingerprints: vec![fingerprint.clone()],
            failed: vec![failed.clone()],
        }),
        replaced_by: text("summer"),
        ..each
    };
    check("rollout-told", &told, fixture("rollout-told"));
    let progress = ProgressRecord {
        version: 1,
        rollout: text("spring"),
        at: 9,
        targets: 100,
        given: 12,
        in_flight: 3,
        waiting: text("the wave is watched"),
        stands: vec![StandPart { stand: 6, count: 12 }],
        failed: vec![failed],
        failures: 1,
        fingerprints: vec![fingerprint],
        facets: vec![FacetPart { key: text("zone"), value: text("a"), failed: 1, passed: 2 }],
        meters: vec![MeterPart {
            what: text("installations"),
            failed: 1,
            expected: 0.5,
            evidence: 1.5,
            limit: 5.5,
        }],
        may_arrive: vec![text("a-2")],
        may_arrive_count: 1,
        served_since: 0,
        kept: Vec::new(),
        closed: None,
        closed_for: 0,
    };
    check("progress", &progress, fixture("progress"));
    let progress = ProgressRecord {
        served_since: 7,
        kept: vec![KeptPart { agent: text("a-3"), why: text("held by alice: slow disk") }],
        ..progress
    };
    check("progress-kept", &progress, fixture("progress-kept"));
    let progress = ProgressRecord { closed, closed_for: 2500, ..progress };
    check("progress-closed", &progress, fixture("progress-closed"));
}

#[test]
fn a_rollout_is_the_same_after_its_record() {
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let label = Label { key: "ring".to_owned(), value: "canary".to_owned() };
    let sizes = [Size::Label(label.clone()), Size::Count(5), Size::Percent(100)];
    let wave = |size| Wave { size, soak: 60, needs_approval: true };
    let hours = hours().weekly("rollout/a").expect("they are right");
    let plan = Plan {
        waves: sizes.map(wave).into(),
        budget: 7,
        windows: vec![hours],
        on_halt: OnHalt::GoBack,
    };
    let meter = Meter { failed: 3, expected: 0.5, evidence: 7.0, limit: 5.0 };
    let print = || "failed: exit 1".to_owned();
    let halts = [
        Halt::FirstWave { fingerprint: print() },
        Halt::TwoInAWave { wave: 2 },
        Halt::SeenBefore { fingerprint: print() },
        Halt::Installs(meter),
        Halt::Faults(meter),
        Halt::BeforeAfter(meter),
    ];
    let mut states = vec![
        State::Draft,
        State::Running(Stage::Reaching),
        State::Running(Stage::Soaking { since: Seconds(9) }),
        State::Paused(Stage::Approval),
        State::Halted(Cause::Person(text("slow"))),
        State::Halted(Cause::Restored),
        State::RollingBack,
        State::RolledBack,
        State::Done,
        State::Aborted,
    ];
    states.extend(halts.into_iter().map(|halt| State::Halted(Cause::Gate(halt))));
    for state in states {
        let mut rollout = Rollout::new(from.clone(), to.clone(), plan.clone());
        rollout.grant =
            Some(Grant { label: Some(label.clone()), first: 0, last: u64::MAX, since: Seconds(8) });
        (rollout.state, rollout.wave, rollout.epoch) = (state, 1, 3);
        (rollout.resumed, rollout.began) = (Seconds(4), vec![Seconds(2), Seconds(5)]);
        let past = Past { name: text("winter"), began: Seconds(1), succeeded: 99, failed: 1 };
        rollout.past = Some(Past { began: Seconds(2), ..past.clone() });
        rollout.earlier = vec![past];
        let (name, plugin) = (text("spring"), text("p"));
        let cause = Cause::Person(text("slow"));
        rollout.halted = vec![HaltedRelease { target: Target::Absent, cause, at: Seconds(7) }];
        let selector = Selector::parse("env = prod").expect("it parses");
        let before = Before::Selected(selector, OwnLabels::Trusted);
        let failed = Failed {
            agent: text("a-1"),
            wave: 1,
            at: Seconds(6),
            fingerprint: text("exit 1"),
            reason: text("exit 1 after 3 s"),
        };
        let results = Results {
            at: Seconds(7),
            targets: 9,
            given: 4,
            failures: 2,
            fingerprints: vec![(text("exit 1"), 2)],
            failed: vec![failed],
        };
        let account = Account {
            decisions: vec![Decided {
                who: text("alice@ops"),
                what: text("rollout halt"),
                why: text("slow"),
                at: Seconds(7),
            }],
            results: Some(results),
            replaced_by: Some(text("summer")),
        };
        let found = AssignmentRollout { name, plugin, number: 3, before, rollout, account };
        assert_eq!(RolloutRecord::of(&found).rollout("rollout/a"), Ok(found));
    }
}

#[test]
fn closed_grants_are_the_same_after_their_record_and_programs_that_do_not_know_them_wait() {
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let grant = Grant { label: None, first: 3, last: u64::MAX, since: Seconds(8) };
    let gives = [Gives::New, Gives::Former, Gives::Either];
    let grants = gives.map(|gives| Closed::Grant(grant.clone(), gives));
    let all: Vec<Closed> = [Closed::Dry, Closed::Any].into_iter().chain(grants).collect();
    for (closed, open) in all.iter().flat_map(|it| [(it, None), (it, Some(grant.clone()))]) {
        let mut rollout = Rollout::new(from.clone(), to.clone(), Plan::usual(10, 60));
        (rollout.closed, rollout.closings, rollout.grant) = (closed.clone(), 7, open.clone());
        let found = of_all(rollout);
        let record = RolloutRecord::of(&found);
        assert_eq!(record.is_dry, *closed == Closed::Dry && open.is_none(), "{closed:?}");
        assert_eq!(record.clone().rollout("rollout/a"), Ok(found));
        // As a program writes it that does not know them.
        let older = RolloutRecord { closed: None, ..record.clone() };
        let read = older.rollout("rollout/a").expect("it is a rollout").rollout;
        let expected = if record.is_dry { Closed::Dry } else { Closed::Any };
        assert_eq!((read.closed, read.closings), (expected, 0));
        // As one writes it that knows more.
        let newer = ClosedPart { gives: 9, ..record.closed.clone().expect("it is there") };
        let newer = RolloutRecord { closed: Some(newer), ..record };
        let read = newer.rollout("rollout/a").expect("it is a rollout").rollout;
        assert_eq!((read.closed, read.closings), (Closed::Any, 7));
    }
}

#[test]
fn a_rollout_remembers_no_more_than_it_should_whatever_its_record_has() {
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let rollout = Rollout::new(from, to, Plan::usual(300, 60));
    let found = of_all(rollout);
    let past =
        PastPart { name: "x".repeat(10_000), began: 1, succeeded: u64::MAX, failed: u64::MAX };
    let record = RolloutRecord { earlier: vec![past; 100], ..RolloutRecord::of(&found) };
    let read = record.rollout("rollout/a").expect("it is a rollout").rollout;
    assert_eq!(read.earlier.len(), REMEMBERED);
    assert!(read.earlier.iter().all(|past| past.name.len() <= 256));
    assert!((0.02..=0.1).contains(&read.tolerated()), "{}", read.tolerated());
}

#[test]
fn a_rollout_that_makes_no_sense_is_refused_by_name() {
    let [from, to] = ["1", "2"].map(|text| Target::Revision(text.to_owned()));
    let rollout = Rollout::new(from, to, Plan::usual(10, 60));
    let found = of_all(rollout);
    let good = RolloutRecord::of(&found);
    let part = |percent| WavePart { percent: Some(percent), ..WavePart::default() };
    let bad = [
        RolloutRecord { waves: Vec::new(), ..good.clone() },
        RolloutRecord { waves: vec![part(1); WAVES + 1], ..good.clone() },
        RolloutRecord { waves: vec![part(101)], ..good.clone() },
        RolloutRecord { wave: 99, ..good.clone() },
        RolloutRecord { state: 0, ..good.clone() },
        RolloutRecord { state: 2, stage: 9, ..good.clone() },
        RolloutRecord { state: 4, cause: None, ..good.clone() },
        RolloutRecord { state: 4, cause: Some(CausePart::default()), ..good },
    ];
    for record in bad {
        let error = record.rollout("rollout/a").expect_err("it makes no sense");
        assert!(error.to_string().contains("rollout/a"), "{error}");
    }
}

fn gates() -> GatesRecord {
    GatesRecord { holds: vec![text("freeze")], by_owner: true, windows: vec![text("night")] }
}

#[test]
fn every_record_of_the_index_of_schema_1_is_readable() {
    check("index-shape", &ShapeRecord { version: 1, shards: 4 }, fixture("index-shape"));
    let lease = LeaseRecord {
        version: 1,
        owner: text("o-1"),
        host: text("ops"),
        pid: 7,
        as_of: 1_767_225_600,
        process: None,
    };
    check("index-lease", &lease, fixture("index-lease"));
    let boot_id = text("7b8c1f0e-8c1d-4c0e-9d55-6a1a0b1c2d3e");
    let process = Some(ProcessPart { boot_id, namespace: 4_026_531_836, pid: 7, started: 90 });
    let lease = LeaseRecord { process, ..lease };
    check("index-lease-of-a-process", &lease, fixture("index-lease-of-a-process"));
    let cursor = Some(CursorRecord { through: 9, forgotten: 3 });
    let counted = CellRecord {
        count: 6,
        kind: 2,
        word: 0,
        assignment: text("monitor-prod"),
        plugin: text("monitor"),
        revision: text("1.2"),
        gates: Some(gates()),
        fingerprint: text(""),
        gateway: text(""),
    };
    let checkpoint = CheckpointRecord {
        version: 1,
        agents: cursor,
        journal: cursor,
        reports: cursor,
        events: 11,
        configuration: 12,
        at: 1_767_225_600,
        cells: vec![CellRecord { count: 5, kind: 1, word: 2, ..CellRecord::default() }, counted],
        moves: vec![MoveRecord { at: 1_767_225_700, from: 0, to: 1, count: 2 }],
        holds: vec![HoldEnd { name: text("freeze"), until: Some(1_767_225_800) }],
        windows: vec![WindowHours {
            name: text("night"),
            days: vec![0, 6],
            opens: 120,
            minutes: 90,
            zone: text("UTC"),
        }],
        left_out: 1,
        offline_after: 0,
    };
    check("index-checkpoint", &checkpoint, fixture("index-checkpoint"));
    let faulty = CellRecord {
        count: 2,
        kind: 5,
        plugin: text("monitor"),
        fingerprint: text("down: no disk"),
        ..CellRecord::default()
    };
    let at_gateway =
        CellRecord { count: 3, kind: 1, gateway: text("g-1"), ..CellRecord::default() };
    let cells = vec![at_gateway, faulty];
    let checkpoint = CheckpointRecord { cells, offline_after: 120, ..checkpoint };
    check("index-checkpoint-health", &checkpoint, fixture("index-checkpoint-health"));
    let leaves = vec![LeafEntry { number: 2, first: text("a-1") }];
    let directory = DirectoryRecord { version: 1, next: 3, leaves };
    check("index-directory", &directory, fixture("index-directory"));
}

#[test]
fn every_row_of_schema_1_is_readable() {
    let plugin = PluginPart {
        name: text("monitor"),
        order: Some(OrderPart {
            revision: text("1.2"),
            attempt: 2,
            state: 6,
            since: 9,
            reason: text("no space"),
            // Came later: what was written before reads so.
            made: 0,
            assignment: text(""),
            rollout: text(""),
            replaced: None,
            generation: 0,
            drift: None,
            repairs: 0,
            repaired: 0,
        }),
        reported: Some(ReportedPart {
            revision: Some(text("1.1")),
            pending: Some(text("1.2")),
            is_held: true,
            is_local: false,
            generation: 0,
            fault: None,
        }),
        event: Some(EventPart {
            position: 7,
            number: 8,
            kind: 3,
            at: 9,
            missed: 1,
            crashes: Vec::new(),
            crashed: text(""),
            crash_reason: text(""),
            crashed_at: Vec::new(),
            crash_lasts: 0,
        }),
        wanted: Some(WantedPart {
            revision: text("1.2"),
            assignment: text("monitor-prod"),
            attempt: 2,
            patience: 600,
            barrier: 5,
            gates: Some(gates()),
            waits: false,
            undoes_owners: false,
        }),
    };
    let row = RowRecord {
        id: text("a-1"),
        agent: Some(AgentPart {
            operator_labels: map("env", "prod"),
            token_labels: map("env", "prod"),
            own_labels: map("env", "prod"),
            quarantine: Some(text("two machines")),
            archived: Some(3),
            is_ephemeral: true,
            since: Some(1),
            seen: Some(2),
            revoked: Some(4),
        }),
        report: Some(ReportPart {
            architecture: text("amd64"),
            os: text("Debian 13"),
            hostname: text("db-1"),
            version: text("0.1.0"),
            left_out: 1,
            tells_faults: false,
        }),
        plugins: vec![plugin],
        session: None,
    };
    let leaf =
        LeafRecord { version: 1, first: text("a-0"), until: Some(text("a-9")), rows: vec![row] };
    check("index-leaf", &leaf, fixture("index-leaf"));
    let mut drifted = leaf;
    let plugin = &mut drifted.rows[0].plugins[0];
    plugin.reported.as_mut().expect("it was reported").generation = 8;
    let order = plugin.order.as_mut().expect("an order");
    (order.generation, order.repairs, order.repaired) = (8, 2, 1_767_225_700);
    order.drift = Some(drift());
    check("index-leaf-drifted", &drifted, fixture("index-leaf-drifted"));
    let mut faulty = drifted;
    let row = &mut faulty.rows[0];
    row.session = Some(SessionPart { gateway: text("g-1"), begun: 6, ended: Some(7) });
    row.report.as_mut().expect("a report").tells_faults = true;
    row.plugins[0].reported.as_mut().expect("it was reported").fault = Some(fault());
    let event = row.plugins[0].event.as_mut().expect("an event");
    (event.crashes, event.crashed_at, event.crash_lasts) = (vec![7, 8, 9], vec![6, 7, 8], 1800);
    (event.crashed, event.crash_reason) = (text("1.1"), text("exit code 3"));
    check("index-leaf-faulty", &faulty, fixture("index-leaf-faulty"));
}
