//! What ops/protoc answers is what the files of the crates that ask for protoc say today.
//!
//! `AQUEDUCT_REGENERATE=1 cargo test -p aqueduct-proto --test protoc_descriptors` writes it anew.

use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;

/// Where cargo keeps the sources of `package`.
fn sources(package: &str) -> PathBuf {
    let arguments = ["metadata", "--format-version", "1", "--locked"];
    let output = Command::new(env!("CARGO")).args(arguments).output().unwrap();
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let packages = metadata["packages"].as_array().unwrap();
    let package = packages.iter().find(|found| found["name"] == package).unwrap();
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap().to_owned()
}

/// `files` as a build script names them, found in the folders `includes`.
fn check(answer: &str, includes: &[PathBuf], files: &[&str]) {
    let mut compiler = protox::Compiler::new(includes).unwrap();
    compiler.include_imports(true).open_files(files).unwrap();
    let fresh = compiler.file_descriptor_set().encode_to_vec();
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../ops/protoc").join(answer);
    if std::env::var_os("AQUEDUCT_REGENERATE").is_some() {
        std::fs::write(&committed, &fresh).unwrap();
    }
    let seen = std::fs::read(&committed).unwrap_or_default();
    assert!(seen == fresh, "ops/protoc/{answer} is not current");
}

#[test]
fn descriptors_of_etcd_are_current() {
    let files = [
        "etcd/api/authpb/auth.proto",
        "etcd/api/etcdserverpb/rpc.proto",
        "etcd/api/mvccpb/kv.proto",
        "etcd/server/etcdserver/api/v3election/v3electionpb/v3election.proto",
        "etcd/server/etcdserver/api/v3lock/v3lockpb/v3lock.proto",
    ];
    check("etcd-client.bin", &[sources("etcd-client").join("proto")], &files);
}

#[test]
fn descriptors_of_prometheus_are_current() {
    let includes = [sources("prometheus-client").join("src/encoding/proto")];
    check("prometheus-client.bin", &includes, &["metrics.proto"]);
}

#[test]
fn descriptors_of_raft_are_current() {
    let includes = [sources("raft-proto").join("proto"), sources("protobuf-build").join("include")];
    check("raft-proto.bin", &includes, &["eraftpb.proto"]);
}
