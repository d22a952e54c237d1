//! A process that is killed while it writes.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command};

use futures_util::{StreamExt, stream};
use guest_fleet_server::artifacts::store::{ArtifactStore, Claim};

use crate::artifacts::harness::{bytes, chunks, directory, put, temporary, until};

/// Where the process that is killed writes to.
const STORE: &str = "GUEST_FLEET_TEST_STORE";

/// What the process does that is killed: this test, started by the other one.
#[tokio::test]
#[ignore = "it never ends; another test starts it and kills it"]
async fn a_writer_that_never_ends() {
    let root: PathBuf = std::env::var_os(STORE).unwrap().into();
    let endless = chunks(&bytes(5_000_000), 100_000).chain(stream::pending::<io::Result<_>>());
    drop(directory(&root).put(Claim::default(), endless.boxed()).await);
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

#[tokio::test]
async fn what_a_killed_process_wrote_is_removed_by_the_next_start_and_not_before() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    drop(directory(&root));
    let mut writer = Killed(
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "artifacts::killed::a_writer_that_never_ends",
                "--ignored",
                "--nocapture",
            ])
            .env(STORE, &root)
            .spawn()
            .unwrap(),
    );
    let has_written = || {
        let names = temporary(&root);
        let lengths = names.iter().map(|name| std::fs::metadata(root.join("tmp").join(name)));
        lengths.flatten().any(|metadata| metadata.len() > 1_000_000)
    };
    until("it writes", has_written);
    // Another process starts meanwhile, and removes nothing of a living one.
    let store = directory(&root);
    assert_eq!(temporary(&root).len(), 1);
    writer.0.kill().unwrap();
    writer.0.wait().unwrap();
    assert_eq!(store.list(None, 10).await.unwrap(), [], "nothing has a name");
    assert_eq!(temporary(&root).len(), 1, "only a temporary file is left");
    let store = directory(&root);
    assert!(temporary(&root).is_empty());
    let text = bytes(1000);
    put(&store, &text).await.unwrap();
}
