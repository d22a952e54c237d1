//! Plugins whose control groups are below a configured group, and not below the agent's own.

use std::path::Path;

use crate::harness::{Bed, orders};
use crate::limits::{can_limit, group_of};
use crate::logs::keepers;

#[tokio::test]
async fn plugins_and_what_outlives_the_agent_are_in_the_group_that_is_named() {
    if !can_limit("memory") {
        return;
    }
    let Some(own) = group_of(std::process::id(), "memory") else { return };
    // As if a service manager had made it.
    let given = own.join(format!("test-plugins-{}", uuid::Uuid::new_v4()));
    std::fs::create_dir(&given).unwrap();
    let path = given.strip_prefix("/sys/fs/cgroup/memory").unwrap();
    let mut bed =
        Bed::builder().set(format!("plugins.cgroup_parent=/{}", path.display())).start().await;
    let is_inside =
        |pid: u32| group_of(pid, "memory").is_some_and(|group| group.starts_with(&given));
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let pid = bed.running("echo", "1").await.pid.unwrap();
    assert!(is_inside(pid), "{:?}", group_of(pid, "memory"));
    assert!(!is_inside(bed.agent_pid()));
    bed.until("so is the process that keeps its log", async || {
        let [keeper] = keepers(&bed)[..] else { return None };
        is_inside(keeper).then_some(())
    })
    .await;
    bed.stop_agent().await;
    bed.start_agent().await;
    assert_eq!(bed.running("echo", "1").await.pid, Some(pid), "nobody left that group");
    assert!(is_inside(pid));
    bed.configure(vec![orders::remove("echo")]).await;
    bed.gone("echo").await;
    bed.stop_agent().await;
    bed.until("nobody keeps its log any more", async || keepers(&bed).is_empty().then_some(()))
        .await;
    // An agent without surviving processes removes the groups that the last one had to leave.
    bed.start_agent().await;
    bed.finish().await;
    let left: Vec<_> = std::fs::read_dir(&given).unwrap().flatten().map(|it| it.path()).collect();
    assert!(left.iter().all(|path| !path.is_dir()), "{left:?}");
    std::fs::remove_dir(&given).unwrap();
}

#[tokio::test]
async fn a_group_that_is_not_there_is_told_and_plugins_run_in_the_agents_own() {
    if !can_limit("memory") {
        return;
    }
    let bed = Bed::builder().set("plugins.cgroup_parent=/no/such/group").start().await;
    assert!(bed.log().contains("the group /no/such/group"), "{}", bed.log());
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    let pid = bed.running("echo", "1").await.pid.unwrap();
    let own = group_of(std::process::id(), "memory");
    if let (Some(own), Some(group)) = (own, group_of(pid, "memory")) {
        assert!(Path::new(&group).starts_with(own), "{}", group.display());
    }
    bed.finish().await;
}
