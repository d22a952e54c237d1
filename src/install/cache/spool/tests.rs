use super::*;

fn spool(dir: &Path) -> Spool {
    Spool::new(dir.join("spool"), 1000)
}

fn hand_over(spool: &Spool, bytes: &[u8]) -> Result<PathBuf, SpoolError> {
    let mut arriving = spool.receive(bytes.len() as u64)?;
    bytes.chunks(3).try_for_each(|chunk| arriving.write(chunk))?;
    arriving.accept(Sha256Digest::of(bytes), b"")
}

fn files(dir: &Path) -> BTreeSet<String> {
    ArchiveStore::new(dir.join("spool")).names().expect("listable")
}

#[test]
fn an_archive_is_there_until_everybody_has_installed_it() {
    let dir = tempfile::tempdir().expect("a folder");
    let one = spool(dir.path());
    let path = hand_over(&one, b"archive").expect("taken");
    assert_eq!(fs::read(&path).expect("readable"), b"archive");
    hand_over(&one, b"archive").expect("taken again, for another plugin");
    one.installed(Sha256Digest::of(b"archive"));
    assert!(path.exists());
    one.installed(Sha256Digest::of(b"other"));
    one.installed(Sha256Digest::of(b"archive"));
    assert!(files(dir.path()).is_empty());
    // The next agent process does not know how often the archive was uploaded.
    hand_over(&one, b"archive").expect("taken");
    spool(dir.path()).installed(Sha256Digest::of(b"archive"));
    assert!(files(dir.path()).is_empty());
}

#[test]
fn what_is_not_as_announced_leaves_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let spool = spool(dir.path());
    let mut arriving = spool.receive(3).expect("room");
    arriving.write(b"abc").expect("written");
    let other = arriving.accept(Sha256Digest::of(b"abd"), b"");
    assert!(matches!(other, Err(SpoolError::Other { .. })), "{other:?}");
    let mut arriving = spool.receive(3).expect("room");
    arriving.write(b"abc").expect("written");
    let unsigned = arriving.accept(Sha256Digest::of(b"abc"), b"no signature");
    assert!(matches!(unsigned, Err(SpoolError::Signature(_))), "{unsigned:?}");
    assert!(matches!(spool.receive(1001), Err(SpoolError::TooLarge { .. })));
    let mut arriving = spool.receive(1).expect("room");
    let more = arriving.write(&[0; 1001]);
    assert!(matches!(more, Err(SpoolError::TooLarge { .. })), "{more:?}");
    drop(arriving);
    assert!(files(dir.path()).is_empty());
}

#[test]
fn no_more_wait_than_may() {
    let dir = tempfile::tempdir().expect("a folder");
    let spool = spool(dir.path());
    let arriving: Vec<_> = (0..ARRIVING_MAX).map(|_| spool.receive(1).expect("room")).collect();
    assert!(matches!(spool.receive(1), Err(SpoolError::TooMany { .. })));
    drop(arriving);
    for number in 0..WAITING_MAX {
        hand_over(&spool, number.to_string().as_bytes()).expect("room");
    }
    let said = spool.receive(1).expect_err("no room").to_string();
    assert!(said.contains("16"), "{said}");
}

#[test]
fn the_sweep_takes_what_is_old_and_what_was_interrupted() {
    let dir = tempfile::tempdir().expect("a folder");
    let spool = spool(dir.path());
    let (old, new) = (hand_over(&spool, b"old"), hand_over(&spool, b"new"));
    let (old, new) = (old.expect("taken"), new.expect("taken"));
    let file = File::open(&old).expect("there");
    file.set_modified(SystemTime::now() - 2 * AGE_MAX).expect("a time");
    let arriving = spool.receive(1).expect("room");
    let left = dir.path().join("spool").join(".incoming-0123456789abcdef");
    let odd = dir.path().join("spool/notes");
    for path in [&left, &odd] {
        fs::write(path, "x").expect("written");
    }
    let mut report = SweepReport::default();
    spool.sweep(SweepManner::Pretend, &mut report, &mut || true);
    assert_eq!(files(dir.path()).len(), 5);
    spool.sweep(SweepManner::Delete, &mut report, &mut || true);
    assert!(!old.exists() && !left.exists() && new.exists() && odd.exists());
    assert!(dir.path().join("spool").join(&arriving.name).exists());
}
