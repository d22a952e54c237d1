//! The TLS of a listener: its certificate and key, which other programs renew while it is served.
//!
//! ```text
//!   files ─► Pair ─┬─ usable ─► in service from the next handshake on
//!                  └─ not, or not valid now while the former one is ─► the former one stays, and a
//!                     problem is in [`Certificates`]
//! ```
//!
//! Programs that renew certificates replace both files one after the other and send no signal, so
//! [`Keeper::look`] is to be called again and again; it reads files only when they changed or when
//! they could not be used.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use guest_agent_actors::error::Chain;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::sign::SingleCertAndKey;
use tokio::sync::watch;
use tracing::{info, warn};

use super::certificate::{self, Pair, PairError, PairFiles, Validity};
use super::certificates::{Certificates, Known, Use, shown};

/// What HTTP/1.1 is called in a handshake.
const ALPN: &[u8] = b"http/1.1";

/// How long after a failure the files are read once more before it is reported: the two may just be
/// replaced.
const SETTLE: Duration = Duration::from_secs(1);

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// The files, if they changed or could not be used.
    IfChanged,
    /// The files.
    Anyway,
}

/// Keeps the pair of a listener current.
#[derive(Debug)]
pub(crate) struct Keeper {
    files: PairFiles,
    /// The files as they were when they were read last.
    stamp: Stamp,
    config: watch::Sender<Arc<ServerConfig>>,
    /// Of the pair in service.
    validity: Validity,
    digest: [u8; 32],
    /// Why the files cannot be used as they are.
    failure: Option<String>,
    certificates: Certificates,
}

/// Tells whether files were replaced or written to.
type Stamp = [Option<(u64, u64, i64, i64, i64, i64, u64)>; 2];

/// Why the files are not put into service.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error("the certificate in {file} is valid from {from} to {until}")]
    NotValid { file: String, from: String, until: String },
    #[error("TLS cannot be set up with them")]
    Setup(#[from] rustls::Error),
    #[error("they could not be read in time")]
    Aborted,
}

// === impl Keeper ===

impl Keeper {
    /// Reads the files for the first time. A certificate that is not valid now is served: there is
    /// no better one, and the clock of a machine that just started may be wrong.
    ///
    /// # Errors
    /// The files cannot be used.
    pub(crate) async fn open(
        files: PairFiles,
        certificates: Certificates,
    ) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        let (stamp, pair) = read(files.clone()).await?;
        let Pair { validity, digest, .. } = pair;
        let config = watch::Sender::new(server_config(pair)?);
        let keeper = Self { files, stamp, config, validity, digest, failure: None, certificates };
        keeper.note().await;
        Ok(keeper)
    }

    /// What new connections are secured with. It changes when the pair does.
    pub(crate) fn config(&self) -> watch::Receiver<Arc<ServerConfig>> {
        self.config.subscribe()
    }

    /// The pair is to come from these files from now on.
    pub(crate) fn use_files(&mut self, files: PairFiles) {
        self.files = files;
    }

    /// Puts the pair in the files into service, if it is another one and can be used.
    pub(crate) async fn look(&mut self, how: Look, now: SystemTime) {
        let files = self.files.clone();
        let stamp = tokio::task::spawn_blocking(move || stamp(&files)).await.unwrap_or_default();
        if how == Look::IfChanged && self.failure.is_none() && stamp == self.stamp {
            return;
        }
        let mut replaced = self.replace(now).await;
        if replaced.is_err() && self.failure.is_none() {
            tokio::time::sleep(SETTLE).await;
            replaced = self.replace(now).await;
        }
        let failure = replaced.err().map(|error| {
            let PairFiles { certificate, key } = &self.files;
            format!(
                "HTTP keeps its former certificate, because {} (api.http_tls_cert) and {} \
                 (api.http_tls_key) cannot be used: {}; put a certificate and its key there, which \
                 the agent reads by itself",
                certificate.display(),
                key.display(),
                Chain(&error)
            )
        });
        if let Some(failure) = &failure
            && self.failure.as_ref() != Some(failure)
        {
            warn!("{failure}");
        }
        self.failure = failure;
        self.note().await;
    }

    async fn replace(&mut self, now: SystemTime) -> Result<(), LookError> {
        let (stamp, pair) = read(self.files.clone()).await?;
        self.stamp = stamp;
        if pair.digest == self.digest {
            return Ok(());
        }
        let Pair { validity, digest, .. } = pair;
        // Of two that are not valid the newer one is what the machine's owner wants.
        if !validity.holds(now) && self.validity.holds(now) {
            return Err(LookError::NotValid {
                file: self.files.certificate.display().to_string(),
                from: shown(validity.from),
                until: shown(validity.until),
            });
        }
        self.config.send_replace(server_config(pair)?);
        (self.validity, self.digest) = (validity, digest);
        let certificate = self.files.certificate.display();
        info!(%certificate, valid_until = shown(validity.until), "HTTP has a new certificate");
        Ok(())
    }

    async fn note(&self) {
        let mut problems: Vec<String> = self.failure.clone().into_iter().collect();
        let key = self.files.key.clone();
        let open = tokio::task::spawn_blocking(move || certificate::open_to_others(&key)).await;
        if let Ok(Some(mode)) = open {
            let key = self.files.key.display();
            problems.push(format!(
                "other users may use {key} (api.http_tls_key), whose mode is {mode:04o}; `chmod 600 \
                 {key}`, and get another certificate if another user may have read the key"
            ));
        }
        let (file, validity) = (self.files.certificate.clone(), self.validity);
        self.certificates.note(Use::Http, Known { file, validity, problems });
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.certificates.forget(Use::Http);
    }
}

/// The pair, and the files before it was read: a change meanwhile is seen the next time.
async fn read(files: PairFiles) -> Result<(Stamp, Pair), LookError> {
    let reading = tokio::task::spawn_blocking(move || (stamp(&files), Pair::read(&files)));
    let (stamp, pair) = reading.await.map_err(|_| LookError::Aborted)?;
    Ok((stamp, pair?))
}

fn stamp(files: &PairFiles) -> Stamp {
    let of = |path: &Path| {
        let it: Metadata = std::fs::metadata(path).ok()?;
        let (modified, changed) = ((it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec()));
        Some((it.dev(), it.ino(), modified.0, modified.1, changed.0, changed.1, it.size()))
    };
    [of(&files.certificate), of(&files.key)]
}

fn server_config(pair: Pair) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified)));
    config.alpn_protocols = vec![ALPN.to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::certificate::tests::{FUTURE, NOW, PAST, files, write};
    use super::*;

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

    #[tokio::test(start_paused = true)]
    async fn a_pair_that_is_replaced_in_two_steps_is_no_trouble() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = files(dir.path());
        write(&files, NOW);
        let (mut keeper, certificates) = opened(&files).await;
        let config = keeper.config();
        let next = super::certificate::tests::files(&{
            let next = dir.path().join("next");
            std::fs::create_dir(&next).expect("a directory");
            next
        });
        write(&next, NOW);
        std::fs::rename(&next.certificate, &files.certificate).expect("replaced");
        let second = async {
            tokio::time::sleep(SETTLE / 2).await;
            std::fs::rename(&next.key, &files.key).expect("replaced");
        };
        let watched = certificates.clone();
        tokio::join!(keeper.look(Look::IfChanged, SystemTime::now()), second);
        assert!(watched.troubles(SystemTime::now()).is_empty());
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
