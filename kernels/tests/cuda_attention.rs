//! Attention and masses on an emulated device, where the conformance suite does not look: decode
//! steps on their own kernels, and bits that depend on no chip and no order of threads.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

#[path = "support/noise.rs"]
mod noise;

use aqueduct_kernels::compare::{Tolerance, close, identical};
use aqueduct_kernels::cuda::{Cuda, CudaOptions};
use aqueduct_kernels::{
    Array, Attended, AttentionOps, Heads, Keys, KvDtype, KvHeads, Leaves, Queries, Reference,
    Scope, Window,
};
use noise::noise;

fn emulated(capability: u32) -> Cuda {
    let options = CudaOptions { checked: true, ..CudaOptions::default() };
    Cuda::emulated(capability, options).expect("kernels compile")
}

/// A block's rows over past and own keys.
#[derive(Debug, Clone, Copy)]
struct Scene {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    tokens: usize,
    past: usize,
    window: Option<u32>,
    kv: KvDtype,
}

const DECODE: Scene = Scene {
    heads: 4,
    kv_heads: 1,
    head_dim: 128,
    tokens: 1,
    past: 300,
    window: None,
    kv: KvDtype::Bf16,
};

/// Queries, past keys, own keys.
struct Block {
    q: Heads,
    past: Keys,
    own: Keys,
    scene: Scene,
}

impl Scene {
    fn block(self) -> Block {
        let Self { heads, kv_heads, head_dim, tokens, past, kv, .. } = self;
        let q = Heads { heads, tokens, head_dim, data: noise(heads * tokens * head_dim, 1).into() };
        let array = |count, seed| {
            KvHeads::from_f32(
                kv_heads,
                count,
                head_dim,
                &noise(kv_heads * count * head_dim, seed),
                kv,
            )
        };
        // The last cell first.
        let backwards: Vec<u32> = (0..past as u32).rev().collect();
        let gaps: Vec<u32> = (0..past as u32).map(|j| 2 * j).collect();
        let past = Keys::scattered(
            gaps.repeat(kv_heads),
            array(past, 2),
            array(past, 3),
            backwards.repeat(kv_heads),
        );
        let positions: Vec<u32> = (self.start()..).take(tokens).collect();
        let own = Keys::new(positions.repeat(kv_heads), array(tokens, 4), array(tokens, 5));
        Block { q, past, own, scene: self }
    }

    fn start(&self) -> u32 {
        2 * self.past as u32
    }

    fn weights(&self) -> Vec<f32> {
        (1..=self.tokens).map(|t| t as f32).collect()
    }
}

impl Block {
    fn attended(&self, backend: &dyn AttentionOps) -> Attended {
        let window = self.scene.window.map(Window::Last);
        let queries = Queries {
            q: &self.q,
            start: self.scene.start(),
            scale: 0.5,
            window,
            softcap: None,
            slopes: None,
        };
        let weights = self.scene.weights();
        let (past, leaves, own) = (&self.past, Leaves::ONE, &self.own);
        let (row_weights, outputs) = (Some(&weights[..]), self.q.tokens);
        let scope = Scope { past, leaves, own, row_weights, sinks: None, outputs, rounded: true };
        backend.attend_all(queries, scope).expect("fits")
    }
}

fn check_decode(cuda: &Cuda, scene: Scene) {
    let block = scene.block();
    let (want, seen) = (block.attended(&Reference), block.attended(cuda));
    let name = |what| format!("{what} of {scene:?}");
    // p and the output are rounded to bf16.
    let rounded = Tolerance { abs: 4e-3, rel: 4e-3, cosine: 1e-5 };
    close(&name("output"), seen.output.data(), want.output.data(), rounded).unwrap();
    let exact = Tolerance::new(1e-6, 1e-5);
    close(&name("past mass"), &seen.past_mass, &want.past_mass, exact).unwrap();
    close(&name("own mass"), &seen.own_mass, &want.own_mass, exact).unwrap();
}

#[test]
fn decode_steps_agree_with_the_reference() {
    let cuda = emulated(90);
    for head_dim in [64, 128, 256, 40, 80, 120, 192] {
        check_decode(&cuda, Scene { head_dim, ..DECODE });
        check_decode(&cuda, Scene { head_dim, heads: 4, kv_heads: 2, past: 129, ..DECODE });
        check_decode(&cuda, Scene { head_dim, tokens: 4, past: 70, ..DECODE });
        check_decode(&cuda, Scene { head_dim, tokens: 4, window: Some(40), ..DECODE });
    }
    for head_dim in [80, 192] {
        check_decode(&cuda, Scene { head_dim, past: 3000, ..DECODE }); // more splits than slices
    }
    for past in [0, 1, 15, 16, 17, 127, 128, 256, 1000] {
        check_decode(&cuda, Scene { past, ..DECODE });
    }
    check_decode(&cuda, Scene { heads: 14, kv_heads: 2, tokens: 2, ..DECODE });
    check_decode(&cuda, Scene { heads: 1, kv_heads: 1, ..DECODE });
    check_decode(&cuda, Scene { window: Some(1), ..DECODE });
}

fn arrays(attended: &Attended) -> [(&'static str, &Array<f32>); 3] {
    [
        ("output", attended.output.array()),
        ("past mass", &attended.past_mass),
        ("own mass", &attended.own_mass),
    ]
}

#[test]
fn bits_depend_neither_on_the_chip_nor_on_the_order_of_threads() {
    // Of a head size that plain kernels have alone.
    let many = Scene { head_dim: 84, tokens: 40, past: 70, window: Some(100), ..DECODE };
    let devices = [emulated(90), emulated(80)];
    for scene in [DECODE, many, Scene { kv: KvDtype::F32, ..many }] {
        let block = scene.block();
        let want = block.attended(&devices[0]);
        // Every launch takes threads and blocks in an order of its own.
        for device in [&devices[0], &devices[1], &devices[1]] {
            let seen = block.attended(device);
            for ((what, seen), (_, want)) in arrays(&seen).into_iter().zip(arrays(&want)) {
                identical(&format!("{what} of {scene:?}"), seen, want).unwrap();
            }
        }
    }
}
