//! The difference between files and the ledger, with the rollouts that a change begins.

use std::collections::BTreeMap;

use guest_fleet_core::fold::Row;
use guest_fleet_core::time::{Seconds, Zones};
use guest_fleet_core::view::View;
use guest_fleet_ledger::records::configuration::{ASSIGNMENT, RELEASE};

use super::begin::{self, Changing, Manner, Refused};
use crate::configuration::Configuration;
use crate::configuration::change::{Decision, Edit};
use crate::declarations::difference::{Difference, Undeclared, difference};
use crate::declarations::problem::{Collector, Problem, Problems};
use crate::declarations::set::Declarations;

/// A comparison of files with a ledger.
#[derive(Clone, Copy)]
pub struct Comparison<'a> {
    /// The declarations of the files.
    pub declared: &'a Declarations,
    /// Who changes it, and why.
    pub decision: &'a Decision,
    /// The fate of records that no file declares.
    pub undeclared: Undeclared,
    /// How changes go.
    pub manner: Manner,
    /// The time.
    pub now: Seconds,
    /// The time zones.
    pub zones: &'a dyn Zones,
}

/// Why a comparison has no result.
#[derive(Debug, thiserror::Error)]
pub enum CompareError {
    /// The declarations have problems.
    #[error(transparent)]
    Problems(#[from] Problems),
    /// Assignments change, so it has to be known which agents there are.
    #[error("the agents have to be read")]
    NeedsRows,
}

// === impl Comparison ===

impl Comparison<'_> {
    /// Compares. `rows` are those of all agents; a change that begins no rollout needs none.
    ///
    /// # Errors
    /// See [`CompareError`].
    pub fn with(
        &self,
        ledger: &Configuration,
        rows: Option<&BTreeMap<String, Row>>,
    ) -> Result<Difference, CompareError> {
        let mut found = difference(self.declared, ledger, &self.decision.who, self.undeclared)?;
        let deleted = found.undeclared.iter().filter(|_| self.undeclared == Undeclared::Delete);
        if !found.edits.iter().chain(deleted).any(|edit| edit.key.starts_with(ASSIGNMENT)) {
            return Ok(found);
        }
        let Some(rows) = rows else { return Err(CompareError::NeedsRows) };
        let after = self.declared.over(ledger.view(), self.undeclared);
        let Self { now, zones, manner, decision, .. } = *self;
        let view = ledger.view();
        let changing = Changing { before: view, after: &after, rows, now, zones, manner, decision };
        match changing.made() {
            Ok(made) => {
                if found.undeclared.iter().any(|edit| edit.key.starts_with(RELEASE)) {
                    let needed = changing.needs(&made);
                    found.undeclared.retain(|edit| !needed.contains(&edit.key));
                }
                found.edits.extend(made.iter().map(|(name, made)| begin::edit(name, view, made)));
                found.edits.extend(self.ended(view, &after));
                Ok(found)
            }
            Err(refused) => {
                let mut problems = Collector::default();
                for (assignment, refused) in &refused {
                    problems.add(self.problem(assignment, refused));
                }
                Ok(problems.finish(found)?)
            }
        }
    }

    /// Ends the rollouts of assignments that are deleted. What they came to stays known, in case the assignment
    /// comes back.
    fn ended(&self, before: &View, after: &View) -> Vec<Edit> {
        let gone = before.rollouts.iter().filter(|(name, _)| {
            before.assignments.contains_key(*name) && !after.assignments.contains_key(*name)
        });
        let ended = gone.filter_map(|(name, found)| {
            let mut ended = found.clone();
            let is_live = ended.rollout.abandon();
            ended.account.note(self.decision.decided());
            is_live.then(|| begin::edit(name, before, &ended))
        });
        ended.collect()
    }

    fn problem(&self, assignment: &str, refused: &Refused) -> Problem {
        let declared = self.declared.assignments.get(assignment);
        let fix = match refused {
            Refused::UnderWay { name, ways_out, .. } => {
                let ways = ways_out.iter().map(|verb| format!("`guest-fleet rollout {verb} {name}`"));
                let ways = ways.collect::<Vec<_>>().join(" or ");
                match ways.as_str() {
                    "" => "wait for its end".to_owned(),
                    ways => format!("wait for its end, or end it: {ways}"),
                }
            }
            Refused::Policy { .. } => {
                "leave --at-once out; the policy is the server's own (`guest-fleet serve --policies`)"
                    .to_owned()
            }
            Refused::Halted { .. } => {
                "declare another revision; where the release was not the cause, add --again with the reason"
                    .to_owned()
            }
        };
        let reason = refused.to_string();
        match declared {
            Some(declared) => declared.problem("assignment.revision", reason, fix),
            // It is not in the files, and decides for agents because of them.
            None => Problem {
                file: "the ledger".to_owned(),
                place: None,
                key: format!("assignment {assignment}"),
                reason,
                fix,
            },
        }
    }
}
