//! Eight-bit weights, against integers and f64 by definition.

use crate::backend::{Backend, BackendError};
use crate::compare::{Tolerance, close, identical};
use crate::int8::{GROUP, Int8Rows};
use crate::tensor::Rows;
use crate::weights::{Linear, Matrix, MatrixData};

use super::layers::rows;
use super::scene::Random;

/// Around a step of four inputs, a run of 64, a group; around a panel of sixteen outputs.
const OUTPUTS_AND_INPUTS: [(usize, usize); 9] =
    [(1, 1), (5, 8), (16, 63), (48, 65), (130, 128), (33, 129), (33, 1000), (300, 17), (17, 576)];

fn weight(random: &mut Random, (outputs, inputs): (usize, usize)) -> Int8Rows {
    let values: Vec<f32> = random.normals(outputs * inputs);
    let scaled: Vec<f32> = values.iter().map(|x| x / (inputs as f32).sqrt()).collect();
    let mut made = Int8Rows::from_f32(&scaled, inputs);
    // Integers of a file go one further than those of the rule.
    made.q.iter_mut().filter(|q| **q == -127).for_each(|q| *q = -128);
    made
}

fn matrix((outputs, inputs): (usize, usize), data: &Int8Rows) -> Matrix {
    Matrix { outputs, inputs, data: MatrixData::Int8(data.clone()) }
}

fn pack(backend: &dyn Backend, shape: (usize, usize), data: &Int8Rows) -> Linear {
    backend.pack(matrix(shape, data), None).expect("fits")
}

/// What the groups of row `o` of a weight add, by definition.
fn products(x: &[f32], weight: &Int8Rows, o: usize) -> Vec<f64> {
    let (inputs, x) = (x.len(), Int8Rows::from_f32(x, x.len()));
    let groups = inputs.div_ceil(GROUP);
    let product = |group: usize| {
        let span = group * GROUP..inputs.min((group + 1) * GROUP);
        let integer = |i| i64::from(x.q[i]) * i64::from(weight.q[o * inputs + i]);
        let sum: i64 = span.map(integer).sum();
        let scales = [x.scales[group], weight.scales[o * groups + group]].map(f64::from);
        sum as f64 * scales[0] * scales[1]
    };
    (0..groups).map(product).collect()
}

/// Every sum, in units of the sizes of what it adds: f32 rounds both scales' product, the
/// addition of each group and of the bias.
fn check_linear(backend: &dyn Backend, x: &Rows, data: &Int8Rows, bias: Option<&[f32]>) {
    let inputs = x.cols();
    let outputs = data.q.len() / inputs;
    let packed = backend.pack(matrix((outputs, inputs), data), bias.map(<[f32]>::to_vec));
    let packed = packed.expect("fits");
    let y = backend.linear(x, &packed).expect("fits");
    assert_eq!((y.rows(), y.cols()), (x.rows(), outputs));
    let (mut seen, mut want) = (Vec::new(), Vec::new());
    for i in 0..x.rows() {
        for (o, &y) in y.row(i).iter().enumerate() {
            let mut parts = products(x.row(i), data, o);
            parts.push(bias.map_or(0.0, |bias| bias[o].into()));
            let size = parts.iter().map(|part| part.abs()).sum::<f64>().max(f64::MIN_POSITIVE);
            seen.push(f64::from(y) / size);
            want.push(parts.iter().sum::<f64>() / size);
        }
    }
    let roundings = inputs.div_ceil(GROUP) + 3;
    let off = roundings as f64 * f64::from(f32::EPSILON / 2.0);
    let tolerance = Tolerance { abs: off, rel: 0.0, cosine: off };
    close(&format!("{} rows through {packed:?}", x.rows()), &seen, &want, tolerance).unwrap();
}

/// Integer sums inside a group, scaled, over groups: for every size around a tile.
pub fn linear_sums_integers_in_groups(backend: &dyn Backend) {
    let mut random = Random::new(31);
    for shape in OUTPUTS_AND_INPUTS {
        let data = weight(&mut random, shape);
        for count in [0, 1, 2, 3, 7, 16, 33] {
            let bias = (count % 2 == 1).then(|| random.normals(shape.0));
            check_linear(backend, &rows(9, count, shape.1), &data, bias.as_deref());
        }
    }
}

/// Groups of zeros, of nothing but the largest integer, of sizes far apart.
pub fn scales_of_every_size(backend: &dyn Backend) {
    const INPUTS: usize = 300;
    let mut x = rows(3, 6, INPUTS);
    x.row_mut(0).fill(0.0);
    x.row_mut(1)[GROUP..].fill(0.0);
    x.row_mut(2).fill(-1.0);
    x.row_mut(3).iter_mut().for_each(|x| *x *= 1e15);
    x.row_mut(4).iter_mut().for_each(|x| *x *= 1e-15);
    x.row_mut(5)[7] = 1e4;
    let mut random = Random::new(32);
    let mut values = random.normals(40 * INPUTS);
    values[..INPUTS].fill(0.0);
    values[INPUTS..2 * INPUTS].fill(1.0);
    values[2 * INPUTS..3 * INPUTS].iter_mut().for_each(|w| *w *= 1e10);
    check_linear(backend, &x, &Int8Rows::from_f32(&values, INPUTS), None);
}

/// Rows of the table: each integer times its scale, rounded once, and then as any other row.
pub fn embed_multiplies_out(backend: &dyn Backend) {
    for inputs in [20, 128, 200] {
        let data = weight(&mut Random::new(6), (37, inputs));
        let tokens = [0, 36, 5, 5, 17];
        let table = pack(backend, (37, inputs), &data);
        let x = backend.embed(&table, &tokens, 0.75).expect("fits");
        let groups = inputs.div_ceil(GROUP);
        for (i, token) in tokens.into_iter().enumerate() {
            let element = |j: usize| {
                let scale = data.scales[token as usize * groups + j / GROUP];
                f32::from(data.q[token as usize * inputs + j]) * scale * 0.75
            };
            let want: Vec<f32> = (0..inputs).map(element).collect();
            identical("embedding", x.row(i), &want).unwrap();
        }
        assert_eq!(backend.embed(&table, &[], 1.0).expect("fits").rows(), 0);
    }
}

/// The bits of a row are the same alone, in any company and at any place.
pub fn an_int8_row_stands_alone(backend: &dyn Backend) {
    const SHAPE: (usize, usize) = (80, 200);
    let packed = pack(backend, SHAPE, &weight(&mut Random::new(33), SHAPE));
    let x = rows(1, 37, SHAPE.1);
    let all = backend.linear(&x, &packed).expect("fits");
    for (from, to) in [(0, 1), (36, 37), (5, 12), (12, 28), (3, 36), (16, 17)] {
        let some = x.data()[from * SHAPE.1..to * SHAPE.1].to_vec();
        let some = Rows::from_vec(to - from, SHAPE.1, some);
        let few = backend.linear(&some, &packed).expect("fits");
        identical("linear", few.data(), &all.data()[from * SHAPE.0..to * SHAPE.0]).unwrap();
    }
}

/// Too few integers or scales, numbers that are not finite on either side.
pub fn broken_int8_is_refused(backend: &dyn Backend) {
    const SHAPE: (usize, usize) = (3, 130);
    let whole = weight(&mut Random::new(34), SHAPE);
    let torn = |q: usize, scales: usize| {
        let data = Int8Rows {
            q: whole.q[..whole.q.len() - q].to_vec(),
            scales: whole.scales[..whole.scales.len() - scales].to_vec(),
        };
        let packed = backend.pack(matrix(SHAPE, &data), None);
        assert!(matches!(packed, Err(BackendError::Shape { op: "pack", .. })), "{packed:?}");
    };
    torn(1, 0);
    torn(0, 1);
    torn(SHAPE.1, 2);
    let refused = |x: &Rows, data: &Int8Rows| {
        let y = backend.linear(x, &pack(backend, SHAPE, data));
        assert!(matches!(y, Err(BackendError::NotFinite { op: "linear", .. })), "{y:?}");
    };
    let ones = Rows::from_vec(2, SHAPE.1, vec![1.0; 2 * SHAPE.1]);
    for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for at in [0, 129, 259] {
            let mut x = ones.clone();
            x.data_mut()[at] = broken;
            refused(&x, &whole);
        }
        let mut data = whole.clone();
        data.scales[3] = broken;
        refused(&ones, &data);
    }
}
