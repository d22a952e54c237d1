//! The values of a policy, each parsed once from the text of a file, a variable or a flag.

use std::fmt;

use rustix::process::Resource;

/// Names of capabilities in the order of their numbers, without `CAP_`.
pub const CAPABILITY_NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Names of resource limits, which `ulimit` and systemd spell differently.
pub const LIMITS: [(&str, Resource); 16] = [
    ("as", Resource::As),
    ("core", Resource::Core),
    ("cpu", Resource::Cpu),
    ("data", Resource::Data),
    ("fsize", Resource::Fsize),
    ("locks", Resource::Locks),
    ("memlock", Resource::Memlock),
    ("msgqueue", Resource::Msgqueue),
    ("nice", Resource::Nice),
    ("nofile", Resource::Nofile),
    ("nproc", Resource::Nproc),
    ("rss", Resource::Rss),
    ("rtprio", Resource::Rtprio),
    ("rttime", Resource::Rttime),
    ("sigpending", Resource::Sigpending),
    ("stack", Resource::Stack),
];

/// Longest name of a user or group.
const ACCOUNT_MAX: usize = 64;

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Account {
    /// By its number. Never the highest one, which means "no change" to the kernel.
    Id(u32),
    /// By its name.
    Name(String),
}

/// Capabilities that are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capabilities {
    /// All that the agent has.
    All,
    /// Those whose bits are set; bit 0 is `CAP_CHOWN`.
    Only(u64),
}

/// A profile of refused system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seccomp {
    /// No calls are refused.
    None,
    /// Those that change the kernel, the machine or other processes.
    Default,
}

/// Which resource is limited: its place in [`LIMITS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitName(usize);

/// A limit of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// This much, in the resource's own unit.
    At(u64),
    /// No limit.
    Unlimited,
}

/// Mode bits that new files do not get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Umask(u32);

// === impl Account ===

impl Account {
    /// Reads a name, or a number in digits.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map_err(|_| too_large(text)).and_then(Self::of_number);
        }
        let odd = |c: char| c.is_control() || c.is_whitespace() || matches!(c, ':' | '/' | ',');
        if text.is_empty() || text.len() > ACCOUNT_MAX || text.contains(odd) {
            return Err(format!(
                "{text:?} is not a name; write the name or the number of a user or group"
            ));
        }
        Ok(Self::Name(text.to_owned()))
    }

    /// Checks a number.
    ///
    /// # Errors
    /// The kernel has no such user or group.
    pub fn of_number(number: i64) -> Result<Self, String> {
        match u32::try_from(number) {
            Ok(id) if id < u32::MAX => Ok(Self::Id(id)),
            _ => Err(too_large(&number.to_string())),
        }
    }
}

fn too_large(number: &str) -> String {
    format!("{number} is not a valid id; use 0 to {}", u32::MAX - 1)
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

// === impl Capabilities ===

impl Capabilities {
    /// Reads names, with or without `CAP_`, in any case; `all` stands for all of them.
    ///
    /// # Errors
    /// Names the first word that is not a capability, and the capability with the nearest name.
    pub fn parse<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut kept = Self::Only(0);
        for name in names {
            let plain = name.trim().to_ascii_uppercase();
            let plain = plain.strip_prefix("CAP_").unwrap_or(&plain);
            let number = CAPABILITY_NAMES.iter().position(|known| *known == plain);
            kept = match (kept, number) {
                _ if plain == "ALL" => Self::All,
                (Self::All, Some(_)) => Self::All,
                (Self::Only(bits), Some(number)) => Self::Only(bits | 1 << number),
                (_, None) => {
                    let near = nearest(plain, CAPABILITY_NAMES.iter().copied());
                    let near = near.map(|near| format!("; did you mean CAP_{near}?"));
                    let near = near.unwrap_or_default();
                    return Err(format!("{name:?} is not a capability{near}"));
                }
            };
        }
        Ok(kept)
    }

    /// Their names.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        match self {
            Self::All => vec!["all".to_owned()],
            Self::Only(bits) => capability_names(bits),
        }
    }
}

/// The names of the capabilities whose bits are set. One without a name has its number.
#[must_use]
pub(crate) fn capability_names(bits: u64) -> Vec<String> {
    let numbers = (0..u64::BITS as usize).filter(|number| bits & (1 << number) != 0);
    let name = |number: usize| match CAPABILITY_NAMES.get(number) {
        Some(name) => format!("CAP_{name}"),
        None => format!("CAP_{number}"),
    };
    numbers.map(name).collect()
}

// === impl Seccomp ===

impl Seccomp {
    const ALL: [Self; 2] = [Self::None, Self::Default];

    /// Finds a profile by its name.
    ///
    /// # Errors
    /// The text is not the name of a profile.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|profile| profile.name() == text);
        found.ok_or_else(|| format!("{text:?} is not a profile; use \"default\" or \"none\""))
    }

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Default => "default",
        }
    }
}

// === impl LimitName ===

impl LimitName {
    /// Finds a resource by its name.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        LIMITS.iter().position(|(name, _)| *name == text).map(Self)
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        LIMITS[self.0].0
    }

    /// The kernel's name of the resource.
    #[must_use]
    pub fn resource(self) -> Resource {
        LIMITS[self.0].1
    }
}

// === impl Limit ===

impl Limit {
    /// Reads a number or `unlimited`.
    ///
    /// # Errors
    /// It is neither.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.parse::<i64>() {
            Ok(number) => Self::of_number(number),
            Err(_) if text == "unlimited" => Ok(Self::Unlimited),
            Err(_) => Err("a whole number or \"unlimited\" is expected".to_owned()),
        }
    }

    /// Checks a number.
    ///
    /// # Errors
    /// It is negative.
    pub fn of_number(number: i64) -> Result<Self, String> {
        let number = u64::try_from(number);
        number.map(Self::At).map_err(|_| "a limit is not negative; use \"unlimited\"".to_owned())
    }

    pub(super) fn to_toml(self) -> toml::Value {
        match self {
            Self::At(number) => i64::try_from(number).unwrap_or(i64::MAX).into(),
            Self::Unlimited => "unlimited".into(),
        }
    }
}

// === impl Umask ===

impl Umask {
    /// The umask of plugins without one: other users may read, and not write.
    pub const USUAL: Self = Self(0o022);

    /// Reads an octal text such as `0027`.
    ///
    /// # Errors
    /// The text is not a valid umask.
    pub fn parse(text: &str) -> Result<Self, String> {
        let octal = (1..=4).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        match u32::from_str_radix(text, 8) {
            Ok(bits) if octal && bits <= 0o777 => Ok(Self(bits)),
            _ => Err(format!("{text:?} is not a umask; write it in octal, such as \"0027\"")),
        }
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Umask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

/// The known word that is most similar to this one, if any is.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|known| (strsim::jaro_winkler(word, known), known))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(score, _)| *score > 0.7)
        .map(|(_, known)| known)
}
