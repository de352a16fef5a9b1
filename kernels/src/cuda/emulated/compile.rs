//! Makes shared libraries of the kernels' sources with the host's C++ compiler.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::device::Fault;

const CALL: &str = "compiling kernels for the emulator";
const COMPILER: &str = "c++";
/// Products are not fused with additions where the source does not say so.
const FLAGS: &[&str] =
    &["-std=c++20", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-DAQUEDUCT_EMULATED"];

/// What the compiler need not call a function for on this processor.
fn fused() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("fma") {
        return &["-mfma"];
    }
    &[]
}

/// One library to be made.
struct Unit {
    sources: Vec<PathBuf>,
    output: PathBuf,
}

/// The emulator's runtime, then a library for every source of kernels; made where they are not
/// there yet.
pub(super) fn libraries() -> Result<Vec<PathBuf>, Fault> {
    let broken = |error: io::Error| Fault::new(CALL, error);
    let source_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("cu");
    let output_dir = source_dir.join("../../target/cuda-emulator");
    fs::create_dir_all(&output_dir).map_err(broken)?;
    // Several processes test at once: one compiles, the others find what it made.
    let lock = File::create(output_dir.join("lock")).map_err(broken)?;
    lock.lock().map_err(broken)?;
    let units = units(&source_dir, &output_dir).map_err(broken)?;
    compile_all(&source_dir, &units)?;
    Ok(units.into_iter().map(|unit| unit.output).collect())
}

/// Libraries are named by all that goes into them.
fn units(source_dir: &Path, output_dir: &Path) -> io::Result<Vec<Unit>> {
    let emulator_dir = source_dir.join("emulator");
    let runtime = files(&emulator_dir, "cpp")?;
    let kernels = [files(source_dir, "cu")?, files(&emulator_dir, "cu")?].concat();
    let headers = [files(source_dir, "cuh")?, files(&emulator_dir, "hpp")?].concat();
    let mut units = vec![("runtime", runtime)];
    units.extend(kernels.iter().map(|it| (stem(it), vec![it.clone()])));
    let unit = |(name, sources): (&str, Vec<PathBuf>)| {
        let mut hasher = DefaultHasher::new();
        (FLAGS, fused()).hash(&mut hasher);
        for file in headers.iter().chain(&sources) {
            fs::read(file)?.hash(&mut hasher);
        }
        let output = output_dir.join(format!("{name}-{:016x}.so", hasher.finish()));
        Ok(Unit { sources, output })
    };
    units.into_iter().map(unit).collect()
}

fn stem(file: &Path) -> &str {
    file.file_stem().and_then(|it| it.to_str()).unwrap_or("kernels")
}

/// Files of `dir` whose names end in `extension`, in order.
fn files(dir: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let paths = fs::read_dir(dir)?.map(|entry| Ok(entry?.path()));
    let mut paths: Vec<_> = paths.collect::<io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|it| it == extension));
    paths.sort();
    Ok(paths)
}

/// Compiles what is missing, as many at once as there are processors.
fn compile_all(source_dir: &Path, units: &[Unit]) -> Result<(), Fault> {
    let missing: Vec<_> = units.iter().filter(|unit| !unit.output.exists()).collect();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..threads.min(missing.len()) {
            scope.spawn(|| {
                while let Some(unit) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(fault) = compile(source_dir, unit)
                        && let Ok(mut faults) = faults.lock()
                    {
                        faults.push(fault);
                    }
                }
            });
        }
    });
    faults.into_inner().ok().and_then(|mut all| all.pop()).map_or(Ok(()), Err)
}

/// Compiles under another name, so that a library is either whole or not there.
fn compile(source_dir: &Path, unit: &Unit) -> Result<(), Fault> {
    let partial = unit.output.with_extension(format!("{}.part", std::process::id()));
    let mut command = Command::new(COMPILER);
    command.args(FLAGS).args(fused()).arg("-I").arg(source_dir).arg("-o").arg(&partial);
    command.args(["-x", "c++"]).args(&unit.sources);
    let done = command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            Fault::new(CALL, format!("there is no `{COMPILER}`: install Debian's package g++"))
        }
        _ => Fault::new(CALL, error),
    })?;
    if !done.status.success() {
        return Err(Fault::new(CALL, String::from_utf8_lossy(&done.stderr)));
    }
    fs::rename(&partial, &unit.output).map_err(|error| Fault::new(CALL, error))
}
