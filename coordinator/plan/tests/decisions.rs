//! The plan's decisions, written as a script: one event a line in, commands out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use aqueduct_core::work::{Base, FailureKind, NextHop, Peer};
use aqueduct_core::{ChunkGrid, ChunkKey, Epoch, RequestId, SnapshotKey, WorkerId};
use aqueduct_plan::{Command, End, Event, Job, Limits, Plan, Sharded, Shards, Windowed};

const LIMITS: Limits = Limits {
    batch_tokens: 20,
    batch_chunks: 100,
    queued_requests: 1,
    queued_tokens: 1000,
    running_requests: 8,
    page_tokens: 1,
    retries: 2,
    grace_ms: 0,
    hedge_after_ms: None,
};
const CHUNK_TOKENS: u32 = 10;

fn number(word: &str) -> u32 {
    word.trim_start_matches(|letter: char| !letter.is_ascii_digit()).parse().unwrap()
}

fn key(request: &str, chunk: &str, epoch: &str) -> ChunkKey {
    let request = RequestId(number(request).into());
    ChunkKey { request, chunk_idx: number(chunk), epoch: Epoch(number(epoch)) }
}

/// Names `first`, `first + 1` and so on.
fn names(first: u32, count: u32) -> Vec<SnapshotKey> {
    (first..first + count).map(|name| SnapshotKey([name as u8; 32])).collect()
}

/// `up w0` (with `pool 20` tokens), `down w0`, `submit r1 35` (tokens; with `choices 2`, `by 500`
/// ms; with `prio 51`, 50 more than it is, `at 7` ms; with `prefix 5` its chunks make snapshots
/// 5, 6 and so on; with `session 5` it goes on behind the 25 tokens of that one; with `keep 0`,
/// `prune 0` keys stay in shards, and so many are generated, with `gather` at a home that has all
/// of them, with `mem 8`, `state 30` so many tokens are in a memory set and as many bytes as of
/// so many in its states, with `all` nothing of it is given up), `done w0 r1 c0 e0`,
/// `peer w0 r1 c0 e0` and other failures, `ended w0 r1 0`, `stop r1 0`, `cancel r1`,
/// `resume r1 35` and `again r1 r2 35` (and more, as of `submit`), `kept w0 5`, `dropped w0 5`,
/// `drain w0`, `undrain w0`, `gone w0 r1` (its completions were handed over), `stays r1` and
/// `moves r1` (they cannot be, or can again), `further r1`, `tick 500`.
fn event(line: &str) -> Event {
    let words: Vec<&str> = line.split_whitespace().collect();
    let worker = || WorkerId(number(words[1]));
    let request = |idx: usize| RequestId(number(words[idx]).into());
    let named =
        |name: &str| words.iter().position(|word| *word == name).map(|at| number(words[at + 1]));
    let sharded = |name: &str, pruned| {
        let gathers = words.contains(&"gather");
        let windowed = Windowed::default();
        let of = |tokens: u32| Sharded { output_tokens: tokens.into(), pruned, gathers, windowed };
        named(name).map(of)
    };
    let failed = |kind| {
        let (worker, key) = (worker(), key(words[2], words[3], words[4]));
        Event::ChunkFailed { worker, key, kind, message: "so it is".into() }
    };
    let job = |tokens: &str| Job {
        grid: match named("session").map(|_| 25) {
            None => ChunkGrid::new(number(tokens), CHUNK_TOKENS).unwrap(),
            Some(known) => ChunkGrid::after(known, known + number(tokens), CHUNK_TOKENS).unwrap(),
        },
        choices: named("choices").unwrap_or(1),
        sharded: sharded("keep", false).or(sharded("prune", true)),
        memory_tokens: named("mem").unwrap_or(0).into(),
        state_tokens: named("state").unwrap_or(0).into(),
        keeps_all: words.contains(&"all"),
        priority: named("prio").map_or(0, |steps| steps as i32 - 50),
        arrived_at_ms: named("at").unwrap_or(0).into(),
        prefix: named("prefix")
            .or(named("session"))
            .map_or(Vec::new(), |first| names(first, 9))
            .into(),
        resumes: named("session").is_some(),
        deadline_at_ms: named("by").unwrap_or(1000).into(),
    };
    match words[0] {
        "up" => Event::WorkerUp {
            worker: worker(),
            peer: Peer(words[1].into()),
            pool_tokens: named("pool").map_or(u64::MAX, u64::from),
            draining: words.contains(&"draining"),
            kept: named("kept").map_or(Vec::new(), |first| names(first, 1)),
        },
        "drain" => Event::Drain { worker: worker(), draining: true },
        "undrain" => Event::Drain { worker: worker(), draining: false },
        "down" => Event::WorkerDown { worker: worker() },
        "kept" => Event::Snapshots {
            worker: worker(),
            kept: names(number(words[2]), 1),
            dropped: Vec::new(),
        },
        "dropped" => Event::Snapshots {
            worker: worker(),
            kept: Vec::new(),
            dropped: names(number(words[2]), 1),
        },
        "submit" => Event::Submit { request: request(1), job: job(words[2]) },
        "resume" => Event::Resume { request: request(1), job: job(words[2]) },
        "again" => Event::Again { request: request(1), anew: request(2), job: job(words[3]) },
        "done" => Event::ChunkDone {
            worker: worker(),
            key: key(words[2], words[3], words[4]),
            busy_us: named("took").unwrap_or(0).into(),
        },
        "peer" => failed(FailureKind::Peer),
        "late" => failed(FailureKind::Deadline),
        "invalid" => failed(FailureKind::Invalid),
        "exhausted" => failed(FailureKind::Exhausted),
        "ended" => Event::ChoiceDone {
            worker: worker(),
            request: request(2),
            choice: number(words[3]),
            eos: true,
        },
        "broken" | "lost" => Event::DecodeFailed {
            worker: worker(),
            request: request(2),
            kind: if words[0] == "lost" { FailureKind::Peer } else { FailureKind::Internal },
            message: "so it is".into(),
        },
        "gone" => Event::HandedOver { worker: worker(), request: request(2) },
        "further" => Event::CameFurther { request: request(1) },
        "stays" | "moves" => Event::Stays { request: request(1), stays: words[0] == "stays" },
        "stop" => Event::StopChoice { request: request(1), choice: number(words[2]) },
        "cancel" => Event::Cancel { request: request(1) },
        "tick" => Event::Tick { now_ms: number(words[1]).into() },
        _ => panic!("no such event: {line}"),
    }
}

fn short(request: RequestId) -> String {
    format!("r{}", request.0)
}

fn hop(next: &NextHop) -> String {
    format!("{} {}", next.peer, next.epoch)
}

/// `after` and the holder and epoch of each chunk before.
fn before(shards: &Shards) -> String {
    let shard =
        |(holder, epoch): &(u32, Epoch)| format!(" {}{epoch}", shards.holders[*holder as usize]);
    format!("after{}", shards.chunks.iter().map(shard).collect::<String>())
}

fn shown(command: Command) -> String {
    match command {
        Command::Assign { worker, key, next, shards, is_hedge, .. } => {
            let next = match shards {
                Some(shards) => before(&shards),
                None => format!("-> {}", next.map_or("home".into(), |next| hop(&next))),
            };
            let ChunkKey { request, chunk_idx, epoch } = key;
            let also = if is_hedge { "also " } else { "" };
            format!("{worker}: {also}assign {} c{chunk_idx} {epoch} {next}", short(request))
        }
        Command::Restore { worker, key, snapshot, next } => {
            let ChunkKey { request, chunk_idx, epoch } = key;
            let (request, name) = (short(request), snapshot.0[0]);
            let to = next.map_or(String::new(), |next| format!(" -> {}", hop(&next)));
            format!("{worker}: restore {request} c{chunk_idx} {epoch} by {name}{to}")
        }
        Command::Redirect { worker, request, chunk_idx, next } => {
            format!("{worker}: redirect {} c{chunk_idx} -> {}", short(request), hop(&next))
        }
        Command::Confirm { worker, request, chunk_idx } => {
            format!("{worker}: confirm {} c{chunk_idx}", short(request))
        }
        Command::Drop { worker, request, chunk_idx } => {
            format!("{worker}: drop {} c{chunk_idx}", short(request))
        }
        Command::Decode { worker, request, handed_over, gathers } => {
            let from = handed_over.map_or(String::new(), |epoch| format!(" handed over {epoch}"));
            let all = if gathers { " with all shards" } else { "" };
            format!("{worker}: decode {}{from}{all}", short(request))
        }
        Command::HandOver { worker, request, next } => {
            format!("{worker}: hand over {} -> {}", short(request), hop(&next))
        }
        Command::StopChoice { worker, request, choice } => {
            format!("{worker}: stop {} {choice}", short(request))
        }
        Command::Cancel { worker, request } => format!("{worker}: cancel {}", short(request)),
        Command::Prefilled { request, chunks_retried } => {
            format!("{} prefilled, {chunks_retried} retried", short(request))
        }
        Command::ChoiceEnded { request, choice, eos } => {
            format!("{} choice {choice} ended, eos {eos}", short(request))
        }
        Command::Ended { request, end } => {
            let end = match end {
                End::Finished => "finished".into(),
                End::Cancelled => "cancelled".into(),
                End::Failed(failure) => failure.to_string(),
            };
            format!("{} {end}", short(request))
        }
    }
}

/// Runs a script: plain lines are events; lines that begin with `=` are the commands that the
/// event before them must give, all of them, in order. An event followed by none must give
/// none, unless it is set off with `..`, which skips its commands.
fn check(script: &str) {
    check_with(LIMITS, script);
}

fn check_with(limits: Limits, script: &str) {
    let mut plan = Plan::new(limits);
    let mut got: Vec<String> = Vec::new();
    let mut last = "";
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(want) = line.strip_prefix("= ") {
            assert!(!got.is_empty(), "after `{last}`: no `{want}`");
            assert_eq!(got.remove(0), want, "after `{last}`");
            continue;
        }
        assert_eq!(got, Vec::<String>::new(), "after `{last}`: unexpected");
        last = line;
        got = plan.step(event(line.trim_start_matches(".. "))).into_iter().map(shown).collect();
        if line.starts_with("..") {
            got.clear();
        }
    }
    assert_eq!(got, Vec::<String>::new(), "after `{last}`: unexpected");
}

#[test]
fn a_prompt_crosses_two_workers_and_is_decoded() {
    check(
        "up w0
         up w1
         submit r1 35 choices 2
         = w0: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> w0 e0
         done w0 r1 c0 e0
         = w0: assign r1 c2 e0 -> w1 e0
         done w1 r1 c1 e0
         = w1: assign r1 c3 e0 -> home
         done w0 r1 c2 e0
         = w0: confirm r1 c0
         done w1 r1 c3 e0
         = w1: confirm r1 c1
         = r1 prefilled, 0 retried
         = w1: decode r1
         ended w1 r1 0
         = r1 choice 0 ended, eos true
         stop r1 1
         = w1: stop r1 1
         = r1 choice 1 ended, eos false
         = w0: cancel r1
         = w1: cancel r1
         = r1 finished
         ended w1 r1 1",
    );
}

#[test]
fn a_prefill_alone_ends_with_its_last_chunk() {
    check(
        "up w0
         submit r1 1 choices 0
         = w0: assign r1 c0 e0 -> home
         done w0 r1 c0 e0
         = r1 prefilled, 0 retried
         = w0: cancel r1
         = r1 finished",
    );
}

#[test]
fn requests_take_turns_chunk_by_chunk_and_short_ones_spread() {
    check(
        "up w0
         up w1
         submit r1 55
         = w0: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> w0 e0
         submit r2 5
         = w0: assign r2 c0 e0 -> home
         submit r3 25
         = w1: assign r3 c0 e0 -> w0 e0
         = w0: assign r3 c1 e0 -> w1 e0
         submit r4 5
         done w0 r1 c0 e0
         = w0: assign r1 c2 e0 -> w1 e0
         done w0 r2 c0 e0
         = r2 prefilled, 0 retried
         = w0: decode r2
         done w1 r1 c1 e0
         = w1: assign r1 c3 e0 -> w0 e0
         done w1 r3 c0 e0
         = w1: assign r3 c2 e0 -> home
         = w0: assign r4 c0 e0 -> home",
    );
}

/// A chunk of r1 takes 200 ms, and so one of r2 is expected to: two are enough for a worker. What
/// was slow is not for long, once a chunk of it is not.
#[test]
fn a_worker_has_no_more_ahead_than_takes_a_quarter_of_a_second() {
    let limits = Limits { batch_tokens: 4 * 256, ..LIMITS };
    check_with(
        limits,
        "up w0
         submit r1 95
         = w0: assign r1 c0 e0 -> w0 e0
         = w0: assign r1 c1 e0 -> w0 e0
         = w0: assign r1 c2 e0 -> w0 e0
         = w0: assign r1 c3 e0 -> w0 e0
         done w0 r1 c0 e0 took 200000
         done w0 r1 c1 e0 took 200000
         submit r2 25
         done w0 r1 c2 e0 took 200000
         = w0: confirm r1 c0
         = w0: assign r1 c4 e0 -> w0 e0
         done w0 r1 c3 e0 took 200000
         = w0: confirm r1 c1
         = w0: assign r2 c0 e0 -> w0 e0
         done w0 r1 c4 e0 took 10000
         = w0: confirm r1 c2
         = w0: assign r1 c5 e0 -> w0 e0
         = w0: assign r2 c1 e0 -> w0 e0",
    );
}

/// Of one token each, and there is room in flight for a hundred.
#[test]
fn small_chunks_of_one_request_leave_room_in_flight() {
    let in_flight = |batch_tokens, batch_chunks, workers| {
        let mut plan = Plan::new(Limits { batch_tokens, batch_chunks, ..LIMITS });
        for worker in 0..workers {
            plan.step(event(&format!("up w{worker}")));
        }
        plan.step(event("submit r1 10000")).len()
    };
    assert_eq!(in_flight(4096, 100, 1), 16);
    assert_eq!(in_flight(4096, 100, 12), 24);
    assert_eq!(in_flight(4096, 100, 90), 75);
    assert_eq!(in_flight(4096, 16, 1), 12);
    assert_eq!(in_flight(256, 100, 1), 2);
    assert_eq!(in_flight(10, 100, 3), 1);
}

#[test]
fn a_full_queue_refuses_what_would_not_begin_at_once() {
    let limits = Limits { running_requests: 1, ..LIMITS };
    check_with(
        limits,
        "up w0
         .. submit r1 35
         submit r2 5
         submit r3 5
         = r3 1 requests are waiting, the most allowed
         cancel r1
         = w0: cancel r1
         = r1 cancelled
         = w0: assign r2 c0 e0 -> home
         submit r4 5",
    );
}

#[test]
fn a_queue_is_full_by_tokens_but_one_may_wait_however_long() {
    let limits = Limits { running_requests: 1, queued_requests: 9, queued_tokens: 20, ..LIMITS };
    check_with(
        limits,
        "up w0
         .. submit r1 5
         submit r2 900
         submit r3 1
         = r3 prompts of 900 tokens are waiting: with prompt_tokens = 1 they must be at most 20
         cancel r2
         = r2 cancelled
         submit r4 15
         submit r5 5
         submit r6 1
         = r6 prompts of 20 tokens are waiting: with prompt_tokens = 1 they must be at most 20",
    );
}

#[test]
fn requests_begin_by_priority_but_waiting_counts() {
    let limits = Limits { running_requests: 1, queued_requests: 9, ..LIMITS };
    check_with(
        limits,
        "up w0
         .. submit r1 5 choices 0
         submit r2 5 choices 0 at 0 prio 52
         submit r3 5 choices 0 at 1
         submit r4 5 choices 0 at 2 prio 49
         submit r5 5 choices 0 at 20001
         .. done w0 r1 c0 e0
         done w0 r4 c0 e0
         = r4 prefilled, 0 retried
         = w0: cancel r4
         = r4 finished
         = w0: assign r3 c0 e0 -> home
         done w0 r3 c0 e0
         = r3 prefilled, 0 retried
         = w0: cancel r3
         = r3 finished
         = w0: assign r2 c0 e0 -> home",
    );
}

#[test]
fn what_needs_no_room_goes_past_what_waits_for_it() {
    let limits = Limits { queued_requests: 2, ..LIMITS };
    check_with(
        limits,
        "up w0 pool 20
         submit r1 15 keep 0
         = w0: assign r1 c0 e0 after
         = w0: assign r1 c1 e0 after w0e0
         submit r2 15 keep 0
         submit r3 15 keep 0
         submit r4 5
         = w0: assign r4 c0 e0 -> home
         cancel r1
         = w0: cancel r1
         = r1 cancelled
         = w0: assign r2 c0 e0 after
         = w0: assign r2 c1 e0 after w0e0",
    );
}

#[test]
fn a_lost_worker_costs_its_chunk_alone() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 45
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         down w2
         = w1: redirect r1 c2 -> w1 e1
         = w1: assign r1 c2 e1 -> w0 e0
         done w2 r1 c2 e0
         done w1 r1 c2 e0
         done w1 r1 c2 e1
         = w1: assign r1 c4 e0 -> home
         done w0 r1 c3 e0
         = w0: confirm r1 c0
         = w1: confirm r1 c1",
    );
}

/// For each hop that the last of `lines` is answered with: the chunk that receives, and chunk,
/// epoch and end of what its worker has given.
fn bases(lines: &[&str]) -> Vec<String> {
    let mut plan = Plan::new(Limits { batch_tokens: 5 * 256, ..LIMITS });
    let mut commands = Vec::new();
    for line in lines {
        commands = plan.step(event(line));
    }
    let hop = |command| match command {
        Command::Assign { key, next, .. } => Some((key.chunk_idx + 1, next?)),
        Command::Redirect { chunk_idx, next, .. } => Some((chunk_idx, next)),
        _ => None,
    };
    let base = |(chunk_idx, next): (u32, NextHop)| match next.base {
        None => format!("c{chunk_idx}"),
        Some(Base { chunk_idx: given, epoch, end }) => {
            format!("c{chunk_idx} on c{given} {epoch} to {end}")
        }
    };
    commands.into_iter().filter_map(hop).map(base).collect()
}

#[test]
fn a_hop_names_the_newest_memory_that_its_worker_has_given() {
    let alone = bases(&["up w0", "submit r1 35"]);
    assert_eq!(alone, ["c1 on c0 e0 to 10", "c2 on c1 e0 to 20", "c3 on c2 e0 to 30"]);
    let three = ["up w0", "up w1", "up w2", "submit r1 45"];
    assert_eq!(bases(&three), ["c1", "c2", "c3 on c0 e0 to 10", "c4 on c1 e0 to 20"]);
    // Chunk 2 is done again at w1, which has given chunk 1's; for w0 nothing has changed.
    let moved = bases(&[&three[..], &["done w0 r1 c0 e0", "down w2"]].concat());
    assert_eq!(moved, ["c2 on c1 e0 to 20", "c3 on c0 e0 to 10", "c4 on c2 e1 to 30"]);
}

#[test]
fn a_lost_memory_goes_back_to_the_one_before_it() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 45
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         down w1
         = w0: redirect r1 c1 -> w2 e1
         = w0: redirect r1 c4 -> w0 e2
         = w2: assign r1 c1 e1 -> w2 e0
         = w2: redirect r1 c2 -> w2 e3
         = w2: assign r1 c2 e3 -> w0 e0",
    );
}

#[test]
fn without_any_memory_left_it_goes_back_to_the_first_chunk() {
    check(
        "up w0
         .. submit r1 35
         .. done w0 r1 c0 e0
         .. done w0 r1 c1 e0
         up w1
         down w0
         = w1: assign r1 c0 e1 -> w1 e2
         = w1: assign r1 c1 e2 -> w1 e3",
    );
}

#[test]
fn what_stands_before_a_moved_chunk_and_is_later_lines_up_behind_it() {
    check(
        "up w0
         up w1
         submit r1 15
         = w0: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> home
         submit r2 15
         = w0: assign r2 c0 e0 -> w1 e0
         = w1: assign r2 c1 e0 -> home
         peer w0 r1 c0 e0
         = w1: assign r1 c0 e1 -> w1 e0
         = w1: redirect r1 c1 -> w1 e2
         = w1: assign r1 c1 e2 -> home
         = w0: redirect r2 c1 -> w1 e1
         = w1: assign r2 c1 e1 -> home",
    );
}

#[test]
fn a_worker_that_the_one_before_cannot_reach_is_left() {
    check(
        "up w0
         up w1
         up w2
         submit r1 25
         = w0: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> w2 e0
         peer w2 r1 c1 e0
         peer w0 r1 c1 e0
         = w1: cancel r1
         = w0: redirect r1 c1 -> w2 e1
         = w2: assign r1 c1 e1 -> w2 e0
         peer w0 r1 c1 e0
         done w1 r1 c1 e0",
    );
}

#[test]
fn who_was_lost_and_so_not_reached_is_given_chunks_when_it_comes_back() {
    check_with(
        Limits { grace_ms: 100, ..LIMITS },
        "up w0 pool 0
         up w1
         up w2
         submit r1 15 mem 1 choices 0
         = w1: assign r1 c0 e0 -> w2 e0
         = w2: assign r1 c1 e0 -> home
         drain w1
         down w2
         peer w1 r1 c1 e0
         up w2
         = w1: redirect r1 c1 -> w2 e1
         = w2: assign r1 c1 e1 -> home",
    );
}

#[test]
fn a_worker_that_has_only_been_given_memory_is_told_to_forget() {
    check(
        "up w0
         up w1
         up w2
         up w3
         submit r1 45
         = w0: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> w2 e0
         cancel r1
         = w0: cancel r1
         = w1: cancel r1
         = w2: cancel r1
         = r1 cancelled",
    );
}

#[test]
fn failures_are_told_apart() {
    let started = "up w0\n up w1\n .. submit r1 15\n";
    let cancelled = "= w0: cancel r1\n = w1: cancel r1\n";
    let ends = |event: &str, how: &str| {
        check(&format!("{started}{event}\n{cancelled}= r1 {how}\n tick 2000"));
    };
    ends("invalid w0 r1 c0 e0", "so it is");
    ends("exhausted w0 r1 c0 e0", "so it is");
    ends("cancel r1", "cancelled");
    ends("tick 1000", "the deadline passed");
    check(&format!("{started}invalid w1 r1 c0 e0\n invalid w0 r1 c0 e1\n tick 999"));
    ends(".. done w0 r1 c0 e0\n .. done w1 r1 c1 e0\n broken w0 r1\n broken w1 r1", "so it is");
}

#[test]
fn retries_are_bounded() {
    check(
        "up w0
         submit r1 5
         = w0: assign r1 c0 e0 -> home
         peer w0 r1 c0 e0
         = w0: assign r1 c0 e1 -> home
         late w0 r1 c0 e1
         = w0: assign r1 c0 e2 -> home
         peer w0 r1 c0 e2
         = w0: cancel r1
         = r1 unavailable: given up after 3 failures, the last: so it is",
    );
}

#[test]
fn failures_count_until_something_new_is_done() {
    // Two are survived, and none of what is done for the first time behind them counts them.
    let twice = "peer w0 r1 c0 e0
         = w0: assign r1 c0 e1 -> home
         peer w0 r1 c0 e1
         = w0: assign r1 c0 e2 -> home";
    check(&format!(
        "up w0
         submit r1 5
         = w0: assign r1 c0 e0 -> home
         {twice}
         done w0 r1 c0 e2
         = r1 prefilled, 2 retried
         = w0: decode r1
         lost w0 r1
         = w0: assign r1 c0 e3 -> home
         done w0 r1 c0 e3
         = w0: decode r1
         lost w0 r1
         = w0: assign r1 c0 e4 -> home
         done w0 r1 c0 e4
         = w0: decode r1
         further r1
         lost w0 r1
         = w0: assign r1 c0 e5 -> home
         peer w0 r1 c0 e5
         = w0: assign r1 c0 e6 -> home
         peer w0 r1 c0 e6
         = w0: cancel r1
         = r1 unavailable: given up after 3 failures, the last: so it is",
    ));
}

#[test]
fn workers_that_are_lost_together_are_one_failure() {
    check(
        "up w0
         up w1
         submit r1 5
         = w0: assign r1 c0 e0 -> home
         down w0
         = w1: assign r1 c0 e1 -> home
         up w0
         down w1
         = w0: assign r1 c0 e2 -> home
         up w1
         tick 100
         down w0
         = w1: assign r1 c0 e3 -> home
         up w0
         tick 101
         down w1
         = w0: assign r1 c0 e4 -> home
         up w1
         tick 202
         down w0
         = w1: cancel r1
         = r1 unavailable: given up after 3 failures, the last: a worker was lost",
    );
}

#[test]
fn without_workers_nothing_is_left_waiting() {
    check(
        "submit r1 5
         = r1 unavailable: no worker is up
         up w0
         .. submit r2 35
         submit r3 5
         down w0
         = r2 unavailable: no worker is up
         = r3 unavailable: no worker is up
         down w0
         up w0
         submit r4 5
         = w0: assign r4 c0 e0 -> home",
    );
}

#[test]
fn a_lost_home_costs_its_last_chunk_alone() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 25 choices 3
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         done w2 r1 c2 e0
         = w0: confirm r1 c0
         = r1 prefilled, 0 retried
         = w2: decode r1
         ended w2 r1 2
         = r1 choice 2 ended, eos true
         down w2
         = w1: redirect r1 c2 -> w0 e1
         = w0: assign r1 c2 e1 -> home
         ended w2 r1 0
         stop r1 1
         = r1 choice 1 ended, eos false
         done w0 r1 c2 e1
         = w0: decode r1
         ended w2 r1 0
         ended w0 r1 0
         = r1 choice 0 ended, eos true
         = w0: cancel r1
         = w1: cancel r1
         = r1 finished",
    );
}

#[test]
fn a_lost_home_is_made_from_the_beginning_if_nobody_has_its_memory() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 25
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         down w1
         down w2
         = w0: assign r1 c0 e1 -> w0 e2
         = w0: assign r1 c1 e2 -> w0 e3",
    );
}

#[test]
fn a_loss_costs_commands_in_proportion_to_what_is_in_flight() {
    let in_flight = 64;
    let limits = Limits { batch_tokens: in_flight * 256, ..LIMITS };
    let mut plan = Plan::new(limits);
    for line in ["up w0", "up w1", "up w2", "submit r1 10000"] {
        plan.step(event(line));
    }
    for line in ["down w0", "down w1"] {
        let commands = plan.step(event(line));
        let most = 5 * in_flight as usize;
        assert!(commands.len() <= most, "{line}: {} commands", commands.len());
    }
}

/// Of three chunks that are to be done again no more than two may be in flight, and both workers
/// that are left wait for them. So these wait no longer; what is new has its turn.
#[test]
fn what_waits_for_too_much_that_is_done_again_is_taken_back() {
    check(
        "up w0
         up w1
         up w2
         up w3
         up w4
         .. submit r1 45
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         submit r2 15
         = w0: assign r2 c0 e0 -> w1 e0
         = w1: assign r2 c1 e0 -> home
         down w0
         = w4: assign r2 c0 e1 -> w1 e0
         down w1
         = w4: redirect r2 c1 -> w4 e2
         = w4: assign r2 c1 e2 -> home
         down w2
         = w3: drop r1 c3
         = w4: drop r1 c4
         = w4: assign r1 c0 e1 -> w3 e2
         = w3: assign r1 c1 e2 -> w4 e3
         done w3 r1 c3 e0
         done w4 r1 c0 e1
         = w4: assign r1 c2 e3 -> w3 e4
         done w3 r1 c1 e2
         = w3: assign r1 c3 e4 -> w4 e5",
    );
}

#[test]
fn what_begins_anew_takes_its_turn_in_what_may_be_in_flight() {
    let limits = Limits { batch_tokens: 64 * 256, batch_chunks: 8, ..LIMITS };
    let mut plan = Plan::new(limits);
    for line in ["up w0", "up w1", "submit r1 10000 prune 0", "done w0 r1 c0 e0"] {
        plan.step(event(line));
    }
    let commands = plan.step(event("down w1"));
    let drops = commands.iter().filter(|command| matches!(command, Command::Drop { .. }));
    let assigned = commands.iter().filter(|command| matches!(command, Command::Assign { .. }));
    assert_eq!((drops.count(), assigned.count(), commands.len()), (3, 6, 9));
}

#[test]
fn keys_that_stay_are_found_by_later_chunks() {
    check(
        "up w0
         up w1
         submit r1 35 keep 5
         = w0: assign r1 c0 e0 after
         = w1: assign r1 c1 e0 after w0e0
         done w1 r1 c1 e0
         = w0: assign r1 c2 e0 after w0e0 w1e0
         done w0 r1 c0 e0
         = w1: assign r1 c3 e0 after w0e0 w1e0 w0e0
         done w0 r1 c2 e0
         done w1 r1 c3 e0
         = r1 prefilled, 0 retried
         = w1: decode r1
         ended w1 r1 0
         = r1 choice 0 ended, eos true
         = w0: cancel r1
         = w1: cancel r1
         = r1 finished",
    );
}

#[test]
fn a_lost_shard_is_made_again_for_what_still_needs_it() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 55 keep 0
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         down w1
         = w0: drop r1 c3
         = w0: assign r1 c1 e4 after w0e0
         = w0: assign r1 c3 e2 after w0e0 w0e4 w2e0
         done w0 r1 c3 e0
         done w0 r1 c1 e4
         = w2: assign r1 c4 e5 after w0e0 w0e4 w2e0 w0e2",
    );
}

#[test]
fn shards_that_were_pruned_are_all_made_again() {
    check(
        "up w0
         up w1
         .. submit r1 35 prune 0
         .. done w0 r1 c0 e0
         peer w1 r1 c1 e0
         = w1: drop r1 c1
         = w0: drop r1 c2
         = w0: assign r1 c0 e1 after
         = w0: assign r1 c1 e4 after w0e1
         done w0 r1 c0 e1
         = w0: assign r1 c2 e3 after w0e1 w0e4",
    );
}

#[test]
fn a_shard_that_is_made_again_elsewhere_is_dropped_where_it_was() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 55 prune 0
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         peer w0 r1 c3 e0
         = w0: drop r1 c3
         = w1: drop r1 c4
         = w0: assign r1 c0 e1 after
         = w1: assign r1 c1 e2 after w0e1
         drain w2
         done w0 r1 c0 e1
         = w2: drop r1 c2
         = w1: assign r1 c2 e7 after w0e1 w1e2",
    );
}

#[test]
fn requests_behind_a_shard_that_is_made_again_begin_anew_too() {
    check(
        "up w0
         up w1
         .. submit r1 15
         submit r2 15 keep 0
         = w0: assign r2 c0 e0 after
         = w1: assign r2 c1 e0 after w0e0
         peer w0 r1 c0 e0
         = w1: assign r1 c0 e1 -> w1 e0
         = w1: redirect r1 c1 -> w1 e2
         = w1: assign r1 c1 e2 -> home
         = w1: drop r2 c1
         = w1: assign r2 c1 e1 after w0e0",
    );
}

#[test]
fn room_for_keys_is_looked_for_on_every_worker() {
    check(
        "up w0 pool 10
         up w1 pool 32
         submit r1 35 keep 8
         = r1 prompt_tokens = 35: must be at most 34, what the pools of 2 workers (42 tokens) \
             hold beside 8 tokens to generate
         submit r1 34 keep 8
         = w0: assign r1 c0 e0 after
         = w1: assign r1 c1 e0 after w0e0
         submit r2 5 keep 0
         submit r3 15 keep 0
         = r3 1 requests are waiting, the most allowed
         done w0 r1 c0 e0
         = w1: assign r1 c2 e0 after w0e0 w1e0
         done w1 r1 c1 e0
         = w1: assign r1 c3 e0 after w0e0 w1e0 w1e0
         done w1 r1 c2 e0
         done w1 r1 c3 e0
         = r1 prefilled, 0 retried
         = w1: decode r1
         up w2 pool 10
         = w2: assign r2 c0 e0 after
         cancel r1
         = w0: cancel r1
         = w1: cancel r1
         = r1 cancelled",
    );
}

#[test]
fn shards_come_to_a_home_that_has_room_and_no_other_request_is_given_it() {
    check(
        "up w0 pool 10
         up w1 pool 25
         .. submit r1 15 keep 0 gather
         .. done w0 r1 c0 e0
         done w1 r1 c1 e0
         = r1 prefilled, 0 retried
         = w1: decode r1 with all shards
         submit r2 15 keep 0 gather
         cancel r1
         = w0: cancel r1
         = w1: cancel r1
         = r1 cancelled
         = w0: assign r2 c0 e0 after
         = w1: assign r2 c1 e0 after w0e0
         submit r3 15 keep 0
         = w1: assign r3 c0 e0 after
         = w1: assign r3 c1 e0 after w1e0
         done w0 r2 c0 e0
         done w1 r2 c1 e0
         = r2 prefilled, 0 retried
         = w1: decode r2",
    );
}

#[test]
fn a_loss_that_leaves_no_room_ends_what_needs_it() {
    check(
        "up w0 pool 20
         up w1 pool 20
         .. submit r1 40 keep 0
         .. submit r2 30 keep 0
         down w1
         = w0: cancel r1
         = r1 unavailable: the other workers have no room for the keys: a worker was lost
         = r2 unavailable: prompt_tokens = 30: must be at most 20, what the pools of 1 worker \
             (20 tokens) hold",
    );
}

#[test]
fn a_lost_holder_has_its_chunk_and_the_last_one_done_again() {
    check(
        "up w0
         up w1
         .. submit r1 15 keep 1
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         down w0
         = w1: drop r1 c1
         = w1: assign r1 c0 e3 after
         = w1: assign r1 c1 e2 after w1e3
         .. done w1 r1 c0 e3
         done w1 r1 c1 e2
         = w1: decode r1
         lost w1 r1
         = w1: drop r1 c1
         = w1: assign r1 c1 e5 after w1e3",
    );
}

#[test]
fn what_nobody_can_take_over_waits_for_a_worker_to_come() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    check_with(
        limits,
        "up w0
         .. tick 50
         .. submit r1 5
         .. done w0 r1 c0 e0
         .. submit r2 15
         .. submit r3 5
         down w0
         tick 149
         up w1
         = w1: assign r1 c0 e1 -> home
         = w1: assign r2 c0 e1 -> w1 e2
         = w1: assign r2 c1 e2 -> home
         tick 150
         done w1 r1 c0 e1
         = w1: decode r1
         = w1: assign r3 c0 e1 -> home
         down w1
         .. tick 249
         tick 250
         = r1 unavailable: no worker is up
         = r2 unavailable: no worker is up
         = r3 unavailable: no worker is up",
    );
}

#[test]
fn what_was_accepted_before_waits_for_workers_however_many_wait() {
    let limits = Limits { grace_ms: 100, running_requests: 1, ..LIMITS };
    check_with(
        limits,
        "up w0 pool 20
         .. tick 50
         resume r1 35 keep 0
         resume r2 15 session 5
         resume r3 5
         = w0: assign r3 c0 e0 -> home
         resume r4 5
         resume r5 5
         submit r6 5
         = r6 4 requests are waiting, the most allowed
         submit r7 15 session 5
         = r7 4 requests are waiting, the most allowed
         done w0 r3 c0 e0
         = r3 prefilled, 0 retried
         = w0: decode r3
         ended w0 r3 0
         = r3 choice 0 ended, eos true
         = w0: cancel r3
         = r3 finished
         = w0: assign r4 c0 e0 -> home
         cancel r5
         = r5 cancelled
         up w1 pool 20
         cancel r4
         = w0: cancel r4
         = r4 cancelled
         = w0: assign r1 c0 e0 after
         = w1: assign r1 c1 e0 after w0e0
         tick 149
         tick 150
         = r2 no worker has the memory of the session any more",
    );
}

#[test]
fn the_home_knows_where_the_shards_are_that_it_decodes_from() {
    check(
        "up w0
         up w1
         .. submit r1 15 keep 1
         done w1 r1 c1 e0
         down w0
         = w1: drop r1 c1
         = w1: assign r1 c0 e3 after
         = w1: assign r1 c1 e2 after w1e3
         done w1 r1 c0 e3
         done w1 r1 c1 e2
         = r1 prefilled, 2 retried
         = w1: decode r1
         cancel r1
         = w1: cancel r1
         = r1 cancelled",
    );
}

#[test]
fn what_begins_anew_is_forgotten_first_and_stands_in_front_of_a_full_queue() {
    let limits = Limits { running_requests: 1, ..LIMITS };
    check_with(
        limits,
        "up w0
         up w1
         submit r1 35
         = w0: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> w0 e0
         submit r2 5
         again r1 r9 15
         = w0: cancel r1
         = w1: cancel r1
         = r1 cancelled
         = w0: assign r9 c0 e0 -> w1 e0
         = w1: assign r9 c1 e0 -> home
         done w1 r1 c1 e0
         again r1 r10 15
         = r10 the deadline passed
         .. done w0 r9 c0 e0
         .. done w1 r9 c1 e0
         ended w1 r9 0
         = r9 choice 0 ended, eos true
         = w0: cancel r9
         = w1: cancel r9
         = r9 finished
         = w0: assign r2 c0 e0 -> home",
    );
}

#[test]
fn what_has_no_place_anew_fails() {
    check(
        "up w0 pool 10
         up w1 pool 10
         .. submit r1 35
         again r1 r2 35 keep 0
         = w0: cancel r1
         = w1: cancel r1
         = r1 cancelled
         = r2 prompt_tokens = 35: must be at most 20, what the pools of 2 workers (20 tokens) hold",
    );
}

#[test]
fn completions_have_room_for_copies_of_shards_that_are_pruned() {
    check_with(
        Limits { batch_tokens: 100, ..LIMITS },
        "up w0 pool 59
         submit r1 40 prune 0 mem 25 choices 2
         = r1 prompt_tokens = 40: must be at most 19, what the pools of 1 worker (59 tokens) hold
         .. submit r2 40 prune 0 mem 25
         submit r3 10 keep 0
         cancel r2
         = w0: cancel r2
         = r2 cancelled
         = w0: assign r3 c0 e0 after",
    );
}

#[test]
fn memory_sets_wait_for_room_and_what_never_has_any_is_refused() {
    check(
        "up w0 pool 20
         submit r1 5 mem 8 choices 0
         = w0: assign r1 c0 e0 -> home
         submit r2 5 mem 8 choices 0
         = w0: assign r2 c0 e0 -> home
         submit r3 5 mem 8 choices 0
         submit r4 5 mem 8 choices 3
         = r4 memory_tokens = 24: must be at most 20, a worker's pool: lower local or heavy, \
or bound the policy
         submit r5 60 mem 5 choices 0
         = r5 memory_tokens = 25: must be at most 20, a worker's pool: lower local or heavy, \
or bound the policy
         done w0 r1 c0 e0
         = r1 prefilled, 0 retried
         = w0: cancel r1
         = r1 finished
         = w0: assign r3 c0 e0 -> home",
    );
}

#[test]
fn no_more_chunks_are_in_flight_than_their_sets_have_room() {
    check(
        "up w0 pool 20
         up w1 pool 19
         submit r1 60 mem 4 choices 0
         = w0: assign r1 c0 e0 -> w0 e0
         done w0 r1 c0 e0
         = w0: assign r1 c1 e0 -> w0 e0",
    );
    check(
        "up w0 pool 24
         submit r1 60 mem 4 choices 0
         = w0: assign r1 c0 e0 -> w0 e0
         = w0: assign r1 c1 e0 -> w0 e0
         done w0 r1 c0 e0
         = w0: assign r1 c2 e0 -> w0 e0",
    );
}

#[test]
fn states_wait_for_room_and_only_those_of_too_many_completions_are_refused() {
    check(
        "up w0 pool 100
         submit r1 5 mem 8 state 30
         = w0: assign r1 c0 e0 -> home
         submit r2 5 mem 8 state 1000
         submit r3 5 mem 8 state 30 choices 4
         = r3 memory_tokens = 122: must be at most 100, a worker's pool, of which the states of \
each further completion take 30: ask for fewer, lower local or heavy, or bound the policy
         done w0 r1 c0 e0
         = r1 prefilled, 0 retried
         = w0: decode r1
         ended w0 r1 0
         = r1 choice 0 ended, eos true
         = w0: cancel r1
         = r1 finished
         = w0: assign r2 c0 e0 -> home",
    );
}

#[test]
fn shards_that_wait_are_passed_only_by_what_they_would_fit_beside() {
    let limits = Limits { queued_requests: 9, ..LIMITS };
    check_with(
        limits,
        "up w0 pool 20
         submit r1 5 keep 8 choices 0
         = w0: assign r1 c0 e0 after
         submit r2 9 keep 6 choices 0
         submit r3 5 mem 6 choices 0
         submit r4 5 mem 5 choices 0
         = w0: assign r4 c0 e0 -> home",
    );
}

#[test]
fn a_known_prefix_is_restored_and_only_the_rest_computed() {
    check(
        "up w0
         up w1
         kept w1 5
         kept w1 6
         kept w0 8
         submit r1 35 prefix 5
         = w1: restore r1 c1 e0 by 6 -> w0 e0
         = w0: assign r1 c2 e0 -> w1 e0
         done w1 r1 c1 e0
         = w1: assign r1 c3 e0 -> home
         done w0 r1 c2 e0
         done w1 r1 c3 e0
         = w1: confirm r1 c1
         = r1 prefilled, 0 retried
         = w1: decode r1
         .. cancel r1
         dropped w1 6
         submit r2 35 prefix 5
         = w1: restore r2 c0 e0 by 5 -> w1 e0
         = w1: assign r2 c1 e0 -> w0 e0
         down w1
         = w0: assign r2 c0 e1 -> w0 e2
         = w0: assign r2 c1 e2 -> w0 e0",
    );
}

#[test]
fn something_is_always_left_to_compute() {
    check(
        "up w0
         kept w0 5
         kept w0 6
         submit r1 20 prefix 5
         = w0: restore r1 c0 e0 by 5 -> w0 e0
         = w0: assign r1 c1 e0 -> home
         .. cancel r1
         submit r2 10 prefix 5
         = w0: assign r2 c0 e0 -> home
         .. cancel r2
         submit r3 35 prefix 5 prune 0
         = w0: assign r3 c0 e0 after
         = w0: assign r3 c1 e0 after w0e0",
    );
}

#[test]
fn what_begins_anew_when_its_time_is_over_ends() {
    check(
        "up w0
         submit r1 15 by 50
         = w0: assign r1 c0 e0 -> w0 e0
         = w0: assign r1 c1 e0 -> home
         tick 50
         = w0: cancel r1
         = r1 the deadline passed
         again r1 r2 15 by 50
         = r2 the deadline passed",
    );
}

#[test]
fn a_session_goes_on_from_a_worker_that_is_to_be_left() {
    check(
        "up w0
         up w1
         kept w1 5
         drain w1
         submit r1 5 session 5
         = w1: restore r1 c0 e0 by 5 -> w0 e0
         = w0: assign r1 c1 e0 -> home
         .. cancel r1
         submit r2 15 prefix 5
         = w0: assign r2 c0 e0 -> w0 e0
         = w0: assign r2 c1 e0 -> home",
    );
}

#[test]
fn of_shards_each_that_is_kept_is_restored_where_it_is() {
    check(
        "up w0
         up w1
         kept w1 5
         kept w1 7
         kept w0 8
         submit r1 35 prefix 5 keep 0
         = w1: restore r1 c0 e0 by 5
         = w0: assign r1 c1 e0 after w1e0
         done w1 r1 c0 e0
         = w1: restore r1 c2 e0 by 7
         done w1 r1 c2 e0
         = w1: assign r1 c3 e0 after w1e0 w0e0 w1e0
         done w0 r1 c1 e0
         done w1 r1 c3 e0
         = r1 prefilled, 0 retried
         = w1: decode r1",
    );
}

#[test]
fn a_shard_is_restored_only_where_there_is_room() {
    check(
        "up w0 pool 20
         up w1 pool 25
         kept w0 5
         kept w0 6
         kept w0 7
         submit r1 35 prefix 5 keep 0
         = w0: restore r1 c0 e0 by 5
         = w0: restore r1 c1 e0 by 6
         done w0 r1 c0 e0
         = w1: assign r1 c2 e0 after w0e0 w0e0
         done w0 r1 c1 e0
         = w1: assign r1 c3 e0 after w0e0 w0e0 w1e0",
    );
}

#[test]
fn a_shard_that_is_gone_costs_no_try_and_nothing_else() {
    check(
        "up w0
         up w1
         kept w0 5
         kept w1 6
         submit r1 35 prefix 5 keep 0
         = w0: restore r1 c0 e0 by 5
         = w1: restore r1 c1 e0 by 6
         done w1 r1 c1 e0
         = w0: assign r1 c2 e0 after w0e0 w1e0
         peer w0 r1 c0 e0
         = w0: drop r1 c0
         = w0: drop r1 c2
         = w1: assign r1 c0 e3 after
         = w0: assign r1 c2 e2 after w1e3 w1e0
         done w1 r1 c0 e3
         = w1: assign r1 c3 e0 after w1e3 w1e0 w0e2
         done w0 r1 c2 e2
         done w1 r1 c3 e0
         = r1 prefilled, 0 retried
         = w1: decode r1",
    );
}

#[test]
fn a_lost_shard_is_restored_from_whoever_has_it_too() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 35 prefix 5 keep 0
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         kept w0 5
         kept w2 6
         down w1
         = w0: drop r1 c3
         = w2: restore r1 c1 e3 by 6
         = w0: assign r1 c3 e2 after w0e0 w2e3 w2e0",
    );
}

#[test]
fn the_rest_is_done_beside_its_prefix_unless_that_is_busier() {
    check(
        "up w0
         up w1
         kept w1 5
         submit r1 15 prefix 5
         = w1: restore r1 c0 e0 by 5 -> w1 e0
         = w1: assign r1 c1 e0 -> home
         .. done w1 r1 c0 e0
         .. done w1 r1 c1 e0
         .. submit r2 5
         .. cancel r2
         submit r3 15 prefix 5
         = w1: restore r3 c0 e0 by 5 -> w0 e0
         = w0: assign r3 c1 e0 -> home
         submit r4 15 prefix 5
         = w1: restore r4 c0 e0 by 5 -> w1 e0
         = w1: assign r4 c1 e0 -> home",
    );
}

#[test]
fn a_snapshot_that_is_gone_costs_no_try() {
    check(
        "up w0
         up w1
         kept w1 6
         submit r1 35 prefix 5
         = w1: restore r1 c1 e0 by 6 -> w0 e0
         = w0: assign r1 c2 e0 -> w1 e0
         peer w1 r1 c1 e0
         = w0: assign r1 c0 e1 -> w0 e2
         = w0: assign r1 c1 e2 -> w0 e0
         = w0: redirect r1 c2 -> w0 e3
         = w0: assign r1 c2 e3 -> w1 e0
         done w0 r1 c0 e1
         done w0 r1 c1 e2
         = w1: assign r1 c3 e0 -> home
         done w0 r1 c2 e3
         = w0: confirm r1 c0
         done w1 r1 c3 e0
         = w0: confirm r1 c1
         = r1 prefilled, 0 retried
         = w1: decode r1
         .. cancel r1
         submit r2 25 prefix 5
         = w0: assign r2 c0 e0 -> w1 e0
         = w1: assign r2 c1 e0 -> w0 e0",
    );
}

#[test]
fn a_prefix_is_gone_on_from_where_there_is_room() {
    check(
        "up w0 pool 20
         up w1 pool 20
         kept w1 5
         submit r1 5 mem 1 choices 0
         = w0: assign r1 c0 e0 -> home
         submit r2 5 mem 16 choices 0
         = w1: assign r2 c0 e0 -> home
         submit r3 15 prefix 5 mem 8 choices 0
         = w1: restore r3 c0 e0 by 5 -> w0 e0
         = w0: assign r3 c1 e0 -> home",
    );
}

#[test]
fn a_session_goes_on_from_its_memory_or_not_at_all() {
    check(
        "up w0
         up w1
         submit r1 15 session 5
         = r1 no worker has the memory of the session any more
         kept w1 5
         submit r2 15 session 5
         = w1: restore r2 c0 e0 by 5 -> w1 e0
         = w1: assign r2 c1 e0 -> w0 e0
         peer w1 r2 c0 e0
         = w0: cancel r2
         = w1: cancel r2
         = r2 no worker has the memory of the session any more
         submit r3 15 session 5
         = r3 no worker has the memory of the session any more",
    );
}

#[test]
fn a_session_that_cannot_be_read_now_is_not_lost() {
    check(
        "up w0
         up w1
         kept w1 5
         .. submit r1 15 session 5
         late w1 r1 c0 e0
         = w0: cancel r1
         = w1: cancel r1
         = r1 unavailable: so it is
         .. submit r2 15 session 5
         late w1 r2 c0 e0
         = w0: cancel r2
         = w1: cancel r2
         = r2 unavailable: so it is
         dropped w1 5
         submit r3 15 session 5
         = r3 no worker has the memory of the session any more",
    );
}

#[test]
fn a_lost_turn_begins_again_from_its_session_while_that_is_there() {
    check(
        "up w0
         up w1
         up w2
         up w3 pool 1
         kept w3 5
         .. submit r1 35 session 5 mem 1
         .. done w3 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         .. down w2
         down w1
         = w0: redirect r1 c4 -> w0 e6
         = w0: drop r1 c3
         = w3: restore r1 c0 e3 by 5 -> w0 e4
         = w0: assign r1 c1 e4 -> w0 e5
         down w3
         = w0: cancel r1
         = r1 no worker has the memory of the session any more",
    );
}

#[test]
fn a_worker_that_is_drained_does_what_it_has_and_gets_nothing_new() {
    check(
        "up w0
         up w1
         up w2
         submit r1 45
         = w0: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> w2 e0
         drain w2
         = w1: redirect r1 c2 -> w1 e1
         done w0 r1 c0 e0
         = w1: assign r1 c2 e1 -> w0 e0
         submit r2 5
         = w0: assign r2 c0 e0 -> home
         drain w0
         = w1: redirect r1 c3 -> w1 e2
         done w0 r2 c0 e0
         = r2 prefilled, 0 retried
         = w0: decode r2
         = w0: hand over r2 -> w1 e1
         done w1 r1 c1 e0
         = w1: assign r1 c3 e2 -> w1 e0",
    );
}

#[test]
fn what_decodes_on_a_drained_worker_goes_elsewhere() {
    check(
        "up w0
         up w1
         up w2
         .. submit r1 25 choices 2
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         done w2 r1 c2 e0
         = w0: confirm r1 c0
         = r1 prefilled, 0 retried
         = w2: decode r1
         drain w2
         = w2: hand over r1 -> w0 e1
         drain w1
         = w1: confirm r1 c1
         ended w2 r1 1
         = r1 choice 1 ended, eos true
         gone w1 r1
         gone w2 r1
         = w0: decode r1 handed over e1
         gone w2 r1
         undrain w1
         drain w0
         = w0: hand over r1 -> w1 e2
         down w1
         = w0: drop r1 c2
         = w2: assign r1 c0 e3 -> w0 e4
         = w0: assign r1 c1 e4 -> w2 e5",
    );
}

#[test]
fn what_decodes_on_a_drained_worker_does_not_all_go_to_one() {
    check(
        "up w0
         up w1
         up w2
         up w3
         .. submit r1 25
         .. submit r2 35
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         .. done w3 r2 c0 e0
         .. done w0 r2 c1 e0
         .. done w1 r2 c2 e0
         .. done w2 r2 c3 e0
         drain w2
         = w2: hand over r1 -> w3 e1
         = w2: hand over r2 -> w0 e1",
    );
}

/// Chunks that spare bytes of a hand-off to their own workers are kept for that, one of each
/// worker, and none of the others, however far apart those of one worker lie.
#[test]
fn what_was_given_is_kept_only_as_long_as_it_is_good_for_something() {
    let mut plan = Plan::new(LIMITS);
    let lost = WorkerId(1);
    let begin = ["up w0", "up w1", "submit r1 2000"].map(str::to_owned);
    let more = (2..16).map(|worker| format!("up w{worker}"));
    let events = begin.into_iter().chain(more).chain(["down w1".to_owned()]);
    let mut commands: VecDeque<Command> = events.flat_map(|line| plan.step(event(&line))).collect();
    let (mut kept, mut most) = (BTreeMap::<WorkerId, BTreeSet<u32>>::new(), 0);
    let mut chunks = 0;
    while let Some(command) = commands.pop_front() {
        match command {
            Command::Assign { worker, key, .. } if worker != lost => {
                kept.entry(worker).or_default().insert(key.chunk_idx);
                most = most.max(kept[&worker].len());
                chunks += 1;
                let done = Event::ChunkDone { worker, key, busy_us: 0 };
                commands.extend(plan.step(done));
            }
            Command::Confirm { worker, chunk_idx, .. }
            | Command::Drop { worker, chunk_idx, .. } => {
                kept.entry(worker).or_default().remove(&chunk_idx);
            }
            _ => {}
        }
    }
    assert!(chunks >= 200, "{chunks} chunks");
    // The one it is at, one that spares bytes, and two in case of a loss.
    assert!(most <= 4, "{most} sets of one worker");
}

#[test]
fn what_does_not_arrive_is_made_again_from_what_the_last_chunk_was_given() {
    let begin = "up w0
         up w1
         up w2
         .. submit r1 15
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         drain w1
         = w1: hand over r1 -> w2 e1
         ";
    let again = "= w0: redirect r1 c1 -> w2 e2
         = w2: assign r1 c1 e2 -> home
         done w2 r1 c1 e2
         = w2: decode r1";
    check(&format!("{begin} lost w1 r1\n {again}"));
    check(&format!("{begin} down w1\n {again}"));
    check(&format!(
        "{begin} gone w1 r1\n = w2: decode r1 handed over e1\n down w2\n {}",
        "= w0: redirect r1 c1 -> w0 e2
         = w0: assign r1 c1 e2 -> home"
    ));
    check(&format!(
        "{begin} down w2\n = w1: drop r1 c1\n {}",
        "= w0: redirect r1 c1 -> w0 e2
         = w0: assign r1 c1 e2 -> home"
    ));
}

#[test]
fn who_is_drained_while_it_does_the_last_chunk_hands_over_what_comes_of_it() {
    check(
        "up w0
         up w1
         .. submit r1 5
         drain w0
         done w0 r1 c0 e0
         = r1 prefilled, 0 retried
         = w0: decode r1
         = w0: hand over r1 -> w1 e1
         gone w0 r1
         = w1: decode r1 handed over e1
         ended w1 r1 0
         = r1 choice 0 ended, eos true
         = w0: cancel r1
         = w1: cancel r1
         = r1 finished",
    );
}

#[test]
fn what_decodes_from_shards_on_a_drained_worker_ends_there() {
    check(
        "up w0
         up w1
         .. submit r1 5 keep 3
         done w0 r1 c0 e0
         = r1 prefilled, 0 retried
         = w0: decode r1
         drain w0
         ended w0 r1 0
         = r1 choice 0 ended, eos true
         = w0: cancel r1
         = r1 finished
         submit r2 5
         = w1: assign r2 c0 e0 -> home
         undrain w0
         drain w1
         submit r3 5
         = w0: assign r3 c0 e0 -> home",
    );
}

#[test]
fn what_has_come_too_far_for_another_to_be_told_ends_on_a_drained_worker() {
    check(
        "up w0
         up w1
         .. submit r1 5
         .. done w0 r1 c0 e0
         stays r2
         stays r1
         drain w0
         moves r1
         = w0: hand over r1 -> w1 e1
         stays r1
         gone w0 r1
         = w1: decode r1 handed over e1
         undrain w0
         drain w1
         down w1
         = w0: assign r1 c0 e2 -> home",
    );
}

/// Reports of tries that are over come late, and are of memory that nobody goes on from.
#[test]
fn a_report_counts_where_its_try_does() {
    let limits = Limits { hedge_after_ms: Some(40), ..LIMITS };
    let check = |limits: &Limits, script: &str, awaited: &[&str], late: &[&str]| {
        let mut plan = Plan::new(limits.clone());
        let events = script.lines().map(|line| line.trim().trim_start_matches(".. "));
        for line in events.filter(|line| !line.is_empty() && !line.starts_with('=')) {
            plan.step(event(line));
        }
        for (tries, want) in [(awaited, true), (late, false)] {
            for one in tries {
                let words: Vec<&str> = one.split(' ').collect();
                let key = key(words[1], words[2], words[3]);
                let counts = plan.awaits(WorkerId(number(words[0])), key);
                assert_eq!(counts, want, "after {script}: {one}");
            }
        }
    };
    let begin = "up w0\n up w1\n submit r1 35";
    let waiting = ["w0 r1 c2 e0", "w0 r1 c9 e0", "w1 r1 c0 e0", "w0 r2 c0 e0"];
    check(&LIMITS, begin, &["w0 r1 c0 e0", "w1 r1 c1 e0"], &waiting);
    let begin = format!("{begin}\n done w0 r1 c0 e0");
    check(&LIMITS, &begin, &["w1 r1 c1 e0", "w0 r1 c2 e0"], &["w0 r1 c0 e0"]);
    let lost = format!("{begin}\n down w1\n up w1");
    check(&LIMITS, &lost, &["w0 r1 c1 e1"], &["w1 r1 c1 e0", "w0 r1 c1 e0", "w1 r1 c1 e1"]);
    check(&LIMITS, &format!("{lost}\n cancel r1"), &[], &["w0 r1 c1 e1", "w0 r1 c2 e0"]);
    // Two are at one chunk: either counts until one has done it.
    check(&limits, SLOW, &["w1 r2 c1 e0", "w0 r2 c1 e1"], &["w0 r2 c1 e0", "w1 r2 c1 e1"]);
    // Where the past only grows, later chunks are no slower than they should be.
    let growing = SLOW.replace("submit r2 40", "submit r2 40 all");
    check(&limits, &growing, &["w1 r2 c1 e0"], &["w0 r2 c1 e1"]);
    for first in ["w1 r2 c1 e0", "w0 r2 c1 e1"] {
        let over = format!("{SLOW}\n done {first}");
        check(&limits, &over, &[], &["w1 r2 c1 e0", "w0 r2 c1 e1"]);
    }
}

#[test]
fn while_all_are_drained_what_has_begun_ends_and_nothing_begins() {
    check(
        "up w0
         submit r1 25
         = w0: assign r1 c0 e0 -> w0 e0
         = w0: assign r1 c1 e0 -> w0 e0
         drain w0
         submit r2 5
         = r2 unavailable: every worker is drained
         done w0 r1 c0 e0
         = w0: assign r1 c2 e0 -> home",
    );
}

#[test]
fn what_waits_for_a_worker_that_is_drained_waits_for_another_or_its_return() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    let waits = "up w0 pool 5
         up w1 pool 10
         submit r1 5 keep 5
         = w1: assign r1 c0 e0 after
         submit r2 8 keep 0
         drain w1";
    let ends = "done w1 r1 c0 e0
         = r1 prefilled, 0 retried
         = w1: decode r1
         ended w1 r1 0
         = r1 choice 0 ended, eos true
         = w1: cancel r1
         = r1 finished";
    let check = |then: &str| check_with(limits.clone(), &format!("{waits}\n{ends}\n{then}"));
    check("down w1\ntick 99\nup w2 pool 10\n= w2: assign r2 c0 e0 after");
    check("undrain w1\n= w1: assign r2 c0 e0 after");
    check(
        "tick 100
         = r2 unavailable: prompt_tokens = 8: must be at most 5, what the pools of 1 worker \
(5 tokens) hold",
    );
}

/// Three chunks are known to take 10 ms each; then chunk 3 of another request is at w1.
const SLOW: &str = "up w0
     up w1
     up w2
     .. submit r1 30 choices 0
     .. done w0 r1 c0 e0 took 10000
     .. done w1 r1 c1 e0 took 10000
     .. done w2 r1 c2 e0 took 900000
     submit r2 40
     = w0: assign r2 c0 e0 -> w1 e0
     = w1: assign r2 c1 e0 -> w2 e0
     tick 10
     done w0 r2 c0 e0 took 10000
     = w2: assign r2 c2 e0 -> w0 e0
     tick 49
     tick 50
     = w0: redirect r2 c1 -> w0 e1
     = w0: also assign r2 c1 e1 -> w2 e0
     ";

fn check_slow(script: &str) {
    check_with(Limits { hedge_after_ms: Some(40), ..LIMITS }, &format!("{SLOW}{script}"));
}

#[test]
fn a_slow_chunk_is_given_to_an_idle_worker_and_whoever_is_first_has_done_it() {
    check_slow(
        "tick 900
         done w0 r2 c1 e1
         = w1: drop r2 c1
         = w0: assign r2 c3 e0 -> home
         done w1 r2 c1 e0
         done w2 r2 c2 e0
         = w0: confirm r2 c0",
    );
    check_slow(
        "done w1 r2 c1 e0
         = w0: drop r2 c1
         = w0: assign r2 c3 e0 -> home
         done w0 r2 c1 e1
         done w2 r2 c2 e0",
    );
}

#[test]
fn a_slow_chunk_that_is_lost_is_the_others_alone() {
    check_slow(
        "down w1
         done w0 r2 c1 e1
         = w0: assign r2 c3 e0 -> home",
    );
    check_slow(
        "peer w1 r2 c1 e0
         = w1: drop r2 c1
         done w0 r2 c1 e1
         = w0: assign r2 c3 e0 -> home",
    );
    // Its memory went to the second, so the first may wait for ever.
    check_slow(
        "peer w0 r2 c1 e1
         = w0: drop r2 c1
         = w1: drop r2 c1
         = w0: redirect r2 c1 -> w2 e2
         = w2: assign r2 c1 e2 -> w2 e0
         = w2: redirect r2 c2 -> w2 e3
         = w2: assign r2 c2 e3 -> w0 e0",
    );
}

#[test]
fn who_only_waits_for_a_slow_chunk_does_it_first() {
    let limits = Limits { hedge_after_ms: Some(40), ..LIMITS };
    check_with(
        limits.clone(),
        "up w0
         up w1
         .. submit r1 20
         tick 900",
    );
    check_with(
        limits,
        "up w0
         up w1
         .. submit r1 40 choices 0
         .. done w0 r1 c0 e0 took 10000
         .. done w1 r1 c1 e0 took 10000
         .. done w0 r1 c2 e0 took 10000
         .. done w1 r1 c3 e0 took 10000
         submit r2 20
         = w0: assign r2 c0 e0 -> w1 e0
         = w1: assign r2 c1 e0 -> home
         tick 900
         = w1: also assign r2 c0 e1 -> w1 e0
         = w0: redirect r2 c1 -> w1 e2
         = w1: redirect r2 c1 -> w1 e2
         = w1: assign r2 c1 e2 -> home
         done w0 r2 c0 e0
         = w1: drop r2 c0",
    );
}

#[test]
fn who_cannot_reach_a_holder_again_and_again_is_left() {
    check_with(
        Limits { retries: 4, batch_tokens: 40, ..LIMITS },
        "up w0
         up w1
         up w2
         .. submit r1 50 keep 0
         .. done w0 r1 c0 e0
         .. done w1 r1 c1 e0
         .. done w2 r1 c2 e0
         .. done w0 r1 c3 e0
         peer w1 r1 c4 e0
         = w1: drop r1 c4
         = w2: assign r1 c4 e2 after w0e0 w1e0 w2e0 w0e0
         peer w2 r1 c4 e2
         = w2: drop r1 c4
         = w0: assign r1 c4 e4 after w0e0 w1e0 w2e0 w0e0
         peer w0 r1 c4 e4
         = w0: drop r1 c4
         = w2: assign r1 c4 e6 after w0e0 w1e0 w2e0 w0e0
         peer w2 r1 c4 e6
         = w2: cancel r1
         = w2: drop r1 c4
         = w0: assign r1 c2 e9 after w0e0 w1e0
         = w1: assign r1 c4 e10 after w0e0 w1e0 w0e9 w0e0",
    );
}

/// Neither of two workers has room for what the other has: what they do is tried again, at ever
/// longer intervals, as long as a lost worker would be waited for, and then as after any failure.
#[test]
fn where_nobody_else_has_room_who_cannot_reach_a_holder_tries_again_later() {
    let limits = Limits { grace_ms: 1000, ..LIMITS };
    check_with(
        limits.clone(),
        "up w0 pool 20
         up w1 pool 20
         .. submit r1 35 keep 0 by 9000
         .. done w0 r1 c0 e0
         .. peer w1 r1 c1 e0
         peer w1 r1 c1 e3
         = w1: drop r1 c1
         = w0: drop r1 c2
         tick 249
         tick 250
         = w1: assign r1 c1 e6 after w0e0
         = w0: assign r1 c2 e5 after w0e0 w1e6
         done w1 r1 c1 e6
         = w1: assign r1 c3 e0 after w0e0 w1e6 w0e5
         done w0 r1 c2 e5
         done w1 r1 c3 e0
         = r1 prefilled, 4 retried
         = w1: decode r1
         lost w1 r1
         = w1: drop r1 c3
         tick 749
         tick 750
         = w1: assign r1 c3 e8 after w0e0 w1e6 w0e5",
    );
    let mut plan = Plan::new(limits);
    for line in ["up w0 pool 20", "up w1 pool 20"] {
        plan.step(event(line));
    }
    let mut commands = VecDeque::from(plan.step(event("submit r1 40 keep 0 by 9000")));
    let (mut tries, mut now_ms, mut end) = (Vec::new(), 0, None);
    while end.is_none() {
        let next = match commands.pop_front() {
            None => {
                now_ms = plan.next_deadline_ms().unwrap();
                Some(Event::Tick { now_ms })
            }
            Some(Command::Assign { worker, key, .. }) if key.chunk_idx == 0 => {
                Some(Event::ChunkDone { worker, key, busy_us: 1 })
            }
            Some(Command::Assign { worker, key, .. }) => {
                tries.push(now_ms);
                let (kind, message) = (FailureKind::Peer, "so it is".into());
                Some(Event::ChunkFailed { worker, key, kind, message })
            }
            Some(Command::Ended { end: ended, .. }) => {
                end = Some(format!("{ended:?}"));
                None
            }
            Some(_) => None,
        };
        commands.extend(next.map(|event| plan.step(event)).into_iter().flatten());
    }
    tries.dedup();
    assert_eq!((tries, now_ms), (vec![0, 250, 750, 1000], 1000));
    assert!(end.unwrap().contains("given up after 3 failures, the last: so it is"));
}

#[test]
fn who_comes_back_with_less_room_is_given_what_fits() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    // Chunks 1 and 3 were there.
    let lost = "up w0 pool 25
         up w1 pool 20
         .. submit r1 35 keep 0 choices 0
         .. done w0 r1 c0 e0
         .. down w1";
    check_with(
        limits.clone(),
        &format!(
            "{lost}
         up w1 pool 15
         = w1: assign r1 c1 e3 after w0e0
         = w0: assign r1 c2 e2 after w0e0 w1e3"
        ),
    );
    check_with(
        limits.clone(),
        &format!(
            "{lost}
         up w1 pool 5
         tick 99
         tick 100
         = w0: cancel r1
         = w1: cancel r1
         = r1 unavailable: the other workers have no room for the keys: a worker was lost"
        ),
    );
    check_with(
        limits,
        "up w0 pool 60
         up w1 pool 60
         .. submit r1 5 mem 60
         .. submit r2 5 mem 60
         down w1
         up w1 pool 20
         tick 99
         cancel r1
         = w0: cancel r1
         = r1 cancelled
         = w0: assign r2 c0 e1 -> home",
    );
}

#[test]
fn what_has_begun_waits_for_room_as_long_as_others_may_give_it_back() {
    let limits = Limits { grace_ms: 100, queued_requests: 9, ..LIMITS };
    let lost = "up w0 pool 60
         up w1 pool 60
         .. submit r1 5 mem 60
         .. submit r2 5 mem 60
         down w1
         up w1 pool 20
         submit r3 5 mem 1
         tick 100
         tick 500";
    check_with(
        limits.clone(),
        &format!(
            "{lost}
         cancel r1
         = w0: cancel r1
         = r1 cancelled
         = w0: assign r2 c0 e1 -> home
         = w1: assign r3 c0 e0 -> home"
        ),
    );
    // Nobody would have any.
    check_with(
        limits,
        &format!(
            "{lost}
         down w0
         = w1: assign r3 c0 e0 -> home
         tick 600
         = r1 unavailable: the other workers have no room for the keys: a worker was lost
         = w1: cancel r2
         = r2 unavailable: the other workers have no room for the keys: a worker was lost"
        ),
    );
}

#[test]
fn what_begins_anew_has_no_more_in_flight_than_is_left_room_for() {
    check_with(
        Limits { grace_ms: 100, ..LIMITS },
        "up w0 pool 24
         up w1 pool 20
         submit r1 60 mem 4 choices 0
         = w0: assign r1 c0 e0 -> w0 e0
         = w0: assign r1 c1 e0 -> w0 e0
         down w0
         = w1: assign r1 c0 e1 -> w1 e2
         done w1 r1 c0 e1
         = w1: assign r1 c1 e2 -> w1 e3",
    );
}

/// Accepted is what begins, or what has a place in the queue; what is held up is neither.
#[test]
fn what_is_held_up_by_who_waits_for_room_takes_a_place_in_the_queue() {
    let limits = Limits { queued_requests: 1, ..LIMITS };
    check_with(
        limits,
        "up w0 pool 20
         submit r1 5 keep 8 choices 0
         = w0: assign r1 c0 e0 after
         submit r2 9 keep 6 choices 0
         submit r3 5 mem 6 choices 0
         = r3 1 requests are waiting, the most allowed
         submit r4 5 mem 5 choices 0
         = w0: assign r4 c0 e0 -> home
         submit r5 5 keep 1 choices 0
         = r5 1 requests are waiting, the most allowed",
    );
}

#[test]
fn what_has_no_place_anew_waits_for_who_may_come() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    check_with(
        limits,
        "up w0 pool 20
         up w1 pool 20
         .. submit r1 35
         .. down w1
         again r1 r2 35 keep 0
         = w0: cancel r1
         = r1 cancelled
         up w1 pool 20
         = w0: assign r2 c0 e0 after
         = w1: assign r2 c1 e0 after w0e0",
    );
    check_with(
        LIMITS,
        "up w0 pool 20
         up w1 pool 20
         .. submit r1 35
         .. drain w1
         again r1 r2 35 keep 0
         = w0: cancel r1
         = w1: cancel r1
         = r1 cancelled
         = r2 unavailable: prompt_tokens = 35: must be at most 20, what the pools of 1 worker \
         (20 tokens) hold",
    );
}

#[test]
fn who_comes_back_brings_its_snapshots() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    check_with(
        limits,
        "up w0 kept 5
         .. submit r1 15 session 5
         down w0
         up w0 kept 5
         = w0: restore r1 c0 e1 by 5 -> w0 e2
         = w0: assign r1 c1 e2 -> w0 e3",
    );
}

#[test]
fn who_comes_back_drained_is_given_nothing_new() {
    check(
        "up w0 draining
         up w1
         submit r1 15
         = w1: assign r1 c0 e0 -> w1 e0
         = w1: assign r1 c1 e0 -> home",
    );
}

/// What is restored is not computed.
#[test]
fn a_session_leaves_room_in_flight() {
    let limits = Limits { batch_tokens: 20, ..LIMITS };
    check_with(
        limits,
        "up w0 kept 5
         submit r1 15 session 5
         = w0: restore r1 c0 e0 by 5 -> w0 e0
         = w0: assign r1 c1 e0 -> w0 e0
         submit r2 5
         = w0: assign r2 c0 e0 -> home",
    );
}

/// What is too long for good is the caller's fault; what is too long until somebody comes is not.
#[test]
fn nothing_is_too_long_that_others_may_have_room_for() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    check_with(
        limits,
        "up w0 pool 20
         up w1 pool 20
         submit r1 45 keep 0
         = r1 prompt_tokens = 45: must be at most 40, what the pools of 2 workers (40 tokens) hold
         drain w1
         submit r2 35 keep 0
         = r2 unavailable: prompt_tokens = 35: must be at most 20, what the pools of 1 worker \
         (20 tokens) hold
         undrain w1
         down w1
         submit r3 45 keep 0
         = r3 unavailable: prompt_tokens = 45: must be at most 20, what the pools of 1 worker \
         (20 tokens) hold
         tick 100
         submit r4 35 keep 0
         = r4 unavailable: prompt_tokens = 35: must be at most 20, what the pools of 1 worker \
         (20 tokens) hold
         submit r5 45 keep 0
         = r5 prompt_tokens = 45: must be at most 20, what the pools of 1 worker (20 tokens) hold",
    );
}

/// And while they wait nothing is counted against them.
#[test]
fn chunks_without_a_worker_are_placed_before_what_is_new_begins() {
    let limits = Limits { grace_ms: 100, retries: 1, ..LIMITS };
    check_with(
        limits,
        "up w0 pool 20
         up w1 pool 20
         .. submit r1 15 keep 0
         submit r2 10 keep 0
         = w0: assign r2 c0 e0 after
         down w1
         submit r3 10 keep 0
         tick 10
         tick 20
         cancel r2
         = w0: cancel r2
         = r2 cancelled
         = w0: assign r1 c1 e2 after w0e0
         up w1 pool 20
         = w1: assign r3 c0 e0 after",
    );
}

/// A break of the network is no end of a conversation.
#[test]
fn a_turn_waits_for_who_has_its_session() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    check_with(
        limits.clone(),
        "up w0
         up w1 kept 5
         down w1
         submit r1 15 session 5
         submit r2 15 session 5
         = r2 1 requests are waiting, the most allowed
         up w1 kept 5
         = w1: restore r1 c0 e0 by 5 -> w1 e0
         = w1: assign r1 c1 e0 -> w0 e0",
    );
    check_with(
        limits,
        "up w0
         up w1 kept 5
         down w1
         submit r1 15 session 5
         submit r2 5
         = w0: assign r2 c0 e0 -> home
         tick 99
         tick 100
         = r1 no worker has the memory of the session any more
         submit r3 15 session 5
         = r3 no worker has the memory of the session any more",
    );
    // Nor is there anybody to wait for when all are back, and one has forgotten it.
    check_with(
        Limits { grace_ms: 100, queued_requests: 2, ..LIMITS },
        "up w0
         up w1 kept 5
         up w2
         down w1
         down w2
         submit r1 15 session 5
         submit r2 5
         = w0: assign r2 c0 e0 -> home
         up w1
         up w2
         = r1 no worker has the memory of the session any more",
    );
}

#[test]
fn a_turn_that_has_begun_waits_for_who_has_its_session() {
    let limits = Limits { grace_ms: 100, ..LIMITS };
    check_with(
        limits,
        "up w0
         up w1 kept 5
         submit r1 15 session 5
         = w1: restore r1 c0 e0 by 5 -> w1 e0
         = w1: assign r1 c1 e0 -> w0 e0
         down w1
         up w1 kept 5
         = w1: restore r1 c0 e1 by 5 -> w0 e2
         = w0: assign r1 c1 e2 -> w0 e0
         down w1
         = w0: drop r1 c1
         tick 99
         tick 100
         = w0: cancel r1
         = r1 no worker has the memory of the session any more",
    );
    check_with(
        Limits { grace_ms: 100, ..LIMITS },
        "up w0
         up w1 kept 5
         submit r1 15 session 5
         = w1: restore r1 c0 e0 by 5 -> w1 e0
         = w1: assign r1 c1 e0 -> w0 e0
         down w1
         up w1
         = w0: cancel r1
         = w1: cancel r1
         = r1 no worker has the memory of the session any more",
    );
}
