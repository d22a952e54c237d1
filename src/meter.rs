//! What process trees use.
