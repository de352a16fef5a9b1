//! Names in models some of whose layers remember in a state, as transformers has them.

use super::recurrent::{FirstPart, Rates, RecurrentNames};
use super::{ExpertNames, HF, HF_EXPERTS, HF_GRANITE_MOE, Names};
use crate::load::decoder::Columns;

/// The same in Qwen3-Next.
pub(crate) const HF_QWEN3_NEXT: Names =
    Names { out_gate: "self_attn.q_proj.gate", recurrent: QWEN3_NEXT, ..HF };

const QWEN3_NEXT: RecurrentNames = RecurrentNames {
    first: &[
        FirstPart {
            name: "linear_attn.in_proj_qkvz",
            columns: &[Columns::Keys, Columns::Keys, Columns::Values, Columns::Values],
            by_head: true,
        },
        FirstPart {
            name: "linear_attn.in_proj_ba",
            columns: &[Columns::Heads, Columns::Heads],
            by_head: true,
        },
    ],
    conv: &[("linear_attn.conv1d", Columns::Channels)],
    rate: "linear_attn.A_log",
    rates: Rates::Logarithms,
    shift: "linear_attn.dt_bias",
    skip: "",
    norm: "linear_attn.norm.weight",
    out: "linear_attn.out_proj",
};

/// The same in Qwen3.5.
pub(crate) const HF_QWEN35: Names = Names { recurrent: QWEN35, ..HF_QWEN3_NEXT };

const QWEN35: RecurrentNames = RecurrentNames {
    first: &[
        FirstPart {
            name: "linear_attn.in_proj_qkv",
            columns: &[Columns::Keys, Columns::Keys, Columns::Values],
            by_head: false,
        },
        FirstPart { name: "linear_attn.in_proj_z", columns: &[Columns::Values], by_head: false },
        FirstPart { name: "linear_attn.in_proj_b", columns: &[Columns::Heads], by_head: false },
        FirstPart { name: "linear_attn.in_proj_a", columns: &[Columns::Heads], by_head: false },
    ],
    ..QWEN3_NEXT
};

/// The same in LFM2, with experts or without.
pub(crate) const HF_LFM2: Names = Names {
    final_norm: "model.embedding_norm",
    attn_norm: "operator_norm",
    q_norm: "self_attn.q_layernorm",
    k_norm: "self_attn.k_layernorm",
    out: "self_attn.out_proj",
    ffn_norm: "ffn_norm",
    gate: "feed_forward.w1",
    up: "feed_forward.w3",
    gate_up: "",
    down: "feed_forward.w2",
    experts: ExpertNames {
        router: "feed_forward.gate",
        bias: "feed_forward.expert_bias",
        gate: "feed_forward.experts.{}.w1",
        up: "feed_forward.experts.{}.w3",
        gate_up: "feed_forward.experts.gate_up_proj.{}",
        down: "feed_forward.experts.{}.w2",
        downs: "feed_forward.experts.down_proj.{}",
        ..HF_EXPERTS
    },
    recurrent: RecurrentNames {
        first: &[FirstPart { name: "conv.in_proj", columns: &[Columns::All], by_head: false }],
        conv: &[("conv.conv", Columns::Channels)],
        out: "conv.out_proj",
        ..RecurrentNames::NONE
    },
    ..HF
};

/// The same in Granite 4, where the feed-forward part is what experts share, if there are any.
pub(crate) const HF_GRANITE4: Names = Names {
    gate_up: SHARED_UP,
    down: SHARED_DOWN,
    experts: ExpertNames {
        shared_gate_up: SHARED_UP,
        shared_down: SHARED_DOWN,
        ..HF_GRANITE_MOE.experts
    },
    recurrent: MAMBA,
    ..HF
};

const SHARED_UP: &str = "shared_mlp.input_linear";
const SHARED_DOWN: &str = "shared_mlp.output_linear";

const MAMBA: RecurrentNames = RecurrentNames {
    first: &[FirstPart { name: "mamba.in_proj", columns: &[Columns::All], by_head: false }],
    conv: &[("mamba.conv1d", Columns::Channels)],
    rate: "mamba.A_log",
    rates: Rates::Logarithms,
    shift: "mamba.dt_bias",
    skip: "mamba.D",
    norm: "mamba.norm.weight",
    out: "mamba.out_proj",
};

/// The same in Bamba.
pub(crate) const HF_BAMBA: Names = Names {
    final_norm: "model.final_layernorm",
    ffn_norm: "pre_ff_layernorm",
    gate: "feed_forward.gate_proj",
    up: "feed_forward.up_proj",
    gate_up: "",
    down: "feed_forward.down_proj",
    recurrent: MAMBA,
    ..HF
};
