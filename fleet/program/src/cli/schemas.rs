//! The JSON documents that verbs print, each with its JSON Schema: a contract with scripts, as that of
//! the agent's command line.
//!
//! Schemas are open: a later version may print more. `docs/schemas/fleet/` has them, written and compared by a
//! test.

use guest_agent_cli_kit::schemas::{Document, Form, printed};

use super::{
    agents, audit, document, events, explain, export, gateways, lists, rollout, secret, status,
    token,
};

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
            "resume",
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
        ],
        form: Form::Whole,
        about: "What was changed, or would be",
        schema: printed::<document::ChangeJson>,
    },
    Document {
        name: "problems",
        commands: &["apply", "diff"],
        form: Form::Whole,
        about: "What is wrong with declarations, in place of what was changed",
        schema: printed::<document::ProblemsJson>,
    },
    Document {
        name: "export",
        commands: &["export"],
        form: Form::Whole,
        about: "The ledger as declarations",
        schema: printed::<export::ExportJson>,
    },
    Document {
        name: "releases",
        commands: &["releases"],
        form: Form::Whole,
        about: "What can be installed",
        schema: printed::<lists::ReleasesJson>,
    },
    Document {
        name: "assignments",
        commands: &["assignments"],
        form: Form::Whole,
        about: "Which agents should run what",
        schema: printed::<lists::AssignmentsJson>,
    },
    Document {
        name: "holds",
        commands: &["holds"],
        form: Form::Whole,
        about: "Where changes wait, and why",
        schema: printed::<lists::HoldsJson>,
    },
    Document {
        name: "windows",
        commands: &["windows"],
        form: Form::Whole,
        about: "When changes may happen",
        schema: printed::<lists::WindowsJson>,
    },
    Document {
        name: "rollouts",
        commands: &["rollout list"],
        form: Form::Whole,
        about: "The rollouts, and how far they are",
        schema: printed::<rollout::RolloutsJson>,
    },
    Document {
        name: "rollout",
        commands: &["rollout show", "rollout watch"],
        form: Form::WholeOrLines,
        about: "How far a rollout is, and what failed",
        schema: printed::<rollout::RolloutJson>,
    },
    Document {
        name: "preview",
        commands: &["rollout preview"],
        form: Form::Whole,
        about: "What a rollout would do",
        schema: printed::<rollout::PreviewJson>,
    },
    Document {
        name: "status",
        commands: &["status"],
        form: Form::Whole,
        about: "How many agents stand where",
        schema: printed::<status::StatusJson>,
    },
    Document {
        name: "agents",
        commands: &["agents"],
        form: Form::Whole,
        about: "Who is in the fleet",
        schema: printed::<agents::AgentsJson>,
    },
    Document {
        name: "agent",
        commands: &["agent"],
        form: Form::Whole,
        about: "One agent, with its plugins",
        schema: printed::<agents::WholeAgentJson>,
    },
    Document {
        name: "gateways",
        commands: &["gateways"],
        form: Form::Whole,
        about: "The gateways that agents are connected to",
        schema: printed::<gateways::GatewaysJson>,
    },
    Document {
        name: "secrets",
        commands: &["secret status"],
        form: Form::Whole,
        about: "Which version of a secret is where",
        schema: printed::<secret::SecretsJson>,
    },
    Document {
        name: "token",
        commands: &["token create"],
        form: Form::Whole,
        about: "A new token, with its secret",
        schema: printed::<token::TokenJson>,
    },
    Document {
        name: "tokens",
        commands: &["token list"],
        form: Form::Whole,
        about: "The tokens by which machines become agents",
        schema: printed::<token::TokensJson>,
    },
    Document {
        name: "explain",
        commands: &["explain"],
        form: Form::Whole,
        about: "What an agent should have of a plugin, why, and where that stands",
        schema: printed::<explain::ExplanationJson>,
    },
    Document {
        name: "events",
        commands: &["events"],
        form: Form::Lines,
        about: "Events of plugins and notices of the fleet; a line each",
        schema: printed::<events::FleetEventJson>,
    },
    Document {
        name: "audit",
        commands: &["audit", "audit list", "rollout history"],
        form: Form::Lines,
        about: "Who changed what; a line each",
        schema: printed::<audit::EntryJson>,
    },
    Document {
        name: "audit-verify",
        commands: &["audit verify"],
        form: Form::Whole,
        about: "Whether the audit record is whole",
        schema: printed::<audit::VerdictJson>,
    },
];
