//! `enroll`: makes this machine an agent of a fleet. Needs no running agent.

use std::io::Read;
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_serve_kit::replace::{Access, replace_file};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use super::context::Context;
use super::failure::Failure;
use super::json::Time;
use crate::enroll::files::{Enrolled, Identity};
use crate::enroll::join::{self, Join, JoinError, Joined};
use crate::enroll::request::{RequestError, Trust};

/// Longest token that is read from a file, in bytes.
const TOKEN_BYTES: u64 = 4096;
/// The file beside the configuration that --write makes. A later name wins over an earlier one.
const WRITTEN: &str = "conf.d/60-fleet.toml";
const WRITTEN_BY: &str = "# Written by `guest-agent enroll --write`.\n";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  guest-agent enroll --server https://fleet.example:8443 --token-file /run/token --ca-sha256 HEX
  guest-agent enroll --server https://fleet.example:8443 --token-file - --ca fleet-ca.pem --write
  guest-agent enroll --server https://fleet.example:8443 --token web.SECRET --id vm-7 --json")]
pub(super) struct Flags {
    /// The fleet's enrolment server
    #[arg(long, value_name = "URL")]
    server: String,
    #[command(flatten)]
    token: Token,
    #[command(flatten)]
    trust: TrustFlags,
    /// The id that this machine shall have [default: the server chooses]
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    /// Where the agent connects afterwards [default: where the server says]
    #[arg(long, value_name = "URL")]
    endpoint: Option<String>,
    /// Write what the configuration has to say into conf.d/60-fleet.toml beside it, not to the
    /// terminal
    #[arg(long)]
    write: bool,
}

#[derive(Debug, clap::Args)]
#[group(required = true, multiple = false)]
struct Token {
    /// A file with the join token; - reads standard input
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// The join token; other users of this machine can see it while the command runs
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
}

/// How the server is known; without any of them by the system's authorities.
#[derive(Debug, clap::Args)]
#[group(multiple = false)]
struct TrustFlags {
    /// The authority that vouches for the server (PEM) [default: the system's]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// The SHA-256 of the fleet's authority, as `guest-fleet ca show` prints it
    #[arg(long, value_name = "HEX")]
    ca_sha256: Option<Sha256Digest>,
}

/// The agent that the machine became, as scripts see it; field names never change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct EnrolledJson<'a> {
    /// Id of the agent.
    agent_id: &'a str,
    /// What the table [control_plane] of the configuration has to say.
    control_plane: ControlPlaneJson<'a>,
    /// When the certificate ends; the agent renews it before.
    #[schemars(with = "Time")]
    ends: String,
    /// Id of the fleet.
    fleet_id: &'a str,
    /// The file that it was written to; null where it was written to none.
    written: Option<&'a Path>,
}

/// The keys of the table [control_plane].
#[derive(Debug, Serialize, JsonSchema)]
struct ControlPlaneJson<'a> {
    /// How the agent proves who it is.
    auth: &'static str,
    /// The file with the fleet's authorities.
    ca_file: PathBuf,
    /// The file with the certificate.
    client_cert: PathBuf,
    /// The file with the key.
    client_key: PathBuf,
    /// Where the agent connects; null where nobody said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<&'a str>,
    /// The name of the machine for the control plane.
    resource: &'a str,
}

pub(super) async fn run(flags: Flags, context: Context<'_, '_>) -> Result<(), Failure> {
    let identity = Identity::below(&context.load()?.config.agent.state_dir);
    let Flags { server, token, trust, id, endpoint, write } = flags;
    let trust = match (trust.ca, trust.ca_sha256) {
        (Some(file), _) => Trust::File(file),
        (None, Some(digest)) => Trust::Fingerprint(digest),
        (None, None) => Trust::System,
    };
    let server = server.trim_end_matches('/').to_owned();
    let join = Join { server, trust, token: token.read()?, id };
    let joined = join::join(&identity, &join).await;
    let Joined { enrolled, gateway } = joined.map_err(|error| failure(&error, &identity))?;
    let endpoint = endpoint.or(gateway);
    let keys = keys(&identity, &enrolled, endpoint.as_deref());
    let table = toml(&keys)?;
    let file = write.then(|| beside_the_configuration(&context));
    if let Some(file) = &file {
        put(file, &table)?;
    }
    let ends = i64::try_from(enrolled.ends).ok().and_then(|ends| Timestamp::from_second(ends).ok());
    let ends = ends.unwrap_or(Timestamp::MAX).to_string();
    let console = context.console;
    if context.global.json() {
        return Ok(console.document(&EnrolledJson {
            agent_id: &enrolled.agent_id,
            control_plane: keys,
            ends,
            fleet_id: &enrolled.fleet_id,
            written: file.as_deref(),
        })?);
    }
    let Enrolled { agent_id, fleet_id, .. } = &enrolled;
    console.line(&format!("this machine is the agent {agent_id} of the fleet {fleet_id}"))?;
    console.line(&format!(
        "its key and certificate are in {}; the agent renews the certificate before {ends}",
        identity.folder().display()
    ))?;
    match &file {
        Some(file) => {
            console.line(&format!("{} says so to the agent:", file.display()))?;
            console.line("restart it with `systemctl restart guest-agent`")?;
        }
        None => {
            console.line("the agent takes it up with this in its configuration:")?;
            console.text(&table)?;
        }
    }
    if endpoint.is_none() {
        console
            .line("write beside it where the agent connects: endpoint = \"https://HOST:PORT\"")?;
    }
    Ok(())
}

// === impl Token ===

impl Token {
    fn read(self) -> Result<String, Failure> {
        let text = match (self.token, self.token_file) {
            (Some(token), _) => token,
            (None, Some(file)) => {
                let mut text = String::new();
                let read = match file.as_os_str() == "-" {
                    true => std::io::stdin().take(TOKEN_BYTES).read_to_string(&mut text),
                    false => std::fs::File::open(&file)
                        .and_then(|open| open.take(TOKEN_BYTES).read_to_string(&mut text)),
                };
                read.map_err(|error| {
                    let reason = format!("failed to read the token in {}", file.display());
                    Failure::failed(reason).because(&error)
                })?;
                text
            }
            (None, None) => return Err(Failure::usage("there is no join token")),
        };
        match text.trim() {
            "" => Err(Failure::failed("the join token is empty")),
            token => Ok(token.to_owned()),
        }
    }
}

fn keys<'a>(
    identity: &Identity,
    enrolled: &'a Enrolled,
    endpoint: Option<&'a str>,
) -> ControlPlaneJson<'a> {
    ControlPlaneJson {
        auth: "mtls",
        ca_file: identity.trust(),
        client_cert: identity.agent(),
        client_key: identity.agent(),
        endpoint,
        resource: &enrolled.agent_id,
    }
}

fn toml(keys: &ControlPlaneJson<'_>) -> Result<String, Failure> {
    let table = std::collections::BTreeMap::from([("control_plane", keys)]);
    toml::to_string(&table)
        .map_err(|error| Failure::failed("failed to write the configuration").because(&error))
}

fn beside_the_configuration(context: &Context<'_, '_>) -> PathBuf {
    let file = context.sources().file;
    let file = file.as_deref().unwrap_or_else(|| context.environment.default_file());
    file.parent().unwrap_or(Path::new("/")).join(WRITTEN)
}

/// Writes the file whole. One that a person wrote stays.
fn put(file: &Path, table: &str) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let reason = format!("this machine is enrolled, but {} was not written", file.display());
        Failure::failed(reason).because(&error).hint(format!("write it yourself:\n{table}"))
    };
    match std::fs::read_to_string(file) {
        Ok(text) if !text.starts_with(WRITTEN_BY) => {
            let error =
                std::io::Error::new(std::io::ErrorKind::AlreadyExists, "somebody else wrote it");
            return Err(failed(error));
        }
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    let write = || {
        if let Some(folder) = file.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let access = Access { mode: 0o644, owner: None };
        replace_file(file, format!("{WRITTEN_BY}{table}").as_bytes(), access)
    };
    write().map_err(failed)
}

fn failure(error: &JoinError, identity: &Identity) -> Failure {
    let failure = Failure::of(error);
    match error {
        JoinError::Already(_) => failure.hint(format!(
            "to enrol it anew, stop the agent and delete {}",
            identity.folder().display()
        )),
        JoinError::Request(RequestError::Refused(problem)) => failure.hint(&problem.fix),
        JoinError::Request(RequestError::Send(_)) => failure.hint(
            "check the address, and that --ca or --ca-sha256 is the fleet's (`guest-fleet ca show`)",
        ),
        JoinError::Request(_) | JoinError::Files(_) => failure,
    }
}
