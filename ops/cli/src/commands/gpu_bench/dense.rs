//! What memory and matrix instructions give, and a layer's linear maps.

use aqueduct_kernels::{LayerOps, Rows};

use super::bench::{Bench, PEAK};
use super::row::Work;

/// Bytes a second that are copied, counted twice, and read, and whose.
type Known = (&'static str, f64, f64);
const H100: Known = ("an H100's", 3.0e12, 3.24e12);
const H200: Known = ("an H200's", 4.3e12, 4.6e12);
/// Of the measured matrix peak.
const PRODUCTS_SHARE: f64 = 0.85;

/// What the chip, or else an H100, is known to do.
fn known(bench: &Bench) -> Known {
    if bench.chip.contains("H200") { H200 } else { H100 }
}

/// A row that only moves memory, beside what is known.
fn moved(
    bytes: f64,
    (whose, known): (&str, f64),
    run: impl FnMut() -> anyhow::Result<()> + 'static,
) -> Work {
    Work {
        bound: format!("{:.0} MB at {:.2} TB/s, {whose}", bytes / 1e6, known / 1e12),
        floor_us: bytes / known * 1e6,
        target_us: None,
        flop: 0.0,
        bytes,
        run: Box::new(run),
    }
}

pub(super) fn copy(bench: &Bench) -> anyhow::Result<Work> {
    let (cuda, bytes) = (bench.cuda.clone(), bench.shape.span_bytes);
    let span = cuda.span(bytes)?;
    let (whose, copied, _) = known(bench);
    Ok(moved(2.0 * bytes as f64, (whose, copied), move || Ok(cuda.copy_span(&span)?)))
}

pub(super) fn read(bench: &Bench) -> anyhow::Result<Work> {
    let (cuda, bytes) = (bench.cuda.clone(), bench.shape.span_bytes);
    let span = cuda.span(bytes)?;
    let (whose, _, read) = known(bench);
    Ok(moved(bytes as f64, (whose, read), move || Ok(cuda.read_span(&span)?)))
}

/// The measured matrix peak.
pub(super) fn squares(bench: &Bench) -> anyhow::Result<Work> {
    let (cuda, size) = (bench.cuda.clone(), bench.shape.product);
    let (x, weight) = (bench.rows(size, size)?, cuda.noise_linear(size, size, 2)?);
    let flop = 2.0 * (size as f64).powi(3);
    Ok(Work {
        bound: format!("{size} cubed at 989 TFLOP/s, by {}", cuda.multiplier()),
        floor_us: flop / PEAK * 1e6,
        target_us: None,
        flop,
        bytes: 0.0,
        run: Box::new(move || Ok(cuda.product(&x, &weight).map(drop)?)),
    })
}

/// A row beside the measured matrix peak.
fn products(
    bench: &Bench,
    flop: f64,
    run: impl FnMut() -> anyhow::Result<()> + 'static,
) -> anyhow::Result<Work> {
    let peak = bench.products_roof()?;
    let floor_us = flop / peak * 1e6;
    let (gflop, tflops, by) = (flop / 1e9, peak / 1e12, bench.cuda.multiplier());
    Ok(Work {
        bound: format!("{gflop:.0} GFLOP at {tflops:.0} TFLOP/s, as of squares; 85 %; by {by}"),
        floor_us,
        target_us: Some(floor_us / PRODUCTS_SHARE),
        flop,
        bytes: 0.0,
        run: Box::new(run),
    })
}

/// The map of that index of a layer.
pub(super) fn map(bench: &Bench, idx: usize) -> anyhow::Result<Work> {
    let (cuda, rows) = (bench.cuda.clone(), bench.shape.chunk);
    let (outputs, inputs) = bench.shape.maps()[idx];
    let (x, weight) = (bench.rows(rows, inputs)?, cuda.noise_linear(outputs, inputs, 2)?);
    let flop = 2.0 * (rows * outputs * inputs) as f64;
    products(bench, flop, move || Ok(cuda.product(&x, &weight).map(drop)?))
}

/// All that is no attention.
pub(super) fn layer(bench: &Bench) -> anyhow::Result<Work> {
    let (cuda, shape) = (bench.cuda.clone(), bench.shape);
    let (layer, x, angles) = (bench.layer(1)?, bench.hidden(shape.chunk)?, bench.angles());
    let attention: Rows = bench.rows(shape.chunk, shape.heads * shape.head_dim)?;
    products(bench, shape.layer_flop(), move || {
        cuda.project(&layer, &x, (shape.memory as u32, &angles), x.rows())?;
        Ok(cuda.finish(&layer, &x, &attention).map(drop)?)
    })
}
