//! Rows and counts survive their records.

use std::collections::BTreeMap;

use guest_fleet_core::drift::{Drift, Lack, OwnersChange, OwnersKind, Repairs};
use guest_fleet_core::fold::{
    AgentFacts, Barrier, Cell, Declared, Gates, LastEvent, Mark, OrderFacts, PLUGINS, Place,
    ReportFacts, ReportedFacts, Row, Step, Tally, Timeline, Wanted, Word,
};
use guest_fleet_core::health::{Cause, Crashes, Fault, Level, Moment};
use guest_fleet_core::labels::Labels;
use guest_fleet_core::presence::{Presence, Session};
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::{Ordered, ReleaseName, Target};
use guest_fleet_ledger::bounds;
use guest_fleet_ledger::records::index::CheckpointRecord;
use prost::Message;

use super::super::stored;

const STEPS: [Step; 7] = [
    Step::Sent,
    Step::Acknowledged,
    Step::Begun,
    Step::Done,
    Step::Adopted,
    Step::Failed,
    Step::TakenBack,
];

fn gates() -> Gates {
    Gates { holds: ["h".to_owned()].into(), by_owner: true, windows: ["w".to_owned()].into() }
}

fn whole(text: &str, plugins: usize) -> Row {
    let barriers = [
        Barrier::Conflict,
        Barrier::Quarantined,
        Barrier::NoRelease,
        Barrier::NoArchive,
        Barrier::Wave,
        Barrier::Paused,
        Barrier::Gates(Gates::default()),
        Barrier::Gates(gates()),
    ];
    let labels: BTreeMap<String, String> =
        (0..64).map(|at| (format!("{at:02}{text}"), text.to_owned())).collect();
    let mut row = Row {
        agent: Some(AgentFacts {
            labels: Labels { operator: labels.clone(), token: labels.clone(), own: labels },
            quarantine: Some(text.to_owned()),
            archived: Some(Seconds(3)),
            is_ephemeral: true,
            since: Some(Seconds(1)),
            seen: Some(Seconds(2)),
            revoked: Some(Seconds(4)),
        }),
        report: Some(ReportFacts {
            architecture: text.to_owned(),
            os: text.to_owned(),
            hostname: text.to_owned(),
            version: text.to_owned(),
            plugins: BTreeMap::new(),
            left_out: 4,
            tells_faults: true,
        }),
        session: Some(Session {
            gateway: text.to_owned(),
            begun: Seconds(16),
            ended: plugins.is_multiple_of(2).then_some(Seconds(17)),
        }),
        ..Row::default()
    };
    for at in 0..plugins {
        let name = format!("{at:03}{text}");
        let target = match at % 3 {
            0 => Target::Absent,
            _ => Target::Revision(text.to_owned()),
        };
        let step = STEPS[at % STEPS.len()];
        let (attempt, reason) = (2, text.to_owned());
        let (made, since) = (Seconds(8), Seconds(9));
        let ordered = Ordered {
            target: target.clone(),
            assignment: text.to_owned(),
            rollout: text.to_owned(),
            replaced: Some(target.clone()),
        };
        let change = OwnersChange { kind: OwnersKind::ALL[at % 5], by: text.to_owned() };
        let lack = match at % 3 {
            0 => Lack::WentBack,
            1 => Lack::Differs,
            _ => Lack::ByOwner(change),
        };
        let drift = (at % 4 > 0).then_some(Drift { lack, since: Seconds(11) });
        let repairs = Repairs { count: 2, last: Seconds(12) };
        let order = OrderFacts {
            ordered,
            attempt,
            step,
            made,
            since,
            reason,
            generation: 13,
            drift,
            repairs,
        };
        row.orders.insert(name.clone(), order);
        let crashes = Crashes {
            revision: text.to_owned(),
            at: [1, 2, 3].map(|at| Moment { taken: Seconds(at), happened: Seconds(at + 1) }).into(),
            reason: text.to_owned(),
            lasts: 1800,
        };
        let event =
            LastEvent { position: 7, number: 8, kind: 3, at: Seconds(9), missed: 10, crashes };
        row.events.insert(name.clone(), event);
        let reported = ReportedFacts {
            revision: Some(text.to_owned()),
            pending: (at % 2 == 0).then(|| text.to_owned()),
            is_held: at % 2 == 1,
            is_local: at % 3 == 1,
            generation: 14,
            fault: (at % 3 > 0).then(|| Fault {
                level: if at % 2 == 0 { Level::Failing } else { Level::Degraded },
                cause: if at % 4 == 0 { Cause::Unhealthy } else { Cause::Other },
                reason: text.to_owned(),
                since: (at % 5 > 0).then_some(Seconds(15)),
            }),
        };
        if let Some(report) = &mut row.report {
            report.plugins.insert(name.clone(), reported);
        }
        let wanted = Wanted {
            target,
            assignment: text.to_owned(),
            attempt: 5,
            patience: 6,
            barrier: barriers[at % barriers.len()].clone(),
            waits: at % 2 == 0,
            undoes_owners: at % 3 == 0,
        };
        row.wanted.insert(name, wanted);
    }
    row
}

#[test]
fn a_row_is_the_same_after_its_record() {
    for row in [Row::default(), whole("x", 24), whole("", 1), Row { agent: None, ..whole("y", 3) }]
    {
        let record = stored::of_row("a-1", &row);
        let bytes = record.encode_to_vec();
        let read = prost::Message::decode(bytes.as_slice()).expect("it is a record");
        assert_eq!(stored::row(read), Ok(("a-1".to_owned(), row)));
    }
}

#[test]
fn the_largest_row_fits_a_record() {
    let mut row = whole(&"x".repeat(250), PLUGINS);
    let names = |kind: &str| (0..8).map(|at| format!("{kind}{at}{}", "x".repeat(250))).collect();
    for wanted in row.wanted.values_mut() {
        let gates = Gates { holds: names("h"), by_owner: true, windows: names("w") };
        wanted.barrier = Barrier::Gates(gates);
    }
    let bytes = stored::of_row("a-1", &row).encoded_len();
    assert!(bytes < bounds::VALUE_BYTES / 2, "{bytes}");
}

#[test]
fn counts_are_the_same_after_their_record() {
    let mut counts = Tally::at_time(Seconds(100));
    let assigned = |mark| Cell::Assigned {
        assignment: "x".to_owned(),
        plugin: "log".to_owned(),
        revision: None,
        mark,
    };
    let release = ReleaseName { plugin: "log".to_owned(), revision: "1".to_owned() };
    let having = |archived| Cell::Having { release: release.clone(), archived };
    counts.add(&Timeline::new(assigned(Mark::Gates(gates()))));
    let silent = assigned(Mark::Word(Word::Silent));
    counts
        .add(&Timeline::new(assigned(Mark::Word(Word::Ordered))).then(Some(Seconds(200)), silent));
    counts.add(&Timeline::new(having(false)).then(Some(Seconds(300)), having(true)));
    let agents = |presence| Cell::Agents(Place::Is(presence));
    let offline = Some(Seconds(150));
    let gone = Timeline::new(agents(Presence::Disconnected));
    counts.add(&gone.then(offline, agents(Presence::Offline)));
    counts.add(&Timeline::new(Cell::Agents(Place::At("g".to_owned()))));
    let faulty = Cell::Faulty { plugin: "log".to_owned(), fingerprint: "down".to_owned() };
    counts.add(&Timeline::new(faulty).then(Some(Seconds(250)), Cell::Over));
    counts.add(&Timeline::new(Cell::HeldByOwner { plugin: "log".to_owned() }));
    let mut record = CheckpointRecord { version: 1, ..CheckpointRecord::default() };
    stored::set_counts(&mut record, &counts, &Declared::default());
    assert_eq!(stored::counts("key", &record), Ok(counts));
    assert_eq!(record.left_out, 0);
    record.cells[0].kind = 9;
    assert!(stored::counts("key", &record).is_err());
}

#[test]
fn counts_that_there_is_no_room_for_are_told() {
    let mut counts = Tally::at_time(Seconds(0));
    for at in 0..10_000 {
        counts.add(&Timeline::new(Cell::Assigned {
            assignment: format!("{at:05}{}", "x".repeat(120)),
            plugin: "log".to_owned(),
            revision: Some("1".to_owned()),
            mark: Mark::Word(Word::Done),
        }));
    }
    let mut record = CheckpointRecord { version: 1, ..CheckpointRecord::default() };
    stored::set_counts(&mut record, &counts, &Declared::default());
    assert_eq!(record.cells.len() as u64 + record.left_out, 10_000);
    assert!(record.left_out > 0);
    assert!(record.encoded_len() <= stored::CELLS_BYTES, "{}", record.encoded_len());
}

#[test]
fn names_that_agents_choose_take_no_room_from_the_counts_of_what_is_declared() {
    let mut counts = Tally::at_time(Seconds(0));
    let faulty = |plugin: &str, fingerprint: String| {
        Timeline::new(Cell::Faulty { plugin: plugin.to_owned(), fingerprint })
    };
    for at in 0..10_000 {
        counts.add(&faulty("any", format!("{at}{}", "x".repeat(100))));
        let plugin = format!("{at}{}", "y".repeat(100));
        counts.add(&Timeline::new(Cell::HeldByOwner { plugin }));
    }
    for _ in 0..2 {
        counts.add(&faulty("zz", "zz: the cause of two".to_owned()));
    }
    let done = Cell::Agents(Place::Is(Presence::Archived));
    counts.add(&Timeline::new(done));
    let mut record = CheckpointRecord { version: 1, ..CheckpointRecord::default() };
    stored::set_counts(&mut record, &counts, &Declared::default());
    assert!(record.left_out > 15_000, "{}", record.left_out);
    assert!(record.encoded_len() < stored::TOLD_BYTES + 1000, "{}", record.encoded_len());
    assert_eq!(record.cells[0].kind, 1, "it is not of their making");
    assert_eq!(record.cells[1].fingerprint, "zz: the cause of two", "most agents have it");
}
