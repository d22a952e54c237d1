//! The durable form of what people changed about the plugins of a fleet, one fact per plugin.

use guest_agent_proto::record as rec;
use prost::Message;

use super::generation::digest_of;
use crate::model::act::BY_MAX;
use crate::model::deed::{Change, Deed, Deeds};
use crate::model::id::PluginName;
use crate::ports::{Table, Write};
use crate::text::shortened;

/// What the keys of the records begin with, among the facts.
const PREFIX: &[u8] = b"deeds/";

const VERSION: u32 = 1;

/// Records what people did to a plugin.
#[must_use]
pub fn put_deeds(name: &PluginName, deeds: &Deeds) -> Write {
    let (table, key) = (Table::Facts, [PREFIX, name.as_str().as_bytes()].concat());
    if deeds.is_empty() {
        return Write::Delete { table, key };
    }
    let deeds = deeds.iter().map(deed_record).collect();
    let value = rec::DeedsRecord { version: VERSION, deeds }.encode_to_vec();
    Write::Put { table, key, value }
}

/// Reads a fact. Returns `None` for a fact about something else.
///
/// # Errors
/// The fact is about the deeds of people, and damaged.
pub fn read_deeds(key: &[u8], value: &[u8]) -> Result<Option<(PluginName, Deeds)>, String> {
    let Some(name) = key.strip_prefix(PREFIX) else { return Ok(None) };
    let name = std::str::from_utf8(name).ok().and_then(|name| name.parse().ok());
    let name = name.ok_or("its key names no plugin")?;
    let record = rec::DeedsRecord::decode(value).map_err(|error| error.to_string())?;
    if record.version != VERSION {
        return Err(format!("it has version {}, this agent knows {VERSION}", record.version));
    }
    let deeds: Result<Deeds, String> = record.deeds.into_iter().filter_map(deed_of).collect();
    Ok(Some((name, deeds?)))
}

fn deed_record(deed: &Deed) -> rec::deeds_record::Deed {
    use rec::deeds_record::deed::Change as Recorded;
    let change = match &deed.change {
        Change::Removed => Recorded::Removed(true),
        Change::Installed(revision) => Recorded::Installed(revision.to_string()),
        Change::RolledBack => Recorded::RolledBack(true),
        Change::Configured(config) => {
            let digest = config.map(|digest| digest.as_bytes().to_vec());
            Recorded::Configured(digest.unwrap_or_default())
        }
        Change::Stopped => Recorded::Stopped(true),
    };
    let (by, at) = (deed.by.to_string(), deed.at.map(Into::into));
    rec::deeds_record::Deed { by, at, change: Some(change) }
}

/// A later agent may have recorded a change that this one does not know: it is left out.
fn deed_of(record: rec::deeds_record::Deed) -> Option<Result<Deed, String>> {
    let rec::deeds_record::Deed { by, at, change } = record;
    let (by, at) = (shortened(&by, BY_MAX).into(), at.and_then(|at| at.try_into().ok()));
    Some(change_of(change?).map(|change| Deed { change, by, at }))
}

fn change_of(record: rec::deeds_record::deed::Change) -> Result<Change, String> {
    use rec::deeds_record::deed::Change as Recorded;
    Ok(match record {
        Recorded::Removed(_) => Change::Removed,
        Recorded::Installed(revision) => {
            Change::Installed(revision.parse().map_err(|_| "it has no usable revision")?)
        }
        Recorded::RolledBack(_) => Change::RolledBack,
        Recorded::Configured(digest) if digest.is_empty() => Change::Configured(None),
        Recorded::Configured(digest) => {
            let digest = digest_of(digest).ok_or("its configuration is not a digest")?;
            Change::Configured(Some(digest))
        }
        Recorded::Stopped(_) => Change::Stopped,
    })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use proptest::prelude::*;

    use super::*;
    use crate::model::id::Sha256Digest;

    #[test]
    fn damaged_facts_are_errors_and_those_about_other_things_are_left_alone() {
        assert_eq!(read_deeds(b"generation/web", b"y"), Ok(None));
        assert!(read_deeds(b"deeds/../x", b"").is_err());
        assert!(read_deeds(b"deeds/web", b"").is_err(), "it has no version");
        assert!(read_deeds(b"deeds/web", &[0xff; 11]).is_err());
        let of = |change, version| {
            let deed = rec::deeds_record::Deed { change, ..Default::default() };
            let record = rec::DeedsRecord { version, deeds: vec![deed] };
            read_deeds(b"deeds/web", &record.encode_to_vec())
        };
        use rec::deeds_record::deed::Change as Recorded;
        assert!(of(Some(Recorded::Removed(true)), 2).is_err());
        assert!(of(Some(Recorded::Configured(vec![1])), 1).is_err());
        assert!(of(Some(Recorded::Installed("../x".to_owned())), 1).is_err());
        let (_, deeds) = of(None, 1).expect("it is read").expect("it is about deeds");
        assert!(deeds.is_empty(), "a later agent knows what it was");
    }

    #[test]
    fn no_deed_is_no_record() {
        let write = put_deeds(&"web".parse().expect("a name"), &Deeds::default());
        assert!(matches!(write, Write::Delete { .. }));
    }

    fn any_deed() -> impl Strategy<Value = Deed> {
        let config = proptest::option::of(any::<[u8; 32]>().prop_map(Sha256Digest::from_bytes));
        let change = prop_oneof![
            Just(Change::Removed),
            "[a-z0-9]{1,9}".prop_map(|it| Change::Installed(it.parse().expect("a revision"))),
            Just(Change::RolledBack),
            config.prop_map(Change::Configured),
            Just(Change::Stopped),
        ];
        let at = proptest::option::of(0u64..4_000_000_000);
        (change, ".{0,40}", at).prop_map(|(change, by, at)| {
            let at = at.map(|seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
            Deed { change, by: by.into(), at }
        })
    }

    proptest! {
        #[test]
        fn law_a_record_gives_back_what_was_recorded(
            name in "[a-z][a-z0-9._-]{0,20}", deeds in proptest::collection::vec(any_deed(), 1..30)
        ) {
            let name: PluginName = name.parse().expect("a name");
            let deeds: Deeds = deeds.into_iter().collect();
            let Write::Put { key, value, .. } = put_deeds(&name, &deeds) else { unreachable!() };
            prop_assert_eq!(read_deeds(&key, &value), Ok(Some((name, deeds))));
        }

        #[test]
        fn law_arbitrary_records_never_panic(key: Vec<u8>, value: Vec<u8>) {
            drop(read_deeds(&[PREFIX, &key].concat(), &value));
        }
    }
}
