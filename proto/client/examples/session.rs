//! Two turns of a conversation; the second costs only its own tokens:
//!
//! ```text
//! cargo run -p aqueduct-client --example session -- http://127.0.0.1:7070 "Once upon a time"
//! ```

use aqueduct_client::{Client, ClientError, ClientOptions, GenerateOptions, SessionUse};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut args = std::env::args().skip(1);
    let url = args.next().unwrap_or_else(|| "http://127.0.0.1:7070".into());
    let prompt = args.next().unwrap_or_else(|| "Once upon a time".into());

    let client = Client::connect(&url, ClientOptions::default()).await?;
    let mut session = Some(SessionUse::New);
    for said in [prompt.as_str(), " And then?"] {
        let mut options = GenerateOptions::text(said);
        (options.max_tokens, options.temperature) = (Some(8), Some(0.0));
        options.session = session;
        // `ClientError::SessionLost`: begin again with all that was said.
        let answer = client.complete(options).await?;
        println!("{}", answer.completions[0].text);
        let summary = &answer.summary;
        println!("{} of {} tokens known", summary.cached_tokens, summary.prompt_tokens);
        session = summary.session.map(SessionUse::GoOn);
    }
    Ok(())
}
