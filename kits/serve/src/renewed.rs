//! The certificate of a listener and its key, which other programs renew while it is served.
//!
//! ```text
//!   files ─► Pair ─┬─ usable ─► in service from the next handshake on
//!                  └─ not, or not valid now while the former one is ─► the former one stays
//! ```
//!
//! Programs that renew certificates replace both files one after the other and send no signal, so
//! [`RenewedPair::look`] is to be called again and again; it reads files only when they changed or
//! when they could not be used. The caller says what a listener is secured with beside the pair, and
//! tells people what came of a look.

use std::error::Error;
use std::fmt;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;

use crate::certificate::{Pair, PairError, PairFiles, Validity};

/// How long after a failure the files are read once more before it counts: the two may just be
/// replaced.
const SETTLE: Duration = Duration::from_secs(1);

/// What new connections of a listener are secured with.
pub type Secured = watch::Receiver<Arc<ServerConfig>>;

/// Makes of a pair what a listener is secured with.
pub type Secure =
    Box<dyn Fn(&Pair) -> Result<Arc<ServerConfig>, Box<dyn Error + Send + Sync>> + Send + Sync>;

/// What is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// The files, if they changed or could not be used.
    IfChanged,
    /// The files.
    Anyway,
}

/// What came of a look at the files.
#[derive(Debug)]
#[must_use = "a failure is for people"]
pub enum Looked {
    /// The files did not change since they were read, so they were not read.
    Unchanged,
    /// The files were read, and hold the pair that is in service.
    Same,
    /// Another pair is in service from now on.
    Replaced,
    /// The files cannot be used as they are, and the former pair stays in service.
    Failed(LookError),
}

/// Why the pair in the files is not put into service.
#[derive(Debug, thiserror::Error)]
pub enum LookError {
    /// A file cannot be read or used.
    #[error(transparent)]
    Pair(#[from] PairError),
    /// The certificate is not valid now, and the one in service is.
    #[error("the certificate in {} is not valid now", .0.display())]
    NotValid(PathBuf, Validity),
    /// The listener cannot be secured with the pair.
    #[error("TLS cannot be set up with them")]
    Secure(#[source] Box<dyn Error + Send + Sync>),
    /// The runtime ends.
    #[error("they could not be read in time")]
    Aborted,
}

/// The pair of a listener, kept current.
pub struct RenewedPair {
    files: PairFiles,
    secure: Secure,
    /// The files as they were when they were read last.
    stamp: Stamp,
    config: watch::Sender<Arc<ServerConfig>>,
    served: Served,
    /// Whether the files could not be used when they were looked at last.
    is_failed: bool,
}

/// The pair in service.
struct Served {
    validity: Validity,
    digest: [u8; 32],
    leaf: Option<CertificateDer<'static>>,
}

/// Tells whether files were replaced or written to.
type Stamp = [Option<(u64, u64, i64, i64, i64, i64, u64)>; 2];

// === impl RenewedPair ===

impl RenewedPair {
    /// Reads the files for the first time. A certificate that is not valid now is served: there is
    /// no better one, and the clock of a machine that just started may be wrong.
    ///
    /// # Errors
    /// The files cannot be used.
    pub async fn open(files: PairFiles, secure: Secure) -> Result<Self, LookError> {
        let (stamp, pair) = read(files.clone()).await?;
        let config = watch::Sender::new(secure(&pair).map_err(LookError::Secure)?);
        Ok(Self { files, secure, stamp, config, served: Served::of(&pair), is_failed: false })
    }

    /// What new connections are secured with. It changes when the pair does.
    #[must_use]
    pub fn config(&self) -> Secured {
        self.config.subscribe()
    }

    /// The files.
    #[must_use]
    pub fn files(&self) -> &PairFiles {
        &self.files
    }

    /// The pair is to come from these files from now on.
    pub fn use_files(&mut self, files: PairFiles) {
        self.files = files;
    }

    /// When the certificate in service is valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.served.validity
    }

    /// The certificate in service itself, without those that lead to its authority.
    #[must_use]
    pub fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.served.leaf.as_ref()
    }

    /// Puts the pair in the files into service, if it is another one and can be used.
    pub async fn look(&mut self, how: Look, now: SystemTime) -> Looked {
        let files = self.files.clone();
        let stamp = tokio::task::spawn_blocking(move || stamp(&files)).await.unwrap_or_default();
        if how == Look::IfChanged && !self.is_failed && stamp == self.stamp {
            return Looked::Unchanged;
        }
        let mut replaced = self.replace(now).await;
        if matches!(replaced, Looked::Failed(_)) && !self.is_failed {
            tokio::time::sleep(SETTLE).await;
            replaced = self.replace(now).await;
        }
        self.is_failed = matches!(replaced, Looked::Failed(_));
        replaced
    }

    async fn replace(&mut self, now: SystemTime) -> Looked {
        let (stamp, pair) = match read(self.files.clone()).await {
            Ok(read) => read,
            Err(error) => return Looked::Failed(error),
        };
        self.stamp = stamp;
        if pair.digest == self.served.digest {
            return Looked::Same;
        }
        // Of two that are not valid the newer one is what the machine's owner wants.
        if !pair.validity.holds(now) && self.served.validity.holds(now) {
            let file = self.files.certificate.clone();
            return Looked::Failed(LookError::NotValid(file, pair.validity));
        }
        match (self.secure)(&pair) {
            Ok(config) => {
                self.config.send_replace(config);
                self.served = Served::of(&pair);
                Looked::Replaced
            }
            Err(error) => Looked::Failed(LookError::Secure(error)),
        }
    }
}

impl fmt::Debug for RenewedPair {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RenewedPair").field("files", &self.files).finish_non_exhaustive()
    }
}

// === impl Served ===

impl Served {
    fn of(pair: &Pair) -> Self {
        let leaf = pair.certified.cert.first().cloned();
        Self { validity: pair.validity, digest: pair.digest, leaf }
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

#[cfg(test)]
mod tests {
    use std::fs;

    use guest_agent_testing_kit::certificate::{self as made, FUTURE, NOW, PAST, Years};
    use rustls::crypto::ring;
    use rustls::sign::SingleCertAndKey;

    use super::*;

    fn secure() -> Secure {
        Box::new(|pair| {
            let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
                .with_safe_default_protocol_versions()?
                .with_no_client_auth()
                .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.certified.clone())));
            Ok(Arc::new(config))
        })
    }

    fn files(folder: &Path) -> PairFiles {
        PairFiles { certificate: folder.join("tls.crt"), key: folder.join("tls.key") }
    }

    fn write(files: &PairFiles, years: Years) {
        made::write(&files.certificate, &files.key, years);
    }

    async fn opened(files: &PairFiles) -> RenewedPair {
        RenewedPair::open(files.clone(), secure()).await.expect("a pair")
    }

    async fn look(pair: &mut RenewedPair) -> Looked {
        pair.look(Look::IfChanged, SystemTime::now()).await
    }

    #[tokio::test]
    async fn another_pair_is_put_into_service_and_the_same_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        write(&files, NOW);
        let mut pair = opened(&files).await;
        let mut config = pair.config();
        assert!(matches!(look(&mut pair).await, Looked::Unchanged));
        let former = pair.certificate().cloned();
        write(&files, NOW);
        assert!(matches!(look(&mut pair).await, Looked::Replaced));
        assert!(config.has_changed().expect("it is kept"));
        assert_ne!(pair.certificate().cloned(), former);
        config.mark_unchanged();
        let again = pair.look(Look::Anyway, SystemTime::now()).await;
        assert!(matches!(again, Looked::Same) && !config.has_changed().expect("it is kept"));
    }

    #[tokio::test]
    async fn files_that_cannot_be_used_are_looked_at_until_they_can() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        write(&files, NOW);
        let mut pair = opened(&files).await;
        let config = pair.config();
        let damages: [&dyn Fn(); 5] = [
            &|| write(&files, PAST),
            &|| write(&files, FUTURE),
            &|| fs::write(&files.certificate, "torn").expect("written"),
            &|| fs::remove_file(&files.key).expect("removed"),
            &|| {
                write(&files, NOW);
                made::write_other_key(&files.key);
            },
        ];
        for (number, damage) in damages.into_iter().enumerate() {
            damage();
            for _ in 0..2 {
                assert!(matches!(look(&mut pair).await, Looked::Failed(_)), "{number}");
            }
            assert!(!config.has_changed().expect("it is kept"), "{number}");
        }
        write(&files, NOW);
        assert!(matches!(look(&mut pair).await, Looked::Replaced));
    }

    #[tokio::test]
    async fn a_pair_that_is_replaced_in_two_steps_is_no_failure() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        write(&files, NOW);
        let mut pair = opened(&files).await;
        let next = folder.path().join("next");
        fs::create_dir(&next).expect("a folder");
        let next = self::files(&next);
        write(&next, NOW);
        fs::rename(&next.certificate, &files.certificate).expect("replaced");
        let second = async {
            tokio::time::sleep(SETTLE / 2).await;
            fs::rename(&next.key, &files.key).expect("replaced");
        };
        let (looked, ()) = tokio::join!(look(&mut pair), second);
        assert!(matches!(looked, Looked::Replaced), "{looked:?}");
    }

    #[tokio::test]
    async fn at_the_start_a_pair_that_is_not_valid_is_served_and_a_newer_one_replaces_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        let missing = RenewedPair::open(files.clone(), secure()).await;
        assert!(matches!(missing, Err(LookError::Pair(PairError::File { .. }))));
        write(&files, PAST);
        let mut pair = opened(&files).await;
        write(&files, FUTURE);
        assert!(matches!(look(&mut pair).await, Looked::Replaced));
    }
}
