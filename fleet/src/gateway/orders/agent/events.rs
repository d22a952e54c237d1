//! Events of one agent: first into the log, then into the journal.

use guest_agent_proto::agent_controlplane::PluginEventMessage;
use guest_agent_proto::rpc;
use tonic::Code;

use super::recorded::{self, AppendError, Last};
use super::{AgentTask, Refused};
use crate::chain::Chain;
use crate::gateway::orders::observed;
use crate::gateway::orders::removed::{self, Guard};
use crate::gateway::orders::shared::unavailable;
use crate::gateway::orders::told::told;
use crate::records::event::subject;

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
        let appended = match self.append(&place, id, &event).await {
            Err(_) if removed::is(Guard::EventRecorded) => return Ok(()),
            appended => appended?,
        };
        let Some(appended) = appended else { return Ok(()) };
        if self.last_events.len() >= observed::PLUGINS {
            self.last_events.clear();
        }
        self.last_events.insert(place, appended);
        let details = String::from_utf8_lossy(event.event_details.as_deref().unwrap_or_default());
        self.told.outdated(&plugin);
        let Some(told) = told(&event, &details) else { return Ok(()) };
        self.journal
            .change(|journal| journal.told(&plugin, &told, now))
            .await
            .map_err(Refused::from)
    }

    /// Appends an event to the log. `None` where it was not the last event and is there already: an
    /// agent that was killed may have lost what it knew of several acknowledgements.
    ///
    /// Only a session that knows the last event of the place appends: its own, or one that it read
    /// before it found that no other session took over. Otherwise a gateway that stood still would
    /// append once more what came to the next one meanwhile.
    async fn append(
        &mut self,
        place: &str,
        id: &str,
        event: &PluginEventMessage,
    ) -> Result<Option<Last>, Refused> {
        let ledger = self.shared.ledger.clone();
        let agent = self.session.resource.clone();
        let subject = subject(&agent, place);
        let failed = |error: AppendError| {
            tracing::warn!(resource = %agent, error = %Chain(&error), "an event was not recorded");
            Refused::Message(unavailable("the ledger did not take it"))
        };
        let mut known = self.last_events.get(place).cloned();
        for _ in 0..recorded::TRIES {
            let last = match known.take() {
                Some(last) => last,
                None => {
                    let last = recorded::last(&*ledger, &subject).await.map_err(failed)?;
                    if last.id == id {
                        self.shared.settings.figures.event(false);
                        return Ok(Some(last));
                    }
                    if recorded::is_there(&*ledger, &subject, id).await.map_err(failed)? {
                        self.shared.settings.figures.event(false);
                        return Ok(None);
                    }
                    self.journal.hold().await?;
                    last
                }
            };
            match recorded::append(&self.shared, &subject, last, id, event).await {
                Ok(appended) => return Ok(Some(appended)),
                // What was known is old, or went with its age, or another session took over: the
                // journal says which.
                Err(AppendError::Stale) => {}
                Err(error @ AppendError::Failed(_)) => return Err(failed(error)),
            }
        }
        Err(failed(AppendError::Stale))
    }
}
