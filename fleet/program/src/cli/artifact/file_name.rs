//! What the name of an archive says: `echo-1.2.0-linux-amd64.tar.gz`. Pure.

use guest_fleet_core::view::ANY_ARCHITECTURE;

const ENDS: [&str; 12] = [
    ".tar.gz", ".tar.zst", ".tar.xz", ".tar.bz2", ".tgz", ".tzst", ".txz", ".tar", ".zip", ".gz",
    ".zst", ".xz",
];

/// Words for architectures, and their names in Go style.
const ARCHITECTURES: [(&str, &str); 11] = [
    ("amd64", "amd64"),
    ("x64", "amd64"),
    ("arm64", "arm64"),
    ("armv7", "arm"),
    ("arm", "arm"),
    ("386", "386"),
    ("i686", "386"),
    ("riscv64", "riscv64"),
    ("ppc64le", "ppc64le"),
    ("s390x", "s390x"),
    ("loong64", "loong64"),
];

/// What the name of an archive says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Said {
    pub(super) plugin: Option<String>,
    pub(super) revision: Option<String>,
    pub(super) architecture: &'static str,
}

/// Reads the name of an archive.
pub(super) fn read(name: &str) -> Said {
    let stem = ENDS.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    let stem = stem.replace("x86_64", "amd64").replace("x86-64", "amd64");
    let stem = stem.replace("aarch64", "arm64");
    let mut architecture = ANY_ARCHITECTURE;
    let mut words = Vec::new();
    for word in stem.split(['-', '_']).filter(|word| !word.is_empty()) {
        match ARCHITECTURES.iter().find(|(known, _)| *known == word) {
            Some((_, name)) if !words.is_empty() => architecture = name,
            _ if word == "linux" => {}
            _ => words.push(word),
        }
    }
    let revision_at = words.iter().position(|word| is_version(word)).unwrap_or(words.len());
    let joined = |words: &[&str]| (!words.is_empty()).then(|| words.join("-"));
    Said {
        plugin: joined(&words[..revision_at]),
        revision: joined(&words[revision_at..]),
        architecture,
    }
}

fn is_version(word: &str) -> bool {
    word.strip_prefix('v').unwrap_or(word).starts_with(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, plugin: Option<&str>, revision: Option<&str>, architecture: &str) {
        let said = read(name);
        let found = (said.plugin.as_deref(), said.revision.as_deref(), said.architecture);
        assert_eq!(found, (plugin, revision, architecture), "{name}");
    }

    #[test]
    fn names_say_plugin_revision_and_architecture() {
        check("echo-1.2.0-linux-amd64.tar.gz", Some("echo"), Some("1.2.0"), "amd64");
        check("echo_1.2.0_linux_x86_64.tgz", Some("echo"), Some("1.2.0"), "amd64");
        check(
            "log-shipper-v2.0-rc1-aarch64.tar.zst",
            Some("log-shipper"),
            Some("v2.0-rc1"),
            "arm64",
        );
        check("echo-arm64.tar.xz", Some("echo"), None, "arm64");
        check("echo-1.2.0.tar", Some("echo"), Some("1.2.0"), "any");
        check("echo.tar.gz", Some("echo"), None, "any");
        check("1.2.0.tar.gz", None, Some("1.2.0"), "any");
        check("arm.tar.gz", Some("arm"), None, "any");
        check("", None, None, "any");
    }
}
