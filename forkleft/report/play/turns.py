"""One request at a time: a thread that serves requests in the order in which they came."""

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

from forkleft.errors import ForkLeftError

# What a request tells the page: a kind, and what belongs to it.
Event = dict[str, Any]
# More requests than this, the one that is served included, are refused.
MOST = 8


class Turn:
    """A request. work: what to do for it; tell: takes its events, and None after the last; both run in the thread.

    cancelled: set if nobody is interested any more. `work` must look at it now and then.
    """

    def __init__(self, work: Callable[["Turn"], None], tell: Callable[[Event | None], None]) -> None:
        self._work, self._tell = work, tell
        self.cancelled = threading.Event()
        self._ahead = 0

    def tell(self, event: Event | None) -> None:
        """Pass on an event, if somebody still listens."""
        if not self.cancelled.is_set():
            self._tell(event)

    def wait(self, ahead: int) -> None:
        """Say how many requests are before this one, if that has changed."""
        if ahead != self._ahead:
            self._ahead = ahead
            self.tell({"kind": "waiting", "ahead": ahead})

    def serve(self) -> None:
        """Do the work, and say that it is done."""
        if self.cancelled.is_set():
            return
        self.tell({"kind": "begin"})
        self._work(self)
        self.tell(None)


class Turns:
    """Serves requests one after the other, and tells those that wait how many are before them.

    with Turns() as turns:
        turn = turns.take(work, tell)
    """

    def __init__(self) -> None:
        # The first is being served.
        self._turns: deque[Turn] = deque()
        self._changed = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "Turns":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._thread.join()

    def take(self, work: Callable[[Turn], None], tell: Callable[[Event | None], None]) -> Turn:
        """Stand in line with a request. Raises ForkLeftError if the line is too long."""
        turn = Turn(work, tell)
        with self._changed:
            if len(self._turns) >= MOST:
                raise ForkLeftError(f"{MOST} requests are waiting already; try again when some of them are done")
            self._turns.append(turn)
            self._tell_waiting()
            self._changed.notify()
        return turn

    def stop(self) -> None:
        """End what is being served, and tell it and all that wait that there is no more."""
        with self._changed:
            self._over = True
            for turn in self._turns:
                turn.tell({"kind": "error", "message": "the playground was ended"})
                turn.tell(None)
                turn.cancelled.set()
            self._changed.notify()

    def leave(self, turn: Turn) -> None:
        """Give up a request. If it is being served, it ends when its work looks at `cancelled`."""
        turn.cancelled.set()
        with self._changed:
            if turn in self._turns and turn is not self._turns[0]:
                self._turns.remove(turn)
                self._tell_waiting()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._over or self._turns)
                if self._over:
                    return
                turn = self._turns[0]
            turn.serve()
            with self._changed:
                self._turns.popleft()
                self._tell_waiting()

    def _tell_waiting(self) -> None:
        for ahead, turn in list(enumerate(self._turns))[1:]:
            turn.wait(ahead)
