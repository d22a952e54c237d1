//! The checks of every request before a page gets it, and the headers of every response.
//!
//! A browser sends its cookies with every request to this host, whatever page asked for it. So a request has
//! to name a host that no foreign page can have (DNS rebinding), none that changes something may come from a
//! foreign page, and forms bring along what only pages of their session have. Other origins cannot read an
//! answer: there are no CORS headers.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use guest_agent_console_kit::assets;
use guest_agent_console_kit::pieces::query;

use super::login::{CALLBACK, LOGIN, PROVIDER};
use super::names::is_own_name;
use super::refuse::{redirect, refuse};
use super::scheme::Scheme;
use super::site::{Site, Visitor};
use super::source::Nobody;
use super::stranger;
use crate::api::CameFrom;
use crate::chain::Chain;
use crate::identity::Refusal;

/// Paths that need no session: those on which people log in, and what they load.
const WITHOUT_SESSION: [&str; 5] = [LOGIN, PROVIDER, CALLBACK, assets::STYLE, assets::SCRIPT];

/// Longest that a request may wait for the head of its response. A body that streams may take longer.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// The headers of every response, unless its page sets them itself.
const HEADERS: [(HeaderName, &str); 7] = [
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
    // Where a page may not name itself at all, browsers send its forms as if they came from nowhere.
    (header::REFERRER_POLICY, "same-origin"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Lets a request through, or not, and completes the response.
pub(super) async fn check(State(site): State<Site>, mut request: Request, next: Next) -> Response {
    let mut response = match admit(&site, &mut request).await {
        Ok(()) => tokio::time::timeout(ANSWER_MAX, next.run(request)).await.unwrap_or_else(|_| {
            let why = "the fleet is busy and did not answer in time; try again";
            refuse(StatusCode::SERVICE_UNAVAILABLE, why)
        }),
        Err(refusal) => refusal,
    };
    for (name, value) in HEADERS {
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}

/// Finds out who sends a request; the refusal where it may not pass.
async fn admit(site: &Site, request: &mut Request) -> Result<(), Response> {
    let host = host(request);
    if !host.as_ref().is_some_and(|host| is_own_name(host, &site.names)) {
        return Err(refuse(
            StatusCode::MISDIRECTED_REQUEST,
            "the console answers only to requests for localhost, an IP address or a name that --api-name gives, so \
             that web pages of other sites cannot reach it through a browser; use one of those in the address",
        ));
    }
    if !request.method().is_safe() && !is_own_page(request.headers(), host.as_ref(), site.scheme) {
        let why = "this request comes from a page that is not the console's own";
        return Err(refuse(StatusCode::FORBIDDEN, why));
    }
    let needs_no_session = WITHOUT_SESSION.contains(&request.uri().path());
    let session = site.sessions.find(request.headers(), site.scheme.cookie_name());
    if let Some(session) = session {
        match site.source.who(&session.of).await {
            Ok(mut who) => {
                if let Some(CameFrom(Some(from))) = request.extensions().get::<CameFrom>() {
                    who.from = format!("{} from {}", who.from, from.ip());
                }
                request.extensions_mut().insert(Visitor { session, who: Arc::new(who) });
                return Ok(());
            }
            Err(Nobody::Refused(Refusal::Unavailable(error))) => {
                tracing::warn!(error = %Chain(&*error), "whose a session is cannot be found out");
                let why = "it cannot be found out now whose this session is; try again";
                return Err(refuse(StatusCode::SERVICE_UNAVAILABLE, why));
            }
            Err(Nobody::NoRole(name)) if !needs_no_session => {
                let gone = site.scheme.cookie(site.end(&session));
                return Err(stranger::lost(&name, &gone));
            }
            // What it stands for ended.
            Err(_) => drop(site.end(&session)),
        }
    }
    if needs_no_session {
        return Ok(());
    }
    Err(to_login(request))
}

/// A browser that asks for a page is sent to the login, and comes back from there.
fn to_login(request: &Request) -> Response {
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let wants_page = accepts.is_some_and(|accepts| accepts.contains("text/html"));
    if !wants_page || !request.method().is_safe() {
        let why = "this needs a session; log in at /console/login";
        return refuse(StatusCode::UNAUTHORIZED, why);
    }
    let asked = request.uri().path_and_query().map_or("/", |it| it.as_str());
    let next = if asked == "/" { "" } else { asked };
    redirect(&format!("{LOGIN}{}", query(&[("next", next)])), None)
}

/// The host that a request is for. `None` when it does not say, or not in a way that has one meaning.
fn host(request: &Request) -> Option<Authority> {
    let mut named = request.headers().get_all(header::HOST).iter();
    let of_header = match named.next() {
        Some(host) => Some(host.to_str().ok()?.parse::<Authority>().ok()?),
        None => None,
    };
    // HTTP/2 says it in the target of the request.
    let of_target = request.uri().authority().cloned();
    let host = match (of_header, of_target) {
        (Some(header), Some(target)) => (header == target).then_some(header)?,
        (Some(host), None) | (None, Some(host)) => host,
        (None, None) => return None,
    };
    (named.next().is_none() && !host.as_str().contains('@')).then_some(host)
}

/// Whether a request that changes something comes from a page of the console.
fn is_own_page(headers: &HeaderMap, host: Option<&Authority>, scheme: Scheme) -> bool {
    // What the browser found, which no page can change. It also holds where a proxy with TLS is between.
    match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
        Some(site) => matches!(site, b"same-origin" | b"none"),
        None => headers.get(header::ORIGIN).is_none_or(|origin| {
            let own = host.map(|host| format!("{}://{host}", scheme.as_str()));
            own.is_some_and(|own| origin.as_bytes().eq_ignore_ascii_case(own.as_bytes()))
        }),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn request(host: &str) -> Request {
        Request::builder().uri("/").header("host", host).body(Body::empty()).expect("a request")
    }

    fn is_own(name: &str) -> bool {
        host(&request(name)).is_some_and(|host| is_own_name(&host, &["fleet.example".to_owned()]))
    }

    #[test]
    fn only_names_that_nobody_else_can_have_lead_here() {
        let good = [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1",
            "10.0.0.1:80",
            "[::1]",
            "[fe80::1]:9464",
            "fleet.example",
            "Fleet.Example:443",
        ];
        for name in good {
            assert!(is_own(name), "{name}");
        }
        let bad = [
            "",
            "example.com",
            "localhost.example.com",
            "127.0.0.1.nip.io",
            "localhost.",
            "x@127.0.0.1",
            "127.0.0.1@example.com",
            "fleet.example.evil.com",
            "::1",
            "2130706433",
            "0x7f000001",
            "localhost:80:80",
            "local host",
        ];
        for name in bad {
            assert!(!is_own(name), "{name}");
        }
    }

    #[test]
    fn a_request_that_names_two_hosts_names_none() {
        let mut twice = request("localhost");
        twice.headers_mut().append(header::HOST, HeaderValue::from_static("example.com"));
        assert_eq!(host(&twice), None);
        let mut elsewhere = request("localhost");
        *elsewhere.uri_mut() = "http://example.com/".parse().expect("a URI");
        assert_eq!(host(&elsewhere), None);
        let mut second = Request::new(Body::empty());
        assert_eq!(host(&second), None);
        *second.uri_mut() = "https://localhost/".parse().expect("a URI");
        assert!(host(&second).is_some(), "HTTP/2 has no header for it");
    }

    #[test]
    fn what_changes_something_comes_from_the_consoles_own_pages() {
        let check = |headers: &[(&'static str, &'static str)], scheme| {
            let headers = headers.iter().map(|(name, value)| {
                (HeaderName::from_static(name), HeaderValue::from_static(value))
            });
            let host = "localhost:9".parse().expect("a host");
            is_own_page(&headers.collect(), Some(&host), scheme)
        };
        let own = [("origin", "http://localhost:9"), ("sec-fetch-site", "same-origin")];
        assert!(check(&own, Scheme::Http));
        assert!(check(&[("origin", "https://localhost:9")], Scheme::Https));
        let proxied = [("origin", "https://fleet.example"), ("sec-fetch-site", "same-origin")];
        assert!(check(&proxied, Scheme::Http), "the browser knows it by the name of a proxy");
        for origin in ["http://localhost:10", "http://localhost", "https://localhost:9", "null", ""]
        {
            assert!(!check(&[("origin", origin)], Scheme::Http), "{origin}");
        }
        for site in ["cross-site", "same-site", ""] {
            let own = [("origin", "http://localhost:9"), ("sec-fetch-site", site)];
            assert!(!check(&own, Scheme::Http), "{site}");
        }
    }
}
