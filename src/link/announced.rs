//! What a server announces of itself: in the response headers of a stream, and in the trailers that
//! end it.

use std::time::Duration;

use guest_agent_actors::ports::ServerKind;
use tonic::metadata::MetadataMap;

/// The response header of a fleet's gateway. Its value is the version of what the gateway takes.
const FLEET: &str = "guest-agent-fleet";

/// The trailer that says when to come back, in seconds.
const RETRY_AFTER: &str = "guest-agent-retry-after";

/// Longest time that a server may ask for, in seconds: a mistake must not take a machine away for a
/// day.
const RETRY_AFTER_MAX: u64 = 3600;

/// What the response headers of a stream announce. Versions above 1 take all that version 1 takes.
pub(super) fn server_kind(headers: &MetadataMap) -> ServerKind {
    match number(headers, FLEET) {
        Some(1..) => ServerKind::Fleet,
        Some(0) | None => ServerKind::Public,
    }
}

/// The time after which a server wants the agent back, if its trailers name one that makes sense.
pub(super) fn retry_after(trailers: &MetadataMap) -> Option<Duration> {
    let seconds = number(trailers, RETRY_AFTER)?;
    (1..=RETRY_AFTER_MAX).contains(&seconds).then(|| Duration::from_secs(seconds))
}

fn number(metadata: &MetadataMap, name: &str) -> Option<u64> {
    let text = metadata.get(name)?.to_str().ok()?;
    // `parse` alone would take a sign.
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &'static str, value: &str) -> MetadataMap {
        let mut metadata = MetadataMap::new();
        metadata.insert(name, value.parse().expect("valid"));
        metadata
    }

    #[test]
    fn a_fleet_announces_a_number_from_one_on() {
        assert_eq!(server_kind(&MetadataMap::new()), ServerKind::Public);
        for (value, kind) in [
            ("1", ServerKind::Fleet),
            ("2", ServerKind::Fleet),
            ("18446744073709551615", ServerKind::Fleet),
            ("0", ServerKind::Public),
            ("", ServerKind::Public),
            ("yes", ServerKind::Public),
            ("-1", ServerKind::Public),
            ("+1", ServerKind::Public),
            ("99999999999999999999", ServerKind::Public),
        ] {
            assert_eq!(server_kind(&metadata(FLEET, value)), kind, "{value:?}");
        }
    }

    #[test]
    fn a_server_may_ask_for_an_hour_and_nonsense_asks_for_nothing() {
        assert_eq!(retry_after(&MetadataMap::new()), None);
        for (value, seconds) in [
            ("1", Some(1)),
            ("3600", Some(3600)),
            ("3601", None),
            ("0", None),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
            ("18446744073709551616", None),
        ] {
            let asked = retry_after(&metadata(RETRY_AFTER, value));
            assert_eq!(asked, seconds.map(Duration::from_secs), "{value:?}");
        }
    }
}
