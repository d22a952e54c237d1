//! The attributes of this machine that plugins' rules refer to: implements the port `Facts`.
//!
//! The agent reads the keys of os-release once, when it starts. Attributes of the instance and
//! custom attributes come from the metadata server; the task that reads it passes them to
//! [`LocalFacts::set_instance`] and [`LocalFacts::set_metadata`]. Until then, rules that refer to
//! them cannot be decided. The watch channel sends plugins a change only if an attribute differs.

use std::path::Path;
use std::sync::Arc;

use guest_agent_actors::model::facts::{Attributes, FactSet};
use guest_agent_actors::ports::Facts;
use tokio::sync::watch;

use crate::hostinfo;

/// Why a scope has no attributes before the metadata server has answered.
const NOT_ASKED: &str = "the metadata server has not answered";

/// The facts about this machine.
#[derive(Debug)]
pub struct LocalFacts(watch::Sender<Arc<FactSet>>);

// === impl LocalFacts ===

impl LocalFacts {
    /// Reads os-release.
    #[must_use]
    pub fn read() -> Self {
        Self::read_below(Path::new("/"))
    }

    fn read_below(root: &Path) -> Self {
        let os = match hostinfo::release_fields(root) {
            Ok(fields) => Attributes::texts(fields),
            Err(error) => Attributes::Unavailable(format!("os-release: {error}").into()),
        };
        let unasked = || Attributes::Unavailable(NOT_ASKED.into());
        let facts = FactSet { os, instance: unasked(), metadata: unasked() };
        Self(watch::Sender::new(Arc::new(facts)))
    }

    /// Replaces the attributes of the instance, by their path below `v1/instance/`.
    pub fn set_instance(&self, attributes: Attributes) {
        self.change(|facts| &mut facts.instance, attributes);
    }

    /// Replaces the custom attributes.
    pub fn set_metadata(&self, attributes: Attributes) {
        self.change(|facts| &mut facts.metadata, attributes);
    }

    fn change(&self, scope: fn(&mut FactSet) -> &mut Attributes, attributes: Attributes) {
        self.0.send_if_modified(|facts| {
            let mut changed = FactSet::clone(facts);
            let known = scope(&mut changed);
            if *known == attributes {
                return false;
            }
            *known = attributes;
            *facts = Arc::new(changed);
            true
        });
    }
}

impl Facts for LocalFacts {
    fn watch(&self) -> watch::Receiver<Arc<FactSet>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use guest_agent_actors::model::facts::Value;

    #[test]
    fn os_release_is_known_from_the_start() {
        let root = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(root.path().join("etc")).expect("made");
        let text = "# who we are\nID=debian\nVERSION_ID=\"12\"\nno assignment\nID='debian-like'\n";
        std::fs::write(root.path().join("etc/os-release"), text).expect("written");
        let facts = LocalFacts::read_below(root.path()).watch().borrow().clone();
        let Attributes::Known(os) = &facts.os else { panic!("{facts:?}") };
        assert_eq!(os.get("ID"), Some(&Value::text("debian-like")));
        assert_eq!(os.get("VERSION_ID"), Some(&Value::text("12")));
        assert_eq!(os.len(), 2, "{facts:?}");
    }

    #[test]
    fn without_os_release_the_reason_is_known() {
        let root = tempfile::tempdir().expect("a directory");
        let facts = LocalFacts::read_below(root.path()).watch().borrow().clone();
        assert!(matches!(&facts.os, Attributes::Unavailable(why) if why.contains("os-release")));
    }

    #[test]
    fn only_a_real_change_is_heard_of() {
        let facts = LocalFacts::read();
        let mut heard = facts.watch();
        facts.set_metadata(Attributes::texts([("role", "web")]));
        assert!(heard.has_changed().expect("the port lives"));
        heard.mark_unchanged();
        facts.set_metadata(Attributes::texts([("role", "web")]));
        assert!(!heard.has_changed().expect("the port lives"));
    }
}
