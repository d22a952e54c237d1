//! JetStream as the few requests that the ledger makes. What comes back is checked here.
//!
//! Sources: the API of JetStream as `nats-server` 2.15 has it (`server/jetstream_api.go`,
//! `server/stream.go`), ADR-31 (direct get), ADR-50 (atomic batch publish).

use std::time::Duration;

use async_nats::client::{RequestError, RequestErrorKind};
use async_nats::{Client, HeaderMap, Message, Request};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::StreamExt;
use guest_agent_serve_kit::backoff::{Backoff, Jitter, Schedule};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout_at};

use super::envelope::{self, Content, Place};
use crate::{EngineError, ReadError};

/// How long one try of a read waits for its answer, and how long all of them together.
const TRY: Duration = Duration::from_secs(4);
pub(super) const READ: Duration = Duration::from_secs(20);

/// How long a write waits for its answer: the longest stall seen while a node was killed was 7.8 s.
pub(super) const ANSWER: Duration = Duration::from_secs(12);

/// Times between two tries.
const PAUSES: Schedule =
    Schedule::doubling(Duration::from_millis(5), Duration::from_millis(250), Jitter::UpperHalf);

/// What a page may have beyond what was asked for before the rest of it is refused.
const SLACK: usize = 8 << 20;

/// Codes of errors (`server/errors.json` of nats-server).
pub(super) mod code {
    pub(crate) const STREAM_NOT_FOUND: u64 = 10059;
    pub(super) const NO_MESSAGE: u64 = 10037;
    /// The subject has another last sequence.
    pub(super) const WRONG_LAST_SEQUENCE: u64 = 10071;
    /// A message for the subject is on its way.
    pub(super) const WRONG_LAST_SEQUENCE_CONSTANT: u64 = 10164;
    /// A part of the batch did not arrive, or too many batches are open.
    pub(super) const INCOMPLETE_BATCH: u64 = 10176;
    pub(super) const TOO_MANY_BATCHES: u64 = 10210;
    pub(super) const TOO_MANY_FAST_BATCHES: u64 = 10211;
    /// What the server refuses before it proposes anything: insufficient resources, limits of the
    /// account, sealed, too large, another stream, batches off or wrong.
    pub(super) const REFUSED: [u64; 12] =
        [10002, 10023, 10025, 10054, 10060, 10097, 10109, 10174, 10175, 10177, 10179, 10199];
}

/// Why a request has no answer that is of use.
#[derive(Debug, Error)]
pub(super) enum CallError {
    #[error("no answer to {what} came within {} s", .after.as_secs())]
    Late { what: &'static str, after: Duration },
    #[error("{what} reaches no server: the stream has no leader, or JetStream is off")]
    Nobody { what: &'static str },
    #[error("JetStream refuses {what}: {description} ({code})")]
    Refused { what: &'static str, code: u64, description: String },
    #[error("{what} was not sent")]
    NotSent { what: &'static str, source: EngineError },
    #[error("the answer to {what} makes no sense: {problem}")]
    Strange { what: &'static str, problem: String },
    #[error("what was asked for before is on its way for {} s", READ.as_secs())]
    Busy,
}

/// What became of a publication that was not taken.
#[derive(Debug)]
pub(super) enum NotTaken {
    /// The subject is not what was expected. Nothing was written.
    Mismatch,
    /// Nothing was written, and another try may do it.
    Again(CallError),
    /// Nothing was written.
    Refused(CallError),
    /// Nobody knows.
    Unknown(CallError),
}

/// A message of a stream.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) subject: String,
    pub(super) seq: u64,
    /// Milliseconds since 1970; 0 where the answer had no time that can be understood.
    pub(super) time_ms: i64,
    pub(super) data: Bytes,
}

/// Messages of a stream in the order of their sequences.
#[derive(Debug, Default)]
pub(super) struct RawPage {
    pub(super) messages: Vec<Stored>,
    /// Whether the server had more that fits.
    pub(super) more: bool,
}

/// Waits longer and longer, until a deadline.
#[derive(Debug)]
pub(super) struct Patience {
    deadline: Instant,
    backoff: Backoff,
}

/// The requests.
#[derive(Clone, Debug)]
pub(super) struct Api {
    client: Client,
}

// === impl CallError ===

impl CallError {
    /// Whether another try may be answered.
    fn is_passing(&self) -> bool {
        match self {
            Self::Late { .. } | Self::Nobody { .. } | Self::NotSent { .. } => true,
            // 408, 429, 500, 503 and their like; what is not there or not allowed stays so.
            Self::Refused { code, .. } => matches!(code, 408 | 429 | 500..=599 | 10008 | 10009),
            Self::Strange { .. } | Self::Busy => false,
        }
    }
}

/// The same for a stream that was there when the ledger was opened: a server that has to catch up with its
/// cluster may not know it for a moment.
fn is_passing_of_a_stream(error: &CallError) -> bool {
    error.is_passing() || matches!(error, CallError::Refused { code: code::STREAM_NOT_FOUND, .. })
}

// === impl Stored ===

impl Stored {
    /// What is in it. Names it where it is damaged.
    pub(super) fn content(&self) -> Result<(Content, Place), ReadError> {
        envelope::decode(self.data.clone()).map_err(|problem| self.damaged(problem))
    }

    pub(super) fn damaged(&self, problem: &str) -> ReadError {
        ReadError::Damaged {
            key: format!("{} (sequence {})", self.subject, self.seq),
            problem: format!(
                "{problem}; restore a backup, or delete the message with the tool `nats`"
            ),
        }
    }
}

// === impl Patience ===

impl Patience {
    pub(super) fn new(most: Duration) -> Self {
        Self { deadline: Instant::now() + most, backoff: Backoff::new(PAUSES) }
    }

    /// Waits; false when the time is over.
    pub(super) async fn wait(&mut self) -> bool {
        let pause = self.backoff.next(rand::random());
        if Instant::now() + pause >= self.deadline {
            return false;
        }
        sleep(pause).await;
        true
    }
}

// === impl Api ===

impl Api {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Asks the API once.
    pub(super) async fn ask(
        &self,
        what: &'static str,
        subject: &str,
        body: &Value,
        within: Duration,
    ) -> Result<Value, CallError> {
        let payload = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let request = Request::new().payload(payload).timeout(Some(within));
        let subject = format!("$JS.API.{subject}");
        let sent = self.client.send_request(subject, request).await;
        let answer = sent.map_err(|error| failed(what, within, error))?;
        let mut answer: Value = serde_json::from_slice(&answer.payload)
            .map_err(|error| strange(what, &error.to_string()))?;
        match error_of(&answer) {
            Some((code, description)) => Err(CallError::Refused { what, code, description }),
            None => Ok(answer.take()),
        }
    }

    /// Asks what changes nothing, again where that may help.
    pub(super) async fn read(
        &self,
        what: &'static str,
        subject: &str,
        body: &Value,
    ) -> Result<Value, CallError> {
        self.read_while(what, subject, body, CallError::is_passing).await
    }

    async fn read_while(
        &self,
        what: &'static str,
        subject: &str,
        body: &Value,
        is_passing: fn(&CallError) -> bool,
    ) -> Result<Value, CallError> {
        let mut patience = Patience::new(READ);
        loop {
            match self.ask(what, subject, body, TRY).await {
                Err(error) if is_passing(&error) => {
                    if !patience.wait().await {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }

    /// What the leader of a stream says of it.
    pub(super) async fn info(&self, stream: &str) -> Result<Value, CallError> {
        self.read("what the stream is", &format!("STREAM.INFO.{stream}"), &Value::Null).await
    }

    /// The sequence of the newest message of a stream, as its leader knows it.
    pub(super) async fn last_sequence(&self, stream: &str) -> Result<u64, CallError> {
        let info = self.info(stream).await?;
        let last = info["state"]["last_seq"].as_u64();
        last.ok_or_else(|| strange("what the stream is", "it has no last sequence"))
    }

    /// The last message of a subject, as the leader of the stream knows it.
    pub(super) async fn last(
        &self,
        stream: &str,
        subject: &str,
    ) -> Result<Option<Stored>, CallError> {
        const WHAT: &str = "the last message of a subject";
        let body = json!({ "last_by_subj": subject });
        let subject_of = format!("STREAM.MSG.GET.{stream}");
        let answer = match self.read_while(WHAT, &subject_of, &body, is_passing_of_a_stream).await {
            Err(CallError::Refused { code: code::NO_MESSAGE, .. }) => return Ok(None),
            answer => answer?,
        };
        let message = &answer["message"];
        let seq = message["seq"].as_u64().filter(|seq| *seq > 0);
        let seq = seq.ok_or_else(|| strange(WHAT, "it has no sequence"))?;
        if message["subject"].as_str() != Some(subject) {
            return Err(strange(WHAT, "it is of another subject"));
        }
        // An empty message has no data at all.
        let data = message["data"].as_str().unwrap_or_default();
        let data = STANDARD.decode(data).map_err(|error| strange(WHAT, &error.to_string()))?;
        let time_ms = milliseconds(message["time"].as_str());
        Ok(Some(Stored { subject: subject.to_owned(), seq, time_ms, data: data.into() }))
    }

    /// Messages from a sequence on, as a replica of the stream knows them; it may be behind. They are
    /// of one moment: the server writes nothing while it collects them.
    pub(super) async fn page(
        &self,
        stream: &str,
        filter: Option<&str>,
        from: u64,
        count: usize,
        bytes: usize,
    ) -> Result<RawPage, CallError> {
        let mut patience = Patience::new(READ);
        loop {
            match self.page_once(stream, filter, from, count, bytes).await {
                Err(error) if error.is_passing() => {
                    if !patience.wait().await {
                        return Err(error);
                    }
                }
                answer => return answer,
            }
        }
    }

    async fn page_once(
        &self,
        stream: &str,
        filter: Option<&str>,
        from: u64,
        count: usize,
        bytes: usize,
    ) -> Result<RawPage, CallError> {
        const WHAT: &str = "a page of messages";
        let not_sent = |source: EngineError| CallError::NotSent { what: WHAT, source };
        let mut body = json!({ "seq": from.max(1), "batch": count, "max_bytes": bytes });
        if let Some(filter) = filter {
            body["next_by_subj"] = filter.into();
        }
        let inbox = self.client.new_inbox();
        let subscribed = self.client.subscribe(inbox.clone()).await;
        let mut answers = subscribed.map_err(|error| not_sent(error.into()))?;
        let subject = format!("$JS.API.DIRECT.GET.{stream}");
        let body = Bytes::from(body.to_string());
        let sent = self.client.publish_with_reply(subject, inbox, body).await;
        sent.map_err(|error| not_sent(error.into()))?;
        let mut page = RawPage::default();
        let mut received = 0;
        loop {
            // Each message has the time anew: a page has a bound, so all of them have, too.
            let answer = timeout_at(Instant::now() + TRY, answers.next()).await;
            let answer = answer.map_err(|_| CallError::Late { what: WHAT, after: TRY })?;
            let answer = answer.ok_or(CallError::Late { what: WHAT, after: TRY })?;
            let status = answer.status.map_or(200, |status| status.as_u16());
            match status {
                200 => {}
                204 => {
                    page.more = number(&answer, "Nats-Num-Pending") != Some(0);
                    return Ok(page);
                }
                404 => return Ok(page),
                503 => return Err(CallError::Nobody { what: WHAT }),
                _ => {
                    let description = answer.description.clone().unwrap_or_default();
                    let code = u64::from(status);
                    return Err(CallError::Refused { what: WHAT, code, description });
                }
            }
            received += answer.payload.len();
            if page.messages.len() == count || received > bytes + SLACK {
                return Err(strange(WHAT, "more came than was asked for"));
            }
            page.messages.push(stored(answer, page.messages.last(), from)?);
        }
    }

    /// Publishes a message that is a write of its own, and returns its sequence.
    pub(super) async fn publish(
        &self,
        stream: &str,
        subject: &str,
        headers: HeaderMap,
        data: Bytes,
    ) -> Result<u64, NotTaken> {
        self.commit(stream, subject, headers, data).await.map(|ack| ack.0)
    }

    /// Publishes messages that are written whole or not at all; returns the sequence of the last.
    pub(super) async fn publish_batch(
        &self,
        stream: &str,
        id: &str,
        messages: Vec<(String, HeaderMap, Bytes)>,
    ) -> Result<u64, NotTaken> {
        let count = messages.len();
        let what = "a part of a batch";
        let mut last = None;
        for (at, (subject, mut headers, data)) in (1..).zip(messages) {
            headers.insert("Nats-Batch-Id", id);
            headers.insert("Nats-Batch-Sequence", at.to_string());
            if at == count {
                headers.insert("Nats-Batch-Commit", "1");
                last = Some((subject, headers, data));
                break;
            }
            // No answer is asked for: what is missing shows when the batch is committed.
            let sent = self.client.publish_with_headers(subject, headers, data).await;
            sent.map_err(|error| {
                NotTaken::Again(CallError::NotSent { what, source: error.into() })
            })?;
        }
        let Some((subject, headers, data)) = last else {
            return Err(NotTaken::Refused(strange(what, "it is empty")));
        };
        let (seq, committed) = self.commit(stream, &subject, headers, data).await?;
        if committed != Some(count as u64) {
            return Err(NotTaken::Unknown(strange(
                what,
                "another number of messages was committed",
            )));
        }
        Ok(seq)
    }

    async fn commit(
        &self,
        stream: &str,
        subject: &str,
        mut headers: HeaderMap,
        data: Bytes,
    ) -> Result<(u64, Option<u64>), NotTaken> {
        const WHAT: &str = "a write";
        headers.insert("Nats-Expected-Stream", stream);
        let request = Request::new().headers(headers).payload(data).timeout(Some(ANSWER));
        let answer = match self.client.send_request(subject.to_owned(), request).await {
            Ok(answer) => answer,
            Err(error) => {
                let kind = error.kind();
                let error = failed(WHAT, ANSWER, error);
                return Err(match kind {
                    RequestErrorKind::NoResponders => NotTaken::Again(error),
                    RequestErrorKind::InvalidSubject | RequestErrorKind::MaxPayloadExceeded => {
                        NotTaken::Refused(error)
                    }
                    RequestErrorKind::TimedOut | RequestErrorKind::Other => {
                        NotTaken::Unknown(error)
                    }
                });
            }
        };
        let answer: Value = serde_json::from_slice(&answer.payload)
            .map_err(|error| NotTaken::Unknown(strange(WHAT, &error.to_string())))?;
        if let Some((code, description)) = error_of(&answer) {
            let error = CallError::Refused { what: WHAT, code, description };
            return Err(match code {
                code::WRONG_LAST_SEQUENCE | code::WRONG_LAST_SEQUENCE_CONSTANT => {
                    NotTaken::Mismatch
                }
                code::INCOMPLETE_BATCH | code::TOO_MANY_BATCHES | code::TOO_MANY_FAST_BATCHES => {
                    NotTaken::Again(error)
                }
                code if code::REFUSED.contains(&code) => NotTaken::Refused(error),
                _ => NotTaken::Unknown(error),
            });
        }
        let seq = answer["seq"].as_u64().filter(|seq| *seq > 0);
        match seq {
            Some(seq) if answer["stream"].as_str() == Some(stream) => {
                Ok((seq, answer["count"].as_u64()))
            }
            _ => Err(NotTaken::Unknown(strange(WHAT, "it names another stream, or no sequence"))),
        }
    }

    /// Deletes a message. That it is gone already is no error.
    pub(super) async fn delete(&self, stream: &str, seq: u64) -> Result<(), CallError> {
        let body = json!({ "seq": seq, "no_erase": true });
        let subject = format!("STREAM.MSG.DELETE.{stream}");
        match self.ask("the deletion of a message", &subject, &body, TRY).await {
            Err(CallError::Refused { code, .. }) if code == code::NO_MESSAGE || code == 10043 => {
                Ok(())
            }
            // The message of this error is all that tells it from others of its code.
            Err(CallError::Refused { description, .. }) if description.contains("not found") => {
                Ok(())
            }
            answer => answer.map(drop),
        }
    }
}

/// Headers of a message that is taken only where the last one of its subject has this sequence.
pub(super) fn expecting(seq: u64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert("Nats-Expected-Last-Subject-Sequence", seq.to_string());
    headers
}

/// A message of a page. Sequences grow.
fn stored(answer: Message, before: Option<&Stored>, from: u64) -> Result<Stored, CallError> {
    const WHAT: &str = "a page of messages";
    let seq = number(&answer, "Nats-Sequence");
    let seq = seq.filter(|seq| *seq >= from.max(1) && before.is_none_or(|it| it.seq < *seq));
    let seq = seq.ok_or_else(|| strange(WHAT, "a message has no sequence, or they do not grow"))?;
    let subject = header(&answer, "Nats-Subject");
    let subject = subject.ok_or_else(|| strange(WHAT, "a message has no subject"))?.to_owned();
    let time_ms = milliseconds(header(&answer, "Nats-Time-Stamp"));
    Ok(Stored { subject, seq, time_ms, data: answer.payload })
}

/// A header that the server added; a message may have brought one of the same name.
fn header<'a>(answer: &'a Message, name: &'static str) -> Option<&'a str> {
    answer.headers.as_ref()?.get_last(name).map(async_nats::HeaderValue::as_str)
}

fn number(answer: &Message, name: &'static str) -> Option<u64> {
    header(answer, name)?.parse().ok()
}

/// A time as the server writes it.
fn milliseconds(time: Option<&str>) -> i64 {
    time.and_then(|time| time.parse::<jiff::Timestamp>().ok())
        .map_or(0, jiff::Timestamp::as_millisecond)
}

/// The code and the words of an answer that is an error.
fn error_of(answer: &Value) -> Option<(u64, String)> {
    let error = answer.get("error")?;
    let code = error["err_code"].as_u64().or_else(|| error["code"].as_u64()).unwrap_or(0);
    let description: String =
        error["description"].as_str().unwrap_or("without a reason").chars().take(200).collect();
    Some((code, description))
}

fn failed(what: &'static str, after: Duration, error: RequestError) -> CallError {
    match error.kind() {
        RequestErrorKind::TimedOut => CallError::Late { what, after },
        RequestErrorKind::NoResponders => CallError::Nobody { what },
        RequestErrorKind::InvalidSubject
        | RequestErrorKind::MaxPayloadExceeded
        | RequestErrorKind::Other => CallError::NotSent { what, source: error.into() },
    }
}

fn strange(what: &'static str, problem: &str) -> CallError {
    CallError::Strange { what, problem: problem.chars().take(200).collect() }
}
