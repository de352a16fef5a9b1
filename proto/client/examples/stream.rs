//! Continues a text and prints the answer as it comes, and how the prefill goes on:
//!
//! ```text
//! cargo run -p aqueduct-client --example stream -- http://127.0.0.1:7070 "Once upon a time"
//! ```

use std::io::Write;

use aqueduct_client::{Client, ClientError, ClientOptions, GenerateEvent, GenerateOptions};
use futures::StreamExt;

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:7070".into());
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".into());

    let client = Client::connect(&url, ClientOptions::default()).await?;
    let mut options = GenerateOptions::text(prompt);
    (options.max_tokens, options.temperature) = (Some(32), Some(0.0));
    let mut events = client.generate(options).await?;
    while let Some(event) = events.next().await {
        match event? {
            GenerateEvent::Progress(at) => eprintln!("chunk {}/{}", at.chunks_done, at.chunk_count),
            GenerateEvent::Escalated(again) => eprintln!("again with {}", again.next),
            GenerateEvent::Token(token) => print!("{}", token.text),
            GenerateEvent::ChoiceDone(done) => println!("{}", done.text),
            GenerateEvent::Summary(summary) => {
                println!(
                    "{} tokens, {} bytes of memory",
                    summary.output_tokens, summary.memory_bytes
                );
            }
            _ => {} // newer versions may tell more
        }
        std::io::stdout().flush().ok();
    }
    Ok(())
}
