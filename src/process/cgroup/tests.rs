//! Tests on the hierarchies of this machine, as root; elsewhere each test says that it is skipped.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use super::files::{READ_BYTES, read};
use super::*;

type Memory = fn(&Path, Option<Charge>) -> Option<Charge>;

/// Groups for one test, removed with everything in them at its end.
struct Walls {
    groups: Cgroups,
    group: Group,
}

impl Walls {
    /// `None`, with a line that says so, where this machine cannot limit what the test needs.
    fn with(controller: Controller) -> Option<Self> {
        let state_dir = format!("/test/{}", uuid::Uuid::new_v4());
        let groups = Cgroups::detect(Path::new(&state_dir), None, Some(64), Total::default());
        if !groups.controllers().contains(&controller) {
            let why = groups.trouble().join("; ");
            eprintln!("skipped: no {controller} controller for this user here ({why})");
            return None;
        }
        let group = groups.group(&"plugin".parse().unwrap());
        Some(Self { groups, group })
    }

    #[expect(unsafe_code, reason = "the child enters before it executes, as plugins do")]
    fn run(&self, script: &str) -> Child {
        let entrance = Arc::new(self.group.entrance().unwrap());
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script).stdin(Stdio::null()).stdout(Stdio::piped());
        // SAFETY: entering only writes to open descriptors.
        unsafe { command.pre_exec(move || entrance.enter()) };
        command.spawn().unwrap()
    }
}

impl Drop for Walls {
    fn drop(&mut self) {
        self.group.kill().unwrap();
        self.group.remove().unwrap();
        for place in &self.groups.places {
            std::fs::remove_dir(&place.base).unwrap();
        }
    }
}

fn within(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(20), "not so: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn limits(memory_bytes: Option<u64>, cpu_percent: Option<u32>) -> Limits {
    Limits { memory_bytes, cpu_percent, tasks: None }
}

#[test]
fn a_process_that_leaves_session_parent_and_environment_is_still_inside_and_ends() {
    let Some(walls) = Walls::with(Controller::Pids) else { return };
    walls.group.prepare(&limits(None, None)).unwrap();
    let mut child = walls.run("for n in 1 2 3; do setsid env -i /bin/sleep 1000 & done; exit 0");
    child.wait().unwrap();
    within("three helpers are inside", || walls.group.members().len() == 3);
    walls.group.kill().unwrap();
    assert_eq!(walls.group.members(), BTreeSet::new());
}

#[test]
fn a_group_that_stayed_frozen_holds_nobody_up() {
    let Some(walls) = Walls::with(Controller::Pids) else { return };
    walls.group.prepare(&limits(None, None)).unwrap();
    for room in &walls.group.rooms {
        match room.version {
            Version::V1 if room.controllers.contains(&Controller::Freezer) => {
                v1::freeze(&room.dir).unwrap();
            }
            Version::V1 => {}
            Version::V2 => write(&room.dir, "cgroup.freeze", "1").unwrap(),
        }
    }
    let mut child = walls.run("exit 0");
    within("it runs to its end", || child.try_wait().unwrap().is_some());
}

#[test]
fn a_fork_bomb_meets_its_limit_and_ends_with_its_group() {
    let Some(walls) = Walls::with(Controller::Pids) else { return };
    let unenforced = walls.group.prepare(&limits(None, None)).unwrap();
    assert_eq!(unenforced, Unenforced::default());
    let mut child = walls.run("while :; do sleep 1000 & done");
    // The shell stops forking at the limit; the processes that it made stay.
    child.wait().unwrap();
    let members = walls.group.members().len();
    assert!((32..=64).contains(&members), "{members} processes");
    walls.group.kill().unwrap();
    assert_eq!(walls.group.members(), BTreeSet::new());
}

#[tokio::test]
async fn who_takes_too_much_memory_is_killed_and_that_is_told() {
    let Some(walls) = Walls::with(Controller::Memory) else { return };
    let unenforced = walls.group.prepare(&limits(Some(16 << 20), None)).unwrap();
    assert_eq!(unenforced, Unenforced::default());
    let watch = walls.group.watch_oom().expect("this machine tells");
    assert_eq!(walls.group.oom_kills(), Some(0));
    let mut child = walls.run("x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo $x");
    tokio::time::timeout(Duration::from_secs(20), watch.notice()).await.unwrap().unwrap();
    within("the kill is counted", || walls.group.oom_kills() > Some(0));
    walls.group.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn memory_limits_rise_and_fall_in_place() {
    let Some(walls) = Walls::with(Controller::Memory) else { return };
    for memory in [Some(64 << 20), Some(256 << 20), Some(32 << 20), None, Some(16 << 20)] {
        let unenforced = walls.group.prepare(&limits(memory, None)).unwrap();
        assert_eq!(unenforced, Unenforced::default(), "{memory:?}");
    }
}

#[test]
fn a_cpu_hog_gets_its_share_and_what_it_used_is_counted() {
    let Some(walls) = Walls::with(Controller::Cpu) else { return };
    walls.group.prepare(&limits(None, Some(20))).unwrap();
    let mut child = walls.run("while :; do :; done");
    let Some(before) = walls.group.usage(&mut None) else {
        eprintln!("skipped: CPU time or memory of groups is not counted here");
        walls.group.kill().unwrap();
        child.wait().unwrap();
        return;
    };
    let began = Instant::now();
    std::thread::sleep(Duration::from_secs(2));
    let used = walls.group.usage(&mut None).unwrap().cpu_time.saturating_sub(before.cpu_time);
    let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
    walls.group.kill().unwrap();
    child.wait().unwrap();
    // At most its quota and one more period; and it did run.
    assert!(share < 0.30, "it used {share:.2} of a core");
    assert!(share > 0.0, "it did not run");
}

#[test]
fn without_control_groups_nothing_is_made_and_every_limit_is_told() {
    let group = Cgroups::none().group(&"plugin".parse().unwrap());
    let unenforced = group.prepare(&limits(Some(1 << 20), Some(50))).unwrap();
    let told: Vec<String> = unenforced.iter().map(ToString::to_string).collect();
    let why = "is not enforced: the agent may not use control groups; run the agent as";
    assert_eq!(told.len(), 2);
    assert!(told[0].starts_with(&format!("memory limit of 1048576 bytes {why}")), "{told:?}");
    assert!(told[1].starts_with(&format!("cpu limit of 50 % {why}")), "{told:?}");
    assert_eq!(group.usage(&mut None), None);
    group.kill().unwrap();
    group.remove().unwrap();
}

#[test]
fn two_agents_have_groups_of_their_own() {
    assert_ne!(fingerprint(Path::new("/var/lib/a")), fingerprint(Path::new("/var/lib/b")));
}

#[test]
fn what_a_group_says_already_is_not_written_again() {
    let dir = tempfile::tempdir().unwrap();
    // The value has a space before it, which would be gone if the same value had been written
    // again.
    let says = |text: &str| {
        for file in ["cpu.cfs_quota_us", "cpu.max"] {
            std::fs::write(dir.path().join(file), text).unwrap();
        }
        std::fs::write(dir.path().join("cpu.cfs_period_us"), " 100000\n").unwrap();
    };
    let said = |file: &str| std::fs::read_to_string(dir.path().join(file)).unwrap();
    says(" -1\n");
    v1::limit_cpu(dir.path(), None).unwrap();
    assert_eq!((&*said("cpu.cfs_quota_us"), &*said("cpu.cfs_period_us")), (" -1\n", " 100000\n"));
    says(" 20000 100000\n");
    v2::limit_cpu(dir.path(), Some(20)).unwrap();
    assert_eq!(said("cpu.max"), " 20000 100000\n");

    says("");
    v1::limit_cpu(dir.path(), Some(20)).unwrap();
    v2::limit_cpu(dir.path(), None).unwrap();
    assert_eq!((&*said("cpu.cfs_quota_us"), &*said("cpu.max")), ("20000", "max 100000"));
    std::fs::remove_file(dir.path().join("cpu.max")).unwrap();
    v2::limit_cpu(dir.path(), None).unwrap_err();
}

#[test]
fn what_memory_consists_of_is_believed_while_it_is_as_much() {
    let dir = tempfile::tempdir().unwrap();
    let v1 = ("memory.usage_in_bytes", "total_inactive_file", v1::memory as Memory);
    let v2 = ("memory.current", "inactive_file", v2::memory as Memory);
    for (file, key, memory) in [v1, v2] {
        let says = |charged: u64, idle: u64| {
            std::fs::write(dir.path().join(file), format!("{charged}\n")).unwrap();
            std::fs::write(dir.path().join("memory.stat"), format!("{key} {idle}\n")).unwrap();
        };
        says(1000, 400);
        let first = memory(dir.path(), None);
        says(1000, 100);
        let second = memory(dir.path(), first);
        let anew = memory(dir.path(), None);
        says(50, 100);
        let third = memory(dir.path(), second);
        let bytes = [first, second, anew, third].map(|charge| charge.unwrap().memory().bytes);
        assert_eq!(bytes, [600, 600, 900, 0], "{file}");
        std::fs::remove_file(dir.path().join(file)).unwrap();
        assert_eq!(memory(dir.path(), third), None);
    }
}

#[test]
fn a_long_file_is_read_to_its_end() {
    let dir = tempfile::tempdir().unwrap();
    for length in [0, 1, READ_BYTES / 2, READ_BYTES, READ_BYTES * 3 + 7] {
        let text = "x".repeat(length);
        std::fs::write(dir.path().join("cgroup.procs"), &text).unwrap();
        assert_eq!(read(dir.path(), "cgroup.procs"), Some(text));
    }
    assert_eq!(read(dir.path(), "memory.stat"), None);
}

#[test]
fn the_peak_of_a_group_is_read_where_the_kernel_keeps_it() {
    for (version, file) in
        [(Version::V2, "memory.peak"), (Version::V1, "memory.max_usage_in_bytes")]
    {
        let dir = tempfile::tempdir().unwrap();
        let group = |controller| {
            let controllers = Arc::new(BTreeSet::from([controller]));
            let room = Room { version, controllers, dir: dir.path().to_owned() };
            Group { rooms: vec![room], ..Group::default() }
        };
        assert_eq!(group(Controller::Memory).memory_peak(), None, "an older kernel");
        std::fs::write(dir.path().join(file), "67104768\n").unwrap();
        assert_eq!(group(Controller::Memory).memory_peak(), Some(67_104_768));
        assert_eq!(group(Controller::Cpu).memory_peak(), None, "it does not count memory");
        std::fs::write(dir.path().join(file), "max\n").unwrap();
        assert_eq!(group(Controller::Memory).memory_peak(), None);
    }
    assert_eq!(Group::default().memory_peak(), None, "there is no group");
}
