//! What docs/getting-started.md tells people to do works, as it stands there.
//!
//! Comments around its blocks say how they are run:
//!
//! ```text
//! <!-- file: PATH -->     the block is the content of this file
//! <!-- not run: WHY -->   for the reader only
//! <!-- background -->     runs while the others do
//! <!-- fails -->          ends with another code than 0
//! <!-- expect: TEXT -->   after the block: it printed this
//! <!-- until: TEXT -->    the same, and the block is run again until it did
//! ```

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::pages;

const PAGE: &str = "docs/getting-started.md";

/// Longest that a block may take; the longest compiles a plugin with all that it needs.
const BLOCK: Duration = Duration::from_secs(1200);

/// Longest until a block prints what it is to print.
const UNTIL: Duration = Duration::from_secs(60);

#[derive(Debug, Default, PartialEq)]
struct Block {
    language: String,
    text: String,
    /// The comments before it, each `name` or `name: value`.
    before: Vec<String>,
    expected: Vec<String>,
    awaited: Vec<String>,
}

/// All fenced blocks of a page.
fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut before = Vec::new();
    let mut open = None::<Block>;
    for line in page.lines() {
        if let Some(block) = &mut open {
            if line.trim_end() == "```" {
                found.extend(open.take());
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
                _ => before.push(comment.to_owned()),
            }
        }
    }
    assert!(open.is_none() && before.is_empty(), "a block that does not end, or does not come");
    found
}

fn last(found: &mut [Block]) -> &mut Block {
    found.last_mut().expect("a block before it")
}

/// A reader with a shell, in a folder of their own.
struct Reader {
    folder: PathBuf,
    dev: Option<Child>,
}

impl Reader {
    fn new() -> Self {
        // Short: sockets are made in it.
        let folder = std::env::temp_dir().join(format!("ga-start-{}", std::process::id()));
        std::fs::create_dir(&folder).expect("a new folder");
        std::os::unix::fs::symlink(pages::root(), folder.join("guest-agent")).expect("a link");
        std::fs::write(folder.join(".place"), format!("cd '{}'\n", folder.display()))
            .expect("a file can be written");
        Self { folder, dev: None }
    }

    /// The folder the shell is in.
    fn place(&self) -> PathBuf {
        let place = std::fs::read_to_string(self.folder.join(".place")).expect("the place");
        let line = place.lines().find_map(|line| line.strip_prefix("cd ")).expect("a cd");
        PathBuf::from(line.trim_matches('\''))
    }

    /// A shell that continues in the folder and with the variables of the last one.
    fn shell(&self, script: &str, output: &Path) -> Child {
        let output = File::create(output).expect("a file for what is printed");
        let programs = Path::new(env!("CARGO_BIN_EXE_guest-agent")).parent().expect("a folder");
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            // What cargo and tests set is not set for a reader.
            if name.starts_with("GUEST_AGENT") || name.starts_with("CARGO_PKG") {
                command.env_remove(&*name);
            }
        }
        command
            .args(["-euo", "pipefail", "-c", script])
            .env("PATH", format!("{}:{path}", programs.display()))
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
    fn run(&self, block: &Block) -> (String, ExitStatus) {
        let variables = self.folder.join(".variables");
        let place = self.folder.join(".place");
        let script = format!(
            "test ! -e '{0}' || . '{0}'\n. '{1}'\n{2}declare -px | grep ' GUEST_AGENT' >'{0}' || true\n\
             printf \"cd '%s'\\n\" \"$PWD\" >'{1}'\n",
            variables.display(),
            place.display(),
            block.text
        );
        let output = self.folder.join(".output");
        let mut shell = self.shell(&script, &output);
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
    fn check(&self, block: &Block) {
        let end = Instant::now() + UNTIL;
        loop {
            let (printed, status) = self.run(block);
            let missing = block.awaited.iter().find(|text| !printed.contains(*text));
            let is_over = Instant::now() > end;
            if missing.is_some() && !is_over {
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let missing = missing.or(block.expected.iter().find(|text| !printed.contains(*text)));
            let said = || format!("{}\nprinted\n{printed}", block.text);
            assert_eq!(missing, None, "is not in what\n{}", said());
            let fails = block.before.iter().any(|word| word == "fails");
            assert_eq!(status.success(), !fails, "{status}:\n{}", said());
            return;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(dev) = &mut self.dev {
            terminate(dev);
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.join(".dev")).unwrap_or_default();
            eprintln!("what `dev` printed:\n{log}");
        }
        drop(std::fs::remove_dir_all(&self.folder));
    }
}

/// Does what Ctrl-C in a terminal does: signals the whole process group, and waits for it.
fn terminate(child: &mut Child) {
    let group = format!("-{}", child.id());
    let told = Command::new("kill").args(["-TERM", "--", &group]).status();
    assert!(told.is_ok_and(|told| told.success()) || std::thread::panicking(), "kill");
    let end = Instant::now() + UNTIL;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn everything_on_the_page_works_as_it_is_written() {
    let mut reader = Reader::new();
    let blocks = blocks(&pages::text(PAGE));
    let mut ran = 0;
    for block in &blocks {
        let word = |name: &str| {
            let mut words = block.before.iter().filter_map(|word| word.split(": ").next());
            words.any(|word| word == name)
        };
        if let Some(path) = block.before.iter().find_map(|word| word.strip_prefix("file: ")) {
            std::fs::write(reader.place().join(path), &block.text).expect("the file is written");
        } else if block.language != "sh" || word("not run") {
            assert!(block.expected.is_empty() && block.awaited.is_empty(), "{block:?}");
        } else if word("background") {
            reader.dev = Some(reader.shell(&block.text, &reader.folder.join(".dev")));
        } else {
            reader.check(block);
            ran += 1;
        }
    }
    assert!(ran > 10, "only {ran} blocks were run");
}

#[test]
fn comments_belong_to_the_blocks_beside_them() {
    let page = "a\n<!-- fails -->\n```sh\nfalse\n```\n<!-- expect: b: c -->\n```text\nd\n```\n";
    let [first, second] = &*blocks(page) else { panic!("two blocks") };
    assert_eq!((&*first.text, &*first.before), ("false\n", &["fails".to_owned()][..]));
    assert_eq!(first.expected, ["b: c"]);
    assert_eq!((&*second.language, &*second.before), ("text", &[][..]));
}
