//! The web console, as browsers have it and as programs do.

use std::path::Path;

use guest_agent_proto::agent_controlplane as pb;
use nix::sys::signal::Signal;
use reqwest::{Client, RequestBuilder, StatusCode, redirect};

use crate::harness::{Bed, orders, signal};

mod browser;
pub(crate) mod incident;

pub(crate) use browser::Browser;

const READ: &str = "a-token-that-allows-looking";
const ACT: &str = "a-token-that-allows-acting";

/// What would do harm if it were taken for markup.
const HOSTILE: &str = "<script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&";

/// A bed whose agent serves the console, where that is, and the folder of its tokens.
async fn served(tokens: &[(&str, &str)]) -> (Bed, String, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let mut builder = Bed::builder().set("api.http_listen=127.0.0.1:0");
    for (key, token) in tokens {
        let file = folder.path().join(key);
        std::fs::write(&file, token).unwrap();
        builder = builder.set(format!("api.{key}={}", file.display()));
    }
    let bed = builder.start().await;
    let at = format!("http://{}", bed.http().await);
    (bed, at, folder)
}

/// Installs the trouble plugin, which does what the test asks of it.
async fn install(bed: &Bed, name: &str) {
    let archive = bed.trouble().await;
    bed.configure(vec![orders::install(name, "1.0", &archive).order()]).await;
    bed.in_state(name, "RUNNING").await;
}

/// Logs in as people do.
async fn log_in(browser: &mut Browser, at: &str, token: &str) {
    browser.open(&format!("{at}/console/login")).await;
    browser.evaluate(&format!("document.getElementById('token').value = '{token}'")).await;
    browser.follow("main button").await;
}

fn client() -> Client {
    // It wants one even where nothing is encrypted.
    drop(rustls::crypto::ring::default_provider().install_default());
    Client::builder().redirect(redirect::Policy::none()).build().unwrap()
}

/// A request with a form of one field, whose value needs no escaping.
fn filled(request: RequestBuilder, field: &str, value: &str) -> RequestBuilder {
    let kind = "application/x-www-form-urlencoded";
    request.header("content-type", kind).body(format!("{field}={value}"))
}

async fn answer(request: RequestBuilder) -> (StatusCode, String) {
    let response = request.send().await.unwrap();
    (response.status(), response.text().await.unwrap())
}

#[tokio::test]
async fn a_page_follows_its_plugins_and_shows_hostile_text_as_text() {
    let (bed, at, _tokens) = served(&[("http_admin_token_file", ACT)]).await;
    install(&bed, "web").await;
    let Some(mut browser) = Browser::start("the console in a browser").await else {
        return bed.finish().await;
    };
    browser.open(&at).await;
    browser.until("document.querySelector('#plugins .pill')?.textContent === 'Running'").await;
    browser.until("document.getElementById('live').textContent === 'live'").await;

    // What happens to it is seen without the page being loaded again.
    browser.evaluate("window.loadedOnce = true").await;
    let pid = bed.in_state("web", "RUNNING").await.pid.unwrap();
    signal(pid, Signal::SIGKILL);
    browser.until("document.querySelector('#events .bad .kind')?.textContent === 'Crashed'").await;
    // One crash is a thing to look at: the plugin stands above the others now.
    browser
        .until("document.getElementById('attention').innerText.includes('1 needs attention')")
        .await;
    browser.until("document.getElementById('said').textContent.startsWith('web: ')").await;
    assert_eq!(browser.evaluate("window.loadedOnce").await, true);

    // Its page says why, and what it prints is text, whatever it prints.
    bed.in_state("web", "RUNNING").await;
    browser.follow("#attention h3 a").await;
    browser.until("document.getElementById('why').textContent.includes('signal 9')").await;
    assert_eq!(browser.evaluate("document.querySelectorAll('form[method=post]').length").await, 0);
    log_in(&mut browser, &at, ACT).await;
    browser.follow("#attention h3 a").await;
    bed.ask("web", &format!("log {HOSTILE}")).await;
    browser.until("document.getElementById('log').textContent.includes('onerror=alert(1)')").await;
    assert_eq!(
        browser.evaluate("document.querySelectorAll('main script, main img').length").await,
        0
    );
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let title = format!("web · {host} · guest-agent");
    assert_eq!(browser.evaluate("document.title").await, title.as_str());

    // The console shows the log in pages as well, and says of a removed plugin that it is gone.
    browser.follow("#log-title ~ a").await;
    browser.until("document.querySelector('pre').textContent.includes('onerror=alert(1)')").await;
    browser.open(&format!("{at}/console/plugins/web")).await;
    browser.until("document.getElementById('live').textContent === 'live'").await;
    bed.configure_locally(vec![orders::remove("web")]).await;
    browser.until("document.getElementById('state').textContent === 'gone'").await;

    assert_eq!(browser.complaints(), [""; 0]);
    browser.close().await;
    bed.finish().await;
}

#[tokio::test]
async fn without_a_script_pages_are_whole() {
    let (bed, at, _tokens) = served(&[]).await;
    install(&bed, "web").await;
    // The report of its end has the last lines that it printed.
    bed.ask("web", "log what a plugin says").await;
    signal(bed.in_state("web", "RUNNING").await.pid.unwrap(), Signal::SIGKILL);
    bed.status_where("web", "it was started again", |status| {
        status.state == "RUNNING" && status.restarts == 1
    })
    .await;
    let Some(mut browser) = Browser::start("the console without a script").await else {
        return bed.finish().await;
    };
    browser.allow_script(false).await;
    browser.open(&at).await;
    let text = browser.evaluate("document.body.innerText").await.to_string();
    let wanted = [
        "web",
        "Running",
        "1.0",
        "connected",
        "ready",
        "Crashed",
        "ago",
        "every 10 s",
        "up ",
        "1 needs attention",
        "guest-agent logs web",
    ];
    for wanted in wanted {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    assert!(!text.contains("what a plugin says"), "not without a token: {text}");
    let again = "document.querySelector('meta[http-equiv=refresh]')?.content";
    assert_eq!(browser.evaluate(again).await, "10");
    browser.follow("#attention h3 a").await;
    let text = browser.evaluate("document.body.innerText").await.to_string();
    for wanted in ["Why it is so", "Log in", "Installed in", "Last steps", "signal 9"] {
        assert!(text.contains(wanted), "{wanted} is not in {text}");
    }
    assert!(!text.contains("what a plugin says"), "not without a token: {text}");
    browser.close().await;
    bed.finish().await;
}

#[tokio::test]
async fn a_browser_that_logs_in_with_the_right_token_restarts_a_plugin() {
    let tokens = [("http_token_file", READ), ("http_admin_token_file", ACT)];
    let (bed, at, _tokens) = served(&tokens).await;
    install(&bed, "web").await;
    let pid = bed.in_state("web", "RUNNING").await.pid;
    let Some(mut browser) = Browser::start("logging in with a browser").await else {
        return bed.finish().await;
    };
    let with = |token: &str| format!("document.getElementById('token').value = '{token}'");
    let restart = "a[href$='/restart']";
    let is_there = format!("document.querySelector(\"{restart}\") !== null");

    // Who brings nothing is asked to log in; who brings what is wrong stays there.
    browser.open(&at).await;
    assert_eq!(browser.evaluate("location.pathname").await, "/console/login");
    browser.evaluate(&with("a-wrong-token-of-somebody")).await;
    browser.follow("main button").await;
    assert!(browser.evaluate("document.body.innerText").await.to_string().contains("no token"));

    browser.evaluate(&with(READ)).await;
    browser.follow("main button").await;
    browser.follow("#plugins tbody a").await;
    assert_eq!(browser.evaluate(&is_there).await, false);
    browser.follow("header form button").await;
    assert_eq!(browser.evaluate("location.pathname").await, "/console/login");

    browser.evaluate(&with(ACT)).await;
    browser.follow("main button").await;
    browser.follow("#plugins tbody a").await;
    browser.until("document.getElementById('live').textContent === 'live'").await;
    browser.follow(restart).await;
    browser.until("document.body.innerText.includes('Its work is interrupted')").await;
    browser.follow("main button").await;
    browser.until("document.body.innerText.includes('Restart requested.')").await;
    bed.status_where("web", "it was restarted", |status| {
        status.state == "RUNNING" && status.pid != pid
    })
    .await;
    browser.follow(".danger").await;
    browser.follow("button.danger").await;
    bed.gone("web").await;
    // The browser reports the two refusals above, and nothing else.
    assert!(browser.complaints().iter().all(|it| it.contains("403")), "{:?}", browser.complaints());
    browser.close().await;
    bed.finish().await;
}

/// Who may do what, without a browser's help.
#[tokio::test]
async fn orders_need_the_token_that_allows_them_and_a_form_of_ones_own() {
    let tokens = [("http_token_file", READ), ("http_admin_token_file", ACT)];
    let (bed, at, _tokens) = served(&tokens).await;
    install(&bed, "web").await;
    let (client, pid) = (client(), bed.in_state("web", "RUNNING").await.pid);
    let page = format!("{at}/console/plugins/web");
    let restart = format!("{page}/restart");

    // Programs.
    let (status, _) = answer(client.get(&page)).await;
    assert_eq!(status, StatusCode::UNAUTHORIZED);
    let asks_for_pages = client.get(&page).header("accept", "text/html,*/*");
    let response = asks_for_pages.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    assert_eq!(response.headers()["location"], "/console/login");
    let (status, text) = answer(client.get(&page).bearer_auth(READ)).await;
    assert_eq!(status, StatusCode::OK);
    assert!(text.contains("Running") && !text.contains("/restart"));
    for path in ["/restart", "/remove"] {
        let order = filled(client.post(format!("{page}{path}")), "csrf", "");
        assert_eq!(answer(order.bearer_auth(READ)).await.0, StatusCode::FORBIDDEN, "{path}");
        let order = filled(client.post(format!("{page}{path}")), "csrf", "");
        assert_eq!(answer(order).await.0, StatusCode::UNAUTHORIZED, "{path}");
    }

    // A session: the cookie alone does nothing.
    let login = filled(client.post(format!("{at}/console/login")), "token", ACT);
    let response = login.send().await.unwrap();
    assert_eq!(response.status(), StatusCode::SEE_OTHER);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    assert!(cookie.contains("HttpOnly") && cookie.contains("SameSite=Strict"), "{cookie}");
    assert!(!cookie.contains(ACT));
    let cookie = cookie.split(';').next().unwrap().to_owned();
    let response = client.get(&page).header("cookie", &cookie).send().await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["referrer-policy"], "same-origin", "or forms have no origin");
    let text = response.text().await.unwrap();
    let csrf = text.split("name=\"csrf\" value=\"").nth(1).unwrap().split('"').next().unwrap();
    let order = |csrf: &str| filled(client.post(&restart).header("cookie", &cookie), "csrf", csrf);
    assert_eq!(answer(order("")).await.0, StatusCode::FORBIDDEN);
    assert_eq!(answer(order("wrong")).await.0, StatusCode::FORBIDDEN);
    let foreign = order(csrf).header("origin", "http://example.com");
    assert_eq!(answer(foreign).await.0, StatusCode::FORBIDDEN);
    assert_eq!(bed.in_state("web", "RUNNING").await.pid, pid, "nothing was done");
    assert_eq!(answer(order(csrf)).await.0, StatusCode::SEE_OTHER);
    bed.status_where("web", "it was restarted", |status| {
        status.state == "RUNNING" && status.pid != pid
    })
    .await;

    // A client needs a token to see what a plugin prints, also where other pages need no token.
    bed.ask("web", "log what a plugin says").await;
    let (_, text) = answer(client.get(&page).bearer_auth(READ)).await;
    assert!(text.contains("what a plugin says"));

    // What is not there, or makes no sense, has a page of its own and does no harm.
    for path in ["/console/plugins/none", "/console/plugins/%2e%2e", "/console/plugins/none/log"] {
        let (status, _) = answer(client.get(format!("{at}{path}")).bearer_auth(READ)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{path}");
    }
    let far = client.get(format!("{page}/log?at=18446744073709551615")).bearer_auth(READ);
    assert_eq!(answer(far).await.0, StatusCode::OK);

    // Logged out is logged out.
    let logout = client.post(format!("{at}/console/logout")).header("cookie", &cookie);
    assert_eq!(answer(filled(logout, "csrf", csrf)).await.0, StatusCode::SEE_OTHER);
    assert_eq!(answer(order(csrf)).await.0, StatusCode::UNAUTHORIZED);
    let log = bed.log();
    assert!(![READ, ACT, csrf, &cookie].iter().any(|secret| log.contains(secret)));
    bed.finish().await;
}

/// Events are found by plugin, kind and time; the store has those that are older than the page, and
/// a log is followed, searched and downloaded.
#[tokio::test]
async fn events_have_pages_and_logs_are_followed_searched_and_downloaded() {
    let (bed, at, _tokens) = served(&[("http_admin_token_file", ACT)]).await;
    install(&bed, "web").await;
    let client = client();
    let get = async |path: String| {
        let response = client.get(format!("{at}{path}")).bearer_auth(ACT).send().await.unwrap();
        (response.status(), response.text().await.unwrap())
    };
    // More than one page: each restart is a stop and a start.
    for number in 0..60 {
        let pid = bed.in_state("web", "RUNNING").await.pid;
        bed.cli(&["restart", "web"]).await.ok();
        bed.status_where("web", &format!("restart {number}"), |status| {
            status.state == "RUNNING" && status.pid != pid
        })
        .await;
    }
    let (mut page, mut seen, mut pages) = (String::new(), 0, 0);
    loop {
        let (status, text) = get(format!("/console/events?kind=processes{page}")).await;
        assert_eq!(status, StatusCode::OK);
        seen += text.matches("class=\"kind\"").count();
        pages += 1;
        let older = text.split("before=").nth(1).map(|rest| rest.split('"').next().unwrap());
        let Some(older) = older else { break };
        page = format!("&before={older}");
        assert!(pages < 20, "the pages have an end");
    }
    let events = bed.cli(&["events", "--json"]).await.ok();
    let processes = ["PLUGIN_STARTED", "PLUGIN_STOPPED", "PLUGIN_CRASHED"];
    let wanted = events.lines().filter(|line| processes.iter().any(|kind| line.contains(kind)));
    assert_eq!(seen, wanted.count(), "each event is on one page");
    assert!(pages > 1, "there is more than one page");
    let (_, none) = get("/console/events?plugin=other&since=1h".to_owned()).await;
    assert!(none.contains("Nothing has happened."));
    let far = get("/console/events?before=18446744073709551615".to_owned()).await;
    assert_eq!(far.0, StatusCode::OK);

    bed.ask("web", "log a needle in the HAYSTACK").await;
    bed.until("the line is found", async || {
        let (_, text) = get("/console/plugins/web/log?find=haystack&times=on".to_owned()).await;
        (text.contains("a needle in the HAYSTACK") && text.contains("1 lines")).then_some(())
    })
    .await;
    let response = client.get(format!("{at}/console/plugins/web/log/download"));
    let response = response.bearer_auth(ACT).send().await.unwrap();
    assert_eq!(response.headers()["content-disposition"], "attachment; filename=\"web.log\"");
    assert!(response.text().await.unwrap().contains("a needle in the HAYSTACK"));
    for path in ["/log", "/log/live", "/log/download"] {
        let request = client.get(format!("{at}/console/plugins/web{path}"));
        let status = request.send().await.unwrap().status();
        let refused = [StatusCode::UNAUTHORIZED, StatusCode::FORBIDDEN];
        assert!(refused.contains(&status), "{path}: {status}");
    }
    let Some(mut browser) = Browser::start("following a log").await else {
        return bed.finish().await;
    };
    log_in(&mut browser, &at, ACT).await;
    browser.open(&format!("{at}/console/plugins/web/log?times=on")).await;
    bed.ask("web", "log written while somebody looks").await;
    let shown = "document.querySelector('pre').innerText.includes('written while somebody looks')";
    browser.until(shown).await;
    assert_eq!(browser.complaints(), [""; 0]);
    browser.close().await;
    bed.finish().await;
}

/// Sixteen pages are followed and not one more; all of them end with the agent, which is not held
/// up.
#[tokio::test]
async fn pages_are_followed_by_so_many_and_until_the_agent_stops() {
    let (bed, at, _tokens) = served(&[]).await;
    let live = format!("{at}/console/live?page=overview");
    let client = client();
    let mut followers = Vec::new();
    for _ in 0..16 {
        let mut follower = client.get(&live).send().await.unwrap();
        assert_eq!(follower.status(), StatusCode::OK);
        let first = follower.chunk().await.unwrap().unwrap();
        assert!(first.starts_with(b"data: {"), "the whole page comes first");
        followers.push(follower);
    }
    assert_eq!(answer(client.get(&live)).await.0, StatusCode::SERVICE_UNAVAILABLE);
    drop(followers.pop());
    bed.until("a seat is free again", async || {
        let response = client.get(&live).send().await.unwrap();
        let is_free = response.status() == StatusCode::OK;
        is_free.then(|| followers.push(response))
    })
    .await;
    bed.finish().await;
    for mut follower in followers {
        let ended = async { while let Ok(Some(_)) = follower.chunk().await {} };
        tokio::time::timeout(crate::harness::PATIENCE, ended).await.unwrap();
    }
}

/// Pictures of the console for people to look at: `just screenshots`.
#[tokio::test]
#[ignore = "makes pictures, proves nothing"]
async fn screenshots() {
    let (bed, at, _tokens) = served(&[("http_admin_token_file", ACT)]).await;
    furnish(&bed).await;
    let Some(mut browser) = Browser::start("pictures").await else { return bed.finish().await };
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    let folder = Path::new(&target).join("screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    for (name, path, width, height, taste) in [
        ("overview-light", "/", 1280, 900, "light"),
        ("overview-dark", "/", 1280, 900, "dark"),
        ("overview-phone", "/", 390, 844, "light"),
        ("plugin-light", "/console/plugins/metrics-exporter", 1280, 900, "light"),
        ("plugin-dark", "/console/plugins/log-shipper", 1280, 900, "dark"),
        ("plugin-phone", "/console/plugins/metrics-exporter", 390, 844, "dark"),
        ("events-light", "/console/events", 1280, 900, "light"),
        ("log-light", "/console/plugins/log-shipper/log?times=on", 1280, 700, "light"),
        ("doctor-dark", "/console/doctor", 1280, 900, "dark"),
        ("configuration-light", "/console/configuration", 1280, 900, "light"),
        ("hold-light", "/console/plugins/guest-dns/hold", 1280, 700, "light"),
        ("login", "/console/login", 1280, 700, "light"),
    ] {
        browser.look(width, height, taste).await;
        browser.open(&format!("{at}{path}")).await;
        if name == "overview-light" {
            log_in(&mut browser, &at, ACT).await;
        }
        if browser.evaluate("document.getElementById('live') !== null").await == true {
            browser.until("document.getElementById('live').textContent === 'live'").await;
        }
        browser.picture(&folder.join(format!("{name}.png")), u64::MAX).await;
    }
    eprintln!("the pictures are in {}", folder.display());
    browser.close().await;
    bed.finish().await;
}

/// Plugins as a machine may have them, good and bad, with some minutes of samples.
async fn furnish(bed: &Bed) {
    let archive = bed.trouble().await;
    let measured = |manifest: &mut pb::configure_plugin_states::Manifest| {
        manifest.metrics_interval = orders::seconds(1.0);
    };
    let install =
        |name: &str, revision: &str| orders::install(name, revision, &archive).manifest(measured);
    let mut broken = install("backup-agent", "0.9.1");
    broken = broken.plugin(|plugin| plugin.checksum = "0".repeat(64));
    bed.configure(vec![
        install("metrics-exporter", "2.4.0").arg("--allocate-mb=24").order(),
        install("log-shipper", "1.12.3").order(),
        install("guest-dns", "2026-11-20").order(),
        install("disk-resizer", "7").arg("--crash-after-ms=400").order(),
        install("time-sync", "3.1").arg("--unhealthy-code=3").order(),
        broken.order(),
    ])
    .await;
    for name in ["metrics-exporter", "log-shipper", "guest-dns"] {
        bed.in_state(name, "RUNNING").await;
    }
    // Something to draw: work in bursts.
    for round in 0..12 {
        let burn = format!(
            "run timeout {} sh -c 'while :; do :; done'",
            0.2 + f64::from(round % 4) * 0.25
        );
        bed.ask("metrics-exporter", &burn).await;
        let line =
            format!("log INFO batch={} shipped {} records", 400 + round, 90 + round * 7 % 40);
        bed.ask("log-shipper", &line).await;
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    }
    let upgrade = install("log-shipper", "1.13.0").arg("--start-fails=9");
    bed.configure(vec![upgrade.order()]).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
}
