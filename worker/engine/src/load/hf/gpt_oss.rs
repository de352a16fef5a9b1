//! gpt-oss' experts: all of a layer in one tensor, as columns or in four bits, and the rows of gate
//! and up by turns.

use super::super::checkpoint::{Checkpoint, HeadRows, Laid, RowOrder, Scales, Stored};
use super::super::decoder::{Decoder, ManyExperts};
use super::super::encoding::Encoding;
use crate::error::LoadError;

/// Elements of MXFP4 that share a scale, and bytes that they are in.
const BLOCK: [usize; 2] = [32, 16];

/// Takes the experts apart and tells how they lie, so that they are what other models' are.
///
/// # Errors
/// Tensors of another shape than the configuration's.
pub(super) fn take_apart(
    checkpoint: &mut Checkpoint<'_>,
    decoder: &Decoder,
) -> Result<(), LoadError> {
    let Some(experts) = &decoder.experts else { return Ok(()) };
    let (width, ffn) = (decoder.shape.width as usize, experts.ffn as usize);
    for layer in 0..decoder.shape.layers {
        let prefix = format!("model.layers.{layer}.mlp.experts");
        let by_turns = RowOrder::Heads(HeadRows {
            first: 0,
            rows: 2 * ffn,
            head_dim: 2 * ffn,
            rotary_dim: 2 * ffn,
            neighbours: true,
            by_head: None,
            rotated_last: false,
        });
        let parts =
            [("gate_up_proj", [2 * ffn, width], Some(by_turns)), ("down_proj", [width, ffn], None)];
        for (part, shape, order) in parts {
            let name = format!("{prefix}.{part}");
            four_bits(checkpoint, &name, shape, experts)?;
            columns(checkpoint, &name, experts)?;
            checkpoint.cut_biases(&format!("{name}_bias"), &name, experts.count as usize)?;
            let of_each = (0..experts.count)
                .flat_map(|idx| ["weight", "bias"].map(|suffix| format!("{name}.{idx}.{suffix}")));
            for one in of_each {
                if let Some(tensor) = checkpoint.tensors.get_mut(&one) {
                    tensor.order = order;
                }
            }
        }
    }
    Ok(())
}

/// `[experts, outputs, inputs / 32, 16]` of two elements a byte, and a scale for each 32.
fn four_bits(
    checkpoint: &mut Checkpoint<'_>,
    name: &str,
    [outputs, inputs]: [usize; 2],
    experts: &ManyExperts,
) -> Result<(), LoadError> {
    let count = experts.count as usize;
    let names = ["blocks", "scales"].map(|part| format!("{name}_{part}"));
    let found = names.each_ref().map(|name| checkpoint.tensors.remove(name));
    let (blocks, scales) = match found {
        [Some(blocks), Some(scales)] => (blocks, scales),
        [None, None] => return Ok(()),
        [blocks, _] => {
            let missing = &names[usize::from(blocks.is_some())];
            return Err(LoadError::tensor(&checkpoint.path, missing, "missing"));
        }
    };
    let [block, bytes] = BLOCK;
    let rows = [count, outputs, inputs.div_ceil(block)];
    let wants = [[&rows[..], &[bytes]].concat(), rows.to_vec()];
    for ((tensor, name), want) in [&blocks, &scales].into_iter().zip(&names).zip(&wants) {
        if tensor.shape != *want || tensor.dtype != "U8" || !inputs.is_multiple_of(block) {
            let Stored { shape, dtype, .. } = tensor;
            let what = format!("{dtype} {shape:?}, the configuration asks for U8 {want:?}");
            return Err(LoadError::tensor(tensor.path, name, what));
        }
    }
    let each = |tensor: &Stored<'_>| (tensor.bytes.len() / count).max(1);
    let sizes = [each(&blocks), each(&scales)];
    let of_each = blocks.bytes.chunks_exact(sizes[0]).zip(scales.bytes.chunks_exact(sizes[1]));
    for (idx, (bytes, scales)) in of_each.enumerate() {
        let one = Stored {
            shape: vec![outputs, inputs],
            dtype: "MXFP4".to_owned(),
            encoding: Some(Encoding::F4E2M1),
            laid: Laid::Scaled(Scales {
                bytes: scales,
                encoding: Encoding::F8E8M0,
                block: [1, block],
                factor: 1.0,
            }),
            bytes,
            ..blocks.clone()
        };
        checkpoint.tensors.insert(format!("{name}.{idx}.weight"), one);
    }
    Ok(())
}

/// Takes `[experts, inputs, outputs]` apart, if it is there.
pub(super) fn columns(
    checkpoint: &mut Checkpoint<'_>,
    name: &str,
    experts: &ManyExperts,
) -> Result<(), LoadError> {
    let Some(stack) = checkpoint.tensors.get(name) else { return Ok(()) };
    if stack.laid != Laid::Rows {
        // Blocks are of rows here, and no file has shown what they would be of columns.
        return Err(LoadError::tensor(stack.path, name, "columns with scales"));
    }
    checkpoint.cut_stack(name, experts.count as usize)?;
    for idx in 0..experts.count {
        if let Some(tensor) = checkpoint.tensors.get_mut(&format!("{name}.{idx}.weight")) {
            tensor.shape.reverse();
            tensor.laid = Laid::Columns;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored<'a>(shape: &[usize], dtype: &str, bytes: &'a [u8]) -> Stored<'a> {
        Stored::new("file", shape, (dtype, None), bytes)
    }

    fn experts(count: u32) -> ManyExperts {
        ManyExperts {
            count,
            chosen: 1,
            ffn: 2,
            shared_ffn: None,
            shared_gate: false,
            scoring: aqueduct_kernels::experts::Scoring::Softmax,
            bias: false,
            normalises: true,
            scale: 1.0,
            layers: vec![true],
        }
    }

    /// Two experts of three rows of 64.
    fn check(
        blocks: Option<(&[usize], &str)>,
        scales: Option<&[usize]>,
    ) -> Result<Vec<String>, String> {
        let bytes = [7; 2 * 3 * 2 * 16];
        let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
        if let Some((shape, dtype)) = blocks {
            all.tensors.insert("part_blocks".to_owned(), stored(shape, dtype, &bytes));
        }
        if let Some(shape) = scales {
            all.tensors.insert("part_scales".to_owned(), stored(shape, "U8", &bytes[..12]));
        }
        let done = four_bits(&mut all, "part", [3, 64], &experts(2));
        done.map_err(|error| error.to_string())?;
        Ok(all.tensors.into_keys().collect())
    }

    #[test]
    fn columns_with_scales_are_refused() {
        let check = |laid, want: Option<&str>| {
            let part = Stored { laid, ..stored(&[2, 1, 2], "F8_E4M3", &[0; 4]) };
            let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
            all.tensors.insert("part".to_owned(), part);
            let done = columns(&mut all, "part", &experts(2)).map_err(|error| error.to_string());
            assert_eq!(done.err().as_deref(), want);
        };
        check(Laid::Rows, None);
        let scales = Scales { bytes: &[0; 4], encoding: Encoding::F32, block: [1, 2], factor: 1.0 };
        check(Laid::Scaled(scales), Some("file: tensor part: columns with scales"));
    }

    #[test]
    fn blocks_and_scales_are_cut_into_matrices() {
        let (blocks, scales) = ([2, 3, 2, 16], [2, 3, 2]);
        let both = check(Some((&blocks, "U8")), Some(&scales)).unwrap();
        assert_eq!(both, ["part.0.weight", "part.1.weight"]);
        assert_eq!(check(None, None), Ok(Vec::new()));
        for (both, missing) in [
            (check(None, Some(&scales)), "part_blocks: missing"),
            (check(Some((&blocks, "U8")), None), "part_scales: missing"),
        ] {
            let error = both.unwrap_err();
            assert!(error.contains(missing), "{error}");
        }
        for (blocks, dtype, scales) in [
            ([2, 3, 1, 32], "U8", [2, 3, 2]),
            ([1, 6, 2, 16], "U8", [2, 3, 2]),
            ([2, 3, 2, 16], "BF16", [2, 3, 2]),
            ([2, 3, 2, 16], "U8", [2, 2, 3]),
        ] {
            let error = check(Some((&blocks, dtype)), Some(&scales)).unwrap_err();
            assert!(error.contains("the configuration asks for U8 [2, 3, 2"), "{error}");
        }
    }
}
