//! How a fleet knows its agents.
//!
//! ```text
//!   sessions ─► dyn Admission ─┬─► AgentTokens  a token of each agent
//!                              ├─► Mutual       a certificate of the fleet's authority
//!                              └─► Jwt          a signed token of an identity provider
//!                  Watched ────┘   and none that was revoked, whatever it shows
//!                  Counted         and refusals are counted
//! ```

mod agent_tokens;
mod counted;
mod jwt;
mod mutual;
#[cfg(test)]
mod tests;
mod watched;

pub use agent_tokens::{AgentTokens, AgentTokensError};
pub use counted::Counted;
pub use jwt::{GOOGLE_AUDIENCE, Jwt, JwtSettings, JwtSetupError, KeySource};
pub use mutual::Mutual;
pub use watched::Watched;
