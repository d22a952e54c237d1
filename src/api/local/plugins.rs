//! `Ask` and `NotifyVmEvent`: the calls that reach plugins themselves.

use guest_agent_actors::messages::NotifyVm;
use guest_agent_actors::model::vm_event::VmEvent;
use guest_agent_actors::ports::RpcError;
use guest_agent_proto::local;
use tonic::Status;

use super::reach::{LocalApi, parse_name, unknown};
use crate::api::outcome::plugin_status;

pub(super) async fn ask(
    api: &LocalApi,
    request: local::AskRequest,
) -> Result<local::AskResponse, Status> {
    const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);
    let local::AskRequest { name, data } = request;
    let name = parse_name(&name)?;
    let plugins = api.list().await?;
    let listed = plugins
        .iter()
        .find(|listed| listed.view.name == name)
        .ok_or_else(|| unknown(name.as_str()))?;
    let endpoint =
        listed.view.endpoint.as_ref().ok_or_else(|| {
            Status::failed_precondition(format!("the plugin {name} is not running"))
        })?;
    let answer = match data {
        Some(data) => api.rpc.ask(endpoint, data).await,
        None => api.rpc.health(endpoint, TIMEOUT).await,
    };
    let health = answer.map_err(|error| match error {
        RpcError::TimedOut(_) => Status::deadline_exceeded(error.to_string()),
        // Not UNIMPLEMENTED, which would say that it is this agent that does not know the call.
        RpcError::Unimplemented => Status::out_of_range(error.to_string()),
        RpcError::Unreachable(_) => Status::aborted(error.to_string()),
        RpcError::Refused { .. } => Status::failed_precondition(error.to_string()),
    })?;
    Ok(local::AskResponse { code: health.code, results: health.results })
}

pub(super) async fn notify_vm_event(
    api: &LocalApi,
    name: &str,
) -> Result<local::NotifyVmEventResponse, Status> {
    let event = VmEvent::parse(name).ok_or_else(|| {
        Status::invalid_argument(
            "the event is not known; startup, shutdown or specialize is expected",
        )
    })?;
    let told = api
        .vm_events
        .send(NotifyVm::of(event))
        .await
        .map_err(|_| Status::unavailable("the agent is stopping"))?
        .map_err(|error| Status::aborted(error.to_string()))?;
    let results = told.into_iter().map(|told| {
        let (status, message) = plugin_status(&told.outcome);
        let plugin = told.plugin.as_str().to_owned();
        local::NotifiedPlugin { plugin, status, message }
    });
    Ok(local::NotifyVmEventResponse { results: results.collect() })
}
