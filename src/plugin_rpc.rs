//! The calls a plugin answers.
