//! The answer to a request that is not carried out.

use std::borrow::Cow;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// A status and a sentence that says why, and what would help.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    status: StatusCode,
    why: Cow<'static, str>,
}

// === impl Refusal ===

impl Refusal {
    /// Refuses with this status, for this reason.
    pub fn new(status: StatusCode, why: impl Into<Cow<'static, str>>) -> Self {
        Self { status, why: why.into() }
    }

    /// The request has neither a valid token nor a session.
    pub fn unknown() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "this needs a token, as `Authorization: Bearer TOKEN`: that in the file that \
             api.http_token_file names, or one of api.http_tokens_file",
        )
    }

    /// The token or session allows reading and no actions.
    pub fn only_reads() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "this needs a token that may act: that in the file that api.http_admin_token_file names, or \
             one of api.http_tokens_file with the scope `act`; the one that was given, or none, may \
             only look",
        )
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = (self.status, format!("{}\n", self.why)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let scheme = HeaderValue::from_static("Bearer realm=\"guest-agent\"");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, scheme);
        }
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
