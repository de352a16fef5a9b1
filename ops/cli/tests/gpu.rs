//! Where there is no CUDA device, everything that needs one says so in one line.

mod binary;

use std::process::Command;

use aqueduct_kernels::cuda::Cuda;
use binary::{aqueduct, stderr};

fn refused(output: &std::process::Output) {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.starts_with("error: no CUDA device ("), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(output.stdout.is_empty());
}

#[test]
fn without_a_device_nothing_is_checked_or_timed() {
    if Cuda::devices().is_ok() {
        return; // ops/gpu/check does on such a machine what this cannot
    }
    for job in ["devices", "check", "bench", "nccl"] {
        refused(&aqueduct().args(["gpu", job]).output().unwrap());
    }
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/../gpu");
    for script in ["check", "bench"] {
        let out = tempfile::tempdir().unwrap();
        let mut command = Command::new(format!("{scripts}/{script}"));
        let binary = aqueduct().get_program().to_owned();
        refused(&command.arg(out.path()).env("AQUEDUCT", binary).output().unwrap());
    }
}
