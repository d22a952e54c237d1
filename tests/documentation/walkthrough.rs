//! Pages whose commands are run in their order, as they stand there.
//!
//! Comments around the blocks of such a page say how they are run:
//!
//! ```text
//! <!-- ports: N N … -->   these ports of the page become free ones of this machine
//! <!-- file: PATH -->     the block is the content of this file
//! <!-- not run: WHY -->   for the reader only
//! <!-- background -->     runs while the others do, as in a terminal of its own; what it is to print is waited for
//! <!-- background: NAME -->   the same, and has a name
//! <!-- ends: NAME -->     before the block, Ctrl-C is pressed in that terminal
//! <!-- kills: NAME -->    before the block, everything in that terminal is killed
//! <!-- leaves -->         the block starts processes that outlive it
//! <!-- fails -->          ends with another code than 0
//! <!-- expect: TEXT -->   after the block: it printed this
//! <!-- until: TEXT -->    the same, and the block is run again until it did
//! <!-- output -->         the block is what the one before it prints
//! ```
//!
//! In what a page shows as output, `…` stands for any text, and on a line of its own for any lines.
//! Spaces count as one; moments, long numbers and long hexadecimal numbers count as the same as others.

use std::fs::File;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::pages;
use crate::shown;

/// Longest that a block may take; the longest compiles a plugin with all that it needs.
const BLOCK: Duration = Duration::from_secs(1200);

/// Longest until a block prints what it is to print.
const UNTIL: Duration = Duration::from_secs(180);

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Block {
    pub(crate) language: String,
    pub(crate) text: String,
    /// The comments before it, each `name` or `name: value`.
    pub(crate) before: Vec<String>,
    pub(crate) expected: Vec<String>,
    pub(crate) awaited: Vec<String>,
    /// What the page shows as its output.
    pub(crate) output: Option<String>,
}

impl Block {
    fn says(&self, name: &str) -> bool {
        let mut words = self.before.iter().filter_map(|word| word.split(": ").next());
        words.any(|word| word == name)
    }

    fn value(&self, name: &str) -> Option<&str> {
        let mut words = self.before.iter().filter_map(|word| word.split_once(": "));
        words.find(|(word, _)| *word == name).map(|(_, value)| value)
    }
}

/// All fenced blocks of a page. What is shown as output belongs to the block that prints it.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut before = Vec::new();
    let mut open = None::<Block>;
    for line in page.lines() {
        if let Some(block) = &mut open {
            if line.trim_end() == "```" {
                if let Some(block) = open.take() {
                    close(&mut found, block);
                }
            } else {
                block.text.push_str(line);
                block.text.push('\n');
            }
        } else if let Some(language) = line.strip_prefix("```") {
            let before = std::mem::take(&mut before);
            open = Some(Block { language: language.to_owned(), before, ..Block::default() });
        } else if let Some(comment) = line.strip_prefix("<!-- ") {
            let comment = comment.strip_suffix(" -->").expect("a comment ends on its line");
            match comment.split_once(": ") {
                Some(("expect", text)) => last(&mut found).expected.push(text.to_owned()),
                Some(("until", text)) => last(&mut found).awaited.push(text.to_owned()),
                Some(("ports", _)) => {}
                _ => before.push(comment.to_owned()),
            }
        }
    }
    assert!(open.is_none() && before.is_empty(), "a block that does not end, or does not come");
    found
}

fn close(found: &mut Vec<Block>, block: Block) {
    if block.says("output") {
        let printing = last(found);
        assert!(printing.language == "sh" && printing.output.is_none(), "{block:?}");
        printing.output = Some(block.text);
    } else {
        found.push(block);
    }
}

fn last(found: &mut [Block]) -> &mut Block {
    found.last_mut().expect("a block before it")
}

/// The page with ports that are free.
fn with_free_ports(page: &str) -> String {
    let lines = page.lines().filter_map(|line| line.strip_prefix("<!-- ports: "));
    let named = lines.filter_map(|line| line.strip_suffix(" -->")).flat_map(str::split_whitespace);
    // Held until all are chosen, so that they differ.
    let chosen: Vec<(&str, TcpListener)> = named
        .map(|port| (port, TcpListener::bind(("127.0.0.1", 0)).expect("a free port")))
        .collect();
    chosen.iter().fold(page.to_owned(), |page, (port, free)| {
        assert!(page.matches(port).count() > 1, "the page has no port {port}");
        page.replace(port, &free.local_addr().expect("its address").port().to_string())
    })
}

/// A reader with a shell, in a folder of their own.
pub(crate) struct Reader {
    folder: PathBuf,
    /// Where their programs are.
    programs: PathBuf,
    terminals: Vec<(String, Child)>,
    /// Groups of processes that outlive the block that started them.
    left: Vec<u32>,
}

impl Reader {
    /// `name` tells the folders of several readers apart. With `programs` the reader finds copies of
    /// these, and otherwise what is beside the agent.
    pub(crate) fn new(name: &str, programs: &[PathBuf]) -> Self {
        // Short: sockets are made in it.
        let folder = std::env::temp_dir().join(format!("ga-{name}-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a new folder");
        std::os::unix::fs::symlink(pages::root(), folder.join("guest-agent")).expect("a link");
        std::fs::write(folder.join(".place"), format!("cd '{}'\n", folder.display()))
            .expect("a file can be written");
        let beside = Path::new(env!("CARGO_BIN_EXE_guest-agent")).parent().expect("a folder");
        let own = folder.join(".bin");
        for program in programs {
            std::fs::create_dir_all(&own).expect("a folder");
            provide(program, &own);
        }
        let programs = if programs.is_empty() { beside.to_owned() } else { own };
        Self { folder, programs, terminals: Vec::new(), left: Vec::new() }
    }

    /// Does what a page says. Returns how many blocks were run.
    pub(crate) fn follow(&mut self, page: &str) -> usize {
        let mut ran = 0;
        for block in blocks(&with_free_ports(page)) {
            if let Some(name) = block.value("ends") {
                terminate(&mut self.close(name));
            }
            if let Some(name) = block.value("kills") {
                let mut child = self.close(name);
                assert!(signal("KILL", child.id()), "{name} is not there to be killed");
                child.wait().expect("it can be waited for");
            }
            if let Some(path) = block.value("file") {
                std::fs::write(self.place().join(path), &block.text).expect("the file is written");
            } else if block.language != "sh" || block.says("not run") {
                assert!(block.expected.is_empty() && block.awaited.is_empty(), "{block:?}");
                assert!(block.output.is_none(), "{block:?}");
            } else if block.says("background") {
                let name = block.value("background").unwrap_or("dev").to_owned();
                let output = self.folder.join(format!(".{name}"));
                let script = format!("{}{}", self.return_here(), block.text);
                let child = self.shell(&script, &output);
                self.terminals.push((name, child));
                wait_for(&block, &output);
            } else {
                self.check(&block);
                ran += 1;
            }
        }
        ran
    }

    /// Takes the terminal of this name away from those that are open.
    fn close(&mut self, name: &str) -> Child {
        let place = self.terminals.iter().position(|(of, _)| of == name);
        self.terminals.remove(place.expect("a terminal of that name")).1
    }

    /// The folder the shell is in.
    fn place(&self) -> PathBuf {
        let place = std::fs::read_to_string(self.folder.join(".place")).expect("the place");
        let line = place.lines().find_map(|line| line.strip_prefix("cd ")).expect("a cd");
        PathBuf::from(line.trim_matches('\''))
    }

    /// Goes to the folder of the last shell, and sets its variables.
    fn return_here(&self) -> String {
        let (variables, place) = (self.folder.join(".variables"), self.folder.join(".place"));
        format!("test ! -e '{0}' || . '{0}'\n. '{1}'\n", variables.display(), place.display())
    }

    fn shell(&self, script: &str, output: &Path) -> Child {
        let output = File::create(output).expect("a file for what is printed");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            // What cargo and tests set is not set for a reader.
            let set = ["GUEST_AGENT", "GUEST_FLEET", "CARGO_PKG"];
            if set.iter().any(|start| name.starts_with(start)) {
                command.env_remove(&*name);
            }
        }
        command
            .args(["-euo", "pipefail", "-c", script])
            .env("PATH", format!("{}:{path}", self.programs.display()))
            .env_remove("CARGO_TARGET_DIR")
            // The build is not optimised, and builds the same dependencies only once.
            .env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0")
            .env("CARGO_PROFILE_RELEASE_STRIP", "true")
            .env("CARGO_BUILD_BUILD_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("hello"))
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(output.try_clone().expect("a second handle"))
            .stderr(output)
            .process_group(0)
            .spawn()
            .expect("bash is there")
    }

    /// Runs a block to its end; what it printed, and how it ended.
    fn run(&mut self, block: &Block) -> (String, ExitStatus) {
        let script = format!(
            "{}{}declare -px | grep -E ' GUEST_(AGENT|FLEET)' >'{}' || true\n\
             printf \"cd '%s'\\n\" \"$PWD\" >'{}'\n",
            self.return_here(),
            block.text,
            self.folder.join(".variables").display(),
            self.folder.join(".place").display(),
        );
        let output = self.folder.join(".output");
        let mut shell = self.shell(&script, &output);
        if block.says("leaves") {
            self.left.push(shell.id());
        }
        let end = Instant::now() + BLOCK;
        let status = loop {
            if let Some(status) = shell.try_wait().expect("the shell can be waited for") {
                break status;
            }
            if Instant::now() > end {
                terminate(&mut shell);
                panic!("not done after {BLOCK:?}:\n{}", block.text);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let printed = std::fs::read_to_string(&output).expect("what was printed");
        (printed, status)
    }

    /// Runs a block, again and again where it waits for something, and checks what it printed.
    fn check(&mut self, block: &Block) {
        let end = Instant::now() + UNTIL;
        loop {
            let (printed, status) = self.run(block);
            let shows = block.output.as_ref().is_none_or(|shown| shown::matches(shown, &printed));
            let missing = block.awaited.iter().find(|text| !printed.contains(*text));
            let is_early = missing.is_some() || (!shows && !block.awaited.is_empty());
            if is_early && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let missing = missing.or(block.expected.iter().find(|text| !printed.contains(*text)));
            let said = || format!("{}\nprinted\n{printed}", block.text);
            assert_eq!(missing, None, "is not in what\n{}", said());
            let shown = block.output.as_deref().unwrap_or_default();
            assert!(shows, "{}\nand the page shows\n{shown}", said());
            assert_eq!(status.success(), !block.says("fails"), "{status}:\n{}", said());
            return;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for (name, child) in &mut self.terminals {
            terminate(child);
            if std::thread::panicking() {
                let log = std::fs::read_to_string(self.folder.join(format!(".{name}")));
                eprintln!("what `{name}` printed:\n{}", log.unwrap_or_default());
            }
        }
        for group in &self.left {
            // They may have ended already.
            signal("KILL", *group);
        }
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Puts a program into a folder. Debug information is left out where `strip` is there: pages pack programs.
fn provide(program: &Path, folder: &Path) {
    let copy = folder.join(program.file_name().expect("a name"));
    let stripped = Command::new("strip").arg("-o").arg(&copy).arg(program).status();
    if !stripped.is_ok_and(|status| status.success()) {
        std::os::unix::fs::symlink(program, &copy).expect("a link");
    }
}

/// Does what Ctrl-C in a terminal does: signals the whole process group, and waits for it.
fn terminate(child: &mut Child) {
    let told = signal("TERM", child.id());
    assert!(told || std::thread::panicking(), "kill");
    let end = Instant::now() + UNTIL;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a program that runs on has printed what its block expects.
fn wait_for(block: &Block, output: &Path) {
    let end = Instant::now() + UNTIL;
    loop {
        let printed = std::fs::read_to_string(output).expect("what was printed");
        let has_all =
            block.awaited.iter().chain(&block.expected).all(|text| printed.contains(text));
        if has_all && block.output.as_ref().is_none_or(|shown| shown::matches(shown, &printed)) {
            return;
        }
        assert!(
            Instant::now() < end,
            "{}\nprinted\n{printed}\nand is to be\n{block:?}",
            block.text
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether the processes of a group were there to be signalled.
fn signal(name: &str, group: u32) -> bool {
    let (name, group) = (format!("-{name}"), format!("-{group}"));
    let mut kill = Command::new("kill");
    kill.args([&name, "--", &group]).stderr(Stdio::null());
    kill.status().is_ok_and(|status| status.success())
}

#[test]
fn comments_belong_to_the_blocks_beside_them() {
    let page = "a\n<!-- fails -->\n```sh\nfalse\n```\n<!-- expect: b: c -->\n```text\nd\n```\n\
                ```sh\ne\n```\n<!-- output -->\n```text\nf\n```\n";
    let [first, second, third] = &*blocks(page) else { panic!("three blocks") };
    assert_eq!((&*first.text, &*first.before), ("false\n", &["fails".to_owned()][..]));
    assert_eq!((&*first.expected, &first.output), (&["b: c".to_owned()][..], &None));
    assert_eq!((&*second.language, &*second.before), ("text", &[][..]));
    assert_eq!((&*third.text, third.output.as_deref()), ("e\n", Some("f\n")));
}

#[test]
fn ports_of_a_page_become_free_ones() {
    let page = with_free_ports("<!-- ports: 7443 7444 -->\nconnect 7443, 7444, 7443\n");
    let words: Vec<&str> = page.lines().nth(1).expect("a line").split(", ").collect();
    let [first, second, again] = &*words else { panic!("three ports") };
    assert_eq!(first.strip_prefix("connect "), Some(*again));
    assert!(second != again, "{page}");
}
