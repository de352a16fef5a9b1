//! What `aqueduct doctor` looks at. Each check says what it found and, unless all is well, what to
//! do next; none takes longer than its deadline.

pub(crate) mod clock;
pub(crate) mod cluster;
pub(crate) mod disk;
pub(crate) mod memory;
pub(crate) mod open_files;
pub(crate) mod ports;
pub(crate) mod registry;
pub(crate) mod tls;

use std::time::Duration;

use serde::Serialize;

/// How something stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    Ok,
    /// It works, and may not for long or not as well as it could.
    Warn,
    Fail,
}

impl State {
    /// As people read it.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

/// What came of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Check {
    pub(crate) check: String,
    pub(crate) state: State,
    pub(crate) found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) next: String,
}

impl Check {
    /// All is well.
    pub(crate) fn ok(check: &str, found: impl Into<String>) -> Self {
        Self { check: check.to_owned(), state: State::Ok, found: found.into(), next: String::new() }
    }

    /// It works for now.
    pub(crate) fn warn(check: &str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { state: State::Warn, next: next.into(), ..Self::ok(check, found) }
    }

    /// It does not work.
    pub(crate) fn fail(check: &str, found: impl Into<String>, next: impl Into<String>) -> Self {
        Self { state: State::Fail, next: next.into(), ..Self::ok(check, found) }
    }
}

/// What comes of `look`, unless it takes too long; what it does then goes on unseen.
pub(crate) async fn within(
    check: &str,
    deadline: Duration,
    look: impl Future<Output = Vec<Check>> + Send + 'static,
) -> Vec<Check> {
    let late = || {
        let found = format!("nothing within {} s", deadline.as_secs_f64());
        let next = "look for what hangs: a name server, a firewall, a folder of a network";
        Check::fail(check, found, next)
    };
    match tokio::time::timeout(deadline, tokio::spawn(look)).await {
        Ok(Ok(checks)) => checks,
        Ok(Err(error)) => vec![Check::fail(check, error.to_string(), "report this as a bug")],
        Err(_) => vec![late()],
    }
}

/// The same of what blocks.
pub(crate) async fn within_blocking(
    check: &str,
    deadline: Duration,
    look: impl FnOnce() -> Vec<Check> + Send + 'static,
) -> Vec<Check> {
    let named = check.to_owned();
    let look = async move {
        let looked = tokio::task::spawn_blocking(look).await;
        looked.unwrap_or_else(|error| {
            vec![Check::fail(&named, error.to_string(), "report this as a bug")]
        })
    };
    within(check, deadline, look).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_check_hangs_and_none_takes_others_with_it() {
        let moment = Duration::from_millis(10);
        let hung = within("etcd", moment, std::future::pending()).await;
        assert_eq!((hung[0].state, hung[0].found.as_str()), (State::Fail, "nothing within 0.01 s"));
        let broken = within_blocking("disk", Duration::from_secs(60), || panic!("no")).await;
        assert_eq!((broken[0].check.as_str(), broken[0].state), ("disk", State::Fail));
        let fine = within_blocking("disk", Duration::from_secs(60), || vec![Check::ok("disk", "")]);
        assert_eq!(fine.await, [Check::ok("disk", "")]);
    }
}
