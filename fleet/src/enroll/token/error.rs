//! What can be wrong with join tokens, one enum per operation.

use std::time::Duration;

use guest_fleet_ledger::ReadError;
use guest_fleet_ledger::records::RecordError;
use thiserror::Error;

use super::{AgentId, LABEL_BYTES, LABELS, LIFE, NAME_BYTES, TOKENS, USES};
use crate::enroll::write::ChangeError;

/// Why the tokens cannot be listed.
#[derive(Debug, Error)]
pub enum ListError {
    /// The ledger cannot be read.
    #[error("the tokens cannot be read")]
    Read(#[source] ReadError),
    /// A token's record cannot be used.
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// Why a token cannot be made.
#[derive(Debug, Error)]
pub enum CreateError {
    /// The name is not valid.
    #[error(
        "{0:?} is no name of a token: it has 1 to {NAME_BYTES} small letters, digits and hyphens"
    )]
    Name(String),
    /// Too many or no uses.
    #[error("a token has 1 to {USES} uses, and {0} were asked for")]
    Uses(u32),
    /// A token for one agent with several uses.
    #[error("a token for one agent has one use, and {0} were asked for")]
    BoundUses(u32),
    /// Too long or no life.
    #[error("a token lives for {LIFE:?} at most, and {0:?} was asked for")]
    Life(Duration),
    /// Too many labels.
    #[error("a token has at most {LABELS} labels, and {0} were given")]
    Labels(usize),
    /// A label that none can have.
    #[error(
        "the label {key:?} cannot be given: key and value have at most {LABEL_BYTES} printable ASCII \
         characters each, and the key is not empty and does not begin with `self.`"
    )]
    Label {
        /// Key of the label.
        key: String,
    },
    /// There is one with this name.
    #[error("there is a token `{0}` already: choose another name")]
    Exists(String),
    /// There is no room.
    #[error(
        "there are {TOKENS} tokens that are in force or ended lately: use one of them for several \
         machines, or wait until some have been ended for 30 days"
    )]
    TooMany,
    /// The present tokens cannot be read.
    #[error(transparent)]
    List(#[from] ListError),
    /// The ledger refused.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// Why a token cannot be revoked.
#[derive(Debug, Error)]
pub enum RevokeError {
    /// There is no such token.
    #[error("there is no token `{0}`: `guest-fleet token list` shows all")]
    Unknown(String),
    /// The ledger refused.
    #[error(transparent)]
    Change(#[from] ChangeError),
}

/// Why a token admits nobody.
#[derive(Debug, Error)]
pub enum SpendError {
    /// No token has this text.
    #[error("the join token is unknown")]
    Unknown,
    /// It was revoked.
    #[error("the join token was revoked")]
    Revoked,
    /// It ended.
    #[error("the join token has ended")]
    Ended,
    /// All its uses were taken.
    #[error("the join token was used as often as it may be")]
    UsedUp,
    /// It is for another agent, or this key has another id by it.
    #[error("with this join token the machine is the agent `{agent}` and no other")]
    OtherAgent {
        /// The agent that it may be.
        agent: AgentId,
    },
    /// The ledger refused.
    #[error(transparent)]
    Change(#[from] ChangeError),
}
