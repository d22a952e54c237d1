//! Small archives that would become large: in bytes, in members, in memory, in folders.

use guest_agent_actors::ports::InstallStep;

use super::super::tarball::{Head, Tarball, gzip, record, xz, zstd};
use super::{Case, refused, refused_bytes, taken, taken_bytes};

const MIB: usize = 1 << 20;

pub(super) async fn cases() -> Vec<Case> {
    let good = Tarball::good;
    let zeros = good().file("zeros", 0o644, &vec![0; 4 * MIB]).finish();
    let inner = gzip(&good().finish()).await;
    let mut all = vec![
        refused_bytes("gzip bomb", gzip(&zeros).await, "bomb").limited(|l| l.ratio = 100),
        refused_bytes("zstd bomb", zstd(&zeros).await, "bomb"),
        refused_bytes("xz bomb", xz(&zeros).await, "bomb"),
        refused_bytes("gzip in gzip", gzip(&inner).await, "gzip or tar"),
        refused_bytes("gzip in zstd", zstd(&inner).await, "zstd or tar"),
        refused_bytes("zstd in xz", xz(&zstd(&zeros).await).await, "xz or tar"),
        refused_bytes("a window of two gibibytes", window(21), "zstd"),
        refused_bytes("a dictionary of four gibibytes", dictionary(40), "xz"),
        refused_bytes("more bytes than may be transferred", zeros.clone(), "allowed")
            .limited(|l| l.archive_bytes = 1 << 20)
            .at(InstallStep::Download),
        refused_bytes("more bytes than may come out", gzip(&zeros).await, "when unpacked")
            .limited(|l| l.expanded_bytes = 1 << 20),
        refused_bytes(
            "more bytes than may come out, behind the end",
            gzip(&[good().finish(), vec![0; 4 * MIB]].concat()).await,
            "when unpacked",
        )
        .limited(|l| l.expanded_bytes = 1 << 20),
    ];
    all.extend(members());
    all.extend(held_in_memory());
    all.extend([
        // The file stays as it is.
        taken(
            "an archive that is a member",
            good().file("inner", 0o644, &[&inner[..3], &b"..."[..]].concat()),
            &["file 644 inner 6 \"\\x1f\\x8b\\x08...\""],
        ),
        taken_bytes(
            "a thousand empty gzip members",
            [gzip(b"").await.repeat(1000), gzip(&good().finish()).await].concat(),
            &[],
        ),
        taken_bytes("a gzip name of a mebibyte", named(&gzip(&good().finish()).await), &[]),
        taken_bytes(
            "ten mebibytes of zeros behind the end",
            xz(&[good().finish(), vec![0; 10 * MIB]].concat()).await,
            &[],
        )
        .limited(|l| l.ratio = 1 << 20),
        taken(
            "as many members as are allowed",
            good().file("a", 0o644, b"").folder("d/e", 0o700),
            &["file 644 a 0 \"\"", "folder 700 d/e", "folder 755 d"],
        )
        .limited(|l| l.entries = 4),
    ]);
    all
}

/// Too many of each kind.
fn members() -> [Case; 9] {
    let good = Tarball::good;
    let each = |add: fn(Tarball, &str) -> Tarball| {
        (0..30).fold(good(), |tar, number| add(tar, &format!("m{number}")))
    };
    let twenty = |case: Case| case.limited(|limits| limits.entries = 20);
    [
        twenty(refused("many files", each(|tar, name| tar.file(name, 0o644, b"")), "members")),
        twenty(refused("many folders", each(|tar, name| tar.folder(name, 0o755)), "members")),
        twenty(refused("many symlinks", each(|tar, name| tar.symlink(name, "run")), "members")),
        twenty(refused("many hard links", each(|tar, name| tar.hard_link(name, "run")), "members")),
        twenty(refused("one file many times", each(|tar, _| tar.file("a", 0o644, b"")), "members")),
        twenty(refused("many roots", each(|tar, _| tar.folder("./", 0o755)), "members")),
        twenty(refused("many global headers", each(|tar, _| tar.pax(b'g', &[])), "members")),
        twenty(refused(
            "many folders that nobody named",
            good().file(&("d/".repeat(30) + "f"), 0o644, b""),
            "members",
        )),
        // Symbolic links are made last; the folders they lie in count all the same.
        twenty(refused(
            "many folders that only symlinks need",
            (0..5).fold(good(), |tar, number| tar.symlink(&format!("{number}/a/b/c/d/e"), "x")),
            "members",
        )),
    ]
}

/// Too much data that the reader holds in memory.
fn held_in_memory() -> [Case; 6] {
    let good = Tarball::good;
    let file = |tar: Tarball| tar.file("a", 0o644, b"x");
    let large = record(b"comment", &vec![b'n'; 2 * MIB]);
    let links =
        (0..90).fold(good(), |tar, number| tar.symlink(&format!("{number:090}"), &"t".repeat(90)));
    let claim =
        |kind| good().head(Head { name: b"", kind, target: b"", mode: 0, size: 0o777_7777_7777 });
    // These compress so well that the ratio would refuse them first.
    let large_one =
        |name, tar| refused(name, tar, "headers").limited(|limits| limits.ratio = 1 << 20);
    [
        large_one("PAX header of two mebibytes", file(good().records(b'x', &large))),
        large_one("global header of two mebibytes", file(good().records(b'g', &large))),
        large_one("long name of two mebibytes", file(good().long(b'L', &vec![b'n'; 2 * MIB]))),
        refused("PAX header that claims eight gibibytes", claim(b'x'), "ends early"),
        refused("long name that claims eight gibibytes", claim(b'L'), "ends early"),
        refused("long symlinks", links, "symbolic").limited(|limits| limits.symlink_bytes = 9000),
    ]
}

/// A zstd frame that asks for a window of 2^(10 + exponent) bytes.
fn window(exponent: u8) -> Vec<u8> {
    // The magic number, no content size, the window, one empty last block.
    vec![0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3, 1, 0, 0]
}

/// An xz stream whose first block asks for a dictionary of a size.
fn dictionary(size: u8) -> Vec<u8> {
    let sum = |bytes: &[u8]| {
        let mut sum = flate2::Crc::new();
        sum.update(bytes);
        sum.sum().to_le_bytes()
    };
    let flags = [0, 1];
    let block = [2, 0, 0x21, 1, size, 0, 0, 0];
    [&b"\xfd7zXZ\0"[..], &flags, &sum(&flags), &block, &sum(&block), &[0; 64]].concat()
}

/// Puts a file name of a mebibyte into a gzip header.
fn named(gzip: &[u8]) -> Vec<u8> {
    const HAS_NAME: u8 = 8;
    let mut named = gzip[..10].to_vec();
    named[3] |= HAS_NAME;
    named.extend(vec![b'n'; MIB]);
    named.push(0);
    named.extend_from_slice(&gzip[10..]);
    named
}
