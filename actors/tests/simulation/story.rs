//! What a control plane may hear of one plugin: the table of the wire contract as a small automaton
//! of its own. It knows nothing of the machine.

use std::collections::{BTreeMap, BTreeSet};

/// An event as it was heard, the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) id: String,
    pub(crate) number: i32,
    pub(crate) revision: String,
    pub(crate) details: String,
}

/// Refusals that were possible, as number and revision: an order that the agent could not decode.
pub(crate) type Refusals = BTreeSet<(i32, String)>;

/// What was heard so far and is not answered yet.
#[derive(Debug, Default)]
struct Story {
    /// Revisions with an INSTALL that is not answered, and how many there are. Orders for the same
    /// revision may be answered together, by the outcome of the last.
    open: BTreeMap<String, u32>,
    /// Revisions whose latest INSTALL is not answered.
    owed: BTreeSet<String>,
    /// Revisions that were reported as installed, and may be taken back.
    installed: BTreeSet<String>,
    applying: bool,
    removing: bool,
    /// The revision that an upgrade lets go.
    let_go: Option<String>,
}

/// Reads a story from its beginning, and says where it goes wrong or what it leaves open.
pub(crate) fn check(told: &[Told], refusals: &Refusals) -> Result<(), String> {
    let mut story = Story::default();
    for (index, event) in told.iter().enumerate() {
        story.goes_on(event, refusals).map_err(|why| {
            format!("event {index}, {} of {}: {why}", event.number, event.revision)
        })?;
    }
    story.is_over()
}

// === impl Story ===

impl Story {
    fn goes_on(&mut self, event: &Told, refusals: &Refusals) -> Result<(), String> {
        let Told { number, revision, details, .. } = event;
        let refused = refusals.contains(&(*number, revision.clone()));
        let runs = |what: &str| Err(format!("{what} while it is being removed"));
        match number {
            1 => {
                *self.open.entry(revision.clone()).or_default() += 1;
                self.owed.insert(revision.clone());
            }
            // An upgrade lets its old revision go: this is no order.
            2 if details == "the new revision proved itself" => {
                self.let_go = Some(revision.clone());
            }
            2 => {
                // Earlier orders are answered by the removal instead.
                *self = Self { removing: true, ..Self::default() };
            }
            3 | 4 | 7 | 9 | 12 if self.removing => return runs("something runs"),
            3 if self.answers(revision) => drop(self.installed.insert(revision.clone())),
            3 => return Err("installed, and nobody had ordered it".to_owned()),
            4 | 6 | 7 => {}
            5 if self.let_go.as_ref() == Some(revision) => {
                self.let_go = None;
                self.installed.remove(revision);
            }
            5 if self.removing => self.removing = false,
            5 => return Err("removed, and nobody had ordered it".to_owned()),
            // The record of this plugin was unreadable.
            8 if revision.is_empty() => *self = Self::default(),
            8 if self.answers(revision) || self.installed.remove(revision) || refused => {}
            8 => return Err("failed to install, and nobody had ordered it".to_owned()),
            9 => {}
            10 if self.removing || revision.is_empty() || refused => {}
            10 => return Err("failed to remove, and nobody had ordered it".to_owned()),
            11 if self.applying => return Err("an APPLY before it was never answered".to_owned()),
            11 => self.applying = true,
            12 if self.applying => self.applying = false,
            12 => return Err("applied, and nobody had ordered it".to_owned()),
            13 if self.applying => self.applying = false,
            13 if revision.is_empty() || refused => {}
            13 => return Err("failed to apply, and nobody had ordered it".to_owned()),
            other => return Err(format!("there is no event {other}")),
        }
        Ok(())
    }

    /// An outcome of an INSTALL of this revision. Says whether there was one without.
    fn answers(&mut self, revision: &str) -> bool {
        self.owed.remove(revision);
        match self.open.get_mut(revision) {
            Some(open) if *open > 0 => {
                *open -= 1;
                true
            }
            _ => false,
        }
    }

    fn is_over(&self) -> Result<(), String> {
        if let Some(revision) = self.owed.first() {
            return Err(format!("what became of the INSTALL of {revision} was never told"));
        }
        if self.applying {
            return Err("what became of an APPLY was never told".to_owned());
        }
        if self.removing {
            return Err("what became of a REMOVE was never told".to_owned());
        }
        Ok(())
    }
}
