//! Continues a text and prints the whole answer:
//!
//! ```text
//! cargo run -p aqueduct-client --example generate -- http://127.0.0.1:7070 "Once upon a time"
//! ```

use aqueduct_client::{Client, ClientError, ClientOptions, GenerateOptions};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:7070".into());
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".into());

    let client = Client::connect(&url, ClientOptions::default()).await?;
    let mut options = GenerateOptions::text(prompt);
    (options.max_tokens, options.temperature) = (Some(32), Some(0.0));
    let answer = client.complete(options).await?;
    let summary = &answer.summary;
    for completion in &answer.completions {
        println!("{}", completion.text);
        println!(
            "{} after {} tokens, {} of the prompt",
            completion.reason, summary.output_tokens, summary.prompt_tokens
        );
    }
    Ok(())
}
