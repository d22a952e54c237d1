//! A real browser without a window: Chromium, spoken to in its own protocol over two pipes.
//!
//! The protocol is the one that DevTools uses. Over pipes it needs no port, no driver and no
//! library: each message is JSON and ends with a zero byte. The shell gives Chromium the pipes as
//! the descriptors 3 and 4, where it wants them.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, Command};

/// Longest that the browser may take for anything. It starts slowly on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a page is looked at again.
const BEAT: Duration = Duration::from_millis(50);

/// What it may be called.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Finds text that is cut off. What only screen readers are to have is left out, and so is a text
/// that scrolls or says by an ellipsis that there is more of it.
const CLIPPED: &str = r"(() => {
  const found = [];
  const wide = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > wide + 1) found.push('the page is wider than the window');
  for (const it of document.body.querySelectorAll('*')) {
    const style = getComputedStyle(it);
    const own = [...it.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || style.clipPath !== 'none' || it.closest('.hidden, .skip, option, noscript, thead')) continue;
    const box = it.getBoundingClientRect();
    if (!box.width) continue;
    const name = `${it.tagName}.${it.className.baseVal ?? it.className}: ${it.textContent.trim().slice(0, 60)}`;
    if (box.right > wide + 1 || box.left < -1) found.push(`beside the page: ${name}`);
    const cuts = ['hidden', 'clip'].includes(style.overflowX) && style.webkitLineClamp === 'none';
    if (cuts && it.scrollWidth > it.clientWidth + 1) found.push(`cut off: ${name}`);
    if (parseFloat(style.fontSize) < 11) found.push(`too small, ${style.fontSize}: ${name}`);
  }
  return found;
})()";

/// A browser with one page.
pub(crate) struct Browser {
    process: Child,
    to: pipe::Sender,
    from: pipe::Receiver,
    received: Vec<u8>,
    events: VecDeque<Value>,
    session: String,
    calls: u64,
    complaints: Vec<String>,
    _home: tempfile::TempDir,
}

// === impl Browser ===

impl Browser {
    /// Starts a browser. On a machine without one, prints a line that says so and returns `None`.
    pub(crate) async fn start(for_what: &str) -> Option<Self> {
        let Some(program) = PROGRAMS.into_iter().find(|name| is_there(name)) else {
            eprintln!("SKIPPED: {for_what}: there is no chromium; see tests/console/get-chromium");
            return None;
        };
        let home = tempfile::Builder::new().prefix("ga-browser-").tempdir().unwrap();
        let (commands, answers) = (home.path().join("commands"), home.path().join("answers"));
        for fifo in [&commands, &answers] {
            mkfifo(fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        }
        // Both ends, so that neither side waits for the other to open its own.
        let both = || {
            let mut options = pipe::OpenOptions::new();
            options.read_write(true);
            options
        };
        let to = both().open_sender(&commands).unwrap();
        let from = both().open_receiver(&answers).unwrap();
        let process = Command::new("sh")
            .args(["-c", r#"exec "$@" 3<"$COMMANDS" 4>"$ANSWERS""#, "sh", program])
            .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
            .args(["--no-first-run", "--disable-extensions", "--disable-background-networking"])
            .args(["--disable-sync", "--disable-component-update", "--hide-scrollbars"])
            .args(["--force-color-profile=srgb", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", home.path().join("profile").display()))
            .arg("about:blank")
            .env("COMMANDS", &commands)
            .env("ANSWERS", &answers)
            .env("HOME", home.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut browser = Self {
            process,
            to,
            from,
            received: Vec::new(),
            events: VecDeque::new(),
            session: String::new(),
            calls: 0,
            complaints: Vec::new(),
            _home: home,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" })).await;
        let target = json!({ "targetId": target["targetId"], "flatten": true });
        let attached = browser.call("Target.attachToTarget", target).await;
        browser.session = attached["sessionId"].as_str().expect("a session").to_owned();
        for domain in ["Page.enable", "Runtime.enable", "Log.enable"] {
            browser.call(domain, json!({})).await;
        }
        Some(browser)
    }

    /// Goes to a page, and returns when it is loaded.
    pub(crate) async fn open(&mut self, url: &str) {
        self.events.clear();
        self.call("Page.navigate", json!({ "url": url })).await;
        self.loaded().await;
    }

    /// Waits until the page that was gone to is loaded.
    pub(crate) async fn loaded(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(event) = self.events.pop_front() {
                if event["method"] == "Page.loadEventFired" {
                    return;
                }
            }
            assert!(Instant::now() < deadline, "the page is not loaded");
            self.receive().await;
        }
    }

    /// What an expression comes to on the page.
    pub(crate) async fn evaluate(&mut self, expression: &str) -> Value {
        let request =
            json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let mut answer = self.call("Runtime.evaluate", request).await;
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until an expression is true on the page.
    pub(crate) async fn until(&mut self, expression: &str) {
        let deadline = Instant::now() + PATIENCE;
        while self.evaluate(&format!("Boolean({expression})")).await != true {
            if Instant::now() > deadline {
                let text = self.evaluate("document.body.innerText").await;
                panic!("never so: {expression}\non the page: {text}\n{:?}", self.complaints);
            }
            tokio::time::sleep(BEAT).await;
        }
    }

    /// Clicks what a selector finds, and returns when the page that this leads to is loaded.
    pub(crate) async fn follow(&mut self, selector: &str) {
        self.events.clear();
        let found = format!("document.querySelector({})", json!(selector));
        self.evaluate(&format!("{found}.click()")).await;
        self.loaded().await;
    }

    /// Has pages run no script from now on, or run them again.
    pub(crate) async fn allow_script(&mut self, allowed: bool) {
        self.call("Emulation.setScriptExecutionDisabled", json!({ "value": !allowed })).await;
    }

    /// Gives pages a size, and a taste: `light` or `dark`.
    pub(crate) async fn look(&mut self, width: u32, height: u32, taste: &str) {
        self.look_sharply(width, height, taste, 1.5).await;
    }

    /// The same with so many dots for each pixel of the page.
    pub(crate) async fn look_sharply(&mut self, width: u32, height: u32, taste: &str, dots: f64) {
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": dots, "mobile": width < 600,
        });
        self.call("Emulation.setDeviceMetricsOverride", size).await;
        let feature = json!({ "name": "prefers-color-scheme", "value": taste });
        self.call("Emulation.setEmulatedMedia", json!({ "features": [feature] })).await;
    }

    /// Presses a key, as a person does: `Tab`, `Enter` or a letter.
    pub(crate) async fn press(&mut self, key: &str) {
        let (code, text) = match key {
            "Tab" => (9, ""),
            "Enter" => (13, "\r"),
            " " => (32, " "),
            letter => (u32::from(letter.to_ascii_uppercase().as_bytes()[0]), letter),
        };
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let event = json!({
                "type": kind, "key": key, "text": text, "windowsVirtualKeyCode": code,
            });
            self.call("Input.dispatchKeyEvent", event).await;
        }
    }

    /// Presses Tab until the focus is on what a selector finds.
    pub(crate) async fn tab_to(&mut self, selector: &str) {
        let is_there = format!("document.activeElement?.matches({})", json!(selector));
        for _ in 0..200 {
            self.press("Tab").await;
            if self.evaluate(&format!("Boolean({is_there})")).await == true {
                // It has to be seen where the focus is.
                let outline = "getComputedStyle(document.activeElement).outlineStyle";
                assert_ne!(self.evaluate(outline).await, "none", "{selector} shows no focus");
                return;
            }
        }
        panic!("Tab does not lead to {selector}");
    }

    /// Presses Enter on what has the focus, and returns when the page that this leads to is loaded.
    pub(crate) async fn enter(&mut self) {
        self.events.clear();
        self.press("Enter").await;
        self.loaded().await;
    }

    /// What a person cannot read on the page as wide as it is: text that is cut off, or that lies
    /// beside the page.
    pub(crate) async fn clipped(&mut self) -> Vec<String> {
        let found = self.evaluate(CLIPPED).await;
        found.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
    }

    /// What axe finds wrong on the page for people who do not see it, or not well; `None` where axe is
    /// not there.
    pub(crate) async fn axe(&mut self) -> Option<Vec<String>> {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let file = Path::new(&target).join("axe/axe.min.js");
        let script = std::fs::read_to_string(file).ok()?;
        self.evaluate(&format!("{script}; 0")).await;
        let run = "axe.run(document, { resultTypes: ['violations'] }).then((found) => \
            found.violations.flatMap((it) => it.nodes.map((node) => \
            `${it.id}: ${node.failureSummary} ${node.html}`)))";
        let found = self.evaluate(run).await;
        Some(found.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect())
    }

    /// Writes what is to be seen into a file, all the way down, or so far.
    pub(crate) async fn picture(&mut self, file: &Path, highest: u64) {
        let root = "document.documentElement";
        let width = self.evaluate(&format!("{root}.clientWidth")).await;
        let height = self.evaluate(&format!("{root}.scrollHeight")).await;
        let height = height.as_u64().unwrap_or(highest).min(highest);
        let clip = json!({ "x": 0, "y": 0, "width": width, "height": height, "scale": 1 });
        let request = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let picture = self.call("Page.captureScreenshot", request).await;
        let picture = STANDARD.decode(picture["data"].as_str().unwrap()).unwrap();
        std::fs::write(file, picture).unwrap();
    }

    /// Errors of scripts, and whatever the browser refused to load or run.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Ends it.
    pub(crate) async fn close(mut self) {
        self.process.kill().await.unwrap();
    }

    async fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": parameters });
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).await.unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let answer = self.receive().await;
            if let Some(answer) = answer.filter(|answer| answer["id"] == self.calls) {
                assert!(answer.get("error").is_none(), "{method}: {answer}");
                return answer["result"].clone();
            }
            assert!(Instant::now() < deadline, "the browser does not answer to {method}");
        }
    }

    /// Takes one message; returns it when it is an answer.
    async fn receive(&mut self) -> Option<Value> {
        while !self.received.contains(&0) {
            let mut part = vec![0; 64 << 10];
            let read = tokio::time::timeout(BEAT * 4, self.from.read(&mut part)).await;
            let Ok(count) = read else { return None };
            self.received.extend_from_slice(&part[..count.unwrap()]);
        }
        let end = self.received.iter().position(|byte| *byte == 0)?;
        let message: Vec<u8> = self.received.drain(..=end).collect();
        let message: Value = serde_json::from_slice(&message[..end]).unwrap();
        if message.get("id").is_some() {
            return Some(message);
        }
        let content = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.complaints.push(content.to_string()),
            Some("Runtime.consoleAPICalled") if content["type"] == "error" => {
                self.complaints.push(content.to_string());
            }
            Some("Log.entryAdded") if content["entry"]["level"] == "error" => {
                self.complaints.push(content.to_string());
            }
            _ => self.events.push_back(message),
        }
        None
    }
}

fn is_there(program: &str) -> bool {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&paths).any(|folder| folder.join(program).is_file())
}
