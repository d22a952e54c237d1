//! Pages that are made from the code: `docs/reference/`. `UPDATE_GENERATED=1` writes them.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use crate::{fleet_program, pages};

#[track_caller]
pub(crate) fn is_up_to_date(path: &str, fresh: &str) {
    let file = pages::root().join(path);
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::create_dir_all(file.parent().expect("a folder")).expect("the folder is made");
        std::fs::write(&file, fresh).expect("the page is written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        committed == fresh,
        "{path} is out of date; run `UPDATE_GENERATED=1 cargo test --test documentation reference`"
    );
}

/// A line of a table; what would end a cell is escaped.
pub(crate) fn row(cells: &[&str]) -> String {
    let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

// === Configuration ===

/// A key of `config/guest-agent.toml`, with the comment above it.
struct Key {
    section: String,
    name: String,
    default: String,
    text: String,
}

fn keys(toml: &str) -> Vec<Key> {
    let (mut section, mut text, mut found) = (String::new(), Vec::new(), Vec::new());
    for line in toml.lines() {
        if let Some(comment) = line.strip_prefix('#') {
            text.push(comment.trim());
        } else if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name.to_owned();
            text.clear();
        } else if let Some((name, default)) = line.split_once(" = ") {
            let text = std::mem::take(&mut text).join(" ");
            let (section, name) = (section.clone(), name.to_owned());
            found.push(Key { section, name, default: default.to_owned(), text });
        } else {
            text.clear();
        }
    }
    found
}

/// What may be written, by what stands there.
fn kind(default: &str) -> &'static str {
    let is_duration =
        default.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).is_some_and(|text| {
            text.starts_with(|c: char| c.is_ascii_digit()) && text.ends_with(['s', 'm', 'h'])
        });
    match default.as_bytes().first() {
        Some(b'[') => "list of text",
        Some(b't' | b'f') => "true or false",
        Some(b'"') if is_duration => "duration",
        Some(b'"') => "text",
        _ => "number",
    }
}

/// The keys in the list of what SIGHUP takes up, as the code has it.
fn at_once() -> Vec<String> {
    let source = pages::text("src/agent/reload.rs");
    let list = source.split("pub const AT_ONCE").nth(1).expect("the list");
    let list = list.split("];").next().expect("its end");
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

fn configuration() -> String {
    let at_once = at_once();
    let mut page = String::from(
        "# Configuration reference\n\n\
         Every key, made from `config/guest-agent.toml`, which a test compares with the code. Policies of plugins, the tables\n\
         below `[plugins]`, are in [security.md](../security.md#how-to-give-it-less).\n\n\
         Read in this order, later ones win: the defaults, `/etc/guest-agent/guest-agent.toml`, `conf.d/*.toml` beside it by\n\
         name, environment variables, `--set section.key=value`. An unknown key is an error that names the nearest known one.\n\
         `guest-agent config check` checks, `guest-agent config show --effective` prints what holds and where it was set.\n\n\
         The variable of a key is `GUEST_AGENT__SECTION__KEY`, in capitals: `plugins.probation` is `GUEST_AGENT__PLUGINS__PROBATION`.\n\
         *Reload* says whether SIGHUP takes a change up at once; all other keys wait for the next start of the agent, which\n\
         leaves plugins running.\n",
    );
    let mut section = String::new();
    for key in keys(&pages::text("config/guest-agent.toml")) {
        if key.section != section {
            section.clone_from(&key.section);
            write!(page, "\n## {section}\n\n").expect("text takes text");
            page.push_str("| key | type | default | reload | meaning |\n|---|---|---|---|---|\n");
        }
        let reload = at_once.contains(&format!("{section}.{}", key.name));
        page.push_str(&row(&[
            &format!("`{}`", key.name),
            kind(&key.default),
            &format!("`{}`", key.default),
            if reload { "yes" } else { "" },
            &key.text.replace('<', "&lt;"),
        ]));
    }
    page
}

#[test]
fn the_configuration_reference_is_up_to_date() {
    let toml = pages::text("config/guest-agent.toml");
    let keys = keys(&toml);
    assert!(keys.len() > 40 && keys.iter().all(|key| !key.text.is_empty()), "each has a sentence");
    let names: Vec<_> = keys.iter().map(|key| format!("{}.{}", key.section, key.name)).collect();
    assert!(at_once().iter().all(|key| names.contains(key)), "what is taken up is a key");
    is_up_to_date("docs/reference/configuration.md", &configuration());
}

// === Command line ===

fn help(program: &Path, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .env_clear()
        .args(arguments)
        .arg("--help")
        .env("COLUMNS", "100")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    let text = String::from_utf8(output.stdout).expect("text");
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The verbs below a command, as its help lists them.
fn verbs(help: &str) -> Vec<&str> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| !line.is_empty());
    let named = list.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    named.filter_map(|line| line.split_whitespace().next()).filter(|verb| *verb != "help").collect()
}

/// What a program's `--help` says, below an introduction.
fn command_line(program: &Path, introduction: &str) -> String {
    let whole = help(program, &[]);
    let mut page = format!("{introduction}\n```text\n{whole}\n```\n");
    for verb in verbs(&whole) {
        let text = help(program, &[verb]);
        write!(page, "\n## {verb}\n\n```text\n{text}\n```\n").expect("text takes text");
        for below in verbs(&text) {
            let text = help(program, &[verb, below]);
            write!(page, "\n### {verb} {below}\n\n```text\n{text}\n```\n")
                .expect("text takes text");
        }
    }
    page
}

#[test]
fn the_command_line_reference_is_up_to_date() {
    let page = command_line(
        Path::new(env!("CARGO_BIN_EXE_guest-agent")),
        "# Command line reference\n\n\
         What `--help` says, of every verb. `--json` prints one JSON document, or one object per line when following.\n\n\
         | exit code | meaning |\n|---|---|\n| 0 | done |\n| 1 | failed; the reason is on standard error |\n\
         | 2 | the command line is wrong |\n| 3 | the agent cannot be reached |\n| 4 | waited in vain |\n",
    );
    assert!(pages::headings(&page).len() > 15, "the verbs are found");
    is_up_to_date("docs/reference/cli.md", &page);
}

#[test]
fn the_command_line_reference_of_a_fleet_is_up_to_date() {
    let page = command_line(
        &fleet_program::path(),
        "# Command line reference of guest-fleet\n\n\
         What `--help` says, of every verb. `--json` prints JSON documents ([their schemas](../fleet-declarations.md#mistakes)).\n\n\
         | exit code | meaning |\n|---|---|\n| 0 | done |\n\
         | 1 | failed, or `diff` found a difference; the reason is on standard error |\n\
         | 2 | the command line is wrong |\n| 3 | the ledger or the server cannot be reached |\n| 4 | not in time |\n",
    );
    assert!(pages::headings(&page).len() > 15, "the verbs are found");
    is_up_to_date("docs/reference/fleet-cli.md", &page);
}

// === Errors ===

/// An enum of errors, the heading that tells a reader what it is about, and what to do.
const ERRORS: [(&str, &str, &str, &str); 14] = [
    (
        "src/install/error/fetch.rs",
        "FetchError",
        "Downloading",
        "The error decides whether the agent tries again: a refusal (HTTP 401, 403, 404, 410) is final; after other failures the agent tries again, as often as the manifest says. Try the URL from the machine with `curl`; signed URLs expire.",
    ),
    (
        "src/install/download/redirect.rs",
        "Misdirection",
        "Redirections",
        "The cause of `the redirection from … was not followed`. A server that archives are redirected to, such as that of GitHub's releases, has to stand in `install.redirect_hosts`.",
    ),
    (
        "src/install/error/signature.rs",
        "SignatureError",
        "Signatures",
        "Running plugins continue. [signing.md](../signing.md) describes how to sign archives and rotate keys.",
    ),
    (
        "src/install/error/unpack.rs",
        "UnpackError",
        "Unpacking",
        "The archive is not valid, or the disk is full. Make the archive with `guest-agent pack`, which refuses files that no agent would install.",
    ),
    (
        "src/install/error.rs",
        "FolderError",
        "Putting files in place",
        "The content of a revision never changes: give another archive another revision. The cause at the end of the line names errors of the disk.",
    ),
    (
        "src/os/remove.rs",
        "DeleteError",
        "Deleting files",
        "The agent tries again until the files are deleted.",
    ),
    (
        "src/config/trust_key.rs",
        "KeyError",
        "Keys to check signatures with",
        "Correct `[trust]` and reload. Until then the agent installs nothing.",
    ),
    (
        "src/install/error.rs",
        "SpoolError",
        "Uploaded archives",
        "Only `guest-agent install -f` reports these errors.",
    ),
    (
        "actors/src/ports/launcher.rs",
        "LaunchError",
        "Starting a plugin",
        "`guest-agent logs NAME` shows the plugin's output; the event has its last lines, too.",
    ),
    (
        "src/process/launch/start.rs",
        "PrepareError",
        "Before a plugin is executed",
        "These errors come from the machine, not from the plugin: read the cause, and run `guest-agent doctor`.",
    ),
    (
        "src/process/sandbox.rs",
        "ConfineError",
        "Policies",
        "[security.md](../security.md) describes every key of a policy; `guest-agent doctor` shows beforehand what this machine cannot enforce.",
    ),
    (
        "src/process/sandbox/account.rs",
        "AccountError",
        "Users and groups of policies",
        "Create the account, or correct the policy.",
    ),
    (
        "actors/src/ports/launcher.rs",
        "LimitError",
        "Limits",
        "`status` and `explain` list under *not enforced* the limits that this machine cannot enforce.",
    ),
    (
        "actors/src/ports/plugin_rpc.rs",
        "RpcError",
        "Calls to a plugin",
        "A plugin that fails three health checks in a row counts as hung; the agent stops it and starts it again.",
    ),
];

/// The variants of an enum: what each prints, and what its documentation says.
fn variants(file: &str, name: &str) -> Vec<(String, String)> {
    let source = pages::text(file);
    let start =
        source.find(&format!("enum {name} {{")).unwrap_or_else(|| panic!("{name} in {file}"));
    let body = &source[start..];
    let body = &body[..body.find("\n}").expect("its end")];
    let (mut told, mut found) = (Vec::new(), Vec::new());
    let mut lines = body.lines().skip(1);
    while let Some(line) = lines.next() {
        // Variants and what belongs to them stand one step in; fields are further in.
        let Some(line) = line.strip_prefix("    ").filter(|line| !line.starts_with(' ')) else {
            continue;
        };
        if let Some(text) = line.strip_prefix("/// ") {
            told.push(text.to_owned());
        } else if let Some(attribute) = line.strip_prefix("#[error(") {
            let mut all = attribute.to_owned();
            while !all.trim_end().ends_with(")]") {
                all.push('\n');
                all.push_str(lines.next().expect("the attribute ends").trim_start());
            }
            let message = match all.trim_start().strip_prefix('"') {
                Some(quoted) => message(quoted),
                None => "*what caused it*".to_owned(),
            };
            found.push((message, told.join(" ")));
        } else if line.starts_with(|c: char| c.is_uppercase()) {
            told.clear();
        }
    }
    found
}

/// The text of a literal, with a gap for each value.
fn message(quoted: &str) -> String {
    let mut text = String::new();
    let mut chars = quoted.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '"' => break,
            '\\' => {
                // Otherwise the backslash ends a line, and the string continues on the next.
                if chars.next() == Some('"') {
                    text.push('"');
                }
            }
            '{' => {
                while chars.next().is_some_and(|c| c != '}') {}
                text.push('…');
            }
            c => text.push(c),
        }
    }
    format!("`{}`", text.replace('`', "'").replace("……", "…"))
}

fn errors() -> String {
    let mut page = String::from(
        "# Errors\n\n\
         Every reason for which a plugin is not installed or not started, as events, `status`, `explain` and the log show it. `…` is a\n\
         name, a path or a number. A line of reasons reads from left to right: the failure, its cause, the cause of that. Generated from the\n\
         code; [operations](../operations.md) begins with what you see instead.\n",
    );
    for (file, name, title, advice) in ERRORS {
        write!(page, "\n## {title}\n\n{advice}\n\n| message | meaning |\n|---|---|\n")
            .expect("text takes text");
        for (message, meaning) in variants(file, name) {
            // Links of the code's documentation are names here.
            let meaning = meaning.replace(['[', ']'], "").replace('<', "&lt;");
            page.push_str(&row(&[&message, &meaning]));
        }
    }
    page
}

#[test]
fn the_list_of_errors_is_up_to_date() {
    let page = errors();
    assert!(page.lines().filter(|line| line.starts_with("| `")).count() > 60, "they are found");
    is_up_to_date("docs/reference/errors.md", &page);
}
