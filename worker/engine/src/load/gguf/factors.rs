//! Numbers that multiply whole matrices, in tensors beside them. llama.cpp's converter writes them
//! for NVFP4, whose blocks' scales are relative to one.

use super::architecture::Architecture;
use crate::error::LoadError;
use crate::load::checkpoint::{Checkpoint, Laid, Scales, Stored};
use crate::load::encoding::Encoding;

/// What their names have where those of matrices have the other.
const SUFFIXES: [&str; 2] = [".scale", ".weight"];

/// Gemma 4's experts have such numbers of what they give, whatever their weights are.
const OF_EXPERTS: &str = ".ffn_down_exps.weight";

/// Tells of every matrix of few bits what multiplies it, where anything does.
///
/// # Errors
/// Numbers of which it is not clear what they are of.
pub(super) fn join(
    checkpoint: &mut Checkpoint<'_>,
    architecture: Architecture,
) -> Result<(), LoadError> {
    let is_other = |name: &str| architecture == Architecture::Gemma4 && name.ends_with(OF_EXPERTS);
    let of_matrices = checkpoint.tensors.iter().filter_map(|(name, tensor)| {
        let of = format!("{}{}", name.strip_suffix(SUFFIXES[0])?, SUFFIXES[1]);
        (!is_other(&of)).then(|| (name.clone(), of, tensor.clone()))
    });
    for (name, of, factors) in of_matrices.collect::<Vec<_>>() {
        let Some(matrix) = checkpoint.tensors.get_mut(&of) else { continue };
        if matrix.encoding.is_some_and(Encoding::is_quantised) {
            matrix.laid = Laid::Scaled(scales_of(matrix, (&name, &factors))?);
            checkpoint.tensors.remove(&name);
        }
    }
    Ok(())
}

/// One for the whole, or for each matrix of several.
fn scales_of<'a>(
    matrix: &Stored<'_>,
    (name, factors): (&str, &Stored<'a>),
) -> Result<Scales<'a>, LoadError> {
    let refused = |what: String| LoadError::tensor(factors.path, name, what);
    let encoding = match factors.encoding {
        Some(it) if !it.is_quantised() => it,
        _ => return Err(refused(format!("factors of type {}", factors.dtype))),
    };
    let (matrices, block) = match *matrix.shape {
        [rows, inputs] => (1, [rows, inputs]),
        [matrices, rows, inputs] => (matrices, [rows, inputs]),
        _ => return Err(refused(format!("factors of a tensor of shape {:?}", matrix.shape))),
    };
    let count = factors.bytes.len() / encoding.element_bytes();
    if count != 1 && count != matrices {
        let what = format!("shape {:?}, should be 1 or {matrices} factors", factors.shape);
        return Err(refused(what));
    }
    // One is of all rows also where matrices are read as one.
    let rows = if count == 1 { block[0].saturating_mul(matrices) } else { block[0] };
    let block = [rows, block[1]].map(|size| size.max(1));
    Ok(Scales { bytes: factors.bytes, encoding, block, factor: 1.0 })
}

#[cfg(test)]
mod tests {
    use aqueduct_gguf::Gguf;
    use aqueduct_gguf::write::Writer;

    use super::super::parts::Part;
    use super::super::tensors;
    use super::*;

    /// Of type NVFP4: 64 ones a row.
    const NVFP4: u32 = 40;
    const F32: u32 = 0;

    fn ones(rows: usize) -> Vec<u8> {
        [&[0x38; 4][..], &[0x22; 32]].concat().repeat(rows)
    }

    fn f32s(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|x| x.to_le_bytes()).collect()
    }

    /// What `see` finds in this file of this architecture.
    fn check(
        file: Writer,
        architecture: Architecture,
        see: impl FnOnce(Result<Checkpoint<'_>, LoadError>),
    ) {
        let bytes = file.finish();
        let parts = [Part { path: "file", gguf: Gguf::parse(&bytes).unwrap() }];
        let mut made = tensors::checkpoint(&parts).unwrap();
        let joined = join(&mut made, architecture);
        see(joined.map(|()| made));
    }

    #[test]
    fn matrices_are_multiplied() {
        let file = Writer::new()
            .tensor("a.weight", &[64, 2], NVFP4, &ones(2))
            .tensor("a.scale", &[1], F32, &f32s(&[0.25]))
            .tensor("a.input_scale", &[1], F32, &f32s(&[9.0]))
            .tensor("b_exps.weight", &[64, 1, 3], NVFP4, &ones(3))
            .tensor("b_exps.scale", &[3], F32, &f32s(&[2.0, 3.0, 5.0]))
            .tensor("c.weight", &[64, 1], NVFP4, &ones(1))
            .tensor("e.weight", &[64, 1, 2], NVFP4, &ones(2))
            .tensor("e.scale", &[1], F32, &f32s(&[4.0]))
            .tensor("d.weight", &[2], F32, &f32s(&[1.0, 1.0]))
            .tensor("d.scale", &[2], F32, &f32s(&[7.0, 7.0]));
        check(file, Architecture::Qwen3Moe, |made| {
            let mut made = made.unwrap();
            let heads = Stored { shape: vec![2, 64], ..made.tensors["e.weight"].clone() };
            assert_eq!(heads.f32("e.weight").unwrap(), [4.0; 128]);
            made.cut_stack("e", 2).unwrap();
            made.cut_stack("b_exps", 3).unwrap();
            let all = |name: &str, x| {
                assert!(made.tensors[name].f32(name).unwrap().iter().all(|&y| y == x), "{name}");
            };
            all("a.weight", 0.25);
            all("b_exps.0.weight", 2.0);
            all("b_exps.2.weight", 5.0);
            all("c.weight", 1.0);
            all("e.1.weight", 4.0);
            all("d.weight", 1.0);
        });
    }

    #[test]
    fn what_gemma_calls_so_is_another_number() {
        let down =
            |name: &str| {
                Writer::new()
                    .tensor(&format!("{name}.weight"), &[64, 1, 2], NVFP4, &ones(2))
                    .tensor(&format!("{name}.scale"), &[2], F32, &f32s(&[2.0, 2.0]))
            };
        let first = |made: Result<Checkpoint<'_>, LoadError>, name: &str| {
            let mut made = made.unwrap();
            made.cut_stack(name, 2).unwrap();
            let name = format!("{name}.0.weight");
            made.tensors[&name].f32(&name).unwrap()[0]
        };
        let (experts, gate) = ("blk.0.ffn_down_exps", "blk.0.ffn_gate_exps");
        check(down(experts), Architecture::Gemma4, |made| assert_eq!(first(made, experts), 1.0));
        check(down(gate), Architecture::Gemma4, |made| assert_eq!(first(made, gate), 2.0));
        check(down(experts), Architecture::Llama, |made| assert_eq!(first(made, experts), 2.0));
    }

    #[test]
    fn what_is_not_clear_is_refused() {
        let refuse = |dims: &[u64], scale: (&[u64], u32, &[u8]), said: &str| {
            let rows: u64 = dims[1..].iter().product();
            let file = Writer::new()
                .tensor("a.weight", dims, NVFP4, &ones(rows as usize))
                .tensor("a.scale", scale.0, scale.1, scale.2);
            check(file, Architecture::Llama, |made| {
                let refused = made.unwrap_err().to_string();
                assert!(refused.contains("a.scale") && refused.contains(said), "{refused}");
            });
        };
        refuse(&[64, 2], (&[2], F32, &f32s(&[1.0, 1.0])), "should be 1 or 1 factors");
        refuse(&[64, 1, 3], (&[2], F32, &f32s(&[1.0, 1.0])), "should be 1 or 3 factors");
        refuse(&[64, 1], (&[64], NVFP4, &ones(1)), "factors of type NVFP4");
        refuse(&[64], (&[1], F32, &f32s(&[1.0])), "of a tensor of shape [64]");
    }
}
