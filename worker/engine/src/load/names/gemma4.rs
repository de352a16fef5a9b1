//! Gemma 4's tensors.

use super::{ExpertNames, GGUF, HF_EXPERTS, HF_GEMMA3, Names};

/// Names of what layers of Gemma 4 have besides.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BesideNames {
    /// Of the norm behind the dense part.
    pub(crate) dense_post_norm: &'static str,
    /// Of the norms before and behind experts.
    pub(crate) experts_norm: &'static str,
    pub(crate) experts_post_norm: &'static str,
    /// With its suffix: what multiplies the normed stream before the router.
    pub(crate) router_scale: &'static str,
    /// With its suffix: of each expert.
    pub(crate) factors: &'static str,
    /// With its suffix: what multiplies the stream.
    pub(crate) scale: &'static str,
    pub(crate) inputs: InputNames,
}

/// Names of what inputs of layers are made of, and of what layers make of these.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InputNames {
    pub(crate) table: &'static str,
    pub(crate) projection: &'static str,
    pub(crate) norm: &'static str,
    /// Of a layer.
    pub(crate) gate: &'static str,
    pub(crate) up: &'static str,
    pub(crate) post_norm: &'static str,
}

impl InputNames {
    const NONE: Self =
        Self { table: "", projection: "", norm: "", gate: "", up: "", post_norm: "" };
}

impl BesideNames {
    pub(super) const NONE: Self = Self {
        dense_post_norm: "",
        experts_norm: "",
        experts_post_norm: "",
        router_scale: "",
        factors: "",
        scale: "",
        inputs: InputNames::NONE,
    };
}

/// transformers' names of it.
pub(crate) const HF_GEMMA4: Names = Names {
    experts: ExpertNames {
        router: "router.proj",
        gate: "experts.{}.gate_proj",
        up: "experts.{}.up_proj",
        down: "experts.{}.down_proj",
        gate_up: "experts.gate_up_proj.{}",
        downs: "experts.down_proj.{}",
        ..HF_EXPERTS
    },
    beside: BesideNames {
        dense_post_norm: "post_feedforward_layernorm_1",
        experts_norm: "pre_feedforward_layernorm_2",
        experts_post_norm: "post_feedforward_layernorm_2",
        router_scale: "router.scale",
        factors: "router.per_expert_scale",
        scale: "layer_scalar",
        inputs: InputNames {
            table: "model.embed_tokens_per_layer",
            projection: "model.per_layer_model_projection",
            norm: "model.per_layer_projection_norm",
            gate: "per_layer_input_gate",
            up: "per_layer_projection",
            post_norm: "post_per_layer_input_norm",
        },
    },
    ..HF_GEMMA3
};

/// llama.cpp's.
pub(crate) const GGUF_GEMMA4: Names = Names {
    beside: BesideNames {
        dense_post_norm: "post_ffw_norm_1",
        experts_norm: "pre_ffw_norm_2",
        experts_post_norm: "post_ffw_norm_2",
        router_scale: "ffn_gate_inp.scale",
        factors: "ffn_down_exps.scale",
        scale: "layer_output_scale.weight",
        inputs: InputNames {
            table: "per_layer_token_embd",
            projection: "per_layer_model_proj",
            norm: "per_layer_proj_norm",
            gate: "inp_gate",
            up: "proj",
            post_norm: "post_norm",
        },
    },
    ..GGUF
};
