//! What orders are announced with and how they end, counted as a control plane counts it.
//!
//! Shared by the laws and the model. It knows nothing of the machine: it reads events alone.

use std::collections::BTreeMap;

use guest_agent_actors::model::act::{Act as Asked, HeldOrder};
use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::model::runs::Due;
use guest_agent_actors::plugin::event::{Effect, Event, Order, Transition, Whose};
use guest_agent_actors::plugin::state::State;

/// Orders that were announced and have no end yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    /// INSTALLs, by revision.
    installs: BTreeMap<String, u8>,
    /// APPLYs, by the revision they were announced for.
    applies: BTreeMap<String, u8>,
    /// REMOVEs, by revision. The end of the last is the end of all.
    removes: BTreeMap<String, u8>,
    /// Whether the failure of the newest of them was reported.
    is_failure_told: bool,
    /// The revision that was reported as installed last, which a failed trial may take back.
    installed: Option<String>,
}

/// Whether the failure of the current revision may follow its success.
#[derive(Clone, Copy)]
enum TakesBack {
    Nothing,
    /// Once, while it is on trial.
    OnTrial,
    /// Whenever a person wants it.
    Any,
}

// === impl Ends ===

impl Ends {
    /// Reads the events of one transition.
    pub(crate) fn step(
        &mut self,
        before: &State,
        event: &Event,
        after: &Transition,
    ) -> Result<(), String> {
        let is_new = |generation| generation > before.generation;
        let told: Vec<_> = announcements(after).collect();
        let begins = |kind, revision: Option<&str>| {
            told.iter().any(|told| told.kind == kind && revision.is_none_or(|it| it == told.of))
        };
        // The repetition of an order that waits says nothing.
        let held = &before.person.held_order;
        let is_repeated = held.is_some() && *held == after.next.person.held_order;
        match event {
            Event::Ordered { generation, order: Order::Install(spec) } if is_new(*generation) => {
                let revision = spec.revision.as_str();
                let joins = self.installs.contains_key(revision);
                if !joins && !begins(PluginEventKind::InstallRequested, Some(revision)) {
                    return Err(format!("an INSTALL of {revision} was not announced"));
                }
            }
            Event::Ordered { generation, order: Order::Apply(_) }
                if is_new(*generation)
                    && !is_repeated
                    && !begins(PluginEventKind::ApplyRequested, None) =>
            {
                return Err("an APPLY was not announced".to_owned());
            }
            Event::Ordered { generation, order: Order::Remove }
                if is_new(*generation) && !is_repeated =>
            {
                let is_told = begins(PluginEventKind::RemoveRequested, None)
                    || begins(PluginEventKind::RemoveFailed, None);
                if !is_told {
                    return Err("a REMOVE was not announced".to_owned());
                }
            }
            _other => {}
        }
        for told in told {
            let Told { kind, of: revision, whose } = told;
            let is_current = revision == before.spec.revision.as_str();
            let takes_back = match event {
                // A person may take back one that has proved itself, too.
                Event::Ordered { order: Order::Asked(Asked::Rollback(_)), .. } if is_current => {
                    TakesBack::Any
                }
                _ if before.trial.is_some() && is_current => TakesBack::OnTrial,
                _ => TakesBack::Nothing,
            };
            self.enter(kind, revision, (takes_back, whose))
                .map_err(|why| format!("{kind:?} of {revision}: {why}; open: {self:?}"))?;
        }
        Ok(())
    }

    /// Reads one event.
    fn enter(
        &mut self,
        kind: PluginEventKind,
        revision: &str,
        (takes_back, whose): (TakesBack, Whose),
    ) -> Result<(), &'static str> {
        match kind {
            PluginEventKind::InstallRequested => {
                *self.installs.entry(revision.to_owned()).or_default() += 1;
            }
            PluginEventKind::Installed => {
                if !self.end_install(revision) {
                    return Err("no INSTALL is without an end");
                }
                self.installed = Some(revision.to_owned());
            }
            PluginEventKind::InstallFailed => {
                if !self.end_install(revision) {
                    // A revision on trial was reported as installed, and is taken back once.
                    let is_taken_back = match takes_back {
                        TakesBack::Nothing => false,
                        TakesBack::OnTrial => self.installed.as_deref() == Some(revision),
                        TakesBack::Any => true,
                    };
                    if !is_taken_back {
                        return Err("no INSTALL is without an end");
                    }
                    self.installed = None;
                }
            }
            PluginEventKind::ApplyRequested => {
                *self.applies.entry(revision.to_owned()).or_default() += 1;
            }
            PluginEventKind::Applied | PluginEventKind::ApplyFailed => {
                if !end(&mut self.applies, revision) {
                    return Err("no APPLY of this revision is without an end");
                }
            }
            PluginEventKind::RemoveRequested => {
                *self.removes.entry(revision.to_owned()).or_default() += 1;
                self.is_failure_told = false;
            }
            PluginEventKind::Removed => {
                if self.removes.remove(revision).is_none() {
                    return Err("no REMOVE of this revision is without an end");
                }
                self.is_failure_told = false;
                if self.installed.as_deref() == Some(revision) {
                    self.installed = None;
                }
            }
            PluginEventKind::Started
            | PluginEventKind::Stopped
            | PluginEventKind::Crashed
            | PluginEventKind::StartFailed
            | PluginEventKind::ExecutionCompleted
            | PluginEventKind::ExecutionFailed
            | PluginEventKind::Unhealthy
            | PluginEventKind::Healthy => {}
            // The REMOVE was refused and not announced.
            PluginEventKind::RemoveFailed if self.removes.is_empty() => {}
            // Another order takes its place.
            PluginEventKind::RemoveFailed if whose == Whose::Superseded => {
                if !end(&mut self.removes, revision) {
                    return Err("no REMOVE of this revision is without an end");
                }
            }
            // The removal goes on.
            PluginEventKind::RemoveFailed => {
                if std::mem::replace(&mut self.is_failure_told, true) {
                    return Err("the failure of this REMOVE was reported before");
                }
            }
        }
        Ok(())
    }

    fn end_install(&mut self, revision: &str) -> bool {
        end(&mut self.installs, revision)
    }

    /// Whether every order that was announced has its end, as it must when the plugin rests, but for
    /// the one that a hold makes wait.
    pub(crate) fn is_complete(&self, state: Option<&State>) -> bool {
        let mut ends = self.clone();
        let held = state.and_then(|state| state.person.held_order.as_ref());
        if let Some(state) = state
            && held.is_some()
            && state.owed.apply == Due::Yes
        {
            // The revision that is held takes it with it.
            let of = state.apply_of.as_ref().unwrap_or(&state.spec.revision);
            end(&mut ends.applies, of.as_str());
        }
        let is_open = match held {
            None => true,
            Some(HeldOrder::Install(spec)) => end(&mut ends.installs, spec.revision.as_str()),
            Some(HeldOrder::Remove { of }) => end(&mut ends.removes, of.as_str()),
            Some(HeldOrder::Apply { of, .. }) => end(&mut ends.applies, of.as_str()),
        };
        is_open && ends.installs.is_empty() && ends.applies.is_empty() && ends.removes.is_empty()
    }
}

/// One order of a revision ends. Returns whether one was open.
fn end(open: &mut BTreeMap<String, u8>, revision: &str) -> bool {
    let Some(count) = open.get_mut(revision) else { return false };
    *count -= 1;
    if *count == 0 {
        open.remove(revision);
    }
    true
}

/// One event.
struct Told<'a> {
    kind: PluginEventKind,
    of: &'a str,
    whose: Whose,
}

fn announcements(transition: &Transition) -> impl Iterator<Item = Told<'_>> {
    transition.effects.iter().filter_map(|effect| match effect {
        Effect::Announce(told) => {
            Some(Told { kind: told.kind, of: told.revision.as_str(), whose: told.whose })
        }
        _other => None,
    })
}
