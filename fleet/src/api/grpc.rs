//! The adapter of gRPC. The methods themselves are made from the table of calls.

use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use ::http::header::AUTHORIZATION;
use guest_agent_proto::fleet_api as pb;
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::Stream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::asked::Api;
use super::calls::{Rpc, with_calls};
use super::error::ApiError;
use crate::identity::Principal;

/// Where a request came from, as the listener found out.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct From(pub(crate) Option<SocketAddr>);

/// The service.
#[derive(Clone)]
pub(super) struct Service {
    api: Api,
}

/// The events of a watch.
pub(super) struct Events(mpsc::Receiver<Result<pb::WatchEvent, ApiError>>);

// === impl Service ===

impl Service {
    pub(super) fn new(api: Api) -> Self {
        Self { api }
    }

    /// Answers a call that has one answer.
    async fn unary<Q, A>(&self, rpc: Rpc, request: Request<Q>) -> Result<Response<A>, Status>
    where
        Q: Message,
        A: Message + Default,
    {
        let principal = self.principal(&request).await?;
        let answer = self.api.ask(&principal, rpc, request.get_ref()).await?;
        Ok(Response::new(answer))
    }

    /// Answers a watch.
    async fn events(&self, request: Request<pb::WatchRequest>) -> Result<Response<Events>, Status> {
        let principal = self.principal(&request).await?;
        let bearer = bearer(request.metadata()).unwrap_or_default().to_owned();
        let events = self.api.watch(principal, bearer, request.into_inner())?;
        Ok(Response::new(Events(events)))
    }

    async fn principal<Q>(&self, request: &Request<Q>) -> Result<Principal, Status> {
        let from = request.extensions().get::<From>().copied().unwrap_or_default();
        Ok(self.api.authenticate(bearer(request.metadata()), from.0).await?)
    }
}

fn bearer(metadata: &MetadataMap) -> Option<&str> {
    token(metadata.get(AUTHORIZATION.as_str())?.to_str().ok()?)
}

/// What follows `Bearer `.
pub(super) fn token(header: &str) -> Option<&str> {
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|token| !token.is_empty())
}

macro_rules! service {
    ($($name:ident $method:ident($request:ident) -> $answer:ident:
        $http:ident $path:literal, $role:ident $reach:ident $kind:ident;)*) => {
        #[tonic::async_trait]
        impl pb::fleet_server::Fleet for Service {
            type WatchStream = Events;

            $(async fn $method(
                &self,
                request: Request<pb::$request>,
            ) -> Result<Response<pb::$answer>, Status> {
                self.unary(Rpc::$name, request).await
            })*

            async fn watch(
                &self,
                request: Request<pb::WatchRequest>,
            ) -> Result<Response<Events>, Status> {
                self.events(request).await
            }
        }
    };
}

with_calls!(service);

// === impl Events ===

impl Stream for Events {
    type Item = Result<pb::WatchEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|event| event.map(|event| event.map_err(Status::from)))
    }
}
