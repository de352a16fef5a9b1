//! How many files and connections the process may have open.

use super::Check;

/// With fewer, callers would be turned away.
const ENOUGH: u64 = 4096;
/// With fewer, not even members of a cluster reach each other.
const FEWEST: u64 = 256;

/// Looks at the limits of this process, which those of a server are where it is started alike.
pub(crate) fn look() -> Check {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    judge(&limits)
}

fn judge(limits: &str) -> Check {
    let check = "open files";
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"));
    let Some(soft) = line.and_then(|line| line.split_whitespace().next()) else {
        return Check::warn(check, "the system does not say how many", "see `ulimit -n`");
    };
    let next =
        "`ulimit -n 65536` before it, or LimitNOFILE= of its service: a connection is a file";
    match soft.parse::<u64>() {
        Ok(most) if most < FEWEST => Check::fail(check, format!("at most {most}"), next),
        Ok(most) if most < ENOUGH => Check::warn(check, format!("at most {most}"), next),
        _ => Check::ok(check, format!("at most {soft}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn few_files_are_too_few() {
        let check = |soft: &str, want| {
            let limits =
                format!("Limit  Soft  Hard  Units\nMax open files   {soft}   4096  files\n");
            assert_eq!(judge(&limits).state, want, "{soft}");
        };
        check("255", State::Fail);
        check("1024", State::Warn);
        check("4096", State::Ok);
        check("unlimited", State::Ok);
        assert_eq!(judge("").state, State::Warn);
    }
}
