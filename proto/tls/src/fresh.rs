//! What files say, at most a second ago.

use std::fmt::Display;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Files are looked at again after this long, when somebody asks.
const STALE_AFTER: Duration = Duration::from_secs(1);

/// Makes something of its files.
type Make<T, E> = Box<dyn Fn() -> Result<T, E> + Send + Sync>;

/// Something made of files, made again when these change. While they cannot be used, which they
/// cannot when they are half replaced, it is what it was.
pub struct Fresh<T, E> {
    files: Vec<PathBuf>,
    make: Make<T, E>,
    state: Mutex<State<T>>,
}

struct State<T> {
    made: Arc<T>,
    looked_at: Instant,
    /// Of what was last tried, whether it could be used or not.
    digest: u64,
}

impl<T, E: Display> Fresh<T, E> {
    /// What `make` makes of `files`.
    ///
    /// # Errors
    /// As `make` has it. Later ones are logged, and what there is stays.
    pub fn new(files: Vec<PathBuf>, make: Make<T, E>) -> Result<Self, E> {
        let digest = digest(&files);
        let state = State { made: Arc::new(make()?), looked_at: Instant::now(), digest };
        Ok(Self { files, make, state: Mutex::new(state) })
    }

    /// The files.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// As it is now, or was a second ago.
    pub fn current(&self) -> Arc<T> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.looked_at.elapsed() >= STALE_AFTER {
            state.looked_at = Instant::now();
            self.look(&mut state);
        }
        state.made.clone()
    }

    fn look(&self, state: &mut State<T>) {
        let digest = digest(&self.files);
        if digest == state.digest {
            return;
        }
        state.digest = digest;
        match (self.make)() {
            Ok(made) => {
                state.made = Arc::new(made);
                tracing::info!(files = ?self.files, "files that had changed were read again");
            }
            Err(error) => {
                tracing::warn!(%error, "changed files cannot be used: what they said stays");
            }
        }
    }
}

/// Tells contents apart; a file that cannot be read is one of its own kind.
fn digest(files: &[PathBuf]) -> u64 {
    let mut hasher = DefaultHasher::new();
    files.iter().for_each(|path| std::fs::read(path).ok().hash(&mut hasher));
    hasher.finish()
}
