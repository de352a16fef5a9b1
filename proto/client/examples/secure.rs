//! Asks a server with certificates and API keys; the API key is in a file:
//!
//! ```text
//! cargo run -p aqueduct-client --example secure -- \
//!     https://localhost:7070 ca.pem api-key.txt [cert.pem key.pem]
//! ```

use aqueduct_client::{Client, ClientError, ClientOptions, Identity, TlsFiles};

#[tokio::main]
async fn main() -> Result<(), ClientError> {
    let mut args = std::env::args().skip(1);
    let mut wanted = |what: &str| {
        args.next().ok_or_else(|| ClientError::InvalidArgument(format!("please give {what}")))
    };
    let (url, ca) = (wanted("a URL")?, wanted("the file of an authority")?.into());
    let file = wanted("the file of an API key")?;
    let key = std::fs::read_to_string(&file)
        .map_err(|error| ClientError::InvalidArgument(format!("{file}: {error}")))?;
    let identity = match (wanted("a certificate"), wanted("its key")) {
        (Ok(cert), Ok(key)) => Some(Identity { cert: cert.into(), key: key.into() }),
        _ => None,
    };
    let options = ClientOptions {
        tls: Some(TlsFiles { ca, identity }),
        api_key: Some(key.trim().parse()?),
        ..ClientOptions::default()
    };
    let described = Client::connect(&url, options).await?.describe().await?;
    println!("{} on {} workers", described.model, described.workers.len());
    Ok(())
}
