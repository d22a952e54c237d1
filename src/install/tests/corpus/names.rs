//! Names that lead out of the folder, and names that are only unusual.

use super::super::tarball::{Head, Tarball, record};
use super::{Case, Yard, absolute, refused, taken};

pub(super) fn cases() -> Vec<Case> {
    let good = Tarball::good;
    let file = |name: &str| good().file(name, 0o644, b"x");
    let out = |name: &str| format!("{}/{name}", Yard::outside());
    let bare =
        |name: &[u8]| good().head(Head { name, kind: b'0', target: b"", mode: 0o644, size: 0 });
    let pax = |key: &str, value: &[u8]| {
        good().records(b'x', &record(key.as_bytes(), value)).file("a", 0o644, b"x")
    };
    let long = |name: &[u8]| good().long(b'L', name).file("short", 0o644, b"x");
    let prefixed = |prefix: &[u8], name: &str| file(name).field(345, prefix);
    let deep = |names: usize| "d/".repeat(names - 1) + "f";
    vec![
        refused("parent", file(&out("file")), "'..'"),
        refused("parent behind a folder", file(&format!("a/../{}", out("file"))), "'..'"),
        refused("parent behind a dot", file("./../r0/run"), "'..'"),
        refused("parent at the end", file("a/.."), "'..'"),
        refused("nothing but parent", good().folder("..", 0o777), "'..'"),
        refused("parent with many slashes", file("..//..//..//outside/file"), "'..'"),
        refused("parent that comes back", file("../r1/file"), "'..'"),
        refused("folder in parent", good().folder("../made", 0o755), "'..'"),
        refused("other revision", file("../r0/run"), "'..'"),
        refused("other plugin", file("../../bystander/r1/run"), "'..'"),
        refused("the current link", good().symlink("../current", "r0"), "'..'"),
        refused("absolute", file(&absolute("file")), "absolute"),
        refused("absolute twice", file(&format!("/{}", absolute("file"))), "absolute"),
        refused("absolute folder", good().folder(&absolute("folder"), 0o777), "absolute"),
        refused("nothing but root", good().folder("/", 0o777), "absolute"),
        refused("parent in the prefix", prefixed(b"../../outside", "file"), "'..'"),
        refused("parent over the seam of the prefix", prefixed(b"..", "x"), "'..'"),
        refused("absolute prefix", prefixed(b"/tmp", "guest-agent-absolute"), "absolute"),
        refused("parent in PAX", pax("path", out("file").as_bytes()), "'..'"),
        refused("absolute in PAX", pax("path", absolute("f").as_bytes()), "absolute"),
        refused("NUL in PAX", pax("path", b"a\0/../../b"), "control character"),
        refused("not UTF-8 in PAX", pax("path", b"\xff\xfe"), "UTF-8"),
        refused("empty in PAX", pax("path", b""), "empty values"),
        refused("parent in a long name", long(out("file").as_bytes()), "'..'"),
        refused("absolute in a long name", long(absolute("f").as_bytes()), "absolute"),
        refused("empty long name", long(b""), "no name"),
        refused("long name of a NUL", long(b"\0"), "no name"),
        refused("long name that is not UTF-8", long(b"\xc3\x28"), "UTF-8"),
        refused("two dots in overlong UTF-8", bare(b"\xc0\xae\xc0\xae/file"), "UTF-8"),
        refused("not UTF-8", bare(b"\xff\xfe"), "UTF-8"),
        refused("no name", bare(b""), "no name"),
        refused("a file that is the root", bare(b"./"), "no name"),
        refused("a file that is a dot", bare(b"."), "no name"),
        refused("a link that is the root", good().symlink(".", "run"), "no name"),
        refused("a hard link that is the root", good().hard_link("./.", "run"), "no name"),
        refused("a file with a slash at its end", bare(b"a/"), "slash"),
        refused("escape sequences", bare(b"\x1b[2J\x07/../x\r"), "\\x1b[2J"),
        refused("a name of 256 bytes", long(&[b'n'; 256]), "longer"),
        refused("a path of 4104 bytes", long("abcdefg/".repeat(513).as_bytes()), "longer"),
        refused("129 names deep", long(deep(129).as_bytes()), "deeper"),
        taken(
            "128 names deep with nothing in it",
            good().long(b'L', "./".repeat(200).as_bytes()).folder("short", 0o700),
            &[],
        ),
        taken(
            "the agent's own names",
            file(".installed-r1").symlink("current", "run").folder(".staging-r1-00", 0o755),
            &["file 644 .installed-r1 1 \"x\"", "folder 755 .staging-r1-00", "link current -> run"],
        ),
        taken(
            "backslashes",
            file("..\\outside\\file"),
            &["file 644 ..\\\\outside\\\\file 1 \"x\""],
        ),
        refused("a line break", bare(b"a\nb"), "\"a\\nb\" has a control character"),
        refused("a control character of UTF-8", bare(b"a\xc2\x9bb"), "a\\xc2\\x9bb"),
        refused("a line break in a long name", long(b"a\nb"), "a control character"),
        refused("a line break in PAX", pax("path", b"a\nb"), "a control character"),
        refused("a line break in a target", good().symlink("s", "r\nun"), "r\\nun"),
        refused("a line break in a hard link", good().hard_link("h", "r\nun"), "r\\nun"),
        taken("spaces and dots", file(" . "), &["file 644  .  1 \"x\""]),
        taken("three dots", file(".../..x"), &["file 644 .../..x 1 \"x\"", "folder 755 ..."]),
        taken("a drive letter", file("C:file"), &["file 644 C:file 1 \"x\""]),
        taken(
            "names that differ in case",
            file("Name").file("name", 0o600, b"yy"),
            &["file 600 name 2 \"yy\"", "file 644 Name 1 \"x\""],
        ),
        taken(
            "names that look the same",
            bare("\u{e9}".as_bytes()).file("e\u{301}", 0o600, b"yy"),
            &["file 600 e\\xcc\\x81 2 \"yy\"", "file 644 \\xc3\\xa9 0 \"\""],
        ),
        taken("what stands behind a NUL", bare(b"a\0/../../b"), &["file 644 a 0 \"\""]),
        taken(
            "what stands behind a NUL in a long name",
            long(b"a\0/../b"),
            &["file 644 a 1 \"x\""],
        ),
        taken("a long name with a NUL at its end", long(b"ab\0"), &["file 644 ab 1 \"x\""]),
        taken(
            "a link with a slash at its end",
            good().symlink("s/", "run").hard_link("h/", "run"),
            &[
                "file 755 h 17 \"#!/bin/sh\\nexit 0\\n\" names=2",
                "file 755 run 17 \"#!/bin/sh\\nexit 0\\n\" names=2",
                "link s -> run",
            ],
        ),
        taken("a root with a mode", good().folder("./", 0o7777).folder(".", 0), &[]),
        taken(
            "a prefix",
            prefixed(b"a/b", "c"),
            &["file 644 a/b/c 1 \"x\"", "folder 755 a", "folder 755 a/b"],
        ),
    ]
}
