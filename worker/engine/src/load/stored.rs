//! A tensor as it lies in a file, and its elements in the form that is asked for.

use std::ops::Range;
use std::sync::Arc;
use std::thread;

use aqueduct_kernels::Int8Rows;
use aqueduct_kernels::int8::{GROUP, keep_steps};
use half::bf16;
use half::slice::HalfFloatSliceExt;

use super::block_scales::Scales;
use super::encoding::{ENCODINGS, Encoding};
use super::few_bits::FewBits;
use super::row_order::{Picked, RowOrder};
use super::side_by_side::side_by_side;
use crate::error::LoadError;

/// A tensor in a file.
#[derive(Debug, Clone)]
pub(crate) struct Stored<'a> {
    /// Of the file, for errors.
    pub(crate) path: &'a str,
    /// Row-major: `[outputs, inputs]` or `[elements]`.
    pub(crate) shape: Vec<usize>,
    /// The file's own name for its element type.
    pub(crate) dtype: String,
    /// `None` for types that are not read here; such a tensor may be ignored, not used.
    pub(crate) encoding: Option<Encoding>,
    /// Of the first rows, where they do not stand as they are used here.
    pub(crate) order: Option<RowOrder>,
    /// Which rows of the file's tensor these are, if not all.
    pub(crate) picked: Option<Picked>,
    pub(crate) laid: Laid<'a>,
    /// What is taken from its rows, if anything.
    pub(crate) centre: Option<Centre>,
    /// Exactly as many as the file's tensor has, of which all rows may be used or some.
    pub(crate) bytes: &'a [u8],
}

/// What is taken from the rows of a tensor, so that what they make has no mean.
#[derive(Debug, Clone)]
pub(crate) enum Centre {
    /// From each row its own mean.
    OfRow,
    /// From each row the mean of those among which it is: of so many rows each.
    OfRows { of: usize, means: Arc<[f32]> },
    /// Nothing, but each row is divided by the root of its mean square and of what is added to it.
    Scale { eps: f32 },
    /// Its own mean, once a layer norm has been taken of it, whose biases come with it too.
    OfNormed { eps: f32, weights: Arc<[f32]>, biases: Arc<[f32]> },
    /// Nothing, but each element is multiplied by this, rounded to -1, 0 or 1, and divided by it.
    Ternary { scale: f32 },
}

/// How the rows of a matrix lie in its bytes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Laid<'a> {
    /// One after the other.
    Rows,
    /// Its columns do; of elements that are no blocks.
    Columns,
    /// So many matrices one after the other, of each of which its columns do, each of whole
    /// blocks.
    Turned { matrices: usize },
    /// One after the other, each element being multiplied by a scale that its block has.
    Scaled(Scales<'a>),
    /// Integers in words.
    FewBits(FewBits<'a>),
    /// 0, 1 and 2 for -1, 0 and 1 times `scale`, four in a byte: the elements of as many rows, each
    /// a quarter of all apart, the first in the lowest bits.
    Ternary { scale: f32 },
}

/// An element that is no finite number.
struct NotFinite {
    /// Its index in the tensor as it is stored.
    idx: usize,
    value: f32,
}

impl<'a> Stored<'a> {
    /// A tensor as its file has it.
    pub(crate) fn new(
        path: &'a str,
        shape: &[usize],
        (dtype, encoding): (&str, Option<Encoding>),
        bytes: &'a [u8],
    ) -> Self {
        Self {
            path,
            shape: shape.to_vec(),
            dtype: dtype.to_owned(),
            encoding,
            order: None,
            picked: None,
            laid: Laid::Rows,
            centre: None,
            bytes,
        }
    }
}

impl Stored<'_> {
    /// Takes `[1, elements]` for `[elements]`, but for what has scales, which are of rows.
    pub(crate) fn flatten(&mut self) {
        if let ([1, elements], Laid::Rows) = (&*self.shape, self.laid) {
            let elements = *elements;
            self.shape = vec![elements];
        }
    }

    /// The elements as f32, exactly.
    pub(crate) fn f32(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        let (rows, inputs) = self.rows();
        let mut data = vec![0.0; rows * inputs];
        let to = data.chunks_exact_mut(inputs).collect();
        self.each_row(name, to, |row, to: &mut [f32]| to.copy_from_slice(row))?;
        Ok(data)
    }

    /// The elements as bf16: exactly where they are stored so, else rounded to nearest even.
    pub(crate) fn bf16(&self, name: &str) -> Result<Vec<bf16>, LoadError> {
        let (rows, inputs) = self.rows();
        let mut data = vec![bf16::ZERO; rows * inputs];
        let to = data.chunks_exact_mut(inputs).collect();
        self.each_row(name, to, |row, to: &mut [bf16]| to.convert_from_f32_slice(row))?;
        Ok(data)
    }

    /// The elements as integers with scales: the file's own where its groups are no smaller.
    pub(crate) fn int8(&self, name: &str) -> Result<Int8Rows, LoadError> {
        let (rows, inputs) = self.rows();
        let mut data = Int8Rows::zeros(rows, inputs);
        let scales = data.scales.chunks_exact_mut(inputs.div_ceil(GROUP));
        let to = data.q.chunks_exact_mut(inputs).zip(scales).enumerate().collect();
        self.each_row(name, to, |elements, (row, to): (usize, (&mut [i8], &mut [f32]))| {
            keep_steps(elements, to, |inputs| self.step(self.stored_row(row), inputs));
        })?;
        Ok(data)
    }

    /// What these inputs of a row of the file's tensor are multiples of, where it says one.
    fn step(&self, row: usize, inputs: Range<usize>) -> Option<f32> {
        match &self.laid {
            Laid::FewBits(integers) => integers.step(row, inputs),
            Laid::Ternary { scale } => Some(*scale),
            Laid::Scaled(scales) if self.encoding == Some(Encoding::Int) => {
                scales.step(row, inputs, self.rows().1)
            }
            _ => None,
        }
    }

    /// Reads every row, widened exactly, checked and in half-split order, and hands it to `put`
    /// with that row's place in `to`. So a tensor is never all in memory as f32.
    fn each_row<T: Send>(
        &self,
        name: &str,
        to: Vec<T>,
        put: impl Fn(&[f32], T) + Sync,
    ) -> Result<(), LoadError> {
        let encoding = self.known_encoding()?;
        let done = side_by_side(to, self.rows_of_thread(), |first, to: Vec<T>| {
            let mut row = vec![0.0; self.rows().1];
            for (idx, to) in (first..).zip(to) {
                self.read_row(encoding, idx, &mut row)?;
                put(&row, to);
            }
            Ok(())
        });
        done.map_err(|what| self.not_finite(name, what))
    }

    /// The elements of row `row` of the file's tensor, as they are stored.
    fn widen_row(&self, encoding: Encoding, row: usize, to: &mut [f32]) {
        let (rows, inputs) = (self.rows_of_file(), self.rows().1);
        let of_row = |all: &'_ [u8]| {
            let bytes = all.len() / rows;
            row * bytes..(row + 1) * bytes
        };
        match self.laid {
            Laid::Rows => encoding.widen(&self.bytes[of_row(self.bytes)], to),
            Laid::Scaled(scales) => {
                encoding.widen(&self.bytes[of_row(self.bytes)], to);
                scales.apply(row, to);
            }
            Laid::FewBits(integers) => integers.widen(row, to),
            Laid::Ternary { scale } => {
                let quarter = (rows / TERNARIES).max(1);
                let bytes = &self.bytes[row % quarter * inputs..][..inputs];
                for (to, byte) in to.iter_mut().zip(bytes) {
                    let code = byte >> (2 * (row / quarter)) & 3;
                    *to = scale * (f32::from(code) - 1.0);
                }
            }
            Laid::Turned { matrices } => {
                // Much is read again for each row, of a tensor that is small beside others.
                let of_matrix = (rows / matrices).max(1);
                let (matrix, idx) = (row / of_matrix, row % of_matrix);
                let bytes = self.bytes.len() / (matrices * inputs).max(1);
                let (mut column, first) = (vec![0.0; of_matrix], matrix * inputs);
                for (to, at) in to.iter_mut().zip(first..) {
                    encoding.widen(&self.bytes[at * bytes..][..bytes], &mut column);
                    *to = column[idx];
                }
            }
            Laid::Columns => {
                // Rows beside this one find its lines of the cache near.
                let size = self.bytes.len() / (rows * inputs);
                let mut elements = Vec::with_capacity(inputs * size);
                for column in self.bytes.chunks_exact(rows * size) {
                    elements.extend_from_slice(&column[row * size..][..size]);
                }
                encoding.widen(&elements, to);
            }
        }
    }

    fn known_encoding(&self) -> Result<Encoding, LoadError> {
        self.encoding.ok_or_else(|| LoadError::Unsupported {
            path: self.path.to_owned(),
            what: "tensor type",
            name: self.dtype.clone(),
            supported: ENCODINGS,
        })
    }

    /// Rows, and elements of each; an array of one dimension is a column.
    fn rows(&self) -> (usize, usize) {
        (self.shape.first().copied().unwrap_or(1), self.shape.get(1).copied().unwrap_or(1))
    }

    /// Rows of the file's tensor.
    fn rows_of_file(&self) -> usize {
        self.picked.map_or(self.rows().0, |picked| picked.rows)
    }

    /// Its share of the bytes.
    pub(crate) fn own_bytes(&self) -> u64 {
        let all = self.bytes.len();
        self.picked.map_or(all, |picked| all / picked.rows.max(1) * self.rows().0) as u64
    }

    /// Which row of the file's tensor is row `row`.
    fn stored_row(&self, row: usize) -> usize {
        let own = self.order.map_or(row, |order| order.stored(row));
        self.picked.map_or(own, |picked| picked.stored(own))
    }

    /// Row `row` in half-split order, checked.
    fn read_row(&self, encoding: Encoding, row: usize, to: &mut [f32]) -> Result<(), NotFinite> {
        let inputs = self.rows().1;
        let stored = self.stored_row(row);
        self.widen_row(encoding, stored, to);
        // Without a way out of the loop it is done many elements at a time.
        if !to.iter().fold(true, |all, x| all & x.is_finite()) {
            let idx = to.iter().position(|x| !x.is_finite()).expect("one is not finite");
            return Err(NotFinite { idx: stored * inputs + idx, value: to[idx] });
        }
        match &self.centre {
            None => {}
            Some(Centre::OfRow) => {
                let sum: f64 = to.iter().copied().map(f64::from).sum();
                let mean = (sum / inputs as f64) as f32;
                to.iter_mut().for_each(|x| *x -= mean);
            }
            Some(Centre::OfRows { of, means }) => {
                let mean = &means[row / of * inputs..];
                to.iter_mut().zip(mean).for_each(|(x, mean)| *x -= mean);
            }
            Some(Centre::OfNormed { eps, weights, biases }) => {
                let mean = |row: &[f64]| row.iter().sum::<f64>() / inputs as f64;
                let mut all: Vec<f64> = to.iter().copied().map(f64::from).collect();
                let own = mean(&all);
                all.iter_mut().for_each(|x| *x -= own);
                let square = all.iter().map(|x| x * x).sum::<f64>() / inputs as f64;
                let root = (square + f64::from(*eps)).sqrt();
                for ((x, &weight), &bias) in all.iter_mut().zip(&**weights).zip(&**biases) {
                    *x = *x / root * f64::from(weight) + f64::from(bias);
                }
                let own = mean(&all);
                to.iter_mut().zip(all).for_each(|(to, x)| *to = (x - own) as f32);
            }
            Some(Centre::Scale { eps }) => {
                let sum: f64 = to.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
                let root = (sum / inputs as f64 + f64::from(*eps)).sqrt();
                to.iter_mut().for_each(|x| *x = (f64::from(*x) / root) as f32);
            }
            Some(Centre::Ternary { scale }) => {
                let ternary = |x: f32| (x * scale).round_ties_even().clamp(-1.0, 1.0) / scale;
                to.iter_mut().for_each(|x| *x = ternary(*x));
            }
        }
        Ok(())
    }

    /// The mean of all rows, `[inputs]`, summed in f64 by so many rows at a time, whatever threads
    /// there are.
    fn mean_row(&self, name: &str) -> Result<Vec<f32>, LoadError> {
        const ROWS: usize = 256;
        let (rows, inputs) = self.rows();
        let encoding = self.known_encoding()?;
        let mut sums = vec![vec![0.0_f64; inputs]; rows.div_ceil(ROWS)];
        let share = self.rows_of_thread().div_ceil(ROWS);
        let done = side_by_side(sums.iter_mut().collect(), share, |first, some: Vec<_>| {
            let mut row = vec![0.0; inputs];
            for (part, sums) in (first..).zip(some) {
                for idx in part * ROWS..rows.min((part + 1) * ROWS) {
                    self.read_row(encoding, idx, &mut row)?;
                    sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += f64::from(*x));
                }
            }
            Ok(())
        });
        done.map_err(|what| self.not_finite(name, what))?;
        let mean =
            |column: usize| sums.iter().map(|sums| sums[column]).sum::<f64>() / rows.max(1) as f64;
        Ok((0..inputs).map(|column| mean(column) as f32).collect())
    }

    /// The means of every `of` rows, `[rows / of, inputs]`, summed in f64.
    pub(crate) fn mean_rows(&self, name: &str, of: usize) -> Result<Vec<f32>, LoadError> {
        let (rows, inputs) = self.rows();
        if of == rows {
            return self.mean_row(name);
        }
        let encoding = self.known_encoding()?;
        let mut means = vec![0.0; rows / of * inputs];
        let to = means.chunks_exact_mut(inputs.max(1)).collect();
        let share = self.rows_of_thread().div_ceil(of);
        let done = side_by_side(to, share, |first, some: Vec<&mut [f32]>| {
            let (mut row, mut sums) = (vec![0.0; inputs], vec![0.0; inputs]);
            for (group, means) in (first..).zip(some) {
                sums.fill(0.0);
                for idx in group * of..(group + 1) * of {
                    self.read_row(encoding, idx, &mut row)?;
                    sums.iter_mut().zip(&row).for_each(|(sum, x)| *sum += f64::from(*x));
                }
                means.iter_mut().zip(&sums).for_each(|(to, sum)| *to = (sum / of as f64) as f32);
            }
            Ok(())
        });
        done.map_err(|what| self.not_finite(name, what))?;
        Ok(means)
    }

    /// What the rows make of `x`: their dot products with it, summed in f64.
    pub(crate) fn times(&self, name: &str, x: &[f32]) -> Result<Vec<f32>, LoadError> {
        let mut made = vec![0.0; self.rows().0];
        self.each_row(name, made.iter_mut().collect(), |row, to: &mut f32| {
            let products = row.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x));
            *to = products.sum::<f64>() as f32;
        })?;
        Ok(made)
    }

    fn not_finite(&self, name: &str, NotFinite { idx, value }: NotFinite) -> LoadError {
        let what = format!("element {idx} is {value}: must be finite");
        LoadError::tensor(self.path, name, what)
    }

    /// How many rows one of several threads reads: enough to be worth a thread, however few threads
    /// that makes, as a model may have very many matrices of experts that are small.
    fn rows_of_thread(&self) -> usize {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let (rows, inputs) = self.rows();
        rows.div_ceil(threads).max(ELEMENTS_ALONE.div_ceil(inputs.max(1)))
    }
}

/// So many are in a byte.
pub(crate) const TERNARIES: usize = 4;

/// Elements that take much longer to read than a thread takes to start.
const ELEMENTS_ALONE: usize = 1 << 18;

#[cfg(test)]
mod tests {
    use super::super::few_bits::{GroupScales, Words, Zeros};
    use super::super::row_order::HeadRows;
    use super::*;

    fn stored(encoding: Option<Encoding>, bytes: &[u8]) -> Stored<'_> {
        Stored::new("file", &[2], ("?", encoding), bytes)
    }

    #[test]
    fn elements_are_widened_and_checked() {
        let f16 = stored(Some(Encoding::F16), &[0x00, 0x3c, 0x00, 0xc0]);
        assert_eq!(f16.f32("t").unwrap(), [1.0, -2.0]);
        let bf16 = stored(Some(Encoding::Bf16), &[0x80, 0x3f, 0x80, 0x7f]);
        let want = "file: tensor t: element 1 is inf: must be finite";
        assert_eq!(bf16.f32("t").unwrap_err().to_string(), want);
        assert_eq!(bf16.bf16("t").unwrap_err().to_string(), want);
        assert_eq!(bf16.int8("t").unwrap_err().to_string(), want);
        let error = stored(None, &[0; 2]).int8("t").unwrap_err().to_string();
        assert!(error.contains("tensor type `?` is not supported; supported: F32"), "{error}");
    }

    #[test]
    fn means_are_taken_out() {
        let bytes: Vec<u8> =
            [1.0_f32, 2.0, 3.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let of =
            |centre| Stored { shape: vec![2, 2], centre, ..stored(Some(Encoding::F32), &bytes) };
        let plain = of(None);
        assert_eq!(plain.mean_row("t").unwrap(), [2.0, 4.0]);
        assert_eq!(plain.times("t", &[2.0, 0.5]).unwrap(), [3.0, 9.0]);
        assert_eq!(of(Some(Centre::OfRow)).f32("t").unwrap(), [-0.5, 0.5, -1.5, 1.5]);
        let rows = Centre::OfRows { of: 2, means: [2.0, 4.0].into() };
        assert_eq!(of(Some(rows)).f32("t").unwrap(), [-1.0, -2.0, 1.0, 2.0]);
        let scaled = of(Some(Centre::Scale { eps: 1.5 })).f32("t").unwrap();
        let root = 24_f64.sqrt(); // of the second row
        assert_eq!(scaled, [0.5, 1.0, (3.0 / root) as f32, (6.0 / root) as f32]);
        let (weights, biases) = ([2.0, 4.0].into(), [1.0, 0.0].into());
        let normed = of(Some(Centre::OfNormed { eps: 0.75, weights, biases })).f32("t").unwrap();
        assert_eq!(normed[..2], [-1.0, 1.0]); // of [0, 2], and before the biases of [-1, 2]
        assert!((normed[2] + normed[3]).abs() < 1e-6, "{normed:?}");
        let bias = Stored { shape: vec![4], ..plain };
        assert_eq!(bias.mean_row("t").unwrap(), [3.0]);
        let means = bias.mean_rows("t", 2).unwrap();
        assert_eq!(means, [1.5, 4.5]);
        let each = Centre::OfRows { of: 2, means: means.into() };
        let bias = Stored { centre: Some(each), ..bias };
        assert_eq!(bias.f32("t").unwrap(), [-0.5, 0.5, -1.5, 1.5]);
    }

    #[test]
    fn matrices_are_turned() {
        // Two matrices of three rows of two, of which the rows of two are to be columns.
        let bytes: Vec<u8> = (0..12).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let of = |bytes, encoding, shape: [usize; 2]| {
            let laid = Laid::Turned { matrices: 2 };
            Stored { laid, shape: shape.to_vec(), ..stored(Some(encoding), bytes) }
        };
        let plain = of(&bytes, Encoding::F32, [4, 3]).f32("t").unwrap();
        assert_eq!(plain, [0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 6.0, 8.0, 10.0, 7.0, 9.0, 11.0]);
        // The same of blocks: a scale of 1 and 32 integers each.
        let block = |i: u8| [&[0x00, 0x3c][..], &[i; 16], &[i + 10; 16]].concat();
        let bytes: Vec<u8> = (0..4).flat_map(block).collect();
        let turned = of(&bytes, Encoding::Q8_0, [64, 2]).f32("t").unwrap();
        assert_eq!(turned[..4], [0.0, 1.0, 0.0, 1.0]);
        assert_eq!(turned[62..68], [10.0, 11.0, 2.0, 3.0, 2.0, 3.0]);
        assert_eq!(turned[126..], [12.0, 13.0]);
    }

    #[test]
    fn some_rows_are_read_wherever_they_lie() {
        let bytes: Vec<u8> = (0..8).flat_map(|i| (i as f32).to_le_bytes()).collect();
        let picked = |first| Some(Picked { rows: 4, of_every: 2, first, count: 1 });
        let of = |first, laid| {
            let some = Stored { picked: picked(first), laid, ..stored(None, &bytes) };
            Stored { shape: vec![2, 2], encoding: Some(Encoding::F32), ..some }
        };
        let read = |first, laid| of(first, laid).f32("t").unwrap();
        assert_eq!(read(0, Laid::Rows), [0.0, 1.0, 4.0, 5.0]);
        assert_eq!(read(1, Laid::Rows), [2.0, 3.0, 6.0, 7.0]);
        assert_eq!(read(1, Laid::Columns), [1.0, 5.0, 3.0, 7.0]);
        assert_eq!(of(0, Laid::Rows).own_bytes(), 16);
        // Rows 0 to 2 share one scale, row 3 has the other.
        let scales: Vec<u8> = [1.0_f32, 10.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let scales = Scales { bytes: &scales, encoding: Encoding::F32, block: [3, 2], factor: 1.0 };
        assert_eq!(read(1, Laid::Scaled(scales)), [2.0, 3.0, 60.0, 70.0]);
        let vector = Stored { shape: vec![4], ..of(1, Laid::Rows) };
        let picked = Some(Picked { rows: 8, of_every: 2, first: 1, count: 1 });
        let vector = Stored { picked, ..vector };
        assert_eq!(vector.f32("t").unwrap(), [1.0, 3.0, 5.0, 7.0]);
    }

    /// Integers of a file are the model's where 128 of them share a scale, in whatever order rows
    /// are used, and the rule's where fewer do.
    #[test]
    fn integers_of_files_stay_as_they_are() {
        let (rows, inputs) = (3, 200_usize);
        let words: Vec<u8> = (0..rows * inputs / 2).map(|i| (i * 89 % 251) as u8).collect();
        let eight: Vec<u8> = (0..rows * inputs).map(|i| (i * 37 % 256) as u8).collect();
        let scales: Vec<u8> =
            (0..4 * rows).flat_map(|i| (0.01 + 0.003 * i as f32).to_le_bytes()).collect();
        let zeros = [0x35, 0x72, 0x01, 0x94, 0x08, 0x11, 0x20, 0x33, 0x54, 0x76, 0x98, 0xba];
        let few = |group: usize, group_of| {
            let groups = inputs.div_ceil(group);
            let of = |bytes, of_stream| Words {
                bytes,
                bits: 4,
                strides: [of_stream, 1],
                by_halves: false,
            };
            Laid::FewBits(FewBits {
                weights: of(&words, inputs / 8),
                by_input: false,
                zeros: Zeros::Each(of(&zeros, 1), 1),
                scales: GroupScales {
                    bytes: &scales,
                    encoding: Encoding::F32,
                    strides: [rows, 1],
                    groups,
                },
                group,
                group_of,
            })
        };
        let scaled = |columns| {
            let block = [1, columns];
            Laid::Scaled(Scales { bytes: &scales, encoding: Encoding::F32, block, factor: 0.5 })
        };
        let in_order: Vec<u8> = (0..200_u32).flat_map(|i| (i / 128).to_le_bytes()).collect();
        let by_turns: Vec<u8> = (0..200_u32).flat_map(|i| (i % 2).to_le_bytes()).collect();
        let mirrored = Some(RowOrder::Heads(HeadRows {
            first: 0,
            rows: 2,
            head_dim: 2,
            rotary_dim: 2,
            neighbours: true,
            by_head: None,
            rotated_last: false,
        }));
        for (laid, bytes, is_exact) in [
            (few(128, None), &words, true),
            (few(128, Some(&*in_order)), &words, true),
            (few(200, None), &words, true),
            (few(128, Some(&*by_turns)), &words, false),
            (few(96, None), &words, false),
            (scaled(128), &eight, true),
            (scaled(200), &eight, true),
            (scaled(64), &eight, false),
        ] {
            for order in [None, mirrored] {
                let shape = vec![rows, inputs];
                let tensor = Stored { laid, order, shape, ..stored(Some(Encoding::Int), bytes) };
                let (exact, made) = (tensor.f32("t").unwrap(), tensor.int8("t").unwrap());
                let mut read = vec![0.0; exact.len()];
                read.chunks_mut(inputs).enumerate().for_each(|(row, to)| made.read(row, to));
                assert_eq!(read == exact, is_exact, "{laid:?}");
                assert_eq!(made == Int8Rows::from_f32(&exact, inputs), !is_exact, "{laid:?}");
            }
        }
    }

    /// Large enough for several threads.
    #[test]
    fn integers_are_those_of_the_whole_tensor() {
        let (rows, inputs) = (4096, 136);
        let bytes: Vec<u8> = (0..rows * inputs)
            .flat_map(|i| (((i * 37) % 101) as f32 - 50.0).to_le_bytes())
            .collect();
        let encoding = Some(Encoding::F32);
        let order = Some(RowOrder::Heads(HeadRows {
            first: 0,
            rows,
            head_dim: 8,
            rotary_dim: 8,
            neighbours: true,
            by_head: None,
            rotated_last: false,
        }));
        let tensor = Stored { shape: vec![rows, inputs], order, ..stored(encoding, &bytes) };
        let exact = tensor.f32("t").unwrap();
        assert_eq!(exact[inputs], ((2 * inputs * 37) % 101) as f32 - 50.0);
        assert_eq!(tensor.int8("t").unwrap(), Int8Rows::from_f32(&exact, inputs));
        assert_eq!(tensor.bf16("t").unwrap().to_f32_vec(), exact);
        let mean = tensor.mean_row("t").unwrap();
        let first = exact.chunks(inputs).map(|row| f64::from(row[0])).sum::<f64>() / rows as f64;
        assert_eq!(mean[0], first as f32);
    }
}
