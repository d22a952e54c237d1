//! Bindings: which roles persons and groups have.
//!
//! A person has what is bound to its name, and what is bound to the groups that the identity provider
//! says of it.

use prost::Message;
use thiserror::Error;

use super::role::Grant;
use super::stored::words;
use crate::configuration::Configuration;
use crate::configuration::change::{Becomes, ChangeError, Changed, Decision, Edit, change};
use crate::ledger::Ledger;
use crate::records::Versioned;
use crate::records::access::{BindingRecord, RoleGrantPart, Subject};

/// Most persons and groups with a role.
pub const SUBJECTS: usize = 1000;
/// Most scopes of one person or group.
pub const SCOPES: usize = 32;
/// Longest name of a person or a group, in bytes.
pub const NAME_BYTES: usize = 128;

/// Why a binding is not changed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BindingError {
    /// The name is not valid.
    #[error(
        "`{}` is not a name: write 1 to {NAME_BYTES} bytes without control characters, as the identity provider \
         says it", .0.escape_debug()
    )]
    Name(String),
    /// Nothing is bound to it.
    #[error("{0} has no such role; `guest-fleet access list` lists who has one")]
    Absent(Subject),
    /// The record cannot be read.
    #[error(
        "the record of {0} cannot be read: remove all of its roles with `guest-fleet access revoke`, then grant them \
         again"
    )]
    Damaged(Subject),
    /// There are too many.
    #[error("{SUBJECTS} persons and groups have a role, and no more can: grant roles to groups")]
    TooMany,
    /// It has too many.
    #[error("{0} has roles in {SCOPES} scopes, and no more can be: make the scopes wider")]
    TooManyScopes(Subject),
}

/// Grants a role. Another role in the same scope is replaced.
///
/// # Errors
/// See [`BindingError`]; or the ledger did not take it.
pub async fn grant(
    ledger: &dyn Ledger,
    decision: &Decision,
    subject: &Subject,
    grant: &Grant,
) -> Result<Changed<Vec<Edit>>, ChangeError<BindingError>> {
    check(subject).map_err(ChangeError::Refused)?;
    let part = grant.part();
    change(ledger, decision, |configuration: &Configuration| {
        let access = configuration.access();
        let before = match access.binding(subject) {
            Some(found) => found.clone(),
            None if configuration.problem(&subject.key()).is_some() => {
                return Err(BindingError::Damaged(subject.clone()));
            }
            None if access.bindings().count() >= SUBJECTS => return Err(BindingError::TooMany),
            None => nothing(subject),
        };
        let mut grants = before.grants.clone();
        match grants.iter().position(|known| known.scope == part.scope) {
            Some(at) => grants[at] = part.clone(),
            None if grants.len() >= SCOPES => {
                return Err(BindingError::TooManyScopes(subject.clone()));
            }
            None => grants.push(part.clone()),
        }
        Ok(edits(subject, &before, grants))
    })
    .await
}

/// Takes a role away: that in one scope, or all of them.
///
/// # Errors
/// See [`BindingError`]; or the ledger did not take it.
pub async fn revoke(
    ledger: &dyn Ledger,
    decision: &Decision,
    subject: &Subject,
    scope: Option<&str>,
) -> Result<Changed<Vec<Edit>>, ChangeError<BindingError>> {
    change(ledger, decision, |configuration: &Configuration| {
        let absent = || BindingError::Absent(subject.clone());
        let Some(before) = configuration.access().binding(subject) else {
            let is_damaged = configuration.problem(&subject.key()).is_some();
            if !is_damaged || scope.is_some() {
                return Err(if is_damaged {
                    BindingError::Damaged(subject.clone())
                } else {
                    absent()
                });
            }
            let edit = Edit {
                key: subject.key(),
                before: Some("a record that cannot be read".to_owned()),
                after: None,
                record: Becomes::Deleted,
            };
            return Ok((vec![edit.clone()], vec![edit]));
        };
        let stays = |part: &&RoleGrantPart| scope.is_some_and(|scope| part.scope != scope.trim());
        let grants: Vec<RoleGrantPart> = before.grants.iter().filter(stays).cloned().collect();
        if grants.len() == before.grants.len() && scope.is_some() {
            return Err(absent());
        }
        Ok(edits(subject, before, grants))
    })
    .await
}

fn nothing(subject: &Subject) -> BindingRecord {
    BindingRecord {
        version: BindingRecord::VERSION,
        name: subject.name().to_owned(),
        is_group: subject.is_group(),
        grants: Vec::new(),
    }
}

fn edits(
    subject: &Subject,
    before: &BindingRecord,
    grants: Vec<RoleGrantPart>,
) -> (Vec<Edit>, Vec<Edit>) {
    if before.grants == grants {
        return (Vec::new(), Vec::new());
    }
    let some = |grants: &[RoleGrantPart]| (!grants.is_empty()).then(|| words(grants));
    let (was, is) = (some(&before.grants), some(&grants));
    let record = match is {
        None => Becomes::Deleted,
        Some(_) => {
            let after = BindingRecord { grants, ..before.clone() };
            Becomes::Bytes(after.encode_to_vec().into())
        }
    };
    let edit = Edit { key: subject.key(), before: was, after: is, record };
    (vec![edit.clone()], vec![edit])
}

fn check(subject: &Subject) -> Result<(), BindingError> {
    let name = subject.name();
    let fits = !name.trim().is_empty()
        && name.trim() == name
        && name.len() <= NAME_BYTES
        && !name.chars().any(char::is_control);
    fits.then_some(()).ok_or_else(|| BindingError::Name(name.to_owned()))
}
