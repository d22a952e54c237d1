//! The checks of every request before a page gets it, and the headers of every response.
//!
//! A browser on this machine reaches a listener on loopback for any page that it shows. So a
//! request there must name a host that no foreign page can have (DNS rebinding), and none that
//! changes something may come from a foreign page. Other origins cannot read an answer: there are
//! no CORS headers.

use std::net::IpAddr;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::access::{Grant, Granted};
use super::health;
use super::refusal::Refusal;
use super::scheme::Scheme;
use super::session::{LOGIN, Session, WITHOUT_SESSION};
use super::site::{Reach, Site};
use super::socket_peer::SocketPeer;

/// Longest that a request may wait for the head of its response. A body that streams may take
/// longer.
const ANSWER_MAX: Duration = Duration::from_secs(10);

/// Longest path that the log shows, in characters.
const PATH_MAX: usize = 200;

/// The headers of every response, unless its page sets them itself.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    // Where a page may not name itself at all, browsers send its forms as if they came from
    // nowhere.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Lets a request through, or not, and completes the response.
pub(crate) async fn check(State(site): State<Site>, mut request: Request, next: Next) -> Response {
    let changes = (!request.method().is_safe()).then(|| shown(request.uri().path()));
    let mut token = None;
    let mut response = match admit(&site, &request) {
        Ok((grant, session)) => {
            token = grant.as_ref().and_then(|grant| grant.token.clone());
            request.extensions_mut().insert(Granted(grant));
            if let Some(session) = session {
                request.extensions_mut().insert(session);
            }
            match tokio::time::timeout(ANSWER_MAX, next.run(request)).await {
                Ok(response) => response,
                Err(_) => late().into_response(),
            }
        }
        Err(refusal) => to_login(refusal, &request),
    };
    if let Some(path) = changes
        && [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN].contains(&response.status())
    {
        let status = response.status().as_u16();
        tracing::warn!(token = token.as_deref(), path, status, "refuses an action over HTTP");
    }
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// A browser without a token or session is redirected to the login page; a program gets the
/// refusal, which says what it lacks.
fn to_login(refusal: Refusal, request: &Request) -> Response {
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accepts.is_some_and(|accepts| accepts.contains("text/html"));
    if refusal != Refusal::unknown() || !wants_page || !request.method().is_safe() {
        return refusal.into_response();
    }
    (StatusCode::SEE_OTHER, [(header::LOCATION, LOGIN)]).into_response()
}

/// The beginning of a path, for the log.
fn shown(path: &str) -> String {
    path.chars().take(PATH_MAX).collect()
}

/// What a request may do, and as part of which session; nothing, on a path that is open.
fn admit(site: &Site, request: &Request) -> Result<(Option<Grant>, Option<Session>), Refusal> {
    let headers = request.headers();
    let host = host(request);
    if site.reach != Reach::Network {
        check_host(host.as_ref())?;
    }
    if !request.method().is_safe() {
        check_origin(headers, host.as_ref(), site.scheme)?;
    }
    let (grant, session) = grant(site, headers);
    let grant = with_peer(grant, request)?;
    let path = request.uri().path();
    if grant.is_none() && !health::PATHS.contains(&path) && !WITHOUT_SESSION.contains(&path) {
        return Err(Refusal::unknown());
    }
    Ok((grant, session))
}

/// The same on the unix socket, where the user of the peer counts too: a token adds to what that user
/// may do.
fn with_peer(grant: Option<Grant>, request: &Request) -> Result<Option<Grant>, Refusal> {
    match request.extensions().get::<SocketPeer>() {
        None => Ok(grant),
        Some(SocketPeer::Refused(why)) => Err(Refusal::new(StatusCode::FORBIDDEN, why.to_string())),
        // A wrong token is refused here, too: its sender expects to be recognised.
        Some(SocketPeer::Allowed(_))
            if grant.is_none() && request.headers().contains_key(header::AUTHORIZATION) =>
        {
            Ok(None)
        }
        Some(SocketPeer::Allowed(peer)) => {
            let of_peer = Grant { access: *peer, token: None };
            Ok(Some(grant.filter(|grant| grant.access >= *peer).unwrap_or(of_peer)))
        }
    }
}

/// What a request may do by what it brings along: a token, or the session that was begun with one.
/// A session ends with its token. Other machines need a token, whatever the files of tokens say.
fn grant(site: &Site, headers: &HeaderMap) -> (Option<Grant>, Option<Session>) {
    let token = bearer(headers);
    if token.is_none()
        && let Some(session) = site.sessions.find(headers, site.scheme.cookie_name())
        && let Some(grant) = site.tokens.grant_of_digest(&session.of)
    {
        return (Some(grant), Some(session));
    }
    let grant = site.tokens.grant_of(token);
    (grant.filter(|grant| grant.token.is_some() || site.reach != Reach::Network), None)
}

/// The token of a request; an empty one where its credentials are of another kind.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let credentials = headers.get(header::AUTHORIZATION)?.to_str().unwrap_or_default();
    match credentials.split_once(' ') {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Some(token.trim()),
        Some(_) | None => Some(""),
    }
}

/// The host that a request is for. `None` when it does not say, or not in a way that has one
/// meaning.
fn host(request: &Request) -> Option<Authority> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let host: Authority = named.next()?.to_str().ok()?.parse().ok()?;
    let is_clear = named.next().is_none()
        && request.uri().authority().is_none_or(|target| *target == host)
        && !host.as_str().contains('@');
    is_clear.then_some(host)
}

/// Only names that lead to this machine for everybody.
fn check_host(host: Option<&Authority>) -> Result<(), Refusal> {
    let name = host.map(Authority::host).unwrap_or_default();
    let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let is_address = bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    if is_address || name.eq_ignore_ascii_case("localhost") {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::MISDIRECTED_REQUEST,
        "this agent answers only to requests for localhost, 127.0.0.1 or [::1], so that web pages \
         of other sites cannot reach it through a browser on this machine; use one of those names \
         in the address",
    ))
}

/// A request that changes something must not come from a page of another site.
fn check_origin(
    headers: &HeaderMap,
    host: Option<&Authority>,
    scheme: Scheme,
) -> Result<(), Refusal> {
    // What the browser found, which no page can change. It also holds where a proxy with TLS is
    // between.
    let is_own = match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        Some(site) => matches!(site, b"same-origin" | b"none"),
        None => headers.get(header::ORIGIN).is_none_or(|origin| {
            let own = host.map(|host| format!("{}://{host}", scheme.as_str()));
            own.is_some_and(|own| origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()))
        }),
    };
    if is_own {
        return Ok(());
    }
    Err(Refusal::new(
        StatusCode::FORBIDDEN,
        "this request comes from a page that is not the agent's own",
    ))
}

fn late() -> Refusal {
    Refusal::new(
        StatusCode::SERVICE_UNAVAILABLE,
        "the agent is busy and did not answer in time; try again",
    )
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;
    use crate::api::http::access::Access;

    fn request(host: &str) -> Request {
        Request::builder().uri("/").header("host", host).body(Body::empty()).expect("a request")
    }

    #[test]
    fn only_names_that_nobody_else_can_have_lead_here() {
        let good = ["localhost", "LOCALHOST:1", "127.0.0.1", "127.1.2.3:80", "[::1]", "[::1]:9464"];
        for name in good {
            assert!(check_host(host(&request(name)).as_ref()).is_ok(), "{name}");
        }
        let bad = [
            "",
            "example.com",
            "localhost.example.com",
            "127.0.0.1.nip.io",
            "localhost.",
            "x@127.0.0.1",
            "127.0.0.1@example.com",
            "10.0.0.1",
            "[fe80::1]",
            "::1",
            "2130706433",
            "0x7f000001",
            "localhost:80:80",
            "local host",
        ];
        for name in bad {
            assert!(check_host(host(&request(name)).as_ref()).is_err(), "{name}");
        }
    }

    #[test]
    fn a_request_that_names_two_hosts_names_none() {
        let mut twice = request("localhost");
        twice.headers_mut().append(header::HOST, HeaderValue::from_static("example.com"));
        assert_eq!(host(&twice), None);
        let mut elsewhere = request("localhost");
        *elsewhere.uri_mut() = "http://example.com/metrics".parse().expect("a URI");
        assert_eq!(host(&elsewhere), None);
        *elsewhere.uri_mut() = "http://localhost/metrics".parse().expect("a URI");
        assert!(host(&elsewhere).is_some());
        assert_eq!(host(&Request::new(Body::empty())), None);
    }

    #[test]
    fn what_changes_something_comes_from_the_agents_own_pages_or_from_no_page() {
        let check = |headers: &[(&'static str, &'static str)]| {
            let headers = headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let host = "localhost:9".parse().expect("a host");
            check_origin(&headers.collect(), Some(&host), Scheme::Http).is_ok()
        };
        assert!(check(&[]), "a program sends neither");
        assert!(check(&[("origin", "http://localhost:9"), ("sec-fetch-site", "same-origin")]));
        assert!(check(&[("sec-fetch-site", "none")]), "typed by a person");
        let proxied = [("origin", "https://agent.example"), ("sec-fetch-site", "same-origin")];
        assert!(check(&proxied), "the browser knows the agent by the name of a proxy");
        for origin in ["http://localhost:10", "http://localhost", "https://localhost:9", "null", ""]
        {
            assert!(!check(&[("origin", origin)]), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            assert!(!check(&[("sec-fetch-site", site)]), "{site}");
            let own = [("origin", "http://localhost:9"), ("sec-fetch-site", site)];
            assert!(!check(&own), "{site}");
        }
    }

    #[test]
    fn over_tls_the_agents_own_pages_have_its_scheme() {
        let host = "localhost:9".parse().expect("a host");
        for (origin, is_own) in [("https://localhost:9", true), ("http://localhost:9", false)] {
            let headers = [(header::ORIGIN, HeaderValue::from_static(origin))];
            let checked = check_origin(&headers.into_iter().collect(), Some(&host), Scheme::Https);
            assert_eq!(checked.is_ok(), is_own, "{origin}");
        }
    }

    #[test]
    fn on_the_socket_a_token_adds_to_what_the_user_may_do_and_a_wrong_one_is_refused() {
        let (read, act) = (Some(Access::Read), Some(Access::Act));
        let grant = |access: Option<Access>| {
            access.map(|access| Grant { access, token: Some("ci".into()) })
        };
        let check = |peer: SocketPeer, token: Option<&'static str>, access| {
            let mut request = request("localhost");
            request.extensions_mut().insert(peer);
            if let Some(token) = token {
                let value = HeaderValue::from_static(token);
                request.headers_mut().insert(header::AUTHORIZATION, value);
            }
            let found = with_peer(grant(access), &request)?;
            Ok(found.map(|found| found.access))
        };
        let allowed = SocketPeer::Allowed;
        assert_eq!(check(allowed(Access::Read), None, None), Ok(read));
        assert_eq!(check(allowed(Access::Act), None, read), Ok(act));
        assert_eq!(check(allowed(Access::Read), Some("Bearer admin"), act), Ok(act));
        assert_eq!(check(allowed(Access::Act), Some("Bearer reader"), read), Ok(act));
        assert_eq!(check(allowed(Access::Act), Some("Bearer wrong"), None), Ok(None));
        let refused = check(SocketPeer::Refused("no".into()), Some("Bearer admin"), act);
        assert_eq!(refused, Err(Refusal::new(StatusCode::FORBIDDEN, "no")));
        let elsewhere = with_peer(grant(read), &request("localhost"));
        assert_eq!(elsewhere.map(|found| found.map(|found| found.access)), Ok(read), "a port");
    }

    #[test]
    fn a_token_is_found_where_it_belongs() {
        let find = |value: &'static str| {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            let headers: HeaderMap = [(header::AUTHORIZATION, value)].into_iter().collect();
            bearer(&headers).map(str::to_owned)
        };
        assert_eq!(bearer(&HeaderMap::new()), None);
        assert_eq!(find("Bearer abc").as_deref(), Some("abc"));
        assert_eq!(find("bearer  abc ").as_deref(), Some("abc"));
        for wrong in ["", "Bearer", "Basic abc", "abc", "Bearer é"] {
            assert_eq!(find(wrong).as_deref(), Some(""), "{wrong}");
        }
    }
}
