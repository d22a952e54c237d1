//! Who may act over HTTP by a named token, and the record of who did what.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use reqwest::{Client, RequestBuilder, StatusCode, redirect};
use serde_json::Value;

use crate::harness::{Bed, orders, signal};

/// A bed whose agent takes the tokens of a file, and where it serves HTTP.
struct Guarded {
    bed: Bed,
    file: PathBuf,
    /// Deletes the file at the end.
    _folder: tempfile::TempDir,
    at: String,
    client: Client,
}

impl Guarded {
    /// Begins with a token of this name and scope each; returns their secrets.
    async fn start<const N: usize>(tokens: [(&str, &str); N]) -> (Self, [String; N]) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("http-tokens");
        let bed = Bed::builder()
            .set("api.http_listen=127.0.0.1:0")
            .set(format!("api.http_tokens_file={}", file.display()))
            .build()
            .await;
        let mut secrets = Vec::new();
        for (name, scope) in tokens {
            secrets.push(made(&bed, &file, &[name, "--scope", scope]).await);
        }
        let mut bed = bed;
        bed.start_agent().await;
        // It wants one even where nothing is encrypted.
        drop(rustls::crypto::ring::default_provider().install_default());
        let client = Client::builder().redirect(redirect::Policy::none()).build().unwrap();
        let at = format!("http://{}", bed.http().await);
        let guarded = Self { bed, file, _folder: folder, at, client };
        (guarded, secrets.try_into().expect("one each"))
    }

    async fn look(&self, secret: &str) -> StatusCode {
        self.client.get(&self.at).bearer_auth(secret).send().await.unwrap().status()
    }

    /// Asks for a restart as a program does.
    async fn restart(&self, secret: &str, plugin: &str) -> StatusCode {
        let page = format!("{}/console/plugins/{plugin}/restart", self.at);
        filled(self.client.post(page).bearer_auth(secret), "").send().await.unwrap().status()
    }

    async fn revoke(&self, name: &str) {
        let file = self.file.display().to_string();
        self.bed.cli(&["http-token", "revoke", name, "--file", &file]).await.ok();
        signal(self.bed.agent_pid(), Signal::SIGHUP);
    }

    /// The page of metrics, once the end of this token is on it.
    async fn expiring(&self, reader: &str, name: &str) -> String {
        let sample = format!("guest_agent_http_token_expiry_timestamp_seconds{{name=\"{name}\"}} ");
        let read = async || {
            let page = self.client.get(format!("{}/metrics", self.at)).bearer_auth(reader);
            let page = page.send().await.ok()?.text().await.ok()?;
            page.contains(&sample).then_some(page)
        };
        self.bed.until("the end of the token is in the metrics", read).await
    }

    /// Waits for a trouble of the agent with this text.
    async fn trouble(&self, text: &str) {
        self.bed
            .until(text, async || {
                let troubles = self.bed.try_status().await.ok()?.agent?.troubles;
                troubles.iter().any(|trouble| trouble.contains(text)).then_some(())
            })
            .await;
    }
}

/// Makes a token; returns its secret.
async fn made(bed: &Bed, file: &Path, arguments: &[&str]) -> String {
    let file = file.display().to_string();
    let verb = [&["http-token", "new", "--json", "--file", &file], arguments].concat();
    let made: Value = serde_json::from_str(&bed.cli(&verb).await.ok()).unwrap();
    made["token"].as_str().unwrap().to_owned()
}

/// A form of one field.
fn filled(request: RequestBuilder, csrf: &str) -> RequestBuilder {
    let kind = "application/x-www-form-urlencoded";
    request.header("content-type", kind).body(format!("csrf={csrf}"))
}

/// What was asked, as `audit` prints it: who, what, of which plugin, and whether it was accepted.
async fn asked(bed: &Bed, more: &[&str]) -> Vec<(String, String, String, bool)> {
    let said = bed.cli(&[&["audit", "--json"], more].concat()).await.ok();
    let entries = said.lines().map(|line| {
        let entry: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
        let target = if entry["all"] == true { "all".to_owned() } else { text("plugin") };
        let who = format!("{} via {}", text("who"), text("via"));
        (who, text("what"), target, entry["accepted"] == true)
    });
    entries.collect()
}

fn entry(who: &str, what: &str, target: &str, accepted: bool) -> (String, String, String, bool) {
    (who.to_owned(), what.to_owned(), target.to_owned(), accepted)
}

#[tokio::test]
async fn a_named_token_does_what_its_scope_says_and_is_named_with_what_it_did() {
    let tokens = [("grafana", "read"), ("alice", "act")];
    let (guarded, [reader, actor]) = Guarded::start(tokens).await;
    let bed = &guarded.bed;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    let before = bed.running("web", "1").await;
    assert_eq!(guarded.client.get(&guarded.at).send().await.unwrap().status(), 401);
    assert_eq!(guarded.look("0123456789abcdef").await, 401);
    assert_eq!(guarded.look(&reader).await, StatusCode::OK);
    assert_eq!(guarded.look(&actor).await, StatusCode::OK, "who may act may look");
    assert_eq!(guarded.restart(&reader, "web").await, StatusCode::FORBIDDEN);
    assert_eq!(bed.running("web", "1").await.pid, before.pid, "who looks does not act");
    assert_eq!(guarded.restart(&actor, "web").await, StatusCode::SEE_OTHER);
    bed.running_again("web", &before).await;
    let expected = [entry("token alice via http", "restart", "web", true)];
    assert_eq!(asked(bed, &[]).await, expected, "who may not act has no entry");
    let log = bed.log();
    assert!(!log.contains(&reader) && !log.contains(&actor), "a secret is in the log");
    guarded.bed.finish().await;
}

#[tokio::test]
async fn a_session_and_its_live_page_end_with_the_token_that_was_revoked() {
    let (guarded, [_reader, actor]) = Guarded::start([("grafana", "read"), ("alice", "act")]).await;
    let login = guarded.client.post(format!("{}/console/login", guarded.at));
    let kind = "application/x-www-form-urlencoded";
    let login = login.header("content-type", kind).body(format!("token={actor}"));
    let response = login.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let get =
        |path: &str| guarded.client.get(format!("{}{path}", guarded.at)).header("cookie", &cookie);
    assert_eq!(get("/").send().await.unwrap().status(), StatusCode::OK);
    let mut live = get("/console/live?page=overview").send().await.unwrap();
    assert_eq!(live.status(), StatusCode::OK);
    assert!(live.chunk().await.unwrap().is_some(), "the page is followed");
    guarded.revoke("alice").await;
    let ended = async { while let Ok(Some(_)) = live.chunk().await {} };
    tokio::time::timeout(crate::harness::PATIENCE, ended).await.expect("the live page ends");
    assert_eq!(get("/").send().await.unwrap().status(), StatusCode::UNAUTHORIZED);
    assert_eq!(guarded.look(&actor).await, StatusCode::UNAUTHORIZED);
    guarded.bed.finish().await;
}

#[tokio::test]
async fn a_token_ends_by_itself_and_is_reported_before() {
    let (guarded, [reader]) = Guarded::start([("grafana", "read")]).await;
    let bed = &guarded.bed;
    made(bed, &guarded.file, &["soon", "--scope", "act", "--expires", "3d"]).await;
    signal(bed.agent_pid(), Signal::SIGHUP);
    guarded.trouble("the HTTP token soon ends at").await;
    let page = guarded.expiring(&reader, "soon").await;
    assert!(!page.contains("{name=\"grafana\"}"), "it does not end: {page}");

    // A slow machine needs more time until the page is followed.
    let mut followed = None;
    for seconds in [3, 10, 30] {
        let (name, after) = (format!("brief-{seconds}"), format!("{seconds}s"));
        let flags = [&name, "--scope", "read", "--expires", &after];
        let secret = made(bed, &guarded.file, &flags).await;
        signal(bed.agent_pid(), Signal::SIGHUP);
        guarded.expiring(&reader, &name).await;
        let live = format!("{}/console/live?page=overview", guarded.at);
        let mut live = guarded.client.get(live).bearer_auth(&secret).send().await.unwrap();
        if live.status() == StatusCode::OK && matches!(live.chunk().await, Ok(Some(_))) {
            followed = Some((name, secret, live));
            break;
        }
    }
    let (name, secret, mut live) = followed.expect("a page that is followed");
    let ended = async { while let Ok(Some(_)) = live.chunk().await {} };
    let most = 2 * crate::harness::PATIENCE;
    tokio::time::timeout(most, ended).await.expect("the live page ends with the token");
    assert_eq!(guarded.look(&secret).await, StatusCode::UNAUTHORIZED);
    let over = format!("the HTTP token {name} has ended at");
    guarded.trouble(&over).await;
    let setting = format!("api.http_tokens_file={}", guarded.file.display());
    let instance = format!("instance.id={}", crate::harness::INSTANCE);
    let said = bed.cli(&["doctor", "--set", &setting, "--set", &instance]).await;
    assert!(said.stdout.contains(&over), "{said:?}");
    guarded.bed.finish().await;
}

#[tokio::test]
async fn a_file_or_a_line_with_a_doubt_opens_nothing() {
    let (guarded, [actor]) = Guarded::start([("alice", "act")]).await;
    let nobody = async || guarded.client.get(&guarded.at).send().await.unwrap().status();
    assert_eq!(nobody().await, StatusCode::OK, "no line says read");
    let lines = std::fs::read_to_string(&guarded.file).unwrap();
    std::fs::write(&guarded.file, format!("{lines}bob read {actor}\n")).unwrap();
    signal(guarded.bed.agent_pid(), Signal::SIGHUP);
    guarded.trouble("line 2 gives nobody access: the digest of bob").await;
    assert_eq!(nobody().await, StatusCode::UNAUTHORIZED);
    assert_eq!(guarded.look(&actor).await, StatusCode::OK, "the other line counts");
    assert!(!guarded.bed.log().contains(&actor), "a secret in the wrong place is not repeated");
    let open = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(&guarded.file, open).unwrap();
    signal(guarded.bed.agent_pid(), Signal::SIGHUP);
    guarded.trouble("other users can let anybody in").await;
    assert_eq!(guarded.look(&actor).await, StatusCode::UNAUTHORIZED);
    guarded.bed.finish().await;
}

#[tokio::test]
async fn what_people_asked_is_recorded_whatever_ends_the_agent() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("web", "1", &echo).order()]).await;
    bed.running("web", "1").await;
    bed.cli(&["stop", "web", "--reason", "the disk is full"]).await.ok();
    assert_eq!(bed.cli(&["restart", "web"]).await.code, 1);
    assert_eq!(bed.cli(&["start", "nothing"]).await.code, 1);
    bed.cli(&["start", "web"]).await.ok();
    bed.cli(&["hold", "--all", "--reason", "freeze", "--until", "12h"]).await.ok();
    bed.say("{\"Command\":\"VmEvent\",\"Event\":\"specialize\"}").await;
    bed.cli(&["vm-event", "startup"]).await.ok();
    bed.cli(&["release", "--all"]).await.ok();
    bed.kill_agent_only().await;
    bed.start_agent().await;
    bed.cli(&["remove", "web", "--yes"]).await.ok();
    let me = "root (uid 0) via agent.sock";
    let expected = [
        entry(me, "stop", "web", true),
        entry(me, "restart", "web", false),
        entry(me, "start", "nothing", false),
        entry(me, "start", "web", true),
        entry(me, "hold", "all", true),
        entry("root (uid 0) via command.sock", "vm-event", "all", true),
        entry(me, "vm-event", "all", true),
        entry(me, "release", "all", true),
        entry(me, "remove", "web", true),
    ];
    assert_eq!(asked(&bed, &[]).await, expected, "the orders of the control plane are events");
    assert_eq!(asked(&bed, &["nothing"]).await.len(), 5, "of all plugins, and of this one");
    assert_eq!(asked(&bed, &["-n", "2"]).await, expected[7..]);
    let shown = bed.cli(&["audit", "web"]).await.ok();
    assert!(shown.contains("by root (uid 0) via agent.sock: the disk is full"), "{shown}");
    assert!(shown.contains("REFUSED: web is to stay stopped"), "{shown}");
    bed.finish().await;
}
