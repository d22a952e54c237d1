//! Which archives are taken, what becomes of them, and which are refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use guest_agent_actors::error::Chain;
use guest_agent_actors::ports::InstallStep;
use guest_agent_actors::spec::EntryPoint;
use proptest::prelude::*;

use super::super::Limits;
use super::super::tree::Resolver;
use super::rig::{Rig, assert_failed, spec};
use super::tarball::{Head, SCRIPT, Tarball, gzip, xz, zstd};
use guest_agent_actors::id::Sha256Digest;

#[tokio::test]
async fn every_compression_is_told_by_its_magic_and_not_by_name() {
    let tar = Tarball::good().folder("lib/", 0o700).file("lib/data", 0o666, b"data").finish();
    let halves = tar.split_at(700);
    let members = [gzip(halves.0).await, gzip(halves.1).await].concat();
    let frames = [zstd(halves.0).await, zstd(halves.1).await].concat();
    let skippable =
        [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(&tar).await].concat();
    let archives = [
        tar.clone(),
        gzip(&tar).await,
        members,
        zstd(&tar).await,
        frames,
        skippable,
        xz(&tar).await,
    ];
    for (number, archive) in archives.iter().enumerate() {
        // All of them are called `.bin`.
        let rig = Rig::new();
        let progress = rig.install_bytes(archive).await;
        let progress = progress.unwrap_or_else(|e| panic!("archive {number}: {}", Chain(&e)));
        assert_eq!(progress.received, archive.len() as u64);
        assert_eq!(fs::read(rig.installed("run")).expect("readable"), SCRIPT);
        assert_eq!(fs::read(rig.installed("lib/data")).expect("readable"), b"data");
    }
}

#[tokio::test]
async fn modes_lose_everything_that_is_dangerous() {
    let rig = Rig::new();
    let tar = Tarball::good()
        .file("setuid", 0o6777, b"")
        .file("sticky", 0o1666, b"")
        .file("secret", 0o600, b"")
        .file("none", 0, b"")
        .folder("open", 0o7777)
        .folder("closed", 0)
        .file("closed/implied/file", 0o644, b"");
    rig.install_bytes(&tar.finish()).await.expect("installable");
    let mode = |file: &str| {
        let found = fs::symlink_metadata(rig.installed(file)).expect("it exists");
        found.permissions().mode() & 0o7777
    };
    let files = ["run", "setuid", "sticky", "secret", "none"].map(mode);
    assert_eq!(files, [0o755, 0o755, 0o644, 0o600, 0o400]);
    let folders = ["", "open", "closed", "closed/implied", ".."].map(mode);
    assert_eq!(folders, [0o755, 0o755, 0o700, 0o755, 0o755]);
    let found = fs::metadata(rig.installed("run")).expect("it exists");
    assert_eq!(found.mtime(), 1_000_000_000);
    assert_eq!(found.uid(), rustix::process::geteuid().as_raw());
}

#[tokio::test]
async fn links_that_stay_inside_are_made() {
    for resolver in [Resolver::Kernel, Resolver::Walk] {
        let rig = Rig::with(Limits::default(), resolver);
        let tar = Tarball::default()
            .symlink("run", "bin/v2/run")
            .symlink("bin/v2", "v1")
            .symlink("dangling", "not/there")
            .file("bin/v1/run", 0o755, SCRIPT)
            .hard_link("again", "./bin/v1/run");
        rig.install_bytes(&tar.finish()).await.expect("installable");
        assert_eq!(fs::read(rig.installed("run")).expect("readable"), SCRIPT);
        assert_eq!(fs::read(rig.installed("again")).expect("readable"), SCRIPT);
        assert_eq!(fs::metadata(rig.installed("again")).expect("it exists").nlink(), 2);
    }
}

#[tokio::test]
async fn a_later_file_replaces_an_earlier_one_and_not_what_is_linked_to_it() {
    let rig = Rig::new();
    let tar = Tarball::good()
        .file("a", 0o644, b"old")
        .hard_link("b", "a")
        .file("a", 0o644, b"new")
        .file("c", 0o644, b"c")
        .hard_link("c", "b");
    rig.install_bytes(&tar.finish()).await.expect("installable");
    let content = ["a", "b", "c"].map(|file| fs::read(rig.installed(file)).expect("readable"));
    assert_eq!(content, [b"new".to_vec(), b"old".to_vec(), b"old".to_vec()]);
}

#[tokio::test]
async fn long_names_and_comments_are_understood() {
    let rig = Rig::new();
    let long = "d/".repeat(100) + "file";
    let tar = Tarball::default()
        .pax(b'g', &[("comment", "0123456789abcdef")])
        .folder("./", 0o700)
        .pax(b'x', &[("path", "run"), ("mtime", "1.5")])
        .file("ignored", 0o755, SCRIPT)
        .long(b'L', long.as_bytes())
        .file("cut off", 0o644, b"gnu");
    rig.install_bytes(&tar.finish()).await.expect("installable");
    assert_eq!(fs::read(rig.installed(&long)).expect("readable"), b"gnu");
}

#[tokio::test]
async fn many_small_files_are_installed() {
    let rig = Rig::new();
    let tar = (0..300).fold(Tarball::good(), |tar, number| {
        tar.file(&format!("d{}/f{number}", number % 7), 0o644, number.to_string().as_bytes())
    });
    rig.install_bytes(&gzip(&tar.finish()).await).await.expect("installable");
    assert_eq!(fs::read(rig.installed("d5/f299")).expect("readable"), b"299");
}

/// Every way to be hostile, with a part of what is said about it.
fn hostile() -> Vec<(Vec<u8>, &'static str)> {
    let good = Tarball::good;
    let deep = "d/".repeat(129) + "f";
    let long = "abcdefg/".repeat(513);
    let sized =
        |kind, size| good().head(Head { name: b"odd", kind, target: b"run", mode: 0o755, size });
    let through = |link: Tarball| link.file("out/file", 0o644, b"spoiled").finish();
    vec![
        (good().file("../outside/file", 0o644, b"spoiled").finish(), "'..'"),
        (good().file("a/../../outside/file", 0o644, b"spoiled").finish(), "'..'"),
        (good().file("/tmp/guest-agent-absolute", 0o644, b"").finish(), "absolute"),
        (good().folder("../made", 0o755).finish(), "'..'"),
        (good().pax(b'x', &[("path", "../outside/file")]).file("a", 0o644, b"x").finish(), "'..'"),
        (good().pax(b'x', &[("path", "a\0b")]).file("a", 0o644, b"x").finish(), "NUL"),
        (good().long(b'L', b"../outside/file\0").file("a", 0o644, b"x").finish(), "'..'"),
        (good().long(b'K', b"../../outside").symlink("out", "a").finish(), "outside"),
        (good().pax(b'x', &[("linkpath", "/etc")]).symlink("out", "a").finish(), "absolute"),
        (through(good().symlink("out", "../../../outside")), "outside"),
        (through(good().symlink("out", "/")), "absolute"),
        (through(good().folder("in", 0o755).symlink("out", "in")), "in the way"),
        (good().file("out/file", 0o644, b"").symlink("out", "run").finish(), "in the way"),
        (
            good().symlink("deep/er/x", "../../top").symlink("y", "deep/er/x/../../z").finish(),
            "leads out",
        ),
        (good().symlink("a", "b").symlink("b", "a").finish(), "circles"),
        (good().symlink("a", "").finish(), "is empty"),
        (good().hard_link("out", "../../../outside/file").finish(), "not a path inside"),
        (good().hard_link("out", "/etc/passwd").finish(), "not a path inside"),
        (good().symlink("s", "run").hard_link("out", "s").finish(), "not a regular file"),
        (good().folder("d", 0o755).hard_link("out", "d").finish(), "not a regular file"),
        (good().hard_link("later", "f").file("f", 0o644, b"").finish(), "not a regular file"),
        (good().hard_link("run", "run").finish(), "in the way"),
        (good().special(b'3', "null", "").finish(), "character device"),
        (good().special(b'4', "disk", "").finish(), "block device"),
        (good().special(b'6', "pipe", "").finish(), "named pipe"),
        (good().special(b'7', "fast", "").finish(), "contiguous"),
        (good().special(b'V', "label", "").finish(), "unknown type \"V\""),
        (good().special(0xff, "odd", "").finish(), "unknown type \"\\xff\""),
        (
            good()
                .pax(b'x', &[("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0")])
                .file("holes", 0o644, b"")
                .finish(),
            "sparse",
        ),
        (
            good().pax(b'g', &[("path", "everywhere")]).file("f", 0o644, b"").finish(),
            "global header",
        ),
        (good().long(b'L', deep.as_bytes()).file("f", 0o644, b"").finish(), "deeper"),
        (good().long(b'L', long.as_bytes()).file("f", 0o644, b"").finish(), "longer"),
        (good().long(b'L', &[b'n'; 256]).file("f", 0o644, b"").finish(), "longer"),
        (good().long(b'L', &vec![b'n'; 2 << 20]).file("f", 0o644, b"").finish(), "headers"),
        (
            good().pax(b'x', &[("comment", &"n".repeat(2 << 20))]).file("f", 0o644, b"").finish(),
            "headers",
        ),
        (
            good().pax(b'g', &[("comment", &"n".repeat(2 << 20))]).file("f", 0o644, b"").finish(),
            "headers",
        ),
        (
            good()
                .head(Head { name: b"\xff\xfe", kind: b'0', target: b"", mode: 0o644, size: 0 })
                .finish(),
            "UTF-8",
        ),
        (
            good().head(Head { name: b"", kind: b'0', target: b"", mode: 0o644, size: 0 }).finish(),
            "no name",
        ),
        (good().file("./", 0o644, b"").finish(), "no name"),
        (good().file("a/", 0o644, b"").finish(), "slash"),
        (good().symlink(".", "run").finish(), "no name"),
        (good().file("x", 0o644, b"").file("x/y", 0o644, b"").finish(), "in the way"),
        (good().file("x", 0o644, b"").folder("x", 0o755).finish(), "in the way"),
        (good().folder("x", 0o755).file("x", 0o644, b"").finish(), "in the way"),
        (good().folder("x", 0o755).symlink("x", "run").finish(), "in the way"),
        (sized(b'5', 512).data(&[0; 512]).finish(), "has content"),
        (sized(b'1', 512).data(&[0; 512]).finish(), "has content"),
        (sized(b'2', 512).data(&[0; 512]).finish(), "has content"),
        (sized(b'0', 100_000).data(b"few").finish(), "ends early"),
        (sized(b'0', 0o777_7777_7777).data(b"few").finish(), "ends early"),
        (good().pax(b'x', &[("size", "18446744073709551615")]).file("f", 0o644, b"").finish(), ""),
        (
            good().pax(b'x', &[("size", "99999999999999999999999")]).file("f", 0o644, b"").finish(),
            "",
        ),
        (good().cut(), "no end marker"),
        ([good().finish(), good().finish()].concat(), "after the end"),
        (Tarball::default().file("other", 0o755, b"").finish(), "not in the archive"),
        (Tarball::default().file("run", 0o644, b"").finish(), "not executable"),
        (Tarball::default().folder("run", 0o755).finish(), "not a regular file"),
        (Tarball::default().symlink("run", "gone").finish(), "not in the archive"),
        (vec![], "it is empty"),
        (vec![0; 2048], "it begins with"),
        (b"<html>Please log in</html>".to_vec(), "web page"),
        (b"PK\x03\x04zip".to_vec(), "zip"),
    ]
}

#[tokio::test]
async fn hostile_archives_touch_nothing() {
    for resolver in [Resolver::Kernel, Resolver::Walk] {
        let rig = Rig::with(Limits::default(), resolver);
        for (archive, part) in hostile() {
            assert_failed(rig.install_bytes(&archive).await, InstallStep::Unpack, part);
            rig.assert_untouched();
        }
    }
    assert!(!fs::exists("/tmp/guest-agent-absolute").expect("lookable"));
}

#[tokio::test]
async fn damage_inside_the_compression_is_found() {
    let tar = Tarball::good().file("data", 0o644, &[7; 5000]).finish();
    let (gz, zst, xz) = (gzip(&tar).await, zstd(&tar).await, xz(&tar).await);
    let mut bad_sum = gz.clone();
    let at = bad_sum.len() - 6;
    bad_sum[at] ^= 1;
    let cases = [
        gz[..gz.len() - 1].to_vec(),
        zst[..zst.len() - 1].to_vec(),
        xz[..xz.len() - 1].to_vec(),
        bad_sum,
        [&gz[..], b"garbage"].concat(),
        [&zst[..], b"garbage"].concat(),
        [&xz[..], b"garbage"].concat(),
        gz[..3].to_vec(),
    ];
    let rig = Rig::new();
    for case in cases {
        assert_failed(rig.install_bytes(&case).await, InstallStep::Unpack, "");
        rig.assert_untouched();
    }
}

#[tokio::test]
async fn limits_are_kept() {
    let few = |limits: &mut Limits| limits.entries = 3;
    let flat = Tarball::good().file("a", 0o644, b"").file("b", 0o644, b"");
    let implied = Tarball::good().file("a/b/c", 0o644, b"");
    let zeros = Tarball::good().file("zeros", 0o644, &vec![0; 4 << 20]).finish();
    let bomb = zstd(&zeros).await;
    let links = (0..90).fold(Tarball::good(), |tar, number| {
        tar.symlink(&format!("{number:090}"), &"t".repeat(90))
    });
    type Change = Box<dyn Fn(&mut Limits)>;
    let cases: Vec<(Vec<u8>, Change, InstallStep, &str)> = vec![
        (
            flat.clone().file("c", 0o644, b"").finish(),
            Box::new(few),
            InstallStep::Unpack,
            "members",
        ),
        (implied.file("d", 0o644, b"").finish(), Box::new(few), InstallStep::Unpack, "members"),
        (bomb, Box::new(|_| {}), InstallStep::Unpack, "bomb"),
        (
            gzip(&zeros).await,
            Box::new(|l| l.expanded_bytes = 1 << 20),
            InstallStep::Unpack,
            "unpacked",
        ),
        (zeros, Box::new(|l| l.archive_bytes = 1 << 20), InstallStep::Download, "allowed"),
        (links.finish(), Box::new(|l| l.symlink_bytes = 9000), InstallStep::Unpack, "symbolic"),
    ];
    for (archive, change, step, part) in cases {
        let mut limits = Limits::default();
        change(&mut limits);
        let rig = Rig::with(limits, Resolver::Kernel);
        assert_failed(rig.install_bytes(&archive).await, step, part);
        rig.assert_untouched();
    }
    let mut limits = Limits::default();
    few(&mut limits);
    let rig = Rig::with(limits, Resolver::Kernel);
    rig.install_bytes(&flat.finish()).await.expect("exactly as many as are allowed");
}

#[tokio::test]
async fn a_full_disk_is_named_with_what_is_missing() {
    // No file system has this much room, so the preflight must refuse it.
    let rig = Rig::new();
    let folder = rig.pipeline.folder(&"sample".parse().expect("a name")).0;
    let staged = folder.stage(&"r1".parse().expect("a revision"), Some(1 << 60), Resolver::Kernel);
    let error = staged.err().expect("too large").to_string();
    assert!(error.contains("1152921504606846976 more are needed"), "{error}");
    rig.assert_untouched();
}

#[tokio::test]
async fn the_entry_point_may_lie_deep_and_be_written_oddly() {
    let rig = Rig::new();
    let tar = Tarball::default().file("bin/run", 0o755, SCRIPT).finish();
    let mut spec = spec(&rig.archive(&tar), Sha256Digest::of(&tar));
    spec.entry_point = EntryPoint::parse("./bin//run").expect("an entry point");
    rig.install(spec).await.expect("installable");
}

/// Bytes that get further than random ones: a good archive with some of them changed.
fn almost_good() -> impl Strategy<Value = Vec<u8>> {
    let tar = Tarball::good()
        .folder("d", 0o755)
        .long(b'L', b"d/a name")
        .file("x", 0o644, &[1; 700])
        .symlink("d/l", "../run")
        .hard_link("h", "run")
        .finish();
    let length = tar.len();
    (proptest::collection::vec((0..length, any::<u8>()), 0..12), 0..=length).prop_map(
        move |(changes, end)| {
            let mut tar = tar.clone();
            for (at, byte) in changes {
                tar[at] = byte;
            }
            // Repaired, or nothing but the header's own checksum would ever be tested.
            for block in tar.as_chunks_mut::<512>().0 {
                if &block[257..262] == b"ustar" {
                    block[148..156].fill(b' ');
                    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
                }
            }
            tar.truncate(end.max(length / 2));
            tar
        },
    )
}

fn never_panics_nor_leaves_anything(archive: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let rig = Rig::new();
        match rig.install_bytes(archive).await {
            Ok(_) => rig.assert_precious(),
            Err(error) => {
                assert!(!Chain(&error).to_string().contains("panicked"), "{}", Chain(&error));
                rig.assert_untouched();
            }
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn law_arbitrary_bytes_never_panic_and_leave_nothing(
        bytes in proptest::collection::vec(any::<u8>(), 0..3000),
        start in proptest::sample::select(vec![
            &b""[..], b"\x1f\x8b\x08\0\0\0\0\0\0\xff", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0",
        ]),
    ) {
        never_panics_nor_leaves_anything(&[start, &bytes].concat());
    }

    #[test]
    fn law_damaged_archives_never_panic_and_leave_nothing(archive in almost_good()) {
        never_panics_nor_leaves_anything(&archive);
    }
}
