//! The certificates that the agent shows, with their ends and what is wrong with them: for the
//! metrics and the status.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use guest_agent_serve_kit::certificate::{self, Validity};

/// All certificates. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Certificates(Arc<Mutex<BTreeMap<Use, Known>>>);

/// What the agent shows a certificate for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Use {
    /// The control plane asks for one: the client certificate.
    ControlPlane,
    /// Clients of HTTP.
    Http,
}

/// What is known of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// Where it was read from.
    pub file: PathBuf,
    /// When it is valid.
    pub validity: Validity,
    /// What is wrong beside its end, a sentence each.
    pub problems: Vec<String>,
}

// === impl Use ===

impl Use {
    /// The name in metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ControlPlane => "control_plane",
            Self::Http => "http",
        }
    }

    /// Whose certificate it is, in a sentence.
    const fn owner(self) -> &'static str {
        match self {
            Self::ControlPlane => "the control plane's client certificate",
            Self::Http => "HTTP's certificate",
        }
    }
}

// === impl Certificates ===

impl Certificates {
    /// What is known of a certificate from now on.
    pub fn note(&self, of: Use, known: Known) {
        self.all().insert(of, known);
    }

    /// A certificate that is not in use any more.
    pub fn forget(&self, of: Use) {
        self.all().remove(&of);
    }

    /// When the certificates end.
    #[must_use]
    pub fn ends(&self) -> Vec<(Use, SystemTime)> {
        self.all().iter().map(|(of, known)| (*of, known.validity.until)).collect()
    }

    /// What is wrong with the certificates, a sentence each.
    #[must_use]
    pub fn troubles(&self, now: SystemTime) -> Vec<String> {
        let mut troubles = Vec::new();
        for (of, known) in &*self.all() {
            troubles.extend(known.problems.iter().cloned());
            troubles.extend(end(*of, known, now));
        }
        troubles
    }

    /// Reads a certificate again and again, so that its end is known. A file that cannot be read is
    /// reported where it is used.
    pub async fn follow(self, of: Use, file: PathBuf, pause: Duration) -> Infallible {
        loop {
            let wanted = file.clone();
            let reading = tokio::task::spawn_blocking(move || certificate::validity(&wanted));
            if let Ok(Ok(validity)) = reading.await {
                self.note(of, Known { file: file.clone(), validity, problems: Vec::new() });
            }
            tokio::time::sleep(pause).await;
        }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<Use, Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sentence about a certificate that ends soon or has ended.
fn end(of: Use, known: &Known, now: SystemTime) -> Option<String> {
    let Validity { until, .. } = known.validity;
    if known.validity.remind_at() > now {
        return None;
    }
    let ends = if until < now { "ended" } else { "ends" };
    let (owner, file) = (of.owner(), known.file.display());
    let at = shown(until);
    Some(format!(
        "{owner} ({file}) {ends} at {at}; put a new one with its key in place of the files, which the \
         agent reads by itself"
    ))
}

/// A point in time, as RFC 3339 writes it.
#[must_use]
pub fn shown(at: SystemTime) -> String {
    jiff::Timestamp::try_from(at).map(|at| at.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use guest_agent_testing_kit::certificate::{NOW, PAST};

    use super::*;
    use crate::net::pair_files;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    #[test]
    fn two_weeks_before_its_end_a_certificate_is_a_trouble() {
        let certificates = Certificates::default();
        let until = SystemTime::UNIX_EPOCH + 1000 * DAY;
        let validity = Validity { from: until - 90 * DAY, until };
        let known = Known { file: "/etc/tls.crt".into(), validity, problems: Vec::new() };
        certificates.note(Use::Http, known.clone());
        assert_eq!(certificates.ends(), [(Use::Http, until)]);
        assert!(certificates.troubles(until - 15 * DAY).is_empty());
        let soon = certificates.troubles(until - 13 * DAY);
        assert!(soon[0].contains("/etc/tls.crt) ends at 1972-09-27T00:00:00Z"), "{soon:?}");
        let over = certificates.troubles(until + DAY);
        assert!(over[0].contains("HTTP's certificate (/etc/tls.crt) ended at"), "{over:?}");
        let problems = vec!["it is odd".to_owned()];
        certificates.note(Use::ControlPlane, Known { problems, ..known });
        assert_eq!(certificates.troubles(until - 15 * DAY), ["it is odd"]);
        certificates.forget(Use::Http);
        assert_eq!(certificates.ends().len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewed_certificate_is_noticed() {
        let dir = tempfile::tempdir().expect("a directory");
        let files = pair_files::files(dir.path());
        pair_files::write(&files, PAST);
        let certificates = Certificates::default();
        let pause = Duration::from_secs(60);
        let following =
            certificates.clone().follow(Use::ControlPlane, files.certificate.clone(), pause);
        tokio::pin!(following);
        let ends = async |than: usize| {
            for _ in 0..1000 {
                if certificates.troubles(SystemTime::now()).len() == than
                    && !certificates.ends().is_empty()
                {
                    return;
                }
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            panic!("it is not noticed");
        };
        tokio::select! {
            _ = &mut following => {}
            () = ends(1) => {}
        }
        pair_files::write(&files, NOW);
        tokio::select! {
            _ = &mut following => {}
            () = ends(0) => {}
        }
        assert!(following.now_or_never().is_none());
    }
}
