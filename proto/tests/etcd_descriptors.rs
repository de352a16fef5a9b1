//! What ops/protoc answers is what the files of etcd-client say today.
//!
//! `AQUEDUCT_REGENERATE=1 cargo test -p aqueduct-proto --test etcd_descriptors` writes it anew.

use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;

/// As etcd-client's build script names them.
const FILES: [&str; 5] = [
    "etcd/api/authpb/auth.proto",
    "etcd/api/etcdserverpb/rpc.proto",
    "etcd/api/mvccpb/kv.proto",
    "etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
    "etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
];

/// Where cargo keeps the sources of etcd-client.
fn sources() -> PathBuf {
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|package| package["name"] == "etcd-client").unwrap();
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().join("proto")
}

#[test]
fn descriptors_are_current() {
    let mut compiler = protox::Compiler::new([sources()]).unwrap();
    compiler.include_imports(true).open_files(FILES).unwrap();
    let fresh = compiler.file_descriptor_set().encode_to_vec();
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/protoc/etcd-client.bin");
    if std::env::var_os("AQUEDUCT_REGENERATE").is_some() {
        std::fs::write(&committed, &fresh).unwrap();
    }
    let seen = std::fs::read(&committed).unwrap_or_default();
    assert!(seen == fresh, "ops/protoc/etcd-client.bin is not current");
}
