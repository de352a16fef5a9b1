//! What a user calls the values of a command: by the flag, or by the variable that gave them.

use std::collections::BTreeMap;
use std::ffi::OsStr;

use clap::error::{ContextKind, ContextValue};
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};

/// How the variables begin that say whom a server trusts.
const TRUST: [&str; 4] =
    ["AQUEDUCT_API_KEYS", "AQUEDUCT_TLS_", "AQUEDUCT_CLUSTER_TLS_", "AQUEDUCT_ETCD_TLS_"];

/// A variable that is empty is one that is not there, as OpenTelemetry has it too: manifests and
/// scripts set such where they have nothing to say. But where it says whom a server trusts it is
/// refused: a secret that was not filled in must not open the server to anybody.
pub(super) fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_kept = |name: &OsStr| {
        let name = name.to_str().unwrap_or_default();
        TRUST.iter().any(|prefix| name.starts_with(prefix))
    };
    let is_empty = |name: &OsStr| {
        std::env::var_os(name).is_some_and(|value| value.is_empty()) && !is_kept(name)
    };
    let command = command.mut_args(|arg| match arg.get_env().is_some_and(is_empty) {
        true => arg.env(None::<&'static str>),
        false => arg,
    });
    command.mut_subcommands(without_empty_variables)
}

/// Has `error` name the variable whose value it is about: nobody need have typed the flag.
pub(super) fn with_variable(mut error: clap::Error, command: &clap::Command) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (Some(flag), Some(value)) =
        (text(ContextKind::InvalidArg), text(ContextKind::InvalidValue))
    else {
        return error;
    };
    // Of `--flag <VALUE>`: commands that nobody gave cannot write their arguments in full.
    let long = flag.split(' ').next().and_then(|word| word.strip_prefix("--"));
    let is_it = |arg: &Arg| {
        let given = arg.get_env().and_then(std::env::var_os);
        arg.get_long() == long && given.is_some_and(|given| given == *value)
    };
    if let Some(variable) = find(command, &is_it).and_then(variable) {
        let named = format!("{variable} ({flag})");
        error.insert(ContextKind::InvalidArg, ContextValue::String(named));
    }
    error
}

fn find<'a>(command: &'a clap::Command, is_it: &impl Fn(&Arg) -> bool) -> Option<&'a Arg> {
    let found = command.get_arguments().find(|arg| is_it(arg));
    found.or_else(|| command.get_subcommands().find_map(|command| find(command, is_it)))
}

fn variable(arg: &Arg) -> Option<String> {
    arg.get_env().map(|name| name.to_string_lossy().into_owned())
}

/// By the fields that errors name: the ids of arguments, or their flags in the form of a field.
#[derive(Debug, Default)]
pub(crate) struct Names(BTreeMap<String, String>);

impl Names {
    /// Of what `command` was given.
    pub(super) fn of(command: &clap::Command, matches: &ArgMatches) -> Self {
        let mut names = BTreeMap::new();
        for arg in command.get_arguments() {
            let Some(flag) = arg.get_long() else { continue };
            let is_variable = arg.get_env().is_some()
                && matches.value_source(arg.get_id().as_str()) == Some(ValueSource::EnvVariable);
            let variable = variable(arg).filter(|_| is_variable);
            let name = variable.unwrap_or_else(|| format!("--{flag}"));
            names.insert(flag.replace('-', "_"), name.clone());
            names.insert(arg.get_id().to_string(), name);
        }
        Self(names)
    }

    /// An error whose text begins with a field, in the user's words.
    pub(crate) fn told(&self, error: String) -> String {
        let field = error.split([' ', ':']).next().unwrap_or_default();
        match self.0.get(field) {
            Some(name) => format!("{name}{}", &error[field.len()..]),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn errors_name_flags() {
        let check = |words: &[&str], error: &str, want: &str| {
            let mut command = Cli::command();
            let matches = command.try_get_matches_from_mut(words).unwrap();
            let (name, matches) = matches.subcommand().unwrap();
            let names = Names::of(command.find_subcommand(name).unwrap(), matches);
            assert_eq!(names.told(error.to_owned()), want);
        };
        let serve = ["aqueduct", "serve", "--model", "m"];
        check(&serve, "decode_batch_max = 65: must be lower", "--max-batch = 65: must be lower");
        check(&serve, "monitor = x: must be free", "--monitor = x: must be free");
        check(&serve, "pool_bytes: no room", "--pool-bytes: no room");
        check(&serve, "log = loud", "--log = loud");
        check(&serve, "model.gguf: window = 0", "model.gguf: window = 0");
        check(&serve, "the journal is lost", "the journal is lost");
        let coordinator = ["aqueduct", "coordinator", "--model", "m", "--worker", "w"];
        check(&coordinator, "worker = w: must be a URL", "--worker = w: must be a URL");
        check(&coordinator, "workers = 2000", "--worker = 2000");
    }

    /// A field that a server's options have, and no flag, would be one that nobody can mend.
    #[test]
    fn every_option_has_a_flag() {
        let mut command = Cli::command();
        let words = ["aqueduct", "serve", "--model", "m"];
        let matches = command.try_get_matches_from_mut(words).unwrap();
        let names =
            Names::of(command.find_subcommand("serve").unwrap(), matches.subcommand().unwrap().1);
        for field in [
            "batch_tokens",
            "chunk_tokens",
            "decode_batch_max",
            "pool_bytes",
            "pool_tokens",
            "prompt_tokens_max",
            "queued_requests",
            "queued_tokens",
            "request_deadline",
            "running_requests",
            "step_tokens",
            "threads",
            "workers",
        ] {
            assert!(names.0.contains_key(field), "{field}");
        }
    }
}
