//! Decides where a plugin listens.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use guest_agent_actors::model::id::{Endpoint, PluginName, RevisionId, Sha256Digest};
use nix::libc;
use rand::Rng;

use crate::net::socket;

/// Longest path of a unix socket, in bytes, without the NUL that ends it.
pub(crate) const SOCKET_PATH_MAX: usize = 107;

/// Hexadecimal digits of a hashed name: 128 bits, so that two revisions never have the same name,
/// also where an attacker chooses their names.
const HASHED_DIGITS: usize = 32;

/// The same for names that earlier agents gave.
const EARLIER_DIGITS: usize = 16;

/// The argument that says where to listen.
pub(crate) const ADDRESS: &str = "--address=";

/// Lowest port that is tried for a plugin.
const PORT_MIN: u16 = 20_000;

/// How many ports are tried.
const PORT_TRIES: u32 = 64;

/// Where a plugin listens, in the forms that its arguments and its callers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A unix socket.
    Unix(PathBuf),
    /// A port of the loopback interface.
    Tcp(SocketAddr),
}

impl Address {
    /// The value of `--protocol=`.
    pub(crate) fn protocol(&self) -> &'static str {
        match self {
            Self::Unix(_) => "unix",
            Self::Tcp(_) => "tcp",
        }
    }

    /// The value of `--address=`.
    pub(crate) fn argument(&self) -> String {
        match self {
            Self::Unix(path) => path.display().to_string(),
            Self::Tcp(address) => address.to_string(),
        }
    }

    /// The form in which the store has it.
    pub(crate) fn endpoint(&self) -> Endpoint {
        match self {
            Self::Unix(_) => Endpoint::unix(&self.argument()),
            Self::Tcp(address) => Endpoint::tcp(*address),
        }
    }
}

/// The socket of a revision: `<name>_<revision>.sock`, or a hashed name where that is too long or
/// where the plugin's name has a `_`. No other revision of any plugin has the same one: a plain
/// name is read up to its first `_`, and a hashed name has none.
pub(crate) fn socket(directory: &Path, name: &PluginName, revision: &RevisionId) -> PathBuf {
    let plain = plain_socket(directory, name, revision);
    if name.as_str().contains('_') || plain.as_os_str().len() > SOCKET_PATH_MAX {
        return hashed_socket(directory, name, revision);
    }
    plain
}

/// The hashed name. It is free for every launch, because no process of another revision has it.
pub(crate) fn hashed_socket(directory: &Path, name: &PluginName, revision: &RevisionId) -> PathBuf {
    let (name, revision) = (name.as_str(), revision.as_str());
    // The lengths come first, so that no two pairs give the same text.
    let pair = format!("{}:{name}{}:{revision}", name.len(), revision.len());
    let digest = Sha256Digest::of(pair.as_bytes()).to_string();
    directory.join(format!("{}.sock", &digest[..HASHED_DIGITS]))
}

/// The sockets that earlier agents gave to a revision, which its processes keep until they end. Two
/// plugins may have the same one.
pub(crate) fn earlier_sockets(
    directory: &Path,
    name: &PluginName,
    revision: &RevisionId,
) -> [PathBuf; 2] {
    let digest = Sha256Digest::of(format!("{name}/{revision}").as_bytes()).to_string();
    let hashed = directory.join(format!("{}.sock", &digest[..EARLIER_DIGITS]));
    [plain_socket(directory, name, revision), hashed]
}

fn plain_socket(directory: &Path, name: &PluginName, revision: &RevisionId) -> PathBuf {
    directory.join(format!("{name}_{revision}.sock"))
}

/// Whether a file without its `.sock` has the form of a hashed name, of this or of earlier agents.
pub(crate) fn is_hashed(stem: &str) -> bool {
    [HASHED_DIGITS, EARLIER_DIGITS].contains(&stem.len())
        && stem.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The socket that a process was launched with, among those that an agent may have given it.
/// `arguments` are as `procfs` reads them. The last `--address=` counts: the agent adds its own
/// after those of the plugin.
pub(crate) fn given(
    arguments: &[u8],
    possible: impl IntoIterator<Item = PathBuf>,
) -> Option<PathBuf> {
    let last = arguments.split(|&byte| byte == 0).rev();
    let path = last.into_iter().find_map(|argument| argument.strip_prefix(ADDRESS.as_bytes()))?;
    possible.into_iter().find(|socket| socket.as_os_str().as_bytes() == path)
}

/// The socket of a revision in a folder of the plugin's own: `<name>/<revision>.sock`, or hashed
/// names where that is too long. `directory` is where such folders are.
pub(crate) fn own_socket(directory: &Path, name: &PluginName, revision: &RevisionId) -> PathBuf {
    let [named, hashed] = own_folders(name);
    let plain = directory.join(&named).join(format!("{revision}.sock"));
    if plain.as_os_str().len() <= SOCKET_PATH_MAX {
        return plain;
    }
    // Two revisions of a plugin never listen at the same time.
    let short = directory.join(named).join("s");
    if short.as_os_str().len() <= SOCKET_PATH_MAX {
        return short;
    }
    directory.join(hashed).join("s")
}

/// Below the runtime directory, holds the folders of plugins that are kept out of the common one.
pub(crate) const OWN_FOLDERS: &str = "confined";

/// The names that a plugin's own folder may have: its own, and one for where that is too long. No
/// plugin has the latter, because no name of a plugin begins with a dot.
pub(crate) fn own_folders(name: &PluginName) -> [String; 2] {
    let digest = Sha256Digest::of(name.as_str().as_bytes()).to_string();
    [name.as_str().to_owned(), format!(".{}", &digest[..16])]
}

/// Sockets of any revision of a plugin that no process listens on. It leaves out a socket whose
/// name is a hash, and one that may be another plugin's: `others` are the names of the other
/// plugins.
pub(crate) fn abandoned<'a>(
    directory: &Path,
    name: &PluginName,
    others: impl Iterator<Item = &'a PluginName> + Clone,
) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(directory) else { return Vec::new() };
    let is_of = |file: &str, name: &PluginName| {
        let revision = file.strip_prefix(name.as_str()).and_then(|rest| rest.strip_prefix('_'));
        revision.is_some_and(|revision| revision.parse::<RevisionId>().is_ok())
    };
    entries
        .filter_map(|entry| {
            let file = entry.ok()?.file_name();
            let listens = file.to_str()?.strip_suffix(".sock")?;
            let certain =
                is_of(listens, name) && !others.clone().any(|other| is_of(listens, other));
            let path = certain.then(|| directory.join(&file))?;
            socket::is_deserted(&path).then_some(path)
        })
        .collect()
}

/// Whether a folder of sockets is too long a path for the names in it.
pub(crate) fn is_too_long(directory: &Path) -> bool {
    directory.as_os_str().len() + "/.sock".len() + HASHED_DIGITS > SOCKET_PATH_MAX
}

/// What the names of sockets begin with that are only tried; eight digits follow.
const TRIED: &str = ".try-";

/// Whether a file has the name of a socket that was only tried. An agent that was killed meanwhile
/// leaves one.
pub(crate) fn is_tried(file: &str) -> bool {
    file.strip_prefix(TRIED).is_some_and(|digits| {
        digits.len() == 8 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// Tries whether a unix socket can be made in a directory.
///
/// # Errors
/// Why it cannot, now or ever.
pub(crate) fn try_socket(directory: &Path) -> io::Result<()> {
    let path = directory.join(format!("{TRIED}{:08x}", rand::rng().random::<u32>()));
    let tried = UnixListener::bind(&path).map(drop);
    // If this made the folder, it removes the folder again; otherwise nothing remains to be
    // removed.
    drop(std::fs::remove_file(&path));
    tried
}

/// Whether this failure to make a socket comes from the kind of the file system: a full disk
/// passes, a file system without sockets does not.
pub(crate) fn is_unfit_for_sockets(error: &io::Error) -> bool {
    let unfit = [
        libc::EPERM,
        libc::EACCES,
        libc::EROFS,
        libc::EOPNOTSUPP,
        libc::ENOSYS,
        libc::EAFNOSUPPORT,
        libc::EINVAL,
    ];
    error.raw_os_error().is_some_and(|code| unfit.contains(&code))
}

/// A free port of the loopback interface.
///
/// Below the range from which the kernel serves connections without a port of their own: one of
/// those could take the port before the plugin does, or connect to itself while waiting for it.
pub(crate) fn free_port() -> std::io::Result<SocketAddr> {
    let limits = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let low = limits.ok().and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok());
    let below = low.filter(|&low| low > PORT_MIN + 100).unwrap_or(32_768);
    let mut random = rand::rng();
    for _ in 0..PORT_TRIES {
        let port = random.random_range(PORT_MIN..below);
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener.local_addr();
        }
    }
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_socket_path_never_exceeds_what_the_kernel_takes() {
        let name: PluginName = "n".repeat(60).parse().expect("a name");
        let revision: RevisionId = "r".repeat(100).parse().expect("a revision");
        let long = socket(Path::new("/run/guest-agent/plugins"), &name, &revision);
        assert!(long.as_os_str().len() <= SOCKET_PATH_MAX);
        let other = socket(Path::new("/run/guest-agent/plugins"), &name, &"r".parse().expect("ok"));
        assert_ne!(long, other);
    }

    #[test]
    fn a_socket_in_a_folder_of_its_own_fits_wherever_the_common_ones_do() {
        let hashed = "/plugins/0123456789abcdef0123456789abcdef.sock";
        let longest = "/r".repeat((SOCKET_PATH_MAX - hashed.len()) / 2);
        assert!(!is_too_long(&Path::new(&longest).join("plugins")));
        assert!(is_too_long(&Path::new(&longest).join("plugins/more")));
        let name: PluginName = "n".repeat(60).parse().expect("a name");
        let revision: RevisionId = "r".repeat(100).parse().expect("a revision");
        let confined = Path::new(&longest).join("confined");
        let path = own_socket(&confined, &name, &revision);
        assert!(path.as_os_str().len() <= SOCKET_PATH_MAX, "{}", path.display());
        let other = own_socket(&confined, &"m".repeat(60).parse().expect("a name"), &revision);
        assert_ne!(path.parent(), other.parent());
        let short =
            own_socket(Path::new("/run/c"), &"p".parse().expect("ok"), &"1".parse().expect("ok"));
        assert_eq!(short, Path::new("/run/c/p/1.sock"));
    }

    fn pair(name: &str, revision: &str) -> (PluginName, RevisionId) {
        (name.parse().expect("a name"), revision.parse().expect("a revision"))
    }

    fn named(directory: &str, (name, revision): &(PluginName, RevisionId)) -> String {
        let path = socket(Path::new(directory), name, revision);
        path.file_name().expect("a name").to_string_lossy().into_owned()
    }

    #[test]
    fn plugins_whose_names_run_together_have_sockets_of_their_own() {
        // The digits are those that another program computes from the documented form.
        for (name, revision, expected) in
            [("q", "b_c", "q_b_c.sock"), ("q_b", "c", "e400a51e3eaf236517886e64653476da.sock")]
        {
            assert_eq!(named("/run/a", &pair(name, revision)), expected);
        }
    }

    proptest! {
        /// Short texts of few letters, so that many pairs give the same text when they are joined.
        #[test]
        fn law_no_two_revisions_have_one_socket(
            one in ("[a_]{0,3}", "[a_]{0,3}"),
            other in ("[a_]{0,3}", "[a_]{0,3}"),
            directory in prop_oneof![Just("/r".to_owned()), Just("/r".repeat(34))],
            tail in prop_oneof![Just(""), Just("0123456789abcdef0123456789abcdef")],
        ) {
            let [one, other] =
                [one, other].map(|(name, revision)| pair(&format!("a{name}"), &format!("a{revision}{tail}")));
            let directory = Path::new(&directory);
            let of = |(name, revision): &(PluginName, RevisionId)| socket(directory, name, revision);
            prop_assert!(of(&one).as_os_str().len() <= SOCKET_PATH_MAX);
            prop_assert_eq!(of(&one) == of(&other), one == other);
            // A hashed name is not the name of another revision either, plain or hashed.
            let hashed = hashed_socket(directory, &one.0, &one.1);
            prop_assert!(one == other || hashed != of(&other));
        }
    }

    #[test]
    fn names_that_earlier_agents_gave_are_known() {
        let (name, revision) = pair("q_b", "c");
        let at = Path::new("/run/a");
        let [plain, hashed] = earlier_sockets(at, &name, &revision);
        assert_eq!(plain, at.join("q_b_c.sock"));
        assert_eq!(hashed, at.join("71bb1c837936a315.sock"));
        for path in [hashed, hashed_socket(at, &name, &revision)] {
            let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
            assert!(is_hashed(&stem), "{stem}");
        }
        for odd in ["", "q_b_c", "0123456789abcde", "0123456789ABCDEF"] {
            assert!(!is_hashed(odd), "{odd}");
        }
    }

    #[test]
    fn of_its_arguments_only_the_last_address_counts_and_only_one_that_agents_give() {
        let possible = || ["/run/a/q_b_c.sock", "/run/a/x.sock"].map(PathBuf::from);
        let given = |arguments: &str| given(arguments.replace(' ', "\0").as_bytes(), possible());
        let first = Some("/run/a/q_b_c.sock".into());
        assert_eq!(given("p --protocol=unix --address=/run/a/q_b_c.sock --more "), first);
        assert_eq!(given("p --address=/run/a/x.sock --address=/run/a/q_b_c.sock "), first);
        for other in ["", "p ", "p --address=/run/a/q_b_c.sock --address=/etc/x ", "p --address= "]
        {
            assert_eq!(given(other), None, "{other}");
        }
    }

    #[test]
    fn a_short_socket_path_names_plugin_and_revision() {
        let path = socket(
            Path::new("/run/a"),
            &"p".parse().expect("a name"),
            &"1.2".parse().expect("a revision"),
        );
        assert_eq!(path, Path::new("/run/a/p_1.2.sock"));
    }

    #[test]
    fn a_socket_that_was_only_tried_leaves_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        try_socket(dir.path()).expect("sockets work here");
        assert_eq!(std::fs::read_dir(dir.path()).expect("it is listed").count(), 0);
    }

    #[test]
    fn a_missing_folder_or_a_full_disk_does_not_make_a_place_unfit() {
        let error = try_socket(Path::new("/nonexistent")).expect_err("no such folder");
        assert!(!is_unfit_for_sockets(&error), "{error}");
        assert!(!is_unfit_for_sockets(&io::Error::from_raw_os_error(libc::ENOSPC)));
        assert!(is_unfit_for_sockets(&io::Error::from_raw_os_error(libc::EOPNOTSUPP)));
    }

    #[test]
    fn a_free_port_is_on_loopback_and_can_be_taken() {
        let address = free_port().expect("a port");
        assert!(address.ip().is_loopback());
        assert!(address.port() >= PORT_MIN);
    }
}
