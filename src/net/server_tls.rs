//! The TLS of the agent's HTTP: its certificate and key, which other programs renew while it is
//! served.
//!
//! A [`RenewedPair`] keeps them current. The keeper here writes the result of each look to the log
//! and to [`Certificates`].

use std::error::Error;
use std::sync::Arc;
use std::time::SystemTime;

use guest_agent_actors::error::Chain;
use guest_agent_serve_kit::certificate::{self, Pair, PairFiles};
use guest_agent_serve_kit::renewed::{Look, LookError, Looked, RenewedPair, Secured};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::sign::SingleCertAndKey;
use tracing::{info, warn};

use super::certificates::{Certificates, Known, Use, shown};

/// What HTTP/1.1 is called in a handshake.
const ALPN: &[u8] = b"http/1.1";

/// Keeps the pair of a listener current.
#[derive(Debug)]
pub(crate) struct Keeper {
    pair: RenewedPair,
    /// Why the files cannot be used as they are.
    failure: Option<String>,
    certificates: Certificates,
}

// === impl Keeper ===

impl Keeper {
    /// Reads the files for the first time.
    ///
    /// # Errors
    /// The files cannot be used.
    pub(crate) async fn open(
        files: PairFiles,
        certificates: Certificates,
    ) -> Result<Self, LookError> {
        let pair = RenewedPair::open(files, Box::new(server_config)).await?;
        let keeper = Self { pair, failure: None, certificates };
        keeper.note().await;
        Ok(keeper)
    }

    /// What new connections are secured with. It changes when the pair does.
    pub(crate) fn config(&self) -> Secured {
        self.pair.config()
    }

    /// The pair is to come from these files from now on.
    pub(crate) fn use_files(&mut self, files: PairFiles) {
        self.pair.use_files(files);
    }

    /// Puts the pair in the files into service, if it is another one and can be used.
    pub(crate) async fn look(&mut self, how: Look, now: SystemTime) {
        let failure = match self.pair.look(how, now).await {
            Looked::Unchanged => return,
            Looked::Same => None,
            Looked::Replaced => {
                let certificate = self.pair.files().certificate.display();
                let valid_until = shown(self.pair.validity().until);
                info!(%certificate, valid_until, "HTTP has a new certificate");
                None
            }
            Looked::Failed(error) => Some(self.why_not(&error)),
        };
        if let Some(failure) = &failure
            && self.failure.as_ref() != Some(failure)
        {
            warn!("{failure}");
        }
        self.failure = failure;
        self.note().await;
    }

    fn why_not(&self, error: &LookError) -> String {
        let why = match error {
            LookError::NotValid(file, validity) => format!(
                "the certificate in {} is valid from {} to {}",
                file.display(),
                shown(validity.from),
                shown(validity.until)
            ),
            error => Chain(error).to_string(),
        };
        let PairFiles { certificate, key } = self.pair.files();
        format!(
            "HTTP keeps its former certificate, because {} (api.http_tls_cert) and {} \
             (api.http_tls_key) cannot be used: {why}; put a certificate and its key there, which \
             the agent reads by itself",
            certificate.display(),
            key.display(),
        )
    }

    async fn note(&self) {
        let PairFiles { certificate: file, key } = self.pair.files().clone();
        let mut problems: Vec<String> = self.failure.clone().into_iter().collect();
        let of = key.clone();
        let open = tokio::task::spawn_blocking(move || certificate::open_to_others(&of)).await;
        if let Ok(Some(mode)) = open {
            let key = key.display();
            problems.push(format!(
                "other users may use {key} (api.http_tls_key), whose mode is {mode:04o}; `chmod 600 \
                 {key}`, and get another certificate if another user may have read the key"
            ));
        }
        let validity = self.pair.validity();
        self.certificates.note(Use::Http, Known { file, validity, problems });
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.certificates.forget(Use::Http);
    }
}

fn server_config(pair: &Pair) -> Result<Arc<ServerConfig>, Box<dyn Error + Send + Sync>> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use guest_agent_testing_kit::certificate::{FUTURE, NOW, PAST};

    use super::*;
    use crate::net::pair_files::{files, write};

    async fn opened(files: &PairFiles) -> (Keeper, Certificates) {
        let certificates = Certificates::default();
        let keeper = Keeper::open(files.clone(), certificates.clone()).await.expect("a pair");
        (keeper, certificates)
    }

    fn end(certificates: &Certificates) -> SystemTime {
        certificates.ends()[0].1
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_pair_is_put_into_service_without_a_signal() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        write(&files, NOW);
        let (mut keeper, certificates) = opened(&files).await;
        let mut config = keeper.config();
        keeper.look(Look::IfChanged, SystemTime::now()).await;
        assert!(!config.has_changed().expect("a keeper"), "nothing was replaced");
        write(&files, (2020, 2085));
        keeper.look(Look::IfChanged, SystemTime::now()).await;
        assert!(config.has_changed().expect("a keeper"));
        config.mark_unchanged();
        let written = certificate::validity(&files.certificate).expect("a certificate").until;
        assert_eq!(end(&certificates), written);
        assert!(certificates.troubles(SystemTime::now()).is_empty());
        keeper.look(Look::Anyway, SystemTime::now()).await;
        assert!(!config.has_changed().expect("a keeper"), "the same pair is no new one");
        drop(keeper);
        assert!(certificates.ends().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pair_that_cannot_be_used_leaves_the_former_one_in_service_and_is_reported() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        write(&files, NOW);
        let (mut keeper, certificates) = opened(&files).await;
        let config = keeper.config();
        let former = end(&certificates);
        let cases: [(&str, &dyn Fn()); 5] = [
            ("is valid from", &|| write(&files, PAST)),
            ("is valid from", &|| write(&files, FUTURE)),
            ("holds no certificate", &|| {
                std::fs::write(&files.certificate, "torn").expect("written");
            }),
            ("cannot read", &|| std::fs::remove_file(&files.key).expect("removed")),
            ("does not belong", &|| {
                write(&files, NOW);
                let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
                std::fs::write(&files.key, key).expect("written");
            }),
        ];
        for (why, damage) in cases {
            damage();
            keeper.look(Look::IfChanged, SystemTime::now()).await;
            let troubles = certificates.troubles(SystemTime::now());
            assert_eq!(troubles.len(), 1, "{why}: {troubles:?}");
            assert!(troubles[0].contains(why), "{why}: {troubles:?}");
            assert!(troubles[0].contains("HTTP keeps its former certificate"), "{troubles:?}");
            assert!(!config.has_changed().expect("a keeper"), "{why}");
            assert_eq!(end(&certificates), former, "{why}");
        }
        write(&files, NOW);
        keeper.look(Look::IfChanged, SystemTime::now()).await;
        assert!(certificates.troubles(SystemTime::now()).is_empty());
        assert!(config.has_changed().expect("a keeper"));
    }

    #[tokio::test]
    async fn at_the_start_what_is_there_is_served_unless_it_is_unusable() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        let opening = Keeper::open(files.clone(), Certificates::default()).await;
        assert!(opening.expect_err("no file").to_string().contains("cannot read"));
        write(&files, PAST);
        let (mut keeper, certificates) = opened(&files).await;
        assert!(certificates.troubles(SystemTime::now())[0].contains("ended at 2002-01-01"));
        write(&files, FUTURE);
        keeper.look(Look::IfChanged, SystemTime::now()).await;
        assert!(certificates.troubles(SystemTime::now()).is_empty(), "the newer one counts");
    }

    #[tokio::test]
    async fn a_key_that_others_may_read_is_a_trouble() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        write(&files, NOW);
        let open: std::fs::Permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        std::fs::set_permissions(&files.key, open).expect("set");
        let (_keeper, certificates) = opened(&files).await;
        let troubles = certificates.troubles(SystemTime::now());
        assert!(troubles[0].contains("chmod 600") && troubles[0].contains("0644"), "{troubles:?}");
    }
}
