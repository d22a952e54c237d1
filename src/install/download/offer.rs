//! In which forms a request offers to take an archive, and in which one it came.
//!
//! ```text
//! Offer ─► Accept-Encoding, Available-Dictionary ─► Content-Encoding ─► Coding ─► expand
//! ```
//!
//! `zstd` and `dcz` are content codings (RFC 8878, RFC 9659, RFC 9842): the archive, its checksum
//! and its signature stay what they are without them. They are offered to the server that the order
//! names alone, and never with a query, which may be the signature of an address in a bucket.

use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::ports::ContentCoding;
use reqwest::Url;
use reqwest::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderName, HeaderValue};

use crate::install::window_budget::Hold;

/// Names the dictionary that a request offers (RFC 9842, section 2.2).
const AVAILABLE_DICTIONARY: HeaderName = HeaderName::from_static("available-dictionary");

/// Repeats the name that the server gave the dictionary (RFC 9842, section 2.3).
const DICTIONARY_ID: HeaderName = HeaderName::from_static("dictionary-id");

/// Ends of paths that name archives that are compressed already.
const COMPRESSED: &[&str] = &[".gz", ".tgz", ".zst", ".tzst", ".xz", ".txz", ".zip", ".bz2"];

/// An archive of the cache that may be a dictionary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::install) struct OfferedDictionary {
    /// Its checksum.
    pub(in crate::install) sha256: Sha256Digest,
    /// Its file.
    pub(in crate::install) path: PathBuf,
    /// Its size, in bytes.
    pub(in crate::install) bytes: u64,
    /// The server's name for it; may be empty.
    pub(in crate::install) id: String,
}

/// The forms that a request offers to take.
#[derive(Clone, Debug, Default)]
pub(in crate::install) struct Offer {
    /// The memory for undoing a coding. Without it the archive is taken as it is only.
    pub(in crate::install) memory: Option<Arc<Hold>>,
    /// The dictionary.
    pub(in crate::install) dictionary: Option<OfferedDictionary>,
}

/// The form in which an archive came.
#[derive(Clone, Debug)]
pub(in crate::install) enum Coding {
    /// As it is.
    Identity,
    /// Compressed.
    Zstd(Arc<Hold>),
    /// As what changed since the dictionary.
    Delta(Arc<Hold>, OfferedDictionary),
}

// === impl Offer ===

impl Offer {
    /// Offers no coding.
    pub(in crate::install) fn nothing() -> Self {
        Self::default()
    }

    /// The offer as it may be made to this URL of an order.
    pub(in crate::install) fn at(&self, url: &Url) -> Self {
        let path = url.path().to_ascii_lowercase();
        let is_compressed = COMPRESSED.iter().any(|end| path.ends_with(end));
        match url.query() {
            None if !is_compressed => self.clone(),
            _ => Self::nothing(),
        }
    }

    /// Whether it offers anything.
    pub(in crate::install) fn is_something(&self) -> bool {
        self.memory.is_some()
    }

    /// Adds what it offers to the headers of a request.
    pub(in crate::install) fn describe(&self, headers: &mut HeaderMap) {
        let codings = match (&self.memory, &self.dictionary) {
            (None, _) => "identity",
            (Some(_), None) => "zstd",
            (Some(_), Some(_)) => "dcz, zstd",
        };
        headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(codings));
        let (Some(_), Some(dictionary)) = (&self.memory, &self.dictionary) else { return };
        let hash = format!(":{}:", BASE64.encode(dictionary.sha256.as_bytes()));
        if let Ok(hash) = HeaderValue::try_from(hash) {
            headers.insert(AVAILABLE_DICTIONARY, hash);
        }
        // What the id has was read from a structured field; quotes and backslashes are escaped.
        let id = sfv::StringRef::from_str(&dictionary.id).ok();
        if let Some(id) = id.filter(|id| !id.as_str().is_empty())
            && let Ok(id) = HeaderValue::try_from(sfv::ItemSerializer::new().bare_item(id).finish())
        {
            headers.insert(DICTIONARY_ID, id);
        }
    }

    /// The form in which the archive came. An encoding that was not offered is part of the archive:
    /// some servers call a file that is compressed an encoded one.
    pub(in crate::install) fn answered(&self, headers: &HeaderMap) -> Coding {
        let mut values = headers.get_all(CONTENT_ENCODING).iter();
        let named = match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().unwrap_or_default().trim(),
            _ => "",
        };
        match (&self.memory, &self.dictionary) {
            (Some(memory), _) if named.eq_ignore_ascii_case("zstd") => {
                Coding::Zstd(Arc::clone(memory))
            }
            (Some(memory), Some(dictionary)) if named.eq_ignore_ascii_case("dcz") => {
                Coding::Delta(Arc::clone(memory), dictionary.clone())
            }
            _ => Coding::Identity,
        }
    }
}

// === impl Coding ===

impl Coding {
    /// Its name in counts.
    pub(in crate::install) fn name(&self) -> ContentCoding {
        match self {
            Self::Identity => ContentCoding::Identity,
            Self::Zstd(_) => ContentCoding::Zstd,
            Self::Delta(..) => ContentCoding::Delta,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::window_budget::WindowBudget;

    async fn offer(id: &str) -> Offer {
        let memory = Arc::<WindowBudget>::default().take(0, || {}).await;
        let dictionary = OfferedDictionary {
            sha256: Sha256Digest::of(b"a dictionary"),
            path: "/nowhere".into(),
            bytes: 12,
            id: id.to_owned(),
        };
        Offer { memory: Some(Arc::new(memory)), dictionary: Some(dictionary) }
    }

    fn sent(offer: &Offer) -> Vec<(String, String)> {
        let mut headers = HeaderMap::new();
        offer.describe(&mut headers);
        let text = |value: &HeaderValue| value.to_str().expect("text").to_owned();
        headers.iter().map(|(name, value)| (name.to_string(), text(value))).collect()
    }

    #[tokio::test]
    async fn the_dictionary_is_named_by_its_raw_hash() {
        let sent = sent(&offer("a \"name\"").await);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let hash = BASE64.encode(Sha256Digest::of(b"a dictionary").as_bytes());
        assert_eq!(hash.len(), 44);
        assert!(sent.contains(&pair("available-dictionary", &format!(":{hash}:"))), "{sent:?}");
        assert!(sent.contains(&pair("dictionary-id", r#""a \"name\"""#)), "{sent:?}");
        assert!(sent.contains(&pair("accept-encoding", "dcz, zstd")), "{sent:?}");
    }

    #[tokio::test]
    async fn a_signed_address_and_a_compressed_archive_are_taken_as_they_are() {
        let offer = offer("").await;
        for (url, is_offered) in [
            ("https://a/artifacts/echo/00ff", true),
            ("https://a/b.tar", true),
            ("https://a/b?X-Amz-Signature=1", false),
            ("https://a/b?", false),
            ("https://a/b.tar.gz", false),
            ("https://a/b.TGZ", false),
            ("https://a/b.tar.zst", false),
        ] {
            let offer = offer.at(&Url::parse(url).expect("a URL"));
            assert_eq!(offer.is_something(), is_offered, "{url}");
        }
        let identity = [("accept-encoding".to_owned(), "identity".to_owned())];
        assert_eq!(sent(&Offer::nothing()), identity);
    }

    #[tokio::test]
    async fn only_what_was_offered_is_undone() {
        let offer = offer("").await;
        let zstd_only = Offer { dictionary: None, ..offer.clone() };
        let answered = |offer: &Offer, value: &'static str| {
            let value = HeaderValue::from_static(value);
            offer.answered(&HeaderMap::from_iter([(CONTENT_ENCODING, value)])).name()
        };
        assert_eq!(answered(&offer, "dcz"), ContentCoding::Delta);
        assert_eq!(answered(&offer, " ZSTD "), ContentCoding::Zstd);
        assert_eq!(answered(&zstd_only, "dcz"), ContentCoding::Identity);
        assert_eq!(answered(&zstd_only, "zstd"), ContentCoding::Zstd);
        assert_eq!(answered(&Offer::nothing(), "zstd"), ContentCoding::Identity);
        for other in ["gzip", "identity", "zstd, dcz", ""] {
            assert_eq!(answered(&offer, other), ContentCoding::Identity, "{other}");
        }
        assert_eq!(offer.answered(&HeaderMap::new()).name(), ContentCoding::Identity);
    }
}
