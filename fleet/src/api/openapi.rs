//! The description of the HTTP form: OpenAPI 3.1, made from the table of calls and the descriptors of the messages.
//!
//! It is made by a test of this crate, because only the `.proto` file has the words, and committed; the test fails
//! when it is not what the table and the messages say.

/// The document.
pub const DOCUMENT: &str = include_str!("../../../docs/reference/fleet-openapi.json");
