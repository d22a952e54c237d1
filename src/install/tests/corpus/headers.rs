//! Headers that contradict each other: PAX and ustar, GNU and PAX, one and its duplicate.
//!
//! Two readers may each believe another header; a scanner that saw a harmless archive must have
//! seen what is installed.

use super::super::tarball::{Head, Tarball, record};
use super::{Case, absolute, refused, taken};

pub(super) fn cases() -> Vec<Case> {
    let good = Tarball::good;
    let file = |tar: Tarball| tar.file("a", 0o644, b"x");
    let raw = |records: &[u8]| file(good().records(b'x', records));
    let pax = |pairs: &[(&str, &str)]| file(good().pax(b'x', pairs));
    let global = |pairs: &[(&str, &str)]| file(good().pax(b'g', pairs));
    let comment = [("comment", "harmless")];
    let bare = |kind, size| Head { name: b"a", kind, target: b"", mode: 0o644, size };
    let mut all = vec![
        refused("two PAX headers", file(good().pax(b'x', &comment).pax(b'x', &comment)), "two pax"),
        refused("two long names", file(good().long(b'L', b"b").long(b'L', b"c")), "two long name"),
        refused(
            "two long targets",
            file(good().long(b'K', b"b").long(b'K', b"c")),
            "two long name",
        ),
        refused(
            "PAX name and long name",
            file(good().pax(b'x', &[("path", "b")]).long(b'L', b"c")),
            "ambiguous path",
        ),
        refused(
            "long name and PAX name",
            file(good().long(b'L', b"c").pax(b'x', &[("path", "b")])),
            "ambiguous path",
        ),
        refused(
            "PAX target and long target",
            good().pax(b'x', &[("linkpath", "run")]).long(b'K', b"run").symlink("s", "x"),
            "ambiguous link",
        ),
        refused(
            "global header between PAX and its member",
            file(good().pax(b'x', &[("path", "b")]).pax(b'g', &comment)),
            "global header",
        ),
        refused(
            "global header behind a harmless PAX header",
            file(good().pax(b'x', &comment).pax(b'g', &[("path", &absolute("f"))])),
            "global header",
        ),
        refused(
            "empty global header between PAX and its member",
            file(good().pax(b'x', &[("size", "4096")]).records(b'g', b"")),
            "global header",
        ),
        refused(
            "global header between a long name and its member",
            file(good().long(b'L', b"pax").pax(b'g', &comment)),
            "global header",
        ),
        refused(
            "global header between a long target and its member",
            good().long(b'K', b"/etc").pax(b'g', &comment).symlink("s", "run"),
            "global header",
        ),
        refused("global name", global(&[("path", "everything")]), "sets \"path\""),
        refused("global target", global(&[("linkpath", "/etc")]), "sets \"linkpath\""),
        refused("global size", global(&[("size", "0")]), "sets \"size\""),
        refused("global comment and more", global(&[comment[0], ("path", "x")]), "sets \"path\""),
        refused("global sparse", global(&[("GNU.sparse.size", "1")]), "GNU.sparse"),
        refused("damaged global header", file(good().records(b'g', b"12 comm")), "malformed"),
        refused("PAX header of nothing", good().pax(b'x', &comment), "not followed"),
        refused("long name of nothing", good().long(b'L', b"x"), "not followed"),
        refused("long target of nothing", good().long(b'K', b"x"), "not followed"),
        refused("PAX that is shorter than it says", raw(b"99 path=b\n"), "malformed"),
        refused("PAX that is longer than it says", raw(b"5 path=b\n"), "malformed"),
        refused("PAX of length zero", raw(b"0 path=b\n"), "malformed"),
        refused("PAX of length one", raw(b"1 "), "malformed"),
        refused("PAX of negative length", raw(b"-9 path=b\n"), "malformed"),
        refused(
            "PAX of a length that no number holds",
            raw(&[&[b'9'; 40], &b" a=b\n"[..]].concat()),
            "malf",
        ),
        refused("PAX without a length", raw(b"path=b\n"), "malformed"),
        refused("PAX without an equals sign", raw(b"8 path b\n"), "malformed"),
        refused("PAX without a line break", raw(b"9 path=bc"), "malformed"),
        refused("PAX of zeros", raw(&[0; 64]), "malformed"),
        refused("PAX with an empty value", pax(&[("uname", "")]), "empty values"),
        refused("PAX size that is no number", pax(&[("size", "1x")]), "pax size"),
        refused("PAX size that is negative", pax(&[("size", "-1")]), "pax size"),
        refused("PAX size in hexadecimal", pax(&[("size", "0x1")]), "pax size"),
        refused("PAX size with a fraction", pax(&[("size", "1.0")]), "pax size"),
        refused("PAX size above all numbers", pax(&[("size", "18446744073709551616")]), "pax size"),
        refused(
            "PAX size at the end of numbers",
            pax(&[("size", "18446744073709551615")]),
            "overflow",
        ),
        refused(
            "PAX size of eight exbibytes",
            pax(&[("size", "9223372036854775807")]),
            "ends early",
        ),
        refused("PAX size beyond the archive", pax(&[("size", "1000000")]), "ends early"),
        refused(
            "PAX size of a folder",
            good().pax(b'x', &[("size", "512")]).folder("d", 0o755).raw(&[0; 512]),
            "has content",
        ),
        refused(
            "PAX size of a symlink",
            good().pax(b'x', &[("size", "1")]).symlink("s", "run").raw(&[0; 512]),
            "has content",
        ),
        refused("PAX user that is negative", pax(&[("uid", "-1")]), "pax uid"),
        refused(
            "PAX sparse 1.0",
            pax(&[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")]),
            "sparse",
        ),
        refused(
            "PAX sparse 0.1",
            pax(&[("GNU.sparse.map", "0,1"), ("GNU.sparse.size", "9")]),
            "sparse",
        ),
        refused("PAX sparse of no version", pax(&[("GNU.sparse.name", "/etc/x")]), "sparse"),
        refused("PAX sparse of star", pax(&[("SCHILY.realsize", "1000000")]), "sparse"),
        refused(
            "PAX header in the header of another format",
            file(gnu(good().pax(b'x', &comment))),
            "not permitted",
        ),
        refused("wrong checksum", file(good()).spoil(|block| block[0] = b'b'), "checksum"),
        refused(
            "checksum that is no number",
            file(good()).spoil(|block| block[148..156].fill(b'x')),
            "number",
        ),
        refused("no checksum", file(good()).spoil(|block| block[148..156].fill(b' ')), "number"),
        refused("ustar of no version", file(good()).field(263, b"\0\0"), "ambiguous"),
        refused("sparse member in a ustar header", good().head(bare(b'S', 0)), "sparse"),
        refused(
            "sparse member",
            gnu(good().head(bare(b'S', 0))).field(483, b"00000000000\0"),
            "sparse",
        ),
        refused(
            "sparse member of blocks that overlap",
            gnu(good().head(bare(b'S', 1024)))
                .field(386, b"00000001000\x0000000001000\0")
                .field(410, b"00000000000\x0000000001000\0")
                .data(&[0; 1024]),
            "overlapping",
        ),
        refused(
            "sparse member of eight exbibytes",
            gnu(good().head(bare(b'S', 0)))
                .field(386, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff00000000000\0")
                .field(483, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff"),
            "sparse",
        ),
    ];
    all.extend(odd());
    all
}

/// Makes the last header one of GNU.
fn gnu(tar: Tarball) -> Tarball {
    tar.field(257, b"ustar  \0")
}

/// A header as the content of a file.
fn smuggled() -> Vec<u8> {
    Tarball::default().file("smuggled", 0o644, b"hidden").cut()
}

fn odd() -> Vec<Case> {
    let good = Tarball::good;
    let comment = [("comment", "harmless")];
    let file = |tar: Tarball| tar.file("a", 0o644, b"x");
    let pax = |pairs: &[(&str, &str)]| file(good().pax(b'x', pairs));
    let sized = |size| Head { name: b"a", kind: b'0', target: b"", mode: 0o644, size };
    vec![
        // If the file is larger, these bytes are content and no member.
        taken(
            "PAX size above that of ustar",
            good().pax(b'x', &[("size", "1024")]).head(sized(0)).raw(&smuggled()),
            &[
                "file 644 a 1024 \"smuggled\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00\"",
            ],
        ),
        // If the file is smaller, these bytes are a member and no content.
        taken(
            "PAX size below that of ustar",
            good().pax(b'x', &[("size", "1")]).head(sized(1536)).data(b"x").raw(&smuggled()),
            &["file 644 a 1 \"x\"", "file 644 smuggled 6 \"hidden\""],
        ),
        taken(
            "PAX size in front of a long name",
            good().pax(b'x', &[("size", "1")]).long(b'L', b"b").head(sized(0)).data(b"x"),
            &["file 644 b 1 \"x\""],
        ),
        taken("PAX name over ustar name", pax(&[("path", "b")]), &["file 644 b 1 \"x\""]),
        taken(
            "PAX name twice: the last",
            pax(&[("path", "/b"), ("path", "c")]),
            &["file 644 c 1 \"x\""],
        ),
        taken(
            "PAX size twice: the last",
            pax(&[("size", "9999999"), ("size", "1")]),
            &["file 644 a 1 \"x\""],
        ),
        taken("PAX with nothing in it", file(good().records(b'x', b"")), &["file 644 a 1 \"x\""]),
        taken(
            "PAX of users, times and modes",
            pax(&[
                ("uid", "4294967295"),
                ("gid", "0"),
                ("uname", "root"),
                ("mtime", "-1"),
                ("atime", "nan"),
                ("ctime", "99999999999999999999"),
                ("mode", "7777"),
            ]),
            &["file 644 a 1 \"x\""],
        ),
        taken(
            "PAX of attributes, capabilities and access lists",
            file(
                good().records(
                    b'x',
                    &[
                        record(b"SCHILY.xattr.user.x", b"x"),
                        record(b"SCHILY.xattr.security.capability", b"\x01\0\0\x02\0\0\0\x20"),
                        record(b"SCHILY.acl.access", b"user::rwx,user:nobody:rwx"),
                        record(b"SCHILY.fflags", b"immutable"),
                        record(b"LIBARCHIVE.xattr.user.y", b"eQ=="),
                        record(b"RHT.security.selinux", b"system_u:object_r:shadow_t:s0"),
                    ]
                    .concat(),
                ),
            ),
            &["file 644 a 1 \"x\""],
        ),
        taken(
            "PAX keys that are not UTF-8",
            file(good().records(b'x', &record(b"\xff\xfe", b"\xff"))),
            &["file 644 a 1 \"x\""],
        ),
        taken(
            "PAX values with line breaks",
            pax(&[("comment", "a\n12 path=/etc/x\n"), ("path", "b")]),
            &["file 644 b 1 \"x\""],
        ),
        taken(
            "PAX name of one call for the next",
            pax(&[("path", "b")]).file("c", 0o644, b""),
            &["file 644 b 1 \"x\"", "file 644 c 0 \"\""],
        ),
        taken(
            "long name and long target",
            good().long(b'K', b"run").long(b'L', b"l").symlink("s", "x").symlink("t", "run"),
            &["link l -> run", "link t -> run"],
        ),
        taken(
            "Solaris header, which is one of PAX",
            file(good().records(b'X', &record(b"path", b"b"))),
            &["file 644 b 1 \"x\""],
        ),
        taken("global comments", good().pax(b'g', &comment).records(b'g', b""), &[]),
        taken(
            "GNU header whose times look like a prefix",
            gnu(file(good()).field(345, b"07346545000")),
            &["file 644 a 1 \"x\""],
        ),
        taken(
            "users that are no numbers",
            file(good()).field(108, b"zzzzzzzz--------"),
            &["file 644 a 1 \"x\""],
        ),
        taken(
            "negative and huge times",
            file(good()).field(136, &[0xff; 12]),
            &["file 644 a 1 \"x\""],
        ),
        taken("all bits of a mode", file(good()).field(100, b"7777777\0"), &["file 755 a 1 \"x\""]),
    ]
}
