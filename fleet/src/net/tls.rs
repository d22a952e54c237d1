//! The certificate and the key of a listener in files, which other programs renew while it is served.
//!
//! A [`RenewedPair`] keeps them current. The keeper here writes the result of each look to the log
//! and to the channels of a [`Pair`].

use std::time::{Duration, SystemTime};

use guest_agent_serve_kit::certificate::Facts;
use guest_agent_serve_kit::certificate::{Pair as Read, open_to_others};
use guest_agent_serve_kit::renewed::{Look, Looked, RenewedPair, Secured};
use guest_agent_serve_kit::tls::{Clients, server_config};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::chain::Chain;

pub use guest_agent_serve_kit::certificate::{PairError, PairFiles};
pub use guest_agent_serve_kit::renewed::LookError;

/// How often the files are looked at.
pub const LOOK: Duration = Duration::from_secs(10);

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

/// Keeps a pair current.
#[derive(Debug)]
struct Keeper {
    of: &'static str,
    pair: RenewedPair,
    facts: watch::Sender<Option<Facts>>,
    trouble: watch::Sender<Option<String>>,
}

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
    ) -> Result<Self, LookError> {
        let keeper = Keeper::open(files, purpose).await?;
        let pair = keeper.pair();
        tokio::spawn(keeper.keep(every, shutdown));
        Ok(pair)
    }
}

// === impl Keeper ===

impl Keeper {
    /// Reads the files for the first time.
    async fn open(files: PairFiles, purpose: Purpose) -> Result<Self, LookError> {
        let Purpose { of, clients, protocols } = purpose;
        let secure = move |pair: &Read| {
            let certified = (*pair.certified).clone();
            Ok(server_config(certified, clients.clone(), protocols)?)
        };
        let key = files.key.clone();
        let pair = RenewedPair::open(files, Box::new(secure)).await?;
        let open = tokio::task::spawn_blocking(move || (open_to_others(&key), key)).await;
        if let Ok((Some(_), key)) = open {
            let key = key.display();
            tracing::warn!("other users may use the key in `{key}`; run `chmod 600 {key}`");
        }
        let facts = watch::Sender::new(facts(&pair));
        Ok(Self { of, pair, facts, trouble: watch::Sender::new(None) })
    }

    fn pair(&self) -> Pair {
        Pair {
            secured: self.pair.config(),
            facts: self.facts.subscribe(),
            trouble: self.trouble.subscribe(),
        }
    }

    async fn keep(mut self, every: Duration, shutdown: CancellationToken) {
        let mut beat = tokio::time::interval(every);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let keeping = async {
            loop {
                beat.tick().await;
                self.look().await;
            }
        };
        shutdown.run_until_cancelled(keeping).await;
    }

    /// Puts the pair in the files into service, if the files changed and can be used.
    async fn look(&mut self) {
        let of = self.of;
        let trouble = match self.pair.look(Look::IfChanged, SystemTime::now()).await {
            Looked::Unchanged => return,
            Looked::Same => None,
            Looked::Replaced => {
                let certificate = self.pair.files().certificate.display();
                tracing::info!(of, %certificate, "a listener has a new certificate");
                self.facts.send_replace(facts(&self.pair));
                None
            }
            Looked::Failed(error) => Some(format!(
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

/// The facts of the certificate in service.
fn facts(pair: &RenewedPair) -> Option<Facts> {
    Facts::read(pair.certificate()?).ok()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use guest_agent_testing_kit::certificate as made;

    use super::*;

    const PURPOSE: Purpose = Purpose { of: "gateway", clients: Clients::Any, protocols: &[b"h2"] };

    /// Writes a self-signed certificate of this machine, and its key.
    fn write(files: &PairFiles) {
        made::write(&files.certificate, &files.key, made::NOW);
    }

    fn files(folder: &Path) -> PairFiles {
        PairFiles { certificate: folder.join("cert.pem"), key: folder.join("key.pem") }
    }

    #[tokio::test]
    async fn a_replaced_pair_is_put_into_service() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        write(&files);
        let mut keeper = Keeper::open(files.clone(), PURPOSE).await.expect("a pair");
        let config = keeper.pair().secured;
        keeper.look().await;
        assert!(!config.has_changed().expect("a keeper"), "nothing was replaced");
        write(&files);
        let former = keeper.pair().facts.borrow().clone().expect("a certificate");
        keeper.look().await;
        assert!(config.has_changed().expect("a keeper"));
        let serial = keeper.pair().facts.borrow().as_ref().map(|facts| facts.serial.clone());
        assert_ne!(
            serial,
            Some(former.serial),
            "the facts are those of the certificate that is served"
        );
        assert_eq!(*keeper.trouble.borrow(), None);
    }

    #[tokio::test]
    async fn what_cannot_be_used_leaves_the_former_pair_in_service_and_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let files = files(folder.path());
        let missing = Keeper::open(files.clone(), PURPOSE).await;
        assert!(matches!(missing, Err(LookError::Pair(PairError::File { .. }))));
        write(&files);
        let mut keeper = Keeper::open(files.clone(), PURPOSE).await.expect("a pair");
        let Pair { secured: mut config, trouble, .. } = keeper.pair();
        let cases: [(&str, &dyn Fn()); 4] = [
            ("holds no certificate", &|| fs::write(&files.certificate, "torn").expect("written")),
            ("cannot read", &|| {
                write(&files);
                fs::remove_file(&files.key).expect("removed");
            }),
            ("holds no private key", &|| {
                write(&files);
                fs::write(&files.key, "torn").expect("written");
            }),
            ("does not belong", &|| {
                write(&files);
                made::write_other_key(&files.key);
            }),
        ];
        for (why, damage) in cases {
            damage();
            keeper.look().await;
            let trouble = trouble.borrow().clone().unwrap_or_default();
            assert!(trouble.contains(why), "{why}: {trouble}");
            assert!(!config.has_changed().expect("a keeper"), "{why}");
        }
        write(&files);
        keeper.look().await;
        assert_eq!(*keeper.trouble.borrow(), None);
        assert!(config.has_changed().expect("a keeper"));
        config.mark_unchanged();
    }
}
