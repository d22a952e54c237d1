use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::beat::Beat;
use super::inotify::Written;
use super::*;

struct Bed {
    dir: tempfile::TempDir,
    logs: PluginLogs,
    name: PluginName,
}

impl Bed {
    fn new(max: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let logs = Self::logs_in(dir.path(), max);
        std::fs::create_dir_all(logs.dir()).unwrap();
        std::fs::create_dir_all(dir.path().join("state/p")).unwrap();
        Self { dir, logs, name: "p".parse().unwrap() }
    }

    fn logs_in(dir: &Path, max: u64) -> PluginLogs {
        PluginLogs::new(dir.join("plugins"), Some(dir.join("state")), max)
    }

    fn begin(&self) -> File {
        self.logs.begin(&self.name, &"1".parse().unwrap()).unwrap()
    }

    fn path(&self) -> PathBuf {
        self.logs.path(&self.name)
    }

    fn error_log(&self) -> PathBuf {
        self.dir.path().join("state/p").join(ERROR_LOG)
    }

    fn words(&self) -> String {
        self.logs.last_words(&self.name)
    }
}

fn write(mut file: &File, text: impl AsRef<[u8]>) {
    file.write_all(text.as_ref()).unwrap();
}

fn append(path: &Path, text: &str) {
    write(&File::options().append(true).create(true).open(path).unwrap(), text);
}

#[test]
fn last_words_are_of_this_launch_in_the_order_in_which_they_were_written() {
    let bed = Bed::new(1 << 20);
    let first = bed.begin();
    write(&first, "old\n");
    append(&bed.error_log(), "old trouble\n");
    let output = bed.begin();
    let errors = output.try_clone().unwrap();
    assert_eq!(bed.words(), "");
    write(&output, "one\n");
    write(&errors, "two\n");
    write(&output, "three\n");
    assert_eq!(bed.words(), "one\ntwo\nthree");
    append(&bed.error_log(), "trouble\n");
    assert_eq!(bed.words(), "one\ntwo\nthree\nin its error log:\ntrouble");
    // Another agent reads it from the mark, too.
    assert_eq!(Bed::logs_in(bed.dir.path(), 1 << 20).last_words(&bed.name), bed.words());
}

#[test]
fn last_words_stay_those_of_this_launch_when_logs_are_cut() {
    let bed = Bed::new(20_000);
    write(&bed.begin(), "old line\n".repeat(1500));
    append(&bed.error_log(), &"old trouble\n".repeat(1500));
    let output = bed.begin();
    write(&output, "fresh\n".repeat(500));
    append(&bed.error_log(), "fresh trouble\n");
    let before = bed.words();
    bed.logs.tend_all();
    for path in [bed.path(), bed.error_log()] {
        assert!(std::fs::metadata(path).unwrap().len() <= 15_000);
    }
    assert_eq!(bed.words(), before);
    assert!(!before.contains("old"), "{before}");
    assert!(before.ends_with("in its error log:\nfresh trouble"), "{before}");
}

#[test]
fn an_error_log_that_is_cut_keeps_what_an_event_is_still_to_carry() {
    let bed = Bed::new(20_000);
    drop(bed.begin());
    let lines: String = (0..3000).map(|line| format!("line {line:05}\n")).collect();
    append(&bed.error_log(), &lines);
    let before = bed.words();
    bed.logs.tend_all();
    assert!(std::fs::metadata(bed.error_log()).unwrap().len() <= 15_000);
    assert_eq!(bed.words(), before);
    assert!(before.ends_with("line 02999"), "{before}");
}

#[test]
fn an_error_log_that_is_another_users_file_is_neither_read_nor_cut() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can give files to other users");
        return;
    }
    const PLUGIN: u32 = 47_110;
    let give = |path: &Path, user| std::os::unix::fs::chown(path, Some(user), None).unwrap();
    let bed = Bed::new(20_000);
    let folder = bed.dir.path().join("state/p");
    give(&folder, PLUGIN);
    let content = "secret\n".repeat(5000);
    // The agent's own, and another user's: each had another name when the plugin made this one.
    for owner in [0, PLUGIN + 1] {
        drop(bed.begin());
        std::fs::write(bed.error_log(), &content).unwrap();
        give(&bed.error_log(), owner);
        assert_eq!(bed.words(), "", "user {owner}");
        let error = bed.logs.tend_errors(&bed.name).unwrap_err().to_string();
        assert!(error.contains(&format!("belongs to user {owner}")), "{error}");
        assert_eq!(std::fs::read_to_string(bed.error_log()).unwrap(), content, "user {owner}");
    }
    // The plugin's own is read and cut.
    give(&bed.error_log(), PLUGIN);
    assert!(bed.words().contains("secret"));
    bed.logs.tend_errors(&bed.name).unwrap();
    assert!(std::fs::metadata(bed.error_log()).unwrap().len() <= 15_000);
    // A plugin that runs as the agent's user has a folder of the agent.
    give(&folder, 0);
    assert_eq!(bed.words(), "");
    give(&bed.error_log(), 0);
    assert!(bed.words().contains("secret"));
}

#[test]
fn what_a_plugin_puts_in_the_place_of_its_log_harms_nothing_outside() {
    let bed = Bed::new(4096);
    let outside = bed.dir.path().join("outside");
    let content = "secret\n".repeat(2000);
    let folder = bed.dir.path().join("folder");
    std::fs::create_dir(&folder).unwrap();
    for make in [
        &(|path: &Path| symlink(&outside, path).unwrap()) as &dyn Fn(&Path),
        &|path| std::fs::hard_link(&outside, path).unwrap(),
        &|path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        &|path| symlink(&folder, path).unwrap(),
        &|path| {
            std::fs::create_dir(path).unwrap();
            symlink(&outside, path.join("inside")).unwrap();
        },
    ] {
        std::fs::write(&outside, &content).unwrap();
        std::fs::set_permissions(&outside, std::fs::Permissions::from_mode(0o600)).unwrap();
        let output = bed.begin();
        write(&output, "mine\n");
        for path in [bed.path(), bed.logs.mark_path(&bed.name), bed.error_log()] {
            let _may_not_be_there = std::fs::remove_file(&path);
            make(&path);
        }
        let words = bed.words();
        assert!(!words.contains("secret"), "{words}");
        bed.logs.tend_all();
        write(&bed.begin(), "again\n");
        assert_eq!(std::fs::read_to_string(bed.path()).unwrap(), "again\n");
        assert!(std::fs::symlink_metadata(bed.path()).unwrap().is_file());
        assert_eq!(std::fs::read_to_string(&outside).unwrap(), content);
        assert_eq!(std::fs::metadata(&outside).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::remove_file(&outside).unwrap();
        for path in [bed.error_log(), bed.path()] {
            let _is_one_or_the_other =
                std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
        }
        bed.logs.forget(&bed.name);
    }
    assert!(folder.is_dir());
}

#[test]
fn a_log_that_was_deleted_takes_no_more_room_than_another() {
    let bed = Bed::new(40_000);
    let output = bed.begin();
    std::fs::remove_file(bed.path()).unwrap();
    write(&output, "line\n".repeat(20_000));
    assert!(bed.words().ends_with("line"));
    bed.logs.tend_all();
    assert!(output.metadata().unwrap().len() <= 30_000);
    // Also with another file in its place.
    std::fs::write(bed.path(), "").unwrap();
    write(&output, "line\n".repeat(20_000));
    bed.logs.tend_all();
    assert!(output.metadata().unwrap().len() <= 30_000);
}

#[test]
fn a_log_has_its_mode_again_with_the_next_launch() {
    let bed = Bed::new(4096);
    let output = bed.begin();
    output.set_permissions(std::fs::Permissions::from_mode(0o4777)).unwrap();
    let mode = bed.begin().metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
}

#[test]
fn a_log_is_written_while_anybody_has_it_open() {
    let bed = Bed::new(4096);
    let output = bed.begin();
    let helper = output.try_clone().unwrap();
    bed.logs.forget(&bed.name);
    drop(output);
    let other = Bed::logs_in(bed.dir.path(), 4096);
    assert!(other.is_written(&bed.name));
    drop(helper);
    assert!(!other.is_written(&bed.name));
    assert!(!other.is_written(&"q".parse().unwrap()));
}

/// Also while a plugin writes as fast as this machine can, each look leaves a log within its bound,
/// but for the bytes that are written meanwhile. The plugin writes until there were enough looks: how
/// many of them fit into a number of bytes depends on how busy this machine is.
#[test]
fn a_log_is_within_its_bound_after_each_look_while_a_plugin_floods_it() {
    const MAX: u64 = 1 << 20;
    const LOOKS: u64 = 20;
    /// Ends the writer where a look hangs or its assertion failed.
    const MOST: u64 = 4000 * MAX;
    let bed = Bed::new(MAX);
    let output = bed.begin();
    let (written, looks) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let line = "a line of sixty-four bytes, so that lines end where parts do ...\n";
            let part = line.repeat(1000);
            while looks.load(Ordering::SeqCst) < LOOKS && written.load(Ordering::SeqCst) < MOST {
                // The test counts first: a look must not find more than the test counted.
                written.fetch_add(part.len() as u64, Ordering::SeqCst);
                write(&output, &part);
            }
        });
        let names = Written::Some([bed.name.clone()].into());
        while looks.load(Ordering::SeqCst) < LOOKS {
            let before = written.load(Ordering::SeqCst);
            let looked = bed.logs.look(&names);
            let length = output.metadata().unwrap().len();
            let meanwhile = written.load(Ordering::SeqCst) - before;
            let most = MAX + meanwhile;
            assert!(length <= most, "{length} bytes, {most} are meant");
            looks.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(looked.pause);
        }
    });
    let written = written.into_inner();
    assert!((10 * MAX..MOST).contains(&written), "{written} bytes are no flood");
}

/// The plugin writes until the log has been cut a few times: how often that happens while a number
/// of bytes is written depends on how busy this machine is.
#[tokio::test]
async fn a_watched_log_is_cut_while_a_plugin_floods_it() {
    const MAX: u64 = 1 << 20;
    const MOST: u64 = 4000 * MAX;
    let bed = Bed::new(MAX);
    let watching = tokio::spawn(bed.logs.clone().watch(Keeping::ByNobody));
    let output = bed.begin();
    let path = bed.path();
    let flood = tokio::task::spawn_blocking(move || {
        let part =
            "a line of sixty-four bytes, so that lines end where parts do ...\n".repeat(1000);
        let (mut cuts, mut length, mut written) = (0, 0, 0);
        while cuts < 3 && written < MOST {
            write(&output, &part);
            written += u64::try_from(part.len()).unwrap();
            let before = std::mem::replace(&mut length, output.metadata().unwrap().len());
            cuts += u64::from(length < before);
        }
        cuts
    });
    assert_eq!(flood.await.unwrap(), 3, "it was not cut while it was written");
    let begun = std::time::Instant::now();
    while std::fs::metadata(&path).unwrap().len() > MAX {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "it stays too long");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    watching.abort();
}

#[test]
fn all_logs_are_looked_at_soon_after_an_error_log_was_too_long_and_then_more_rarely() {
    let bed = Bed::new(4096);
    let mut beat = Beat::every(Duration::from_secs(1));
    append(&bed.error_log(), &"a line of an error log\n".repeat(1000));
    let mut pauses = Vec::new();
    drop(bed.begin());
    for _ in 0..6 {
        pauses.push(beat.after(bed.logs.look(&Written::Any)).as_millis());
    }
    assert_eq!(pauses, [100, 200, 400, 800, 1000, 1000]);
    assert!(std::fs::metadata(bed.error_log()).unwrap().len() <= 4096);
}
