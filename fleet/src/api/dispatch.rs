//! From a row of the table of calls to the function that answers it.

use bytes::Bytes;
use futures_util::future::BoxFuture;
use guest_agent_proto::fleet_api as pb;
use prost::Message;
use prost_reflect::DynamicMessage;

use super::calls::{Rpc, with_calls};
use super::error::ApiError;
use super::{answers, wire};
use crate::cli::context::Context;
use crate::identity::Principal;

macro_rules! dispatch {
    ($($name:ident $method:ident($request:ident) -> $answer:ident:
        $http:ident $path:literal, $role:ident $reach:ident $kind:ident;)*) => {
        /// Answers a call whose request was encoded.
        pub(super) fn answer<'a>(
            rpc: Rpc,
            principal: &'a Principal,
            context: &'a mut Context<'_>,
            request: Bytes,
        ) -> BoxFuture<'a, Result<DynamicMessage, ApiError>> {
            match rpc {
                $(Rpc::$name => Box::pin(async move {
                    let request = decoded::<pb::$request>(request)?;
                    let document = answers::$method(principal, context, request).await?;
                    wire::message(&document, stringify!($answer))
                        .map_err(|error| ApiError::internal(&error))
                }),)*
            }
        }
    };
}

with_calls!(dispatch);

fn decoded<M: Message + Default>(request: Bytes) -> Result<M, ApiError> {
    M::decode(request).map_err(|error| ApiError::unread(format!("it is no message: {error}")))
}
