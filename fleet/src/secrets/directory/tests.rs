use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};

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

async fn open(folder: &Path) -> Secrets {
    Secrets::open(folder).await.expect("it is opened")
}

fn find(secrets: &Secrets, name: &str) -> Result<String, String> {
    let found = secrets.find(&SecretName::new(name).expect("a name"));
    found.map(|secret| secret.expose().to_owned()).map_err(|problem| problem.to_string())
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
    let secrets = open(folder.path()).await;
    for (name, value) in [("none", "a b "), ("unix", "a b "), ("dos", "a b "), ("two", "a b \n")] {
        assert_eq!(find(&secrets, name).as_deref(), Ok(value), "{name}");
    }
    let found = secrets.find(&SecretName::new("none").expect("a name")).expect("it is there");
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
    let secrets = open(folder.path()).await;
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
    let secrets = open(path).await;
    assert_eq!(find(&secrets, "password").as_deref(), Ok("first"));
    let before = secrets.mark(b"body").expect("a mark");

    symlink("..2", path.join("..next")).expect("a link");
    fs::rename(path.join("..next"), path.join("..data")).expect("it has its name");
    assert_eq!(find(&secrets, "password").as_deref(), Ok("first"));
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
    assert!(refused(path).await.contains("more than 256 secrets"));
    fs::remove_file(path.join("s0")).expect("it is removed");
    assert!(Secrets::open(path).await.is_ok());
    for number in 0..ENTRIES - SECRETS {
        write(path, &format!(".h{number}"), b"hidden");
    }
    assert!(refused(path).await.contains("more than 1024 entries"));
}

#[tokio::test(start_paused = true)]
async fn what_is_asked_for_and_not_there_is_told_for_a_while() {
    let folder = directory();
    write(folder.path(), "there", b"value");
    let secrets = open(folder.path()).await;
    assert!(find(&secrets, "there").is_ok());
    for number in 0..=MISSING {
        assert!(find(&secrets, &format!("s{number:02}")).is_err());
    }
    let told = secrets.missing();
    assert_eq!((told.len(), told[0].0.as_str()), (MISSING, "s00"));
    assert!(told[0].1.contains("write one"));
    write(folder.path(), "s00", b"value");
    secrets.refresh().await;
    assert_eq!(secrets.missing().len(), MISSING - 1);
    tokio::time::advance(TOLD).await;
    assert_eq!(secrets.missing(), Vec::new());
}
