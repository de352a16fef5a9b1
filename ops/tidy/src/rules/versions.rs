//! One version of everything, pinned in one place.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use toml::{Table, Value};

use crate::Finding;
use crate::manifest::Manifest;

/// The rule of this file that the ratchet can excuse.
pub const RULES: &[&str] = &["duplicate-version"];

/// Crates of which the lock file holds more than one version.
pub fn check_lock(path: &str, text: &str) -> Result<Vec<Finding>> {
    let lock: Table = text.parse().with_context(|| format!("parsing {path}"))?;
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in lock.get("package").and_then(Value::as_array).into_iter().flatten() {
        let field = |name: &str| package.get(name).and_then(Value::as_str);
        if let (Some(name), Some(version)) = (field("name"), field("version")) {
            versions.entry(name).or_default().push(version);
        }
    }
    let several = versions.into_iter().filter(|(_, versions)| versions.len() > 1);
    Ok(several
        .map(|(name, versions)| {
            let line = text.lines().position(|line| line == format!("name = \"{name}\""));
            let reason = format!("{} versions of {name}: {versions:?}", versions.len());
            Finding::new(path, line.map_or(1, |idx| idx + 1), "duplicate-version", reason)
                .measured(name, versions.len())
        })
        .collect())
}

/// Dependencies of a crate that do not take their version from the root manifest.
pub fn check_manifest(manifest: &Manifest) -> Vec<Finding> {
    let unpinned = manifest.dependencies.iter().filter(|dependency| !dependency.is_workspace);
    let reason =
        |name: &str| format!("{name}: versions stand in the root's [workspace.dependencies] alone");
    unpinned
        .map(|dependency| {
            let Manifest { path, .. } = manifest;
            Finding::new(path, dependency.line, "workspace-version", reason(&dependency.name))
        })
        .collect()
}

/// Pins of the root manifest that no crate uses.
pub fn check_pins(pins: &[(String, usize)], manifests: &[Manifest]) -> Vec<Finding> {
    let is_used = |name: &str| {
        let mut all = manifests.iter().flat_map(|manifest| &manifest.dependencies);
        all.any(|dependency| dependency.name == name)
    };
    let unused = pins.iter().filter(|(name, _)| !is_used(name));
    unused
        .map(|(name, line)| {
            let reason = format!("{name} is pinned and no crate depends on it");
            Finding::new("Cargo.toml", *line, "unused-pin", reason)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_versions_are_found() {
        let package =
            |name, version| format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\n\n");
        let one = package("a", "1.0.0") + &package("b", "2.0.0");
        assert!(check_lock("Cargo.lock", &one).unwrap().is_empty());
        let two = one + &package("b", "3.0.0");
        let findings = check_lock("Cargo.lock", &two).unwrap();
        assert_eq!(findings.len(), 1);
        assert_eq!((findings[0].line, findings[0].measure.as_ref().unwrap().value), (6, 2));
    }

    #[test]
    fn versions_stand_in_the_root() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\nc = \"1\"\n";
        let manifest = Manifest::parse("a/Cargo.toml", text).unwrap();
        let findings = check_manifest(&manifest);
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].line, 5);
        let pins = [("b".to_owned(), 1), ("z".to_owned(), 2)];
        assert_eq!(check_pins(&pins, &[manifest]).len(), 1);
    }
}
