//! Answers requests about the registry from its view, without waiting for the registry's actor.

use std::time::Duration;

use guest_agent_actors::model::id::{PluginName, Process};
use guest_agent_actors::registry::catalogue::Filter;
use guest_agent_actors::registry::entry::{Instance, Kind, Name};
use guest_agent_actors::registry::view::RegistryView;
use guest_agent_proto::host;
use guest_agent_proto::host::registry_server::Registry;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use crate::api::registry::call_permits::CallPermits;
use crate::api::registry::convert::{parse, parse_some, refused};

pub(crate) mod call_permits;
pub(crate) mod convert;

/// A plugin that calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) plugin: PluginName,
    /// Its process. The one that calls may be a helper of it.
    pub(crate) process: Process,
    /// The user of the process that connected, as the kernel says.
    pub(crate) uid: u32,
    /// Its group, as the kernel says.
    pub(crate) gid: u32,
}

/// Wait where none is named, and the longest there is.
const USUAL_WAIT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_secs(3600);

/// Changes on their way to one watcher. A watcher that does not read them falls behind, and gets a
/// snapshot when it reads again.
const STREAM_BUFFER: usize = 16;

/// Serves `Registry`, on whichever socket.
#[derive(Clone, Debug)]
pub struct RegistryService {
    view: RegistryView,
    permits: CallPermits,
    ending: CancellationToken,
}

impl RegistryService {
    pub(crate) fn new(view: RegistryView, ending: CancellationToken) -> Self {
        Self { view, permits: CallPermits::default(), ending }
    }

    fn find(&self, which: &Which) -> Result<host::Entry, Status> {
        let found = self.view.find(&which.kind, &which.name, which.instance.as_ref());
        Ok(convert::entry(&*found.map_err(|refusal| refused(&refusal))?))
    }
}

/// Which entry is meant.
struct Which {
    kind: Kind,
    name: Name,
    instance: Option<Instance>,
}

impl Which {
    fn parse(kind: &str, name: &str, instance: &str) -> Result<Self, Status> {
        Ok(Self { kind: parse(kind)?, name: parse(name)?, instance: parse_some(instance)? })
    }
}

fn stopping() -> Status {
    Status::unavailable("the agent is stopping; connect again")
}

/// The plugin that calls; `None` on the agent's own socket.
fn plugin<T>(request: &Request<T>) -> Option<PluginName> {
    request.extensions().get::<Caller>().map(|caller| caller.plugin.clone())
}

#[tonic::async_trait]
impl Registry for RegistryService {
    type WatchStream = ReceiverStream<Result<host::WatchResponse, Status>>;

    async fn list(
        &self,
        request: Request<host::ListRequest>,
    ) -> Result<Response<host::ListResponse>, Status> {
        let host::ListRequest { r#type, all_instances } = request.into_inner();
        let filter = Filter { kind: parse_some(&r#type)?, name: None };
        Ok(Response::new(self.view.look(|catalogue| {
            let entries = if all_instances {
                catalogue.entries(&filter).map(|it| convert::entry(it)).collect()
            } else {
                catalogue.current(&filter).map(|it| convert::entry(it)).collect()
            };
            host::ListResponse { entries, sequence: catalogue.sequence() }
        })))
    }

    async fn get(
        &self,
        request: Request<host::GetRequest>,
    ) -> Result<Response<host::GetResponse>, Status> {
        let host::GetRequest { r#type, name, instance } = request.into_inner();
        let entry = self.find(&Which::parse(&r#type, &name, &instance)?)?;
        Ok(Response::new(host::GetResponse { entry: Some(entry) }))
    }

    async fn wait(
        &self,
        request: Request<host::WaitRequest>,
    ) -> Result<Response<host::WaitResponse>, Status> {
        let _permit = self.permits.take(plugin(&request))?;
        let host::WaitRequest { r#type, name, instance, timeout_ms } = request.into_inner();
        let Which { kind, name, instance } = Which::parse(&r#type, &name, &instance)?;
        let patience = match timeout_ms {
            0 => USUAL_WAIT,
            milliseconds => Duration::from_millis(milliseconds).min(LONGEST_WAIT),
        };
        let waiting = self.view.wait(&kind, &name, instance.as_ref());
        let waited = tokio::select! {
            waited = tokio::time::timeout(patience, waiting) => waited,
            () = self.ending.cancelled() => return Err(stopping()),
        };
        let entry = waited.map_err(|_| {
            let seconds = patience.as_secs_f32();
            Status::deadline_exceeded(format!(
                "no {kind} of the name {name} was registered and answered within {seconds}s"
            ))
        })?;
        let entry = convert::entry(&*entry.map_err(|_| stopping())?);
        Ok(Response::new(host::WaitResponse { entry: Some(entry) }))
    }

    async fn watch(
        &self,
        request: Request<host::WatchRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let permit = self.permits.take(plugin(&request))?;
        let host::WatchRequest { r#type, name } = request.into_inner();
        let filter = Filter { kind: parse_some(&r#type)?, name: parse_some(&name)? };
        let mut watcher = self.view.watch(filter);
        let ending = self.ending.clone();
        let (sender, receiver) = mpsc::channel(STREAM_BUFFER);
        tokio::spawn(async move {
            let _permit = permit;
            loop {
                let told = tokio::select! {
                    told = watcher.next() => told,
                    () = sender.closed() => return,
                    () = ending.cancelled() => break,
                };
                let Ok(told) = told else { break };
                let sending = sender.send(Ok(convert::told(&told)));
                tokio::select! {
                    sent = sending => if sent.is_err() { return },
                    () = ending.cancelled() => break,
                }
            }
            // A watcher with room in its buffer gets the status; the others see that the stream
            // ends.
            drop(sender.try_send(Err(stopping())));
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn dispense(
        &self,
        request: Request<host::DispenseRequest>,
    ) -> Result<Response<host::DispenseResponse>, Status> {
        let host::DispenseRequest { r#type, name, instance } = request.into_inner();
        let entry = self.find(&Which::parse(&r#type, &name, &instance)?)?;
        let socket = entry.offer.as_ref().map(|offer| offer.socket_path.as_str());
        let target = format!("unix:{}", socket.unwrap_or_default());
        Ok(Response::new(host::DispenseResponse { target, entry: Some(entry) }))
    }
}
