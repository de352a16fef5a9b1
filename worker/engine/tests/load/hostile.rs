//! Damaged model files: an error or a model, never a panic.

use std::path::Path;

use aqueduct_gguf::write::Writer;
use proptest::prelude::*;
use safetensors::SafeTensors;
use serde_json::json;

use crate::support::{Folder, config, described_as, gguf, hf_folder, load, safetensors, tensors};

/// A folder of the fixture, of whose tensors one has another shape, and as many bytes as that has.
fn reshaped(of: &str, which: usize, shape: &[u64]) -> Folder {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(of);
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut names = file.names();
    names.sort_unstable();
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for name in &names {
        let tensor = file.tensor(name).unwrap();
        let is_it = *name == names[which % names.len()];
        let own: Vec<u64> = tensor.shape().iter().map(|&size| size as u64).collect();
        let shape = if is_it { shape } else { &own };
        let begin = data.len();
        data.extend_from_slice(tensor.data());
        if is_it {
            let bits = tensor.dtype().bitsize() as u64;
            let empty = shape.contains(&0);
            let bytes = if empty { 0 } else { shape.iter().product::<u64>() * bits / 8 };
            data.resize(begin + bytes as usize, 1);
        }
        let dtype = tensor.dtype();
        let entry = json!({
            "dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()],
        });
        header.insert((*name).to_owned(), entry);
    }
    let header = serde_json::Value::Object(header).to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat();
    Folder::empty()
        .with("config.json", std::fs::read(dir.join("config.json")).unwrap())
        .with("model.safetensors", file)
}

/// `bytes` with some bits flipped and perhaps cut short.
fn damaged(bytes: &[u8], flips: &[(usize, u8)], keep: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, bit) in flips {
        let at = at % bytes.len();
        bytes[at] ^= 1 << (bit % 8);
    }
    bytes.truncate(keep);
    bytes
}

fn flips(within: usize) -> impl Strategy<Value = Vec<(usize, u8)>> {
    proptest::collection::vec((0..within, any::<u8>()), 1..4)
}

#[test]
fn every_truncation_of_a_container_is_refused() {
    let (hf, file) = (safetensors(&tensors()), gguf(&tensors()));
    let folder = hf_folder(&config());
    for keep in (0..hf.len() - 1).step_by(41) {
        std::fs::write(folder.file("model.safetensors"), &hf[..keep]).unwrap();
        let error = load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("model.safetensors: "), "{keep}: {error}");
    }
    let folder = Folder::empty();
    for keep in (0..file.len() - 32).step_by(41) {
        std::fs::write(folder.file("m.gguf"), &file[..keep]).unwrap();
        let error = load(folder.path()).unwrap_err().to_string();
        assert!(error.contains("m.gguf: "), "{keep}: {error}");
    }
}

/// Means are taken of maps before all other tensors are looked for.
#[test]
fn a_map_whose_mean_is_taken_has_the_shape_of_the_model() {
    let name = "model.layers.0.self_attn.o_proj.weight";
    let header = json!({ name: { "dtype": "F32", "shape": [1u64 << 62, 2, 0],
        "data_offsets": [0, 0] } });
    let header = header.to_string();
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let mut config = config();
    config["architectures"] = json!(["CohereForCausalLM"]);
    config["model_type"] = json!("cohere");
    let error = load(hf_folder(&config).with("model.safetensors", file).path()).unwrap_err();
    assert!(error.to_string().contains(name), "{error}");
}

/// Keys and values that come of a few numbers stand in matrices of heads, which are put together
/// before any tensor is looked for.
#[test]
fn matrices_of_heads_are_as_many_as_heads() {
    let few = |writer: Writer| {
        let key = |name: &str| format!("deepseek2.{name}");
        writer
            .u32(&key("rope.dimension_count"), 2)
            .u32(&key("attention.kv_lora_rank"), 4)
            .u32(&key("attention.value_length"), 4)
            .u32(&key("attention.key_length_mla"), 4)
    };
    for name in ["blk.1.attn_k_b.weight", "blk.0.attn_v_b.weight"] {
        for dims in [&[1, 4, 4][..], &[8, 2]] {
            let bytes = vec![0; 4 * dims.iter().product::<u64>() as usize];
            let file =
                described_as("deepseek2", |writer| few(writer).tensor(name, dims, 0, &bytes));
            let folder = Folder::empty().with("m.gguf", file);
            let error = load(&folder.file("m.gguf")).unwrap_err().to_string();
            assert!(error.contains("should be 2 matrices"), "{name} {dims:?}: {error}");
            assert!(error.contains(name), "{name} {dims:?}: {error}");
        }
    }
    // Of NVFP4, and a factor beside it, which would be forgotten.
    let name = "blk.0.attn_k_b.weight";
    let file = described_as("deepseek2", |writer| {
        let writer = few(writer).tensor(name, &[64, 4, 2], 40, &[0; 36 * 4 * 2]);
        writer.tensor("blk.0.attn_k_b.scale", &[1], 0, &1_f32.to_le_bytes())
    });
    let error = load(&Folder::empty().with("m.gguf", file).file("m.gguf")).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("to be turned"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn damaged_configurations(flips in flips(400), keep in 0usize..400) {
        let text = config().to_string();
        let cut = damaged(text.as_bytes(), &flips, keep);
        let folder = hf_folder(&config()).with("config.json", cut);
        let _ = load(folder.path());
        let folder = folder.with("config.json", damaged(text.as_bytes(), &flips, usize::MAX));
        let _ = load(folder.path());
    }

    #[test]
    fn damaged_safetensors(flips in flips(2000)) {
        let file = damaged(&safetensors(&tensors()), &flips, usize::MAX);
        let _ = load(hf_folder(&config()).with("model.safetensors", file).path());
    }

    #[test]
    fn integers_and_scales_of_any_shape(
        of in proptest::sample::select(vec![
            "qwen3-gptq", "qwen3-moe-awq", "gemma-w4a16-asym", "llama-gqa-w8a8", "qwen3-nvfp4",
            "llama31-modelopt", "qwen2-mxfp4",
        ]),
        which in any::<usize>(),
        shape in proptest::collection::vec(
            proptest::sample::select(vec![0, 1, 2, 3, 4, 8, 16, 32, 1 << 63]), 0..4),
    ) {
        if shape.contains(&0) || !shape.contains(&(1 << 63)) {
            let _ = load(reshaped(of, which, &shape).path());
        }
    }

    #[test]
    fn damaged_indices(flips in flips(300)) {
        let text = r#"{"weight_map":{"lm_head.weight":"a.safetensors","model.norm.weight":"a"}}"#;
        let folder = Folder::empty()
            .with("config.json", config().to_string())
            .with("a.safetensors", safetensors(&tensors()))
            .with("model.safetensors.index.json", damaged(text.as_bytes(), &flips, usize::MAX));
        prop_assert!(load(folder.path()).is_err());
    }

    #[test]
    fn damaged_files_of_pytorch(
        of in proptest::sample::select(vec!["gpt2", "llama"]), flips in flips(5000),
    ) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/torch").join(of);
        let file = std::fs::read(dir.join("pytorch_model.bin")).unwrap();
        let folder = Folder::empty()
            .with("config.json", std::fs::read(dir.join("config.json")).unwrap())
            .with("pytorch_model.bin", damaged(&file, &flips, usize::MAX));
        let _ = load(folder.path());
    }

    #[test]
    fn damaged_gguf_files(flips in flips(1800)) {
        let file = damaged(&gguf(&tensors()), &flips, usize::MAX);
        let _ = load(Folder::empty().with("m.gguf", file).path());
    }
}
