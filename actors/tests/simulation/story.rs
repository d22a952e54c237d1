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

/// What was heard so far and has no end yet.
#[derive(Debug, Default)]
struct Story {
    /// INSTALLs that have no end, by revision. Orders for one revision that are under way together
    /// are announced once.
    open: BTreeMap<String, u32>,
    /// Revisions that were reported as installed, and may be taken back.
    installed: BTreeSet<String>,
    /// APPLYs that have no end, by the revision that they were announced for. One that a hold makes
    /// wait may stand beside one that is under way.
    applying: BTreeMap<String, u32>,
    /// The revision for which a removal was announced that is not over.
    removing: Option<String>,
    /// REMOVEs that a hold makes wait, by revision: what is there runs on.
    held_removals: BTreeMap<String, u32>,
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
        let is_held = details.starts_with("held: ");
        let refused = refusals.contains(&(*number, revision.clone()));
        match number {
            1 => *self.open.entry(revision.clone()).or_default() += 1,
            // An upgrade lets its old revision go: this is no order.
            2 if details == "the new revision proved itself" => {
                self.let_go = Some(revision.clone());
            }
            2 if is_held => *self.held_removals.entry(revision.clone()).or_default() += 1,
            2 => {
                // Orders whose place it takes have ended.
                self.is_over_but_for_a_removal()?;
                // No hold delays this REMOVE, so the held REMOVEs of the revision are under way
                // already. All of them are one removal, which has one end.
                self.held_removals.remove(revision);
                self.removing = Some(revision.clone());
            }
            3 | 4 | 7 | 9 | 12 if self.removing.is_some() => {
                return Err("something runs while it is being removed".to_owned());
            }
            3 if ends(&mut self.open, revision) => drop(self.installed.insert(revision.clone())),
            3 => return Err("installed, and no INSTALL is without an end".to_owned()),
            4 | 6 | 7 => {}
            5 if self.let_go.as_ref() == Some(revision) => {
                self.let_go = None;
                self.installed.remove(revision);
            }
            5 if self.removing.as_ref() == Some(revision) => {
                self.removing = None;
                self.installed.clear();
            }
            5 if ends(&mut self.held_removals, revision) => self.installed.clear(),
            5 => return Err("removed, and nobody had ordered it".to_owned()),
            // The record of this plugin was unreadable.
            8 if revision.is_empty() => *self = Self::default(),
            8 if ends(&mut self.open, revision) || self.installed.remove(revision) || refused => {}
            8 => return Err("failed to install, and no INSTALL is without an end".to_owned()),
            9 => {}
            10 if details.starts_with("superseded ") && ends(&mut self.held_removals, revision) => {
            }
            // One that waited is under way since the hold ended.
            10 if self.held_removals.contains_key(revision) => {}
            10 if self.removing.is_some() || revision.is_empty() || refused => {}
            10 => return Err("failed to remove, and nobody had ordered it".to_owned()),
            11 if !self.applying.is_empty() && !is_held => {
                return Err("an APPLY before it has no end".to_owned());
            }
            11 => *self.applying.entry(revision.clone()).or_default() += 1,
            12 | 13 if ends(&mut self.applying, revision) => {}
            12 => return Err("applied, and no APPLY of this revision is without an end".to_owned()),
            13 if revision.is_empty() || refused => {}
            13 => return Err("failed to apply, and no APPLY of it is without an end".to_owned()),
            other => return Err(format!("there is no event {other}")),
        }
        Ok(())
    }

    fn is_over_but_for_a_removal(&self) -> Result<(), String> {
        if let Some((revision, count)) = self.open.first_key_value() {
            return Err(format!("{count} INSTALLs of {revision} have no end"));
        }
        if let Some((revision, _)) = self.applying.first_key_value() {
            return Err(format!("an APPLY of {revision} has no end"));
        }
        Ok(())
    }

    fn is_over(&self) -> Result<(), String> {
        self.is_over_but_for_a_removal()?;
        let held = self.held_removals.first_key_value().map(|(revision, _)| revision);
        if let Some(revision) = self.removing.as_ref().or(held) {
            return Err(format!("a REMOVE of {revision} has no end"));
        }
        Ok(())
    }
}

/// An end of an order of this revision. Says whether there was one without.
fn ends(open: &mut BTreeMap<String, u32>, revision: &str) -> bool {
    let Some(count) = open.get_mut(revision) else { return false };
    *count -= 1;
    if *count == 0 {
        open.remove(revision);
    }
    true
}
