//! Which certificates of this process end, and when.

use std::path::PathBuf;

use guest_fleet::enroll::Authorities;
use guest_fleet::enroll::certificate::Facts;
use guest_fleet::enroll::ends::{End, Ends, Renewal, Source};
use tokio::sync::watch;

use super::files::read_text;

/// The certificates of this process.
#[derive(Default)]
pub(super) struct Certificates {
    sources: Vec<Source>,
}

// === impl Certificates ===

impl Certificates {
    /// Adds the fleet's authority.
    pub(super) fn authority(&mut self, authorities: Authorities) {
        self.sources.push(Box::new(move || {
            let facts = Facts::read(authorities.current().certificate()).ok()?;
            Some(end("authority", &facts, Renewal::Theirs))
        }));
    }

    /// Adds a certificate that this process makes.
    pub(super) fn made(&mut self, of: &'static str, told: watch::Receiver<Facts>) {
        self.sources.push(Box::new(move || Some(end(of, &told.borrow(), Renewal::Ours))));
    }

    /// Adds a certificate that was read at the start and is served until the end.
    pub(super) fn read(&mut self, of: &'static str, pem: &str) {
        let found = Facts::of_pem(pem).map(|facts| end(of, &facts, Renewal::Theirs));
        self.sources.push(Box::new(move || found.clone()));
    }

    /// Adds a certificate that is served as its file has it.
    pub(super) fn file(&mut self, of: &'static str, path: PathBuf) {
        self.sources.push(Box::new(move || {
            let facts = Facts::of_pem(&read_text(&path).ok()?)?;
            Some(end(of, &facts, Renewal::Theirs))
        }));
    }

    pub(super) fn ends(self) -> Ends {
        Ends::new(self.sources)
    }
}

fn end(of: &'static str, facts: &Facts, renewal: Renewal) -> End {
    End { of, begins: facts.begins, ends: facts.ends, renewal }
}
