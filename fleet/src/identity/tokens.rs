//! API tokens: by which programs use the API.
//!
//! A token has a role within a scope, and an end. Its secret is shown once and kept as a digest.

use std::time::{Duration, SystemTime};

use prost::Message;
use thiserror::Error;

use super::credential::Credential;
use super::role::Grant;
use super::stored::words;
use crate::configuration::Configuration;
use crate::configuration::change::{Becomes, ChangeError, Changed, Decision, Edit, change};
use crate::declarations::values::{NAME_FIX, check_name};
use crate::ledger::Ledger;
use crate::records::access::{ApiTokenRecord, api_token_key};
use crate::records::{Versioned, time};

pub use super::stored::{Standing, standing};

/// Most API tokens of a fleet.
pub const API_TOKENS: usize = 1000;
/// Longest life of a token.
pub const LIFE: Duration = Duration::from_secs(366 * 24 * 3600);

/// A token to be made.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its name: small letters, digits and hyphens.
    pub name: String,
    /// What it may do.
    pub grant: Grant,
    /// How long it may be used.
    pub life: Duration,
}

/// Why a token is not made or revoked.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TokenError {
    /// The name is not valid.
    #[error("{0}: {NAME_FIX}")]
    Name(String),
    /// A token of this name is there.
    #[error(
        "there is an API token {0}: give this one another name, or revoke that one and wait for its end"
    )]
    Exists(String),
    /// No token has this name.
    #[error("there is no API token {0}; `guest-fleet access token list` lists them")]
    Absent(String),
    /// It would live too long, or not at all.
    #[error("an API token lives for at most {} days and at least a second", LIFE.as_secs() / 86400)]
    Life,
    /// There are too many.
    #[error(
        "there are {API_TOKENS} API tokens in force, and no more can be: revoke some with \
         `guest-fleet access token revoke`"
    )]
    TooMany,
}

/// Makes a token; answers its text, which is shown once.
///
/// # Errors
/// A value is out of its bounds, there is such a token, or the ledger did not take it.
pub async fn create(
    ledger: &dyn Ledger,
    decision: &Decision,
    new: &NewToken,
) -> Result<Changed<String>, ChangeError<TokenError>> {
    let now = SystemTime::from(decision.at);
    let refused = |error| Err(ChangeError::Refused(error));
    if let Err(reason) = check_name(&new.name) {
        return refused(TokenError::Name(reason));
    }
    if new.life < Duration::from_secs(1) || new.life > LIFE {
        return refused(TokenError::Life);
    }
    let credential = Credential::random(&new.name);
    let record = ApiTokenRecord {
        version: ApiTokenRecord::VERSION,
        name: new.name.clone(),
        digest: credential.digest(),
        grants: vec![new.grant.part()],
        ends: Some((now + new.life).into()),
        made_by: decision.who.clone(),
        made: Some(now.into()),
        revoked: None,
    };
    let key = api_token_key(&new.name);
    let edit = Edit {
        key: key.clone(),
        before: None,
        after: Some(in_words(&record)),
        record: Becomes::Bytes(record.encode_to_vec().into()),
    };
    change(ledger, decision, |configuration: &Configuration| {
        let access = configuration.access();
        // One that is over gives its name to the next. One that cannot be read may be of a newer program.
        let former = access.token(&new.name);
        let is_over = former.is_some_and(|it| standing(it, now) != Standing::InForce);
        if (former.is_some() || configuration.problem(&key).is_some()) && !is_over {
            return Err(TokenError::Exists(new.name.clone()));
        }
        let mut edits = vec![Edit { before: former.map(in_words), ..edit.clone() }];
        if former.is_none() && access.tokens().count() >= API_TOKENS {
            let over = |it: &&ApiTokenRecord| standing(it, now) != Standing::InForce;
            let oldest = access.tokens().filter(over).min_by_key(|it| time(it.ends));
            edits.push(removed(oldest.ok_or(TokenError::TooMany)?));
        }
        Ok((edits, credential.text()))
    })
    .await
}

/// Revokes a token. Answers what was changed, which is nothing where it was revoked before.
///
/// # Errors
/// There is no such token, or the ledger did not take it.
pub async fn revoke(
    ledger: &dyn Ledger,
    decision: &Decision,
    name: &str,
) -> Result<Changed<Vec<Edit>>, ChangeError<TokenError>> {
    let key = api_token_key(name);
    change(ledger, decision, |configuration: &Configuration| {
        let found = configuration.access().token(name);
        let edit = match (found, configuration.problem(&key)) {
            (Some(found), _) if found.revoked.is_some() => return Ok((Vec::new(), Vec::new())),
            (Some(found), _) => {
                let at = SystemTime::from(decision.at);
                let after = ApiTokenRecord { revoked: Some(at.into()), ..found.clone() };
                Edit {
                    key: key.clone(),
                    before: Some(in_words(found)),
                    after: Some("revoked".to_owned()),
                    record: Becomes::Bytes(after.encode_to_vec().into()),
                }
            }
            (None, Some(_)) => Edit {
                key: key.clone(),
                before: Some("a record that cannot be read".to_owned()),
                after: None,
                record: Becomes::Deleted,
            },
            (None, None) => return Err(TokenError::Absent(name.to_owned())),
        };
        Ok((vec![edit.clone()], vec![edit]))
    })
    .await
}

fn removed(token: &ApiTokenRecord) -> Edit {
    Edit {
        key: api_token_key(&token.name),
        before: Some(in_words(token)),
        after: None,
        record: Becomes::Deleted,
    }
}

fn in_words(token: &ApiTokenRecord) -> String {
    let roles = words(&token.grants);
    let ends = token.ends.as_ref().and_then(|ends| jiff::Timestamp::from_second(ends.seconds).ok());
    let ends = ends.map_or_else(String::new, |ends| format!(", until {ends}"));
    let revoked = if token.revoked.is_some() { ", revoked" } else { "" };
    format!("{roles}{ends}{revoked}")
}
