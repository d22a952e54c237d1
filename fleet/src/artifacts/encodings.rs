//! Artifacts in other forms: compressed, and as what changed since a former one.
//!
//! ```text
//!   releases ─┐                       ┌─► plan ─► make ─► check ─► <root>/encoded/<name>
//!   uploads ──┴─► worker (a thread) ──┤                                   │
//!                                     └─► sweep                           ▼
//!   GET: Accept-Encoding, Available-Dictionary ─► negotiation ─► index ─► listener
//! ```
//!
//! The forms are content codings: `zstd` (RFC 8878, with the window of RFC 9659) and `dcz` (RFC
//! 9842), whose dictionary is an artifact that the client has. They are made once, when a release
//! names an artifact, by one thread of low priority, and kept beside the artifacts; until then
//! clients get the artifact as it is. They can be deleted at any time. A store that is a bucket has
//! none: its addresses are signed for the bytes as they are.

mod files;
mod make;
mod negotiation;
mod plan;
mod shared;
mod worker;

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use http::HeaderMap;

use super::digest::Digest;
use super::named::Named;
use super::store::{Bounds, DirectoryStore, StoreError};
use crate::lock::lock;
use crate::observe::figures::Figures;
use files::Files;
use shared::Shared;

pub(in crate::artifacts) use files::Encoded;
pub(in crate::artifacts) use plan::DICTIONARY_MAX;
pub use shared::EncodingLimits;

/// The forms of the artifacts in a directory. When it is dropped, the thread that makes them ends.
#[derive(Debug)]
pub struct Encodings {
    shared: Arc<Shared>,
}

// === impl Encodings ===

impl Encodings {
    /// Opens the forms of the artifacts in this directory, and starts the thread that makes them.
    /// Blocks.
    ///
    /// # Errors
    /// The directory cannot be used, or no thread can be started.
    pub fn open(
        root: &Path,
        limits: EncodingLimits,
        figures: Arc<Figures>,
    ) -> Result<Arc<Self>, StoreError> {
        let doing = || format!("keep forms of artifacts in `{}`", root.display());
        let store = DirectoryStore::open(root, Bounds::default())?;
        let files = Files::open(root).map_err(|error| StoreError::new(doing(), error))?;
        let index = files.index().map_err(|error| StoreError::new(doing(), error))?;
        figures.encoded(index.bytes());
        let shared = Arc::new(Shared {
            store,
            files,
            limits,
            figures,
            index: Mutex::new(Arc::new(index)),
            wanted: Mutex::default(),
            changed: Condvar::new(),
            ending: AtomicBool::new(false),
        });
        let work = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("encodings".to_owned())
            .spawn(move || worker::run(&work))
            .map_err(|error| StoreError::new(doing(), error))?;
        Ok(Arc::new(Self { shared }))
    }

    /// These are the artifacts of releases now.
    pub fn release(&self, named: Arc<Named>) {
        self.shared.tell(|wanted| wanted.named = Some(named));
    }

    /// An artifact came.
    pub(in crate::artifacts) fn look(&self) {
        self.shared.tell(|_| {});
    }

    /// The form of an artifact that a request asks for; `None` where that is the artifact itself.
    pub(in crate::artifacts) fn choose(
        &self,
        digest: &Digest,
        headers: &HeaderMap,
    ) -> Option<Encoded> {
        let index = lock(&self.shared.index).clone();
        negotiation::Accepted::read(headers).choose(|form| index.find(*digest, form).copied())
    }

    /// The file of a form; `None` where it was deleted meanwhile.
    pub(in crate::artifacts) fn file(&self, encoded: &Encoded) -> io::Result<Option<File>> {
        self.shared.files.read(encoded)
    }

    /// Where bytes that are sent are counted.
    pub(in crate::artifacts) fn figures(&self) -> &Arc<Figures> {
        &self.shared.figures
    }
}

impl Drop for Encodings {
    fn drop(&mut self) {
        self.shared.ending.store(true, Ordering::Relaxed);
        self.shared.tell(|_| {});
    }
}
