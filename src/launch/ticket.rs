//! The one-time secrets by which plugins are known when they call the agent.
//!
//! The launcher makes one per launch; the host socket asks whose it is. Kept by digest, so that
//! neither a comparison nor a dump of this table gives one away.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use guest_agent_actors::id::{PluginName, Sha256Digest};
use rand::TryRngCore;

/// Random bytes of a ticket.
const TICKET_BYTES: usize = 32;

/// Longest text that is looked up: hashing megabytes for a stranger is no service to anybody.
const TICKET_TEXT_MAX: usize = 256;

/// The tickets of the running plugins, one each.
#[derive(Debug, Default)]
pub(crate) struct Tickets {
    owners: HashMap<Sha256Digest, PluginName>,
}

impl Tickets {
    /// Makes a fresh ticket for a plugin; its former one is worth nothing from now on.
    ///
    /// # Errors
    /// The system has no random bytes to give.
    pub(crate) fn issue(&mut self, name: &PluginName) -> Result<String, rand::rand_core::OsError> {
        let mut bytes = [0u8; TICKET_BYTES];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes)?;
        let ticket = STANDARD_NO_PAD.encode(bytes);
        self.revoke(name);
        self.owners.insert(Sha256Digest::of(ticket.as_bytes()), name.clone());
        Ok(ticket)
    }

    /// Takes back a ticket that an earlier life of the agent made, as the plugin's process has it.
    /// A ticket that is somebody's already stays theirs.
    pub(crate) fn restore(&mut self, name: &PluginName, ticket: &[u8]) {
        if ticket.is_empty() || ticket.len() > TICKET_TEXT_MAX {
            return;
        }
        let digest = Sha256Digest::of(ticket);
        if !self.owners.contains_key(&digest) {
            self.revoke(name);
            self.owners.insert(digest, name.clone());
        }
    }

    /// Makes the plugin's ticket worthless.
    pub(crate) fn revoke(&mut self, name: &PluginName) {
        self.owners.retain(|_, owner| owner != name);
    }

    /// Whose ticket this is.
    pub(crate) fn owner(&self, ticket: &str) -> Option<PluginName> {
        if ticket.len() > TICKET_TEXT_MAX {
            return None;
        }
        self.owners.get(&Sha256Digest::of(ticket.as_bytes())).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_ticket_of_a_plugin_counts() {
        let (a, b): (PluginName, PluginName) =
            ("a".parse().expect("a name"), "b".parse().expect("a name"));
        let mut tickets = Tickets::default();
        let first = tickets.issue(&a).expect("a ticket");
        let second = tickets.issue(&a).expect("a ticket");
        assert_ne!(first, second);
        assert_eq!(tickets.owner(&first), None);
        assert_eq!(tickets.owner(&second), Some(a.clone()));
        tickets.restore(&b, second.as_bytes());
        assert_eq!(tickets.owner(&second), Some(a.clone()), "taken from its owner");
        tickets.revoke(&a);
        assert_eq!(tickets.owner(&second), None);
    }
}
