//! What the fleet should run: changed at random, written as declarations, and what has to come of it
//! at each site, worked out without the code of the fleet.
//!
//! Every change that reaches an agent gives it a higher revision than all before, so that an order that
//! is carried out late is seen in what the agent installed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};

/// The plugins.
pub(crate) const PLUGINS: [&str; 3] = ["alpha", "beta", "gamma"];

/// The sites: every agent has one of them as its label.
pub(crate) const SITES: [&str; 3] = ["a", "b", "c"];

/// An archive that all revisions are made of.
#[derive(Clone, Debug)]
pub(crate) struct Archive {
    pub(crate) url: String,
    pub(crate) sha256: String,
    pub(crate) entry_point: String,
}

/// What is wished for now.
#[derive(Clone, Debug)]
pub(crate) struct Wishes {
    next_revision: u32,
    plugins: BTreeMap<&'static str, Plugin>,
    hold: Option<&'static str>,
}

#[derive(Clone, Debug)]
struct Plugin {
    everywhere: Wish,
    /// Sites that have another revision.
    apart: Option<(BTreeSet<&'static str>, u32)>,
}

/// What is wished for a plugin at all sites that have no wish of their own.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Revision(u32),
    /// It should go from the machines.
    Absent,
    /// Nothing: what runs, runs on.
    Withdrawn,
}

/// A revision as agents know it. Revisions sort like their numbers.
fn revision(number: u32) -> String {
    format!("r{number:05}")
}

// === impl Wishes ===

impl Wishes {
    /// The first revision of each plugin, everywhere.
    pub(crate) fn first() -> Self {
        let mut wishes = Self { next_revision: 1, plugins: BTreeMap::new(), hold: None };
        for name in PLUGINS {
            let everywhere = wishes.newer();
            wishes.plugins.insert(name, Plugin { everywhere, apart: None });
        }
        wishes
    }

    fn number(&mut self) -> u32 {
        self.next_revision += 1;
        self.next_revision - 1
    }

    fn newer(&mut self) -> Wish {
        Wish::Revision(self.number())
    }

    /// Somebody changes their mind; says how.
    pub(crate) fn change(&mut self, dice: &mut StdRng) -> String {
        if dice.random_bool(0.15) {
            return self.change_hold(dice);
        }
        let name = *PLUGINS.choose(dice).unwrap();
        let newer = self.newer();
        let plugin = self.plugins.get_mut(name).unwrap();
        match dice.random_range(0..10) {
            0..4 => plugin.everywhere = newer,
            // What the sites had of their own is taken back with a revision above it.
            4..7 if plugin.apart.is_some() => (plugin.everywhere, plugin.apart) = (newer, None),
            4..7 => {
                let count = dice.random_range(1..SITES.len());
                let sites = SITES.into_iter().choose_multiple(dice, count).into_iter().collect();
                let Wish::Revision(number) = newer else { unreachable!() };
                plugin.apart = Some((sites, number));
            }
            7..9 => (plugin.everywhere, plugin.apart) = (Wish::Absent, None),
            _ => (plugin.everywhere, plugin.apart) = (Wish::Withdrawn, None),
        }
        format!("{name}: {plugin:?}")
    }

    fn change_hold(&mut self, dice: &mut StdRng) -> String {
        self.hold = match self.hold {
            Some(_) => None,
            None => PLUGINS.choose(dice).copied(),
        };
        format!("hold: {:?}", self.hold)
    }

    /// The plugin of which no change may happen.
    pub(crate) fn held(&self) -> Option<&'static str> {
        self.hold
    }

    /// The last change: nothing is held, and for every plugin there is something new to do.
    pub(crate) fn settle(&mut self, dice: &mut StdRng) {
        self.hold = None;
        for name in PLUGINS {
            let newer = self.newer();
            let plugin = self.plugins.get_mut(name).unwrap();
            plugin.everywhere = newer;
            plugin.apart = None;
        }
        // One plugin goes from all sites but one.
        let number = self.number();
        let plugin = self.plugins.get_mut(*PLUGINS.choose(dice).unwrap()).unwrap();
        plugin.everywhere = Wish::Absent;
        plugin.apart = Some(([*SITES.choose(dice).unwrap()].into(), number));
    }

    /// What an agent of a site should have of a plugin: `Some(None)` where it should be absent, `None`
    /// where nothing is wished.
    pub(crate) fn of(&self, site: &str, plugin: &str) -> Option<Option<String>> {
        let plugin = &self.plugins[plugin];
        if let Some((sites, number)) = &plugin.apart
            && sites.contains(site)
        {
            return Some(Some(revision(*number)));
        }
        match plugin.everywhere {
            Wish::Revision(number) => Some(Some(revision(number))),
            Wish::Absent => Some(None),
            Wish::Withdrawn => None,
        }
    }

    /// The wishes as declarations.
    pub(crate) fn declarations(&self, archive: &Archive) -> String {
        // For agents that come to an assignment because another one is not wished for any more.
        let mut text =
            "[defaults.rollout]\nwaves = [\"100%\"]\nsoak = \"0s\"\nbudget = 10000\n".to_owned();
        for (name, plugin) in &self.plugins {
            let apart = plugin.apart.as_ref().map(|(_, number)| *number);
            let everywhere = match plugin.everywhere {
                Wish::Revision(number) => Some(number),
                Wish::Absent | Wish::Withdrawn => None,
            };
            for number in [everywhere, apart].into_iter().flatten() {
                let Archive { url, sha256, entry_point } = archive;
                let revision = revision(number);
                writeln!(
                    text,
                    "[[release]]\nplugin = \"{name}\"\nrevision = \"{revision}\"\n\
                     entry_point = \"{entry_point}\"\n\
                     archives.any = {{ sha256 = \"{sha256}\", url = \"{url}\" }}"
                )
                .unwrap();
            }
            let wish = match plugin.everywhere {
                Wish::Revision(number) => Some(format!("revision = \"{}\"", revision(number))),
                Wish::Absent => Some("absent = true".to_owned()),
                Wish::Withdrawn => None,
            };
            if let Some(wish) = wish {
                writeln!(
                    text,
                    "[[assignment]]\nname = \"{name}-everywhere\"\nplugin = \"{name}\"\n{wish}\n\
                     select = \"all\""
                )
                .unwrap();
            }
            if let Some((sites, number)) = &plugin.apart {
                let sites: Vec<&str> = sites.iter().copied().collect();
                writeln!(
                    text,
                    "[[assignment]]\nname = \"{name}-apart\"\nplugin = \"{name}\"\n\
                     revision = \"{}\"\nselect = \"site in ({})\"\npriority = 10",
                    revision(*number),
                    sites.join(", ")
                )
                .unwrap();
            }
        }
        if let Some(plugin) = self.hold {
            writeln!(
                text,
                "[[hold]]\nname = \"incident\"\nselect = \"all\"\nplugins = [\"{plugin}\"]\n\
                 reason = \"somebody looks at it\""
            )
            .unwrap();
        }
        text
    }
}

#[test]
fn a_site_never_goes_back_to_an_earlier_revision() {
    use rand::SeedableRng;

    for seed in 0..200 {
        let mut dice = StdRng::seed_from_u64(seed);
        let mut wishes = Wishes::first();
        let mut newest = BTreeMap::new();
        for _ in 0..50 {
            let how = wishes.change(&mut dice);
            for (site, plugin) in SITES.iter().flat_map(|site| PLUGINS.map(|it| (*site, it))) {
                let Some(Some(revision)) = wishes.of(site, plugin) else { continue };
                let before = newest.insert((site, plugin), revision.clone());
                assert!(before.is_none_or(|before| before <= revision), "seed {seed}: {how}");
            }
        }
        wishes.settle(&mut dice);
        assert!(SITES.iter().all(|site| PLUGINS.iter().all(|it| wishes.of(site, it).is_some())));
    }
}
