//! The request metadata that every call carries.

use tonic::metadata::{Ascii, MetadataMap, MetadataValue};

use crate::net::token::TokenError;

/// Resource and channel, checked to be header values.
#[derive(Clone, Debug)]
pub(super) struct Headers {
    resource: MetadataValue<Ascii>,
    channel: MetadataValue<Ascii>,
}

/// Why a link cannot have this configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {value:?} {problem}")]
pub struct LinkConfigError {
    what: &'static str,
    value: String,
    problem: &'static str,
}

// === impl Headers ===

impl Headers {
    /// Checks the two values. The documented patterns are not applied, because real values do not
    /// match them.
    pub(super) fn new(resource: &str, channel: &str) -> Result<Self, LinkConfigError> {
        Ok(Self {
            resource: value("the control-plane resource", resource)?,
            channel: value("the control-plane channel", channel)?,
        })
    }

    /// The resource id.
    pub(super) fn resource(&self) -> &str {
        self.resource.to_str().unwrap_or_default()
    }

    /// The channel id.
    pub(super) fn channel(&self) -> &str {
        self.channel.to_str().unwrap_or_default()
    }

    /// Adds all headers to a request.
    pub(super) fn apply(
        &self,
        token: Option<&str>,
        metadata: &mut MetadataMap,
    ) -> Result<(), TokenError> {
        if let Some(token) = token {
            // The error of the conversion is dropped, because it could quote the token.
            let mut value = format!("Bearer {token}").parse().map_err(|_| TokenError {
                source_name: "what was configured".to_owned(),
                cause: "it has characters that no header may have".into(),
            })?;
            MetadataValue::set_sensitive(&mut value, true);
            metadata.insert("authentication", value);
        }
        metadata.insert("agent-communication-resource-id", self.resource.clone());
        metadata.insert("agent-communication-channel-id", self.channel.clone());
        Ok(())
    }
}

fn value(what: &'static str, text: &str) -> Result<MetadataValue<Ascii>, LinkConfigError> {
    let wrong = |problem| LinkConfigError { what, value: text.chars().take(80).collect(), problem };
    if text.is_empty() {
        return Err(wrong("is empty"));
    }
    if !text.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        return Err(wrong("has a character that is not printable ASCII"));
    }
    text.parse().map_err(|_| wrong("cannot stand in a header"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_channel_and_a_real_resource_are_taken() {
        let headers = Headers::new(
            "projects/1/zones/us-a/instances/2",
            "compute.googleapis.com/google-guest-agent",
        )
        .expect("valid");
        let mut metadata = MetadataMap::new();
        headers.apply(Some("abc"), &mut metadata).expect("valid");
        let get = |name| metadata.get(name).and_then(|v| v.to_str().ok());
        assert_eq!(get("authentication"), Some("Bearer abc"));
        assert_eq!(
            get("agent-communication-resource-id"),
            Some("projects/1/zones/us-a/instances/2")
        );
        assert_eq!(
            get("agent-communication-channel-id"),
            Some("compute.googleapis.com/google-guest-agent")
        );
    }

    #[test]
    fn values_that_no_header_may_have_are_refused_by_name() {
        for bad in ["", "a\nb", "a\0b", "ä"] {
            let error = Headers::new(bad, "channel").expect_err(bad);
            assert!(error.to_string().contains("resource"), "{error}");
            assert!(Headers::new("resource", bad).is_err());
        }
    }

    #[test]
    fn a_bad_token_is_refused_without_being_quoted() {
        let headers = Headers::new("r", "c").expect("valid");
        let error = headers.apply(Some("sec\nret"), &mut MetadataMap::new()).expect_err("bad");
        assert!(!format!("{error:?}").contains("sec"), "{error:?}");
    }

    #[test]
    fn without_a_token_there_is_no_authentication() {
        let mut metadata = MetadataMap::new();
        Headers::new("r", "c")
            .map(|headers| headers.apply(None, &mut metadata))
            .expect("valid")
            .expect("valid");
        assert!(metadata.get("authentication").is_none());
    }
}
