//! Limits that hold, on machines whose control groups this user may use.

use std::path::{Path, PathBuf};

use guest_agent_proto::local;

use crate::harness::{ArchiveSpec, Bed, PATIENCE, orders};

/// Says so in one line, where control groups cannot limit.
pub(crate) fn can_limit(controller: &str) -> bool {
    let v1 = Path::new("/sys/fs/cgroup").join(controller);
    let v2 = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers").unwrap_or_default();
    let there = v1.is_dir() || v2.split_whitespace().any(|name| name == controller);
    let can = there && nix::unistd::geteuid().is_root();
    if !can {
        eprintln!("skipped: no {controller} controller that this user may use");
    }
    can
}

/// The processes that were started with exactly these arguments.
fn processes_with(arguments: &[&str]) -> Vec<String> {
    let wanted: Vec<u8> =
        arguments.iter().flat_map(|one| [one.as_bytes(), b"\0"].concat()).collect();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries
        .filter(|entry| std::fs::read(entry.path().join("cmdline")).is_ok_and(|it| it == wanted))
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// The group of a process, under version 1 of control groups.
pub(crate) fn group_of(pid: u32, controller: &str) -> Option<PathBuf> {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    let group = groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        (fields.next()? == controller).then_some(fields.next()?)
    })?;
    let dir = PathBuf::from(format!("/sys/fs/cgroup/{controller}{group}"));
    if !dir.is_dir() {
        eprintln!("skipped: version 1 of control groups is not mounted where this test looks");
        return None;
    }
    Some(dir)
}

/// What a file of the group of a process says.
fn group_file(pid: u32, controller: &str, file: &str) -> Option<String> {
    let said = std::fs::read_to_string(group_of(pid, controller)?.join(file)).ok()?;
    Some(said.trim().to_owned())
}

/// Whether the agent may have the kernel spare it; root of a container may not.
fn may_lower_scores() -> bool {
    let sets = rustix::thread::capabilities(None).unwrap();
    let may = sets.effective.contains(rustix::thread::CapabilitySet::SYS_RESOURCE);
    if !may {
        eprintln!("skipped: a lower oom_score_adj of the agent: no CAP_SYS_RESOURCE here");
    }
    may
}

#[tokio::test]
async fn other_limits_hold_at_once_and_the_process_stays() {
    if !can_limit("memory") || !can_limit("cpu") {
        return;
    }
    let mut bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let order = |memory: i64, cpu: i32| {
        let order = orders::install("free", "1", &trouble).arg("--allocate-mb=40");
        order.manifest(|manifest| {
            manifest.max_memory_usage_bytes = memory;
            manifest.max_cpu_usage_percentage = cpu;
        })
    };
    bed.configure(vec![order(200 << 20, 0).order()]).await;
    let before = bed.running("free", "1").await;
    let pid = before.pid.unwrap();
    let Some(limit) = group_file(pid, "memory", "memory.limit_in_bytes") else {
        bed.finish().await;
        return;
    };
    assert_eq!(limit, (200 << 20).to_string());

    bed.configure(vec![order(100 << 20, 30).order()]).await;
    bed.expect_events("free", &[1, 4, 3, 1, 3]).await;
    let after = bed.running("free", "1").await;
    assert_eq!((after.pid, after.restarts), (before.pid, 0));
    let limit = group_file(pid, "memory", "memory.limit_in_bytes");
    assert_eq!(limit, Some((100 << 20).to_string()));
    assert_eq!(group_file(pid, "cpu", "cpu.cfs_quota_us").as_deref(), Some("30000"));

    // An agent that adopts the running plugin applies the limits that were ordered.
    bed.kill_agent_only().await;
    bed.start_agent().await;
    bed.configure(vec![order(0, 0).order()]).await;
    bed.expect_events("free", &[1, 4, 3, 1, 3, 1, 3]).await;
    assert_eq!(bed.running("free", "1").await.pid, before.pid);
    assert_eq!(group_file(pid, "cpu", "cpu.cfs_quota_us").as_deref(), Some("-1"));

    // The kernel cannot take memory in use from a process that keeps running.
    bed.configure(vec![order(20 << 20, 0).order()]).await;
    let expected = [1, 4, 3, 1, 3, 1, 3, 1, 6];
    bed.until("it is stopped", async || {
        bed.events_of("free").await.starts_with(&expected).then_some(())
    })
    .await;
    bed.finish().await;
}

#[tokio::test]
async fn limits_of_the_owner_count_over_orders_and_restarts_until_the_owner_resets_them() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    let order = |memory: i64| {
        orders::install("web", "1", &echo).manifest(|it| it.max_memory_usage_bytes = memory)
    };
    bed.configure(vec![order(200 << 20).order()]).await;
    let pid = bed.running("web", "1").await.pid.unwrap();
    for bad in [&["--memory", "64K"][..], &["--cpu", "0"], &["--reset", "--cpu", "5"], &[]] {
        let refused = bed.cli(&[&["limit", "web"], bad].concat()).await;
        assert_ne!(refused.code, 0, "{refused:?}");
    }
    let nothing = bed.cli(&["limit", "web", "--reset"]).await;
    assert!(nothing.stderr.contains("nothing to take back"), "{nothing:?}");

    let limit = ["limit", "web", "--memory", "96M", "--reason", "backfill", "--wait"];
    bed.cli(&limit).await.ok();
    let said = bed.cli(&["limit", "web", "--tasks", "77", "--wait"]).await.ok();
    assert_eq!(said, "web: RUNNING\n");
    let limits = |memory: u64, tasks: Option<u64>| {
        let memory_bytes = Some(memory << 20);
        local::Limits { memory_bytes, cpu_percent: None, tasks }
    };
    let status = bed.status("web").await.unwrap();
    assert_eq!((status.limits, status.pid), (Some(limits(96, Some(77))), Some(pid)));
    let own = status.limit_override.expect("the owner gave some");
    assert_eq!((own.limits, &*own.by), (Some(limits(96, Some(77))), "root"));
    if let Some(limit) = group_file(pid, "memory", "memory.limit_in_bytes") {
        assert_eq!(limit, (96 << 20).to_string());
    }
    if let Some(tasks) = group_file(pid, "pids", "pids.max") {
        assert_eq!(tasks, "77");
    }

    // Neither an order nor a restart of the agent, nor one of the plugin, takes them back.
    bed.configure(vec![order(150 << 20).order()]).await;
    bed.expect_events("web", &[1, 4, 3, 1, 3]).await;
    bed.kill_agent_only().await;
    bed.start_agent().await;
    bed.cli(&["restart", "web"]).await.ok();
    let pid = bed.running("web", "1").await.pid.unwrap();
    if let Some(limit) = group_file(pid, "memory", "memory.limit_in_bytes") {
        assert_eq!(limit, (96 << 20).to_string());
    }
    let shown = bed.cli(&["status", "web"]).await.ok();
    for part in ["memory 96.0 MiB, tasks 77", "limit web --reset", "memory 150.0 MiB"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let audit = bed.cli(&["audit", "web"]).await.ok();
    assert!(audit.contains("memory 96.0 MiB: backfill"), "{audit}");

    bed.cli(&["limit", "web", "--reset", "--wait"]).await.ok();
    let status = bed.status("web").await.unwrap();
    assert_eq!((status.limits, status.limit_override), (Some(limits(150, None)), None));
    if let Some(limit) = group_file(pid, "memory", "memory.limit_in_bytes") {
        assert_eq!(limit, (150 << 20).to_string());
    }
    assert_eq!(status.pid, Some(pid));
    bed.finish().await;
}

#[tokio::test]
async fn without_control_groups_a_memory_hog_is_found_out_and_started_again() {
    let bed = Bed::builder().set("plugins.cgroups=off").start().await;
    let trouble = bed.trouble().await;
    let hog = orders::install("hog", "1", &trouble).arg("--allocate-mb=200").manifest(|manifest| {
        manifest.max_memory_usage_bytes = 64 << 20;
        manifest.metrics_interval = orders::seconds(1.0);
    });
    bed.configure(vec![hog.order()]).await;
    let crash = bed.event(7, "hog", "1").await;
    let details = crash.details();
    for part in ["limit of 64 MiB: it used ", " at its peak", "`guest-agent limit hog --memory "] {
        assert!(details.contains(part), "{part}: {details}");
    }
    let status = bed
        .status_where("hog", "it went for memory and is started again", |status| {
            let is_oom = status.last_exit.as_ref().is_some_and(|exit| exit.kind == "oom");
            is_oom && status.restarts >= 1 && status.state == "RUNNING"
        })
        .await;
    let exit = status.last_exit.unwrap();
    assert!(exit.detail.contains("ended by the agent"), "{}", exit.detail);
    assert!(exit.memory_peak_bytes > Some(64 << 20), "{exit:?}");
    assert!(exit.proposed_memory_bytes > exit.memory_peak_bytes, "{exit:?}");
    bed.finish().await;
}

#[tokio::test]
async fn a_fork_bomb_stays_within_its_limit_and_ends_with_its_plugin() {
    if !can_limit("pids") {
        return;
    }
    let bed = Bed::builder().set("plugins.max_tasks=64").start().await;
    // A number that no other test sleeps for.
    let seconds = format!("{}", 1_000_000 + u64::from(std::process::id()) % 800_000);
    let echo = crate::harness::plugins::program("echo_plugin");
    // Once the plugin is up; a shell that may not fork any more gives up.
    let bomb =
        format!("(sleep 1; while :; do sleep {seconds} & done) </dev/null >/dev/null 2>&1 &");
    let script = format!("{bomb}\nexec {} \"$@\"", echo.display());
    let archive = bed.archive("bomb.tar", ArchiveSpec::script(&script)).await;
    bed.configure(vec![orders::install("bomb", "1", &archive).order()]).await;
    bed.expect_events("bomb", &[1, 4, 3]).await;
    let sleeping = || processes_with(&["sleep", &seconds]).len();
    bed.until("it has gone off", async || (sleeping() >= 20).then_some(())).await;
    assert!(sleeping() <= 64, "{} of them", sleeping());
    bed.configure(vec![orders::remove("bomb")]).await;
    bed.event(5, "bomb", "1").await;
    assert_eq!(sleeping(), 0, "they outlived their plugin");
    bed.finish().await;
}

#[tokio::test]
async fn a_memory_hog_is_killed_reported_as_such_and_started_again() {
    if !can_limit("memory") {
        return;
    }
    let bed = Bed::new().await;
    let trouble = bed.trouble().await;
    let hog = orders::install("hog", "1", &trouble)
        .arg("--allocate-mb=200")
        .manifest(|manifest| manifest.max_memory_usage_bytes = 64 << 20);
    bed.configure(vec![hog.order()]).await;
    let crash = bed.event(7, "hog", "1").await;
    let advice = "`guest-agent limit hog --memory 96M` gives it more";
    let details = crash.details();
    assert!(details.starts_with("out of memory at its limit of 64 MiB"), "{details}");
    assert!(details.contains(advice), "{details}");
    let status = bed
        .status_where("hog", "it was killed for memory", |status| {
            status.last_exit.as_ref().is_some_and(|exit| exit.kind == "oom")
        })
        .await;
    assert_eq!(status.revision, "1");
    let exit = status.last_exit.unwrap();
    assert_eq!(exit.proposed_memory_bytes, Some(96 << 20));
    // Kernels before 5.19 keep no peak.
    let peak = exit.memory_peak_bytes;
    assert!(peak.is_none_or(|peak| (60 << 20..=65 << 20).contains(&peak)), "{peak:?}");
    assert_eq!(exit.detail.contains(" at its peak"), peak.is_some(), "{}", exit.detail);
    bed.status_where("hog", "it is started again", |status| status.restarts >= 2).await;
    for verb in
        [&["status"][..], &["status", "hog"], &["explain", "hog"], &["doctor"], &["events", "hog"]]
    {
        let shown = bed.cli(verb).await.stdout;
        assert!(shown.contains(advice), "{verb:?}: {shown}");
    }
    bed.finish().await;
}

#[tokio::test]
async fn limits_that_do_not_hold_are_told_wherever_somebody_looks() {
    let mut bed = Bed::builder().set("plugins.cgroups=off").start().await;
    let echo = bed.echo().await;
    let limited = orders::install("limited", "1", &echo)
        .manifest(|manifest| manifest.max_memory_usage_bytes = 64 << 20);
    bed.configure(vec![limited.order()]).await;
    bed.running("limited", "1").await;
    let installed = bed.event(3, "limited", "1").await;
    let what = "memory limit of 67108864 bytes";
    let why = "plugins.cgroups is \"off\"";
    assert!(installed.details().contains(what) && installed.details().contains(why));

    // Also when the agent that found it has ended.
    for _ in 0..2 {
        let status = bed.cli(&["status", "--json"]).await.ok();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let shortfall = &status["plugins"][0]["not_enforced"][0];
        assert_eq!((&shortfall["what"], &shortfall["why"]), (&what.into(), &why.into()));
        for verb in ["status", "explain"] {
            let said = bed.cli(&[verb, "limited"]).await.ok();
            assert!(said.contains("not enforced") && said.contains(what), "{verb}: {said}");
        }
        let config = bed.dir().join("agent.toml").display().to_string();
        let said = bed.cli(&["doctor", "--config", &config]).await;
        assert_eq!(said.code, 1, "{said:?}");
        let finding = format!("warning: {what} is not enforced for limited\n  why: {why}\n  fix: ");
        assert!(said.stdout.contains(&finding), "{said:?}");
        bed.kill_agent().await;
        bed.start_agent().await;
        bed.running("limited", "1").await;
    }
    bed.finish().await;
}

#[tokio::test]
async fn a_helper_that_left_everything_behind_ends_with_its_plugin() {
    if !can_limit("pids") {
        return;
    }
    let bed = Bed::new().await;
    // A number that no other test sleeps for.
    let seconds = format!("{}", 100_000 + u64::from(std::process::id()) % 800_000);
    let echo = crate::harness::plugins::program("echo_plugin");
    let script = format!(
        "setsid env -i /bin/sleep {seconds} </dev/null >/dev/null 2>&1 &\nexec {} \"$@\"",
        echo.display()
    );
    let archive = bed.archive("escape.tar", ArchiveSpec::script(&script)).await;
    bed.configure(vec![orders::install("escape", "1", &archive).order()]).await;
    bed.expect_events("escape", &[1, 4, 3]).await;
    let helper = ["/bin/sleep", &seconds];
    bed.until("the helper runs", async || (processes_with(&helper).len() == 1).then_some(())).await;
    bed.configure(vec![orders::remove("escape")]).await;
    bed.event(5, "escape", "1").await;
    assert_eq!(processes_with(&helper), Vec::<String>::new(), "it outlived its plugin");
    bed.finish().await;
}

#[tokio::test]
async fn a_cpu_hog_gets_its_share() {
    if !can_limit("cpu") {
        return;
    }
    let bed = Bed::new().await;
    let echo = crate::harness::plugins::program("echo_plugin");
    let script = format!("(while :; do :; done) &\nexec {} \"$@\"", echo.display());
    let archive = bed.archive("hog.tar", ArchiveSpec::script(&script)).await;
    let hog = orders::install("hog", "1", &archive).manifest(|manifest| {
        manifest.max_cpu_usage_percentage = 20;
        manifest.metrics_interval = orders::seconds(1.0);
    });
    bed.configure(vec![hog.order()]).await;
    bed.expect_events("hog", &[1, 4, 3]).await;
    // The agent sends a window once: what was acknowledged is not in the next list.
    let mut used: Vec<f32> = Vec::new();
    bed.within(PATIENCE, "it is measured three times", async || {
        let listed = bed.listed("hog").await?;
        used.extend(listed.current_plugin_metrics.iter().map(|point| point.cpu_usage));
        (used.len() >= 3).then_some(())
    })
    .await;
    let mean = used.iter().sum::<f32>() / used.len() as f32;
    // The quota, and a period of it more for each sample.
    assert!((1.0..32.0).contains(&mean), "it used {used:?} percent");
    bed.finish().await;
}

#[tokio::test]
async fn the_agent_and_all_plugins_keep_to_their_total_together() {
    if !can_limit("memory") || !can_limit("cpu") {
        return;
    }
    let total = 200 << 20;
    let bed = Bed::builder()
        .set(format!("plugins.total_memory_bytes={total}"))
        .set("plugins.total_cpu_percent=150")
        .start()
        .await;
    let trouble = bed.trouble().await;
    // More than all may have, and no limit of its own.
    let hog = orders::install("hog", "1", &trouble).arg("--allocate-mb=300");
    let small = orders::install("small", "1", &trouble)
        .manifest(|manifest| manifest.max_cpu_usage_percentage = 1000);
    bed.configure(vec![small.order()]).await;
    let small = bed.running("small", "1").await;
    let Some(group) = group_of(small.pid.unwrap(), "memory") else {
        bed.finish().await;
        return;
    };
    let of_all = group.parent().unwrap();
    let said = std::fs::read_to_string(of_all.join("memory.limit_in_bytes")).unwrap();
    assert_eq!(said.trim(), total.to_string());
    let of_agent = group_of(bed.agent_pid(), "memory").unwrap();
    assert_eq!(of_agent.parent(), Some(of_all), "the agent is one of them");
    let quota = group_file(small.pid.unwrap(), "cpu", "cpu.cfs_quota_us");
    assert_eq!(quota.as_deref(), Some("150000"), "no more than all may have");
    // A plugin that took all would take others with it while the kernel still frees what it had.
    let most = group_file(small.pid.unwrap(), "memory", "memory.limit_in_bytes");
    assert_eq!(most, Some((total - total / 4).to_string()), "something is left to the others");
    let score = |pid| std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj")).unwrap();
    let spared = if may_lower_scores() { "-900\n" } else { "0\n" };
    assert_eq!((&*score(bed.agent_pid()), &*score(small.pid.unwrap())), (spared, "0\n"));

    bed.configure(vec![hog.order()]).await;
    bed.status_where("hog", "it was killed for memory", |status| {
        status.last_exit.as_ref().is_some_and(|exit| exit.kind == "oom")
    })
    .await;
    let after = bed.running("small", "1").await;
    assert_eq!((after.pid, after.restarts), (small.pid, 0), "only the greedy one had to go");
    bed.finish().await;
}

#[tokio::test]
async fn groups_are_made_in_the_group_that_the_service_was_given() {
    if !can_limit("memory") {
        return;
    }
    let mut bed = Bed::builder().build().await;
    let Some(own) = group_of(std::process::id(), "memory") else {
        bed.finish().await;
        return;
    };
    let service = own.join(format!("test-service-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&service).unwrap();
    std::fs::write(service.join("memory.limit_in_bytes"), (512 << 20).to_string()).unwrap();
    let script = format!(
        "#!/bin/sh\necho $$ > {}/cgroup.procs\nexec {} \"$@\"\n",
        service.display(),
        env!("CARGO_BIN_EXE_guest-agent")
    );
    let program = bed.dir().join("service");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    bed.use_program(&program);
    bed.start_agent().await;
    bed.use_program(Path::new(env!("CARGO_BIN_EXE_guest-agent")));
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let pid = bed.running("echo", "1").await.pid.unwrap();
    let group = group_of(pid, "memory").unwrap();
    assert_eq!(group.parent().and_then(Path::parent), Some(&*service), "{}", group.display());
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    bed.stop_agent().await;
    // With its last plugin an agent leaves nothing of its own there.
    let left: Vec<_> = std::fs::read_dir(&service).unwrap().flatten().map(|it| it.path()).collect();
    assert!(left.iter().all(|path| !path.is_dir()), "{left:?}");
    // The kernel takes a moment to be done with a group that was below it.
    bed.until("its group can go", async || std::fs::remove_dir(&service).ok()).await;
    bed.start_agent().await;
    bed.finish().await;
}

#[tokio::test]
async fn installations_wait_while_memory_is_short_and_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let pressure = dir.path().join("memory");
    std::fs::write(&pressure, "some avg10=80.00 avg60=0.00 avg300=0.00 total=1\n").unwrap();
    let setting = format!("install.pressure_file={}", pressure.display());
    let bed = Bed::builder().set(setting).start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.status_where("echo", "it is held up", |status| {
        status.progress.as_ref().is_some_and(|it| it.held_up.contains("short of memory"))
    })
    .await;
    for verb in ["status", "explain"] {
        let said = bed.cli(&[verb, "echo"]).await.ok();
        assert!(said.contains("held up: the machine is short of memory"), "{verb}: {said}");
    }
    std::fs::write(&pressure, "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\n").unwrap();
    bed.running("echo", "1").await;
    bed.finish().await;
}
