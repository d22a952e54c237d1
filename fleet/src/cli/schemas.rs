//! The JSON documents that verbs print, each with its JSON Schema: a contract with scripts, as that of
//! the agent's command line.
//!
//! Schemas are open: a later version may print more. `docs/schemas/fleet/` has them, written and compared by a
//! test.

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::{
    access, agents, audit, document, explain, export, gateways, lists, rollout, status, token,
};
use crate::configuration::audit::head::SignedHead;

/// A kind of JSON document.
#[derive(Clone, Copy, Debug)]
pub struct Document {
    /// Its name, which is that of its file.
    pub name: &'static str,
    /// The command lines that print it, without `guest-fleet` and `--json`.
    pub commands: &'static [&'static str],
    /// What it says, as a sentence without a full stop.
    pub about: &'static str,
    schema: fn() -> Value,
}

/// All documents.
#[must_use]
pub fn schemas() -> &'static [Document] {
    DOCUMENTS
}

const DOCUMENTS: &[Document] = &[
    Document {
        name: "change",
        commands: &[
            "apply",
            "diff",
            "hold",
            "release",
            "retry",
            "rollout create",
            "rollout start",
            "rollout pause",
            "rollout resume",
            "rollout halt",
            "rollout rollback",
            "rollout approve",
            "rollout abort",
            "agent label",
            "agent revoke",
            "agent release",
            "agent archive",
            "agent unarchive",
            "token revoke",
            "access grant",
            "access revoke",
            "access token revoke",
        ],
        about: "What was changed, or would be",
        schema: printed::<document::ChangeJson>,
    },
    Document {
        name: "problems",
        commands: &["apply", "diff"],
        about: "What is wrong with declarations, in place of what was changed",
        schema: printed::<document::ProblemsJson>,
    },
    Document {
        name: "export",
        commands: &["export"],
        about: "The ledger as declarations",
        schema: printed::<export::ExportJson>,
    },
    Document {
        name: "releases",
        commands: &["releases"],
        about: "What can be installed",
        schema: printed::<lists::ReleasesJson>,
    },
    Document {
        name: "assignments",
        commands: &["assignments"],
        about: "Which agents should run what",
        schema: printed::<lists::AssignmentsJson>,
    },
    Document {
        name: "holds",
        commands: &["holds"],
        about: "Where changes wait, and why",
        schema: printed::<lists::HoldsJson>,
    },
    Document {
        name: "windows",
        commands: &["windows"],
        about: "When changes may happen",
        schema: printed::<lists::WindowsJson>,
    },
    Document {
        name: "rollouts",
        commands: &["rollout list"],
        about: "The rollouts, and how far they are",
        schema: printed::<rollout::RolloutsJson>,
    },
    Document {
        name: "rollout",
        commands: &["rollout show", "rollout watch"],
        about: "How far a rollout is, and what failed",
        schema: printed::<rollout::RolloutJson>,
    },
    Document {
        name: "preview",
        commands: &["rollout preview"],
        about: "What a rollout would do",
        schema: printed::<rollout::PreviewJson>,
    },
    Document {
        name: "status",
        commands: &["status"],
        about: "How many agents stand where",
        schema: printed::<status::StatusJson>,
    },
    Document {
        name: "agents",
        commands: &["agents"],
        about: "Who is in the fleet",
        schema: printed::<agents::AgentsJson>,
    },
    Document {
        name: "agent",
        commands: &["agent"],
        about: "One agent, with its plugins",
        schema: printed::<agents::WholeAgentJson>,
    },
    Document {
        name: "gateways",
        commands: &["gateways"],
        about: "The gateways that agents are connected to",
        schema: printed::<gateways::GatewaysJson>,
    },
    Document {
        name: "token",
        commands: &["token create"],
        about: "A new token, with its secret",
        schema: printed::<token::TokenJson>,
    },
    Document {
        name: "tokens",
        commands: &["token list"],
        about: "The tokens by which machines become agents",
        schema: printed::<token::TokensJson>,
    },
    Document {
        name: "access",
        commands: &["access list"],
        about: "Which roles persons and groups have",
        schema: printed::<access::AccessJson>,
    },
    Document {
        name: "access-token",
        commands: &["access token create"],
        about: "A new API token, with its secret",
        schema: printed::<access::ApiTokenJson>,
    },
    Document {
        name: "access-tokens",
        commands: &["access token list"],
        about: "The tokens by which programs use the API",
        schema: printed::<access::ApiTokensJson>,
    },
    Document {
        name: "explain",
        commands: &["explain"],
        about: "What an agent should have of a plugin, why, and where that stands",
        schema: printed::<explain::ExplanationJson>,
    },
    Document {
        name: "audit",
        commands: &["audit", "audit list", "rollout history"],
        about: "Who changed what; a line each",
        schema: printed::<audit::EntryJson>,
    },
    Document {
        name: "audit-verify",
        commands: &["audit verify"],
        about: "Whether the audit record is whole",
        schema: printed::<audit::VerdictJson>,
    },
    Document {
        name: "audit-export",
        commands: &["audit export"],
        about: "An entry of the audit record with what it is made of; a line each",
        schema: printed::<audit::ExportedJson>,
    },
    Document {
        name: "audit-key",
        commands: &["audit create-key"],
        about: "A new key that signs heads of the audit record",
        schema: printed::<audit::AuditKeyJson>,
    },
    Document {
        name: "audit-head",
        commands: &["audit sign-head"],
        about: "How far the audit record was, signed",
        schema: printed::<SignedHead>,
    },
];

// === impl Document ===

impl Document {
    /// The JSON Schema (draft 2020-12).
    #[must_use]
    pub fn schema(&self) -> Value {
        let mut schema = (self.schema)();
        one_line(&mut schema);
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("title".to_owned(), self.name.into());
            schema.insert("description".to_owned(), self.about.into());
        }
        schema
    }
}

fn printed<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    generator.into_root_schema_for::<T>().to_value()
}

/// Puts descriptions on one line each.
fn one_line(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            unwrap(members);
            members.values_mut().for_each(one_line);
        }
        Value::Array(items) => items.iter_mut().for_each(one_line),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn unwrap(members: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = members.get_mut("description") {
        *text = text.replace('\n', " ");
    }
}
