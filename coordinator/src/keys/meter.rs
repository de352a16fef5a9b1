//! What one key has at this moment, and what is left of its minute.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::KeyLimits;
use crate::submit::RequestError;

/// Requests end when they end: this is only a guess.
const REQUEST_RETRY: Duration = Duration::from_secs(1);
const MINUTE_S: f64 = 60.0;

/// What a key has too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Requests at once.
    Requests(u32),
    /// Tokens in a minute.
    TokensPerMinute(u64),
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Requests(most) => write!(f, "{most} requests at once"),
            Self::TokensPerMinute(most) => write!(f, "{most} tokens in a minute"),
        }
    }
}

/// A key's account. Tokens come back evenly over a minute.
#[derive(Debug, Default)]
pub(super) struct Meter(Mutex<Account>);

#[derive(Debug, Default)]
struct Account {
    running: u32,
    /// Tokens that were spent and have not come back.
    owed: f64,
    /// When that was reckoned.
    at: Option<Instant>,
}

impl Meter {
    /// A prompt that is larger than what comes back in a minute is let in when nothing is owed,
    /// and owed for afterwards: that the key may send it at all is for its other limit to say.
    /// So are several prompts together, of which none begins without the others.
    pub(super) fn admit(
        self: &Arc<Self>,
        prompts: &[u32],
        limits: &KeyLimits,
    ) -> Result<Vec<Permit>, RequestError> {
        if prompts.is_empty() {
            return Ok(Vec::new()); // whatever is owed
        }
        let mut account = self.account(limits, Instant::now());
        let count = u32::try_from(prompts.len()).unwrap_or(u32::MAX);
        let running = account.running.saturating_add(count);
        if let Some(most) = limits.requests.filter(|most| running > *most) {
            let limit = Limit::Requests(most);
            return Err(RequestError::Limited { limit, retry_after: REQUEST_RETRY });
        }
        let prompt_tokens: f64 = prompts.iter().copied().map(f64::from).sum();
        if let Some(most) = limits.tokens_per_minute {
            let room = most as f64 - prompt_tokens.min(most as f64);
            if account.owed > room {
                let wait_s = (account.owed - room) * MINUTE_S / most as f64;
                let retry_after = Duration::from_secs_f64(wait_s);
                return Err(RequestError::Limited {
                    limit: Limit::TokensPerMinute(most),
                    retry_after,
                });
            }
        }
        account.running = running;
        account.owed += prompt_tokens;
        drop(account);
        let permit =
            |refund: &u32| Permit { meter: self.clone(), refund: *refund, limits: *limits };
        Ok(prompts.iter().map(permit).collect())
    }

    /// The place of a request that was let in before. What it has spent by then is not known here.
    pub(super) fn go_on(self: &Arc<Self>, limits: &KeyLimits) -> Permit {
        self.account(limits, Instant::now()).running += 1;
        Permit { meter: self.clone(), refund: 0, limits: *limits }
    }

    /// The account as it is `now`.
    fn account(&self, limits: &KeyLimits, now: Instant) -> MutexGuard<'_, Account> {
        let mut account = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = account.at.replace(now).map(|at| now.saturating_duration_since(at));
        let back = limits.tokens_per_minute.map_or(f64::INFINITY, |most| {
            since.unwrap_or_default().as_secs_f64() * most as f64 / MINUTE_S
        });
        account.owed = (account.owed - back).max(0.0);
        account
    }
}

/// A request's place among those of its key, until it is dropped.
#[derive(Debug)]
pub struct Permit {
    meter: Arc<Meter>,
    /// Tokens that are given back should it not begin.
    refund: u32,
    limits: KeyLimits,
}

impl Permit {
    /// The request began: its prompt is paid for.
    pub fn begin(&mut self) {
        self.refund = 0;
    }

    /// It generated a token.
    pub fn spend(&self) {
        self.meter.account(&self.limits, Instant::now()).owed += 1.0;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut account = self.meter.account(&self.limits, Instant::now());
        account.running -= 1;
        account.owed = (account.owed - f64::from(self.refund)).max(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(meter: &Arc<Meter>, prompt_tokens: u32, limits: &KeyLimits) -> Duration {
        match meter.admit(&[prompt_tokens], limits) {
            Err(RequestError::Limited { retry_after, .. }) => retry_after,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn requests_at_once_end_with_their_permits() {
        let (meter, limits) =
            (Arc::<Meter>::default(), KeyLimits { requests: Some(2), ..KeyLimits::default() });
        let first = meter.admit(&[5], &limits).unwrap();
        let _second = meter.admit(&[5], &limits).unwrap();
        assert_eq!(limited(&meter, 1, &limits), REQUEST_RETRY);
        drop(first);
        drop(meter.admit(&[5], &limits).unwrap());
    }

    #[test]
    fn several_are_let_in_together_or_not_at_all() {
        let meter = Arc::<Meter>::default();
        let limits =
            KeyLimits { requests: Some(3), tokens_per_minute: Some(600), ..KeyLimits::default() };
        let one = meter.admit(&[100], &limits).unwrap();
        let refused = |prompts: &[u32]| meter.admit(prompts, &limits).is_err();
        assert!(refused(&[1; 3]) && refused(&[300, 300]));
        let more = meter.admit(&[200, 300], &limits).unwrap();
        assert!(more.len() == 2 && refused(&[1]));
        drop((one, more));
        drop(meter.admit(&[200, 400], &limits).expect("none of them began"));
    }

    #[test]
    fn tokens_come_back_over_a_minute() {
        let meter = Arc::<Meter>::default();
        let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
        let mut permit = meter.admit(&[500], &limits).unwrap().remove(0);
        permit.begin();
        (0..50).for_each(|_| permit.spend());
        drop(permit);
        drop(meter.admit(&[50], &limits).expect("what is left"));
        // 550 are owed, and 600 is the most: 250 want 200 more, at ten in a second.
        let wait = limited(&meter, 250, &limits).as_secs_f64();
        assert!((18.0..=20.0).contains(&wait), "{wait}");
        // As much as a minute brings is the most that is asked for beforehand.
        let wait = limited(&meter, 10_000, &limits).as_secs_f64();
        assert!((53.0..=55.0).contains(&wait), "{wait}");
        let later = Instant::now() + Duration::from_secs(60);
        assert!(meter.account(&limits, later).owed == 0.0);
    }

    #[test]
    fn a_request_that_does_not_begin_costs_nothing() {
        let meter = Arc::<Meter>::default();
        let limits = KeyLimits { tokens_per_minute: Some(600), ..KeyLimits::default() };
        drop(meter.admit(&[10_000], &limits).unwrap());
        let mut permit = meter.admit(&[600], &limits).expect("nothing is owed").remove(0);
        permit.begin();
        drop(permit);
        limited(&meter, 600, &limits);
    }
}
