//! Watches: what a caller sees is looked at again when something may have changed, and told where it differs.
//!
//! ```text
//!   buckets change, or some seconds passed ─► look: a digest of each part ─► differs from what the caller has? ─► event
//!        ▲                                                                          │ no
//!        └──────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A cursor is the digests that a caller has, so any server resumes a watch, and nothing is kept for callers
//! that are away. A change outside of the scope of a caller changes no digest of it, and so is not told. Whose the
//! token is, is asked again and again: a watch ends when its token does.

use std::collections::BTreeMap;
use std::time::Duration;

use guest_agent_proto::fleet_api as pb;
use prost::Message;
use serde::Serialize;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tonic::Code;

use super::asked::{Api, may};
use super::calls::{Kind, Rpc};
use super::error::ApiError;
use super::wire;
use crate::cli::context::{Caller, Context, Output};
use crate::cli::failure::Failure;
use crate::cli::gateways::GatewaysJson;
use crate::cli::rollout::{RolloutsJson, show};
use crate::cli::status::StatusJson;
use crate::cli::{gateways, status};
use crate::configuration::{Configuration, audit};
use crate::hex::hex;
use crate::identity::Principal;
use crate::ledger::Bucket;

/// Shortest time between two looks; those at a part of the agents read all of them.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_IN_SCOPE: Duration = Duration::from_secs(5);
/// Longest time between two looks: words change with the time alone.
const LOOK: Duration = Duration::from_secs(10);
/// How often a watch on which nothing happens says that it lives.
const ALIVE: Duration = Duration::from_secs(15);
/// How often it is asked whose the token is.
const WHOSE: Duration = Duration::from_secs(30);
/// Longest time for which a caller may not read an event.
const UNREAD: Duration = Duration::from_secs(30);
/// Longest cursor, in bytes.
const CURSOR_BYTES: usize = 512;
/// Digits of a digest in a cursor.
const DIGITS: usize = 16;

/// The parts, and their letters in cursors.
const PARTS: [(pb::Part, &str); 5] = [
    (pb::Part::Status, "s"),
    (pb::Part::Rollouts, "r"),
    (pb::Part::Declarations, "d"),
    (pb::Part::Gateways, "g"),
    (pb::Part::Audit, "a"),
];

/// Digests by the letters of parts.
type Told = BTreeMap<&'static str, String>;

/// What a watch tells.
type Events = mpsc::Receiver<Result<pb::WatchEvent, ApiError>>;

/// What a look showed.
struct Seen {
    told: Told,
    status: Option<StatusJson>,
    rollouts: Option<RolloutsJson>,
    audit: Option<u64>,
}

struct Watch {
    api: Api,
    principal: Principal,
    bearer: String,
    wanted: Vec<pb::Part>,
    told: Told,
}

// === impl Api ===

impl Api {
    /// Begins a watch. It ends when the receiver is dropped.
    ///
    /// # Errors
    /// The caller may see nothing, the request is not valid, or there are too many watches.
    pub(super) fn watch(
        &self,
        principal: Principal,
        bearer: String,
        request: pb::WatchRequest,
    ) -> Result<Events, ApiError> {
        let began = Instant::now();
        let begun = self.begin_watch(principal, bearer, request);
        let code = begun.as_ref().map_or_else(|error| error.code, |_| Code::Ok);
        self.figures.api_call("Watch", Kind::Look.name(), code, began.elapsed());
        begun
    }

    fn begin_watch(
        &self,
        principal: Principal,
        bearer: String,
        request: pb::WatchRequest,
    ) -> Result<Events, ApiError> {
        may(&principal, Rpc::GetStatus.call())?;
        if request.cursor.len() > CURSOR_BYTES {
            let problem = format!("it has more than {CURSOR_BYTES} bytes");
            return Err(ApiError::field("cursor", problem, "send one that an event had"));
        }
        let is_part =
            |part: &i32| pb::Part::try_from(*part).is_ok_and(|part| part != pb::Part::Unspecified);
        if !request.parts.iter().all(is_part) {
            return Err(ApiError::field("parts", "there is no such part", "use values of Part"));
        }
        let place = self.inner.watches.clone().try_acquire_owned();
        let place = place.map_err(|_| {
            ApiError::exhausted("there are too many watches", "end some, or ask again and again")
        })?;
        let wanted = match request.parts().collect::<Vec<_>>() {
            none if none.is_empty() => PARTS.map(|(part, _)| part).to_vec(),
            some => some,
        };
        let told = told(&request.cursor);
        let watch = Watch { api: self.clone(), principal, bearer, wanted, told };
        let (out, events) = mpsc::channel(1);
        tokio::spawn(async move {
            let end = out.clone();
            let ended = tokio::select! {
                ended = watch.run(&out) => ended,
                () = end.closed() => Ok(()),
            };
            if let Err(error) = ended {
                drop(tokio::time::timeout(UNREAD, out.send(Err(error))).await);
            }
            drop(place);
        });
        Ok(events)
    }
}

/// What a cursor says; of one that is no cursor, nothing.
fn told(cursor: &str) -> Told {
    let pairs = cursor.split('.').filter_map(|pair| pair.split_once('-'));
    let known = |letter: &str| PARTS.iter().find(|(_, it)| *it == letter).map(|(_, it)| *it);
    pairs.filter_map(|(letter, digest)| Some((known(letter)?, digest.to_owned()))).collect()
}

fn cursor(told: &Told) -> String {
    let pairs: Vec<String> = told.iter().map(|(letter, it)| format!("{letter}-{it}")).collect();
    pairs.join(".")
}

// === impl Watch ===

impl Watch {
    async fn run(
        mut self,
        out: &mpsc::Sender<Result<pb::WatchEvent, ApiError>>,
    ) -> Result<(), ApiError> {
        let ledger = self.api.inner.ledger.clone();
        let mut index = ledger.watch(Bucket::Index);
        let mut configuration = ledger.watch(Bucket::Configuration);
        let (mut said, mut asked) = (Instant::now(), Instant::now());
        loop {
            let began = Instant::now();
            index.mark_unchanged();
            configuration.mark_unchanged();
            if asked.elapsed() >= WHOSE {
                let whose = self.api.authenticate(Some(&self.bearer), None).await;
                match whose {
                    Ok(now) => self.principal.grants = now.grants,
                    Err(error) if error.code == Code::Unavailable => {}
                    Err(error) => return Err(error),
                }
                asked = Instant::now();
            }
            let event = self.look().await?;
            if !event.changed.is_empty() || said.elapsed() >= ALIVE {
                let sent = tokio::time::timeout(UNREAD, out.send(Ok(event))).await;
                if !matches!(sent, Ok(Ok(()))) {
                    return Ok(());
                }
                said = Instant::now();
            }
            let is_all = self.principal.sees_all();
            let pause = if is_all { PAUSE } else { PAUSE_IN_SCOPE };
            sleep_until(began + pause).await;
            tokio::select! {
                Ok(()) = index.changed() => {}
                Ok(()) = configuration.changed() => {}
                () = sleep_until(began + LOOK) => {}
            }
        }
    }

    /// What differs from what the caller has.
    async fn look(&mut self) -> Result<pb::WatchEvent, ApiError> {
        let seen = self.seen().await?;
        let changed = PARTS.iter().filter(|(_, letter)| {
            seen.told.get(letter).is_some_and(|now| self.told.get(letter) != Some(now))
        });
        let changed: Vec<pb::Part> = changed.map(|(part, _)| *part).collect();
        let is_new = |part| changed.contains(&part);
        let internal = |error: wire::WireError| ApiError::internal(&error);
        let status = seen.status.filter(|_| is_new(pb::Part::Status));
        let rollouts = seen.rollouts.filter(|_| is_new(pb::Part::Rollouts));
        let event = pb::WatchEvent {
            cursor: cursor(&seen.told),
            changed: changed.iter().map(|part| i32::from(*part)).collect(),
            status: status.map(|it| typed(&it, "Status")).transpose().map_err(internal)?,
            rollouts: rollouts
                .map(|it| typed::<pb::ListRolloutsResponse>(&it, "ListRolloutsResponse"))
                .transpose()
                .map_err(internal)?
                .map(|it| it.rollouts)
                .unwrap_or_default(),
            audit: seen.audit.filter(|_| is_new(pb::Part::Audit)),
        };
        self.told = seen.told;
        Ok(event)
    }

    /// What the caller sees now.
    async fn seen(&self) -> Result<Seen, ApiError> {
        let inner = &self.api.inner;
        let (mut out, mut remarks, mut input) =
            (std::io::sink(), std::io::sink(), std::io::empty());
        let mut context = Context {
            ledger: &*inner.ledger,
            out: &mut out,
            remarks: &mut remarks,
            input: &mut input,
            output: Output::Text,
            caller: Caller::default(),
            now: (inner.clock)(),
            zones: &*inner.zones,
            sees: may(&self.principal, Rpc::GetStatus.call())?,
            once: None,
        };
        let is_all = self.principal.sees_all();
        let wants = |part| self.wanted.contains(&part);
        let mut seen = Seen { told: Told::new(), status: None, rollouts: None, audit: None };
        if wants(pb::Part::Status) {
            let mut document = status::answer(&mut context).await?;
            let index = document.index.take();
            seen.told.insert("s", digest(&document));
            document.index = index;
            seen.status = Some(document);
        }
        if wants(pb::Part::Rollouts) {
            let document = show::all(&mut context).await?;
            seen.told.insert("r", digest(&document.without_times()));
            seen.rollouts = Some(document);
        }
        if wants(pb::Part::Declarations) {
            let configuration = Configuration::load(context.ledger).await.map_err(Failure::from)?;
            seen.told.insert("d", declared(&configuration, &context));
        }
        if is_all && wants(pb::Part::Gateways) {
            seen.told.insert("g", digest(&without_beats(gateways::answer(&context).await?)));
        }
        if is_all && wants(pb::Part::Audit) {
            let newest = audit::newest(context.ledger, 1).await.map_err(Failure::from)?;
            let number = newest.first().map_or(0, |entry| entry.number);
            seen.told.insert("a", number.to_string());
            seen.audit = Some(number);
        }
        Ok(seen)
    }
}

fn typed<M: Message + Default>(
    document: &impl Serialize,
    name: &str,
) -> Result<M, wire::WireError> {
    let message = wire::message(document, name)?;
    Ok(M::decode(message.encode_to_vec().as_slice()).unwrap_or_default())
}

fn digest(document: &impl Serialize) -> String {
    // Documents are plain values.
    short(&serde_json::to_vec(document).unwrap_or_default())
}

fn short(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes)).chars().take(DIGITS).collect()
}

/// Of what is declared within the scope of the caller.
fn declared(configuration: &Configuration, context: &Context<'_>) -> String {
    let (view, sees) = (configuration.view(), &context.sees);
    let mut digest = Sha256::new();
    let mut add = |what: String| digest.update(format!("{}:{what}", what.len()));
    for (name, it) in view.assignments.iter().filter(|(_, it)| sees.selector(&it.selector)) {
        add(format!("{name} {it:?}"));
    }
    for (name, it) in configuration.holds().filter(|(_, it)| sees.selector(&it.selector)) {
        add(format!("{name} {it:?}"));
    }
    for (name, it) in view.windows.iter().filter(|(_, it)| sees.selector(&it.selector)) {
        add(format!("{name} {it:?}"));
    }
    if sees.is_all() {
        view.releases.keys().for_each(|name| add(format!("{name:?}")));
    }
    hex(&digest.finalize()).chars().take(DIGITS).collect()
}

/// Gateways without what changes with every heartbeat.
fn without_beats(mut all: GatewaysJson) -> GatewaysJson {
    for gateway in &mut all.gateways {
        gateway.beat = None;
        gateway.beat_age_seconds = None;
        gateway.agents = 0;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written_and_anything_else_says_nothing() {
        let told_before = Told::from([("s", "0123".to_owned()), ("a", "7".to_owned())]);
        assert_eq!(told(&cursor(&told_before)), told_before);
        for text in ["", ".", "-", "x-1", "s", "…", "s0123.a7"] {
            assert_eq!(told(text), Told::new(), "{text}");
        }
    }
}
