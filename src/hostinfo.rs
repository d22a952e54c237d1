//! The boot id, the instance id and the time of the machine: the ports `Machine` and `Clock`.
//!
//! The core asks for the boot and the instance at its start, and for the operating system whenever
//! the control plane does. All values come from files of the kernel and the distribution, but for
//! the id from the metadata server, which `metadata` reads and the configuration passes on.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use async_trait::async_trait;
use guest_agent_actors::model::id::BootId;
use guest_agent_actors::ports::{Clock, Machine, OsFacts};
use serde::{Deserialize, Serialize};

pub mod facts;
mod identity;
pub mod machine;
pub mod metadata;
pub mod pauses;
pub mod preflight;

pub(crate) use identity::is_plain;
pub use identity::{FILE as IDENTITY_FILE, Identity, Memory, RememberError};

/// Most bytes that are read of any of these files.
const FILE_MAX: u64 = 64 * 1024;

/// Longest value that is passed on, in bytes.
const VALUE_MAX: usize = 256;

/// This machine, as it was when the agent started.
#[derive(Clone, Debug)]
pub struct LocalMachine {
    root: PathBuf,
    boot: BootId,
    instance: String,
    source: InstanceSource,
}

/// The source of the instance's id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum InstanceSource {
    /// The configuration.
    Given,
    /// The metadata server.
    Metadata,
    /// The machine's firmware or `/etc/machine-id`.
    Machine,
    /// A random number that the agent remembers: the machine has no id.
    Random,
}

/// Why the agent cannot distinguish this machine from others.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// Without the boot id, the agent cannot distinguish a recorded process from a later one with
    /// the same pid.
    #[error("failed to read the boot id from {}", path.display())]
    BootId {
        /// The file that should have it.
        path: PathBuf,
        #[source]
        error: std::io::Error,
    },
}

/// The system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

// === impl LocalMachine ===

impl LocalMachine {
    /// Reads the boot id; `instance` is the identity of this machine.
    ///
    /// # Errors
    /// The boot id cannot be read.
    pub fn read(identity: Identity) -> Result<Self, MachineError> {
        Self::read_below(Path::new("/"), identity)
    }

    fn read_below(root: &Path, identity: Identity) -> Result<Self, MachineError> {
        let path = root.join("proc/sys/kernel/random/boot_id");
        let boot = read(&path).and_then(|text| {
            let text = clean(&text);
            if text.is_empty() { Err(std::io::ErrorKind::InvalidData.into()) } else { Ok(text) }
        });
        let boot = boot.map_err(|error| MachineError::BootId { path, error })?;
        let Identity { id: instance, source } = identity;
        Ok(Self { root: root.to_owned(), boot: BootId(boot.as_str().into()), instance, source })
    }

    /// The source of the instance's id.
    #[must_use]
    pub fn instance_source(&self) -> InstanceSource {
        self.source
    }
}

#[async_trait]
impl Machine for LocalMachine {
    fn boot_id(&self) -> BootId {
        self.boot.clone()
    }

    fn instance_id(&self) -> String {
        self.instance.clone()
    }

    fn host_name(&self) -> String {
        clean(&rustix::system::uname().nodename().to_string_lossy())
    }

    async fn os(&self) -> OsFacts {
        let root = self.root.clone();
        tokio::task::spawn_blocking(move || os_facts(&root)).await.unwrap_or_default()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// An id names a directory, so it is one plain word. Firmware that nobody gave a uuid reports only
/// zeros or only ones, and a disk image an empty or "uninitialized" machine id: none of them tells
/// two machines apart.
fn identifier(text: &str) -> Option<String> {
    let id = clean(text).to_ascii_lowercase();
    let plain = id.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    let mut digits = id.chars().filter(|&c| c != '-');
    let first = digits.next()?;
    let varied = digits.any(|digit| digit != first);
    (plain && varied && id.len() <= 64).then_some(id)
}

fn os_facts(root: &Path) -> OsFacts {
    let uname = rustix::system::uname();
    let text = |part: &std::ffi::CStr| clean(&part.to_string_lossy());
    let release = os_release(root).unwrap_or_default();
    let field = |key: &str| release_field(&release, key).unwrap_or_default();
    let short_name = Some(field("ID")).filter(|id| !id.is_empty());
    let long_name = Some(field("PRETTY_NAME")).filter(|name| !name.is_empty());
    OsFacts {
        kind: "linux".to_owned(),
        // The two defaults that os-release(5) states.
        short_name: short_name.unwrap_or_else(|| "linux".to_owned()),
        long_name: long_name.unwrap_or_else(|| "Linux".to_owned()),
        version: field("VERSION_ID"),
        architecture: text(uname.machine()),
        kernel_release: text(uname.release()),
        kernel_version: text(uname.version()),
    }
}

/// The second place is for systems whose /etc is empty or generated.
fn os_release(root: &Path) -> std::io::Result<String> {
    read(&root.join("etc/os-release")).or_else(|_| read(&root.join("usr/lib/os-release")))
}

/// All keys of os-release with their values.
pub(crate) fn release_fields(root: &Path) -> std::io::Result<BTreeMap<String, String>> {
    let release = os_release(root)?;
    let is_key =
        |key: &str| !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let assignments = release.lines().filter_map(|line| line.trim().split_once('='));
    let fields = assignments.filter(|(key, _)| is_key(key));
    // The last assignment counts, as in the shell.
    Ok(fields.map(|(key, value)| (key.to_owned(), clean(&unquoted(value)))).collect())
}

/// The value of a key in an os-release file. The last assignment counts, as in the shell.
fn release_field(release: &str, key: &str) -> Option<String> {
    let mut values =
        release.lines().filter_map(|line| line.trim().strip_prefix(key)?.strip_prefix('='));
    values.next_back().map(|value| clean(&unquoted(value)))
}

/// Reads one shell word: single quotes keep every character, double quotes and bare text have the
/// backslash as an escape. An open quote ends with the line.
fn unquoted(value: &str) -> String {
    let mut out = String::new();
    let mut quote = None;
    let mut chars = value.trim().chars();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\'' | '"', None) => quote = Some(c),
            (c, Some(open)) if c == open => quote = None,
            ('\\', None) => out.extend(chars.next()),
            ('\\', Some('"')) => match chars.next() {
                Some(special @ ('"' | '\\' | '$' | '`')) => out.push(special),
                // Before any other character the backslash is kept.
                other => out.extend(std::iter::once(c).chain(other)),
            },
            // An unquoted blank ends the word.
            (c, None) if c.is_whitespace() => break,
            (c, _) => out.push(c),
        }
    }
    out
}

/// The text without control characters, without blanks at its ends, and not too long.
fn clean(text: &str) -> String {
    let kept: String = text.trim().chars().filter(|c| !c.is_control()).collect();
    let end = (0..=kept.len().min(VALUE_MAX)).rev().find(|&at| kept.is_char_boundary(at));
    kept[..end.unwrap_or(0)].to_owned()
}

fn read(path: &Path) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given() -> Identity {
        Identity { id: "mine".to_owned(), source: InstanceSource::Given }
    }

    /// A machine that has these files.
    fn machine(files: &[(&str, &str)]) -> (tempfile::TempDir, LocalMachine) {
        let root = tempfile::tempdir().expect("a directory");
        for (path, content) in [("proc/sys/kernel/random/boot_id", "b00t\n")].iter().chain(files) {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, content).expect("written");
        }
        let machine = LocalMachine::read_below(root.path(), given()).expect("a machine");
        (root, machine)
    }

    #[test]
    fn an_id_that_tells_nothing_is_passed_over() {
        for useless in ["", "\n", "00000000-0000", "FFFFFFFF", "uninitialized", "../../etc", "a/b"]
        {
            assert_eq!(identifier(useless), None, "{useless:?}");
        }
        assert_eq!(identifier("ABCD-12\n").as_deref(), Some("abcd-12"));
    }

    #[test]
    fn a_machine_without_boot_id_is_an_error_that_names_the_file() {
        let root = tempfile::tempdir().expect("a directory");
        let error = LocalMachine::read_below(root.path(), given()).expect_err("no boot id");
        assert!(error.to_string().contains("boot_id"), "{error}");
    }

    #[tokio::test]
    async fn the_operating_system_is_read_with_its_quotes() {
        let release = "# NAME=no\nID=debian\nVERSION_ID=\"13\"\nPRETTY_NAME=\"A \\\"B\\\" 13\"\n";
        let os = machine(&[("etc/os-release", release)]).1.os().await;
        assert_eq!((&*os.kind, &*os.short_name, &*os.version), ("linux", "debian", "13"));
        assert_eq!(os.long_name, "A \"B\" 13");
        assert!(!os.architecture.is_empty() && !os.kernel_release.is_empty());
    }

    #[tokio::test]
    async fn a_missing_or_hostile_release_file_is_survived() {
        assert_eq!(machine(&[]).1.os().await.short_name, "linux");
        let release = format!("ID='{}\nVERSION_ID=\"1\x1b[0m\nVERSION_ID\n=\n\"", "é".repeat(9999));
        let os = machine(&[("etc/os-release", &release)]).1.os().await;
        assert!(os.short_name.len() <= VALUE_MAX);
        assert_eq!(os.version, "1[0m");
    }

    #[test]
    fn shell_words_are_taken_apart() {
        for (word, expected) in [
            ("a b", "a"),
            ("'a \\b'", "a \\b"),
            ("\"a\"'b'c", "abc"),
            ("\"a\\b \\$ \\` \\\\ \\\"\"", "a\\b $ ` \\ \""),
            ("'it'\\''s'", "it's"),
            ("\"it's\" # no", "it's"),
            ("\"open", "open"),
            ("\\", ""),
        ] {
            assert_eq!(unquoted(word), expected);
        }
    }

    #[test]
    fn this_machine_can_be_read() {
        let machine = LocalMachine::read(given()).expect("this machine");
        assert!(!machine.boot_id().0.is_empty() && !machine.instance_id().is_empty());
    }
}
