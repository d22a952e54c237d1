//! Who may do what, as the ledger has it: API tokens, and the roles of persons and groups.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::records::access::{
    ACCESS, ACCESS_TOKEN, ApiTokenRecord, BindingRecord, Subject, api_token_key,
};
use crate::records::{self, RecordError};

/// Who may do what. A record that cannot be read allows nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Access {
    /// By key.
    tokens: BTreeMap<String, ApiTokenRecord>,
    /// By key.
    bindings: BTreeMap<String, BindingRecord>,
}

// === impl Access ===

impl Access {
    /// Whether a record of this key is about access.
    #[must_use]
    pub fn is_about(key: &str) -> bool {
        key.starts_with(ACCESS) || key.starts_with(ACCESS_TOKEN)
    }

    /// The API token with this name.
    #[must_use]
    pub fn token(&self, name: &str) -> Option<&ApiTokenRecord> {
        self.tokens.get(&api_token_key(name))
    }

    /// All API tokens, in the order of their names.
    pub fn tokens(&self) -> impl Iterator<Item = &ApiTokenRecord> {
        self.tokens.values()
    }

    /// What a person or a group may do.
    #[must_use]
    pub fn binding(&self, subject: &Subject) -> Option<&BindingRecord> {
        self.bindings.get(&subject.key())
    }

    /// What all persons and groups may do: groups first, in the order of their names.
    pub fn bindings(&self) -> impl Iterator<Item = &BindingRecord> {
        self.bindings.values()
    }

    /// Takes over a record, or that it is gone.
    pub(crate) fn take_over(
        &mut self,
        key: &str,
        value: Option<&Bytes>,
    ) -> Result<(), RecordError> {
        self.tokens.remove(key);
        self.bindings.remove(key);
        let Some(value) = value else { return Ok(()) };
        let is_other = || RecordError::Damaged {
            key: key.to_owned(),
            problem: "it is the record of another key".to_owned(),
        };
        if key.starts_with(ACCESS_TOKEN) {
            let record = records::decode::<ApiTokenRecord>(key, value)?;
            if api_token_key(&record.name) != key {
                return Err(is_other());
            }
            self.tokens.insert(key.to_owned(), record);
        } else {
            let record = records::decode::<BindingRecord>(key, value)?;
            if record.subject().key() != key {
                return Err(is_other());
            }
            self.bindings.insert(key.to_owned(), record);
        }
        Ok(())
    }
}
