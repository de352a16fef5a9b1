//! The one way from an API layer to the runtime.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aqueduct_core::{Refusal, RequestId, StartKey};
use tracing::Instrument;

use super::board::{Board, Place};
use super::{About, Choice, Claim, Clock, Generation, Report, Source, Submit, Told, Updates};
use crate::bodies::Room;
use crate::keys::{Holder, Permit};
use crate::metrics::{Metrics, Outcome};
use crate::peers::{Escort, Made};
use crate::streams::{Ended, EventId, Reader, Streams};
use crate::submit::{RequestError, Submission};
use crate::text::{Hearing, Start, StopMatcher, TextModel};

/// Starts requests, and takes them up again.
#[derive(Clone)]
pub struct Generator {
    /// The model's text side.
    pub text: Arc<TextModel>,
    /// The runtime.
    pub runtime: Arc<dyn Submit>,
    /// Where figures go.
    pub metrics: Arc<Metrics>,
    /// What the console shows.
    pub board: Arc<Board>,
    /// Answers that their callers may come back to.
    pub streams: Streams,
    /// For what callers send.
    pub room: Room,
}

impl Generator {
    /// Submits a request.
    ///
    /// # Errors
    /// As the runtime has it.
    pub async fn start(&self, mut submission: Submission) -> Result<Generation, RequestError> {
        let started = Instant::now();
        submission.telling.prompt_tokens = submission.prompt_tokens();
        submission.telling.created_at_s = now_s();
        if submission.session.is_some() && !submission.telling.stop.is_empty() {
            // What was generated behind a stop string would be remembered too.
            let refusal = Refusal::new("stop", "present", "absent beside a session");
            return Err(self.refused(refusal.into(), started));
        }
        let begin = self.beginning(&submission, Some(started));
        let updates = self.runtime.submit(submission).await;
        updates.map(begin).map_err(|error| self.refused(error, started))
    }

    /// How the answer to a request begins; what follows depends on its updates. Without when it
    /// was `started` it is one of before, whose beginning was counted then.
    fn beginning(
        &self,
        submission: &Submission,
        started: Option<Instant>,
    ) -> impl FnOnce(Box<dyn Updates>) -> Generation + use<> {
        let telling = &submission.telling;
        let report = Report {
            prompt_tokens: telling.prompt_tokens,
            chunk_tokens: submission.chunk_tokens,
            cache_prompt: submission.cache_prompt && submission.goes_on().is_none(),
            policy: submission.policy,
            floor: submission.floor,
            wire: submission.wire,
            seed: submission.sampling.seed,
            warnings: telling.warnings.clone(),
            ..Report::default()
        };
        let follows = telling.continues || telling.goes_on;
        let start = if follows { Start::Continuation } else { Start::Text };
        let stops = || StopMatcher::new(&telling.stop);
        let min_tokens = submission.sampling.min_tokens;
        let template = self.text.template();
        let (hearing, notation) = match telling.continues {
            true => (Hearing::Plain, None),
            false => {
                let hearing = Hearing::new(template.speech(), start, telling.thoughts);
                (hearing, template.notation().filter(|_| telling.tools))
            }
        };
        let detokenizer = || self.text.detokenizer(start);
        let choice = || Choice::new(detokenizer(), hearing.clone(), notation, stops(), min_tokens);
        let choices = (0..submission.choices).map(|_| choice()).collect();
        let (eos, generates) = (submission.eos.clone(), submission.max_tokens > 0);
        let about = About {
            choices: submission.choices,
            logprobs: submission.sampling.logprobs,
            telling: telling.clone(),
        };
        let place = Place::new(self.board.clone(), submission);
        let generator = self.clone();
        move |updates| Generation {
            generator,
            updates,
            place,
            about,
            choices,
            eos,
            generates,
            report,
            queue: VecDeque::new(),
            clock: Clock { started, prefilled: None, has_token: false },
            told: if started.is_some() { Told::Nothing } else { Told::AllSoFar },
            token_bytes: 0,
            state_bytes: 0,
            permit: None,
            outcome: None,
        }
    }

    /// Counts a request that never began.
    fn refused(&self, error: RequestError, started: Instant) -> RequestError {
        self.metrics.rejected(error.reason());
        self.metrics.ended(Outcome::Refused, started.elapsed());
        error
    }

    /// Submits a request on the account of `holder`, if there is one. It outlives its caller's
    /// connection if it is resumable. One whose key was used before is the one that was started
    /// with it.
    ///
    /// # Errors
    /// What its key does not allow, a key that stands for something else, or as the runtime has
    /// it.
    pub async fn start_for(
        &self,
        holder: Option<&Holder>,
        submission: Submission,
    ) -> Result<Source, RequestError> {
        let Some(key) = submission.telling.once.clone() else {
            return self.start_new(holder, submission).await;
        };
        key.validate()?;
        let (generator, holder) = (self.clone(), holder.cloned());
        // Who asks may lose the answer, even this one, and ask again.
        let start = async move { generator.start_once(holder.as_ref(), key, submission).await };
        let started = tokio::spawn(start.in_current_span()).await;
        started.unwrap_or(Err(RequestError::Stopping))
    }

    async fn start_once(
        &self,
        holder: Option<&Holder>,
        key: StartKey,
        submission: Submission,
    ) -> Result<Source, RequestError> {
        let _turn = self.streams.turn(&key.name).await;
        let started = match self.streams.started(id_of(holder), &key.name) {
            Some(started) => Some(started),
            None => self.runtime.started(id_of(holder), &key.name).await?,
        };
        // Who gave an answer up, of which the journal still knows, wants another one.
        let started = started.filter(|(request, _)| !self.streams.is_given_up(*request));
        match started {
            None => self.start_new(holder, submission).await,
            Some((request, content)) if content == key.content => {
                self.resume(holder, request, |_, _| Ok(())).await.map(Into::into)
            }
            Some((request, _)) => {
                self.metrics.rejected("invalid");
                Err(key.taken_by(request).into())
            }
        }
    }

    /// As [`start_for`](Self::start_for), for a member of the group that stays with the call: where
    /// it makes it again, and the request was started before, it is that one. It ends with its
    /// caller's connection.
    ///
    /// # Errors
    /// As [`start_for`](Self::start_for).
    pub(crate) async fn start_escorted(
        &self,
        holder: Option<&Holder>,
        escort: &Escort,
        submission: Submission,
    ) -> Result<Source, RequestError> {
        let once = submission.telling.once.as_ref();
        let name = once.map(|once| once.name.clone()).unwrap_or_default();
        let started = match &escort.made {
            Made::First => None,
            Made::Again => {
                let started = self.runtime.started(id_of(holder), &name).await?;
                started.map(|(request, _)| request)
            }
            // What was told of must be that one.
            Made::From(place) => Some(place.parse::<EventId>()?.request),
        };
        let Some(request) = started else { return self.start_new(holder, submission).await };
        let goes_on = match submission.telling.resumable {
            true => self.resume(holder, request, |_, _| Ok(())).await.map(Into::into),
            false => self.go_on_escorted(holder, request, name).await,
        };
        match goes_on {
            // It has ended with the connection by which it was asked for.
            Err(RequestError::Unknown(_)) if escort.made == Made::Again => {
                self.start_new(holder, submission).await
            }
            goes_on => goes_on,
        }
    }

    /// The answer to a request of `holder` whose call, of that `name`, a member of the group makes
    /// again.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub(crate) async fn go_on_escorted(
        &self,
        holder: Option<&Holder>,
        request: RequestId,
        name: String,
    ) -> Result<Source, RequestError> {
        let claim = Claim::Escorted { holder: id_of(holder).to_owned(), name };
        let generation = self.taken_up(request, claim).await?;
        self.metrics.came_back();
        Ok(generation.into())
    }

    async fn start_new(
        &self,
        holder: Option<&Holder>,
        submission: Submission,
    ) -> Result<Source, RequestError> {
        let permit = self.admit(holder, std::iter::once(submission.prompt.len()))?.pop();
        self.start_admitted(holder, permit, submission).await
    }

    /// Places for requests of `holder` with prompts of so many tokens, all or none; none are needed
    /// where no keys are asked for.
    ///
    /// # Errors
    /// What its key does not allow.
    pub(crate) fn admit(
        &self,
        holder: Option<&Holder>,
        prompts: impl Iterator<Item = usize>,
    ) -> Result<Vec<Permit>, RequestError> {
        let Some(holder) = holder else { return Ok(Vec::new()) };
        let tokens = |tokens| u32::try_from(tokens).unwrap_or(u32::MAX);
        let permits = holder.admit(&prompts.map(tokens).collect::<Vec<_>>());
        permits.inspect_err(|error| {
            self.metrics.rejected(error.reason());
            self.metrics.ended(Outcome::Refused, Duration::ZERO);
        })
    }

    /// As [`start_for`](Self::start_for) a request without a key of its own, which has its place.
    pub(crate) async fn start_admitted(
        &self,
        holder: Option<&Holder>,
        mut permit: Option<Permit>,
        mut submission: Submission,
    ) -> Result<Source, RequestError> {
        submission.telling.holder = id_of(holder).to_owned();
        let is_resumable = submission.telling.resumable;
        let mut generation = self.start(submission).await?;
        permit.iter_mut().for_each(Permit::begin);
        generation.permit = permit;
        match is_resumable {
            true => Ok(self.streams.keep(generation).await?.into()),
            false => Ok(generation.into()),
        }
    }

    /// The answer to a request that `holder`, if keys are asked for, has asked for before.
    ///
    /// # Errors
    /// [`RequestError::Unknown`], or as the runtime has it.
    pub async fn resume(
        &self,
        holder: Option<&Holder>,
        request: RequestId,
        may_read: impl FnOnce(&About, &Ended) -> Result<(), Refusal> + Send + 'static,
    ) -> Result<Reader, RequestError> {
        let (generator, id) = (self.clone(), id_of(holder).to_owned());
        let read = async move {
            let comes_back = async || generator.taken_up(request, Claim::Caller(id.clone())).await;
            generator.streams.read(request, &id, may_read, comes_back).await
        };
        // Who goes away again meanwhile may come back as well: what it has taken up is not dropped.
        let read = tokio::spawn(read.in_current_span()).await;
        let reader = read.unwrap_or(Err(RequestError::Stopping))?;
        self.metrics.came_back();
        Ok(reader)
    }

    /// Ends a request that `holder` has asked for before.
    ///
    /// # Errors
    /// [`RequestError::Unknown`], or as the runtime has it.
    pub async fn cancel(
        &self,
        holder: Option<&Holder>,
        request: RequestId,
    ) -> Result<(), RequestError> {
        let id = id_of(holder);
        let comes_back = async || self.taken_up(request, Claim::Caller(id.to_owned())).await;
        self.streams.cancel(request, id, comes_back).await
    }

    /// A request of before, from its beginning.
    async fn taken_up(&self, request: RequestId, claim: Claim) -> Result<Generation, RequestError> {
        let (submission, updates) = self.runtime.attach(request, claim).await?;
        Ok(self.beginning(&submission, None)(updates))
    }
}

/// What is written down of a key; nothing where none is asked for.
fn id_of(holder: Option<&Holder>) -> &str {
    holder.map_or("", Holder::id)
}

/// Seconds since 1970.
pub(crate) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A seed for who names none: small enough to survive a caller's JSON reader, which may only know
/// doubles.
pub(crate) fn draw_seed() -> u64 {
    RandomState::new().hash_one(()) >> 32
}
