//! The listener of the API.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use guest_fleet::Listen;
use guest_fleet::api::listener::ApiListener;
use guest_fleet::api::{Api, router};
use guest_fleet::console::{self, People, Scheme};
use guest_fleet::enroll::ends::Ends;
use guest_fleet::identity::Directory;
use guest_fleet::ledger::SharedLedger;
use guest_fleet::observe::figures::Figures;
use guest_fleet::tls::files::PairFiles;
use guest_fleet::zones::IanaZones;
use tokio_util::sync::CancellationToken;

use super::ends;
use super::people::{Provider, Reached};

/// The options of it.
#[derive(Args)]
#[group(skip)]
pub(crate) struct Options {
    /// Where the API is, over HTTP and gRPC: `unix:/path` or `ADDRESS:PORT`; without a certificate it has to be an
    /// address of this machine.
    #[arg(long, value_name = "ADDRESS")]
    api_listen: Option<Listen>,
    /// Certificate chain of the API, PEM; read again when it changes.
    #[arg(long, value_name = "FILE", requires_all = ["api_listen", "api_tls_key"])]
    api_tls_cert: Option<PathBuf>,
    /// Private key of that certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "api_tls_cert")]
    api_tls_key: Option<PathBuf>,
    /// DNS name under which browsers may ask for the console, beside `localhost` and addresses; may be given several
    /// times.
    #[arg(long = "api-name", value_name = "NAME", requires = "api_listen")]
    api_names: Vec<String>,
}

/// Who may use it.
pub(crate) struct Access {
    /// What tokens, people and groups may do.
    pub(crate) directory: Directory,
    /// By what people log in to the console; without it, by tokens alone.
    pub(crate) provider: Option<Provider>,
}

// === impl Options ===

impl Options {
    /// Where browsers reach the console, where it is served.
    pub(crate) fn reached(&self) -> Option<Reached<'_>> {
        let (has_tls, names) = (self.api_tls_cert.is_some(), self.api_names.as_slice());
        self.api_listen.as_ref().map(|listen| Reached { listen, has_tls, names })
    }

    /// Listens, where that is wanted.
    pub(crate) async fn listen(
        &self,
        ledger: SharedLedger,
        Access { directory, provider }: Access,
        (certificates, figures): (&Ends, &Arc<Figures>),
        ending: CancellationToken,
    ) -> anyhow::Result<Option<ApiListener>> {
        let Some(address) = &self.api_listen else { return Ok(None) };
        let tls = match (&self.api_tls_cert, &self.api_tls_key) {
            (Some(certificate), Some(key)) => {
                Some(PairFiles { certificate: certificate.clone(), key: key.clone() })
            }
            _ => None,
        };
        let authenticate = Arc::new(directory.clone());
        // Where a proxy has the certificate, the provider sends browsers back to it.
        let of_proxy = provider.as_ref().map(|it| it.callback.scheme());
        let scheme = if tls.is_some() { Scheme::Https } else { of_proxy.unwrap_or(Scheme::Http) };
        let people = provider.map(|it| People::new(it.oidc, directory, it.callback));
        let settings = console::Settings { scheme, names: self.api_names.clone(), people };
        let api = Api::new(ledger, authenticate.clone(), Arc::new(IanaZones));
        let api = api.counting(figures.clone());
        let pages = console::routes(Arc::new(api.clone()), authenticate, settings, ending);
        let listener = ApiListener::start(address, tls, router(api).merge(pages)).await;
        let listener = listener.context("the API cannot be served: see --api-listen")?;
        if let Some(pair) = listener.pair() {
            ends::files(certificates, "api", pair);
        }
        Ok(Some(listener))
    }
}
