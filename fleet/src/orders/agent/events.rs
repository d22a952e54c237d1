//! Events of one agent: first into the log, then into the journal.

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::rpc;
use guest_fleet_ledger::records::event::subject;
use tonic::Code;

use super::recorded::{self, AppendError, Logged};
use super::{AgentTask, Refused};
use crate::chain::Chain;
use crate::orders::observed;
use crate::orders::shared::unavailable;
use crate::orders::told::told;
use crate::simulated::removed::{self, Guard};

/// Where an event is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It is the last one of its place.
    Last,
    /// Others came after it.
    Earlier,
}

// === impl AgentTask ===

impl AgentTask {
    /// Takes an event. After a crash between the log and the journal the agent sends it again, and
    /// both recognise it.
    pub(super) async fn event(
        &mut self,
        id: &str,
        mut event: PluginEventMessage,
    ) -> Result<(), Refused> {
        if let Some(message) = recorded::refused(&self.session.resource, id, &event) {
            let code = Code::InvalidArgument.into();
            return Err(Refused::Message(rpc::Status { code, message, details: Vec::new() }));
        }
        recorded::cut(&mut event);
        let (plugin, now) = (event.plugin_name.clone(), self.shared.settings.environment.wall());
        self.journal.change(|journal| journal.tells(&plugin, now)).await?;
        // Plugins without a place of their own share that of the one without a name.
        let place = if self.journal.has_told(&plugin) { plugin.clone() } else { String::new() };
        let place = match self.append(place, id, &event).await {
            Err(_) if removed::is(Guard::EventRecorded) => return Ok(()),
            place => place?,
        };
        if place == Place::Earlier {
            return Ok(());
        }
        let details = String::from_utf8_lossy(event.event_details.as_deref().unwrap_or_default());
        self.told.outdated(&plugin);
        let Some(told) = told(&event, &details) else { return Ok(()) };
        self.journal
            .change(|journal| journal.told(&plugin, &told, now))
            .await
            .map_err(Refused::from)
    }

    /// Appends an event to the log, unless it is there already: an agent that was killed may have lost
    /// what it knew of several acknowledgements.
    ///
    /// Only a session that knows the last event of the place appends: its own, or one that it read
    /// before it found that no other session took over. Otherwise a gateway that stood still would
    /// append once more what came to the next one meanwhile.
    async fn append(
        &mut self,
        place: String,
        id: &str,
        event: &PluginEventMessage,
    ) -> Result<Place, Refused> {
        let ledger = self.shared.ledger.clone();
        let agent = self.session.resource.clone();
        let subject = subject(&agent, &place);
        let failed = |error: AppendError| {
            tracing::warn!(resource = %agent, error = %Chain(&error), "an event was not recorded");
            Refused::Message(unavailable("the ledger did not take it"))
        };
        let mut known = self.logged.remove(&place);
        for _ in 0..recorded::TRIES {
            let logged = match known.take() {
                Some(logged) => logged,
                None => {
                    let logged = Logged::read(&*ledger, &subject).await.map_err(failed)?;
                    if !logged.has(id) {
                        self.journal.hold().await?;
                    }
                    logged
                }
            };
            if logged.has(id) {
                self.shared.settings.figures.event(false);
                let place_in_log = if logged.is_last(id) { Place::Last } else { Place::Earlier };
                self.keep_logged(place, logged);
                return Ok(place_in_log);
            }
            match recorded::append(&self.shared, &subject, logged, id, event).await {
                Ok(logged) => {
                    self.keep_logged(place, logged);
                    return Ok(Place::Last);
                }
                // What was known is old, or went with its age, or another session took over: the
                // journal says which.
                Err(AppendError::Stale) => {}
                Err(error @ AppendError::Failed(_)) => return Err(failed(error)),
            }
        }
        Err(failed(AppendError::Stale))
    }

    fn keep_logged(&mut self, place: String, logged: Logged) {
        if self.logged.len() >= observed::PLUGINS {
            self.logged.clear();
        }
        self.logged.insert(place, logged);
    }
}
