//! Logins with a provider on loopback that behaves well and badly.

pub(crate) mod fake;
mod real;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::sessions::{CHECKED, IDLE, LASTS, SESSIONS, SessionEnd, Sessions};
use super::super::{Grant, Role, bindings};
use super::*;
use crate::chain::Chain;
use crate::configuration::change::Decision;
use crate::configuration::tests::fake::FakeLedger;
use crate::outbound::FetchError;
use crate::records::access::Subject;
use fake::{CLIENT, Idp, REDIRECT};

/// The value of a field in a query or a form.
pub(crate) fn field(text: &str, name: &str) -> String {
    let query = text.split_once('?').map_or(text, |(_, query)| query);
    let found = query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    let mut bytes = found.unwrap_or_default().bytes();
    let mut text = Vec::new();
    while let Some(byte) = bytes.next() {
        let digits = [bytes.clone().next(), bytes.clone().nth(1)].map(Option::unwrap_or_default);
        if byte == b'%' {
            let digits = std::str::from_utf8(&digits).expect("ASCII").to_owned();
            text.push(u8::from_str_radix(&digits, 16).expect("digits"));
            bytes.nth(1);
        } else {
            text.push(byte);
        }
    }
    String::from_utf8(text).expect("text")
}

/// Logs in; the provider says the nonce that it was asked with.
async fn log_in(oidc: &Oidc, idp: &Idp) -> Result<Login, OidcError> {
    let begun = oidc.begin(REDIRECT, "").await?;
    idp.says("nonce", json!(field(&begun.url, "nonce")));
    finish(oidc, &begun).await
}

async fn finish(oidc: &Oidc, begun: &Begun) -> Result<Login, OidcError> {
    let state = field(&begun.url, "state");
    let callback = Callback { state: Some(&state), code: Some("c0de"), ..Callback::default() };
    oidc.finish(&begun.cookie, callback).await.map(|finished| finished.login)
}

#[tokio::test]
async fn a_login_has_the_name_and_the_groups_of_the_token() {
    let idp = Idp::start().await;
    let oidc = idp.oidc();
    let begun = oidc.begin(REDIRECT, "").await.expect("begun");
    let url = &begun.url;
    assert!(url.starts_with(&format!("{}/authorize?", idp.issuer)), "{url}");
    for (name, value) in [
        ("response_type", "code"),
        ("client_id", CLIENT),
        ("redirect_uri", REDIRECT),
        ("scope", "openid email groups"),
        ("code_challenge_method", "S256"),
    ] {
        assert_eq!(field(url, name), value, "{url}");
    }
    idp.says("nonce", json!(field(url, "nonce")));
    idp.says("groups", json!(["web", "db"]));
    let login = finish(&oidc, &begun).await.expect("a login");
    assert_eq!((login.name.as_str(), login.groups.len()), ("alice@example.org", 2));
    let asked = idp.asked("/token");
    let (head, form) = asked.split_once("\r\n\r\n").expect("a request");
    assert_eq!(field(form, "code"), "c0de");
    assert_eq!(field(form, "redirect_uri"), REDIRECT);
    let digest = Sha256::digest(field(form, "code_verifier"));
    assert_eq!(URL_SAFE_NO_PAD.encode(digest), field(url, "code_challenge"));
    let basic = STANDARD.encode(format!("{CLIENT}:s%2Fcret"));
    assert!(
        head.to_ascii_lowercase()
            .contains(&format!("authorization: basic {basic}").to_ascii_lowercase()),
        "{head}"
    );
    assert!(!form.contains("cret"), "the secret is in the header alone");
    let shown = format!("{login:?}");
    assert!(!shown.contains("refresh"), "{shown}");
}

#[tokio::test]
async fn a_provider_that_takes_secrets_in_the_form_gets_it_there() {
    let idp = Idp::start().await;
    idp.describes("token_endpoint_auth_methods_supported", json!(["client_secret_post"]));
    log_in(&idp.oidc(), &idp).await.expect("a login");
    let asked = idp.asked("/token");
    assert_eq!(
        field(asked.split_once("\r\n\r\n").expect("a request").1, "client_secret"),
        "s/cret"
    );
    assert!(!asked.to_ascii_lowercase().contains("authorization:"));
}

#[tokio::test]
async fn a_token_that_is_not_for_this_login_is_refused() {
    let idp = Idp::start().await;
    let oidc = idp.oidc();
    let now = seconds(SystemTime::now());
    for (claim, value) in [
        ("aud", json!("other")),
        ("aud", json!([CLIENT, "other"])),
        ("azp", json!("other")),
        ("iss", json!("https://other.example")),
        ("exp", json!(now - 3600)),
        ("exp", json!(null)),
        ("iat", json!(now + 3600)),
        ("sub", json!(null)),
        ("email", json!(null)),
        ("email_verified", json!(false)),
        ("groups", json!({})),
    ] {
        idp.is_good();
        idp.says(claim, value.clone());
        let refused = log_in(&oidc, &idp).await.expect_err("it is refused");
        assert!(refused.is_refusal(), "{claim} {value}: {refused}");
    }
    idp.is_good();
    let begun = oidc.begin(REDIRECT, "").await.expect("begun");
    for nonce in [json!("other"), json!(null), json!("")] {
        idp.says("nonce", nonce);
        let refused = finish(&oidc, &begun).await;
        assert!(matches!(refused, Err(OidcError::Nonce)), "{refused:?}");
    }
    idp.is_good();
    assert!(log_in(&oidc, &idp).await.is_ok());
}

#[tokio::test]
async fn a_token_that_the_provider_did_not_sign_is_refused() {
    let idp = Idp::start().await;
    let oidc = idp.oidc();
    for header in [
        json!({ "alg": "none" }),
        json!({ "alg": "HS256" }),
        json!({ "alg": "RS256" }),
        json!({ "alg": "ES256", "kid": "unknown" }),
        json!({ "alg": "ES256", "crit": ["x"] }),
    ] {
        idp.is_good();
        idp.signs_with(header.clone());
        let refused = log_in(&oidc, &idp).await;
        assert!(matches!(refused, Err(OidcError::Token(_))), "{header}: {refused:?}");
    }
    idp.is_good();
    idp.signs_with_another_key();
    let refused = log_in(&oidc, &idp).await;
    assert!(matches!(refused, Err(OidcError::Token(_))), "{refused:?}");
}

#[tokio::test]
async fn what_a_provider_answers_badly_is_an_error() {
    let idp = Idp::start().await;
    let large = |bytes: usize| format!("{{\"x\":\"{}\"}}", "x".repeat(bytes));
    for (path, answer) in [
        ("/token", fake::answer(400, r#"{"error":"invalid_grant"}"#)),
        ("/token", fake::answer(500, "<html>")),
        ("/token", fake::answer(302, "")),
        ("/token", fake::answer(200, "<html>")),
        ("/token", fake::answer(200, "{}")),
        ("/token", fake::answer(200, r#"{"id_token":"x.y.z"}"#)),
        ("/token", fake::answer(200, &large(ANSWER_BYTES))),
        ("/token", "HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{".to_owned()),
        ("/token", String::new()),
        ("/keys", fake::answer(200, &large(512 << 10))),
        ("/keys", fake::answer(200, r#"{"keys":[]}"#)),
        ("/keys", fake::answer(404, "")),
        ("/.well-known/openid-configuration", fake::answer(200, &large(512 << 10))),
        ("/.well-known/openid-configuration", fake::answer(200, "{}")),
        ("/.well-known/openid-configuration", fake::answer(404, "")),
        ("/.well-known/openid-configuration", fake::answer(301, "")),
    ] {
        idp.is_good();
        idp.answers(path, &answer);
        // A new one, which knows nothing of the provider.
        let refused = log_in(&idp.oidc(), &idp).await;
        assert!(refused.is_err(), "{path}: {}", &answer[..answer.len().min(80)]);
    }
    idp.is_good();
    assert!(log_in(&idp.oidc(), &idp).await.is_ok());
}

#[tokio::test]
async fn a_provider_that_describes_another_one_or_a_place_off_limits_is_not_used() {
    let idp = Idp::start().await;
    for (name, value) in [
        ("issuer", json!("http://127.0.0.1:1")),
        ("issuer", json!(format!("{}/", idp.issuer))),
        ("code_challenge_methods_supported", json!(["plain"])),
        ("token_endpoint", json!("file:///etc/passwd")),
        ("authorization_endpoint", json!("javascript:alert(1)")),
        ("jwks_uri", json!("ftp://127.0.0.1/")),
        ("token_endpoint", json!(null)),
    ] {
        idp.is_good();
        idp.describes(name, value.clone());
        let refused = idp.oidc().begin(REDIRECT, "").await;
        assert!(refused.is_err(), "{name} {value}");
    }
    for (name, url) in [
        ("token_endpoint", "https://169.254.169.254/token"),
        ("jwks_uri", "https://169.254.169.254/keys"),
        ("token_endpoint", "http://192.0.2.1/token"),
    ] {
        idp.is_good();
        idp.describes(name, json!(url));
        let refused = log_in(&idp.oidc(), &idp).await.expect_err("it is off limits");
        let text = Chain(&refused).to_string();
        assert!(text.contains("metadata server") || text.contains("use https"), "{text}");
    }
}

#[tokio::test]
async fn a_provider_that_hangs_is_waited_for_no_longer_than_the_deadline() {
    let idp = Idp::start().await;
    let oidc = idp.oidc();
    idp.hangs("/token");
    let refused = log_in(&oidc, &idp).await;
    let is_slow = matches!(&refused, Err(OidcError::Fetch { source: FetchError::TooSlow, .. }));
    assert!(is_slow, "{refused:?}");
}

#[tokio::test]
async fn a_login_is_finished_only_by_the_browser_that_began_it() {
    let idp = Idp::start().await;
    let oidc = idp.oidc();
    let mine = oidc.begin(REDIRECT, "").await.expect("begun");
    let other = oidc.begin(REDIRECT, "").await.expect("begun");
    let state = field(&mine.url, "state");
    let good = Callback { state: Some(&state), code: Some("c0de"), ..Callback::default() };
    for cookie in ["", "x", &other.cookie] {
        let refused = oidc.finish(cookie, good).await;
        assert!(matches!(refused, Err(OidcError::NoLogin)), "{refused:?}");
    }
    let refused = idp.oidc().finish(&mine.cookie, good).await;
    assert!(matches!(refused, Err(OidcError::NoLogin)), "of another process: {refused:?}");
    let without = Callback { state: None, ..good };
    assert!(matches!(oidc.finish(&mine.cookie, without).await, Err(OidcError::NoLogin)));
    let foreign = Callback { issuer: Some("https://other.example"), ..good };
    assert!(matches!(oidc.finish(&mine.cookie, foreign).await, Err(OidcError::OtherIssuer)));
    let denied = Callback { error: Some("access_denied\n"), ..good };
    let refused = oidc.finish(&mine.cookie, denied).await.expect_err("it is refused").to_string();
    assert!(refused.ends_with("access_denied\\n"), "{refused}");
    let long = "x".repeat(CODE_BYTES + 1);
    for code in [None, Some(""), Some(long.as_str())] {
        let refused = oidc.finish(&mine.cookie, Callback { code, ..good }).await;
        assert!(matches!(refused, Err(OidcError::NoCode)), "{refused:?}");
    }
    assert!(idp.asked("/token").is_empty(), "no code was shown to the provider");
}

#[tokio::test]
async fn a_login_gives_back_what_it_was_to_keep_and_the_principal_says_who_said_it() {
    let idp = Idp::start().await;
    let oidc = idp.oidc();
    let begun = oidc.begin(REDIRECT, "/console/agents").await.expect("begun");
    idp.says("nonce", json!(field(&begun.url, "nonce")));
    let state = field(&begun.url, "state");
    let callback = Callback { state: Some(&state), code: Some("c0de"), ..Callback::default() };
    let finished = oidc.finish(&begun.cookie, callback).await.expect("a login");
    assert_eq!(finished.kept, "/console/agents");
    let directory = Directory::default();
    directory.refresh(&FakeLedger::default()).await.expect("read");
    let alice = finished.login.principal(&directory).expect("it is known who may do what");
    assert_eq!(alice.from, format!("login at {} as 7", idp.issuer));
}

#[tokio::test]
async fn a_provider_that_is_away_is_asked_again_and_not_by_every_browser() {
    let idp = Idp::start().await;
    let oidc = std::sync::Arc::new(idp.oidc());
    assert!(!oidc.is_away(), "nobody has asked yet");
    idp.answers("/.well-known/openid-configuration", &fake::answer(503, ""));
    let first = oidc.begin(REDIRECT, "").await;
    assert!(matches!(first, Err(OidcError::Metadata(_) | OidcError::Fetch { .. })), "{first:?}");
    assert!(oidc.is_away());
    idp.answers_well("/.well-known/openid-configuration");
    // A busy machine lets no second go by here.
    tokio::time::pause();
    let second = oidc.begin(REDIRECT, "").await;
    tokio::time::resume();
    assert!(matches!(second, Err(OidcError::Away(_))), "{second:?}");
    let (shutdown, follower) = (CancellationToken::new(), oidc.clone());
    let following = tokio::spawn(follower.follow(shutdown.clone()));
    let back = async {
        while oidc.is_away() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), back).await.expect("it is asked again");
    assert!(oidc.begin(REDIRECT, "").await.is_ok());
    shutdown.cancel();
    following.await.expect("it ends");
}

#[tokio::test]
async fn a_login_that_took_too_long_is_not_finished() {
    let idp = Idp::start().await;
    let oidc = idp.oidc();
    let late = State {
        state: "s".to_owned(),
        nonce: "n".to_owned(),
        verifier: "v".to_owned(),
        redirect: REDIRECT.to_owned(),
        kept: String::new(),
        until: seconds(SystemTime::now()),
    };
    let callback = Callback { state: Some("s"), code: Some("c"), ..Callback::default() };
    let refused = oidc.finish(&oidc.seal.close(&late), callback).await;
    assert!(matches!(refused, Err(OidcError::NoLogin)), "{refused:?}");
}

#[test]
fn settings_that_cannot_be_used_are_refused() {
    let with = |issuer: &str, client: &str| {
        Oidc::new(OidcSettings {
            issuer: issuer.to_owned(),
            client_id: client.to_owned(),
            client_secret_file: None,
            name_claim: "email".to_owned(),
            groups_claim: "groups".to_owned(),
            scopes: Vec::new(),
            ca: None,
        })
        .map(drop)
    };
    assert!(matches!(with("https://idp.example", ""), Err(OidcError::NoClient)));
    for bad in ["", "idp.example", "ftp://idp.example", "https://u:p@idp.example"] {
        assert!(matches!(with(bad, "fleet"), Err(OidcError::Url { .. })), "{bad}");
    }
    assert!(with("https://idp.example/realms/x", "fleet").is_ok());
}

/// Sessions over a provider, and a ledger in which the group `web` sees everything.
struct Console {
    idp: Idp,
    ledger: FakeLedger,
    directory: Directory,
    oidc: std::sync::Arc<Oidc>,
    sessions: Sessions,
}

fn decision() -> Decision {
    Decision { who: "root@ops".to_owned(), at: jiff::Timestamp::now(), ..Decision::default() }
}

impl Console {
    async fn start() -> Self {
        let idp = Idp::start().await;
        idp.says("groups", json!(["web"]));
        let (ledger, directory) = (FakeLedger::default(), Directory::default());
        let web = Subject::Group("web".to_owned());
        let role = Grant::everywhere(Role::Viewer);
        bindings::grant(&ledger, &decision(), &web, &role).await.expect("granted");
        directory.refresh(&ledger).await.expect("read");
        let oidc = std::sync::Arc::new(idp.oidc());
        let sessions = Sessions::new(oidc.clone(), directory.clone());
        Self { idp, ledger, directory, oidc, sessions }
    }

    async fn log_in(&self) -> String {
        let login = log_in(&self.oidc, &self.idp).await.expect("a login");
        self.sessions.begin(login, None).expect("a session")
    }

    /// Lets time go by. Only then the clock stands still: what goes over a socket has deadlines.
    async fn wait(&self, time: Duration) {
        tokio::time::pause();
        tokio::time::advance(time).await;
        tokio::time::resume();
        self.directory.refresh(&self.ledger).await.expect("read");
    }
}

#[tokio::test]
async fn a_session_has_the_roles_of_now_and_ends_where_the_last_is_lost() {
    let console = Console::start().await;
    let cookie = console.log_in().await;
    let alice = console.sessions.principal(&cookie).await.expect("a person");
    assert_eq!(alice.name, "alice@example.org");
    assert!(alice.sees_all() && !alice.may_everywhere(Role::Operator));
    for unknown in ["", "x", &cookie[1..]] {
        let found = console.sessions.principal(unknown).await;
        assert!(matches!(found, Err(SessionEnd::Over)), "{found:?}");
    }
    let web = Subject::Group("web".to_owned());
    bindings::revoke(&console.ledger, &decision(), &web, None).await.expect("revoked");
    console.wait(Duration::from_secs(1)).await;
    let found = console.sessions.principal(&cookie).await;
    assert!(matches!(found, Err(SessionEnd::NoRole(_))), "{found:?}");
    assert_eq!(console.sessions.count(), 0);
    let login = log_in(&console.oidc, &console.idp).await.expect("a login");
    let begun = console.sessions.begin(login, None);
    assert!(matches!(begun, Err(SessionEnd::NoRole(_))), "{begun:?}");
}

#[tokio::test]
async fn a_login_begins_a_new_session_and_ends_the_one_that_the_browser_had() {
    let console = Console::start().await;
    let former = console.log_in().await;
    let login = log_in(&console.oidc, &console.idp).await.expect("a login");
    let cookie = console.sessions.begin(login, Some(&former)).expect("a session");
    assert_ne!(cookie, former);
    assert!(matches!(console.sessions.principal(&former).await, Err(SessionEnd::Over)));
    assert!(console.sessions.principal(&cookie).await.is_ok());
    console.sessions.end(&cookie);
    assert!(matches!(console.sessions.principal(&cookie).await, Err(SessionEnd::Over)));
}

#[tokio::test]
async fn without_a_refresh_token_a_session_ends_when_the_provider_was_not_asked_for_too_long() {
    let console = Console::start().await;
    let cookie = console.log_in().await;
    console.wait(CHECKED - Duration::from_secs(1)).await;
    assert!(console.sessions.principal(&cookie).await.is_ok());
    console.wait(Duration::from_secs(1)).await;
    assert!(matches!(console.sessions.principal(&cookie).await, Err(SessionEnd::Over)));
}

#[tokio::test]
async fn a_role_that_is_lost_at_the_provider_ends_the_session_in_time() {
    let console = Console::start().await;
    console.idp.gives_refresh_tokens();
    let cookie = console.log_in().await;
    console.wait(Duration::from_secs(11 * 60)).await;
    assert!(console.sessions.principal(&cookie).await.is_ok(), "the provider was asked again");
    let form = console.idp.asked("/token");
    assert_eq!(
        field(form.split_once("\r\n\r\n").expect("a request").1, "refresh_token"),
        "r3fresh"
    );
    console.idp.says("groups", json!([]));
    console.wait(CHECKED).await;
    let found = console.sessions.principal(&cookie).await;
    assert!(matches!(found, Err(SessionEnd::NoRole(_))), "{found:?}");
}

#[tokio::test]
async fn a_provider_that_refuses_ends_the_session_and_one_that_is_away_does_so_after_a_while() {
    let console = Console::start().await;
    console.idp.gives_refresh_tokens();
    let cookie = console.log_in().await;
    console.idp.answers("/token", &fake::answer(503, ""));
    console.wait(Duration::from_secs(11 * 60)).await;
    assert!(console.sessions.principal(&cookie).await.is_ok(), "it may be back soon");
    console.wait(Duration::from_secs(5 * 60)).await;
    assert!(matches!(console.sessions.principal(&cookie).await, Err(SessionEnd::Over)));
    console.idp.is_good();
    console.idp.says("groups", json!(["web"]));
    console.idp.gives_refresh_tokens();
    for refusal in [fake::answer(400, r#"{"error":"invalid_grant"}"#), fake::answer(200, "{}")] {
        console.idp.answers_well("/token");
        let cookie = console.log_in().await;
        console.idp.answers("/token", &refusal);
        console.wait(Duration::from_secs(11 * 60)).await;
        assert!(matches!(console.sessions.principal(&cookie).await, Err(SessionEnd::Over)));
    }
    // Another person in the place of the one that logged in.
    console.idp.answers_well("/token");
    let cookie = console.log_in().await;
    console.idp.says("sub", json!("other"));
    console.wait(Duration::from_secs(11 * 60)).await;
    assert!(matches!(console.sessions.principal(&cookie).await, Err(SessionEnd::Over)));
}

#[tokio::test]
async fn a_session_ends_when_it_is_idle_or_old_and_there_are_not_too_many() {
    let console = Console::start().await;
    console.idp.gives_refresh_tokens();
    let cookie = console.log_in().await;
    console.wait(IDLE).await;
    assert!(matches!(console.sessions.principal(&cookie).await, Err(SessionEnd::Over)));
    let cookie = console.log_in().await;
    let step = IDLE - Duration::from_secs(1);
    let mut waited = Duration::ZERO;
    while waited + step < LASTS {
        console.wait(step).await;
        waited += step;
        assert!(console.sessions.principal(&cookie).await.is_ok(), "after {waited:?}");
    }
    console.wait(step).await;
    assert!(matches!(console.sessions.principal(&cookie).await, Err(SessionEnd::Over)));

    let login = log_in(&console.oidc, &console.idp).await.expect("a login");
    let first = console.sessions.begin(login.clone(), None).expect("a session");
    console.wait(Duration::from_secs(1)).await;
    for _ in 0..SESSIONS {
        console.sessions.begin(login.clone(), None).expect("a session");
    }
    assert_eq!(console.sessions.count(), SESSIONS);
    assert!(matches!(console.sessions.principal(&first).await, Err(SessionEnd::Over)));
}
