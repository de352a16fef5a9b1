//! Weights of -1, 0 and 1 (Microsoft 2025, BitNet b1.58): packed beside the scale of a whole
//! matrix, or as they were trained, to be rounded.
//!
//! Both are held as what such a weight multiplies rows by, exactly. transformers rounds rows to
//! eight bits besides, whichever precision it computes in; here they keep what they have.

use super::super::checkpoint::{Centre, Checkpoint, Laid, Stored, TERNARIES};
use super::super::encoding::Encoding;
use super::config::Quantized;
use crate::error::LoadError;

/// The least mean size, as in transformers.
const LEAST: f64 = 1e-5;

/// Tells what the weights of linear maps are.
///
/// # Errors
/// A scale that is missing, or no number above 0.
pub(super) fn join(checkpoint: &mut Checkpoint<'_>, quantized: Quantized) -> Result<(), LoadError> {
    match quantized {
        Quantized::Ternary { divides } => unpack(checkpoint, divides),
        Quantized::Trained => round(checkpoint),
        _ => Ok(()),
    }
}

fn unpack(checkpoint: &mut Checkpoint<'_>, divides: bool) -> Result<(), LoadError> {
    let is_packed = |tensor: &Stored<'_>| tensor.dtype == "U8" && tensor.shape.len() == 2;
    let names = checkpoint.tensors.iter().filter(|(_, tensor)| is_packed(tensor));
    let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
    for name in names {
        let beside = format!("{name}_scale");
        let Some(scale) = checkpoint.tensors.remove(&beside) else {
            return Err(LoadError::tensor(&checkpoint.path, &beside, "missing"));
        };
        let said = scale.f32(&beside)?;
        let scale = match said[..] {
            [scale] if scale > 0.0 && divides => 1.0 / scale,
            [scale] if scale > 0.0 => scale,
            _ => {
                let what = format!("{} numbers: must be one above 0", said.len());
                return Err(LoadError::tensor(scale.path, &beside, what));
            }
        };
        if let Some(weight) = checkpoint.tensors.get_mut(&name) {
            weight.shape[0] *= TERNARIES;
            weight.dtype = "ternary".to_owned();
            weight.encoding = Some(Encoding::Int);
            weight.laid = Laid::Ternary { scale };
        }
    }
    Ok(())
}

fn round(checkpoint: &mut Checkpoint<'_>) -> Result<(), LoadError> {
    let is_map = |name: &str| name.starts_with("model.layers.") && name.ends_with("_proj.weight");
    for (name, weight) in checkpoint.tensors.iter_mut().filter(|(name, _)| is_map(name)) {
        let elements = weight.f32(name)?;
        let sum: f64 = elements.iter().map(|x| f64::from(x.abs())).sum();
        let mean = (sum / elements.len().max(1) as f64).max(LEAST);
        weight.centre = Some(Centre::Ternary { scale: 1.0 / mean as f32 });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint<'a>(tensors: &[(&str, Stored<'a>)]) -> Checkpoint<'a> {
        let tensors = tensors.iter().map(|(name, tensor)| ((*name).to_owned(), tensor.clone()));
        Checkpoint { path: "folder".to_owned(), tensors: tensors.collect() }
    }

    #[test]
    fn four_rows_are_in_one() {
        let bytes = [0b10_01_00_10, 0b00_01_10_01];
        let packed = Stored::new("file", &[1, 2], ("U8", None), &bytes);
        let check = |scale: f32, divides: bool, want: Result<f32, &str>| {
            let scale = scale.to_le_bytes();
            let beside = Stored::new("file", &[1], ("F32", Some(Encoding::F32)), &scale);
            let mut all = checkpoint(&[("a.weight", packed.clone()), ("a.weight_scale", beside)]);
            let done = join(&mut all, Quantized::Ternary { divides });
            let seen = done.and_then(|()| all.find("a.weight", &[4, 2])?.f32("a.weight"));
            let want = want.map(|by| [1.0, 0.0, -1.0, 1.0, 0.0, 0.0, 1.0, -1.0].map(|x| x * by));
            assert_eq!(
                seen.map_err(|error| error.to_string()),
                want.map_err(str::to_owned).map(Vec::from)
            );
        };
        check(0.5, false, Ok(0.5));
        check(0.5, true, Ok(2.0));
        check(0.0, true, Err("file: tensor a.weight_scale: 1 numbers: must be one above 0"));
        let mut none = checkpoint(&[("a.weight", packed)]);
        let error = join(&mut none, Quantized::Ternary { divides: false }).unwrap_err().to_string();
        assert_eq!(error, "folder: tensor a.weight_scale: missing");
    }

    #[test]
    fn trained_weights_are_rounded_by_their_mean_size() {
        let bytes: Vec<u8> =
            [3.0_f32, -1.0, 0.5, -0.5].iter().flat_map(|x| x.to_le_bytes()).collect();
        let trained = Stored::new("file", &[2, 2], ("F32", Some(Encoding::F32)), &bytes);
        let [map, other] = ["model.layers.0.mlp.up_proj.weight", "lm_head.weight"];
        let mut all = checkpoint(&[(map, trained.clone()), (other, trained)]);
        join(&mut all, Quantized::Trained).unwrap();
        // 1.25 on average.
        let seen = |name: &str| all.tensors[name].f32(name).unwrap();
        assert_eq!(seen(map), [1.25, -1.25, 0.0, 0.0]);
        assert_eq!(seen(other), [3.0, -1.0, 0.5, -0.5]);
    }
}
