//! What is configured, and where it was said.
