//! What the two containers call the same tensors; `.weight` and `.bias` are added.

mod gemma4;
mod gguf_hybrids;
mod hybrids;
mod llama4;
mod newer;
mod older;
mod recurrent;

use std::collections::BTreeSet;

pub(crate) use self::gemma4::{BesideNames, GGUF_GEMMA4, HF_GEMMA4};
pub(crate) use self::gguf_hybrids::{
    GGUF_FIRST_QWEN3_NEXT, GGUF_GRANITE_HYBRID, GGUF_LFM2, GGUF_QWEN3_NEXT, GGUF_QWEN35,
};
pub(crate) use self::hybrids::{
    HF_BAMBA, HF_GRANITE4, HF_LARA_MINI, HF_LFM2, HF_LFM3, HF_NEMOTRON_H, HF_OLMO_HYBRID,
    HF_QWEN3_NEXT, HF_QWEN35,
};
pub(crate) use self::llama4::HF_LLAMA4;
pub(crate) use self::newer::{
    GGUF_AFMOE, HF_AFMOE, HF_ARIA, HF_AX_K1, HF_FLINT, HF_GRANITE_MOE_SWA, HF_HY_V3,
    HF_HYPERCLOVAX, HF_NANOCHAT, HF_SARVAM, HF_VAULTGEMMA,
};
pub(crate) use self::older::{
    HF_BLOOM, HF_DBRX, HF_EXAONE, HF_GPT_NEO, HF_GPT2, HF_GPTJ, HF_INTERNLM2, HF_MPT, HF_OPT,
};
pub(crate) use self::recurrent::{FirstPart, Rates, RecurrentNames};

/// Names of a decoder's tensors; those of a layer stand after `layer` and its index.
#[derive(Debug)]
pub(crate) struct Names {
    pub(crate) embed: &'static str,
    /// Of a norm behind it, in families that have one.
    pub(crate) embed_norm: &'static str,
    /// Of what positions add to it, in families where they do.
    pub(crate) positions: &'static str,
    pub(crate) final_norm: &'static str,
    pub(crate) head: &'static str,
    pub(crate) layer: &'static str,
    pub(crate) attn_norm: &'static str,
    pub(crate) q: &'static str,
    pub(crate) k: &'static str,
    pub(crate) v: &'static str,
    /// The three of them in one.
    pub(crate) qkv: &'static str,
    pub(crate) q_norm: &'static str,
    pub(crate) k_norm: &'static str,
    /// With its suffix, if it has one.
    pub(crate) sinks: &'static str,
    pub(crate) out: &'static str,
    /// Of norms of what `out` and `down` take, in families that have them.
    pub(crate) sub_norms: [&'static str; 2],
    /// Of what multiplies what attention gives, in families that have it. Where `q` has it, behind
    /// each head's queries, it is called so once it is apart.
    pub(crate) out_gate: &'static str,
    /// Of a norm behind it, in families that have one.
    pub(crate) attn_post_norm: &'static str,
    pub(crate) ffn_norm: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    /// Both in one, where there is no `gate`.
    pub(crate) gate_up: &'static str,
    pub(crate) down: &'static str,
    /// Of a norm behind it, in families that have one.
    pub(crate) ffn_post_norm: &'static str,
    pub(crate) experts: ExpertNames,
    pub(crate) latent: LatentNames,
    pub(crate) recurrent: RecurrentNames,
    pub(crate) beside: BesideNames,
}

impl Names {
    /// Weights and biases of the norm behind the embedding.
    pub(crate) fn embed_norm_tensors(&self) -> [String; 2] {
        ["weight", "bias"].map(|suffix| format!("{}.{suffix}", self.embed_norm))
    }
}

/// Names of what makes queries, keys and values of a few numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LatentNames {
    /// Those of queries, their norm, and what comes of them.
    pub(crate) q_few: &'static str,
    pub(crate) q_norm: &'static str,
    pub(crate) q: &'static str,
    /// Those of keys and values, and behind them what keys share.
    pub(crate) kv_few: &'static str,
    pub(crate) kv_norm: &'static str,
    pub(crate) kv: &'static str,
    /// Instead of `kv`: a matrix of keys for each head, turned, and one of values.
    pub(crate) k: &'static str,
    pub(crate) v: &'static str,
}

/// Names of the tensors of a layer that has experts, `{}` being an expert's number. A tensor that
/// has all of them is known by what its parts are called: its own name, and the number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExpertNames {
    pub(crate) router: &'static str,
    /// With its suffix.
    pub(crate) bias: &'static str,
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    /// Both in one.
    pub(crate) gate_up: &'static str,
    pub(crate) down: &'static str,
    /// Where there is no `down`.
    pub(crate) downs: &'static str,
    pub(crate) shared_gate: &'static str,
    pub(crate) shared_up: &'static str,
    /// Both in one, where there is no `shared_gate`.
    pub(crate) shared_gate_up: &'static str,
    pub(crate) shared_down: &'static str,
    /// Of one row, by which the shared part is multiplied.
    pub(crate) shared_by: &'static str,
}

impl ExpertNames {
    /// What tensors may be called that have a matrix for each expert.
    pub(crate) fn stacks(&self) -> impl Iterator<Item = &'static str> + use<> {
        let all = [self.gate, self.up, self.gate_up, self.down, self.downs];
        let stacks: BTreeSet<_> = all.iter().filter_map(|name| name.strip_suffix(".{}")).collect();
        stacks.into_iter()
    }
}

/// Hugging Face transformers.
pub(crate) const HF: Names = Names {
    embed: "model.embed_tokens",
    embed_norm: "",
    positions: "",
    final_norm: "model.norm",
    head: "lm_head",
    layer: "model.layers",
    attn_norm: "input_layernorm",
    q: "self_attn.q_proj",
    k: "self_attn.k_proj",
    v: "self_attn.v_proj",
    qkv: "self_attn.qkv_proj",
    q_norm: "self_attn.q_norm",
    k_norm: "self_attn.k_norm",
    sinks: "self_attn.sinks",
    out: "self_attn.o_proj",
    sub_norms: [""; 2],
    out_gate: "",
    attn_post_norm: "",
    ffn_norm: "post_attention_layernorm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    gate_up: "mlp.gate_up_proj",
    down: "mlp.down_proj",
    ffn_post_norm: "",
    experts: HF_EXPERTS,
    latent: LatentNames {
        q_few: "self_attn.q_a_proj",
        q_norm: "self_attn.q_a_layernorm",
        q: "self_attn.q_b_proj",
        kv_few: "self_attn.kv_a_proj_with_mqa",
        kv_norm: "self_attn.kv_a_layernorm",
        kv: "self_attn.kv_b_proj",
        k: "",
        v: "",
    },
    recurrent: RecurrentNames::NONE,
    beside: BesideNames::NONE,
};

const HF_EXPERTS: ExpertNames = ExpertNames {
    router: "mlp.gate",
    bias: "mlp.gate.e_score_correction_bias",
    gate: "mlp.experts.{}.gate_proj",
    up: "mlp.experts.{}.up_proj",
    gate_up: "mlp.experts.gate_up_proj.{}",
    down: "mlp.experts.{}.down_proj",
    downs: "mlp.experts.down_proj.{}",
    shared_gate: "mlp.shared_expert.gate_proj",
    shared_up: "mlp.shared_expert.up_proj",
    shared_gate_up: "",
    shared_down: "mlp.shared_expert.down_proj",
    shared_by: "mlp.shared_expert_gate",
};

/// The same in Mixtral.
pub(crate) const HF_MIXTRAL: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.gate",
        gate: "block_sparse_moe.experts.{}.w1",
        up: "block_sparse_moe.experts.{}.w3",
        down: "block_sparse_moe.experts.{}.w2",
        ..HF_EXPERTS
    },
    ..HF
};

/// The same in Granite with experts.
pub(crate) const HF_GRANITE_MOE: Names = Names {
    experts: ExpertNames {
        router: "block_sparse_moe.router.layer",
        gate_up: "block_sparse_moe.input_linear.{}",
        downs: "block_sparse_moe.output_linear.{}",
        ..HF_EXPERTS
    },
    ..HF
};

/// The same in GLM 4.5.
pub(crate) const HF_GLM4_MOE: Names = Names {
    experts: ExpertNames {
        shared_gate: "mlp.shared_experts.gate_proj",
        shared_up: "mlp.shared_experts.up_proj",
        shared_down: "mlp.shared_experts.down_proj",
        ..HF_EXPERTS
    },
    ..HF
};

/// The same in EXAONE with experts.
pub(crate) const HF_EXAONE_MOE: Names = Names {
    experts: ExpertNames { bias: "mlp.e_score_correction_bias", ..HF_GLM4_MOE.experts },
    ..HF
};

/// The same in ERNIE 4.5 with experts.
pub(crate) const HF_ERNIE45_MOE: Names = Names {
    experts: ExpertNames { bias: "mlp.moe_statics.e_score_correction_bias", ..HF_GLM4_MOE.experts },
    ..HF
};

/// The same in MiniMax M2.
pub(crate) const HF_MINIMAX_M2: Names = Names {
    experts: ExpertNames { bias: "block_sparse_moe.e_score_correction_bias", ..HF_MIXTRAL.experts },
    ..HF
};

/// The same in gpt-oss, once its experts are apart.
pub(crate) const HF_GPT_OSS: Names =
    Names { experts: ExpertNames { router: "mlp.router", ..HF_EXPERTS }, ..HF };

/// The same in Hunyuan, with experts or without.
pub(crate) const HF_HUNYUAN: Names = Names {
    q_norm: "self_attn.query_layernorm",
    k_norm: "self_attn.key_layernorm",
    experts: ExpertNames {
        router: "mlp.gate.wg",
        shared_gate: "mlp.shared_mlp.gate_proj",
        shared_up: "mlp.shared_mlp.up_proj",
        shared_down: "mlp.shared_mlp.down_proj",
        ..HF_EXPERTS
    },
    ..HF
};

/// The same in GLM 4.
pub(crate) const HF_GLM4: Names =
    Names { attn_post_norm: "post_self_attn_layernorm", ffn_post_norm: "post_mlp_layernorm", ..HF };

/// The same in OLMo 2 and EXAONE 4.
pub(crate) const HF_OLMO2: Names = Names {
    attn_post_norm: "post_attention_layernorm",
    ffn_post_norm: "post_feedforward_layernorm",
    ..HF
};

/// The same in BitNet.
pub(crate) const HF_BITNET: Names =
    Names { sub_norms: ["self_attn.attn_sub_norm", "mlp.ffn_sub_norm"], ..HF };

/// The same in Stable LM.
pub(crate) const HF_STABLELM: Names =
    Names { q_norm: "self_attn.q_layernorm", k_norm: "self_attn.k_layernorm", ..HF };

/// The same in StarCoder 2.
pub(crate) const HF_STARCODER2: Names = Names { up: "mlp.c_fc", down: "mlp.c_proj", ..HF };

/// The same in GPT-NeoX.
pub(crate) const HF_GPT_NEOX: Names = Names {
    embed: "gpt_neox.embed_in",
    final_norm: "gpt_neox.final_layer_norm",
    layer: "gpt_neox.layers",
    qkv: "attention.query_key_value",
    out: "attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..HF
};

/// The same in Falcon, where both parts have one norm.
pub(crate) const HF_FALCON: Names = Names {
    embed: "transformer.word_embeddings",
    final_norm: "transformer.ln_f",
    layer: "transformer.h",
    qkv: "self_attention.query_key_value",
    out: "self_attention.dense",
    up: "mlp.dense_h_to_4h",
    down: "mlp.dense_4h_to_h",
    ..HF
};

/// The same where each has its own.
pub(crate) const HF_FALCON_TWO: Names =
    Names { attn_norm: "ln_attn", ffn_norm: FALCON_FFN_NORM, ..HF_FALCON };

/// By which these are told.
pub(crate) const FALCON_FFN_NORM: &str = "ln_mlp";

/// The same in Phi 1 and 2.
pub(crate) const HF_PHI: Names = Names {
    final_norm: "model.final_layernorm",
    out: "self_attn.dense",
    up: "mlp.fc1",
    down: "mlp.fc2",
    ..HF
};

/// The same in Apertus.
pub(crate) const HF_APERTUS: Names =
    Names { attn_norm: "attention_layernorm", ffn_norm: "feedforward_layernorm", ..HF };

/// The same in Gemma 2 and 3.
pub(crate) const HF_GEMMA3: Names = Names { ffn_norm: "pre_feedforward_layernorm", ..HF_OLMO2 };

/// llama.cpp.
pub(crate) const GGUF: Names = Names {
    embed: "token_embd",
    embed_norm: "token_embd_norm",
    positions: "position_embd",
    final_norm: "output_norm",
    head: "output",
    layer: "blk",
    attn_norm: "attn_norm",
    q: "attn_q",
    k: "attn_k",
    v: "attn_v",
    qkv: "attn_qkv",
    q_norm: "attn_q_norm",
    k_norm: "attn_k_norm",
    sinks: "attn_sinks.weight",
    out: "attn_output",
    sub_norms: [""; 2],
    out_gate: "",
    attn_post_norm: "post_attention_norm",
    ffn_norm: "ffn_norm",
    gate: "ffn_gate",
    up: "ffn_up",
    gate_up: "ffn_up",
    down: "ffn_down",
    ffn_post_norm: "post_ffw_norm",
    experts: ExpertNames {
        router: "ffn_gate_inp",
        bias: "exp_probs_b.bias",
        gate: "ffn_gate_exps.{}",
        up: "ffn_up_exps.{}",
        gate_up: "ffn_gate_up_exps.{}",
        down: "ffn_down_exps.{}",
        downs: "ffn_down_exps.{}",
        shared_gate: "ffn_gate_shexp",
        shared_up: "ffn_up_shexp",
        shared_gate_up: "",
        shared_down: "ffn_down_shexp",
        shared_by: "ffn_gate_inp_shexp",
    },
    latent: LatentNames {
        q_few: "attn_q_a",
        q_norm: "attn_q_a_norm",
        q: "attn_q_b",
        kv_few: "attn_kv_a_mqa",
        kv_norm: "attn_kv_a_norm",
        kv: "attn_kv_b",
        k: "attn_k_b",
        v: "attn_v_b",
    },
    recurrent: RecurrentNames::NONE,
    beside: BesideNames::NONE,
};

/// llama.cpp, where Falcon's parts have a norm each: the first is the feed-forward part's.
pub(crate) const GGUF_FALCON_TWO: Names =
    Names { attn_norm: "attn_norm_2", ffn_norm: "attn_norm", ..GGUF };

/// llama.cpp, where the norm before the feed-forward part is called after what it stands behind.
pub(crate) const GGUF_POST_NORM: Names = Names { ffn_norm: "post_attention_norm", ..GGUF };
