//! Lines as log records of OTLP.
//!
//! A body is a text, so bytes that are not UTF-8 become U+FFFD, and so does NUL, which many stores
//! refuse. Everything else, also what terminals act on, is as the plugin wrote it: what shows it has
//! to show any text safely. Output and errors are one file, so a record has no stream, and no severity.

use std::time::{SystemTime, UNIX_EPOCH};

use guest_agent_observe_kit::otlp;
use opentelemetry_proto::tonic::logs::v1::{LogRecord, SeverityNumber};

use super::destination::{Destination, Sent};
use super::record::{Content, Record};
use crate::observe::otlp::logs::{LogError, LogExporter, Refused, body};

/// The collector.
pub(super) struct Otlp {
    exporter: LogExporter,
}

// === impl Otlp ===

impl Otlp {
    pub(super) const fn new(exporter: LogExporter) -> Self {
        Self { exporter }
    }
}

impl Destination for Otlp {
    async fn send(&mut self, records: &[Record]) -> Sent {
        let all = records.len();
        let every = || u64::try_from(all).unwrap_or(u64::MAX);
        match self.exporter.export(records.iter().map(wire).collect()).await {
            Ok(Refused { records: 0, .. }) => Sent { done: all, ..Sent::default() },
            // The protocol does not allow another attempt for a message that was taken in part.
            Ok(Refused { records, why }) => {
                Sent { done: all, refused: records.min(every()), refusal: Some(why), failure: None }
            }
            Err(LogError::Never(why)) => {
                Sent { done: all, refused: every(), refusal: Some(why), failure: None }
            }
            Err(LogError::Later(why)) => {
                let failure = format!(
                    "{why}; check the collector at {}, and telemetry.otlp_endpoint, \
                     otlp_headers_file and otlp_ca_file",
                    self.exporter.endpoint()
                );
                Sent { failure: Some(failure), ..Sent::default() }
            }
        }
    }
}

/// The record as it is sent.
fn wire(record: &Record) -> LogRecord {
    let mut attributes = vec![otlp::text("guest_agent.plugin", record.plugin.as_str())];
    if let Some(revision) = &record.revision {
        attributes.push(otlp::text("guest_agent.revision", revision.as_str()));
    }
    let mut severity = SeverityNumber::Unspecified;
    match record.content {
        Content::Line { part, .. } => {
            attributes.extend(part.map(|part| otlp::number("guest_agent.line_part", part.into())));
        }
        Content::Gap { bytes } => {
            severity = SeverityNumber::Warn;
            attributes.extend(bytes.map(|bytes| otlp::number("guest_agent.missing_bytes", bytes)));
        }
    }
    LogRecord {
        time_unix_nano: record.at.map(nanos).unwrap_or_default(),
        observed_time_unix_nano: nanos(record.seen),
        severity_number: severity.into(),
        body: Some(body(safe(&record.content.text()))),
        attributes,
        ..LogRecord::default()
    }
}

fn safe(text: &[u8]) -> String {
    String::from_utf8_lossy(text).replace('\0', "\u{fffd}")
}

fn nanos(at: SystemTime) -> u64 {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
