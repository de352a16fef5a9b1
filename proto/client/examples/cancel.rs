//! Reads five tokens of a long answer and leaves: no worker computes the rest.
//!
//! ```text
//! cargo run -p aqueduct-client --example cancel -- http://127.0.0.1:7070 "Once upon a time"
//! ```

use aqueduct_client::{Client, ClientError, ClientOptions, GenerateEvent, GenerateOptions};
use futures::StreamExt;

const TOKENS: u32 = 4096;

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:7070".into());
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".into());

    let client = Client::connect(&url, ClientOptions::default()).await?;
    let mut options = GenerateOptions::text(prompt);
    (options.max_tokens, options.temperature) = (Some(TOKENS), Some(0.0));
    options.ignore_eos = true;
    let mut events = client.generate(options).await?;
    let mut read = 0;
    while read < 5
        && let Some(event) = events.next().await
    {
        read += u32::from(matches!(event?, GenerateEvent::Token(_)));
    }
    events.cancel().await?; // as dropping it does, which waits for nothing
    println!("left after {read} of {TOKENS} tokens");
    Ok(())
}
