//! The content of secrets as the fleet knows it: the first that a gateway ordered under a name. Pure.
//!
//! The ledger has a mark of it, an HMAC under the gateways' key. A version of a secret never changes, so
//! a gateway whose file has another mark orders nothing with it. A key that is replaced knows no mark, and marks
//! anew: what agents have stays what it is.

use std::collections::BTreeSet;

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_fleet_core::time::Seconds;
use guest_fleet_core::view::View;
use guest_fleet_ledger::records::Versioned;
use guest_fleet_ledger::records::secret::{SecretMark, SecretRecord};
use prost::Message;
use ring::hmac;

use super::reference::{SecretName, names};

/// Most keys by which one secret is known; the oldest is forgotten.
pub(crate) const KEYS: usize = 8;

/// The mark of a secret's content.
pub(super) type Mark = [u8; 32];

/// Bytes of a key's name.
const NAME: usize = 8;

/// The key of marks, and a name that does not tell it.
#[derive(Clone)]
pub(super) struct Key {
    key: hmac::Key,
    pub(super) name: [u8; NAME],
}

// === impl Key ===

impl Key {
    pub(super) fn new(secret: &[u8]) -> Self {
        let key = hmac::Key::new(hmac::HMAC_SHA256, secret);
        let tag = hmac::sign(&key, b"guest-fleet key name");
        let mut name = [0; NAME];
        name.copy_from_slice(&tag.as_ref()[..NAME]);
        Self { key, name }
    }

    /// The mark of the body of an order.
    pub(super) fn of_body(&self, body: &[u8]) -> Vec<u8> {
        hmac::sign(&self.key, body).as_ref().to_vec()
    }

    /// The mark of a secret's content.
    pub(super) fn of_secret(&self, name: &SecretName, content: &str) -> Mark {
        let mut signing = hmac::Context::with_key(&self.key);
        // No name has a zero in it, and no body of an order begins with these words.
        for part in ["guest-fleet secret\0", name.as_str(), "\0", content] {
            signing.update(part.as_bytes());
        }
        let mut mark = [0; 32];
        mark.copy_from_slice(signing.sign().as_ref());
        mark
    }
}

/// The mark of a secret under this key, if a gateway recorded it.
pub(super) fn first<'a>(record: Option<&'a SecretRecord>, key: &Key) -> Option<&'a SecretMark> {
    record?.marks.iter().find(|mark| mark.key == key.name)
}

/// The record of a secret with its mark under one more key.
pub(super) fn with(
    record: Option<&SecretRecord>,
    key: &Key,
    mark: &Mark,
    (host, now): (&str, Seconds),
) -> SecretRecord {
    let mut marks = record.map(|record| record.marks.clone()).unwrap_or_default();
    let excess = (marks.len() + 1).saturating_sub(KEYS);
    marks.drain(..excess);
    marks.push(SecretMark {
        key: key.name.to_vec(),
        mark: mark.to_vec(),
        at: now.0,
        host: host.to_owned(),
    });
    SecretRecord { version: SecretRecord::VERSION, marks }
}

/// The secrets that the configuration of a release refers to; `None` where one of its references, or the
/// order itself, is not one that this program knows.
#[must_use]
pub fn of_order(order: &[u8]) -> Option<BTreeSet<SecretName>> {
    let order = ConfigurePlugin::decode(order).ok()?;
    let config = order.manifest.and_then(|manifest| manifest.config);
    Some(config.map(|config| names(&config)).transpose().ok()?.into_iter().flatten().collect())
}

/// The secrets that any release refers to; `None` where a release may refer to others.
#[must_use]
pub fn of_releases(view: &View) -> Option<BTreeSet<SecretName>> {
    let mut found = BTreeSet::new();
    for release in view.releases.values() {
        found.extend(of_order(&release.order)?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> SecretName {
        SecretName::new(text).expect("a name")
    }

    #[test]
    fn a_mark_is_of_one_key_one_name_and_one_content() {
        let (one, other) = (Key::new(b"0123456789abcdef"), Key::new(b"0123456789abcdeg"));
        assert_ne!(one.name, other.name);
        let mark = one.of_secret(&name("a@1"), "content");
        assert_eq!(mark, one.of_secret(&name("a@1"), "content"));
        assert_ne!(mark, other.of_secret(&name("a@1"), "content"));
        assert_ne!(mark, one.of_secret(&name("a@2"), "content"));
        assert_ne!(mark, one.of_secret(&name("a@1"), "content "));
        // A body that looks like the text of a mark.
        assert_ne!(one.of_body(b"a@1\0content"), mark.to_vec());
    }

    #[test]
    fn a_secret_is_known_by_a_bounded_number_of_keys_and_the_oldest_is_forgotten() {
        let keys: Vec<Key> =
            (0..=KEYS).map(|number| Key::new(format!("key {number}").as_bytes())).collect();
        let mut record = None;
        for (at, key) in (0..).zip(&keys) {
            assert!(first(record.as_ref(), key).is_none());
            record = Some(with(record.as_ref(), key, &[7; 32], ("gw", Seconds(at))));
            let found = first(record.as_ref(), key).map(|found| (found.at, found.host.as_str()));
            assert_eq!(found, Some((at, "gw")));
        }
        let record = record.expect("a record");
        assert_eq!(record.marks.len(), KEYS);
        assert!(first(Some(&record), &keys[0]).is_none());
        assert!(first(Some(&record), &keys[1]).is_some());
    }
}
