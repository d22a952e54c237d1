use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

use guest_fleet_ledger::{Change, Revision};
use tempfile::TempDir;

use super::*;

/// A directory with a key, whose files only their owner can use.
pub(crate) fn directory() -> TempDir {
    let folder = tempfile::tempdir().expect("a directory");
    write(folder.path(), KEY, b"0123456789abcdef\n");
    folder
}

pub(crate) fn write(folder: &Path, name: &str, content: &[u8]) {
    let staged = folder.join(".staged");
    fs::write(&staged, content).expect("it is written");
    fs::set_permissions(&staged, Permissions::from_mode(0o640)).expect("it has a mode");
    fs::rename(staged, folder.join(name)).expect("it has its name");
}

/// The secrets of a directory that was looked at twice, so that they may be recorded.
pub(crate) async fn opened(folder: &Path) -> Secrets {
    let secrets = Secrets::open(folder).await.expect("they are opened");
    secrets.refresh().await;
    secrets
}

fn name(text: &str) -> SecretName {
    SecretName::new(text).expect("a name")
}

/// Records in the ledger what was asked for, as the gateway of this host.
pub(crate) fn record(secrets: &Secrets, ledger: &mut Configuration, host: &str) {
    for write in secrets.to_record(ledger, (host, Seconds(1_767_225_600))) {
        let expected = ledger.revision(&write.key);
        assert_eq!(write.expected, expected);
        let revision = Revision(expected.0 + 1);
        ledger.change(&Change { key: write.key, revision, value: write.value });
    }
}

/// The secret in a ledger that has recorded nothing before.
fn find(secrets: &Secrets, text: &str) -> Result<String, String> {
    let mut ledger = Configuration::default();
    drop(secrets.find(&name(text), &ledger));
    record(secrets, &mut ledger, "gw");
    find_in(secrets, text, &ledger)
}

fn find_in(secrets: &Secrets, text: &str, ledger: &Configuration) -> Result<String, String> {
    let found = secrets.find(&name(text), ledger);
    found.map(|secret| secret.expose().to_owned()).map_err(|problem| problem.to_string())
}

fn problem_in(secrets: &Secrets, text: &str, ledger: &Configuration) -> String {
    find_in(secrets, text, ledger).expect_err("it cannot be used")
}

fn problem(secrets: &Secrets, name: &str) -> String {
    find(secrets, name).expect_err("it is not there")
}

#[tokio::test]
async fn a_secret_is_its_file_without_the_end_of_the_last_line() {
    let folder = directory();
    for (name, content) in
        [("none", "a b "), ("unix", "a b \n"), ("dos", "a b \r\n"), ("two", "a b \n\n")]
    {
        write(folder.path(), name, content.as_bytes());
    }
    let secrets = opened(folder.path()).await;
    for (name, value) in [("none", "a b "), ("unix", "a b "), ("dos", "a b "), ("two", "a b \n")] {
        assert_eq!(find(&secrets, name).as_deref(), Ok(value), "{name}");
    }
    let mut ledger = Configuration::default();
    drop(secrets.find(&name("none"), &ledger));
    record(&secrets, &mut ledger, "gw");
    let found = secrets.find(&name("none"), &ledger).expect("it is there");
    assert_eq!(format!("{found:?}"), "Secret(…)");
    assert!(!format!("{secrets:?}").contains("a b"));
}

#[tokio::test]
async fn what_is_no_secret_says_what_to_do() {
    let folder = directory();
    let outside = tempfile::tempdir().expect("a directory");
    write(outside.path(), "key", b"of another");
    write(folder.path(), "open", b"value");
    fs::set_permissions(folder.path().join("open"), Permissions::from_mode(0o644)).expect("a mode");
    write(folder.path(), "empty", b"\n");
    write(folder.path(), "binary", b"\xff\xfe");
    write(folder.path(), "largest", &vec![b'x'; 64 << 10]);
    write(folder.path(), "large", &vec![b'x'; (64 << 10) + 1]);
    fs::create_dir(folder.path().join("directory")).expect("a directory");
    symlink(outside.path().join("key"), folder.path().join("link")).expect("a link");
    symlink("gone", folder.path().join("dangling")).expect("a link");
    let secrets = opened(folder.path()).await;
    for (name, words) in [
        ("open", "chmod o= FILE"),
        ("empty", "is empty"),
        ("binary", "not UTF-8"),
        ("large", "more than 65536 bytes"),
        ("directory", "not a file"),
        ("link", "out of the directory"),
        ("dangling", "write one"),
        ("missing", "write one"),
    ] {
        let found = problem(&secrets, name);
        assert!(found.contains(words), "{name}: {found}");
    }
    assert_eq!(find(&secrets, "largest").map(|value| value.len()), Ok(64 << 10));
    assert!(problem(&Secrets::default(), "any").contains("--secrets DIR"));
}

#[tokio::test]
async fn files_are_read_again_when_they_change() {
    let folder = directory();
    let path = folder.path();
    // As they are mounted: a link to the newest of several directories.
    for (version, value) in [("..1", "first"), ("..2", "second")] {
        fs::create_dir(path.join(version)).expect("a directory");
        write(path, &format!("{version}/password"), value.as_bytes());
    }
    symlink("..1", path.join("..data")).expect("a link");
    symlink("..data/password", path.join("password")).expect("a link");
    let secrets = opened(path).await;
    assert_eq!(find(&secrets, "password").as_deref(), Ok("first"));
    let before = secrets.mark(b"body").expect("a mark");

    symlink("..2", path.join("..next")).expect("a link");
    fs::rename(path.join("..next"), path.join("..data")).expect("it has its name");
    assert_eq!(find(&secrets, "password").as_deref(), Ok("first"));
    secrets.refresh().await;
    secrets.refresh().await;
    assert_eq!(find(&secrets, "password").as_deref(), Ok("second"));
    assert_eq!(secrets.mark(b"body"), Ok(before.clone()));

    fs::remove_file(path.join("password")).expect("it is removed");
    secrets.refresh().await;
    assert!(problem(&secrets, "password").contains("write one"));
    write(path, KEY, b"another key of 128 bits");
    secrets.refresh().await;
    assert_ne!(secrets.mark(b"body"), Ok(before));
    fs::remove_file(path.join(KEY)).expect("it is removed");
    secrets.refresh().await;
    assert!(problem(&secrets, "password").contains(KEY));
    assert!(secrets.mark(b"body").is_err());
}

#[tokio::test]
async fn a_directory_that_cannot_be_used_is_refused() {
    async fn refused(folder: &Path) -> String {
        let error = Secrets::open(folder).await.expect_err("it is refused");
        assert!(error.to_string().contains(&folder.display().to_string()), "{error}");
        std::error::Error::source(&error).expect("a reason").to_string()
    }
    let folder = tempfile::tempdir().expect("a directory");
    let path = folder.path();
    assert!(refused(&path.join("missing")).await.contains("cannot be read"));
    assert!(refused(path).await.contains("head -c 32"));
    write(path, KEY, b"short");
    assert!(refused(path).await.contains("fewer than 16 bytes"));
    write(path, KEY, b"0123456789abcdef");
    fs::set_permissions(path.join(KEY), Permissions::from_mode(0o604)).expect("a mode");
    assert!(refused(path).await.contains("mode 604"));
    write(path, KEY, b"0123456789abcdef");
    fs::set_permissions(path, Permissions::from_mode(0o702)).expect("a mode");
    assert!(refused(path).await.contains("mode 702"));
    fs::set_permissions(path, Permissions::from_mode(0o700)).expect("a mode");
    for number in 0..=SECRETS {
        write(path, &format!("s{number}"), b"value");
    }
    assert!(refused(path).await.contains("more than 1024 secrets"));
    fs::remove_file(path.join("s0")).expect("it is removed");
    assert!(Secrets::open(path).await.is_ok());
    for number in 0..ENTRIES - SECRETS {
        write(path, &format!(".h{number}"), b"hidden");
    }
    assert!(refused(path).await.contains("more than 4096 entries"));
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_and_not_there_is_told_for_a_while() {
    let folder = directory();
    write(folder.path(), "there", b"value");
    let secrets = opened(folder.path()).await;
    assert!(find(&secrets, "there").is_ok());
    for number in 0..=MISSING {
        assert!(find(&secrets, &format!("s{number:02}")).is_err());
    }
    let mut ledger = Configuration::default();
    record(&secrets, &mut ledger, "gw");
    let told = secrets.missing(&ledger);
    assert_eq!((told.len(), told[0].0.as_str()), (MISSING, "s00"));
    assert!(told[0].1.contains("write one"));
    write(folder.path(), "s00", b"value");
    secrets.refresh().await;
    assert_eq!(secrets.missing(&ledger).len(), MISSING - 1);
    tokio::time::advance(TOLD).await;
    assert_eq!(secrets.missing(&ledger), Vec::new());
}

#[tokio::test]
async fn a_version_is_ordered_once_it_is_recorded_and_never_with_another_content() {
    let folder = directory();
    write(folder.path(), "db@2", b"first");
    write(folder.path(), "other", b"not asked for");
    let secrets = opened(folder.path()).await;
    let mut ledger = Configuration::default();
    let asked = secrets.find(&name("db@2"), &ledger);
    assert_eq!(asked, Err(SecretProblem::Unrecorded));
    assert_eq!(secrets.missing(&ledger), Vec::new(), "it is there within a moment");
    record(&secrets, &mut ledger, "gw-1");
    assert_eq!(ledger.secrets().collect::<Vec<_>>(), ["db@2"]);
    assert_eq!(find_in(&secrets, "db@2", &ledger).as_deref(), Ok("first"));
    assert_eq!(secrets.to_record(&ledger, ("gw-1", Seconds(0))), Vec::new());

    // The gateway tells of the change, whether somebody asks or not.
    write(folder.path(), "db@2", b"second");
    secrets.refresh().await;
    let told = secrets.missing(&ledger);
    assert_eq!((told.len(), told[0].0.as_str()), (1, "db@2"));
    for words in ["\"gw-1\"", "2026-01-01T00:00:00Z", "never changes", "`db@3`"] {
        assert!(told[0].1.contains(words), "{}", told[0].1);
    }
    assert_eq!(problem_in(&secrets, "db@2", &ledger), told[0].1);
    assert_eq!(secrets.missing(&ledger), told, "it stays so");
    assert_eq!(secrets.to_record(&ledger, ("gw-1", Seconds(0))), Vec::new());
    // Another gateway with the same files says the same; one with the first content does not.
    let other = opened(folder.path()).await;
    assert_eq!(other.missing(&ledger), told);
    write(folder.path(), "db@2", b"first");
    secrets.refresh().await;
    assert_eq!(secrets.missing(&ledger), Vec::new());
    assert_eq!(find_in(&secrets, "db@2", &ledger).as_deref(), Ok("first"));
}

#[tokio::test]
async fn a_key_that_is_replaced_records_anew_and_a_damaged_record_is_no_record() {
    let folder = directory();
    write(folder.path(), "db@1", b"value");
    let secrets = opened(folder.path()).await;
    let mut ledger = Configuration::default();
    drop(secrets.find(&name("db@1"), &ledger));
    record(&secrets, &mut ledger, "gw-1");
    let former = secrets.key_name();
    write(folder.path(), KEY, b"another key of 128 bits");
    secrets.refresh().await;
    assert!(secrets.key_name() != former && former.len() == 8);
    assert_eq!(secrets.find(&name("db@1"), &ledger), Err(SecretProblem::Unrecorded));
    // A key that is being written marks nothing.
    assert_eq!(secrets.to_record(&ledger, ("gw-2", Seconds(0))), Vec::new());
    secrets.refresh().await;
    record(&secrets, &mut ledger, "gw-2");
    assert_eq!(find_in(&secrets, "db@1", &ledger).as_deref(), Ok("value"));
    // Who still has the former key knows the secret by that.
    write(folder.path(), KEY, b"0123456789abcdef");
    secrets.refresh().await;
    assert_eq!(find_in(&secrets, "db@1", &ledger).as_deref(), Ok("value"));
    assert_eq!(Secrets::default().key_name(), Vec::<u8>::new());

    let value = Some(vec![0xff].into());
    ledger.change(&Change { key: secret_key("db@1"), revision: Revision(9), value });
    let damaged = problem_in(&secrets, "db@1", &ledger);
    assert!(damaged.contains("`secret/db@1` is damaged"), "{damaged}");
    assert_eq!(secrets.to_record(&ledger, ("gw-1", Seconds(0))), Vec::new());
}

#[tokio::test]
async fn a_file_that_is_being_written_is_not_recorded() {
    let folder = directory();
    let path = folder.path();
    write(path, "db@1", b"half of ");
    let secrets = Secrets::open(path).await.expect("they are opened");
    let mut ledger = Configuration::default();
    // Longer each time: it has not been the same at two looks.
    for content in ["half of the", "half of the wo", "half of the word"] {
        assert_eq!(secrets.find(&name("db@1"), &ledger), Err(SecretProblem::Unrecorded));
        record(&secrets, &mut ledger, "gw");
        fs::write(path.join("db@1"), content).expect("it is written");
        secrets.refresh().await;
    }
    assert_eq!(ledger.secrets().count(), 0);
    let before = secrets.snapshot();
    // Written once more as it is.
    write(path, "db@1", b"half of the word");
    secrets.refresh().await;
    assert_ne!(secrets.snapshot(), before, "who waits for it looks again");
    record(&secrets, &mut ledger, "gw");
    assert_eq!(find_in(&secrets, "db@1", &ledger).as_deref(), Ok("half of the word"));
}

#[tokio::test(start_paused = true)]
async fn a_file_that_is_written_anew_as_it_is_changes_nothing_and_one_that_never_rests_is_told() {
    let folder = directory();
    write(folder.path(), "db@1", b"value");
    let secrets = opened(folder.path()).await;
    let ledger = Configuration::default();
    let before = secrets.snapshot();
    for _ in 0..3 {
        write(folder.path(), "db@1", b"value");
        secrets.refresh().await;
        assert_eq!(secrets.snapshot(), before);
    }
    for number in 0..6 {
        assert_eq!(secrets.find(&name("db@1"), &ledger), Err(SecretProblem::Unrecorded));
        let told = secrets.missing(&ledger);
        assert_eq!(told.len(), usize::from(number == 5), "{told:?}");
        assert!(told.iter().all(|(_, problem)| problem.contains("changes at every look")));
        write(folder.path(), "db@1", format!("value {number}").as_bytes());
        secrets.refresh().await;
        assert_eq!(secrets.to_record(&ledger, ("gw", Seconds(0))), Vec::new());
        tokio::time::advance(LOOK).await;
    }
}
