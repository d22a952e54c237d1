//! The durable form of the numbers that a fleet gave its orders, one fact per plugin.

use guest_agent_proto::record as rec;
use prost::Message;

use crate::control_plane::generations::{Asks, Newest};
use crate::model::id::{FleetGeneration, Generation, PluginName, Sha256Digest};
use crate::ports::{Table, Write};

/// What the keys of the records begin with, among the facts.
const PREFIX: &[u8] = b"generation/";

const VERSION: u32 = 1;

/// Records the newest numbered order of a plugin.
#[must_use]
pub fn put_generation(name: &PluginName, newest: &Newest) -> Write {
    use rec::generation_record::Asks as Recorded;
    let digest = |digest: Sha256Digest| digest.as_bytes().to_vec();
    let record = rec::GenerationRecord {
        version: VERSION,
        generation: newest.generation.get(),
        body: digest(newest.body),
        order: newest.order.0,
        asks: newest.asks.map(|asks| match asks {
            Asks::Removal => Recorded::Removal(true),
            Asks::Config(config) => Recorded::Config(config.map(digest).unwrap_or_default()),
        }),
    };
    Write::Put { table: Table::Facts, key: key_of(name), value: record.encode_to_vec() }
}

/// Records that no numbered order of a plugin is remembered.
#[must_use]
pub fn delete_generation(name: &PluginName) -> Write {
    Write::Delete { table: Table::Facts, key: key_of(name) }
}

/// Reads a fact. Returns `None` for a fact about something else.
///
/// # Errors
/// The fact is about the newest order of a plugin, and damaged.
pub fn read_generation(key: &[u8], value: &[u8]) -> Result<Option<(PluginName, Newest)>, String> {
    let Some(name) = key.strip_prefix(PREFIX) else { return Ok(None) };
    let name = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
    let name = name.ok_or("its key names no plugin")?;
    let record = rec::GenerationRecord::decode(value).map_err(|error| error.to_string())?;
    if record.version != VERSION {
        return Err(format!("it has version {}, this agent knows {VERSION}", record.version));
    }
    let generation = FleetGeneration::new(record.generation).ok_or("its number is 0")?;
    let body = digest_of(record.body).ok_or("its body is not a digest")?;
    let asks = match record.asks {
        None => None,
        Some(rec::generation_record::Asks::Removal(_)) => Some(Asks::Removal),
        Some(rec::generation_record::Asks::Config(digest)) if digest.is_empty() => {
            Some(Asks::Config(None))
        }
        Some(rec::generation_record::Asks::Config(digest)) => {
            let digest = digest_of(digest).ok_or("its configuration is not a digest")?;
            Some(Asks::Config(Some(digest)))
        }
    };
    Ok(Some((name, Newest { generation, body, order: Generation(record.order), asks })))
}

pub(super) fn digest_of(bytes: Vec<u8>) -> Option<Sha256Digest> {
    bytes.try_into().ok().map(Sha256Digest::from_bytes)
}

fn key_of(name: &PluginName) -> Vec<u8> {
    [PREFIX, name.as_str().as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn damaged_facts_are_errors_and_those_about_other_things_are_left_alone() {
        assert_eq!(read_generation(b"taken/x", b"y"), Ok(None));
        assert!(read_generation(b"generation/../x", b"").is_err());
        assert!(read_generation(b"generation/web", b"").is_err());
        assert!(read_generation(b"generation/web", &[0xff; 11]).is_err());
        let record = rec::GenerationRecord { version: 1, generation: 0, ..Default::default() };
        assert!(read_generation(b"generation/web", &record.encode_to_vec()).is_err());
        let record = rec::GenerationRecord { version: 2, generation: 1, ..Default::default() };
        assert!(read_generation(b"generation/web", &record.encode_to_vec()).is_err());
    }

    fn any_asks() -> impl Strategy<Value = Asks> {
        let config = proptest::option::of(any::<[u8; 32]>().prop_map(Sha256Digest::from_bytes));
        prop_oneof![Just(Asks::Removal), config.prop_map(Asks::Config)]
    }

    proptest! {
        #[test]
        fn law_a_record_gives_back_what_was_recorded(
            name in "[a-z][a-z0-9._-]{0,20}", generation in 1u64.., body: [u8; 32], order: u64,
            asks in proptest::option::of(any_asks()),
        ) {
            let name: PluginName = name.parse().expect("a name");
            let generation = FleetGeneration::new(generation).expect("it is not 0");
            let body = Sha256Digest::from_bytes(body);
            let newest = Newest { generation, body, order: Generation(order), asks };
            let Write::Put { key, value, .. } = put_generation(&name, &newest) else { unreachable!() };
            prop_assert_eq!(read_generation(&key, &value), Ok(Some((name, newest))));
        }

        #[test]
        fn law_arbitrary_records_never_panic(key: Vec<u8>, value: Vec<u8>) {
            drop(read_generation(&[PREFIX, &key].concat(), &value));
        }
    }
}
