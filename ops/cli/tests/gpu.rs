//! Where there is no CUDA device, everything that needs one says so in one line; and the scripts
//! for a machine that has one, with a binary that only pretends.

mod binary;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

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

const PRETENDER: &str = include_str!("pretender.sh");

/// `ops/gpu/NAME`, with its page and everything else in `out`.
fn script(name: &str, out: &Path) -> Output {
    script_with(name, out, &out.join("pages/page.md"))
}

/// The same with the page elsewhere. Python finds packages in `out` too.
fn script_with(name: &str, out: &Path, page: &Path) -> Output {
    let binary = out.join("aqueduct");
    fs::write(&binary, PRETENDER).unwrap();
    fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(format!("{}/../gpu/{name}", env!("CARGO_MANIFEST_DIR")));
    command.arg(out).env("AQUEDUCT", &binary).env("RESULTS", page).env("PYTHONPATH", out);
    command.env("LD_LIBRARY_PATH", "/given");
    command.env("PATH", "/usr/bin:/bin").output().unwrap()
}

#[test]
fn scripts_go_on_behind_what_fails_and_write_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let checked = script("check", folder.path());
    assert_eq!(checked.status.code(), Some(1), "{}", stderr(&checked));
    let rows = fs::read_to_string(folder.path().join("conformance.jsonl")).unwrap();
    assert_eq!(rows.lines().count(), 5, "{rows}");
    assert!(rows.contains("exit 139: error: illegal address"), "{rows}");
    let timed = script("bench", folder.path());
    assert_eq!(timed.status.code(), Some(1), "{}", stderr(&timed));
    let page = fs::read_to_string(folder.path().join("pages/page.md")).unwrap();
    assert_eq!(page, fs::read_to_string(folder.path().join("results.md")).unwrap());
    for line in [
        "| attention | 400.3 | 2.0 | 208.0 | 1.92 | 490.0 | met | 515 | 222 | 206 GFLOP |",
        "| row 1 | failed | | | | | | | | exit 139 |",
        "| merge | failed | | | | | | | | device: lost |",
        "| copy | 10.0 | 0.1 | 9.0 | 1.11 |  |  | 0 | 3000 |  |",
        "| conformance | FAILED | 2 of 4 checks failed |",
        "| greedy-h2o | ok | 1 tokens of the CPU and of the device are the same |",
        "| greedy-window | tied | token 1 differs: 512 (log probability -0.7012) on the CPU, \
         93 (-6.99e-1) on the device; before it these are at most 0.0e+00 apart, a near tie \
         (cpu-window.json, cuda-window.json) |",
        "| greedy-dense | FAILED | token 1 differs: 512 (log probability -0.25) on the CPU, \
         93 (-0.75) on the device; before it these are at most 0.0e+00 apart \
         (cpu-dense.json, cuda-dense.json) |",
    ] {
        assert!(page.lines().any(|it| it.trim_end() == line.trim_end()), "{line}\n{page}");
    }
    assert!(page.contains("Pretended H100, commit abc123"), "{page}");
}

#[test]
fn a_page_that_cannot_be_written_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("aqueduct/page.md"); // the binary is no folder
    let timed = script_with("bench", folder.path(), &page);
    assert_eq!(timed.status.code(), Some(1));
    let told = format!("error: the page could not be written to {}", page.display());
    assert!(stderr(&timed).contains(&told), "{}", stderr(&timed));
    assert!(folder.path().join("results.md").exists(), "and nothing is lost");
}

#[test]
fn libraries_of_packages_and_of_the_toolkit_are_found() {
    if !Path::new("/usr/bin/python3").exists() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let packages = ["cublas", "nccl"].map(|name| folder.path().join(format!("nvidia/{name}/lib")));
    packages.iter().for_each(|it| fs::create_dir_all(it).unwrap());
    script("bench", folder.path());
    let told = fs::read_to_string(folder.path().join("devices.txt")).unwrap();
    let folders = told.lines().find_map(|line| line.strip_prefix("libraries from ")).unwrap();
    let folders: Vec<_> = folders.split(':').map(Path::new).collect();
    for package in &packages {
        assert!(folders.contains(&package.as_path()), "{told}");
    }
    let last = &folders[folders.len() - 2..];
    assert_eq!(last, ["/usr/local/cuda/lib64", "/given"].map(Path::new), "{told}");
}
