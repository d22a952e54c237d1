//! An artifact on its way in, from somebody with the upload token.
//!
//! Everything that can be refused without its bytes is refused before they are asked for: a client
//! that waits for `100 Continue` sends none in vain. What others have sent by then is read and
//! thrown away for a moment, so that they get the answer instead of a broken connection.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};
use http::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, EXPECT, HeaderValue, RETRY_AFTER,
    WWW_AUTHENTICATE,
};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::json;
use tokio::sync::SemaphorePermit;

use super::answer::{Refusal, closing, json, no_path};
use super::site::Site;
use super::tokens;
use crate::artifacts::digest::Digest;
use crate::artifacts::store::{Claim, PutError};
use crate::chain::Chain;

/// How long, and how much, is read of an upload that was refused.
const DRAINING: Duration = Duration::from_secs(5);
const DRAINED_BYTES: usize = 64 << 20;
/// Seconds after which a client may try again when all places are taken.
const RETRY_SECONDS: &str = "10";

/// Answers a PUT.
pub(super) async fn answer(
    site: &Arc<Site>,
    digest: Option<Digest>,
    request: Request<Incoming>,
) -> Response<Body> {
    let (head, mut body) = request.into_parts();
    let refusal = match admit(site, digest, &head.headers).await {
        Ok((digest, place)) => {
            let put = receive(site, digest, &head.headers, &mut body).await;
            drop(place);
            match put {
                Ok(response) => return response,
                Err(refusal) => refusal,
            }
        }
        Err(refusal) => refusal,
    };
    let status = refusal.status;
    let mut response = closing(refusal.response());
    let headers = response.headers_mut();
    if status == StatusCode::UNAUTHORIZED {
        headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(RETRY_AFTER, HeaderValue::from_static(RETRY_SECONDS));
    }
    // A client that waits has sent nothing, and will not.
    if !head.headers.contains_key(EXPECT) {
        tokio::spawn(drain(body));
    }
    response
}

/// Refuses what can be refused without the bytes.
async fn admit<'a>(
    site: &'a Site,
    digest: Option<Digest>,
    headers: &HeaderMap,
) -> Result<(Digest, SemaphorePermit<'a>), Refusal> {
    let Some(file) = &site.upload_tokens else {
        return Err(Refusal::new(
            StatusCode::FORBIDDEN,
            "uploads_are_off",
            "nobody may upload here",
            "name a file with a token when you start guest-fleet, or push on the machine of the \
             store with --artifacts",
        ));
    };
    authorize(file, headers).await?;
    let digest = digest.ok_or_else(no_path)?;
    for name in [CONTENT_ENCODING, CONTENT_RANGE] {
        if headers.contains_key(&name) {
            return Err(Refusal::new(
                StatusCode::BAD_REQUEST,
                "header_not_allowed",
                format!("an upload with the header {name} is not taken"),
                "send the whole file as it is",
            ));
        }
    }
    let place = site.uploads.try_acquire().map_err(|_| {
        Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "too_many_uploads",
            "too many uploads go on at once",
            "try again in a moment",
        )
    })?;
    Ok((digest, place))
}

async fn authorize(file: &Path, headers: &HeaderMap) -> Result<(), Refusal> {
    let unauthorized = |message: &str| {
        Refusal::new(
            StatusCode::UNAUTHORIZED,
            "not_authorized",
            message,
            "send a token from the server's file of upload tokens as `Authorization: Bearer TOKEN`",
        )
    };
    let Some(token) = tokens::presented(headers) else {
        return Err(unauthorized("an upload needs a bearer token"));
    };
    let path = file.to_owned();
    let judged = tokio::task::spawn_blocking(move || tokens::is_permitted(&path, &token));
    match judged.await.map_err(io::Error::other).flatten() {
        Ok(true) => Ok(()),
        Ok(false) => Err(unauthorized("the bearer token is not one that may upload")),
        Err(error) => {
            let file = file.display();
            tracing::error!(%file, %error, "the upload tokens cannot be read");
            Err(Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                "tokens_not_readable",
                "the server cannot read its upload tokens",
                "see the log of guest-fleet, and put the file back",
            ))
        }
    }
}

async fn receive(
    site: &Site,
    digest: Digest,
    headers: &HeaderMap,
    body: &mut Incoming,
) -> Result<Response<Body>, Refusal> {
    let length = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let claim = Claim { digest: Some(digest), length };
    match site.store.put(claim, bytes_of(body, site.stall)).await {
        Ok(stat) => {
            let digest = stat.digest.to_string();
            tracing::info!(digest, length = stat.length, "an artifact was uploaded");
            site.encodings.iter().for_each(|encodings| encodings.look());
            Ok(json(StatusCode::CREATED, &json!({ "digest": digest, "length": stat.length })))
        }
        Err(error) => Err(refusal_of(&error)),
    }
}

fn refusal_of(error: &PutError) -> Refusal {
    let (status, code, fix) = match error {
        PutError::WrongDigest { .. } => (
            StatusCode::UNPROCESSABLE_ENTITY,
            "wrong_digest",
            "send the file whose SHA-256 is in the URL",
        ),
        PutError::WrongLength { .. } => {
            (StatusCode::BAD_REQUEST, "wrong_length", "send the whole file again")
        }
        PutError::TooLarge { .. } => (
            StatusCode::PAYLOAD_TOO_LARGE,
            "artifact_too_large",
            "make the archive smaller, or raise the bound of the store",
        ),
        PutError::NoRoom { .. } => (
            StatusCode::INSUFFICIENT_STORAGE,
            "no_room",
            "delete what no release names with `guest-fleet artifact gc`, or use a larger disk",
        ),
        PutError::Incomplete(_) => {
            (StatusCode::BAD_REQUEST, "upload_incomplete", "send the whole file again")
        }
        PutError::Failed(_) => {
            tracing::error!(error = %Chain(error), "an artifact was not kept");
            // What is behind it is for the operator of the server.
            return Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store_failed",
                "the artifact cannot be kept now",
                "try again; the log of guest-fleet says what is wrong with its store",
            );
        }
    };
    tracing::warn!(error = %Chain(error), "an upload was refused");
    // The text of a full disk names its folder, which is the operator's business.
    let message = match error {
        PutError::NoRoom { .. } => "the server has no room for the artifact".to_owned(),
        other => other.to_string(),
    };
    Refusal::new(status, code, message, fix)
}

/// The bytes of a body. It is an error when none come for too long.
fn bytes_of(body: &mut Incoming, stall: Duration) -> BoxStream<'_, io::Result<Bytes>> {
    stream::unfold(body, move |body| async move {
        loop {
            let bytes = match tokio::time::timeout(stall, body.frame()).await {
                Ok(None) => return None,
                Ok(Some(Ok(frame))) => match frame.into_data() {
                    Ok(bytes) => Ok(bytes),
                    // Trailers say nothing about an artifact.
                    Err(_) => continue,
                },
                Ok(Some(Err(error))) => Err(io::Error::other(error)),
                Err(_) => Err(io::Error::new(io::ErrorKind::TimedOut, "nothing came for too long")),
            };
            return Some((bytes, body));
        }
    })
    .boxed()
}

async fn drain(mut body: Incoming) {
    let reading = async {
        let mut drained = 0;
        while let Some(Ok(frame)) = body.frame().await {
            drained += frame.data_ref().map_or(0, Bytes::len);
            if drained > DRAINED_BYTES {
                break;
            }
        }
    };
    drop(tokio::time::timeout(DRAINING, reading).await);
}
