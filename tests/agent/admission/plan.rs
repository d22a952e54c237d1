//! `plan` says what the gate would say.

use guest_agent_proto::agent_controlplane::configure_plugin_states::{ConfigurePlugin, Manifest};
use guest_agent_proto::json::configure_plugin_to_json;

use serde_json::{Value, json};

use super::{governed, noted, reload, troubled};
use crate::harness::{ArchiveSpec, Bed, INSTANCE, Said, orders};

/// What a plan says of the admission of its only order.
fn admission(said: &Said) -> Value {
    serde_json::from_str::<Value>(&said.stdout).unwrap()[0]["admission"].clone()
}

async fn plan(bed: &Bed, order: &ConfigurePlugin) -> Said {
    let file = bed.dir().join("order.json");
    std::fs::write(&file, configure_plugin_to_json(order).unwrap()).unwrap();
    let config = bed.dir().join("agent.toml").display().to_string();
    let (instance, file) = (format!("instance.id={INSTANCE}"), file.display().to_string());
    bed.cli(&["plan", "--json", "--config", &config, "--set", &instance, "-f", &file]).await
}

#[tokio::test]
async fn a_plan_asks_about_what_was_ordered_and_fetches_nothing() {
    let (mut bed, policy) = governed("allow good\n").await;
    bed.start_agent().await;
    let echo = bed.echo().await;
    let order = |name: &str| orders::install(name, "1", &echo).order();
    let refused = |said: &Said| said.stdout.contains("the admission plugin would deny");
    let said = plan(&bed, &order("good")).await;
    assert!(said.code == 0 && !refused(&said), "{said:?}");
    assert_eq!(admission(&said), json!({"asked": true, "verdict": "admitted", "why": ""}));
    let said = plan(&bed, &order("bad")).await;
    assert!(said.code == 1 && refused(&said), "{said:?}");
    assert_eq!(admission(&said)["verdict"], "denied");
    for part in ["no line of the policy allows it", &echo.sha256, "systemctl reload guest-agent"] {
        assert!(said.stdout.contains(part), "{part}: {said:?}");
    }
    assert_eq!(bed.artifacts.counters("echo.tar").requests, 0);
    assert!(bed.status("bad").await.is_none() && bed.status("good").await.is_none());

    // What runs is not asked about again, so a plan does not either.
    bed.configure(vec![order("good")]).await;
    bed.running("good", "1").await;
    std::fs::write(&policy, "deny good\n").unwrap();
    reload(&bed).await;
    let said = plan(&bed, &order("good")).await;
    assert!(said.code == 0 && !refused(&said), "{said:?}");
    let why = "what is installed already is not asked about again";
    assert_eq!(admission(&said), json!({"asked": false, "verdict": null, "why": why}));
    bed.finish().await;
}

#[tokio::test]
async fn a_plan_compares_arguments_limits_and_content_with_what_runs() {
    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let order = |revision: &str, archive| orders::install("a", revision, archive);
    let memory = |bytes| move |manifest: &mut Manifest| manifest.max_memory_usage_bytes = bytes;
    let first = order("1", &echo).arg("--greeting=hi").manifest(memory(64 << 20));
    bed.configure(vec![first.order()]).await;
    bed.running("a", "1").await;
    let changes = async |wanted: &ConfigurePlugin| -> Value {
        let said = plan(&bed, wanted).await;
        serde_json::from_str::<Value>(&said.stdout).unwrap()[0]["changes"].clone()
    };
    let same = order("1", &echo).arg("--greeting=hi").manifest(memory(64 << 20));
    assert_eq!(changes(&same.order()).await, json!([]));
    let next = order("2", &echo).arg("--greeting=ho").manifest(memory(128 << 20));
    let next = next.manifest(|manifest| manifest.max_cpu_usage_percentage = 50);
    let expected = [
        "revision 2 replaces revision 1",
        "argument goes: --greeting=hi",
        "argument comes: --greeting=ho",
        "memory: 128.0 MiB instead of 64.0 MiB",
        "CPU time: 50 % of one core instead of no limit",
    ];
    assert_eq!(changes(&next.order()).await, json!(expected));
    // What the agent refuses, the plan refuses.
    let other = bed.archive("other.tar", ArchiveSpec::script("exit 0")).await;
    let said = plan(&bed, &order("1", &other).order()).await;
    assert!(said.code == 1 && said.stdout.contains("is installed with the checksum"), "{said:?}");
    bed.configure(vec![order("1", &other).order()]).await;
    let refused = bed.event(8, "a", "1").await;
    assert!(refused.details().contains(&echo.sha256), "{}", refused.details());
    bed.finish().await;
}

#[tokio::test]
async fn a_plan_says_that_the_gate_is_closed_or_that_there_is_none() {
    let bed = troubled(&["--silent"], "1s").await;
    let echo = bed.echo().await;
    let order = orders::install("a", "1", &echo).order();
    let said = plan(&bed, &order).await;
    assert!(said.code == 1 && said.stdout.contains("did not answer within 1s"), "{said:?}");
    assert_eq!(noted(&bed, "check"), ["a"]);
    bed.finish().await;

    let bed = Bed::new().await;
    let echo = bed.echo().await;
    let said = plan(&bed, &orders::install("a", "1", &echo).order()).await;
    assert!(said.code == 0 && !said.stdout.contains("would not be admitted"), "{said:?}");
    let why = "the agent has no admission plugin";
    assert_eq!(admission(&said), json!({"asked": false, "verdict": null, "why": why}));
    bed.finish().await;
}
