//! Ids of fleets and agents, and the name of an agent in its certificate.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::random;

/// Longest id of an agent, in bytes. A gateway takes resource ids of 255.
const MAX_BYTES: usize = 200;
const SCHEME: &str = "guest-fleet://";
const AGENT: &str = "/agent/";

/// The id of a fleet: made with its authority, and never another one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FleetId(String);

/// The id of an agent; the resource id of its streams.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AgentId(String);

/// Why a text is no id.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum IdError {
    /// It is too long or empty.
    #[error("an id has 1 to {MAX_BYTES} bytes, and this one has {0}")]
    Length(usize),
    /// It has a character that ids do not have.
    #[error("an id consists of letters, digits and `-._~:/`, and this one has {0:?}")]
    Character(char),
    /// It looks like a path that leads elsewhere.
    #[error("a part of the id between slashes is empty, `.` or `..`")]
    Part,
    /// It is no name of an agent in a certificate.
    #[error("the name is not `guest-fleet://FLEET/agent/AGENT`")]
    Uri,
}

// === impl FleetId ===

impl FleetId {
    /// A new id.
    #[must_use]
    pub fn random() -> Self {
        Self(format!("f-{}", random::text::<16>()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of an agent of this fleet in its certificate.
    #[must_use]
    pub fn uri(&self, agent: &AgentId) -> String {
        format!("{SCHEME}{}{AGENT}{}", self.0, agent.0)
    }
}

impl FromStr for FleetId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        check(text)?;
        match text.chars().find(|character| *character == '/') {
            Some(slash) => Err(IdError::Character(slash)),
            None => Ok(Self(text.to_owned())),
        }
    }
}

impl fmt::Display for FleetId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

// === impl AgentId ===

impl AgentId {
    /// A new id with 130 random bits: nobody guesses it, and no two agents get the same.
    #[must_use]
    pub fn random() -> Self {
        Self(format!("a-{}", random::text::<26>()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for AgentId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        check(text)?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for AgentId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// Reads the name of an agent in a certificate.
///
/// # Errors
/// It is no such name.
pub fn parse_uri(uri: &str) -> Result<(FleetId, AgentId), IdError> {
    let rest = uri.strip_prefix(SCHEME).ok_or(IdError::Uri)?;
    let (fleet, agent) = rest.split_once(AGENT).ok_or(IdError::Uri)?;
    Ok((fleet.parse()?, agent.parse()?))
}

fn check(text: &str) -> Result<(), IdError> {
    if text.is_empty() || text.len() > MAX_BYTES {
        return Err(IdError::Length(text.len()));
    }
    let odd =
        |character: &char| !character.is_ascii_alphanumeric() && !"-._~:/".contains(*character);
    if let Some(character) = text.chars().find(odd) {
        return Err(IdError::Character(character));
    }
    if text.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(IdError::Part);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resource_ids_of_clouds_are_ids() {
        for text in ["a", "projects/1/zones/europe-west1-b/instances/7", &AgentId::random().0] {
            assert_eq!(text.parse::<AgentId>().map(|id| id.to_string()).as_deref(), Ok(text));
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_id() {
        for (text, error) in [
            ("", IdError::Length(0)),
            ("a b", IdError::Character(' ')),
            ("a\n", IdError::Character('\n')),
            ("ä", IdError::Character('ä')),
            ("a%2fb", IdError::Character('%')),
            ("/a", IdError::Part),
            ("a//b", IdError::Part),
            ("a/../b", IdError::Part),
            (&"x".repeat(201), IdError::Length(201)),
        ] {
            assert_eq!(text.parse::<AgentId>(), Err(error), "{text:?}");
        }
        assert_eq!("a/agent".parse::<FleetId>(), Err(IdError::Character('/')));
    }

    #[test]
    fn a_name_in_a_certificate_is_read_as_it_was_written() {
        let fleet = FleetId::random();
        // An id may look like a name itself; the fleet's id has no slash, so the first `/agent/` is
        // the one that counts.
        for agent in ["a-1", "x/agent/y"] {
            let agent: AgentId = agent.parse().expect("an id");
            assert_eq!(parse_uri(&fleet.uri(&agent)), Ok((fleet.clone(), agent)));
        }
        for uri in ["", "https://f/agent/a", "guest-fleet://f", "guest-fleet:///agent/a"] {
            assert!(parse_uri(uri).is_err(), "{uri}");
        }
    }
}
