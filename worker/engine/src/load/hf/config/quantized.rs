//! How config.json says that weights are stored in fewer bits.

use serde_json::Value;

use crate::load::decoder::Family;

/// For errors.
pub(super) const SUPPORTED: &str = "none (f32, f16 or bf16 weights), fp8, fbgemm_fp8, gptq, awq, \
     auto-round of these two, modelopt of FP8 or NVFP4, compressed-tensors of integers or floats, \
     bitnet, and mxfp4 of GptOssForCausalLM";

/// Of integers in words.
pub(crate) const BITS: [usize; 4] = [2, 3, 4, 8];

/// What weights are stored as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantized {
    Not,
    /// Experts of gpt-oss, in four bits.
    Mxfp4,
    /// Some in eight bits, E4M3 or integers, or floats of four beside scales, or integers of fewer
    /// bits in words.
    Scaled {
        /// Rows and columns that share a scale, where neither a row nor a tensor has one.
        block: Option<[usize; 2]>,
        /// Of integers in words, where these may be of several.
        bits: usize,
    },
    /// Integers in words of inputs, with scales and zeros of groups.
    Gptq {
        /// Of an integer, where a tensor's shape may be of several.
        bits: usize,
        /// Zeros are stored less 1.
        zeros_from_one: bool,
    },
    /// Integers of four bits in words of outputs, with scales and zeros of groups.
    Awq,
    /// -1, 0 and 1 beside a number that multiplies a matrix, or divides it.
    Ternary {
        divides: bool,
    },
    /// What is to be rounded to these.
    Trained,
}

impl Quantized {
    /// What `config` says, if there is one.
    ///
    /// # Errors
    /// The name of what is not read.
    pub(super) fn of(config: Option<&Value>, family: Family) -> Result<Self, String> {
        let Some(config) = config.filter(|config| !config.is_null()) else { return Ok(Self::Not) };
        let name = config["quant_method"].as_str().unwrap_or("unnamed");
        let scaled = |block| Self::Scaled { block, bits: 8 };
        let read = match name {
            "mxfp4" if family == Family::GptOss => Ok(Self::Mxfp4),
            "fp8" => match block_of(&config["weight_block_size"]) {
                Some(block) => Ok(scaled(block)),
                None => Err("weight_block_size is not two numbers above 0"),
            },
            "fbgemm_fp8" => Ok(scaled(None)),
            "modelopt" | "modelopt_fp4" => match config["quant_algo"].as_str() {
                Some("FP8" | "NVFP4") => Ok(scaled(None)),
                other => Err(other.unwrap_or("no quant_algo")),
            },
            "gptq" => match (config["checkpoint_format"].as_str(), bits_of(&config["bits"])) {
                _ if config["is_marlin_format"] == true => Err("marlin"),
                (_, None) => Err("bits"),
                (None | Some("gptq"), Some(bits)) => Ok(Self::Gptq { bits, zeros_from_one: true }),
                (Some("gptq_v2"), Some(bits)) => Ok(Self::Gptq { bits, zeros_from_one: false }),
                (Some(other), _) => Err(other),
            },
            "awq" => match config["version"].as_str().unwrap_or("gemm") {
                _ if config["bits"] != 4 => Err("bits"),
                version if version.eq_ignore_ascii_case("gemm") => Ok(Self::Awq),
                other => Err(other),
            },
            "bitnet" => Self::ternary(config, family),
            "auto-round" => Self::rounded(config),
            "compressed-tensors" => Self::compressed(config),
            name => return Err(name.to_owned()),
        };
        read.map_err(|what| format!("{name} ({what})"))
    }

    /// What BitNet's files say.
    fn ternary(config: &Value, family: Family) -> Result<Self, &str> {
        if config["use_rms_norm"] == true {
            return Err("use_rms_norm");
        }
        let others = config["modules_to_not_convert"].as_array().into_iter().flatten();
        if others.into_iter().any(|name| name != "lm_head") {
            return Err("modules_to_not_convert");
        }
        let mode = config["quantization_mode"].as_str().unwrap_or("offline");
        match (config["linear_class"].as_str().unwrap_or("bitlinear"), mode) {
            ("bitlinear", _) => Ok(Self::Ternary { divides: true }),
            ("autobitlinear", "offline") => Ok(Self::Ternary { divides: false }),
            // Elsewhere it is not known which maps these are.
            ("autobitlinear", "online") if matches!(family, Family::BitNet | Family::Llama) => {
                Ok(Self::Trained)
            }
            ("autobitlinear", other) | (other, _) => Err(other),
        }
    }

    /// What AutoRound says, whose integers are packed as those of others.
    fn rounded(config: &Value) -> Result<Self, &str> {
        if config["data_type"].as_str().is_some_and(|name| name != "int") {
            return Err("data_type");
        }
        match (config["packing_format"].as_str(), bits_of(&config["bits"])) {
            (_, None) => Err("bits"),
            (Some("auto_round:auto_gptq"), Some(bits)) => {
                Ok(Self::Gptq { bits, zeros_from_one: true })
            }
            (Some("auto_round:auto_awq"), Some(4)) => Ok(Self::Awq),
            (Some("auto_round:auto_awq"), _) => Err("bits"),
            (other, _) => Err(other.unwrap_or("no packing_format")),
        }
    }

    /// What compressed-tensors says.
    fn compressed(config: &Value) -> Result<Self, &str> {
        let says = |field: &str| config[field].as_object().is_some_and(|it| !it.is_empty());
        if says("sparsity_config") && config["sparsity_config"]["format"] != "dense" {
            return Err("sparsity_config");
        }
        if says("transform_config") {
            return Err("transform_config");
        }
        let groups = config["config_groups"].as_object().into_iter().flatten();
        let (mut blocks, mut bits) = (Vec::new(), 8);
        for (_, group) in groups {
            let weights = &group["weights"];
            let format = group["format"].as_str().or(config["format"].as_str());
            let format = format.unwrap_or("no format");
            let known = bits_of(&weights["num_bits"]);
            let is_symmetric = weights["symmetric"] != false;
            let is_read = match (weights["type"].as_str(), format) {
                (Some("int"), "pack-quantized") => matches!(known, Some(2 | 4 | 8)),
                (Some("float"), "nvfp4-pack-quantized" | "mxfp4-pack-quantized") => {
                    known == Some(4) && is_symmetric
                }
                (Some("int" | "float"), _) => known == Some(8) && is_symmetric,
                _ => false,
            };
            if !is_read {
                return Err(format);
            }
            bits = known.filter(|_| format == "pack-quantized").unwrap_or(bits);
            match block_of(&weights["block_structure"]) {
                Some(block) => blocks.push(block),
                None => return Err("block_structure is not two numbers above 0"),
            }
        }
        match *blocks {
            [first, ref others @ ..] if others.iter().all(|other| *other == first) => {
                Ok(Self::Scaled { block: first, bits })
            }
            _ => Err("config_groups with no or with different blocks"),
        }
    }
}

/// Whether a file is one of MLX, which says it beside what others do, or instead.
pub(super) fn is_mlx(config: &Value) -> bool {
    let says = |field: &str| config["quantization"][field].is_number();
    says("group_size") && says("bits") && config["quantization_config"]["quant_method"].is_null()
}

/// As many as integers in words may have.
fn bits_of(value: &Value) -> Option<usize> {
    BITS.into_iter().find(|&bits| value.as_u64() == Some(bits as u64))
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
    fn files_of_mlx_are_known() {
        let mlx = json!({ "group_size": 64, "bits": 4 });
        let both = json!({ "quantization": mlx, "quantization_config": mlx });
        assert!(is_mlx(&both) && is_mlx(&json!({ "quantization": mlx })));
        let gptq =
            json!({ "quantization": mlx, "quantization_config": { "quant_method": "gptq" } });
        assert!(!is_mlx(&gptq) && !is_mlx(&json!({ "quantization": null })));
    }

    #[test]
    fn ternaries_are_told_apart() {
        let check = |family, changes: Value, want: Result<Quantized, &str>| {
            let mut config = json!({ "quant_method": "bitnet" });
            config.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let seen = Quantized::of(Some(&config), family);
            assert_eq!(seen, want.map_err(str::to_owned), "{config}");
        };
        let of =
            |class: &str, mode: &str| json!({ "linear_class": class, "quantization_mode": mode });
        let packed = |divides| Ok(Quantized::Ternary { divides });
        check(Family::Llama, json!({ "modules_to_not_convert": ["lm_head"] }), packed(true));
        check(Family::Llama, of("bitlinear", "offline"), packed(true));
        check(Family::BitNet, of("autobitlinear", "offline"), packed(false));
        check(Family::BitNet, of("autobitlinear", "online"), Ok(Quantized::Trained));
        check(Family::Qwen3, of("autobitlinear", "online"), Err("bitnet (online)"));
        check(Family::Llama, of("linear", "offline"), Err("bitnet (linear)"));
        check(Family::Llama, json!({ "use_rms_norm": true }), Err("bitnet (use_rms_norm)"));
        let some = json!({ "modules_to_not_convert": ["lm_head", "q_proj"] });
        check(Family::Llama, some, Err("bitnet (modules_to_not_convert)"));
    }

    #[test]
    fn methods_are_told_apart() {
        let check = |config: Value, want: Result<Quantized, &str>| {
            let seen = Quantized::of(Some(&config), Family::Qwen3);
            assert_eq!(seen, want.map_err(str::to_owned), "{config}");
        };
        let rows = Quantized::Scaled { block: None, bits: 8 };
        let blocks = Quantized::Scaled { block: Some([128, 64]), bits: 8 };
        check(Value::Null, Ok(Quantized::Not));
        check(json!({ "quant_method": "fbgemm_fp8" }), Ok(rows));
        check(json!({ "quant_method": "fp8", "weight_block_size": [128, 64] }), Ok(blocks));
        check(json!({ "quant_method": "fp8", "weight_block_size": null }), Ok(rows));
        for block in [json!([128]), json!([128, 0]), json!("all")] {
            let what = "fp8 (weight_block_size is not two numbers above 0)";
            check(json!({ "quant_method": "fp8", "weight_block_size": block }), Err(what));
        }
        check(json!({ "quant_method": "mxfp4" }), Err("mxfp4"));
        check(json!({ "quant_method": "bitsandbytes" }), Err("bitsandbytes"));
        let gptq = |zeros_from_one| Ok(Quantized::Gptq { bits: 3, zeros_from_one });
        check(json!({ "quant_method": "gptq", "bits": 3 }), gptq(true));
        for (format, want) in
            [("gptq", gptq(true)), ("gptq_v2", gptq(false)), ("bitblas", Err("gptq (bitblas)"))]
        {
            let config = json!({ "quant_method": "gptq", "bits": 3, "checkpoint_format": format });
            check(config, want);
        }
        let marlin = json!({ "quant_method": "gptq", "bits": 4, "is_marlin_format": true });
        check(marlin, Err("gptq (marlin)"));
        check(json!({ "quant_method": "gptq", "bits": 5 }), Err("gptq (bits)"));
        check(json!({ "quant_method": "awq", "bits": 4, "version": "GEMM" }), Ok(Quantized::Awq));
        let gemv = json!({ "quant_method": "awq", "bits": 4, "version": "gemv" });
        check(gemv, Err("awq (gemv)"));
        check(json!({ "quant_method": "awq", "bits": 8 }), Err("awq (bits)"));
        check(json!({}), Err("unnamed"));
        let rounded = |bits: u32, packing: &str| {
            json!({
                "quant_method": "auto-round", "bits": bits, "packing_format": packing,
            })
        };
        check(rounded(3, "auto_round:auto_gptq"), gptq(true));
        check(rounded(4, "auto_round:auto_awq"), Ok(Quantized::Awq));
        check(rounded(8, "auto_round:auto_awq"), Err("auto-round (bits)"));
        check(rounded(4, "auto_round:fp8"), Err("auto-round (auto_round:fp8)"));
        let mut floats = rounded(4, "auto_round:auto_gptq");
        floats["data_type"] = json!("mx_fp4");
        check(floats, Err("auto-round (data_type)"));
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
        for (algorithm, want) in
            [("NVFP4", Ok(rows)), ("FP8", Ok(rows)), ("W4A8_AWQ", Err("modelopt (W4A8_AWQ)"))]
        {
            check(json!({ "quant_method": "modelopt", "quant_algo": algorithm }), want);
        }
        let float4 = |format: &str| {
            let weights = json!({ "type": "float", "num_bits": 4, "symmetric": true });
            packed(json!({ "group_0": { "weights": weights, "format": format } }))
        };
        check(float4("nvfp4-pack-quantized"), Ok(rows));
        check(float4("mxfp4-pack-quantized"), Ok(rows));
        check(float4("fp4"), Err("compressed-tensors (fp4)"));
        let integers = |bits: u32, format: Value| {
            let weights = json!({ "type": "int", "num_bits": bits, "strategy": "group" });
            packed(json!({ "group_0": { "weights": weights, "format": format } }))
        };
        check(integers(4, Value::Null), Err("compressed-tensors (float-quantized)"));
        let four = Quantized::Scaled { block: None, bits: 4 };
        check(integers(4, json!("pack-quantized")), Ok(four));
        check(integers(8, json!("int-quantized")), Ok(rows));
        check(integers(5, json!("pack-quantized")), Err("compressed-tensors (pack-quantized)"));
        let mut sparse = integers(8, json!("int-quantized"));
        sparse["sparsity_config"] = json!({});
        check(sparse.clone(), Ok(rows));
        sparse["sparsity_config"] = json!({ "format": "sparse-24-bitmask" });
        check(sparse, Err("compressed-tensors (sparsity_config)"));
        let mut rotated = integers(8, json!("int-quantized"));
        rotated["transform_config"] = json!({ "config_groups": {} });
        check(rotated, Err("compressed-tensors (transform_config)"));
    }
}
