//! The API itself: who asks, whether it may, and what becomes of it; the same for every adapter.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use guest_fleet_core::time::Zones;
use jiff::Timestamp;
use prost::Message;
use prost_reflect::DynamicMessage;
use tokio::sync::Semaphore;
use tonic::Code;

use super::calls::{Call, Reach, Rpc};
use super::error::ApiError;
use super::once::{self, Key};
use crate::cli::context::{Caller, Context, Output};
use crate::cli::sees::Sees;
use crate::identity::{Authenticate, Principal, Refusal};
use crate::ledger::SharedLedger;
use crate::observe::figures::Figures;

/// How long a call may take.
const DEADLINE: Duration = Duration::from_secs(30);
/// Most watches at once.
const WATCHES: usize = 256;

/// The API; clones are the same.
#[derive(Clone)]
pub struct Api {
    pub(super) inner: Arc<Inner>,
    pub(super) figures: Arc<Figures>,
}

pub(super) struct Inner {
    pub(super) ledger: SharedLedger,
    authenticate: Arc<dyn Authenticate>,
    pub(super) zones: Arc<dyn Zones + Send + Sync>,
    pub(super) clock: fn() -> Timestamp,
    pub(super) watches: Arc<Semaphore>,
}

// === impl Api ===

impl Api {
    /// The API over a ledger.
    #[must_use]
    pub fn new(
        ledger: SharedLedger,
        authenticate: Arc<dyn Authenticate>,
        zones: Arc<dyn Zones + Send + Sync>,
    ) -> Self {
        Self::at(ledger, authenticate, zones, Timestamp::now)
    }

    /// The same with another clock.
    pub(crate) fn at(
        ledger: SharedLedger,
        authenticate: Arc<dyn Authenticate>,
        zones: Arc<dyn Zones + Send + Sync>,
        clock: fn() -> Timestamp,
    ) -> Self {
        let watches = Arc::new(Semaphore::new(WATCHES));
        let inner = Arc::new(Inner { ledger, authenticate, zones, clock, watches });
        Self { inner, figures: Arc::default() }
    }

    /// Counts calls here.
    #[must_use]
    pub fn counting(self, figures: Arc<Figures>) -> Self {
        Self { figures, ..self }
    }

    /// Who has this bearer token, with the address that the request came from.
    ///
    /// # Errors
    /// There is no token, or it is nobody's.
    pub async fn authenticate(
        &self,
        bearer: Option<&str>,
        from: Option<SocketAddr>,
    ) -> Result<Principal, ApiError> {
        let found = self.principal(bearer).await;
        let mut principal = found.inspect_err(|error| self.figures.api_refused(error.code))?;
        if let Some(from) = from {
            principal.from = format!("{} from {}", principal.from, from.ip());
        }
        Ok(principal)
    }

    async fn principal(&self, bearer: Option<&str>) -> Result<Principal, ApiError> {
        let bearer = bearer.ok_or_else(ApiError::no_token)?;
        let found = self.inner.authenticate.authenticate(bearer).await;
        found.map_err(|refusal| match refusal {
            Refusal::Unavailable(cause) => {
                tracing::warn!(%cause, "who sends a request could not be found out");
                ApiError::unavailable("it cannot be found out whose the token is")
            }
            refusal => ApiError::unauthenticated(&refusal.to_string()),
        })
    }

    /// Asks or changes something, as a person or a program that was authenticated.
    ///
    /// # Errors
    /// The request is not valid, the principal may not do that, or it did not happen.
    pub async fn ask<Q, A>(
        &self,
        principal: &Principal,
        rpc: Rpc,
        request: &Q,
    ) -> Result<A, ApiError>
    where
        Q: Message,
        A: Message + Default,
    {
        let answer = self.call(principal, rpc, request.encode_to_vec().into()).await?;
        answer.transcode_to().map_err(|error| ApiError::internal(&error))
    }

    /// The same with the request as bytes, and the answer as a message of which the type is known by its descriptor.
    pub(crate) async fn call(
        &self,
        principal: &Principal,
        rpc: Rpc,
        request: Bytes,
    ) -> Result<DynamicMessage, ApiError> {
        let (call, began) = (rpc.call(), Instant::now());
        let answer = self.answer(principal, call, request).await;
        let code = answer.as_ref().map_or_else(|error| error.code, |_| Code::Ok);
        self.figures.api_call(call.name, call.kind.name(), code, began.elapsed());
        answer
    }

    async fn answer(
        &self,
        principal: &Principal,
        call: &'static Call,
        request: Bytes,
    ) -> Result<DynamicMessage, ApiError> {
        let sees = may(principal, call)?;
        let carried_out = tokio::time::timeout(DEADLINE, async {
            let key = Key::of(principal, call, &request)?;
            let (mut remarks, mut out, mut input) = (Vec::new(), std::io::sink(), std::io::empty());
            let mut context = Context {
                ledger: &*self.inner.ledger,
                out: &mut out,
                remarks: &mut remarks,
                input: &mut input,
                output: Output::Text,
                caller: Caller { who: principal.name.clone(), from: principal.from.clone() },
                now: (self.inner.clock)(),
                zones: &*self.inner.zones,
                sees,
                once: key.as_ref().map(Key::id),
            };
            once::carry_out(call, key.as_ref(), principal, &mut context, request).await
        });
        carried_out.await.unwrap_or_else(|_elapsed| Err(ApiError::too_late(call)))
    }
}

/// What a principal sees in a call, if it may make it.
pub(super) fn may(principal: &Principal, call: &Call) -> Result<Sees, ApiError> {
    let is_allowed = match call.reach {
        Reach::Caller => true,
        Reach::Scope => principal.best_role() >= Some(call.role),
        Reach::Fleet => principal.may_everywhere(call.role),
    };
    if !is_allowed {
        return Err(ApiError::denied(call));
    }
    Ok(Sees::Within { grants: principal.grants.clone(), needed: call.role })
}
