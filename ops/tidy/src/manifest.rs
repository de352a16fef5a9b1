//! One `Cargo.toml`: the crate's name and what it depends on.

use anyhow::{Context, Result};
use toml::{Table, Value};

/// A crate manifest.
#[derive(Debug)]
pub struct Manifest {
    /// Path from the repository root.
    pub path: String,
    /// The crate's name.
    pub name: String,
    /// Every dependency, of every kind and target.
    pub dependencies: Vec<Dependency>,
}

/// A line of a dependency table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dependency {
    /// The name as written.
    pub name: String,
    /// Whether the tests alone need it.
    pub is_dev: bool,
    /// Whether it says `workspace = true` and so takes its version from the root.
    pub is_workspace: bool,
    /// Features that it turns on.
    pub features: Vec<String>,
    /// The line, counted from one.
    pub line: usize,
}

impl Manifest {
    /// Parses `text`.
    pub fn parse(path: &str, text: &str) -> Result<Self> {
        let table: Table = text.parse().with_context(|| format!("parsing {path}"))?;
        let name = table
            .get("package")
            .and_then(|package| package.get("name"))
            .and_then(Value::as_str)
            .with_context(|| format!("{path} names no package"))?;
        let mut dependencies = Vec::new();
        collect(&table, text, &mut dependencies);
        for target in table.get("target").and_then(Value::as_table).into_iter().flatten() {
            if let Some(target) = target.1.as_table() {
                collect(target, text, &mut dependencies);
            }
        }
        Ok(Self { path: path.to_owned(), name: name.to_owned(), dependencies })
    }
}

/// The crates that the root manifest pins, with their lines.
pub fn workspace_pins(text: &str) -> Result<Vec<(String, usize)>> {
    let table: Table = text.parse().context("parsing Cargo.toml")?;
    let pins = table
        .get("workspace")
        .and_then(|workspace| workspace.get("dependencies"))
        .and_then(Value::as_table)
        .context("Cargo.toml has no [workspace.dependencies]")?;
    Ok(pins.keys().map(|name| (name.clone(), line_of(text, name))).collect())
}

fn collect(table: &Table, text: &str, dependencies: &mut Vec<Dependency>) {
    for kind in ["dependencies", "build-dependencies", "dev-dependencies"] {
        for (name, value) in table.get(kind).and_then(Value::as_table).into_iter().flatten() {
            let is_workspace = value.get("workspace").and_then(Value::as_bool) == Some(true);
            let features = value.get("features").and_then(Value::as_array).into_iter().flatten();
            dependencies.push(Dependency {
                name: name.clone(),
                is_dev: kind == "dev-dependencies",
                is_workspace,
                features: features.filter_map(Value::as_str).map(str::to_owned).collect(),
                line: line_of(text, name),
            });
        }
    }
}

fn line_of(text: &str, key: &str) -> usize {
    let begins = |line: &str| {
        line.strip_prefix(key).is_some_and(|rest| rest.starts_with([' ', '.', '=']))
            || line.ends_with(&format!("dependencies.{key}]"))
    };
    text.lines().position(begins).map_or(1, |idx| idx + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_dependency_is_read() {
        let text = "[package]\nname = \"a\"\n[dependencies]\nb.workspace = true\nc = \"1\"\n\
                    [dev-dependencies.d]\nworkspace = true\n\
                    [target.'cfg(unix)'.dependencies]\n\
                    e = { version = \"1\", features = [\"f\"] }\n";
        let found = Manifest::parse("a/Cargo.toml", text).unwrap().dependencies;
        assert_eq!(found[3].features, ["f"]);
        assert!(found[..3].iter().all(|dependency| dependency.features.is_empty()));
        let row = |d: &Dependency| (d.name.clone(), d.is_dev, d.is_workspace, d.line);
        assert_eq!(
            found.iter().map(row).collect::<Vec<_>>(),
            [
                ("b".into(), false, true, 4),
                ("c".into(), false, false, 5),
                ("d".into(), true, true, 6),
                ("e".into(), false, false, 9),
            ]
        );
    }
}
