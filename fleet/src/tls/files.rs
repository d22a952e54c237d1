//! The certificate and the key of a listener in files, which other programs renew while it is served.
//!
//! ```text
//!   files ─► pair ─┬─ usable ─► in service from the next handshake on
//!                  └─ not ────► the former one stays, and the trouble says why
//! ```
//!
//! Programs that renew certificates replace both files one after the other and send no signal, so
//! the files are looked at again and again.

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::OFlags;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, ServerConfig};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::{Clients, Secured, TlsError, ring, server_config};
use crate::chain::Chain;
use crate::enroll::certificate::Facts;

/// How often the files are looked at.
pub const LOOK: Duration = Duration::from_secs(10);
/// Largest file that is read, in bytes.
const MAX_PEM: u64 = 1 << 20;

/// The files of a certificate and of its key, PEM. They may be one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairFiles {
    /// The certificate, with those that lead to its authority.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// What a listener serves a pair for.
#[derive(Clone, Debug)]
pub struct Purpose {
    /// The listener, as the log and a label of metrics call it, such as `gateway`.
    pub of: &'static str,
    /// Which clients it lets in.
    pub clients: Clients,
    /// The protocols that it offers.
    pub protocols: &'static [&'static [u8]],
}

/// A pair that is kept current; clones are the same.
#[derive(Clone, Debug)]
pub struct Pair {
    /// What new connections are secured with. It changes when the pair does.
    pub secured: Secured,
    /// What the certificate in service says; `None` where that cannot be read.
    pub facts: watch::Receiver<Option<Facts>>,
    /// Why the files cannot be used as they are, for people.
    pub trouble: watch::Receiver<Option<String>>,
}

/// Why a certificate or its key cannot be used.
#[derive(Debug, Error)]
pub enum PairError {
    /// A file cannot be read.
    #[error("failed to read `{}`", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file has no certificate.
    #[error("`{}` holds no certificate in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// The file has no key.
    #[error("`{}` holds no private key in PEM, or one that is encrypted", .0.display())]
    NoKey(PathBuf),
    /// The two do not belong together.
    #[error("the key in `{}` does not belong to the certificate in `{}`", key.display(), certificate.display())]
    Mismatch {
        /// File of the certificate.
        certificate: PathBuf,
        /// File of the key.
        key: PathBuf,
    },
    /// The content of a file cannot be used.
    #[error("the content of `{}` cannot be used", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// The listener cannot be secured with what they hold.
    #[error("the listener cannot be secured")]
    Tls(#[from] TlsError),
}

/// Keeps a pair current.
#[derive(Debug)]
struct Keeper {
    files: PairFiles,
    purpose: Purpose,
    stamp: Stamp,
    config: watch::Sender<Arc<ServerConfig>>,
    facts: watch::Sender<Option<Facts>>,
    trouble: watch::Sender<Option<String>>,
}

/// Tells whether files were replaced or written to.
type Stamp = [Option<(u64, u64, i64, i64, i64, i64, u64)>; 2];

// === impl Pair ===

impl Pair {
    /// Reads the files, and keeps what they hold current until `shutdown`.
    ///
    /// # Errors
    /// They cannot be used.
    pub async fn follow(
        files: PairFiles,
        purpose: Purpose,
        every: Duration,
        shutdown: CancellationToken,
    ) -> Result<Self, PairError> {
        let path = files.certificate.clone();
        let opened = tokio::task::spawn_blocking(move || Keeper::open(files, purpose)).await;
        let aborted = |error| PairError::Unusable { path, source: Box::new(error) };
        let keeper = opened.map_err(aborted)??;
        let pair = keeper.pair();
        tokio::spawn(keeper.keep(every, shutdown));
        Ok(pair)
    }
}

// === impl Keeper ===

impl Keeper {
    /// Reads the files for the first time. Blocks.
    fn open(files: PairFiles, purpose: Purpose) -> Result<Self, PairError> {
        let (stamp, (config, facts)) = (stamp(&files), read(&files, &purpose)?);
        if is_open_to_others(&files.key) {
            let key = files.key.display();
            tracing::warn!("other users may use the key in `{key}`; run `chmod 600 {key}`");
        }
        let (config, facts) = (watch::Sender::new(config), watch::Sender::new(facts));
        Ok(Self { files, purpose, stamp, config, facts, trouble: watch::Sender::new(None) })
    }

    fn pair(&self) -> Pair {
        Pair {
            secured: self.config.subscribe(),
            facts: self.facts.subscribe(),
            trouble: self.trouble.subscribe(),
        }
    }

    async fn keep(mut self, every: Duration, shutdown: CancellationToken) {
        let mut beat = tokio::time::interval(every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if shutdown.run_until_cancelled(beat.tick()).await.is_none() {
                return;
            }
            let looking = tokio::task::spawn_blocking(move || {
                self.look();
                self
            });
            match looking.await {
                Ok(looked) => self = looked,
                // The runtime ends.
                Err(_) => return,
            }
        }
    }

    /// Puts the pair in the files into service, if the files changed and can be used. They are
    /// read again and again while they cannot. Blocks.
    fn look(&mut self) {
        let stamp = stamp(&self.files);
        if stamp == self.stamp && self.trouble.borrow().is_none() {
            return;
        }
        // Taken before the files are read, so that a change meanwhile is seen the next time.
        self.stamp = stamp;
        let of = self.purpose.of;
        let trouble = match read(&self.files, &self.purpose) {
            Ok((config, facts)) => {
                let certificate = self.files.certificate.display();
                tracing::info!(of, %certificate, "a listener has a new certificate");
                self.config.send_replace(config);
                self.facts.send_replace(facts);
                None
            }
            Err(error) => Some(format!(
                "the {of} listener keeps its former certificate: {}; put a certificate and its key \
                 there, which are read without a signal",
                Chain(&error)
            )),
        };
        self.trouble.send_if_modified(|former| {
            let is_new = *former != trouble;
            if let Some(trouble) = trouble.as_ref().filter(|_| is_new) {
                tracing::warn!("{trouble}");
            }
            *former = trouble;
            is_new
        });
    }
}

fn read(
    files: &PairFiles,
    purpose: &Purpose,
) -> Result<(Arc<ServerConfig>, Option<Facts>), PairError> {
    let PairFiles { certificate, key } = files;
    let unusable = |path: &Path, source: Box<dyn Error + Send + Sync>| PairError::Unusable {
        path: path.to_owned(),
        source,
    };
    let chain: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(&read_pem(certificate)?).collect();
    let chain = chain.map_err(|error| unusable(certificate, error.into()))?;
    let Some(first) = chain.first() else {
        return Err(PairError::NoCertificate(certificate.clone()));
    };
    let facts = Facts::read(first).ok();
    let private = PrivateKeyDer::from_pem_slice(&read_pem(key)?);
    let private = private.map_err(|_| PairError::NoKey(key.clone()))?;
    let signing = ring::sign::any_supported_type(&private);
    let certified = CertifiedKey::new(chain, signing.map_err(|error| unusable(key, error.into()))?);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {}
        Err(rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) => {
            let (certificate, key) = (certificate.clone(), key.clone());
            return Err(PairError::Mismatch { certificate, key });
        }
        Err(error) => return Err(unusable(certificate, error.into())),
    }
    let config = server_config(certified, purpose.clients.clone(), purpose.protocols)?;
    Ok((config, facts))
}

fn read_pem(path: &Path) -> Result<Vec<u8>, PairError> {
    let read = || {
        let mut bytes = Vec::new();
        // A pipe without a writer would hold on to the thread.
        let flags = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().read(true).custom_flags(flags).open(path)?;
        file.take(MAX_PEM).read_to_end(&mut bytes)?;
        io::Result::Ok(bytes)
    };
    read().map_err(|source| PairError::File { path: path.to_owned(), source })
}

fn stamp(files: &PairFiles) -> Stamp {
    [&files.certificate, &files.key].map(|path| {
        let it = fs::metadata(path).ok()?;
        let (modified, changed) = ((it.mtime(), it.mtime_nsec()), (it.ctime(), it.ctime_nsec()));
        Some((it.dev(), it.ino(), modified.0, modified.1, changed.0, changed.1, it.size()))
    })
}

fn is_open_to_others(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|metadata| metadata.mode() & 0o026 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PURPOSE: Purpose = Purpose { of: "gateway", clients: Clients::Any, protocols: &[b"h2"] };

    /// Writes a self-signed certificate of this machine, and its key.
    fn write(files: &PairFiles) {
        let key = rcgen::KeyPair::generate().expect("a key");
        let params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("names");
        let certificate = params.self_signed(&key).expect("a certificate");
        fs::write(&files.certificate, certificate.pem()).expect("written");
        fs::write(&files.key, key.serialize_pem()).expect("written");
    }

    fn files(folder: &Path) -> PairFiles {
        PairFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") }
    }

    #[test]
    fn a_replaced_pair_is_put_into_service() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        write(&files);
        let mut keeper = Keeper::open(files.clone(), PURPOSE).expect("a pair");
        let config = keeper.pair().secured;
        keeper.look();
        assert!(!config.has_changed().expect("a keeper"), "nothing was replaced");
        write(&files);
        let former = keeper.pair().facts.borrow().clone().expect("a certificate");
        keeper.look();
        assert!(config.has_changed().expect("a keeper"));
        let serial = keeper.pair().facts.borrow().as_ref().map(|facts| facts.serial.clone());
        assert_ne!(
            serial,
            Some(former.serial),
            "the facts are those of the certificate that is served"
        );
        assert_eq!(*keeper.trouble.borrow(), None);
    }

    #[test]
    fn what_cannot_be_used_leaves_the_former_pair_in_service_and_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        assert!(matches!(Keeper::open(files.clone(), PURPOSE), Err(PairError::File { .. })));
        write(&files);
        let mut keeper = Keeper::open(files.clone(), PURPOSE).expect("a pair");
        let Pair { secured: mut config, trouble, .. } = keeper.pair();
        let cases: [(&str, &dyn Fn()); 4] = [
            ("holds no certificate", &|| fs::write(&files.certificate, "torn").expect("written")),
            ("failed to read", &|| {
                write(&files);
                fs::remove_file(&files.key).expect("removed");
            }),
            ("holds no private key", &|| {
                write(&files);
                fs::write(&files.key, "torn").expect("written");
            }),
            ("does not belong", &|| {
                write(&files);
                let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
                fs::write(&files.key, key).expect("written");
            }),
        ];
        for (why, damage) in cases {
            damage();
            keeper.look();
            let trouble = trouble.borrow().clone().unwrap_or_default();
            assert!(trouble.contains(why), "{why}: {trouble}");
            assert!(!config.has_changed().expect("a keeper"), "{why}");
        }
        write(&files);
        keeper.look();
        assert_eq!(*keeper.trouble.borrow(), None);
        assert!(config.has_changed().expect("a keeper"));
        config.mark_unchanged();
    }
}
