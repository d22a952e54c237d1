//! The main job of a fleet with a real agent: what is declared by label comes about, through kills of
//! both sides and the loss of the ledger, and nothing restarts that need not.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use guest_agent_serve_kit::listen::Listen;
use guest_fleet::cli::context::{Caller, Context, Output};
use guest_fleet::cli::failure::Exit;
use guest_fleet::cli::{self, Verb};
use guest_fleet_ledger::SqliteLedger;
use guest_fleet_server::orders::{OrderSettings, Orders};
use guest_fleet_server::zones::IanaZones;
use guest_fleet_server::{fold, notices, rollouts};
use guest_fleet_sessions::Gateway;
use guest_fleet_sessions::admission::Anyone;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::harness::archive::Archive;
use crate::harness::{Bed, RESOURCE};

mod drift;
mod health;

/// For how many seconds the agent may have no stream before it is offline.
const OFFLINE_AFTER: u64 = 2;

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    verb: Verb,
}

/// A gateway on a ledger.
struct Fleet {
    ledger: Arc<SqliteLedger>,
    orders: Arc<Orders>,
    gateway: Gateway,
    ending: CancellationToken,
}

impl Fleet {
    async fn start(bed: &Bed, name: &str) -> Self {
        Self::start_as(bed, name, OrderSettings::default(), rollouts::Settings::default()).await
    }

    async fn start_as(
        bed: &Bed,
        name: &str,
        orders: OrderSettings,
        settings: rollouts::Settings,
    ) -> Self {
        let ledger = SqliteLedger::open(&bed.dir().join(name)).unwrap();
        let orders = Orders::new(ledger.clone(), orders);
        tokio::spawn(orders.clone().run());
        let ending = CancellationToken::new();
        tokio::spawn(rollouts::run(ledger.clone(), settings, ending.clone()));
        let folding = fold::Settings { offline_after: OFFLINE_AFTER, ..fold::Settings::default() };
        tokio::spawn(fold::run(ledger.clone(), folding, ending.clone()));
        let look = Duration::from_millis(200);
        let noticing = notices::Settings { look, settle: look, ..notices::Settings::default() };
        tokio::spawn(notices::run(ledger.clone(), noticing, ending.clone()));
        let gateway = Gateway::builder(orders.clone(), Arc::new(Anyone))
            .listen(Listen::Unix(bed.dir().join("cp.sock")))
            .announces_fleet(true)
            .start()
            .await
            .unwrap();
        Self { ledger, orders, gateway, ending }
    }

    /// Ends as if it was killed: nothing is taken back or waited for.
    async fn end(self) {
        self.ending.cancel();
        self.orders.stop();
        self.gateway.shutdown().await;
        self.ledger.close().await;
    }

    /// Runs a verb; returns what it printed as JSON.
    async fn ask(&self, arguments: &[&str], input: &str) -> Value {
        self.try_ask(arguments, input).await.unwrap()
    }

    /// Labels the agent as soon as the fleet knows it.
    async fn label(&self, bed: &Bed) {
        bed.until("the agent can be labelled", async || {
            self.try_ask(&["agent", "label", RESOURCE, "env=prod"], "").await.ok()
        })
        .await;
    }

    async fn try_ask(&self, arguments: &[&str], input: &str) -> Result<Value, String> {
        let words = std::iter::once("guest-fleet").chain(arguments.iter().copied());
        let verb = Line::try_parse_from(words).unwrap().verb;
        let (mut out, mut remarks) = (Vec::new(), Vec::new());
        let mut context = Context {
            ledger: &*self.ledger,
            out: &mut out,
            remarks: &mut remarks,
            input: &mut input.as_bytes(),
            output: Output::Json,
            caller: Caller { who: "ann@ops".to_owned(), from: "a test".to_owned() },
            now: jiff::Timestamp::now(),
            zones: &IanaZones,
        };
        let exit = cli::run(&verb, &mut context).await.map_err(|failure| failure.text())?;
        assert_eq!(exit, Exit::Done, "{}", String::from_utf8_lossy(&remarks));
        Ok(serde_json::from_slice(&out).unwrap_or_default())
    }

    async fn declare(&self, archive: &Archive, revision: &str) {
        let declared = release(archive, revision) + &assigned(revision);
        self.ask(&["apply", "-f", "-"], &declared).await;
    }

    /// Waits until the rollout is in this state; returns it.
    async fn rollout(&self, bed: &Bed, name: &str, state: &str) -> Value {
        bed.until(&format!("the rollout {name} is {state}"), async || {
            let found = self.ask(&["rollout", "show", name], "").await;
            (found["state"] == state).then_some(found)
        })
        .await
    }

    /// Waits until the order for a revision is in this state.
    async fn stands(&self, bed: &Bed, revision: &str, state: &str) {
        bed.until(&format!("the order for {revision} is {state}"), async || {
            let explained = self.ask(&["explain", RESOURCE, "echo"], "").await;
            let order = &explained["order"];
            let is_it = order["revision"] == revision
                && order["state"].as_str().is_some_and(|found| found.starts_with(state));
            is_it.then_some(())
        })
        .await;
    }
}

/// A fleet with an agent that has revision 1.
async fn begun() -> (Bed, Archive, Fleet) {
    begun_as(OrderSettings::default(), rollouts::Settings::default()).await
}

async fn begun_as(orders: OrderSettings, settings: rollouts::Settings) -> (Bed, Archive, Fleet) {
    let mut bed = Bed::builder().build().await;
    let archive = bed.echo().await;
    bed.stop_control_plane().await;
    let fleet = Fleet::start_as(&bed, "ledger.db", orders, settings).await;
    fleet.declare(&archive, "1").await;
    bed.spawn_agent();
    fleet.label(&bed).await;
    bed.running("echo", "1").await;
    fleet.stands(&bed, "1", "done").await;
    (bed, archive, fleet)
}

fn assigned(revision: &str) -> String {
    format!(
        "[[assignment]]\nname = \"echo-prod\"\nplugin = \"echo\"\nrevision = \"{revision}\"\n\
         select = \"env = prod\"\n"
    )
}

fn release(archive: &Archive, revision: &str) -> String {
    let Archive { url, sha256, entry_point, .. } = archive;
    format!(
        "[[release]]\nplugin = \"echo\"\nrevision = \"{revision}\"\nentry_point = \"{entry_point}\"\n\
         archives.any = {{ sha256 = \"{sha256}\", url = \"{url}\" }}\n"
    )
}

fn forget(directory: &Path, name: &str) {
    for end in ["", "-wal", "-shm"] {
        drop(std::fs::remove_file(directory.join(format!("{name}{end}"))));
    }
}

#[tokio::test]
async fn what_is_declared_by_label_comes_about_and_a_lost_ledger_restarts_nothing() {
    let (mut bed, archive, fleet) = begun().await;

    // The gateway ends between the declaration and what comes of it; the agent is killed as well.
    fleet.declare(&archive, "2").await;
    fleet.end().await;
    bed.kill_agent_only().await;
    let fleet = Fleet::start(&bed, "ledger.db").await;
    bed.spawn_agent();
    bed.until("the agent answers", async || bed.try_status().await.ok().map(drop)).await;
    bed.running("echo", "2").await;
    fleet.stands(&bed, "2", "done").await;
    let before = bed.running("echo", "2").await;

    // Generations are times, and two orders of one second have the next one. An agent that is taken in by then would
    // know of an order that nobody can have given yet.
    let order = fleet.ask(&["explain", RESOURCE, "echo"], "").await["order"].clone();
    bed.until("the time of the order is over", async || {
        let now = u64::try_from(jiff::Timestamp::now().as_second()).unwrap();
        (Some(now) >= order["generation"].as_u64()).then_some(())
    })
    .await;

    // The ledger is lost, and what was declared is declared again.
    fleet.end().await;
    forget(bed.dir(), "ledger.db");
    let fleet = Fleet::start(&bed, "ledger.db").await;
    fleet.declare(&archive, "2").await;
    fleet.label(&bed).await;
    fleet.stands(&bed, "2", "done (it was there)").await;
    let after = bed.running("echo", "2").await;
    assert_eq!(after.pid, before.pid, "it was restarted");

    // Its generations go on above those that the agent knows.
    fleet.declare(&archive, "3").await;
    bed.running("echo", "3").await;
    fleet.stands(&bed, "3", "done").await;
    fleet.end().await;
    bed.finish().await;
}

#[tokio::test]
async fn a_rollout_reaches_the_agent_and_a_bad_one_halts_by_itself_and_goes_back() {
    let (bed, archive, fleet) = begun().await;

    let bad = Archive { sha256: "0".repeat(64), ..archive.clone() };
    let releases = release(&archive, "2") + &release(&bad, "3");
    fleet.ask(&["apply", "-f", "-"], &releases).await;
    let create = ["rollout", "create", "good", "--assignment", "echo-prod", "--to", "2"];
    fleet.ask(&[&create[..], &["--soak", "1s"]].concat(), "").await;
    fleet.rollout(&bed, "good", "done").await;
    let before = bed.running("echo", "2").await;

    // Files cannot change what the assignment wants while a rollout of it goes on.
    let create = ["rollout", "create", "bad", "--assignment", "echo-prod", "--to", "3"];
    fleet.ask(&[&create[..], &["--soak", "1h"]].concat(), "").await;
    let second = ["rollout", "create", "third", "--assignment", "echo-prod", "--to", "2"];
    let refused = fleet.try_ask(&second, "").await.unwrap_err();
    assert!(refused.contains("the rollout bad of echo is"), "{refused}");
    let halted = fleet.rollout(&bed, "bad", "halted").await;
    let cause = halted["cause"].as_str().unwrap_or_default();
    assert!(cause.contains("an agent of the first wave failed"), "{halted}");
    bed.until("the failed agent is named", async || {
        let found = fleet.ask(&["rollout", "show", "bad"], "").await;
        (found["progress"]["failed"][0]["agent"] == RESOURCE).then_some(())
    })
    .await;
    let refused = fleet.try_ask(&["rollout", "resume", "bad"], "").await.unwrap_err();
    assert!(refused.contains("--reason"), "{refused}");
    fleet.ask(&["rollout", "rollback", "bad"], "").await;
    fleet.rollout(&bed, "bad", "rolled back").await;
    fleet.stands(&bed, "2", "done").await;
    let after = bed.running("echo", "2").await;
    assert_eq!(after.pid, before.pid, "what went back by itself was restarted");
    fleet.end().await;
    bed.finish().await;
}

#[tokio::test]
async fn a_bad_release_in_a_file_halts_and_goes_back_and_is_refused_until_a_person_says_again() {
    let (bed, archive, fleet) = begun().await;
    let before = bed.running("echo", "1").await;
    let bad = Archive { sha256: "0".repeat(64), ..archive.clone() };
    let strategy = "rollout = { soak = \"1h\", on_halt = \"auto_back\" }\n";
    let releases = release(&archive, "1") + &release(&bad, "2") + &release(&archive, "3");
    let file = |revision: &str| releases.clone() + &assigned(revision) + strategy;
    let apply = async |revision: &str, options: &[&str]| {
        fleet.try_ask(&[&["apply", "-f", "-"], options].concat(), &file(revision)).await
    };
    let begins = |changed: &Value| {
        let changes = changed["changes"].as_array().cloned().unwrap_or_default();
        changes.iter().any(|change| change["kind"] == "rollout")
    };

    assert!(begins(&apply("2", &[]).await.unwrap()));
    let back = fleet.rollout(&bed, "echo-prod", "rolled back").await;
    assert_eq!((&back["from"], &back["to"]), (&"1".into(), &"2".into()), "{back}");
    let after = bed.running("echo", "1").await;
    assert_eq!(after.pid, before.pid, "what went back by itself was restarted");

    // A pipeline applies the same file once more: it pushes nothing over anybody.
    let same = apply("2", &[]).await.unwrap();
    assert_eq!(same["changes"], serde_json::json!([]), "{same}");
    // The file goes back as well, and forward again: the release is known.
    apply("1", &[]).await.unwrap();
    let refused = apply("2", &[]).await.unwrap_err();
    assert!(
        refused.contains("echo 2 halted a rollout") && refused.contains("--again"),
        "{refused}"
    );
    assert!(begins(&apply("2", &["--again", "the mirror was damaged"]).await.unwrap()));
    // A newer release takes its place, halted or not.
    assert!(begins(&apply("3", &[]).await.unwrap()));
    bed.running("echo", "3").await;
    fleet.end().await;
    bed.finish().await;
}
