//! What can go wrong is a kind for each thing that a caller can do about it:
//!
//! `cargo run -p aqueduct-client --example errors -- http://127.0.0.1:7070 "Once upon a time"`

use std::time::Duration;

use aqueduct_client::{Client, ClientError, ClientOptions, GenerateOptions};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:7070".into());
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".into());
    let client = Client::connect(&url, ClientOptions::default()).await?;
    let wrong = GenerateOptions { top_p: Some(2.0), ..GenerateOptions::text(&prompt) };
    let endless = GenerateOptions {
        max_tokens: Some(4096),
        ignore_eos: true,
        deadline: Duration::from_millis(500),
        ..GenerateOptions::text(&prompt)
    };
    for options in [wrong, endless] {
        match client.complete(options).await {
            Ok(_) => {}
            Err(ClientError::InvalidArgument(message)) => println!("mend it: {message}"),
            Err(ClientError::Busy { retry_after, .. }) => println!("come again in {retry_after:?}"),
            Err(ClientError::Deadline(_)) => println!("allow more time"),
            Err(ClientError::Unavailable(_)) => println!("ask later"),
            Err(error) => println!("tell somebody: {error}"),
        }
    }
    Ok(())
}
