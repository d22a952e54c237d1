//! Artifacts in a directory.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;
use futures_util::{StreamExt, stream};
use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::store::{
    ArtifactStore, Bounds, Claim, Deletion, DirectoryStore, Part, PutError,
};

use crate::artifacts::LONG;
use crate::artifacts::harness::{BOUNDS, bytes, chunks, collect, directory, put, temporary};

#[tokio::test]
async fn what_was_put_is_read_back_whole_and_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let store = directory(&root);
    let text = bytes(700_001);
    let stat = put(&store, &text).await.unwrap();
    assert_eq!((stat.digest, stat.length), (Digest::of(&text), 700_001));
    assert_eq!(store.stat(&stat.digest).await.unwrap(), Some(stat));
    let (got, error) = collect(store.open(&stat.digest, None).await.unwrap().unwrap()).await;
    assert!(error.is_none() && got == text);
    for (first, length) in [(0_usize, 1_usize), (699_999, 2), (262_143, 300_000), (5, 0)] {
        let part = Part { first: first as u64, length: length as u64 };
        let opened = store.open(&stat.digest, Some(part)).await.unwrap().unwrap();
        let (got, error) = collect(opened).await;
        assert!(error.is_none() && got == text[first..first + length], "{part:?}");
    }
    for path in [root.clone(), root.join("tmp")] {
        assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o700);
    }
    assert!(temporary(&root).is_empty());
    let again = directory(&root);
    assert_eq!(again.stat(&stat.digest).await.unwrap(), Some(stat), "after a restart");
}

#[tokio::test]
async fn the_digest_is_found_where_it_is_not_claimed() {
    let folder = tempfile::tempdir().unwrap();
    let store = directory(folder.path());
    let text = bytes(3_000_000);
    let stat = store.put(Claim::default(), chunks(&text, 7_777)).await.unwrap();
    assert_eq!(stat.digest, Digest::of(&text));
    let none = store.put(Claim::default(), stream::empty().boxed()).await.unwrap();
    assert_eq!((none.digest, none.length), (Digest::of(b""), 0));
}

#[tokio::test]
async fn of_what_is_not_as_claimed_nothing_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let bounds = Bounds { artifact: 2_000_000, ..BOUNDS };
    let store = DirectoryStore::open(folder.path(), bounds).unwrap();
    let text = bytes(1_500_000);
    let digest = Some(Digest::of(&text));
    let claim = |digest, length| Claim { digest, length };
    let other = claim(Some(Digest::of(b"other")), None);
    let error = store.put(other, chunks(&text, 100_000)).await.unwrap_err();
    assert!(matches!(error, PutError::WrongDigest { .. }), "{error}");
    for wrong in [1_499_999, 1_500_001] {
        let error = store.put(claim(digest, Some(wrong)), chunks(&text, 100_000)).await;
        assert!(matches!(error, Err(PutError::WrongLength { .. })), "{wrong}");
    }
    let putting = store.put(claim(digest, Some(2_000_001)), stream::pending().boxed());
    let error = tokio::time::timeout(LONG, putting).await.unwrap();
    assert!(matches!(error, Err(PutError::TooLarge { .. })), "refused before its bytes");
    let large = bytes(2_000_001);
    let error = store.put(Claim::default(), chunks(&large, 100_000)).await;
    assert!(matches!(error, Err(PutError::TooLarge { .. })));
    let broken = chunks(&text, 100_000)
        .take(12)
        .chain(stream::iter([Err(std::io::Error::other("the client went away"))]));
    let error = store.put(claim(digest, None), broken.boxed()).await;
    assert!(matches!(error, Err(PutError::Incomplete(_))));
    assert_eq!(store.list(None, 10).await.unwrap(), []);
    assert!(temporary(folder.path()).is_empty());
}

#[tokio::test]
async fn an_aborted_put_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let store = directory(folder.path());
    let text = bytes(2_500_000);
    let task = tokio::spawn({
        let store = store.clone();
        async move {
            let endless = chunks(&text, 100_000).chain(stream::pending()).boxed();
            store.put(Claim::default(), endless).await
        }
    });
    while temporary(folder.path()).is_empty() {
        tokio::task::yield_now().await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let root = folder.path().to_owned();
    let gone =
        move || crate::artifacts::harness::until("it is removed", || temporary(&root).is_empty());
    tokio::task::spawn_blocking(gone).await.unwrap();
}

#[tokio::test]
async fn writers_of_one_artifact_do_not_disturb_each_other() {
    let folder = tempfile::tempdir().unwrap();
    // As two processes have it.
    let (one, other) = (directory(folder.path()), directory(folder.path()));
    let text = bytes(2_000_000);
    let puts = (0..8).map(|at| put(if at % 2 == 0 { &one } else { &other }, &text));
    for put in join_all(puts).await {
        assert_eq!(put.unwrap().digest, Digest::of(&text));
    }
    assert_eq!(one.list(None, 10).await.unwrap().len(), 1);
    let opened = other.open(&Digest::of(&text), None).await.unwrap().unwrap();
    assert_eq!(collect(opened).await.0, text);
    assert!(temporary(folder.path()).is_empty());
}

#[tokio::test]
async fn putting_again_repairs_a_damaged_artifact_and_makes_it_young() {
    let folder = tempfile::tempdir().unwrap();
    let store = directory(folder.path());
    let text = bytes(10_000);
    let digest = put(&store, &text).await.unwrap().digest;
    let shown = digest.to_string();
    let path = folder.path().join(&shown[..2]).join(&shown[2..]);
    std::fs::write(&path, b"damaged").unwrap();
    let old = SystemTime::now() - Duration::from_secs(100_000);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(old).unwrap();
    let before = SystemTime::now() - Duration::from_secs(1000);
    put(&store, &text).await.unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), text);
    assert_eq!(store.delete(&digest, before).await.unwrap(), Deletion::TooYoung);
}

#[tokio::test]
async fn artifacts_are_listed_in_pages_and_deleted_when_old_enough() {
    let folder = tempfile::tempdir().unwrap();
    let store = directory(folder.path());
    let mut digests = Vec::new();
    for number in 0..30_u8 {
        digests.push(put(&store, &Bytes::from(vec![number])).await.unwrap().digest);
    }
    digests.sort();
    let (mut listed, mut after) = (Vec::new(), None);
    loop {
        let page = store.list(after.as_ref(), 7).await.unwrap();
        let Some(last) = page.last() else { break };
        after = Some(last.digest);
        listed.extend(page.iter().map(|stat| stat.digest));
    }
    assert_eq!(listed, digests);
    let later = SystemTime::now() + Duration::from_secs(10);
    assert_eq!(store.delete(&digests[0], later).await.unwrap(), Deletion::Deleted);
    assert_eq!(store.delete(&digests[0], later).await.unwrap(), Deletion::Absent);
    let earlier = SystemTime::now() - Duration::from_secs(1000);
    assert_eq!(store.delete(&digests[1], earlier).await.unwrap(), Deletion::TooYoung);
    assert_eq!(store.list(None, 100).await.unwrap().len(), 29);
}

#[tokio::test]
async fn what_others_put_into_the_directory_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let store = directory(folder.path());
    let digest = Digest::of(b"a secret of this machine");
    let shown = digest.to_string();
    let shard = folder.path().join(&shown[..2]);
    std::fs::create_dir_all(&shard).unwrap();
    std::fs::write(folder.path().join("secret"), b"a secret of this machine").unwrap();
    symlink(folder.path().join("secret"), shard.join(&shown[2..])).unwrap();
    std::fs::write(shard.join("README"), b"hello").unwrap();
    std::fs::write(folder.path().join("no"), b"hello").unwrap();
    std::fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(store.stat(&digest).await.unwrap(), None);
    assert!(store.open(&digest, None).await.is_err(), "a link is not followed");
    assert_eq!(store.list(None, 10).await.unwrap(), []);
}

#[tokio::test]
async fn a_directory_that_others_may_write_to_is_refused_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    std::fs::create_dir(&root).unwrap();
    std::fs::set_permissions(&root, std::fs::Permissions::from_mode(0o777)).unwrap();
    let error = DirectoryStore::open(&root, BOUNDS).unwrap_err();
    assert!(error.source.to_string().contains("chmod 700"), "{error:?}");
}
