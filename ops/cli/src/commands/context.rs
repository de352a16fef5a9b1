//! `aqueduct context`: which servers there are.

use serde::Serialize;

use crate::args::{ContextCommand, ContextListArgs, ContextNameArgs, ContextSetArgs};
use crate::contexts::{Context, Contexts, Unknown};
use crate::shown::{self, Columns, Shown};

/// Changes the file, or shows what is in it.
///
/// # Errors
/// A file that is none of contexts, a name that no context has.
pub(crate) async fn run(command: ContextCommand) -> anyhow::Result<()> {
    match command {
        ContextCommand::List(args) => list(args).await,
        ContextCommand::Set(args) => set(args),
        ContextCommand::Use(args) => change(args, |contexts, name| contexts.current = Some(name)),
        ContextCommand::Delete(args) => change(args, |contexts, name| {
            contexts.contexts.remove(&name);
            contexts.current.take_if(|current| *current == name);
        }),
    }
}

async fn list(args: ContextListArgs) -> anyhow::Result<()> {
    let path = args.file.path()?;
    shown::show(&args.output, async || Ok(Listed(Contexts::read(&path)?))).await
}

fn set(args: ContextSetArgs) -> anyhow::Result<()> {
    let ContextSetArgs { file, name, server, tls_ca, tls_cert, tls_key, api_key_file } = args;
    aqueduct_tls::scheme_of("server", &server, tls_ca.is_some())?;
    // The file is read from any folder.
    let [tls_ca, tls_cert, tls_key, api_key_file] = [tls_ca, tls_cert, tls_key, api_key_file]
        .map(|file| file.map(|file| std::path::absolute(&file).unwrap_or(file)));
    let context = Context { server, tls_ca, tls_cert, tls_key, api_key_file };
    Contexts::change(&file.path()?, |contexts| {
        contexts.current.get_or_insert_with(|| name.clone());
        contexts.contexts.insert(name, context);
        Ok(())
    })
}

/// Changes what is written down about a context that there is.
fn change(args: ContextNameArgs, act: impl FnOnce(&mut Contexts, String)) -> anyhow::Result<()> {
    Contexts::change(&args.file.path()?, |contexts| {
        if !contexts.contexts.contains_key(&args.name) {
            return Err(Unknown(args.name).into());
        }
        act(contexts, args.name);
        Ok(())
    })
}

/// Contexts, as they are listed.
#[derive(Debug, Serialize)]
#[serde(transparent)]
struct Listed(Contexts);

impl Shown for Listed {
    fn table(&self, wide: bool) -> String {
        let mut headings = vec!["CURRENT", "NAME", "SERVER"];
        if wide {
            headings.extend(["CA", "CERTIFICATE", "KEY FILE"]);
        }
        let mut columns = Columns::new(&headings);
        for (name, context) in &self.0.contexts {
            let is_current = self.0.current.as_ref() == Some(name);
            let mark = if is_current { "*" } else { "" };
            let mut cells = vec![mark.to_owned(), name.clone(), context.server.clone()];
            if wide {
                let files = [&context.tls_ca, &context.tls_cert, &context.api_key_file];
                let shown = |file: &Option<std::path::PathBuf>| {
                    file.as_ref().map_or_else(String::new, |file| file.display().to_string())
                };
                cells.extend(files.map(shown));
            }
            columns.row(cells);
        }
        columns.render()
    }
}
