//! The doctor, the status and the events report what is wrong with the agent or its machine.

use std::fs;
use std::path::{Path, PathBuf};

use guest_agent::store::{self, StateLock};
use guest_agent_actors::ports::{Durability, Storage, Table, Write};
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::harness::{Bed, INSTANCE, Said, listing, orders, signal};

/// Runs `doctor` with the agent's own configuration.
async fn doctor(bed: &Bed, more: &[&str]) -> Said {
    let config = bed.dir().join("agent.toml").display().to_string();
    let instance = format!("instance.id={INSTANCE}");
    let arguments = ["doctor", "--config", &config, "--set", &instance];
    bed.cli(&[&arguments, more].concat()).await
}

/// Puts records into the store of an agent that does not run.
async fn plant(state_dir: &Path, records: &[(Table, &[u8])]) {
    let lock = StateLock::acquire(state_dir).unwrap();
    let opened = store::open(&lock, &state_dir.join(INSTANCE).join("store")).await.unwrap();
    let put = |&(table, key): &(Table, &[u8])| Write::Put {
        table,
        key: key.to_vec(),
        value: b"\xff no record".to_vec(),
    };
    let writes = records.iter().map(put).collect();
    opened.storage.commit(writes, Durability::Durable).await.unwrap();
    opened.storage.close().await.unwrap();
}

#[tokio::test]
async fn a_healthy_agent_has_no_findings() {
    let bed = Bed::new().await;
    let said = doctor(&bed, &[]).await.ok();
    assert!(said.starts_with("nothing is wrong\nchecked: agent, plugins (0), "), "{said}");
    assert_eq!(doctor(&bed, &["--sweep"]).await.ok(), "nothing to sweep\n");
    let found: serde_json::Value =
        serde_json::from_str(&doctor(&bed, &["--json"]).await.ok()).unwrap();
    assert_eq!(found["agent"]["pid"], bed.agent_pid());
    assert_eq!(found["findings"], serde_json::json!([]));
    bed.finish().await;
}

#[tokio::test]
async fn lost_records_are_told_until_they_are_forgotten() {
    let mut bed = Bed::new().await;
    bed.stop_agent().await;
    let number = 7u64.to_be_bytes();
    let tables = [Table::Inbox, Table::Outbox, Table::History];
    let mut records: Vec<(Table, &[u8])> = tables.map(|table| (table, &number[..])).to_vec();
    records.push((Table::Facts, b"next_event"));
    records.push((Table::Plugins, b"web"));
    plant(&bed.dir().join("state"), &records).await;
    let folder = bed.plugin_dir("web").join("1");
    fs::create_dir_all(&folder).unwrap();
    bed.start_agent().await;

    bed.until("the control plane gets an event of every loss", async || {
        let told = bed.all_events_of("guest-agent").await;
        let tables = ["inbox", "outbox", "history", "facts", "plugins"];
        let is_told = |table: &&str| {
            told.iter().any(|event| event.details().contains(&format!("of the table {table} ")))
        };
        tables.iter().all(is_told).then_some(())
    })
    .await;
    bed.event(8, "web", "").await;
    let status = bed.cli(&["status"]).await.ok();
    assert!(
        status.contains("5 unusable records were set aside; see `guest-agent doctor`"),
        "{status}"
    );
    assert!(bed.log().contains("ERROR"), "it is in the log");

    // Also those that the agent of another life has told of.
    for _ in 0..2 {
        let found = doctor(&bed, &[]).await;
        assert_eq!(found.code, 1, "{found:?}");
        assert!(found.stdout.contains("5 records of the store were set aside"), "{found:?}");
        assert!(found.stdout.contains("--clear-quarantine"), "the way out is named: {found:?}");
        assert!(folder.exists(), "nobody knows whether it is needed");
        bed.kill_agent().await;
        bed.start_agent().await;
    }
    let told = bed.events_of("guest-agent").await;
    assert_eq!(told.len(), 5, "each event comes once");
    doctor(&bed, &["--clear-quarantine"]).await.ok();
    let found: serde_json::Value =
        serde_json::from_str(&doctor(&bed, &["--json"]).await.stdout).unwrap();
    assert_eq!(found["lost_records"], serde_json::json!([]));
    let status = bed.cli(&["status"]).await.ok();
    assert!(!status.contains("set aside"), "{status}");
    fs::remove_dir_all(bed.plugin_dir("web")).unwrap();
    bed.finish().await;
}

#[tokio::test]
async fn a_store_that_was_replaced_is_told_and_costs_no_plugin_its_files() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let pid = pid_of(&bed, "echo").await;
    bed.kill_agent().await;
    let db = bed.state_root().join("store/db");
    let length = usize::try_from(fs::metadata(&db).unwrap().len()).unwrap();
    fs::write(&db, vec![0x5a; length]).unwrap();
    bed.start_agent().await;

    let told = bed.event(8, "guest-agent", "").await;
    assert!(told.details().contains("store.damaged-1"), "{}", told.details());
    assert!(told.details().contains("adopted as they last ran (echo)"), "{}", told.details());
    assert_eq!(bed.running("echo", "1").await.pid, Some(pid), "it was started again");
    let status = bed.cli(&["status"]).await.ok();
    assert!(status.contains("a store was damaged or lost"), "{status}");
    let found = doctor(&bed, &[]).await;
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.stdout.contains("store.damaged-1"), "{found:?}");
    assert_eq!(bed.plugin_files("echo"), [".installed-1", "1", "current"]);
    // Ordered again it is what runs already.
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.event(4, "echo", "1").await;
    assert_eq!(bed.running("echo", "1").await.pid, Some(pid));
    bed.finish().await;
}

/// The process that serves a plugin, and whether it still does.
async fn pid_of(bed: &Bed, plugin: &str) -> u32 {
    bed.status(plugin).await.unwrap().pid.unwrap()
}

fn lives(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[tokio::test]
async fn a_store_that_is_gone_is_told_and_costs_no_plugin_its_process_or_files() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let pid = pid_of(&bed, "echo").await;
    bed.kill_agent().await;
    fs::remove_dir_all(bed.state_root().join("store")).unwrap();
    bed.start_agent().await;

    let told = bed.event(8, "guest-agent", "").await;
    assert!(told.details().contains("was gone"), "{}", told.details());
    assert!(told.details().contains("files of plugins"), "{}", told.details());
    let status = bed.cli(&["status"]).await.ok();
    assert!(status.contains("a store was damaged or lost"), "{status}");
    let found = doctor(&bed, &[]).await;
    assert_eq!(found.code, 1, "{found:?}");
    assert!(found.stdout.contains("store.damaged-1"), "{found:?}");
    // It is adopted, and stays so with the agents to come.
    for _ in 0..2 {
        let rehearsed = doctor(&bed, &["--sweep"]).await.ok();
        assert!(!rehearsed.contains("would"), "{rehearsed}");
        assert_eq!(bed.running("echo", "1").await.pid, Some(pid), "its process was ended");
        assert_eq!(bed.plugin_files("echo"), [".installed-1", "1", "current"]);
        bed.kill_agent().await;
        bed.start_agent().await;
    }
    let lost = bed.events_of("guest-agent").await;
    assert_eq!(lost, [8], "one event for one loss");
    bed.finish().await;
}

/// A plugin of a lost store is supervised as before: it is started again, it is upgraded from what
/// it is, and what nobody vouches for any more is left alone until a person says what becomes of it.
#[tokio::test]
async fn plugins_of_a_lost_store_are_adopted_and_the_others_are_offered_to_be_forgotten() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    let install = |name: &str| orders::install(name, "1", &echo).order();
    bed.configure(vec![install("good"), install("bad"), install("killed")]).await;
    for name in ["good", "bad", "killed"] {
        bed.running(name, "1").await;
        let record = bed.plugin_dir(name).join(".adopt-1");
        bed.until("its record is written", async || record.exists().then_some(())).await;
    }
    let [good, bad, killed] = ["good", "bad", "killed"].map(|name| pid_of(&bed, name));
    let (good, bad, killed) = (good.await, bad.await, killed.await);
    bed.kill_agent().await;
    fs::remove_dir_all(bed.state_root().join("store")).unwrap();
    fs::write(bed.plugin_dir("bad").join(".adopt-1"), vec![0x5a; 200]).unwrap();
    signal(killed, Signal::SIGKILL);
    bed.start_agent().await;

    assert_eq!(bed.running("good", "1").await.pid, Some(good), "it was started again");
    bed.status_where("killed", "it runs again", |it| {
        it.state == "RUNNING" && it.pid.is_some_and(|pid| pid != killed)
    })
    .await;
    let told = bed.event(8, "guest-agent", "").await;
    assert!(told.details().contains("2 of its plugins are adopted"), "{}", told.details());
    assert!(told.details().contains("1 are not adopted (bad)"), "{}", told.details());
    assert!(bed.status("bad").await.is_none());
    assert!(lives(bad), "what is not adopted runs on");
    let found = doctor(&bed, &[]).await;
    assert!(found.stdout.contains("the plugin bad of a lost store is not adopted"), "{found:?}");
    assert!(found.stdout.contains("doctor --forget bad"), "{found:?}");

    // It is supervised: what crashes comes back, and what is ordered is done.
    signal(good, Signal::SIGKILL);
    bed.status_where("good", "it runs again", |it| {
        it.state == "RUNNING" && it.pid.is_some_and(|pid| pid != good)
    })
    .await;
    bed.configure(vec![orders::install("good", "2", &echo).order()]).await;
    bed.running("good", "2").await;

    let refused = doctor(&bed, &["--forget", "good"]).await;
    assert_ne!(refused.code, 0, "it is known: {refused:?}");
    assert!(refused.stderr.contains("knows this plugin"), "{refused:?}");
    doctor(&bed, &["--forget", "bad"]).await.ok();
    bed.event(5, "bad", "unknown").await;
    bed.gone("bad").await;
    assert_eq!(bed.processes("bad"), [0; 0], "its processes are ended");
    assert!(!bed.plugin_dir("bad").exists(), "its files are deleted");
    assert!(!bed.state_root().join("state/bad").exists(), "its data is deleted");
    // A later agent adopts nothing a second time.
    bed.configure(vec![orders::remove("killed")]).await;
    bed.gone("killed").await;
    bed.kill_agent().await;
    bed.start_agent().await;
    bed.running("good", "2").await;
    assert!(bed.status("killed").await.is_none() && bed.status("bad").await.is_none());
    let found = doctor(&bed, &[]).await;
    assert!(!found.stdout.contains("is not adopted"), "{found:?}");
    bed.finish().await;
}

/// Whatever of the agent's own files is damaged together: it starts, and either knows the plugin or
/// reports to the control plane that it lost something. It ends the process of a plugin only where
/// the record of that plugin alone is lost, and says so in an event of the plugin. `DAMAGE_FROM` is the
/// first of the seeds, 0 without it; `DAMAGE_ROUNDS` is how many there are.
#[tokio::test]
async fn damage_of_any_of_its_files_costs_no_plugin_its_process_and_no_loss_is_silent() {
    let number = |name: &str| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let first = number("DAMAGE_FROM").unwrap_or(0);
    let rounds = number("DAMAGE_ROUNDS").unwrap_or(20);
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    bed.expect_events("echo", &[1, 4, 3]).await;
    let (root, kept) = (bed.state_root(), bed.dir().join("kept"));
    let mut pid = None;
    for round in first..first + rounds {
        let before = match pid {
            Some(pid) => pid,
            None => {
                let now = pid_of(&bed, "echo").await;
                // It closes nothing then, as a stop on a busy machine may not.
                bed.kill_agent().await;
                drop(fs::remove_dir_all(&kept));
                copy(&root, &kept);
                now
            }
        };
        fs::remove_dir_all(&root).unwrap();
        copy(&kept, &root);
        let damaged = damage(&root, round);
        let told_before = losses_told(&bed).await;
        bed.start_agent().await;
        bed.until(&format!("round {round}: it knows or reports; {damaged:?}"), async || {
            let known = bed.status("echo").await.is_some_and(|it| it.pid == Some(before));
            (known || losses_told(&bed).await > told_before).then_some(())
        })
        .await;
        // The rest of its beginning: what it would end or delete.
        bed.cli(&["doctor", "--sweep"]).await;
        bed.kill_agent().await;
        pid = Some(before);
        if !lives(before) {
            let told = bed.all_events_of("echo").await;
            let said = told.iter().any(|event| event.details().contains("its processes are ended"));
            assert!(said, "round {round}: its process was ended; {damaged:?}");
            // The agent of the whole store starts it again.
            fs::remove_dir_all(&root).unwrap();
            copy(&kept, &root);
            bed.start_agent().await;
            bed.running("echo", "1").await;
            pid = None;
        }
    }
    if pid.is_some() {
        fs::remove_dir_all(&root).unwrap();
        copy(&kept, &root);
        bed.start_agent().await;
    }
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    bed.finish().await;
}

/// How many losses the agent reported, of its own and of the plugin's record.
async fn losses_told(bed: &Bed) -> usize {
    let of_agent = bed.events_of("guest-agent").await.len();
    of_agent + bed.events_of("echo").await.iter().filter(|kind| **kind == 8).count()
}

fn copy(from: &Path, to: &Path) {
    let status = std::process::Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap();
    assert!(status.success());
}

/// Damages some of the files below a folder, together: cut, overwritten, emptied or deleted. Says
/// which. The programs of plugins are none of the agent's own files.
fn damage(root: &Path, seed: u64) -> Vec<String> {
    let mut chance = StdRng::seed_from_u64(seed);
    let mut files: Vec<PathBuf> = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in listing(&folder) {
            let kind = fs::symlink_metadata(&entry).unwrap();
            if kind.is_dir() && !entry.ends_with("echo/1") {
                folders.push(entry);
            } else if kind.is_file() {
                files.push(entry);
            }
        }
    }
    files.sort();
    let share = [0.2, 0.5, 1.0][usize::try_from(seed % 3).unwrap()];
    let mut damaged = Vec::new();
    for file in files {
        if !chance.random_bool(share) {
            continue;
        }
        let mut bytes = fs::read(&file).unwrap();
        let how = match chance.random_range(0..4) {
            0 => {
                fs::remove_file(&file).unwrap();
                "deleted"
            }
            1 => {
                fs::write(&file, "").unwrap();
                "emptied"
            }
            2 => {
                bytes.truncate(chance.random_range(0..=bytes.len()));
                fs::write(&file, bytes).unwrap();
                "cut"
            }
            _ => {
                for _ in 0..8.min(bytes.len()) {
                    let at = chance.random_range(0..bytes.len());
                    bytes[at] ^= 0x5a;
                }
                fs::write(&file, bytes).unwrap();
                "overwritten"
            }
        };
        damaged.push(format!("{how} {}", file.strip_prefix(root).unwrap().display()));
    }
    damaged
}

#[tokio::test]
async fn without_an_agent_the_machine_is_examined_all_the_same() {
    let mut bed = Bed::builder().build().await;
    let state = bed.dir().join("state");
    fs::create_dir_all(&state).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(&state, mode).unwrap();
    let found = doctor(&bed, &[]).await;
    assert_eq!(found.code, 1, "{found:?}");
    for part in ["the agent does not answer", "everybody may write to", "chmod go-w"] {
        assert!(found.stdout.contains(part), "{part}: {found:?}");
    }
    assert_eq!(doctor(&bed, &["--sweep"]).await.code, 3);
    fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    // Another process holds the state directory: it is named.
    let held = StateLock::acquire(&state).unwrap();
    let found = doctor(&bed, &[]).await;
    let holder = format!("process {} holds", std::process::id());
    assert!(found.stdout.contains(&holder), "{found:?}");
    drop(held);
    bed.start_agent().await;
    bed.finish().await;
}

#[tokio::test]
async fn a_second_agent_is_told_who_holds_the_state_directory() {
    let bed = Bed::new().await;
    let config = bed.dir().join("agent.toml").display().to_string();
    let runtime = format!("agent.runtime_dir={}", bed.dir().join("other").display());
    let said = bed.cli(&["run", "--config", &config, "--set", &runtime]).await;
    assert_eq!(said.code, 1, "{said:?}");
    let holder = format!("in use by process {}", bed.agent_pid());
    assert!(said.stderr.contains(&holder), "{said:?}");
    bed.finish().await;
}
