//! How many files the process may have open, each of which may be a connection.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit that counts and the one up to which a process may raise it, `None` where there is
/// none.
pub(crate) fn limits() -> (Option<u64>, Option<u64>) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    (current, maximum)
}

/// Raises the limit that counts as far as it goes. It is as low as it is for programs that wait
/// with select(2), which knows no file above 1023; ours do not.
pub(crate) fn raise() {
    let (soft, hard) = limits();
    if soft == hard {
        return;
    }
    match setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }) {
        Ok(()) => tracing::debug!(?soft, ?hard, "the soft limit of open files is now the hard one"),
        Err(error) => tracing::warn!(?soft, ?hard, %error, "the limit of open files stays"),
    }
}
