//! The options of `serve` that say how agents show who they are, and what follows from them.
//!
//! ```text
//!   --ca                     certificates of the fleet       ┐ together: a certificate, or a token
//!   --jwt-audience …         tokens of an identity provider  ┘
//!   --agent-token-file       a token of each agent           with --tls-cert, a unix socket or loopback
//!   --token-file             a token that all agents share   with --tls-cert, a unix socket or loopback
//!   (nothing)                agents of this machine
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use guest_agent_serve_kit::tls::{self, Clients, TlsError};
use guest_fleet_ledger::SharedLedger;
use guest_fleet_server::admission::{AgentTokens, Jwt, JwtSettings, KeySource, Mutual, Watched};
use guest_fleet_server::enroll::listener::Admits;
use guest_fleet_server::enroll::{Authorities, Revocations};
use guest_fleet_server::net::tls::{LOOK, Pair, PairFiles, Purpose};
use guest_fleet_server::orders::UnknownAgents;
use guest_fleet_sessions::admission::{Admission, Anyone, Bearer, Either, Local};
use tokio_util::sync::CancellationToken;

use super::files::read_text;

/// How long the start waits for the first view of who was revoked. Without one nobody is admitted.
const FIRST_LOOK: Duration = Duration::from_secs(4);

/// How agents show who they are.
#[derive(Args)]
#[command(next_help_heading = "Who agents are")]
pub(crate) struct AdmissionOptions {
    /// Directory of the fleet's authority (`guest-fleet ca init`): agents have to be enrolled, and
    /// the TCP addresses get their certificates from it.
    #[arg(long, value_name = "DIR",
          conflicts_with_all = ["tls_cert", "token_file", "agent_token_file"])]
    pub(super) ca: Option<PathBuf>,
    /// TLS certificate chain for the TCP addresses, PEM; read again when it changes.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// Private key of the certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Authority whose certificates agents must show, PEM. They do not say which agent it is.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// File with one bearer token that all agents show: who has it can claim to be any of them.
    #[arg(long, value_name = "FILE", conflicts_with = "agent_token_file")]
    token_file: Option<PathBuf>,
    /// File with a bearer token of each agent, lines `ID TOKEN` or `ID sha256:DIGEST`; read again
    /// when it changes.
    #[arg(long, value_name = "FILE")]
    agent_token_file: Option<PathBuf>,
    /// Admit agents by tokens (JWT, RS256 or ES256) that are for this audience, such as the address
    /// of this fleet.
    #[arg(long, value_name = "AUDIENCE", requires_all = ["jwt_keys", "jwt_id"],
          conflicts_with_all = ["token_file", "agent_token_file"])]
    jwt_audience: Option<String>,
    /// Who has to have issued the tokens (`iss`).
    #[arg(long, value_name = "ISSUER", requires = "jwt_audience")]
    jwt_issuer: Option<String>,
    /// The issuer's public keys (JWKS): a file, or an `https://` address.
    #[arg(long, value_name = "FILE|URL", requires = "jwt_audience", value_parser = jwt_keys)]
    jwt_keys: Option<JwtKeys>,
    /// Authority to trust for that address, PEM, in place of those of this machine.
    #[arg(long, value_name = "FILE", requires = "jwt_keys")]
    jwt_keys_ca: Option<PathBuf>,
    /// The agent's id by the claims, such as `{sub}` or `vm/{/google/compute_engine/instance_id}`.
    #[arg(long, value_name = "TEMPLATE", requires = "jwt_audience")]
    jwt_id: Option<String>,
    /// A claim that the tokens have to have, such as
    /// `/google/compute_engine/project_id=my-project`; may be given several times.
    #[arg(long, value_name = "CLAIM=VALUE", requires = "jwt_audience", value_parser = claim)]
    jwt_require: Vec<(String, String)>,
    /// Take the audience for which Google's metadata server gives out tokens by default, though
    /// tokens for it can be replayed here by others that got them.
    #[arg(long, requires = "jwt_audience")]
    jwt_allow_google_audience: bool,
}

#[derive(Clone, Debug)]
enum JwtKeys {
    File(PathBuf),
    Url(String),
}

/// What follows from the options.
pub(super) struct Admitting {
    /// How agents are known.
    pub(super) admission: Arc<dyn Admission>,
    /// The certificate of the TCP addresses, where it is from files.
    pub(super) pair: Option<Pair>,
}

// === impl AdmissionOptions ===

impl AdmissionOptions {
    /// Whether an agent that the ledger does not know is taken in: one that an issuer or a token
    /// vouches for needs no enrolment.
    pub(super) fn unknown_agents(&self) -> UnknownAgents {
        match (&self.ca, &self.jwt_audience) {
            (Some(_), None) => UnknownAgents::Refused,
            _ => UnknownAgents::TakenIn,
        }
    }

    /// Which clients the listener lets in where its certificate is the fleet's.
    pub(super) fn admits(&self) -> Admits {
        match self.jwt_audience {
            Some(_) => Admits::AnyoneAndLateAgents(Duration::ZERO),
            None => Admits::Agents,
        }
    }

    /// Reads what the options name; files of certificates are followed until `ending`. `revocations`
    /// is kept current by the caller.
    ///
    /// # Errors
    /// A file cannot be used, or the options do not fit together.
    pub(super) async fn open(
        &self,
        authorities: Option<&Authorities>,
        revocations: Revocations,
        ledger: &SharedLedger,
        ending: &CancellationToken,
    ) -> anyhow::Result<Admitting> {
        let pair = self.pair(ending).await?;
        // A first connection must not meet an empty view. A ledger that does not answer now keeps
        // nobody out for longer than it does so.
        let first = tokio::time::timeout(FIRST_LOOK, revocations.refresh(&**ledger)).await;
        if !matches!(first, Ok(Ok(()))) {
            tracing::warn!("revocations were not read yet; nobody is admitted before they are");
        }
        let known = self.known(authorities).await?;
        Ok(Admitting { admission: Arc::new(Watched::new(known, revocations)), pair })
    }

    async fn pair(&self, ending: &CancellationToken) -> anyhow::Result<Option<Pair>> {
        let (Some(certificate), Some(key)) = (self.tls_cert.clone(), self.tls_key.clone()) else {
            return Ok(None);
        };
        let clients = match self.tls_client_ca.as_deref() {
            Some(path) => {
                let roots = tls::certificates(&read_text(path)?).ok_or(TlsError::Authority);
                Clients::Known(roots.context("see --tls-client-ca")?)
            }
            None => Clients::Any,
        };
        let purpose = Purpose { of: "gateway", clients, protocols: &[b"h2"] };
        let files = PairFiles { certificate, key };
        let pair = Pair::follow(files, purpose, LOOK, ending.clone()).await;
        Ok(Some(pair.context("see --tls-cert and --tls-key")?))
    }

    async fn known(&self, authorities: Option<&Authorities>) -> anyhow::Result<Arc<dyn Admission>> {
        let mutual = authorities
            .map(|authorities| Arc::new(Mutual::new(authorities.current().fleet().clone())));
        let jwt = self.jwt().await?;
        Ok(match (mutual, jwt) {
            (Some(mutual), Some(jwt)) => Arc::new(Either::new(mutual, jwt)),
            (Some(mutual), None) => mutual,
            (None, Some(jwt)) => jwt,
            (None, None) => match (&self.agent_token_file, &self.token_file) {
                (Some(path), _) => Arc::new(AgentTokens::open(path.clone()).await?),
                (None, Some(path)) => Arc::new(Bearer::new(&shared_token(path)?)),
                (None, None) if self.tls_client_ca.is_some() => Arc::new(Anyone),
                (None, None) => Arc::new(Local),
            },
        })
    }

    async fn jwt(&self) -> anyhow::Result<Option<Arc<Jwt>>> {
        let (Some(audience), Some(keys), Some(id)) =
            (&self.jwt_audience, &self.jwt_keys, &self.jwt_id)
        else {
            return Ok(None);
        };
        let keys = match keys {
            JwtKeys::Url(url) => KeySource::Url { url: url.clone(), ca: self.jwt_keys_ca.clone() },
            JwtKeys::File(_) if self.jwt_keys_ca.is_some() => anyhow::bail!(
                "--jwt-keys-ca is for keys at an address, and --jwt-keys names a file: leave it out"
            ),
            JwtKeys::File(path) => KeySource::File(path.clone()),
        };
        let settings = JwtSettings {
            audience: audience.clone(),
            issuer: self.jwt_issuer.clone(),
            required: self.jwt_require.clone(),
            id: id.clone(),
            keys,
            allows_google_audience: self.jwt_allow_google_audience,
        };
        let jwt = Jwt::new(settings).await.context(
            "agents cannot be admitted by tokens: see --jwt-audience, --jwt-keys, --jwt-id and \
             --jwt-allow-google-audience",
        )?;
        Ok(Some(Arc::new(jwt)))
    }
}

fn shared_token(path: &Path) -> anyhow::Result<String> {
    let text = read_text(path)?;
    let token = text.trim();
    if token.is_empty() {
        anyhow::bail!("`{}` is empty: write the token that agents show into it", path.display());
    }
    Ok(token.to_owned())
}

fn jwt_keys(text: &str) -> Result<JwtKeys, String> {
    match text.split_once("://") {
        Some(("https", _)) => Ok(JwtKeys::Url(text.to_owned())),
        Some(_) => Err("keys are fetched over `https://` alone; or name a file".to_owned()),
        None => Ok(JwtKeys::File(text.into())),
    }
}

fn claim(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((claim, value)) if !claim.is_empty() && !value.is_empty() => {
            Ok((claim.to_owned(), value.to_owned()))
        }
        _ => Err("write `CLAIM=VALUE`, such as `tenant=7`".to_owned()),
    }
}
