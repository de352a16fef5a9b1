//! Fields of families that have names of their own for what others have too.

use aqueduct_core::limits;
use serde_json::{Map, Value, json};

use super::families::Tabled;
use super::{alibi, dbrx, falcon_h1, mamba2, nemotron_h, phimoe};
use crate::load::decoder::Family;

pub(super) const FALCON: &str = "FalconForCausalLM";
pub(super) const GPTJ: &str = "GPTJForCausalLM";
pub(super) const CODEGEN: &str = "CodeGenForCausalLM";
pub(super) const INTERNLM3: &str = "InternLM3ForCausalLM";
pub(super) const IQUEST_CODER: &str = "IQuestCoderForCausalLM";
pub(super) const LFM2: &str = "Lfm2ForCausalLM";
pub(super) const LFM2_MOE: &str = "Lfm2MoeForCausalLM";

const GPT2: &str = "GPT2LMHeadModel";
const GPT_BIGCODE: &str = "GPTBigCodeForCausalLM";
const GPT_NEO: &str = "GPTNeoForCausalLM";
const OPT: &str = "OPTForCausalLM";
const EXAONE: &str = "ExaoneForCausalLM";
const INTERNLM2: &str = "InternLM2ForCausalLM";
const MINICPM: &str = "MiniCPMForCausalLM";

/// Those whose positions are trained, and those whose files bring their own code, as transformers
/// has none for them.
pub(super) const FAMILIES: [Tabled; 12] = [
    ("gpt2", GPT2, Family::Gpt2),
    ("gpt-sw3", GPT2, Family::Gpt2),
    ("gpt_bigcode", GPT_BIGCODE, Family::GptBigCode),
    ("codegen", CODEGEN, Family::GptJ),
    ("gpt_neo", GPT_NEO, Family::GptNeo),
    ("opt", OPT, Family::Opt),
    ("exaone", EXAONE, Family::Exaone),
    ("internlm2", INTERNLM2, Family::InternLm2),
    ("minicpm", MINICPM, Family::MiniCpm),
    ("bitnet", "BitNetForCausalLM", Family::BitNet),
    ("dbrx", dbrx::DBRX, Family::Dbrx),
    ("phimoe", phimoe::PHIMOE, Family::Phimoe),
];

const TIED: &str = "tie_word_embeddings";

/// Gives the fields of `architecture` the names that others have.
///
/// # Errors
/// A variant that is served by none of them.
pub(super) fn rename(fields: &mut Map<String, Value>, architecture: &str) -> Result<(), String> {
    match architecture {
        FALCON => falcon(fields),
        GPTJ | CODEGEN => {
            gptj(fields);
            Ok(())
        }
        GPT2 | GPT_BIGCODE => gpt2(fields, architecture == GPT_BIGCODE),
        GPT_NEO => gpt_neo(fields),
        OPT => opt(fields),
        alibi::BLOOM => alibi::bloom(fields),
        alibi::MPT | alibi::FIRST_MPT => alibi::mpt(fields),
        nemotron_h::NEMOTRON_H => nemotron_h::rename(fields),
        mamba2::MAMBA2 => mamba2::rename(fields),
        falcon_h1::FALCON_H1 => falcon_h1::rename(fields),
        dbrx::DBRX => dbrx::rename(fields),
        phimoe::PHIMOE => {
            phimoe::rename(fields);
            Ok(())
        }
        INTERNLM3 => internlm3(fields),
        IQUEST_CODER => iquest_coder(fields),
        LFM2 => {
            // These count where both are there.
            move_to(fields, [("tie_embedding", TIED), ("block_ff_dim", "intermediate_size")]);
            Ok(())
        }
        LFM2_MOE => {
            move_to(fields, [("tie_embedding", TIED)]);
            Ok(())
        }
        EXAONE => {
            exaone(fields);
            Ok(())
        }
        INTERNLM2 => {
            move_to(fields, [("bias", "attention_bias")]);
            Ok(())
        }
        MINICPM => minicpm(fields),
        _ => Ok(()),
    }
}

/// EXAONE 3 and 3.5: Llama with other names.
fn exaone(fields: &mut Map<String, Value>) {
    let others = [
        ("num_layers", "num_hidden_layers"),
        ("activation_function", "hidden_act"),
        ("layer_norm_epsilon", "rms_norm_eps"),
    ];
    move_to(fields, others);
    if let (None, Some(width)) = (
        fields.get("intermediate_size").filter(|size| !size.is_null()),
        fields.get("hidden_size").and_then(Value::as_u64),
    ) {
        put(fields, json!({ "intermediate_size": width.checked_mul(4) }));
    }
}

/// MiniCPM 1, 2 and 4, which is Llama with scales.
fn minicpm(fields: &mut Map<String, Value>) -> Result<(), String> {
    if let Some(sparse) = fields.get("sparse_config").filter(|sparse| !sparse.is_null()) {
        return Err(format!("sparse_config = {sparse}: must be null"));
    }
    match fields.get("num_experts").and_then(Value::as_u64) {
        None | Some(0) => Ok(()),
        Some(experts) => Err(format!("num_experts = {experts}: must be 0")),
    }
}

/// Llama, which has one switch for the biases of queries, keys and values and of what follows.
fn internlm3(fields: &mut Map<String, Value>) -> Result<(), String> {
    let says = |name: &str| fields.get(name).and_then(Value::as_bool).unwrap_or(false);
    if says("qkv_bias") != says("bias") {
        return Err(format!("qkv_bias = {}: must be what bias is", says("qkv_bias")));
    }
    move_to(fields, [("qkv_bias", "attention_bias"), ("bias", "mlp_bias")]);
    let unsaid = json!({
        "vocab_size": 128_512, "hidden_size": 4096, "intermediate_size": 10_240,
        "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 2,
        "head_dim": 128, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5,
    });
    fill(fields, unsaid);
    Ok(())
}

/// Llama as well.
fn iquest_coder(fields: &mut Map<String, Value>) -> Result<(), String> {
    if let Some(most) = fields.get("clip_qkv").filter(|most| !most.is_null()) {
        return Err(format!("clip_qkv = {most}: must be null"));
    }
    must_be(fields, [("use_sliding_window", false)])?;
    let unsaid = json!({
        "vocab_size": 76_800, "hidden_size": 5120, "intermediate_size": 27_648,
        "num_hidden_layers": 80, "num_attention_heads": 40, "num_key_value_heads": 8,
        "head_dim": 128, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5,
    });
    fill(fields, unsaid);
    Ok(())
}

fn falcon(fields: &mut Map<String, Value>) -> Result<(), String> {
    move_to(fields, [("activation", "hidden_act"), ("layer_norm_epsilon", "layer_norm_eps")]);
    let unsaid = json!({
        "vocab_size": 65_024, "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "max_position_embeddings": 2048,
    });
    fill(fields, unsaid);
    let says = |name: &str, unsaid| fields.get(name).and_then(Value::as_bool).unwrap_or(unsaid);
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let heads = number("num_attention_heads");
    let is_new = says("new_decoder_architecture", false);
    let kv_heads = match is_new {
        true => number("num_kv_heads").or(heads),
        false if says("multi_query", true) => Some(1),
        false => heads,
    };
    let ffn = number("ffn_hidden_size").or_else(|| number("hidden_size")?.checked_mul(4));
    let made = json!({
        "num_key_value_heads": kv_heads,
        "intermediate_size": ffn,
        "use_parallel_residual": is_new || says("parallel_attn", true),
        "use_bias": says("bias", false),
    });
    put(fields, made);
    Ok(())
}

/// What GPT-2 and those that came of it call otherwise.
const GPT_NAMES: [(&str, &str); 6] = [
    ("n_embd", "hidden_size"),
    ("n_head", "num_attention_heads"),
    ("n_layer", "num_hidden_layers"),
    ("n_positions", "max_position_embeddings"),
    ("activation_function", "hidden_act"),
    ("layer_norm_epsilon", "layer_norm_eps"),
];

/// GPT-2, or StarCoder's first, which may have one KV head.
fn gpt2(fields: &mut Map<String, Value>, may_share: bool) -> Result<(), String> {
    move_to(fields, GPT_NAMES);
    let served = [
        ("scale_attn_weights", true),
        ("scale_attn_by_inverse_layer_idx", false),
        ("add_cross_attention", false),
    ];
    must_be(fields, served)?;
    let shares = may_share && fields.get("multi_query") != Some(&Value::Bool(false));
    let unsaid = json!({
        "vocab_size": 50_257, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 1024,
    });
    fill(fields, unsaid);
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let ffn = number("n_inner").or_else(|| number("hidden_size")?.checked_mul(4));
    let kv_heads = if shares { Some(1) } else { number("num_attention_heads") };
    put(fields, json!({ "num_key_value_heads": kv_heads, "intermediate_size": ffn }));
    Ok(())
}

/// GPT-Neo, whose layers are named in runs: names of some that follow each other, and how many
/// times these come.
fn gpt_neo(fields: &mut Map<String, Value>) -> Result<(), String> {
    let others = [
        ("num_heads", "num_attention_heads"),
        ("num_layers", "num_hidden_layers"),
        ("window_size", "sliding_window"),
        ("activation_function", "hidden_act"),
        ("layer_norm_epsilon", "layer_norm_eps"),
    ];
    move_to(fields, others);
    let unsaid = json!({
        "vocab_size": 50_257, "hidden_size": 2048, "num_hidden_layers": 24,
        "num_attention_heads": 16, "max_position_embeddings": 2048,
    });
    fill(fields, unsaid);
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let ffn = number("intermediate_size").or_else(|| number("hidden_size")?.checked_mul(4));
    let given = fields.get("attention_types").filter(|given| !given.is_null());
    let runs = given.cloned().unwrap_or_else(|| json!([[["global", "local"], 12]]));
    let heads = fields.get("num_attention_heads").cloned();
    let layers = gpt_neo_layers(&runs)
        .ok_or_else(|| format!("attention_types = {runs}: must be runs of global and local"))?;
    let made = json!({
        "num_key_value_heads": heads, "intermediate_size": ffn, "layer_types": layers,
    });
    put(fields, made);
    Ok(())
}

/// `None`: runs of something else, or of more layers than any model has.
fn gpt_neo_layers(runs: &Value) -> Option<Vec<&'static str>> {
    let mut layers = Vec::new();
    for run in runs.as_array()? {
        let (names, times) = (run[0].as_array()?, usize::try_from(run[1].as_u64()?).ok()?);
        let names = names.iter().map(|name| match name.as_str()? {
            "global" => Some("full_attention"),
            "local" => Some("sliding_attention"),
            _ => None,
        });
        let names = names.collect::<Option<Vec<_>>>()?;
        let count = names.len().checked_mul(times)?.checked_add(layers.len())?;
        if count > limits::LAYERS_MAX as usize {
            return None;
        }
        layers.extend(names.iter().cycle().take(names.len() * times));
    }
    Some(layers)
}

fn opt(fields: &mut Map<String, Value>) -> Result<(), String> {
    move_to(fields, [("activation_function", "hidden_act"), ("ffn_dim", "intermediate_size")]);
    move_to(fields, [("enable_bias", "attention_bias")]);
    let unsaid = json!({
        "vocab_size": 50_272, "hidden_size": 768, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 2048, "intermediate_size": 3072,
    });
    fill(fields, unsaid);
    let served = [
        ("do_layer_norm_before", true),
        ("layer_norm_elementwise_affine", true),
        ("_remove_final_layer_norm", false),
    ];
    must_be(fields, served)?;
    let heads = fields.get("num_attention_heads").cloned();
    put(fields, json!({ "num_key_value_heads": heads }));
    let [width, embedded] = ["hidden_size", "word_embed_proj_dim"].map(|name| fields.get(name));
    match embedded.filter(|embedded| !embedded.is_null() && Some(*embedded) != width) {
        Some(other) => Err(format!("word_embed_proj_dim = {other}: must be what hidden_size is")),
        None => Ok(()),
    }
}

fn gptj(fields: &mut Map<String, Value>) {
    move_to(fields, GPT_NAMES);
    let unsaid = json!({
        "vocab_size": 50_400, "hidden_size": 4096, "num_hidden_layers": 28,
        "num_attention_heads": 16, "max_position_embeddings": 2048, "rotary_dim": 64,
    });
    fill(fields, unsaid);
    let number = |name: &str| fields.get(name).and_then(Value::as_u64);
    let ffn = number("n_inner").or_else(|| number("hidden_size")?.checked_mul(4));
    let heads = number("num_attention_heads");
    let made = json!({ "num_key_value_heads": heads, "intermediate_size": ffn });
    put(fields, made);
}

/// Refuses switches that are there and are not as they are served.
pub(super) fn must_be<const N: usize>(
    fields: &Map<String, Value>,
    served: [(&str, bool); N],
) -> Result<(), String> {
    let is_other = |(field, want): &(&str, bool)| {
        fields.get(*field).and_then(Value::as_bool).is_some_and(|given| given != *want)
    };
    match served.into_iter().find(is_other) {
        Some((field, want)) => Err(format!("{field} = {}: must be {want}", !want)),
        None => Ok(()),
    }
}

/// Gives fields the names that stand beside theirs.
pub(super) fn move_to<const N: usize>(fields: &mut Map<String, Value>, names: [(&str, &str); N]) {
    for (own, name) in names {
        if let Some(value) = fields.remove(own) {
            fields.insert(name.to_owned(), value);
        }
    }
}

/// Adds fields that are not there.
pub(super) fn fill(fields: &mut Map<String, Value>, more: Value) {
    for (name, value) in more.as_object().into_iter().flatten() {
        fields.entry(name.clone()).or_insert_with(|| value.clone());
    }
}

/// Adds fields, whatever is there.
pub(super) fn put(fields: &mut Map<String, Value>, more: Value) {
    for (name, value) in more.as_object().into_iter().flatten() {
        fields.insert(name.clone(), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(architecture: &str, config: Value, want: Value) {
        let Value::Object(mut fields) = config.clone() else { unreachable!() };
        rename(&mut fields, architecture).unwrap();
        for (name, want) in want.as_object().unwrap() {
            assert_eq!(fields.get(name), Some(want), "{architecture}, {name} of {config}");
        }
    }

    #[test]
    fn falcon_says_how_it_is_built() {
        let small = json!({
            "num_key_value_heads": 1, "intermediate_size": 18_176, "use_parallel_residual": true,
            "use_bias": false, "num_attention_heads": 71, "max_position_embeddings": 2048,
        });
        check(FALCON, json!({}), small);
        let large = json!({
            "new_decoder_architecture": true, "num_kv_heads": 8, "num_attention_heads": 128,
            "parallel_attn": false, "activation": "gelu", "layer_norm_epsilon": 1e-6,
        });
        let want = json!({
            "num_key_value_heads": 8, "use_parallel_residual": true, "hidden_act": "gelu",
            "layer_norm_eps": 1e-6,
        });
        check(FALCON, large, want);
        let plain = json!({
            "multi_query": false, "parallel_attn": false, "bias": true, "ffn_hidden_size": 96,
        });
        let want = json!({
            "num_key_value_heads": 71, "use_parallel_residual": false, "use_bias": true,
            "intermediate_size": 96,
        });
        check(FALCON, plain, want);
        check(FALCON, json!({ "alibi": true }), json!({ "alibi": true }));
    }

    #[test]
    fn others_are_llama_with_other_defaults() {
        let own = json!({ "qkv_bias": true, "bias": true, "num_key_value_heads": 4 });
        let want = json!({
            "attention_bias": true, "mlp_bias": true, "num_key_value_heads": 4, "head_dim": 128,
        });
        check(INTERNLM3, own, want);
        check(INTERNLM3, json!({}), json!({ "num_key_value_heads": 2, "rms_norm_eps": 1e-5 }));
        check(IQUEST_CODER, json!({}), json!({ "num_key_value_heads": 8, "head_dim": 128 }));
        let refused = |architecture, config: Value| {
            let Value::Object(mut fields) = config else { unreachable!() };
            rename(&mut fields, architecture).unwrap_err()
        };
        let one = refused(INTERNLM3, json!({ "qkv_bias": true }));
        assert_eq!(one, "qkv_bias = true: must be what bias is");
        let clipped = refused(IQUEST_CODER, json!({ "clip_qkv": 8.0 }));
        assert_eq!(clipped, "clip_qkv = 8.0: must be null");
        let window = refused(IQUEST_CODER, json!({ "use_sliding_window": true }));
        assert_eq!(window, "use_sliding_window = true: must be false");
    }

    #[test]
    fn those_with_code_of_their_own_are_llama_too() {
        let own = json!({
            "num_layers": 3, "activation_function": "silu", "layer_norm_epsilon": 1e-5,
            "hidden_size": 64,
        });
        let want = json!({
            "num_hidden_layers": 3, "hidden_act": "silu", "rms_norm_eps": 1e-5,
            "intermediate_size": 256,
        });
        check(EXAONE, own, want);
        let said = json!({ "hidden_size": 64, "intermediate_size": 96 });
        check(EXAONE, said, json!({ "intermediate_size": 96 }));
        check(INTERNLM2, json!({ "bias": true }), json!({ "attention_bias": true }));
        let dense = json!({ "sparse_config": null, "num_experts": 0, "scale_emb": 12 });
        check(MINICPM, dense, json!({ "scale_emb": 12 }));
        let refused = |config: Value| {
            let Value::Object(mut fields) = config else { unreachable!() };
            rename(&mut fields, MINICPM).unwrap_err()
        };
        assert_eq!(refused(json!({ "num_experts": 8 })), "num_experts = 8: must be 0");
        assert_eq!(refused(json!({ "sparse_config": {} })), "sparse_config = {}: must be null");
    }

    #[test]
    fn trained_positions_have_names_of_their_own() {
        let own = json!({ "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": null });
        let want = json!({
            "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 256, "max_position_embeddings": 1024, "num_key_value_heads": 4,
        });
        check(GPT2, own.clone(), want);
        check(GPT_BIGCODE, own.clone(), json!({ "num_key_value_heads": 1 }));
        let many = json!({ "multi_query": false, "n_head": 4 });
        check(GPT_BIGCODE, many, json!({ "num_key_value_heads": 4 }));
        let own = json!({
            "num_layers": 3, "num_heads": 4, "hidden_size": 64, "window_size": 9,
            "attention_types": [[["global", "local"], 1], [["local"], 1]],
        });
        let want = json!({
            "num_hidden_layers": 3, "num_key_value_heads": 4, "intermediate_size": 256,
            "sliding_window": 9,
            "layer_types": ["full_attention", "sliding_attention", "sliding_attention"],
        });
        check(GPT_NEO, own, want);
        let own = json!({ "ffn_dim": 96, "activation_function": "relu", "enable_bias": false });
        let want = json!({
            "intermediate_size": 96, "hidden_act": "relu", "attention_bias": false,
            "max_position_embeddings": 2048,
        });
        check(OPT, own, want);
        let refused = |architecture, config: Value| {
            let Value::Object(mut fields) = config else { unreachable!() };
            rename(&mut fields, architecture).unwrap_err()
        };
        let scaled = refused(GPT2, json!({ "scale_attn_by_inverse_layer_idx": true }));
        assert_eq!(scaled, "scale_attn_by_inverse_layer_idx = true: must be false");
        for runs in [json!([[["far"], 2]]), json!([[["global"], 513]]), json!(["global"]), json!(3)]
        {
            let refused = refused(GPT_NEO, json!({ "attention_types": runs }));
            assert!(refused.starts_with("attention_types = "), "{refused}");
        }
        let behind = refused(OPT, json!({ "do_layer_norm_before": false }));
        assert_eq!(behind, "do_layer_norm_before = false: must be true");
        let narrow = refused(OPT, json!({ "hidden_size": 64, "word_embed_proj_dim": 32 }));
        assert_eq!(narrow, "word_embed_proj_dim = 32: must be what hidden_size is");
    }

    #[test]
    fn lfm2_has_older_names_too() {
        let own = json!({ "block_ff_dim": 96, "intermediate_size": 7, "tie_embedding": false });
        let want = json!({ "intermediate_size": 96, "tie_word_embeddings": false });
        check(LFM2, own.clone(), want);
        check(LFM2_MOE, own, json!({ "intermediate_size": 7, "tie_word_embeddings": false }));
    }

    #[test]
    fn gptj_has_other_names() {
        let own = json!({
            "n_embd": 64, "n_head": 4, "n_layer": 2, "n_inner": null, "n_positions": 128,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-6, "rotary_dim": 8,
        });
        let want = json!({
            "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 256, "max_position_embeddings": 128, "hidden_act": "gelu_new",
            "layer_norm_eps": 1e-6, "rotary_dim": 8, "num_key_value_heads": 4,
        });
        check(GPTJ, own, want);
        check(GPTJ, json!({ "n_inner": 96 }), json!({ "intermediate_size": 96, "rotary_dim": 64 }));
    }
}
