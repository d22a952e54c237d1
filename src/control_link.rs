//! The connection to the control plane.
