//! Join tokens: what lets machines become agents of the fleet.
//!
//! A token is `NAME.SECRET`. The secret has 260 random bits, is shown once and kept as a digest.
//! Every use is a compare-and-swap of the token's record, so two machines that race for the last
//! use cannot both get it. A machine that repeats its request with the same key, because the answer
//! was lost, gets the same id and spends nothing.

mod error;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use guest_fleet_ledger::records::token::{PREFIX, TokenRecord, Use};
use guest_fleet_ledger::records::{self, Versioned, time};
use guest_fleet_ledger::{Bucket, Ledger, bounds};
use sha2::{Digest, Sha256};

use super::id::AgentId;
use super::random;
use super::write::{self, Step};

pub use error::{CreateError, ListError, RevokeError, SpendError};

/// Uses that are remembered, so that a repeated request spends nothing.
const RECENT: usize = 64;
/// Most tokens of a fleet.
const TOKENS: usize = 1000;
/// Most uses of a token.
const USES: u32 = 1_000_000;
/// Longest life of a token.
const LIFE: Duration = Duration::from_secs(366 * 24 * 3600);
/// How long a token that ended is shown. Then a new one may take its place.
const SHOWN: Duration = Duration::from_secs(30 * 24 * 3600);
/// Most labels of a token, and the longest key and value, in bytes.
const LABELS: usize = 32;
const LABEL_BYTES: usize = 128;
const NAME_BYTES: usize = 63;

/// A token to be made.
#[derive(Clone, Debug)]
pub struct NewToken {
    /// Its name: small letters, digits and `-`.
    pub name: String,
    /// How many agents it may enrol.
    pub uses: u32,
    /// How long it may be used.
    pub life: Duration,
    /// Labels that its agents get.
    pub labels: BTreeMap<String, String>,
    /// Its agents have a short life.
    pub is_ephemeral: bool,
    /// The one agent that it enrols, be it known already.
    pub agent: Option<AgentId>,
    /// Who makes it.
    pub made_by: String,
}

/// What a use of a token gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spent {
    /// Name of the token.
    pub token: String,
    /// The id for the agent.
    pub agent: AgentId,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// It has a short life.
    pub is_ephemeral: bool,
    /// The token is bound to this agent, so the id may be in use.
    pub may_replace: bool,
    /// When it was used; earlier than now where the request is repeated.
    pub at: SystemTime,
}

/// Makes a token; returns its text, which is shown once.
///
/// # Errors
/// See [`CreateError`].
pub async fn create(
    ledger: &dyn Ledger,
    new: NewToken,
    now: SystemTime,
) -> Result<String, CreateError> {
    new.check()?;
    make_room(ledger, now).await?;
    let secret = random::text::<52>();
    let text = format!("{}.{secret}", new.name);
    let record = TokenRecord {
        version: TokenRecord::VERSION,
        name: new.name.clone(),
        digest: Sha256::digest(&secret).to_vec(),
        uses: new.uses,
        uses_left: new.uses,
        ends: Some((now + new.life).into()),
        labels: new.labels,
        is_ephemeral: new.is_ephemeral,
        agent: new.agent.map(|agent| agent.to_string()).unwrap_or_default(),
        made_by: new.made_by,
        made: Some(now.into()),
        revoked: None,
        recent: Vec::new(),
    };
    let key = TokenRecord::key(&new.name);
    write::change(ledger, Bucket::Configuration, &key, |found: Option<TokenRecord>| match found {
        None => Ok(Step::Write(record.clone(), ())),
        // An ambiguous write that happened.
        Some(found) if found.digest == record.digest => Ok(Step::Leave(())),
        Some(_) => Err(CreateError::Exists(new.name.clone())),
    })
    .await?;
    Ok(text)
}

/// All tokens, in the order of their names.
///
/// # Errors
/// The ledger cannot be read.
pub async fn list(ledger: &dyn Ledger) -> Result<Vec<TokenRecord>, ListError> {
    let mut tokens = BTreeMap::new();
    let mut next: Option<String> = None;
    loop {
        let page = ledger
            .scan(Bucket::Configuration, PREFIX, next.as_deref(), bounds::PAGE)
            .await
            .map_err(ListError::Read)?;
        for record in page.records {
            tokens.insert(record.key.clone(), records::decode(&record.key, &record.value)?);
        }
        next = page.next;
        if next.is_none() {
            return Ok(tokens.into_values().collect());
        }
    }
}

/// Revokes a token: it enrols nobody any more. Its agents stay. Returns whether it was in force.
///
/// # Errors
/// There is no such token, or the ledger refuses.
pub async fn revoke(ledger: &dyn Ledger, name: &str, now: SystemTime) -> Result<bool, RevokeError> {
    let key = TokenRecord::key(name);
    write::change(ledger, Bucket::Configuration, &key, |found: Option<TokenRecord>| {
        let mut token = found.ok_or_else(|| RevokeError::Unknown(name.to_owned()))?;
        if token.revoked.is_some() {
            return Ok(Step::Leave(false));
        }
        token.revoked = Some(now.into());
        Ok(Step::Write(token, true))
    })
    .await
}

/// Uses a token once for a key.
///
/// # Errors
/// See [`SpendError`]. Only who has the secret of a token learns what is wrong with it.
pub async fn spend(
    ledger: &dyn Ledger,
    text: &str,
    key_digest: &str,
    wanted: Option<&AgentId>,
    now: SystemTime,
) -> Result<Spent, SpendError> {
    let (name, secret) = text.trim().split_once('.').ok_or(SpendError::Unknown)?;
    check_name(name).map_err(|_| SpendError::Unknown)?;
    let digest = Sha256::digest(secret);
    let fresh = wanted.cloned().unwrap_or_else(AgentId::random);
    let key = TokenRecord::key(name);
    write::change(ledger, Bucket::Configuration, &key, |found: Option<TokenRecord>| {
        let mut token = found
            // Digests are compared, so the time that it takes says nothing about the secret.
            .filter(|token| token.digest == digest[..])
            .ok_or(SpendError::Unknown)?;
        if token.revoked.is_some() {
            return Err(SpendError::Revoked);
        }
        if time(token.ends).is_none_or(|ends| ends <= now) {
            return Err(SpendError::Ended);
        }
        if let Some(earlier) = token.recent.iter().find(|it| it.key_digest == key_digest) {
            let agent = earlier.agent.parse().map_err(|_| SpendError::Unknown)?;
            return match wanted {
                Some(wanted) if *wanted != agent => Err(SpendError::OtherAgent { agent }),
                _ => Ok(Step::Leave(spent(&token, agent, time(earlier.at).unwrap_or(now)))),
            };
        }
        let agent = match token.agent.parse::<AgentId>() {
            Ok(bound) if wanted.is_none_or(|wanted| *wanted == bound) => bound,
            Ok(agent) => return Err(SpendError::OtherAgent { agent }),
            Err(_) => fresh.clone(),
        };
        token.uses_left = token.uses_left.checked_sub(1).ok_or(SpendError::UsedUp)?;
        token.recent.push(Use {
            key_digest: key_digest.to_owned(),
            agent: agent.to_string(),
            at: Some(now.into()),
        });
        let excess = token.recent.len().saturating_sub(RECENT);
        token.recent.drain(..excess);
        let answer = spent(&token, agent, now);
        Ok(Step::Write(token, answer))
    })
    .await
}

fn spent(token: &TokenRecord, agent: AgentId, at: SystemTime) -> Spent {
    Spent {
        token: token.name.clone(),
        may_replace: !token.agent.is_empty(),
        agent,
        labels: token.labels.clone(),
        is_ephemeral: token.is_ephemeral,
        at,
    }
}

/// Removes a token that ended long ago where there is no room for a new one.
async fn make_room(ledger: &dyn Ledger, now: SystemTime) -> Result<(), CreateError> {
    let tokens = list(ledger).await?;
    if tokens.len() < TOKENS {
        return Ok(());
    }
    let ended = |token: &&TokenRecord| time(token.ends).is_none_or(|ends| ends + SHOWN <= now);
    let oldest = tokens.iter().find(ended).ok_or(CreateError::TooMany)?;
    let key = TokenRecord::key(&oldest.name);
    write::remove(ledger, Bucket::Configuration, &key).await?;
    Ok(())
}

// === impl NewToken ===

impl NewToken {
    /// Whether there can be such a token.
    ///
    /// # Errors
    /// A value is out of its bounds.
    pub fn check(&self) -> Result<(), CreateError> {
        check(self)
    }
}

fn check(new: &NewToken) -> Result<(), CreateError> {
    check_name(&new.name)?;
    if !(1..=USES).contains(&new.uses) {
        return Err(CreateError::Uses(new.uses));
    }
    if new.life.is_zero() || new.life > LIFE {
        return Err(CreateError::Life(new.life));
    }
    if new.agent.is_some() && new.uses != 1 {
        return Err(CreateError::BoundUses(new.uses));
    }
    if new.labels.len() > LABELS {
        return Err(CreateError::Labels(new.labels.len()));
    }
    for (key, value) in &new.labels {
        let plain = |text: &str| text.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        let fits = |text: &str| text.len() <= LABEL_BYTES && plain(text);
        if key.is_empty() || !fits(key) || !fits(value) || key.starts_with("self.") {
            return Err(CreateError::Label { key: key.clone() });
        }
    }
    Ok(())
}

fn check_name(name: &str) -> Result<(), CreateError> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(fits) {
        return Err(CreateError::Name(name.to_owned()));
    }
    Ok(())
}
