//! The gRPC service: wire types in, calls of `life`, wire types out.
//!
//! The only file that names the generated types. It decides which gRPC code an error becomes, and
//! makes no other decision.

use std::sync::Arc;
use std::time::Duration;

use guest_agent_proto::plugin_comm::guest_agent_plugin_server::GuestAgentPlugin;
use guest_agent_proto::plugin_comm::{
    ApplyRequest, ApplyResponse, GetStatusRequest, StartRequest, StartResponse, Status as Answer,
    StopRequest, StopResponse, apply_request, start_request,
};
use tonic::{Code, Request, Response, Status};

use crate::error::chain;
use crate::life::{CallError, Life};
use crate::{Cleanup, Plugin, PluginError, ServiceConfig, StartContext, StatusQuery, StopContext};

/// How long a stop may take when the request has no deadline: the agent's default for a manifest
/// without one.
const DEFAULT_STOP: Duration = Duration::from_secs(30);

/// The longest error text put on the wire. It travels in a header, percent-encoded, and clients
/// refuse headers of more than 16 KiB.
const MAX_MESSAGE: usize = 2048;

/// The service for one plugin.
pub(crate) struct Service<P> {
    life: Arc<Life<P>>,
}

// === impl Service ===

impl<P: Plugin> Service<P> {
    pub(crate) fn new(life: Arc<Life<P>>) -> Service<P> {
        Service { life }
    }
}

#[tonic::async_trait]
impl<P: Plugin> GuestAgentPlugin for Service<P> {
    async fn start(
        &self,
        request: Request<StartRequest>,
    ) -> Result<Response<StartResponse>, Status> {
        let StartRequest { config, service_config } = request.into_inner();
        let context = StartContext {
            state_directory: config.unwrap_or_default().state_directory_path.into(),
            config: service_config.map(ServiceConfig::from),
        };
        self.life.start(context).await.map_err(|error| refusal(&error))?;
        Ok(Response::new(StartResponse {}))
    }

    async fn stop(&self, request: Request<StopRequest>) -> Result<Response<StopResponse>, Status> {
        let StopRequest { cleanup, deadline } = request.into_inner();
        let context = StopContext {
            cleanup: if cleanup { Cleanup::Remove } else { Cleanup::Keep },
            // A zero, negative or absent deadline means that the sender set none.
            deadline: deadline
                .and_then(|deadline| Duration::try_from(deadline).ok())
                .filter(|deadline| !deadline.is_zero())
                .unwrap_or(DEFAULT_STOP),
        };
        self.life.stop(context).await.map_err(|error| refusal(&error))?;
        Ok(Response::new(StopResponse {}))
    }

    async fn get_status(
        &self,
        request: Request<GetStatusRequest>,
    ) -> Result<Response<Answer>, Status> {
        let query = match request.into_inner().data {
            None => StatusQuery::HealthCheck,
            Some(question) => StatusQuery::Question(question),
        };
        let status = self.life.status(query).await.map_err(|error| refusal(&error))?;
        Ok(Response::new(Answer { code: status.code, results: status.results }))
    }

    async fn apply(
        &self,
        request: Request<ApplyRequest>,
    ) -> Result<Response<ApplyResponse>, Status> {
        let config = request.into_inner().service_config.map(ServiceConfig::from);
        self.life.apply(config).await.map_err(|error| refusal(&error))?;
        Ok(Response::new(ApplyResponse {}))
    }
}

impl From<start_request::ServiceConfig> for ServiceConfig {
    fn from(config: start_request::ServiceConfig) -> ServiceConfig {
        match config {
            start_request::ServiceConfig::StringConfig(text) => ServiceConfig::String(text),
            start_request::ServiceConfig::StructConfig(fields) => ServiceConfig::Struct(fields),
        }
    }
}

impl From<apply_request::ServiceConfig> for ServiceConfig {
    fn from(config: apply_request::ServiceConfig) -> ServiceConfig {
        match config {
            apply_request::ServiceConfig::StringConfig(text) => ServiceConfig::String(text),
            apply_request::ServiceConfig::StructConfig(fields) => ServiceConfig::Struct(fields),
        }
    }
}

/// The status of a call that failed. It is UNIMPLEMENTED only when the plugin answered so, because
/// the agent then restarts the plugin. It is never UNKNOWN or UNAVAILABLE, because a broken
/// connection looks like these.
fn refusal(error: &CallError) -> Status {
    let code = match error {
        CallError::NotStarted | CallError::Stopping => Code::FailedPrecondition,
        CallError::Failed(PluginError::Unsupported) => Code::Unimplemented,
        CallError::Failed(PluginError::BadConfig { .. }) => Code::InvalidArgument,
        CallError::Failed(PluginError::Failed { .. }) | CallError::Panicked { .. } => {
            Code::Internal
        }
        CallError::Cancelled { .. } => Code::Aborted,
        CallError::TooLate { .. } => Code::DeadlineExceeded,
    };
    let mut message = chain(error);
    message.truncate(message.floor_char_boundary(MAX_MESSAGE));
    Status::new(code, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_texts_are_cut_to_what_fits_a_header() {
        let status = refusal(&CallError::Failed(PluginError::failed("ü".repeat(5000))));
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message().len(), MAX_MESSAGE);
    }

    #[test]
    fn a_refused_configuration_is_not_mistaken_for_an_unsupported_call() {
        let status = refusal(&CallError::Failed(PluginError::bad_config("no port")));
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(status.message(), "bad configuration: no port");
    }
}
