//! A login with oidc-provider, a certified provider that `tests/fleet/get-oidc-provider` gets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};

use super::super::{Callback, Oidc, OidcError, OidcSettings};
use super::field;

const REDIRECT: &str = "http://127.0.0.1:9/callback";
/// Longest wait for the provider.
const PATIENCE: Duration = Duration::from_secs(60);

/// The folder of oidc-provider. Where it or Node is missing, a line on stderr says so.
fn folder() -> Option<PathBuf> {
    let own = std::env::current_exe().expect("the test has a program");
    let found =
        own.ancestors().map(|it| it.join("oidc-provider")).find(|it| it.join("version").is_file());
    if found.is_none() {
        eprintln!("SKIPPED: oidc-provider is not here: run tests/fleet/get-oidc-provider");
    }
    found
}

async fn provider(folder: &std::path::Path) -> (Child, String) {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fleet/identity/provider.mjs");
    let mut child = Command::new("node")
        .arg(script)
        .arg(folder)
        .args([REDIRECT, "s3cret"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("node runs, as npm did");
    let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
    let mut lines = stdout.lines();
    let issuer = tokio::time::timeout(PATIENCE, lines.next_line()).await.expect("in time");
    (child, issuer.expect("read").expect("a line"))
}

/// A browser: it follows no redirect by itself.
#[derive(Default)]
struct Browser {
    cookies: BTreeMap<String, String>,
}

impl Browser {
    /// Sends a request; answers where it leads to, or nothing.
    async fn go(&mut self, url: &str, form: Option<&str>) -> Option<String> {
        let rest = url.strip_prefix("http://").expect("a URL");
        let (host, path) = rest.split_once('/').expect("a path");
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let (verb, body) = form.map_or(("GET", ""), |form| ("POST", form));
        let request = format!(
            "{verb} /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncookie: {}\r\ncontent-type: \
             application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
            cookies.join("; "),
            body.len()
        );
        let mut stream = TcpStream::connect(host).await.expect("connected");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = Vec::new();
        let reading = stream.read_to_end(&mut answer);
        tokio::time::timeout(PATIENCE, reading).await.expect("in time").expect("read");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let head = answer.split("\r\n\r\n").next().unwrap_or_default();
        let mut location = None;
        for line in head.lines() {
            let (name, value) = line.split_once(": ").unwrap_or_default();
            match name.to_ascii_lowercase().as_str() {
                "set-cookie" => {
                    let (name, value) = value.split(';').next()?.split_once('=')?;
                    self.cookies.insert(name.to_owned(), value.to_owned());
                }
                "location" if value.starts_with('/') => {
                    location = Some(format!("http://{host}{value}"));
                }
                "location" => location = Some(value.to_owned()),
                _ => {}
            }
        }
        location
    }

    /// Goes through the pages of the provider as a person does; answers the URL that it comes back with.
    async fn log_in(&mut self, url: &str, person: &str) -> String {
        let mut url = self.go(url, None).await.expect("a page");
        for _ in 0..12 {
            if url.starts_with(REDIRECT) {
                return url;
            }
            let next = if url.contains("/interaction/") {
                let login = format!("prompt=login&login={person}&password=x");
                let answers = [login.as_str(), "prompt=consent"];
                let answer = answers[usize::from(self.cookies.contains_key("_session"))];
                self.go(&url, Some(answer)).await
            } else {
                self.go(&url, None).await
            };
            url = next.expect("the provider goes on");
        }
        panic!("the provider does not come back: {url}");
    }
}

#[tokio::test]
async fn people_log_in_with_a_certified_provider_and_lose_what_they_lose_there() {
    let Some(folder) = folder() else { return };
    let (_provider, issuer) = provider(&folder).await;
    let directory = tempfile::tempdir().expect("a directory");
    let secret = directory.path().join("secret");
    std::fs::write(&secret, "s3cret").expect("written");
    let settings = OidcSettings {
        issuer: issuer.clone(),
        client_id: "fleet".to_owned(),
        client_secret_file: Some(secret.clone()),
        name_claim: "email".to_owned(),
        groups_claim: "groups".to_owned(),
        scopes: ["email", "groups", "offline_access"].map(str::to_owned).to_vec(),
        ca: None,
    };
    let oidc = Oidc::new(settings.clone()).expect("settings");
    let begun = oidc.begin(REDIRECT, "").await.expect("begun");
    let back = Browser::default().log_in(&begun.url, "alice").await;
    let [state, code, from] = ["state", "code", "iss"].map(|name| field(&back, name));
    let callback = Callback {
        state: Some(&state),
        code: Some(&code),
        issuer: Some(&from),
        ..Callback::default()
    };
    let login = oidc.finish(&begun.cookie, callback).await.expect("a login").login;
    assert_eq!(login.name, "alice@example.org");
    assert_eq!(login.groups, ["web-team", "everybody"]);
    assert!(login.can_be_renewed());

    // A code is of use once.
    let again = oidc.finish(&begun.cookie, callback).await;
    let is_refused =
        matches!(&again, Err(OidcError::Exchange { error, .. }) if error == "invalid_grant");
    assert!(is_refused, "{again:?}");

    // The second use of a code takes back what came of the first, as RFC 6749 wants it.
    assert!(oidc.renew(&login).await.expect_err("it was taken back").is_refusal());
    let begun = oidc.begin(REDIRECT, "").await.expect("begun");
    let back = Browser::default().log_in(&begun.url, "alice").await;
    let [state, code] = ["state", "code"].map(|name| field(&back, name));
    let callback = Callback { state: Some(&state), code: Some(&code), ..Callback::default() };
    let login = oidc.finish(&begun.cookie, callback).await.expect("a login").login;
    Browser::default().go(&format!("{issuer}/test/groups/alice/everybody"), None).await;
    let renewed = oidc.renew(&login).await.expect("renewed");
    assert_eq!(renewed.groups, ["everybody"]);

    // The wrong secret.
    std::fs::write(&secret, "other").expect("written");
    let refused = oidc.renew(&renewed).await;
    let is_refused =
        matches!(&refused, Err(OidcError::Exchange { error, .. }) if error == "invalid_client");
    assert!(is_refused, "{refused:?}");
}
