use std::time::Duration;

use guest_agent_actors::ports::SweepFate;

use super::*;

fn beside() -> Beside {
    Beside { signature: Some("s".to_owned()), terms: None }
}

struct Rig {
    dir: tempfile::TempDir,
    cache: Arc<Cache>,
}

impl Rig {
    fn new(max_bytes: u64) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let plugins = dir.path().join("plugins");
        fs::create_dir_all(plugins.join("p")).expect("a folder");
        let cache = Cache::new(dir.path().join("cache"), plugins, max_bytes);
        Self { dir, cache: Arc::new(cache) }
    }

    /// Keeps an archive of this age.
    fn keep(&self, content: &[u8], seconds_ago: u64) -> Sha256Digest {
        let sha256 = Sha256Digest::of(content);
        let mut incoming = self.cache.receive().expect("a file");
        if let Err(error) = incoming.write(content).and_then(|()| incoming.keep(sha256, &beside()))
        {
            // An archive that is not kept leaves no file.
            let message = error.to_string();
            assert!(!message.is_empty());
            return sha256;
        }
        let used = SystemTime::now() - Duration::from_secs(seconds_ago);
        let file = File::open(self.cache.archives.path_of(sha256)).expect("it is there");
        file.set_modified(used).expect("a time");
        sha256
    }

    /// An installed revision that was made from this archive.
    fn installed(&self, revision: &str, sha256: Sha256Digest) {
        let record = self.dir.path().join(format!("plugins/p/{RECORD}{revision}"));
        fs::write(record, format!("{sha256}\n")).expect("a record");
    }

    fn has(&self, sha256: Sha256Digest) -> bool {
        self.cache.archives.path_of(sha256).exists()
    }

    fn files(&self) -> BTreeSet<String> {
        self.cache.archives.names().expect("listable")
    }

    fn sweep(&self, manner: SweepManner) -> Vec<(String, SweepFate)> {
        let mut report = SweepReport::default();
        self.cache.sweep(manner, &mut report, &mut || true);
        report.items.into_iter().map(|item| (item.path, item.fate)).collect()
    }
}

#[test]
fn an_archive_is_found_with_its_signature_and_private() {
    use std::os::unix::fs::PermissionsExt;

    let rig = Rig::new(100);
    let sha256 = rig.keep(b"archive", 1000);
    let before =
        fs::metadata(rig.cache.archives.path_of(sha256)).expect("there").modified().expect("time");
    let kept = rig.cache.find(sha256).expect("it is there");
    assert_eq!(fs::read(&kept.path).expect("readable"), b"archive");
    assert_eq!(kept.signature.as_deref(), Some(&b"s"[..]));
    let found = fs::metadata(&kept.path).expect("there");
    assert!(found.modified().expect("time") > before, "it counts as used");
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    let dir = fs::metadata(rig.dir.path().join("cache")).expect("there");
    assert_eq!(dir.permissions().mode() & 0o777, 0o700);
    assert!(rig.cache.find(Sha256Digest::of(b"other")).is_none());
    rig.cache.forget(sha256);
    assert!(rig.files().is_empty());
}

#[test]
fn an_archive_that_arrives_again_is_there_all_the_time() {
    let rig = Rig::new(100);
    let sha256 = rig.keep(b"archive", 0);
    std::thread::scope(|scope| {
        let again = scope.spawn(|| {
            for _ in 0..500 {
                rig.keep(b"archive", 0);
            }
        });
        while !again.is_finished() {
            let kept = rig.cache.find(sha256).expect("it was never taken away");
            assert_eq!(fs::read(kept.path).expect("readable"), b"archive");
            assert_eq!(kept.signature.as_deref(), Some(&b"s"[..]));
        }
    });
    assert_eq!(rig.files().len(), 2);
}

#[test]
fn an_archive_that_arrives_again_needs_no_room_of_its_own() {
    let rig = Rig::new(50);
    let [first, second] = [[1; 20], [2; 20]].map(|content| rig.keep(&content, 100));
    rig.keep(&[1; 20], 0);
    assert!(rig.has(first) && rig.has(second));
}

#[test]
fn what_was_used_longest_ago_goes_first_and_what_is_installed_stays() {
    let rig = Rig::new(50);
    let oldest = rig.keep(&[1; 14], 40);
    rig.installed("1", oldest);
    let older = rig.keep(&[2; 14], 30);
    let newer = rig.keep(&[3; 14], 20);
    let newest = rig.keep(&[4; 14], 10);
    assert_eq!([oldest, older, newer, newest].map(|it| rig.has(it)), [true, false, true, true]);
    assert_eq!(rig.files().len(), 6, "signatures go with their archives");
    // An archive that was used just now is not old.
    rig.cache.find(newer).expect("it is there");
    let next = rig.keep(&[5; 14], 0);
    assert_eq!([oldest, newer, newest, next].map(|it| rig.has(it)), [true, true, false, true]);
}

#[test]
fn what_does_not_fit_beside_what_is_installed_is_not_kept() {
    let rig = Rig::new(50);
    for number in 1..=3 {
        let sha256 = rig.keep(&[number; 14], 10);
        rig.installed(&number.to_string(), sha256);
    }
    let before = rig.files();
    let refused = rig.keep(&[4; 14], 0);
    let too_large = rig.keep(&[5; 51], 0);
    assert!(!rig.has(refused) && !rig.has(too_large));
    assert_eq!(rig.files(), before, "nothing is left of it");
}

#[test]
fn a_smaller_bound_holds_from_the_next_sweep_on_and_none_switches_it_off() {
    let rig = Rig::new(1000);
    let installed = rig.keep(&[1; 10], 20);
    rig.installed("1", installed);
    let other = rig.keep(&[2; 10], 10);
    rig.cache.set_max(12);
    assert_eq!(rig.sweep(SweepManner::Pretend).len(), 2);
    assert!(rig.has(other), "that was a rehearsal");
    assert!(rig.sweep(SweepManner::Delete).iter().all(|(_, fate)| *fate == SweepFate::Deleted));
    assert_eq!([installed, other].map(|it| rig.has(it)), [true, false]);
    rig.cache.set_max(0);
    assert!(rig.cache.find(installed).is_none());
    rig.sweep(SweepManner::Delete);
    assert!(rig.files().is_empty());
}

#[test]
fn the_sweep_tells_what_is_left_over_from_what_arrives_and_from_what_is_odd() {
    let rig = Rig::new(1000);
    let kept = rig.keep(b"kept", 10);
    let arriving = rig.cache.receive().expect("a file");
    let dir = rig.dir.path().join("cache");
    let left = dir.join(".incoming-0123456789abcdef");
    let alone = rig.cache.archives.signature_of(Sha256Digest::of(b"gone"));
    let odd = dir.join("notes.txt");
    for path in [&left, &alone, &odd] {
        fs::write(path, "x").expect("a file");
    }
    rig.sweep(SweepManner::Delete);
    assert!(!left.exists() && !alone.exists() && odd.exists() && rig.has(kept));
    assert!(dir.join(&arriving.name).exists());
    drop(arriving);
    assert_eq!(rig.files().len(), 3, "the archive, its signature and what is odd");
}

#[test]
fn room_is_made_of_what_is_not_installed_first() {
    let rig = Rig::new(1000);
    let installed = rig.keep(b"installed", 10);
    rig.installed("1", installed);
    let other = rig.keep(b"other", 0);
    assert!(rig.cache.make_room(Yield::Unneeded));
    assert_eq!([installed, other].map(|it| rig.has(it)), [true, false]);
    assert!(!rig.cache.make_room(Yield::Unneeded));
    assert!(rig.cache.make_room(Yield::All));
    assert!(!rig.has(installed));
}

impl Rig {
    /// Keeps an archive that its server calls a dictionary for these paths.
    fn keep_dictionary(&self, content: &[u8], paths: &str, seconds_ago: u64) -> Sha256Digest {
        let sha256 = Sha256Digest::of(content);
        let url = Url::parse("https://a/x").expect("a URL");
        let value = format!("match=\"{paths}\"").parse().expect("a value");
        let name = reqwest::header::HeaderName::from_static(terms::USE_AS_DICTIONARY);
        let headers = [(name, value)].into_iter().collect();
        let terms = Terms::read(&url, &headers, SystemTime::now());
        assert!(terms.is_some());
        let mut incoming = self.cache.receive().expect("a file");
        incoming.write(content).expect("written");
        incoming.keep(sha256, &Beside { signature: None, terms }).expect("kept");
        let used = SystemTime::now() - Duration::from_secs(seconds_ago);
        let file = File::open(self.cache.archives.path_of(sha256)).expect("it is there");
        file.set_modified(used).expect("a time");
        sha256
    }

    fn dictionary(&self, url: &str, wanted: &[u8]) -> Option<Sha256Digest> {
        let url = Url::parse(url).expect("a URL");
        let found = self.cache.dictionary_for(&url, Sha256Digest::of(wanted), 20);
        found.map(|dictionary| dictionary.sha256)
    }
}

#[test]
fn the_dictionary_is_the_archive_that_suits_best_and_was_used_last() {
    let rig = Rig::new(10_000);
    rig.keep(b"without terms", 0);
    let _all = rig.keep_dictionary(b"for all", "/*", 0);
    let _older = rig.keep_dictionary(b"older", "/echo/*", 60);
    let newer = rig.keep_dictionary(b"newer", "/echo/*", 30);
    let _large = rig.keep_dictionary(&[7; 20], "/echo/*", 0);
    let _empty = rig.keep_dictionary(b"", "/echo/*", 0);
    let other = rig.keep_dictionary(b"other", "/other/*", 0);
    assert_eq!(rig.dictionary("https://a/echo/2", b"new"), Some(newer));
    assert_eq!(rig.dictionary("https://a/other/2", b"new"), Some(other));
    assert_eq!(rig.dictionary("https://b/echo/2", b"new"), None);
    // The archive itself is no dictionary for itself; the cache would have been used.
    assert_ne!(rig.dictionary("https://a/echo/2", b"newer"), Some(newer));
    fs::write(rig.cache.archives.terms_of(newer), "{}").expect("written");
    assert_ne!(rig.dictionary("https://a/echo/2", b"new"), Some(newer));
    rig.cache.set_max(0);
    assert_eq!(rig.dictionary("https://a/other/2", b"new"), None);
}

#[test]
fn what_is_beside_an_archive_goes_with_it() {
    let rig = Rig::new(10_000);
    let kept = rig.keep_dictionary(b"kept", "/*", 0);
    let gone = rig.keep_dictionary(b"gone", "/*", 0);
    let lost = rig.keep_dictionary(b"lost", "/*", 0);
    rig.cache.forget(gone);
    fs::remove_file(rig.cache.archives.path_of(lost)).expect("deleted");
    rig.cache.settle();
    let names: Vec<_> = rig.cache.archives.names().expect("listed").into_iter().collect();
    let archives = &rig.cache.archives;
    let mut expected = [kept.to_string(), archives.terms_name(kept)];
    expected.sort();
    assert_eq!(names, expected);
}
