//! How config.json says that weights are stored in fewer bits.

use serde_json::Value;

use crate::load::decoder::Family;

/// For errors.
pub(super) const SUPPORTED: &str = "none (f32, f16 or bf16 weights), fp8, fbgemm_fp8, \
     compressed-tensors of floats of eight bits, and mxfp4 of GptOssForCausalLM";

/// What weights are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantized {
    Not,
    /// Experts of gpt-oss, in four bits.
    Mxfp4,
    /// Some in eight bits, E4M3, beside scales.
    Float8 {
        /// Rows and columns that share a scale, where neither a row nor a tensor has one.
        block: Option<[usize; 2]>,
    },
}

impl Quantized {
    /// What `config` says, if there is one.
    ///
    /// # Errors
    /// The name of what is not read.
    pub(super) fn of(config: Option<&Value>, family: Family) -> Result<Self, String> {
        let Some(config) = config.filter(|config| !config.is_null()) else { return Ok(Self::Not) };
        let name = config["quant_method"].as_str().unwrap_or("unnamed");
        let unread = |what: &str| Err(format!("{name} ({what})"));
        match name {
            "mxfp4" if family == Family::GptOss => Ok(Self::Mxfp4),
            "fp8" => match block_of(&config["weight_block_size"]) {
                Some(block) => Ok(Self::Float8 { block }),
                None => unread("weight_block_size is not two numbers above 0"),
            },
            "fbgemm_fp8" => Ok(Self::Float8 { block: None }),
            "compressed-tensors" => {
                let groups = config["config_groups"].as_object().into_iter().flatten();
                let mut blocks = Vec::new();
                for (_, group) in groups {
                    let weights = &group["weights"];
                    let is_float8 = weights["type"] == "float" && weights["num_bits"] == 8;
                    if !is_float8 || weights["symmetric"] == false {
                        return unread(config["format"].as_str().unwrap_or("no format"));
                    }
                    match block_of(&weights["block_structure"]) {
                        Some(block) => blocks.push(block),
                        None => return unread("block_structure is not two numbers above 0"),
                    }
                }
                match *blocks {
                    [first, ref others @ ..] if others.iter().all(|other| *other == first) => {
                        Ok(Self::Float8 { block: first })
                    }
                    _ => unread("config_groups with no or with different blocks"),
                }
            }
            name => Err(name.to_owned()),
        }
    }
}

/// Two numbers, or nothing where nothing is said; `None` of anything else.
fn block_of(value: &Value) -> Option<Option<[usize; 2]>> {
    let number = |value: &Value| value.as_u64().filter(|&size| size > 0)?.try_into().ok();
    match value.as_array().map(Vec::as_slice) {
        None if value.is_null() => Some(None),
        Some([rows, columns]) => Some(Some([number(rows)?, number(columns)?])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn methods_are_told_apart() {
        let check = |config: Value, want: Result<Quantized, &str>| {
            let seen = Quantized::of(Some(&config), Family::Qwen3);
            assert_eq!(seen, want.map_err(str::to_owned), "{config}");
        };
        let rows = Quantized::Float8 { block: None };
        let blocks = Quantized::Float8 { block: Some([128, 64]) };
        check(Value::Null, Ok(Quantized::Not));
        check(json!({ "quant_method": "fbgemm_fp8" }), Ok(rows));
        check(json!({ "quant_method": "fp8", "weight_block_size": [128, 64] }), Ok(blocks));
        check(json!({ "quant_method": "fp8", "weight_block_size": null }), Ok(rows));
        for block in [json!([128]), json!([128, 0]), json!("all")] {
            let what = "fp8 (weight_block_size is not two numbers above 0)";
            check(json!({ "quant_method": "fp8", "weight_block_size": block }), Err(what));
        }
        check(json!({ "quant_method": "mxfp4" }), Err("mxfp4"));
        check(json!({ "quant_method": "gptq" }), Err("gptq"));
        check(json!({}), Err("unnamed"));
        let packed = |groups: Value| {
            json!({
                "quant_method": "compressed-tensors", "format": "float-quantized",
                "config_groups": groups,
            })
        };
        let float8 = json!({ "weights": {
            "type": "float", "num_bits": 8, "symmetric": true, "strategy": "channel",
        } });
        check(packed(json!({ "group_0": float8 })), Ok(rows));
        let in_blocks = json!({ "weights": {
            "type": "float", "num_bits": 8, "strategy": "block", "block_structure": [128, 64],
        } });
        check(packed(json!({ "group_0": in_blocks, "group_1": in_blocks })), Ok(blocks));
        let different = "compressed-tensors (config_groups with no or with different blocks)";
        check(packed(json!({ "group_0": in_blocks, "group_1": float8 })), Err(different));
        check(packed(json!({})), Err(different));
        let int4 = json!({ "group_0": { "weights": { "type": "int", "num_bits": 4 } } });
        check(packed(int4), Err("compressed-tensors (float-quantized)"));
    }
}
