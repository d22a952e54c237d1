//! The messages that wait for one agent, and which of them is due. Pure: time is an argument.
//!
//! Two lanes. *Configurations* go strictly one after another: the next is sent when the agent
//! answered the one before, because a resend that overtook a newer configuration would bring back
//! an old state. *Requests* (information, lists) do not wait for anything, so that a slow order
//! never delays a heartbeat. A message keeps its id each time it is sent.
//!
//! Both lanes are bounded. A full lane refuses the new message with an error at once and drops no
//! other.

use std::collections::VecDeque;
use std::time::Duration;

use guest_agent_proto::agent_communication::{
    MessageBody, StreamAgentMessagesResponse, stream_agent_messages_response,
};
use guest_agent_proto::agent_controlplane::ConfigurePluginStates;
use guest_agent_proto::rpc;
use guest_fleet_sessions::desk::busy_pause;
use guest_fleet_sessions::messages;
use tokio::time::Instant;
use tonic::Code;

use crate::store::{PendingConfiguration, supersede};

/// Most configurations that wait for one agent.
const MAX_CONFIGURATIONS: usize = 256;
/// Most requests that wait for one agent.
const MAX_REQUESTS: usize = 64;
/// Messages for one agent, in order.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    configurations: VecDeque<Configuration>,
    requests: VecDeque<Request>,
}

/// How long to wait for an acknowledgement and how often to try on one stream.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resend {
    pub(crate) after: Duration,
    pub(crate) attempts: u32,
}

/// The next step of a stream.
#[derive(Debug, PartialEq)]
pub(crate) enum Due {
    /// Send this now.
    Send(StreamAgentMessagesResponse),
    /// Send nothing before this instant.
    At(Instant),
    /// Send nothing until the next change.
    Nothing,
    /// The agent does not acknowledge: this stream is of no use.
    GiveUp,
}

/// The kind of message that the agent's answer settled.
#[derive(Debug, PartialEq)]
pub(crate) enum Settled {
    Configuration,
    Request,
    /// The agent wants a later resend, or nothing waits under this id.
    Nothing,
}

/// The lane is full.
#[derive(Debug, PartialEq)]
pub(crate) struct Full;

#[derive(Debug)]
struct Configuration {
    id: String,
    states: ConfigurePluginStates,
    progress: Progress,
}

#[derive(Debug)]
struct Request {
    id: String,
    body: MessageBody,
    progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Progress {
    /// The message was never sent: it may still be changed or dropped.
    Queued,
    /// The message was sent on an earlier stream.
    Interrupted,
    /// The message was sent on this stream: `sendings` times altogether, `unanswered` times since
    /// the agent last answered it.
    Sent { resend_at: Instant, sendings: u32, unanswered: u32 },
}

// === impl Outbox ===

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.configurations.is_empty() && self.requests.is_empty()
    }

    pub(crate) fn accepts_configuration(&self) -> bool {
        self.configurations.len() < MAX_CONFIGURATIONS
    }

    /// Appends configurations that a store kept from an earlier run.
    pub(crate) fn restore(&mut self, pending: Vec<PendingConfiguration>) {
        for PendingConfiguration { message_id: id, states } in pending {
            self.configurations.push_back(Configuration {
                id,
                states,
                progress: Progress::Interrupted,
            });
        }
    }

    /// Appends a configuration; returns the ids of the queued ones whose last entry it replaced.
    pub(crate) fn configure(&mut self, id: String, states: ConfigurePluginStates) -> Vec<String> {
        let mut superseded = Vec::new();
        self.configurations.retain_mut(|queued| {
            if queued.progress != Progress::Queued {
                return true;
            }
            supersede(&mut queued.states, &states);
            let keep = !queued.states.configure_plugins.is_empty();
            if !keep {
                superseded.push(queued.id.clone());
            }
            keep
        });
        self.configurations.push_back(Configuration { id, states, progress: Progress::Queued });
        superseded
    }

    pub(crate) fn request(&mut self, id: String, body: MessageBody) -> Result<(), Full> {
        if self.requests.len() >= MAX_REQUESTS {
            return Err(Full);
        }
        self.requests.push_back(Request { id, body, progress: Progress::Queued });
        Ok(())
    }

    /// Forgets a request that no operation waits for any more.
    pub(crate) fn cancel_request(&mut self, id: &str) {
        self.requests.retain(|request| request.id != id);
    }

    /// Another stream sends from now on: every unanswered message is due again, under the same id.
    pub(crate) fn interrupt(&mut self) {
        let all = self
            .configurations
            .iter_mut()
            .map(|configuration| &mut configuration.progress)
            .chain(self.requests.iter_mut().map(|request| &mut request.progress));
        for progress in all {
            if let Progress::Sent { .. } = progress {
                *progress = Progress::Interrupted;
            }
        }
    }

    /// The step to take at `now`. The carrier of a stream asks again until the answer is not [`Due::Send`].
    pub(crate) fn due(&mut self, now: Instant, resend: Resend) -> Due {
        let mut earliest: Option<Instant> = None;
        for request in &mut self.requests {
            match advance(&mut request.progress, now, resend) {
                Step::Send => return Due::Send(frame(&request.id, request.body.clone())),
                Step::Wait(at) => earliest = Some(earliest.map_or(at, |other| other.min(at))),
                Step::GiveUp => return Due::GiveUp,
            }
        }
        if let Some(first) = self.configurations.front_mut() {
            match advance(&mut first.progress, now, resend) {
                Step::Send => {
                    let body = messages::pack(messages::CONFIGURE_PLUGIN_STATES, &first.states);
                    return Due::Send(frame(&first.id, body));
                }
                Step::Wait(at) => earliest = Some(earliest.map_or(at, |other| other.min(at))),
                Step::GiveUp => return Due::GiveUp,
            }
        }
        earliest.map_or(Due::Nothing, Due::At)
    }

    /// Records the agent's answer to the message `id`.
    pub(crate) fn answered(
        &mut self,
        id: &str,
        status: Option<&rpc::Status>,
        now: Instant,
    ) -> Settled {
        let exhausted = status.is_some_and(|s| s.code == i32::from(Code::ResourceExhausted));
        if exhausted {
            self.postpone(id, now);
            return Settled::Nothing;
        }
        // Only a message that was sent can be answered; for any other id the agent made it up.
        let was_sent = |progress: &Progress| *progress != Progress::Queued;
        if let Some(at) =
            self.configurations.iter().position(|c| c.id == id && was_sent(&c.progress))
        {
            self.configurations.remove(at);
            return Settled::Configuration;
        }
        if let Some(at) = self.requests.iter().position(|r| r.id == id && was_sent(&r.progress)) {
            self.requests.remove(at);
            return Settled::Request;
        }
        Settled::Nothing
    }

    fn postpone(&mut self, id: &str, now: Instant) {
        let all = self
            .configurations
            .iter_mut()
            .map(|configuration| (&configuration.id, &mut configuration.progress))
            .chain(self.requests.iter_mut().map(|request| (&request.id, &mut request.progress)));
        for (known, progress) in all {
            if let Progress::Sent { resend_at, sendings, unanswered } = progress
                && known == id
            {
                *resend_at = now + busy_pause(*sendings);
                // The agent answers and is only busy: the stream is of use.
                *unanswered = 0;
            }
        }
    }
}

enum Step {
    Send,
    Wait(Instant),
    GiveUp,
}

/// Decides whether one message is due, and marks it as sent if it is.
fn advance(progress: &mut Progress, now: Instant, resend: Resend) -> Step {
    let (sendings, unanswered) = match *progress {
        Progress::Queued | Progress::Interrupted => (0, 0),
        Progress::Sent { resend_at, .. } if now < resend_at => return Step::Wait(resend_at),
        Progress::Sent { unanswered, .. } if unanswered >= resend.attempts => return Step::GiveUp,
        Progress::Sent { sendings, unanswered, .. } => (sendings, unanswered),
    };
    *progress = Progress::Sent {
        resend_at: now + resend.after,
        sendings: sendings.saturating_add(1),
        unanswered: unanswered + 1,
    };
    Step::Send
}

fn frame(id: &str, body: MessageBody) -> StreamAgentMessagesResponse {
    StreamAgentMessagesResponse {
        message_id: id.to_owned(),
        r#type: Some(stream_agent_messages_response::Type::MessageBody(body)),
    }
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane::configure_plugin_states::{
        Action, ConfigurePlugin, Plugin,
    };

    use super::*;

    const RESEND: Resend = Resend { after: Duration::from_secs(2), attempts: 3 };

    fn install(name: &str, revision: &str) -> ConfigurePluginStates {
        ConfigurePluginStates {
            configure_plugins: vec![ConfigurePlugin {
                action: Action::Install.into(),
                plugin: Some(Plugin {
                    name: name.to_owned(),
                    revision_id: revision.to_owned(),
                    ..Plugin::default()
                }),
                manifest: None,
            }],
        }
    }

    #[track_caller]
    fn sent_id(due: Due) -> String {
        match due {
            Due::Send(frame) => frame.message_id,
            other => panic!("expected something to send, got {other:?}"),
        }
    }

    #[test]
    fn the_next_configuration_waits_for_the_answer_to_the_one_before() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.configure("1".into(), install("a", "1"));
        outbox.configure("2".into(), install("b", "1"));
        assert_eq!(sent_id(outbox.due(now, RESEND)), "1");
        assert_eq!(outbox.due(now, RESEND), Due::At(now + RESEND.after));
        assert_eq!(outbox.answered("1", None, now), Settled::Configuration);
        assert_eq!(sent_id(outbox.due(now, RESEND)), "2");
    }

    #[test]
    fn a_request_does_not_wait_for_a_configuration() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.configure("1".into(), install("a", "1"));
        assert_eq!(sent_id(outbox.due(now, RESEND)), "1");
        outbox.request("2".into(), MessageBody::default()).expect("there is room");
        assert_eq!(sent_id(outbox.due(now, RESEND)), "2");
    }

    #[test]
    fn an_unanswered_message_is_resent_with_its_id_and_then_given_up() {
        let mut now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.configure("1".into(), install("a", "1"));
        for _ in 0..RESEND.attempts {
            assert_eq!(sent_id(outbox.due(now, RESEND)), "1");
            now += RESEND.after;
        }
        assert_eq!(outbox.due(now, RESEND), Due::GiveUp);
        outbox.interrupt();
        assert_eq!(sent_id(outbox.due(now, RESEND)), "1");
    }

    #[test]
    fn resource_exhausted_brings_a_later_resend() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.configure("1".into(), install("a", "1"));
        assert_eq!(sent_id(outbox.due(now, RESEND)), "1");
        let exhausted = rpc::Status { code: 8, ..rpc::Status::default() };
        assert_eq!(outbox.answered("1", Some(&exhausted), now), Settled::Nothing);
        assert_eq!(outbox.due(now, RESEND), Due::At(now + busy_pause(1)));
        assert_eq!(sent_id(outbox.due(now + busy_pause(1), RESEND)), "1");
    }

    #[test]
    fn an_agent_that_stays_busy_is_asked_ever_more_slowly_and_never_given_up() {
        let mut now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.configure("1".into(), install("a", "1"));
        let exhausted = rpc::Status { code: 8, ..rpc::Status::default() };
        let mut pause = Duration::ZERO;
        for _ in 0..100 {
            assert_eq!(sent_id(outbox.due(now, RESEND)), "1");
            outbox.answered("1", Some(&exhausted), now);
            let Due::At(at) = outbox.due(now, RESEND) else { panic!("it waits") };
            assert!(at - now >= pause);
            pause = at - now;
            now = at;
        }
        assert_eq!(pause, busy_pause(u32::MAX));
    }

    #[test]
    fn only_a_configuration_that_was_never_sent_is_superseded() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.configure("1".into(), install("a", "1"));
        assert_eq!(sent_id(outbox.due(now, RESEND)), "1");
        assert!(outbox.configure("2".into(), install("a", "2")).is_empty());
        assert_eq!(outbox.configure("3".into(), install("a", "3")), ["2"]);
        assert_eq!(outbox.answered("1", None, now), Settled::Configuration);
        assert_eq!(sent_id(outbox.due(now, RESEND)), "3");
    }

    #[test]
    fn an_answer_to_something_never_sent_settles_nothing() {
        let now = Instant::now();
        let mut outbox = Outbox::default();
        outbox.configure("1".into(), install("a", "1"));
        assert_eq!(outbox.answered("1", None, now), Settled::Nothing);
        assert_eq!(outbox.answered("unknown", None, now), Settled::Nothing);
        assert!(!outbox.is_empty());
    }
}
