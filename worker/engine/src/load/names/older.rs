//! Names in families that have none of Llama's.

use super::{ExpertNames, HF, HF_EXPERTS, HF_FALCON, Names};

/// The same in GPT-J.
pub(crate) const HF_GPTJ: Names = Names {
    embed: "transformer.wte",
    final_norm: "transformer.ln_f",
    layer: "transformer.h",
    attn_norm: "ln_1",
    q: "attn.q_proj",
    k: "attn.k_proj",
    v: "attn.v_proj",
    out: "attn.out_proj",
    up: "mlp.fc_in",
    down: "mlp.fc_out",
    ..HF
};

/// The same in GPT-2 and StarCoder 1.
pub(crate) const HF_GPT2: Names = Names {
    positions: "transformer.wpe",
    qkv: "attn.c_attn",
    out: "attn.c_proj",
    ffn_norm: "ln_2",
    up: "mlp.c_fc",
    down: "mlp.c_proj",
    ..HF_GPTJ
};

/// The same in GPT-Neo.
pub(crate) const HF_GPT_NEO: Names = Names {
    q: "attn.attention.q_proj",
    k: "attn.attention.k_proj",
    v: "attn.attention.v_proj",
    out: "attn.attention.out_proj",
    ..HF_GPT2
};

/// The same in OPT.
pub(crate) const HF_OPT: Names = Names {
    embed: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    final_norm: "model.decoder.final_layer_norm",
    layer: "model.decoder.layers",
    attn_norm: "self_attn_layer_norm",
    out: "self_attn.out_proj",
    ffn_norm: "final_layer_norm",
    up: "fc1",
    down: "fc2",
    ..HF
};

/// The same in Bloom.
pub(crate) const HF_BLOOM: Names =
    Names { embed_norm: "transformer.word_embeddings_layernorm", ..HF_FALCON };

/// The same in MPT.
pub(crate) const HF_MPT: Names = Names {
    embed: "transformer.wte",
    final_norm: "transformer.norm_f",
    layer: "transformer.blocks",
    attn_norm: "norm_1",
    qkv: "attn.Wqkv",
    out: "attn.out_proj",
    ffn_norm: "norm_2",
    up: "ffn.up_proj",
    down: "ffn.down_proj",
    ..HF
};

/// The same in EXAONE 3.
pub(crate) const HF_EXAONE: Names = Names { gate: "mlp.c_fc_0", up: "mlp.c_fc_1", ..HF_GPT_NEO };

/// The same in InternLM 2.
pub(crate) const HF_INTERNLM2: Names = Names {
    embed: "model.tok_embeddings",
    head: "output",
    attn_norm: "attention_norm",
    qkv: "attention.wqkv",
    out: "attention.wo",
    ffn_norm: "ffn_norm",
    gate: "feed_forward.w1",
    up: "feed_forward.w3",
    down: "feed_forward.w2",
    ..HF
};

/// The same in DBRX, once its experts have a dimension of their own.
pub(crate) const HF_DBRX: Names = Names {
    embed: "transformer.wte",
    final_norm: "transformer.norm_f",
    layer: "transformer.blocks",
    attn_norm: "norm_attn_norm.norm_1",
    qkv: "norm_attn_norm.attn.Wqkv",
    out: "norm_attn_norm.attn.out_proj",
    ffn_norm: "norm_attn_norm.norm_2",
    experts: ExpertNames {
        router: "ffn.router.layer",
        gate: "ffn.experts.mlp.w1.{}",
        up: "ffn.experts.mlp.v1.{}",
        gate_up: "",
        down: "ffn.experts.mlp.w2.{}",
        ..HF_EXPERTS
    },
    ..HF
};
