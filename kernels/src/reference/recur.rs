//! Rows of a recurrent layer, one after the other.

use super::norm::norm_row;
use crate::array::Array;
use crate::recurrent::{Delta, Recurred, Recurrent, Rule, Scan};
use crate::tensor::Rows;

/// See [`crate::MixerOps::recur`].
pub(crate) fn recur(recurrent: &Recurrent, columns: &Rows, state: Array<f32>) -> Recurred {
    let mut state = recurrent.begin(state);
    let mut output = Rows::zeros(columns.rows(), recurrent.outputs());
    let (inputs, states) = state.split_at_mut(recurrent.inputs_len());
    for t in 0..columns.rows() {
        let (row, to) = (columns.row(t), output.row_mut(t));
        match &recurrent.rule {
            Rule::Gated => {
                let (b, others) = row.split_at(recurrent.channels());
                let (c, x) = others.split_at(recurrent.channels());
                let input: Vec<f32> = b.iter().zip(x).map(|(b, x)| b * x).collect();
                let convolved = convolve(recurrent, inputs, &input);
                to.iter_mut().zip(c.iter().zip(convolved)).for_each(|(to, (c, y))| {
                    *to = (f64::from(*c) * y) as f32;
                });
            }
            Rule::Delta(delta) => {
                let convolved = convolve(recurrent, inputs, &row[..delta.channels()]);
                delta_row(delta, row, &silus(convolved), states, to);
            }
            Rule::Scan(scan) => {
                let input = &row[scan.outputs()..][..scan.channels()];
                let convolved = convolve(recurrent, inputs, input);
                scan_row(scan, row, &silus(convolved), states, to);
            }
        }
    }
    Recurred { output, state: state.into() }
}

/// What comes of `input` and the last inputs, `[K - 1, channels]`, of which it becomes the last.
fn convolve(recurrent: &Recurrent, last: &mut [f32], input: &[f32]) -> Vec<f64> {
    let (conv, channels) = (&recurrent.conv, input.len());
    let bias = |c: usize| conv.bias.as_ref().map_or(0.0, |bias| f64::from(bias[c]));
    let of_channel = |c: usize| {
        let inputs = last.iter().chain(input).skip(c).step_by(channels);
        let weights = conv.weights.iter().skip(c).step_by(channels);
        let products = inputs.zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
        products.sum::<f64>() + bias(c)
    };
    let convolved = (0..channels).map(of_channel).collect();
    if let Some(kept) = last.len().checked_sub(channels) {
        last.copy_within(channels.., 0);
        last[kept..].copy_from_slice(input);
    }
    convolved
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn silus(convolved: Vec<f64>) -> Vec<f64> {
    convolved.into_iter().map(silu).collect()
}

/// See [`Delta`].
fn delta_row(delta: &Delta, row: &[f32], qkv: &[f64], states: &mut [f32], to: &mut [f32]) {
    let Delta { key_dim, value_dim, .. } = *delta;
    let [z, b, a] = delta.gates();
    let unit = |x: &[f64], factor: f64| -> Vec<f64> {
        let squares: f64 = x.iter().map(|x| x * x).sum();
        let scale = factor / (squares + f64::from(Delta::EPS)).sqrt();
        x.iter().map(|x| x * scale).collect()
    };
    for (head, state) in states.chunks_exact_mut(key_dim * value_dim).enumerate() {
        let key_head = delta.key_head(head) * key_dim;
        let q = unit(&qkv[key_head..][..key_dim], 1.0 / (key_dim as f64).sqrt());
        let k = unit(&qkv[delta.keys() + key_head..][..key_dim], 1.0);
        let v = &qkv[2 * delta.keys() + head * value_dim..][..value_dim];
        let gates = [row[b.start + head], row[a.start + head]];
        let [decay, step] = delta.decay_and_step(head, gates).map(f64::from);
        let to = &mut to[head * value_dim..][..value_dim];
        for (j, v) in v.iter().enumerate() {
            let column = || (0..key_dim).map(|i| i * value_dim + j);
            let held: f64 = column().zip(&k).map(|(at, k)| decay * f64::from(state[at]) * k).sum();
            let added = (v - held) * step;
            let mut o = 0.0;
            for ((at, k), q) in column().zip(&k).zip(&q) {
                let new = decay * f64::from(state[at]) + k * added;
                state[at] = new as f32;
                o += q * new;
            }
            to[j] = o as f32;
        }
        norm_row(to, &delta.norm, delta.norm_eps);
        let z = &row[z.start + head * value_dim..][..value_dim];
        to.iter_mut().zip(z).for_each(|(o, z)| *o = (f64::from(*o) * silu(f64::from(*z))) as f32);
    }
}

/// See [`Scan`].
fn scan_row(scan: &Scan, row: &[f32], xbc: &[f64], states: &mut [f32], to: &mut [f32]) {
    let Scan { state_dim: rows, head_dim: cols, .. } = *scan;
    let (b, c) = (scan.outputs(), scan.outputs() + scan.groups * rows);
    for (head, state) in states.chunks_exact_mut(rows * cols).enumerate() {
        let group = scan.group(head) * rows;
        let (b, c) = (&xbc[b + group..][..rows], &xbc[c + group..][..rows]);
        let x = &xbc[head * cols..][..cols];
        let dt = row[scan.steps().start + head];
        let [decay, step] = scan.decay_and_step(head, dt).map(f64::from);
        for (j, x) in x.iter().enumerate() {
            let mut y = f64::from(scan.skip[head]) * x;
            for (i, (b, c)) in b.iter().zip(c).enumerate() {
                let at = &mut state[i * cols + j];
                let new = decay * f64::from(*at) + b * (step * x);
                *at = new as f32;
                y += c * new;
            }
            to[head * cols + j] = y as f32;
        }
    }
    to.iter_mut().zip(row).for_each(|(y, z)| *y = (f64::from(*y) * silu(f64::from(*z))) as f32);
    if let Some(norm) = &scan.norm {
        let size = to.len() / norm.groups;
        for (part, weights) in to.chunks_exact_mut(size).zip(norm.weights.chunks_exact(size)) {
            norm_row(part, weights, norm.eps);
        }
    }
}

/// `attention`, `[tokens, H D]`, times σ of `gates`, of each element or of each head.
pub(crate) fn gate(gates: &Rows, mut attention: Rows) -> Rows {
    let each = attention.cols() / gates.cols().max(1);
    let gates = gates.data();
    for (part, gate) in attention.data_mut().chunks_exact_mut(each.max(1)).zip(gates) {
        let factor = 1.0 / (1.0 + (-f64::from(*gate)).exp());
        part.iter_mut().for_each(|x| *x = (f64::from(*x) * factor) as f32);
    }
    attention
}
