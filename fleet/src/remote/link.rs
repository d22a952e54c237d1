//! Calls of the API of a server: each within a deadline, its answer within a bound, and the same request again where
//! the connection or the ledger behind it fails for a moment.
//!
//! What changes something has an idempotency key, so that it happens once however often it is sent.

use std::time::Duration;

use bytes::Bytes;
use guest_agent_observe_kit::otlp::Connection;
use http::uri::PathAndQuery;
use prost::Message;
use serde::de::DeserializeOwned;
use tonic::Request;
use tonic::client::Grpc;
use tonic::metadata::{Ascii, MetadataValue};

use super::codec::Plain;
use super::problem::{Problem, Sent};
use super::server::Server;
use crate::api::calls::{Call, Rpc};
use crate::api::wire;
use crate::chance::jittered;
use crate::cli::failure::Failure;

/// How long it may take to connect.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a call may take. A server ends its work after 30 seconds.
const CALL: Duration = Duration::from_secs(40);
/// How often a request is sent.
const ATTEMPTS: u32 = 3;
/// Longest wait before the second attempt; twice as long before the third.
const PAUSE: Duration = Duration::from_millis(500);
/// Largest answer, in bytes.
const ANSWER_BYTES: usize = 64 << 20;

/// A way to a server.
#[derive(Debug)]
pub struct Link {
    server: Server,
    connection: Option<Connection>,
}

// === impl Link ===

impl Link {
    /// A link to a server. Nothing is connected to before something is asked.
    #[must_use]
    pub fn new(server: Server) -> Self {
        Self { server, connection: None }
    }

    /// The document that the server answers to a request.
    ///
    /// # Errors
    /// The server cannot be reached, refuses the request, or its answer cannot be read.
    pub(super) async fn ask<D: DeserializeOwned>(
        &mut self,
        rpc: Rpc,
        request: &impl Message,
    ) -> Result<D, Failure> {
        let call = rpc.call();
        let answer = self.send(call, request.encode_to_vec().into()).await?;
        wire::document(answer, call.answer)
            .map_err(|error| Problem::Unread(error).failure(&self.server, call, Sent::Answered))
    }

    async fn send(&mut self, call: &Call, request: Bytes) -> Result<Bytes, Failure> {
        let mut sent = Sent::Never;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let problem = match self.connection().await {
                Ok(connection) => {
                    sent = Sent::PerhapsTaken;
                    match once(connection, &self.server.bearer, call, request.clone()).await {
                        Ok(answer) => return Ok(answer),
                        Err(problem) => problem,
                    }
                }
                Err(problem) => problem,
            };
            if attempt >= ATTEMPTS || !problem.passes() {
                return Err(problem.failure(&self.server, call, sent));
            }
            self.connection = None;
            tokio::time::sleep(jittered(PAUSE.saturating_mul(attempt))).await;
        }
    }

    async fn connection(&mut self) -> Result<Connection, Problem> {
        if let Some(connection) = &self.connection {
            return Ok(connection.clone());
        }
        let connecting = self.server.address.connect(self.server.ca.as_deref());
        let connecting = tokio::time::timeout(CONNECT, connecting);
        let connection = connecting.await.map_err(|_elapsed| Problem::ConnectTooSlow(CONNECT))?;
        let connection = connection.map_err(Problem::Connect)?;
        self.connection = Some(connection.clone());
        Ok(connection)
    }
}

async fn once(
    connection: Connection,
    bearer: &MetadataValue<Ascii>,
    call: &Call,
    request: Bytes,
) -> Result<Bytes, Problem> {
    let path = format!("/{}.Fleet/{}", wire::PACKAGE, call.name);
    let path = PathAndQuery::try_from(path).expect("names of calls are letters");
    let mut request = Request::new(request);
    request.metadata_mut().insert("authorization", bearer.clone());
    let answering = async {
        let mut client = Grpc::new(connection).max_decoding_message_size(ANSWER_BYTES);
        client.ready().await.map_err(Problem::Broken)?;
        let answer = client.unary(request, path, Plain).await;
        answer.map_err(|status| Problem::Refused(Box::new(status)))
    };
    let answer = tokio::time::timeout(CALL, answering).await;
    Ok(answer.map_err(|_elapsed| Problem::TooSlow(CALL))??.into_inner())
}
