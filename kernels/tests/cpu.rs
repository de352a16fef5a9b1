//! The fast backend against the reference, on every instruction set of this machine and for
//! several numbers of threads.

#[path = "support/noise.rs"]
mod noise;

use std::sync::Arc;

use aqueduct_kernels::compare::{Tolerance, close, identical};
use aqueduct_kernels::{
    Activation, Angles, AttentionOps, Cpu, CpuOptions, FeedForward, Gated, Heads, IsaLevel, Keys,
    KvData, KvDtype, KvHeads, LayerOps, LayerSpec, LayerWeights, Linear, Matrix, MatrixData,
    Queries, Reference, Rows, Window,
};
use half::bf16;
use noise::noise;

fn cpus(threads: usize) -> impl Iterator<Item = Cpu> {
    IsaLevel::available().map(move |isa| Cpu::new(CpuOptions { threads, isa: Some(isa) }).unwrap())
}

/// A block of queries over its own keys, or over remembered ones with gaps.
#[derive(Debug, Clone, Copy)]
struct Scene {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    tokens: usize,
    past: Option<usize>,
    window: Option<u32>,
    kv: KvDtype,
}

impl Scene {
    fn make(self) -> (Heads, Keys, u32) {
        let Self { heads, kv_heads, head_dim, tokens, past, kv, .. } = self;
        let q = Heads { heads, tokens, head_dim, data: noise(heads * tokens * head_dim, 1).into() };
        let count = past.unwrap_or(tokens);
        let start = 3 * past.unwrap_or(0) as u32 + 5;
        let array = |seed| {
            let data = noise(kv_heads * count * head_dim, seed);
            KvHeads::from_f32(kv_heads, count, head_dim, &data, kv)
        };
        let position = |g, j| if past.is_some() { 3 * j + g % 3 } else { start + j };
        let positions: Vec<u32> = (0..kv_heads as u32)
            .flat_map(|g| (0..count as u32).map(move |j| position(g, j)))
            .collect();
        (q, Keys::new(positions, array(2), array(3)), start)
    }
}

/// What rounding of p to bf16 may change in an output: p |v| in 2^8.
fn rounding_of_p(queries: Queries<'_>, keys: &Keys) -> Vec<f32> {
    let KvData::Bf16(v) = &keys.v.data else { return Vec::new() };
    let v = KvData::Bf16(v.iter().map(|v| bf16::from_bits(v.to_bits() & 0x7fff)).collect());
    let keys = Keys::new(keys.positions.clone(), keys.k.clone(), KvHeads { data: v, ..keys.v });
    let sizes = Reference.attend(queries, &keys).unwrap().output();
    sizes.data().iter().map(|size| size / 256.0).collect()
}

/// `seen`, each element up to so much nearer to `want`.
fn pulled(seen: &[f32], want: &[f32], slack: &[f32]) -> Vec<f32> {
    let slack = slack.iter().copied().chain(std::iter::repeat(0.0));
    let pull =
        |((seen, want), slack): ((&f32, &f32), f32)| seen + (want - seen).clamp(-slack, slack);
    seen.iter().zip(want).zip(slack).map(pull).collect()
}

fn check_attention(scene: Scene) {
    let (q, keys, start) = scene.make();
    let queries = Queries {
        q: &q,
        start,
        scale: 3.0,
        window: scene.window.map(Window::Last),
        softcap: None,
        slopes: None,
    };
    let want = Reference.attend(queries, &keys).unwrap();
    let weights: Vec<f32> =
        (0..scene.tokens).map(|t| if t % 3 == 1 { 0.0 } else { 0.5 + t as f32 }).collect();
    let want_mass = Reference.weigh(queries, &keys, &want.lse(), &weights).unwrap();
    let tolerance = Tolerance::new(3e-5, 3e-5);
    let slack = rounding_of_p(queries, &keys);
    for cpu in cpus(1) {
        let what = |field: &str| format!("{field} of {scene:?} on {cpu:?}");
        let seen = cpu.attend(queries, &keys).unwrap();
        close(&what("m"), &seen.m, &want.m, tolerance).unwrap();
        close(&what("lse"), &seen.lse(), &want.lse(), tolerance).unwrap();
        let rounded = pulled(seen.output().data(), want.output().data(), &slack);
        close(&what("o"), &rounded, want.output().data(), tolerance).unwrap();
        let mass = cpu.weigh(queries, &keys, &want.lse(), &weights).unwrap();
        let total = f64::from(weights.iter().sum::<f32>());
        let spent = Tolerance::new(2e-6 * total, 2e-4);
        close(&what("mass"), &mass, &want_mass, spent).unwrap();
        for threads in [2, 3] {
            let isa = Some(cpu.isa());
            let other = Cpu::new(CpuOptions { threads, isa }).unwrap();
            assert_eq!(other.attend(queries, &keys).unwrap(), seen, "{other:?}");
            let other_mass = other.weigh(queries, &keys, &want.lse(), &weights).unwrap();
            identical(&what("mass"), &other_mass, &mass).unwrap();
        }
    }
}

#[test]
fn attention_agrees_with_the_reference() {
    let scene = Scene {
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        tokens: 70,
        past: None,
        window: None,
        kv: KvDtype::F32,
    };
    check_attention(scene);
    check_attention(Scene { past: Some(131), ..scene });
    check_attention(Scene { past: Some(131), kv: KvDtype::Bf16, ..scene });
    check_attention(Scene { window: Some(9), tokens: 200, ..scene });
    check_attention(Scene { window: Some(33), past: Some(40), ..scene });
    check_attention(Scene { tokens: 1, ..scene });
    check_attention(Scene { tokens: 1, past: Some(300), ..scene });
    check_attention(Scene { heads: 7, kv_heads: 1, tokens: 33, ..scene });
    check_attention(Scene { heads: 70, kv_heads: 1, tokens: 3, ..scene });
    check_attention(Scene { heads: 3, kv_heads: 3, tokens: 65, ..scene });
    for head_dim in [2, 7, 80, 96, 128, 256] {
        check_attention(Scene { head_dim, kv: KvDtype::Bf16, ..scene });
    }
}

fn matrix(outputs: usize, inputs: usize, dtype: KvDtype, seed: u64) -> Matrix {
    let scale = (inputs as f32).sqrt().recip();
    let data: Vec<f32> = noise(outputs * inputs, seed).iter().map(|x| x * scale).collect();
    let data = match dtype {
        KvDtype::F32 => MatrixData::F32(data),
        KvDtype::Bf16 => MatrixData::Bf16(data.iter().map(|&x| bf16::from_f32(x)).collect()),
    };
    Matrix { outputs, inputs, data }
}

fn check_linear(rows: usize, outputs: usize, inputs: usize, dtype: KvDtype) {
    let x = Rows::from_vec(rows, inputs, noise(rows * inputs, 7));
    let (weight, bias) = (matrix(outputs, inputs, dtype, 8), Some(noise(outputs, 9)));
    let packed = Reference.pack(weight.clone(), bias.clone()).unwrap();
    let want = Reference.linear(&x, &packed).unwrap();
    let ids = [0, outputs as u32 - 1, outputs as u32 / 2];
    let want_rows = Reference.embed(&packed, &ids, 1.5).unwrap();
    for cpu in cpus(1) {
        let what = format!("[{rows}, {inputs}] to {outputs}, {dtype:?}, on {cpu:?}");
        let packed = cpu.pack(weight.clone(), bias.clone()).unwrap();
        let seen = cpu.linear(&x, &packed).unwrap();
        close(&what, seen.data(), want.data(), Tolerance::new(1e-5, 1e-5)).unwrap();
        for row in [0, rows / 2, rows - 1] {
            let alone = Rows::from_vec(1, inputs, x.row(row).to_vec());
            identical(&what, cpu.linear(&alone, &packed).unwrap().data(), seen.row(row)).unwrap();
        }
        let other = Cpu::new(CpuOptions { threads: 3, isa: Some(cpu.isa()) }).unwrap();
        identical(&what, other.linear(&x, &packed).unwrap().data(), seen.data()).unwrap();
        identical(&what, cpu.embed(&packed, &ids, 1.5).unwrap().data(), want_rows.data()).unwrap();
    }
}

#[test]
fn products_agree_with_the_reference_and_rows_stand_alone() {
    for dtype in [KvDtype::F32, KvDtype::Bf16] {
        for rows in [1, 2, 3, 7, 8, 13, 193] {
            check_linear(rows, 33, 300, dtype);
        }
        check_linear(5, 1, 1, dtype);
        check_linear(9, 16, 256, dtype);
        check_linear(12, 600, 17, dtype);
    }
    // On tiles: two tasks of rows, several chains; parts of inputs between which sums wait; nothing
    // to multiply.
    check_linear(300, 33, 500, KvDtype::Bf16);
    check_linear(65, 40, 1200, KvDtype::Bf16);
    check_linear(256, 40, 2100, KvDtype::Bf16);
    check_linear(70, 32, 0, KvDtype::Bf16);
}

fn layer(backend: &dyn LayerOps, spec: LayerSpec, qk_norm: bool, weights: KvDtype) -> LayerWeights {
    let (width, ffn) = (72, if qk_norm { 112 } else { 90 });
    let norm =
        |count, seed| -> Arc<[f32]> { noise(count, seed).iter().map(|x| 1.0 + 0.3 * x).collect() };
    let pack = |outputs, inputs, seed, bias: bool| -> Linear {
        let bias = bias.then(|| noise(outputs, seed + 50));
        backend.pack(matrix(outputs, inputs, weights, seed), bias).unwrap()
    };
    LayerWeights {
        gate: None,
        recurrent: None,
        spec,
        attn_norm: Some(norm(width, 1)),
        qkv: pack((spec.heads + 2 * spec.kv_heads) * spec.head_dim, width, 2, true),
        latent: None,
        q_norm: qk_norm.then(|| norm(spec.head_dim, 3)),
        k_norm: qk_norm.then(|| norm(spec.head_dim, 4)),
        v_norm: None,
        keys_of: None,
        beside_last: false,
        out_norm: None,
        hidden_norm: None,
        input: None,
        norms_last: false,
        norms_apart: false,
        clip: None,
        sinks: None,
        out: pack(width, spec.heads * spec.head_dim, 5, false),
        attn_post_norm: qk_norm.then(|| norm(width, 9)),
        ffn_norm: Some(norm(width, 6)),
        ffn: FeedForward::Dense(Gated {
            gate_up: pack(2 * ffn, width, 7, false),
            down: pack(width, ffn, 8, false),
        }),
        parallel: false,
        ffn_post_norm: qk_norm.then(|| norm(width, 10)),
        scale: None,
    }
}

fn check_layer(tokens: usize, head_dim: usize, qk_norm: bool, [weights, kv]: [KvDtype; 2]) {
    let activation = if qk_norm { Activation::GeluTanh } else { Activation::Silu };
    let spec = LayerSpec { heads: 6, kv_heads: 2, head_dim, norm_eps: 1e-5, activation, kv };
    let x = Rows::from_vec(tokens, 72, noise(tokens * 72, 20));
    let attention = Rows::from_vec(tokens, 6 * head_dim, noise(tokens * 6 * head_dim, 21));
    let half = head_dim / 2;
    let turns = noise(tokens * half, 22);
    let cos = turns.iter().map(|x| x.cos()).collect();
    let sin = turns.iter().map(|x| x.sin()).collect();
    let angles = Angles { tokens, half, cos, sin };
    let reference = layer(&Reference, spec, qk_norm, weights);
    let want = Reference.project(&reference, &x, (9, &angles), x.rows()).unwrap();
    let want_x = Reference.finish(&reference, &x, &attention).unwrap();
    let norm = reference.attn_norm.as_ref().expect("given");
    let want_norm = Reference.norm(&x, norm, 1e-5);
    // Where a norm ends near a tie, it may be rounded to either bf16: an ulp of 2^-6 at sizes
    // up to 4, times a weight of at most 1 / sqrt(72). Conformance knows which ones may.
    let flip = if weights == KvDtype::Bf16 { 2e-3 } else { 0.0 };
    let tight = Tolerance::new(1e-5, 1e-5);
    let tolerance = Tolerance::new(1e-5 + flip, 1e-5);
    let kept = if kv == KvDtype::F32 { 1e-5 } else { 1.0 / 128.0 };
    let stored = Tolerance::new(1e-5 + flip, kept);
    for cpu in [1, 2].into_iter().flat_map(cpus) {
        let what = format!("{tokens} tokens, {spec:?}, on {cpu:?}");
        let layer = layer(&cpu, spec, qk_norm, weights);
        let seen = cpu.project(&layer, &x, (9, &angles), x.rows()).unwrap();
        assert_eq!(seen.keys.positions, want.keys.positions, "{what}");
        close(&what, &seen.q.data, &want.q.data, tolerance).unwrap();
        for (seen, want) in [(&seen.keys.k, &want.keys.k), (&seen.keys.v, &want.keys.v)] {
            assert_eq!(seen.dtype(), kv);
            for g in 0..2 {
                close(&what, &seen.head_f32(g), &want.head_f32(g), stored).unwrap();
            }
        }
        let x_next = cpu.finish(&layer, &x, &attention).unwrap();
        close(&what, x_next.data(), want_x.data(), tolerance).unwrap();
        let normed = cpu.norm(&x, norm, 1e-5);
        close(&what, normed.data(), want_norm.data(), tight).unwrap();
    }
}

#[test]
fn layers_agree_with_the_reference() {
    for tokens in [1, 5, 130] {
        for kv in [KvDtype::F32, KvDtype::Bf16] {
            check_layer(tokens, 64, false, [KvDtype::F32, kv]);
            check_layer(tokens, 80, true, [KvDtype::Bf16, kv]);
        }
    }
    // Heads of whole vectors stay in registers, with a norm and without.
    for (head_dim, qk_norm) in [(64, true), (128, false), (128, true), (256, true)] {
        check_layer(3, head_dim, qk_norm, [KvDtype::Bf16; 2]);
        check_layer(3, head_dim, qk_norm, [KvDtype::F32; 2]);
    }
}

#[test]
fn many_callers_share_one_cpu() {
    let weight = matrix(200, 64, KvDtype::Bf16, 1);
    let x = Rows::from_vec(40, 64, noise(40 * 64, 2));
    for cpu in [1, 2].into_iter().flat_map(cpus) {
        let packed = cpu.pack(weight.clone(), None).unwrap();
        let want = cpu.linear(&x, &packed).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| assert_eq!(cpu.linear(&x, &packed).unwrap(), want));
            }
        });
    }
}
