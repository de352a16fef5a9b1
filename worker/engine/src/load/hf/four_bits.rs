//! Weights of four-bit floats (E2M1), two in a byte, with a scale for every few inputs in a tensor
//! beside them: NVFP4 as compressed-tensors and NVIDIA's ModelOpt write it, and MXFP4 as the former
//! does.

use super::super::checkpoint::{Checkpoint, Laid, Scales, Stored};
use super::super::encoding::Encoding;
use crate::error::LoadError;

/// Inputs that share a scale of E8M0, and of E4M3.
const MXFP4_BLOCK: usize = 32;
const NVFP4_BLOCK: usize = 16;

/// Puts scales together with every weight that is of bytes: `name.weight`, as others have.
///
/// # Errors
/// Some are missing, or are of a shape that does not fit.
pub(super) fn join(checkpoint: &mut Checkpoint<'_>) -> Result<(), LoadError> {
    let is_of_bytes = |name: &str, tensor: &Stored<'_>| {
        let is_named = name.ends_with(".weight") || name.ends_with(".weight_packed");
        let is_matrix = matches!(*tensor.shape, [rows, pairs] if rows * pairs > 0);
        is_named && tensor.dtype == "U8" && is_matrix
    };
    let names = checkpoint.tensors.iter().filter(|(name, tensor)| is_of_bytes(name, tensor));
    let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
    for name in names {
        let Some(bytes) = checkpoint.tensors.remove(&name) else { continue };
        let module = name.strip_suffix("_packed").unwrap_or(&name).to_owned();
        let scales = scales_of(checkpoint, &module, &bytes)?;
        let weight = Stored {
            shape: vec![bytes.shape[0], 2 * bytes.shape[1]],
            dtype: format!("F4 in blocks of {}", scales.block[1]),
            encoding: Some(Encoding::F4E2M1),
            laid: Laid::Scaled(scales),
            ..bytes
        };
        checkpoint.tensors.insert(module, weight);
    }
    Ok(())
}

/// Of the weight `name`, two of whose elements are in each of `bytes`.
fn scales_of<'a>(
    checkpoint: &mut Checkpoint<'a>,
    name: &str,
    bytes: &Stored<'_>,
) -> Result<Scales<'a>, LoadError> {
    let refused = |part: &str, what: String| {
        Err(LoadError::tensor(bytes.path, &format!("{name}_{part}"), what))
    };
    let Some(scales) = checkpoint.tensors.remove(&format!("{name}_scale")) else {
        return refused("scale", "missing beside a weight of bytes".to_owned());
    };
    let (encoding, block, factor) = match (scales.encoding, &*scales.dtype) {
        (Some(Encoding::F8E4M3), _) => {
            (Encoding::F8E4M3, NVFP4_BLOCK, factor_of(checkpoint, name, bytes)?)
        }
        (Some(Encoding::F8E8M0), _) | (None, "U8") => (Encoding::F8E8M0, MXFP4_BLOCK, 1.0),
        (_, dtype) => return refused("scale", format!("scales of type {dtype}")),
    };
    let [rows, pairs] = [bytes.shape[0], bytes.shape[1]];
    if *scales.shape != [rows, (2 * pairs).div_ceil(block)] {
        let (seen, all) = (&scales.shape, [rows, 2 * pairs]);
        let what = format!("shape {seen:?}: scales of {all:?}, in blocks of {block}");
        return refused("scale", what);
    }
    Ok(Scales { bytes: scales.bytes, encoding, block: [1, block], factor })
}

/// What multiplies all scales of a matrix: ModelOpt has it, and compressed-tensors its inverse.
fn factor_of(
    checkpoint: &mut Checkpoint<'_>,
    name: &str,
    bytes: &Stored<'_>,
) -> Result<f32, LoadError> {
    for (part, divides) in [("scale_2", false), ("global_scale", true)] {
        let name = format!("{name}_{part}");
        let Some(tensor) = checkpoint.tensors.remove(&name) else { continue };
        let found = match (tensor.encoding, tensor.bytes) {
            (Some(Encoding::F32), &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            _ => f32::NAN,
        };
        let found = if divides { 1.0 / found } else { found };
        if found.is_finite() {
            return Ok(found);
        }
        let what = "must be one finite number of F32, and not 0 where it divides";
        return Err(LoadError::tensor(tensor.path, &name, what));
    }
    let name = format!("{name}_global_scale");
    Err(LoadError::tensor(bytes.path, &name, "missing, and so is what ModelOpt has"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: (&str, Option<Encoding>) = ("U8", None);
    const E4M3: (&str, Option<Encoding>) = ("F8_E4M3", Some(Encoding::F8E4M3));
    const F32: (&str, Option<Encoding>) = ("F32", Some(Encoding::F32));
    const TWO: [u8; 4] = [0, 0, 0, 0x40];

    /// A row of 32: sixteen times 1 and 2.
    fn weight<'a>() -> Stored<'a> {
        Stored::new("file", &[1, 16], BYTES, &[0x42; 16])
    }

    fn joined<'a>(tensors: &[(&str, Stored<'a>)]) -> Result<Checkpoint<'a>, String> {
        let named = |(part, tensor): &(&str, Stored<'a>)| (format!("a.{part}"), tensor.clone());
        let tensors = tensors.iter().map(named).collect();
        let mut all = Checkpoint { path: "folder".to_owned(), tensors };
        join(&mut all).map_err(|error| error.to_string())?;
        Ok(all)
    }

    #[test]
    fn scales_are_of_sixteen_or_of_thirty_two() {
        let check = |tensors: &[(&str, Stored<'_>)], want: [f32; 2]| {
            let all = joined(tensors).unwrap();
            assert_eq!(Vec::from_iter(all.tensors.keys()), ["a.weight"]);
            let row = all.tensors["a.weight"].f32("a.weight").unwrap();
            assert_eq!((row.len(), [row[0], row[31]]), (32, want));
        };
        // Of E4M3: 1 and 0.5.
        let scales = Stored::new("file", &[1, 2], E4M3, &[0x38, 0x30]);
        let nvfp4 = |name, part| {
            let factor = Stored::new("file", &[1], F32, &TWO);
            [(name, weight()), ("weight_scale", scales.clone()), (part, factor)]
        };
        check(&nvfp4("weight", "weight_scale_2"), [2.0, 2.0]);
        check(&nvfp4("weight_packed", "weight_global_scale"), [0.5, 0.5]);
        let of_all = Stored::new("file", &[1, 1], BYTES, &[129]);
        check(&[("weight_packed", weight()), ("weight_scale", of_all)], [4.0, 8.0]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let check = |tensors: &[(&str, Stored<'_>)], want: &str| {
            let error = joined(tensors).unwrap_err();
            assert!(error.contains(want), "{error}");
        };
        let scales = |shape| ("weight_scale", Stored::new("file", shape, E4M3, &[0x38; 4]));
        let factor = |bytes| ("weight_global_scale", Stored::new("file", &[], F32, bytes));
        check(&[("weight", weight())], "a.weight_scale: missing beside a weight of bytes");
        check(&[("weight", weight()), scales(&[1, 2])], "a.weight_global_scale: missing");
        let wrong = "shape [1, 4]: scales of [1, 32], in blocks of 16";
        check(&[("weight", weight()), scales(&[1, 4]), factor(&TWO)], wrong);
        let zero = "must be one finite number of F32, and not 0 where it divides";
        check(&[("weight", weight()), scales(&[1, 2]), factor(&[0; 4])], zero);
        let of_f32 = ("weight_scale", Stored::new("file", &[1, 2], F32, &[0; 8]));
        check(&[("weight", weight()), of_f32], "scales of type F32");
    }
}
