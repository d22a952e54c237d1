//! Members that are neither file nor folder nor link, and modes with more than permissions.

use super::super::tarball::{Head, Tarball};
use super::{Case, refused, taken};

pub(super) fn cases() -> Vec<Case> {
    let good = Tarball::good;
    let device = |kind| good().special(kind, "dev", "").field(329, b"0000010\x000000003\0");
    let with = |kind, data: &[u8]| {
        let size = data.len() as u64;
        good().head(Head { name: b"odd", kind, target: b"", mode: 0o6777, size }).data(data)
    };
    vec![
        refused("character device", device(b'3'), "character device"),
        refused("block device", device(b'4'), "block device"),
        refused("named pipe", good().special(b'6', "pipe", ""), "named pipe"),
        refused("device with content", with(b'3', b"x"), "character device"),
        refused("device that leads out", good().special(b'4', "../disk", ""), "block device"),
        refused("contiguous file", with(b'7', b"x"), "contiguous"),
        refused("Solaris header of nothing", with(b'X', b"9 path=b\n"), "not followed"),
        refused("Solaris access list", with(b'A', b"user::rwx"), "unknown type \"A\""),
        refused("GNU folder of names", with(b'D', b"Yname\0\0"), "unknown type \"D\""),
        refused("GNU rest of another volume", with(b'M', b"x"), "unknown type \"M\""),
        refused("GNU long names of old", with(b'N', b"Rename a to /b\n"), "unknown type \"N\""),
        refused("GNU label", with(b'V', b""), "unknown type \"V\""),
        refused("type of a socket", with(b's', b""), "unknown type \"s\""),
        refused("type 8", with(b'8', b""), "unknown type \"8\""),
        refused("type 255", with(0xff, b""), "unknown type \"\\xff\""),
        refused("type line break", with(b'\n', b""), "unknown type \"\\n\""),
        refused("no program", Tarball::default().file("other", 0o755, b""), "not in the archive"),
        refused("program without x", Tarball::default().file("run", 0o644, b""), "not executable"),
        refused(
            "program that is a folder",
            Tarball::default().folder("run", 0o755),
            "not a regular",
        ),
        refused(
            "file below a file",
            good().file("run/x", 0o644, b""),
            "conflicts with that of another member",
        ),
        refused(
            "folder over a file",
            good().folder("run", 0o755),
            "conflicts with that of another member",
        ),
        refused(
            "file over a folder",
            good().folder("d", 0o755).file("d", 0o755, b""),
            "conflicts with that of another member",
        ),
        taken(
            "special bits",
            good()
                .file("setuid", 0o4755, b"")
                .file("setgid", 0o2755, b"")
                .file("all", 0o7777, b"")
                .file("writable", 0o666, b"")
                .folder("shared", 0o3777),
            &[
                "file 644 writable 0 \"\"",
                "file 755 all 0 \"\"",
                "file 755 setgid 0 \"\"",
                "file 755 setuid 0 \"\"",
                "folder 755 shared",
            ],
        ),
        taken(
            "no mode at all",
            good().file("none", 0, b"x").folder("closed", 0).file("closed/in", 0o200, b""),
            &["file 400 none 1 \"x\"", "file 600 closed/in 0 \"\"", "folder 700 closed"],
        ),
        taken(
            "a folder three times",
            good().file("d/f", 0o644, b"").folder("d", 0o700).folder("d/", 0o750),
            &["file 644 d/f 0 \"\"", "folder 750 d"],
        ),
        taken("the old type of files", with(0, b"x"), &["file 755 odd 1 \"x\""]),
    ]
}
