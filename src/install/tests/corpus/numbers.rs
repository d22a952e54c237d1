//! Wrong numbers: sizes that are too small, too large and too long, in octal and in binary.

use super::super::tarball::{Head, Tarball};
use super::{Case, refused, refused_bytes, taken};

/// The offsets of the size, mode and time in a header.
const SIZE: usize = 124;
const MODE: usize = 100;
const TIME: usize = 136;

pub(super) fn cases() -> Vec<Case> {
    let good = Tarball::good;
    let head = |size| Head { name: b"odd", kind: b'0', target: b"", mode: 0o644, size };
    let sized = |size: &[u8]| good().file("odd", 0o644, b"seventeen letters").field(SIZE, size);
    let many = |size| good().head(head(size)).data(b"few");
    vec![
        refused("size beyond the archive", many(100_000), "ends early"),
        refused("size of eight gibibytes", many(0o777_7777_7777), "ends early"),
        // This file takes the end marker for its content.
        refused_bytes("size that takes the end marker", many(1025).finish(), "no end marker"),
        refused("size that is too small", good().head(head(1)).data(&[b'x'; 600]), "number"),
        refused("size of nothing", good().head(head(0)).data(b"content"), "number"),
        refused("size that is no number", sized(b"zzzzzzzzzzz\0"), "number"),
        refused("size that is negative", sized(b"-0000000001\0"), "number"),
        refused("size in decimal", sized(b"00000000009\0"), "number"),
        refused("size of spaces", sized(b"           \0"), "number"),
        refused("size of zeros bytes", sized(&[0; 12]), "number"),
        refused(
            "size that is not text",
            sized(b"\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\0"),
            "utf-8 text",
        ),
        refused("binary size of minus one", sized(&[0xff; 12]), "size"),
        refused(
            "binary size at the end",
            sized(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff"),
            "size overflow",
        ),
        refused(
            "binary size near the end",
            sized(b"\x80\0\0\0\xff\xff\xff\xff\xff\xff\xfe\x01"),
            "overflow",
        ),
        refused(
            "binary size of eight exbibytes",
            sized(b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"),
            "ends early",
        ),
        // A parser that reads all twelve bytes of the size field finds another number than a parser
        // that reads the last eight.
        refused(
            "binary size of more than 64 bits",
            sized(b"\x80\0\0\x01\0\0\0\0\0\0\0\x11"),
            "size",
        ),
        refused(
            "binary size that is negative",
            sized(b"\xff\xff\xff\xff\0\0\0\0\0\0\0\x11"),
            "size",
        ),
        refused(
            "mode that is no number",
            good().file("a", 0o644, b"").field(MODE, b"rwxr-xr-"),
            "number",
        ),
        refused(
            "mode in binary",
            good().file("a", 0o644, b"").field(MODE, b"\x80\0\0\0\0\0\x01\xed"),
            "utf-8 text",
        ),
        refused(
            "time that is no number",
            good().file("a", 0o644, b"").field(TIME, b"yesterday!!!"),
            "number",
        ),
        refused(
            "mode of a folder that is no number",
            good().folder("d", 0o755).field(MODE, b"########"),
            "number",
        ),
        refused(
            "size of a folder",
            good().head(Head { kind: b'5', ..head(512) }).data(&[0; 512]),
            "has content",
        ),
        taken(
            "binary size",
            sized(b"\x80\0\0\0\0\0\0\0\0\0\0\x11"),
            &["file 644 odd 17 \"seventeen letters\""],
        ),
        taken(
            "size with spaces",
            sized(b"        21 \0"),
            &["file 644 odd 17 \"seventeen letters\""],
        ),
        taken(
            "size without an end",
            sized(b"000000000021"),
            &["file 644 odd 17 \"seventeen letters\""],
        ),
        taken(
            "time beyond all clocks",
            good().file("a", 0o644, b"").field(TIME, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"),
            &["file 644 a 0 \"\""],
        ),
        taken(
            "padding that is not zero",
            good().head(head(3)).raw(&[b'x'; 512]),
            &["file 644 odd 3 \"xxx\""],
        ),
    ]
}
