//! The console at three in the morning: what a person sees of plugins in every bad state, on every
//! screen, and does about them with the keyboard alone.

use super::{Browser, log_in};
use crate::harness::{Bed, orders};

/// A plugin of the incident, as far as the console shows it.
pub(crate) struct Seen {
    pub(crate) plugin: &'static str,
    pub(crate) verdict: &'static str,
    pub(crate) says: &'static [&'static str],
    pub(crate) help: &'static str,
}

/// The pages that are looked at.
const PAGES: [&str; 10] = [
    "/",
    "/?show=held&sort=-memory",
    "/console/events",
    "/console/plugins/loops",
    "/console/plugins/near",
    "/console/plugins/held/release",
    "/console/plugins/loops/log?times=on",
    "/console/doctor",
    "/console/configuration",
    "/console/audit",
];

/// Looks at an incident.
pub(crate) async fn look(bed: &Bed, at: &str, token: &str, cases: &[Seen]) {
    let Some(mut browser) = Browser::start("the console in an incident").await else { return };
    log_in(&mut browser, at, token).await;
    order(&mut browser, cases).await;
    loops_are_folded(&mut browser, at).await;
    screens(&mut browser, at).await;
    by_keyboard(bed, &mut browser, at).await;
    // What could not be carried out any more is reported by the browser, and nothing else.
    let others = browser.complaints().iter().filter(|it| !it.contains("409")).collect::<Vec<_>>();
    assert!(others.is_empty(), "{others:?}");
    browser.close().await;
}

/// What needs attention comes first, the most urgent of it first, each with reason and next step.
async fn order(browser: &mut Browser, cases: &[Seen]) {
    let mut first: Vec<&Seen> = Vec::new();
    for verdict in ["failing", "degraded"] {
        first.extend(cases.iter().filter(|case| case.verdict == verdict));
    }
    let text = browser.evaluate("document.querySelector('.attention h2').innerText").await;
    assert_eq!(text, format!("{} need attention", first.len()).as_str());
    let items = "[...document.querySelectorAll('.attention li h3 a')].map((it) => it.innerText)";
    let items = browser.evaluate(items).await;
    let names: Vec<&str> =
        items.as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    assert_eq!(names, first.iter().map(|case| case.plugin).collect::<Vec<_>>());
    for (index, case) in first.iter().enumerate() {
        let text = format!("document.querySelectorAll('.attention ul li')[{index}].innerText");
        let text = browser.evaluate(&text).await.to_string();
        for part in case.says.iter().chain([&case.help]) {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }
    let rest = "[...document.querySelectorAll('#plugins tbody th a')].map((it) => it.innerText)";
    let rest = browser.evaluate(rest).await.to_string();
    for case in cases {
        let is_first = first.iter().any(|it| it.plugin == case.plugin);
        let name = format!("\"{}\"", case.plugin);
        assert_eq!(!rest.contains(&name), is_first, "{name}: {rest}");
    }
    // Words that people use, and what is so beside the state.
    let text = browser.evaluate("document.body.innerText").await.to_string();
    for word in ["rolled back", "stopped", "held", "Run failed", "Install failed"] {
        assert!(text.contains(word), "{word} is not in {text}");
    }
    let wire =
        "document.body.innerText.match(/\\b(PLUGIN|EXECUTION|INSTALL|START)_[A-Z_]+/)?.[0] ?? ''";
    assert_eq!(browser.evaluate(wire).await, "");
}

/// A crash loop is one line with a count, which unfolds and stays unfolded.
async fn loops_are_folded(browser: &mut Browser, at: &str) {
    browser.open(&format!("{at}/console/events?plugin=loops")).await;
    let line = "[...document.querySelectorAll('#events > ol > li')].find((it) => / times in /.test(it.innerText))";
    browser.until(line).await;
    let text = browser.evaluate(&format!("{line}.innerText")).await.to_string();
    assert!(text.contains("Crashed") && text.contains("exited with code 70"), "{text}");
    let bars = format!("{line}.querySelectorAll('svg.bars rect').length > 0");
    assert_eq!(browser.evaluate(&bars).await, true);
    browser.until("document.getElementById('live').textContent === 'live'").await;
    browser.tab_to("#events summary").await;
    browser.press("Enter").await;
    browser.until("document.querySelector('#events details[open] .events li')").await;
    // It crashes on: what was unfolded is there after the page has changed.
    let count = format!("{line}.querySelector('.kind').innerText");
    let before = browser.evaluate(&count).await.to_string();
    browser.until(&format!("JSON.stringify({count}) !== {before:?}")).await;
    assert_eq!(
        browser.evaluate("document.querySelector('#events details[open]') !== null").await,
        true
    );
    assert_eq!(browser.evaluate("document.activeElement.tagName").await, "SUMMARY");
}

/// Resolves when the page shows a chart.
const CHART: &str = "new Promise(found => {
    const look = () => document.querySelector('.plot .axis span') ? found(true) : setTimeout(look, 50);
    look();
})";

/// Nothing is cut off on a phone, a tablet and a desk, by day and by night, and axe finds nothing.
async fn screens(browser: &mut Browser, at: &str) {
    let mut without_axe = false;
    for (width, height) in [(390, 844), (768, 1024), (1440, 900)] {
        for taste in ["light", "dark"] {
            browser.look(width, height, taste).await;
            for page in PAGES {
                browser.open(&format!("{at}{page}")).await;
                let clipped = browser.clipped().await;
                assert!(clipped.is_empty(), "{page} at {width} px, {taste}: {clipped:#?}");
                // Colours differ by the taste, and the rest by the width.
                if (width, taste) == (768, "light") || (width, taste) == (768, "dark") {
                    continue;
                }
                match browser.axe().await {
                    Some(found) => {
                        assert!(found.is_empty(), "{page} at {width} px, {taste}: {found:#?}");
                    }
                    None => without_axe = true,
                }
            }
        }
    }
    if without_axe {
        eprintln!("SKIPPED: axe on the console's pages; see tests/console/get-axe");
    }
    // What is written in a chart has one size in all widths.
    let size = "getComputedStyle(document.querySelector('.plot .axis span')).fontSize";
    let mut sizes = Vec::new();
    for width in [390, 1440] {
        browser.look(width, 900, "light").await;
        browser.open(&format!("{at}/console/plugins/near")).await;
        // The page follows the measurements, of which the first comes after some seconds.
        browser.evaluate(CHART).await;
        sizes.push(browser.evaluate(size).await);
    }
    assert_eq!(sizes[0], sizes[1]);
}

/// Everything that can be done with a plugin is done with the keyboard, and says before what it will
/// do.
async fn by_keyboard(bed: &Bed, browser: &mut Browser, at: &str) {
    browser.look(1440, 900, "light").await;
    browser.open(at).await;
    browser.press("Tab").await;
    assert_eq!(browser.evaluate("document.activeElement.textContent").await, "To the content");
    let second = orders::install("fine", "2", &bed.echo().await).order();
    bed.configure(vec![second]).await;
    bed.running("fine", "2").await;
    for (plugin, deed, says) in [
        ("fine", "restart", "asked to stop"),
        ("fine", "stop", "stays stopped"),
        ("fine", "start", "is started"),
        ("fine", "hold", "orders of the control plane for it wait"),
        ("fine", "release", "The hold of fine ends"),
        ("fine", "rollback", "stays away until it is released"),
        ("once", "run", "runs once now"),
        ("back", "remove", "This cannot be taken back"),
    ] {
        bed.until(&format!("{deed} is offered"), async || {
            let page = bed.cli(&["status", plugin, "--json"]).await.ok();
            let is_stopped = page.contains("\"cause\": \"stopped\"");
            let is_held = page.contains("\"cause\": \"held\"");
            let is_so = match deed {
                "start" => is_stopped,
                "release" => is_held,
                _ => !is_stopped && !is_held,
            };
            is_so.then_some(())
        })
        .await;
        browser.open(&format!("{at}/console/plugins/{plugin}")).await;
        browser.tab_to(&format!("a[href='/console/plugins/{plugin}/{deed}']")).await;
        browser.enter().await;
        let text = browser.evaluate("document.querySelector('main').innerText").await.to_string();
        assert!(text.contains(says), "{deed}: {text}");
        if ["hold", "stop", "rollback"].contains(&deed) {
            browser.tab_to("#reason").await;
            for letter in ["a", "s", "k"] {
                browser.press(letter).await;
            }
        }
        browser.tab_to("main button[type=submit]").await;
        browser.enter().await;
        let text = browser.evaluate("document.querySelector('.done').innerText").await.to_string();
        assert!(text.contains("requested."), "{deed}: {text}");
    }
    bed.gone("back").await;
}
