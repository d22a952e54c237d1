//! `plan` says what the gate would say.

use guest_agent_proto::agent_controlplane::configure_plugin_states::ConfigurePlugin;
use guest_agent_proto::json::configure_plugin_to_json;

use super::{governed, noted, reload, troubled};
use crate::harness::{Bed, INSTANCE, Said, orders};

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
    let said = plan(&bed, &order("bad")).await;
    assert!(said.code == 1 && refused(&said), "{said:?}");
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
    bed.finish().await;
}

#[tokio::test]
async fn a_plan_says_that_the_gate_is_closed_and_nothing_where_there_is_none() {
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
    assert!(said.code == 0 && !said.stdout.contains("admi"), "{said:?}");
    bed.finish().await;
}
