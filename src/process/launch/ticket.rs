//! The one-time secrets by which plugins authenticate when they call the agent.
//!
//! The launcher makes a ticket for each launch; the host socket looks up its owner.
//!
//! A ticket outlives the agent: its digest, and nothing else, is in a file that only the agent may
//! read, below the runtime directory. It counts again when the plugin's process is found again, and
//! is deleted when that is known to have ended. A process that clears its own environment, or that
//! the agent may not look into, keeps its ticket that way.

use std::collections::HashMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use guest_agent_actors::model::id::{PluginName, Sha256Digest};
use guest_agent_serve_kit::replace::remove_if_there;

use crate::net::ticket;

/// The folder of the digests, below the runtime directory: a file for each plugin.
pub(crate) const FOLDER: &str = "tickets";

/// Random bytes of a ticket.
const TICKET_BYTES: usize = 32;

/// Most files that are read back.
const FILES_MAX: usize = 4096;

/// The tickets of the running plugins, one each.
#[derive(Debug)]
pub(crate) struct Tickets {
    folder: PathBuf,
    owners: HashMap<Sha256Digest, PluginName>,
    /// Tickets of an earlier agent process whose processes were not found yet.
    left: HashMap<Sha256Digest, PluginName>,
}

/// The owner of a ticket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// This plugin.
    Plugin(PluginName),
    /// This plugin, if its process is found again.
    ComingBack(PluginName),
    /// The ticket is unknown or revoked.
    Nobody,
}

impl Tickets {
    /// The tickets that an earlier agent process recorded in a folder, which may be missing.
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        let entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
        let left = entries.take(FILES_MAX).filter_map(|entry| {
            let name = entry.file_name().to_str()?.parse().ok()?;
            let mut text = String::new();
            let file = std::fs::File::open(entry.path()).ok()?;
            file.take(128).read_to_string(&mut text).ok()?;
            Some((text.trim().parse().ok()?, name))
        });
        let left = left.collect();
        Self { folder, owners: HashMap::new(), left }
    }

    /// Makes a fresh ticket for a plugin; its former one is worth nothing from now on.
    ///
    /// # Errors
    /// The system has no random bytes to give.
    pub(crate) fn issue(&mut self, name: &PluginName) -> Result<String, rand::rand_core::OsError> {
        let ticket::Fresh { text, digest } = ticket::Fresh::new::<TICKET_BYTES>()?;
        self.forget(name);
        if let Err(error) = self.write(name, &digest) {
            let folder = self.folder.display();
            tracing::warn!(
                plugin = %name, %folder, %error,
                "a ticket cannot be recorded; the plugin may have to be restarted to call the agent \
                 after the agent's next start"
            );
        }
        self.owners.insert(digest, name.clone());
        Ok(text)
    }

    /// The plugin's process of an earlier agent process was found; this is the ticket in its
    /// environment. A recorded ticket has precedence, and a ticket of another plugin stays with
    /// that plugin.
    pub(crate) fn restore(&mut self, name: &PluginName, ticket: Option<&[u8]>) {
        let recorded =
            self.left.iter().find(|(_, owner)| *owner == name).map(|(digest, _)| *digest);
        let carried = ticket.and_then(ticket::digest);
        let Some(digest) = recorded.or(carried) else { return };
        if !self.owners.contains_key(&digest) {
            self.forget(name);
            self.owners.insert(digest, name.clone());
        }
    }

    /// Makes the plugin's ticket invalid.
    pub(crate) fn revoke(&mut self, name: &PluginName) {
        self.forget(name);
        if let Err(error) = remove_if_there(&self.folder.join(name.as_str())) {
            tracing::warn!(plugin = %name, %error, "the digest of an expired ticket remains");
        }
        // The folder goes with the last file; it is made again when the next ticket needs it.
        drop(std::fs::remove_dir(&self.folder));
    }

    /// The owner of this ticket.
    pub(crate) fn owner(&self, ticket: &str) -> Owner {
        let Some(digest) = ticket::digest(ticket.as_bytes()) else { return Owner::Nobody };
        match (self.owners.get(&digest), self.left.get(&digest)) {
            (Some(name), _) => Owner::Plugin(name.clone()),
            (None, Some(name)) => Owner::ComingBack(name.clone()),
            (None, None) => Owner::Nobody,
        }
    }

    fn forget(&mut self, name: &PluginName) {
        self.owners.retain(|_, owner| owner != name);
        self.left.retain(|_, owner| owner != name);
    }

    /// Not synced: when the machine goes down, so does every process with a ticket.
    fn write(&self, name: &PluginName, digest: &Sha256Digest) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let path = self.folder.join(name.as_str());
        // A file whose name no plugin can have is never read.
        let fresh = self.folder.join(format!(".{name}"));
        let mut options = OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        writeln!(file, "{digest}")?;
        std::fs::rename(&fresh, &path)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names() -> (PluginName, PluginName) {
        ("a".parse().expect("a name"), "b".parse().expect("a name"))
    }

    #[test]
    fn only_the_newest_ticket_of_a_plugin_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = names();
        let mut tickets = Tickets::in_folder(folder.path().join("tickets"));
        let first = tickets.issue(&a).expect("a ticket");
        let second = tickets.issue(&a).expect("a ticket");
        assert_ne!(first, second);
        assert_eq!(tickets.owner(&first), Owner::Nobody);
        assert_eq!(tickets.owner(&second), Owner::Plugin(a.clone()));
        tickets.restore(&b, Some(second.as_bytes()));
        assert_eq!(tickets.owner(&second), Owner::Plugin(a.clone()), "taken from its owner");
        tickets.revoke(&a);
        assert_eq!(tickets.owner(&second), Owner::Nobody);
        assert!(!folder.path().join("tickets").exists(), "something is left");
    }

    #[test]
    fn a_ticket_comes_back_with_its_process_and_only_its_digest_is_on_the_disk() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().join("tickets");
        let (a, b) = names();
        let mut tickets = Tickets::in_folder(at.clone());
        let ticket = tickets.issue(&a).expect("a ticket");
        let gone = tickets.issue(&b).expect("a ticket");
        let file = std::fs::read_to_string(at.join("a")).expect("a file");
        assert!(!file.contains(&ticket));
        let mode = |path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!((mode(at.clone()), mode(at.join("a"))), (0o700, 0o600));

        let mut next = Tickets::in_folder(at.clone());
        assert_eq!(next.owner(&ticket), Owner::ComingBack(a.clone()));
        // The variable in the environment of the process does not count where the agent has a
        // record.
        next.restore(&a, Some(b"other"));
        assert_eq!(next.owner(&ticket), Owner::Plugin(a));
        assert_eq!(next.owner("other"), Owner::Nobody);
        assert_eq!(next.owner(&gone), Owner::ComingBack(b.clone()));
        next.issue(&b).expect("another ticket");
        assert_eq!(next.owner(&gone), Owner::Nobody);
    }

    #[test]
    fn nonsense_in_the_folder_is_nobodys_ticket() {
        let folder = tempfile::tempdir().expect("a folder");
        let digest = Sha256Digest::of(b"x").to_string();
        for (name, text) in [(".hidden", digest.as_str()), ("a", "zz"), ("b", "")] {
            std::fs::write(folder.path().join(name), text).expect("written");
        }
        std::fs::create_dir(folder.path().join("c")).expect("made");
        let tickets = Tickets::in_folder(folder.path().to_owned());
        assert_eq!(tickets.owner("x"), Owner::Nobody);
    }
}
