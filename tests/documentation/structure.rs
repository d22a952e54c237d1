//! The structure of the sources is the one that `docs/architecture.md` shows: which wing takes what
//! from which, no circles, and no file that is too long to be read at once.

use std::collections::{BTreeMap, BTreeSet};

use crate::pages;

mod code;

use code::{Crate, Names};

/// Longest file, in lines of code. Tests, comments and empty lines do not count.
const LINES_MAX: usize = 500;

/// The table of the plugin's state machine is read whole.
const LONGER: [&str; 1] = ["actors/src/plugin/machine.rs"];

/// The sources of all crates that are written by hand.
const CRATES: [&str; 14] = [
    "src",
    "actors/src",
    "fleet/src",
    "fleet/core/src",
    "fleet/ledger/src",
    "fleet/program/src",
    "fleet/sessions/src",
    "lab/src",
    "plugin-sdk/src",
    "kits/cli/src",
    "kits/console/src",
    "kits/observe/src",
    "kits/serve/src",
    "kits/testing/src",
];

/// A row of a table of wings: its name, and the wings that it may import.
type Row = (String, BTreeSet<String>);

/// The rows of the table below `heading`, from the top floor down.
fn table(heading: &str) -> Vec<Row> {
    let page = pages::text("docs/architecture.md");
    let below = page.split_once(heading).unwrap_or_else(|| panic!("no heading {heading}")).1;
    let rows = below.lines().skip_while(|line| !line.starts_with('|')).skip(2);
    let quoted = |cell: &str| -> Vec<String> {
        cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
    };
    rows.take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
            let [name, .., imports] = cells.as_slice() else { panic!("no cells in {line}") };
            let name =
                quoted(name).into_iter().next().unwrap_or_else(|| panic!("no name in {line}"));
            (name.trim_end_matches('/').to_owned(), quoted(imports).into_iter().collect())
        })
        .collect()
}

fn read(folder: &str) -> Crate {
    Crate::read(&pages::root().join(folder))
}

fn shown(names: &Names) -> String {
    if names.is_empty() { "lib".to_owned() } else { names.join("::") }
}

/// Every group of files that import each other in a loop, however long.
fn circles(of: &Crate) -> Vec<String> {
    let arrows = of.arrows();
    let reached: BTreeMap<&Names, BTreeSet<&Names>> = arrows
        .keys()
        .map(|from| {
            let mut seen = BTreeSet::new();
            let mut waiting = vec![*from];
            while let Some(at) = waiting.pop() {
                waiting.extend(arrows[at].iter().filter(|to| seen.insert(**to)));
            }
            (*from, seen)
        })
        .collect();
    let mut found = Vec::new();
    let mut told = BTreeSet::new();
    for from in arrows.keys().filter(|from| reached[**from].contains(**from)) {
        let circle: Vec<&Names> =
            reached[*from].iter().filter(|to| reached[**to].contains(*from)).copied().collect();
        if told.insert(circle.clone()) {
            let arrow = |at: &&Names| {
                let to = arrows[*at].iter().filter(|to| circle.contains(to));
                format!(
                    "  {} -> {}",
                    shown(at),
                    to.map(|to| shown(to)).collect::<Vec<_>>().join(", ")
                )
            };
            found.push(circle.iter().map(arrow).collect::<Vec<_>>().join("\n"));
        }
    }
    found
}

/// The wings that each wing imports, with one pair of files that shows it.
fn imports_of_wings(of: &Crate) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut wings: BTreeMap<String, BTreeMap<String, String>> = BTreeMap::new();
    let is_root = |names: &Names| names.is_empty() || names[0] == "main";
    for (from, to) in of.arrows() {
        if is_root(from) {
            continue;
        }
        let imports = wings.entry(from[0].clone()).or_default();
        for to in to.into_iter().filter(|to| !is_root(to) && to[0] != from[0]) {
            imports
                .entry(to[0].clone())
                .or_insert_with(|| format!("{} takes from {}", shown(from), shown(to)));
        }
    }
    wings
}

/// Houses with a table of wings: the heading above the table, and the folder.
const HOUSES: [(&str, &str); 2] =
    [("## The wings of `src/`", "src"), ("## The rooms of `fleet/`", "fleet/src")];

#[test]
fn wings_import_what_the_architecture_says() {
    for (heading, folder) in HOUSES {
        let rows = table(heading);
        let wings = imports_of_wings(&read(folder));
        let in_table: BTreeSet<_> = rows.iter().map(|(name, _)| name.clone()).collect();
        let in_code: BTreeSet<_> = wings.keys().cloned().collect();
        assert_eq!(in_table, in_code, "the table of wings and the folders of {folder} differ");
        for (name, may) in &rows {
            let does = &wings[name];
            let more: Vec<_> = does.iter().filter(|(to, _)| !may.contains(*to)).collect();
            assert!(more.is_empty(), "{name} imports what the table does not allow: {more:?}");
            let less: Vec<_> = may.iter().filter(|to| !does.contains_key(*to)).collect();
            assert!(less.is_empty(), "the table allows {name} what it does not import: {less:?}");
        }
    }
}

#[test]
fn arrows_between_wings_lead_down() {
    for (heading, _) in HOUSES {
        let rows = table(heading);
        for (at, (name, may)) in rows.iter().enumerate() {
            let below: BTreeSet<_> = rows[at + 1..].iter().map(|(name, _)| name).collect();
            let up: Vec<_> = may.iter().filter(|to| !below.contains(to)).collect();
            assert!(up.is_empty(), "{name} imports wings that do not stand below it: {up:?}");
        }
    }
}

#[test]
fn machines_know_no_actor() {
    let rows = table("## The rooms of `actors/src/`");
    let of = read("actors/src");
    let actors: BTreeSet<Names> = of
        .modules()
        .filter(|(_, module)| module.code.contains("impl Actor for "))
        .map(|(names, _)| names.clone())
        .collect();
    assert!(actors.len() >= 10, "only {} actors were found", actors.len());
    let (_, machines) = rows.iter().find(|(name, _)| name == "machines").expect("a row machines");
    assert!(machines.len() >= 10, "only {} machines are named", machines.len());
    let arrows = of.arrows();
    for machine in machines {
        let names: Names = machine.split('/').map(str::to_owned).collect();
        let to = arrows.get(&names).unwrap_or_else(|| panic!("no file of the machine {machine}"));
        let known: Vec<_> = to.iter().filter(|to| actors.contains(**to)).collect();
        assert!(known.is_empty(), "the machine {machine} takes something from an actor: {known:?}");
        let code = &of.modules().find(|(it, _)| **it == names).expect("it has arrows").1.code;
        assert!(!code.contains("actix"), "the machine {machine} names actix");
    }
}

/// The core depends on these crates alone: everything else outside it is behind a port.
#[test]
fn the_core_knows_no_adapter() {
    const ALLOWED: [&str; 12] = [
        "guest-agent-proto",
        "actix",
        "async-trait",
        "futures-util",
        "prost",
        "prost-types",
        // Only where tests kill the agent: see decision 6.
        "rustix",
        "sha2",
        "thiserror",
        "tokio",
        "tracing",
        "uuid",
    ];
    let mut others = dependencies("actors/Cargo.toml");
    others.retain(|name| !ALLOWED.contains(&name.as_str()));
    assert!(others.is_empty(), "the core depends on {others:?}");
}

/// The names of the dependencies of a crate, without those of its tests.
fn dependencies(manifest: &str) -> Vec<String> {
    let manifest = pages::text(manifest);
    let (_, below) = manifest.split_once("[dependencies]").expect("dependencies");
    let section = below.split("\n[").next().unwrap_or_default();
    let names = section.lines().filter_map(|line| line.split(['.', '=', ' ']).next());
    names.filter(|name| !name.is_empty() && !name.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn kits_stand_on_nothing_of_ours() {
    for kit in ["cli", "console", "observe", "serve", "testing"] {
        let mut names = dependencies(&format!("kits/{kit}/Cargo.toml"));
        names.retain(|name| name.starts_with("guest-"));
        assert!(names.is_empty(), "kits/{kit} depends on {names:?}");
    }
}

/// `dev` of the agent links no part of a fleet but the server of the wire, and a fleet links nothing of
/// the lab.
#[test]
fn the_lab_and_the_sessions_know_no_fleet() {
    let ours = |manifest| {
        let mut names = dependencies(manifest);
        names.retain(|name| name.starts_with("guest-") && !name.ends_with("-kit"));
        names
    };
    assert_eq!(ours("fleet/sessions/Cargo.toml"), ["guest-agent-proto"]);
    assert_eq!(ours("lab/Cargo.toml"), ["guest-agent-proto", "guest-fleet-sessions"]);
    let fleet = ours("fleet/Cargo.toml");
    let below = ["guest-agent-proto", "guest-fleet-core", "guest-fleet-ledger"];
    assert_eq!(fleet, [&below[..], &["guest-fleet-sessions"]].concat());
    assert_eq!(ours("fleet/ledger/Cargo.toml"), ["guest-agent-proto", "guest-fleet-core"]);
    let agent = ours("Cargo.toml");
    assert!(agent.contains(&"guest-agent-lab".to_owned()), "{agent:?}");
    assert!(!agent.iter().any(|name| name.starts_with("guest-fleet")), "{agent:?}");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for folder in CRATES {
        let found = circles(&read(folder));
        assert!(found.is_empty(), "circles in {folder}:\n{}", found.join("\n\n"));
    }
}

#[test]
fn no_file_is_too_long_to_be_read_at_once() {
    let root = pages::root();
    for folder in CRATES {
        for (_, module) in read(folder).modules() {
            let file =
                module.file.strip_prefix(root).expect("below the root").display().to_string();
            // Nobody writes it.
            if file.ends_with("/generated.rs") {
                continue;
            }
            assert!(
                module.lines <= LINES_MAX || LONGER.contains(&file.as_str()),
                "{file} has {} lines of code: look for a second thing in it",
                module.lines
            );
        }
    }
}

#[test]
fn a_circle_is_found_however_long_it_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let names: Vec<String> = (0..40).map(|number| format!("part_{number}")).collect();
    let declared: String = names.iter().map(|name| format!("mod {name};\n")).collect();
    std::fs::write(folder.path().join("lib.rs"), declared).expect("writes");
    for (at, name) in names.iter().enumerate() {
        let next = &names[(at + 1) % names.len()];
        let text = format!("use crate::{{\n    {next}::Thing,\n}};\n");
        std::fs::write(folder.path().join(format!("{name}.rs")), text).expect("writes");
    }
    let found = circles(&Crate::read(folder.path()));
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0].lines().count(), names.len());
}

#[test]
fn imports_are_read_in_every_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n"),
        ("a.rs", "mod inner;\npub use inner::Handed;\nfn f() { inner::g(); }\n"),
        ("a/inner.rs", "pub struct Handed;\n"),
        (
            "b.rs",
            "// use crate::d::No;\nfn f(x: &str) { let _ = (\"crate::d::No\", crate::a::Handed); }\n",
        ),
        (
            "c.rs",
            "use super::{a::{Handed as Other}, b};\n#[cfg(test)]\nmod tests { use crate::d::No; }\n",
        ),
        ("d.rs", "use self::e::Deep;\nmod e { pub struct Deep; }\n"),
    ];
    std::fs::create_dir(folder.path().join("a")).expect("makes");
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("writes");
    }
    let of = Crate::read(folder.path());
    let arrows: Vec<String> = of
        .arrows()
        .into_iter()
        .flat_map(|(from, to)| {
            to.into_iter().map(move |to| format!("{} -> {}", shown(from), shown(to)))
        })
        .collect();
    // A re-export leads to where the name is written.
    let expected = ["a -> a::inner", "b -> a::inner", "c -> a::inner", "c -> b"];
    assert_eq!(arrows, expected);
}
