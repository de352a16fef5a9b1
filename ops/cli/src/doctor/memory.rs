//! Whether a model and what requests remember have room in memory.

use std::path::Path;

use aqueduct_gguf::{FilesError, ModelFiles};

use super::Check;
use crate::machine;
use crate::report::bytes;

/// Looks at the model at `path`, beside a pool of `pool_bytes`.
pub(crate) fn look(path: &Path, pool_bytes: u64) -> Check {
    let model_bytes = match size(path) {
        Ok(size) => size,
        Err(error) => {
            let next = "give --model a Hugging Face folder or a GGUF file";
            return Check::fail("memory", error.to_string(), next);
        }
    };
    judge(model_bytes, pool_bytes, machine::available_bytes())
}

/// Bytes of a file and its other parts, or of the files in a folder.
fn size(path: &Path) -> Result<u64, FilesError> {
    let read = |source| FilesError::Read { path: path.to_owned(), source };
    let files = match ModelFiles::find(path)? {
        ModelFiles::Gguf(files) => files,
        ModelFiles::Folder => {
            let entries = std::fs::read_dir(path).map_err(read)?;
            entries.flatten().map(|entry| entry.path()).collect()
        }
    };
    let size = |file| std::fs::metadata(file).ok();
    Ok(files.iter().filter_map(size).filter(|it| it.is_file()).map(|it| it.len()).sum())
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

/// The same of a model whose states are so many bytes: no file and no pool has them.
pub(crate) fn with_states(check: Check, state_bytes: u64) -> Check {
    if state_bytes == 0 {
        return check;
    }
    let (found, states) = (&check.found, bytes(state_bytes));
    let found = format!(
        "{found}; each completion's states take {states} beside the pool, and as much of its room"
    );
    Check { found, ..check }
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

    #[test]
    fn states_are_said_where_there_are_any() {
        let check = judge(2, 2, Some(4));
        assert_eq!(with_states(check.clone(), 0), check);
        let told = with_states(check.clone(), 1);
        assert_eq!((&told.check, told.state), (&check.check, State::Ok));
        assert!(told.found.starts_with(&check.found) && told.found.contains("states"));
    }
}
