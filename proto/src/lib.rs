//! Wire types of guest-agent, one module per protobuf package.
//!
//! The `.proto` files in `proto/` are the source; the code that `prost` and `tonic` generate from
//! them is committed under `src/gen/`, so that the build needs neither `protoc` nor a build script.
//! The test `tests/generated.rs` generates it again and fails on a difference; run it with
//! `UPDATE_GENERATED=1` to write the new code.
//!
//! The feature `json` adds the module `json`: configurations as protobuf JSON, for the programs
//! that read and write files. The feature `enrolment` adds what agents and a fleet say to each other
//! over HTTPS. Beside [`artifact`] and [`escape`], which say where archives are and how names stand in paths, nothing else here has behaviour of
//! its own. In the core only `guest_agent_actors::wire` names these types.

#![warn(missing_docs)]

pub mod artifact;
#[cfg(feature = "enrolment")]
pub mod enrolment;
pub mod escape;
#[cfg(feature = "json")]
pub mod json;

pub use generated::agent_controlplane;
pub use generated::cipd;
pub use generated::google::cloud::agentcommunication::v1 as agent_communication;
pub use generated::google::rpc;
pub use generated::guest_agent::fleet::v1 as fleet;
pub use generated::guest_agent::host::v1 as host;
pub use generated::guest_agent::local::v1 as local;
pub use generated::guest_agent::record::v1 as record;
pub use generated::plugin_comm;

/// Descriptors of all packages, for protobuf JSON: an encoded `google.protobuf.FileDescriptorSet`.
pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("gen/descriptors.bin");

/// Encodes a report on all plugins, by far the longest message: thousands of points of metrics,
/// byte for byte. `encode_to_vec` is compiled with the calling crate, which is optimised for size;
/// this crate is optimised for speed.
#[must_use]
pub fn encode_plugin_states(states: &agent_controlplane::CurrentPluginStates) -> Vec<u8> {
    prost::Message::encode_to_vec(states)
}

/// The packages as nested modules, because generated code refers to other packages by `super`.
#[allow(missing_docs, clippy::all, clippy::allow_attributes, unreachable_pub)]
mod generated {
    pub mod plugin_comm {
        include!("gen/plugin_comm.rs");
    }
    pub mod agent_controlplane {
        include!("gen/agent_controlplane.rs");
    }
    pub mod cipd {
        include!("gen/cipd.rs");
        pub mod plugin {
            include!("gen/cipd.plugin.rs");
        }
    }
    pub mod google {
        pub mod rpc {
            include!("gen/google.rpc.rs");
        }
        pub mod cloud {
            pub mod agentcommunication {
                pub mod v1 {
                    include!("gen/google.cloud.agentcommunication.v1.rs");
                }
            }
        }
    }
    pub mod guest_agent {
        pub mod fleet {
            pub mod v1 {
                include!("gen/guest_agent.fleet.v1.rs");
            }
        }
        pub mod host {
            pub mod v1 {
                include!("gen/guest_agent.host.v1.rs");
            }
        }
        pub mod local {
            pub mod v1 {
                include!("gen/guest_agent.local.v1.rs");
            }
        }
        pub mod record {
            pub mod v1 {
                include!("gen/guest_agent.record.v1.rs");
            }
        }
    }
}
