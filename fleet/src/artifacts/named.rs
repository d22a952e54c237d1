//! Which artifacts releases name: what agents may fetch, and what must not be deleted.

use std::collections::{BTreeMap, BTreeSet};

use guest_fleet_core::view::{ReleaseName, View};

use super::digest::Digest;

/// The artifacts that releases name, of one view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    releases: BTreeMap<Digest, BTreeSet<ReleaseName>>,
    /// The artifacts of each plugin for each kind of machine.
    lines: BTreeMap<(String, String), BTreeSet<Digest>>,
}

/// Says which artifacts agents may fetch. The listener asks it for every request, so it must not
/// block.
pub trait Known: Send + Sync + 'static {
    /// Whether a release of this plugin names the artifact.
    fn is_known(&self, plugin: &str, digest: &Digest) -> bool;
}

impl Named {
    /// Those of the releases in a view. An archive that is somewhere else counts as well: its
    /// operator may move it here later.
    #[must_use]
    pub fn of(view: &View) -> Self {
        let mut named = Self::default();
        for (name, release) in &view.releases {
            for (kind, archive) in &release.archives {
                // A digest that is not one names nothing that this store could have.
                if let Ok(digest) = archive.digest.parse() {
                    named.add(digest, name.clone());
                    let line = (name.plugin.clone(), kind.clone());
                    named.lines.entry(line).or_default().insert(digest);
                }
            }
        }
        named
    }

    /// Adds an artifact of a release.
    pub fn add(&mut self, digest: Digest, release: ReleaseName) {
        self.releases.entry(digest).or_default().insert(release);
    }

    /// The artifacts of each plugin for each kind of machine: each set has the revisions of one
    /// program.
    pub fn lines(&self) -> impl Iterator<Item = &BTreeSet<Digest>> {
        self.lines.values()
    }

    /// The releases that name an artifact.
    pub fn releases(&self, digest: &Digest) -> impl Iterator<Item = &ReleaseName> {
        self.releases.get(digest).into_iter().flatten()
    }
}

impl Known for Named {
    fn is_known(&self, plugin: &str, digest: &Digest) -> bool {
        self.releases(digest).any(|release| release.plugin == plugin)
    }
}

impl<F: Fn(&str, &Digest) -> bool + Send + Sync + 'static> Known for F {
    fn is_known(&self, plugin: &str, digest: &Digest) -> bool {
        self(plugin, digest)
    }
}

#[cfg(test)]
mod tests {
    use guest_fleet_core::view::{Archive, Release};

    use super::*;

    #[test]
    fn an_artifact_is_known_under_the_plugin_whose_release_names_it() {
        let digest = Digest::of(b"an archive");
        let archive = |digest: String| Archive { digest, url: String::new() };
        let archives = BTreeMap::from([
            ("amd64".to_owned(), archive(digest.to_string())),
            ("arm64".to_owned(), archive("not a digest".to_owned())),
        ]);
        let name = ReleaseName { plugin: "echo".to_owned(), revision: "1".to_owned() };
        let mut view = View::default();
        view.releases.insert(name.clone(), Release { archives, order: Vec::new() });
        let named = Named::of(&view);
        assert!(named.is_known("echo", &digest));
        assert!(!named.is_known("other", &digest));
        assert!(!named.is_known("echo", &Digest::of(b"another")));
        assert_eq!(named.releases(&digest).collect::<Vec<_>>(), [&name]);
        assert_eq!(named.lines().collect::<Vec<_>>(), [&BTreeSet::from([digest])]);
    }
}
