//! Who may import whom. An arrow that is not drawn here does not exist.

use crate::Finding;
use crate::manifest::Manifest;

const RULE: &str = "arrows";

const CORE: &str = "aqueduct-core";
const GGUF: &str = "aqueduct-gguf";
const GRAMMAR: &str = "aqueduct-grammar";
const KERNELS: &str = "aqueduct-kernels";
const PROTO: &str = "aqueduct-proto";
const JOURNAL: &str = "aqueduct-journal";
const PLAN: &str = "aqueduct-plan";
const ENGINE: &str = "aqueduct-engine";
const MEMBERS: &str = "aqueduct-members";
const TELEMETRY: &str = "aqueduct-telemetry";
const TLS: &str = "aqueduct-tls";
const TORCH: &str = "aqueduct-torch";
const CLIENT: &str = "aqueduct-client";
const COORDINATOR: &str = "aqueduct-coordinator";
const WORKER: &str = "aqueduct-worker";

/// Importer, and what it may import.
const ARROWS: &[(&str, &[&str])] = &[
    (CORE, &[]),
    (GGUF, &[]),
    (TORCH, &[]),
    (GRAMMAR, &[CORE]),
    (KERNELS, &[]),
    (PROTO, &[CORE]),
    (PLAN, &[CORE]),
    (JOURNAL, &[CORE, PROTO]),
    (ENGINE, &[CORE, GGUF, GRAMMAR, KERNELS, TORCH]),
    (TELEMETRY, &[CORE]),
    (TLS, &[CORE]),
    (CLIENT, &[CORE, PROTO, TELEMETRY, TLS]),
    (MEMBERS, &[CORE, TLS]),
    (COORDINATOR, &[CORE, GGUF, GRAMMAR, JOURNAL, PLAN, PROTO, TELEMETRY, TLS]),
    (WORKER, &[CORE, ENGINE, GRAMMAR, KERNELS, PROTO, TELEMETRY, TLS]),
    ("aqueduct-sim", &[CORE, ENGINE, KERNELS, PLAN]),
    ("aqueduct-tidy", &[]),
    (
        "aqueduct",
        &[
            CLIENT,
            COORDINATOR,
            CORE,
            ENGINE,
            GGUF,
            JOURNAL,
            KERNELS,
            MEMBERS,
            PLAN,
            PROTO,
            TELEMETRY,
            TLS,
            WORKER,
        ],
    ),
];

/// Arrows that tests alone may follow: importer, imported, why.
const DEV_ARROWS: &[(&str, &str, &str)] = &[
    (KERNELS, KERNELS, "turns on its own emulator of AMX, which nothing else may contain"),
    (COORDINATOR, TORCH, "tries the seeds of all that is fuzzed"),
];

/// Crates of others that must stay out: importer, imported, why.
const FOREIGN: &[(&[&str], &[&str], &str)] = &[
    (
        &[CORE, GGUF, TORCH, GRAMMAR, KERNELS, PLAN, ENGINE],
        &["tokio", "tokio-stream", "tonic", "prost", "axum", "hyper", "etcd-client"],
        "this crate is synchronous and knows no network, so that it can be tested and simulated",
    ),
    (
        &[
            CORE,
            GGUF,
            TORCH,
            GRAMMAR,
            KERNELS,
            PLAN,
            ENGINE,
            PROTO,
            TELEMETRY,
            TLS,
            CLIENT,
            MEMBERS,
            JOURNAL,
            COORDINATOR,
            WORKER,
        ],
        &["anyhow"],
        "a library's errors are named types; only the command line may erase them",
    ),
    (
        &[PLAN],
        &["rand", "fastrand", "rayon"],
        "the same events must give the same commands, every time",
    ),
];

/// Features that tests alone may turn on: crate, feature, why.
const DEV_FEATURES: &[(&str, &str, &str)] = &[
    (
        KERNELS,
        "amx-emulator",
        "an emulated instruction is for tests; what is shipped must not catch signals",
    ),
    (
        KERNELS,
        "cuda-emulator",
        "an emulated device is for tests; what is shipped must not compile, or catch signals",
    ),
];

/// Breaches in one manifest.
pub fn check(manifest: &Manifest) -> Vec<Finding> {
    let Some((_, allowed)) = ARROWS.iter().find(|(name, _)| *name == manifest.name) else {
        let reason = format!("{} has no row in the table of arrows", manifest.name);
        return vec![Finding::new(&manifest.path, 1, RULE, reason)];
    };
    let importer = manifest.name.as_str();
    let mut findings = Vec::new();
    for dependency in &manifest.dependencies {
        let name = dependency.name.as_str();
        let dev_only = DEV_ARROWS.iter().any(|(from, to, _)| (*from, *to) == (importer, name));
        let reason = if name == "aqueduct" || name.starts_with("aqueduct-") {
            let drawn = allowed.contains(&name) || (dependency.is_dev && dev_only);
            (!drawn).then(|| format!("{importer} may not import {name}"))
        } else {
            let ban = FOREIGN.iter().find(|(from, to, _)| {
                !dependency.is_dev && from.contains(&importer) && to.contains(&name)
            });
            ban.map(|(_, _, why)| format!("{importer} may not import {name}: {why}"))
        };
        let features = DEV_FEATURES.iter().filter(|(to, feature, _)| {
            !dependency.is_dev && *to == name && dependency.features.iter().any(|f| f == feature)
        });
        let features =
            features.map(|(_, f, why)| format!("{importer} may not turn on {f} of {name}: {why}"));
        let at = |reason| Finding::new(&manifest.path, dependency.line, RULE, reason);
        findings.extend(reason.into_iter().chain(features).map(at));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_one(importer: &str, table: &str, imported: &str, is_allowed: bool) {
        check_line(importer, table, &format!("{imported}.workspace = true"), is_allowed);
    }

    fn check_line(importer: &str, table: &str, imported: &str, is_allowed: bool) {
        let text = format!("[package]\nname = \"{importer}\"\n[{table}]\n{imported}\n");
        let findings = check(&Manifest::parse("x/Cargo.toml", &text).unwrap());
        assert_eq!(findings.is_empty(), is_allowed, "{importer} -> {imported}: {findings:?}");
    }

    #[test]
    fn arrows_that_are_not_drawn_are_refused() {
        check_one(ENGINE, "dependencies", GGUF, true);
        check_one(COORDINATOR, "dependencies", GGUF, true);
        check_one("aqueduct", "dependencies", WORKER, true);
        check_one(COORDINATOR, "dependencies", KERNELS, false);
        check_one(COORDINATOR, "dependencies", ENGINE, false);
        check_one(KERNELS, "dependencies", CORE, false);
        check_one(KERNELS, "dependencies", KERNELS, false);
        check_one(KERNELS, "dev-dependencies", KERNELS, true);
        check_one(GGUF, "dependencies", CORE, false);
        check_one(COORDINATOR, "dependencies", TORCH, false);
        check_one(COORDINATOR, "dev-dependencies", TORCH, true);
        check_one(ENGINE, "dependencies", PROTO, false);
        check_one(ENGINE, "dev-dependencies", PROTO, false);
        check_one("aqueduct", "dependencies", "aqueduct-sim", false);
        check_one("aqueduct-new", "dependencies", CORE, false);
    }

    #[test]
    fn emulators_are_for_tests() {
        let line = "aqueduct-kernels = { workspace = true, features = [\"amx-emulator\"] }";
        check_line(ENGINE, "dependencies", line, false);
        check_line(ENGINE, "dev-dependencies", line, true);
        check_line(ENGINE, "dependencies", &line.replace("amx-", "other-"), true);
    }

    #[test]
    fn foreign_crates_stay_out_of_the_pure_ones() {
        check_one(PLAN, "dependencies", "tokio", false);
        check_one(PLAN, "dependencies", "thiserror", true);
        check_one(ENGINE, "dependencies", "tonic", false);
        check_one(WORKER, "dependencies", "anyhow", false);
        check_one(WORKER, "dependencies", "tokio", true);
    }
}
