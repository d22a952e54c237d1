//! Sweeps of real folders, with something precious next to them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::sync::Mutex;

use futures_util::FutureExt;
use guest_agent_actors::model::id::Sha256Digest;
use guest_agent_actors::model::spec::{
    Artifact, ArtifactUrl, EntryPoint, Execution, Limits as Resources, MetricsPolicy, PluginSpec,
    Source, Tries,
};
use guest_agent_actors::ports::{Durability, Installer, Progress, Storage};

use guest_agent_actors::ports::{Known, References};

use super::*;
use crate::install::trust::Trust;
use crate::install::{Limits, PipelineConfig, PressurePolicy, RedirectRules};
use crate::process::cgroup::Cgroups;
use crate::process::cgroup::Total;
use crate::store::{self, StateLock};

const RANDOM: &str = "0123456789abcdef";

/// An agent's places, and what must stay in them.
struct Rig {
    dir: tempfile::TempDir,
    sweeper: DiskSweeper,
    set: Arc<Fixed>,
}

struct Fixed(Mutex<Option<References>>);

#[async_trait]
impl ReferenceSet for Fixed {
    async fn now(&self) -> Option<References> {
        self.0.lock().unwrap().clone()
    }
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("state/me");
        let pipeline = Pipeline::new(
            PipelineConfig {
                plugins_dir: home.join("plugins"),
                state_root: home.join("state"),
                log_dir: dir.path().join("log/plugins"),
                cache_dir: home.join("cache"),
                spool_dir: home.join("spool"),
                cache_max_bytes: 0,
                limits: Limits::default(),
                max_parallel: 1,
                pressure: PressurePolicy::default(),
                redirects: RedirectRules::default(),
            },
            Trust::Anybody,
        );
        for folder in ["log/plugins", "run/plugins", "local", "outside", "state/me/state"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        fs::write(dir.path().join("outside/file"), "precious").unwrap();
        let config = SweepConfig {
            state_dir: dir.path().join("state"),
            instance: "me".to_owned(),
            others: OtherInstances::Go,
            runtime_dir: dir.path().join("run"),
            local_plugin_dir: dir.path().join("local"),
            cgroups: Cgroups::none(),
        };
        let sweeper = DiskSweeper::new(config, Arc::new(pipeline.unwrap()));
        let references = References { known: Known::All, ..References::default() };
        Self { dir, sweeper, set: Arc::new(Fixed(Mutex::new(Some(references)))) }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn change(&self, change: impl FnOnce(&mut References)) {
        change(self.set.0.lock().unwrap().as_mut().unwrap());
    }

    fn needs(&self, plugin: &str, revisions: &[&str]) {
        let revisions = revisions.iter().map(|revision| revision.parse().unwrap()).collect();
        self.change(|set| drop(set.plugins.insert(plugin.parse().unwrap(), revisions)));
    }

    /// A revision as an installation leaves it, but for its being the current one.
    fn revision(&self, plugin: &str, revision: &str) {
        let folder = self.path(&format!("state/me/plugins/{plugin}"));
        fs::create_dir_all(folder.join(revision).join("bin")).unwrap();
        fs::write(folder.join(revision).join("bin/run"), "run").unwrap();
        symlink(self.path("outside"), folder.join(revision).join("out")).unwrap();
        let record = format!("{}\n", Sha256Digest::of(revision.as_bytes()));
        fs::write(folder.join(format!(".installed-{revision}")), record).unwrap();
    }

    fn write(&self, path: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "x").unwrap();
    }

    /// A folder of another instance, as an agent leaves it.
    async fn instance(&self, id: &str) {
        let lock = StateLock::acquire(&self.path("state")).unwrap();
        let opened = store::open(&lock, &self.path("state").join(id).join("store")).await;
        let storage = opened.unwrap().storage;
        storage.commit(Vec::new(), Durability::Durable).await.unwrap();
        storage.close().await.unwrap();
        for folder in ["plugins/p/1/bin", "state/p"] {
            fs::create_dir_all(self.path("state").join(id).join(folder)).unwrap();
        }
        if id == "me" {
            // The cache of the running instance has rules of its own.
            return;
        }
        let archive = Sha256Digest::of(b"an archive");
        for folder in ["cache", "spool"] {
            self.write(&format!("state/{id}/{folder}/{archive}"));
            self.write(&format!("state/{id}/{folder}/{archive}.minisig"));
        }
    }

    async fn sweep(&self, manner: SweepManner) -> SweepReport {
        let report = self.sweeper.sweep(manner, self.set.clone()).await;
        assert_eq!(fs::read_to_string(self.path("outside/file")).unwrap(), "precious");
        report
    }

    async fn swept(&self) -> BTreeMap<String, SweepFate> {
        let report = self.sweep(SweepManner::Delete).await;
        assert!(!report.unfinished, "{report:#?}");
        self.fates(report)
    }

    fn fates(&self, report: SweepReport) -> BTreeMap<String, SweepFate> {
        let short = |path: &str| {
            let path = Path::new(path);
            path.strip_prefix(self.dir.path()).unwrap_or(path).to_string_lossy().into_owned()
        };
        report.items.into_iter().map(|item| (short(&item.path), item.fate)).collect()
    }

    #[track_caller]
    fn check(fates: &BTreeMap<String, SweepFate>, expected: &[(&str, SweepFate)]) {
        let expected: BTreeMap<String, SweepFate> =
            expected.iter().map(|(path, fate)| ((*path).to_owned(), *fate)).collect();
        assert_eq!(*fates, expected);
    }
}

fn spec(name: &str) -> PluginSpec {
    let tries = Tries { attempts: 1, timeout: RUN_MAX };
    let sha256 = Sha256Digest::of(b"");
    PluginSpec {
        name: name.parse().unwrap(),
        revision: "1".parse().unwrap(),
        source: Source::Archive(Artifact { url: ArtifactUrl::new("file:/not/there"), sha256 }),
        entry_point: EntryPoint::parse("run").unwrap(),
        arguments: Vec::new(),
        limits: Resources::default(),
        download: tries,
        start: tries,
        stop_timeout: RUN_MAX,
        metrics: MetricsPolicy { interval: RUN_MAX, points: 1 },
        backoff_factor: 2,
        config: None,
        execution: Execution::default(),
        order_digest: None,
    }
}

use SweepFate::{Deleted, Failed, LeftAlone, Postponed, WouldDelete};

#[tokio::test]
async fn what_a_plugin_refers_to_stays_and_what_it_does_not_goes() {
    let rig = Rig::new();
    for revision in ["1", "2", "3"] {
        rig.revision("a", revision);
    }
    rig.needs("a", &["2", "3"]);
    symlink("2", rig.path("state/me/plugins/a/current")).unwrap();
    Rig::check(&rig.swept().await, &[("state/me/plugins/a/1", Deleted)]);
    let left = fs::read_dir(rig.path("state/me/plugins/a")).unwrap();
    let mut left: Vec<_> = left.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, [".installed-2", ".installed-3", "2", "3", "current"]);
    Rig::check(&rig.swept().await, &[]);
}

#[tokio::test]
async fn leftovers_of_interrupted_steps_go() {
    let rig = Rig::new();
    rig.revision("a", "1");
    rig.needs("a", &["1"]);
    let leftovers = [
        format!("state/me/plugins/a/.staging-2-{RANDOM}"),
        format!("state/me/plugins/a/.trash-0-{RANDOM}"),
        format!("state/me/plugins/.trash-gone-{RANDOM}"),
        format!("state/me/state/.trash-gone-{RANDOM}"),
    ];
    for leftover in &leftovers {
        rig.write(&format!("{leftover}/deep/er/file"));
        symlink(rig.path("outside"), rig.path(leftover).join("link")).unwrap();
    }
    let record = format!("state/me/plugins/a/.record-{RANDOM}");
    rig.write(&record);
    let beside =
        [".installed-", ".signature-", ".adopt-"].map(|kind| format!("state/me/plugins/a/{kind}9"));
    beside.iter().for_each(|path| rig.write(path));
    let link = format!("state/me/plugins/a/.current-{RANDOM}");
    symlink(rig.path("outside"), rig.path(&link)).unwrap();
    let mut expected: Vec<(&str, SweepFate)> =
        leftovers.iter().map(|path| (path.as_str(), Deleted)).collect();
    expected.extend([(record.as_str(), Deleted), (link.as_str(), Deleted)]);
    expected.extend(beside.iter().map(|path| (path.as_str(), Deleted)));
    Rig::check(&rig.swept().await, &expected);
    Rig::check(&rig.swept().await, &[]);
}

#[tokio::test]
async fn a_plugin_that_is_gone_leaves_nothing_behind() {
    let rig = Rig::new();
    rig.revision("gone", "1");
    symlink("1", rig.path("state/me/plugins/gone/current")).unwrap();
    for log in ["gone.log", "gone.log.1"] {
        rig.write(&format!("log/plugins/{log}"));
    }
    drop(UnixListener::bind(rig.path("run/plugins/gone_1.sock")).unwrap());
    drop(UnixListener::bind(rig.path(&format!("run/plugins/{RANDOM}.sock"))).unwrap());
    Rig::check(
        &rig.swept().await,
        &[
            ("state/me/plugins/gone/1", Deleted),
            ("log/plugins/gone.log", Deleted),
            ("log/plugins/gone.log.1", Deleted),
            ("run/plugins/gone_1.sock", Deleted),
            (&format!("run/plugins/{RANDOM}.sock"), Deleted),
        ],
    );
    assert!(!rig.path("state/me/plugins/gone").exists());
}

#[tokio::test]
async fn foreign_files_and_odd_names_are_left_alone_and_named() {
    let rig = Rig::new();
    rig.revision("a", "1");
    rig.needs("a", &["1"]);
    fs::create_dir_all(rig.path("state/me/plugins/a/by-hand")).unwrap();
    for file in [
        "state/me/plugins/a/notes.txt",
        "state/me/plugins/a/.hidden",
        "state/me/plugins/odd name/file",
        "state/me/plugins/file",
        "state/me/state/unknown/data",
        "state/README",
        "state/backup/store/db",
        "log/plugins/audit",
        "run/plugins/file",
    ] {
        rig.write(file);
    }
    symlink(rig.path("outside"), rig.path("state/me/plugins/a/linked")).unwrap();
    symlink(rig.path("outside"), rig.path("state/me/plugins/link")).unwrap();
    symlink(rig.path("outside"), rig.path("state/link")).unwrap();
    symlink(rig.path("outside/file"), rig.path("log/plugins/gone.log")).unwrap();
    let listener = UnixListener::bind(rig.path("run/plugins/docker.sock")).unwrap();
    drop(listener);
    let fates = rig.swept().await;
    let expected = [
        "state/me/plugins/a/by-hand",
        "state/me/plugins/a/notes.txt",
        "state/me/plugins/a/.hidden",
        "state/me/plugins/a/linked",
        "state/me/plugins/odd name",
        "state/me/plugins/file",
        "state/me/plugins/link",
        "state/me/state/unknown",
        "state/README",
        "state/backup",
        "state/link",
        "log/plugins/audit",
        "log/plugins/gone.log",
        "run/plugins/file",
        "run/plugins/docker.sock",
    ];
    Rig::check(&fates, &expected.map(|path| (path, LeftAlone)));
    for path in expected {
        assert!(fs::symlink_metadata(rig.path(path)).is_ok(), "{path} is gone");
    }
}

#[tokio::test]
async fn a_lost_plugin_keeps_everything() {
    let rig = Rig::new();
    rig.revision("lost", "1");
    rig.write(&format!("state/me/plugins/lost/.staging-2-{RANDOM}/file"));
    rig.write("log/plugins/lost.log");
    drop(UnixListener::bind(rig.path("run/plugins/lost_1.sock")).unwrap());
    rig.change(|set| assert!(set.lost.insert("lost".parse().unwrap())));
    Rig::check(&rig.swept().await, &[("state/me/plugins/lost", LeftAlone)]);
    // No record has the name: it may be the lost plugin.
    rig.change(|set| {
        set.lost.clear();
        set.known = Known::Some;
    });
    Rig::check(&rig.swept().await, &[("state/me/plugins/lost", LeftAlone)]);
    assert!(rig.path("log/plugins/lost.log").exists());
    assert!(rig.path("run/plugins/lost_1.sock").exists());
    // No record is known.
    *rig.set.0.lock().unwrap() = None;
    assert!(rig.sweep(SweepManner::Delete).await.unfinished);
    assert!(rig.path("state/me/plugins/lost/1/bin/run").exists());
}

#[tokio::test]
async fn files_of_local_plugins_are_never_touched() {
    let rig = Rig::new();
    rig.write("local/here/manifest.json");
    rig.revision("here", "1");
    rig.write("log/plugins/here.log");
    rig.write("state/me/state/here/data");
    drop(UnixListener::bind(rig.path("run/plugins/here_1.sock")).unwrap());
    let fates = rig.swept().await;
    assert!(fates.values().all(|fate| *fate == LeftAlone), "{fates:#?}");
    for path in [
        "local/here/manifest.json",
        "state/me/plugins/here/1/bin/run",
        "log/plugins/here.log",
        "state/me/state/here/data",
        "run/plugins/here_1.sock",
    ] {
        assert!(rig.path(path).exists(), "{path} is gone");
    }
}

/// Every launch tries a socket first; `kill -9` of the agent between the two steps leaves it.
#[tokio::test]
async fn a_socket_that_was_only_tried_goes_unless_another_launch_tries_it_now() {
    let rig = Rig::new();
    drop(UnixListener::bind(rig.path("run/plugins/.try-0a1b2c3d")).unwrap());
    let _trying = UnixListener::bind(rig.path("run/plugins/.try-00000001")).unwrap();
    Rig::check(&rig.swept().await, &[("run/plugins/.try-0a1b2c3d", Deleted)]);
}

#[tokio::test]
async fn a_socket_that_somebody_listens_on_or_will_stays() {
    let rig = Rig::new();
    rig.needs("a", &["1"]);
    drop(UnixListener::bind(rig.path("run/plugins/a_1.sock")).unwrap());
    let _listening = UnixListener::bind(rig.path("run/plugins/b_1.sock")).unwrap();
    Rig::check(&rig.swept().await, &[]);
    rig.needs("a", &["2"]);
    Rig::check(&rig.swept().await, &[("run/plugins/a_1.sock", Deleted)]);
}

#[tokio::test]
async fn sockets_in_the_forms_of_earlier_agents_stay_with_their_plugins() {
    let rig = Rig::new();
    rig.needs("a_b", &["1"]);
    let (name, revision) = ("a_b".parse().unwrap(), "1".parse().unwrap());
    let at = rig.path("run/plugins");
    let mut forms = address::earlier_sockets(&at, &name, &revision).to_vec();
    forms.push(address::socket(&at, &name, &revision));
    for path in &forms {
        drop(UnixListener::bind(path).unwrap());
    }
    Rig::check(&rig.swept().await, &[]);
    rig.needs("a_b", &["2"]);
    let swept = rig.swept().await;
    assert_eq!(swept.len(), forms.len(), "{swept:#?}");
    assert!(swept.values().all(|fate| *fate == Deleted), "{swept:#?}");
}

#[tokio::test]
async fn a_plugin_being_installed_waits_for_the_next_run() {
    let rig = Rig::new();
    rig.revision("a", "1");
    let name: PluginName = "a".parse().unwrap();
    let turn = rig.sweeper.pipeline.turn_to_sweep(&name, SweepManner::Delete).unwrap();
    Rig::check(&rig.swept().await, &[("state/me/plugins/a", Postponed)]);
    drop(turn);
    Rig::check(&rig.swept().await, &[("state/me/plugins/a/1", Deleted)]);
}

#[tokio::test]
async fn an_installation_waits_until_its_plugin_is_swept() {
    let rig = Rig::new();
    let name: PluginName = "a".parse().unwrap();
    let turn = rig.sweeper.pipeline.turn_to_sweep(&name, SweepManner::Delete).unwrap();
    let (progress, _) = tokio::sync::watch::channel(Progress::default());
    let install = rig.sweeper.pipeline.install(Arc::new(spec("a")), progress);
    tokio::pin!(install);
    let early = tokio::time::timeout(Duration::from_millis(50), install.as_mut()).await;
    assert!(early.is_err(), "it began while the plugin was swept");
    drop(turn);
    install.await.expect_err("there is no such archive");
}

#[tokio::test]
async fn folders_of_other_instances_go_and_this_ones_stays() {
    let rig = Rig::new();
    rig.instance("old").await;
    rig.instance("me").await;
    rig.needs("p", &["1"]);
    rig.instance("mixed").await;
    rig.write("state/mixed/photo.jpg");
    rig.write(&format!("state/.trash-older-{RANDOM}/store/db"));
    let rehearsal = rig.sweep(SweepManner::Pretend).await;
    Rig::check(
        &rig.fates(rehearsal),
        &[
            ("state/old", WouldDelete),
            ("state/mixed", LeftAlone),
            (&format!("state/.trash-older-{RANDOM}"), WouldDelete),
        ],
    );
    assert!(rig.path("state/old/store/db").exists());
    Rig::check(
        &rig.swept().await,
        &[
            ("state/old", Deleted),
            ("state/mixed", LeftAlone),
            (&format!("state/.trash-older-{RANDOM}"), Deleted),
        ],
    );
    assert!(!rig.path("state/old").exists());
    assert!(rig.path("state/me/store/db").exists());
    assert!(rig.path("state/lock").exists());
    let left: Vec<_> = fs::read_dir(rig.path("state/mixed")).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    assert!(rig.path("state/mixed/photo.jpg").exists());
}

#[tokio::test]
async fn an_instance_that_another_agent_uses_stays() {
    let rig = Rig::new();
    rig.instance("other").await;
    let db = fs::File::open(rig.path("state/other/store/db")).unwrap();
    rustix::fs::flock(&db, rustix::fs::FlockOperation::LockExclusive).unwrap();
    Rig::check(&rig.swept().await, &[("state/other", LeftAlone)]);
    drop(db);
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .current_dir(rig.path("state/other/plugins/p/1"))
        .spawn()
        .unwrap();
    let fates = rig.swept().await;
    child.kill().unwrap();
    child.wait().unwrap();
    Rig::check(&fates, &[("state/other", LeftAlone)]);
    Rig::check(&rig.swept().await, &[("state/other", Deleted)]);
}

#[tokio::test]
async fn the_folder_of_an_instance_goes_when_its_last_process_has_ended() {
    let rig = Rig::new();
    rig.instance("other").await;
    let sleeper = || {
        let mut sleeper = std::process::Command::new("sleep");
        sleeper.arg("1000").current_dir(rig.path("state/other/plugins/p/1")).spawn().unwrap()
    };
    let mut both = [sleeper(), sleeper()];
    Rig::check(&rig.swept().await, &[("state/other", LeftAlone)]);
    // A rehearsal changes nothing of that.
    rig.sweep(SweepManner::Pretend).await;
    for sleeper in &mut both {
        assert!(rig.sweeper.freed().now_or_never().is_none(), "a process lives");
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }
    tokio::time::timeout(RUN_MAX, rig.sweeper.freed()).await.expect("both have ended");
    Rig::check(&rig.swept().await, &[("state/other", Deleted)]);
    assert!(rig.sweeper.freed().now_or_never().is_none(), "nothing was left");
}

#[tokio::test]
async fn the_cache_that_earlier_sweeps_left_of_an_instance_goes() {
    let rig = Rig::new();
    let archive = Sha256Digest::of(b"an archive");
    rig.write(&format!("state/old/cache/{archive}"));
    rig.write(&format!("state/old/cache/.incoming-{RANDOM}"));
    rig.write(&format!("state/older/spool/{archive}.minisig"));
    fs::create_dir_all(rig.path("state/older/cache")).unwrap();
    rig.write(&format!("state/mixed/cache/{archive}"));
    rig.write("state/mixed/cache/photo.jpg");
    rig.write(&format!("state/more/cache/{archive}"));
    rig.write("state/more/photo.jpg");
    fs::create_dir(rig.path("state/empty")).unwrap();
    fs::create_dir(rig.path("state/link")).unwrap();
    symlink(rig.path("outside"), rig.path("state/link/cache")).unwrap();
    let stay = ["mixed", "more", "empty", "link"].map(|name| (format!("state/{name}"), LeftAlone));
    let mut expected: Vec<(&str, SweepFate)> =
        stay.iter().map(|(path, fate)| (path.as_str(), *fate)).collect();
    expected.extend([("state/old", Deleted), ("state/older", Deleted)]);
    Rig::check(&rig.swept().await, &expected);
    assert!(rig.path("state/mixed/cache/photo.jpg").exists());
    assert!(rig.path(&format!("state/more/cache/{archive}")).exists());
}

#[tokio::test]
async fn an_instance_id_that_was_only_fallen_back_on_costs_nobody_its_state() {
    let mut rig = Rig::new();
    rig.instance("real").await;
    for others in [OtherInstances::Stay, OtherInstances::GoAfter(Duration::from_secs(3600))] {
        rig.sweeper.config.others = others;
        Rig::check(&rig.swept().await, &[("state/real", LeftAlone)]);
    }
    rig.sweeper.config.others = OtherInstances::GoAfter(Duration::ZERO);
    Rig::check(&rig.swept().await, &[("state/real", Deleted)]);
}

#[tokio::test]
async fn the_agents_other_places_may_be_in_the_state_directory() {
    let mut rig = Rig::new();
    rig.instance("old").await;
    rig.sweeper.config.local_plugin_dir = rig.path("state/old/local");
    rig.write("state/old/local/p/manifest.json");
    Rig::check(&rig.swept().await, &[]);
    assert!(rig.path("state/old/local/p/manifest.json").exists());
}

#[tokio::test]
async fn a_run_is_bounded() {
    let rig = Rig::new();
    for number in 0..20 {
        rig.revision("a", &number.to_string());
    }
    let bounds = Arc::new(Bounds::new(10, RUN_MAX));
    let run = Run {
        sweeper: &rig.sweeper,
        manner: SweepManner::Delete,
        references: rig.set.clone(),
        bounds,
        local: Arc::default(),
        alive: Arc::default(),
        living: Arc::default(),
        report: SweepReport::default(),
    };
    let report = run.everything().await;
    assert!(report.unfinished);
    assert!(report.count(Deleted) < 10, "{report:#?}");
    let second = rig.sweep(SweepManner::Delete).await;
    assert!(!second.unfinished && second.count(Failed) == 0, "{second:#?}");
    assert!(!rig.path("state/me/plugins/a").exists());
}

#[tokio::test]
async fn a_rehearsal_changes_nothing() {
    let rig = Rig::new();
    rig.revision("gone", "1");
    rig.write("log/plugins/gone.log");
    let report = rig.sweep(SweepManner::Pretend).await;
    Rig::check(
        &rig.fates(report),
        &[("state/me/plugins/gone/1", WouldDelete), ("log/plugins/gone.log", WouldDelete)],
    );
    assert!(rig.path("state/me/plugins/gone/1/bin/run").exists());
    assert!(rig.path("log/plugins/gone.log").exists());
}

#[tokio::test]
async fn groups_of_plugins_that_are_gone_go_with_the_processes_in_them() {
    let mut rig = Rig::new();
    let cgroups = Cgroups::detect(rig.dir.path(), None, None, Total::default());
    if !cgroups.are_there() {
        eprintln!("skipped: no control groups that this user may use");
        return;
    }
    rig.sweeper.config.cgroups = cgroups.clone();
    let group = |name: &str| cgroups.group(&name.parse().unwrap());
    for name in ["known", "lost", "gone", "empty"] {
        group(name).prepare(&Resources::default()).unwrap();
    }
    let mut sleepers: Vec<_> = ["known", "lost", "gone"]
        .map(|name| {
            let sleeper = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            group(name).take_in(sleeper.id()).unwrap();
            sleeper
        })
        .into();
    rig.needs("known", &["1"]);
    rig.change(|set| set.lost = ["lost".parse().unwrap()].into());
    let rehearsed = rig.sweep(SweepManner::Pretend).await;
    assert_eq!(rehearsed.count(WouldDelete), 2, "{rehearsed:#?}");
    // It may have belonged to the lost plugin.
    rig.change(|set| set.known = Known::Some);
    let unsure = rig.sweep(SweepManner::Delete).await;
    assert_eq!((unsure.count(Deleted), unsure.count(LeftAlone)), (0, 2), "{unsure:#?}");
    rig.change(|set| set.known = Known::All);

    let swept = rig.sweep(SweepManner::Delete).await;
    assert_eq!((swept.count(Deleted), swept.count(LeftAlone)), (2, 1), "{swept:#?}");
    assert!(swept.items.iter().any(|item| item.why.contains("processes that live on in it: 1")));
    let names: Vec<String> = cgroups.existing().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["known", "lost"]);
    assert_eq!(group("known").members().len(), 1);
    for name in ["known", "lost"] {
        group(name).kill().unwrap();
        group(name).remove().unwrap();
    }
    cgroups.leave();
    for sleeper in &mut sleepers {
        assert!(!sleeper.wait().unwrap().success());
    }
}

#[tokio::test]
async fn folders_for_sockets_go_with_plugins_that_nobody_knows() {
    let rig = Rig::new();
    let hashed = |name: &str| address::own_folders(&name.parse().unwrap())[1].clone();
    rig.needs("known", &["1"]);
    rig.change(|set| {
        set.lost.insert("lost".parse().unwrap());
    });
    fs::create_dir(rig.path("local/shipped")).unwrap();
    let stay = ["known", "lost", "shipped", &hashed("known"), &hashed("lost"), &hashed("shipped")];
    let gone = ["gone", &hashed("gone")];
    for folder in stay.iter().chain(&gone) {
        rig.write(&format!("run/confined/{folder}/1.sock"));
        symlink(rig.path("outside"), rig.path(&format!("run/confined/{folder}/out"))).unwrap();
    }
    rig.write("run/confined/.notes");
    symlink(rig.path("outside"), rig.path("run/confined/link")).unwrap();
    let of = |folder: &str| format!("run/confined/{folder}");
    let expected = |fate: SweepFate| {
        let gone = gone.map(|folder| (of(folder), fate));
        let alone = [".notes", "link"].map(|name| (of(name), SweepFate::LeftAlone));
        gone.into_iter().chain(alone).collect::<BTreeMap<_, _>>()
    };
    let pretended = rig.fates(rig.sweep(SweepManner::Pretend).await);
    assert_eq!(pretended, expected(SweepFate::WouldDelete));
    assert_eq!(rig.swept().await, expected(SweepFate::Deleted));
    for folder in stay {
        assert!(rig.path(&of(folder)).join("1.sock").exists(), "{folder}");
    }
    for folder in gone {
        assert!(!rig.path(&of(folder)).exists(), "{folder}");
    }
    // Where not every plugin is known, a hash may be that of any.
    rig.write(&format!("{}/s", of(&hashed("gone"))));
    rig.change(|set| set.known = Known::Some);
    rig.swept().await;
    assert!(rig.path(&of(&hashed("gone"))).exists());
}

#[tokio::test]
async fn the_ticket_of_a_plugin_that_is_gone_goes_once_no_process_carries_its_name() {
    let rig = Rig::new();
    rig.needs("known", &["1"]);
    rig.change(|set| {
        set.lost.insert("lost".parse().unwrap());
    });
    for ticket in ["known", ".known", "lost", "lives", "gone", ".gone", "not a name"] {
        rig.write(&format!("run/tickets/{ticket}"));
    }
    let mut lives = std::process::Command::new("sleep")
        .arg("600")
        .env("GUEST_AGENT_PLUGIN", "lives")
        .spawn()
        .unwrap();
    let expected = |fate: SweepFate| {
        let gone = ["gone", ".gone"].map(|name| (format!("run/tickets/{name}"), fate));
        let odd = ("run/tickets/not a name".to_owned(), SweepFate::LeftAlone);
        gone.into_iter().chain([odd]).collect::<BTreeMap<_, _>>()
    };
    let pretended = rig.fates(rig.sweep(SweepManner::Pretend).await);
    let deleted = rig.swept().await;
    lives.kill().unwrap();
    lives.wait().unwrap();
    assert_eq!(pretended, expected(SweepFate::WouldDelete));
    assert_eq!(deleted, expected(SweepFate::Deleted));
    let left = fs::read_dir(rig.path("run/tickets")).unwrap();
    let mut left: Vec<_> = left.map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left, [".known", "known", "lives", "lost", "not a name"]);
}
