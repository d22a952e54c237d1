//! A health check of the plugin was answered: `health_log` decides whether that is an event, and it is recorded like
//! any other before it is sent.

use actix::prelude::*;

use super::PluginActor;
use super::event::{Effect, PluginEvent, Transition, Whose};
use super::health_log::News;
use super::state::Phase;
use crate::messages::{Changed, HealthHeard, Save};

impl Handler<HealthHeard> for PluginActor {
    type Result = ();

    fn handle(&mut self, HealthHeard { process, health }: HealthHeard, ctx: &mut Self::Context) {
        // The answer of one that is being stopped says nothing about the plugin.
        if !matches!(&self.state.phase, Phase::Running { process: running, .. } if *running == process)
        {
            return;
        }
        let at = self.ports.clock.now();
        let news = self.shown.story.health.heard(health.clone(), at);
        let name = self.state.name.clone();
        let condition = self.shown.story.health.condition;
        self.handles.changed.do_send(Changed::Health { name, heard: (health, at), condition });
        match news {
            News::Nothing => {}
            // Where it cannot be written, the agent knows an older health after a restart, until the first check.
            News::Changed => {
                self.handles.store.do_send(Save { writes: vec![self.record()], ..Save::default() })
            }
            News::Event(kind, details) => {
                let revision = self.state.spec.revision.clone();
                let (details, whose) = (details.into(), Whose::Newest);
                let event = PluginEvent { kind, revision, details, whose };
                let effects = vec![Effect::Announce(event)];
                let next = self.state.clone();
                self.carry_out(Transition { next, effects }, "a health check", None, ctx);
            }
        }
    }
}
