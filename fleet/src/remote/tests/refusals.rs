//! What a server, or this side, does not do, and what it says then.

use std::os::unix::fs::PermissionsExt;

use super::{Link, Served, ServerOptions, asked, plain, secret};
use crate::api::tests::fleet;
use crate::cli::failure::Exit;

#[tokio::test]
async fn a_token_sees_and_changes_no_more_than_its_roles_say() {
    let served = Served::new(fleet::in_memory().await).await;
    let mut link = served.link("test");
    for words in [&["agents"][..], &["rollout", "list"], &["holds"], &["assignments"], &["status"]]
    {
        let ran = asked(&mut link, &[words, &["--json"]].concat()).await;
        assert_eq!(ran.exit, Exit::Done, "{ran:?}");
        assert!(ran.out.contains("test") && !ran.out.contains("prod"), "{words:?}: {ran:?}");
    }
    let hidden = asked(&mut link, &["agent", "prodagent"]).await;
    let nobody = asked(&mut link, &["agent", "nobody"]).await;
    assert_eq!(hidden.err.replace("prodagent", "nobody"), nobody.err);
    assert_eq!(hidden.exit, Exit::Failed);
    for words in [
        &["rollout", "pause", "testrollout"][..],
        &["agent", "label", "testagent", "a=b"],
        &["release", "testhold"],
        &["hold", "x", "--select", "all", "--reason", "r"],
        &["token", "list"],
    ] {
        let ran = asked(&mut link, words).await;
        assert!(ran.exit == Exit::Failed && ran.out.is_empty(), "{words:?}: {ran:?}");
        assert!(ran.err.contains("takes the role"), "{words:?}: {ran:?}");
        assert!(ran.err.contains("try: ask an admin"), "{words:?}: {ran:?}");
    }
    let mut nobody = served.link("wrong");
    let ran = asked(&mut nobody, &["status"]).await;
    assert!(ran.exit == Exit::Failed && ran.err.contains("the token is unknown"), "{ran:?}");
    assert!(ran.err.contains("/token`") && ran.err.contains("access token create"), "{ran:?}");
    served.listener.shutdown().await;
}

#[tokio::test]
async fn what_the_api_has_no_call_for_is_refused_by_name_before_anybody_is_asked() {
    let folder = tempfile::tempdir().expect("a folder");
    // Nobody listens there.
    let mut link = plain("http://127.0.0.1:1", folder.path());
    let key = secret(folder.path(), "key", "x");
    let key = key.to_str().expect("text");
    for (words, name) in [
        (&["export"][..], "`export`"),
        (&["access", "list"], "`access`"),
        (&["audit", "export"], "`audit export`"),
        (&["audit", "sign-head", "--key", key], "`audit sign-head`"),
        (&["agents", "--scan"], "--scan"),
        (
            &["rollout", "create", "x", "--assignment", "a", "--to", "1", "--four-eyes"],
            "--four-eyes",
        ),
        (&["rollout", "create", "x", "--assignment", "a", "--to", "1", "--soak", "0s"], "--soak"),
        (&["token", "create", "x", "--uses", "0"], "--uses"),
    ] {
        let ran = asked(&mut link, words).await;
        assert!(matches!(ran.exit, Exit::Failed | Exit::Usage), "{ran:?}");
        assert!(ran.err.contains(name) && ran.err.contains("\ntry: "), "{words:?}: {ran:?}");
    }
}

#[tokio::test]
async fn the_fields_of_a_request_that_are_wrong_are_told_with_their_fix() {
    let served = Served::new(fleet::in_memory().await).await;
    let mut link = served.link("admin");
    let words = ["hold", "x", "--select", "a ==", "--reason", "r"];
    let ran = asked(&mut link, &words).await;
    assert!(ran.exit == Exit::Usage && ran.err.contains("--select: "), "{ran:?}");
    assert!(ran.err.contains("\ntry: "), "{ran:?}");
    let file = served.folder.path().join("all.toml");
    let text = "[[release]]\nplugin = \"prodplugin\"\nrevision = \"prod1\"\nentry_point = \"other\"\n\
                archives.amd64 = { sha256 = \"9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }\n";
    std::fs::write(&file, text).expect("it is written");
    let ran = asked(&mut link, &["apply", "-f", file.to_str().expect("text")]).await;
    assert!(ran.exit != Exit::Done && ran.err.contains("all.toml:"), "{ran:?}");
    assert!(ran.err.contains("a release never changes"), "{ran:?}");
    served.listener.shutdown().await;
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_told_with_the_way_out() {
    let served = Served::new(fleet::in_memory().await).await;
    let elsewhere = tempfile::tempdir().expect("a folder");
    super::certificate(elsewhere.path(), &["127.0.0.1"]);
    let other = ServerOptions {
        server_ca: Some(elsewhere.path().join("cert.pem")),
        ..served.options("admin")
    };
    let mut link = Link::new(other.open().expect("a token").expect("a server"));
    let ran = asked(&mut link, &["status"]).await;
    assert!(ran.exit == Exit::Unreachable && ran.err.contains("--server-ca"), "{ran:?}");
    let missing = ServerOptions {
        server_ca: Some(elsewhere.path().join("none.pem")),
        ..served.options("admin")
    };
    let mut link = Link::new(missing.open().expect("a token").expect("a server"));
    let ran = asked(&mut link, &["status"]).await;
    assert!(ran.exit == Exit::Unreachable && ran.err.contains("--server-ca"), "{ran:?}");
    served.listener.shutdown().await;

    let routes = crate::api::router(crate::api::tests::api(served.ledger.clone()));
    let named = Served::with(served.ledger.clone(), routes, &["fleet.example"]).await;
    let ran = asked(&mut named.link("admin"), &["status"]).await;
    assert!(ran.exit == Exit::Unreachable && ran.err.contains("a name that its"), "{ran:?}");
    named.listener.shutdown().await;
}

#[test]
fn a_token_that_others_may_read_or_that_is_none_is_refused_and_never_shown() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = secret(folder.path(), "token", "gfa_secret");
    let options = |path: Option<&std::path::Path>| ServerOptions {
        server: Some("https://fleet.example".parse().expect("an address")),
        token_file: path.map(Into::into),
        server_ca: None,
    };
    let shown = format!("{:?}", options(Some(&path)).open().expect("a token"));
    assert!(!shown.contains("gfa_secret"), "{shown}");
    let refused =
        |path: Option<&std::path::Path>| options(path).open().expect_err("refused").text();
    assert!(refused(None).contains("--token-file"));
    for mode in [0o640, 0o604] {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("a mode");
        let text = refused(Some(&path));
        assert!(text.contains("others may read") && text.contains("try: chmod 600"), "{text}");
    }
    for bad in ["", "\n", "two words", "two\nlines", "gfa_\u{e9}", &"x".repeat(5000)] {
        let path = secret(folder.path(), "token", bad);
        let text = refused(Some(&path));
        assert!(text.contains("is not one line with a token"), "{text}");
        assert!(bad.trim().is_empty() || !text.contains(bad), "{text}");
    }
    assert!(refused(Some(&folder.path().join("none"))).contains("cannot be read"));
    assert!(ServerOptions::default().open().expect("nothing is asked for").is_none());
}
