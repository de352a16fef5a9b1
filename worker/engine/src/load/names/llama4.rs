//! Llama 4's tensors.

use super::{ExpertNames, HF, HF_EXPERTS, Names};

/// transformers' names of it, once experts are apart.
pub(crate) const HF_LLAMA4: Names = Names {
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    down: "feed_forward.down_proj",
    experts: ExpertNames {
        router: "feed_forward.router",
        gate: "feed_forward.experts.{}.gate_proj",
        up: "feed_forward.experts.{}.up_proj",
        down: "feed_forward.experts.{}.down_proj",
        gate_up: "feed_forward.experts.gate_up_proj.{}",
        downs: "feed_forward.experts.down_proj.{}",
        shared_gate: "feed_forward.shared_expert.gate_proj",
        shared_up: "feed_forward.shared_expert.up_proj",
        shared_down: "feed_forward.shared_expert.down_proj",
        ..HF_EXPERTS
    },
    ..HF
};
