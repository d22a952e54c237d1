//! An artifact on its way to an agent: as it is, or in another form that the request asks for.
//!
//! Each form has a strong entity tag of its own, so that ranges and conditions are about the bytes
//! of that form. A redirection to a bucket is the same for everybody: what the bucket signed has no
//! forms.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use futures_util::StreamExt;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE,
    ETAG, HeaderName, HeaderValue, LOCATION, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};

use super::answer::{Refusal, header};
use super::options::Delivery;
use super::site::Site;
use crate::artifacts::conditions::{self, Answer};
use crate::artifacts::digest::Digest;
use crate::artifacts::encodings::{DICTIONARY_MAX, Encoded};
use crate::artifacts::store::{Fetch, Outgoing, Part, Stat, StoreError, directory};
use crate::chain::Chain;

/// An artifact never changes under its digest.
const FOR_EVER: &str = "public, max-age=31536000, immutable";
/// A signed address is good for a while, and for its client.
const NOT_KEPT: &str = "private, no-store";
/// What the form of an answer depends on (RFC 9842, section 6.2).
const VARYING: &str = "accept-encoding, available-dictionary";
/// For which requests an answer may be the dictionary (RFC 9842, section 2.1).
const USE_AS_DICTIONARY: HeaderName = HeaderName::from_static("use-as-dictionary");

/// Answers a GET or a HEAD.
pub(super) async fn answer<B: Sync>(
    site: &Site,
    plugin: &str,
    digest: Digest,
    request: &Request<B>,
) -> Response<Body> {
    if !site.known.is_known(plugin, &digest) {
        return Refusal::new(
            StatusCode::NOT_FOUND,
            "artifact_not_named",
            format!("no release of {plugin} names the artifact {digest}"),
            "apply a release that names it, and try again in a few seconds",
        )
        .response();
    }
    match find(site, plugin, digest, request).await {
        Ok(Some(response)) => response,
        Ok(None) => Refusal::new(
            StatusCode::NOT_FOUND,
            "artifact_missing",
            format!("a release names the artifact {digest}, but it is not in the store"),
            "upload it with `guest-fleet artifact push`",
        )
        .response(),
        Err(error) => {
            tracing::error!(error = %Chain(&error), "an artifact cannot be read");
            Refusal::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "store_failed",
                format!("the artifact {digest} cannot be read now"),
                "try again; the log of guest-fleet says what is wrong with its store",
            )
            .response()
        }
    }
}

/// The form in which an artifact is sent.
struct Form<'a> {
    encoded: Option<Encoded>,
    etag: String,
    length: u64,
    site: &'a Site,
    plugin: &'a str,
    /// Whether the artifact may be a dictionary.
    is_dictionary: bool,
}

async fn find<B: Sync>(
    site: &Site,
    plugin: &str,
    digest: Digest,
    request: &Request<B>,
) -> Result<Option<Response<Body>>, StoreError> {
    let Some(stat) = site.store.stat(&digest).await? else { return Ok(None) };
    let encodings = site.encodings.as_ref();
    let encoded = encodings.and_then(|it| it.choose(&digest, request.headers()));
    if let Some(encoded) = encoded {
        let form = Form::new(site, plugin, &stat, Some(encoded));
        if let Some(response) = send(form, &stat, request).await? {
            return Ok(Some(response));
        }
        // Its file was deleted in this moment.
    }
    send(Form::new(site, plugin, &stat, None), &stat, request).await
}

/// Sends an artifact in this form. `None` where it is gone.
async fn send<B: Sync>(
    form: Form<'_>,
    stat: &Stat,
    request: &Request<B>,
) -> Result<Option<Response<Body>>, StoreError> {
    let Form { site, length, .. } = form;
    let (method, headers) = (request.method(), request.headers());
    let answer = conditions::answer(method, headers, &form.etag, length);
    if let Delivery::Redirect(lifetime) = site.delivery
        && form.encoded.is_none()
        && answer != Answer::NotModified
    {
        let fetch = if *method == Method::HEAD { Fetch::Headers } else { Fetch::Bytes };
        if let Some(address) = site.store.address(&stat.digest, fetch, lifetime).await? {
            // Range and conditions are for the bucket, which has tags of its own.
            return Ok(Some(redirection(&address)));
        }
    }
    let whole = Part { first: 0, length };
    let (status, part) = match answer {
        Answer::Whole => (StatusCode::OK, Some(whole)),
        Answer::Part { first, last } => {
            let part = Part { first, length: last - first + 1 };
            (StatusCode::PARTIAL_CONTENT, Some(part))
        }
        Answer::NotModified => (StatusCode::NOT_MODIFIED, None),
        Answer::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, None),
    };
    let body = match part.filter(|_| *method == Method::GET) {
        None => Body::empty(),
        Some(part) => {
            let Some(bytes) = form.bytes(stat.digest, part, whole).await? else { return Ok(None) };
            Body::from_stream(bytes)
        }
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    form.describe(&mut response, answer, part);
    Ok(Some(response))
}

impl<'a> Form<'a> {
    fn new(site: &'a Site, plugin: &'a str, stat: &Stat, encoded: Option<Encoded>) -> Self {
        let (etag, length) = match &encoded {
            Some(encoded) => (encoded.etag(), encoded.length),
            None => (format!("\"{}\"", stat.digest), stat.length),
        };
        let is_dictionary = stat.length < DICTIONARY_MAX;
        Self { encoded, etag, length, site, plugin, is_dictionary }
    }

    /// The bytes of a part of it. `None` where it is gone.
    async fn bytes(
        &self,
        digest: Digest,
        part: Part,
        whole: Part,
    ) -> Result<Option<Outgoing>, StoreError> {
        let wanted = (part != whole).then_some(part);
        let Some(encodings) = self.site.encodings.clone() else {
            return self.site.store.open(&digest, wanted).await;
        };
        let (coding, bytes) = match self.encoded {
            None => ("identity", self.site.store.open(&digest, wanted).await?),
            Some(encoded) => {
                let opening = Arc::clone(&encodings);
                let opened = tokio::task::spawn_blocking(move || opening.file(&encoded));
                let opened = opened.await.map_err(io::Error::other).flatten();
                let failed = |error| StoreError::new("open a form of an artifact", error);
                let file = opened.map_err(failed)?;
                (encoded.form.coding(), file.map(|file| directory::read(file, part)))
            }
        };
        Ok(bytes.map(|bytes| {
            let counted = bytes.inspect(move |chunk| {
                if let Ok(chunk) = chunk {
                    encodings.figures().artifact_sent(coding, chunk.len());
                }
            });
            counted.boxed()
        }))
    }

    fn describe(&self, response: &mut Response<Body>, answer: Answer, part: Option<Part>) {
        let headers = response.headers_mut();
        headers.insert(ETAG, header(&self.etag));
        headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static(FOR_EVER));
        if self.site.encodings.is_some() {
            headers.insert(VARY, HeaderValue::from_static(VARYING));
        }
        if let Some(part) = part {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(part.length));
            if let Some(encoded) = &self.encoded {
                let coding = encoded.form.coding();
                headers.insert(CONTENT_ENCODING, HeaderValue::from_static(coding));
            }
            if self.site.encodings.is_some() && self.is_dictionary {
                // A plus is a sign of patterns, and a backslash before it one of strings.
                let plugin = self.plugin.replace('+', "\\\\+");
                let paths = format!("match=\"/artifacts/{plugin}/*\"");
                headers.insert(USE_AS_DICTIONARY, header(&paths));
            }
        }
        let length = self.length;
        match answer {
            Answer::Part { first, last } => {
                headers.insert(CONTENT_RANGE, header(&format!("bytes {first}-{last}/{length}")));
            }
            Answer::Unsatisfiable => {
                headers.insert(CONTENT_RANGE, header(&format!("bytes */{length}")));
            }
            Answer::Whole | Answer::NotModified => {}
        }
    }
}

fn redirection(address: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::TEMPORARY_REDIRECT;
    let headers = response.headers_mut();
    headers.insert(LOCATION, header(address));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(NOT_KEPT));
    response
}
