//! HTTP as load balancers, browsers and strangers meet it.

use std::fs;
use std::io::Write;

use guest_agent_proto::agent_controlplane::ExecutionModel;
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::harness::http::ask;
use crate::harness::{Bed, orders, promtool, signal};

const TOKEN: &str = "0123456789abcdef-read";
const ADMIN: &str = "0123456789abcdef-admin";

#[tokio::test]
async fn health_is_told_and_pages_of_elsewhere_are_told_nothing() {
    let bed = Bed::builder().set("api.http_listen=127.0.0.1:0").start().await;
    let alive = bed.get("/healthz").await;
    assert_eq!((alive.status, alive.body.as_str()), (200, "alive\n"));
    let ready = bed
        .until("it is ready", async || {
            let ready = bed.get_with("/readyz", &[("accept", "application/json")]).await;
            (ready.status == 200).then_some(ready)
        })
        .await;
    let document: serde_json::Value = serde_json::from_str(&ready.body).unwrap();
    assert_eq!(document, serde_json::json!({ "status": "ready", "reasons": [] }));
    for reply in [&alive, &ready, &bed.get("/no/such/page").await] {
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
        assert_eq!(reply.header("cache-control"), "no-store");
        assert!(reply.header("content-security-policy").contains("default-src 'none'"));
        assert_eq!(reply.header("access-control-allow-origin"), "");
    }
    assert_eq!(bed.get("/no/such/page").await.status, 404);
    let at = bed.http().await;
    assert_eq!(ask(at, "POST", "/healthz", &[]).await.unwrap().status, 405);
    let rebound = bed.get_with("/healthz", &[("host", "attacker.example:80")]).await;
    assert_eq!(rebound.status, 421);
    assert!(rebound.body.contains("use one of those names"), "{}", rebound.body);
    for host in ["localhost", "127.0.0.1:1", "[::1]:9464"] {
        assert_eq!(bed.get_with("/healthz", &[("host", host)]).await.status, 200, "{host}");
    }
    let foreign = [("origin", "http://attacker.example")];
    assert_eq!(ask(at, "POST", "/healthz", &foreign).await.unwrap().status, 403);
    bed.finish().await;
}

#[tokio::test]
async fn a_machine_is_not_ready_before_its_critical_plugins_are() {
    let mut bed = Bed::builder().set("api.http_listen=127.0.0.1:0").start().await;
    let trouble = bed.trouble().await;
    let order = orders::install("slow", "1", &trouble).arg("--slow-socket-ms=3000");
    let order = order.manifest(|manifest| {
        manifest.start_timeout = orders::seconds(30.0);
        let model = ExecutionModel { boot_critical: true, ..ExecutionModel::default() };
        manifest.execution_model = Some(model);
    });
    bed.configure(vec![order.order()]).await;
    bed.running("slow", "1").await;
    bed.kill_agent().await;
    let pid = bed.processes("slow")[0];
    signal(pid, Signal::SIGKILL);
    bed.until("it is dead", async || bed.processes("slow").is_empty().then_some(())).await;
    bed.spawn_agent();
    let waits = bed
        .until("it says what it waits for", async || {
            let at = bed.try_status().await.ok()?.agent?.http.parse().ok()?;
            let reply = ask(at, "GET", "/readyz", &[]).await.ok()?;
            reply.body.contains("slow").then_some(reply)
        })
        .await;
    assert_eq!(waits.status, 503);
    assert_eq!(waits.body, "not ready\nslow is boot-critical and not up yet\n");
    assert_eq!(bed.get("/healthz").await.status, 200);
    bed.until("it is ready", async || (bed.get("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(bed.get("/readyz").await.body, "ready\n");
    bed.finish().await;
}

#[tokio::test]
async fn tokens_decide_who_may_look_and_are_changed_without_a_restart() {
    let mut bed = Bed::builder().set("api.http_listen=127.0.0.1:0").build().await;
    let token = bed.dir().join("token");
    fs::write(&token, format!("{TOKEN}\n")).unwrap();
    let admin = bed.dir().join("admin-token");
    fs::write(&admin, ADMIN).unwrap();
    let path = bed.dir().join("agent.toml");
    let mut config = fs::File::options().append(true).open(&path).unwrap();
    let (token_file, admin_file) = (token.display(), admin.display());
    writeln!(
        config,
        "[api]\nhttp_token_file = \"{token_file}\"\nhttp_admin_token_file = \"{admin_file}\""
    )
    .unwrap();
    bed.start_agent().await;
    let bearer = |token: &str| format!("Bearer {token}");
    let look = async |token: &str| {
        let bearer = bearer(token);
        bed.get_with("/no/such/page", &[("authorization", &bearer)]).await.status
    };
    assert_eq!(bed.get("/healthz").await.status, 200, "nobody needs a token for that");
    let stranger = bed.get("/no/such/page").await;
    assert_eq!(stranger.status, 401);
    assert!(stranger.header("www-authenticate").starts_with("Bearer"));
    assert!(stranger.body.contains("api.http_token_file"), "{}", stranger.body);
    assert_eq!(look(TOKEN).await, 404);
    assert_eq!(look(ADMIN).await, 404, "who may act may look");
    assert_eq!(look("0123456789abcdef").await, 401);
    fs::write(&token, "another-token-another-token").unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.until("the old token is refused", async || (look(TOKEN).await == 401).then_some(())).await;
    assert_eq!(look("another-token-another-token").await, 404);
    fs::write(&token, "short").unwrap();
    signal(bed.agent_pid(), Signal::SIGHUP);
    bed.until("status reports a token that cannot be used", async || {
        let troubles = bed.try_status().await.ok()?.agent?.troubles;
        troubles.iter().any(|trouble| trouble.contains("api.http_token_file")).then_some(())
    })
    .await;
    assert_eq!(look("short").await, 401);
    assert_eq!(bed.get("/healthz").await.status, 200);
    let log = bed.log();
    for secret in [TOKEN, ADMIN, "another-token-another-token"] {
        assert!(!log.contains(secret), "a secret is in the log");
    }
    bed.finish().await;
}

#[tokio::test]
async fn an_address_that_is_taken_stops_nothing_and_is_taken_when_it_is_free() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap();
    let setting = format!("api.http_listen={at}");
    let bed = Bed::builder().set(&setting).start().await;
    let echo = bed.echo().await;
    bed.configure(vec![orders::install("a", "1", &echo).order()]).await;
    bed.running("a", "1").await;
    let config = bed.dir().join("agent.toml").display().to_string();
    let instance = format!("instance.id={}", crate::harness::INSTANCE);
    let doctor = ["doctor", "--config", &config, "--set", &instance, "--set", &setting];
    let said = bed.cli(&doctor).await;
    assert_eq!(said.code, 1);
    let expected = format!("the agent does not listen on {at}");
    assert!(said.stdout.contains(&expected) && said.stdout.contains("ss -ltnp"), "{said:?}");
    drop(taken);
    assert_eq!(bed.http().await, at);
    let said = bed.cli(&doctor).await.ok();
    assert!(said.starts_with("nothing is wrong\n"), "{said}");
    bed.finish().await;
}

#[tokio::test]
async fn the_address_is_changed_without_a_restart_and_slow_clients_hold_nothing_up() {
    let bed = Bed::new().await;
    let path = bed.dir().join("agent.toml");
    let before = fs::read_to_string(&path).unwrap();
    let reload = |more: &str| {
        fs::write(&path, format!("{before}{more}")).unwrap();
        signal(bed.agent_pid(), Signal::SIGHUP);
    };
    reload("[api]\nhttp_listen = \"127.0.0.1:0\"\n");
    let first = bed.http().await;
    let mut slow = TcpStream::connect(first).await.unwrap();
    slow.write_all(b"GET /healthz HTTP/1.1\r\nho").await.unwrap();
    assert_eq!(bed.get("/healthz").await.status, 200);
    reload("[api]\nhttp_listen = \"[::1]:0\"\n");
    bed.until("it listens elsewhere", async || (bed.http().await != first).then_some(())).await;
    assert_eq!(bed.get("/healthz").await.status, 200);
    assert!(TcpStream::connect(first).await.is_err(), "nobody listens there any more");
    reload("");
    bed.until("it listens nowhere", async || {
        bed.try_status().await.ok()?.agent?.http.is_empty().then_some(())
    })
    .await;
    bed.finish().await;
}

/// The value of the sample that begins with this.
fn value(page: &str, sample: &str) -> Option<f64> {
    let rest = page.lines().find_map(|line| line.strip_prefix(sample))?;
    rest.strip_prefix(' ')?.parse().ok()
}

#[tokio::test]
async fn metrics_tell_what_happens_and_go_on_after_a_crash_of_the_agent() {
    let mut bed = Bed::builder().set("api.http_listen=127.0.0.1:0").start().await;
    let echo = bed.echo().await;
    let order = orders::install("web", "r1", &echo).manifest(|manifest| {
        manifest.metrics_interval = orders::seconds(1.0);
    });
    bed.configure(vec![order.order()]).await;
    bed.running("web", "r1").await;
    let reads = async |sample: &str| value(&bed.get("/metrics").await.body, sample);
    let is = async |sample: &str, expected: f64| {
        let what = format!("{sample} is {expected}");
        bed.until(&what, async || (reads(sample).await == Some(expected)).then_some(())).await;
    };
    is("guest_agent_link_up", 1.0).await;
    is("guest_agent_link_connections_total", 1.0).await;
    is("guest_agent_ready", 1.0).await;
    is("guest_agent_orders_total{kind=\"install\",outcome=\"taken\"}", 1.0).await;
    is("guest_agent_installs_total{outcome=\"installed\"}", 1.0).await;
    is("guest_agent_plugin_state{plugin=\"web\",state=\"RUNNING\"}", 1.0).await;
    is("guest_agent_outbox_events", 0.0).await;
    is("guest_agent_plugin_health_code{plugin=\"web\"}", 0.0).await;
    is("guest_agent_plugin_restarts_total{plugin=\"web\"}", 0.0).await;
    let above = async |sample: &str, least: f64| {
        let what = format!("{sample} is above {least}");
        bed.until(&what, async || reads(sample).await.filter(|value| *value > least)).await
    };
    above("guest_agent_save_duration_seconds_count", 1.0).await;
    above("process_resident_memory_bytes", 1e6).await;
    above("process_open_fds", 5.0).await;
    above("guest_agent_plugin_memory_bytes{plugin=\"web\"}", 1e5).await;
    above("guest_agent_plugin_last_install_seconds{plugin=\"web\"}", 0.0).await;
    signal(bed.processes("web")[0], Signal::SIGKILL);
    is("guest_agent_plugin_restarts_total{plugin=\"web\"}", 1.0).await;
    let exit = "guest_agent_plugin_last_exit_timestamp_seconds{plugin=\"web\",\
                cause=\"signaled\",detail=\"9\"}";
    above(exit, 1.7e9).await;
    bed.running("web", "r1").await;
    bed.kill_agent().await;
    bed.start_agent().await;
    let reads = async |sample: &str| value(&bed.get("/metrics").await.body, sample);
    let restarts = bed.until("the plugin is back", async || {
        reads("guest_agent_plugin_restarts_total{plugin=\"web\"}").await
    });
    assert_eq!(restarts.await, 1.0, "what the plugin went through is remembered");
    assert_eq!(
        reads("guest_agent_installs_total{outcome=\"installed\"}").await,
        Some(0.0),
        "what this life of the agent did begins anew"
    );
    bed.finish().await;
}

#[tokio::test]
async fn each_scraper_gets_the_format_that_it_reads() {
    let bed = Bed::builder().set("api.http_listen=127.0.0.1:0").start().await;
    let plain = bed.get("/metrics").await;
    assert_eq!(plain.status, 200);
    assert_eq!(plain.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    assert!(!plain.body.contains("# EOF"));
    let accept = [("accept", "application/openmetrics-text;version=1.0.0,text/plain;q=0.3")];
    let open = bed.get_with("/metrics", &accept).await;
    assert!(open.header("content-type").starts_with("application/openmetrics-text; version=1.0.0"));
    assert!(open.body.ends_with("# EOF\n"));
    promtool::check(&["check", "metrics"], &plain.body);
    bed.finish().await;
}
