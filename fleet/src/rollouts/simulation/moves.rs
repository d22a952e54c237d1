//! Which records of a rollout may follow each other.

use guest_fleet_core::gate::Installs;
use guest_fleet_core::rollout::{Cause, Change, Closed, Grant, OnHalt, Past, Rollout, State, Verb};
use guest_fleet_core::time::Seconds;

/// Who moved the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mover {
    Controller,
    Person,
}

/// One arrow of `core::rollout`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Move {
    /// Of the controller.
    Changed(Change),
    /// Of the controller, when closed grants had dried.
    ChangedWhenDry(Change),
    /// Of a person.
    Asked(Verb),
}

/// The arrow that leads from one record to the next, if there is one. Whether it was right to take it
/// is for other laws.
pub(super) fn between(before: &Rollout, after: &Rollout, mover: Mover) -> Option<Move> {
    // When it happened is in the record, in one of these places.
    let soaking = match &after.state {
        State::Running(guest_fleet_core::rollout::Stage::Soaking { since }) => Some(*since),
        _ => None,
    };
    let granted = after.grant.as_ref().map(|grant: &Grant| grant.since);
    let halted = after.halted.last().map(|halted| halted.at);
    let times = [soaking, granted, halted, after.began.last().copied(), Some(after.resumed)];
    let times: Vec<Seconds> = times.into_iter().flatten().collect();
    if mover == Mover::Person {
        return verbs(after).into_iter().find_map(|verb| {
            let leads = |now: &Seconds| {
                let mut next = before.clone();
                next.ask(&verb, *now).is_ok() && next == *after
            };
            times.iter().any(leads).then_some(Move::Asked(verb))
        });
    }
    changes(before, after).into_iter().find_map(|change| {
        // What is closed was forgotten before where it had dried.
        let dry = Rollout { closed: Closed::Dry, ..before.clone() };
        let leads = |now: &Seconds, before: &Rollout| {
            let mut next = before.clone();
            next.change(change.clone(), *now);
            // What its installations came to was counted; the truth at the end is held against it.
            let Past { name, succeeded, failed, .. } = after.past.clone().unwrap_or_default();
            next.remember(&name, &Installs { succeeded, failed, tolerated: 0.0 });
            next == *after
        };
        let leads_from = |before: &Rollout| times.iter().any(|now| leads(now, before));
        if leads_from(before) {
            Some(Move::Changed(change))
        } else {
            leads_from(&dry).then_some(Move::ChangedWhenDry(change))
        }
    })
}

/// The changes of a controller that the state before allows.
fn changes(before: &Rollout, after: &Rollout) -> Vec<Change> {
    use guest_fleet_core::rollout::Stage::{Approval, Reaching, Soaking};

    let grants = || {
        let opened = after.grant.clone().map(Change::Grant);
        let closed = before.grant.is_some().then_some(Change::Close);
        opened.into_iter().chain(closed)
    };
    let halt = match &after.state {
        State::Halted(Cause::Gate(halt)) => Some(Change::Halt(halt.clone())),
        _ => None,
    };
    match &before.state {
        State::Running(Reaching) => {
            grants().chain([Change::Soak, Change::Finish]).chain(halt).collect()
        }
        State::Running(Soaking { .. }) => {
            let is_last = before.wave + 1 >= before.plan.waves.len();
            let next = if is_last {
                vec![Change::Finish]
            } else {
                // Where nobody is left, it ends before the last wave.
                vec![Change::AskApproval, Change::NextWave, Change::Finish]
            };
            next.into_iter().chain(halt).collect()
        }
        State::Running(Approval) | State::Paused(_) => halt.into_iter().collect(),
        State::Halted(Cause::Gate(_)) if before.plan.on_halt == OnHalt::GoBack => {
            vec![Change::GoBack]
        }
        State::RollingBack => grants().chain([Change::EndRollback]).collect(),
        State::Draft | State::Halted(_) | State::RolledBack | State::Done | State::Aborted => {
            Vec::new()
        }
    }
}

fn verbs(after: &Rollout) -> Vec<Verb> {
    let reason = match &after.state {
        State::Halted(Cause::Person(reason)) => reason.clone(),
        _ => "a reason".to_owned(),
    };
    vec![
        Verb::Start,
        Verb::Pause,
        Verb::Resume { reason: reason.clone() },
        Verb::Halt { reason },
        Verb::RollBack,
        Verb::Approve,
        Verb::Abort,
    ]
}
