//! How fast keys come over gRPC, beside a stream of bytes over gRPC and a copy over TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde::Serialize;
use tokio::runtime::{Builder, Handle, Runtime};

use super::plain::Plain;
use super::scene::{Depth, Scene};
use super::{Context, depth};
use crate::args::{BenchExchangeArgs, Link};
use crate::lines;
use crate::loading::Loaded;
use crate::report::{self, Table};
use crate::timings::Timings;

/// Of one write and one read of the plain copy.
const COPY_BYTES: usize = 1 << 20;

/// Keys as they come to an asker, bytes that nobody makes or reads, and a copy, in the order in
/// which they are measured, in turn.
const STREAMS: [&str; 3] = ["grpc", "plain", "tcp"];

#[derive(Debug, Serialize)]
struct Row<'a> {
    /// One of [`STREAMS`].
    stream: &'static str,
    bytes: u64,
    /// Median over the repetitions.
    seconds: f64,
    /// Longest less shortest.
    seconds_spread: f64,
    /// 1e9 bytes a second, at the median.
    gb_per_second: f64,
    reps: u32,
    #[serde(flatten)]
    context: Context<'a>,
}

/// Measures all in turn.
///
/// # Errors
/// A holder that does not answer, a socket that fails.
pub(super) async fn run(
    args: &BenchExchangeArgs,
    loaded: &Loaded,
    context: Context<'_>,
) -> anyhow::Result<()> {
    let (holder, asker) = (one_thread("holder")?, one_thread("asker")?);
    let depth = Depth { workers: 1, link: Link::Grpc, ..depth(args) };
    let mut scene = Scene::start(&loaded.model, depth, (holder.handle(), asker.handle())).await?;
    let plain = Plain::start(holder.handle(), asker.handle()).await?;
    let plain = (plain, asker.handle());
    let measured = tokio::task::block_in_place(|| measure(&mut scene, plain, args.reps));
    holder.shutdown_background();
    asker.shutdown_background();
    let (bytes, times) = measured?;
    let rows = STREAMS.into_iter().zip(&times).map(|(stream, times)| {
        let Timings { median, spread, .. } = Timings::of(times);
        Row {
            stream,
            bytes,
            seconds: median,
            seconds_spread: spread,
            gb_per_second: bytes as f64 / median / 1e9,
            reps: args.reps,
            context,
        }
    });
    tell(rows.collect(), args.json)
}

fn tell(rows: Vec<Row<'_>>, json: bool) -> anyhow::Result<()> {
    if json {
        return Ok(rows.iter().try_for_each(lines::print)?);
    }
    let mut table = Table::new(["stream", "bytes", "time", "GB/s"]);
    for row in rows {
        table.row([
            row.stream.to_owned(),
            report::grouped(row.bytes),
            format!("{:.1} ms", row.seconds * 1e3),
            format!("{:.2}", row.gb_per_second),
        ]);
    }
    Ok(lines::say(&table.render())?)
}

fn one_thread(name: &str) -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name(name).enable_all().build()
}

/// Bytes of keys, and how long they took to come and to be copied.
fn measure(
    scene: &mut Scene,
    (plain, asker): (Plain, &Handle),
    reps: u32,
) -> anyhow::Result<(u64, [Vec<Duration>; 3])> {
    let mut copy = Copy::connect().context("a connection to 127.0.0.1")?;
    let plain = Arc::new(plain);
    let pass = |bytes: u64| {
        let plain = plain.clone();
        let passed = asker.spawn(async move { plain.pass(bytes).await });
        Handle::current().block_on(passed)?
    };
    let bytes = scene.fetch()?.1; // opens the connection
    pass(bytes)?;
    let mut times = [(); STREAMS.len()].map(|()| Vec::new());
    for _ in 0..reps {
        times[0].push(scene.fetch()?.0);
        times[1].push(pass(bytes)?);
        times[2].push(copy.pass(bytes)?);
    }
    Ok((bytes, times))
}

/// Two ends of one TCP connection.
struct Copy {
    from: TcpStream,
    to: TcpStream,
}

impl Copy {
    fn connect() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let from = TcpStream::connect(listener.local_addr()?)?;
        Ok(Self { from, to: listener.accept()?.0 })
    }

    /// Sends `bytes` bytes from one thread to this one.
    fn pass(&mut self, bytes: u64) -> std::io::Result<Duration> {
        let mut from = self.from.try_clone()?;
        let since = Instant::now();
        let sender = std::thread::spawn(move || {
            let block = vec![1; COPY_BYTES];
            let mut left = bytes;
            while left > 0 {
                let some = left.min(COPY_BYTES as u64);
                from.write_all(&block[..some as usize])?;
                left -= some;
            }
            Ok::<_, std::io::Error>(())
        });
        let (mut block, mut left) = (vec![0; COPY_BYTES], bytes);
        while left > 0 {
            let most = left.min(COPY_BYTES as u64) as usize;
            let some = self.to.read(&mut block[..most])?;
            if some == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            left -= some as u64;
        }
        let took = since.elapsed();
        sender.join().map_err(|_| std::io::Error::other("the sender panicked"))??;
        Ok(took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_arrives_whole_more_than_once() {
        let mut copy = Copy::connect().unwrap();
        for bytes in [1, COPY_BYTES as u64, 3 * COPY_BYTES as u64 + 7] {
            assert!(copy.pass(bytes).unwrap() > Duration::ZERO);
        }
    }
}
