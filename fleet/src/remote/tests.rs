//! The verbs over a real listener with TLS, beside the same verbs over its ledger.

mod both_ways;
mod faults;
mod refusals;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use axum::Router;
use clap::Parser;
use guest_fleet_core::time::UtcOnly;

use super::{Link, ServerOptions};
use crate::api::listener::ApiListener;
use crate::api::router;
use crate::api::tests::{api, now};
use crate::cli::Verb;
use crate::cli::context::{Caller, Context, Output};
use crate::cli::failure::{Exit, Failure};
use crate::cli::sees::Sees;
use crate::ledger::{Ledger, MemoryLedger, SharedLedger};
use crate::tls::files::PairFiles;

#[derive(Parser)]
#[command(name = "guest-fleet")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
    #[arg(long, global = true)]
    json: bool,
}

/// What became of a command.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    exit: Exit,
    out: String,
    err: String,
}

/// The API on a loopback address, with TLS.
struct Served {
    ledger: SharedLedger,
    listener: ApiListener,
    folder: tempfile::TempDir,
}

/// Longest that a verb may take.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

/// Runs a command over a ledger, or where there is a link, over that.
async fn run(link: Option<&mut Link>, ledger: &dyn Ledger, words: &[&str], input: &str) -> Ran {
    let shown = words;
    let words = ["guest-fleet"].iter().chain(words);
    let arguments = Arguments::try_parse_from(words).unwrap_or_else(|error| panic!("{error}"));
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut context = Context {
        ledger,
        out: &mut out,
        remarks: &mut err,
        input: &mut input.as_bytes(),
        output: if arguments.json { Output::Json } else { Output::Text },
        caller: Caller { who: "token/admin".to_owned(), from: "a test".to_owned() },
        now: now(),
        zones: &UtcOnly,
        sees: Sees::All,
        once: None,
    };
    let is_remote = link.is_some();
    let running = async {
        match link {
            Some(link) => super::run(&arguments.verb, link, &mut context).await,
            None => crate::cli::run(&arguments.verb, &mut context).await,
        }
    };
    let ended: Result<Exit, Failure> = tokio::time::timeout(PATIENCE, running)
        .await
        .unwrap_or_else(|_| panic!("it does not end (over a server: {is_remote}): {shown:?}"));
    let text = |bytes| String::from_utf8(bytes).expect("text");
    let (out, mut err) = (text(out), text(err));
    let exit = ended.unwrap_or_else(|failure| {
        err.push_str(&failure.text());
        failure.exit
    });
    Ran { exit, out, err }
}

/// Runs a command over a link.
async fn asked(link: &mut Link, words: &[&str]) -> Ran {
    run(Some(link), &MemoryLedger::new(), words, "").await
}

/// A file in a folder that only its owner reads.
fn secret(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, text).expect("it is written");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("a mode");
    path
}

/// Certificate and key for names, in a folder.
fn certificate(folder: &Path, names: &[&str]) -> PairFiles {
    let key = rcgen::KeyPair::generate().expect("a key");
    let names = names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let params = rcgen::CertificateParams::new(names).expect("names");
    let certificate = params.self_signed(&key).expect("a certificate");
    PairFiles {
        certificate: secret(folder, "cert.pem", &certificate.pem()),
        key: secret(folder, "key.pem", &key.serialize_pem()),
    }
}

/// A link without TLS to a server on this machine.
fn plain(endpoint: &str, folder: &Path) -> Link {
    let options = ServerOptions {
        server: Some(endpoint.parse().expect("an address")),
        token_file: Some(secret(folder, "token", "admin\n")),
        server_ca: None,
    };
    Link::new(options.open().expect("a token").expect("a server"))
}

// === impl Served ===

impl Served {
    async fn new(ledger: SharedLedger) -> Self {
        let routes = router(api(ledger.clone()));
        Self::with(ledger, routes, &["localhost", "127.0.0.1"]).await
    }

    async fn with(ledger: SharedLedger, routes: Router, names: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let pair = certificate(folder.path(), names);
        let listen = "127.0.0.1:0".parse().expect("an address");
        let listener = ApiListener::start(&listen, Some(pair), routes).await.expect("it listens");
        Self { ledger, listener, folder }
    }

    /// The options of a caller that has this token.
    fn options(&self, token: &str) -> ServerOptions {
        let folder = self.folder.path();
        ServerOptions {
            server: Some(self.listener.endpoint().parse().expect("an address")),
            token_file: Some(secret(folder, "token", &format!("{token}\n"))),
            server_ca: Some(folder.join("cert.pem")),
        }
    }

    fn link(&self, token: &str) -> Link {
        Link::new(self.options(token).open().expect("a token").expect("a server"))
    }
}
