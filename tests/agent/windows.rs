//! Maintenance windows on the owner's machine: what waits outside of them, and what does not.

use std::time::{Duration, SystemTime};

use nix::sys::signal::Signal;

use crate::harness::{Bed, orders, signal};

const DAYS: [&str; 7] = ["thu", "fri", "sat", "sun", "mon", "tue", "wed"];

/// The day of the week in three days: whenever this runs, that is not today.
fn another_day() -> &'static str {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    // The first of January 1970 was a Thursday.
    DAYS[usize::try_from((since.as_secs() / (24 * 3600) + 3) % 7).unwrap()]
}

impl Bed {
    /// The configuration with this window for `web`; returns once the agent goes by it.
    async fn use_window(&self, before: Option<&str>, days: &str, from: &str, to: &str) -> String {
        let path = self.dir().join("agent.toml");
        let text = std::fs::read_to_string(&path).unwrap();
        let text = before.map_or(text.clone(), |before| text.replace(before, ""));
        let window = format!(
            "[[maintenance.window]]\ndays = [{days}]\nfrom = \"{from}\"\nto = \"{to}\"\nzone = \"UTC\"\n\
             covers = [\"web\"]\n"
        );
        std::fs::write(&path, format!("{text}{window}")).unwrap();
        signal(self.agent_pid(), Signal::SIGHUP);
        self.until("the window is taken up", async || {
            let log = self.log();
            let changed = log.matches("changed=\"maintenance.window\"").count();
            (changed > usize::from(before.is_some())).then_some(())
        })
        .await;
        window
    }
}

#[tokio::test]
async fn an_order_outside_of_a_window_waits_for_it_and_a_crash_is_mended_meanwhile() {
    let mut bed = Bed::new().await;
    let echo = bed.echo().await;
    let order = |name: &str, revision: &str| orders::install(name, revision, &echo).order();
    bed.configure(vec![order("web", "1"), order("db", "1")]).await;
    bed.running("web", "1").await;
    bed.running("db", "1").await;
    bed.expect_events("web", &[1, 4, 3]).await;
    let day = another_day();
    let closed = bed.use_window(None, &format!("\"{day}\""), "02:00", "03:00").await;

    bed.configure(vec![order("web", "2"), order("db", "2")]).await;
    bed.running("db", "2").await;
    bed.expect_events("web", &[1, 4, 3, 1]).await;
    let told = bed.event(1, "web", "2").await;
    let why = "held: outside of its maintenance windows until ";
    assert!(told.details().starts_with(why), "{}", told.details());
    let listed = bed.listed("web").await.unwrap();
    let pending = listed.pending_plugin_status.unwrap();
    assert_eq!((&*listed.pending_revision_id, pending.status), ("2", 6), "pending INSTALLING");
    assert!(pending.results[0].starts_with(why), "{pending:?}");

    // Everything that shows the plugin says so.
    let status = bed.running("web", "1").await;
    let (outside, verdict) = (status.outside_window.unwrap(), status.verdict.unwrap());
    assert_eq!(outside.waits, "an INSTALL of revision 2");
    assert_eq!((&*verdict.level, &*verdict.cause), ("held", "outside_window"));
    assert_eq!(verdict.until, outside.opens);
    let opens = SystemTime::try_from(outside.opens.unwrap()).unwrap();
    let within = opens.duration_since(SystemTime::now()).unwrap();
    assert!(within > Duration::from_secs(24 * 3600), "it opens in {within:?}");
    for verb in [["status", "web"], ["explain", "web"]] {
        let shown = bed.cli(&verb).await.ok();
        assert!(shown.contains("the next window opens at"), "{shown}");
    }
    let config = bed.dir().join("agent.toml").display().to_string();
    let doctor = bed.cli(&["doctor", "--config", &config]).await;
    assert!(doctor.stdout.contains(&format!("{day} from 02:00 to 03:00 UTC")), "{doctor:?}");
    // A wait that could last for days ends at once.
    let (url, sha256) = (echo.url.as_str(), echo.sha256.as_str());
    let again = ["install", "web", "--revision", "2", "--url", url, "--sha256", sha256];
    let waits = ["--entry-point", &echo.entry_point, "--wait", "--timeout", "10m"];
    let waited = bed.cli(&[&again[..], &waits].concat()).await;
    assert_eq!(waited.code, 4, "{waited:?}");
    assert!(waited.stderr.contains("outside of its maintenance windows"), "{waited:?}");

    signal(bed.processes("web")[0], Signal::SIGKILL);
    bed.expect_events("web", &[1, 4, 3, 1, 7, 4]).await;
    bed.kill_agent().await;
    bed.start_agent().await;
    let status = bed.running("web", "1").await;
    assert_eq!(status.outside_window.unwrap().waits, "an INSTALL of revision 2");

    let all = "\"mon\", \"tue\", \"wed\", \"thu\", \"fri\", \"sat\", \"sun\"";
    bed.use_window(Some(&closed), all, "00:00", "24:00").await;
    let status = bed.running("web", "2").await;
    assert_eq!(status.outside_window, None);
    bed.expect_events("web", &[1, 4, 3, 1, 7, 4, 6, 4, 3, 2, 5]).await;
    bed.finish().await;
}
