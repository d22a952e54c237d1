//! Which names and links of an archive are acceptable. Pure: no file is touched here.
//!
//! A [`MemberPath`] is normalised and cannot leave the folder it is joined to. No name has control
//! characters (general category Cc of Unicode: C0, DEL and C1), because terminals obey them, and
//! one line of a list of files would be read as two. Symbolic links are
//! judged twice: when they are read, each by itself, and at the end all together, because a link
//! that looks harmless can lead out through another one. `unpack` calls this.

use std::collections::BTreeMap;

use crate::install::error::UnpackError;
use crate::install::limits::Limits;

/// How many links may follow each other; the kernel's number.
const MAX_HOPS: usize = 40;

/// How many names it may take to follow all links together, so that a tangle of links cannot use a
/// processor for minutes.
const MAX_STEPS: usize = 1_000_000;

/// Where a member belongs: names joined by single slashes, without `.` and `..`. Empty for the root
/// of the archive.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemberPath(String);

/// All symbolic links of an archive: path → target.
#[derive(Debug, Default)]
pub(crate) struct Symlinks {
    targets: BTreeMap<MemberPath, String>,
    bytes: usize,
}

/// Why a path cannot be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Astray {
    /// It leaves the archive.
    Outside,
    /// It has no end, or following it takes too long.
    Tangled,
}

// === impl MemberPath ===

impl MemberPath {
    /// Parses a name from an archive.
    pub(crate) fn parse(raw: &[u8], limits: &Limits) -> Result<Self, UnpackError> {
        let wrong = |reason| UnpackError::Name { member: escaped(raw), reason };
        if raw.is_empty() {
            return Err(wrong("has no name"));
        }
        if raw.len() > limits.path_bytes {
            return Err(wrong("has a path that is longer than allowed"));
        }
        let Ok(text) = std::str::from_utf8(raw) else {
            return Err(wrong("has a name that is not UTF-8"));
        };
        if text.contains(char::is_control) {
            return Err(wrong("has a control character in its name; rename it and pack again"));
        }
        if text.starts_with('/') {
            return Err(wrong("has an absolute path"));
        }
        let mut path = String::with_capacity(text.len());
        let mut depth = 0;
        for name in text.split('/').filter(|name| !name.is_empty() && *name != ".") {
            if name == ".." {
                return Err(wrong("has '..' in its path"));
            }
            if name.len() > limits.component_bytes {
                return Err(wrong("has a name that is longer than allowed"));
            }
            depth += 1;
            if depth > limits.depth {
                return Err(wrong("lies deeper than allowed"));
            }
            if !path.is_empty() {
                path.push('/');
            }
            path.push_str(name);
        }
        Ok(Self(path))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path of the folder it lies in, and its name there.
    pub(crate) fn split(&self) -> (&str, &str) {
        self.0.rsplit_once('/').unwrap_or(("", &self.0))
    }
}

// === impl Symlinks ===

impl Symlinks {
    /// Adds a link; a later one replaces an earlier one of the same name.
    pub(crate) fn add(
        &mut self,
        path: MemberPath,
        target: &[u8],
        limits: &Limits,
    ) -> Result<(), UnpackError> {
        let wrong = |reason| link_error("symbolic link", &path, target, reason);
        if target.is_empty() {
            return Err(wrong("is empty"));
        }
        if target.len() > limits.path_bytes {
            return Err(wrong("is longer than allowed"));
        }
        let Ok(text) = std::str::from_utf8(target) else {
            return Err(wrong("is not UTF-8"));
        };
        if text.contains(char::is_control) {
            return Err(wrong("has a control character in it"));
        }
        if text.starts_with('/') {
            return Err(wrong("is absolute"));
        }
        let mut depth = path.split().0.split('/').filter(|name| !name.is_empty()).count();
        for name in text.split('/') {
            match name {
                "" | "." => {}
                ".." => match depth.checked_sub(1) {
                    Some(less) => depth = less,
                    None => return Err(wrong("is outside of the archive")),
                },
                _ => depth += 1,
            }
        }
        self.bytes = self.bytes.saturating_add(path.0.len() + text.len());
        if self.bytes > limits.symlink_bytes {
            let limit = limits.symlink_bytes as u64;
            return Err(UnpackError::Limit { what: "bytes of symbolic links", limit });
        }
        self.targets.insert(path, text.to_owned());
        Ok(())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&MemberPath, &str)> {
        self.targets.iter().map(|(path, target)| (path, target.as_str()))
    }

    /// Follows every link to its end and refuses those that leave the archive on the way. A link
    /// whose end does not exist is fine.
    pub(crate) fn check_all(&self) -> Result<(), UnpackError> {
        let mut steps = MAX_STEPS;
        for (path, target) in &self.targets {
            let reason = match self.follow(&path.0, &mut steps) {
                Ok(_) => continue,
                Err(Astray::Outside) => "leads out of the archive",
                Err(Astray::Tangled) => "leads to itself",
            };
            return Err(link_error("symbolic link", path, target.as_bytes(), reason));
        }
        Ok(())
    }

    /// Where a path of the archive leads when all links on the way are followed.
    pub(crate) fn resolve(&self, path: &str) -> Result<String, Astray> {
        let mut steps = MAX_STEPS;
        self.follow(path, &mut steps)
    }

    fn follow(&self, path: &str, steps: &mut usize) -> Result<String, Astray> {
        let mut found = MemberPath(String::new());
        let mut hops = 0;
        // The names that remain of the path, the next one last.
        let mut ahead: Vec<&str> = path.split('/').rev().collect();
        while let Some(name) = ahead.pop() {
            *steps = steps.checked_sub(1).ok_or(Astray::Tangled)?;
            match name {
                "" | "." => {}
                ".." if found.is_root() => return Err(Astray::Outside),
                ".." => found.0.truncate(found.0.rfind('/').unwrap_or(0)),
                name => {
                    let parent = found.0.len();
                    if parent > 0 {
                        found.0.push('/');
                    }
                    found.0.push_str(name);
                    if let Some(target) = self.targets.get(&found) {
                        hops += 1;
                        if hops > MAX_HOPS {
                            return Err(Astray::Tangled);
                        }
                        found.0.truncate(parent);
                        ahead.extend(target.split('/').rev());
                    }
                }
            }
        }
        Ok(found.0)
    }
}

/// An error about a link.
pub(crate) fn link_error(
    kind: &'static str,
    path: &MemberPath,
    target: &[u8],
    reason: &'static str,
) -> UnpackError {
    let member = escaped(path.as_str().as_bytes());
    UnpackError::Link { kind, member, target: escaped(target), reason }
}

/// A name that an archive chose, safe for a log: quoted, escaped, and not longer than a line.
pub(crate) fn escaped(raw: &[u8]) -> String {
    const MAX: usize = 100;
    let shown = raw[..raw.len().min(MAX)].escape_ascii();
    if raw.len() > MAX { format!("\"{shown}…\"") } else { format!("\"{shown}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(raw: &[u8]) -> Result<String, String> {
        MemberPath::parse(raw, &Limits::default()).map(|p| p.0).map_err(|e| e.to_string())
    }

    fn links(pairs: &[(&str, &str)]) -> Result<Symlinks, UnpackError> {
        let mut links = Symlinks::default();
        for (path, target) in pairs {
            let path = MemberPath::parse(path.as_bytes(), &Limits::default())?;
            links.add(path, target.as_bytes(), &Limits::default())?;
        }
        links.check_all()?;
        Ok(links)
    }

    #[test]
    fn names_are_normalised() {
        assert_eq!(parse(b"./a//b/./c/"), Ok("a/b/c".into()));
        assert_eq!(parse(b"./"), Ok(String::new()));
        assert_eq!(parse(b"a..b/..."), Ok("a..b/...".into()));
    }

    #[test]
    fn names_that_could_leave_are_refused() {
        for bad in [&b""[..], b"/a", b"..", b"a/../b", b"a/..", b"a\0b", b"\xff\xfe"] {
            assert!(parse(bad).is_err(), "{} was taken", bad.escape_ascii());
        }
        assert!(parse("a/".repeat(129).as_bytes()).is_err());
        assert!(parse("a".repeat(256).as_bytes()).is_err());
        assert!(parse("abcdefg/".repeat(600).as_bytes()).is_err());
    }

    #[test]
    fn names_with_control_characters_are_refused_and_shown_escaped() {
        let controls = ('\0'..='\x1f').chain('\x7f'..='\u{9f}');
        for control in controls {
            let name = format!("a/b{control}c");
            let error = parse(name.as_bytes()).expect_err(&name);
            assert!(error.contains("control character"), "{error}");
            let escaped = control.to_string().into_bytes().escape_ascii().to_string();
            assert!(error.contains(&escaped) && !error.contains(control), "{error}");
            let error = links(&[("link", &name)]).expect_err("a target").to_string();
            assert!(error.contains("control character") && error.contains(&escaped), "{error}");
        }
        for fine in ["a b", "\u{a0}", "ä", "\u{200e}", "~"] {
            assert_eq!(parse(fine.as_bytes()), Ok(fine.to_owned()));
        }
    }

    #[test]
    fn a_refused_name_is_shown_escaped_and_cut() {
        let error = parse(b"\x1b[31m\xff").expect_err("not UTF-8");
        assert!(error.contains(r"\x1b[31m\xff"), "{error}");
        assert!(parse(&[b'a'; 100_000]).expect_err("too long").len() < 300);
    }

    #[test]
    fn links_inside_are_taken() {
        let taken = links(&[("lib/current", "v1"), ("run", "lib/current/run"), ("d/up", "../x")]);
        let taken = taken.expect("all of them stay inside");
        assert_eq!(taken.resolve("run"), Ok("lib/v1/run".into()));
        assert_eq!(taken.resolve("d/up"), Ok("x".into()));
    }

    #[test]
    fn links_out_are_refused() {
        for bad in ["/etc/passwd", "..", "../x", "a/../../x", "", "a\0b"] {
            assert!(links(&[("link", bad)]).is_err(), "{bad:?} was taken");
        }
        assert!(links(&[("d/link", "../../x")]).is_err());
    }

    #[test]
    fn links_that_lead_out_only_together_are_refused() {
        // Each link looks harmless alone: `x` is at the top, so one step up from it is outside.
        let both = links(&[("deep/er/x", "../../top"), ("y", "deep/er/x/../../z")]);
        assert!(both.is_err());
    }

    #[test]
    fn links_in_circles_are_refused() {
        assert!(links(&[("a", "b"), ("b", "a")]).is_err());
        assert!(links(&[("a", "a/b")]).is_err());
    }

    proptest! {
        #[test]
        fn law_a_taken_path_stays_inside(raw in proptest::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(path) = MemberPath::parse(&raw, &Limits::default()) {
                prop_assert!(!path.0.starts_with('/'));
                prop_assert!(path.0.split('/').all(|name| name != ".."));
            }
        }

        #[test]
        fn law_following_links_ends(
            pairs in proptest::collection::vec(("[ab./]{1,6}", "[ab./]{1,8}"), 0..8)
        ) {
            let mut set = Symlinks::default();
            for (path, target) in &pairs {
                if let Ok(path) = MemberPath::parse(path.as_bytes(), &Limits::default()) {
                    set.add(path, target.as_bytes(), &Limits::default()).ok();
                }
            }
            set.check_all().ok();
            if let Ok(end) = set.resolve("a/b/a") {
                prop_assert!(end.split('/').all(|name| name != ".."));
            }
        }
    }
}
