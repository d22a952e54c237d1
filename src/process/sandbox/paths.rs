//! Which files a plugin that is kept to some files may use: its own, those of the system that
//! programs need, and those of its policy.

use std::path::{Path, PathBuf};

use crate::config::Policy;

/// The paths that programs need to run: read and execute.
const SYSTEM: [&str; 12] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/opt",
    "/nix/store",
    "/proc",
    "/sys",
    "/run/systemd/resolve",
];

/// The files in `/etc` that libraries read. None of them is secret.
const ETC: [&str; 24] = [
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/pki/ca-trust/extracted",
    "/etc/pki/tls/certs",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl/certs",
    "/etc/ssl/openssl.cnf",
    "/etc/timezone",
];

/// Devices that hold no data.
const DEVICES: [&str; 7] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty", "/dev/ptmx"];

/// Folders for temporary files of all users.
const COMMON_TMP: [&str; 2] = ["/tmp", "/var/tmp"];

/// Where a plugin's own files are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    /// The folder of its revision.
    pub(crate) install: &'a Path,
    /// Its program, which may be in another folder.
    pub(crate) program: &'a Path,
    /// Its data.
    pub(crate) state: &'a Path,
    /// The folder in which it makes its socket.
    pub(crate) sockets: &'a Path,
    /// The log of its output.
    pub(crate) log: &'a Path,
}

/// The allowed access to a file, or to everything below a folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reading, listing, executing.
    Read,
    /// Every kind of access.
    Write,
}

/// The source of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// No policy: every plugin has it, if the path exists.
    ByNobody,
    /// The policy, by this key.
    ByPolicy(&'static str),
}

/// A file or folder that may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) path: PathBuf,
    pub(super) access: Access,
    pub(super) asked: Asked,
}

/// All that a plugin of this policy may use. Lists folders, so it blocks.
pub(super) fn grants(policy: &Policy, places: &Places<'_>) -> Vec<Grant> {
    let mut grants = Vec::new();
    let mut grant = |path: &Path, access, asked| {
        grants.push(Grant { path: path.to_owned(), access, asked });
    };
    for path in [places.install, places.program] {
        grant(path, Access::Read, Asked::ByNobody);
    }
    for path in [places.state, places.sockets, places.log] {
        grant(path, Access::Write, Asked::ByNobody);
    }
    for path in SYSTEM.iter().chain(&ETC) {
        grant(Path::new(path), Access::Read, Asked::ByNobody);
    }
    for path in DEVICES {
        grant(Path::new(path), Access::Write, Asked::ByNobody);
    }
    let lists = [
        ("read_only_paths", Access::Read, &policy.read_only_paths),
        ("read_write_paths", Access::Write, &policy.read_write_paths),
    ];
    let closed: Vec<&Path> = match policy.private_tmp {
        Some(true) => COMMON_TMP.iter().map(Path::new).collect(),
        Some(false) | None => Vec::new(),
    };
    for (key, access, paths) in lists {
        for path in paths.iter().flatten() {
            for path in without(path, &closed) {
                grant(&path, access, Asked::ByPolicy(key));
            }
        }
    }
    if lists.iter().all(|(_, _, paths)| paths.is_none()) {
        // Only the common folders are closed. Landlock rules allow and do not deny, so every other
        // folder is allowed.
        for path in without(Path::new("/"), &closed) {
            grant(&path, Access::Write, Asked::ByNobody);
        }
    }
    grants
}

/// A folder, or the entries in it beside the closed folders that are below it. A closed folder that
/// is named itself is allowed.
fn without(path: &Path, closed: &[&Path]) -> Vec<PathBuf> {
    if !closed.iter().any(|closed| *closed != path && closed.starts_with(path)) {
        return vec![path.to_owned()];
    }
    let Ok(entries) = std::fs::read_dir(path) else { return Vec::new() };
    let entries = entries.flatten().map(|entry| entry.path());
    // Links are left out: a rule for a link would allow its target, which has an entry under its
    // own name.
    let entries = entries.filter(|path| !path.is_symlink());
    let open = entries.filter(|path| !closed.contains(&path.as_path()));
    open.flat_map(|path| without(&path, closed)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places<'static> {
        let at = Path::new;
        Places {
            install: at("/i"),
            program: at("/i/run"),
            state: at("/s"),
            sockets: at("/r"),
            log: at("/l"),
        }
    }

    fn may(grants: &[Grant], path: &str) -> Option<Access> {
        grants.iter().find(|grant| grant.path == Path::new(path)).map(|grant| grant.access)
    }

    #[test]
    fn a_plugin_with_walls_has_its_own_files_and_what_its_policy_says() {
        let policy = Policy {
            read_only_paths: Some(vec!["/etc".into()]),
            read_write_paths: Some(vec!["/srv/data".into()]),
            ..Policy::default()
        };
        let grants = grants(&policy, &places());
        for (path, access) in [
            ("/i", Some(Access::Read)),
            ("/s", Some(Access::Write)),
            ("/usr", Some(Access::Read)),
            ("/etc", Some(Access::Read)),
            ("/srv/data", Some(Access::Write)),
            ("/etc/shadow", None),
            ("/tmp", None),
            ("/", None),
        ] {
            assert_eq!(may(&grants, path), access, "{path}");
        }
    }

    #[test]
    fn a_private_folder_for_temporary_files_closes_the_common_ones_only() {
        let policy = Policy { private_tmp: Some(true), ..Policy::default() };
        let alone = grants(&policy, &places());
        assert_eq!(may(&alone, "/etc"), Some(Access::Write));
        assert_eq!(
            (may(&alone, "/tmp"), may(&alone, "/var/tmp"), may(&alone, "/")),
            (None, None, None)
        );
        let whole = Policy { read_only_paths: Some(vec!["/".into()]), ..policy.clone() };
        let whole = grants(&whole, &places());
        assert_eq!(may(&whole, "/etc"), Some(Access::Read));
        assert_eq!((may(&whole, "/tmp"), may(&whole, "/")), (None, None));
        let meant = Policy { read_write_paths: Some(vec!["/tmp".into()]), ..policy };
        assert_eq!(may(&grants(&meant, &places()), "/tmp"), Some(Access::Write));
    }
}
