//! A disk without room.

use std::sync::Arc;

use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::store::{
    ArtifactStore, Bounds, Claim, DirectoryStore, PutError,
};

use crate::artifacts::LONG;
use crate::artifacts::harness::{
    BOUNDS, Rig, TOKEN, bytes, chunks, client, code, directory, put, temporary, until,
};
use crate::small_disk::SmallDisk;

#[tokio::test]
async fn an_artifact_without_room_is_refused_and_leaves_nothing() {
    let Some(disk) = SmallDisk::mount(8) else { return };
    let store = directory(disk.path());
    let free = || rustix::fs::statvfs(disk.path()).unwrap().f_bfree;
    let before = free();
    let large = bytes(20 << 20);
    let claim = Claim { digest: None, length: Some(20 << 20) };
    let error = store.put(claim, futures_util::StreamExt::boxed(futures_util::stream::pending()));
    let error = tokio::time::timeout(LONG, error).await.unwrap().unwrap_err();
    assert!(matches!(error, PutError::NoRoom { .. }), "refused before its bytes: {error}");
    let error = store.put(Claim::default(), chunks(&large, 100_000)).await.unwrap_err();
    assert!(matches!(error, PutError::NoRoom { .. }), "refused on the way: {error}");
    assert!(error.to_string().contains("guest-fleet artifact gc"), "{error}");
    assert!(temporary(disk.path()).is_empty());
    // A process that another test has just forked holds the removed file open until it executes its program.
    until("the removed file gives its room back", || free() == before);
    let small = bytes(1 << 20);
    assert_eq!(put(&store, &small).await.unwrap().digest, Digest::of(&small), "it goes on");
}

#[tokio::test]
async fn uploads_leave_the_reserve_free() {
    let Some(disk) = SmallDisk::mount(8) else { return };
    let bounds = Bounds { reserve: 6 << 20, ..BOUNDS };
    let store = DirectoryStore::open(disk.path(), bounds).unwrap();
    put(&store, &bytes(1 << 20)).await.unwrap();
    let error = put(&store, &bytes(2 << 20)).await.unwrap_err();
    assert!(matches!(error, PutError::NoRoom { reserve: 6_291_456, .. }), "{error}");
}

#[tokio::test]
async fn a_client_is_told_that_there_is_no_room_and_not_where() {
    let Some(disk) = SmallDisk::mount(8) else { return };
    let store = Arc::new(directory(disk.path()));
    let rig = Rig::with(|options| options.store = store).await;
    let large = bytes(20 << 20);
    let request = client().put(rig.url(&Digest::of(&large))).bearer_auth(TOKEN).body(large);
    let answer = request.send().await.unwrap();
    assert_eq!(code(answer).await, (507, "no_room".to_owned()));
}
