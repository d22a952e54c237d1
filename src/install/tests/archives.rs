//! Which archives are installed, what they become, and which are refused.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use guest_agent_actors::error::Chain;
use guest_agent_actors::model::spec::EntryPoint;
use guest_agent_actors::ports::InstallStep;
use proptest::prelude::*;

use super::super::Limits;
use super::rig::{Rig, assert_failed, spec};
use super::tarball::{SCRIPT, Tarball, gzip, xz, zstd};
use crate::install::unpack::tree::Resolver;
use guest_agent_actors::model::id::Sha256Digest;

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
        // All of these files are called `.bin`.
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

/// Bytes that get further than random ones: a valid archive with some bytes changed.
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
            // The checksum is corrected, or the test would only ever reach the check of the header.
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
