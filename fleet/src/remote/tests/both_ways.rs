//! A verb prints the same over a server as over the ledger of that server.

use super::{Ran, Served, asked, run};
use crate::api::tests::fleet;

const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

#[track_caller]
fn same(words: &[&str], local: &Ran, remote: &Ran) {
    assert!(
        local == remote,
        "{words:?}\n=== over the ledger: {:?}\n{}{}\n=== over the server: {:?}\n{}{}",
        local.exit,
        local.out,
        local.err,
        remote.exit,
        remote.out,
        remote.err
    );
}

fn declarations() -> String {
    format!(
        r#"
[[release]]
plugin = "monitor"
revision = "1.2"
entry_point = "bin/monitor"
archives.amd64 = {{ sha256 = "{DIGEST}" }}

[[hold]]
name = "freeze"
select = "all"
plugins = ["monitor"]
reason = "end of the year"
until = "2026-01-02T00:00:00Z"
"#
    )
}

#[tokio::test]
async fn what_is_looked_at_is_printed_the_same_in_text_and_in_json() {
    let served = Served::new(fleet::in_memory().await).await;
    let mut link = served.link("admin");
    let file = served.folder.path().join("all.toml");
    std::fs::write(&file, declarations()).expect("it is written");
    let file = file.to_str().expect("text").to_owned();
    let looks: &[&[&str]] = &[
        &["status"],
        &["agents"],
        &["agents", "env = prod"],
        &["agents", "--select", "env in (prod, test)", "--archived"],
        &["agents", "--plugin", "testplugin", "--state", "waits-for-wave"],
        &["agents", "--state", "held-by-owner"],
        &["agents", "--limit", "1"],
        &["agents", "--after", "prodagent"],
        &["agents", "env = nowhere"],
        &["agent", "testagent"],
        &["agent", "nobody"],
        &["explain", "testagent", "testplugin"],
        &["explain", "nobody", "testplugin"],
        &["releases"],
        &["assignments"],
        &["holds"],
        &["windows"],
        &["gateways"],
        &["rollout", "list"],
        &["rollout", "show", "testrollout"],
        &["rollout", "show", "testassignment"],
        &["rollout", "show", "nothing"],
        &["rollout", "history", "prodrollout"],
        &["rollout", "history", "prodrollout", "--limit", "1"],
        &[
            "rollout",
            "preview",
            "x",
            "--assignment",
            "prodassignment",
            "--to",
            "prod2",
            "--replace",
        ],
        &["rollout", "preview", "x", "--assignment", "prodassignment", "--to", "prod2"],
        &[
            "rollout",
            "preview",
            "x",
            "--assignment",
            "prodassignment",
            "--to",
            "prod2",
            "--replace",
            "--wave",
            "env=prod,approve",
            "--wave",
            "100%,soak=0s",
            "--soak",
            "0s",
            "--budget",
            "3",
        ],
        &["token", "list"],
        &["audit"],
        &["audit", "list", "--limit", "2"],
        &["audit", "verify"],
        &["audit", "verify", "--against", "1:00", "--against", "9:00"],
        &["diff", "-f", &file],
        &["apply", "-f", &file, "--dry-run"],
        &["apply", "-f", &file, "--dry-run", "--prune"],
        &["apply", "-f", &file, "--prune"],
        &["apply", "-f", "/nowhere"],
    ];
    for words in looks {
        for form in [&[][..], &["--json"]] {
            let words = [*words, form].concat();
            let local = run(None, &*served.ledger, &words, "").await;
            let remote = asked(&mut link, &words).await;
            same(&words, &local, &remote);
        }
    }
    served.listener.shutdown().await;
}

/// The commands change something, each in a fleet of its own, so that both begin from the same.
#[tokio::test]
async fn what_changes_is_printed_the_same_and_does_the_same() {
    let served = Served::new(fleet::in_memory().await).await;
    let mut link = served.link("admin");
    let other = fleet::in_memory().await;
    let changes: &[(&[&str], &str)] = &[
        (
            &[
                "hold",
                "db",
                "--select",
                "env = prod",
                "--plugin",
                "prodplugin",
                "--reason",
                "moving",
                "--for",
                "36h",
            ],
            "",
        ),
        (
            &[
                "hold",
                "db",
                "--select",
                "env = prod",
                "--plugin",
                "prodplugin",
                "--reason",
                "moving",
                "--for",
                "36h",
            ],
            "",
        ),
        (
            &[
                "hold",
                "db",
                "--select",
                "env = prod",
                "--reason",
                "r",
                "--until",
                "2030-01-01T00:00:00Z",
                "--json",
            ],
            "",
        ),
        (&["hold", "prodhold", "--select", "all", "--reason", "mine"], ""),
        (&["hold", "X", "--select", "all", "--reason", "r"], ""),
        (&["hold", "x", "--select", "all", "--reason", "r", "--until", "2020-01-01T00:00:00Z"], ""),
        (&["release", "db", "--reason", "moved"], ""),
        (&["release", "prodhold"], ""),
        (&["release", "testhold", "--json"], ""),
        (&["release", "nobody"], ""),
        (&["retry", "prodassignment", "--reason", "again"], ""),
        (&["retry", "nothing"], ""),
        (&["agent", "label", "prodagent", "zone=z", "rack=1", "rack-", "ring=canary"], ""),
        (&["agent", "label", "prodagent", "ring-", "--json"], ""),
        (&["agent", "label", "nobody", "a=b"], ""),
        (&["agent", "archive", "testagent"], ""),
        (&["agent", "archive", "testagent", "--json"], ""),
        (&["agent", "unarchive", "testagent"], ""),
        (&["agent", "release", "testagent"], ""),
        (&["agent", "revoke", "testagent", "--reason", "stolen"], ""),
        (&["rollout", "pause", "prodrollout", "--reason", "r"], ""),
        (&["rollout", "pause", "prodrollout", "--reason", "r"], ""),
        (&["rollout", "resume", "prodrollout"], ""),
        (&["rollout", "halt", "prodrollout", "--reason", "stop"], ""),
        (&["rollout", "resume", "prodrollout"], ""),
        (&["rollout", "watch", "prodrollout", "--until-person"], ""),
        (&["rollout", "watch", "prodrollout", "--until-person", "--json"], ""),
        (&["rollout", "resume", "prodrollout", "--reason", "go"], ""),
        (&["rollout", "approve", "prodrollout"], ""),
        (&["rollout", "rollback", "prodrollout"], ""),
        // Only one that stands still can be given up.
        (&["rollout", "abort", "testrollout", "--json"], ""),
        (&["rollout", "halt", "testrollout", "--reason", "r"], ""),
        (&["rollout", "abort", "testrollout", "--json"], ""),
        (&["rollout", "watch", "testrollout"], ""),
        (
            &[
                "rollout",
                "create",
                "next",
                "--assignment",
                "testassignment",
                "--to",
                "test1",
                "--draft",
                "--wave",
                "50%,approve",
                "--wave",
                "100%",
            ],
            "",
        ),
        (&["rollout", "start", "next"], ""),
        (&["rollout", "create", "next", "--assignment", "testassignment", "--to", "none"], ""),
        (
            &[
                "rollout",
                "create",
                "more",
                "--assignment",
                "testassignment",
                "--to",
                "test2",
                "--replace",
                "--json",
            ],
            "",
        ),
        (&["token", "revoke", "nothing"], ""),
        (&["apply", "-f", "-", "--reason", "TICKET"], "declared"),
        (&["apply", "-f", "-"], "declared"),
        (&["diff", "-f", "-"], "declared"),
        (&["apply", "-f", "-", "--prune", "--yes"], ""),
        (&["apply", "-f", "-"], "[[hold]]\nname = \"X\"\n"),
        (&["apply", "-f", "-", "--json"], "[[hold]]\nname = \"X\"\n"),
    ];
    for (words, input) in changes {
        let declared = declarations();
        let input = if *input == "declared" { &declared } else { *input };
        let local = run(None, &*other, words, input).await;
        let remote = run(Some(&mut link), &crate::ledger::MemoryLedger::new(), words, input).await;
        same(words, &local, &remote);
    }
    for words in [&["holds"][..], &["assignments"], &["agents"], &["releases"], &["audit"]] {
        let local = run(None, &*other, words, "").await;
        let remote = run(None, &*served.ledger, words, "").await;
        same(words, &local, &remote);
    }
    served.listener.shutdown().await;
}

#[tokio::test]
async fn a_join_token_is_made_listed_and_revoked() {
    let served = Served::new(fleet::in_memory().await).await;
    let mut link = served.link("admin");
    let made = asked(&mut link, &["token", "create", "rack-7", "--label", "env=prod"]).await;
    assert!(made.out.lines().count() == 1 && made.out.contains("rack-7"), "{made:?}");
    let listed = asked(&mut link, &["token", "list"]).await;
    assert!(listed.out.contains("in force") && listed.out.contains("env=prod"), "{listed:?}");
    same(&["token", "list"], &run(None, &*served.ledger, &["token", "list"], "").await, &listed);
    let again = asked(&mut link, &["token", "create", "rack-7"]).await;
    assert!(again.err.contains("rack-7") && again.out.is_empty(), "{again:?}");
    assert!(asked(&mut link, &["token", "revoke", "rack-7"]).await.out.contains("revoked"));
    served.listener.shutdown().await;
}

#[tokio::test]
async fn lists_that_are_longer_than_a_page_are_whole() {
    let ledger = fleet::in_memory().await;
    fleet::more(&ledger, 520).await;
    let served = Served::new(ledger).await;
    let mut link = served.link("admin");
    for limit in ["510", "500", "522", "1000"] {
        let words = ["agents", "--limit", limit, "--json"];
        let local = run(None, &*served.ledger, &words, "").await;
        same(&words, &local, &asked(&mut link, &words).await);
    }
    for number in 0..505 {
        let reason = number.to_string();
        let words = ["retry", "prodassignment", "--reason", &reason];
        run(None, &*served.ledger, &words, "").await;
    }
    for limit in ["501", "10000"] {
        let words = ["audit", "--limit", limit];
        let local = run(None, &*served.ledger, &words, "").await;
        assert!(local.out.lines().count() > 500, "{limit}");
        same(&words, &local, &asked(&mut link, &words).await);
    }
    served.listener.shutdown().await;
}
