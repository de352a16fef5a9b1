//! Weights of eight bits, floats or integers, and the scales that stand in tensors beside them.

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
        Quantized::Scaled { block, .. } => block,
        Quantized::Not | Quantized::Mxfp4 | Quantized::Gptq { .. } | Quantized::Awq => None,
        Quantized::Ternary { .. } | Quantized::Trained => None,
    };
    let has_scales = |tensor: &Stored<'_>| {
        let kinds = [Encoding::F8E4M3, Encoding::Int].map(Some);
        kinds.contains(&tensor.encoding) && tensor.laid == Laid::Rows
    };
    let names = checkpoint.tensors.iter().filter(|(_, tensor)| has_scales(tensor));
    let names: Vec<String> = names.map(|(name, _)| name.clone()).collect();
    for name in names {
        let scales = SUFFIXES.iter().find_map(|suffix| {
            let name = format!("{name}{suffix}");
            checkpoint.tensors.remove_entry(&name)
        });
        no_zeros(checkpoint, &name)?;
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

/// Integers of which another one than 0 stands for zero are those of few bits alone.
fn no_zeros(checkpoint: &mut Checkpoint<'_>, weight: &str) -> Result<(), LoadError> {
    let name = format!("{weight}_zero_point");
    match checkpoint.tensors.remove(&name) {
        Some(zeros) if zeros.bytes.iter().any(|&byte| byte != 0) => {
            Err(LoadError::tensor(zeros.path, &name, "must be absent, or 0 of all"))
        }
        _ => Ok(()),
    }
}

/// The blocks that `scales` are of: the whole, rows or, where `block` says so, these. Experts may
/// stand in one tensor, one matrix after the other; then scales do, or all share one.
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
    let count: usize = scales.shape.iter().product();
    let found = match *weight.shape {
        [rows, inputs] => block_of(&scales.shape, [rows, inputs], block),
        [_, rows, inputs] if count == 1 => Some([rows, inputs]),
        [experts, rows, inputs] => match scales.shape.strip_prefix(&[experts]) {
            // Of gate and up in one, in which transformers has a scale of each.
            Some([2, 1]) if rows.is_multiple_of(2) => Some([rows / 2, inputs]),
            Some(of_each) => block_of(of_each, [rows, inputs], block),
            None => None,
        },
        _ => return Err(refused(format!("scales of a weight of shape {:?}", weight.shape))),
    };
    let Some(found) = found else {
        let (shape, seen) = (&weight.shape, &scales.shape);
        let blocks = block.map_or_else(String::new, |size| format!(", in blocks of {size:?}"));
        return Err(refused(format!("shape {seen:?}: scales of {shape:?}{blocks}")));
    };
    let block = found.map(|size| size.max(1));
    Ok(Scales { bytes: scales.bytes, encoding, block, factor: 1.0 })
}

/// What each scale of a matrix is of, where scales have this shape.
fn block_of(
    scales: &[usize],
    [rows, inputs]: [usize; 2],
    block: Option<[usize; 2]>,
) -> Option<[usize; 2]> {
    let by_block = block.filter(|[block_rows, columns]| {
        *scales == [rows.div_ceil(*block_rows), inputs.div_ceil(*columns)]
    });
    let of_rows = matches!(*scales, [all] | [all, 1] if all == rows);
    match by_block {
        None if scales.iter().product::<usize>() == 1 => Some([rows, inputs]),
        None if of_rows => Some([1, inputs]),
        by_block => by_block,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored<'a>(shape: &[usize], encoding: Encoding, bytes: &'a [u8]) -> Stored<'a> {
        Stored::new("file", shape, (&format!("{encoding:?}"), Some(encoding)), bytes)
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
            let joined = join(&mut all, Quantized::Scaled { block, bits: 8 });
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

    /// Two matrices of two rows of three, either in one tensor or in two.
    fn of_two(
        is_stack: bool,
        (shape, scales): (&[usize], &[f32]),
        block: Option<[usize; 2]>,
    ) -> Result<[Vec<f32>; 2], String> {
        let bytes: Vec<u8> = (0x30..0x3c).collect();
        let scales: Vec<u8> = scales.iter().flat_map(|x| x.to_le_bytes()).collect();
        let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
        let mut insert = |name: &str, tensor| all.tensors.insert(name.to_owned(), tensor);
        if is_stack {
            insert("up", stored(&[2, 2, 3], Encoding::F8E4M3, &bytes));
            insert("up_scale_inv", stored(shape, Encoding::F32, &scales));
            // Of what is multiplied by the weights, which nobody rounds here.
            insert("up_activation_scale", stored(&[2], Encoding::F32, &[0; 8]));
        } else {
            let scales = scales.chunks(scales.len() / 2);
            for (idx, (bytes, scales)) in bytes.chunks(6).zip(scales).enumerate() {
                let name = format!("up.{idx}.weight");
                insert(&name, stored(&[2, 3], Encoding::F8E4M3, bytes));
                insert(&format!("{name}_scale_inv"), stored(shape, Encoding::F32, scales));
            }
        }
        join(&mut all, Quantized::Scaled { block, bits: 8 }).map_err(|error| error.to_string())?;
        if is_stack {
            all.cut_stack("up", 2).map_err(|error| error.to_string())?;
            assert!(all.tensors.remove("up_activation_scale").is_some());
        }
        assert_eq!(all.tensors.len(), 2);
        Ok([0, 1].map(|idx| {
            let name = format!("up.{idx}.weight");
            all.tensors[&name].f32(&name).unwrap()
        }))
    }

    #[test]
    fn stacks_are_what_their_matrices_are() {
        fn check(stack: (&[usize], &[f32]), each: (&[usize], &[f32]), block: Option<[usize; 2]>) {
            let [seen, want] = [(true, stack), (false, each)].map(|(is_stack, scales)| {
                of_two(is_stack, scales, block).unwrap_or_else(|error| panic!("{error}"))
            });
            assert_eq!(seen, want, "{stack:?}");
            assert_ne!(seen[0], seen[1]);
        }
        let two = [2.0, 3.0];
        let four = [2.0, 3.0, 4.0, 5.0];
        let eight = [2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        for block in [None, Some([1, 2])] {
            check((&[], &[2.0]), (&[], &[2.0; 2]), block);
            check((&[1], &[2.0]), (&[], &[2.0; 2]), block);
            check((&[2], &two), (&[], &two), block);
            check((&[2, 1, 1], &two), (&[], &two), block);
            check((&[2, 2], &four), (&[2], &four), block);
            check((&[2, 2, 1], &four), (&[2, 1], &four), block);
        }
        check((&[2, 2, 2], &eight), (&[2, 2], &eight), Some([1, 2]));
        check((&[2, 1, 2], &four), (&[1, 2], &four), Some([2, 2]));
        let odd = of_two(true, (&[2, 2, 2], &eight), None).unwrap_err();
        assert!(odd.contains("shape [2, 2, 2]: scales of [2, 2, 3]"), "{odd}");
        let few = of_two(true, (&[3], &[1.0; 3]), None).unwrap_err();
        assert!(few.contains("shape [3]: scales of [2, 2, 3]"), "{few}");
    }

    #[test]
    fn gate_and_up_in_one_may_have_a_scale_each() {
        let weight = stored(&[3, 4, 5], Encoding::F8E4M3, &[]);
        let blocks = |shape: &[usize]| {
            let scales = stored(shape, Encoding::F32, &[]);
            scales_of(&weight, ("scales", &scales), None).ok().map(|scales| scales.block)
        };
        assert_eq!(blocks(&[3, 2, 1]), Some([2, 5]));
        assert_eq!(blocks(&[3, 4, 1]), Some([1, 5]));
        assert_eq!(blocks(&[3, 3, 1]), None);
    }

    #[test]
    fn a_weight_without_scales_is_nothing_that_can_be_used() {
        for quantized in [Quantized::Not, Quantized::Scaled { block: None, bits: 8 }] {
            let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
            let weight = stored(&[2, 3], Encoding::F8E4M3, &[0x38; 6]);
            all.tensors.insert("a.weight".to_owned(), weight);
            join(&mut all, quantized).unwrap();
            let error = all.tensors["a.weight"].f32("a.weight").unwrap_err().to_string();
            assert!(error.contains("`F8E4M3 without scales` is not supported"), "{error}");
        }
    }

    #[test]
    fn integers_have_0_for_zero() {
        let check = |zeros: &[u8], want: Option<&str>| {
            let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
            let mut insert = |name: &str, tensor| all.tensors.insert(name.to_owned(), tensor);
            insert("a.weight", stored(&[2, 2], Encoding::Int, &[1; 4]));
            insert("a.weight_scale", stored(&[1], Encoding::F32, &[0; 4]));
            insert("a.weight_zero_point", stored(&[2, 1], Encoding::Int, zeros));
            let refused = join(&mut all, Quantized::Scaled { block: None, bits: 8 }).err();
            let refused = refused.map(|error| error.to_string());
            assert_eq!(refused.is_some(), want.is_some());
            assert!(refused.unwrap_or_default().contains(want.unwrap_or_default()));
        };
        check(&[0, 0], None);
        check(&[0, 3], Some("a.weight_zero_point: must be absent"));
    }

    #[test]
    fn weights_of_other_types_keep_their_scales() {
        let bytes = [0; 4];
        let mut all = Checkpoint { path: "folder".to_owned(), tensors: Default::default() };
        all.tensors.insert("a.weight".to_owned(), stored(&[1, 1], Encoding::F32, &bytes));
        all.tensors.insert("a.weight_scale".to_owned(), stored(&[1], Encoding::F32, &bytes));
        join(&mut all, Quantized::Scaled { block: None, bits: 8 }).unwrap();
        assert_eq!(all.tensors.len(), 2);
    }
}
