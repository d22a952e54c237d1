//! The files of the machine's identity, in `<state_dir>/fleet`. Blocks.
//!
//! ```text
//!   agent.pem       private key, certificate, and what leads to its authority; for the agent alone
//!   trust.pem       the authorities of the fleet
//!   enrolled.json   where it was enrolled, and when the certificate is to be renewed
//!   next.key        the key of an enrolment whose answer did not come yet
//! ```
//!
//! Each is replaced whole and durably. `trust.pem` comes first, because a new certificate may come
//! from a new authority, and `enrolled.json` last: what it says is there is there.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, chown};
use std::path::{Path, PathBuf};

use guest_agent_proto::enrolment::Granted;
use guest_agent_serve_kit::replace::{Access, remove_if_there, replace_file};
use serde::{Deserialize, Serialize};

use super::key::Key;

/// Name of the folder, beside the file `identity`, which is about the instance.
pub const FOLDER: &str = "fleet";
const AGENT: &str = "agent.pem";
const TRUST: &str = "trust.pem";
const ENROLLED: &str = "enrolled.json";
const NEXT: &str = "next.key";

/// Where the files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    folder: PathBuf,
}

/// What is known of an enrolment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enrolled {
    /// Address of the fleet's server.
    pub server: String,
    /// Id of the agent.
    pub agent_id: String,
    /// Id of the fleet.
    pub fleet_id: String,
    /// When the certificate is to be renewed, in seconds since 1970.
    pub renew_at: u64,
    /// When it ends, in seconds since 1970.
    pub ends: u64,
}

/// Why the files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file cannot be read or written.
    #[error("cannot use {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{} cannot be used: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A key cannot be made.
    #[error("a key cannot be made")]
    Key(#[source] rcgen::Error),
    /// The server's answer is not for this machine.
    #[error("the server's answer cannot be used: {0}")]
    Answer(String),
}

// === impl Identity ===

impl Identity {
    /// The files below the agent's state directory.
    #[must_use]
    pub fn below(state_dir: &Path) -> Self {
        Self { folder: state_dir.join(FOLDER) }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file with key and certificate.
    #[must_use]
    pub fn agent(&self) -> PathBuf {
        self.folder.join(AGENT)
    }

    /// The file with the fleet's authorities.
    #[must_use]
    pub fn trust(&self) -> PathBuf {
        self.folder.join(TRUST)
    }

    /// What is known of the enrolment, if there was one.
    ///
    /// # Errors
    /// The file cannot be read, or holds something else.
    pub fn enrolled(&self) -> Result<Option<Enrolled>, IdentityError> {
        let path = self.folder.join(ENROLLED);
        match fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json)
                .map(Some)
                .map_err(|error| IdentityError::Damaged { path, problem: error.to_string() }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(IdentityError::File { path, source }),
        }
    }

    /// The key for an enrolment: that of the try before, so that a server which answered it already
    /// knows the machine again, or a new one.
    pub(super) fn key(&self) -> Result<Key, IdentityError> {
        let path = self.folder.join(NEXT);
        match fs::read_to_string(&path) {
            // A torn file was never sent to anybody.
            Ok(pem) if let Ok(key) = Key::read(&pem) => return Ok(key),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(IdentityError::File { path, source }),
        }
        let key = Key::make().map_err(IdentityError::Key)?;
        self.make_folder()?;
        self.replace(NEXT, key.pem().as_bytes())?;
        Ok(key)
    }

    /// Puts a certificate and its key in place.
    pub(super) fn put(
        &self,
        server: &str,
        key: &Key,
        granted: &Granted,
    ) -> Result<Enrolled, IdentityError> {
        check(key, granted)?;
        let enrolled = Enrolled {
            server: server.to_owned(),
            agent_id: granted.agent_id.clone(),
            fleet_id: granted.fleet_id.clone(),
            renew_at: granted.renew_at,
            ends: granted.ends,
        };
        let agent = [key.pem().as_str(), &granted.certificate, &granted.chain].concat();
        let json = serde_json::to_vec_pretty(&enrolled)
            .map_err(|error| IdentityError::Answer(error.to_string()))?;
        self.make_folder()?;
        self.replace(TRUST, granted.trust.as_bytes())?;
        self.replace(AGENT, agent.as_bytes())?;
        self.replace(ENROLLED, &json)?;
        let next = self.folder.join(NEXT);
        match remove_if_there(&next) {
            Ok(()) => Ok(enrolled),
            Err(source) => Err(IdentityError::File { path: next, source }),
        }
    }

    fn make_folder(&self) -> Result<(), IdentityError> {
        let failed = |source| IdentityError::File { path: self.folder.clone(), source };
        if self.folder.is_dir() {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder).map_err(failed)?;
        match self.owner().map_err(failed)? {
            Some((user, group)) => chown(&self.folder, Some(user), Some(group)).map_err(failed),
            None => Ok(()),
        }
    }

    fn replace(&self, name: &str, content: &[u8]) -> Result<(), IdentityError> {
        let path = self.folder.join(name);
        let replaced = self
            .owner()
            .and_then(|owner| replace_file(&path, content, Access { owner, ..Access::PRIVATE }));
        replaced.map_err(|source| IdentityError::File { path, source })
    }

    /// The agent may run as another user than root, who enrols the machine: what is in its state
    /// directory has to be its own.
    fn owner(&self) -> io::Result<Option<(u32, u32)>> {
        let Some(state_dir) = self.folder.parent() else { return Ok(None) };
        let owner = fs::metadata(state_dir)?;
        let is_another = rustix::process::geteuid().is_root() && owner.uid() != 0;
        Ok(is_another.then(|| (owner.uid(), owner.gid())))
    }
}

/// Whether the answer is a certificate for this key and the agent that it names, and somebody to
/// trust.
fn check(key: &Key, granted: &Granted) -> Result<(), IdentityError> {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    let wrong = |problem: &str| IdentityError::Answer(problem.to_owned());
    let read =
        |pem: &str| CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<Vec<_>, _>>();
    let certificates =
        read(&granted.certificate).map_err(|_| wrong("the certificate is broken"))?;
    let [certificate] = &certificates[..] else {
        return Err(wrong("there is not one certificate"));
    };
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate)
        .map_err(|_| wrong("the certificate is broken"))?;
    if !key.fits(&parsed) {
        return Err(wrong("the certificate is for another key"));
    }
    read(&granted.chain).map_err(|_| wrong("the chain is broken"))?;
    match read(&granted.trust) {
        Ok(trust) if !trust.is_empty() => {}
        _ => return Err(wrong("there is no authority to trust")),
    }
    let printable = |id: &str| !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic());
    if !printable(&granted.agent_id) || !printable(&granted.fleet_id) {
        return Err(wrong("an id is empty or not printable"));
    }
    Ok(())
}
