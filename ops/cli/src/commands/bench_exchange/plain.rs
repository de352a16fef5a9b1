//! A gRPC stream of bytes that nobody makes and nobody reads: what tonic and HTTP/2 take, under
//! the settings of workers.

use std::convert::Infallible;
use std::future::ready;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::ensure;
use aqueduct_core::limits;
use bytes::{Buf, BufMut};
use futures::stream;
use tokio::net::TcpListener;
use tokio::runtime::Handle;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::{BoxFuture, BoxStream, Bytes, Service, http};
use tonic::server::{NamedService, ServerStreamingService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

/// As many bytes as a frame of an exchange.
const BLOCK_BYTES: usize = limits::FRAME_BYTES_MAX;

/// One connection to a server that sends blocks.
pub(super) struct Plain {
    channel: Channel,
}

impl Plain {
    /// A server on `servers`, connected to from `asker`.
    pub(super) async fn start(servers: &Handle, asker: &Handle) -> anyhow::Result<Self> {
        let listener = servers.spawn(TcpListener::bind("127.0.0.1:0")).await??;
        let address = format!("http://{}", listener.local_addr()?);
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let server = Server::builder()
            .max_frame_size(limits::HTTP2_FRAME_BYTES_MAX)
            .initial_stream_window_size(limits::HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(limits::HTTP2_WINDOW_BYTES)
            .add_service(Source { block: vec![1; BLOCK_BYTES].into() });
        servers.spawn(server.serve_with_incoming(incoming)); // until the process ends
        let endpoint = Endpoint::from_shared(address)?
            .tcp_nodelay(true)
            .max_frame_size(limits::HTTP2_FRAME_BYTES_MAX)
            .initial_stream_window_size(limits::HTTP2_WINDOW_BYTES)
            .initial_connection_window_size(limits::HTTP2_WINDOW_BYTES);
        let channel = asker.spawn(async move { endpoint.connect().await }).await??;
        Ok(Self { channel })
    }

    /// Lets `bytes` bytes come; how long it took.
    pub(super) async fn pass(&self, bytes: u64) -> anyhow::Result<Duration> {
        let since = Instant::now();
        let mut client = Grpc::new(self.channel.clone());
        client.ready().await?;
        let request = Request::new(Bytes::copy_from_slice(&bytes.to_le_bytes()));
        let path = PathAndQuery::from_static("/plain.Source/Pass");
        let answer = client.server_streaming(request, path, Raw).await?;
        let (mut blocks, mut came) = (answer.into_inner(), 0);
        while let Some(block) = blocks.message().await? {
            came += block.len() as u64;
        }
        ensure!(came == bytes, "{came} bytes of {bytes} came");
        Ok(since.elapsed())
    }
}

/// Messages that are their bytes.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Sends as many bytes as it is asked for.
#[derive(Debug, Clone)]
struct Source {
    block: Bytes,
}

impl NamedService for Source {
    const NAME: &'static str = "plain.Source";
}

impl ServerStreamingService<Bytes> for Source {
    type Response = Bytes;
    type ResponseStream = BoxStream<Bytes>;
    type Future = std::future::Ready<Result<Response<BoxStream<Bytes>>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let bytes = request.get_ref().as_ref().try_into().map(u64::from_le_bytes);
        let Ok(bytes) = bytes else {
            return ready(Err(Status::invalid_argument("8 bytes say how many")));
        };
        let block = self.block.clone();
        let blocks = stream::unfold(bytes, move |left| {
            let some = left.min(block.len() as u64);
            ready((some > 0).then(|| (Ok(block.slice(..some as usize)), left - some)))
        });
        ready(Ok(Response::new(Box::pin(blocks))))
    }
}

impl Service<http::Request<Body>> for Source {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let source = self.clone();
        Box::pin(async move {
            Ok(tonic::server::Grpc::new(Raw).server_streaming(source, request).await)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn as_many_bytes_come_as_were_asked_for() {
        let here = Handle::current();
        let plain = Plain::start(&here, &here).await.unwrap();
        for bytes in [0, 1, BLOCK_BYTES as u64, 3 * BLOCK_BYTES as u64 + 7] {
            assert!(plain.pass(bytes).await.unwrap() > Duration::ZERO);
        }
    }
}
