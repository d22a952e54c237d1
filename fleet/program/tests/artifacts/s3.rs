//! A stand-in for a bucket: the few calls of S3 that the store makes, in memory.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::Bytes;
use guest_fleet_server::artifacts::Digest;
use guest_fleet_server::artifacts::store::{BucketOptions, Credentials};
use http::{HeaderMap, Method, StatusCode};

pub(crate) const BUCKET: &str = "artifacts";
pub(crate) const PREFIX: &str = "fleet/one";
const KEY_ID: &str = "AKIDEXAMPLE";
/// When everything in it was written.
const WRITTEN: (&str, &str, u64) =
    ("Sat, 21 Nov 2026 10:00:00 GMT", "2026-11-21T10:00:00.000Z", 1_795_255_200);

/// A running stand-in.
#[derive(Clone)]
pub(crate) struct S3 {
    pub(crate) address: SocketAddr,
    state: Arc<Mutex<Content>>,
}

#[derive(Default)]
pub(crate) struct Content {
    pub(crate) objects: BTreeMap<String, Bytes>,
    pub(crate) uploads: HashMap<String, BTreeMap<u32, Bytes>>,
    /// What was asked: method, key and what it was about.
    pub(crate) calls: Vec<String>,
    /// So many next requests are answered with 503.
    pub(crate) failures: usize,
    next: u32,
}

impl S3 {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::<Mutex<Content>>::default();
        let router = Router::new().fallback(answer).with_state(state.clone());
        tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { address, state }
    }

    pub(crate) fn options(&self) -> BucketOptions {
        BucketOptions {
            endpoint: Some(format!("http://{}", self.address)),
            region: Some("eu-north-1".to_owned()),
            credentials: Credentials::Key { id: KEY_ID.to_owned(), secret: "a secret".to_owned() },
            ..BucketOptions::new(BUCKET, PREFIX)
        }
    }

    pub(crate) fn content(&self) -> MutexGuard<'_, Content> {
        self.state.lock().unwrap()
    }

    pub(crate) fn key(digest: &Digest) -> String {
        format!("{PREFIX}/sha256/{digest}")
    }

    pub(crate) fn written() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(WRITTEN.2)
    }

    /// How many calls begin with this.
    pub(crate) fn calls(&self, begin: &str) -> usize {
        self.content().calls.iter().filter(|call| call.starts_with(begin)).count()
    }
}

async fn answer(State(state): State<Arc<Mutex<Content>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let query: HashMap<String, String> = head
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (name.to_owned(), value.replace("%2F", "/")))
        .collect();
    let path = head.uri.path().trim_start_matches('/').to_owned();
    let (bucket, key) = path.split_once('/').unwrap_or((&path, ""));
    assert_eq!(bucket, BUCKET);
    let body = axum::body::to_bytes(body, usize::MAX).await;
    let mut content = state.lock().unwrap();
    if !is_signed(&head.headers, &query) {
        return plain(StatusCode::FORBIDDEN, "<Error><Code>AccessDenied</Code></Error>");
    }
    if content.failures > 0 {
        content.failures -= 1;
        return plain(StatusCode::SERVICE_UNAVAILABLE, "<Error><Code>SlowDown</Code></Error>");
    }
    let Ok(body) = body else { return plain(StatusCode::BAD_REQUEST, "") };
    content.answer(&head.method, key, &query, &head.headers, body)
}

/// Whether there is a signature in the headers or in the address.
fn is_signed(headers: &HeaderMap, query: &HashMap<String, String>) -> bool {
    let header = headers.get("authorization").and_then(|value| value.to_str().ok());
    let by_header = header.is_some_and(|value| {
        value.starts_with("AWS4-HMAC-SHA256 Credential=") && value.contains(KEY_ID)
    });
    let by_query = query.contains_key("X-Amz-Signature") && query.contains_key("X-Amz-Expires");
    by_header || by_query
}

impl Content {
    fn answer(
        &mut self,
        method: &Method,
        key: &str,
        query: &HashMap<String, String>,
        headers: &HeaderMap,
        body: Bytes,
    ) -> Response {
        let about = ["list-type", "uploads", "uploadId", "partNumber"]
            .into_iter()
            .find(|name| query.contains_key(*name))
            .unwrap_or_default();
        let range = headers.get("range").map_or("", |value| value.to_str().unwrap());
        self.calls.push(format!("{method} {about}{range}"));
        let upload = query.get("uploadId").cloned();
        match (method.as_str(), about) {
            ("GET", "list-type") => self.list(query),
            ("POST", "uploads") => {
                self.next += 1;
                let id = format!("upload-{}", self.next);
                self.uploads.insert(id.clone(), BTreeMap::new());
                let text = format!("<R><UploadId>{id}</UploadId></R>");
                plain(StatusCode::OK, &text)
            }
            ("PUT", "uploadId" | "partNumber") => {
                let number = query["partNumber"].parse().unwrap();
                let tag = tag(&body);
                match self.uploads.get_mut(&upload.unwrap()) {
                    Some(parts) => drop(parts.insert(number, body)),
                    None => return plain(StatusCode::NOT_FOUND, ""),
                }
                tagged(plain(StatusCode::OK, ""), &tag)
            }
            ("POST", "uploadId") => {
                let Some(parts) = self.uploads.remove(&upload.unwrap()) else {
                    return plain(StatusCode::NOT_FOUND, "");
                };
                let small = parts.values().rev().skip(1).any(|part| part.len() < 5 << 20);
                assert!(!small, "only the last part may be small");
                let whole: Vec<u8> = parts.into_values().flatten().collect();
                let tag = tag(&whole);
                self.objects.insert(key.to_owned(), whole.into());
                let text = format!("<R><ETag>{}</ETag></R>", tag.replace('"', "&quot;"));
                plain(StatusCode::OK, &text)
            }
            ("DELETE", "uploadId") => {
                self.uploads.remove(&upload.unwrap());
                plain(StatusCode::NO_CONTENT, "")
            }
            ("PUT", _) => {
                let body = match headers.get("x-amz-copy-source") {
                    None => body,
                    Some(source) => {
                        let (_, source) = source.to_str().unwrap().split_once('/').unwrap();
                        self.objects[source].clone()
                    }
                };
                let tag = tag(&body);
                self.objects.insert(key.to_owned(), body);
                let text = format!("<R><ETag>{}</ETag></R>", tag.replace('"', "&quot;"));
                tagged(plain(StatusCode::OK, &text), &tag)
            }
            ("DELETE", _) => {
                self.objects.remove(key);
                plain(StatusCode::NO_CONTENT, "")
            }
            ("GET" | "HEAD", _) => self.get(key, headers, range),
            other => panic!("{other:?} is not known"),
        }
    }

    fn get(&self, key: &str, headers: &HeaderMap, range: &str) -> Response {
        let Some(object) = self.objects.get(key) else {
            return plain(StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>");
        };
        let tag = tag(object);
        if headers.get("if-match").is_some_and(|wanted| wanted.to_str().unwrap() != tag) {
            return plain(StatusCode::PRECONDITION_FAILED, "");
        }
        let length = object.len();
        let mut response = Response::builder().header("last-modified", WRITTEN.0);
        let holds = headers.get("if-range").is_none_or(|wanted| wanted.to_str().unwrap() == tag);
        let body = match range.strip_prefix("bytes=").filter(|_| holds) {
            None => object.clone(),
            Some(range) => {
                let (first, last) = range.split_once('-').unwrap();
                let first: usize = first.parse().unwrap();
                let end = last.parse().map_or(length, |last: usize| (last + 1).min(length));
                let shown = format!("bytes {first}-{}/{length}", end - 1);
                response = response.status(206).header("content-range", shown);
                object.slice(first..end)
            }
        };
        response = response.header("content-length", body.len()).header("etag", tag);
        response.body(Body::from(body)).unwrap()
    }

    fn list(&self, query: &HashMap<String, String>) -> Response {
        let (after, prefix) = (query.get("start-after"), &query["prefix"]);
        let mut text = String::from("<ListBucketResult>");
        for (key, object) in &self.objects {
            if key.starts_with(prefix) && after.is_none_or(|after| key > after) {
                let (length, at) = (object.len(), WRITTEN.1);
                write!(
                    text,
                    "<Contents><Key>{key}</Key><Size>{length}</Size>\
                     <LastModified>{at}</LastModified></Contents>"
                )
                .unwrap();
            }
        }
        plain(StatusCode::OK, &(text + "</ListBucketResult>"))
    }
}

fn tag(bytes: &[u8]) -> String {
    format!("\"{}\"", &Digest::of(bytes).to_string()[..32])
}

fn tagged(mut response: Response, tag: &str) -> Response {
    response.headers_mut().insert("etag", tag.parse().unwrap());
    response
}

fn plain(status: StatusCode, text: &str) -> Response {
    Response::builder().status(status).body(Body::from(text.to_owned())).unwrap()
}
