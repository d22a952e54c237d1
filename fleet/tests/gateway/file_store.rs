//! The file store: what it saved is there after a restart, and one bad file does not harm the
//! records in other files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use guest_agent_proto::agent_controlplane::{AgentInfo, PluginEventMessage};
use guest_fleet::store::{
    Appended, FileStore, MemoryStore, Report, Store, StoreBounds, StoreError,
};

use crate::client::install;

fn open(directory: &Path) -> FileStore {
    FileStore::open(directory, StoreBounds::default()).unwrap()
}

fn event(details: &str) -> PluginEventMessage {
    PluginEventMessage { event_details: Some(details.into()), ..Default::default() }
}

fn files(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|found| found == extension));
    files
}

#[tokio::test]
async fn everything_survives_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let at = SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1_700_000_000_123);
    let info = AgentInfo { name: "agent".into(), ..AgentInfo::default() };
    let store = open(directory.path());
    store.record_configuration("a/b", "1", &install("p", "1")).await.unwrap();
    store.record_configuration("a/b", "2", &install("q", "1")).await.unwrap();
    store.settle_configuration("a/b", "1").await.unwrap();
    assert_eq!(store.append_event("a/b", "e", at, &event("x")).await.unwrap(), Appended::New(1));
    store.record_report("a/b", at, Report::AgentInfo(info.clone())).await.unwrap();
    drop(store);

    let store = open(directory.path());
    assert!(store.set_aside().is_empty());
    assert_eq!(store.resources().await.unwrap(), ["a/b"]);
    let pending = store.pending_configurations("a/b").await.unwrap();
    assert_eq!(pending.len(), 1);
    assert_eq!((pending[0].message_id.as_str(), &pending[0].states), ("2", &install("q", "1")));
    assert_eq!(store.desired("a/b").await.unwrap().len(), 2);
    let events = store.events("a/b").await.unwrap();
    assert_eq!((events[0].sequence, events[0].received_at), (1, at));
    assert_eq!(events[0].event, event("x"));
    assert_eq!(store.append_event("a/b", "e", at, &event("x")).await.unwrap(), Appended::Duplicate);
    assert_eq!(store.append_event("a/b", "f", at, &event("y")).await.unwrap(), Appended::New(2));
    let reported = store.reports("a/b").await.unwrap().agent_info.unwrap();
    assert_eq!((reported.at, reported.value), (at, info));
}

#[tokio::test]
async fn a_torn_file_is_set_aside_and_the_others_go_on() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    store.record_configuration("good", "1", &install("p", "1")).await.unwrap();
    let good = files(directory.path(), "agent");
    store.record_configuration("bad", "1", &install("p", "1")).await.unwrap();
    drop(store);
    let bad = files(directory.path(), "agent").into_iter().find(|f| !good.contains(f)).unwrap();
    let whole = fs::read(&bad).unwrap();
    fs::write(&bad, &whole[..whole.len() - 1]).unwrap();
    // A half-written replacement is left over, too.
    fs::write(bad.with_added_extension("new"), "half").unwrap();
    // Something that cannot even be read stops nobody either.
    fs::create_dir(directory.path().join("folder.agent")).unwrap();

    let store = open(directory.path());
    assert_eq!(store.set_aside().len(), 1);
    assert_eq!(fs::read(&store.set_aside()[0]).unwrap(), &whole[..whole.len() - 1]);
    assert!(files(directory.path(), "new").is_empty());
    assert_eq!(store.resources().await.unwrap(), ["good"]);
    assert!(store.desired("bad").await.unwrap().is_empty());
    assert_eq!(store.desired("good").await.unwrap().len(), 1);
    // It can be written again, and damaged again, without losing the first evidence.
    store.record_configuration("bad", "2", &install("p", "2")).await.unwrap();
    fs::write(&bad, "").unwrap();
    assert!(store.desired("bad").await.unwrap().is_empty());
    assert_eq!(store.set_aside().len(), 2);
}

#[tokio::test]
async fn a_store_takes_no_more_agents_than_its_bound() {
    let directory = tempfile::tempdir().unwrap();
    let bounds = StoreBounds { agents: 1, ..StoreBounds::default() };
    let memory = MemoryStore::new(bounds);
    let file = FileStore::open(directory.path(), bounds).unwrap();
    let stores: [&dyn Store; 2] = [&memory, &file];
    for store in stores {
        let mut refused = None;
        for number in 0..10 {
            let info = Report::AgentInfo(AgentInfo::default());
            let agent = number.to_string();
            refused = refused.or(store.record_report(&agent, SystemTime::now(), info).await.err());
        }
        assert!(matches!(refused, Some(StoreError::Full(1))), "{refused:?}");
        // Those that are known go on.
        let info = Report::AgentInfo(AgentInfo::default());
        store.record_report("0", SystemTime::now(), info).await.unwrap();
    }
}

#[tokio::test]
async fn files_are_for_the_owner_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("state");
    let store = open(&path);
    store.record_configuration("a", "1", &install("p", "1")).await.unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!(mode(&files(&path, "agent")[0]), 0o600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn simultaneous_changes_of_one_agent_are_all_kept() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(directory.path());
    let mut tasks = Vec::new();
    for number in 0..20 {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            let id = number.to_string();
            store.append_event("a", &id, SystemTime::now(), &event(&id)).await.unwrap()
        }));
    }
    for task in tasks {
        assert!(matches!(task.await.unwrap(), Appended::New(_)));
    }
    let events = store.events("a").await.unwrap();
    let sequences: Vec<_> = events.iter().map(|event| event.sequence).collect();
    assert_eq!(sequences, (1..=20).collect::<Vec<_>>());
}
