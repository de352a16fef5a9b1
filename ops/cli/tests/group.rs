//! Three coordinators and their workers, each in a process of its own. Whoever leads is killed or
//! stopped, in the prefill and while tokens come: what was accepted ends, under the next leader,
//! with the tokens of a run without fault.

mod binary;
mod caller;
mod proxy;
mod random;
mod streamed;
mod trio;

use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use aqueduct_core::journal::Outcome;
use aqueduct_proto::v1::coordinators_client::CoordinatorsClient;
use binary::{Running, aqueduct, wait_for};
use caller::{Token, answer, in_decode, in_prefill, tokens, uninterrupted, worker};
use proxy::Proxy;
use serde_json::{Map, Value, json};
use streamed::At;
use trio::{COORDINATORS, Site, Trio, health};

fn start(workers: usize) -> Trio {
    Trio::start((0..workers).map(|_| worker()).collect())
}

/// Asks the leader, to whom `fault` happens; what its caller had heard by then, and who leads
/// when what was under way has ended.
fn interrupted(
    trio: &Trio,
    leader: usize,
    is_time: fn(&Value) -> bool,
    fault: impl FnOnce(&mut Child),
) -> (Vec<Token>, usize) {
    let told = answer(&trio.url(leader), is_time, fault);
    let next = trio.leader(Some(leader));
    let running = |want: bool| {
        let is_so = (trio.at(next).metric("num_requests_running") > 0.0) == want;
        is_so.then_some(())
    };
    wait_for("the request", || running(true));
    wait_for("its end", || running(false));
    (told, next)
}

#[test]
fn what_was_accepted_outlives_its_leaders() {
    let mut trio = start(2);
    let first = trio.leader(None);
    let want = answer(&trio.url(first), |_| false, |_| {});
    assert!(want.len() > 20, "{want:?}");
    let is_part = |told: &[Token]| told.len() < want.len() && want.starts_with(told);

    let killed = trio.at(first);
    let (told, second) = interrupted(&trio, first, in_prefill, |_| killed.signal("KILL"));
    assert_eq!(told, []);
    trio.kill(first);
    trio.start_again(first);
    trio.follows(first, second);

    let killed = trio.at(second);
    let (told, third) = interrupted(&trio, second, in_decode, |_| killed.signal("KILL"));
    assert!(is_part(&told), "{told:?}");
    trio.kill(second);
    trio.start_again(second);
    trio.follows(second, third);

    let stopped = trio.at(third);
    let (told, fourth) = interrupted(&trio, third, in_decode, |caller| {
        stopped.signal("STOP");
        caller.kill().unwrap(); // it would wait for whoever is stopped
    });
    assert!(is_part(&told), "{told:?}");
    stopped.signal("CONT");
    trio.follows(third, fourth);
    assert_eq!(trio.leader(Some(third)), fourth);
    let all = trio.kept(fourth);
    assert_eq!(all.len(), 4);
    for kept in all {
        assert_eq!(tokens(&kept), want);
        assert_eq!(kept.ended.unwrap().outcome, Outcome::Finished);
    }
}

#[test]
fn callers_see_one_stream_whoever_leads() {
    let mut trio = start(4);
    let mut leader = trio.leader(None);
    let want = answer(&trio.url(leader), |_| false, |_| {});
    assert!(want.len() > 20, "{want:?}");
    for (is_time, signal) in
        [(in_prefill as fn(&Value) -> bool, "KILL"), (in_decode, "KILL"), (in_decode, "STOP")]
    {
        let lost = trio.at(leader);
        let told = uninterrupted(&trio.urls(), is_time, |_| lost.signal(signal));
        assert_eq!(told, want, "{signal}");
        trio.kill(leader);
        let next = trio.leader(Some(leader));
        trio.start_again(leader);
        trio.follows(leader, next);
        leader = next;
    }
}

/// The way from the leader to all workers breaks, and no other: whoever has one leads, and callers
/// see a pause.
#[test]
fn a_leader_that_reaches_no_worker_gives_way() {
    let workers = vec![worker(), worker()];
    let way = |worker: &Running| {
        let proxy = Proxy::start(0);
        proxy.lead_to(worker.address("url").strip_prefix("http://").unwrap());
        proxy
    };
    let mut ways: Vec<Vec<Proxy>> =
        (0..COORDINATORS).map(|_| workers.iter().map(way).collect()).collect();
    let urls: Vec<Vec<String>> =
        ways.iter().map(|ways| ways.iter().map(Proxy::url).collect()).collect();
    let there = move |idx: usize, mut command: std::process::Command| {
        command.arg("--worker").args(&urls[idx]);
        command
    };
    let site = Site { there: Box::new(there), ..Site::here(Vec::new()) };
    let trio = Trio::at_site(site, workers);
    let leader = trio.leader(None);
    let want = answer(&trio.url(leader), |_| false, |_| {});
    let told = uninterrupted(&trio.urls(), in_decode, |_| ways[leader].clear());
    assert_eq!(told, want);
    let next = trio.leader(Some(leader));
    trio.follows(leader, next);
}

#[test]
fn followers_pass_calls_on_and_nobody_leads_without_a_majority() {
    let mut trio = start(1);
    let leader = trio.leader(None);
    let (follower, other) = ((leader + 1) % COORDINATORS, (leader + 2) % COORDINATORS);
    trio.follows(follower, leader);
    let body = json!({ "prompt": "Once", "max_tokens": 2 }).to_string();
    let sent = trio.at(follower).http_head("POST", "/v1/completions?x=1", &body);
    assert!(sent.starts_with("HTTP/1.1 200") && sent.contains("x-request-id: "), "{sent}");
    let metrics = trio.at(follower).http("GET", "/metrics", "").1;
    assert!(!metrics.contains("reason=\"elsewhere\""), "{metrics}");
    assert_eq!(trio.at(follower).http("GET", "/leader", "").0, 503);
    assert_eq!(trio.at(leader).http("GET", "/leader", "").0, 200);
    assert_eq!(trio.at(follower).http("GET", "/v1/models", "").0, 200);
    assert_eq!((trio.at(leader).metric("leads"), trio.at(follower).metric("leads")), (1.0, 0.0));
    trio.at(leader).complete("Once");
    let urls = format!("{},{}", trio.url(follower), trio.url(other));
    let told = aqueduct().args(["generate", "--server", &urls, "--json", "Once"]).output().unwrap();
    assert!(told.status.success(), "{}", binary::stderr(&told));
    // What members say to each other is nobody else's to say, not by way of one of them either.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for idx in [leader, follower] {
        let said = runtime.block_on(async {
            let mut member = CoordinatorsClient::connect(trio.url(idx)).await.unwrap();
            member.deliver(tokio_stream::iter(Vec::new())).await
        });
        assert_eq!(said.unwrap_err().code(), tonic::Code::Unimplemented);
    }
    let (status, answer) = trio.at(follower).http("POST", "/passed-on/v1/completions", &body);
    assert_eq!(status, 404, "{answer}");
    // Those who look after it, too, need reach one of them.
    for asked in [["node", "list"], ["request", "list"]] {
        let told = aqueduct().args(asked).args(["--server", &trio.url(follower)]).output().unwrap();
        assert!(told.status.success(), "{}", binary::stderr(&told));
    }

    // Of another group, whoever has its name and address.
    trio.kill(other);
    let stranger_folder = std::mem::replace(&mut trio.folders[other], tempfile::tempdir().unwrap());
    let stranger = trio.run(other, "another");
    trio.at(leader).complete("Once");
    trio.kill(follower);
    wait_for("the end of the lead", || {
        let (status, health) = health(trio.at(leader));
        (status == 503 && health["role"] == "follower").then_some(())
    });
    assert_eq!(health(&stranger).0, 503);
    let (status, answer) = trio.at(leader).http("POST", "/v1/completions", &body);
    assert_eq!(status, 503, "{answer}");
    drop(stranger);
    trio.folders[other] = stranger_folder;
    trio.start_again(other);
    let again = trio.leader(None);
    trio.at(again).complete("Once");
}

/// Coordinators that give what they have all the time that it takes when they are told to stop: a
/// machine with much else to do may need minutes for it.
fn start_patient() -> Trio {
    let workers = [worker(), worker()];
    let urls = workers.iter().map(|worker| worker.address("url").to_owned());
    let grace = ["--grace-s", "1000"].map(str::to_owned);
    let find = ["--worker".to_owned()].into_iter().chain(urls).chain(grace).collect();
    Trio::at_site(Site::here(find), workers.into())
}

/// A stream that no caller could come back to, of a second or more.
fn long(tokens: usize) -> Value {
    streamed::ask(6_000, tokens, json!({ "policy": "h2o", "chunk_tokens": 256 }))
}

fn is_time(at: At, tokens: usize) -> bool {
    matches!(at, At::Decode { tokens: told } if told >= tokens)
}

#[test]
fn a_leader_that_is_stopped_hands_over_and_nobody_notices() {
    let mut trio = start_patient();
    let leader = trio.leader(None);
    let (long, short) = (long(5_000), long(1_000));
    let want = [&short, &long].map(|ask| streamed::answer(trio.at(leader), ask, |_| {}));
    let (done, stopped) = (AtomicBool::new(false), trio.at(leader));
    let others = (0..COORDINATORS).filter(|idx| *idx != leader);
    let others: Vec<_> = others.map(|idx| trio.at(idx)).collect();
    let (told, calls) = std::thread::scope(|scope| {
        let ends = SetAtEnd(&done);
        let calls = scope.spawn(|| calls_of(&others, &done));
        // Whoever asks the one that goes is answered too, until another one leads.
        let direct = scope.spawn(|| {
            let body = json!({ "prompt": "Once", "max_tokens": 2 }).to_string();
            loop {
                let is_over = done.load(Ordering::Relaxed);
                match stopped.http("POST", "/v1/completions", &body) {
                    (200, _) if is_over => return false,
                    (200, _) => {}
                    (307, _) => return true,
                    refused => panic!("{refused:?}"),
                }
            }
        });
        let mut behind = None;
        let before = streamed::answer(stopped, &short, |at| {
            if behind.is_none() && is_time(at, 50) {
                stopped.signal("TERM");
                // What was there ends with it; what comes now is taken, and goes on elsewhere.
                let long = &long;
                behind = Some(scope.spawn(move || streamed::answer(stopped, long, |_| {})));
            }
        });
        let behind = behind.unwrap().join().unwrap();
        drop(ends);
        assert!(direct.join().unwrap(), "the one that was stopped leads to the end");
        ([before, behind], calls.join().unwrap())
    });
    assert_eq!(told, want);
    assert!(calls > 5, "{calls} calls");
    let next = trio.leader(Some(leader));
    assert_eq!(trio.at(next).metric("leads"), 1.0);
    assert_eq!(trio.take(leader).ended(), Some(0));
}

/// Sets it when it goes, so that no thread waits for who has panicked.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// How many calls these have answered, one after the other, all of them well, until `done`.
fn calls_of(others: &[&Running], done: &AtomicBool) -> usize {
    // One that takes its time to be read, too.
    let long = "once upon a time ".repeat(4_000);
    let bodies = ["Once", &long].map(|prompt| {
        json!({ "prompt": prompt, "max_tokens": 2, "aqueduct": { "policy": "window" } }).to_string()
    });
    let mut calls = 0;
    while !done.load(Ordering::Relaxed) {
        let (other, body) = (others[calls % others.len()], &bodies[calls % 5 / 4]);
        let (status, answer) = other.http("POST", "/v1/completions", body);
        assert_eq!(status, 200, "{answer}");
        calls += 1;
    }
    calls
}

#[test]
fn who_does_not_lead_any_more_tells_its_callers_the_rest() {
    let trio = start_patient();
    let leader = trio.leader(None);
    let ask = long(2_000);
    let want = streamed::answer(trio.at(leader), &ask, |_| {});
    for tokens in [0, 50] {
        let leader = trio.leader(None);
        let mut is_deposed = false;
        let began = Instant::now();
        let told = streamed::answer(trio.at(leader), &ask, |at| {
            if !is_deposed && is_time(at, tokens) {
                trio.at(leader).signal("STOP");
                trio.leader(Some(leader));
                trio.at(leader).signal("CONT");
                is_deposed = true;
            }
        });
        assert_eq!(told, want, "after {tokens} tokens, in {:?}", began.elapsed());
    }
}

/// Streamed by way of `member`, as it is told: every event's data but for what differs from run to
/// run.
fn events(member: &Running, path: &str, body: &Value) -> Vec<Value> {
    let told = member.http_head("POST", path, &body.to_string());
    assert!(told.starts_with("HTTP/1.1 200"), "{told}");
    assert!(!told.contains("\n: at "), "what members are told is for no caller: {told}");
    let data = told.lines().filter_map(|line| line.strip_prefix("data: "));
    data.map(|data| {
        let mut event: Value = serde_json::from_str(data).unwrap();
        for place in ["", "/response", "/message", "/item"] {
            let fields = event.pointer_mut(place).and_then(Value::as_object_mut);
            fields.into_iter().for_each(forget);
        }
        let output = event["response"]["output"].as_array_mut();
        output.into_iter().flatten().filter_map(Value::as_object_mut).for_each(forget);
        event
    })
    .collect()
}

/// Drops what differs from run to run.
fn forget(fields: &mut Map<String, Value>) {
    for field in ["id", "item_id", "created_at", "aqueduct", "usage"] {
        fields.remove(field);
    }
}

/// What a plain client may ask, none of which it could come back to.
fn plain() -> [Value; 5] {
    let stream = long(1_500);
    let mut whole = stream.clone();
    for field in ["stream", "return_progress"] {
        whole.as_object_mut().unwrap().remove(field);
    }
    let mut several = whole.clone();
    several["prompt"] = json!([stream["prompt"], "Once"]);
    several["max_tokens"] = json!(400);
    let response = json!({
        "input": stream["prompt"], "max_output_tokens": 600, "temperature": 0.9, "seed": 11,
        "ignore_eos": true, "stream": true, "aqueduct": stream["aqueduct"],
    });
    let messages = json!([{ "role": "user", "content": stream["prompt"] }]);
    let message = json!({
        "messages": messages, "max_tokens": 600, "temperature": 0.9, "seed": 11,
        "ignore_eos": true, "stream": true, "aqueduct": stream["aqueduct"],
    });
    [stream, whole, several, response, message]
}

fn choices(member: &Running, body: &Value) -> Value {
    let (status, answer) = member.http("POST", "/v1/completions", &body.to_string());
    assert_eq!(status, 200, "{answer}");
    serde_json::from_str::<Value>(&answer).unwrap()["choices"].take()
}

#[test]
fn who_came_by_another_member_does_not_notice_that_the_leader_is_lost() {
    let mut trio = start(2);
    let [stream, whole, several, response, message] = plain();
    let answers = |member: &Running| {
        [
            choices(member, &whole),
            choices(member, &several),
            events(member, "/v1/responses", &response).into(),
            events(member, "/v1/messages", &message).into(),
        ]
    };
    let first = trio.leader(None);
    let want = (streamed::answer(trio.at(first), &stream, |_| {}), answers(trio.at(first)));
    for events in &want.1[2..] {
        assert!(events.as_array().unwrap().len() > 300, "{events}");
    }
    for (after, signal) in [(None, "KILL"), (Some(50), "KILL"), (Some(50), "STOP")] {
        let leader = trio.leader(None);
        let members = [1, 2].map(|step| (leader + step) % COORDINATORS);
        members.iter().for_each(|member| trio.follows(*member, leader));
        let (lost, members) = (trio.at(leader), members.map(|member| trio.at(member)));
        std::thread::scope(|scope| {
            // One of them leads next, and the other does not.
            let others = members.map(|member| scope.spawn(move || answers(member)));
            let mut is_lost = false;
            let told = streamed::answer(members[0], &stream, |at| {
                let is_time = match (after, at) {
                    (None, At::Prefill { .. }) => true,
                    (Some(tokens), at) => is_time(at, tokens),
                    _ => false,
                };
                if is_time && !is_lost {
                    lost.signal(signal);
                    is_lost = true;
                }
            });
            assert!(is_lost, "{after:?} {signal}: it never came to that");
            assert!(told == want.0, "{after:?} {signal}: a stream differs");
            for other in others {
                let told = other.join().unwrap();
                assert!(told == want.1, "{after:?} {signal}: {told:?}");
            }
        });
        trio.kill(leader);
        let next = trio.leader(Some(leader));
        trio.start_again(leader);
        trio.follows(leader, next);
    }
}
