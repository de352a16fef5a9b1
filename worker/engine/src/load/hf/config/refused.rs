//! What would load and give wrong answers.

use aqueduct_core::Refusal;
use aqueduct_kernels::Activation;

use super::Config;
use crate::load::decoder::Family;

impl Config {
    /// All of it.
    pub(super) fn refuse(&self, family: Family) -> Result<(), Refusal> {
        self.refuse_hybrids(family)?;
        self.refuse_nemotron_h(family)?;
        self.refuse_falcon_h1(family)?;
        self.refuse_phimoe(family)?;
        self.refuse_newer(family)?;
        self.refuse_cohere2_moe(family)?;
        self.refuse_variants(family)
    }

    /// Variants of families that are served otherwise.
    pub(super) fn refuse_variants(&self, family: Family) -> Result<(), Refusal> {
        if self.is_causal == Some(false) {
            return Err(Refusal::new("is_causal", false, "true"));
        }
        match self.clip_qkv {
            Some(most) if !family.clips() => {
                return Err(Refusal::new("clip_qkv", most, "null"));
            }
            Some(most) if !(most > 0.0 && most.is_finite()) => {
                return Err(Refusal::new("clip_qkv", most, "above 0"));
            }
            _ => {}
        }
        if family == Family::Phi && self.qk_layernorm {
            return Err(Refusal::new("qk_layernorm", true, "false"));
        }
        if family == Family::Apertus && self.rope.says_nothing() {
            // Its class and its models have another scaling each.
            return Err(Refusal::new("rope_parameters", "absent", "there"));
        }
        self.refuse_routing(family)?;
        if family == Family::Ernie45Moe && self.use_bias == Some(true) {
            return Err(Refusal::new("use_bias", true, "false, where there are experts"));
        }
        if family == Family::GptOss {
            let [alpha, limit] = Activation::CLAMPED;
            for (field, given, want) in [
                ("swiglu_alpha", self.swiglu_alpha, alpha),
                ("swiglu_limit", self.swiglu_limit, limit),
            ] {
                Refusal::unless_within(field, given.unwrap_or(want), want, want)?;
            }
        }
        if !matches!(family, Family::Gemma | Family::Gemma2 | Family::Gemma3 | Family::Gemma4) {
            return Ok(());
        }
        for (field, cap) in [
            ("attn_logit_softcapping", self.attn_logit_softcapping.flatten()),
            ("final_logit_softcapping", self.final_logit_softcapping.flatten()),
        ] {
            if let (Family::Gemma, Some(cap)) = (family, cap) {
                return Err(Refusal::new(field, cap, "null"));
            }
        }
        match self.use_bidirectional_attention {
            Some(true) => Err(Refusal::new("use_bidirectional_attention", true, "false")),
            _ => Ok(()),
        }
    }
}
