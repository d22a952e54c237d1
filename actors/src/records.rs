//! The durable form of orders and events, and the keys of all records.

use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_proto::record as rec;
use prost::Message;

use crate::keys::key_number;
use crate::model::act::{Act, BY_MAX, Hold};
use crate::model::event::{NewEvent, SettledEvent, Settlement, StoredEvent};
use crate::model::id::{Generation, PluginName};
use crate::model::origin::Origin;
use crate::outbox::{Gap, Waiting};
use crate::plugin::snapshot::{hold_of, hold_record, limit_override_of, limit_override_record};
use crate::ports::{Table, Write};
use crate::text::shortened;
use crate::trace::Trace;
use crate::wire;

mod audit;
mod deed;
mod generation;

pub use deed::{put_deeds, read_deeds};
pub use generation::{delete_generation, put_generation, read_generation};

const VERSION: u32 = 1;

/// Orders as they wait in the inbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxEntry {
    /// The number of the first order.
    pub first: Generation,
    /// The orders.
    pub content: InboxContent,
    /// Their source.
    pub origin: Origin,
    /// Their trace; records of agents that had no traces have none.
    pub trace: Option<Arc<Trace>>,
    /// The orders that were refused and whose refusal is an event already, counted from 0. Agents
    /// that did not know of this recorded none.
    pub refused: Vec<u32>,
}

/// The content of an inbox record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InboxContent {
    /// An encoded `ConfigurePluginStates`.
    Configure(Vec<u8>),
    /// A fresh start of a plugin.
    Restart(PluginName),
    /// What a person asks of a plugin.
    Asked(PluginName, Act),
    /// What a person asks of all plugins.
    AskedOfAll(Act),
}

/// Why a record cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// Not a record at all.
    #[error("the record cannot be decoded")]
    Decode(#[from] prost::DecodeError),
    /// Written by a later agent in a way this one does not know.
    #[error("the record has version {0}, this agent knows {VERSION}")]
    Version(u32),
    /// A field that every record has is missing or invalid.
    #[error("the record has no usable {0}")]
    Missing(&'static str),
}

/// The key of the hold of all plugins, in the table of facts.
pub const HOLD_OF_ALL: &[u8] = b"hold";

/// Records that all plugins are held, those that come later included, or that none is.
#[must_use]
pub fn put_hold_of_all(hold: Option<&Hold>) -> Write {
    let key = HOLD_OF_ALL.to_vec();
    match hold {
        Some(hold) => {
            let value = hold_record(hold).encode_to_vec();
            Write::Put { table: Table::Facts, key, value }
        }
        None => Write::Delete { table: Table::Facts, key },
    }
}

/// Reads the record of the hold of all plugins.
///
/// # Errors
/// It cannot be decoded.
pub fn hold_of_all(bytes: &[u8]) -> Result<Hold, RecordError> {
    Ok(hold_of(rec::Hold::decode(bytes)?))
}

/// Writes a plugin's snapshot.
#[must_use]
pub fn put_snapshot(name: &PluginName, record: Vec<u8>) -> Write {
    Write::Put { table: Table::Plugins, key: name.as_str().into(), value: record }
}

/// Deletes a plugin's snapshot.
#[must_use]
pub fn delete_snapshot(name: &PluginName) -> Write {
    Write::Delete { table: Table::Plugins, key: name.as_str().into() }
}

// === impl InboxEntry ===

impl InboxEntry {
    /// The record's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        use rec::inbox_record::Orders;
        rec::InboxRecord {
            version: VERSION,
            first_generation: self.first.0,
            orders: Some(match &self.content {
                InboxContent::Configure(bytes) => Orders::Configure(bytes.clone()),
                InboxContent::Restart(name) => Orders::Restart(name.to_string()),
                InboxContent::Asked(name, act) => Orders::Asked(asked_record(name.as_str(), act)),
                InboxContent::AskedOfAll(act) => Orders::AskedOfAll(asked_record("", act)),
            }),
            local: self.origin == Origin::Local,
            trace: self.trace.as_ref().map(|trace| trace.record()),
            refused: self.refused.clone(),
        }
        .encode_to_vec()
    }

    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        use rec::inbox_record::Orders;
        let record = rec::InboxRecord::decode(bytes)?;
        if record.version != VERSION {
            return Err(RecordError::Version(record.version));
        }
        let content = match record.orders.ok_or(RecordError::Missing("orders"))? {
            Orders::Configure(bytes) => InboxContent::Configure(bytes),
            Orders::Restart(name) => InboxContent::Restart(
                name.parse().map_err(|_| RecordError::Missing("plugin name"))?,
            ),
            Orders::Asked(asked) => {
                let name = asked.name.parse().map_err(|_| RecordError::Missing("plugin name"))?;
                InboxContent::Asked(name, act_of(asked)?)
            }
            Orders::AskedOfAll(asked) => InboxContent::AskedOfAll(act_of(asked)?),
        };
        let origin = if record.local { Origin::Local } else { Origin::ControlPlane };
        let trace = record.trace.and_then(Trace::of_record).map(Arc::new);
        let (first, refused) = (Generation(record.first_generation), record.refused);
        Ok(Self { first, content, origin, trace, refused })
    }
}

// === what a person asks ===

fn asked_record(name: &str, act: &Act) -> rec::Asked {
    use rec::asked::Act as Kind;
    let (kind, by) = match act {
        Act::Stop(by) => (Kind::Stop, &**by),
        Act::Start => (Kind::Start, ""),
        Act::Rollback(by) => (Kind::Rollback, &**by),
        Act::Hold(hold) => (Kind::Hold, &*hold.by),
        Act::Release => (Kind::Release, ""),
        Act::Dismiss { by, .. } => (Kind::Dismiss, &**by),
        Act::Limit(limits) => (Kind::Limit, limits.as_ref().map_or("", |new| &*new.by)),
    };
    let limits = match act {
        Act::Limit(limits) => limits.as_ref().map(limit_override_record),
        _gives_none => None,
    };
    let hold = match act {
        Act::Hold(hold) => Some(hold_record(hold)),
        _has_no_times => None,
    };
    let (since, until) = hold.map(|hold| (hold.since, hold.until)).unwrap_or_default();
    let revision = match act {
        Act::Dismiss { revision, .. } => revision.to_string(),
        _names_none => String::new(),
    };
    let (name, by) = (name.to_owned(), by.to_owned());
    rec::Asked { name, act: kind.into(), by, since, until, revision, limits }
}

fn act_of(record: rec::Asked) -> Result<Act, RecordError> {
    use rec::asked::Act as Kind;
    let by = || shortened(&record.by, BY_MAX).into();
    match record.act() {
        Kind::Hold => {
            let rec::Asked { by, since, until, .. } = record;
            Ok(Act::Hold(hold_of(rec::Hold { by, since, until })))
        }
        Kind::Stop => Ok(Act::Stop(by())),
        Kind::Start => Ok(Act::Start),
        Kind::Rollback => Ok(Act::Rollback(by())),
        Kind::Release => Ok(Act::Release),
        Kind::Dismiss => {
            let revision = record.revision.parse();
            let revision = revision.map_err(|_| RecordError::Missing("revision"))?;
            Ok(Act::Dismiss { by: by(), revision })
        }
        Kind::Limit => Ok(Act::Limit(record.limits.map(limit_override_of))),
        Kind::Unspecified => Err(RecordError::Missing("act")),
    }
}

// === impl StoredEvent ===

impl StoredEvent {
    /// The record's bytes. The number is the record's key.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.record().encode_to_vec()
    }

    pub(crate) fn record(&self) -> rec::EventRecord {
        rec::EventRecord {
            version: VERSION,
            id: self.id.to_string(),
            at: Some(self.event.at.into()),
            plugin: self.event.plugin.to_string(),
            revision: self.event.revision.to_string(),
            r#type: wire::event_number(self.event.kind),
            details: self.event.details.to_string(),
            // Only a waiting event can stand for others.
            gap: None,
            unaddressed: false,
        }
    }

    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        let seq = key_number(key).ok_or(RecordError::Missing("number"))?;
        Self::of_record(seq, rec::EventRecord::decode(bytes)?)
    }

    pub(crate) fn of_record(seq: u64, record: rec::EventRecord) -> Result<Self, RecordError> {
        if record.version != VERSION {
            return Err(RecordError::Version(record.version));
        }
        let kind = wire::event_kind(record.r#type).ok_or(RecordError::Missing("event type"))?;
        let at = record.at.and_then(|at| SystemTime::try_from(at).ok());
        let event = NewEvent::new(
            kind,
            &record.plugin,
            &record.revision,
            at.ok_or(RecordError::Missing("time"))?,
            &record.details,
        );
        Ok(Self { seq, id: record.id.into(), event })
    }
}

// === impl SettledEvent ===

impl SettledEvent {
    /// The record's bytes. The number is the record's key.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let unaddressed = self.how == Settlement::Unaddressed;
        rec::EventRecord { unaddressed, ..self.recorded.record() }.encode_to_vec()
    }

    /// Reads a record's bytes. Earlier versions did not record how an event left, and it counts as
    /// acknowledged.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        let seq = key_number(key).ok_or(RecordError::Missing("number"))?;
        let record = rec::EventRecord::decode(bytes)?;
        let unaddressed = record.unaddressed;
        let how = if unaddressed { Settlement::Unaddressed } else { Settlement::Acknowledged };
        Ok(Self { recorded: StoredEvent::of_record(seq, record)?, how })
    }
}

// === impl Waiting ===

impl Waiting {
    /// The record's bytes. The number is the record's key.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let gap = self.gap.map(|gap| gap.record(self.sent));
        rec::EventRecord { gap, ..self.told().record() }.encode_to_vec()
    }

    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        let seq = key_number(key).ok_or(RecordError::Missing("number"))?;
        let mut record = rec::EventRecord::decode(bytes)?;
        let gap = record.gap.take();
        let mut recorded = StoredEvent::of_record(seq, record)?;
        let Some(gap) = gap else { return Ok(Self::new(recorded)) };
        // The text of a gap is written again whenever it is sent.
        recorded.event.details = "".into();
        let (sent, gap) = (gap.sent, Gap::of_record(&gap, recorded.event.at));
        Ok(Self { recorded, gap: Some(gap), sent })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::keys::number_key;
    use crate::model::act::LimitOverride;
    use crate::model::event::DETAILS_MAX;
    use crate::model::event::PluginEventKind;
    use crate::model::spec::Limits;
    use proptest::prelude::*;

    fn any_hold() -> impl Strategy<Value = Hold> {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        (".{0,40}", 0u64..4_000_000_000, proptest::option::of(0u64..4_000_000_000)).prop_map(
            move |(by, since, until)| Hold {
                by: by.into(),
                since: at(since),
                until: until.map(at),
            },
        )
    }

    fn any_override() -> impl Strategy<Value = LimitOverride> {
        let limits = (any::<Option<u64>>(), any::<Option<u32>>(), any::<Option<u64>>());
        (limits, ".{0,40}", 0..4_000_000_000_u64).prop_map(|(limits, by, since)| {
            let (memory_bytes, cpu_percent, tasks) = limits;
            LimitOverride {
                limits: Limits { memory_bytes, cpu_percent, tasks },
                by: by.into(),
                since: SystemTime::UNIX_EPOCH + Duration::from_secs(since),
            }
        })
    }

    fn any_act() -> impl Strategy<Value = Act> {
        prop_oneof![
            ".{0,40}".prop_map(|by| Act::Stop(by.into())),
            Just(Act::Start),
            ".{0,40}".prop_map(|by| Act::Rollback(by.into())),
            any_hold().prop_map(Act::Hold),
            Just(Act::Release),
            any::<String>().prop_map(|by| Act::Dismiss {
                by: shortened(&by, BY_MAX).into(),
                revision: "3".parse().expect("a revision"),
            }),
            proptest::option::of(any_override()).prop_map(Act::Limit),
        ]
    }

    fn any_entry() -> impl Strategy<Value = InboxEntry> {
        let content = prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..60).prop_map(InboxContent::Configure),
            "[a-z]{1,9}".prop_map(|name| InboxContent::Restart(name.parse().expect("a name"))),
            ("[a-z]{1,9}", any_act())
                .prop_map(|(name, act)| InboxContent::Asked(name.parse().expect("a name"), act)),
            any_act().prop_map(InboxContent::AskedOfAll),
        ];
        let origin = prop_oneof![Just(Origin::ControlPlane), Just(Origin::Local)];
        let trace = proptest::option::of("[ -~]{0,40}".prop_map(|id| {
            Arc::new(Trace::of_message(&id, None, SystemTime::UNIX_EPOCH + Duration::from_secs(9)))
        }));
        let refused = proptest::collection::vec(any::<u32>(), 0..5);
        (any::<u64>(), content, origin, trace, refused).prop_map(
            |(first, content, origin, trace, refused)| InboxEntry {
                first: Generation(first),
                content,
                origin,
                trace,
                refused,
            },
        )
    }

    fn any_recorded() -> impl Strategy<Value = StoredEvent> {
        let texts = (".{0,20}", ".{0,20}", ".{0,40}", "[a-f0-9-]{0,36}");
        let time = (0u64..4_000_000_000, 0u32..1_000_000_000);
        (any::<u64>(), 1i32..=15, texts, time).prop_map(
            |(seq, number, (plugin, revision, details, id), (seconds, nanos))| {
                let kind = wire::event_kind(number).expect("these are the numbers");
                let at = SystemTime::UNIX_EPOCH + Duration::new(seconds, nanos);
                let event = NewEvent::new(kind, &plugin, &revision, at, &details);
                StoredEvent { seq, id: id.into(), event }
            },
        )
    }

    proptest! {
        #[test]
        fn law_an_inbox_record_gives_back_what_was_recorded(entry in any_entry()) {
            prop_assert_eq!(InboxEntry::decode(&entry.encode()).expect("its own bytes"), entry);
        }

        #[test]
        fn law_the_hold_of_all_gives_back_what_was_recorded(hold in any_hold()) {
            let Write::Put { value, .. } = put_hold_of_all(Some(&hold)) else {
                unreachable!("it is written")
            };
            prop_assert_eq!(hold_of_all(&value).expect("its own bytes"), hold);
        }

        #[test]
        fn law_an_event_record_gives_back_what_was_recorded(event in any_recorded()) {
            for how in [Settlement::Acknowledged, Settlement::Unaddressed] {
                let settled = SettledEvent { recorded: event.clone(), how };
                let bytes = settled.encode();
                let key = number_key(event.seq);
                prop_assert_eq!(SettledEvent::decode(&key, &bytes).expect("a record"), settled);
                prop_assert_eq!(StoredEvent::decode(&key, &bytes).expect("a record"), event.clone());
            }
            let decoded = StoredEvent::decode(&number_key(event.seq), &event.encode());
            prop_assert_eq!(decoded.expect("its own bytes"), event);
        }

        #[test]
        fn law_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..99)) {
            drop(InboxEntry::decode(&bytes));
            drop(StoredEvent::decode(&bytes, &bytes));
            drop(StoredEvent::decode(&number_key(1), &bytes));
        }

        #[test]
        fn law_keys_sort_like_their_numbers(a in any::<u64>(), b in any::<u64>()) {
            prop_assert_eq!(number_key(a).cmp(&number_key(b)), a.cmp(&b));
            prop_assert_eq!(key_number(&number_key(a)), Some(a));
        }
    }

    #[test]
    fn records_of_another_version_are_refused() {
        let record = rec::InboxRecord { version: 2, ..Default::default() }.encode_to_vec();
        assert!(matches!(InboxEntry::decode(&record), Err(RecordError::Version(2))));
        let record = rec::EventRecord { version: 2, ..Default::default() }.encode_to_vec();
        let decoded = StoredEvent::decode(&number_key(1), &record);
        assert!(matches!(decoded, Err(RecordError::Version(2))));
    }

    #[test]
    fn an_event_without_its_parts_is_refused() {
        let record = rec::EventRecord { version: 1, r#type: 7, ..Default::default() };
        let bytes = record.encode_to_vec();
        let timeless = StoredEvent::decode(&number_key(1), &bytes);
        assert!(matches!(timeless, Err(RecordError::Missing("time"))));
        let unnumbered = StoredEvent::decode(b"x", &bytes);
        assert!(matches!(unnumbered, Err(RecordError::Missing("number"))));
        let unknown = rec::EventRecord { r#type: 99, ..record };
        let unknown = StoredEvent::decode(&number_key(1), &unknown.encode_to_vec());
        assert!(matches!(unknown, Err(RecordError::Missing("event type"))));
    }

    #[test]
    fn what_an_event_says_is_bounded_also_when_it_is_read_back() {
        let record = rec::EventRecord {
            version: 1,
            at: Some(SystemTime::UNIX_EPOCH.into()),
            r#type: wire::event_number(PluginEventKind::Crashed),
            details: "é".repeat(DETAILS_MAX),
            plugin: "p".repeat(1000),
            ..Default::default()
        };
        let event = StoredEvent::decode(&number_key(1), &record.encode_to_vec()).expect("a record");
        assert!(event.event.details.len() <= DETAILS_MAX);
        assert_eq!(event.event.plugin.len(), 256);
    }
}
