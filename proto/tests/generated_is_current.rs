//! The committed wire code is what `v1/*.proto` generates today.
//!
//! `AQUEDUCT_REGENERATE=1 cargo test -p aqueduct-proto --test generated_is_current` writes it
//! anew; without the variable the test compares and changes nothing.

use std::path::Path;

use prost::Message;

const CODE: &str = "aqueduct.v1.rs";
const DESCRIPTOR: &str = "descriptor.bin";

/// Messages that are shown as JSON.
const SHOWN: &[&str] = &[
    "ClusterView",
    "MemberEntry",
    "NodeEntry",
    "NodeView",
    "NodeWork",
    "RequestList",
    "RequestEntry",
    "RequestView",
    "ChunkView",
    "ChoiceView",
    "RequestTrace",
    "TraceStep",
    "SnapshotList",
    "SnapshotEntry",
    "SnapshotChange",
    "MemoryView",
    "KeyView",
    "ModelShape",
    "WideHeads",
    "WindowedLayers",
    "RetainedMass",
];

/// Generates code and descriptor into `out`, without protoc.
fn generate(out: &Path) {
    let mut compiler = protox::Compiler::new([env!("CARGO_MANIFEST_DIR")]).unwrap();
    compiler.include_source_info(true).include_imports(true);
    let files = [
        "v1/api.proto",
        "v1/worker.proto",
        "v1/journal.proto",
        "v1/operator.proto",
        "v1/peers.proto",
    ];
    compiler.open_files(files).unwrap();
    let mut files = compiler.file_descriptor_set();
    let mut builder = tonic_prost_build::configure().bytes(".");
    for message in SHOWN {
        builder =
            builder.type_attribute(format!("aqueduct.v1.{message}"), "#[derive(serde::Serialize)]");
    }
    builder.out_dir(out).emit_rerun_if_changed(false).compile_fds(files.clone()).unwrap();
    // Reflection serves names and types; comments would double the size.
    files.file.iter_mut().for_each(|file| file.source_code_info = None);
    std::fs::write(out.join(DESCRIPTOR), files.encode_to_vec()).unwrap();
}

#[test]
fn generated_code_is_current() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    if std::env::var_os("AQUEDUCT_REGENERATE").is_some() {
        generate(&committed);
    }
    let fresh = tempfile::tempdir().unwrap();
    generate(fresh.path());
    for name in [CODE, DESCRIPTOR] {
        let want = std::fs::read(fresh.path().join(name)).unwrap();
        let seen = std::fs::read(committed.join(name)).unwrap_or_default();
        assert!(want == seen, "{name} is not current; run with AQUEDUCT_REGENERATE=1");
    }
}
