//! A TCP proxy that does harm, on purpose and from a seed.
#![allow(dead_code, reason = "every test file uses a part of it")]

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::random::Random;

/// What is done to every connection, to those that are open as to later ones, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Harm {
    /// Everything is passed on.
    None,
    /// Each piece comes late, by so much at most.
    Delay(Duration),
    /// So many bytes pass in a second.
    Throttle(u32),
    /// It breaks off with a reset, after so many more bytes at most.
    Reset(u64),
    /// It ends as if all had been said, after so many more bytes at most.
    Truncate(u64),
    /// What comes is taken, and nothing is ever answered.
    HalfOpen,
}

/// A way to one address; it ends when it is dropped.
pub(crate) struct Proxy {
    /// Where it listens.
    pub(crate) address: SocketAddr,
    harm: watch::Sender<Harm>,
    target: watch::Sender<Option<String>>,
    _runtime: Runtime,
}

/// How a direction of a connection ended.
enum End {
    Closed,
    Reset,
}

impl Proxy {
    /// A proxy on a free port; it leads nowhere yet.
    pub(crate) fn start(seed: u64) -> Self {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let (harm, harms) = watch::channel(Harm::None);
        let (target, targets) = watch::channel(None);
        runtime.spawn(async move {
            let mut seed = seed << 32;
            while let Ok((near, _)) = listener.accept().await {
                seed = seed.wrapping_add(2);
                let target: Option<String> = targets.borrow().clone();
                if let Some(target) = target {
                    tokio::spawn(serve(near, target, harms.clone(), seed));
                }
            }
        });
        Self { address, harm, target, _runtime: runtime }
    }

    /// Where it leads from now on.
    pub(crate) fn lead_to(&self, target: &str) {
        self.target.send_replace(Some(target.to_owned()));
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// What it does from now on.
    pub(crate) fn harm(&self, harm: Harm) {
        self.harm.send_replace(harm);
    }
}

async fn serve(mut near: TcpStream, target: String, harm: watch::Receiver<Harm>, seed: u64) {
    let Ok(mut far) = TcpStream::connect(target).await else { return };
    near.set_nodelay(true).ok(); // a proxy that cannot is a slow one
    far.set_nodelay(true).ok();
    let (near_reads, near_writes) = near.split();
    let (far_reads, far_writes) = far.split();
    let end = tokio::select! {
        end = pass_on(near_reads, far_writes, harm.clone(), Random::new(seed)) => end,
        end = pass_on(far_reads, near_writes, harm, Random::new(seed + 1)) => end,
    };
    if matches!(end, End::Reset) {
        for stream in [&near, &far] {
            stream.set_zero_linger().ok(); // it may be gone already
        }
    }
}

async fn pass_on(
    mut from: ReadHalf<'_>,
    mut to: WriteHalf<'_>,
    mut harm: watch::Receiver<Harm>,
    mut random: Random,
) -> End {
    let (mut bytes, mut left) = ([0; 16 << 10], None);
    loop {
        let Ok(read @ 1..) = from.read(&mut bytes).await else { return End::Closed };
        if harm.has_changed().unwrap_or(false) {
            left = None;
        }
        let harm = *harm.borrow_and_update();
        match harm {
            Harm::None => {}
            Harm::Delay(most) => {
                let most_us = most.as_micros() as u64;
                tokio::time::sleep(Duration::from_micros(random.below(most_us))).await;
            }
            Harm::Throttle(bytes_per_s) => {
                let seconds = read as f64 / f64::from(bytes_per_s);
                tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
            }
            Harm::HalfOpen => continue,
            Harm::Reset(most) | Harm::Truncate(most) => {
                let left = left.get_or_insert_with(|| random.below(most));
                if read as u64 > *left {
                    to.write_all(&bytes[..*left as usize]).await.ok(); // it ends either way
                    let is_reset = matches!(harm, Harm::Reset(_));
                    return if is_reset { End::Reset } else { End::Closed };
                }
                *left -= read as u64;
            }
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return End::Closed;
        }
    }
}
