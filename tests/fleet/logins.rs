//! People log in to the console by a real identity provider: oidc-provider, a certified one, which
//! `tests/fleet/get-oidc-provider` gets; `guest-fleet serve` as people run it; a browser of a few lines, and Chromium.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use crate::browser::Browser as Chromium;
use crate::console::Served;
use crate::{PATIENCE, fleet_program};

const SESSION: &str = "guest-fleet-session";
const LOGIN: &str = "guest-fleet-login";

/// A console with logins by a provider. The console is `localhost` and the provider `127.0.0.1`: two sites.
struct World {
    served: Served,
    issuer: String,
    callback: String,
    _provider: Child,
    _secret: tempfile::NamedTempFile,
}

/// An answer over HTTP.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

/// A browser: it keeps its cookies by host and port, and follows nothing by itself.
#[derive(Default)]
struct Browser {
    cookies: BTreeMap<String, BTreeMap<String, String>>,
}

/// The folder of oidc-provider. Where it is missing, a line on stderr says so.
fn folder() -> Option<PathBuf> {
    let own = std::env::current_exe().unwrap();
    let found =
        own.ancestors().map(|it| it.join("oidc-provider")).find(|it| it.join("version").is_file());
    if found.is_none() {
        eprintln!("SKIPPED: logins: oidc-provider is not here: run tests/fleet/get-oidc-provider");
    }
    found
}

/// A port that was free a moment ago: the provider has to know it before the console listens.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

async fn provider(folder: &Path, callback: &str) -> (Child, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleet/identity/provider.mjs");
    let mut child = Command::new("node")
        .arg(script)
        .arg(folder)
        .args([callback, "s3cret"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("node runs, as npm did");
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let issuer = timeout(PATIENCE, lines.next_line()).await.expect("in time");
    (child, issuer.unwrap().expect("a line"))
}

// === impl World ===

impl World {
    async fn start() -> Option<Self> {
        let folder = folder()?;
        let port = free_port();
        let callback = format!("http://localhost:{port}/console/login/callback");
        let (child, issuer) = provider(&folder, &callback).await;
        let secret = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(secret.path(), "s3cret\n").unwrap();
        let at = format!("127.0.0.1:{port}");
        let options = [
            ["--api-listen", at.as_str()],
            ["--oidc-issuer", issuer.as_str()],
            ["--oidc-client-id", "fleet"],
            ["--oidc-client-secret-file", secret.path().to_str().unwrap()],
            ["--oidc-redirect-url", callback.as_str()],
            ["--oidc-scope", "email"],
            ["--oidc-scope", "groups"],
        ]
        .concat();
        let mut served = Served::with(&options).await;
        served.at = format!("http://localhost:{port}");
        served.declare().await;
        Some(Self { served, issuer, callback, _provider: child, _secret: secret })
    }

    fn page(&self, path: &str) -> String {
        format!("{}{path}", self.served.at)
    }

    /// Begins a login and goes through the pages of the provider; answers the URL that it sends the browser back to.
    async fn begin(&self, browser: &mut Browser, person: &str, next: &str) -> String {
        let start = self.page(&format!("/console/login/provider?next={next}"));
        let begun = browser.get(&start).await;
        assert_eq!(begun.status, 303, "{}", begun.body);
        let mut url = begun.location(&start);
        assert!(url.starts_with(&self.issuer), "{url}");
        for _ in 0..12 {
            if url.starts_with(&self.callback) {
                return url;
            }
            let answer = if url.contains("/interaction/") {
                let login = format!("prompt=login&login={person}&password=x");
                let has_logged_in = browser.of(&url).contains_key("_session");
                let form = if has_logged_in { "prompt=consent" } else { &login };
                browser.go(&url, Some(form)).await
            } else {
                browser.get(&url).await
            };
            url = answer.location(&url);
        }
        panic!("the provider does not come back: {url}");
    }

    async fn log_in(&self, browser: &mut Browser, person: &str) -> Answer {
        let back = self.begin(browser, person, "").await;
        browser.get(&back).await
    }

    /// Logs in until the console knows of a role that was granted a moment ago.
    async fn enter(&self, browser: &mut Browser, person: &str) -> Answer {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let page = self.log_in(browser, person).await;
            if page.status == 200 {
                return page;
            }
            assert!(Instant::now() < deadline, "{}: {}", page.status, page.body);
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    fn session(&self, browser: &mut Browser) -> Option<String> {
        browser.of(&self.served.at).get(SESSION).cloned()
    }
}

// === impl Answer ===

impl Answer {
    fn header(&self, name: &str) -> &str {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(it, _)| it.eq_ignore_ascii_case(name)).map_or("", |(_, value)| value)
    }

    /// Where it leads to, from the page that was asked for.
    fn location(&self, from: &str) -> String {
        let to = self.header("location");
        assert!(!to.is_empty(), "{}\n{}", self.head, self.body);
        if to.starts_with('/') { format!("{}{to}", origin(from)) } else { to.to_owned() }
    }

    /// The value of a hidden field.
    fn field(&self, name: &str) -> &str {
        let begin = format!("name=\"{name}\" value=\"");
        let rest =
            self.body.split_once(&begin).unwrap_or_else(|| panic!("{name}: {}", self.body)).1;
        rest.split('"').next().unwrap_or_default()
    }
}

/// `http://host:port` of a URL.
fn origin(url: &str) -> &str {
    let path = url.match_indices('/').nth(2).map_or(url.len(), |(at, _)| at);
    &url[..path]
}

// === impl Browser ===

impl Browser {
    fn of(&mut self, url: &str) -> &mut BTreeMap<String, String> {
        self.cookies.entry(origin(url).to_owned()).or_default()
    }

    async fn get(&mut self, url: &str) -> Answer {
        self.go(url, None).await
    }

    async fn go(&mut self, url: &str, form: Option<&str>) -> Answer {
        self.send(url, form, "").await
    }

    async fn send(&mut self, url: &str, form: Option<&str>, more: &str) -> Answer {
        let host = origin(url).strip_prefix("http://").unwrap();
        let path = url.strip_prefix(origin(url)).filter(|path| !path.is_empty()).unwrap_or("/");
        let cookies: Vec<String> =
            self.of(url).iter().map(|(name, value)| format!("{name}={value}")).collect();
        let (verb, body) = form.map_or(("GET", ""), |form| ("POST", form));
        let request = format!(
            "{verb} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\naccept: text/html\r\ncookie: {}\r\n\
             content-type: application/x-www-form-urlencoded\r\n{more}content-length: {}\r\n\r\n{body}",
            cookies.join("; "),
            body.len()
        );
        let mut stream = TcpStream::connect(host.replace("localhost", "127.0.0.1")).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        timeout(PATIENCE, stream.read_to_end(&mut answer)).await.expect("in time").unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        for line in head.lines() {
            let Some((name, cookie)) = line.split_once(": ") else { continue };
            if name.eq_ignore_ascii_case("set-cookie") {
                let (name, value) = cookie.split(';').next().unwrap().split_once('=').unwrap();
                match value {
                    "" => self.of(url).remove(name),
                    value => self.of(url).insert(name.to_owned(), value.to_owned()),
                };
            }
        }
        Answer { status, head: head.to_owned(), body: body.to_owned() }
    }
}

#[tokio::test]
async fn people_log_in_by_a_real_provider_and_the_audit_record_names_them() {
    let Some(world) = World::start().await else { return };
    let mut browser = Browser::default();
    let page = browser.get(&world.page("/console/login")).await;
    assert!(page.body.contains("Log in with the identity provider"), "{}", page.body);

    // Nobody has given this person a role; the page says what an admin does about it.
    let page = world.log_in(&mut browser, "alice").await;
    assert_eq!((page.status, world.session(&mut browser)), (403, None), "{}", page.body);
    assert!(page.body.contains("alice@example.org"), "{}", page.body);
    let command = "guest-fleet access grant --group=web-team --role viewer";
    assert!(page.body.contains(command), "{}", page.body);
    world.served.ask(&["access", "grant", "--group=web-team", "--role", "operator"]).await;

    browser.of(&world.served.at).insert(SESSION.to_owned(), "planted".to_owned());
    let page = world.enter(&mut browser, "alice").await;
    assert_eq!(page.header("refresh"), "0; url=/");
    let session = world.session(&mut browser).expect("a session");
    assert_ne!(session, "planted");
    let page = browser.get(&world.page("/")).await;
    assert!(page.body.contains("alice@example.org, operator"), "{}", page.body);

    acts(&world, &mut browser).await;

    // The person is nobody elsewhere: bob has no role, and does not become alice.
    let page = world.log_in(&mut Browser::default(), "bob").await;
    assert_eq!(page.status, 403, "{}", page.body);
    assert!(page.body.contains("bob@example.org"), "{}", page.body);

    // Logged out is logged out, also for who kept the cookie.
    let page = browser.get(&world.page("/")).await;
    let form = format!("csrf={}", page.field("csrf"));
    let answer = browser.go(&world.page("/console/logout"), Some(&form)).await;
    assert_eq!(answer.header("location"), "/console/login");
    browser.of(&world.served.at).insert(SESSION.to_owned(), session);
    assert_eq!(browser.get(&world.page("/")).await.header("location"), "/console/login");

    // Who loses the role loses it at once.
    world.enter(&mut browser, "alice").await;
    world.served.ask(&["access", "revoke", "--group", "web-team"]).await;
    let deadline = Instant::now() + PATIENCE;
    let page = loop {
        let page = browser.get(&world.page("/")).await;
        if page.status != 200 {
            break page;
        }
        assert!(Instant::now() < deadline, "the role is still there");
        tokio::time::sleep(Duration::from_millis(200)).await;
    };
    assert_eq!((page.status, world.session(&mut browser)), (403, None), "{}", page.body);
}

/// What a person does is done once, by a form of the own session alone, and under the own name.
async fn acts(world: &World, browser: &mut Browser) {
    let abort = world.page("/console/rollout/abort?of=spring");
    let page = browser.get(&abort).await;
    let [csrf, key, seen] = ["csrf", "key", "seen"].map(|name| page.field(name).replace(' ', "+"));
    let form = |csrf: &str| format!("csrf={csrf}&key={key}&seen={seen}&reason=TICKET-9");
    assert_eq!(browser.go(&abort, Some(&form("x"))).await.status, 403);
    let foreign = "origin: https://evil.example\r\nsec-fetch-site: cross-site\r\n";
    assert_eq!(browser.send(&abort, Some(&form(&csrf)), foreign).await.status, 403);
    let shown = world.served.ask(&["rollout", "show", "spring"]).await;
    assert_eq!(shown["state"], "draft", "{shown:#}");
    let answer = browser.go(&abort, Some(&form(&csrf))).await;
    assert_eq!(answer.status, 303, "{}", answer.body);
    let shown = world.served.ask(&["rollout", "show", "spring"]).await;
    assert_eq!(shown["state"], "aborted", "{shown:#}");
    let audit: Value = world.served.ask(&["audit", "--limit", "1"]).await;
    let audit = audit.to_string();
    let from = format!("the console, login at {} as alice from 127.0.0.1", world.issuer);
    for told in ["alice@example.org", "TICKET-9", from.as_str()] {
        assert!(audit.contains(told), "{told}: {audit}");
    }
}

#[tokio::test]
async fn a_login_that_is_forged_or_comes_again_makes_no_session() {
    let Some(world) = World::start().await else { return };
    world.served.ask(&["access", "grant", "alice@example.org", "--role", "viewer"]).await;
    let (mut browser, mut thief) = (Browser::default(), Browser::default());
    world.enter(&mut browser, "alice").await;

    // The address of another browser's login is of no use here, nor is one with another state.
    let theirs = world.begin(&mut browser, "alice", "").await;
    assert_eq!(thief.get(&theirs).await.status, 400);
    world.begin(&mut thief, "bob", "").await;
    assert_eq!(thief.get(&theirs).await.status, 400);
    assert_eq!(world.session(&mut thief), None);
    let forged = theirs.replace("state=", "state=x");
    assert_eq!(browser.get(&forged).await.status, 400);

    // It makes one session. Who has everything of the browser cannot use the code again: the provider refuses it.
    let cookie = browser.of(&world.served.at).get(LOGIN).cloned().expect("a login");
    assert_eq!(browser.get(&theirs).await.status, 200);
    assert_eq!(browser.get(&theirs).await.status, 400);
    thief.of(&world.served.at).insert(LOGIN.to_owned(), cookie);
    let page = thief.get(&theirs).await;
    assert_eq!((page.status, world.session(&mut thief)), (403, None));
    assert!(page.body.contains("invalid_grant"), "{}", page.body);

    // A login leads to a page of the console.
    for (next, to) in [("//evil.example", "/"), ("/console/agents", "/console/agents")] {
        let back = world.begin(&mut browser, "alice", next).await;
        assert_eq!(browser.get(&back).await.header("refresh"), format!("0; url={to}"));
    }
}

#[tokio::test]
async fn a_browser_logs_in_without_a_script_and_comes_to_the_page_that_it_asked_for() {
    let Some(world) = World::start().await else { return };
    let Some(mut browser) = Chromium::start("logins of people").await else { return };
    world.served.ask(&["access", "grant", "alice@example.org", "--role", "viewer"]).await;
    // The console knows of the role.
    world.enter(&mut Browser::default(), "alice").await;

    browser.open(&world.page("/console/rollout?of=spring")).await;
    assert_eq!(browser.evaluate("location.pathname").await, "/console/login");
    if let Some(found) = browser.axe().await {
        assert_eq!(found, [""; 0], "the page of logins");
    }
    browser.allow_script(false).await;
    browser.follow("main a.button").await;
    browser.until("document.querySelector('input[name=login]')").await;
    browser.evaluate("document.querySelector('input[name=login]').value = 'alice'").await;
    browser.evaluate("document.querySelector('input[name=password]').value = 'x'").await;
    browser.follow("button[type=submit]").await;
    browser.until("document.querySelector('button[type=submit]')").await;
    browser.follow("button[type=submit]").await;
    // From the provider, which is another site, to a page of the console with its strict cookie.
    browser.until("location.pathname === '/console/rollout'").await;
    let text = browser.evaluate("document.body.innerText").await.to_string();
    assert!(text.contains("alice@example.org, viewer") && text.contains("spring"), "{text}");
    browser.follow("header form button").await;
    browser.until("location.pathname === '/console/login'").await;
    browser.close().await;
}

#[tokio::test]
async fn a_provider_that_is_away_keeps_nothing_from_starting_and_a_wrong_option_does() {
    let port = free_port();
    let at = format!("127.0.0.1:{port}");
    let callback = format!("http://localhost:{port}/console/login/callback");
    let options = [
        ["--api-listen", at.as_str()],
        // Nothing listens there.
        ["--oidc-issuer", "http://127.0.0.1:1"],
        ["--oidc-client-id", "fleet"],
        ["--oidc-redirect-url", callback.as_str()],
    ]
    .concat();
    let served = Served::with(&options).await;
    let mut browser = Browser::default();
    let deadline = Instant::now() + PATIENCE;
    while !browser
        .get(&format!("{}/console/login", served.at))
        .await
        .body
        .contains("does not answer")
    {
        assert!(Instant::now() < deadline, "the page never says so");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let begun = browser.get(&format!("{}/console/login/provider", served.at)).await;
    assert_eq!(begun.status, 503, "{}", begun.body);
    let form = format!("token={}", served.token("viewer").await);
    let deadline = Instant::now() + PATIENCE;
    // A new token is known within a second.
    while browser.go(&format!("{}/console/login", served.at), Some(&form)).await.status != 303 {
        assert!(Instant::now() < deadline, "the token is not taken");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(fleet_program::path());
    command.arg("--ledger").arg(folder.path().join("fleet.db")).arg("serve");
    command.arg("--listen").arg(format!("unix:{}", folder.path().join("s").display()));
    command.args(["--api-listen", "127.0.0.1:0", "--oidc-client-id", "fleet"]);
    command.args(["--oidc-issuer", "https://id.example"]).kill_on_drop(true);
    let output = timeout(PATIENCE, command.output()).await.expect("it ends").unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{told}");
    assert!(told.contains("--api-name") && told.contains("--oidc-redirect-url"), "{told}");
}
