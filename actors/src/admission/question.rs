//! The questions for an admission plugin, and the id that each check has there.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::model::id::Sha256Digest;
use crate::model::spec::{PluginSpec, Source};

/// Most bytes of one metadata value.
const VALUE_MAX: usize = 4096;

/// The question whether this content of this package may be deployed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The plugin's name.
    pub package: Arc<str>,
    /// The digest of its archive; of a local plugin, that of its entry point.
    pub sha256: Sha256Digest,
    /// The metadata of the order, in the sequence in which the plugin gets them.
    pub metadata: Vec<(&'static str, String)>,
}

/// One run of the process of an admission plugin, counted from the start of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessRun(pub u64);

/// One metadata entry of a package's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadatum {
    /// Lower-case letters and dashes.
    pub key: &'static str,
    /// Text.
    pub value: String,
    /// When the agent learned it.
    pub at: SystemTime,
}

/// The id of a check. It reveals nothing without the salt, and changes with every start of the
/// agent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CheckId(Arc<str>);

/// A check in the form in which the agent sends it to the plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its id.
    pub id: CheckId,
    /// The control plane that deploys.
    pub service_url: Arc<str>,
    /// The plugin's name.
    pub package: Arc<str>,
    /// Its content.
    pub sha256: Sha256Digest,
}

// === impl Question ===

impl Question {
    /// The question for the revision of an order.
    #[must_use]
    pub fn of(spec: &PluginSpec) -> Self {
        let mut metadata = vec![("revision", spec.revision.to_string())];
        match &spec.source {
            Source::Archive(artifact) => {
                metadata.push(("installation", "dynamic".to_owned()));
                // Without its query, which may be a signature.
                metadata.push(("source-url", artifact.url.to_string()));
            }
            Source::Local(files) => {
                metadata.push(("installation", "local".to_owned()));
                metadata.push(("source-folder", files.folder.to_string()));
            }
        }
        metadata.push(("entry-point", spec.entry_point.as_str().to_owned()));
        metadata.extend(spec.arguments.iter().map(|argument| ("argument", argument.clone())));
        for (_, value) in &mut metadata {
            value.truncate(value.floor_char_boundary(VALUE_MAX));
        }
        Self { package: spec.name.as_str().into(), sha256: spec.source.sha256(), metadata }
    }
}

// === impl CheckId ===

impl CheckId {
    /// The id of the check of this content.
    #[must_use]
    pub fn of(salt: &[u8; 32], service_url: &str, package: &str, sha256: Sha256Digest) -> Self {
        let mut digest = Sha256::new();
        digest.update(salt);
        for part in [service_url.as_bytes(), package.as_bytes(), sha256.as_bytes()] {
            digest.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            digest.update(part);
        }
        Self(Sha256Digest::from_bytes(digest.finalize().into()).to_string().into())
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for CheckId {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for CheckId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::spec::tests::{local_spec, spec};

    #[test]
    fn a_question_names_the_content_and_tells_no_secret() {
        let spec = spec("a", "1");
        let question = Question::of(&spec);
        assert_eq!((&*question.package, question.sha256), ("a", spec.source.sha256()));
        let url = question.metadata.iter().find(|(key, _)| *key == "source-url").expect("a URL");
        assert_eq!(url.1, "https://store.example/a.tar.gz");
        assert!(question.metadata.contains(&("argument", "--verbose".to_owned())));
        assert!(!format!("{question:?}").contains("signature"), "{question:?}");
        let local = Question::of(&local_spec("a", "1"));
        assert!(local.metadata.contains(&("installation", "local".to_owned())));
    }

    #[test]
    fn an_id_is_of_everything_that_is_asked_and_of_this_start() {
        let (one, two) = (Sha256Digest::of(b"1"), Sha256Digest::of(b"2"));
        let id = |salt: u8, url, package, sha| CheckId::of(&[salt; 32], url, package, sha);
        let all = [
            id(0, "u", "p", one),
            id(1, "u", "p", one),
            id(0, "up", "", one),
            id(0, "", "up", one),
            id(0, "u", "p", two),
        ];
        let different: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(different.len(), all.len());
        assert_eq!(id(0, "u", "p", one), all[0]);
    }
}
