//! Weights of eight-bit floats, and the scales that stand in tensors beside them.

use super::super::checkpoint::{Checkpoint, Laid, Scales, Stored};
use super::super::encoding::Encoding;
use super::config::Quantized;
use crate::error::LoadError;

/// What tensors of scales are called behind the name of a weight.
const SUFFIXES: [&str; 2] = ["_scale_inv", "_scale"];

/// Tells of every weight in eight bits which scales it has, whether the configuration says that
/// there are any or not. One that has none is nothing that can be used.
///
/// # Errors
/// Scales of which it is not clear what they are of.
pub(super) fn join(checkpoint: &mut Checkpoint<'_>, quantized: Quantized) -> Result<(), LoadError> {
    let block = match quantized {
        Quantized::Float8 { block } => block,
        Quantized::Not | Quantized::Mxfp4 => None,
    };
    let is_float8 = |tensor: &Stored<'_>| tensor.encoding == Some(Encoding::F8E4M3);
    let names = checkpoint.tensors.iter().filter(|(_, tensor)| is_float8(tensor));
    let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
    for name in names {
        let scales = SUFFIXES.iter().find_map(|suffix| {
            let name = format!("{name}{suffix}");
            checkpoint.tensors.remove_entry(&name)
        });
        let Some(weight) = checkpoint.tensors.get_mut(&name) else { continue };
        match scales {
            Some((name, scales)) => {
                weight.laid = Laid::Scaled(scales_of(weight, (&name, &scales), block)?);
            }
            None => {
                weight.encoding = None;
                weight.dtype += " without scales";
            }
        }
    }
    Ok(())
}

/// The blocks that `scales` are of: the whole, rows or, where `block` says so, these.
fn scales_of<'a>(
    weight: &Stored<'_>,
    (name, scales): (&str, &Stored<'a>),
    block: Option<[usize; 2]>,
) -> Result<Scales<'a>, LoadError> {
    let refused = |what: String| LoadError::tensor(scales.path, name, what);
    let encoding = match scales.encoding {
        Some(it @ (Encoding::F32 | Encoding::F16 | Encoding::Bf16 | Encoding::F8E8M0)) => it,
        _ => return Err(refused(format!("scales of type {}", scales.dtype))),
    };
    let [rows, inputs] = *weight.shape else {
        return Err(refused(format!("scales of a weight of shape {:?}", weight.shape)));
    };
    let count: usize = scales.shape.iter().product();
    let by_block = block.filter(|[block_rows, columns]| {
        *scales.shape == [rows.div_ceil(*block_rows), inputs.div_ceil(*columns)]
    });
    let of_rows = matches!(*scales.shape, [all] | [all, 1] if all == rows);
    let block = match by_block {
        Some(block) => block,
        None if count == 1 => [rows, inputs],
        None if of_rows => [1, inputs],
        None => {
            let (shape, seen) = (&weight.shape, &scales.shape);
            let blocks = block.map_or_else(String::new, |size| format!(", in blocks of {size:?}"));
            return Err(refused(format!("shape {seen:?}: scales of {shape:?}{blocks}")));
        }
    };
    let block = block.map(|size| size.max(1));
    Ok(Scales { bytes: scales.bytes, encoding, block })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored<'a>(shape: &[usize], encoding: Encoding, bytes: &'a [u8]) -> Stored<'a> {
        let (shape, dtype, laid) = (shape.to_vec(), format!("{encoding:?}"), Laid::Rows);
        Stored {
            path: "file",
            shape,
            dtype,
            encoding: Some(encoding),
            order: None,
            laid,
            centre: None,
            bytes,
        }
    }

    /// Six ones beside `scales`: what they are then.
    fn check(
        shape: &[usize],
        scales: &[f32],
        block: Option<[usize; 2]>,
        want: Result<[f32; 6], &str>,
    ) {
        let (ones, scales) = ([0x38; 6], scales.iter().flat_map(|x| x.to_le_bytes()));
        let scales: Vec<u8> = scales.collect();
        for suffix in SUFFIXES {
            let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
            let weight = stored(&[2, 3], Encoding::F8E4M3, &ones);
            all.tensors.insert("a.weight".to_owned(), weight);
            let beside = stored(shape, Encoding::F32, &scales);
            all.tensors.insert(format!("a.weight{suffix}"), beside);
            let joined = join(&mut all, Quantized::Float8 { block });
            match want {
                Ok(want) => {
                    joined.unwrap();
                    let seen = all.tensors["a.weight"].f32("a.weight").unwrap();
                    assert_eq!((seen.as_slice(), all.tensors.len()), (want.as_slice(), 1));
                }
                Err(want) => {
                    let error = joined.unwrap_err().to_string();
                    assert!(error.contains(want), "{error}");
                }
            }
        }
    }

    #[test]
    fn scales_are_of_tensors_rows_or_blocks() {
        let blocks = Some([1, 2]);
        check(&[], &[2.0], None, Ok([2.0; 6]));
        check(&[1], &[0.5], blocks, Ok([0.5; 6]));
        check(&[2, 1], &[2.0, 3.0], None, Ok([2.0, 2.0, 2.0, 3.0, 3.0, 3.0]));
        check(&[2], &[2.0, 3.0], blocks, Ok([2.0, 2.0, 2.0, 3.0, 3.0, 3.0]));
        let four = [2.0, 3.0, 4.0, 5.0];
        check(&[2, 2], &four, blocks, Ok([2.0, 2.0, 3.0, 4.0, 4.0, 5.0]));
        check(&[1, 2], &[2.0, 3.0], Some([2, 2]), Ok([2.0, 2.0, 3.0, 2.0, 2.0, 3.0]));
        check(&[2, 2], &four, None, Err("shape [2, 2]: scales of [2, 3]"));
        check(&[3], &[1.0; 3], blocks, Err("shape [3]: scales of [2, 3], in blocks of [1, 2]"));
        check(&[1, 1], &[3.0], Some([128, 128]), Ok([3.0; 6]));
    }

    #[test]
    fn a_weight_without_scales_is_nothing_that_can_be_used() {
        for quantized in [Quantized::Not, Quantized::Float8 { block: None }] {
            let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
            let weight = stored(&[2, 3], Encoding::F8E4M3, &[0x38; 6]);
            all.tensors.insert("a.weight".to_owned(), weight);
            join(&mut all, quantized).unwrap();
            let error = all.tensors["a.weight"].f32("a.weight").unwrap_err().to_string();
            assert!(error.contains("`F8E4M3 without scales` is not supported"), "{error}");
        }
    }

    #[test]
    fn weights_of_other_types_keep_their_scales() {
        let bytes = [0; 4];
        let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
        all.tensors.insert("a.weight".to_owned(), stored(&[1, 1], Encoding::F32, &bytes));
        all.tensors.insert("a.weight_scale".to_owned(), stored(&[1], Encoding::F32, &bytes));
        join(&mut all, Quantized::Float8 { block: None }).unwrap();
        assert_eq!(all.tensors.len(), 2);
    }
}
