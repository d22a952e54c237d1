//! Admission plugins: the agent asks one before it deploys any content, and deploys only content
//! that it admits.
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use guest_agent_plugin::admission::{self, Denial};
//!
//! fn main() -> ExitCode {
//!     admission::run("1.0", |check| async move {
//!         match check.package.as_str() {
//!             "trusted" => Ok(()),
//!             other => Err(Denial::new(format!("{other} is not on the list"))),
//!         }
//!     })
//! }
//! ```
//!
//! The agent starts the program named by `admission.command` when it first needs it, sends it a
//! port and a ticket on its standard input, and closes that input to ask it to end. The agent
//! remembers answers, so a handler judges the same content once.
//!
//! The protocol is CIPD's deployment admission: `proto/cipd_plugin.proto` and `docs/admission.md`
//! in the agent's sources describe the rest, for plugins in other languages.

use std::future::Future;
use std::io::{BufRead, BufReader, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_proto::cipd::plugin::admissions_client::AdmissionsClient;
use guest_agent_proto::cipd::plugin::host_client::HostClient;
use guest_agent_proto::cipd::plugin::{
    Admission, ListAdmissionsRequest, ListMetadataRequest, LogRequest, ResolveAdmissionRequest,
};
use guest_agent_proto::rpc;
use serde::Deserialize;
use tokio::sync::oneshot;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

use crate::error::chain;

/// The protocol version of this module.
const PROTOCOL_VERSION: i32 = 1;

/// Longest handshake line, in bytes.
const HANDSHAKE_MAX: u64 = 64 * 1024;

/// How long a connection attempt and one call may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Metadata entries per request.
const PAGE_SIZE: i32 = 100;

/// Why an admission plugin ended before the agent stopped it.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// The standard input did not hold a handshake.
    #[error(
        "no handshake on the standard input; the agent starts this program, see admission.command"
    )]
    Handshake(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A tokio runtime could not be made, or the caller has none.
    #[error("the runtime failed")]
    Runtime(#[source] std::io::Error),
    /// The agent could not be reached.
    #[error("cannot connect to the agent on port {port}")]
    Connect {
        /// The port of 127.0.0.1.
        port: u16,
        /// The error of the transport.
        #[source]
        cause: tonic::transport::Error,
    },
    /// The agent ended the stream of checks with an error.
    #[error("the agent says: {message} ({code})")]
    Refused {
        /// The gRPC code.
        code: Code,
        /// The agent's message.
        message: String,
    },
}

/// Why content may not be deployed. The text is shown to operators and sent to the control plane:
/// never put a secret into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    code: Code,
    reason: String,
}

/// The level of a line in the agent's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// Details for people who look for a mistake.
    Debug,
    /// Information for all readers of the log.
    Info,
    /// Something may be wrong.
    Warning,
    /// Something is wrong.
    Error,
}

/// One metadata entry of a package's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The key, such as `revision`, `source-url` or `entry-point`.
    pub key: String,
    /// The value of the entry.
    pub value: Vec<u8>,
    /// When the agent recorded the entry.
    pub attached_at: Option<SystemTime>,
}

/// A question of the agent: may this content be deployed?
#[derive(Clone, Debug)]
pub struct Check {
    /// The control plane that deploys.
    pub service_url: String,
    /// The plugin's name.
    pub package: String,
    /// SHA-256 of its archive, in hexadecimal digits; of a plugin that came with the machine, that
    /// of its entry point.
    pub sha256: String,
    admission: Arc<Admission>,
    host: HostClient<Authenticated>,
}

type Authenticated = InterceptedService<Channel, Ticket>;

/// The handshake line on the standard input.
#[derive(Deserialize)]
struct Handshake {
    port: u16,
    ticket: String,
}

/// The interceptor that adds the ticket to every call.
#[derive(Clone)]
struct Ticket(MetadataValue<Ascii>);

/// Answers checks until the agent asks the plugin to end: the whole `main` of an admission plugin.
///
/// `handler` is called for each check, concurrently if several wait. The agent's log shows
/// `version`. A handler that panics denies. The exit code is 0 when the agent asked the plugin to
/// end; otherwise the error is printed to standard error, which the agent puts into its log, and
/// the exit code is 1.
pub fn run<H, F>(version: &str, handler: H) -> ExitCode
where
    H: Fn(Check) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Denial>> + Send + 'static,
{
    match run_blocking(version, handler) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

/// Like [`run`], for a `main` with work of its own before or after.
///
/// # Errors
///
/// [`AdmissionError`].
pub fn run_blocking<H, F>(version: &str, handler: H) -> Result<(), AdmissionError>
where
    H: Fn(Check) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Denial>> + Send + 'static,
{
    let (handshake, gone) = listen_to_input()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("admission")
        .enable_all()
        .build()
        .map_err(AdmissionError::Runtime)?;
    let served = runtime.block_on(async {
        tokio::select! {
            served = serve(handshake, version, Arc::new(handler)) => served,
            _ = gone => Ok(()),
        }
    });
    runtime.shutdown_background();
    served
}

/// Reads the handshake, and returns a future that completes when the input ends.
fn listen_to_input() -> Result<(Handshake, oneshot::Receiver<()>), AdmissionError> {
    let wrong = |error: Box<dyn std::error::Error + Send + Sync>| AdmissionError::Handshake(error);
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    (&mut input).take(HANDSHAKE_MAX).read_line(&mut line).map_err(|error| wrong(error.into()))?;
    // The error of a parser may quote its input, which holds a secret.
    let handshake: Handshake = serde_json::from_str(&line).map_err(|error| {
        wrong(format!("not the JSON of a handshake (column {})", error.column()).into())
    })?;
    let (ended, gone) = oneshot::channel();
    std::thread::spawn(move || {
        // The agent sends no further line; the end of the input and a read error both mean the end.
        drop(std::io::copy(&mut input, &mut std::io::sink()));
        // The receiver may have been dropped already.
        ended.send(()).ok();
    });
    Ok((handshake, gone))
}

async fn serve<H, F>(
    handshake: Handshake,
    version: &str,
    handler: Arc<H>,
) -> Result<(), AdmissionError>
where
    H: Fn(Check) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Denial>> + Send + 'static,
{
    let Handshake { port, ticket } = handshake;
    let ticket = ticket.parse().map(Ticket).map_err(|_| {
        AdmissionError::Handshake("its ticket cannot be the value of a header".into())
    })?;
    let channel = Endpoint::from_shared(format!("http://127.0.0.1:{port}"))
        .map_err(|cause| AdmissionError::Connect { port, cause })?
        .connect_timeout(CONNECT_TIMEOUT)
        .connect()
        .await
        .map_err(|cause| AdmissionError::Connect { port, cause })?;
    let mut admissions = AdmissionsClient::with_interceptor(channel.clone(), ticket.clone());
    let host = HostClient::with_interceptor(channel, ticket);
    let list = ListAdmissionsRequest {
        protocol_version: PROTOCOL_VERSION,
        plugin_version: version.to_owned(),
    };
    let mut checks = admissions.list_admissions(list).await.map_err(refused)?.into_inner();
    loop {
        let admission = match checks.message().await {
            Ok(Some(admission)) => admission,
            Ok(None) => return Ok(()),
            // The agent ended the stream and is about to close the standard input.
            Err(status) if status.code() == Code::Aborted => return Ok(()),
            Err(status) => return Err(refused(status)),
        };
        let (check, handler) = (Check::of(admission, host.clone()), Arc::clone(&handler));
        tokio::spawn(answer(check, handler, admissions.clone()));
    }
}

async fn answer<H, F>(
    check: Check,
    handler: Arc<H>,
    mut admissions: AdmissionsClient<Authenticated>,
) where
    H: Fn(Check) -> F + Send + Sync + 'static,
    F: Future<Output = Result<(), Denial>> + Send + 'static,
{
    let admission_id = check.admission.admission_id.clone();
    // It runs in a task of its own, so that a panic becomes a value here.
    let handled = tokio::spawn(async move { handler(check).await }).await;
    let verdict = handled.unwrap_or_else(|_| {
        Err(Denial::with_code(Code::Internal, "the admission plugin panicked over it"))
    });
    let status = match verdict {
        Ok(()) => rpc::Status::default(),
        Err(Denial { code, reason }) => {
            rpc::Status { code: code.into(), message: reason, details: Vec::new() }
        }
    };
    let mut request = Request::new(ResolveAdmissionRequest { admission_id, status: Some(status) });
    request.set_timeout(CALL_TIMEOUT);
    if let Err(status) = admissions.resolve_admission(request).await {
        eprintln!("cannot send an answer: {} ({})", status.message(), status.code());
    }
}

fn refused(status: Status) -> AdmissionError {
    AdmissionError::Refused { code: status.code(), message: status.message().to_owned() }
}

impl Interceptor for Ticket {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        request.metadata_mut().insert("x-plugin-ticket", self.0.clone());
        Ok(request)
    }
}

// === impl Denial ===

impl Denial {
    /// A denial with the code PERMISSION_DENIED and this reason.
    pub fn new(reason: impl Into<String>) -> Denial {
        Denial::with_code(Code::PermissionDenied, reason)
    }

    /// A denial with another code than PERMISSION_DENIED. [`Code::Ok`] becomes [`Code::Unknown`]: a
    /// denial is never an admission.
    pub fn with_code(code: Code, reason: impl Into<String>) -> Denial {
        let code = if code == Code::Ok { Code::Unknown } else { code };
        Denial { code, reason: reason.into() }
    }
}

// === impl Check ===

impl Check {
    fn of(admission: Admission, host: HostClient<Authenticated>) -> Check {
        Check {
            service_url: admission.service_url.clone(),
            package: admission.package.clone(),
            sha256: admission.instance.as_ref().map(|it| it.hex_digest.clone()).unwrap_or_default(),
            admission: Arc::new(admission),
            host,
        }
    }

    /// The metadata entries of the content, newest first: those with these keys, or all if `keys`
    /// is empty.
    ///
    /// # Errors
    ///
    /// A denial, when the agent did not answer or refused to answer.
    pub async fn metadata(&self, keys: &[&str]) -> Result<Vec<Metadata>, Denial> {
        let mut host = self.host.clone();
        let mut all = Vec::new();
        let mut page_token = String::new();
        loop {
            let mut request = Request::new(ListMetadataRequest {
                service_url: self.service_url.clone(),
                package: self.package.clone(),
                instance: self.admission.instance.clone(),
                keys: keys.iter().map(|key| (*key).to_owned()).collect(),
                page_size: PAGE_SIZE,
                page_token,
            });
            request.set_timeout(CALL_TIMEOUT);
            let page = host.list_metadata(request).await.map_err(|status| {
                let reason = format!("its metadata cannot be read: {}", status.message());
                Denial::with_code(Code::Unavailable, reason)
            })?;
            let page = page.into_inner();
            all.extend(page.metadata.into_iter().map(|entry| Metadata {
                key: entry.key,
                value: entry.value,
                attached_at: entry.attached_ts.and_then(|at| SystemTime::try_from(at).ok()),
            }));
            if page.next_page_token.is_empty() {
                return Ok(all);
            }
            page_token = page.next_page_token;
        }
    }

    /// Writes a line into the agent's log. A failure to write it is ignored.
    pub async fn log(&self, severity: Severity, message: impl Into<String>) {
        let severity = match severity {
            Severity::Debug => "debug",
            Severity::Info => "info",
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let line = LogRequest { severity: severity.to_owned(), message: message.into() };
        let mut request = Request::new(line);
        request.set_timeout(CALL_TIMEOUT);
        drop(self.host.clone().log(request).await);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_never_an_admission() {
        assert_eq!(Denial::with_code(Code::Ok, "x").code, Code::Unknown);
        assert_eq!(Denial::new("x").code, Code::PermissionDenied);
    }

    #[test]
    fn a_handshake_is_read_as_json_with_whatever_spaces_it_has() {
        for line in [r#"{"port":1,"ticket":"t"}"#, "{ \"ticket\" : \"t\" , \"port\" : 1 }\n"] {
            let Handshake { port, ticket } = serde_json::from_str(line).expect("a handshake");
            assert_eq!((port, ticket.as_str()), (1, "t"));
        }
    }
}
