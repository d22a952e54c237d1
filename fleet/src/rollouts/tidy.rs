//! Records that nobody needs any more.

use std::collections::BTreeSet;
use std::time::Duration;

use guest_fleet_core::repair::Repair;
use guest_fleet_core::time::Seconds;
use guest_fleet_ledger::records::configuration::{ASSIGNMENT, RELEASE};
use guest_fleet_ledger::records::repair::repair_key;
use guest_fleet_ledger::records::secret::secret_key;
use guest_fleet_ledger::{Ledger, ReadError, Write, bounds};

use crate::configuration::{Configuration, ended};
use crate::secrets::recorded::of_releases;

/// How long a record of repairs stays that says nothing any more. Without it the next repair may follow the last
/// one at once.
const MENDED: Duration = Duration::from_secs(3600);

/// Deletions of what is outdated, at most as many as one write takes with its lease.
pub(super) async fn outdated(
    ledger: &dyn Ledger,
    configuration: &Configuration,
    now: Seconds,
) -> Result<Vec<Write>, ReadError> {
    let mut found = ended::outdated(ledger, configuration, now).await?;
    found.extend(unneeded(configuration));
    found.extend(mended(configuration, now));
    found.truncate(bounds::BATCH - 1);
    Ok(found)
}

/// Deletions of the records of secrets to which no release refers.
fn unneeded(configuration: &Configuration) -> Vec<Write> {
    // A release that cannot be read may refer to any.
    if configuration.problems().any(|(key, _)| key.starts_with(RELEASE)) {
        return Vec::new();
    }
    let Some(needed) = of_releases(configuration.view()) else { return Vec::new() };
    let needed: BTreeSet<&str> = needed.iter().map(|name| name.as_str()).collect();
    let unneeded = configuration.secrets().filter(|name| !needed.contains(name));
    unneeded.map(|name| deletion(configuration, secret_key(name))).collect()
}

/// Deletions of the records of repairs that say nothing any more: their assignment is gone, or no agent of it
/// was ordered again for a while.
fn mended(configuration: &Configuration, now: Seconds) -> Vec<Write> {
    let view = configuration.view();
    let mended = view.repairs.iter().filter(|(assignment, repair)| {
        let says_nothing =
            **repair == Repair { at: repair.at, last: repair.last.clone(), ..Repair::default() };
        let is_old = now.since(repair.at) >= MENDED.as_secs();
        // One that cannot be read is there.
        let is_gone = !view.assignments.contains_key(*assignment)
            && configuration.problem(&format!("{ASSIGNMENT}{assignment}")).is_none();
        is_gone || (says_nothing && is_old)
    });
    let key = |assignment: &String| repair_key(assignment);
    mended.map(|(assignment, _)| deletion(configuration, key(assignment))).collect()
}

fn deletion(configuration: &Configuration, key: String) -> Write {
    Write { expected: configuration.revision(&key), key, value: None }
}

#[cfg(test)]
mod tests {
    use guest_agent_proto::agent_controlplane::configure_plugin_states::manifest::Config;
    use guest_agent_proto::agent_controlplane::configure_plugin_states::{
        ConfigurePlugin, Manifest,
    };
    use guest_fleet_core::view::{Release, ReleaseName};
    use guest_fleet_ledger::records::configuration::{ReleaseRecord, release_key};
    use guest_fleet_ledger::records::secret::SecretRecord;
    use guest_fleet_ledger::{Change, Revision};
    use prost::Message;

    use super::*;
    use crate::secrets::reference::tests::{reference, table};

    fn change(configuration: &mut Configuration, key: &str, revision: u64, value: Vec<u8>) {
        let (revision, value) = (Revision(revision), Some(value.into()));
        configuration.change(&Change { key: key.to_owned(), revision, value });
    }

    #[test]
    fn what_is_known_of_a_secret_is_kept_while_a_release_may_refer_to_it() {
        let mut configuration = Configuration::default();
        let config = Config::StructConfig(table(&[("password", reference("db@2"))]));
        let manifest = Some(Manifest { config: Some(config), ..Manifest::default() });
        let order = ConfigurePlugin { manifest, ..ConfigurePlugin::default() }.encode_to_vec();
        let name = ReleaseName { plugin: "p".to_owned(), revision: "1".to_owned() };
        let release = Release { order, ..Release::default() };
        let record = ReleaseRecord::of(&name, &release).encode_to_vec();
        change(&mut configuration, &release_key(&name), 1, record);
        let secret = SecretRecord { version: 1, marks: Vec::new() }.encode_to_vec();
        for (revision, name) in [(2, "db@1"), (3, "db@2"), (4, "db")] {
            change(&mut configuration, &secret_key(name), revision, secret.clone());
        }
        let found = |configuration: &Configuration| {
            let writes = unneeded(configuration).into_iter();
            writes.map(|it| (it.key, it.expected.0, it.value)).collect::<Vec<_>>()
        };
        let expected = [("secret/db", 4), ("secret/db@1", 2)];
        let expected = expected.map(|(key, revision)| (key.to_owned(), revision, None));
        assert_eq!(found(&configuration), expected);
        // Another program may know a reference that this one does not, and a record that it cannot read.
        let name = ReleaseName { revision: "2".to_owned(), ..name };
        let config = Config::StructConfig(table(&[("password", reference("db#1"))]));
        let manifest = Some(Manifest { config: Some(config), ..Manifest::default() });
        let order = ConfigurePlugin { manifest, ..ConfigurePlugin::default() }.encode_to_vec();
        for order in [order, vec![0xff]] {
            let mut other = configuration.clone();
            let release = Release { order, ..Release::default() };
            let record = ReleaseRecord::of(&name, &release).encode_to_vec();
            change(&mut other, &release_key(&name), 5, record);
            assert_eq!(found(&other), []);
        }
        change(&mut configuration, &release_key(&name), 5, vec![0xff]);
        assert_eq!(found(&configuration), []);
    }
}
