//! Whether a model and what requests remember have room in memory.

use std::path::Path;

use super::Check;
use crate::machine;
use crate::report::bytes;

/// Looks at the model at `path`, beside a pool of `pool_bytes`.
pub(crate) fn look(path: &Path, pool_bytes: u64) -> Check {
    let model_bytes = match size(path) {
        Ok(size) => size,
        Err(error) => {
            let next = "give --model a Hugging Face folder or a GGUF file";
            return Check::fail("memory", format!("{}: {error}", path.display()), next);
        }
    };
    judge(model_bytes, pool_bytes, machine::available_bytes())
}

/// Bytes of a file, or of the files in a folder.
fn size(path: &Path) -> std::io::Result<u64> {
    let about = std::fs::metadata(path)?;
    if !about.is_dir() {
        return Ok(about.len());
    }
    let files = std::fs::read_dir(path)?.flatten();
    let size = |entry: std::fs::DirEntry| std::fs::metadata(entry.path()).ok();
    Ok(files.filter_map(size).filter(|it| it.is_file()).map(|it| it.len()).sum())
}

fn judge(model_bytes: u64, pool_bytes: u64, available: Option<u64>) -> Check {
    let (model, pool) = (bytes(model_bytes), bytes(pool_bytes));
    let Some(available) = available else {
        let found = format!("{model} of files, a pool of up to {pool}");
        return Check::warn("memory", found, "the system does not say what is free: see `free`");
    };
    let free = bytes(available);
    let found = format!("{model} of files, a pool of up to {pool}, {free} available");
    if model_bytes > available {
        let next = "take a smaller model, --weights int8, or a machine with more memory";
        return Check::fail("memory", found, next);
    }
    if model_bytes.saturating_add(pool_bytes) > available {
        let next = "lower --pool-bytes, or expect to run out of memory when the pool fills";
        return Check::warn("memory", found, next);
    }
    Check::ok("memory", found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn what_does_not_fit_is_said() {
        assert_eq!(judge(2, 2, Some(4)).state, State::Ok);
        assert_eq!(judge(2, 3, Some(4)).state, State::Warn);
        assert_eq!(judge(5, 0, Some(4)).state, State::Fail);
        assert_eq!(judge(5, u64::MAX, None).state, State::Warn);
        assert_eq!(look(Path::new("/nowhere"), 0).state, State::Fail);
    }
}
