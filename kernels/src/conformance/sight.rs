//! Rows that lose sight of keys, by a window or by blocks, on the shapes of `tiles.rs`: where
//! sight begins falls before, into and behind tiles of own and of remembered keys.

use crate::backend::Backend;
use crate::memory::Keys;
use crate::tensor::KvDtype;
use crate::window::Window;

use super::attention::check_block;
use super::cells::scattered;
use super::mass::{Want, check_one_pass};
use super::scene::{Block, Random, Shape};
use super::tiles::{self, check_over, check_same_bits};

/// Around tiles of 64 and 128 keys, within one, and beyond everything.
const WINDOWS: [Window; 10] = [
    Window::Last(1),
    Window::Last(30),
    Window::Last(64),
    Window::Last(65),
    Window::Last(127),
    Window::Last(300),
    Window::Last(100_000),
    Window::Block(50),
    Window::Block(64),
    Window::Block(333),
];

/// Two KV heads, which remember different keys.
fn shape(head_dim: usize, window: Window) -> Shape {
    Shape { heads: 4, kv_heads: 2, window: Some(window), ..tiles::shape(head_dim) }
}

/// `count` keys of each KV head anywhere before `start`, as selection leaves them: many of the
/// last, and gaps before.
fn remembered(shape: Shape, count: usize, start: u32) -> Keys {
    let mut random = Random::new(u64::from(start));
    let mut positions = Vec::new();
    for g in 0..shape.kv_heads {
        let recent = (start - count as u32 / (2 + g as u32))..start;
        let mut rest: Vec<u32> = (0..recent.start).collect();
        while rest.len() + recent.len() > count {
            rest.swap_remove(random.next() as usize % rest.len());
        }
        rest.sort_unstable();
        positions.extend(rest.into_iter().chain(recent));
    }
    shape.keys(&positions, |_, _| 0.0)
}

fn scene(shape: Shape, count: usize, start: u32, tokens: usize) -> (Keys, Block) {
    (remembered(shape, count, start), shape.block(start, tokens))
}

/// Output and masses, where rows' sight begins anywhere.
pub fn sight_begins_around_tiles(backend: &dyn Backend) {
    for (i, window) in WINDOWS.into_iter().enumerate() {
        let head_dim = [64, 128, 256][i % 3];
        for (head_dim, count, tokens) in
            [(head_dim, 140, 130), (64, 70, 200), (128, 200, 65), (120, 0, 300), (192, 33, 20)]
        {
            let shape = shape(head_dim, window);
            let (past, block) = scene(shape, count, 260, tokens);
            check_over(backend, shape, (&past, &block), &vec![1.0; tokens]);
        }
    }
}

/// Blocks of rows that see nothing of what is remembered, and tiles of keys that nobody sees.
pub fn rows_far_behind_what_is_remembered(backend: &dyn Backend) {
    for (head_dim, window, start) in [
        (64, Window::Last(20), 400),
        (128, Window::Last(150), 400),
        (256, Window::Last(90), 1000),
        (128, Window::Block(200), 395),
        (64, Window::Block(128), 384),
    ] {
        let shape = shape(head_dim, window);
        let past = remembered(shape, 150, 400);
        let block = shape.block(start.max(400), 270);
        check_over(backend, shape, (&past, &block), &vec![1.0; 270]);
        let votes: Vec<f32> = (0..270).map(|t| if t < 250 { 0.0 } else { 0.1 }).collect();
        check_over(backend, shape, (&past, &block), &votes);
    }
}

/// States of past and own keys by themselves: the empty one where nothing is in sight.
pub fn states_within_sight(backend: &dyn Backend) {
    for (i, window) in WINDOWS.into_iter().enumerate() {
        let shape = shape([256, 64, 128, 80][i % 4], window);
        let (past, block) = scene(shape, 100, 180, 140);
        check_block(backend, &past, &block);
        let state = backend.attend(block.queries(), &past).expect("fits");
        for (h, g) in (0..shape.heads).map(|h| (h, h / (shape.heads / shape.kv_heads))) {
            let last = past.positions[(g + 1) * 100 - 1];
            for t in 0..140 {
                let (row, sees) = (h * 140 + t, window.first_seen(180 + t as u32) <= last);
                let name = format!("{window:?}, head {h}, row {t}");
                assert_eq!(state.m[row] > f32::NEG_INFINITY, sees, "{name}");
                assert_eq!(state.l[row] > 0.0, sees, "{name}");
            }
        }
    }
}

/// Own keys first and the past later give the bits of both at once; so do tables, and so does a
/// window that nothing is beyond, beside none.
pub fn sight_changes_no_other_bit(backend: &dyn Backend) {
    for (i, window) in WINDOWS.into_iter().enumerate() {
        let shape = shape([128, 256, 64, 96][i % 4], window);
        let row_weights = vec![1.0; 135];
        let want = Want { row_weights: Some(&row_weights), rounded: true };
        check_one_pass(backend, shape, (70, 135), want);
        let (past, block) = scene(shape, 70, 180, 135);
        check_same_bits(backend, [&past, &scattered(&past, 3)], &block);
        let all = Shape { window: Some(Window::Last(315)), ..shape };
        for window in [None, Some(Window::Last(314)), Some(Window::Block(4096))] {
            let (a, b) = (all.block(180, 135), Shape { window, ..shape }.block(180, 135));
            let [a, b] = [a, b].map(|it| backend.attend(it.queries(), &past).expect("fits"));
            // Of the row that a key at position 0 is out of sight of, nothing is said.
            let rows = |o: &[f32]| o[..134 * shape.head_dim].to_vec();
            assert_eq!((&a.m[..134], rows(&a.o)), (&b.m[..134], rows(&b.o)), "{window:?}");
        }
    }
    let f32s = Shape { kv: KvDtype::F32, ..shape(64, Window::Last(64)) };
    check_block(backend, &remembered(f32s, 70, 180), &f32s.block(180, 135));
}
