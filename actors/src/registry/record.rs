//! The durable form of the registry: one record per entry, per process and per type, and the number
//! of the newest change.

use std::collections::BTreeMap;
use std::time::SystemTime;

use guest_agent_proto::record as rec;
use prost::Message;

use super::catalogue::{Catalogue, ProcessRun};
use super::entry::{Entry, Epoch, Key, Kind, Offer, RawOffer, Registrant, Standing};
use crate::model::id::PluginName;
use crate::plugin::snapshot::{process_of, process_record};
use crate::ports::{Table, Write};
use crate::records::RecordError;

const VERSION: u32 = 1;

/// Key of the number of the newest change.
const SEQUENCE: &[u8] = b"n";

/// One record, read back.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// An entry.
    Entry(Box<Entry>),
    /// A process of a plugin.
    ProcessRun(PluginName, ProcessRun),
    /// A type that is known.
    Kind(Kind),
    /// Number of the newest change.
    Sequence(u64),
}

// === Writing ===

/// Writes an entry.
#[must_use]
pub fn put_entry(entry: &Entry) -> Write {
    let Entry { offer, registrant, epoch, order, registered_at, standing: _ } = entry;
    let Key { kind, name, instance } = offer.key();
    let option = |(key, value): (&String, &String)| rec::RegistryOption {
        key: key.clone(),
        value: value.clone(),
    };
    let record = rec::RegistryEntry {
        r#type: kind.to_string(),
        name: name.to_string(),
        instance: instance.to_string(),
        plugin: registrant.plugin.to_string(),
        process: Some(process_record(&registrant.process)),
        epoch: epoch.0,
        order: *order,
        offered_version: offer.version().to_owned(),
        socket_path: offer.socket().to_owned(),
        uid: registrant.uid,
        options: offer.options().iter().map(option).collect(),
        registered_at: Some((*registered_at).into()),
    };
    put(entry_key(entry.key()), rec::registry_record::Record::Entry(record))
}

/// Deletes an entry.
#[must_use]
pub fn delete_entry(key: &Key) -> Write {
    Write::Delete { table: Table::Registry, key: entry_key(key) }
}

/// Writes a process.
#[must_use]
pub fn put_life(plugin: &PluginName, life: &ProcessRun) -> Write {
    let record = rec::RegistryLife {
        plugin: plugin.to_string(),
        process: Some(process_record(&life.process)),
        epoch: life.epoch.0,
    };
    put(life_key(plugin), rec::registry_record::Record::Life(record))
}

/// Deletes a process.
#[must_use]
pub fn delete_life(plugin: &PluginName) -> Write {
    Write::Delete { table: Table::Registry, key: life_key(plugin) }
}

/// Writes that a type is known.
#[must_use]
pub fn put_kind(kind: &Kind) -> Write {
    put(kind_key(kind), rec::registry_record::Record::Type(kind.to_string()))
}

/// Deletes a type.
#[must_use]
pub fn delete_kind(kind: &Kind) -> Write {
    Write::Delete { table: Table::Registry, key: kind_key(kind) }
}

/// Writes the number of the newest change.
#[must_use]
pub fn put_sequence(sequence: u64) -> Write {
    put(SEQUENCE.to_vec(), rec::registry_record::Record::Sequence(sequence))
}

fn put(key: Vec<u8>, record: rec::registry_record::Record) -> Write {
    let record = rec::RegistryRecord { version: VERSION, record: Some(record) };
    Write::Put { table: Table::Registry, key, value: record.encode_to_vec() }
}

// No part contains a zero byte.
fn entry_key(key: &Key) -> Vec<u8> {
    format!("e\0{}\0{}\0{}", key.kind, key.name, key.instance).into_bytes()
}

fn life_key(plugin: &PluginName) -> Vec<u8> {
    format!("l\0{plugin}").into_bytes()
}

fn kind_key(kind: &Kind) -> Vec<u8> {
    format!("t\0{kind}").into_bytes()
}

// === impl Record ===

impl Record {
    /// Reads a record's bytes.
    ///
    /// # Errors
    /// Says what is wrong with the record.
    pub fn decode(key: &[u8], bytes: &[u8]) -> Result<Self, RecordError> {
        use rec::registry_record::Record as Stored;
        let record = rec::RegistryRecord::decode(bytes)?;
        if record.version != VERSION {
            return Err(RecordError::Version(record.version));
        }
        let (record, wanted) = match record.record.ok_or(RecordError::Missing("content"))? {
            Stored::Entry(entry) => {
                let entry = entry_of(entry)?;
                let key = entry_key(entry.key());
                (Self::Entry(Box::new(entry)), key)
            }
            Stored::Life(life) => {
                let plugin: PluginName =
                    life.plugin.parse().map_err(|_| RecordError::Missing("plugin name"))?;
                let process = life.process.ok_or(RecordError::Missing("process"))?;
                let key = life_key(&plugin);
                let life = ProcessRun { process: process_of(process), epoch: Epoch(life.epoch) };
                (Self::ProcessRun(plugin, life), key)
            }
            Stored::Type(kind) => {
                let kind: Kind = kind.parse().map_err(|_| RecordError::Missing("type"))?;
                let key = kind_key(&kind);
                (Self::Kind(kind), key)
            }
            Stored::Sequence(sequence) => (Self::Sequence(sequence), SEQUENCE.to_vec()),
        };
        // Under another key it would never be overwritten, nor deleted.
        if key == wanted { Ok(record) } else { Err(RecordError::Missing("key")) }
    }
}

fn entry_of(record: rec::RegistryEntry) -> Result<Entry, RecordError> {
    let plugin: PluginName =
        record.plugin.parse().map_err(|_| RecordError::Missing("plugin name"))?;
    let options: BTreeMap<_, _> =
        record.options.into_iter().map(|option| (option.key, option.value)).collect();
    let raw = RawOffer {
        kind: record.r#type,
        name: record.name,
        instance: record.instance,
        version: record.offered_version,
        socket: record.socket_path,
        options,
    };
    let offer = Offer::parse(raw, &plugin).map_err(|_| RecordError::Missing("offer"))?;
    let process = process_of(record.process.ok_or(RecordError::Missing("process"))?);
    let at = record.registered_at.and_then(|at| SystemTime::try_from(at).ok());
    Ok(Entry {
        offer,
        registrant: Registrant { plugin, process, uid: record.uid },
        epoch: Epoch(record.epoch),
        order: record.order,
        registered_at: at.ok_or(RecordError::Missing("time"))?,
        standing: Standing::Unverified,
    })
}

/// The catalogue that these records make up.
#[must_use]
pub fn restore(records: Vec<Record>) -> Catalogue {
    let (mut entries, mut lives, mut kinds, mut newest) =
        (Vec::new(), BTreeMap::new(), Vec::new(), 0);
    for record in records {
        match record {
            Record::Entry(entry) => entries.push(*entry),
            Record::ProcessRun(plugin, life) => drop(lives.insert(plugin, life)),
            Record::Kind(kind) => kinds.push(kind),
            Record::Sequence(sequence) => newest = sequence,
        }
    }
    Catalogue::restore(entries, lives, kinds, newest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::id::{BootId, Process};

    fn entry(options: BTreeMap<String, String>, order: u64) -> Entry {
        let plugin: PluginName = "p".parse().expect("a name");
        let raw = RawOffer {
            kind: "csi-node".to_owned(),
            name: "ebs".to_owned(),
            version: "1.2".to_owned(),
            socket: "/run/x.sock".to_owned(),
            options,
            ..RawOffer::default()
        };
        let process = Process { pid: 4, start_ticks: 5, boot: BootId("b".into()) };
        Entry {
            offer: Offer::parse(raw, &plugin).expect("an offer"),
            registrant: Registrant { plugin, process, uid: 1000 },
            epoch: Epoch(3),
            order,
            registered_at: SystemTime::UNIX_EPOCH,
            standing: Standing::Unverified,
        }
    }

    fn written(write: Write) -> (Vec<u8>, Vec<u8>) {
        match write {
            Write::Put { key, value, .. } => (key, value),
            Write::Delete { .. } => panic!("it is written"),
        }
    }

    proptest! {
        #[test]
        fn law_an_entry_comes_back_as_it_was(
            options in proptest::collection::btree_map("[a-z]{1,8}", ".{0,20}", 0..8),
            order in any::<u64>(),
        ) {
            let entry = entry(options, order);
            let (key, value) = written(put_entry(&entry));
            let read = Record::decode(&key, &value).expect("its own bytes");
            prop_assert_eq!(read, Record::Entry(Box::new(entry)));
        }

        #[test]
        fn law_arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..99)) {
            drop(Record::decode(&bytes, &bytes));
        }
    }

    #[test]
    fn lives_types_and_the_number_come_back() {
        let entry = entry(BTreeMap::new(), 9);
        let plugin = entry.registrant.plugin.clone();
        let life = ProcessRun { process: entry.registrant.process.clone(), epoch: Epoch(8) };
        let kind = entry.key().kind.clone();
        let writes =
            [put_entry(&entry), put_life(&plugin, &life), put_kind(&kind), put_sequence(12)];
        let records = writes.map(|write| {
            let (key, value) = written(write);
            Record::decode(&key, &value).expect("its own bytes")
        });
        let catalogue = restore(records.to_vec());
        assert_eq!(catalogue.sequence(), 12);
        assert_eq!(catalogue.lives()[&plugin], life);
        assert!(catalogue.find(&kind, &entry.key().name, None).is_ok());
    }

    #[test]
    fn a_record_under_another_key_is_refused() {
        let (_, value) = written(put_sequence(1));
        assert!(matches!(Record::decode(b"x", &value), Err(RecordError::Missing("key"))));
    }
}
