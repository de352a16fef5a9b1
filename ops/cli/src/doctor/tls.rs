//! Whether certificates can be used, by whom, and until when.

use std::path::Path;
use std::time::SystemTime;

use aqueduct_tls::{Identity, Inspected, inspect};

use super::Check;

const DAY: u64 = 86_400;
/// Whoever renews certificates does it before.
const DAYS_LEFT: u64 = 14;

/// Looks at the certificate of `plane`, at its key and at the authority in `ca`. `roles` are names
/// of which the certificate must have one.
pub(crate) fn look(plane: &str, identity: &Identity, ca: Option<&Path>, roles: &[&str]) -> Check {
    let check = format!("certificate {plane}");
    match inspect(identity, ca, SystemTime::now()) {
        Ok(inspected) => judge(&check, &inspected, roles),
        Err(error) => {
            let next = "name PEM files that this user may read: a chain, and the key of its first";
            Check::fail(&check, error.to_string(), next)
        }
    }
}

fn judge(check: &str, inspected: &Inspected, roles: &[&str]) -> Check {
    let Inspected { names, seconds_left, distrusted } = inspected;
    let names = names.join(", ");
    let Some(left) = seconds_left else {
        return Check::fail(check, format!("for {names}: expired"), "have it renewed");
    };
    let found = format!("for {names}, for {} more days", left / DAY);
    if let Some(why) = distrusted.as_ref().filter(|_| roles.is_empty()) {
        let next = "no harm where callers and servers have authorities of their own";
        return Check::warn(check, format!("{found}: {why}"), next);
    }
    if let Some(why) = distrusted {
        let next = "sign it by the authority in the CA file, with what is between in its own file";
        return Check::fail(check, format!("{found}: {why}"), next);
    }
    let is_in = |role: &&str| inspected.names.iter().any(|name| name == *role);
    if !roles.is_empty() && !roles.iter().any(is_in) {
        let next = format!("have it name its owner's role, {}", roles.join(" or "));
        return Check::fail(check, found, next);
    }
    if *left < DAYS_LEFT * DAY {
        return Check::warn(check, found, "have it renewed; no restart is needed after that");
    }
    Check::ok(check, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn certificates_are_judged_by_time_trust_and_role() {
        let found = |days: Option<u64>, distrusted: Option<&str>| Inspected {
            names: vec!["worker.aqueduct".into(), "127.0.0.1".into()],
            seconds_left: days.map(|days| days * DAY),
            distrusted: distrusted.map(str::to_owned),
        };
        let check = |inspected: Inspected, roles: &[&str], want, words: &str| {
            let check = judge("certificate", &inspected, roles);
            assert_eq!(check.state, want, "{check:?}");
            assert!(check.found.contains(words), "{check:?}");
        };
        let member = ["coordinator.aqueduct", "worker.aqueduct"];
        check(found(Some(90), None), &member, State::Ok, "for 90 more days");
        check(found(Some(13), None), &member, State::Warn, "for 13 more days");
        check(found(None, None), &member, State::Fail, "worker.aqueduct, 127.0.0.1: expired");
        check(found(Some(90), Some("unknown issuer")), &member, State::Fail, "unknown issuer");
        check(found(Some(90), Some("unknown issuer")), &[], State::Warn, "unknown issuer");
        check(found(Some(90), None), &member[..1], State::Fail, "");
    }
}
