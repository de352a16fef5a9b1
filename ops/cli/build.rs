//! Tells the binary which commit it was built from.

use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo:rustc-env=AQUEDUCT_COMMIT={commit}");
    // The reflog grows with every commit and checkout. Without one nothing is watched but this
    // file, and cargo does not run us for every change of a source.
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(reflog) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"])
        && std::path::Path::new(&reflog).exists()
    {
        println!("cargo:rerun-if-changed={reflog}");
    }
}

fn git(args: &[&str]) -> Option<String> {
    let output = Command::new("git").args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
