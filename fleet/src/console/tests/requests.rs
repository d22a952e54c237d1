//! Requests of browsers, good and bad, to the console over a made-up API.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderMap, Request, Response, StatusCode};
use guest_agent_proto::fleet_api::*;
use http_body_util::BodyExt;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use tower::ServiceExt;

use super::super::{Scheme, Settings, routes};
use super::made_up::*;

/// What came back.
pub(super) struct Answered {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) text: String,
}

/// A console and a browser that keeps its cookie.
struct Browser {
    api: Arc<MadeUp>,
    tokens: Arc<Tokens>,
    console: Router,
    cookie: Option<String>,
}

// === impl Answered ===

impl Answered {
    /// Reads a response whole.
    pub(super) async fn read(response: Response<Body>) -> Self {
        let (parts, body) = response.into_parts();
        let text = to_bytes(body, 1 << 20).await.expect("a body");
        let text = String::from_utf8_lossy(&text).into_owned();
        Self { status: parts.status, headers: parts.headers, text }
    }

    pub(super) fn location(&self) -> &str {
        self.headers.get("location").and_then(|it| it.to_str().ok()).unwrap_or_default()
    }

    /// The value of a hidden field.
    pub(super) fn field(&self, name: &str) -> String {
        let begin = format!("name=\"{name}\" value=\"");
        let rest =
            self.text.split_once(&begin).unwrap_or_else(|| panic!("no {name}: {}", self.text)).1;
        rest.split('"').next().unwrap_or_default().to_owned()
    }
}

// === impl Browser ===

impl Browser {
    fn new() -> Self {
        let (api, tokens) = (Arc::new(MadeUp::default()), tokens());
        api.answers("get_rollout", &rollout());
        api.answers("get_status", &status());
        let names = vec!["fleet.example".to_owned()];
        let settings = Settings { scheme: Scheme::Http, names, people: None };
        let console = routes(api.clone(), tokens.clone(), settings, CancellationToken::new());
        Self { api, tokens, console, cookie: None }
    }

    async fn logged_in(token: &str) -> Self {
        let mut browser = Self::new();
        let answered = browser.post("/console/login", &[("token", token)]).await;
        assert_eq!(answered.status, StatusCode::SEE_OTHER, "{}", answered.text);
        browser
    }

    async fn send(&mut self, mut request: Request<Body>) -> Answered {
        let headers = request.headers_mut();
        headers.entry("host").or_insert_with(|| "localhost".parse().expect("a value"));
        if let Some(cookie) = &self.cookie {
            headers.insert("cookie", cookie.parse().expect("a cookie"));
        }
        let response = self.console.clone().oneshot(request).await.expect("it answers");
        let answered = Answered::read(response).await;
        if let Some(cookie) = answered.headers.get("set-cookie") {
            let cookie = cookie.to_str().expect("text");
            self.cookie = cookie.split(';').next().map(str::to_owned);
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
}

pub(super) fn form(path: &str, fields: &[(&str, &str)]) -> Request<Body> {
    let body = guest_agent_console_kit::pieces::query(fields);
    Request::post(path)
        .header("content-type", "application/x-www-form-urlencoded")
        .body(Body::from(body.trim_start_matches('?').to_owned()))
        .expect("a request")
}

#[tokio::test]
async fn without_a_session_there_is_the_login_and_nothing_else() {
    let mut browser = Browser::new();
    let answered = browser.get("/").await;
    assert_eq!((answered.status, answered.location()), (StatusCode::SEE_OTHER, "/console/login"));
    let answered = browser.get("/console/rollout?of=spring").await;
    assert_eq!(answered.location(), "/console/login?next=%2Fconsole%2Frollout%3Fof%3Dspring");
    for path in ["/", "/console/live?page=now", "/console/agents"] {
        let request = Request::get(path).body(Body::empty()).expect("a request");
        assert_eq!(browser.send(request).await.status, StatusCode::UNAUTHORIZED, "{path}");
    }
    let answered = browser.post("/console/rollout/halt?of=spring", &[("reason", "x")]).await;
    assert_eq!(answered.status, StatusCode::UNAUTHORIZED);
    let login = browser.get("/console/login").await;
    assert_eq!(login.status, StatusCode::OK);
    assert!(
        login.headers["content-security-policy"]
            .to_str()
            .is_ok_and(|it| it.contains("script-src 'self'"))
    );
    assert_eq!(login.headers["x-frame-options"], "DENY");
    assert_eq!(login.headers["cache-control"], "no-store");
    for path in ["/console/style.css", "/console/script.js"] {
        assert_eq!(browser.get(path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_makes_a_session_and_a_wrong_one_does_not() {
    let mut browser = Browser::new();
    let answered = browser.post("/console/login", &[("token", "wrong")]).await;
    assert_eq!((answered.status, browser.cookie.as_deref()), (StatusCode::FORBIDDEN, None));
    assert!(answered.text.contains("no token of this fleet"), "{}", answered.text);
    assert!(!answered.text.contains("wrong\""), "a token is not sent back");
    let answered = browser.post("/console/login", &[("token", "ended")]).await;
    assert!(answered.text.contains("ended: make another one"), "{}", answered.text);
    let answered = browser.post("/console/login", &[("token", " viewer ")]).await;
    assert_eq!((answered.status, answered.location()), (StatusCode::SEE_OTHER, "/"));
    let cookie = answered.headers["set-cookie"].to_str().expect("text");
    assert!(cookie.contains("HttpOnly; SameSite=Strict") && !cookie.contains("viewer"), "{cookie}");
    let page = browser.get("/").await;
    assert!(page.text.contains("token/viewer, viewer"), "{}", page.text);
}

#[tokio::test]
async fn a_session_that_somebody_planted_is_none_and_a_login_ends_the_one_before() {
    let mut browser = Browser::new();
    browser.cookie = Some("guest-fleet-session=planted".to_owned());
    browser.post("/console/login", &[("token", "admin")]).await;
    let first = browser.cookie.clone().expect("a cookie");
    assert_ne!(first, "guest-fleet-session=planted");
    browser.post("/console/login", &[("token", "viewer")]).await;
    let second = browser.cookie.replace(first.clone()).expect("a cookie");
    assert_ne!(first, second);
    assert_eq!(browser.get("/").await.status, StatusCode::SEE_OTHER, "the one before is over");
    browser.cookie = Some(second);
    assert_eq!(browser.get("/").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_login_leads_back_to_the_page_and_to_no_other_site() {
    for (next, to) in [
        ("/console/rollout?of=spring", "/console/rollout?of=spring"),
        ("https://example.com/", "/"),
        ("//example.com/console/", "/"),
        ("/console/../..//example.com", "/"),
    ] {
        let mut browser = Browser::new();
        let form = browser.get(&format!("/console/login?next={next}")).await;
        assert_eq!(form.text.contains("name=\"next\""), next == to, "{next}");
        let answered = browser.post("/console/login", &[("token", "viewer"), ("next", next)]).await;
        assert_eq!(answered.location(), to, "{next}");
    }
}

#[tokio::test]
async fn a_session_ends_with_its_token_and_when_somebody_logs_out() {
    let mut browser = Browser::logged_in("operator").await;
    browser.tokens.0.lock().unwrap().remove("operator");
    assert_eq!(browser.get("/").await.status, StatusCode::SEE_OTHER);

    let mut browser = Browser::logged_in("operator").await;
    let (csrf, cookie) = (browser.get("/").await.field("csrf"), browser.cookie.clone());
    let forged = browser.post("/console/logout", &[("csrf", "wrong")]).await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    let answered = browser.post("/console/logout", &[("csrf", &csrf)]).await;
    assert_eq!(answered.location(), "/console/login");
    browser.cookie = cookie;
    assert_eq!(
        browser.get("/").await.status,
        StatusCode::SEE_OTHER,
        "a kept cookie is worth nothing"
    );
}

#[tokio::test]
async fn a_rollout_is_steered_by_a_form_of_its_own_page_alone() {
    let mut browser = Browser::logged_in("operator").await;
    let page = "/console/rollout/rollback?of=spring";
    let question = browser.get(page).await;
    assert!(question.text.contains("Touches at most 5 machines."), "{}", question.text);
    assert!(question.text.contains("guest-fleet rollout rollback spring"), "{}", question.text);
    let (csrf, key, seen) = (question.field("csrf"), question.field("key"), question.field("seen"));
    let fields = |csrf| {
        [("csrf", csrf), ("key", key.as_str()), ("seen", seen.as_str()), ("reason", "TICKET-4")]
    };
    for csrf in ["", "wrong"] {
        let answered = browser.post(page, &fields(csrf)).await;
        assert_eq!(answered.status, StatusCode::FORBIDDEN, "{csrf}");
    }
    for (name, value) in [("origin", "http://example.com"), ("sec-fetch-site", "cross-site")] {
        let mut foreign = form(page, &fields(&csrf));
        foreign.headers_mut().insert(name, value.parse().expect("a value"));
        assert_eq!(browser.send(foreign).await.status, StatusCode::FORBIDDEN, "{name}");
    }
    assert!(browser.api.changes().is_empty(), "nothing was asked");
    let answered = browser.post(page, &fields(&csrf)).await;
    assert_eq!(answered.location(), "/console/rollout?of=spring&done=rollback");
    let changes = browser.api.changes();
    let [(call, who, request)] = changes.as_slice() else { panic!("one change") };
    assert_eq!((*call, who.as_str()), ("roll_back_rollout", "token/operator"));
    assert!(request.contains("TICKET-4") && request.contains(&key), "{request}");
    let page = browser.get("/console/rollout?of=spring&done=rollback").await;
    assert!(page.text.contains("It rolls back now."), "{}", page.text);
}

#[tokio::test]
async fn what_moved_since_the_page_was_made_is_asked_again() {
    let mut browser = Browser::logged_in("approver").await;
    let waiting = Rollout {
        state: "waiting for approval".to_owned(),
        verbs: vec!["approve".to_owned()],
        ..rollout()
    };
    browser.api.answers("get_rollout", &waiting);
    let page = "/console/rollout/approve?of=spring";
    let question = browser.get(page).await;
    let (csrf, seen) = (question.field("csrf"), question.field("seen"));
    browser.api.answers("get_rollout", &Rollout { wave: 3, ..waiting });
    let answered = browser.post(page, &[("csrf", &csrf), ("seen", &seen)]).await;
    assert_eq!(answered.status, StatusCode::CONFLICT);
    assert!(
        answered.text.contains("has moved since") && answered.text.contains("Wave 4 of 4"),
        "{}",
        answered.text
    );
    assert!(browser.api.changes().is_empty());
    let seen = answered.field("seen");
    browser.post(page, &[("csrf", &csrf), ("seen", &seen)]).await;
    assert_eq!(browser.api.changes().len(), 1);
}

#[tokio::test]
async fn who_may_only_look_is_refused_before_the_api_is_asked() {
    let mut browser = Browser::logged_in("viewer").await;
    let page = browser.get("/console/rollout?of=spring").await;
    assert!(page.text.contains("halted") && !page.text.contains("class=\"button"), "{}", page.text);
    let csrf = page.field("csrf");
    for path in [
        "/console/rollout/rollback?of=spring",
        "/console/do/archive?of=a-7",
        "/console/do/end-hold?of=freeze",
        "/console/do/retry?of=monitor-prod",
        "/console/do/revoke-token?of=web",
        "/console/hold",
        "/console/preview",
    ] {
        let answered = browser.post(path, &[("csrf", &csrf), ("select", "all")]).await;
        assert_eq!(answered.status, StatusCode::FORBIDDEN, "{path}: {}", answered.text);
        if path != "/console/preview" {
            assert_eq!(browser.get(path).await.status, StatusCode::FORBIDDEN, "{path}");
        }
    }
    assert!(browser.api.changes().is_empty());
}

#[tokio::test]
async fn what_the_api_refuses_is_shown_as_it_says() {
    let mut browser = Browser::logged_in("operator").await;
    browser.api.refuses("get_agent", Code::NotFound);
    let answered = browser.get("/console/agent?of=a-1").await;
    assert_eq!(answered.status, StatusCode::NOT_FOUND);
    assert!(answered.text.contains("get_agent is refused"), "{}", answered.text);
    for call in ["list_gateways", "list_audit", "list_tokens", "list_rollout_history"] {
        browser.api.refuses(call, Code::PermissionDenied);
    }
    for page in ["/", "/console/enrolment", "/console/system", "/console/rollout?of=spring"] {
        assert_eq!(browser.get(page).await.status, StatusCode::OK, "{page}");
    }
    assert_eq!(browser.get("/console/audit").await.status, StatusCode::FORBIDDEN);
    browser.api.refuses("get_status", Code::Unavailable);
    assert_eq!(browser.get("/").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(browser.get("/console/nothing").await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn holds_agents_and_tokens_are_changed_in_the_name_of_the_visitor() {
    let mut browser = Browser::logged_in("admin").await;
    browser.api.answers("list_holds", &ListHoldsResponse { holds: vec![hold()] });
    browser.api.answers("list_assignments", &assignments());
    let agents =
        ListAgentsResponse { agents: vec![agent(), agent()], ..ListAgentsResponse::default() };
    browser.api.answers("list_agents", &agents);
    for (path, touches, call) in [
        ("/console/do/end-hold?of=freeze", "Touches at most 2 machines.", "end_hold"),
        ("/console/do/retry?of=monitor-prod", "Touches 2 machines.", "retry_assignment"),
        ("/console/do/archive?of=a-7", "Touches 1 machine.", "archive_agent"),
        ("/console/do/unarchive?of=a-7", "Touches 1 machine.", "unarchive_agent"),
        ("/console/do/release-agent?of=a-7", "Touches 1 machine.", "release_agent"),
        ("/console/do/revoke-agent?of=a-7", "Touches 1 machine.", "revoke_agent"),
        ("/console/do/revoke-token?of=web", "Touches no machine.", "revoke_token"),
    ] {
        let question = browser.get(path).await;
        assert!(question.text.contains(touches), "{path}: {}", question.text);
        let csrf = question.field("csrf");
        let answered = browser.post(path, &[("csrf", &csrf)]).await;
        assert_eq!(answered.status, StatusCode::SEE_OTHER, "{path}");
        assert!(answered.location().starts_with("/console/"), "{path}");
        assert_eq!(browser.api.changes().last().map(|it| it.0), Some(call));
    }
    let page = "/console/hold?name=freeze&select=env%20%3D%20prod&reason=x&hours=4";
    let question = browser.get(page).await;
    assert!(question.text.contains("Touches 2 machines."), "{}", question.text);
    let csrf = question.field("csrf");
    let fields =
        [("csrf", csrf.as_str()), ("name", "freeze"), ("select", "env = prod"), ("hours", "4")];
    assert_eq!(browser.post("/console/hold", &fields).await.location(), "/console/holds?done=hold");
    let (call, _, request) = browser.api.changes().pop().expect("a change");
    assert!(call == "set_hold" && request.contains("until: Some"), "{request}");
}

#[tokio::test]
async fn declarations_are_compared_and_a_rollout_begins_as_it_was_shown() {
    let mut browser = Browser::logged_in("approver").await;
    browser.api.answers("preview_rollout", &preview());
    browser.api.answers("diff_declarations", &change());
    browser.api.answers("list_assignments", &assignments());
    browser.api.answers("list_releases", &releases());
    let csrf = browser.get("/console/diff").await.field("csrf");
    let answered =
        browser.post("/console/diff", &[("csrf", &csrf), ("text", "[[assignment]]")]).await;
    assert!(answered.text.contains("Would change 1 record"), "{}", answered.text);
    let forged = browser.post("/console/diff", &[("text", "x")]).await;
    assert_eq!(forged.status, StatusCode::FORBIDDEN);
    let page =
        "/console/preview?assignment=monitor-prod&to=1.1&name=spring&waves=5,approve%20100%25";
    let shown = browser.get(page).await;
    assert!(shown.text.contains("Touches 100 machines in all"), "{}", shown.text);
    let fields = ["csrf", "key", "waves"].map(|name| (name, shown.field(name)));
    assert_eq!(fields[2].1, "5,approve 100%");
    let mut fields: Vec<(&str, &str)> =
        fields.iter().map(|(name, it)| (*name, it.as_str())).collect();
    fields.extend([("assignment", "monitor-prod"), ("to", "1.1"), ("name", "spring")]);
    assert_eq!(browser.post("/console/preview", &fields).await.status, StatusCode::SEE_OTHER);
    let changes = browser.api.changes();
    let [(call, _, request)] = changes.as_slice() else { panic!("one change") };
    assert!(*call == "create_rollout" && request.contains("5,approve"), "{request}");
}

#[tokio::test]
async fn a_host_that_a_foreign_page_can_have_is_refused() {
    let mut browser = Browser::logged_in("admin").await;
    for (host, status) in [
        ("fleet.example", StatusCode::OK),
        ("127.0.0.1:8443", StatusCode::OK),
        ("rebound.example.com", StatusCode::MISDIRECTED_REQUEST),
    ] {
        let request =
            Request::get("/").header("host", host).body(Body::empty()).expect("a request");
        assert_eq!(browser.send(request).await.status, status, "{host}");
    }
}

#[tokio::test]
async fn a_page_is_followed_until_its_session_ends() {
    let mut browser = Browser::logged_in("viewer").await;
    let request = Request::get("/console/live?page=rollout&of=spring")
        .header("host", "localhost")
        .header("cookie", browser.cookie.clone().expect("a cookie"))
        .body(Body::empty())
        .expect("a request");
    let response = browser.console.clone().oneshot(request).await.expect("it answers");
    assert_eq!(response.status(), StatusCode::OK);
    let csrf = browser.get("/").await.field("csrf");
    let mut body = response.into_body();
    let patience = std::time::Duration::from_secs(60);
    let first = tokio::time::timeout(patience, body.frame()).await.expect("it tells the page");
    let first = first.expect("a frame").expect("no error").into_data().expect("data");
    let told = String::from_utf8_lossy(&first);
    assert!(told.starts_with("data: {") && told.contains("spring"), "{told}");
    browser.post("/console/logout", &[("csrf", &csrf)]).await;
    let ended = async { while let Some(Ok(_)) = body.frame().await {} };
    tokio::time::timeout(patience, ended).await.expect("it ends");
}
