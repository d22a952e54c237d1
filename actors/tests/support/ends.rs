//! What orders are announced with and how they end, counted as a control plane counts it.
//!
//! Shared by the laws and the model. It knows nothing of the machine: it reads events alone.

use std::collections::BTreeMap;

use guest_agent_actors::model::event::PluginEventKind;
use guest_agent_actors::plugin::event::{Effect, Event, Order, Transition};
use guest_agent_actors::plugin::state::State;

/// Orders that were announced and have no end yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ends {
    /// INSTALLs, by revision.
    installs: BTreeMap<String, u8>,
    /// An APPLY, by the revision it was announced for.
    apply: Option<String>,
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
            told.iter().any(|(told, of)| *told == kind && revision.is_none_or(|it| it == *of))
        };
        match event {
            Event::Ordered { generation, order: Order::Install(spec) } if is_new(*generation) => {
                let revision = spec.revision.as_str();
                let joins = self.installs.contains_key(revision);
                if !joins && !begins(PluginEventKind::InstallRequested, Some(revision)) {
                    return Err(format!("an INSTALL of {revision} was not announced"));
                }
            }
            Event::Ordered { generation, order: Order::Apply(_) }
                if is_new(*generation) && !begins(PluginEventKind::ApplyRequested, None) =>
            {
                return Err("an APPLY was not announced".to_owned());
            }
            Event::Ordered { generation, order: Order::Remove } if is_new(*generation) => {
                let is_told = begins(PluginEventKind::RemoveRequested, None)
                    || begins(PluginEventKind::RemoveFailed, None);
                if !is_told {
                    return Err("a REMOVE was not announced".to_owned());
                }
            }
            _other => {}
        }
        for (kind, revision) in told {
            let is_current = revision == before.spec.revision.as_str();
            let takes_back = match event {
                // A person may take back one that has proved itself, too.
                Event::Ordered { order: Order::Rollback(_), .. } if is_current => TakesBack::Any,
                _ if before.trial.is_some() && is_current => TakesBack::OnTrial,
                _ => TakesBack::Nothing,
            };
            self.enter(kind, revision, takes_back)
                .map_err(|why| format!("{kind:?} of {revision}: {why}; open: {self:?}"))?;
        }
        Ok(())
    }

    /// Reads one event.
    fn enter(
        &mut self,
        kind: PluginEventKind,
        revision: &str,
        takes_back: TakesBack,
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
                if self.apply.is_some() {
                    return Err("the APPLY before it has no end");
                }
                self.apply = Some(revision.to_owned());
            }
            PluginEventKind::Applied | PluginEventKind::ApplyFailed => {
                if self.apply.take().as_deref() != Some(revision) {
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
            | PluginEventKind::ExecutionFailed => {}
            // The REMOVE was refused and not announced.
            PluginEventKind::RemoveFailed if self.removes.is_empty() => {}
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
        let Some(open) = self.installs.get_mut(revision) else { return false };
        *open -= 1;
        if *open == 0 {
            self.installs.remove(revision);
        }
        true
    }

    /// Whether every order that was announced has its end, as it must when the plugin rests.
    pub(crate) fn is_complete(&self) -> bool {
        self.installs.is_empty() && self.apply.is_none() && self.removes.is_empty()
    }
}

fn announcements(transition: &Transition) -> impl Iterator<Item = (PluginEventKind, &str)> {
    transition.effects.iter().filter_map(|effect| match effect {
        Effect::Announce(told) => Some((told.kind, told.revision.as_str())),
        _other => None,
    })
}
