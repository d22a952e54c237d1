//! The trace of a request: it names the request that the agent works for, from the frame to the
//! process, through actors, and through restarts of the agent.
//!
//! A [`Trace`] is data: the inbox stores it beside the order, and the plugin's record holds it
//! while the order is carried out. Its ids are made from the message's id and the order's number
//! and from nothing else, so an agent that was restarted continues an order under the same trace.
//!
//! This module makes the spans, for the log and for exporters. Fields that begin with `otel.` are
//! for exporters alone; `docs/tracing.md` says what they mean. Spans have the level of errors, so
//! that a warning has its span around it at every log level.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use guest_agent_proto::record as rec;
use sha2::{Digest, Sha256};
use tracing::field::Empty;
use tracing::{Instrument, Span};

use crate::model::id::Generation;
use crate::text::{quoted, shortened};

/// Most bytes of a message id that are remembered.
const MESSAGE_ID_MAX: usize = 128;

/// Most bytes of a reason that a span carries.
const REASON_MAX: usize = 512;

/// The id of a trace; not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId([u8; 16]);

/// The id of a span; not all zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId([u8; 8]);

/// Whether spans of a trace are exported, where the agent exports any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sampling {
    /// Yes.
    Export,
    /// No: the sender of the order does not want it exported.
    Skip,
}

/// The request that some work belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// The id of the message that ordered it, shortened; empty without an order.
    pub message_id: Arc<str>,
    /// Its trace: the sender's, where the sender named one.
    pub id: TraceId,
    /// The sender's span.
    pub parent: Option<SpanId>,
    /// Whether it is exported.
    pub sampling: Sampling,
    /// When it began, by the wall clock.
    pub since: SystemTime,
}

/// How an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// It succeeded.
    Ok,
    /// It failed, for this reason.
    Failed(&'a str),
    /// Another order took its place.
    Superseded,
}

// === impl Trace ===

impl Trace {
    /// The trace of a message: the one that its sender names in a W3C `traceparent`, or its own.
    #[must_use]
    pub fn of_message(message_id: &str, traceparent: Option<&str>, since: SystemTime) -> Self {
        let given = traceparent.and_then(parse_traceparent);
        let (id, parent, sampling) = match given {
            Some((id, parent, sampling)) => (id, Some(parent), sampling),
            None => (TraceId::made("message", message_id), None, Sampling::Export),
        };
        let message_id = printable(message_id).into();
        Self { message_id, id, parent, sampling, since }
    }

    /// A trace of work that no order caused. `what` and the time make it different from any other.
    #[must_use]
    pub fn of_own(what: &str, about: &str, since: SystemTime) -> Self {
        let nanos = since.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let id = TraceId::made(what, &format!("{about} {nanos}"));
        Self { message_id: "".into(), id, parent: None, sampling: Sampling::Export, since }
    }

    /// The span of an order: around all work for it, before and after restarts of the agent. It
    /// ends when it is dropped after [`conclude`] was called. When it is dropped without that call,
    /// the span of the order continues under the same id in another place.
    #[must_use]
    pub fn order(&self, plugin: &str, revision: &str, order: Generation) -> Span {
        tracing::error_span!(
            "order",
            message_id = &*self.message_id,
            plugin,
            revision,
            order = order.0,
            trace_id = %self.id,
            otel.span = %SpanId::made(self.id, "order", order.0),
            otel.parent = self.parent.map(tracing::field::display),
            otel.sampled = self.sampling == Sampling::Export,
            otel.start_ns = self.nanos(),
            outcome = Empty,
            error = Empty,
        )
    }

    /// An order that no plugin can carry out: its span begins and ends.
    pub fn refuse(&self, plugin: &str, revision: &str, order: Generation, reason: &str) {
        conclude(&self.order(plugin, revision, order), Outcome::Failed(reason));
    }

    /// The span of a way back: from an unexpected end of a process until the plugin is
    /// up again, or given up.
    #[must_use]
    pub fn restart(&self, plugin: &str, revision: &str) -> Span {
        tracing::error_span!(
            "restart",
            plugin,
            revision,
            trace_id = %self.id,
            otel.span = %SpanId::made(self.id, "restart", 0),
            otel.sampled = self.sampling == Sampling::Export,
            otel.start_ns = self.nanos(),
            outcome = Empty,
            error = Empty,
        )
    }

    /// The span of sending an event of the machine to plugins.
    #[must_use]
    pub fn vm_event(&self, event: &str) -> Span {
        tracing::error_span!("vm_event", event, trace_id = %self.id, error = Empty, otel.end = Empty)
    }

    /// The span of a search for files that nothing refers to.
    #[must_use]
    pub fn sweep(&self) -> Span {
        tracing::error_span!("sweep", trace_id = %self.id, error = Empty, otel.end = Empty)
    }

    /// The span of a message from its frame to its acknowledgement; a part of an order's span.
    #[must_use]
    pub fn receive(&self, order: &Span) -> Span {
        tracing::error_span!(
            parent: order,
            "receive",
            otel.start_ns = self.nanos(),
            error = Empty,
        )
    }

    /// Nanoseconds since the epoch; fields have no larger numbers, and need none before the year
    /// 2554.
    fn nanos(&self) -> u64 {
        let since = self.since.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    pub(crate) fn record(&self) -> rec::Trace {
        rec::Trace {
            message_id: self.message_id.to_string(),
            trace_id: self.id.0.to_vec(),
            parent: self.parent.map(|parent| parent.0.to_vec()).unwrap_or_default(),
            since: Some(self.since.into()),
            unsampled: self.sampling == Sampling::Skip,
        }
    }

    /// Returns `None` when the record is invalid: the order is carried out without a trace.
    pub(crate) fn of_record(record: rec::Trace) -> Option<Self> {
        Some(Self {
            message_id: printable(&record.message_id).into(),
            id: TraceId::new(record.trace_id.try_into().ok()?)?,
            parent: record.parent.try_into().ok().and_then(SpanId::new),
            sampling: if record.unsampled { Sampling::Skip } else { Sampling::Export },
            since: record.since?.try_into().ok()?,
        })
    }
}

/// Sets the outcome of the operation on its span.
pub fn conclude(span: &Span, outcome: Outcome<'_>) {
    match outcome {
        Outcome::Ok => span.record("outcome", "ok"),
        Outcome::Failed(reason) => {
            // The outcome comes last: with it the span ends.
            span.record("error", quoted(reason, REASON_MAX).as_str()).record("outcome", "failed")
        }
        Outcome::Superseded => span.record("outcome", "superseded"),
    };
}

/// Sets the failure of a part on its span.
pub fn fail(span: &Span, reason: &str) {
    span.record("error", quoted(reason, REASON_MAX).as_str());
}

/// Work inside of its span. The span ends with the work, done or dropped, and not with what the
/// work leaves behind: a connection that it opened remembers the span for as long as it lives. The
/// span has a field `otel.end`.
pub async fn within<T>(span: Span, work: impl Future<Output = T>) -> T {
    let _ending = Ending(span.clone());
    work.instrument(span).await
}

/// Ends a span when it is dropped.
struct Ending(Span);

impl Drop for Ending {
    fn drop(&mut self) {
        self.0.record("otel.end", true);
    }
}

/// The trace that a W3C `traceparent` names; `None` if it is not valid.
#[must_use]
pub fn parse_traceparent(text: &str) -> Option<(TraceId, SpanId, Sampling)> {
    let (version, rest) = text.split_once('-')?;
    let (trace, rest) = rest.split_once('-')?;
    let (span, rest) = rest.split_once('-')?;
    // A later version may have more fields after its flags.
    let (flags, more) =
        rest.split_once('-').map_or((rest, None), |(flags, more)| (flags, Some(more)));
    let [version] = hex::<1>(version)?;
    if version == 0xff || (version == 0 && more.is_some()) {
        return None;
    }
    let [flags] = hex::<1>(flags)?;
    let sampling = if flags & 1 == 1 { Sampling::Export } else { Sampling::Skip };
    Some((TraceId::new(hex(trace)?)?, SpanId::new(hex(span)?)?, sampling))
}

fn hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    let mut bytes = [0; N];
    if digits.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        for digit in pair {
            let value = match digit {
                b'0'..=b'9' => digit - b'0',
                b'a'..=b'f' => digit - b'a' + 10,
                _ => return None,
            };
            *byte = *byte << 4 | value;
        }
    }
    Some(bytes)
}

/// A message id as logs and records may have it: it comes from outside, and may be anything.
fn printable(message_id: &str) -> String {
    let short = shortened(message_id, MESSAGE_ID_MAX);
    short.chars().map(|letter| if letter.is_control() { '?' } else { letter }).collect()
}

fn digest(parts: [&[u8]; 3]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(b"guest-agent");
    for part in parts {
        hash.update(b"\0");
        hash.update(part);
    }
    hash.finalize().into()
}

// === impl TraceId ===

impl TraceId {
    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// An id of these bytes, unless they are all zero.
    #[must_use]
    pub fn new(bytes: [u8; 16]) -> Option<Self> {
        (bytes != [0; 16]).then_some(Self(bytes))
    }

    fn made(kind: &str, of: &str) -> Self {
        let digest = digest([b"trace", kind.as_bytes(), of.as_bytes()]);
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        Self::new(bytes).unwrap_or(Self([1; 16]))
    }
}

impl std::str::FromStr for TraceId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        hex(text).and_then(Self::new).ok_or(InvalidId)
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl SpanId ===

impl SpanId {
    /// Its bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }

    /// An id of these bytes, unless they are all zero.
    #[must_use]
    pub fn new(bytes: [u8; 8]) -> Option<Self> {
        (bytes != [0; 8]).then_some(Self(bytes))
    }

    /// The id of the span of this kind and number in a trace.
    fn made(trace: TraceId, kind: &str, number: u64) -> Self {
        let digest = digest([&trace.0, kind.as_bytes(), &number.to_be_bytes()]);
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&digest[..8]);
        Self::new(bytes).unwrap_or(Self([1; 8]))
    }
}

impl std::str::FromStr for SpanId {
    type Err = InvalidId;

    fn from_str(text: &str) -> Result<Self, InvalidId> {
        hex(text).and_then(Self::new).ok_or(InvalidId)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A text is not the id of a trace or span: as many hexadecimal digits as it has, in lower case,
/// and not only zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not the id of a trace or span")]
pub struct InvalidId;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn ids_are_made_from_the_message_alone() {
        let trace = Trace::of_message("m-1", None, at(1));
        assert_eq!(trace.id, Trace::of_message("m-1", None, at(2)).id);
        assert_ne!(trace.id, Trace::of_message("m-2", None, at(1)).id);
        // docs/tracing.md shows operators how to compute the trace id of a message: the same way.
        assert_eq!(trace.id.to_string(), "4770774f17186f2cc102c8d8081ab44d");
        assert_ne!(SpanId::made(trace.id, "order", 1), SpanId::made(trace.id, "order", 2));
    }

    #[test]
    fn the_trace_of_the_sender_is_gone_on_with() {
        let trace = Trace::of_message("m-1", Some(PARENT), at(1));
        assert_eq!(trace.id.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(trace.parent.map(|span| span.to_string()).as_deref(), Some("b7ad6b7169203331"));
        assert_eq!(trace.sampling, Sampling::Export);
        let unsampled = PARENT.replace("-01", "-00");
        let trace = Trace::of_message("m-1", Some(&unsampled), at(1));
        assert_eq!(trace.sampling, Sampling::Skip);
    }

    #[test]
    fn what_is_no_traceparent_is_as_if_there_were_none() {
        let own = Trace::of_message("m-1", None, at(1));
        for wrong in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
        ] {
            assert_eq!(Trace::of_message("m-1", Some(wrong), at(1)), own, "{wrong}");
        }
        let later = format!("01{}-more", &PARENT[2..]);
        assert_ne!(Trace::of_message("m-1", Some(&later), at(1)).id, own.id, "a later version");
    }

    #[test]
    fn a_hostile_message_id_is_cut_and_cleaned() {
        let trace = Trace::of_message(&format!("\n\u{1b}{}", "é".repeat(500)), None, at(1));
        assert!(trace.message_id.len() <= MESSAGE_ID_MAX + 4);
        assert!(!trace.message_id.chars().any(char::is_control));
    }

    proptest! {
        #[test]
        fn law_a_record_gives_back_what_was_recorded(
            id in "[ -~]{0,99}",
            with_parent in any::<bool>(),
            seconds in 0u64..4_000_000_000,
        ) {
            let trace = Trace::of_message(&id, with_parent.then_some(PARENT), at(seconds));
            prop_assert_eq!(Trace::of_record(trace.record()), Some(trace));
        }

        #[test]
        fn law_no_text_is_a_panic(text in ".{0,70}") {
            prop_assert!(parse_traceparent(&text).is_none_or(|_| text.len() >= 55));
            prop_assert!(text.parse::<TraceId>().is_ok_and(|id| id.to_string() == text) || text.parse::<TraceId>().is_err());
        }
    }
}
