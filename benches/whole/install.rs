//! Installing a large archive, against inflating it alone and against what a shell does.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use crate::Extent;
use crate::harness::archive::{Compression, Tarball, noise};
use crate::harness::{Archive, ArchiveSpec, Bed, PATIENCE, orders};
use crate::report::Row;
use crate::samples::Samples;
use crate::told::{STARTED, Told};
use crate::world::{self, between};

const FILES: usize = 300;
const UNPACKED: usize = 64 << 20;

/// Kinds of archive.
struct Kind {
    compression: Compression,
    name: &'static str,
    /// What is allowed, as a multiple of unpacking alone.
    of_unpacking: f64,
    /// The same of what a shell does.
    of_shell: Option<f64>,
    /// The options of tar.
    tar: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind {
        compression: Compression::Gzip,
        name: "gzip",
        of_unpacking: 1.6,
        of_shell: Some(0.40),
        tar: "-xz",
    },
    Kind {
        compression: Compression::Zstd,
        name: "zstd",
        of_unpacking: 1.3,
        of_shell: None,
        tar: "-x --zstd",
    },
];

pub(crate) async fn measure(program: &Path, extent: Extent, aside: &Path) -> Vec<Row> {
    // What was measured is not to come from the cache.
    let bed = world::bed(program, &["install.cache_max_bytes=0"]).await;
    let mut rows = Vec::new();
    for kind in KINDS {
        rows.push(of_kind(&bed, &kind, extent, aside).await);
    }
    world::put_aside(bed, aside).await;
    rows
}

async fn of_kind(bed: &Bed, kind: &Kind, extent: Extent, aside: &Path) -> Row {
    let spec = ArchiveSpec::tar("run", tarball()).compressed(kind.compression);
    let packed = spec.into_bytes().await;
    let file = bed.dir().join(format!("{}.bin", kind.name));
    std::fs::write(&file, &packed).unwrap();
    let archive =
        bed.archive(&format!("large.{}", kind.name), ArchiveSpec::bytes(packed.clone())).await;

    let [mut ours, mut alone, mut durable, mut shell, mut disk] =
        [(); 5].map(|()| Samples::default());
    for round in 0..=extent.rounds {
        let name = format!("{}-{round}", kind.name);
        let dir = aside.join(&name);
        std::fs::create_dir(&dir).unwrap();
        let warm = || world::warm(4 * UNPACKED);
        warm();
        let installed = install(bed, &archive, &name).await;
        warm();
        let (unpacked, synced) = unpack_alone(kind.compression, &packed, &file, &dir);
        warm();
        let by_shell = by_shell(&archive, kind.tar, &dir).await;
        warm();
        let written = write_alone(&dir);
        // The first warms up what there is to be warmed.
        if round > 0 {
            ours.add_time(installed);
            alone.add_time(unpacked);
            if let Some(synced) = synced {
                durable.add_time(synced);
            }
            shell.add_time(by_shell);
            disk.add_time(written);
        }
    }
    let size = packed.len() >> 20;
    let what =
        format!("install of a {size} MiB {} archive, 64 MiB and {FILES} files unpacked", kind.name);
    let pipe = format!("`curl \\| tee >(sha256sum) \\| tar {} && sync -f`", kind.tar);
    let alone_is = match kind.compression {
        Compression::Zstd => "`zstd -d` into a file",
        _ => "inflating alone, in memory (zlib-rs)",
    };
    let row = Row::new(what, ours, "ms").times(kind.of_unpacking, alone_is, alone);
    let row = match kind.compression {
        Compression::Zstd => row.beside("the same, and the file synced", durable),
        _ => row,
    };
    let row = match kind.of_shell {
        Some(times) => row.times(times, &pipe, shell),
        None => row.beside(&pipe, shell),
    };
    let disk_is = format!("the disk alone: as much from memory into {FILES} files, and `sync -f`");
    let row = row.beside(&disk_is, disk);
    row.note("from the order, over loopback HTTP, until the revision is verified, synced to the disk and in its place")
}

/// How long it takes from the order until the revision is in its place.
async fn install(bed: &Bed, archive: &Archive, name: &str) -> Duration {
    let order = orders::install(name, "1", archive).order();
    let mut told = Told::from_now(&bed.control_plane, STARTED).await;
    let began = SystemTime::now();
    bed.configure(vec![order]).await;
    // To ask until it is there would take time from it.
    told.times(1, PATIENCE).await;
    let place = bed.plugin_dir(name).join("1");
    // The folder appears by a rename when everything in it is on the disk; only a rename changes
    // this time.
    let appeared = rustix::fs::stat(&place).unwrap();
    let nanoseconds = u32::try_from(appeared.st_ctime_nsec).unwrap();
    let appeared = SystemTime::UNIX_EPOCH
        + Duration::new(u64::try_from(appeared.st_ctime).unwrap(), nanoseconds);
    between(began, appeared)
}

/// How long unpacking alone takes; and, where that makes a file, until the file is on the disk.
fn unpack_alone(
    compression: Compression,
    packed: &[u8],
    file: &Path,
    dir: &Path,
) -> (Duration, Option<Duration>) {
    let out = dir.join("alone");
    let began = Instant::now();
    match compression {
        Compression::Zstd => {
            let status =
                Command::new("zstd").args(["-d", "-q", "-f", "-o"]).arg(&out).arg(file).status();
            assert!(status.unwrap().success(), "zstd unpacks it");
        }
        _ => {
            let mut reader = flate2::bufread::GzDecoder::new(packed);
            let mut buffer = vec![0; 256 << 10];
            while reader.read(&mut buffer).unwrap() > 0 {
                std::hint::black_box(&buffer);
            }
        }
    }
    let took = began.elapsed();
    let synced = File::open(&out).ok().map(|made| {
        made.sync_data().unwrap();
        began.elapsed()
    });
    (took, synced)
}

/// How long it takes to make files of this size and have them on the disk, with nothing else to do.
fn write_alone(dir: &Path) -> Duration {
    let dir = dir.join("written");
    std::fs::create_dir(&dir).unwrap();
    let data: Vec<u8> = noise().take(UNPACKED / FILES / 8).flat_map(u64::to_le_bytes).collect();
    let began = Instant::now();
    for number in 0..FILES {
        std::fs::write(dir.join(number.to_string()), &data).unwrap();
    }
    rustix::fs::syncfs(File::open(&dir).unwrap()).unwrap();
    began.elapsed()
}

async fn by_shell(archive: &Archive, tar: &str, dir: &Path) -> Duration {
    let dir = dir.join("by-shell");
    std::fs::create_dir(&dir).unwrap();
    let script = format!(
        "set -o pipefail; curl -sf '{}' | tee >(sha256sum > sum) | tar {tar} && sync -f .",
        archive.url
    );
    let began = Instant::now();
    let status = tokio::process::Command::new("bash")
        .args(["-c", &script])
        .current_dir(&dir)
        .status()
        .await
        .unwrap();
    let took = began.elapsed();
    assert!(status.success(), "the shell installs it");
    took
}

/// Words with some noise between them: it shrinks to a third or so, as programs do. With a program
/// that is ready at once.
fn tarball() -> Tarball {
    let program = std::fs::read(crate::harness::plugins::program(world::PLUGIN)).unwrap();
    let mut tar = Tarball::default().file("run", 0o755, &program);
    let each = UNPACKED.saturating_sub(program.len()) / (FILES - 1);
    let mut noise = noise();
    let words: Vec<String> =
        noise.by_ref().take(1024).map(|number| format!("{:x} ", number >> 40)).collect();
    let mut next = || noise.next().unwrap();
    for number in 1..FILES {
        let mut data = Vec::with_capacity(each + 8);
        while data.len() < each {
            let draw = next();
            if draw % 100 < 3 {
                data.extend_from_slice(&next().to_le_bytes());
                data.extend_from_slice(&next().to_le_bytes());
            } else {
                data.extend_from_slice(words[usize::try_from(draw >> 54).unwrap()].as_bytes());
            }
        }
        data.truncate(each);
        tar = tar.file(&format!("share/{:02}/{number:03}.bin", number / 20), 0o644, &data);
    }
    tar
}
