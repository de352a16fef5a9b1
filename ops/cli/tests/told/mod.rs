//! A caller with the SDK, who must be told one stream: every event once, in order, and one end.

use std::fmt::Debug;

use aqueduct_client::{Client, ClientOptions, GenerateEvent, GenerateOptions, StopReason, TokenId};
use aqueduct_core::journal::{Kept, Outcome};
use futures::StreamExt;
use tokio::runtime::Handle;
use tokio::sync::mpsc;

/// Events that wait for who looks at them; more than any answer here has.
const EVENTS_MAX: usize = 4096;

/// A whole answer of one completion.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Told {
    pub(crate) prompt_tokens: u32,
    /// With the bits of their log probabilities.
    pub(crate) tokens: Vec<(TokenId, u32)>,
    text: String,
    end: StopReason,
}

/// How far an answer is when a fault comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    ChunksDone(u64),
    Tokens(u64),
}

impl Moment {
    /// Whether it has come with this event.
    pub(crate) fn has_come(self, event: &GenerateEvent) -> bool {
        match (self, event) {
            (Self::ChunksDone(least), GenerateEvent::Progress(at)) => {
                u64::from(at.chunks_done) >= least && at.chunks_done < at.chunk_count
            }
            (Self::Tokens(least), GenerateEvent::Token(token)) => {
                u64::from(token.token_idx) >= least
            }
            _ => false,
        }
    }
}

/// What is told by the coordinators at `urls`, of which one leads. `see` is told each event as it
/// comes; the stream goes on meanwhile.
pub(crate) fn ask(
    runtime: &Handle,
    urls: &str,
    options: GenerateOptions,
    mut see: impl FnMut(&GenerateEvent),
) -> Told {
    let (events, mut heard) = mpsc::channel(EVENTS_MAX);
    let urls = urls.to_owned();
    let caller = runtime.spawn(async move {
        let client = Client::connect(&urls, ClientOptions::default()).await.unwrap();
        let mut stream = client.generate(options).await.unwrap();
        while let Some(event) = stream.next().await {
            events.send(event.unwrap()).await.unwrap();
        }
    });
    let mut told =
        Told { prompt_tokens: 0, tokens: Vec::new(), text: String::new(), end: StopReason::Stop };
    let (mut accepted, mut ended, mut summed_up) = (0, 0, 0);
    while let Some(event) = heard.blocking_recv() {
        assert_eq!(summed_up, 0, "after the end: {event:?}");
        match &event {
            GenerateEvent::Accepted(it) => {
                (accepted, told.prompt_tokens) = (accepted + 1, it.prompt_tokens);
            }
            GenerateEvent::Token(token) => {
                assert_eq!((token.choice, token.token_idx as usize), (0, told.tokens.len()));
                assert_eq!((accepted, ended), (1, 0), "{token:?}");
                told.tokens.push((token.id, token.logprob.to_bits()));
                told.text += &token.text;
            }
            GenerateEvent::ChoiceDone(done) => {
                (ended, told.end) = (ended + 1, done.reason);
                told.text += &done.text;
                assert_eq!(done.tokens as usize, told.tokens.len());
            }
            GenerateEvent::Summary(it) => {
                summed_up += 1;
                assert_eq!(it.output_tokens as usize, told.tokens.len());
            }
            GenerateEvent::Progress(_) => {}
            other => panic!("nobody asked for {other:?}"),
        }
        see(&event);
    }
    runtime.block_on(caller).unwrap();
    assert_eq!((accepted, ended, summed_up), (1, 1, 1), "{told:?}");
    told
}

/// What was told while something happened is what is told when nothing does.
pub(crate) fn check_same(told: &Told, want: &Told, what: impl Debug) {
    let mut pairs = told.tokens.iter().zip(&want.tokens);
    let first = pairs.position(|(told, want)| told != want);
    let counts = (told.tokens.len(), want.tokens.len());
    assert!(told == want, "{what:?}: {counts:?} tokens, of which {first:?} is the first other one");
}

/// What a journal has of each request is what its caller was told, and one end.
pub(crate) fn check_kept(told: &Told, kept: &[Kept]) {
    for (idx, kept) in kept.iter().enumerate() {
        let tokens = kept.choices[0].tokens.iter().map(|drawn| drawn.token);
        let tokens: Vec<_> = tokens.map(|it| (it.token, it.logprob.to_bits())).collect();
        let ended = kept.ended.as_ref().map(|ended| &ended.outcome);
        assert_eq!((ended, tokens.len()), (Some(&Outcome::Finished), told.tokens.len()), "{idx}");
        assert!(tokens == told.tokens, "{idx}: {tokens:?}");
    }
}
