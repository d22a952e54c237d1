//! Which call needs which level: the one place that says it, and the layer that holds calls to it.
//!
//! ```text
//!   connection ─► vet (a level at all?) ─► call ─► AccessLayer ─► the service
//!                                                    │   NEEDS: look, act, or look and more on request
//!                                                    └─► refused: PERMISSION_DENIED, with the group and the fix
//! ```
//!
//! Members of the looking group see what a visitor of the web console without a token sees: no log, no
//! last output, no configuration and no order. What plugins print may hold secrets, and no filter
//! knows which; a group that only looks may be that of a monitoring program.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Ready, ready};
use guest_agent_proto::{host, local};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::{Extensions, Status};
use tower::{Layer, Service};

use crate::api::last_output;
use crate::net::levels::{Level, Levels};
use crate::net::vetted::Caller;

/// What a call needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Needs {
    /// The level to look.
    Look,
    /// The level to look; the named part of the request needs the level to act, which the service asks
    /// for with [`require`].
    LookUnless(&'static str),
    /// The level to act.
    Act,
}

/// What each call of both services needs. A test compares this with the protocol.
const NEEDS: [(&str, &str, Needs); 22] = [
    (LOCAL, "GetStatus", Needs::Look),
    (LOCAL, "WatchStatus", Needs::Look),
    (LOCAL, "Explain", Needs::LookUnless("config")),
    (LOCAL, "Configure", Needs::Act),
    // It has the admission plugin work.
    (LOCAL, "AskAdmission", Needs::Act),
    (LOCAL, "PlaceArchive", Needs::Act),
    (LOCAL, "Restart", Needs::Act),
    (LOCAL, "Act", Needs::Act),
    // A plugin may do something for a question.
    (LOCAL, "Ask", Needs::Act),
    (LOCAL, "NotifyVmEvent", Needs::Act),
    (LOCAL, "StreamEvents", Needs::Look),
    // Who stopped or held a plugin, and why, is in the status as well.
    (LOCAL, "ListAudit", Needs::Look),
    // A plugin may print secrets.
    (LOCAL, "StreamLogs", Needs::Act),
    (LOCAL, "Examine", Needs::Look),
    (LOCAL, "Sweep", Needs::LookUnless("delete")),
    (LOCAL, "ForgetPlugin", Needs::Act),
    (LOCAL, "ClearQuarantine", Needs::Act),
    (REGISTRY, "List", Needs::Look),
    (REGISTRY, "Get", Needs::Look),
    (REGISTRY, "Wait", Needs::Look),
    (REGISTRY, "Watch", Needs::Look),
    (REGISTRY, "Dispense", Needs::Look),
];

const LOCAL: &str = local::local_agent_server::SERVICE_NAME;
const REGISTRY: &str = host::registry_server::SERVICE_NAME;

/// What stands in the place of last output.
const LEFT_OUT: &str = "its last output is shown to root and to agent.admin_group only";

/// Refuses calls of who lacks the level, and tells the service the level of the others.
#[derive(Clone, Debug)]
pub(super) struct AccessLayer(pub(super) Arc<Levels>);

/// A service behind an [`AccessLayer`].
#[derive(Clone, Debug)]
pub(super) struct Guarded<S> {
    service: S,
    levels: Arc<Levels>,
}

/// The name of a call, and the level that it needs at least. Nothing is known of a call that is not
/// listed, so it needs the higher one.
fn needed(path: &str) -> (&'static str, Level) {
    let parts = path.strip_prefix('/').and_then(|path| path.split_once('/'));
    let known = NEEDS.iter().find(|(service, call, _)| parts == Some((service, call)));
    match known {
        Some((_, call, Needs::Look | Needs::LookUnless(_))) => (call, Level::Look),
        Some((_, call, Needs::Act)) => (call, Level::Act),
        None => ("unknown", Level::Act),
    }
}

/// What a call may see: everything, unless it came over the socket with less.
pub(super) fn level(extensions: &Extensions) -> Level {
    extensions.get::<Granted>().map_or(Level::Act, |granted| granted.level)
}

/// Lets a call on whose request needs the level to act.
///
/// # Errors
/// PERMISSION_DENIED with the group and the fix.
pub(super) fn require(extensions: &Extensions, level: Level) -> Result<(), Status> {
    match extensions.get::<Granted>() {
        Some(granted) if granted.level < level => {
            Err(granted.levels.refuse(extensions.get::<Caller>(), granted.call, level))
        }
        Some(_) | None => Ok(()),
    }
}

/// The level of a call, as the layer found it.
#[derive(Clone, Debug)]
struct Granted {
    call: &'static str,
    level: Level,
    levels: Arc<Levels>,
}

/// A stream without what this level may not see.
pub(super) fn shown<T: Send + 'static>(
    stream: ReceiverStream<Result<T, Status>>,
    level: Level,
    hide: fn(&mut T),
) -> ReceiverStream<Result<T, Status>> {
    if level == Level::Act {
        return stream;
    }
    let (sender, receiver) = mpsc::channel(1);
    let mut whole = stream.into_inner();
    tokio::spawn(async move {
        loop {
            let item = tokio::select! {
                item = whole.recv() => item,
                () = sender.closed() => return,
            };
            let Some(mut item) = item else { return };
            if let Ok(item) = &mut item {
                hide(item);
            }
            if sender.send(item).await.is_err() {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// Takes out of a status what a looking caller may not see.
pub(super) fn hide_in_status(answer: &mut local::GetStatusResponse) {
    for plugin in &mut answer.plugins {
        last_output::leave_out_of_status(plugin, LEFT_OUT);
    }
}

/// Takes out of an explanation what a looking caller may not see.
pub(super) fn hide_in_answer(answer: &mut local::ExplainResponse) {
    last_output::leave_out_of_answer(answer, LEFT_OUT);
}

/// Takes out of an event what a looking caller may not see.
pub(super) fn hide_in_event(event: &mut local::Event) {
    last_output::leave_out_of_event(event, LEFT_OUT);
}

// === impl Levels ===

impl Levels {
    /// The answer to a call that its caller may not make; the log has it, too.
    fn refuse(&self, caller: Option<&Caller>, call: &str, needed: Level) -> Status {
        let why = caller.map_or_else(
            || "the kernel does not say who calls; try again".to_owned(),
            |caller| self.refusal(caller, needed),
        );
        let uid = caller.map(|caller| caller.uid);
        tracing::warn!(socket = "agent.sock", call, ?uid, reason = why, "refuses a call");
        Status::permission_denied(why)
    }
}

// === impl AccessLayer ===

impl<S> Layer<S> for AccessLayer {
    type Service = Guarded<S>;

    fn layer(&self, service: S) -> Guarded<S> {
        Guarded { service, levels: Arc::clone(&self.0) }
    }
}

// === impl Guarded ===

impl<S, B> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>, Error = Infallible>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Self::Response, Infallible>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<B>) -> Self::Future {
        let (call, needed) = needed(request.uri().path());
        let caller = request.extensions().get::<Caller>().cloned();
        let level = caller.as_ref().and_then(|caller| self.levels.of(caller));
        match level {
            Some(level) if level >= needed => {
                let levels = Arc::clone(&self.levels);
                request.extensions_mut().insert(Granted { call, level, levels });
                Either::Left(self.service.call(request))
            }
            Some(_) | None => {
                let refused = self.levels.refuse(caller.as_ref(), call, needed);
                Either::Right(ready(Ok(refused.into_http())))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The calls of a service, as its protocol has them.
    fn calls(proto: &str, service: &str) -> BTreeSet<String> {
        let name = service.rsplit('.').next().expect("a name");
        let body = proto.split(&format!("\nservice {name} {{")).nth(1).expect("the service");
        let body = body.split("\n}").next().expect("its end");
        let calls = body.lines().filter_map(|line| line.trim().strip_prefix("rpc "));
        calls.map(|call| call.split('(').next().expect("a name").to_owned()).collect()
    }

    #[test]
    fn every_call_of_the_protocol_is_classified_and_no_other() {
        let local = include_str!("../../../proto/proto/local.proto");
        let host = include_str!("../../../proto/proto/host.proto");
        for (service, proto) in [(LOCAL, local), (REGISTRY, host)] {
            let known: BTreeSet<String> = NEEDS
                .iter()
                .filter(|(of, _, _)| *of == service)
                .map(|(_, call, _)| (*call).to_owned())
                .collect();
            let calls = calls(proto, service);
            assert!(calls.len() >= 5, "the calls are found: {calls:?}");
            assert_eq!(known, calls, "{service}: say in NEEDS who may call");
        }
    }

    #[test]
    fn what_changes_something_needs_the_level_to_act() {
        for call in ["Configure", "Act", "Restart", "ForgetPlugin", "PlaceArchive", "StreamLogs"] {
            assert_eq!(needed(&format!("/{LOCAL}/{call}")), (call, Level::Act));
        }
        assert_eq!(needed(&format!("/{LOCAL}/GetStatus")).1, Level::Look);
        assert_eq!(needed(&format!("/{REGISTRY}/List")).1, Level::Look);
        for unknown in ["", "/", "//", "GetStatus", "/x/GetStatus", "/GetStatus"] {
            assert_eq!(needed(unknown), ("unknown", Level::Act), "{unknown:?}");
        }
    }

    #[test]
    fn a_call_that_did_not_come_over_the_socket_sees_everything() {
        assert_eq!(level(&Extensions::new()), Level::Act);
        require(&Extensions::new(), Level::Act).expect("the console has decided already");
    }

    #[tokio::test]
    async fn a_looking_follower_gets_events_without_last_output() {
        let (sender, receiver) = mpsc::channel(4);
        let details = format!("it crashed{}s3cr3t", guest_agent_actors::ports::LAST_OUTPUT);
        let event = local::Event { details, ..local::Event::default() };
        sender.send(Ok(event)).await.expect("there is room");
        drop(sender);
        let hidden = shown(ReceiverStream::new(receiver), Level::Look, hide_in_event);
        let events: Vec<_> = tokio_stream::StreamExt::collect(hidden).await;
        let [Ok(event)] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!(event.details, format!("it crashed{LEFT_OUT}"));
    }
}
