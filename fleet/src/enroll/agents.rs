//! The records of agents as enrolment changes them: certificates, revocation, quarantine.
//!
//! Every change is one compare-and-swap of one record. A certificate stands in the record before it
//! is handed out, so a revocation finds it.

#[cfg(test)]
mod tests;

use std::time::SystemTime;

use guest_agent_serve_kit::certificate::Facts;
use guest_fleet_ledger::records::agent::{AgentRecord, Certificate};
use guest_fleet_ledger::records::time;
use guest_fleet_ledger::{Bucket, Ledger};
use prost_types::Timestamp;
use thiserror::Error;

use super::clones::{self, Verdict};
use super::id::AgentId;
use super::token::Spent;
use super::write::{self, ChangeError, Step};

/// Certificates that a record lists; the oldest go first.
const CERTIFICATES: usize = 16;

/// Why an agent gets no certificate.
#[derive(Debug, Error)]
pub enum GrantError {
    /// Somebody else has the id.
    #[error("the id `{0}` belongs to another machine")]
    Taken(AgentId),
    /// The agent was revoked.
    #[error("the agent `{0}` was revoked")]
    Revoked(AgentId),
    /// Two machines use the identity.
    #[error("the agent `{agent}` is in quarantine: {why}")]
    Quarantined {
        /// The agent.
        agent: AgentId,
        /// Why, as its record says.
        why: String,
    },
    /// The ledger refused.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// Why an agent's record is not changed.
#[derive(Debug, Error)]
pub enum AgentError {
    /// There is no such agent.
    #[error("there is no agent `{0}`: `guest-fleet agents` shows all")]
    Unknown(AgentId),
    /// The ledger refused.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// Records a certificate of an agent that a token admits.
///
/// # Errors
/// The id belongs to somebody else, or the ledger refuses.
pub async fn enrol(
    ledger: &dyn Ledger,
    spent: &Spent,
    facts: &Facts,
    now: SystemTime,
) -> Result<(), GrantError> {
    let id = &spent.agent;
    write::change(ledger, Bucket::Agents, id.as_str(), |found: Option<AgentRecord>| {
        let mut agent = match found {
            None => AgentRecord { since: Some(now.into()), ..AgentRecord::new(id.as_str()) },
            Some(agent) if lists(&agent, facts) => return Ok(Step::Leave(())),
            Some(agent) if agent.revoked.is_none() && has_key(&agent, &facts.key_digest) => agent,
            Some(agent) if spent.may_replace && is_older(&agent, spent.at) => replaced(agent, now),
            Some(_) => return Err(GrantError::Taken(id.clone())),
        };
        agent.token_labels.clone_from(&spent.labels);
        agent.token.clone_from(&spent.token);
        agent.is_ephemeral = spent.is_ephemeral;
        agent.archived = None;
        add(&mut agent, facts, now);
        Ok(Step::Write(agent, ()))
    })
    .await
}

/// Records a further certificate of an agent that showed an earlier one.
///
/// # Errors
/// The agent or its earlier certificate was revoked, it is in quarantine, or the ledger refuses.
pub async fn renew(
    ledger: &dyn Ledger,
    id: &AgentId,
    shown: &Facts,
    facts: &Facts,
    now: SystemTime,
) -> Result<(), GrantError> {
    write::change(ledger, Bucket::Agents, id.as_str(), |found: Option<AgentRecord>| {
        // A ledger that was lost knows nobody; the authority vouched for the agent all the same.
        let mut agent = found.unwrap_or_else(|| AgentRecord {
            since: Some(now.into()),
            ..AgentRecord::new(id.as_str())
        });
        if is_revoked(&agent, shown) {
            return Err(GrantError::Revoked(id.clone()));
        }
        if !agent.quarantine.is_empty() {
            let why = agent.quarantine.clone();
            return Err(GrantError::Quarantined { agent: id.clone(), why });
        }
        if lists(&agent, facts) {
            return Ok(Step::Leave(()));
        }
        add(&mut agent, facts, now);
        Ok(Step::Write(agent, ()))
    })
    .await
}

/// Revokes an agent and every certificate that it got. Its streams end within seconds. Returns
/// whether it was admitted before.
///
/// # Errors
/// There is no such agent, or the ledger refuses.
pub async fn revoke(
    ledger: &dyn Ledger,
    id: &AgentId,
    now: SystemTime,
) -> Result<bool, AgentError> {
    change_known(ledger, id, |agent| {
        let is_new = agent.revoked.is_none();
        if is_new {
            revoke_certificates(agent, now);
            agent.revoked = Some(now.into());
        }
        is_new
    })
    .await
}

/// Takes an agent out of quarantine: it gets orders again. Returns whether it was in quarantine.
///
/// # Errors
/// There is no such agent, or the ledger refuses.
pub async fn release(ledger: &dyn Ledger, id: &AgentId) -> Result<bool, AgentError> {
    change_known(ledger, id, |agent| {
        let was_there = !agent.quarantine.is_empty();
        if was_there {
            agent.quarantine.clear();
            // What was reported before proves nothing any more.
            agent.boots.clear();
        }
        was_there
    })
    .await
}

/// Records a boot that an agent reported; a clone puts it into quarantine. Returns why, if it is in
/// quarantine now.
///
/// # Errors
/// There is no such agent, or the ledger refuses.
pub async fn note_boot(
    ledger: &dyn Ledger,
    id: &AgentId,
    boot: &str,
    now: SystemTime,
) -> Result<Option<String>, AgentError> {
    write::change(ledger, Bucket::Agents, id.as_str(), |found: Option<AgentRecord>| {
        let mut agent = found.ok_or_else(|| AgentError::Unknown(id.clone()))?;
        let known = (!agent.quarantine.is_empty()).then(|| agent.quarantine.clone());
        match clones::quarantine(&agent.boots, boot, now) {
            Verdict::Same => return Ok(Step::Leave(known)),
            Verdict::Started(boots) => agent.boots = boots,
            Verdict::Cloned(boots, why) => {
                agent.boots = boots;
                agent.quarantine = known.unwrap_or(why);
            }
        }
        let why = (!agent.quarantine.is_empty()).then(|| agent.quarantine.clone());
        Ok(Step::Write(agent, why))
    })
    .await
}

/// Archives an agent: no count includes it until it connects again. Returns whether it was counted
/// before.
///
/// # Errors
/// There is no such agent, or the ledger refuses.
pub async fn archive(
    ledger: &dyn Ledger,
    id: &AgentId,
    now: SystemTime,
) -> Result<bool, AgentError> {
    change_known(ledger, id, |agent| {
        let is_new = agent.archived.is_none();
        agent.archived.get_or_insert_with(|| now.into());
        is_new
    })
    .await
}

/// Takes an agent out of the archive; its silence counts from now. Returns whether it was in it.
///
/// # Errors
/// There is no such agent, or the ledger refuses.
pub async fn unarchive(
    ledger: &dyn Ledger,
    id: &AgentId,
    now: SystemTime,
) -> Result<bool, AgentError> {
    change_known(ledger, id, |agent| {
        let was_there = agent.archived.take().is_some();
        if was_there {
            agent.unarchived = Some(now.into());
        }
        was_there
    })
    .await
}

/// Changes the record of an agent that the ledger knows, where `change` says that it changed it;
/// returns what that says.
async fn change_known(
    ledger: &dyn Ledger,
    id: &AgentId,
    mut change: impl FnMut(&mut AgentRecord) -> bool + Send,
) -> Result<bool, AgentError> {
    write::change(ledger, Bucket::Agents, id.as_str(), |found: Option<AgentRecord>| {
        let mut agent = found.ok_or_else(|| AgentError::Unknown(id.clone()))?;
        Ok(if change(&mut agent) { Step::Write(agent, true) } else { Step::Leave(false) })
    })
    .await
}

/// Whether a certificate admits nobody any more, whatever the authority says of it.
pub(super) fn is_revoked(agent: &AgentRecord, shown: &Facts) -> bool {
    if agent.revoked.is_some() {
        return true;
    }
    match agent.certificates.iter().find(|listed| listed.serial == shown.serial) {
        Some(listed) => listed.revoked.is_some(),
        // The list is bounded, and a ledger that was restored may lack the newest.
        None => time(agent.revoked_before).is_some_and(|before| shown.begins <= before),
    }
}

fn lists(agent: &AgentRecord, facts: &Facts) -> bool {
    agent.certificates.iter().any(|listed| listed.serial == facts.serial)
}

fn has_key(agent: &AgentRecord, digest: &str) -> bool {
    let in_force = |it: &&Certificate| it.revoked.is_none();
    agent.certificates.iter().filter(in_force).any(|listed| listed.key_digest == digest)
}

/// Whether nothing was decided about the agent since then: a token for it that was used before a
/// revocation is no way around it.
fn is_older(agent: &AgentRecord, used: SystemTime) -> bool {
    let issued = agent.certificates.iter().map(|listed| listed.issued);
    issued.chain([agent.revoked]).filter_map(time).all(|at| at <= used)
}

/// The record for another machine: nothing that the former one has admits it.
fn replaced(mut agent: AgentRecord, now: SystemTime) -> AgentRecord {
    revoke_certificates(&mut agent, now);
    agent.revoked = None;
    agent.quarantine.clear();
    agent.boots.clear();
    agent
}

fn revoke_certificates(agent: &mut AgentRecord, now: SystemTime) {
    let stamp = Some(Timestamp::from(now));
    for listed in &mut agent.certificates {
        listed.revoked = listed.revoked.or(stamp);
    }
    agent.revoked_before = stamp;
}

fn add(agent: &mut AgentRecord, facts: &Facts, now: SystemTime) {
    agent.certificates.push(Certificate {
        serial: facts.serial.clone(),
        key_digest: facts.key_digest.clone(),
        issued: Some(now.into()),
        ends: Some(facts.ends.into()),
        revoked: None,
    });
    let excess = agent.certificates.len().saturating_sub(CERTIFICATES);
    agent.certificates.drain(..excess);
}
