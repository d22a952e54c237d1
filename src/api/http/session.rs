//! Who looks at a page, and what of it they are shown. A session of a browser stands for the token
//! that it was begun with.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::{FromRequestParts, OptionalFromRequestParts};
use axum::http::header;
use axum::http::request::Parts;
use guest_agent_actors::model::audit::Via;
use guest_agent_console_kit::{assets, session};

use crate::api::http::access::{self, Access, Grant};
use crate::api::http::refusal::Refusal;
use crate::api::http::socket_peer::SocketPeer;
use crate::api::principal::Principal;
use crate::net::vetted::Caller;

/// The path of the page on which people log in.
pub(crate) const LOGIN: &str = "/console/login";

/// Paths that need neither a token nor a session: the page on which people log in, and what it
/// loads.
pub(crate) const WITHOUT_SESSION: [&str; 3] = [LOGIN, assets::STYLE, assets::SCRIPT];

/// A session, by the digest of its token.
pub(crate) type Session = session::Session<[u8; 32]>;

/// The sessions of all browsers.
pub(crate) type Sessions = session::Sessions<[u8; 32]>;

/// The sender of a request for a page.
#[derive(Clone, Debug)]
pub(crate) struct Visitor {
    /// What they may do.
    pub(crate) access: Access,
    /// The name of their token; `None` where reading needs no token.
    pub(crate) token: Option<Arc<str>>,
    /// The user at the other end of the unix socket.
    pub(crate) caller: Option<Caller>,
    /// What they are shown.
    pub(crate) sight: Sight,
    /// Their session. A program sends a token instead; reading may need neither.
    pub(crate) session: Option<Session>,
}

impl<S: Sync> FromRequestParts<S> for Visitor {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        visitor(parts).ok_or_else(Refusal::unknown)
    }
}

impl<S: Sync> OptionalFromRequestParts<S> for Visitor {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, Infallible> {
        Ok(visitor(parts))
    }
}

fn visitor(parts: &Parts) -> Option<Visitor> {
    let session = parts.extensions.get::<Session>().cloned();
    let Grant { access, token } = access::granted(parts)?;
    let acts = parts.extensions.get::<SocketPeer>().is_some_and(SocketPeer::acts);
    let is_known = acts || session.is_some() || parts.headers.contains_key(header::AUTHORIZATION);
    let caller = parts.extensions.get::<Caller>().cloned();
    let sight = if is_known { Sight::All } else { Sight::WithoutOutput };
    Some(Visitor { access, token, caller, sight, session })
}

/// What a visitor is shown. Logs are files that not everybody on the machine may read, and pages on
/// loopback are for everybody: so only a visitor with a token sees what plugins print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Sight {
    /// Everything but what plugins print.
    WithoutOutput,
    /// Everything.
    All,
}

// === impl Visitor ===

impl Visitor {
    /// Whether a form came from a page that was made for this visitor. A program, which sends its
    /// token itself, has no such page.
    pub(crate) fn has_sent(&self, csrf: &str) -> bool {
        self.session.as_ref().is_none_or(|session| session.has_sent(csrf))
    }

    /// A call of the local API on behalf of this visitor: what it changes is recorded under the name
    /// of their token, or of their user on the unix socket.
    pub(crate) fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        if let Some(token) = &self.token {
            request.extensions_mut().insert(Principal::of_token(token));
        } else if let Some(caller) = &self.caller {
            request.extensions_mut().insert(caller.clone());
            request.extensions_mut().insert(Via::Http);
        }
        request
    }
}
