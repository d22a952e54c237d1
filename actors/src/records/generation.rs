//! The durable form of the numbers that a fleet gave its orders, one fact per plugin.

use guest_agent_proto::record as rec;
use prost::Message;

use crate::control_plane::generations::Newest;
use crate::model::id::{FleetGeneration, Generation, PluginName, Sha256Digest};
use crate::ports::{Table, Write};

/// What the keys of the records begin with, among the facts.
const PREFIX: &[u8] = b"generation/";

const VERSION: u32 = 1;

/// Records the newest numbered order of a plugin.
#[must_use]
pub fn put_generation(name: &PluginName, newest: &Newest) -> Write {
    let record = rec::GenerationRecord {
        version: VERSION,
        generation: newest.generation.get(),
        body: newest.body.as_bytes().to_vec(),
        order: newest.order.0,
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
    let body = <[u8; 32]>::try_from(record.body).map_err(|_| "its body is not a digest")?;
    let (body, order) = (Sha256Digest::from_bytes(body), Generation(record.order));
    Ok(Some((name, Newest { generation, body, order })))
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

    proptest! {
        #[test]
        fn law_a_record_gives_back_what_was_recorded(
            name in "[a-z][a-z0-9._-]{0,20}", generation in 1u64.., body: [u8; 32], order: u64
        ) {
            let name: PluginName = name.parse().expect("a name");
            let generation = FleetGeneration::new(generation).expect("it is not 0");
            let body = Sha256Digest::from_bytes(body);
            let newest = Newest { generation, body, order: Generation(order) };
            let Write::Put { key, value, .. } = put_generation(&name, &newest) else { unreachable!() };
            prop_assert_eq!(read_generation(&key, &value), Ok(Some((name, newest))));
        }

        #[test]
        fn law_arbitrary_records_never_panic(key: Vec<u8>, value: Vec<u8>) {
            drop(read_generation(&[PREFIX, &key].concat(), &value));
        }
    }
}
