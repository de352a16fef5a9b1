//! Layers that remember in a state, against plain f64 loops over whole sequences.

use std::sync::Arc;

use crate::array::Array;
use crate::backend::Backend;
use crate::compare::{Tolerance, close, identical};
use crate::recurrent::{Convolution, Delta, GroupNorm, Recurred, Recurrent, Rule, Scan};
use crate::tensor::Rows;

use super::layers::rows;
use super::plain::{Look, PLAIN, Plain, PlainLayer};
use super::scene::Random;

const SUMS: Tolerance = Tolerance::new(2e-5, 2e-5);

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn softplus(x: f64) -> f64 {
    if x > 30.0 { x } else { x.exp().ln_1p() }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

/// Layers of every rule, with sizes that fill no vector and with some that do.
pub(super) fn layers() -> Vec<(&'static str, Recurrent)> {
    let mut random = Random::new(31);
    let mut layer = |taps: usize, channels: usize, bias: bool, rule: Rule| {
        let weights = random.normals(taps * channels).into();
        let bias = bias.then(|| random.normals(channels).into());
        Recurrent { conv: Convolution { taps, weights, bias }, rule }
    };
    let delta = |heads: [usize; 2], dims: [usize; 2], steps| {
        Rule::Delta(delta(&mut Random::new(32), (heads, dims), steps))
    };
    let scan = |heads: [usize; 2], dims: [usize; 2], norm| {
        Rule::Scan(scan(&mut Random::new(33), (heads, dims), norm))
    };
    vec![
        ("gated", layer(3, 40, false, Rule::Gated)),
        ("gated, biases", layer(4, 32, true, Rule::Gated)),
        ("gated, one tap", layer(1, 7, false, Rule::Gated)),
        ("delta", layer(4, 2 * 2 * 20 + 4 * 24, false, delta([2, 4], [20, 24], 1.0))),
        ("delta of 128", layer(4, 3 * 128, false, delta([1, 1], [128, 128], 1.0))),
        ("delta that turns over", layer(2, 2 * 3 * 6 + 6 * 6, true, delta([3, 6], [6, 6], 2.0))),
        ("scan", layer(4, 6 * 10 + 2 * 2 * 12, true, scan([6, 2], [10, 12], Some(2)))),
        ("scan, one norm", layer(4, 2 * 64 + 2 * 128, true, scan([2, 1], [64, 128], Some(1)))),
        ("scan, no norm", layer(2, 4 * 17 + 2 * 4 * 9, false, scan([4, 4], [17, 9], None))),
    ]
}

fn delta(
    random: &mut Random,
    ([key_heads, value_heads], [key_dim, value_dim]): Sizes,
    steps: f32,
) -> Delta {
    Delta {
        key_heads,
        value_heads,
        tiled: steps == 2.0,
        key_dim,
        value_dim,
        rate: random.normals(value_heads).iter().map(|x| x.exp()).collect(),
        shift: random.normals(value_heads).into(),
        steps,
        norm: random.normals(value_dim).into(),
        norm_eps: 1e-5,
    }
}

/// Numbers of heads, and their sizes.
type Sizes = ([usize; 2], [usize; 2]);

fn scan(
    random: &mut Random,
    ([heads, groups], [head_dim, state_dim]): Sizes,
    norm: Option<usize>,
) -> Scan {
    let weights: Arc<[f32]> = random.normals(heads * head_dim).into();
    Scan {
        heads,
        head_dim,
        groups,
        state_dim,
        rate: random.normals(heads).iter().map(|x| x.exp()).collect(),
        shift: random.normals(heads).into(),
        skip: random.normals(heads).into(),
        dt_scale: if norm.is_some() { 1.0 } else { 0.6 },
        x_scale: if norm.is_some() { 1.0 } else { 1.7 },
        limits: [0.01, 2.0],
        norm: norm.map(|groups| GroupNorm { weights, groups, eps: 1e-5 }),
    }
}

/// `[tokens][outputs]`, and every matrix of the state behind the last.
fn defined(layer: &Recurrent, columns: &Rows) -> (Vec<Vec<f64>>, Vec<f64>) {
    let all: Vec<Vec<f64>> = (0..columns.rows()).map(|t| wide(columns.row(t))).collect();
    let channels = layer.channels();
    let input = |row: &[f64], c: usize| match &layer.rule {
        Rule::Gated => row[c] * row[2 * channels + c],
        Rule::Delta(_) => row[c],
        Rule::Scan(scan) => row[scan.heads * scan.head_dim + c],
    };
    let taps = layer.conv.taps;
    let convolved = |t: usize, c: usize| -> f64 {
        let bias = layer.conv.bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
        let seen = (0..taps).filter(|age| *age <= t);
        let term = |age: usize| {
            f64::from(layer.conv.weights[(taps - 1 - age) * channels + c]) * input(&all[t - age], c)
        };
        bias + seen.map(term).sum::<f64>()
    };
    let mut state = Vec::new();
    let rows = |state: &mut Vec<f64>, row: &dyn Fn(usize, &mut Vec<f64>) -> Vec<f64>| {
        (0..all.len()).map(|t| row(t, state)).collect()
    };
    let outputs = match &layer.rule {
        Rule::Gated => rows(&mut state, &|t, _| {
            (0..channels).map(|c| all[t][channels + c] * convolved(t, c)).collect()
        }),
        Rule::Delta(delta) => rows(&mut state, &|t, state| {
            let qkv: Vec<f64> = (0..channels).map(|c| silu(convolved(t, c))).collect();
            delta_step(delta, (&qkv, &all[t][channels..]), state)
        }),
        Rule::Scan(scan) => rows(&mut state, &|t, state| {
            let xbc: Vec<f64> = (0..channels).map(|c| silu(convolved(t, c))).collect();
            scan_step(scan, (&xbc, &all[t]), state)
        }),
    };
    (outputs, state)
}

fn normed(x: &[f64], weights: &[f32], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = (mean + f64::from(eps)).sqrt();
    x.iter().zip(weights).map(|(x, w)| x / scale * f64::from(*w)).collect()
}

fn delta_step(of: &Delta, (qkv, gates): (&[f64], &[f64]), state: &mut Vec<f64>) -> Vec<f64> {
    let (dk, dv, heads) = (of.key_dim, of.value_dim, of.value_heads);
    state.resize(heads * dk * dv, 0.0);
    let unit = |x: &[f64]| -> Vec<f64> {
        let length = (x.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
        x.iter().map(|x| x / length).collect()
    };
    let mut out = Vec::new();
    for h in 0..heads {
        let g = if of.tiled { h % of.key_heads } else { h / (heads / of.key_heads) };
        let q = unit(&qkv[g * dk..][..dk]);
        let k = unit(&qkv[(of.key_heads + g) * dk..][..dk]);
        let v = &qkv[2 * of.key_heads * dk + h * dv..][..dv];
        let (z, b, a) =
            (&gates[h * dv..][..dv], gates[heads * dv + h], gates[heads * dv + heads + h]);
        let decay = (-f64::from(of.rate[h]) * softplus(a + f64::from(of.shift[h]))).exp();
        let step = f64::from(of.steps) * sigmoid(b);
        let matrix = &mut state[h * dk * dv..][..dk * dv];
        matrix.iter_mut().for_each(|x| *x *= decay);
        let mut o = vec![0.0; dv];
        for j in 0..dv {
            let held: f64 = (0..dk).map(|i| k[i] * matrix[i * dv + j]).sum();
            (0..dk).for_each(|i| matrix[i * dv + j] += k[i] * step * (v[j] - held));
            o[j] = (0..dk).map(|i| q[i] / (dk as f64).sqrt() * matrix[i * dv + j]).sum();
        }
        out.extend(normed(&o, &of.norm, of.norm_eps).iter().zip(z).map(|(o, z)| o * silu(*z)));
    }
    out
}

fn scan_step(of: &Scan, (xbc, row): (&[f64], &[f64]), state: &mut Vec<f64>) -> Vec<f64> {
    let (heads, p, n) = (of.heads, of.head_dim, of.state_dim);
    state.resize(heads * n * p, 0.0);
    let mut out = Vec::new();
    for h in 0..heads {
        let g = h / (heads / of.groups);
        let b = &xbc[heads * p + g * n..][..n];
        let c = &xbc[heads * p + (of.groups + g) * n..][..n];
        let dt = row[heads * p + xbc.len() + h] * f64::from(of.dt_scale);
        let dt = dt + f64::from(of.shift[h]);
        let dt = softplus(dt).clamp(of.limits[0].into(), of.limits[1].into());
        let decay = (-f64::from(of.rate[h]) * dt).exp();
        for j in 0..p {
            let x = xbc[h * p + j];
            let mut y = f64::from(of.skip[h]) * x;
            for i in 0..n {
                let at = &mut state[(h * n + i) * p + j];
                *at = decay * *at + b[i] * dt * f64::from(of.x_scale) * x;
                y += c[i] * *at;
            }
            out.push(y * silu(row[h * p + j]));
        }
    }
    let Some(norm) = &of.norm else { return out };
    let size = out.len() / norm.groups;
    let parts = out.chunks(size).zip(norm.weights.chunks(size));
    parts.flat_map(|(part, weights)| normed(part, weights, norm.eps)).collect()
}

fn run(backend: &dyn Backend, layer: &Recurrent, x: &Rows, state: Array<f32>) -> Recurred {
    backend.recur(layer, x, state).expect("fits")
}

/// Outputs and states, from the first token on and from a state that is zeros.
pub fn rules_follow_the_definition(backend: &dyn Backend) {
    for (name, layer) in layers() {
        for tokens in [1, 2, 3, 70] {
            let x = rows(41, tokens, layer.columns());
            let seen = run(backend, &layer, &x, Array::default());
            let zeros = vec![0.0; layer.state_len()];
            assert_eq!(run(backend, &layer, &x, zeros.into()), seen, "{name}: zeros");
            let (want, state) = defined(&layer, &x);
            close(&format!("{name}, {tokens} tokens"), seen.output.data(), &want.concat(), SUMS)
                .unwrap();
            let matrices = &seen.state[layer.state_len() - state.len()..];
            close(&format!("{name}, its state"), matrices, &state, SUMS).unwrap();
        }
    }
}

/// No bit tells where a sequence was cut, in pieces of any size.
pub fn a_cut_changes_no_bit(backend: &dyn Backend) {
    const TOKENS: usize = 150;
    for (name, layer) in layers() {
        let x = rows(42, TOKENS, layer.columns());
        let whole = run(backend, &layer, &x, Array::default());
        for cuts in [vec![1], vec![2, 3, 4, 5], vec![20, 44], vec![16, 32, 64], vec![70]] {
            let (mut first, mut state, mut outputs) = (0, Array::default(), Vec::new());
            for end in cuts.iter().copied().chain([TOKENS]) {
                let part = run(backend, &layer, &x.some(first..end), state);
                (first, state) = (end, part.state);
                outputs.extend_from_slice(part.output.data());
            }
            identical(name, &outputs, whole.output.data()).unwrap();
            identical(name, &state, &whole.state).unwrap();
        }
    }
}

/// Rows of other sequences beside it change none of a row's bits, and a state that is broken ends
/// its own row alone.
pub fn rows_recur_as_they_do_alone(backend: &dyn Backend) {
    for (name, layer) in layers() {
        let seeds = [43, 44, 45];
        let state = |seed: u64| match seed {
            44 => Array::default(),
            seed => run(backend, &layer, &rows(seed, 9, layer.columns()), Array::default()).state,
        };
        let x = rows(46, seeds.len(), layer.columns());
        let mut states: Vec<Array<f32>> = seeds.map(state).into();
        let alone: Vec<Recurred> = (0..seeds.len())
            .map(|i| run(backend, &layer, &x.some(i..i + 1), states[i].clone()))
            .collect();
        let together = backend.recur_each(&layer, &x, states.clone());
        for (seen, want) in together.iter().zip(&alone) {
            let seen = seen.as_ref().expect("fits");
            identical(name, seen.output.data(), want.output.data()).unwrap();
            identical(name, &seen.state, &want.state).unwrap();
        }
        states[1] = vec![0.0; layer.state_len() + 1].into();
        let together = backend.recur_each(&layer, &x, states);
        assert!(together[1].is_err(), "{name}: no such state");
        assert_eq!(together[2].as_ref().ok(), Some(&alone[2]), "{name}");
    }
}

/// What is not a number, or overflows, is refused where it comes about or where it is read; it
/// makes no plausible rows.
pub fn a_broken_state_is_refused(backend: &dyn Backend) {
    for (name, layer) in layers() {
        let (x, len) = (rows(50, 3, layer.columns()), layer.state_len());
        if len == 0 {
            continue;
        }
        for (at, value) in [(0, f32::NAN), (len - 1, f32::INFINITY)] {
            let mut state = vec![0.5; len];
            state[at] = value;
            let recurred = backend.recur(&layer, &x.some(0..1), state.into());
            let read = recurred.and_then(|recurred| {
                recurred.state.host()?;
                recurred.output.array().host().map(<[f32]>::to_vec)
            });
            let is_told = |output: &[f32]| output.iter().any(|x| !x.is_finite());
            assert!(read.as_deref().map_or(true, is_told), "{name}: {read:?}");
        }
    }
    let deltas = layers().into_iter().filter(|(_, layer)| matches!(layer.rule, Rule::Delta(_)));
    for (name, layer) in deltas {
        // Keys and queries whose squares are beyond f32.
        let mut x = rows(51, 2, layer.columns());
        x.row_mut(0).iter_mut().for_each(|x| *x *= 1e25);
        let recurred = backend.recur(&layer, &x, Array::default());
        let read = recurred.and_then(|recurred| {
            recurred.output.array().host()?;
            Ok(recurred.output.row(0).to_vec())
        });
        let Ok(row) = read else { continue };
        if row.iter().all(|x| x.is_finite()) {
            let (want, _) = defined(&layer, &x);
            close(&format!("{name}, huge"), &row, &want[0], SUMS).unwrap();
        }
    }
}

/// Norm and first product are those that other layers have, and a gate is a sigmoid's.
pub fn gates_and_first_products_match(backend: &dyn Backend) {
    let plain = PlainLayer::shared();
    let mut layer = plain.pack(backend);
    let (width, heads, head_dim) = (plain.width(), layer.spec.heads, layer.spec.head_dim);
    let norm = layer.attn_norm.clone().expect("it has one");
    for tokens in [1, 3, 40] {
        let x = rows(47, tokens, width);
        let before = backend.norm(&x, &norm, layer.spec.norm_eps);
        let want = backend.linear(&before, &layer.qkv).expect("fits");
        let seen = backend.mix(&layer, &x).expect("fits");
        close("mix", seen.data(), &wide(want.data()), SUMS).unwrap();
        let attention = rows(48, tokens, heads * head_dim);
        for gates in [heads * head_dim, heads] {
            let look = Look { ..PLAIN };
            let weight = Plain::new(&mut Random::new(49), (gates, width), look).pack(backend);
            let made = backend.linear(&before, &weight).expect("fits");
            layer.gate = Some(weight);
            let each = heads * head_dim / gates;
            let want: Vec<f64> = (0..attention.data().len())
                .map(|i| f64::from(attention.data()[i]) * sigmoid(made.data()[i / each].into()))
                .collect();
            let seen = backend.gate(&layer, &x, attention.clone()).expect("fits");
            close(&format!("{gates} gates"), seen.data(), &want, SUMS).unwrap();
        }
        layer.gate = None;
        let seen = backend.gate(&layer, &x, attention.clone()).expect("fits");
        identical("no gate", seen.data(), attention.data()).unwrap();
    }
}
