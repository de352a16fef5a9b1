//! Where a model's tensors lie.

use std::collections::BTreeMap;

pub(crate) use super::block_scales::Scales;
pub(crate) use super::few_bits::{FewBits, GroupScales, Words, Zeros};
pub(crate) use super::row_order::{HeadRows, Picked, RowOrder};
pub(crate) use super::stored::{Centre, Laid, Stored, TERNARIES};
use crate::error::LoadError;

/// All tensors of a model, by name.
#[derive(Debug)]
pub(crate) struct Checkpoint<'a> {
    /// The file or folder, for errors about what is missing.
    pub(crate) path: String,
    pub(crate) tensors: BTreeMap<String, Stored<'a>>,
}

impl<'a> Checkpoint<'a> {
    /// The tensor `name`, which must have exactly `shape`.
    pub(crate) fn find(&self, name: &str, shape: &[usize]) -> Result<&Stored<'a>, LoadError> {
        let Some(tensor) = self.tensors.get(name) else {
            let what = format!("missing; the configuration asks for {shape:?}");
            return Err(LoadError::tensor(&self.path, name, what));
        };
        if tensor.shape != shape {
            let what = format!("shape {:?}, the configuration asks for {shape:?}", tensor.shape);
            return Err(LoadError::tensor(tensor.path, name, what));
        }
        Ok(tensor)
    }

    /// Whether a tensor of some layer is called so.
    pub(crate) fn has_some(&self, module: &str) -> bool {
        self.tensors.keys().any(|name| name.contains(module))
    }

    /// Makes `count` tensors, `name.0.weight` and so on, of `name.weight` or `name`, if there is
    /// one that has as many matrices.
    ///
    /// # Errors
    /// It has another number of them.
    pub(crate) fn cut_stack(&mut self, name: &str, count: usize) -> Result<(), LoadError> {
        let names = [format!("{name}.weight"), name.to_owned()];
        let stack = names.iter().find_map(|name| self.tensors.remove_entry(name));
        self.cut(stack, (count, 2, "matrices"), |idx| format!("{name}.{idx}.weight"))
    }

    /// Makes `count` tensors, `name.0.bias` and so on, of the rows of `stack`, if it is there.
    ///
    /// # Errors
    /// It has another number of them.
    pub(crate) fn cut_biases(
        &mut self,
        stack: &str,
        name: &str,
        count: usize,
    ) -> Result<(), LoadError> {
        let biases = self.tensors.remove_entry(stack);
        self.cut(biases, (count, 1, "rows"), |idx| format!("{name}.{idx}.bias"))
    }

    /// Cuts a tensor, if there is one, into so many of so many dimensions, which errors call so.
    fn cut(
        &mut self,
        whole: Option<(String, Stored<'a>)>,
        (count, dimensions, parts): (usize, usize, &str),
        named: impl Fn(usize) -> String,
    ) -> Result<(), LoadError> {
        let Some((name, whole)) = whole else { return Ok(()) };
        if dimensions == 1 && matches!(whole.laid, Laid::Scaled(_)) {
            // Blocks are of rows, which are cut into elements.
            let what = format!("scales of {parts} that are to be cut");
            return Err(LoadError::tensor(whole.path, &name, what));
        }
        let shape = match *whole.shape {
            [first, ref shape @ ..] if first == count && shape.len() == dimensions => {
                shape.to_vec()
            }
            _ => {
                let what = format!("shape {:?}, should be {count} {parts}", whole.shape);
                return Err(LoadError::tensor(whole.path, &name, what));
            }
        };
        let bytes = whole.bytes.len() / count.max(1);
        for (idx, bytes) in whole.bytes.chunks_exact(bytes.max(1)).take(count).enumerate() {
            let laid = match whole.laid {
                Laid::Scaled(scales) => Laid::Scaled(scales.of_matrix(idx, count)),
                laid => laid,
            };
            let one = Stored { shape: shape.clone(), bytes, laid, ..whole.clone() };
            self.tensors.insert(named(idx), one);
        }
        Ok(())
    }

    /// Takes text models out of larger ones, inside which they stand: of names that begin like one
    /// of these, the first one's beginning becomes the second.
    pub(crate) fn lift(&mut self, beginnings: &[(&str, &str)]) {
        let lifted = |name: String| {
            let inside =
                |&(from, to): &(&str, &str)| Some(format!("{to}{}", name.strip_prefix(from)?));
            beginnings.iter().find_map(inside).unwrap_or(name)
        };
        self.rename(lifted);
    }

    /// Takes a module out of names: what is inside of it is its layer's then.
    pub(crate) fn open(&mut self, module: &str) {
        let inside = format!(".{module}.");
        self.rename(|name| name.replace(&inside, "."));
    }

    fn rename(&mut self, renamed: impl Fn(String) -> String) {
        let tensors = std::mem::take(&mut self.tensors).into_iter();
        self.tensors = tensors.map(|(name, tensor)| (renamed(name), tensor)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::encoding::Encoding;
    use super::*;

    fn stored(encoding: Option<Encoding>, bytes: &[u8]) -> Stored<'_> {
        Stored::new("file", &[2], ("?", encoding), bytes)
    }

    fn checkpoint<'a>(tensors: impl IntoIterator<Item = (&'a str, Stored<'a>)>) -> Checkpoint<'a> {
        let tensors = tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
        Checkpoint { path: "file".to_owned(), tensors: tensors.collect() }
    }

    #[test]
    fn models_are_lifted_out_of_others() {
        let names = ["language_model.model.a", "model.language_model.b", "model.c", "vision.d"];
        let mut all = checkpoint(names.map(|name| (name, stored(None, &[]))));
        all.lift(&[("language_model.", ""), ("model.language_model.", "model.")]);
        let names: Vec<_> = all.tensors.keys().collect();
        assert_eq!(names, ["model.a", "model.b", "model.c", "vision.d"]);
    }

    #[test]
    fn stacks_are_cut_into_matrices() {
        let bytes: Vec<u8> = (0..24).collect();
        let of = |shape: &[usize]| Stored { shape: shape.to_vec(), ..stored(None, &bytes) };
        let mut all = checkpoint([
            ("a.weight", of(&[3, 2, 2])),
            ("b", of(&[2, 1, 3])),
            ("c", of(&[2, 3])),
            ("none", Stored { bytes: &[], ..of(&[2, 0, 3]) }),
        ]);
        all.cut_stack("a", 3).unwrap();
        all.cut_stack("b", 2).unwrap();
        all.cut_stack("none", 2).unwrap();
        all.cut_stack("not there", 2).unwrap();
        let names: Vec<_> = all.tensors.keys().collect();
        assert_eq!(
            names,
            ["a.0.weight", "a.1.weight", "a.2.weight", "b.0.weight", "b.1.weight", "c"]
        );
        let one = &all.tensors["a.1.weight"];
        assert_eq!((&*one.shape, one.bytes), (&[2, 2][..], &bytes[8..16]));
        assert_eq!(all.tensors["b.1.weight"].bytes, &bytes[12..]);
        let matrix = all.cut_stack("c", 2).unwrap_err().to_string();
        assert_eq!(matrix, "file: tensor c: shape [2, 3], should be 2 matrices");
        let mut all = checkpoint([("a.weight", of(&[3, 2, 2]))]);
        let more = all.cut_stack("a", 2).unwrap_err().to_string();
        assert_eq!(more, "file: tensor a.weight: shape [3, 2, 2], should be 2 matrices");
    }

    #[test]
    fn scales_of_rows_are_not_cut_into_elements() {
        let ones = [0x38; 2];
        let laid = Laid::Scaled(Scales {
            bytes: &ones,
            encoding: Encoding::F32,
            block: [1, 1],
            factor: 1.0,
        });
        let of = |shape: &[usize]| Stored {
            shape: shape.to_vec(),
            laid,
            ..stored(Some(Encoding::F8E4M3), &ones)
        };
        let mut all = checkpoint([("b", of(&[2, 1]))]);
        let cut = all.cut_biases("b", "a", 2).unwrap_err().to_string();
        assert_eq!(cut, "file: tensor b: scales of rows that are to be cut");
        let mut row = of(&[1, 2]);
        row.flatten();
        assert_eq!(row.shape, [1, 2]);
    }
}
