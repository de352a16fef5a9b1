//! The house rules, applied to the whole repository.

use std::sync::LazyLock;

use aqueduct_tidy::manifest::workspace_pins;
use aqueduct_tidy::rules::{
    arrows, banned, budgets, comments, layout, links, mentions, tour, versions,
};
use aqueduct_tidy::{Finding, Ratchet, RustFile, Tree, ratchet};

static TREE: LazyLock<Tree> = LazyLock::new(|| Tree::open().unwrap());

/// Text that others wrote: a book and the lock file's like.
const NOT_OURS: &[&str] = &["ops/demo/walden.txt", "Cargo.lock", "ops/fuzz/Cargo.lock"];

fn expect_none(findings: Vec<Finding>) {
    let lines: Vec<String> = findings.iter().map(Finding::to_string).collect();
    assert!(lines.is_empty(), "{} breaches:\n{}", lines.len(), lines.join("\n"));
}

fn ratchet() -> Ratchet {
    Ratchet::parse(&TREE.required_text(ratchet::PATH).unwrap()).unwrap()
}

fn each_rust_file(check: fn(&RustFile) -> Vec<Finding>) -> Vec<Finding> {
    let files = TREE.rust_files().unwrap();
    assert!(files.len() > 20, "the tree was not found: {} Rust files", files.len());
    files.iter().flat_map(check).collect()
}

#[test]
fn budgets() {
    expect_none(ratchet().apply(budgets::RULES, each_rust_file(budgets::check)));
}

#[test]
fn banned_words() {
    expect_none(each_rust_file(banned::check));
}

#[test]
fn layout_of_files() {
    expect_none(each_rust_file(layout::check));
}

#[test]
fn comments_say_why() {
    let scripts = [".py", ".sh", ".proto", ".toml", ".yaml"];
    let mut findings = each_rust_file(comments::check);
    for path in TREE.paths.iter().filter(|path| scripts.iter().any(|end| path.ends_with(end))) {
        findings.extend(comments::check_text(path, &TREE.required_text(path).unwrap()));
    }
    expect_none(findings);
}

#[test]
fn no_paths_of_one_machine() {
    let mut findings = Vec::new();
    for path in TREE.paths.iter().filter(|path| !NOT_OURS.contains(&path.as_str())) {
        if let Some(text) = TREE.text(path).unwrap() {
            findings.extend(mentions::check(path, &text));
        }
    }
    expect_none(findings);
}

#[test]
fn links_lead_somewhere() {
    let mut findings = Vec::new();
    for path in TREE.paths.iter().filter(|path| path.ends_with(".md")) {
        findings.extend(links::check(path, &TREE.required_text(path).unwrap(), &TREE.paths));
    }
    expect_none(findings);
}

#[test]
fn arrows_between_crates() {
    expect_none(TREE.manifests().unwrap().iter().flat_map(arrows::check).collect());
}

#[test]
fn one_version_of_everything() {
    let lock = TREE.required_text("Cargo.lock").unwrap();
    let duplicates = versions::check_lock("Cargo.lock", &lock).unwrap();
    let mut findings = ratchet().apply(versions::RULES, duplicates);
    let manifests = TREE.manifests().unwrap();
    findings.extend(manifests.iter().flat_map(versions::check_manifest));
    let pins = workspace_pins(&TREE.required_text("Cargo.toml").unwrap()).unwrap();
    findings.extend(versions::check_pins(&pins, &manifests));
    expect_none(findings);
}

#[test]
fn excuses_name_known_rules() {
    let known: Vec<&str> = [budgets::RULES, versions::RULES].concat();
    for allow in ratchet().allow {
        assert!(known.contains(&allow.rule.as_str()), "no rule {} to excuse", allow.rule);
    }
}

#[test]
fn the_tour_in_the_readme_is_true() {
    let files = TREE.rust_files().unwrap();
    expect_none(tour::check(&TREE.required_text("README.md").unwrap(), &files));
}
