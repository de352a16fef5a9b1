//! Whether a server answers, has workers, and is of the same version.

use aqueduct_client::operator::ClusterView;
use aqueduct_client::{Client, ClientError, ClientOptions};

use super::{Check, clock};

/// Asks the server at `url`.
pub(crate) async fn look(url: String, options: ClientOptions) -> Vec<Check> {
    let asked = async {
        let client = Client::connect(&url, options).await?;
        let before = clock::now();
        let view = client.show_cluster().await?;
        Ok::<_, ClientError>((view, (before, clock::now())))
    };
    match asked.await {
        Ok((view, span)) => {
            vec![judge(&view), clock::judge("server", view.clock_ms as f64 / 1e3, span, 1e-3)]
        }
        Err(error) => vec![Check::fail("server", error.to_string(), next(&error))],
    }
}

fn next(error: &ClientError) -> &'static str {
    match error {
        ClientError::Denied(_) => "give --api-key a key that was made with `keys new --admin`",
        ClientError::InvalidArgument(_) => "mend --server, or the certificates that go with it",
        _ => "see whether the coordinator runs, and whether --server is its gRPC address",
    }
}

fn judge(view: &ClusterView) -> Check {
    let all = view.nodes.len();
    let found = format!(
        "{}, version {}, {} of {all} workers up",
        if view.model.is_empty() { "no model" } else { &view.model },
        view.version,
        view.workers_up,
    );
    let lost = view.nodes.iter().find(|node| node.state != "up" && !node.reason.is_empty());
    let lost = lost.map(|node| format!("; {}: {}", node.name, node.reason));
    let found = found + &lost.unwrap_or_default();
    if view.workers_up == 0 {
        return Check::fail("server", found, "start workers, or see why none is up: `node list`");
    }
    if (view.workers_up as usize) < all {
        return Check::warn("server", found, "see `aqueduct node show` of those that are not up");
    }
    if view.members.iter().any(|member| !["leads", "follows"].contains(&member.state.as_str())) {
        let next = "see `aqueduct status`: a coordinator is not heard";
        return Check::warn("server", found, next);
    }
    let mut devices = view.nodes.iter().map(|node| &node.device).filter(|it| !it.is_empty());
    let first = devices.next();
    if let Some(other) = devices.find(|device| Some(*device) != first) {
        let found = format!("{found}; of {} and {other}", first.unwrap_or(other));
        let next = "give workers one AQUEDUCT_ISA, or the last bits of answers depend on whom they \
                    come from";
        return Check::warn("server", found, next);
    }
    if view.version != env!("CARGO_PKG_VERSION") {
        let next = concat!("this is ", env!("CARGO_PKG_VERSION"), ": take the server's version");
        return Check::warn("server", found, next);
    }
    Check::ok("server", found)
}

#[cfg(test)]
mod tests {
    use aqueduct_client::operator::{MemberEntry, NodeEntry};

    use super::*;
    use crate::doctor::State;

    #[test]
    fn a_coordinator_that_is_not_heard_is_told() {
        let check = |state: &str, want: State| {
            let member = |state: &str| MemberEntry { state: state.into(), ..Default::default() };
            let view = ClusterView {
                workers_up: 1,
                nodes: vec![NodeEntry { state: "up".into(), ..NodeEntry::default() }],
                version: env!("CARGO_PKG_VERSION").into(),
                members: vec![member("leads"), member(state)],
                ..ClusterView::default()
            };
            assert_eq!(judge(&view).state, want);
        };
        check("follows", State::Ok);
        check("away", State::Warn);
        check("unheard", State::Warn);
    }

    #[test]
    fn clusters_are_judged_by_their_workers() {
        let node = |state: &str| NodeEntry {
            state: state.into(),
            name: "w".into(),
            reason: if state == "up" { String::new() } else { "another model".into() },
            ..NodeEntry::default()
        };
        let view = |states: &[&str], version: &str| ClusterView {
            nodes: states.iter().map(|state| node(state)).collect(),
            workers_up: states.iter().filter(|state| **state == "up").count() as u32,
            version: version.into(),
            ..ClusterView::default()
        };
        let ours = env!("CARGO_PKG_VERSION");
        assert_eq!(judge(&view(&["up", "up"], ours)).state, State::Ok);
        assert_eq!(judge(&view(&["up"], "0.0.1")).state, State::Warn);
        let refused = judge(&view(&["up", "refused"], ours));
        assert_eq!(refused.state, State::Warn);
        assert!(refused.found.ends_with("1 of 2 workers up; w: another model"), "{refused:?}");
        assert_eq!(judge(&view(&["down"], ours)).state, State::Fail);
        let mut mixed = view(&["up", "up"], ours);
        mixed.nodes[1].device = "cpu amx".into();
        assert_eq!(judge(&mixed).state, State::Ok);
        mixed.nodes[0].device = "cpu avx2".into();
        let warned = judge(&mixed);
        assert_eq!(warned.state, State::Warn);
        assert!(warned.found.ends_with("; of cpu avx2 and cpu amx"), "{warned:?}");
    }
}
