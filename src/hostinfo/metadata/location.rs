//! The identity and the location of this machine, in the control plane's terms.

use super::client::Client;
use super::error::MetadataError;
use crate::net::endpoint::{Endpoint, EndpointError};

/// Paths of the values.
const INSTANCE_ID: &str = "instance/id";
const ZONE: &str = "instance/zone";
const PROJECT: &str = "project/numeric-project-id";
const UNIVERSE: &str = "universe/universe-domain";

/// The universe domain where the server gives none.
const COMMON_UNIVERSE: &str = "googleapis.com";

/// The location of this machine, from the metadata server. Every part is one plain word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The instance's id.
    pub instance: String,
    /// The zone's name.
    pub zone: String,
    /// The project's number.
    pub project: String,
    /// The domain that the cloud's services are below.
    pub universe: String,
}

/// Why the location gives no endpoint.
#[derive(Debug, thiserror::Error)]
#[error("failed to derive the control plane's endpoint from the zone and the universe domain")]
pub struct LocationError {
    #[from]
    source: EndpointError,
}

impl Client {
    /// The instance's id.
    ///
    /// # Errors
    /// See [`MetadataError`]; also when the answer cannot be the name of a directory.
    pub async fn instance_id(&self) -> Result<String, MetadataError> {
        word(self.text(INSTANCE_ID).await?, "the instance id")
    }
}

// === impl Location ===

impl Location {
    /// Reads all parts, with one attempt each.
    ///
    /// # Errors
    /// See [`MetadataError`]. Without a universe domain the common one is used.
    pub async fn ask(client: &Client) -> Result<Self, MetadataError> {
        let zone = client.text(ZONE).await?;
        let zone = zone.rsplit('/').next().unwrap_or_default().to_owned();
        let universe = client.text(UNIVERSE).await.ok().filter(|universe| is_domain(universe));
        Ok(Self {
            instance: client.instance_id().await?,
            zone: word(zone, "the zone")?,
            project: word(client.text(PROJECT).await?, "the numeric project id")?,
            universe: universe.unwrap_or_else(|| COMMON_UNIVERSE.to_owned()),
        })
    }

    /// The machine's name for the control plane.
    #[must_use]
    pub fn resource(&self) -> String {
        let Self { project, zone, instance, .. } = self;
        format!("projects/{project}/zones/{zone}/instances/{instance}")
    }

    /// The endpoint of the zone's control plane.
    ///
    /// # Errors
    /// Zone and universe do not make a valid host name.
    pub fn endpoint(&self) -> Result<Endpoint, LocationError> {
        let Self { zone, universe, .. } = self;
        Ok(format!("https://{zone}-agentcommunication.{universe}:443").parse()?)
    }
}

/// One word that can be part of a path, of a host name and of a header.
fn word(text: String, what: &'static str) -> Result<String, MetadataError> {
    let wrong = |problem| MetadataError::Value { what, problem };
    if text.is_empty() {
        return Err(wrong("it is empty"));
    }
    if text.len() > 63 {
        return Err(wrong("it is longer than 63 bytes"));
    }
    if !text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
        return Err(wrong("it has characters other than letters, digits and dashes"));
    }
    Ok(text)
}

fn is_domain(text: &str) -> bool {
    let is_label = |label: &str| {
        let ends = !label.starts_with('-') && !label.ends_with('-');
        let plain = label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        ends && plain && (1..=63).contains(&label.len())
    };
    text.len() <= 190 && text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place() -> Location {
        Location {
            instance: "345".to_owned(),
            zone: "us-central1-a".to_owned(),
            project: "12".to_owned(),
            universe: COMMON_UNIVERSE.to_owned(),
        }
    }

    #[test]
    fn resource_and_endpoint_are_made_of_the_parts() {
        assert_eq!(place().resource(), "projects/12/zones/us-central1-a/instances/345");
        let endpoint = place().endpoint().expect("a host");
        let expected = "https://us-central1-a-agentcommunication.googleapis.com:443";
        assert_eq!(endpoint.to_string(), expected);
        let other = Location { universe: "apis.example".to_owned(), ..place() };
        let expected = "https://us-central1-a-agentcommunication.apis.example:443";
        assert_eq!(other.endpoint().expect("a host").to_string(), expected);
    }

    #[test]
    fn what_is_no_word_is_refused_without_being_quoted() {
        for bad in ["", "a/b", "..", "a b", "a\nb", "ä", &"x".repeat(64)] {
            let error = word(bad.to_owned(), "the zone").expect_err(bad);
            assert!(error.to_string().contains(" as the zone: "), "{error}");
        }
    }

    #[test]
    fn domains_are_told_from_other_texts() {
        for good in ["googleapis.com", "a", "apis-1.example"] {
            assert!(is_domain(good), "{good}");
        }
        for bad in ["", ".", "a..b", "-a.b", "a b", "a:1", "a/b", "a@b", &"a.".repeat(99)] {
            assert!(!is_domain(bad), "{bad}");
        }
    }
}
