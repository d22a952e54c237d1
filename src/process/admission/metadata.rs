//! The metadata of a package, in pages. Pure.

use guest_agent_actors::admission::Metadatum;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_proto::cipd::plugin::{ListMetadataRequest, ListMetadataResponse};
use guest_agent_proto::cipd::{HashAlgo, InstanceMetadata, ObjectRef};
use tonic::Status;

/// Entries of a page for which the request gives no size, and of the largest page.
const PAGE_SIZE: usize = 20;
const PAGE_SIZE_MAX: usize = 1000;

/// Which part of all entries the caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Page {
    from: usize,
    size: usize,
}

/// The content that the question is about.
///
/// # Errors
/// INVALID_ARGUMENT: it is not named by its SHA-256.
pub(super) fn digest(instance: Option<&ObjectRef>) -> Result<Sha256Digest, Status> {
    let instance = instance.ok_or_else(|| Status::invalid_argument("instance is missing"))?;
    if instance.hash_algo != i32::from(HashAlgo::Sha256) {
        return Err(Status::invalid_argument("instance.hash_algo is not SHA256"));
    }
    let digest = instance.hex_digest.parse();
    digest.map_err(|error| Status::invalid_argument(format!("instance.hex_digest: {error}")))
}

impl Page {
    /// The page that a request wants.
    ///
    /// # Errors
    /// INVALID_ARGUMENT: this agent did not give out the page token.
    pub(super) fn of(request: &ListMetadataRequest) -> Result<Self, Status> {
        let from = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| {
                Status::invalid_argument("page_token is not a token of this service")
            })?,
        };
        let size = usize::try_from(request.page_size).ok().filter(|size| *size > 0);
        Ok(Self { from, size: size.unwrap_or(PAGE_SIZE).min(PAGE_SIZE_MAX) })
    }

    /// The part of the entries with these keys.
    pub(super) fn cut(self, all: Vec<Metadatum>, keys: &[String]) -> ListMetadataResponse {
        let wanted = |entry: &Metadatum| keys.is_empty() || keys.iter().any(|key| key == entry.key);
        let all: Vec<Metadatum> = all.into_iter().filter(wanted).collect();
        let to = self.from.saturating_add(self.size);
        let next_page_token = if to < all.len() { to.to_string() } else { String::new() };
        let metadata = all.iter().skip(self.from).take(self.size).map(message).collect();
        ListMetadataResponse { metadata, next_page_token }
    }
}

fn message(entry: &Metadatum) -> InstanceMetadata {
    let fingerprint = Sha256Digest::of(format!("{}\n{}", entry.key, entry.value).as_bytes());
    InstanceMetadata {
        key: entry.key.to_owned(),
        value: entry.value.clone().into_bytes(),
        content_type: "text/plain".to_owned(),
        fingerprint: fingerprint.to_string()[..32].to_owned(),
        attached_by: "guest-agent".to_owned(),
        attached_ts: Some(entry.at.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    fn entries(count: usize) -> Vec<Metadatum> {
        let entry = |number: usize| Metadatum {
            key: if number.is_multiple_of(2) { "even" } else { "odd" },
            value: number.to_string(),
            at: SystemTime::UNIX_EPOCH,
        };
        (0..count).map(entry).collect()
    }

    fn request(page_size: i32, page_token: &str) -> ListMetadataRequest {
        let page_token = page_token.to_owned();
        ListMetadataRequest { page_size, page_token, ..ListMetadataRequest::default() }
    }

    #[test]
    fn pages_follow_each_other_until_all_is_told() {
        for (size, pages) in [(0, 3), (-1, 3), (1, 45), (45, 1), (1_000_000, 1)] {
            let (mut seen, mut token, mut count) = (Vec::new(), String::new(), 0);
            loop {
                let page = Page::of(&request(size, &token)).expect("a good token");
                let response = page.cut(entries(45), &[]);
                seen.extend(response.metadata.into_iter().map(|entry| entry.value));
                count += 1;
                if response.next_page_token.is_empty() {
                    break;
                }
                token = response.next_page_token;
            }
            let all: Vec<_> = (0..45).map(|number: i32| number.to_string().into_bytes()).collect();
            assert_eq!((seen, count), (all, pages), "page_size {size}");
        }
    }

    #[test]
    fn only_the_keys_that_were_asked_for_are_told() {
        let page = Page::of(&request(2, "")).expect("no token");
        let response = page.cut(entries(10), &["odd".to_owned()]);
        let values: Vec<_> = response.metadata.into_iter().map(|entry| entry.value).collect();
        assert_eq!(values, [b"1", b"3"]);
        assert_eq!(response.next_page_token, "2");
    }

    #[test]
    fn what_nobody_gave_out_is_refused() {
        for bad in ["x", "-1", "99999999999999999999999"] {
            assert!(Page::of(&request(0, bad)).is_err(), "{bad:?}");
        }
        let beyond = Page::of(&request(0, "18446744073709551615")).expect("a number");
        assert!(beyond.cut(entries(3), &[]).metadata.is_empty());
        assert!(digest(None).is_err());
        let sha1 = ObjectRef { hash_algo: HashAlgo::Sha1.into(), hex_digest: "0".repeat(64) };
        assert!(digest(Some(&sha1)).is_err());
        let short = ObjectRef { hash_algo: HashAlgo::Sha256.into(), hex_digest: "0".repeat(63) };
        assert!(digest(Some(&short)).is_err());
    }
}
