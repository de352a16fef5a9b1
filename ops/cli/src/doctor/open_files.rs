//! How many files and connections a server may have open.

use aqueduct_core::limits;

use super::Check;
use crate::open_files;

/// All ports of a coordinator in a group: the HTTP API and `--monitor`, the gRPC API and
/// `--peer-listen`. With fewer, a flood at one of them is felt at the others.
const ENOUGH: u64 = 2 * (limits::HTTP_CONNECTIONS_MAX + limits::GRPC_CONNECTIONS_MAX) as u64;
/// With fewer, not even members of a cluster reach each other.
const FEWEST: u64 = 256;

/// Looks at the limits of this process, which those of a server are where it is started alike.
pub(crate) fn look() -> Check {
    let (soft, hard) = open_files::limits();
    judge(soft, hard)
}

fn judge(soft: Option<u64>, hard: Option<u64>) -> Check {
    let check = "open files";
    let shown = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |most| most.to_string());
    let found = format!(
        "at most {}, the hard limit, to which servers raise the soft one of {}",
        shown(hard),
        shown(soft)
    );
    let next = format!(
        "let it be 65536, by `ulimit -n` before it or LimitNOFILE= of its service: a connection \
         is a file, and all ports of a server may have {ENOUGH}"
    );
    match hard.unwrap_or(u64::MAX) {
        most if most < FEWEST => Check::fail(check, found, next),
        most if most < ENOUGH => Check::warn(check, found, next),
        _ => Check::ok(check, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn few_files_are_too_few() {
        let check = |soft, hard, want| assert_eq!(judge(soft, hard).state, want, "{hard:?}");
        check(Some(255), Some(255), State::Fail);
        check(Some(256), Some(256), State::Warn);
        check(Some(1024), Some(ENOUGH - 1), State::Warn);
        check(Some(256), Some(ENOUGH), State::Ok);
        check(Some(1024), None, State::Ok);
        let found = judge(Some(1024), Some(4096)).found;
        assert!(found.contains("at most 4096") && found.ends_with("of 1024"), "{found}");
    }
}
