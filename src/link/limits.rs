//! Reads the limits that a server sets for messages of the agent, and keeps to them.

use std::time::{Duration, Instant};

use tonic::metadata::MetadataMap;

/// A server's limits count per minute; the agent may send a whole minute's worth at once.
const WINDOW: Duration = Duration::from_secs(60);

/// What a server allows. An absent, invalid or zero value is no limit: under a limit of zero the
/// agent could never send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits {
    pub(super) messages_per_minute: Option<u64>,
    pub(super) bytes_per_minute: Option<u64>,
}

/// Keeps the limits of one stream.
#[derive(Debug)]
pub(super) struct Throttle {
    messages: Option<Bucket>,
    bytes: Option<Bucket>,
}

/// The limit is used up for longer than the sender wants to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exceeded {
    /// When a message may be sent again.
    pub(super) wait: Duration,
}

/// A token bucket, stored as the moment at which it will be full again.
#[derive(Debug)]
struct Bucket {
    per_minute: u64,
    full_at: Instant,
}

// === impl Limits ===

impl Limits {
    /// Reads the response headers of a stream.
    pub(super) fn from_headers(headers: &MetadataMap) -> Self {
        let limit = |name| {
            let text = headers.get(name)?.to_str().ok()?;
            text.trim().parse().ok().filter(|&limit: &u64| limit > 0)
        };
        Self {
            messages_per_minute: limit("agent-communication-message-rate-limit"),
            bytes_per_minute: limit("agent-communication-bandwidth-limit"),
        }
    }
}

// === impl Throttle ===

impl Throttle {
    /// A bucket from which nothing was taken yet.
    pub(super) fn new(limits: Limits, now: Instant) -> Self {
        let bucket = |per_minute| Bucket { per_minute, full_at: now };
        Self {
            messages: limits.messages_per_minute.map(bucket),
            bytes: limits.bytes_per_minute.map(bucket),
        }
    }

    /// Takes one message of `bytes` from the limits, and returns how long to wait before it is
    /// sent; takes nothing if that were longer than `patience`.
    pub(super) fn take(
        &mut self,
        now: Instant,
        bytes: usize,
        patience: Duration,
    ) -> Result<Duration, Exceeded> {
        let mut costs = [(&mut self.messages, 1), (&mut self.bytes, bytes)]
            .map(|(bucket, units)| (bucket.as_mut(), units));
        let wait = costs
            .iter()
            .filter_map(|(bucket, units)| Some(bucket.as_ref()?.wait(now, *units)))
            .max()
            .unwrap_or_default();
        if wait > patience {
            return Err(Exceeded { wait });
        }
        for (bucket, units) in &mut costs {
            if let Some(bucket) = bucket {
                bucket.take(now, *units);
            }
        }
        Ok(wait)
    }
}

// === impl Bucket ===

impl Bucket {
    fn cost(&self, units: usize) -> Duration {
        WINDOW.mul_f64(units as f64 / self.per_minute as f64)
    }

    /// A message larger than the whole bucket waits for a full one.
    fn wait(&self, now: Instant, units: usize) -> Duration {
        let fill = self.full_at.saturating_duration_since(now);
        (fill + self.cost(units).min(WINDOW)).saturating_sub(WINDOW)
    }

    fn take(&mut self, now: Instant, units: usize) {
        self.full_at = self.full_at.max(now) + self.cost(units);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(2);

    fn throttle(messages: Option<u64>, bytes: Option<u64>) -> (Throttle, Instant) {
        let now = Instant::now();
        let limits = Limits { messages_per_minute: messages, bytes_per_minute: bytes };
        (Throttle::new(limits, now), now)
    }

    #[test]
    fn limits_are_read_and_nonsense_is_no_limit() {
        let mut headers = MetadataMap::new();
        assert_eq!(Limits::from_headers(&headers), Limits::default());
        headers.insert("agent-communication-message-rate-limit", "60".parse().expect("valid"));
        headers.insert("agent-communication-bandwidth-limit", "lots".parse().expect("valid"));
        let limits = Limits { messages_per_minute: Some(60), bytes_per_minute: None };
        assert_eq!(Limits::from_headers(&headers), limits);
        for nonsense in ["0", "-1", "1.5", "99999999999999999999999"] {
            let name = "agent-communication-message-rate-limit";
            headers.insert(name, nonsense.parse().expect("valid"));
            assert_eq!(Limits::from_headers(&headers), Limits::default(), "{nonsense}");
        }
    }

    #[test]
    fn a_minutes_worth_goes_at_once_and_then_the_rate_is_kept() {
        let (mut throttle, now) = throttle(Some(60), None);
        for _ in 0..60 {
            assert_eq!(throttle.take(now, 10, PATIENCE), Ok(Duration::ZERO));
        }
        assert_eq!(throttle.take(now, 10, PATIENCE), Ok(Duration::from_secs(1)));
        assert_eq!(throttle.take(now, 10, PATIENCE), Ok(Duration::from_secs(2)));
        let refused = Err(Exceeded { wait: Duration::from_secs(3) });
        assert_eq!(throttle.take(now, 10, PATIENCE), refused);
        // A message that was refused took nothing.
        assert_eq!(throttle.take(now, 10, PATIENCE), refused);
        assert_eq!(throttle.take(now + WINDOW, 10, PATIENCE), Ok(Duration::ZERO));
    }

    #[test]
    fn bytes_count_by_their_number() {
        let (mut throttle, now) = throttle(None, Some(600));
        assert_eq!(throttle.take(now, 600, PATIENCE), Ok(Duration::ZERO));
        assert_eq!(throttle.take(now, 10, PATIENCE), Ok(Duration::from_secs(1)));
    }

    #[test]
    fn a_message_above_the_limit_waits_for_a_full_bucket_but_goes() {
        let (mut throttle, now) = throttle(None, Some(600));
        assert_eq!(throttle.take(now, 4 << 20, PATIENCE), Ok(Duration::ZERO));
        assert!(throttle.take(now, 1, PATIENCE).is_err());
    }
}
