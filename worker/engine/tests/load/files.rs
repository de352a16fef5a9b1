//! Folders and files on disk: what loads, what is refused and in which words.

use std::path::Path;

use aqueduct_core::MemoryPolicy;
use aqueduct_engine::{
    Block, LoadOptions, LoadProgress, LocalPort, Model, Want, WeightDtype, prefill,
};
use aqueduct_gguf::write::Writer;
use aqueduct_kernels::KvDtype;
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::support::{
    Folder, Tensor, config, described_as, described_by, fused, gguf, hf_folder, load, options,
    safetensors, split_gguf, tensors, with_metadata,
};

fn logits(model: &Model) -> Vec<f32> {
    let block =
        Block { tokens: &[1, 7, 3, 3, 10], start: 0, leaves: aqueduct_kernels::Leaves::ONE };
    let mut port = LocalPort::empty(model);
    let done = prefill(model, block, &MemoryPolicy::dense(), &mut port, Want::All).unwrap();
    model.logits(&done.hidden).unwrap().into_vec()
}

/// Loading `folder` must fail with an error that says all of `parts`.
fn check_refused(folder: &Folder, parts: &[&str]) {
    let error = load(folder.path()).expect_err(&format!("{parts:?}")).to_string();
    for part in parts {
        assert!(error.contains(part), "{error:?} should say {part:?}");
    }
}

/// The tiny configuration with some fields changed; null removes one.
fn changed(changes: Value) -> Value {
    let mut config = config();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

#[test]
fn every_container_makes_the_same_model() {
    let all = tensors();
    let whole = load(hf_folder(&config()).path()).unwrap();
    assert_eq!((whole.shape().vocab, whole.layers()), (11, 2));

    let file = Folder::empty().with("tiny.gguf", gguf(&all));
    assert_eq!(logits(&load(&file.file("tiny.gguf")).unwrap()), logits(&whole));
    assert_eq!(logits(&load(file.path()).unwrap()), logits(&whole));

    let mistral = Folder::empty().with("m.gguf", described_as("mistral3", |all| all));
    assert_eq!(logits(&load(mistral.path()).unwrap()), logits(&whole));
    // Text has one position where pictures have three.
    let [text, sees] = ["qwen2", "qwen2vl"].map(|name| {
        let sections =
            |all: Writer| all.i32s(&format!("{name}.rope.dimension_sections"), &[1, 1, 0, 0]);
        let folder = Folder::empty().with("m.gguf", described_as(name, sections));
        logits(&load(folder.path()).unwrap())
    });
    assert_eq!(text, sees);
    // Whose queries grow from the second position on.
    let ministral = |all: Writer| {
        all.f32("mistral3.attention.temperature_scale", 2.0)
            .u32("mistral3.rope.scaling.original_context_length", 1)
    };
    let ministral = Folder::empty().with("m.gguf", described_as("mistral3", ministral));
    let ministral = load(ministral.path()).unwrap();
    assert_ne!(logits(&ministral), logits(&whole));
    assert_ne!(ministral.fingerprint(), load(mistral.path()).unwrap().fingerprint());

    let sharded = sharded(&all, "b.safetensors");
    let sharded = load(sharded.path()).unwrap();
    assert_eq!(logits(&sharded), logits(&whole));
    assert_eq!(sharded.fingerprint(), whole.fingerprint());
}

#[test]
fn parts_may_be_stored_as_one() {
    let whole = logits(&load(hf_folder(&config()).path()).unwrap());
    let folder = |all: &[Tensor]| hf_folder(&config()).with("model.safetensors", safetensors(all));
    let all = fused(Tensor::clone);
    assert_eq!(all.iter().filter(|tensor| tensor.hf.contains("qkv_proj")).count(), 2);
    assert_eq!(logits(&load(folder(&all).path()).unwrap()), whole);
    let turned =
        |tensor: &Tensor| match tensor.hf.contains("q_proj") || tensor.hf.contains("k_proj") {
            true => tensor.interleaved(),
            false => tensor.clone(),
        };
    let file = Folder::empty().with("m.gguf", gguf(&fused(turned)));
    assert_eq!(logits(&load(file.path()).unwrap()), whole);
    let mut short = all;
    let qkv = short.iter_mut().find(|tensor| tensor.hf.contains("qkv_proj")).unwrap();
    (qkv.shape[0], qkv.data) = (15, qkv.data[8..].to_vec());
    check_refused(&folder(&short), &["layers.0.self_attn.qkv_proj", "[15, 8]", "asks for [16, 8]"]);
}

/// What multiplies the residual is divided out of the stream: the same as in the weights.
#[test]
fn scales_are_those_of_scaled_weights() {
    let (embed, residual, logit) = (3.0, 0.25, 2.0); // powers of two where they meet others
    let granite = changed(json!({
        "architectures": ["GraniteForCausalLM"], "attention_multiplier": 0.25,
        "embedding_multiplier": embed, "residual_multiplier": residual, "logits_scaling": logit,
    }));
    let seen = logits(&load(hf_folder(&granite).path()).unwrap());
    let mut scaled = tensors();
    for tensor in &mut scaled {
        let scale = match &tensor.hf {
            name if name.contains("embed_tokens") => embed,
            name if name.contains("o_proj") || name.contains("down_proj") => residual,
            name if name.contains("q_proj") => 0.5, // of the 1 / sqrt(4) that Llama has
            name if name.contains("lm_head") => 1.0 / logit,
            _ => 1.0,
        };
        tensor.data.iter_mut().for_each(|x| *x *= scale);
    }
    let folder = hf_folder(&config()).with("model.safetensors", safetensors(&scaled));
    let want = logits(&load(folder.path()).unwrap());
    for (seen, want) in seen.iter().zip(&want) {
        assert!((seen - want).abs() < 1e-5, "{seen} is not {want}");
    }
    let usual = logits(&load(hf_folder(&config()).path()).unwrap());
    assert!(usual.iter().zip(&want).any(|(a, b)| (a - b).abs() > 0.1), "nothing is scaled");
}

#[test]
fn every_container_makes_the_same_integers() {
    let int8 = LoadOptions { weights: WeightDtype::Int8, ..options() };
    let load = |path: &Path| Model::load(path, &int8, &mut |_| {}).unwrap();
    let folder = load(hf_folder(&config()).path());
    let file = Folder::empty().with("tiny.gguf", gguf(&tensors()));
    assert_eq!(logits(&load(file.path())), logits(&folder));
    assert_ne!(logits(&folder), logits(&super::support::load(file.path()).unwrap()));
}

/// Beside integers of GPTQ, matrices of F16 are what they are in a file that has them as bf16.
#[test]
fn what_is_f16_beside_integers_is_held_as_bf16() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/qwen3-gptq");
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let rounded = |tensor: &TensorView<'_>| -> Vec<u8> {
        let halves = tensor.data().as_chunks().0.iter().map(|half| f16::from_le_bytes(*half));
        halves.flat_map(|half| bf16::from_f32(half.to_f32()).to_le_bytes()).collect()
    };
    let mut matrices = 0;
    let all: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, tensor)| {
            let is_matrix = tensor.shape().len() == 2 && name.ends_with(".weight");
            matrices += usize::from(is_matrix);
            match is_matrix {
                true => (name, Dtype::BF16, tensor.shape().to_vec(), rounded(&tensor)),
                false => (name, tensor.dtype(), tensor.shape().to_vec(), tensor.data().to_vec()),
            }
        })
        .collect();
    assert!(matrices > 0);
    let views = all.iter().map(|(name, dtype, shape, data)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), data).unwrap())
    });
    let config = std::fs::read(dir.join("config.json")).unwrap();
    let twin = Folder::empty()
        .with("config.json", config)
        .with("model.safetensors", safetensors::serialize(views, None).unwrap());
    let loaded = |path: &Path, weights| {
        let options = LoadOptions { kv: KvDtype::Bf16, weights, ..options() };
        logits(&Model::load(path, &options, &mut |_| {}).unwrap())
    };
    let seen = loaded(&dir, WeightDtype::Auto);
    assert_eq!(seen, loaded(twin.path(), WeightDtype::Auto));
    assert_ne!(seen, loaded(&dir, WeightDtype::F32));
}

#[test]
fn a_head_of_its_own_counts_for_more_than_tying() {
    let tied = changed(json!({ "tie_word_embeddings": true }));
    let folder = |all: &[Tensor]| hf_folder(&tied).with("model.safetensors", safetensors(all));
    let mut all = tensors();
    let own = logits(&load(hf_folder(&config()).path()).unwrap());
    assert_eq!(logits(&load(folder(&all).path()).unwrap()), own);

    let head = all.pop().unwrap();
    let without = logits(&load(folder(&all).path()).unwrap());
    assert_ne!(without, own);
    all.push(Tensor { data: all[0].data.clone(), ..head });
    assert_eq!(logits(&load(folder(&all).path()).unwrap()), without);
}

/// Two shards; the index calls the second one `second`.
fn sharded(all: &[Tensor], second: &str) -> Folder {
    let (a, b) = all.split_at(all.len() / 2);
    let place = |part: &[Tensor], file: &str| -> Vec<(String, Value)> {
        part.iter().map(|tensor| (tensor.hf.clone(), json!(file))).collect()
    };
    let map: serde_json::Map<_, _> =
        place(a, "a.safetensors").into_iter().chain(place(b, second)).collect();
    Folder::empty()
        .with("config.json", config().to_string())
        .with("a.safetensors", safetensors(a))
        .with("b.safetensors", safetensors(b))
        .with("model.safetensors.index.json", json!({ "weight_map": map }).to_string())
}

#[test]
fn a_split_gguf_is_the_whole_one() {
    const NAMES: [&str; 2] = ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"];
    let folder = |all: &[Tensor], second| {
        let [a, b] = split_gguf(all, second);
        Folder::empty().with(NAMES[0], a).with(NAMES[1], b)
    };
    let all = tensors();
    let whole = load(Folder::empty().with("m.gguf", gguf(&all)).path()).unwrap();
    let split = folder(&all, 1);
    for path in [split.path().to_owned(), split.file(NAMES[0]), split.file(NAMES[1])] {
        let model = load(&path).unwrap();
        assert_eq!((logits(&model), model.fingerprint()), (logits(&whole), whole.fingerprint()));
    }
    check_refused(&folder(&all, 0), &[NAMES[1], "split.no is not 1"]);
    let twice: Vec<_> = all.iter().chain(&all[..1]).cloned().collect();
    check_refused(&folder(&twice, 1), &[NAMES[1], "token_embd.weight", NAMES[0], "too"]);
    check_refused(&folder(&all[..5], 1), &["missing; the configuration asks for"]);
    let [first, _] = split_gguf(&all, 1);
    check_refused(&Folder::empty().with(NAMES[0], &first), &[NAMES[1], "part 2 of 2 is missing"]);
    check_refused(&Folder::empty().with("m.gguf", first), &["split in 2", "NAME-00001-of-00002"]);
}

/// As base classes are saved, whose files may say no more than their type.
#[test]
fn models_are_read_that_are_saved_without_a_head() {
    let mut all = tensors();
    all.retain(|tensor| !tensor.hf.starts_with("lm_head"));
    let load = |changes: Value, all: &[Tensor]| {
        let mut config = changed(changes);
        config["tie_word_embeddings"] = json!(true);
        let model = load(hf_folder(&config).with("model.safetensors", safetensors(all)).path());
        model.map(|model| (logits(&model), model.fingerprint().to_owned()))
    };
    let whole = load(json!({}), &all).unwrap();
    for tensor in &mut all {
        tensor.hf = tensor.hf.strip_prefix("model.").unwrap().to_owned();
    }
    for architectures in [json!(["LlamaForCausalLM"]), json!(["LlamaModel"]), json!(null)] {
        let base = json!({ "architectures": architectures, "model_type": "llama" });
        assert_eq!(load(base, &all).unwrap(), whole, "{architectures}");
    }
}

#[test]
fn configurations_may_be_as_python_writes_them() {
    let infinite = r#"{ "time_step_limit": [0.0, Infinity], "#;
    let infinite = config().to_string().replacen('{', infinite, 1);
    let whole = hf_folder(&config());
    let want = load(whole.path()).unwrap().fingerprint().to_owned();
    let folder = whole.with("config.json", infinite);
    assert_eq!(load(folder.path()).unwrap().fingerprint(), want);
}

#[test]
fn progress_ends_at_the_totals() {
    let folder = hf_folder(&changed(json!({ "tie_word_embeddings": true })));
    let mut seen: Vec<LoadProgress> = Vec::new();
    Model::load(folder.path(), &options(), &mut |progress| seen.push(progress)).unwrap();
    let last = seen.last().unwrap();
    assert_eq!(last.tensors, tensors().len());
    assert_eq!((last.tensors_done, last.bytes_done), (last.tensors, last.bytes));
    assert!(seen.windows(2).all(|pair| pair[0].bytes_done < pair[1].bytes_done));
}

#[test]
fn fingerprints_tell_weights_and_options_apart() {
    let base = load(hf_folder(&config()).path()).unwrap();
    let theta = load(hf_folder(&changed(json!({ "rope_theta": 20_000.0 }))).path()).unwrap();
    assert_ne!(base.fingerprint(), theta.fingerprint());
    // What somebody adds to a file of transformers 5 in the words of 4 counts, as there.
    let scaling = json!({ "rope_type": "linear", "factor": 2.0 });
    let parameters = json!({ "rope_type": "default", "rope_theta": 10_000.0 });
    let both = json!({ "rope_scaling": scaling, "rope_parameters": parameters });
    let [one, both] = [json!({ "rope_scaling": scaling }), both]
        .map(|rope| load(hf_folder(&changed(rope)).path()).unwrap().fingerprint().to_owned());
    assert_eq!(one, both);
    assert_ne!(base.fingerprint(), both);
    let mut other = tensors();
    *other.last_mut().unwrap().data.last_mut().unwrap() += 0.5;
    let weights = hf_folder(&config()).with("model.safetensors", safetensors(&other));
    assert_ne!(base.fingerprint(), load(weights.path()).unwrap().fingerprint());
    assert_eq!(base.fingerprint().len(), 32);
}

/// What this number was when snapshots were first kept under it, of the model that is shipped: a
/// build that made another one would find none of them, and refuse workers of the last one.
#[test]
fn builds_agree_on_fingerprints() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../model");
    let bf16 = LoadOptions { kv: KvDtype::Bf16, ..options() };
    let model = Model::load(&shipped, &bf16, &mut |_| {}).unwrap();
    assert_eq!(model.fingerprint(), "b187485db44c7aa827bae8bc833d8ba9");
    let still = |layers: Value| {
        let smollm3 = changed(json!({
            "architectures": ["SmolLM3ForCausalLM"], "tie_word_embeddings": false,
            "no_rope_layers": layers,
        }));
        load(hf_folder(&smollm3).path()).unwrap().fingerprint().to_owned()
    };
    assert_ne!(still(json!([1, 1])), still(json!([1, 0])));
    let granite = |divisor: f32| {
        let granite = json!({ "architectures": ["GraniteForCausalLM"], "logits_scaling": divisor });
        load(hf_folder(&changed(granite)).path()).unwrap().fingerprint().to_owned()
    };
    assert_ne!(granite(1.0), granite(2.0));
}

#[test]
fn configurations_are_refused_by_field() {
    let check =
        |changes: Value, parts: &[&str]| check_refused(&hf_folder(&changed(changes)), parts);
    check(
        json!({ "architectures": ["T5ForCausalLM"] }),
        &["config.json", "architecture `T5ForCausalLM` is not supported", "Qwen3ForCausalLM"],
    );
    check(json!({ "architectures": null }), &["config.json", "architecture `none`"]);
    // Others' configurations have other fields, and still say what they are of.
    check(
        json!({ "architectures": ["T5ForCausalLM"], "intermediate_size": "x" }),
        &["architecture `T5ForCausalLM` is not supported"],
    );
    check(json!({ "hidden_size": "64" }), &["config.json", "hidden_size: invalid type: string"]);
    check(json!({ "rms_norm_eps": [1] }), &["config.json", "rms_norm_eps: invalid type"]);
    check(json!({ "hidden_act": "gelu" }), &["hidden_act `gelu`", "silu"]);
    check(
        json!({ "quantization_config": { "quant_method": "bitsandbytes" } }),
        &["`bitsandbytes`"],
    );
    check(json!({ "num_hidden_layers": 0 }), &["layers = 0", "between 1 and 512"]);
    check(json!({ "num_key_value_heads": 3 }), &["kv_heads = 3"]);
    check(json!({ "hidden_size": -8 }), &["config.json", "-8"]);
    check(json!({ "rms_norm_eps": -1.0 }), &["rms_norm_eps = -1"]);
    check(json!({ "rope_theta": 0.0 }), &["rope_theta = 0"]);
    check(json!({ "partial_rotary_factor": 0.5 }), &["partial_rotary_factor = 0.5", "whole heads"]);
    let phi3 = |partial: f64| {
        let architectures = ["Phi3ForCausalLM"];
        json!({ "architectures": architectures, "partial_rotary_factor": partial })
    };
    check(phi3(0.3), &["partial_rotary_factor = 0.3", "even"]);
    check(phi3(1.5), &["partial_rotary_factor = 1.5", "at most 1"]);
    check(
        json!({ "rope_scaling": { "type": "ntk", "factor": 4.0 } }),
        &["rope type `ntk`", "longrope, yarn"],
    );
    check(json!({ "rope_scaling": { "type": "longrope" } }), &["short_factor is missing"]);
    check(
        json!({ "rope_scaling": { "type": "su", "original_max_position_embeddings": 32 } }),
        &["long_factor is missing"],
    );
    check(
        json!({ "rope_scaling": { "type": "longrope", "short_factor": [1.0] } }),
        &["rope factors = 1"],
    );
    check(json!({ "rope_scaling": { "rope_type": "linear" } }), &["factor is missing"]);
    check(json!({ "attention_bias": true }), &["q_proj.bias: missing"]);
    check(
        json!({ "num_hidden_layers": 3 }),
        &["tensor model.layers.2.", "missing; the configuration asks for"],
    );
    check(
        json!({ "vocab_size": 12 }),
        &["tensor model.embed_tokens.weight", "shape [11, 8]", "asks for [12, 8]"],
    );
}

#[test]
fn gguf_metadata_is_refused_by_key() {
    let writer = || aqueduct_gguf::write::Writer::new();
    let check = |file: Vec<u8>, parts: &[&str]| {
        check_refused(&Folder::empty().with("m.gguf", file), parts);
    };
    check(writer().finish(), &["m.gguf", "general.architecture is missing"]);
    check(
        writer().str("general.architecture", "mamba").finish(),
        &["architecture `mamba` is not supported", "qwen3"],
    );
    let llama = || writer().str("general.architecture", "llama");
    check(llama().finish(), &["llama.embedding_length is missing"]);
    let none = llama().u32("llama.context_length", 0).finish();
    check(none, &["context_length = 0: must be between 1 and"]);
    let experts = |count, chosen| {
        described_by(|all| {
            all.u32("llama.expert_count", count).u32("llama.expert_used_count", chosen)
        })
    };
    check(experts(8, 9), &["experts per token = 9", "between 1 and 8"]);
    check(experts(5000, 2), &["experts = 5000", "between 1 and 4096"]);
    check(experts(8, 2), &["blk.0.ffn_gate_inp.weight", "missing"]);
    let capped = described_by(|all| all.f32("llama.final_logit_softcapping", 30.0));
    check(capped, &["final_logit_softcapping = 30: must be absent"]);
    // Of Gemma 3 a file may say it: here it is tensors that are missing.
    let capped = |all: Writer| all.f32("gemma3.final_logit_softcapping", 30.0);
    check(described_as("gemma3", capped), &["attn_q_norm", "missing"]);
    let capped = |all: Writer| all.f32("gemma3.attn_logit_softcapping", 30.0);
    check(described_as("gemma3", capped), &["attn_logit_softcapping = 30: must be absent"]);
    let ministral = |all: Writer| all.f32("mistral3.attention.temperature_scale", -0.5);
    check(described_as("mistral3", ministral), &["attention temperature scale = -0.5"]);
    let flat = |all: Writer| {
        let all = all.f32("mpt.attention.layer_norm_epsilon", 1e-5);
        all.f32("mpt.attention.max_alibi_bias", 0.0)
    };
    check(described_as("mpt", flat), &["attention.max_alibi_bias = 0: must be between"]);
    for dims in [0, 3, 6] {
        let file = with_metadata("llama.rope.dimension_count", dims);
        check(file, &["rope.dimension_count", "an even number from 2 to the head size 4"]);
    }
    check(llama().u32("split.count", 2).finish(), &["split in 2"]);
}

#[test]
fn what_is_not_a_model_is_told_what_was_looked_for() {
    check_refused(&Folder::empty(), &["not a model", "config.json", ".gguf"]);
    check_refused(&Folder::empty().with("a.gguf", "").with("b.gguf", ""), &["2 .gguf files"]);
    check_refused(&Folder::empty().with("a.gguf", "hello"), &["a.gguf", "not a GGUF file"]);
    check_refused(&Folder::empty().with("a.gguf", ""), &["a.gguf", "not a GGUF file"]);
    let folder = Folder::empty();
    std::fs::create_dir(folder.file("a.gguf")).unwrap();
    check_refused(&folder, &["a.gguf", "not a regular file"]);
    check_refused(
        &Folder::empty().with("config.json", config().to_string()),
        &["model.safetensors", "model.safetensors.index.json"],
    );
    check_refused(&Folder::empty().with("config.json", "{"), &["config.json", "EOF"]);
    let error = load(&Folder::empty().file("none")).unwrap_err().to_string();
    assert!(error.contains("none: No such file"), "{error}");
}

#[test]
fn an_index_may_only_name_files_beside_it() {
    let all = tensors();
    for name in ["../b.safetensors", "/etc/passwd", "..", "", "x/b.safetensors"] {
        check_refused(&sharded(&all, name), &["weight_map", "a file beside the index"]);
    }
    check_refused(&sharded(&all, "c.safetensors"), &["c.safetensors", "No such file"]);
    check_refused(&sharded(&all, "a.safetensors"), &["missing"]);
}

#[test]
fn weights_that_are_not_finite_are_named() {
    let mut all = tensors();
    all[2].data[5] = f32::NAN;
    let named = ["q_proj.weight", "element 5 is NaN: must be finite"];
    check_refused(&hf_folder(&config()).with("model.safetensors", safetensors(&all)), &named);
    check_refused(
        &Folder::empty().with("m.gguf", gguf(&all)),
        &["blk.0.attn_q.weight", "is NaN: must be finite"],
    );
}
