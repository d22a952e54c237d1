//! Limits that hold under version 2 of control groups, in the groups that systemd delegated.

use super::world::World;

/// The kernel ends a plugin that takes too much memory, and status and events say why; the other
/// plugins keep running.
pub(super) async fn memory_is_limited_and_told(world: &mut World) {
    let web = world.running("web").await;
    let hog = world.install("hog").arg("--allocate-mb=200");
    let hog = hog.manifest(|manifest| manifest.max_memory_usage_bytes = 64 << 20);
    world.configure(hog.order()).await;
    let details = world.event(7, "hog").await;
    assert!(details.contains("memory"), "{details}");
    world
        .status("hog", "it was ended for its memory", |status| status["last_exit"]["kind"] == "oom")
        .await;
    world.remove("hog").await;
    assert_eq!(world.running("web").await, web);
}

/// A plugin that may have a fifth of a processor has that.
pub(super) async fn cpu_time_is_limited(world: &mut World) {
    let busy = world.trouble_after("busy", "(while :; do :; done) &").await;
    let busy = busy.manifest(|manifest| manifest.max_cpu_usage_percentage = 20);
    world.configure(busy.order()).await;
    world.event(3, "busy").await;
    let group = world.group("busy").await;
    assert_eq!(world.guest.ok(&format!("cat {group}/cpu.max")).await, "20000 100000");
    // How much it used while the clock went on; both in microseconds, the clock's in hundredths of
    // a second.
    let measure = format!(
        "now() {{ u=$(sed -n 's/^usage_usec //p' {group}/cpu.stat); t=$(cut -d' ' -f1 /proc/uptime); }}\n\
         now; u1=$u; t1=$t; sleep 3; now; echo $(( (u - u1) / ((10#${{t/./}} - 10#${{t1/./}}) * 100) ))"
    );
    let percent: u32 = world.guest.ok(&measure).await.parse().unwrap();
    assert!((5..=30).contains(&percent), "it used {percent} percent of a processor");
    world.remove("busy").await;
}

/// A plugin cannot have more processes than `plugins.max_tasks`, and none of them outlives it.
pub(super) async fn tasks_are_limited(world: &mut World) {
    let bomb = world
        .trouble_after("bomb", "(sleep 1; while :; do sleep 777777 & done) >/dev/null 2>&1 &")
        .await;
    world.configure(bomb.order()).await;
    world.event(3, "bomb").await;
    let group = world.group("bomb").await;
    world
        .guest
        .until("it hits its limit", &format!("grep --quiet 'max [1-9]' {group}/pids.events"))
        .await;
    let tasks: u32 = world.guest.ok(&format!("cat {group}/pids.current")).await.parse().unwrap();
    assert!(tasks <= 64, "{tasks} tasks");
    world.remove("bomb").await;
    let (code, left) = world.guest.run("pgrep --full 'sleep 777777'").await;
    assert_eq!(code, 1, "they outlive their plugin: {left}");
}

/// What agent and plugins may have together is a limit for a plugin that has none of its own.
pub(super) async fn all_together_are_limited(world: &mut World) {
    let web = world.running("web").await;
    let agent = world.property("MainPID").await;
    let greedy = world.install("greedy").arg("--allocate-mb=500");
    world.configure(greedy.order()).await;
    world
        .status("greedy", "it was ended for memory", |status| status["last_exit"]["kind"] == "oom")
        .await;
    world.remove("greedy").await;
    assert_eq!(world.running("web").await, web, "the others stay");
    assert_eq!(world.property("MainPID").await, agent, "the agent as well");
}
