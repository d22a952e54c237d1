//! What goes on beside the orders of an agent: asking it again, and saying that it was seen.

use std::time::Duration;

use guest_agent_proto::agent_controlplane::{GetAgentInfo, ListPluginStates};
use guest_fleet_core::journal::Generations;
use guest_fleet_sessions::messages;
use tokio::time::Instant;
use tonic::Status;

use super::journal::{self, SaveError};
use super::{AgentTask, RELIST, recorded};
use crate::orders::compose;

/// How often an agent that reports nothing by itself is asked for a list, while an order waits.
const LIST: Duration = Duration::from_secs(30);

/// How often an agent that reports nothing by itself is asked for a list: it tells of its health, and of drift, in
/// no other way.
const LOOK: Duration = Duration::from_secs(300);

/// How soon an agent is asked again for the second look at it, where it did not answer.
const AGAIN: Duration = Duration::from_secs(60);

// === impl AgentTask ===

impl AgentTask {
    /// Asks for what an agent tells only when it is asked.
    pub(super) fn ask(&mut self) {
        self.asked_at = Some(Instant::now());
        let id = || self.shared.settings.environment.id();
        let request = id();
        let info = messages::pack_request(messages::GET_AGENT_INFO, &id(), &GetAgentInfo {});
        let list =
            messages::pack_request(messages::LIST_PLUGIN_STATES, &request, &ListPluginStates {});
        self.told.asked(request);
        for body in [info, list] {
            // A full queue drains, and the next time comes.
            let _is_queued =
                self.session.hand_over(compose::request_frame(id(), body), Box::new(|| true));
        }
    }

    /// What goes on beside orders: asking again, and saying that the agent was seen.
    pub(super) async fn look_after(&mut self, now: Instant) {
        // Once when it is due, and now and then where no answer comes: each answer of an agent that sends no
        // report is waited for anew.
        let due = self.looks.due(self.shared.settings.drift_apart).filter(|due| *due <= now);
        let is_second_look =
            due.is_some_and(|due| self.asked_at.is_none_or(|at| at < due || now >= at + AGAIN));
        let is_doubtful = self.generations() != Generations::Kept
            && self.journal.is_waiting()
            && self.told.listed_at().is_some_and(|at| now >= at + LIST);
        let pause = match (self.told.needs_list(), is_doubtful) {
            _ if is_second_look => Duration::ZERO,
            (true, _) => RELIST,
            (false, true) => LIST,
            (false, false) if self.told.has_report() => return self.look_seen(now).await,
            (false, false) => LOOK + self.shared.settings.environment.jittered(AGAIN),
        };
        if self.asked_at.is_none_or(|at| now >= at + pause) {
            self.ask();
        }
        self.look_seen(now).await;
    }

    /// Keeps what the ledger did not take before, unless another session took over: that one has newer reports.
    pub(super) async fn keep_again(&mut self) -> Result<(), Status> {
        match self.journal.hold().await {
            Ok(()) => self.keeping.try_keep(&self.shared, &self.session.resource).await,
            Err(SaveError::Replaced) => return Err(journal::replaced()),
            Err(SaveError::Failed | SaveError::Outdated) => self.keeping.later(&self.shared),
        }
        Ok(())
    }

    /// Records now and then that the agent was seen.
    async fn look_seen(&mut self, now: Instant) {
        if now >= self.seen_next {
            let spread = self.shared.settings.environment.jittered(recorded::SEEN_SPREAD);
            self.seen_next = now + recorded::SEEN + spread;
            recorded::seen(&*self.shared.ledger, &self.session.resource, self.shared.now()).await;
        }
    }
}
