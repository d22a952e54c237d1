//! Opens the archive that a URL names: over HTTP, on a unix socket, or on this machine's disk.
//!
//! It returns the bytes of the archive. Where the request offered content codings (`offer`) and the
//! server used one, `expand` undoes it; else they are exactly what the server sent. It follows a
//! bounded number of redirections, as far as `redirect` permits, and offers no coding there. A
//! transfer that broke off can be resumed if the server confirms with a strong entity tag that it
//! still serves the same archive in the same coding (RFC 9110, sections 13.1.5 and 14.2). `transfer`
//! calls this and decides on retries and deadlines.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use guest_agent_actors::model::spec::ArtifactUrl;
use guest_agent_actors::ports::ContentCoding;
use reqwest::header::{CONTENT_RANGE, ETAG, HeaderMap, HeaderValue, IF_RANGE, RANGE, RETRY_AFTER};
use reqwest::{Client, Response, StatusCode, Url};
use rustix::fs::{FileType, Mode, OFlags};
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;

use super::buffers::{BUFFER_BYTES, Buffers};
use super::clients::{self, Clients, Resolver};
use super::expand::Expander;
use super::offer::{Coding, Offer};
use super::redirect::{self, Misdirection, RedirectRules};
use crate::install::cache::terms::Terms;
use crate::install::error::FetchError;
use crate::install::retry;

/// Errors in the middle of a body.
pub(in crate::install) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Opens archives.
#[derive(Debug)]
pub(in crate::install) struct Fetcher {
    rules: Mutex<Arc<RedirectRules>>,
    /// For URLs of orders.
    ordered: Clients,
    /// For the targets of redirections.
    redirected: Clients,
}

/// An archive that is being read.
#[derive(Debug)]
pub(in crate::install) struct Body {
    origin: Origin,
    total: Option<u64>,
    /// The validator with which a later request gets the rest of the same archive.
    validator: Option<HeaderValue>,
    buffers: Buffers,
    /// What the archive may be the dictionary for.
    terms: Option<Terms>,
    coded: Coded,
}

/// The form in which a body comes, and how far it is.
#[derive(Debug)]
struct Coded {
    offer: Offer,
    coding: Coding,
    expander: Option<Expander>,
    /// Bytes that wait for the expander.
    queued: Option<Bytes>,
    /// Bytes that came over the network; of a file, none.
    received: u64,
    /// How many there are in all, if the server stated it.
    total: Option<u64>,
}

/// The source of the bytes.
#[derive(Debug)]
enum Origin {
    /// With the received bytes that were not passed on yet.
    Response(Box<Response>, VecDeque<Bytes>),
    File(tokio::fs::File),
}

/// The place of an archive.
#[derive(Debug, PartialEq, Eq)]
enum Location {
    Http(Url),
    Unix { socket: PathBuf, url: Url },
    File(PathBuf),
}

// === impl Fetcher ===

impl Fetcher {
    pub(in crate::install) fn new(rules: RedirectRules) -> Self {
        Self::with(rules, Resolver::default())
    }

    /// With another way to resolve the names in redirections.
    pub(in crate::install) fn with(rules: RedirectRules, resolver: Resolver) -> Self {
        Self {
            rules: Mutex::new(Arc::new(rules)),
            ordered: Clients::of_orders(),
            redirected: Clients::of_redirections(resolver),
        }
    }

    /// From now on, requests follow redirections by these rules.
    pub(in crate::install) fn set_redirect_rules(&self, rules: RedirectRules) {
        *self.rules.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    /// Requests the archive, and offers these forms. Returns when the first bytes can be read.
    pub(in crate::install) async fn open(
        &self,
        url: &ArtifactUrl,
        offer: &Offer,
    ) -> Result<Body, FetchError> {
        let answer = match Location::parse(url)? {
            Location::File(path) => return open_file(path).await,
            Location::Http(location) => {
                let offer = offer.at(&location);
                self.request(location, url, HeaderMap::new(), &offer).await?
            }
            Location::Unix { socket, url: location } => {
                let client = clients::on_socket(&socket)?;
                let offer = Offer::nothing();
                let response = send(&client, location, url, HeaderMap::new(), &offer).await?;
                Answered { response, offer, terms: None }
            }
        };
        let Answered { response, offer, terms } = answer;
        if response.status() != StatusCode::OK {
            return Err(refused(url, &response));
        }
        let coding = offer.answered(response.headers());
        let length = response.content_length();
        let expander = Expander::begin(&coding);
        Ok(Body {
            // What a coding expands to is known at its end.
            total: length.filter(|_| expander.is_none()),
            validator: strong_tag(response.headers()),
            origin: Origin::of(response),
            buffers: Buffers::default(),
            terms,
            coded: Coded { offer, coding, expander, queued: None, received: 0, total: length },
        })
    }

    /// Requests the missing part of an archive whose first `from` bytes have arrived. Returns
    /// `false`, and leaves the body unchanged, when the server does not send the rest of the same
    /// archive.
    pub(in crate::install) async fn resume(
        &self,
        url: &ArtifactUrl,
        body: &mut Body,
        from: u64,
    ) -> Result<bool, FetchError> {
        let Some(validator) = body.validator.clone() else { return Ok(false) };
        // A range is one of the bytes in their coding.
        let is_coded = body.coded.expander.is_some();
        let from = body.resumes_at(from);
        let total = body.coded.total;
        let offer = body.coded.offer.clone();
        let range = HeaderValue::try_from(format!("bytes={from}-"));
        let range = range.map_err(|error| FetchError::Client { source: error.into() })?;
        let headers = HeaderMap::from_iter([(RANGE, range), (IF_RANGE, validator.clone())]);
        let response = match Location::parse(url)? {
            Location::File(_) => return Ok(false),
            Location::Http(location) => {
                self.request(location, url, headers, &offer).await?.response
            }
            Location::Unix { socket, url: location } => {
                send(&clients::on_socket(&socket)?, location, url, headers, &offer).await?
            }
        };
        match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                let range = response.headers().get(CONTENT_RANGE).and_then(|it| it.to_str().ok());
                let same = range.is_some_and(|range| continues(range, from, total))
                    && offer.answered(response.headers()).name() == body.coded.coding.name()
                    && strong_tag(response.headers()).is_none_or(|tag| tag == validator);
                if same {
                    body.origin = Origin::of(response);
                    if is_coded {
                        body.coded.received = from;
                    }
                }
                Ok(same)
            }
            // The server sends the whole archive, because the archive has changed or the server
            // does not support ranges.
            StatusCode::OK
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::RANGE_NOT_SATISFIABLE => Ok(false),
            _ => Err(refused(url, &response)),
        }
    }

    /// Reads a small body: at most `most` bytes and one more, which shows that the body is too
    /// large.
    pub(in crate::install) async fn small(
        &self,
        url: &ArtifactUrl,
        most: usize,
        timeout: Duration,
    ) -> Result<Vec<u8>, FetchError> {
        let mut bytes = Vec::new();
        let all = async {
            let mut body = self.open(url, &Offer::nothing()).await?;
            while bytes.len() <= most {
                let total = body.total();
                let received = bytes.len() as u64;
                let chunk = body.chunk().await.map_err(|source| FetchError::Broken {
                    url: url.to_string(),
                    received,
                    total,
                    source,
                })?;
                let Some(chunk) = chunk else { break };
                bytes.extend_from_slice(&chunk[..chunk.len().min(most + 1 - bytes.len())]);
            }
            Ok(())
        };
        match tokio::time::timeout(timeout, all).await {
            Ok(done) => done.map(|()| bytes),
            Err(_) => Err(FetchError::Timeout { url: url.to_string(), timeout, received: 0 }),
        }
    }

    /// Requests a URL of an order, and the targets of the redirections that follow. Those get no
    /// offer: another server, such as a bucket, may answer with what its address was not signed for.
    async fn request(
        &self,
        location: Url,
        url: &ArtifactUrl,
        headers: HeaderMap,
        offer: &Offer,
    ) -> Result<Answered, FetchError> {
        let rules = Arc::clone(&self.rules.lock().unwrap_or_else(PoisonError::into_inner));
        let mut client = self.ordered.get(&location).await?;
        let mut here = location;
        let mut trail = Vec::new();
        let mut offer = offer.clone();
        loop {
            let response = send(&client, here.clone(), url, headers.clone(), &offer).await?;
            let target = redirect::target(response.status(), response.headers(), &here);
            let Some(target) = target else {
                let terms = match trail.is_empty() && here.query().is_none() {
                    true => Terms::read(&here, response.headers(), SystemTime::now()),
                    false => None,
                };
                return Ok(Answered { response, offer, terms });
            };
            trail.push(here);
            let checked = target.and_then(|next| rules.check(&trail, &next).map(|()| next));
            here =
                checked.map_err(|source| FetchError::Redirect { url: url.to_string(), source })?;
            client = self.redirected.get(&here).await?;
            offer = Offer::nothing();
        }
    }
}

/// An answer, and the offer that the last request made.
struct Answered {
    response: Response,
    offer: Offer,
    terms: Option<Terms>,
}

// === impl Body ===

impl Body {
    /// Whether a range request can get the remaining bytes.
    pub(in crate::install) fn can_be_resumed(&self) -> bool {
        self.validator.is_some()
    }

    /// The announced number of bytes, if the server stated it.
    pub(in crate::install) fn total(&self) -> Option<u64> {
        self.total
    }

    /// What the archive may be the dictionary for, as its server said.
    pub(in crate::install) fn terms(&self) -> Option<&Terms> {
        self.terms.as_ref()
    }

    /// The coding in which it comes.
    pub(in crate::install) fn coding(&self) -> ContentCoding {
        self.coded.coding.name()
    }

    /// How many bytes came over the network so far.
    pub(in crate::install) fn received(&self) -> u64 {
        self.coded.received
    }

    /// The first byte, in its coding, that a later request would have to get, after so many bytes of
    /// the archive were passed on. What is being expanded came, even where nothing of it is out yet.
    pub(in crate::install) fn resumes_at(&self, passed_on: u64) -> u64 {
        match self.coded.expander {
            Some(_) => self.coded.received.saturating_sub(self.origin.waiting()),
            None => passed_on,
        }
    }

    /// The next bytes of the archive; `None` at the end. May be dropped and called again.
    pub(in crate::install) async fn chunk(&mut self) -> Result<Option<Bytes>, BodyError> {
        let Self { origin, buffers, coded, .. } = self;
        let Some(expander) = &mut coded.expander else {
            return origin.chunk(buffers, &mut coded.received).await;
        };
        loop {
            // Nothing is lost when this is dropped: what was received is queued at once.
            let waits = coded.queued.is_some();
            tokio::select! {
                biased;
                expanded = expander.expanded.recv() => {
                    return Ok(expanded.transpose()?);
                }
                () = pass_on(expander.coded.as_ref(), &mut coded.queued), if waits => {}
                piece = origin.chunk(buffers, &mut coded.received),
                    if !waits && expander.coded.is_some() =>
                {
                    coded.queued = piece?;
                    if coded.queued.is_none() {
                        expander.coded = None;
                    }
                }
            }
        }
    }
}

/// Sends the queued piece when there is room. Dropping the future loses nothing.
async fn pass_on(pieces: Option<&mpsc::Sender<Bytes>>, queued: &mut Option<Bytes>) {
    if let Some(pieces) = pieces
        && let Ok(room) = pieces.reserve().await
        && let Some(piece) = queued.take()
    {
        room.send(piece);
    }
    // The thread has ended, and says why.
    *queued = None;
}

// === impl Origin ===

impl Origin {
    fn of(response: Response) -> Self {
        Self::Response(Box::new(response), VecDeque::new())
    }

    /// Bytes that came and were not passed on yet.
    fn waiting(&self) -> u64 {
        match self {
            Self::Response(_, received) => received.iter().map(|it| it.len() as u64).sum(),
            Self::File(_) => 0,
        }
    }

    /// The next bytes as they come; `None` at the end. Adds to `count` what came over the network.
    async fn chunk(
        &mut self,
        buffers: &mut Buffers,
        count: &mut u64,
    ) -> Result<Option<Bytes>, BodyError> {
        match self {
            Self::Response(response, received) => {
                while received.is_empty() {
                    let chunk = response.chunk().await;
                    let Some(chunk) = chunk.map_err(reqwest::Error::without_url)? else {
                        return Ok(None);
                    };
                    *count = count.saturating_add(chunk.len() as u64);
                    // The whole buffer at once: the client can receive into the same memory again
                    // only if no part of it is left.
                    received.extend(chunk.chunks(BUFFER_BYTES).map(|part| {
                        let mut buffer = buffers.take();
                        buffer.extend_from_slice(part);
                        buffers.lend(buffer)
                    }));
                }
                Ok(received.pop_front())
            }
            Self::File(file) => {
                let mut buffer = buffers.take();
                let amount = file.read_buf(&mut buffer).await?;
                Ok((amount > 0).then(|| buffers.lend(buffer)))
            }
        }
    }
}

// === impl Location ===

impl Location {
    fn parse(artifact: &ArtifactUrl) -> Result<Self, FetchError> {
        let wrong = |reason| FetchError::Url { url: artifact.to_string(), reason };
        let text = artifact.expose();
        if let Some(rest) = text.strip_prefix("unix:") {
            let Some((socket, path)) = rest.split_once(":/") else {
                return Err(wrong("has no request path; write unix:<socket>:/<path>"));
            };
            if !socket.starts_with('/') {
                return Err(wrong("names a socket by a relative path"));
            }
            let url = Url::parse(&format!("http://localhost/{path}"))
                .map_err(|_| wrong("has a request path that is not valid"))?;
            return Ok(Self::Unix { socket: socket.into(), url });
        }
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') {
                return Err(wrong("is not absolute; write file:/path"));
            }
            return Ok(Self::File(unescaped(path)));
        }
        let url = Url::parse(text).map_err(|_| wrong("is not a URL"))?;
        match url.scheme() {
            "http" | "https" => Ok(Self::Http(url)),
            _ => Err(wrong("does not begin with http:, https:, unix: or file:")),
        }
    }
}

/// The file of this machine that a URL names; `None` where it names none.
#[must_use]
pub fn file_of(url: &ArtifactUrl) -> Option<PathBuf> {
    match Location::parse(url) {
        Ok(Location::File(path)) => Some(path),
        Ok(Location::Http(_) | Location::Unix { .. }) | Err(_) => None,
    }
}

/// The URL of a file beside an archive: the same URL with an ending added to its path. The query
/// stays, because it may give access to both files.
pub(in crate::install) fn beside(url: &ArtifactUrl, suffix: &str) -> ArtifactUrl {
    let text = url.expose();
    // To `file:` URLs a question mark is a part of the path.
    let end = if text.starts_with("file:") { None } else { text.find(['?', '#']) };
    let (path, rest) = text.split_at(end.unwrap_or(text.len()));
    ArtifactUrl::new(&format!("{path}{suffix}{rest}"))
}

/// The decoded path of a `file:` URL. A percent sign that does not begin an escape is kept.
fn unescaped(path: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
        let escaped = match after {
            [high, low, ..] if first == b'%' => digit(high).zip(digit(low)),
            _ => None,
        };
        match escaped {
            Some((high, low)) => {
                bytes.push(high << 4 | low);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

async fn send(
    client: &Client,
    location: Url,
    url: &ArtifactUrl,
    mut headers: HeaderMap,
    offer: &Offer,
) -> Result<Response, FetchError> {
    offer.describe(&mut headers);
    client.get(location).headers(headers).send().await.map_err(|error| {
        let url = url.to_string();
        let source = error.without_url();
        match Misdirection::behind(&source) {
            Some(source) => FetchError::Redirect { url, source },
            None => FetchError::Request { url, source },
        }
    })
}

/// The server answered with an error status.
fn refused(url: &ArtifactUrl, response: &Response) -> FetchError {
    let header = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = header.and_then(|text| retry::retry_after(text, SystemTime::now()));
    FetchError::Status { url: url.to_string(), status: response.status().as_u16(), retry_after }
}

/// The entity tag, if it is a strong one. A weak one (`W/`) does not identify the exact bytes.
fn strong_tag(headers: &HeaderMap) -> Option<HeaderValue> {
    headers.get(ETAG).filter(|tag| tag.as_bytes().starts_with(b"\"")).cloned()
}

/// Whether a `Content-Range` begins where the transfer broke off, in an archive of the same size.
fn continues(range: &str, from: u64, total: Option<u64>) -> bool {
    let Some((bounds, size)) =
        range.trim().strip_prefix("bytes ").and_then(|it| it.split_once('/'))
    else {
        return false;
    };
    let begin = bounds.split_once('-').and_then(|(begin, _)| begin.trim().parse().ok());
    let size: Option<u64> = size.trim().parse().ok();
    begin == Some(from) && (size.is_none() || total.is_none() || size == total)
}

/// Opens an archive on this machine's disk.
pub(in crate::install) async fn open_file(path: PathBuf) -> Result<Body, FetchError> {
    let shown = path.display().to_string();
    let opened = tokio::task::spawn_blocking(move || {
        // A link could be swapped, and opening a pipe would wait for its other end.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(path.as_os_str().as_bytes(), flags, Mode::empty())?;
        let found = rustix::fs::fstat(&file)?;
        Ok::<_, std::io::Error>((std::fs::File::from(file), found))
    });
    let (file, found) = opened
        .await
        .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        .map_err(|source| FetchError::File { path: shown.clone(), source })?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(FetchError::NotAFile { path: shown });
    }
    let total = u64::try_from(found.st_size).ok();
    let (offer, coding) = (Offer::nothing(), Coding::Identity);
    Ok(Body {
        origin: Origin::File(file.into()),
        total,
        validator: None,
        buffers: Buffers::default(),
        terms: None,
        coded: Coded { offer, coding, expander: None, queued: None, received: 0, total },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Location, String> {
        Location::parse(&ArtifactUrl::new(url)).map_err(|error| error.to_string())
    }

    #[test]
    fn all_four_forms_of_url_are_read() {
        let unix = parse("unix:/run/a.sock:/x/y.tgz?sig=1");
        let url = Url::parse("http://localhost/x/y.tgz?sig=1").expect("a URL");
        assert_eq!(unix, Ok(Location::Unix { socket: "/run/a.sock".into(), url }));
        assert_eq!(parse("file:/a/b"), Ok(Location::File("/a/b".into())));
        assert_eq!(parse("file:///a/b"), Ok(Location::File("/a/b".into())));
        for web in ["http://a/b", "https://a/b?c"] {
            assert!(matches!(parse(web), Ok(Location::Http(_))), "{web}");
        }
    }

    #[test]
    fn escapes_in_a_file_url_are_part_of_its_spelling_only() {
        let check = |url: &str, path: &str| assert_eq!(parse(url), Ok(Location::File(path.into())));
        check("file:///a%20b/%C3%BC%25%3f", "/a b/ü%?");
        check("file:///100%/%zz/%4", "/100%/%zz/%4");
    }

    #[test]
    fn what_is_beside_an_archive_has_its_path_and_its_query() {
        let check = |url: &str, expected: &str| {
            assert_eq!(beside(&ArtifactUrl::new(url), ".minisig").expose(), expected);
        };
        check("https://a/b.tgz", "https://a/b.tgz.minisig");
        check("https://a/b.tgz?token=x/y", "https://a/b.tgz.minisig?token=x/y");
        check("https://a/b.tgz#f?g", "https://a/b.tgz.minisig#f?g");
        check("unix:/run/a.sock:/b.tgz?c", "unix:/run/a.sock:/b.tgz.minisig?c");
        check("file:///a/b%3F.tgz", "file:///a/b%3F.tgz.minisig");
        check("file:///a/b?.tgz", "file:///a/b?.tgz.minisig");
    }

    #[test]
    fn only_the_rest_of_the_same_archive_is_gone_on_with() {
        assert!(continues("bytes 100-199/200", 100, Some(200)));
        assert!(continues(" bytes 100-199/* ", 100, Some(200)));
        assert!(continues("bytes 100-199/200", 100, None));
        for other in [
            "bytes 0-199/200",
            "bytes 100-199/300",
            "bytes */200",
            "items 100-199/200",
            "",
            "bytes",
        ] {
            assert!(!continues(other, 100, Some(200)), "{other:?}");
        }
    }

    #[test]
    fn a_weak_tag_does_not_vouch_for_bytes() {
        let tagged =
            |tag| strong_tag(&HeaderMap::from_iter([(ETAG, HeaderValue::from_static(tag))]));
        assert!(tagged("\"abc\"").is_some());
        assert!(tagged("W/\"abc\"").is_none());
        assert!(strong_tag(&HeaderMap::new()).is_none());
    }

    #[test]
    fn odd_urls_are_refused_without_showing_their_secrets() {
        for bad in
            ["", "ftp://a/b", "file:a", "unix:/run/a.sock", "unix:a:/b", "gopher:x", "http://"]
        {
            let error = parse(&format!("{bad}?sig=secret")).expect_err("odd");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
