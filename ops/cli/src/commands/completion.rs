//! `aqueduct completion`: what a shell needs to complete our commands.

use clap::CommandFactory;
use clap_complete::shells::{Bash, Fish, Zsh};
use clap_complete::{Generator, generate};

use crate::args::{Cli, CompletionArgs, Shell};
use crate::lines;

/// Prints it.
///
/// # Errors
/// A stdout that cannot be written to.
pub(crate) fn run(args: &CompletionArgs) -> anyhow::Result<()> {
    let script = match args.shell {
        Shell::Bash => script(Bash),
        Shell::Zsh => script(Zsh),
        Shell::Fish => script(Fish),
    };
    Ok(lines::say(&String::from_utf8(script)?)?)
}

fn script(shell: impl Generator) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "aqueduct", &mut script);
    script
}
