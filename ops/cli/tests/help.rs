//! Every page of `--help`, word for word, and whether shells can read what completes commands.

mod binary;
mod transcript;

use std::process::Command;

use binary::run;
use transcript::Transcript;

/// The commands that a page of help names.
fn commands(page: &str) -> Vec<String> {
    let listed = page.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty()).filter_map(|line| {
        let is_name = line.starts_with("  ") && !line.starts_with("   ");
        line.split_whitespace().next().filter(|name| is_name && *name != "help")
    });
    names.map(str::to_owned).collect()
}

/// The page of a command, and those of its own commands.
fn pages(seen: &mut Transcript, command: &[&str]) {
    let output = seen.run(&[command, &["--help"]].concat());
    assert!(output.status.success(), "{command:?}");
    for name in commands(std::str::from_utf8(&output.stdout).unwrap()) {
        pages(seen, &[command, &[&name]].concat());
    }
}

#[test]
fn help_reads_as_it_was_read() {
    let mut seen = Transcript::new(&[]);
    let output = seen.run(&["--help"]);
    seen.check("help");
    let all = commands(std::str::from_utf8(&output.stdout).unwrap());
    assert!(all.len() > 15, "{all:?}");
    for name in &all {
        pages(&mut seen, &[name]);
        seen.check(&format!("help-{name}"));
    }
}

/// Whether `shell` finds no mistake in its script; none is asked that is not here.
fn parses(shell: &str, only_look: &str) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("completion");
    std::fs::write(&file, run(["completion", shell]).stdout).unwrap();
    match Command::new(shell).arg(only_look).arg(&file).output() {
        Ok(output) => assert!(output.status.success(), "{shell}: {}", binary::stderr(&output)),
        Err(error) => eprintln!("completion of {shell}: LEFT OUT, for it is not here: {error}"),
    }
}

#[test]
fn shells_find_no_mistake_in_completions() {
    parses("bash", "-n");
    parses("zsh", "-n");
    parses("fish", "--no-execute");
}
