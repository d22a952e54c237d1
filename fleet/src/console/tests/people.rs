//! Logins of people by an identity provider, over a made-up API and a provider that says what a test wants.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use jiff::Timestamp;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::super::{CallbackUrl, People, Scheme, Settings, routes};
use super::made_up::*;
use super::requests::{Answered, form};
use crate::configuration::change::Decision;
use crate::configuration::tests::fake::FakeLedger;
use crate::identity::oidc::tests::fake::{Idp, answer};
use crate::identity::oidc::tests::field;
use crate::identity::sessions::Sessions;
use crate::identity::{Directory, Grant, Role, bindings};
use crate::records::access::Subject;

const SESSION: &str = "__Host-guest-fleet-session";
const LOGIN: &str = "__Host-guest-fleet-login";
const DESCRIPTION: &str = "/.well-known/openid-configuration";

/// A console with a provider, which knows alice of the group `web`.
struct Console {
    idp: Idp,
    ledger: FakeLedger,
    directory: Directory,
    sessions: Arc<Sessions>,
    api: Arc<MadeUp>,
    router: Router,
}

/// A browser with its cookies.
struct Browser<'a> {
    console: &'a Console,
    cookies: BTreeMap<String, String>,
}

// === impl Console ===

impl Console {
    async fn start() -> Self {
        let idp = Idp::start().await;
        idp.says("groups", json!(["web", "everybody"]));
        let (api, ledger, directory) =
            (Arc::new(MadeUp::default()), FakeLedger::default(), Directory::default());
        api.answers("get_rollout", &rollout());
        api.answers("get_status", &status());
        directory.refresh(&ledger).await.expect("read");
        let names = vec!["fleet.example".to_owned()];
        let callback = CallbackUrl::of_name("fleet.example", 443).expect("a name");
        let people = People::new(Arc::new(idp.oidc()), directory.clone(), callback);
        let sessions = people.sessions.clone();
        let settings = Settings { scheme: Scheme::Https, names, people: Some(people) };
        let router = routes(api.clone(), tokens(), settings, CancellationToken::new());
        Self { idp, ledger, directory, sessions, api, router }
    }

    async fn with_operators() -> Self {
        let console = Self::start().await;
        console.grant(Role::Operator).await;
        console
    }

    async fn grant(&self, role: Role) {
        let grant = Grant::everywhere(role);
        bindings::grant(&self.ledger, &decision(), &web(), &grant).await.expect("granted");
        self.directory.refresh(&self.ledger).await.expect("read");
    }

    async fn revoke(&self) {
        bindings::revoke(&self.ledger, &decision(), &web(), None).await.expect("revoked");
        self.directory.refresh(&self.ledger).await.expect("read");
    }

    fn browser(&self) -> Browser<'_> {
        Browser { console: self, cookies: BTreeMap::new() }
    }
}

fn web() -> Subject {
    Subject::Group("web".to_owned())
}

fn decision() -> Decision {
    Decision { who: "root@ops".to_owned(), at: Timestamp::now(), ..Decision::default() }
}

// === impl Browser ===

impl Browser<'_> {
    async fn send(&mut self, mut request: Request<Body>) -> Answered {
        let headers = request.headers_mut();
        headers.insert("host", "fleet.example".parse().expect("a value"));
        let cookies: Vec<String> =
            self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        headers.insert("cookie", cookies.join("; ").parse().expect("cookies"));
        let response = self.console.router.clone().oneshot(request).await.expect("it answers");
        let answered = Answered::read(response).await;
        for cookie in answered.headers.get_all("set-cookie") {
            let cookie = cookie.to_str().expect("text");
            let (name, value) =
                cookie.split(';').next().and_then(|it| it.split_once('=')).expect("a cookie");
            match value {
                "" => self.cookies.remove(name),
                value => self.cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        answered
    }

    async fn get(&mut self, path: &str) -> Answered {
        let request = Request::get(path).header("accept", "text/html");
        self.send(request.body(Body::empty()).expect("a request")).await
    }

    async fn post(&mut self, path: &str, fields: &[(&str, &str)]) -> Answered {
        self.send(form(path, fields)).await
    }

    /// Begins a login; answers how the provider sends the browser back.
    async fn begin(&mut self, next: &str) -> String {
        let begun = self.get(&format!("/console/login/provider?next={next}")).await;
        assert_eq!(begun.status, StatusCode::SEE_OTHER, "{}", begun.text);
        let url = begun.location();
        assert!(url.starts_with(&format!("{}/authorize?", self.console.idp.issuer)), "{url}");
        self.console.idp.says("nonce", json!(field(url, "nonce")));
        format!("/console/login/callback?code=c0de&state={}", field(url, "state"))
    }

    async fn log_in(&mut self) -> Answered {
        let back = self.begin("").await;
        self.get(&back).await
    }

    fn session(&self) -> Option<String> {
        self.cookies.get(SESSION).cloned()
    }
}

#[tokio::test]
async fn a_person_logs_in_acts_under_the_own_name_and_logs_out() {
    let console = Console::with_operators().await;
    let mut browser = console.browser();
    let page = browser.get("/console/login?next=/console/agents").await;
    let start = "https://fleet.example/console/login/provider?next=%2Fconsole%2Fagents";
    assert!(page.text.contains(&format!("href=\"{start}\"")), "{}", page.text);
    assert!(page.text.contains(&console.idp.issuer) && page.text.contains("name=\"token\""));

    let begun = browser.get("/console/login/provider?next=/console/agents").await;
    let cookie = begun.headers["set-cookie"].to_str().expect("text");
    assert!(cookie.starts_with(&format!("{LOGIN}=")), "{cookie}");
    assert!(cookie.ends_with("; Path=/; HttpOnly; SameSite=Lax; Max-Age=600; Secure"), "{cookie}");
    assert!(!cookie.contains(&field(begun.location(), "state")), "it is sealed");
    let back = browser.begin("/console/agents").await;
    let page = browser.get(&back).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    assert_eq!(page.headers["refresh"], "0; url=/console/agents");
    assert_eq!(page.headers["cache-control"], "no-store");
    let policy = page.headers["content-security-policy"].to_str().expect("text");
    assert!(policy.contains("default-src 'none'") && policy.contains("form-action 'self'"));
    let set: Vec<_> = page.headers.get_all("set-cookie").iter().collect();
    let of_session =
        set.iter().filter_map(|it| it.to_str().ok()).find(|it| it.starts_with(SESSION));
    let of_session = of_session.expect("a session");
    assert!(
        of_session.contains("; HttpOnly; SameSite=Strict; ") && of_session.ends_with("; Secure")
    );
    assert!(!browser.cookies.contains_key(LOGIN), "the login is over");

    let page = browser.get("/").await;
    assert!(page.text.contains("alice@example.org, operator"), "{}", page.text);
    let path = "/console/rollout/halt?of=spring";
    let page = browser.get(path).await;
    let [csrf, key, seen] = ["csrf", "key", "seen"].map(|name| page.field(name));
    let fields = [("csrf", ""), ("key", &key), ("seen", &seen), ("reason", "x")];
    assert_eq!(browser.post(path, &fields).await.status, StatusCode::FORBIDDEN);
    assert!(console.api.changes().is_empty(), "a form without its proof does nothing");
    let fields = [("csrf", csrf.as_str()), ("key", &key), ("seen", &seen), ("reason", "x")];
    assert_eq!(browser.post(path, &fields).await.status, StatusCode::SEE_OTHER);
    let changes = console.api.changes();
    assert_eq!(changes.iter().map(|it| it.1.as_str()).collect::<Vec<_>>(), ["alice@example.org"]);

    assert_eq!(console.sessions.count(), 1);
    let session = browser.session().expect("a session");
    let answered = browser.post("/console/logout", &[("csrf", &csrf)]).await;
    assert_eq!(answered.location(), "/console/login");
    assert_eq!(console.sessions.count(), 0);
    browser.cookies.insert(SESSION.to_owned(), session);
    assert_eq!(browser.get("/").await.location(), "/console/login", "it is over here as well");
}

#[tokio::test]
async fn a_person_without_a_role_sees_who_it_is_and_what_an_admin_does() {
    let console = Console::start().await;
    let mut browser = console.browser();
    let page = browser.log_in().await;
    assert_eq!((page.status, browser.session()), (StatusCode::FORBIDDEN, None));
    assert!(page.text.contains("alice@example.org</strong>, of the groups web, everybody"));
    assert!(page.text.contains("guest-fleet access grant alice@example.org --role viewer"));
    assert!(page.text.contains("guest-fleet access grant --group=web --role viewer"));
    assert_eq!(browser.get("/").await.location(), "/console/login");

    console.grant(Role::Viewer).await;
    assert_eq!(browser.log_in().await.status, StatusCode::OK);
    assert!(browser.get("/").await.text.contains("alice@example.org, viewer"));
    console.grant(Role::Operator).await;
    assert!(browser.get("/").await.text.contains("alice@example.org, operator"), "at once");
    console.revoke().await;
    let page = browser.get("/").await;
    assert_eq!((page.status, browser.session()), (StatusCode::FORBIDDEN, None));
    assert!(page.text.contains("have no role here any more"), "{}", page.text);
    assert_eq!(console.sessions.count(), 0);
    assert_eq!(browser.get("/").await.location(), "/console/login");
}

#[tokio::test]
async fn a_login_that_this_browser_did_not_begin_makes_no_session() {
    let console = Console::with_operators().await;
    let (mut browser, mut other) = (console.browser(), console.browser());
    browser.begin("").await;
    let theirs = other.begin("").await;
    for forged in [
        "/console/login/callback".to_owned(),
        "/console/login/callback?code=c0de".to_owned(),
        "/console/login/callback?code=c0de&state=".to_owned(),
        theirs.clone(),
    ] {
        let page = console.browser().get(&forged).await;
        assert_eq!(page.status, StatusCode::BAD_REQUEST, "without a cookie: {forged}");
    }
    let refused = browser.get(&theirs).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
    assert!(refused.text.contains("not begun in this browser"), "{}", refused.text);
    assert!(console.idp.asked("/token").is_empty(), "no code was shown to the provider");

    // That of this browser goes on, once.
    let mine = browser.begin("").await;
    browser.get(&theirs).await;
    assert_eq!(browser.get(&mine).await.status, StatusCode::OK);
    assert_eq!(browser.get(&mine).await.status, StatusCode::BAD_REQUEST, "it came again");
    assert_eq!(console.sessions.count(), 1);

    let denied = browser.begin("").await.replace("code=c0de", "error=access_denied");
    let page = browser.get(&denied).await;
    assert_eq!(page.status, StatusCode::FORBIDDEN);
    assert!(page.text.contains("refused the login: access_denied."), "{}", page.text);
}

#[tokio::test]
async fn a_login_takes_over_no_session_and_leaves_none_behind() {
    let console = Console::with_operators().await;
    let mut browser = console.browser();
    browser.cookies.insert(SESSION.to_owned(), "planted".to_owned());
    browser.log_in().await;
    let first = browser.session().expect("a session");
    assert_ne!(first, "planted");
    browser.log_in().await;
    let second = browser.session().expect("a session");
    assert_ne!(first, second);
    assert_eq!(console.sessions.count(), 1, "the one before is over");
    browser.post("/console/login", &[("token", "viewer")]).await;
    assert_eq!(console.sessions.count(), 0, "a token takes the place of the person");
    for former in [first, second] {
        let mut thief = console.browser();
        thief.cookies.insert(SESSION.to_owned(), former);
        assert_eq!(thief.get("/").await.location(), "/console/login");
    }
}

#[tokio::test]
async fn a_login_leads_to_no_other_site_and_no_other_site_begins_one() {
    let console = Console::with_operators().await;
    for next in
        ["https://evil.example/", "//evil.example/", "/console/../..//evil.example", "/v1/x"]
    {
        let mut browser = console.browser();
        let back = browser.begin(next).await;
        let page = browser.get(&back).await;
        assert_eq!(page.headers["refresh"], "0; url=/", "{next}");
        assert!(!page.text.contains("evil"), "{}", page.text);
    }
    for site in ["cross-site", "same-site"] {
        let request = Request::get("/console/login/provider?next=/console/agents");
        let request = request.header("sec-fetch-site", site).header("accept", "text/html");
        let mut browser = console.browser();
        let answered = browser.send(request.body(Body::empty()).expect("a request")).await;
        assert_eq!(answered.location(), "/console/login?next=%2Fconsole%2Fagents");
        assert!(browser.cookies.is_empty(), "{site}");
    }
}

#[tokio::test]
async fn a_provider_that_is_away_is_told_and_tokens_work_meanwhile() {
    let console = Console::with_operators().await;
    let mut browser = console.browser();
    console.idp.answers(DESCRIPTION, &answer(503, ""));
    let begun = browser.get("/console/login/provider").await;
    assert_eq!(begun.status, StatusCode::SERVICE_UNAVAILABLE, "{}", begun.text);
    assert!(begun.text.contains("cannot be asked now"), "{}", begun.text);
    let page = browser.get("/console/login").await;
    assert!(page.text.contains("The identity provider does not answer"), "{}", page.text);
    let answered = browser.post("/console/login", &[("token", "viewer")]).await;
    assert_eq!(answered.location(), "/");
    console.idp.answers_well(DESCRIPTION);
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(browser.log_in().await.status, StatusCode::OK);
    assert!(!browser.get("/console/login").await.text.contains("does not answer"));

    // One that went away between the two halves of a login takes the code later.
    let back = browser.begin("").await;
    console.idp.answers("/token", &answer(503, ""));
    assert_eq!(browser.get(&back).await.status, StatusCode::SERVICE_UNAVAILABLE);
    console.idp.answers_well("/token");
    assert_eq!(browser.get(&back).await.status, StatusCode::OK);
}

#[tokio::test]
async fn without_a_provider_there_is_no_way_to_one() {
    let names = vec!["fleet.example".to_owned()];
    let settings = Settings { scheme: Scheme::Https, names, people: None };
    let console = Console::start().await;
    let router = routes(console.api.clone(), tokens(), settings, CancellationToken::new());
    let console = Console { router, ..console };
    let mut browser = console.browser();
    assert!(!browser.get("/console/login").await.text.contains("identity provider"));
    for path in ["/console/login/provider", "/console/login/callback?state=x&code=y"] {
        assert_eq!(browser.get(path).await.status, StatusCode::NOT_FOUND, "{path}");
    }
}
