//! The source of an order.

/// The source of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The control plane.
    ControlPlane,
    /// A user of this machine, who may name local archives.
    Local,
}
