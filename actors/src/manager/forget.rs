//! Forgets a plugin that the agent does not know: one of a lost store that could not be adopted.
//!
//! It becomes a plugin that is being removed, so the machine of plugins ends its processes, deletes
//! its files, tries again what fails, goes on after a crash of the agent, and reports the end.

use std::sync::Arc;

use actix::prelude::*;
use tracing::info;

use super::{Lists, ManagerActor};
use crate::error::Chain;
use crate::messages::{Forget, NotForgotten};
use crate::model::id::{Attempt, Generation, PluginName, Sha256Digest};
use crate::model::spec::{Artifact, ArtifactUrl, EntryPoint, PluginSpec, Source};
use crate::plugin::Beginning;
use crate::plugin::event::Boot;
use crate::plugin::snapshot::Snapshot;
use crate::plugin::state::{Phase, State, Target, Then};
use crate::ports::Cause;

/// The revision under which the removal of an unknown plugin is reported.
const REVISION: &str = "unknown";

impl Handler<Forget> for ManagerActor {
    type Result = Result<(), NotForgotten>;

    fn handle(&mut self, Forget(name): Forget, ctx: &mut Self::Context) -> Self::Result {
        if matches!(self.lists, Lists::Held { .. }) {
            return Err(NotForgotten::NotReady);
        }
        if self.roster.contains_key(&name) {
            return Err(NotForgotten::Known);
        }
        let state = being_removed(name.clone())
            .map_err(|cause| NotForgotten::Unnamed(Chain(&*cause).to_string()))?;
        info!(plugin = %name, "forgets a plugin that it does not know");
        let snapshot = Box::new(Snapshot::of(state));
        let beginning = Beginning::Recovered { snapshot, boot: Boot::Same };
        self.start(name, Generation::default(), beginning, ctx);
        self.moved();
        Ok(())
    }
}

/// A plugin of which only the name is known, while it is being removed.
fn being_removed(name: PluginName) -> Result<State, Cause> {
    let artifact = Artifact { url: ArtifactUrl::new(""), sha256: Sha256Digest::of(b"") };
    let revision = REVISION.parse()?;
    let source = Source::Archive(artifact);
    let spec = PluginSpec::plain(name, revision, source, EntryPoint::parse(REVISION)?);
    let target = Target { process: None, endpoint: None };
    let phase = Phase::Stopping { attempt: Attempt::default(), target, then: Then::Remove };
    Ok(State::of(Generation::default(), Arc::new(spec), phase))
}
