//! Artifacts in a bucket, and how agents get them from there.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use guest_agent_proto::artifact;
use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::listener::{ArtifactListener, Delivery};
use guest_fleet_server::artifacts::store::{
    ArtifactStore, BucketStore, Claim, Deletion, Fetch, Part, PutError,
};

use crate::artifacts::LONG;
use crate::artifacts::harness::{BOUNDS, PLUGIN, bytes, chunks, client, collect, options, put};
use crate::artifacts::s3::{PREFIX, S3};

async fn start() -> (S3, BucketStore) {
    let s3 = S3::start().await;
    let store = BucketStore::open(s3.options(), BOUNDS).await.unwrap();
    (s3, store)
}

/// A listener of the bucket that gives artifacts out like this.
async fn listen(store: BucketStore, delivery: Delivery) -> ArtifactListener {
    let mut options = options(Arc::new(store));
    options.delivery = delivery;
    ArtifactListener::start(options).await.unwrap()
}

#[tokio::test]
async fn a_small_artifact_is_put_in_one_request_and_a_large_one_in_parts() {
    let (s3, store) = start().await;
    let small = bytes(100_000);
    put(&store, &small).await.unwrap();
    assert_eq!(s3.calls("POST"), 0);
    assert_eq!(s3.content().objects[&S3::key(&Digest::of(&small))], small);
    let large = bytes((20 << 20) + 5);
    put(&store, &large).await.unwrap();
    assert_eq!((s3.calls("POST uploads"), s3.calls("PUT uploadId")), (1, 3));
    assert_eq!(s3.content().objects[&S3::key(&Digest::of(&large))], large);
    for text in [small, large] {
        let digest = Digest::of(&text);
        let stat = store.stat(&digest).await.unwrap().unwrap();
        assert_eq!((stat.length, stat.modified), (text.len() as u64, S3::written()));
        let (got, error) = collect(store.open(&digest, None).await.unwrap().unwrap()).await;
        assert!(error.is_none() && got == text);
    }
}

#[tokio::test]
async fn an_artifact_whose_digest_is_not_claimed_gets_its_name_in_the_end() {
    let (s3, store) = start().await;
    let text = bytes(300_000);
    let stat = store.put(Claim::default(), chunks(&text, 10_000)).await.unwrap();
    assert_eq!(stat.digest, Digest::of(&text));
    let content = s3.content();
    assert_eq!(content.objects.keys().collect::<Vec<_>>(), [&S3::key(&stat.digest)]);
}

#[tokio::test]
async fn of_what_is_not_as_claimed_nothing_is_in_the_bucket() {
    let (s3, store) = start().await;
    for length in [100_000, 17 << 20] {
        let text = bytes(length);
        let claim = Claim { digest: Some(Digest::of(b"other")), length: None };
        let error = store.put(claim, chunks(&text, 1 << 20)).await.unwrap_err();
        assert!(matches!(error, PutError::WrongDigest { .. }), "{error}");
        let broken = chunks(&text, 1 << 20)
            .chain(stream::iter([Err(std::io::Error::other("the client went away"))]));
        let claim = Claim { digest: Some(Digest::of(&text)), length: None };
        let error = store.put(claim, broken.boxed()).await.unwrap_err();
        assert!(matches!(error, PutError::Incomplete(_)), "{error}");
    }
    // Parts are taken back by tasks of their own.
    let deadline = tokio::time::Instant::now() + LONG;
    while !s3.content().uploads.is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "parts are left");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(s3.content().objects.is_empty());
    assert_eq!(s3.calls("DELETE uploadId"), 2);
}

#[tokio::test]
async fn a_busy_bucket_is_asked_again() {
    let (s3, store) = start().await;
    s3.content().failures = 2;
    let text = bytes(1000);
    put(&store, &text).await.unwrap();
    s3.content().failures = 2;
    assert!(store.stat(&Digest::of(&text)).await.unwrap().is_some());
}

#[tokio::test]
async fn what_was_changed_in_the_bucket_never_comes_whole() {
    let (s3, store) = start().await;
    let text = bytes(200_000);
    let digest = put(&store, &text).await.unwrap().digest;
    let mut damaged = text.to_vec();
    damaged[100_000] ^= 1;
    s3.content().objects.insert(S3::key(&digest), damaged.into());
    for part in
        [None, Some(Part { first: 0, length: 10 }), Some(Part { first: 5, length: 199_995 })]
    {
        let (got, error) = collect(store.open(&digest, part).await.unwrap().unwrap()).await;
        let whole = part.map_or(200_000, |part| part.length);
        assert!(error.is_some() && (got.len() as u64) < whole, "{part:?}");
    }
}

#[tokio::test]
async fn a_part_is_fetched_alone_once_the_whole_was_verified() {
    let (s3, store) = start().await;
    let text = bytes(200_000);
    let digest = put(&store, &text).await.unwrap().digest;
    let part = Some(Part { first: 100, length: 50 });
    for ranges in [0, 1, 2] {
        let (got, error) = collect(store.open(&digest, part).await.unwrap().unwrap()).await;
        assert!(error.is_none() && got == text[100..150]);
        assert_eq!(s3.calls("GET bytes=100-149"), ranges);
    }
    // A version that nobody verified is read whole again.
    s3.content().objects.insert(S3::key(&digest), bytes(150_000));
    let (got, error) = collect(store.open(&digest, part).await.unwrap().unwrap()).await;
    assert!(error.is_some() && got.is_empty());
}

#[tokio::test]
async fn artifacts_are_listed_in_pages_and_deleted_when_old_enough() {
    let (s3, store) = start().await;
    s3.content().objects.insert(format!("{PREFIX}/sha256/README"), Bytes::from("by hand"));
    s3.content().objects.insert("elsewhere".to_owned(), Bytes::from("of another program"));
    let mut digests = Vec::new();
    for number in 0..5_u8 {
        digests.push(put(&store, &Bytes::from(vec![number])).await.unwrap().digest);
    }
    digests.sort();
    let first = store.list(None, 3).await.unwrap();
    let rest = store.list(Some(&first[2].digest), 3).await.unwrap();
    let listed: Vec<_> = first.iter().chain(&rest).map(|stat| stat.digest).collect();
    assert_eq!(listed, digests);
    let later = S3::written() + Duration::from_secs(1);
    assert_eq!(store.delete(&digests[0], S3::written()).await.unwrap(), Deletion::TooYoung);
    assert_eq!(store.delete(&digests[0], later).await.unwrap(), Deletion::Deleted);
    assert_eq!(store.delete(&digests[0], later).await.unwrap(), Deletion::Absent);
    assert_eq!(s3.content().objects.len(), 6);
}

#[tokio::test]
async fn agents_are_sent_to_an_address_that_is_signed_for_a_while() {
    let (_s3, store) = start().await;
    let text = bytes(200_000);
    let digest = put(&store, &text).await.unwrap().digest;
    let listener = listen(store, Delivery::Redirect(Duration::from_secs(300))).await;
    let url = format!("{}{}", listener.endpoint(), artifact::path(PLUGIN, digest));
    let answer = client().get(&url).send().await.unwrap();
    assert_eq!(answer.status(), 307);
    assert_eq!(answer.headers()["cache-control"], "private, no-store");
    let address = answer.headers()["location"].to_str().unwrap();
    assert!(address.contains("X-Amz-Expires=300") && address.contains("X-Amz-Signature="));
    assert!(!answer.headers().contains_key("etag"), "the bucket has tags of its own");

    let follows = reqwest::Client::builder().no_proxy().build().unwrap();
    let whole = follows.get(&url).send().await.unwrap();
    let tag = whole.headers()["etag"].clone();
    assert_eq!(whole.bytes().await.unwrap(), text);
    let rest = follows.get(&url).header("range", "bytes=150000-").header("if-range", tag);
    let rest = rest.send().await.unwrap();
    assert_eq!(rest.status(), 206);
    assert_eq!(rest.bytes().await.unwrap(), text[150_000..]);
    let head = follows.head(&url).send().await.unwrap();
    assert_eq!(head.headers()["content-length"], "200000");
    let missing = artifact::path(PLUGIN, Digest::of(b"missing"));
    let missing = follows.get(format!("{}{missing}", listener.endpoint())).send().await.unwrap();
    assert_eq!(
        crate::artifacts::harness::code(missing).await,
        (404, "artifact_missing".to_owned())
    );
}

#[tokio::test]
async fn where_agents_cannot_reach_the_bucket_artifacts_come_through_the_listener() {
    let (s3, store) = start().await;
    let text = bytes(200_000);
    let digest = put(&store, &text).await.unwrap().digest;
    let listener = listen(store, Delivery::Stream).await;
    let url = format!("{}{}", listener.endpoint(), artifact::path(PLUGIN, digest));
    let whole = client().get(&url).send().await.unwrap();
    assert_eq!(whole.headers()["etag"], format!("\"{digest}\""));
    assert_eq!(whole.bytes().await.unwrap(), text);
    let rest = client().get(&url).header("range", "bytes=150000-").send().await.unwrap();
    assert_eq!((rest.status().as_u16(), rest.bytes().await.unwrap()), (206, text.slice(150_000..)));

    let mut damaged = text.to_vec();
    damaged[0] ^= 1;
    s3.content().objects.insert(S3::key(&digest), damaged.into());
    let answer = client().get(&url).send().await.unwrap();
    assert!(answer.bytes().await.is_err(), "the connection breaks before the end");
}

#[tokio::test]
async fn a_bucket_that_does_not_answer_or_permit_is_an_error_at_the_start() {
    let s3 = S3::start().await;
    let mut options = s3.options();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nobody = listener.local_addr().unwrap();
    drop(listener);
    options.endpoint = Some(format!("http://{nobody}"));
    let error = BucketStore::open(options, BOUNDS).await.unwrap_err();
    assert!(error.to_string().contains("s3://artifacts/fleet/one"), "{error}");
}

#[tokio::test]
async fn an_address_is_a_secret_and_says_what_it_is_for() {
    let (_s3, store) = start().await;
    let digest = Digest::of(b"it");
    let lifetime = Duration::from_secs(60);
    let bytes = store.address(&digest, Fetch::Bytes, lifetime).await.unwrap().unwrap();
    let headers = store.address(&digest, Fetch::Headers, lifetime).await.unwrap().unwrap();
    assert_ne!(bytes, headers);
    assert!(!format!("{store:?}").contains("a secret"));
}
