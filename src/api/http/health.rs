//! `/healthz`: whether the agent is alive. `/readyz`: whether the machine can count on its plugins.
//!
//! Both answer in the status, which is all that most clients look at, and in text, or in JSON for a
//! client that accepts it. Only a client that may read gets the names of plugins.

use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use guest_agent_actors::manager::readiness::Readiness;
use guest_agent_actors::messages::ListPlugins;
use guest_agent_actors::model::id::PluginName;
use serde_json::json;

use super::access::Access;
use super::site::Site;

/// The paths that are answered also where all connections are in use.
pub(super) const PATHS: [&str; 2] = ["/healthz", "/readyz"];

/// How long the manager may take to answer. It answers from memory.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// An answer about the state of the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    status: StatusCode,
    /// The state in a word or two.
    word: &'static str,
    /// Why the state is as it is, a sentence each.
    reasons: Vec<String>,
}

pub(super) fn routes() -> Router<Site> {
    let [alive, ready] = PATHS;
    Router::new().route(alive, get(healthz)).route(ready, get(readyz))
}

async fn healthz(State(site): State<Site>, headers: HeaderMap) -> Response {
    // This handler runs only while the main loop works. While the manager restores the state of an
    // earlier agent process it answers no request, and counts as healthy.
    let is_looking =
        matches!(&*site.api.readiness.borrow(), Readiness::Waiting { on } if on.is_empty());
    let answer = if is_looking || answers(&site).await {
        Answer { status: StatusCode::OK, word: "alive", reasons: Vec::new() }
    } else {
        let reasons = vec!["the manager of the plugins does not answer".to_owned()];
        Answer { status: StatusCode::SERVICE_UNAVAILABLE, word: "not alive", reasons }
    };
    answer.shown(&headers)
}

async fn readyz(State(site): State<Site>, access: Option<Access>, headers: HeaderMap) -> Response {
    let mut answer = readiness(&site.api.readiness.borrow());
    if access.is_none() {
        answer.reasons.clear();
    }
    answer.shown(&headers)
}

async fn answers(site: &Site) -> bool {
    let listed = tokio::time::timeout(ANSWER_WAIT, site.api.manager.send(ListPlugins)).await;
    matches!(listed, Ok(Ok(_)))
}

fn readiness(readiness: &Readiness) -> Answer {
    let not_up = |plugins: &[PluginName], what: &str| {
        plugins.iter().map(|plugin| format!("{plugin} {what}")).collect()
    };
    match readiness {
        Readiness::Waiting { on } if on.is_empty() => Answer {
            status: StatusCode::SERVICE_UNAVAILABLE,
            word: "not ready",
            reasons: vec!["the agent does not know all of its plugins yet".to_owned()],
        },
        Readiness::Waiting { on } => Answer {
            status: StatusCode::SERVICE_UNAVAILABLE,
            word: "not ready",
            reasons: not_up(on, "is boot-critical and not up yet"),
        },
        Readiness::Ready { without } => Answer {
            status: StatusCode::OK,
            word: "ready",
            reasons: not_up(without, "is boot-critical and did not come up in time"),
        },
    }
}

// === impl Answer ===

impl Answer {
    fn shown(&self, headers: &HeaderMap) -> Response {
        let accepts = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
        if accepts.is_some_and(|accepts| accepts.contains("application/json")) {
            let document = json!({ "status": self.word, "reasons": self.reasons });
            let kind = (header::CONTENT_TYPE, "application/json");
            return (self.status, [kind], format!("{document}\n")).into_response();
        }
        let lines = self.reasons.iter().map(String::as_str);
        let mut text = std::iter::once(self.word).chain(lines).collect::<Vec<_>>().join("\n");
        text.push('\n');
        (self.status, text).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(state: Readiness, status: u16, word: &str, reason: &str) {
        let answer = readiness(&state);
        assert_eq!((answer.status.as_u16(), answer.word), (status, word));
        assert_eq!(answer.reasons.join("|"), reason);
    }

    #[test]
    fn ready_is_what_the_service_manager_is_told() {
        let plugin = || vec!["web".parse().expect("a name")];
        check(
            Readiness::Waiting { on: Vec::new() },
            503,
            "not ready",
            "the agent does not know all of its plugins yet",
        );
        check(
            Readiness::Waiting { on: plugin() },
            503,
            "not ready",
            "web is boot-critical and not up yet",
        );
        check(Readiness::Ready { without: Vec::new() }, 200, "ready", "");
        check(
            Readiness::Ready { without: plugin() },
            200,
            "ready",
            "web is boot-critical and did not come up in time",
        );
    }
}
