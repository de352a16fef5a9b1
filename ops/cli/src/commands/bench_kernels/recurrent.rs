//! Layers that remember in a state: the recurrence itself, as it stands between two products.

use std::sync::Arc;

use aqueduct_kernels::{
    Array, BackendError, Convolution, Cpu, Delta, GroupNorm, MixerOps, Recurrent, Rows, Rule, Scan,
};

use super::case::{Case, Work, noise, timed};

/// Every rule, of the sizes that models of about a billion parameters have.
pub(super) fn states(cpu: &Cpu) -> Vec<Case> {
    let each = |tokens| {
        [("gated", gated()), ("delta", delta()), ("scan", scan())].map(|layer| (tokens, layer))
    };
    let cases = [1, 1024].into_iter().flat_map(each);
    cases.map(|(tokens, (name, layer))| case(cpu, name, layer, tokens)).collect()
}

fn conv(taps: usize, channels: usize) -> Convolution {
    Convolution { taps, weights: noise(taps * channels).into(), bias: None }
}

/// LFM2 1.2B.
fn gated() -> Recurrent {
    Recurrent { conv: conv(3, 2048), rule: Rule::Gated }
}

fn ones(count: usize) -> Arc<[f32]> {
    vec![1.0; count].into()
}

/// Qwen3.5 0.8B.
fn delta() -> Recurrent {
    let heads = 16;
    let delta = Delta {
        key_heads: heads,
        value_heads: heads,
        tiled: false,
        key_dim: 128,
        value_dim: 128,
        rate: ones(heads),
        shift: ones(heads),
        steps: 1.0,
        norm: ones(128),
        norm_eps: 1e-6,
    };
    Recurrent { conv: conv(4, delta.channels()), rule: Rule::Delta(delta) }
}

/// Granite 4 H 1B.
fn scan() -> Recurrent {
    let (heads, head_dim) = (48, 64);
    let scan = Scan {
        heads,
        head_dim,
        groups: 1,
        state_dim: 128,
        rate: ones(heads),
        shift: ones(heads),
        skip: ones(heads),
        dt_scale: 1.0,
        x_scale: 1.0,
        limits: [0.0, f32::INFINITY],
        norm: Some(GroupNorm { weights: ones(heads * head_dim), groups: 1, eps: 1e-5 }),
    };
    Recurrent { conv: conv(4, scan.channels()), rule: Rule::Scan(scan) }
}

/// Operations of a token: two for each tap, and for each element of a state those of the rule.
fn flop_of_token(layer: &Recurrent) -> usize {
    let (taps, channels) = (layer.conv.taps, layer.channels());
    let elements = layer.state_len() - (taps - 1) * channels;
    let of_element = match layer.rule {
        Rule::Gated => 0,
        Rule::Delta(_) => 7, // decay; the key's product; its outer product; the query's
        Rule::Scan(_) => 5,
    };
    2 * taps * channels + of_element * elements
}

fn case(cpu: &Cpu, name: &'static str, layer: Recurrent, tokens: usize) -> Case {
    let (columns, outputs) = (layer.columns(), layer.outputs());
    Case {
        kernel: "recur",
        path: cpu.vector_path(),
        shape: format!("{name} T={tokens}"),
        flop: (tokens * flop_of_token(&layer)) as u64,
        bytes: (4 * tokens * (columns + outputs) + 8 * layer.state_len()) as u64,
        prepare: Box::new(move |_: &Cpu| -> Result<Work, BackendError> {
            let x = Rows::from_vec(tokens, columns, noise(tokens * columns));
            let mut state = Array::from(vec![0.0; layer.state_len()]);
            Ok(Box::new(move |cpu| {
                let before = std::mem::take(&mut state);
                let mut after = None;
                let took = timed(|| {
                    after = Some(cpu.recur(&layer, &x, before)?);
                    Ok(())
                })?;
                state = after.expect("computed above").state;
                Ok(took)
            }))
        }),
    }
}
