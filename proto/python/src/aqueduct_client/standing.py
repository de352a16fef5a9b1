"""What a caller has of an answer, and how long it waits for the rest."""
import time

from .config import ClientOptions
from .errors import unreadable
from .events import Accepted, ChoiceDone, Escalated, GenerateEvent, Token

# Before a lost stream is asked for again; twice as long each time, up to the longest pause.
FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 2.0


class Patience:
    """How often, and for how long, what was lost is asked for again."""

    def __init__(self, options: ClientOptions, until: float) -> None:
        self._within_s = options.resume_within_s
        self._until = until
        self._lost_at: float | None = None
        self._pause_s = FIRST_PAUSE_S

    @property
    def is_needed(self) -> bool:
        """Whether something was lost, and nothing new has come since."""
        return self._lost_at is not None

    def renew(self) -> None:
        """Something new has come."""
        self._lost_at, self._pause_s = None, FIRST_PAUSE_S

    def pause_s(self) -> float | None:
        """How soon to ask again; `None` where it is time to give up."""
        now, pause_s = time.monotonic(), self._pause_s
        self._lost_at = self._lost_at or now
        self._pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        give_up_at = min(self._until, self._lost_at + self._within_s)
        return pause_s if now + pause_s < give_up_at else None


class Standing:
    """What a caller has of an answer."""

    def __init__(self, request: int | None, choices: int, patience: Patience) -> None:
        self.request = request
        """By what number the answer can be come back to, where it can."""
        self.following = [0] * choices
        """Of each completion, its tokens and its end."""
        self.patience = patience
        """With a loss behind which nothing new has come yet."""
        self.is_accepted = False
        self.escalations = 0
        self.escalations_here = 0
        """Of these, how many this connection has told."""

    def takes(self, event: GenerateEvent) -> bool:
        """Whether an event is new; then it is no more."""
        is_new = self._is_new(event)
        self.is_accepted = True
        self.escalations = max(self.escalations, self.escalations_here)
        if is_new:
            self.patience.renew()
        return is_new

    def _is_new(self, event: GenerateEvent) -> bool:
        match event:
            case Accepted():
                return not self.is_accepted
            case Escalated():
                self.escalations_here += 1
                return self.escalations_here > self.escalations
            case Token():
                return self._takes_one('token.token_idx', event.choice, event.token_idx)
            case ChoiceDone():
                return self._takes_one('choice_done.tokens', event.choice, event.tokens)
        return True

    def _takes_one(self, field: str, choice: int, idx: int) -> bool:
        if choice >= len(self.following):
            return True  # one that nobody asked for is for the caller to see
        due = self.following[choice]
        if idx > due:  # a text with a hole in it would look whole
            raise unreadable(f'{field} = {idx}: must be at most {due} in choice {choice}')
        self.following[choice] += idx == due
        return idx == due
