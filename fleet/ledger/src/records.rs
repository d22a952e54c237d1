//! The records of the ledger as bytes: protobuf messages with fixed field numbers.
//!
//! The messages are generated from `proto/proto/fleet_record.proto`; beside them is what is done with them.
//!
//! Every record begins with the version of its schema. A record of a newer schema is refused by
//! name, so that an older program never writes over what it does not understand; unknown fields of
//! the same version are from a later release and are dropped.

/// Says the newest version of a record's schema.
macro_rules! versioned {
    ($name:ident: $version:literal) => {
        impl $crate::records::Versioned for $name {
            const VERSION: u32 = $version;

            fn version(&self) -> u32 {
                self.version
            }
        }
    };
}

pub mod agent;
pub mod audit;
pub mod configuration;
pub mod event;
/// Generated code, as it is.
#[allow(clippy::all, clippy::allow_attributes, unreachable_pub)]
#[rustfmt::skip]
mod generated;
pub mod gateway;
pub mod index;
pub mod journal;
pub mod progress;
pub mod repair;
pub mod report;
pub mod rollout;
pub mod secret;

#[cfg(test)]
mod tests;
pub mod token;
pub mod webhook;

use std::time::SystemTime;

use guest_fleet_core::target::Target;
use prost::Message;
use prost_types::Timestamp;
use thiserror::Error;

/// Why a record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// It is not a record of this kind.
    #[error("the record `{key}` is damaged: {problem}")]
    Damaged {
        /// Key of the record.
        key: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A newer program wrote it.
    #[error(
        "the record `{key}` has the schema {found}, and this program knows {known}: use the newer program"
    )]
    Newer {
        /// Key of the record.
        key: String,
        /// Version of its schema.
        found: u32,
        /// Newest version that this program knows.
        known: u32,
    },
}

/// A record with a version.
pub trait Versioned: Message + Default {
    /// Newest version of the schema that this program knows, and writes.
    const VERSION: u32;

    /// The version in the record.
    fn version(&self) -> u32;
}

/// A value that has a number in records.
pub trait Numbered: Copy {
    /// Its number. It is never that of another value, in no version of the program.
    fn number(self) -> u32;

    /// The value of a number; `None` where a newer program wrote one that this one does not know.
    fn of_number(number: u32) -> Option<Self>;
}

/// Gives every value of an enumeration its number in records. A value without a number does not
/// compile, so that none is stored as another one.
///
/// ```
/// use guest_fleet_ledger::records::Numbered;
///
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// enum Word {
///     Waits,
///     Done,
/// }
/// guest_fleet_ledger::numbered! { Word { 1 => Waits, 2 => Done } }
/// assert_eq!((Word::Done.number(), Word::of_number(1)), (2, Some(Word::Waits)));
/// assert_eq!(Word::of_number(3), None);
/// ```
///
/// ```compile_fail,E0004
/// #[derive(Clone, Copy)]
/// enum Word {
///     Waits,
///     Done,
///     New,
/// }
/// guest_fleet_ledger::numbered! { Word { 1 => Waits, 2 => Done } }
/// ```
#[macro_export]
macro_rules! numbered {
    ($name:ty { $($number:literal => $value:ident),* $(,)? }) => {
        impl $crate::records::Numbered for $name {
            fn number(self) -> u32 {
                match self {
                    $(Self::$value => $number,)*
                }
            }

            fn of_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$value),)*
                    _ => None,
                }
            }
        }
    };
}

/// The revision of a target as records have it: empty where the plugin should be absent.
#[must_use]
pub fn revision(target: &Target) -> String {
    target.revision().unwrap_or_default().to_owned()
}

/// The target of a revision as records have it.
#[must_use]
pub fn target(revision: &str) -> Target {
    if revision.is_empty() { Target::Absent } else { Target::Revision(revision.to_owned()) }
}

/// A time of a record; `None` where there is no time, or one beyond what the clock can have.
#[must_use]
pub fn time(stamp: Option<Timestamp>) -> Option<SystemTime> {
    stamp.and_then(|stamp| SystemTime::try_from(stamp).ok())
}

/// A time as RFC 3339 in UTC; `None` where it is beyond the years that such a text can have.
#[must_use]
pub fn shown(at: SystemTime) -> Option<String> {
    jiff::Timestamp::try_from(at).ok().map(|at| at.to_string())
}

/// Reads a record.
///
/// # Errors
/// It is damaged, or of a newer schema.
pub fn decode<R: Versioned>(key: &str, bytes: &[u8]) -> Result<R, RecordError> {
    let record = R::decode(bytes).map_err(|error| RecordError::Damaged {
        key: key.to_owned(),
        problem: error.to_string(),
    })?;
    match record.version() {
        0 => Err(RecordError::Damaged {
            key: key.to_owned(),
            problem: "it has no version".to_owned(),
        }),
        found if found > R::VERSION => {
            Err(RecordError::Newer { key: key.to_owned(), found, known: R::VERSION })
        }
        _ => Ok(record),
    }
}
