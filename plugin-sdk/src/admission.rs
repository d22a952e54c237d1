//! Admission plugins: the agent asks one before it deploys anything, and deploys only what it admits.
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
//! The agent starts the program named by `admission.command` when it first needs it, tells it a port and a
//! ticket on its standard input, and asks it to go by closing that. Answers are remembered by the agent, so
//! a handler hears of the same content once.
//!
//! The protocol is CIPD's deployment admission: `proto/cipd_plugin.proto` and `docs/admission.md` in the
//! agent's sources say the rest, for those who write a plugin in another language.

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

/// The protocol that is spoken here.
const PROTOCOL_VERSION: i32 = 1;

/// Longest line that is read as the handshake.
const HANDSHAKE_MAX: u64 = 64 * 1024;

/// How long connecting and one call may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
const CALL_TIMEOUT: Duration = Duration::from_secs(20);

/// Entries that are asked for at once.
const PAGE_SIZE: i32 = 100;

/// Why an admission plugin ended before it was asked to.
#[derive(Debug, thiserror::Error)]
pub enum AdmissionError {
    /// What came on the standard input is no handshake.
    #[error(
        "no handshake on the standard input; the agent starts this program, see admission.command"
    )]
    Handshake(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is no runtime, or none could be made.
    #[error("the runtime failed")]
    Runtime(#[source] std::io::Error),
    /// The agent could not be reached.
    #[error("cannot connect to the agent on port {port}")]
    Connect {
        /// Of 127.0.0.1.
        port: u16,
        /// Why.
        #[source]
        cause: tonic::transport::Error,
    },
    /// The agent ended the stream of checks with an error.
    #[error("the agent says: {message} ({code})")]
    Refused {
        /// The gRPC code.
        code: Code,
        /// What the agent says.
        message: String,
    },
}

/// Why something may not be deployed. The text is shown to operators and sent to the control plane: never
/// put a secret into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    code: Code,
    reason: String,
}

/// How loud a line is in the agent's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// For who looks for a mistake.
    Debug,
    /// For everybody.
    Info,
    /// Something may be wrong.
    Warning,
    /// Something is.
    Error,
}

/// One entry of what is known of a package's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// What it is about, such as `revision`, `source-url` or `entry-point`.
    pub key: String,
    /// What it says.
    pub value: Vec<u8>,
    /// When the agent learned it.
    pub attached_at: Option<SystemTime>,
}

/// What the agent wants to know: may this content be deployed?
#[derive(Clone, Debug)]
pub struct Check {
    /// The control plane that deploys.
    pub service_url: String,
    /// The plugin's name.
    pub package: String,
    /// SHA-256 of its archive, in hexadecimal digits; of a plugin that came with the machine, that of its
    /// entry point.
    pub sha256: String,
    admission: Arc<Admission>,
    host: HostClient<Authenticated>,
}

type Authenticated = InterceptedService<Channel, Ticket>;

/// The line on the standard input.
#[derive(Deserialize)]
struct Handshake {
    port: u16,
    ticket: String,
}

/// Adds the ticket to every call.
#[derive(Clone)]
struct Ticket(MetadataValue<Ascii>);

/// Answers checks until the agent asks the plugin to go: the whole `main` of one.
///
/// `handler` is called for each check, for many at once if many wait. `version` is shown in the agent's log.
/// A handler that panics denies. Exit code 0 when the agent asked the plugin to go; otherwise the error is
/// printed to standard error, which the agent puts into its log, and the exit code is 1.
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

/// The same, for a `main` that does something of its own before or after.
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

/// Reads the handshake, and says when the input ends.
fn listen_to_input() -> Result<(Handshake, oneshot::Receiver<()>), AdmissionError> {
    let wrong = |error: Box<dyn std::error::Error + Send + Sync>| AdmissionError::Handshake(error);
    let mut input = BufReader::new(std::io::stdin());
    let mut line = String::new();
    (&mut input).take(HANDSHAKE_MAX).read_line(&mut line).map_err(|error| wrong(error.into()))?;
    // The error of a parser may quote what it read, which holds a secret.
    let handshake: Handshake = serde_json::from_str(&line).map_err(|error| {
        wrong(format!("not the JSON of a handshake (column {})", error.column()).into())
    })?;
    let (ended, gone) = oneshot::channel();
    std::thread::spawn(move || {
        // Nothing else comes; what ends the reading is the end, or as good as that.
        drop(std::io::copy(&mut input, &mut std::io::sink()));
        // Whoever waits may have ended already.
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
            // The agent closes, and is about to say so on the standard input.
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
    // In a task of its own, whose panic is a value here.
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
        eprintln!("an answer could not be given: {} ({})", status.message(), status.code());
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
    /// It is not allowed, for this reason.
    pub fn new(reason: impl Into<String>) -> Denial {
        Denial::with_code(Code::PermissionDenied, reason)
    }

    /// The same with another code than PERMISSION_DENIED. [`Code::Ok`] becomes [`Code::Unknown`]: a denial
    /// is never an admission.
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

    /// What is known of the content, the newest first: only entries with these keys, or all.
    ///
    /// # Errors
    ///
    /// The agent did not answer, or refused to; as a reason to deny.
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

    /// Writes a line into the agent's log. One that cannot be written is not missed.
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
