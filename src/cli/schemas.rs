//! The JSON documents that verbs print, each with its JSON Schema: a contract with scripts.
//!
//! ```text
//! type beside a verb ─► schema ─► docs/schemas/NAME.json     (written by a test, and compared)
//!        └────────────► what is printed ─► the end-to-end tests check it against that file
//! ```
//!
//! Schemas are open: a later version may print further properties. `docs/schemas/baseline/` has those of
//! released versions; a test compares with them, so that nothing that was promised goes away.

use guest_agent_cli_kit::schemas::printed;

use super::events::EventJson;
use super::plan::Planned;
use super::registry::show;
use super::support_bundle::{self, manifest};
use super::{
    act, audit, config_verb, doctor, enroll, explain, http_token, keygen, logs, man, pack, status,
    submit, top, vm_event, wait,
};
use crate::config;

pub use guest_agent_cli_kit::schemas::{Document, Form};

/// All documents, in the order of the command line's help.
pub const DOCUMENTS: &[Document] = &[
    Document {
        name: "status",
        commands: &["status"],
        form: Form::WholeOrLines,
        about: "What runs, what is pending and why not",
        schema: printed::<status::json::Overview<'static>>,
    },
    Document {
        name: "status-array",
        commands: &["status --json=array"],
        form: Form::WholeOrLines,
        about: "The plugins alone, as before version 0.2",
        schema: printed::<Vec<status::json::Plugin<'static>>>,
    },
    Document {
        name: "top",
        commands: &["top"],
        form: Form::Whole,
        about: "The agent, its plugins and the last events",
        schema: printed::<top::SnapshotJson<'static>>,
    },
    Document {
        name: "orders",
        commands: &["install", "remove", "apply"],
        form: Form::Whole,
        about: "What became of each order",
        schema: printed::<Vec<submit::Outcome<'static>>>,
    },
    Document {
        name: "plan",
        commands: &["plan"],
        form: Form::Whole,
        about: "What each order would do",
        schema: printed::<Vec<Planned>>,
    },
    Document {
        name: "act",
        commands: &[
            "restart", "stop", "start", "rollback", "hold", "release", "dismiss", "limit", "run",
        ],
        form: Form::Whole,
        about: "What became of what was asked of one plugin, or of all",
        schema: printed::<act::AcceptedJson<'static>>,
    },
    Document {
        name: "explain",
        commands: &["explain"],
        form: Form::Whole,
        about: "Why a plugin is in the state it is in",
        schema: printed::<explain::document::Explanation<'static>>,
    },
    Document {
        name: "wait",
        commands: &["wait"],
        form: Form::Whole,
        about: "The state or the code that was waited for",
        schema: printed::<wait::Reached<'static>>,
    },
    Document {
        name: "event",
        commands: &["events"],
        form: Form::Lines,
        about: "Something that happened to a plugin",
        schema: printed::<EventJson<'static>>,
    },
    Document {
        name: "audit",
        commands: &["audit"],
        form: Form::Lines,
        about: "Something that a person asked of the agent",
        schema: printed::<audit::EntryJson<'static>>,
    },
    Document {
        name: "log",
        commands: &["logs"],
        form: Form::Lines,
        about: "A line that a plugin printed, or a gap",
        schema: printed::<logs::json::LogJson<'static>>,
    },
    Document {
        name: "doctor",
        commands: &["doctor"],
        form: Form::Whole,
        about: "What is wrong on this machine, and the fix",
        schema: printed::<doctor::document::Examination<'static>>,
    },
    Document {
        name: "doctor-bundle",
        commands: &["doctor --bundle"],
        form: Form::Whole,
        about: "What is wrong on the machine that a support bundle is of",
        schema: printed::<doctor::bundle::Judged>,
    },
    Document {
        name: "doctor-sweep",
        commands: &["doctor --sweep"],
        form: Form::Whole,
        about: "Files that nothing refers to",
        schema: printed::<doctor::document::Sweep<'static>>,
    },
    Document {
        name: "doctor-clear-quarantine",
        commands: &["doctor --clear-quarantine"],
        form: Form::Whole,
        about: "How many records were forgotten",
        schema: printed::<doctor::document::Cleared>,
    },
    Document {
        name: "doctor-forget",
        commands: &["doctor --forget"],
        form: Form::Whole,
        about: "The plugins that are being forgotten",
        schema: printed::<doctor::document::Forgotten<'static>>,
    },
    Document {
        name: "support-bundle",
        commands: &["support-bundle"],
        form: Form::Whole,
        about: "The bundle that was written",
        schema: printed::<support_bundle::Written<'static>>,
    },
    Document {
        name: "support-bundle-manifest",
        commands: &[],
        form: Form::File,
        about: "`manifest.json` in a support bundle: what is in it, and what is not",
        schema: printed::<manifest::Manifest>,
    },
    Document {
        name: "vm-event",
        commands: &["vm-event"],
        form: Form::Whole,
        about: "What each plugin made of an event of the machine",
        schema: printed::<Vec<vm_event::ResultJson<'static>>>,
    },
    Document {
        name: "registry-list",
        commands: &["registry list"],
        form: Form::Whole,
        about: "What plugins offer",
        schema: printed::<Vec<show::EntryJson<'static>>>,
    },
    Document {
        name: "registry-entry",
        commands: &["registry get", "registry wait"],
        form: Form::Whole,
        about: "One thing that a plugin offers",
        schema: printed::<show::EntryJson<'static>>,
    },
    Document {
        name: "registry-watch",
        commands: &["registry watch"],
        form: Form::Lines,
        about: "What is offered, and every change of it",
        schema: printed::<show::ToldJson<'static>>,
    },
    Document {
        name: "pack",
        commands: &["pack"],
        form: Form::Whole,
        about: "The archive, the order and the signature that were written",
        schema: printed::<pack::ArchiveJson<'static>>,
    },
    Document {
        name: "pack-bundle",
        commands: &["pack --bundle"],
        form: Form::Whole,
        about: "The bundle that was written",
        schema: printed::<pack::BundleJson<'static>>,
    },
    Document {
        name: "keygen",
        commands: &["keygen"],
        form: Form::Whole,
        about: "The keys that were made",
        schema: printed::<keygen::KeysJson<'static>>,
    },
    Document {
        name: "enroll",
        commands: &["enroll"],
        form: Form::Whole,
        about: "The agent that this machine became, and what its configuration has to say",
        schema: printed::<enroll::EnrolledJson<'static>>,
    },
    Document {
        name: "http-token",
        commands: &["http-token new"],
        form: Form::Whole,
        about: "The token that was made",
        schema: printed::<http_token::NewJson<'static>>,
    },
    Document {
        name: "http-token-list",
        commands: &["http-token list"],
        form: Form::Whole,
        about: "The tokens of a file, without their secrets",
        schema: printed::<http_token::ListJson<'static>>,
    },
    Document {
        name: "http-token-revoke",
        commands: &["http-token revoke"],
        form: Form::Whole,
        about: "The token that was revoked",
        schema: printed::<http_token::RevokedJson<'static>>,
    },
    Document {
        name: "config-check",
        commands: &["config check"],
        form: Form::Whole,
        about: "What is wrong with the configuration",
        schema: printed::<config_verb::Checked<'static>>,
    },
    Document {
        name: "config-show",
        commands: &["config show"],
        form: Form::Whole,
        about: "What is set, and where",
        schema: printed::<Vec<config_verb::EntryJson<'static>>>,
    },
    Document {
        name: "man",
        commands: &["man"],
        form: Form::Whole,
        about: "The manual pages that were written",
        schema: printed::<man::PagesJson>,
    },
    Document {
        name: "configuration",
        commands: &[],
        form: Form::File,
        about: "The configuration file, in the data model of JSON",
        schema: config::schema,
    },
];
