//! The wire: generated messages and services, and the one validator of what arrives by it.
//!
//! [`v1`] is what `v1/*.proto` says, generated and committed (`tests/generated_is_current.rs`
//! regenerates it). [`convert`] is the only way from there to the words of `aqueduct-core`;
//! whatever has passed it is within [`aqueduct_core::limits`].
#![forbid(unsafe_code)]

pub mod convert;

/// Messages, servers and clients of `aqueduct.v1`.
#[allow(missing_docs, unreachable_pub, clippy::all)]
pub mod v1 {
    include!("generated/aqueduct.v1.rs");
}

/// Encoded `FileDescriptorSet` of `aqueduct.v1`, for gRPC reflection.
pub const DESCRIPTOR: &[u8] = include_bytes!("generated/descriptor.bin");

/// gRPC metadata of a `HandOff` or `Exchange` call: the sender's model fingerprint.
pub const FINGERPRINT_METADATA: &str = "aqueduct-fingerprint";

/// gRPC metadata of a `HandOff` call: what the sender's device brings to reach other devices. A
/// receiver whose device brings the same answers with [`GROUP_METADATA`].
pub const FABRIC_METADATA: &str = "aqueduct-fabric";

/// gRPC metadata of the answer: the group that the receiver joins, 128 bytes.
pub const GROUP_METADATA: &str = "aqueduct-group-bin";

/// gRPC metadata of a `Control` call: the group of the coordinator that opens the session. With it
/// goes [`TERM_METADATA`], and the worker takes no session of an earlier term of that group.
pub const COORDINATORS_METADATA: &str = "aqueduct-group";

/// gRPC metadata of a `Control` call: the term in which the coordinator leads its group.
pub const TERM_METADATA: &str = "aqueduct-term";

/// gRPC metadata of a `Control` call to a worker that this coordinator refused: why, for its log.
/// UTF-8, at most 512 bytes.
pub const REFUSED_METADATA: &str = "aqueduct-refused-bin";

/// gRPC metadata of an UNAVAILABLE answer: where the gRPC API of the coordinator is that leads.
pub const LEADER_METADATA: &str = "aqueduct-leader";
