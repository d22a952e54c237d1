//! What plugins print: kept, kept short, told and followed, whatever becomes of the agent.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::cli::Following;
use crate::harness::{Archive, ArchiveSpec, Bed, PATIENCE, listing, orders, plugins, signal};

const MIB: u64 = 1 << 20;

/// A script that ends as the echo plugin.
async fn talker(bed: &Bed, script: &str) -> Archive {
    let echo = plugins::program("echo_plugin");
    let script = format!(
        "await() {{ while [ ! -e \"$GUEST_AGENT_STATE_DIR/$1\" ]; do sleep 0.02; done; }}\n\
         {script}\nexec '{}' \"$@\"",
        echo.display()
    );
    bed.archive("talker.tar", ArchiveSpec::script(&script)).await
}

/// Lets a script go on that waits for a file.
fn go_on(bed: &Bed, file: &str) {
    std::fs::write(bed.plugin_state("p").join(file), "").unwrap();
}

fn log_length(bed: &Bed) -> u64 {
    std::fs::metadata(bed.dir().join("log/plugins/p.log")).map_or(0, |metadata| metadata.len())
}

/// The processes that keep the logs of a bed while it has no agent.
pub(crate) fn keepers(bed: &Bed) -> Vec<u32> {
    let start = format!("guest-agent\0keep-logs\0{}/log/plugins\0", bed.dir().display());
    let is_one = |proc: &Path| {
        std::fs::read(proc.join("cmdline")).is_ok_and(|it| it.starts_with(start.as_bytes()))
    };
    let found = listing(Path::new("/proc")).into_iter().filter(|path| is_one(path));
    found.filter_map(|path| path.file_name()?.to_str()?.parse().ok()).collect()
}

async fn one_keeper(bed: &Bed) -> u32 {
    bed.until("one process keeps the logs", async || {
        let found = keepers(bed);
        (found.len() == 1).then(|| found[0])
    })
    .await
}

/// The plugin ends while there is no agent; the agent that records it has no link and is killed
/// before it has one; meanwhile the plugin's next life has overwritten everything.
#[tokio::test]
async fn last_words_are_delivered_whichever_process_dies_before() {
    let mut bed = Bed::builder().set("plugins.log_max_bytes=8192").start().await;
    let archive = talker(
        &bed,
        "for word; do case $word in --errorlogfile=*) errors=${word#*=};; esac; done\n\
         cd \"$GUEST_AGENT_STATE_DIR\"\n\
         if mkdir first 2>/dev/null; then\n\
           echo printed words; echo words of an error >&2; echo trouble of the first life >>$errors\n\
         else\n\
           seq 1 20000; seq 1 20000 >>$errors\n\
         fi",
    )
    .await;
    bed.configure(vec![orders::install("p", "1", &archive).order()]).await;
    let before = bed.running("p", "1").await;
    bed.expect_events("p", &[1, 4, 3]).await;

    bed.kill_agent().await;
    signal(before.pid.unwrap(), Signal::SIGKILL);
    bed.stop_control_plane().await;
    bed.spawn_agent();
    bed.until("the plugin runs again", async || {
        let plugins = bed.try_status().await.ok()?.plugins;
        plugins.iter().any(|it| it.state == "RUNNING" && it.pid != before.pid).then_some(())
    })
    .await;
    bed.until("its output was cut", async || {
        let output = bed.plugin_output("p");
        (output.contains("\n20000\n") && !output.contains("words")).then_some(())
    })
    .await;
    bed.kill_agent_only().await;

    bed.start_control_plane().await;
    bed.start_agent().await;
    let crash = bed.event(7, "p", "1").await;
    let details = crash.details();
    assert!(details.contains("printed words\nwords of an error"), "{details}");
    assert!(details.contains("in its error log:\ntrouble of the first life"), "{details}");
    assert!(!details.contains("20000"), "{details}");
    let crashes = bed.events_of("p").await.into_iter().filter(|kind| *kind == 7).count();
    assert_eq!(crashes, 1);
    bed.finish_after(async |bed| {
        assert_eq!(listing(&bed.dir().join("log/plugins")), [] as [std::path::PathBuf; 0]);
    })
    .await;
}

#[tokio::test]
async fn a_log_stays_short_while_there_is_no_agent_and_its_plugin_never_waits() {
    let mut bed = Bed::builder().set("plugins.log_max_bytes=1048576").start().await;
    let archive = talker(
        &bed,
        "(await go; yes | head -c 300000000; touch \"$GUEST_AGENT_STATE_DIR/done\"; sleep 1000) &",
    )
    .await;
    bed.configure(vec![orders::install("p", "1", &archive).order()]).await;
    let before = bed.running("p", "1").await;
    let keeper = one_keeper(&bed).await;
    // Another one takes its place.
    signal(keeper, Signal::SIGKILL);
    bed.cli(&["restart", "p", "--wait"]).await.ok();
    let before = bed.running_again("p", &before).await;
    assert_ne!(one_keeper(&bed).await, keeper);

    bed.kill_agent().await;
    go_on(&bed, "go");
    let mut longest = 0;
    bed.until("everything is written", async || {
        longest = longest.max(log_length(&bed));
        bed.plugin_state("p").join("done").exists().then_some(())
    })
    .await;
    // How much shorter it stays is up to how busy this machine is.
    assert!(longest < 300_000_000, "it was not cut before everything was written");
    bed.until("the log is short", async || (log_length(&bed) <= MIB).then_some(())).await;
    let shown = bed.plugin_output("p");
    assert!(shown.ends_with("y\ny\n") && shown.len() >= 400_000, "{} bytes", shown.len());

    bed.start_agent().await;
    let after = bed.running("p", "1").await;
    assert_eq!((after.pid, after.restarts), (before.pid, before.restarts));
    bed.finish_after(async |bed| {
        let gone = async || keepers(bed).is_empty().then_some(());
        bed.within(PATIENCE, "nobody keeps logs that nobody writes", gone).await;
    })
    .await;
}

#[tokio::test]
async fn a_log_is_followed_through_cuts_and_agents_without_losing_or_repeating_a_line() {
    const LAST: u32 = 4000;
    let mut bed = Bed::builder().set("plugins.log_max_bytes=262144").start().await;
    let padding = "x".repeat(130);
    let archive = talker(
        &bed,
        &format!(
            "say() {{ i=$1; while [ $i -lt $2 ]; do echo \"line $i {padding}\"; i=$((i+1));\n\
             [ $((i % 50)) = 0 ] && sleep 0.02; done; }}\n\
             (await one; say 0 2000; await two; say 2000 2300; await three; say 2300 {LAST}) &"
        ),
    )
    .await;
    bed.configure(vec![orders::install("p", "1", &archive).order()]).await;
    bed.running("p", "1").await;
    go_on(&bed, "one");
    let mut logs = Following::start(&bed, &["logs", "p", "--follow", "-n", "100000"]);
    let mut seen = 0;
    let mut read_to = async |bed: &Bed, end: u32| {
        while seen < end {
            let line = logs.next_with(bed, "line ").await;
            assert!(line.starts_with(&format!("line {seen} x")), "{line}, not line {seen}");
            seen += 1;
        }
    };
    read_to(&bed, 2000).await;
    bed.kill_agent().await;
    go_on(&bed, "two");
    let is_last = |output: &str| output.contains("line 2299 ");
    bed.until("the second part is written", async || {
        is_last(&bed.plugin_output("p")).then_some(())
    })
    .await;
    let began = Instant::now();
    bed.start_agent().await;
    assert!(began.elapsed() < Duration::from_secs(25), "the follower gave up rightly");
    go_on(&bed, "three");
    read_to(&bed, LAST).await;
    assert!(log_length(&bed) <= 262_144);
    // What a log does not have any more is not shown; what it has is.
    let shown = bed.cli(&["logs", "p", "-n", "100000"]).await.ok();
    assert!(shown.lines().count() < usize::try_from(LAST).unwrap());
    assert!(shown.ends_with(&format!("line 3999 {padding}\n")));
    bed.finish().await;
}

/// The time before which everything was printed that is in the logs now.
async fn after_all_that_was_printed(bed: &Bed, plugins: &[&str]) -> String {
    bed.until("the last line is older than a span of times", async || {
        let now = jiff::Timestamp::now().to_string();
        let shown = bed.cli(&[&["logs", "--since", &now], plugins].concat()).await.ok();
        shown.is_empty().then_some(now)
    })
    .await
}

async fn printed(bed: &Bed, plugin: &str, line: &str) {
    bed.until(&format!("{plugin} printed {line:?}"), async || {
        bed.plugin_output(plugin).contains(line).then_some(())
    })
    .await;
}

#[tokio::test]
async fn lines_are_found_by_their_time_also_those_of_a_time_without_an_agent() {
    let mut bed = Bed::new().await;
    let archive = talker(
        &bed,
        "(echo first; await go; echo 'second: [x]'; await away; echo third; \
         await back; printf 'fo\\0\\33[2Jurth\\n') &",
    )
    .await;
    let plugins = ["p", "q"];
    bed.configure(plugins.map(|name| orders::install(name, "1", &archive).order()).into()).await;
    for plugin in plugins {
        bed.running(plugin, "1").await;
        printed(&bed, plugin, "first").await;
    }
    let began = after_all_that_was_printed(&bed, &plugins).await;
    go_on(&bed, "go");
    printed(&bed, "p", "second").await;
    let since = |began: &str| ["logs", "p", "q", "--since", began].map(str::to_owned);
    let show = async |bed: &Bed, began: &str| {
        let arguments = since(began);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        bed.cli(&arguments).await.ok()
    };
    assert_eq!(show(&bed, &began).await, "p | second: [x]\n");

    let before = after_all_that_was_printed(&bed, &plugins).await;
    one_keeper(&bed).await;
    bed.kill_agent().await;
    go_on(&bed, "away");
    printed(&bed, "p", "third").await;
    bed.start_agent().await;
    bed.running("p", "1").await;
    let after = after_all_that_was_printed(&bed, &plugins).await;
    assert_eq!(show(&bed, &before).await, "p | third\n");
    go_on(&bed, "back");
    printed(&bed, "p", "urth").await;
    assert_eq!(show(&bed, &after).await, "p | fo\0\x1b[2Jurth\n", "a pipe gets what was printed");

    let shown = bed.cli(&["logs", "p", "-t", "--grep", "[x]"]).await.ok();
    let (time, line) = shown.split_once(' ').unwrap();
    assert_eq!(line, "second: [x]\n");
    let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap().as_second();
    assert!((at(&began)..=at(&before)).contains(&at(time)), "{began} {time} {before}");
    let all = bed.cli(&["logs", "q", "p", "-n", "1", "--grep", "first"]).await.ok();
    let mut all: Vec<_> = all.lines().collect();
    all.sort_unstable();
    assert_eq!(all, ["p | first", "q | first"]);
    bed.finish().await;
}

#[tokio::test]
async fn the_agent_shows_its_own_log_and_is_followed_over_its_restart() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    let mut log = Following::start(&bed, &["logs", "--agent", "-f", "--grep", "plugin=\"echo\""]);
    bed.configure(vec![orders::install("echo", "1", &echo).order()]).await;
    bed.running("echo", "1").await;
    let line = log.next_with(&bed, "the plugin was started").await;
    let (time, _) = line.split_once(' ').unwrap();
    assert!(time.parse::<jiff::Timestamp>().is_ok(), "{line}");
    let one = bed.cli(&["logs", "--agent", "-n", "1", "--json"]).await.ok();
    assert_eq!(one.lines().count(), 1, "{one}");
    assert!(bed.cli(&["logs", "--agent", "--since", "0s"]).await.ok().is_empty());

    bed.kill_agent().await;
    let away = bed.cli(&["logs", "--agent"]).await;
    assert_eq!(away.code, 3);
    assert!(away.stderr.contains("journalctl -u guest-agent"), "{away:?}");
    bed.start_agent().await;
    bed.running("echo", "1").await;
    bed.cli(&["restart", "echo", "--wait"]).await.ok();
    log.next_with(&bed, "the plugin was started").await;
    bed.finish().await;
}
