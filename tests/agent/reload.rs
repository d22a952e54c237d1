//! SIGHUP: the configuration is read again while everything runs.

use std::io::Write;

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

impl Bed {
    /// Adds to the agent's configuration and has it read again; waits until the log says this.
    async fn reload(&self, more: &str, log: &str) {
        let path = self.dir().join("agent.toml");
        let mut file = std::fs::File::options().append(true).open(path).unwrap();
        file.write_all(more.as_bytes()).unwrap();
        signal(self.agent_pid(), Signal::SIGHUP);
        self.until(log, async || self.log().contains(log).then_some(())).await;
    }

    async fn option(&self, key: &str) -> String {
        let request = format!(r#"{{"Command":"agent.config.getoption","Option":"{key}"}}"#);
        self.say(&request).await["Value"].as_str().unwrap().to_owned()
    }
}

#[tokio::test]
async fn what_can_be_taken_up_is_and_the_rest_is_named() {
    let bed = Bed::builder().set("plugins.restart_initial_backoff=100ms").start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    let before = bed.running("a", "1").await;
    let more = "[api]\ncommand_timeout = \"3s\"\ncommand_socket_mode = \"0700\"\n\
                [log]\nlevel = \"debug\"\n";
    bed.reload(more, "some settings need a restart").await;
    let log = bed.log();
    assert!(log.contains("changed=\"api.command_timeout, log.level\""), "{log}");
    assert!(log.contains("restart=\"api.command_socket_mode\""), "{log}");
    assert_eq!(bed.option("api.command_timeout").await, "3s");
    assert_eq!(bed.option("log.level").await, "debug");
    assert_eq!(bed.option("api.command_socket_mode").await, "0770", "not in effect");
    // What is only said at the new level.
    bed.say(r#"{"Command":"nothing"}"#).await;
    bed.until("it says more", async || bed.log().contains("refuses a command").then_some(())).await;
    assert_eq!(bed.running("a", "1").await.pid, before.pid, "no plugin was touched");
    bed.finish().await;
}

#[tokio::test]
async fn a_bad_file_is_said_loudly_and_changes_nothing() {
    let mut bed = Bed::new().await;
    bed.reload("[log]\nlevl = \"debug\"\n", "THE CONFIGURATION CANNOT BE USED").await;
    assert!(bed.log().contains("log.levl") && bed.log().contains("did you mean log.level"));
    assert_eq!(bed.option("log.level").await, "info");
    let path = bed.dir().join("agent.toml");
    let good = std::fs::read_to_string(&path).unwrap().replace("levl", "level");
    std::fs::write(&path, good).unwrap();
    bed.reload("", "changed=\"log.level\"").await;
    assert_eq!(bed.option("log.level").await, "debug");
    bed.stop_agent().await;
    bed.finish().await;
}

#[tokio::test]
async fn a_plugin_that_hangs_is_judged_by_the_new_limit_though_it_hung_before() {
    // Set in the file, which says less than `--set` does.
    let mut bed = Bed::builder().set("plugins.health_timeout=200ms").build().await;
    let path = bed.dir().join("agent.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, format!("{text}[plugins]\nhealth_failures = 100\n")).unwrap();
    bed.start_agent().await;
    let trouble = bed.trouble().await;
    let hangs = orders::install("hangs", "1", &trouble).arg("--hang-after-start-ms=300");
    bed.configure(vec![hangs.order()]).await;
    bed.running("hangs", "1").await;
    // Some checks fail under the old limit.
    tokio::time::sleep(std::time::Duration::from_secs(4)).await;
    assert!(!bed.events_of("hangs").await.contains(&7), "that was not enough to judge it");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("health_failures = 100", "health_failures = 2")).unwrap();
    bed.reload("", "changed=\"plugins.health_failures\"").await;
    bed.event(7, "hangs", "1").await;
    bed.finish().await;
}
