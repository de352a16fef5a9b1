//! Names in families of 2025 and 2026.

use super::{ExpertNames, GGUF, HF, HF_EXPERTS, HF_GEMMA3, HF_GLM4_MOE, HF_GRANITE4, Names};

pub(crate) const HF_HYPERCLOVAX: Names =
    Names { attn_post_norm: "post_norm1", ffn_post_norm: "post_norm2", ..HF };

pub(crate) const HF_NANOCHAT: Names = Names { up: "mlp.fc1", gate_up: "", down: "mlp.fc2", ..HF };

pub(crate) const HF_VAULTGEMMA: Names =
    Names { attn_post_norm: "", ffn_post_norm: "", ..HF_GEMMA3 };

pub(crate) const HF_FLINT: Names = Names { sinks: "self_attn.softmax_offset", ..HF };

/// Granite with windows and experts, which has no names of its own for them.
pub(crate) const HF_GRANITE_MOE_SWA: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.router",
        gate_up: "block_sparse_moe.experts.gate_up_proj.{}",
        downs: "block_sparse_moe.experts.down_proj.{}",
        ..HF_GRANITE4.experts
    },
    ..HF_GRANITE4
};

pub(crate) const HF_HY_V3: Names = Names {
    experts: ExpertNames {
        router: "mlp.router.gate",
        bias: "mlp.expert_bias",
        shared_gate: "mlp.shared_mlp.gate_proj",
        shared_up: "mlp.shared_mlp.up_proj",
        shared_down: "mlp.shared_mlp.down_proj",
        ..HF_EXPERTS
    },
    ..HF
};

pub(crate) const HF_AFMOE: Names = Names {
    out_gate: "self_attn.gate_proj",
    attn_post_norm: "post_attention_layernorm",
    ffn_norm: "pre_mlp_layernorm",
    ffn_post_norm: "post_mlp_layernorm",
    experts: ExpertNames {
        router: "mlp.router.gate",
        bias: "mlp.expert_bias",
        ..HF_GLM4_MOE.experts
    },
    ..HF
};

/// Aria, once its experts are apart.
pub(crate) const HF_ARIA: Names =
    Names { experts: ExpertNames { router: "mlp.router", ..HF_GLM4_MOE.experts }, ..HF_GLM4_MOE };

pub(crate) const HF_AX_K1: Names = Names { ffn_post_norm: "post_mlp_layernorm", ..HF_GLM4_MOE };

/// Sarvam 30B, which is GLM 4.5 by names of Ling's.
pub(crate) const HF_SARVAM: Names = Names {
    embed: "model.word_embeddings",
    qkv: "attention.query_key_value",
    q_norm: "attention.query_layernorm",
    k_norm: "attention.key_layernorm",
    out: "attention.dense",
    experts: ExpertNames { bias: "mlp.gate.expert_bias", ..HF_GLM4_MOE.experts },
    ..HF_GLM4_MOE
};

/// llama.cpp's.
pub(crate) const GGUF_AFMOE: Names = Names { out_gate: "attn_gate", ..GGUF };
