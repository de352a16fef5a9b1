//! `aqueduct keys`: who may call.

use std::path::Path;

use anyhow::Context;
use aqueduct_coordinator::keys::{KeyFile, KeyLimits, KeyRecord, Secret};
use aqueduct_core::Refusal;
use serde::Serialize;

use crate::args::{KeysCommand, KeysListArgs, KeysNewArgs, KeysRevokeArgs};
use crate::lines;
use crate::shown::clean;

/// A key, as it is listed.
#[derive(Debug, Serialize)]
struct Row<'a> {
    id: &'a str,
    name: &'a str,
    created_s: u64,
    revoked: bool,
    admin: bool,
    limits: KeyLimits,
}

/// Changes the file, or shows what is in it.
///
/// # Errors
/// A file that is none of keys, a limit out of bounds, an id that nobody has.
pub(crate) async fn run(command: KeysCommand) -> anyhow::Result<()> {
    match command {
        KeysCommand::New(args) => new(&args),
        KeysCommand::List(args) => list(&args),
        KeysCommand::Revoke(args) => revoke(&args),
    }
}

fn new(args: &KeysNewArgs) -> anyhow::Result<()> {
    let path = &args.file.path;
    let _alone = alone(path)?;
    let mut file = if path.exists() { KeyFile::read(path)? } else { KeyFile::default() };
    let secret = Secret::draw().context("random numbers")?;
    let id = file.add(&secret, &args.name, args.admin, args.limits())?.id.clone();
    write(&file, path)?;
    eprintln!("key {id}; it is shown this once:");
    lines::say(&format!("{}\n", secret.reveal()))?;
    Ok(())
}

fn list(args: &KeysListArgs) -> anyhow::Result<()> {
    for record in KeyFile::read(&args.file.path)?.records() {
        let KeyRecord { id, name, created_s, revoked, admin, limits, .. } = record;
        let (&created_s, &revoked, &admin, &limits) = (created_s, revoked, admin, limits);
        if args.json {
            lines::print(&Row { id, name, created_s, revoked, admin, limits })?;
        } else {
            let standing = match (revoked, admin) {
                (true, _) => "revoked",
                (false, true) => "admin",
                (false, false) => "good",
            };
            lines::say(&format!("{id}  {standing:<7}  {}{}\n", clean(name), told(limits)))?;
        }
    }
    Ok(())
}

fn revoke(args: &KeysRevokeArgs) -> anyhow::Result<()> {
    let path = &args.file.path;
    let _alone = alone(path)?;
    let mut file = KeyFile::read(path)?;
    file.revoke(&args.id)?;
    Ok(write(&file, path)?)
}

/// Others may change the file as well; a running server reads it all the time.
fn alone(path: &Path) -> Result<impl Drop, Refusal> {
    aqueduct_tls::alone(path).map_err(|error| unwritable(path, &error))
}

fn write(file: &KeyFile, path: &Path) -> Result<(), Refusal> {
    file.write(path).map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Refusal {
    Refusal::new("api_keys", path.display(), format!("writable: {error}"))
}

fn told(limits: KeyLimits) -> String {
    let KeyLimits { requests, tokens_per_minute, prompt_tokens } = limits;
    let parts = [
        requests.map(|most| format!("  {most} requests at once")),
        tokens_per_minute.map(|most| format!("  {most} tokens in a minute")),
        prompt_tokens.map(|most| format!("  prompts of {most} tokens")),
    ];
    parts.into_iter().flatten().collect()
}
