//! Changes that happen once, however often they are asked for.
//!
//! ```text
//!   who, key ─► first half ─┐
//!   call, request ─► second ┴─► id of the audit entry ─ is there? ─ no ──► carry out, under this id
//!                                                         ├─ yes ─► what the entry says was changed
//!                                                         └─ another second half ─► the key was used for something else
//! ```
//!
//! The id is written in the same batch as the change, so there is no moment at which one is there without the other.

use bytes::Bytes;
use prost_reflect::DynamicMessage;
use sha2::{Digest, Sha256};
use tonic::Code;

use super::calls::{Call, Kind, Rpc};
use super::error::ApiError;
use super::{dispatch, wire};
use crate::cli::context::Context;
use crate::cli::document::{ChangeJson, ChangeKind, EditJson, parts};
use crate::cli::failure::Failure;
use crate::configuration::audit;
use crate::hex::hex;
use crate::identity::Principal;
use crate::records::audit::AuditRecord;

/// Longest key, in bytes.
const KEY_BYTES: usize = 128;
/// Digits of each half of an id.
const DIGITS: usize = 32;
/// Number of the field that has the key.
const FIELD: u32 = 15;

/// What names a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Key {
    who_and_key: String,
    what: String,
}

// === impl Key ===

impl Key {
    /// The key of a request that changes something; `None` where it has none.
    pub(super) fn of(
        principal: &Principal,
        call: &Call,
        request: &Bytes,
    ) -> Result<Option<Self>, ApiError> {
        if call.kind == Kind::Look {
            return Ok(None);
        }
        let descriptor = wire::descriptor(call.request).map_err(|it| ApiError::internal(&it))?;
        let read = DynamicMessage::decode(descriptor, request.clone());
        let mut read = read.map_err(|it| ApiError::unread(format!("it is no message: {it}")))?;
        let key = read.get_field_by_number(FIELD);
        let key = key.and_then(|key| key.as_str().map(str::to_owned)).unwrap_or_default();
        if key.is_empty() {
            return Ok(None);
        }
        if key.len() > KEY_BYTES || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            let problem = format!("it is not 1 to {KEY_BYTES} letters, digits and signs");
            return Err(ApiError::field("idempotency_key", problem, "send a UUID"));
        }
        read.clear_field_by_number(FIELD);
        // The JSON form is the same for the same request, in whatever order its fields were encoded.
        let same = wire::canonical(&read).map_err(|error| ApiError::internal(&error))?;
        let half = |parts: [&[u8]; 2]| {
            let mut digest = Sha256::new();
            for part in parts {
                digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
                digest.update(part);
            }
            hex(&digest.finalize()).chars().take(DIGITS).collect::<String>()
        };
        Ok(Some(Self {
            who_and_key: half([principal.name.as_bytes(), key.as_bytes()]),
            what: half([call.name.as_bytes(), &same]),
        }))
    }

    /// The id of the entry.
    pub(super) fn id(&self) -> String {
        format!("{}{}", self.prefix(), self.what)
    }

    fn prefix(&self) -> String {
        format!("api/{}/", self.who_and_key)
    }
}

/// Carries a request out, or says what an earlier one with its key did.
pub(super) async fn carry_out(
    call: &'static Call,
    key: Option<&Key>,
    principal: &Principal,
    context: &mut Context<'_>,
    request: Bytes,
) -> Result<DynamicMessage, ApiError> {
    let Some(key) = key else {
        return dispatch::answer(call.rpc, principal, context, request).await;
    };
    if let Some(entry) = earlier(key, context).await? {
        return again(call, &entry, principal, context, request).await;
    }
    let done = dispatch::answer(call.rpc, principal, context, request.clone()).await;
    match done {
        // The same request came twice at one time, and the other one was faster.
        Err(error) if error.code == Code::Aborted => match earlier(key, context).await? {
            Some(entry) => again(call, &entry, principal, context, request).await,
            None => Err(error),
        },
        done => done,
    }
}

async fn earlier(key: &Key, context: &Context<'_>) -> Result<Option<AuditRecord>, ApiError> {
    let found = audit::of_id(context.ledger, &key.prefix()).await.map_err(Failure::from)?;
    match found {
        Some(entry) if entry.id != key.id() => {
            let problem = "another request was sent with it";
            Err(ApiError::field("idempotency_key", problem, "send a new key with a new request"))
        }
        found => Ok(found),
    }
}

/// What a request did that was carried out before.
async fn again(
    call: &'static Call,
    entry: &AuditRecord,
    principal: &Principal,
    context: &mut Context<'_>,
    request: Bytes,
) -> Result<DynamicMessage, ApiError> {
    if call.rpc == Rpc::CreateToken {
        let fix = "revoke it and make another one: its text was in one answer alone";
        return Err(ApiError::new(Code::AlreadyExists, "the token was made already", fix));
    }
    // It may have come no further than its entry. Where others changed the same since then, theirs stays.
    if call.kind == Kind::Intent && !is_overtaken(entry, context).await? {
        dispatch::answer(call.rpc, principal, context, request).await?;
    }
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let changes = entry.changes.iter().map(|change| {
        let (kind, name) = parts(&change.key);
        let (before, after) = (text(&change.before), text(&change.after));
        let change = match (&before, &after) {
            (_, None) => ChangeKind::Deleted,
            (Some(_), _) => ChangeKind::Replaced,
            (None, _) => ChangeKind::Created,
        };
        EditJson { after, before, change, kind, name }
    });
    let document = ChangeJson {
        changes: changes.collect(),
        unchanged: 0,
        ..ChangeJson::of(Some(entry.number), &[])
    };
    wire::message(&document, call.answer).map_err(|error| ApiError::internal(&error))
}

/// Whether a newer entry is about one of the same records.
async fn is_overtaken(entry: &AuditRecord, context: &Context<'_>) -> Result<bool, ApiError> {
    let newest = audit::newest(context.ledger, audit::REMEMBERED).await.map_err(Failure::from)?;
    let newer = newest.iter().take_while(|it| it.number > entry.number);
    let is_about = |key: &str| entry.changes.iter().any(|change| change.key == key);
    Ok(newer.flat_map(|it| &it.changes).any(|change| is_about(&change.key)))
}
