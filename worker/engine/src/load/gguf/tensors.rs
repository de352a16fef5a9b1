//! GGUF's tensor index as a checkpoint.

use std::collections::BTreeMap;

use aqueduct_gguf::Tensor;

use super::parts::Part;
use crate::error::LoadError;
use crate::load::checkpoint::{Checkpoint, Stored};
use crate::load::encoding::Encoding;

/// A matrix of one row, which files have as a vector.
const ONE_ROW: &str = ".ffn_gate_inp_shexp.weight";
/// What is added to steps, as Ollama's converter calls it; llama.cpp's has `.bias` behind it.
const OLLAMA_SHIFT: &str = ".ssm_dt";

/// All tensors of all parts.
pub(super) fn checkpoint<'a>(parts: &[Part<'a>]) -> Result<Checkpoint<'a>, LoadError> {
    let mut tensors = BTreeMap::new();
    for Part { path, gguf } in parts {
        for tensor in gguf.tensors() {
            if let Some(other) = tensors.insert(tensor.name.to_owned(), stored(tensor, path)) {
                let what = format!("in {} too", other.path);
                return Err(LoadError::tensor(path, tensor.name, what));
            }
        }
    }
    name_shifts(&mut tensors);
    Ok(Checkpoint { path: parts[0].path.to_owned(), tensors })
}

/// Calls shifts of steps what llama.cpp calls them, where nothing else is called so.
fn name_shifts(tensors: &mut BTreeMap<String, Stored<'_>>) {
    let is_new = |name: &&String| {
        name.ends_with(OLLAMA_SHIFT) && !tensors.contains_key(&format!("{name}.bias"))
    };
    let names: Vec<String> = tensors.keys().filter(is_new).cloned().collect();
    for name in names {
        if let Some(tensor) = tensors.remove(&name) {
            tensors.insert(format!("{name}.bias"), tensor);
        }
    }
}

/// A tensor of the file at `path`.
fn stored<'a>(tensor: &Tensor<'a>, path: &'a str) -> Stored<'a> {
    // The index has row lengths first. What does not fit a usize matches no shape.
    let dims = tensor.dims.iter().rev();
    let mut shape: Vec<_> = dims.map(|&dim| usize::try_from(dim).unwrap_or(usize::MAX)).collect();
    if tensor.name.ends_with(ONE_ROW) && shape.len() == 1 {
        shape.insert(0, 1);
    }
    let name = tensor.ty.name;
    Stored::new(path, &shape, (name, encoding(name)), tensor.bytes)
}

fn encoding(name: &str) -> Option<Encoding> {
    match name {
        "F32" => Some(Encoding::F32),
        "F16" => Some(Encoding::F16),
        "BF16" => Some(Encoding::Bf16),
        "Q8_0" => Some(Encoding::Q8_0),
        "Q4_0" => Some(Encoding::Q4_0),
        "Q4_1" => Some(Encoding::Q4_1),
        "Q5_0" => Some(Encoding::Q5_0),
        "Q5_1" => Some(Encoding::Q5_1),
        "Q2_K" => Some(Encoding::Q2K),
        "Q3_K" => Some(Encoding::Q3K),
        "Q4_K" => Some(Encoding::Q4K),
        "Q5_K" => Some(Encoding::Q5K),
        "Q6_K" => Some(Encoding::Q6K),
        "IQ4_NL" => Some(Encoding::Iq4Nl),
        "IQ4_XS" => Some(Encoding::Iq4Xs),
        "IQ1_S" => Some(Encoding::Iq1S),
        "IQ1_M" => Some(Encoding::Iq1M),
        "IQ2_XXS" => Some(Encoding::Iq2Xxs),
        "IQ2_XS" => Some(Encoding::Iq2Xs),
        "IQ2_S" => Some(Encoding::Iq2S),
        "IQ3_XXS" => Some(Encoding::Iq3Xxs),
        "IQ3_S" => Some(Encoding::Iq3S),
        "TQ1_0" => Some(Encoding::Tq1_0),
        "TQ2_0" => Some(Encoding::Tq2_0),
        "MXFP4" => Some(Encoding::Mxfp4),
        "NVFP4" => Some(Encoding::Nvfp4),
        "Q1_0" => Some(Encoding::Q1_0),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;

    use super::*;

    #[test]
    fn shifts_of_ollamas_files_are_found() {
        let names = |of_file: &[&str]| {
            let file = of_file
                .iter()
                .fold(Writer::new(), |file, name| file.tensor(name, &[1], 0, &1_f32.to_le_bytes()));
            let bytes = file.finish();
            let parts = [Part { path: "file", gguf: Gguf::parse(&bytes).unwrap() }];
            checkpoint(&parts).unwrap().tensors.into_keys().collect::<Vec<_>>()
        };
        let shift = "blk.0.ssm_dt.bias";
        assert_eq!(names(&["blk.0.ssm_dt", "blk.1.ssm_d"]), [shift, "blk.1.ssm_d"]);
        assert_eq!(names(&["blk.0.ssm_dt.bias"]), [shift]);
        assert_eq!(names(&["blk.0.ssm_dt.bias", "blk.0.ssm_dt"]), ["blk.0.ssm_dt", shift]);
    }
}
