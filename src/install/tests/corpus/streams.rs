//! Streams that end early, that have bytes after their end, or that are not archives at all.

use super::super::tarball::{Head, Tarball, gzip, xz, zstd};
use super::{Case, refused, refused_bytes, taken_bytes};

/// A valid archive with every kind of header.
pub(super) fn of_everything() -> Vec<u8> {
    Tarball::good()
        .pax(b'g', &[("comment", "harmless")])
        .folder("d", 0o755)
        .pax(b'x', &[("path", "d/pax"), ("size", "600")])
        .head(Head { name: b"x", kind: b'0', target: b"", mode: 0o644, size: 0 })
        .data(&[b'p'; 600])
        .long(b'L', b"d/long")
        .file("x", 0o644, &[b'l'; 1024])
        .long(b'K', b"d/pax")
        .symlink("s", "x")
        .hard_link("h", "run")
        .finish()
}

pub(super) async fn cases() -> Vec<Case> {
    let good = || Tarball::good().finish();
    let open = || Tarball::good().file("a", 0o644, b"x").cut();
    let zeros = |blocks: usize| vec![0; 512 * blocks];
    let tar = good();
    let (gz, zst, xzs) = (gzip(&tar).await, zstd(&tar).await, xz(&tar).await);
    let spoilt = |bytes: &[u8], from_end: usize| {
        let mut bytes = bytes.to_vec();
        let at = bytes.len() - from_end;
        bytes[at] ^= 1;
        bytes
    };
    let mut all = vec![
        refused_bytes("nothing", vec![], "it is empty"),
        refused_bytes("one byte", vec![0x1f], "it begins with"),
        refused_bytes("zeros", zeros(4), "it begins with"),
        refused_bytes("a web page", b"<html>Please log in</html>".to_vec(), "web page"),
        refused_bytes("a zip file", b"PK\x03\x04zip".to_vec(), "zip"),
        refused_bytes("a bzip2 file", b"BZh91AY&SY".to_vec(), "bzip2"),
        refused_bytes("a program", b"\x7fELF\x02\x01\x01".to_vec(), "it is an executable"),
        refused_bytes("a script", b"#!/bin/sh\nexit 0\n".to_vec(), "it begins with"),
        refused_bytes("a terminal's nightmare", b"\x1b]0;title\x07\x1b[2J".repeat(40), "\\x1b"),
        refused_bytes("no end marker", open(), "no end marker"),
        refused_bytes("half a block of zeros at the end", [open(), vec![0; 100]].concat(), "tar"),
        refused_bytes("another archive behind the end", [good(), good()].concat(), "after the end"),
        refused_bytes(
            "a member behind one block of zeros",
            [open(), zeros(1), good()].concat(),
            "after the end",
        ),
        refused_bytes("a byte behind the end", [good(), vec![1]].concat(), "after the end"),
        refused_bytes(
            "a byte behind many zeros",
            [good(), zeros(3000), vec![1]].concat(),
            "after the end",
        ),
        refused_bytes("garbage in front", [b"garbage".to_vec(), good()].concat(), "it begins with"),
        refused_bytes("zeros in front", gzip(&[zeros(1), good()].concat()).await, "after the end"),
        refused_bytes("an empty tar in gzip", gzip(&zeros(2)).await, "not in the archive"),
        refused_bytes("nothing in gzip", gzip(b"").await, "no end marker"),
        refused_bytes("nothing in zstd", zstd(b"").await, "no end marker"),
        refused_bytes("nothing in xz", xz(b"").await, "no end marker"),
        refused_bytes("a script in gzip", gzip(b"#!/bin/sh\nexit 0\n").await, "tar"),
        refused_bytes("a skippable frame alone", b"\x50\x2a\x4d\x18\x03\0\0\0abc".to_vec(), ""),
        refused_bytes(
            "a skippable frame of four gibibytes",
            b"\x50\x2a\x4d\x18\xff\xff\xff\xff".to_vec(),
            "zstd",
        ),
        refused_bytes("gzip with garbage behind", [&gz[..], b"garbage"].concat(), ""),
        refused_bytes("zstd with garbage behind", [&zst[..], b"garbage"].concat(), ""),
        refused_bytes("xz with garbage behind", [&xzs[..], b"garbage"].concat(), ""),
        refused_bytes("gzip with zeros behind", [&gz[..], &[0; 512]].concat(), ""),
        refused_bytes("gzip with a wrong sum", spoilt(&gz, 6), ""),
        refused_bytes("gzip with a wrong length", spoilt(&gz, 2), ""),
        refused_bytes("xz with a wrong sum", spoilt(&xzs, 10), "xz"),
        refused_bytes("gzip without its end", gz[..gz.len() - 1].to_vec(), "ends early"),
        refused_bytes("zstd without its end", zst[..zst.len() - 1].to_vec(), "ends early"),
        refused_bytes("xz without its end", xzs[..xzs.len() - 1].to_vec(), "ends early"),
        refused_bytes("the beginning of gzip", gz[..3].to_vec(), ""),
        refused_bytes("gzip with another method", [&[0x1f, 0x8b, 9], &gz[3..]].concat(), ""),
        refused_bytes("gzip behind zstd", [&zst[..], &gz].concat(), "zstd"),
        refused_bytes(
            "two whole archives in two gzip members",
            [gzip(&good()).await, gzip(&good()).await].concat(),
            "after the end",
        ),
    ];
    // A stream of this old format has no magic number.
    let ancient = Tarball::good().edit(|block| block[257..].fill(0));
    all.push(refused_bytes("an ancient tar", ancient.clone().finish(), "it begins with"));
    all.push(taken_bytes("an ancient tar in gzip", gzip(&ancient.finish()).await, &[]));
    let halves = tar.split_at(700);
    all.extend([
        taken_bytes(
            "one block of zeros at the end",
            [open(), zeros(1)].concat(),
            &["file 644 a 1 \"x\""],
        ),
        taken_bytes("tape padding", [good(), zeros(18)].concat(), &[]),
        taken_bytes("zeros that are no whole block", [good(), vec![0; 77]].concat(), &[]),
        taken_bytes(
            "gzip in two parts",
            [gzip(halves.0).await, gzip(halves.1).await].concat(),
            &[],
        ),
        taken_bytes("xz in two parts", [xz(halves.0).await, xz(halves.1).await].concat(), &[]),
        taken_bytes(
            "zstd in two parts with a note between",
            [zstd(halves.0).await, b"\x5f\x2a\x4d\x18\x02\0\0\0hi".to_vec(), zstd(halves.1).await]
                .concat(),
            &[],
        ),
    ]);
    all.push(refused("nothing but a program that is cut", Tarball::good().raw(&[b'x'; 5]), "tar"));
    all
}
