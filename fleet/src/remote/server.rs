//! Which server is asked, and with whose token.

use std::io;
use std::path::{Path, PathBuf};

use clap::Args;
use thiserror::Error;
use tonic::metadata::{Ascii, MetadataValue};

use crate::cli::failure::{Exit, Failure};
use crate::outbound::grpc::GrpcServer;
use crate::private_file::{self, PrivateFileError};

/// Longest token, in bytes.
const TOKEN_BYTES: u64 = 4096;

/// The options that lead to a server.
#[derive(Args, Clone, Debug, Default)]
#[group(skip)]
pub struct ServerOptions {
    /// Ask the API of a server, not a ledger: `https://HOST[:PORT]` or, on this machine, `http://HOST:PORT` or
    /// `unix:/path`.
    #[arg(long, global = true, env = "GUEST_FLEET_SERVER", value_name = "URL")]
    pub server: Option<GrpcServer>,
    /// File with the API token for --server; nobody else may read it.
    #[arg(long, global = true, env = "GUEST_FLEET_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Certificates of the authority that --server is known by, PEM; without it those of the machine.
    #[arg(long, global = true, env = "GUEST_FLEET_SERVER_CA", value_name = "FILE")]
    pub server_ca: Option<PathBuf>,
}

/// A server, and the token for it.
#[derive(Debug)]
pub struct Server {
    pub(super) address: GrpcServer,
    pub(super) ca: Option<PathBuf>,
    pub(super) token_file: PathBuf,
    /// What the header `authorization` says.
    pub(super) bearer: MetadataValue<Ascii>,
}

/// Why a token cannot be used. The token itself is in no text.
#[derive(Debug, Error)]
enum TokenError {
    #[error("the token `{}` cannot be read", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("others may read the token `{}`", .0.display())]
    Open(PathBuf),
    #[error("the file `{}` is not one line with a token of at most {TOKEN_BYTES} bytes", .0.display())]
    NotToken(PathBuf),
}

// === impl ServerOptions ===

impl ServerOptions {
    /// The server that is meant, with the token of its file; `None` where none is meant.
    ///
    /// # Errors
    /// There is no token, or others may read it.
    pub fn open(self) -> Result<Option<Server>, Failure> {
        let Some(address) = self.server else { return Ok(None) };
        let token_file = self.token_file.ok_or_else(|| {
            Failure::usage("--server needs an API token").hint(
                "an admin of the fleet makes one with `guest-fleet access token create NAME --role ROLE`; name its \
                 file with --token-file FILE",
            )
        })?;
        let bearer = read(&token_file).map_err(|error| {
            let failure = Failure::of(Exit::Failed, &error);
            match error {
                TokenError::Read(..) => failure.hint("name a file with --token-file FILE"),
                TokenError::Open(path) => {
                    failure.hint(format_args!("chmod 600 {}", path.display()))
                }
                TokenError::NotToken(_) => failure.hint(
                    "write into it what `guest-fleet access token create` printed, and nothing else",
                ),
            }
        })?;
        Ok(Some(Server { address, ca: self.server_ca, token_file, bearer }))
    }
}

/// Reads a token, without white space at the ends.
fn read(path: &Path) -> Result<MetadataValue<Ascii>, TokenError> {
    let wrong = || TokenError::NotToken(path.to_owned());
    let bytes = private_file::read(path, TOKEN_BYTES).map_err(|error| match error {
        PrivateFileError::Read(source) => TokenError::Read(path.to_owned(), source),
        PrivateFileError::Open => TokenError::Open(path.to_owned()),
        PrivateFileError::Large => wrong(),
    })?;
    let token = std::str::from_utf8(bytes.trim_ascii()).map_err(|_| wrong())?;
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(wrong());
    }
    let mut bearer: MetadataValue<Ascii> =
        format!("Bearer {token}").parse().map_err(|_| wrong())?;
    bearer.set_sensitive(true);
    Ok(bearer)
}

// === impl Server ===

impl Server {
    /// The address, as people write it.
    pub(super) fn shown(&self) -> String {
        self.address.to_string().trim_end_matches('/').to_owned()
    }
}
