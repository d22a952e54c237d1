//! Finds the mounted hierarchies, their controllers, and the place of our groups in each.
//!
//! The groups of plugins are below the group of the agent, so a limit on the agent's group limits
//! its plugins too, and a service manager that delegated that group has delegated theirs.
//! `plugins.cgroup_parent` can name another group for them, in which no service manager starts or
//! stops processes (docs/decisions/0025). Under version 2 a group with processes cannot hand
//! controllers to its children: the agent moves itself into a leaf of its own first. Where agent
//! and plugins are limited together, that leaf is beside the groups of plugins.
//!
//! Called once at start. A hierarchy that cannot be used is left out, and a sentence says why.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::files::{read, write};

/// The group of the agent itself, if it has to leave its parent group. No plugin has a name like
/// this.
pub(super) const OWN_LEAF: &str = "@guest-agent";

/// The group of processes that outlive the agent, beside those of plugins. No plugin has a name
/// like this.
pub(super) const KEEPER_LEAF: &str = "@keeper";

/// Whether the agent and its plugins are in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Together {
    /// They are: one limit applies to both.
    Yes,
    /// They are not.
    No,
}

/// A version of the kernel's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy for each controller, or for a few of them.
    V1,
    /// One hierarchy for all controllers.
    V2,
}

/// A kind of limit or of accounting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// How much memory.
    Memory,
    /// How much CPU time.
    Cpu,
    /// Counts CPU time under version 1; version 2 always counts.
    CpuAccounting,
    /// How many tasks.
    Pids,
    /// Stops and thaws; version 1 only.
    Freezer,
}

/// A mounted hierarchy, and where our groups are in it.
#[derive(Clone, Debug)]
pub(super) struct Hierarchy {
    pub(super) version: Version,
    pub(super) controllers: Arc<BTreeSet<Controller>>,
    pub(super) base: PathBuf,
}

/// The result of the search.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) places: Vec<Hierarchy>,
    pub(super) trouble: Vec<String>,
}

/// A mounted hierarchy as the kernel lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mount {
    version: Version,
    /// Names of its controllers; under version 2 a file of each group names them.
    controllers: Vec<String>,
    /// The part of the hierarchy that is mounted here.
    root: String,
    point: PathBuf,
}

// === impl Controller ===

impl Controller {
    const ALL: [Self; 5] =
        [Self::Memory, Self::Cpu, Self::CpuAccounting, Self::Pids, Self::Freezer];

    const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::CpuAccounting => "cpuacct",
            Self::Pids => "pids",
            Self::Freezer => "freezer",
        }
    }
}

impl fmt::Display for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Mount ===

impl Mount {
    fn limits_memory(&self) -> bool {
        match self.version {
            Version::V1 => self.controllers.iter().any(|name| name == Controller::Memory.name()),
            Version::V2 => true,
        }
    }
}

/// Looks at this machine and makes the parent of our groups in every hierarchy that allows it:
/// below the group `parent`, a path from the top of the hierarchy, where there is one, else below
/// the agent's own.
pub(super) fn find(own: &str, together: Together, parent: Option<&str>) -> Found {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let memberships = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let mut found = Found::default();
    for mount in parse_mounts(&mounts) {
        let Some(inside) = own_group(&mount, &memberships) else {
            let point = mount.point.display();
            found.trouble.push(format!("{point}: the agent's own group is not visible there"));
            continue;
        };
        let (inside, trouble) = below_named(&mount, inside, parent);
        found.trouble.extend(trouble);
        let Some(inside) = inside else { continue };
        match settle(&mount, &inside, own, together) {
            Ok(Some(place)) => found.places.push(place),
            Ok(None) => {}
            Err(error) => {
                found.trouble.push(format!("{}: {error}", inside.join(own).display()));
            }
        }
    }
    if found.places.is_empty() && found.trouble.is_empty() {
        found.trouble.push("no control group hierarchy is mounted".to_owned());
    }
    found
}

/// The group below which ours go in one hierarchy, if any, and what is wrong with that: the one
/// that is named, where it is, or the agent's own, where nothing speaks against it.
fn below_named(
    mount: &Mount,
    inside: PathBuf,
    parent: Option<&str>,
) -> (Option<PathBuf>, Option<String>) {
    let Some(named) = parent else { return (Some(inside), None) };
    if let Some(path) = below(mount, named).filter(|path| path.is_dir()) {
        return (Some(path), None);
    }
    let point = mount.point.display();
    let missing =
        format!("{point}: the group {named}, which plugins.cgroup_parent names, does not exist");
    match mount.version {
        // A service manager could not start the agent again in a group that gives controllers to
        // its children.
        Version::V2 => {
            let follows = "plugins have no groups of their own, and no limits, until the agent starts with it there";
            (None, Some(format!("{missing}; {follows}")))
        }
        Version::V1 if mount.limits_memory() => {
            let follows = format!("groups of plugins are in {}", inside.display());
            (Some(inside), Some(format!("{missing}; {follows}")))
        }
        // The group may exist in some hierarchies only, and this one does not limit memory.
        Version::V1 => (Some(inside), None),
    }
}

/// Makes the parent of our groups in one hierarchy. `None` where it is of no use.
fn settle(
    mount: &Mount,
    inside: &Path,
    own: &str,
    together: Together,
) -> io::Result<Option<Hierarchy>> {
    let inside = given(inside, own);
    let base = inside.join(own);
    match mount.version {
        Version::V1 => {
            let named = |controller: &Controller| {
                mount.controllers.iter().any(|name| name == controller.name())
            };
            let controllers: BTreeSet<_> = Controller::ALL.into_iter().filter(named).collect();
            if controllers.is_empty() {
                return Ok(None);
            }
            make(&base)?;
            let is_limited = [Controller::Memory, Controller::Cpu].iter().any(named);
            if together == Together::Yes && is_limited {
                enter_leaf(&base)?;
            }
            Ok(Some(Hierarchy { version: Version::V1, controllers: Arc::new(controllers), base }))
        }
        Version::V2 => {
            make(&base)?;
            let offered = read(inside, "cgroup.controllers").unwrap_or_default();
            let is_offered = |controller: &Controller| {
                matches!(controller, Controller::Memory | Controller::Cpu | Controller::Pids)
                    && offered.split_whitespace().any(|name| name == controller.name())
            };
            let controllers: BTreeSet<_> = Controller::ALL.into_iter().filter(is_offered).collect();
            if !controllers.is_empty() {
                hand_down(inside, &base, &controllers, together)?;
            }
            Ok(Some(Hierarchy { version: Version::V2, controllers: Arc::new(controllers), base }))
        }
    }
}

/// The group in which the agent was started; the groups of an earlier agent process are below it.
fn given<'a>(inside: &'a Path, own: &str) -> &'a Path {
    let above = |path: &'a Path, name: &str| {
        if path.ends_with(name) { path.parent().unwrap_or(path) } else { path }
    };
    if inside.ends_with(OWN_LEAF) { above(above(inside, OWN_LEAF), own) } else { inside }
}

/// Enables controllers for the groups of plugins, from the group that the agent was given
/// downwards.
fn hand_down(
    inside: &Path,
    base: &Path,
    controllers: &BTreeSet<Controller>,
    together: Together,
) -> io::Result<()> {
    let enable = controllers.iter().map(|c| format!("+{c}")).collect::<Vec<_>>().join(" ");
    if together == Together::Yes {
        enter_leaf(base)?;
    }
    if write(inside, "cgroup.subtree_control", &enable).is_err() {
        // Processes keep the kernel from enabling controllers: most likely this process alone.
        enter_leaf(if together == Together::Yes { base } else { inside })?;
        write(inside, "cgroup.subtree_control", &enable)?;
    }
    write(base, "cgroup.subtree_control", &enable)
}

/// Moves the agent into a leaf of this group.
fn enter_leaf(group: &Path) -> io::Result<()> {
    let leaf = group.join(OWN_LEAF);
    make(&leaf)?;
    write(&leaf, "cgroup.procs", "0")
}

pub(super) fn make(dir: &Path) -> io::Result<()> {
    match std::fs::create_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The lines of `/proc/<pid>/mountinfo` that are about control groups.
fn parse_mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_mount).collect()
}

fn parse_mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point) = (unescape(before.next()?), unescape(before.next()?));
    let mut after = after.split(' ');
    let (kind, options) = (after.next()?, after.nth(1)?);
    let version = match kind {
        "cgroup" => Version::V1,
        "cgroup2" => Version::V2,
        _ => return None,
    };
    let controllers = options.split(',').map(str::to_owned).collect();
    Some(Mount { version, controllers, root, point: point.into() })
}

/// The kernel writes spaces and the like in paths as `\040`.
fn unescape(text: &str) -> String {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let code = (byte == b'\\').then(|| after.get(..3)).flatten();
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(code) => {
                plain.push(code);
                rest = &after[3..];
            }
            None => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// The directory of the agent's own group in a mounted hierarchy, if it is mounted there.
fn own_group(mount: &Mount, memberships: &str) -> Option<PathBuf> {
    let path = memberships.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let this = match mount.version {
            Version::V2 => controllers.is_empty(),
            Version::V1 => {
                !controllers.is_empty()
                    && controllers
                        .split(',')
                        .all(|name| mount.controllers.iter().any(|c| c == name))
            }
        };
        this.then_some(path)
    })?;
    below(mount, path)
}

/// Where the group of this path, from the top of the hierarchy, is in a mounted one.
fn below(mount: &Mount, path: &str) -> Option<PathBuf> {
    let below = if mount.root == "/" { path } else { path.strip_prefix(&mount.root)? };
    let below = below.trim_start_matches('/');
    // A path outside of the mount belongs to another namespace.
    if below.split('/').any(|part| part == "..") {
        return None;
    }
    Some(if below.is_empty() { mount.point.clone() } else { mount.point.join(below) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
30 23 0:26 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
31 30 0:27 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
36 30 0:32 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
37 30 0:33 / /sys/fs/cgroup/mem\\040ory rw shared:9 master:1 - cgroup cgroup rw,memory
38 30 0:34 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
";

    const MEMBERSHIPS: &str = "\
4:memory:/system.slice/agent.service
3:cpu,cpuacct:/system.slice/agent.service
1:name=systemd:/system.slice/agent.service
0::/system.slice/agent.service
";

    #[test]
    fn combined_single_named_and_unified_hierarchies_are_told_apart() {
        let mounts = parse_mounts(HYBRID);
        let groups: Vec<_> =
            mounts.iter().map(|mount| (mount.version, own_group(mount, MEMBERSHIPS))).collect();
        let at = |path: &str| Some(PathBuf::from(path));
        assert_eq!(
            groups,
            [
                (Version::V2, at("/sys/fs/cgroup/unified/system.slice/agent.service")),
                (Version::V1, at("/sys/fs/cgroup/cpu,cpuacct/system.slice/agent.service")),
                (Version::V1, at("/sys/fs/cgroup/mem ory/system.slice/agent.service")),
                (Version::V1, at("/sys/fs/cgroup/systemd/system.slice/agent.service")),
            ]
        );
    }

    #[test]
    fn a_container_sees_its_own_part_of_the_hierarchy_only() {
        let line = "36 30 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let mount = parse_mount(line).expect("a mount");
        let group = |membership: &str| own_group(&mount, membership);
        assert_eq!(group("4:memory:/docker/abc"), Some("/sys/fs/cgroup/memory".into()));
        assert_eq!(group("4:memory:/docker/abc/x"), Some("/sys/fs/cgroup/memory/x".into()));
        assert_eq!(group("4:memory:/docker/other"), None);
        assert_eq!(group("4:memory:/docker/abc/../other"), None);
        assert_eq!(group("4:cpu:/docker/abc"), None);
    }

    /// A delegated group of version 2, as files of a folder.
    fn delegated(dir: &Path, own: &str) -> PathBuf {
        let inside = dir.join("system.slice/agent.service");
        std::fs::create_dir_all(inside.join(own).join(OWN_LEAF)).unwrap();
        std::fs::write(inside.join("cgroup.controllers"), "cpuset cpu io memory pids\n").unwrap();
        for file in ["", own, &format!("{own}/{OWN_LEAF}")] {
            std::fs::write(inside.join(file).join("cgroup.procs"), "").unwrap();
            std::fs::write(inside.join(file).join("cgroup.subtree_control"), "").unwrap();
        }
        inside
    }

    #[test]
    fn a_service_that_was_delegated_its_group_hands_controllers_down_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let inside = delegated(dir.path(), "ours");
        let (version, root) = (Version::V2, "/".to_owned());
        let mount = Mount { version, controllers: Vec::new(), root, point: dir.path().into() };
        let said = |file: &str| std::fs::read_to_string(inside.join(file)).unwrap();
        let place = settle(&mount, &inside, "ours", Together::No).unwrap().unwrap();
        let all = [Controller::Memory, Controller::Cpu, Controller::Pids];
        assert_eq!(
            (&*place.controllers, &place.base),
            (&BTreeSet::from(all), &inside.join("ours"))
        );
        assert_eq!(said("cgroup.subtree_control"), "+memory +cpu +pids");
        assert_eq!(said("ours/cgroup.subtree_control"), "+memory +cpu +pids");
        assert_eq!(said(&format!("ours/{OWN_LEAF}/cgroup.procs")), "", "it stays where it is");

        // Where agent and plugins are limited together, the agent moves into its leaf; from there
        // it finds the group that it was given.
        let leaf = inside.join("ours").join(OWN_LEAF);
        for from in [&inside, &leaf, &inside.join(OWN_LEAF)] {
            let place = settle(&mount, from, "ours", Together::Yes).unwrap().unwrap();
            assert_eq!(place.base, inside.join("ours"), "from {}", from.display());
            assert_eq!(said(&format!("ours/{OWN_LEAF}/cgroup.procs")), "0");
        }
    }

    #[test]
    fn a_group_that_is_named_is_found_where_it_is_mounted() {
        let line = "36 30 0:32 /docker/abc /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";
        let mount = parse_mount(line).expect("a mount");
        assert_eq!(
            below(&mount, "/docker/abc/plugins"),
            Some("/sys/fs/cgroup/memory/plugins".into())
        );
        assert_eq!(below(&mount, "/plugins"), None);
        assert_eq!(below(&mount, "/docker/abc/../other"), None);
        assert!(mount.limits_memory());
    }

    #[test]
    fn a_missing_group_is_replaced_only_where_that_is_no_trap() {
        let dir = tempfile::tempdir().unwrap();
        let inside = delegated(dir.path(), "ours");
        let mount = |version, controllers: &[&str]| Mount {
            version,
            controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
            root: "/".to_owned(),
            point: dir.path().into(),
        };
        let choose = |mount: &Mount, parent| below_named(mount, inside.clone(), parent);
        let v2 = mount(Version::V2, &[]);
        assert_eq!(choose(&v2, None), (Some(inside.clone()), None));
        let there = inside.strip_prefix(dir.path()).unwrap().to_str();
        assert_eq!(choose(&v2, there), (Some(inside.clone()), None));

        let (group, trouble) = choose(&v2, Some("/gone"));
        assert_eq!(group, None);
        assert!(trouble.unwrap().contains("the group /gone"));
        let (group, trouble) = choose(&mount(Version::V1, &["memory"]), Some("/gone"));
        assert_eq!(group, Some(inside.clone()));
        assert!(trouble.unwrap().contains("the group /gone"));
        let v1 = mount(Version::V1, &["cpuset"]);
        assert_eq!(choose(&v1, Some("/gone")), (Some(inside.clone()), None));
    }

    #[test]
    fn what_was_not_delegated_cannot_be_used() {
        let dir = tempfile::tempdir().unwrap();
        let inside = delegated(dir.path(), "ours");
        std::fs::write(inside.join("cgroup.controllers"), "cpuset io\n").unwrap();
        let (version, root) = (Version::V2, "/".to_owned());
        let mount = Mount { version, controllers: Vec::new(), root, point: dir.path().into() };
        let place = settle(&mount, &inside, "ours", Together::No).unwrap().unwrap();
        assert!(place.controllers.is_empty());
        assert!(settle(&mount, &dir.path().join("gone"), "ours", Together::No).is_err());
    }

    #[test]
    fn lines_that_are_no_mounts_are_passed_over() {
        for line in ["", " - ", "a b c d e f", "1 2 3 / /x rw -", "1 2 3 / /x rw - cgroup"] {
            assert_eq!(parse_mount(line), None, "{line:?}");
        }
        assert_eq!(unescape("a\\040b\\"), "a b\\");
        assert_eq!(unescape("\\9\\777"), "\\9\\777");
    }
}
