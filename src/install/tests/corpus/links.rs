//! Links out, links through links, and links that change what they are.

use super::super::tarball::{Head, Tarball, record};
use super::{Case, Yard, absolute, refused, taken};

pub(super) fn cases() -> Vec<Case> {
    let good = Tarball::good;
    let outside = Yard::outside();
    let out = format!("{outside}/file");
    let through = |link: Tarball| link.file("out/file", 0o666, b"spoiled");
    let pax = |value: &[u8]| good().records(b'x', &record(b"linkpath", value));
    let sized = |kind| {
        let head = Head { name: b"odd", kind, target: b"run", mode: 0o755, size: 512 };
        good().head(head).data(&[0; 512])
    };
    // Each link doubles the number of names of the one before.
    let tangle = (1..60).fold(good().symlink("l0", "."), |tar, number| {
        let before = format!("l{}", number - 1);
        tar.symlink(&format!("l{number}"), &format!("{before}/{before}"))
    });
    let mut all = vec![
        refused("symlink up", good().symlink("s", &out), "outside"),
        refused("symlink to the parent", good().symlink("s", ".."), "outside"),
        refused("symlink to the root", good().symlink("s", "/"), "absolute"),
        refused("symlink absolute", good().symlink("s", &absolute("f")), "absolute"),
        refused("symlink into proc", good().symlink("s", "/proc/self/root/etc"), "absolute"),
        refused("symlink to a descriptor", good().symlink("s", "/dev/fd/3"), "absolute"),
        refused("symlink behind a folder", good().symlink("s", "a/../../x"), "outside"),
        refused("symlink one too high", good().symlink("d/s", "../../x"), "outside"),
        refused("symlink to another revision", good().symlink("s", "../r0/run"), "outside"),
        refused("symlink to nothing", good().symlink("s", ""), "is empty"),
        refused("symlink in PAX", pax(b"/etc").symlink("s", "run"), "absolute"),
        refused("symlink with a NUL", pax(b"a\0b").symlink("s", "run"), "control character"),
        refused("symlink that is not UTF-8", pax(b"\xff").symlink("s", "run"), "UTF-8"),
        refused(
            "symlink in a long target",
            good().long(b'K', out.as_bytes()).symlink("s", "run"),
            "outside",
        ),
        refused(
            "symlink with a target of 4097 bytes",
            good().long(b'K', &[b'n'; 4097]).symlink("s", "run"),
            "longer",
        ),
        refused("file through a symlink out", through(good().symlink("out", outside)), "outside"),
        refused("file through a symlink to the root", through(good().symlink("out", "/")), "absol"),
        refused(
            "file through a symlink inside",
            through(good().folder("in", 0o755).symlink("out", "in")),
            "conflicts with that of another member",
        ),
        refused(
            "folder through a symlink",
            good().symlink("out", ".").folder("out/made", 0o777),
            "conflicts with that of another member",
        ),
        refused(
            "symlink through a symlink",
            good().folder("d", 0o755).symlink("a", "d").symlink("a/b", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "hard link through a symlink",
            good().symlink("a", ".").hard_link("a/h", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "hard link from behind a symlink",
            good().symlink("a", ".").hard_link("h", "a/run"),
            "not a regular file",
        ),
        refused(
            "symlink over a file",
            good().file("s", 0o644, b"").symlink("s", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "file over a symlink",
            good().symlink("s", "run").file("s", 0o644, b"x"),
            "conflicts with that of another member",
        ),
        refused(
            "symlink over a folder",
            good().folder("s", 0o755).symlink("s", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "folder over a symlink",
            good().symlink("s", ".").folder("s", 0o777),
            "conflicts with that of another member",
        ),
        refused(
            "symlink, folder and symlink again",
            good().symlink("s", "run").folder("s", 0o755).symlink("s", outside),
            "outside",
        ),
        refused(
            "folder, symlink and folder again",
            good().folder("s", 0o755).symlink("s", ".").folder("s", 0o755).file("s/f", 0o644, b""),
            "conflicts with that of another member",
        ),
        refused(
            "file in a folder that becomes a symlink",
            good().file("out/file", 0o644, b"").symlink("out", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "hard link over a symlink",
            good().symlink("s", "run").hard_link("s", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "symlinks that lead out together",
            good().symlink("deep/er/x", "../../top").symlink("y", "deep/er/x/../../z"),
            "leads out",
        ),
        refused(
            "symlinks that climb one after the other",
            good().symlink("a", "b/..").symlink("b", "c/..").symlink("c", "run"),
            "leads out",
        ),
        refused(
            "symlinks in a circle",
            good().symlink("a", "b").symlink("b", "a"),
            "leads to itself",
        ),
        refused("symlink to itself", good().symlink("a", "./a"), "leads to itself"),
        refused("symlink into itself", good().symlink("a", "a/b"), "leads to itself"),
        refused("symlinks in a tangle", tangle, "leads to itself"),
        refused("hard link up", good().hard_link("h", &out), "not a path inside"),
        refused("hard link absolute", good().hard_link("h", "/etc/passwd"), "not a path inside"),
        refused("hard link to another revision", good().hard_link("h", "../r0/run"), "not a path"),
        refused("hard link to nothing", good().hard_link("h", ""), "not a path inside"),
        refused("hard link to the root", good().hard_link("h", "."), "not a regular file"),
        refused("hard link in PAX", pax(out.as_bytes()).hard_link("h", "run"), "not a path inside"),
        refused(
            "hard link in a long target",
            good().long(b'K', out.as_bytes()).hard_link("h", "run"),
            "not a path inside",
        ),
        refused(
            "hard link to a symlink",
            good().symlink("s", "run").hard_link("h", "s"),
            "not a regular file",
        ),
        refused(
            "hard link to a folder",
            good().folder("d", 0o755).hard_link("h", "d"),
            "not a regular file",
        ),
        refused(
            "hard link to what comes later",
            good().hard_link("h", "f").file("f", 0o644, b""),
            "not a regular file",
        ),
        refused(
            "hard link to itself",
            good().hard_link("run", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "hard link over a folder",
            good().folder("d", 0o755).hard_link("d", "run"),
            "conflicts with that of another member",
        ),
        refused(
            "hard link below a file",
            good().file("f", 0o644, b"").hard_link("f/h", "run"),
            "conflicts with that of another member",
        ),
        refused("hard link with content", sized(b'1'), "has content"),
        refused("symlink with content", sized(b'2'), "has content"),
        refused("the program is a link out", Tarball::default().symlink("run", &out), "outside"),
        refused(
            "the program is a link to nothing",
            Tarball::default().symlink("run", "gone"),
            "not in the archive",
        ),
        refused(
            "the program is a link to a folder",
            Tarball::default().symlink("run", "d").folder("d", 0o755),
            "not a regular file",
        ),
    ];
    all.extend(odd());
    all
}

fn odd() -> [Case; 6] {
    let good = Tarball::good;
    [
        taken(
            "two symlinks of one name",
            good().symlink("s", "gone").symlink("s", "run"),
            &["link s -> run"],
        ),
        taken(
            "symlinks to where they are",
            good().symlink("dot", ".").symlink("d/up", "..").symlink("gone", "not/there"),
            &["folder 755 d", "link d/up -> ..", "link dot -> .", "link gone -> not/there"],
        ),
        taken(
            "symlink with slashes and dots",
            good().symlink("s", ".//./d///../run/"),
            &["link s -> .//./d///../run/"],
        ),
        taken(
            "a file that replaces one of two names",
            good().file("a", 0o644, b"old").hard_link("b", "a").file("a", 0o600, b"new"),
            &["file 600 a 3 \"new\"", "file 644 b 3 \"old\""],
        ),
        taken(
            "hard links to hard links",
            good().file("a", 0o644, b"x").hard_link("b", "a").hard_link("d/c", "./b"),
            &[
                "file 644 a 1 \"x\" names=3",
                "file 644 b 1 \"x\" names=3",
                "file 644 d/c 1 \"x\" names=3",
                "folder 755 d",
            ],
        ),
        taken(
            "a hard link in the place of a file",
            good().file("a", 0o644, b"a").file("b", 0o600, b"b").hard_link("b", "a"),
            &["file 644 a 1 \"a\" names=2", "file 644 b 1 \"a\" names=2"],
        ),
    ]
}
