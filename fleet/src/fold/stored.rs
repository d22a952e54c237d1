//! Rows and counts as records, and back. Nothing of a row is lost; counts are made again from the rows,
//! so of those a checkpoint keeps as many as there is room for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::drift::Repairs;
use guest_fleet_core::fold::{
    AgentFacts, Barrier, Cell, Declared, Gates, LastEvent, Mark, OrderFacts, Place, ReportFacts,
    ReportedFacts, Row, Step, Tally, Wanted, Word,
};
use guest_fleet_core::health::{Crashes, Moment};
use guest_fleet_core::labels::Labels;
use guest_fleet_core::presence::{Presence, Session};
use guest_fleet_core::target::Ordered;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::ReleaseName;
use guest_fleet_core::window::Weekly;
use guest_fleet_ledger::records::index::{
    AgentPart, CellRecord, CheckpointRecord, EventPart, GatesRecord, HoldEnd, MoveRecord,
    OrderPart, PluginPart, ReportPart, ReportedPart, RowRecord, SessionPart, WantedPart,
    WindowHours,
};
use guest_fleet_ledger::records::repair::DriftPart;
use guest_fleet_ledger::records::report::FaultPart;
use guest_fleet_ledger::records::{Numbered, RecordError, revision, target};
use prost::Message;

/// Most bytes that the counts of what is declared take in a checkpoint.
pub(super) const CELLS_BYTES: usize = 768 << 10;
/// Most bytes that the counts of faults and holds take beside them, of which agents tell.
pub(super) const TOLD_BYTES: usize = 128 << 10;
/// Most moves of a checkpoint.
pub(super) const MOVES: usize = 20_000;
/// Most holds, and most windows, of a checkpoint.
pub(super) const DOORS: usize = 500;

/// A row as a record.
pub(crate) fn of_row(id: &str, row: &Row) -> RowRecord {
    let names: BTreeSet<&String> = row
        .orders
        .keys()
        .chain(row.report.iter().flat_map(|report| report.plugins.keys()))
        .chain(row.events.keys())
        .chain(row.wanted.keys())
        .collect();
    RowRecord {
        id: id.to_owned(),
        agent: row.agent.as_ref().map(of_agent),
        report: row.report.as_ref().map(|report| ReportPart {
            architecture: report.architecture.clone(),
            os: report.os.clone(),
            hostname: report.hostname.clone(),
            version: report.version.clone(),
            left_out: report.left_out,
            tells_faults: report.tells_faults,
        }),
        plugins: names.into_iter().map(|name| of_plugin(name, row)).collect(),
        session: row.session.as_ref().map(|session| SessionPart {
            gateway: session.gateway.clone(),
            begun: session.begun.0,
            ended: session.ended.map(|at| at.0),
        }),
    }
}

fn of_agent(agent: &AgentFacts) -> AgentPart {
    AgentPart {
        operator_labels: agent.labels.operator.clone(),
        token_labels: agent.labels.token.clone(),
        own_labels: agent.labels.own.clone(),
        quarantine: agent.quarantine.clone(),
        archived: agent.archived.map(|at| at.0),
        is_ephemeral: agent.is_ephemeral,
        since: agent.since.map(|at| at.0),
        seen: agent.seen.map(|at| at.0),
        revoked: agent.revoked.map(|at| at.0),
    }
}

fn of_plugin(name: &str, row: &Row) -> PluginPart {
    let reported = row.report.as_ref().and_then(|report| report.plugins.get(name));
    PluginPart {
        name: name.to_owned(),
        order: row.orders.get(name).map(|order| OrderPart {
            revision: revision(order.target()),
            attempt: order.attempt,
            state: order.step.number(),
            since: order.since.0,
            reason: order.reason.clone(),
            made: order.made.0,
            assignment: order.ordered.assignment.clone(),
            rollout: order.ordered.rollout.clone(),
            replaced: order.ordered.replaced.as_ref().map(revision),
            generation: order.generation,
            drift: order.drift.as_ref().map(DriftPart::of),
            repairs: order.repairs.count,
            repaired: order.repairs.last.0,
        }),
        reported: reported.map(|reported| ReportedPart {
            revision: reported.revision.clone(),
            pending: reported.pending.clone(),
            is_held: reported.is_held,
            is_local: reported.is_local,
            generation: reported.generation,
            fault: reported.fault.as_ref().map(FaultPart::of),
        }),
        event: row.events.get(name).map(|event| EventPart {
            position: event.position,
            number: event.number,
            kind: event.kind,
            at: event.at.0,
            missed: event.missed,
            crashes: event.crashes.at.iter().map(|at| at.taken.0).collect(),
            crashed_at: event.crashes.at.iter().map(|at| at.happened.0).collect(),
            crash_lasts: event.crashes.lasts,
            crashed: event.crashes.revision.clone(),
            crash_reason: event.crashes.reason.clone(),
        }),
        wanted: row.wanted.get(name).map(|wanted| {
            let (barrier, gates) = match &wanted.barrier {
                Barrier::Conflict => (1, None),
                Barrier::Quarantined => (2, None),
                Barrier::NoRelease => (3, None),
                Barrier::NoArchive => (4, None),
                Barrier::Gates(gates) => (5, Some(of_gates(gates))),
                Barrier::Wave => (6, None),
                Barrier::Paused => (7, None),
            };
            WantedPart {
                revision: revision(&wanted.target),
                assignment: wanted.assignment.clone(),
                attempt: wanted.attempt,
                patience: wanted.patience,
                barrier,
                gates,
                waits: wanted.waits,
                undoes_owners: wanted.undoes_owners,
            }
        }),
    }
}

fn of_gates(gates: &Gates) -> GatesRecord {
    GatesRecord {
        holds: gates.holds.iter().cloned().collect(),
        by_owner: gates.by_owner,
        windows: gates.windows.iter().cloned().collect(),
    }
}

fn gates(record: Option<GatesRecord>) -> Gates {
    let record = record.unwrap_or_default();
    Gates {
        holds: record.holds.into_iter().collect(),
        by_owner: record.by_owner,
        windows: record.windows.into_iter().collect(),
    }
}

/// A row from its record.
///
/// # Errors
/// A number in it does not exist.
pub(crate) fn row(record: RowRecord) -> Result<(String, Row), RecordError> {
    let damaged = |problem: &str| RecordError::Damaged {
        key: record.id.clone(),
        problem: problem.to_owned(),
    };
    let mut row = Row {
        agent: record.agent.map(|part| AgentFacts {
            labels: Labels {
                operator: part.operator_labels,
                token: part.token_labels,
                own: part.own_labels,
            },
            quarantine: part.quarantine,
            archived: part.archived.map(Seconds),
            is_ephemeral: part.is_ephemeral,
            since: part.since.map(Seconds),
            seen: part.seen.map(Seconds),
            revoked: part.revoked.map(Seconds),
        }),
        report: record.report.map(|part| ReportFacts {
            architecture: part.architecture,
            os: part.os,
            hostname: part.hostname,
            version: part.version,
            plugins: BTreeMap::new(),
            left_out: part.left_out,
            tells_faults: part.tells_faults,
        }),
        session: record.session.map(|part| Session {
            gateway: part.gateway,
            begun: Seconds(part.begun),
            ended: part.ended.map(Seconds),
        }),
        ..Row::default()
    };
    for plugin in record.plugins {
        let name = plugin.name;
        if let Some(order) = plugin.order {
            let step = Step::of_number(order.state);
            let facts = OrderFacts {
                ordered: Ordered {
                    target: target(&order.revision),
                    assignment: order.assignment,
                    rollout: order.rollout,
                    replaced: order.replaced.as_deref().map(target),
                },
                attempt: order.attempt,
                step: step.ok_or_else(|| damaged("an order has a state that does not exist"))?,
                made: Seconds(order.made),
                since: Seconds(order.since),
                reason: order.reason,
                generation: order.generation,
                drift: order.drift.map(|drift| drift.drift(&record.id)).transpose()?,
                repairs: Repairs { count: order.repairs, last: Seconds(order.repaired) },
            };
            row.orders.insert(name.clone(), facts);
        }
        if let (Some(part), Some(report)) = (plugin.reported, &mut row.report) {
            let fault = part.fault.as_ref().and_then(FaultPart::fault);
            let ReportedPart { revision, pending, is_held, is_local, generation, .. } = part;
            let facts = ReportedFacts { revision, pending, is_held, is_local, generation, fault };
            report.plugins.insert(name.clone(), facts);
        }
        if let Some(part) = plugin.event {
            let EventPart { position, number, kind, at, missed, crashed, crash_reason, .. } = part;
            let moments = part.crashes.into_iter().zip(part.crashed_at);
            let moment =
                |(taken, happened)| Moment { taken: Seconds(taken), happened: Seconds(happened) };
            let crashes = Crashes {
                revision: crashed,
                at: moments.map(moment).collect(),
                reason: crash_reason,
                lasts: part.crash_lasts,
            };
            let event = LastEvent { position, number, kind, at: Seconds(at), missed, crashes };
            row.events.insert(name.clone(), event);
        }
        if let Some(part) = plugin.wanted {
            let barrier = match part.barrier {
                1 => Barrier::Conflict,
                2 => Barrier::Quarantined,
                3 => Barrier::NoRelease,
                4 => Barrier::NoArchive,
                5 => Barrier::Gates(gates(part.gates)),
                6 => Barrier::Wave,
                7 => Barrier::Paused,
                _ => return Err(damaged("what stands before a change does not exist")),
            };
            let wanted = Wanted {
                target: target(&part.revision),
                assignment: part.assignment,
                attempt: part.attempt,
                patience: part.patience,
                barrier,
                waits: part.waits,
                undoes_owners: part.undoes_owners,
            };
            row.wanted.insert(name, wanted);
        }
    }
    Ok((record.id, row))
}

/// The counts, and when holds and windows change them, in a checkpoint.
pub(super) fn set_counts(record: &mut CheckpointRecord, counts: &Tally<Cell>, declared: &Declared) {
    record.at = counts.time().0;
    // Cells that nobody is in now, and that some will enter.
    let mut cells: BTreeMap<&Cell, u64> = counts.now().collect();
    for (_, _, to, _) in counts.later() {
        cells.entry(to).or_default();
    }
    let is_told = |cell: &Cell| matches!(cell, Cell::Faulty { .. } | Cell::HeldByOwner { .. });
    let (mut told, declared_cells): (Vec<_>, Vec<_>) =
        cells.into_iter().partition(|(cell, _)| is_told(cell));
    // Agents choose these names and texts: those of most agents have room first, and of declared plugins before others.
    told.sort_by_key(|(cell, count)| (!is_of_declared(cell, declared), Reverse(*count)));
    let mut places: BTreeMap<&Cell, u32> = BTreeMap::new();
    for (cells, room) in [(declared_cells, CELLS_BYTES), (told, TOLD_BYTES)] {
        let mut bytes = 0;
        for (cell, count) in cells {
            let one = of_cell(cell, count);
            bytes += one.encoded_len() + 4;
            if bytes > room {
                record.left_out += 1;
                continue;
            }
            places.insert(cell, u32::try_from(record.cells.len()).unwrap_or(u32::MAX));
            record.cells.push(one);
        }
    }
    for (at, from, to, count) in counts.later() {
        match (places.get(from), places.get(to)) {
            (Some(from), Some(to)) if record.moves.len() < MOVES => {
                record.moves.push(MoveRecord { at: at.0, from: *from, to: *to, count });
            }
            _ => record.left_out += 1,
        }
    }
    record.offline_after = declared.offline_after;
    let (holds, windows) = (declared.holds(), declared.windows());
    let beyond = holds.len().saturating_sub(DOORS) + windows.len().saturating_sub(DOORS);
    record.left_out += u64::try_from(beyond).unwrap_or(u64::MAX);
    let holds = holds.into_iter().take(DOORS);
    record.holds =
        holds.map(|(name, until)| HoldEnd { name, until: until.map(|at| at.0) }).collect();
    let windows = windows.into_iter().take(DOORS);
    record.windows = windows
        .map(|(name, weekly)| WindowHours {
            name,
            days: (0..7)
                .zip(weekly.days)
                .filter(|(_, is_one)| *is_one)
                .map(|(day, _)| day)
                .collect(),
            opens: weekly.opens.into(),
            minutes: weekly.minutes.into(),
            zone: weekly.zone,
        })
        .collect();
}

fn is_of_declared(cell: &Cell, declared: &Declared) -> bool {
    match cell {
        Cell::Faulty { plugin, .. } | Cell::HeldByOwner { plugin } => declared.assigns(plugin),
        Cell::Agents(_) | Cell::Assigned { .. } | Cell::Having { .. } | Cell::Over => true,
    }
}

fn of_cell(cell: &Cell, count: u64) -> CellRecord {
    match cell {
        Cell::Agents(Place::Is(presence)) => {
            CellRecord { count, kind: 1, word: presence.number(), ..CellRecord::default() }
        }
        Cell::Agents(Place::At(gateway)) => {
            CellRecord { count, kind: 1, gateway: gateway.clone(), ..CellRecord::default() }
        }
        Cell::Assigned { assignment, plugin, revision, mark } => {
            let (word, gates) = match mark {
                Mark::Word(word) => (word.number(), None),
                Mark::Gates(gates) => (0, Some(of_gates(gates))),
            };
            CellRecord {
                count,
                kind: 2,
                word,
                assignment: assignment.clone(),
                plugin: plugin.clone(),
                revision: revision.clone().unwrap_or_default(),
                gates,
                ..CellRecord::default()
            }
        }
        Cell::Having { release, archived } => CellRecord {
            count,
            kind: if *archived { 4 } else { 3 },
            plugin: release.plugin.clone(),
            revision: release.revision.clone(),
            ..CellRecord::default()
        },
        Cell::Faulty { plugin, fingerprint } => CellRecord {
            count,
            kind: 5,
            plugin: plugin.clone(),
            fingerprint: fingerprint.clone(),
            ..CellRecord::default()
        },
        Cell::HeldByOwner { plugin } => {
            CellRecord { count, kind: 6, plugin: plugin.clone(), ..CellRecord::default() }
        }
        Cell::Over => CellRecord { count, kind: 7, ..CellRecord::default() },
    }
}

fn cell(record: &CellRecord) -> Option<Cell> {
    let revision = (!record.revision.is_empty()).then(|| record.revision.clone());
    Some(match record.kind {
        1 if record.word == 0 => Cell::Agents(Place::At(record.gateway.clone())),
        1 => Cell::Agents(Place::Is(Presence::of_number(record.word)?)),
        2 => Cell::Assigned {
            assignment: record.assignment.clone(),
            plugin: record.plugin.clone(),
            revision,
            mark: match record.word {
                0 => Mark::Gates(gates(record.gates.clone())),
                word => Mark::Word(Word::of_number(word)?),
            },
        },
        kind @ (3 | 4) => Cell::Having {
            release: ReleaseName {
                plugin: record.plugin.clone(),
                revision: record.revision.clone(),
            },
            archived: kind == 4,
        },
        5 => {
            Cell::Faulty { plugin: record.plugin.clone(), fingerprint: record.fingerprint.clone() }
        }
        6 => Cell::HeldByOwner { plugin: record.plugin.clone() },
        7 => Cell::Over,
        _ => return None,
    })
}

/// The counts of a checkpoint.
///
/// # Errors
/// A number in it does not exist.
pub(crate) fn counts(key: &str, record: &CheckpointRecord) -> Result<Tally<Cell>, RecordError> {
    let damaged = || RecordError::Damaged {
        key: key.to_owned(),
        problem: "a count is of something that does not exist".to_owned(),
    };
    let cells: Option<Vec<Cell>> = record.cells.iter().map(cell).collect();
    let cells = cells.ok_or_else(damaged)?;
    let at = |place: u32| usize::try_from(place).ok().and_then(|place| cells.get(place));
    let mut moves = Vec::new();
    for one in &record.moves {
        let (Some(from), Some(to)) = (at(one.from), at(one.to)) else { return Err(damaged()) };
        moves.push((Seconds(one.at), from.clone(), to.clone(), one.count));
    }
    let now = cells.iter().cloned().zip(record.cells.iter().map(|record| record.count));
    Ok(Tally::of_parts(Seconds(record.at), now.filter(|(_, count)| *count > 0), moves))
}

/// When the holds of a checkpoint end.
pub(crate) fn holds(record: &CheckpointRecord) -> BTreeMap<String, Option<Seconds>> {
    record.holds.iter().map(|hold| (hold.name.clone(), hold.until.map(Seconds))).collect()
}

/// When the windows of a checkpoint open.
pub(crate) fn windows(record: &CheckpointRecord) -> BTreeMap<String, Weekly> {
    let weekly = |hours: &WindowHours| {
        let mut days = [false; 7];
        for day in &hours.days {
            if let Some(day) = usize::try_from(*day).ok().and_then(|day| days.get_mut(day)) {
                *day = true;
            }
        }
        let minutes = |minutes: u32| u16::try_from(minutes).unwrap_or(u16::MAX);
        Weekly {
            days,
            opens: minutes(hours.opens),
            minutes: minutes(hours.minutes),
            zone: hours.zone.clone(),
        }
    };
    record.windows.iter().map(|hours| (hours.name.clone(), weekly(hours))).collect()
}
