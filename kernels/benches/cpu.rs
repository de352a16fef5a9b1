//! How much of the processor the `cpu` backend uses: `cargo bench -p aqueduct-kernels`.
//!
//! `ms` is the median by the clock. Rates are medians per second of processor time that each
//! thread had (its idle turns included), so that they hold on a machine that others use; share
//! is of the peak of the path that the row's dtype takes here. `naive` is the
//! reference backend on a sixteenth of the rows, on one thread. GB/s counts the weight of a
//! product, or keys and values. Arguments that do not start with `-` choose rows by a part of
//! their name; the word for an instruction set forces it, `ONE` one thread.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use aqueduct_kernels::cpu::peak::{Factors, Path};
use aqueduct_kernels::heap::Heap;
use aqueduct_kernels::{
    Backend, Cpu, CpuOptions, Heads, Int8Rows, IsaLevel, Keys, KvDtype, KvHeads, Leaves, Matrix,
    MatrixData, MemorySet, Queries, Ranking, Reference, Rows, Scope, Selection,
};
use half::bf16;
use mimalloc::MiMalloc;

/// As in the program: otherwise results begin 16 bytes behind a line of the cache.
#[global_allocator]
static HEAP: Heap<MiMalloc> = Heap(MiMalloc);

/// Timings of each row.
const ROUNDS: usize = 25;

fn main() {
    aqueduct_kernels::heap::keep_freed_memory();
    let words: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let isa = words.iter().find_map(|word| word.parse::<IsaLevel>().ok());
    let is_switch = |word: &str| word == "ONE" || word.parse::<IsaLevel>().is_ok();
    let (switches, filters): (Vec<_>, Vec<_>) = words.iter().partition(|word| is_switch(word));
    let threads = if switches.iter().any(|word| *word == "ONE") { 1 } else { 2 };
    let cpu = Cpu::new(CpuOptions { threads, isa }).expect("threads");
    println!("{cpu:?}");
    let mut peaks: Vec<(Path, f64)> = Vec::new();
    println!(
        "{:32} {:>8} {:>9} {:>9} {:>6} {:>6} {:>9}",
        "", "GFLOP", "ms", "GFLOP/s", "share", "GB/s", "naive"
    );
    for case in cases(&cpu) {
        if filters.is_empty() || filters.iter().any(|filter| case.name.contains(filter.as_str())) {
            let known = peaks.iter().find(|(path, _)| *path == case.path).copied();
            let (_, peak) = known.unwrap_or_else(|| {
                peaks.push((case.path, cpu.peak(case.path)));
                peaks[peaks.len() - 1]
            });
            report(&cpu, peak, &case);
        }
    }
}

/// One row of the table.
struct Case {
    name: String,
    /// What multiplies.
    path: Path,
    /// Of the whole shape, and of the smaller one that the naive run gets.
    flop: [f64; 2],
    /// What is read of weights, or of keys and values.
    bytes: usize,
    /// How often the whole shape is computed in one run, each time from other memory.
    turns: usize,
    /// Prepares the work for a backend, on the whole shape or on a sixteenth of its rows.
    prepare: Box<Prepare>,
}

type Prepare = dyn Fn(&dyn Backend, bool) -> Work;

/// What is timed; it is given the backend again.
type Work = Box<dyn Fn(&dyn Backend)>;

fn report(cpu: &Cpu, peak: f64, case: &Case) {
    let work = (case.prepare)(cpu, true);
    work(cpu);
    let (mut by_clock, mut seconds) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        seconds.push(busy(|| work(cpu)) / (cpu.threads() * case.turns) as f64);
        by_clock.push(start.elapsed().as_secs_f64() / case.turns as f64);
    }
    let seconds = median(seconds);
    let small = (case.prepare)(&Reference, false);
    let naive = case.flop[1] / busy(|| small(&Reference));
    let rate = case.flop[0] / seconds;
    let clock = median(by_clock);
    println!(
        "{:32} {:8.3} {:9.3} {:9.1} {:5.0}% {:6.1} {:9.2}",
        case.name,
        case.flop[0] / 1e9,
        clock * 1e3,
        rate / 1e9,
        100.0 * rate / peak,
        case.bytes as f64 / seconds / 1e9,
        naive / 1e9
    );
}

/// Seconds of processor time that all threads of this process spend on `run`.
fn busy(run: impl FnOnce()) -> f64 {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is a valid place for the answer; the clock exists on every Unix.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
    };
    let start = now();
    run();
    now() - start
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn cases(cpu: &Cpu) -> Vec<Case> {
    let mut cases = Vec::new();
    // A model of 159 M parameters: QKV, output, gate and up, down; and a narrow one.
    let shapes = [(1024, 4096), (2048, 1024), (1024, 6144), (3072, 1024), (256, 640)];
    for (inputs, outputs) in shapes {
        for factors in Factors::ALL {
            for rows in [512, 16, 4, 1] {
                cases.push(product(cpu, rows, inputs, outputs, factors));
            }
        }
    }
    for factors in [Factors::Bf16, Factors::Int8] {
        cases.push(product(cpu, 1, 4096, 16384, factors));
    }
    for head_dim in [64, 128] {
        for masses in [false, true] {
            for past in [None, Some(516)] {
                cases.push(attention(cpu, head_dim, 1024, past, masses));
            }
        }
        for masses in [false, true] {
            let sixteen_chunks = Leaves::of_chunks(516 / 16);
            for leaves in [Leaves::ONE, sixteen_chunks] {
                cases.push(all_keys(cpu, head_dim, (1024, 516), masses, leaves));
            }
            cases.push(all_keys(cpu, head_dim, (1, 516), masses, sixteen_chunks));
            for past in [516, 4096, 32768] {
                cases.push(attention(cpu, head_dim, 1, Some(past), masses));
                cases.push(all_keys(cpu, head_dim, (1, past), masses, Leaves::ONE));
            }
        }
    }
    cases.push(selection_of_one());
    cases
}

/// What is kept of 516 keys and one more, of 8 KV heads of 128: a step of decode.
fn selection_of_one() -> Case {
    const KEYS: usize = 516;
    let ranking = Ranking { decay: 1.0, window: 0, age_normalised: false };
    let selection =
        Selection { keep_all: false, sinks: 4, local: 256, heavy: 256, ranking, window: None };
    let prepare = move |_: &dyn Backend, _: bool| -> Work {
        let (_, keys, _) = scene(16, 128, KEYS, Some(KEYS));
        let mut set = MemorySet::empty(8, 128, KvDtype::Bf16);
        let score = noise(8 * KEYS).into_iter().map(f32::abs).collect::<Vec<_>>();
        (set.votes, set.score, set.end) = (vec![1.0; 8 * KEYS].into(), score.into(), KEYS as u32);
        set.keys = keys;
        let past_mass = noise(8 * KEYS).into_iter().map(f32::abs).collect::<Vec<_>>().into();
        let own_mass = vec![0.5; 8].into();
        let past_and_own = Cell::new(Some((Arc::new(set), scene(16, 128, 1, None).1)));
        Box::new(move |backend| {
            let (past, mut own) = past_and_own.take().expect("put back");
            own.positions.iter_mut().for_each(|position| *position = past.end);
            let selected = backend.select(past, &own, (&past_mass, &own_mass), &selection);
            past_and_own.set(Some((Arc::new(selected.expect("shapes").memory), own)));
        })
    };
    Case {
        name: format!("select T=1 of {KEYS}+own"),
        path: Path { isa: IsaLevel::Portable, factors: Factors::F32 },
        flop: [0.0; 2],
        bytes: 12 * 8 * KEYS,
        turns: 1,
        prepare: Box::new(prepare),
    }
}

fn noise(count: usize) -> Vec<f32> {
    let mut state = 0x9e37_79b9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Weights of a product of few rows are read from memory as a model's are: so many bytes of
/// them stand in a row that no cache holds them.
const COLD_BYTES: usize = 256 << 20;
/// Up to how many rows.
const COLD_ROWS: usize = 4;

fn product(cpu: &Cpu, rows: usize, inputs: usize, outputs: usize, factors: Factors) -> Case {
    let bytes = inputs * outputs * element_bytes(factors);
    let turns = if rows > COLD_ROWS { 1 } else { COLD_BYTES.div_ceil(bytes) };
    let prepare = move |backend: &dyn Backend, whole: bool| -> Work {
        let (rows, turns) = if whole { (rows, turns) } else { (rows.div_ceil(16), 1) };
        let data = noise(inputs * outputs);
        let data = match factors {
            Factors::F32 => MatrixData::F32(data),
            Factors::Bf16 => MatrixData::Bf16(data.into_iter().map(bf16::from_f32).collect()),
            Factors::Int8 => MatrixData::Int8(Int8Rows::from_f32(&data, inputs)),
        };
        let matrix = Matrix { outputs, inputs, data };
        let pack = |_| backend.pack(matrix.clone(), None).expect("shapes");
        let weights: Vec<_> = (0..turns).map(pack).collect();
        let x = Rows::from_vec(rows, inputs, noise(rows * inputs));
        Box::new(move |backend| {
            for weight in &weights {
                black_box(backend.linear(&x, weight).expect("shapes"));
            }
        })
    };
    let flop = |rows: usize| 2.0 * rows as f64 * inputs as f64 * outputs as f64;
    Case {
        name: format!("linear {rows}x{inputs}x{outputs} {factors:?}"),
        path: cpu.linear_path(factors, rows),
        flop: [flop(rows), flop(rows.div_ceil(16))],
        bytes,
        turns,
        prepare: Box::new(prepare),
    }
}

fn element_bytes(factors: Factors) -> usize {
    match factors {
        Factors::F32 => 4,
        Factors::Bf16 => 2,
        Factors::Int8 => 1,
    }
}

/// 8 query heads on 4 KV heads, bf16: own keys, or `past` remembered ones.
fn attention(cpu: &Cpu, head_dim: usize, tokens: usize, past: Option<usize>, masses: bool) -> Case {
    const HEADS: usize = 8;
    let prepare = move |_: &dyn Backend, whole: bool| -> Work {
        let tokens = if whole { tokens } else { tokens.div_ceil(16) };
        let (q, keys, start) = scene(HEADS, head_dim, tokens, past);
        let lse = vec![6.0; HEADS * tokens];
        let weights = vec![1.0; tokens];
        Box::new(move |backend| {
            let queries =
                Queries { q: &q, start, scale: 0.1, window: None, softcap: None, slopes: None };
            if masses {
                black_box(backend.weigh(queries, &keys, &lse, &weights).expect("shapes"));
            } else {
                black_box(backend.attend(queries, &keys).expect("shapes"));
            }
        })
    };
    let flop = |tokens: usize| {
        let pairs = past.map_or(tokens * (tokens + 1) / 2, |keys| tokens * keys) * HEADS;
        pairs as f64 * head_dim as f64 * if masses { 2.0 } else { 4.0 }
    };
    let op = if masses { "weigh" } else { "attend" };
    let what = past.map_or("own".to_owned(), |keys| format!("past {keys}"));
    Case {
        name: format!("{op} T={tokens} {what} d={head_dim}"),
        path: cpu.attention_path(Factors::Bf16),
        flop: [flop(tokens), flop(tokens.div_ceil(16))],
        bytes: HEADS * past.unwrap_or(tokens) * head_dim * if masses { 1 } else { 2 },
        turns: 1,
        prepare: Box::new(prepare),
    }
}

/// The same over past and own keys at once, with or without masses.
fn all_keys(
    cpu: &Cpu,
    head_dim: usize,
    (tokens, past): (usize, usize),
    masses: bool,
    leaves: Leaves,
) -> Case {
    const HEADS: usize = 8;
    let prepare = move |_: &dyn Backend, whole: bool| -> Work {
        let tokens = if whole { tokens } else { tokens.div_ceil(16) };
        let (q, remembered, start) = scene(HEADS, head_dim, tokens, Some(past));
        let (_, mut own, _) = scene(HEADS, head_dim, tokens, None);
        own.positions.iter_mut().for_each(|position| *position += start);
        let weights = vec![1.0; tokens];
        Box::new(move |backend| {
            let queries =
                Queries { q: &q, start, scale: 0.1, window: None, softcap: None, slopes: None };
            let row_weights = masses.then_some(weights.as_slice());
            let (past, own, outputs) = (&remembered, &own, tokens);
            let scope =
                Scope { past, leaves, own, row_weights, sinks: None, outputs, rounded: true };
            black_box(backend.attend_all(queries, scope).expect("shapes"));
        })
    };
    let flop = |tokens: usize| {
        let pairs = (tokens * past + tokens * (tokens + 1) / 2) * HEADS;
        pairs as f64 * head_dim as f64 * 4.0
    };
    let what = if masses { " with masses" } else { "" };
    let what = if leaves == Leaves::ONE { what.to_owned() } else { format!("{what} in leaves") };
    Case {
        name: format!("all T={tokens} {past}+own d={head_dim}{what}"),
        path: cpu.attention_path(Factors::Bf16),
        flop: [flop(tokens), flop(tokens.div_ceil(16))],
        bytes: HEADS * (past + tokens) * head_dim * 2,
        turns: 1,
        prepare: Box::new(prepare),
    }
}

fn scene(heads: usize, head_dim: usize, tokens: usize, past: Option<usize>) -> (Heads, Keys, u32) {
    let kv_heads = heads / 2;
    let q = Heads { heads, tokens, head_dim, data: noise(heads * tokens * head_dim).into() };
    let count = past.unwrap_or(tokens);
    let array = || {
        let data = noise(kv_heads * count * head_dim);
        KvHeads::from_f32(kv_heads, count, head_dim, &data, KvDtype::Bf16)
    };
    let positions: Vec<u32> = (0..count as u32).collect();
    let keys = Keys::new(positions.repeat(kv_heads), array(), array());
    (q, keys, past.unwrap_or(0) as u32)
}
