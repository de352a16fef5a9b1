//! Many completions in one batch: each gives what it gives alone, whoever joins, leaves or fails.

use std::sync::Arc;

use aqueduct_core::work::{Begun, Command, DecodeSpec, Event, Outputs};
use aqueduct_core::{Carry, MemoryPolicy, RequestId, Sampling, Steering, TokenId, WireDtype};
use aqueduct_kernels::KvDtype;
use aqueduct_worker::{LoopbackHub, Worker, WorkerOptions};
use tokio::sync::{Barrier, Mutex};

use crate::rig::{Answer, Carrier, Job, Member, cluster, finish, in_process, prefill};
use crate::shards::{How, assignment, in_turn};
use crate::tiny_model::tiny;

const REQUESTS: u64 = 64;

/// A request that is like no other.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) job: Job,
    /// Whether its keys stay in shards, and what travels.
    pub(crate) shards: Option<Carry>,
    pub(crate) sampling: Sampling,
    pub(crate) choices: u32,
    pub(crate) max_tokens: u32,
    /// What its completions had before.
    pub(crate) begun: Vec<Begun>,
    /// Cancelled after so many tokens.
    pub(crate) cancelled_after: Option<usize>,
    /// How long after others it comes.
    pub(crate) pause: u64,
}

/// By choice and index: token, and bits of its log probability and of the most likely ones'.
pub(crate) type Tokens = Vec<(u32, u32, TokenId, u32, Vec<(TokenId, u32)>)>;

impl Plan {
    pub(crate) fn new(idx: u64) -> Self {
        let mut random = idx.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |bound: u64| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (random >> 33) % bound
        };
        let policies = [
            (MemoryPolicy::h2o(2, 3, 3), None),
            (MemoryPolicy::dense(), Some(Carry::Queries)),
            (MemoryPolicy::window(1, 4), None),
            (MemoryPolicy::h2o(0, 4, 2), Some(Carry::Queries)),
            (MemoryPolicy::dense(), Some(Carry::Keys)),
            (MemoryPolicy::h2o(1, 2, 4), None),
        ];
        let (policy, shards) = policies[below(6) as usize];
        let prompt: Vec<TokenId> = (0..1 + below(50)).map(|_| below(61) as TokenId).collect();
        let (request, outputs) = (RequestId(idx + 1), Outputs::None);
        let wire = WireDtype::F32;
        let gathers = true;
        let job = Job { request, prompt, chunk_tokens: 8, policy, outputs, wire, gathers };
        let temperature = [0.0, 0.7, 1.3][below(3) as usize];
        let (seed, logprobs) = (below(1000), Some(below(4) as u32));
        let presence_penalty = below(3) as f32 * 0.4;
        let max_tokens = 4 + below(24) as u32;
        Self {
            job,
            shards,
            sampling: Sampling {
                seed,
                temperature,
                logprobs,
                presence_penalty,
                ..Sampling::default()
            },
            choices: 1 + below(3) as u32,
            max_tokens,
            begun: Vec::new(),
            cancelled_after: (below(5) == 0).then(|| 1 + below(u64::from(max_tokens)) as usize),
            pause: below(400),
        }
    }

    /// The same as a request of its own, to its end.
    pub(crate) fn as_another(&self) -> Self {
        let request = RequestId(self.job.request.0 + 2 * REQUESTS);
        let job = Job { request, ..self.job.clone() };
        Self { job, cancelled_after: None, pause: 0, ..self.clone() }
    }

    fn decode(&self) -> Command {
        let &Self { choices, max_tokens, sampling, .. } = self;
        let request = self.job.request;
        let (steering, prompt_vocabulary) = (Steering::default(), Vec::new());
        Command::Decode(Box::new(DecodeSpec {
            request,
            sampling,
            steering,
            prompt_vocabulary,
            choices,
            max_tokens,
            eos: vec![],
            begun: self.begun.clone(),
            constraint: None,
            keeps: false,
            trace: None,
            shows: false,
            handed_over: None,
            gathers: self.job.gathers,
        }))
    }

    async fn prefill(&self, members: &mut [Member]) {
        let Some(carry) = self.shards else {
            prefill(members, &self.job).await;
            return;
        };
        let (how, count) = (How::exact(in_turn, carry), members.len());
        for chunk in self.job.grid().chunks() {
            let work = assignment(&self.job, (chunk.idx, 0), members, how);
            members[chunk.idx as usize % count].assign(work).await;
        }
        for chunk in self.job.grid().chunks() {
            let member = &mut members[chunk.idx as usize % count];
            finish(member, self.job.key(chunk.idx, 0), &mut Answer::default()).await;
        }
    }

    /// Its tokens, once all its completions have ended or it was cancelled.
    async fn tokens(&self, home: &mut Member) -> Tokens {
        home.send(self.decode()).await;
        let ended = self.begun.iter().filter(|begun| begun.ended).count() as u32;
        let (mut tokens, mut open) = (Tokens::new(), self.choices - ended);
        while open > 0 && self.cancelled_after.is_none_or(|most| tokens.len() < most) {
            match home.event().await {
                Event::Token(token) => {
                    let top = token.top.iter().map(|top| (top.token, top.logprob.to_bits()));
                    let logprob = token.logprob.to_bits();
                    let (choice, idx) = (token.choice, token.token_idx);
                    tokens.push((choice, idx, token.token, logprob, top.collect()));
                }
                Event::ChoiceDone { .. } => open -= 1,
                Event::Progress { .. } => {}
                other => panic!("while decoding: {other:?}"),
            }
        }
        tokens.sort();
        tokens
    }

    /// From its first chunk to its last token; decoding begins when `begin` lets it. Chunks of
    /// two requests could wait for each other, as a coordinator would not have them.
    pub(crate) async fn run(
        &self,
        workers: &[Worker],
        turns: &Mutex<()>,
        begin: Option<&Barrier>,
    ) -> Tokens {
        for _ in 0..self.pause {
            tokio::task::yield_now().await;
        }
        let mut members = Vec::new();
        for worker in workers {
            members.push(Member::join(worker.clone()).await);
        }
        let turn = turns.lock().await;
        self.prefill(&mut members).await;
        drop(turn);
        if let Some(begin) = begin {
            begin.wait().await;
        }
        let tokens = self.tokens(&mut members[self.job.home(workers.len())]).await;
        for member in &members {
            member.send(Command::Cancel { request: self.job.request }).await;
        }
        tokens
    }
}

/// What was seen before a request was cancelled is the beginning of what it would have given.
fn check_tokens(plan: &Plan, seen: &Tokens, alone: &Tokens) {
    match plan.cancelled_after {
        None => assert!(seen == alone, "{plan:?}"),
        Some(most) => {
            assert!(seen.len() <= most && seen.iter().all(|it| alone.contains(it)), "{plan:?}");
        }
    }
}

/// Half of the requests begin to decode at once; the others come when they come, and their chunks
/// are prefilled between the steps of the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_gives_alone_what_it_gives_among_others() {
    for kv in [KvDtype::Bf16, KvDtype::F32] {
        let members = cluster(&tiny(kv), 2, Carrier::Grpc).await;
        let workers: Vec<Worker> = members.iter().map(|member| member.worker.clone()).collect();
        let plans: Vec<_> = (0..REQUESTS).map(|idx| Arc::new(Plan::new(idx))).collect();
        let turns = Arc::<Mutex<()>>::default();
        let mut alone = Vec::new();
        for plan in &plans {
            alone.push(plan.as_another().run(&workers, &turns, None).await);
        }
        let begin = Arc::new(Barrier::new(plans.len() / 2));
        let run = |(idx, plan): (usize, &Arc<Plan>)| {
            let (plan, workers, turns) = (plan.clone(), workers.clone(), turns.clone());
            let begin = idx.is_multiple_of(2).then(|| begin.clone());
            tokio::spawn(async move { plan.run(&workers, &turns, begin.as_deref()).await })
        };
        let running: Vec<_> = plans.iter().enumerate().map(run).collect();
        for ((plan, running), alone) in plans.iter().zip(running).zip(&alone) {
            check_tokens(plan, &running.await.unwrap(), alone);
        }
        for member in &members {
            member.settle_empty().await;
        }
    }
}

/// Five completions where two fit in a batch: none is ever two tokens ahead of another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_that_do_not_fit_take_turns() {
    const CHOICES: u32 = 5;
    let model = tiny(KvDtype::Bf16);
    let mut orders = Vec::new();
    for decode_batch_max in [2, 1, 64] {
        let options = in_process(&model, &LoopbackHub::default());
        let options = WorkerOptions { decode_batch_max, ..options };
        let worker = Worker::start(model.clone(), options).unwrap();
        let mut members = [Member::join(worker).await];
        let plan = Plan { choices: CHOICES, max_tokens: 12, ..Plan::new(3) };
        plan.prefill(&mut members).await;
        members[0].send(plan.decode()).await;
        let (mut counts, mut tokens, mut open) = ([0_u32; CHOICES as usize], Vec::new(), CHOICES);
        while open > 0 {
            match members[0].event().await {
                Event::Token(token) => {
                    counts[token.choice as usize] += 1;
                    let [least, most] = [counts.iter().min(), counts.iter().max()];
                    assert!(most.unwrap() - least.unwrap() <= 1, "{counts:?}");
                    tokens.push((token.choice, token.token_idx, token.token));
                }
                Event::ChoiceDone { .. } => open -= 1,
                other => panic!("while decoding: {other:?}"),
            }
        }
        tokens.sort_unstable();
        orders.push(tokens);
    }
    assert!(orders.iter().all(|tokens| *tokens == orders[0]));
}

/// The home of two requests loses the worker that holds shards of one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_holder_ends_its_own_request() {
    let plan = |idx, shards| {
        let policy = MemoryPolicy::h2o(2, 3, 3);
        let job = Job { request: RequestId(idx), ..Job::new(24, policy) };
        Plan { job, shards, choices: 2, max_tokens: 400, cancelled_after: None, ..Plan::new(idx) }
    };
    let (stays, lost) = (plan(1, None), plan(2, Some(Carry::Queries)));
    let lost = Plan { max_tokens: 1 << 20, ..lost };
    let mut members = cluster(&tiny(KvDtype::Bf16), 2, Carrier::Loopback).await;
    let mut others = Vec::new();
    for member in &members {
        others.push(Member::join(member.worker.clone()).await);
    }
    // Three chunks in turn over two workers: both are at home at the first.
    let alone = stays.as_another().run(&[members[0].worker.clone()], &Mutex::default(), None).await;
    stays.prefill(&mut members).await;
    lost.prefill(&mut others).await;
    others[0].send(lost.decode()).await;
    others[0].event_where(|event| matches!(event, Event::Token(_))).await;
    let home = members.remove(0);
    let running = tokio::spawn(async move {
        let mut home = home;
        stays.tokens(&mut home).await
    });
    drop((members, others.remove(1)));
    others[0].event_where(|event| matches!(event, Event::DecodeFailed { .. })).await;
    assert!(running.await.unwrap() == alone);
}
