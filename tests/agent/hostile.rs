//! Archives that want to harm the machine. None may, and each refusal names what was refused.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::harness::archive::{Compression, Tarball, compress};
use crate::harness::{ArchiveSpec, Bed, listing, orders};

/// A folder outside of every plugin, and a way to see whether it was touched.
struct Canary {
    folder: PathBuf,
}

impl Canary {
    fn new(bed: &Bed) -> Self {
        let folder = bed.dir().join("outside");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("canary"), "sings").unwrap();
        Self { folder }
    }

    #[track_caller]
    fn assert_untouched(&self) {
        let canary = self.folder.join("canary");
        assert_eq!(listing(&self.folder).len(), 1, "something was written outside");
        assert_eq!(std::fs::read_to_string(&canary).unwrap(), "sings");
        let metadata = std::fs::metadata(&canary).unwrap();
        assert_eq!(metadata.nlink(), 1, "something was linked");
        assert_eq!(metadata.mode() & 0o7111, 0, "its mode was changed");
    }

    fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

/// Orders plugins from these archives in one message and checks that each is refused for a reason
/// that has this text in it, and that nothing else on the machine notices.
async fn all_are_refused(bed: &Bed, cases: Vec<(&str, ArchiveSpec, &str)>) {
    let canary = Canary::new(bed);
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("bystander", "1", &echo).order()]).await;
    let bystander = bed.running("bystander", "1").await;

    let mut all = Vec::new();
    let mut expected = Vec::new();
    for (name, spec, reason) in cases {
        let archive = bed.archive(name, spec).await;
        all.push(orders::install(name, "1", &archive).order());
        expected.push((name, reason));
    }
    bed.configure(all).await;
    for (name, reason) in expected {
        bed.expect_events(name, &[1, 8]).await;
        let why = bed.event(8, name, "1").await.details().into_owned();
        assert!(why.contains(reason), "{name}: {reason:?} is not in: {why}");
        assert!(why.len() < 1000, "{name}: {} bytes of reason", why.len());
        assert_eq!(bed.in_state(name, "INSTALL_FAILED").await.pid, None);
        assert_eq!(bed.plugin_files(name), [""; 0], "{name} left something");
        assert_eq!(bed.artifacts.counters(name).requests, 1, "{name} will be as bad again");
    }
    canary.assert_untouched();
    assert_eq!(bed.running("bystander", "1").await.pid, bystander.pid);
    bed.expect_events("bystander", &[1, 4, 3]).await;
}

#[tokio::test]
async fn no_member_leaves_the_folder_of_its_plugin() {
    let bed = Bed::new().await;
    let outside = bed.dir().join("outside");
    let at = |name: &str| outside.join(name).display().to_string();
    let good = Tarball::with_program;
    let up = "../../../../outside";
    let cases = vec![
        ("absolute", good().file(&at("written"), 0o644, b"x"), "written"),
        ("parent", good().file("../escaped", 0o644, b"x"), "../escaped"),
        ("parent-inside", good().file("a/../../escaped", 0o644, b"x"), "a/../../escaped"),
        ("link-absolute", good().symlink("way-out", &at("canary")), "way-out"),
        ("link-up", good().symlink("way-up", &format!("{up}/canary")), "way-up"),
        (
            "through-link",
            good().symlink("door", outside.to_str().unwrap()).file("door/written", 0o644, b"x"),
            "door",
        ),
        (
            "through-late-link",
            good().file("door/x", 0o644, b"x").symlink("door", up).file("door/canary", 0o777, b"x"),
            "door",
        ),
        (
            "link-chain",
            good().symlink("a", ".").symlink("a/b", "..").symlink("a/b/c", "../.."),
            "\"",
        ),
        ("hard-absolute", good().hard_link("twin", &at("canary")), "twin"),
        ("hard-up", good().hard_link("twin-up", &format!("{up}/canary")), "twin-up"),
        (
            "hard-over-link",
            good().symlink("s", &at("canary")).hard_link("h", "s").file("h", 0o777, b"x"),
            "\"",
        ),
        ("root-mode", good().file("/", 0o777, b""), "\"/\""),
    ];
    let cases = cases.into_iter().map(|(name, tar, why)| (name, ArchiveSpec::tar("run", tar), why));
    all_are_refused(&bed, cases.collect()).await;
    assert!(!bed.dir().join("escaped").exists() && !bed.state_root().join("escaped").exists());
    bed.finish().await;
}

#[tokio::test]
async fn nothing_but_files_folders_and_links_is_made() {
    let bed = Bed::new().await;
    let good = Tarball::with_program;
    let cases = vec![
        ("char-device", good().special(b'3', "null", ""), "null"),
        ("block-device", good().special(b'4', "disk", ""), "disk"),
        ("pipe", good().special(b'6', "waits-for-ever", ""), "waits-for-ever"),
        ("odd-type", good().special(b'Z', "what-is-it", ""), "what-is-it"),
        ("twice", good().folder("there", 0o755).file("there", 0o644, b"x"), "there"),
        ("program-is-folder", Tarball::default().folder("run", 0o755), "run"),
        ("program-is-data", Tarball::default().file("run", 0o644, b"x"), "run"),
    ];
    let cases = cases.into_iter().map(|(name, tar, why)| (name, ArchiveSpec::tar("run", tar), why));
    all_are_refused(&bed, cases.collect()).await;
    bed.finish().await;
}

#[tokio::test]
async fn no_header_or_stream_says_two_things() {
    let bed = Bed::new().await;
    let good = Tarball::with_program;
    let file = |tar: Tarball| tar.file("file", 0o644, b"x");
    let whole = || file(good()).finish();
    let tars = vec![
        ("pax-up", file(good().pax(b'x', &["path=../escaped"])), "../escaped"),
        ("pax-absolute", file(good().pax(b'x', &["path=/tmp/escaped"])), "absolute path"),
        ("pax-link", good().pax(b'x', &["linkpath=/etc"]).symlink("s", "run"), "/etc"),
        ("pax-size", file(good().pax(b'x', &["size=1000000"])), "ends early"),
        ("pax-negative", file(good().pax(b'x', &["size=-1000"])), "pax size"),
        ("pax-sparse", file(good().pax(b'x', &["GNU.sparse.size=9"])), "sparse"),
        ("pax-twice", file(good().pax(b'x', &["path=one"]).pax(b'x', &["path=two"])), "two pax"),
        ("pax-or-long", file(good().pax(b'x', &["path=one"]).long_name("two")), "ambiguous"),
        ("pax-of-nothing", good().pax(b'x', &["path=one"]), "not followed"),
        ("for-all", file(good().pax(b'g', &["path=everything"])), "global header"),
        (
            "for-all-between",
            file(good().pax(b'x', &["comment=harmless"]).pax(b'g', &["path=/etc/x"])),
            "global header",
        ),
        ("escapes", good().file("\u{1b}[2J/../x", 0o644, b""), "\\x1b[2J"),
    ];
    let gzipped = compress(Compression::Gzip, &whole()).await;
    let mut flipped = whole();
    flipped[0] ^= 1;
    let streams = vec![
        ("wrong-sum", flipped, "checksum mismatch"),
        ("cut", whole()[..2048].to_vec(), "no end marker"),
        ("cut-in-a-header", whole()[..1200].to_vec(), "ends early"),
        ("two-archives", [whole(), whole()].concat(), "after the end"),
        ("gzip-in-gzip", compress(Compression::Gzip, &gzipped).await, "gzip or tar"),
        ("gzip-and-more", [&gzipped[..], b"garbage"].concat(), "gzip or tar"),
    ];
    let tars = tars.into_iter().map(|(name, tar, why)| (name, ArchiveSpec::tar("run", tar), why));
    let streams =
        streams.into_iter().map(|(name, bytes, why)| (name, ArchiveSpec::bytes(bytes), why));
    all_are_refused(&bed, tars.chain(streams).collect()).await;
    bed.finish().await;
}

#[tokio::test]
async fn no_archive_expands_past_its_limits() {
    const MIB: usize = 1 << 20;
    let bed = Bed::builder()
        .set("install.max_entries=20")
        .set("install.max_expanded_bytes=4194304")
        .set("install.max_expansion_ratio=50")
        .start()
        .await;
    let good = Tarball::with_program;
    let many = (0..30).fold(good(), |tar, n| tar.file(&format!("{n}"), 0o644, b""));
    // Folders that only the path implies count as well.
    let deep = good().file("d/".repeat(30).trim_end_matches('/'), 0o644, b"x");
    let long_component = "n".repeat(300);
    let long_path = "seven77/".repeat(600);
    // So do those that only a link needs.
    let links = (0..6).fold(good(), |tar, n| tar.symlink(&format!("{n}/a/b/c/d"), "x"));
    let bomb = good().file("bomb", 0o644, &vec![0; 3 * MIB]);
    let large = ArchiveSpec::tar("run", good()).padded(5 * MIB);
    // A header may announce what never comes.
    let liar = good().head(b"liar", b'0', "", 0o644, 0o7_777_777_777).data(b"x");
    let cases = vec![
        ("many", ArchiveSpec::tar("run", many), "20"),
        ("deep", ArchiveSpec::tar("run", deep), "20"),
        ("links", ArchiveSpec::tar("run", links), "20"),
        ("bomb", ArchiveSpec::tar("run", bomb).compressed(Compression::Zstd), "50:1"),
        ("large", large, "4194304"),
        ("liar", ArchiveSpec::tar("run", liar), "ends early"),
        ("long-name", ArchiveSpec::tar("run", long(good(), &long_component)), "nnnnnnnn"),
        ("long-path", ArchiveSpec::tar("run", long(good(), &long_path)), "seven77/"),
    ];
    all_are_refused(&bed, cases).await;
    bed.finish().await;
}

fn long(tar: Tarball, name: &str) -> Tarball {
    tar.long_name(name).file("short", 0o644, b"x")
}

#[tokio::test]
async fn special_bits_are_cleared() {
    let bed = Bed::new().await;
    let tar = Tarball::default()
        .file("tool", 0o6755, b"x")
        .file("open", 0o4777, b"x")
        .folder("shared", 0o3777);
    let echo = bed.archive("echo.tar", ArchiveSpec::echo().with(tar)).await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    let revision = bed.plugin_dir("echo").join("1");
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o7777;
    for name in ["tool", "open", "shared"] {
        let mode = mode(&revision.join(name));
        assert_eq!(mode & 0o7022, 0, "{name} has mode {mode:o}");
    }
    assert_ne!(mode(&revision.join("tool")) & 0o111, 0, "a program stays one");
    bed.finish().await;
}

#[tokio::test]
async fn a_program_that_leads_out_is_never_run() {
    let bed = Bed::new().await;
    let canary = Canary::new(&bed);
    let echo = bed.echo().await;
    let entry_points = [canary.path("canary"), "../../../../outside/canary".to_owned()];
    for (number, entry_point) in entry_points.into_iter().enumerate() {
        let name = format!("evil{number}");
        let order = orders::install(&name, "1", &echo)
            .plugin(|plugin| plugin.entry_point.clone_from(&entry_point));
        bed.configure(vec![order.order()]).await;
        let why = bed.event(8, &name, "1").await.details().into_owned();
        assert!(why.contains("outside/canary"), "{why}");
        assert!(bed.status(&name).await.is_none(), "a refused order is not kept");
    }
    assert_eq!(bed.artifacts.counters("echo.tar").requests, 0);
    canary.assert_untouched();
    bed.finish().await;
}

#[tokio::test]
async fn a_hostile_revision_does_not_disturb_the_one_that_runs() {
    let bed = Bed::new().await;
    let canary = Canary::new(&bed);
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let before = bed.running("echo", "1").await;
    let tar = Tarball::with_program().symlink("current", &canary.path("canary")).file(
        "../1/run",
        0o755,
        b"#!/bin/sh\nexit 1\n",
    );
    let hostile = bed.archive("hostile.tar", ArchiveSpec::tar("run", tar)).await;
    bed.configure(vec![orders::install("echo", "2", &hostile).order()]).await;
    bed.expect_events("echo", &[1, 4, 3, 1, 8]).await;
    let after = bed.running("echo", "1").await;
    assert_eq!(after.pid, before.pid);
    let pending = after.pending.unwrap();
    assert_eq!((pending.revision.as_str(), pending.state.as_str()), ("2", "INSTALL_FAILED"));
    let listed = bed.listed("echo").await.unwrap();
    assert_eq!(listed.pending_revision_id, "2");
    assert_eq!(listed.pending_plugin_status.unwrap().status, 7, "INSTALL_FAILED");
    let folder = bed.plugin_dir("echo");
    assert_eq!(std::fs::read_link(folder.join("current")).unwrap(), Path::new("1"));
    let program = std::fs::read_to_string(folder.join("1/run")).unwrap();
    assert!(program.contains("exec"), "the running revision was overwritten: {program}");
    assert!(!folder.join("2").exists());
    canary.assert_untouched();
    bed.finish().await;
}
