//! Archives that `pack` makes.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use super::super::error::PackError;
use super::super::pack::{Compression, pack};
use super::rig::Rig;
use super::tarball::SCRIPT;

fn fill(dir: &Path, order: &[&str]) {
    for name in order {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("it has one")).expect("folders");
        fs::write(&path, name.as_bytes()).expect("file");
    }
    fs::write(dir.join("run"), SCRIPT).expect("file");
    fs::set_permissions(dir.join("run"), fs::Permissions::from_mode(0o4711)).expect("mode");
    symlink("run", dir.join("link")).expect("link");
}

#[tokio::test]
async fn the_same_files_give_the_same_bytes() {
    let long = "long/".to_owned() + &"n".repeat(200);
    let names = ["b", "a/z", "a-b", "a/b/c", &long];
    let mut backwards = names;
    backwards.reverse();
    for compression in [Compression::None, Compression::Gzip, Compression::Zstd] {
        let rig = Rig::new();
        let mut archives = Vec::new();
        for (number, order) in [names, backwards].iter().enumerate() {
            let dir = tempfile::tempdir().expect("temporary folder");
            fill(dir.path(), order);
            if number == 1 {
                let file = fs::File::options().write(true).open(dir.path().join("b"));
                let past = SystemTime::UNIX_EPOCH + Duration::from_secs(5);
                file.and_then(|file| file.set_modified(past)).expect("settable");
                let mode = fs::Permissions::from_mode(0o600);
                fs::set_permissions(dir.path().join("b"), mode).expect("mode");
            }
            let out = rig.dir.path().join(format!("{number}.out"));
            let packed = pack(dir.path(), &out, compression).expect("packable");
            let bytes = fs::read(&out).expect("readable");
            assert_eq!(packed.bytes, bytes.len() as u64);
            assert_eq!(packed.sha256, guest_agent_actors::model::id::Sha256Digest::of(&bytes));
            assert_eq!(packed.entries, 10);
            archives.push(bytes);
        }
        assert!(archives[0] == archives[1], "{compression:?} is not reproducible");
        rig.install_bytes(&archives[0]).await.expect("the agent takes what it packed");
        assert_eq!(fs::read(rig.installed("link")).expect("readable"), SCRIPT);
        assert_eq!(fs::read(rig.installed(&long)).expect("readable"), long.as_bytes());
    }
}

#[test]
fn what_no_agent_would_install_is_not_packed() {
    let dir = tempfile::tempdir().expect("temporary folder");
    let out = tempfile::tempdir().expect("temporary folder");
    let archive = out.path().join("a.tgz");
    let attempt = || pack(dir.path(), &archive, Compression::Gzip);
    let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("s")).expect("socket");
    let error = attempt().expect_err("a socket");
    assert!(matches!(error, PackError::Special { kind: "socket", .. }), "{error}");
    fs::remove_file(dir.path().join("s")).expect("deletable");
    symlink("../out", dir.path().join("l")).expect("link");
    assert!(matches!(attempt(), Err(PackError::Refused { .. })));
    assert_eq!(fs::read_dir(out.path()).expect("listable").count(), 0, "half an archive is left");
    let inside = pack(dir.path(), &dir.path().join("a.tgz"), Compression::Gzip);
    assert!(matches!(inside, Err(PackError::OutputInside { .. })));
}
