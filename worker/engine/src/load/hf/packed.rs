//! Weights that are integers in 32-bit words, and what stands in tensors beside them: as AutoGPTQ
//! and GPTQModel, AutoAWQ and compressed-tensors write them.

use super::super::checkpoint::{Checkpoint, FewBits, GroupScales, Laid, Stored, Words, Zeros};
use super::super::encoding::Encoding;
use super::config::{BITS, Quantized};
use crate::error::LoadError;

/// What AutoAWQ puts behind activations of families without gates.
const ACT_SCALES: &str = ".act.scales";

/// Puts what stands beside every weight in words together with it: `name.weight`, as others have.
///
/// # Errors
/// Something is missing beside it, or is of a shape that does not fit.
pub(super) fn join(checkpoint: &mut Checkpoint<'_>, quantized: Quantized) -> Result<(), LoadError> {
    let suffix = match quantized {
        Quantized::Gptq { .. } | Quantized::Awq => ".qweight",
        Quantized::Scaled { .. } => ".weight_packed",
        Quantized::Not | Quantized::Mxfp4 => return Ok(()),
        Quantized::Ternary { .. } | Quantized::Trained => return Ok(()),
    };
    if let Some((name, tensor)) = checkpoint.tensors.iter().find(|it| it.0.ends_with(ACT_SCALES)) {
        let what = "what activations would be divided by: must be absent";
        return Err(LoadError::tensor(tensor.path, name, what));
    }
    let modules = checkpoint.tensors.keys().filter_map(|name| name.strip_suffix(suffix));
    let modules: Vec<String> = modules.map(str::to_owned).collect();
    for module in modules {
        let name = format!("{module}{suffix}");
        let Some(words) = checkpoint.tensors.remove(&name) else { continue };
        let mut part = Part { checkpoint, module: &module, name: &name, words: &words };
        let (integers, shape) = match quantized {
            Quantized::Gptq { bits, zeros_from_one } => part.gptq(bits, zeros_from_one)?,
            Quantized::Scaled { bits, .. } => part.compressed(bits)?,
            _ => part.awq()?,
        };
        let weight = Stored {
            shape: shape.to_vec(),
            dtype: format!("I32 of {} bits", integers.weights.bits),
            encoding: Some(Encoding::Int),
            laid: Laid::FewBits(integers),
            ..words
        };
        checkpoint.tensors.insert(format!("{module}.weight"), weight);
    }
    Ok(())
}

/// One weight's tensors.
struct Part<'p, 'a> {
    checkpoint: &'p mut Checkpoint<'a>,
    module: &'p str,
    /// Of `words`.
    name: &'p str,
    words: &'p Stored<'a>,
}

/// With the shape of what they are, `[outputs, inputs]`.
type Found<'a> = Result<(FewBits<'a>, [usize; 2]), LoadError>;

impl<'a> Part<'_, 'a> {
    /// Words of inputs, `[inputs bits / 32, outputs]`.
    fn gptq(&mut self, usual_bits: usize, zeros_from_one: bool) -> Found<'a> {
        let [lines, outputs] = self.words_shape()?;
        let scales = self.scales_by_group(outputs)?;
        let zeros = self.beside("qzeros")?;
        // As many words say an integer of a group, and it has the bits of all.
        let of_group = zeros.shape.get(1).copied().unwrap_or(0);
        let bits = self.bits(usual_bits, of_group, outputs)?;
        let bytes = self.words(zeros, "qzeros", [scales.groups, of_group])?;
        let words = |bytes, strides| Words { bytes, bits, strides, by_halves: false };
        let zeros = Zeros::Each(words(bytes, [of_group, 1]), u32::from(zeros_from_one));
        let weights = words(self.words.bytes, [1, outputs]);
        self.found((weights, false), (zeros, scales), "g_idx", [outputs, 32 * lines / bits])
    }

    /// Words of outputs, `[inputs, outputs / 8]`.
    fn awq(&mut self) -> Found<'a> {
        let [inputs, columns] = self.words_shape()?;
        let scales = self.scales_by_group(8 * columns)?;
        let zeros = self.beside("qzeros")?;
        let zeros = self.words(zeros, "qzeros", [scales.groups, columns])?;
        let words = |bytes| Words { bytes, bits: 4, strides: [columns, 1], by_halves: true };
        let (weights, zeros) = (words(self.words.bytes), Zeros::Each(words(zeros), 0));
        self.found((weights, true), (zeros, scales), "g_idx", [8 * columns, inputs])
    }

    /// Words of inputs, `[outputs, inputs bits / 32]`, the last of a row being filled up.
    fn compressed(&mut self, usual_bits: usize) -> Found<'a> {
        let [outputs, columns] = self.words_shape()?;
        let shape = self.beside("weight_shape")?;
        let numbers = integers_of(&shape).filter(|numbers| numbers.len() == 2);
        let inputs = numbers.and_then(|numbers| usize::try_from(numbers[1]).ok()).unwrap_or(0);
        let bits = self.bits(usual_bits, columns, inputs)?;
        let scales = self.beside("weight_scale")?;
        let groups = scales.shape.get(1).copied().unwrap_or(0);
        let (bytes, encoding) = self.floats(scales, [outputs, groups])?;
        let scales = GroupScales { bytes, encoding, strides: [1, groups], groups };
        let words = |bytes, strides| Words { bytes, bits, strides, by_halves: false };
        let zeros = match self.checkpoint.tensors.remove(&self.named("weight_zero_point")) {
            None => Zeros::Middle,
            Some(zeros) => {
                let lines = outputs.div_ceil(32 / bits);
                let bytes = self.words(zeros, "weight_zero_point", [lines, groups])?;
                Zeros::Each(words(bytes, [1, groups]), 0)
            }
        };
        let weights = words(self.words.bytes, [columns, 1]);
        self.found((weights, false), (zeros, scales), "weight_g_idx", [outputs, inputs])
    }

    /// All of it, where `group_of` is the tensor that may say each input's group.
    fn found(
        &mut self,
        (weights, by_input): (Words<'a>, bool),
        (zeros, scales): (Zeros<'a>, GroupScales<'a>),
        group_of: &str,
        shape: [usize; 2],
    ) -> Found<'a> {
        let [_, inputs] = shape;
        let group_of = self.groups(group_of, [scales.groups, inputs])?;
        let group = inputs / scales.groups;
        Ok((FewBits { weights, by_input, zeros, scales, group, group_of }, shape))
    }

    /// `[groups, outputs]`.
    fn scales_by_group(&mut self, outputs: usize) -> Result<GroupScales<'a>, LoadError> {
        let scales = self.beside("scales")?;
        let groups = scales.shape.first().copied().unwrap_or(0);
        let (bytes, encoding) = self.floats(scales, [groups, outputs])?;
        Ok(GroupScales { bytes, encoding, strides: [outputs, 1], groups })
    }

    fn named(&self, part: &str) -> String {
        format!("{}.{part}", self.module)
    }

    fn refused(&self, part: &str, what: impl Into<String>) -> LoadError {
        LoadError::tensor(self.words.path, &self.named(part), what)
    }

    fn beside(&mut self, part: &str) -> Result<Stored<'a>, LoadError> {
        let found = self.checkpoint.tensors.remove(&self.named(part));
        found.ok_or_else(|| self.refused(part, "missing"))
    }

    /// Of the weight's own words.
    fn words_shape(&self) -> Result<[usize; 2], LoadError> {
        match *self.words.shape {
            [lines, columns] if self.words.dtype == "I32" && lines * columns > 0 => {
                Ok([lines, columns])
            }
            ref shape => {
                let what = format!("{} {shape:?}: must be I32 of two dimensions", self.words.dtype);
                Err(LoadError::tensor(self.words.path, self.name, what))
            }
        }
    }

    /// Of an integer, where `count` of them are in so many words: as many as usual, if they may be;
    /// modules may have others.
    fn bits(&self, usual: usize, words: usize, count: usize) -> Result<usize, LoadError> {
        let fit =
            |bits: &usize| count.checked_mul(*bits).map(|all| all.div_ceil(32)) == Some(words);
        let found = std::iter::once(usual).chain(BITS).find(fit).filter(|_| count > 0);
        found.ok_or_else(|| {
            let what = format!("{words} words of {count} integers: must be of 2, 3, 4 or 8 bits");
            LoadError::tensor(self.words.path, self.name, what)
        })
    }

    fn words(
        &self,
        tensor: Stored<'a>,
        part: &str,
        want: [usize; 2],
    ) -> Result<&'a [u8], LoadError> {
        if tensor.dtype != "I32" || *tensor.shape != want {
            let Stored { dtype, shape, .. } = &tensor;
            return Err(self.refused(part, format!("{dtype} {shape:?}: must be I32 {want:?}")));
        }
        Ok(tensor.bytes)
    }

    fn floats(
        &self,
        tensor: Stored<'a>,
        want: [usize; 2],
    ) -> Result<(&'a [u8], Encoding), LoadError> {
        let Stored { dtype, shape, .. } = &tensor;
        match tensor.encoding {
            Some(encoding @ (Encoding::F32 | Encoding::F16 | Encoding::Bf16))
                if *shape == want && want[0] * want[1] > 0 =>
            {
                Ok((tensor.bytes, encoding))
            }
            _ => {
                let what = format!("scales are {dtype} {shape:?}: must be floats {want:?}");
                Err(LoadError::tensor(self.words.path, self.name, what))
            }
        }
    }

    /// Each input's group, where a tensor says so, and not -1 of all; else inputs are divided
    /// evenly.
    fn groups(
        &mut self,
        part: &str,
        [groups, inputs]: [usize; 2],
    ) -> Result<Option<&'a [u8]>, LoadError> {
        let says = |tensor: &Stored<'_>| {
            let all = integers_of(tensor).unwrap_or_default();
            all.is_empty() || all.iter().any(|&group| group != -1)
        };
        let found = self.checkpoint.tensors.remove(&self.named(part)).filter(says);
        let refused = |what: String| Err(self.refused(part, what));
        match found {
            Some(tensor) if tensor.dtype == "I32" && *tensor.shape == [inputs] => {
                let all = integers_of(&tensor).unwrap_or_default();
                match all.iter().find(|&&group| !(0..groups as i64).contains(&group)) {
                    None => Ok(Some(tensor.bytes)),
                    Some(group) => refused(format!("group {group}: must be below {groups}")),
                }
            }
            Some(Stored { dtype, shape, .. }) => {
                refused(format!("{dtype} {shape:?}: must be I32 [{inputs}]"))
            }
            None if inputs.is_multiple_of(groups) => Ok(None),
            None => refused(format!("missing, where {inputs} inputs are of {groups} groups")),
        }
    }
}

/// The numbers of a tensor of I32 or I64.
fn integers_of(tensor: &Stored<'_>) -> Option<Vec<i64>> {
    let four = |bytes: &[u8; 4]| i64::from(i32::from_le_bytes(*bytes));
    match &*tensor.dtype {
        "I32" => Some(tensor.bytes.as_chunks().0.iter().map(four).collect()),
        "I64" => {
            Some(tensor.bytes.as_chunks().0.iter().map(|it| i64::from_le_bytes(*it)).collect())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [u8; 64] = [0x21; 64];
    /// Twice 1, of f16.
    const ONES: [u8; 4] = [0x00, 0x3c, 0x00, 0x3c];

    fn stored<'a>(shape: &[usize], dtype: &str, bytes: &'a [u8]) -> Stored<'a> {
        let encoding = (dtype == "F16").then_some(Encoding::F16);
        Stored::new("file", shape, (dtype, encoding), bytes)
    }

    type Tensors<'a> = Vec<(&'a str, Stored<'a>)>;

    /// Two outputs of sixteen inputs, in two groups.
    fn gptq<'a>() -> Tensors<'a> {
        vec![
            ("qweight", stored(&[2, 2], "I32", &WORDS[..16])),
            ("qzeros", stored(&[2, 1], "I32", &WORDS[..8])),
            ("scales", stored(&[2, 2], "F16", &[0x00, 0x3c, 0x00, 0x40, 0x00, 0x3c, 0x00, 0x40])),
        ]
    }

    /// Eight outputs of one input.
    fn awq<'a>() -> Tensors<'a> {
        vec![
            ("qweight", stored(&[1, 1], "I32", &WORDS[..4])),
            ("qzeros", stored(&[1, 1], "I32", &[0; 4])),
            ("scales", stored(&[1, 8], "F16", &[0x3c; 16])),
        ]
    }

    /// Two outputs of twelve inputs, in one group.
    fn compressed<'a>() -> Tensors<'a> {
        vec![
            ("weight_packed", stored(&[2, 2], "I32", &WORDS[..16])),
            ("weight_scale", stored(&[2, 1], "F16", &ONES)),
            (
                "weight_shape",
                stored(&[2], "I64", &[2, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0]),
            ),
        ]
    }

    const GPTQ: Quantized = Quantized::Gptq { bits: 4, zeros_from_one: true };
    const COMPRESSED: Quantized = Quantized::Scaled { block: None, bits: 4 };

    fn joined(quantized: Quantized, tensors: Tensors<'_>) -> Result<Checkpoint<'_>, String> {
        let named = |(part, tensor)| (format!("a.{part}"), tensor);
        let tensors = tensors.into_iter().map(named).collect();
        let mut all = Checkpoint { path: "folder".to_owned(), tensors };
        join(&mut all, quantized).map_err(|error| error.to_string())?;
        Ok(all)
    }

    #[test]
    fn each_form_is_a_matrix() {
        let check = |quantized, tensors, rows: usize, want: &[f32]| {
            let all = joined(quantized, tensors).unwrap();
            assert_eq!(Vec::from_iter(all.tensors.keys()), ["a.weight"]);
            let weight = &all.tensors["a.weight"];
            assert_eq!(weight.shape, [rows, want.len() / rows]);
            assert_eq!(weight.f32("a.weight").unwrap(), want);
        };
        // Integers are 1 and 2 by turns, and so are zeros, from 1 on.
        let by_turns = |x: [f32; 2], count: usize| x.into_iter().cycle().take(count);
        let rows = by_turns([-1.0, 0.0], 16).chain(by_turns([-4.0, -2.0], 16));
        check(GPTQ, gptq(), 2, &Vec::from_iter(rows));
        // Of a word, outputs are 0, 2, 4, 6, 1, 3, 5, 7; scales are 1.059.
        let scale = half::f16::from_bits(0x3c3c).to_f32();
        let eight = [1.0, 1.0, 2.0, 2.0, 1.0, 1.0, 2.0, 2.0].map(|x| x * scale);
        check(Quantized::Awq, awq(), 8, &eight);
        check(COMPRESSED, compressed(), 2, &Vec::from_iter(by_turns([-7.0, -6.0], 24)));
        let mut with_zeros = compressed();
        with_zeros.push(("weight_zero_point", stored(&[1, 1], "I32", &[0x31, 0, 0, 0])));
        let rows = by_turns([0.0, 1.0], 12).chain(by_turns([-2.0, -1.0], 12));
        check(COMPRESSED, with_zeros, 2, &Vec::from_iter(rows));
    }

    #[test]
    fn inputs_may_say_their_groups() {
        let groups: Vec<u8> = (0..16_u32).flat_map(|i| (1 - i / 8).to_le_bytes()).collect();
        let mut tensors = gptq();
        tensors.push(("g_idx", stored(&[16], "I32", &groups)));
        tensors[2].1.bytes = &[0x00, 0x3c, 0x00, 0x40, 0x00, 0x44, 0x00, 0x48]; // 1, 2; 4, 8
        let mut unsaid = tensors.clone();
        let nothing = (-1_i32).to_le_bytes().repeat(16);
        unsaid[3].1.bytes = &nothing;
        let row = joined(GPTQ, unsaid).unwrap().tensors["a.weight"].f32("a.weight").unwrap();
        assert_eq!((row[0], row[8], row[16], row[24]), (-1.0, -4.0, -4.0, -16.0));
        let row = joined(GPTQ, tensors).unwrap().tensors["a.weight"].f32("a.weight").unwrap();
        assert_eq!((row[0], row[8], row[16], row[24]), (-4.0, -1.0, -16.0, -4.0));
    }

    #[test]
    fn what_does_not_fit_is_named() {
        fn check(
            (quantized, mut tensors): (Quantized, Tensors<'_>),
            change: impl FnOnce(&mut Tensors<'_>),
            want: &str,
        ) {
            change(&mut tensors);
            let error = joined(quantized, tensors).unwrap_err();
            assert!(error.contains(want), "{error}");
        }
        let all = [(GPTQ, gptq as fn() -> _), (Quantized::Awq, awq), (COMPRESSED, compressed)];
        for (quantized, tensors) in all {
            for idx in 1..3 {
                let tensors: Tensors<'_> = tensors();
                let missing = format!("tensor a.{}: missing", tensors[idx].0);
                check((quantized, tensors), |all| drop(all.remove(idx)), &missing);
            }
            let of_floats = |all: &mut Tensors<'_>| all[0].1.dtype = "F32".to_owned();
            check((quantized, tensors()), of_floats, "must be I32 of two dimensions");
        }
        let scales = |all: &mut Tensors<'_>| all[2].1.shape = vec![2, 3];
        check((GPTQ, gptq()), scales, "scales are F16 [2, 3]: must be floats [2, 2]");
        let zeros = |all: &mut Tensors<'_>| all[1].1.shape = vec![1, 1];
        check((GPTQ, gptq()), zeros, "a.qzeros: I32 [1, 1]: must be I32 [2, 1]");
        let shape = |all: &mut Tensors<'_>| all[1].1.shape = vec![2, 9];
        check((GPTQ, gptq()), shape, "9 words of 2 integers: must be of 2, 3, 4 or 8 bits");
        let many = [[2; 8], [0x7f; 8]].concat();
        let mut tensors = compressed();
        tensors[2].1.bytes = &many;
        check((COMPRESSED, tensors), |_| (), "integers: must be of 2, 3, 4 or 8 bits");
        let scale = |all: &mut Tensors<'_>| all[1].1.shape = vec![2, 5];
        check((COMPRESSED, compressed()), scale, "12 inputs are of 5 groups");
        let ninth = [9; 64];
        let mut tensors = gptq();
        tensors.push(("g_idx", stored(&[16], "I32", &ninth)));
        check((GPTQ, tensors), |_| (), "group 151587081: must be below 2");
        check((GPTQ, vec![("qweight", stored(&[2], "I32", &[]))]), |_| (), "two dimensions");
        let scaled = |all: &mut Tensors<'_>| all.push(("act.scales", stored(&[1], "F16", &ONES)));
        check((Quantized::Awq, awq()), scaled, "a.act.scales: what activations would be divided");
    }
}
