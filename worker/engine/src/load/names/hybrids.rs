//! Names in models some of whose layers remember in a state, as transformers has them.

use super::recurrent::{FirstPart, Rates, RecurrentNames};
use super::{ExpertNames, HF, HF_EXPERTS, HF_GRANITE_MOE, HF_OLMO2, Names};
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

/// The same in Lara, where the first product is one tensor.
pub(crate) const HF_LARA_MINI: Names = Names {
    recurrent: RecurrentNames {
        first: &[FirstPart {
            name: "linear_attn.in_proj",
            columns: &[Columns::All],
            by_head: false,
        }],
        norm: "linear_attn.out_norm.weight",
        ..QWEN3_NEXT
    },
    ..HF
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

/// The same in LFM3.
pub(crate) const HF_LFM3: Names = Names {
    q_norm: HF.q_norm,
    k_norm: HF.k_norm,
    out: HF.out,
    out_gate: "self_attn.gate_proj",
    attn_post_norm: "post_operator_norm",
    ffn_post_norm: "post_ffn_norm",
    ..HF_LFM2
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

/// The same in Bamba, and in Falcon H1 once what mixes tokens there are layers of their own.
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

/// The same in OLMo, where layers that are no attention have norms before their parts, and these
/// have names of their own.
pub(crate) const HF_OLMO_HYBRID: Names = Names {
    attn_norm: "attention_layer_norm",
    ffn_norm: "feedforward_layer_norm",
    recurrent: RecurrentNames {
        first: &[
            FirstPart { name: "linear_attn.q_proj", columns: &[Columns::Keys], by_head: false },
            FirstPart { name: "linear_attn.k_proj", columns: &[Columns::Keys], by_head: false },
            FirstPart { name: "linear_attn.v_proj", columns: &[Columns::Values], by_head: false },
            FirstPart { name: "linear_attn.g_proj", columns: &[Columns::Values], by_head: false },
            FirstPart { name: "linear_attn.b_proj", columns: &[Columns::Heads], by_head: false },
            FirstPart { name: "linear_attn.a_proj", columns: &[Columns::Heads], by_head: false },
        ],
        conv: &[
            ("linear_attn.q_conv1d", Columns::Keys),
            ("linear_attn.k_conv1d", Columns::Keys),
            ("linear_attn.v_conv1d", Columns::Values),
        ],
        norm: "linear_attn.o_norm.weight",
        out: "linear_attn.o_proj",
        ..QWEN3_NEXT
    },
    ..HF_OLMO2
};

/// The same in Nemotron-H, once its parts have the numbers of layers.
pub(crate) const HF_NEMOTRON_H: Names = Names {
    embed: "embeddings",
    final_norm: "norm_f",
    layer: "layers",
    attn_norm: "norm",
    q: "mixer.q_proj",
    k: "mixer.k_proj",
    v: "mixer.v_proj",
    qkv: "",
    out: "mixer.o_proj",
    ffn_norm: "feed_norm",
    up: "mixer.up_proj",
    gate_up: "",
    down: "mixer.down_proj",
    experts: ExpertNames {
        router: "mixer.gate",
        bias: "mixer.gate.e_score_correction_bias",
        up: "mixer.experts.{}.up_proj",
        gate_up: "mixer.experts.up_proj.{}",
        down: "mixer.experts.{}.down_proj",
        downs: "mixer.experts.down_proj.{}",
        shared_up: "mixer.shared_experts.up_proj",
        shared_down: "mixer.shared_experts.down_proj",
        ..HF_EXPERTS
    },
    recurrent: RecurrentNames {
        first: &[FirstPart { name: "mixer.in_proj", columns: &[Columns::All], by_head: false }],
        conv: &[("mixer.conv1d", Columns::Channels)],
        rate: "mixer.A_log",
        rates: Rates::Logarithms,
        shift: "mixer.dt_bias",
        skip: "mixer.D",
        norm: "mixer.norm.weight",
        out: "mixer.out_proj",
    },
    ..HF
};
