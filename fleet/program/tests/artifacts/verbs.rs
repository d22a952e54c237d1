//! `guest-fleet artifact`.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use clap::Parser;
use guest_fleet::cli::artifact::{ArtifactArgs, ArtifactError, run};
use guest_fleet_core::view::ReleaseName;
use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::named::Named;
use guest_fleet_server::artifacts::store::ArtifactStore;

use crate::artifacts::certificates;
use crate::artifacts::harness::{Rig, TOKEN, bytes, directory};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    artifact: ArtifactArgs,
}

async fn try_run(args: &[&str], named: &Named) -> Result<String, ArtifactError> {
    let cli = Cli::try_parse_from([&["artifact"], args].concat()).unwrap();
    let mut out = Vec::new();
    let named = async || Ok::<_, Box<dyn Error + Send + Sync>>(named.clone());
    run(cli.artifact, named, &mut out).await?;
    Ok(String::from_utf8(out).unwrap())
}

fn archive(folder: &Path, name: &str, length: usize) -> (String, Digest) {
    let path = folder.join(name);
    std::fs::write(&path, bytes(length)).unwrap();
    (path.into_os_string().into_string().unwrap(), Digest::of(&bytes(length)))
}

fn make_old(root: &Path, digest: &Digest) {
    let shown = digest.to_string();
    let path: PathBuf = root.join(&shown[..2]).join(&shown[2..]);
    let old = SystemTime::now() - Duration::from_secs(25 * 3600);
    std::fs::File::options().write(true).open(path).unwrap().set_modified(old).unwrap();
}

#[tokio::test]
async fn archives_are_kept_on_this_machine_and_a_release_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let (amd64, one) = archive(folder.path(), "echo-1.2.0-linux-amd64.tar.gz", 1000);
    let (arm64, two) = archive(folder.path(), "echo-1.2.0-linux-aarch64.tar.gz", 2000);
    let root = folder.path().join("store");
    let place = root.to_str().unwrap();
    let args = ["push", &amd64, &arm64, "--artifacts", place, "--entry-point", "echo"];
    let printed = try_run(&args, &Named::default()).await.unwrap();
    assert_eq!(
        printed,
        format!(
            "[[release]]\nplugin = \"echo\"\nrevision = \"1.2.0\"\nentry_point = \"echo\"\n\
             # echo-1.2.0-linux-amd64.tar.gz, 1000 bytes\n\
             archives.amd64 = {{ sha256 = \"{one}\" }}\n\
             # echo-1.2.0-linux-aarch64.tar.gz, 2000 bytes\n\
             archives.arm64 = {{ sha256 = \"{two}\" }}\n"
        )
    );
    let store = directory(&root);
    assert!(store.stat(&one).await.unwrap().is_some() && store.stat(&two).await.unwrap().is_some());
    let args = ["push", &amd64, "--artifacts", place, "--json", "--revision", "7"];
    let printed = try_run(&args, &Named::default()).await.unwrap();
    let document: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(document["archives"]["amd64"]["sha256"], one.to_string());
    assert_eq!((&document["plugin"], &document["revision"]), (&"echo".into(), &"7".into()));
}

#[tokio::test]
async fn archives_are_sent_to_a_server_that_a_private_authority_vouches_for() {
    let folder = tempfile::tempdir().unwrap();
    let pair = certificates::files(folder.path());
    let authority = certificates::issue(&pair);
    let rig = Rig::with(|options| options.tls = Some(pair)).await;
    let (file, digest) = archive(folder.path(), "echo-1-amd64.tar.gz", 3_000_000);
    let (token, ca) = (folder.path().join("token"), folder.path().join("ca.pem"));
    std::fs::write(&token, format!("{TOKEN}\n")).unwrap();
    std::fs::write(&ca, authority).unwrap();
    let server = rig.listener.endpoint();
    let token = token.to_str().unwrap();
    let args = ["push", &file, "--server", server, "--token-file", token];
    let error = try_run(&args, &Named::default()).await.unwrap_err();
    assert!(error.to_string().contains("failed to send"), "it is not trusted: {error}");
    let args = [&args[..], &["--ca", ca.to_str().unwrap()]].concat();
    let printed = try_run(&args, &Named::default()).await.unwrap();
    assert!(printed.contains(&digest.to_string()), "{printed}");
    assert!(rig.has(&digest).await);
    std::fs::write(token, "a wrong token").unwrap();
    let error = try_run(&args, &Named::default()).await.unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("file of upload tokens"), "{error}");
}

#[tokio::test]
async fn files_that_cannot_be_a_release_are_refused_with_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let place = root.to_str().unwrap();
    let (one, _) = archive(folder.path(), "one-amd64.tar.gz", 10);
    let (two, _) = archive(folder.path(), "two-arm64.tar.gz", 10);
    let (empty, _) = archive(folder.path(), "empty.tar.gz", 0);
    let missing = folder.path().join("missing.tar.gz");
    for (args, expected) in [
        (vec!["push", &one, &two], "--plugin"),
        (vec!["push", &one, &one], "both for the architecture amd64"),
        (vec!["push", &empty], "is empty"),
        (vec!["push", missing.to_str().unwrap()], "failed to read"),
        (vec!["push", &one, "--plugin", "../x"], "not the name of a plugin"),
    ] {
        let args = [args, vec!["--artifacts", place]].concat();
        let error = try_run(&args, &Named::default()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    for args in [vec!["push", &one], vec!["push", &one, "--server", "https://x"]] {
        assert!(Cli::try_parse_from([vec!["artifact"], args].concat()).is_err());
    }
}

#[tokio::test]
async fn what_no_release_names_is_deleted_when_it_is_old_and_wanted() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("store");
    let place = root.to_str().unwrap();
    let mut digests = Vec::new();
    for (name, length) in [("named", 1), ("old", 2), ("young", 3)] {
        let (file, digest) = archive(folder.path(), name, length);
        try_run(&["push", &file, "--artifacts", place], &Named::default()).await.unwrap();
        digests.push(digest);
    }
    let [named_one, old, young] = digests[..] else { panic!("three") };
    make_old(&root, &named_one);
    make_old(&root, &old);
    let mut named = Named::default();
    let release = ReleaseName { plugin: "echo".to_owned(), revision: "1".to_owned() };
    named.add(named_one, release);

    let listed = try_run(&["list", "--artifacts", place], &named).await.unwrap();
    assert_eq!(listed.lines().count(), 3);
    let line = listed.lines().find(|line| line.contains(&named_one.to_string())).unwrap();
    assert!(line.ends_with("25 h  echo/1"), "{line}");

    let shown = try_run(&["gc", "--artifacts", place], &named).await.unwrap();
    assert!(shown.contains(&old.to_string()) && shown.contains("would delete 1 "), "{shown}");
    let store = directory(&root);
    assert!(store.stat(&old).await.unwrap().is_some(), "it was only shown");

    let none = Named::default();
    let error = try_run(&["gc", "--artifacts", place, "--yes"], &none).await.unwrap_err();
    assert!(error.to_string().contains("ledger may be that of another fleet"), "{error}");

    let deleted = try_run(&["gc", "--artifacts", place, "--yes"], &named).await.unwrap();
    assert!(deleted.contains("deleted 1 artifacts, 2 bytes"), "{deleted}");
    let left: Vec<_> = store.list(None, 10).await.unwrap().iter().map(|stat| stat.digest).collect();
    let mut expected = vec![named_one, young];
    expected.sort();
    assert_eq!(left, expected);
    try_run(&["gc", "--artifacts", place, "--yes", "--all", "--grace", "0"], &none).await.unwrap();
    assert!(store.list(None, 10).await.unwrap().is_empty());
}
