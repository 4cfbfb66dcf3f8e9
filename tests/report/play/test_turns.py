import queue
import threading

import pytest

from forkleft.errors import ForkLeftError
from forkleft.report.play.turns import MOST, Turns

SECONDS = 60


class Request:
    """Work that waits until the test lets it go on, and the events that were told."""

    def __init__(self):
        self.go_on, self.events = threading.Event(), queue.Queue()

    def work(self, turn):
        assert self.go_on.wait(SECONDS)
        turn.tell({"kind": "worked"})

    def next(self):
        event = self.events.get(timeout=SECONDS)
        return event if event is None else tuple(event.values())


def test_requests_are_served_in_their_order_and_know_how_many_are_before_them():
    requests = [Request() for _ in range(3)]
    with Turns() as turns:
        for request in requests:
            turns.take(request.work, request.events.put)
        first, second, third = requests
        assert first.next() == ("begin",)
        assert second.next() == ("waiting", 1)
        assert third.next() == ("waiting", 2)
        first.go_on.set()
        assert [first.next(), first.next()] == [("worked",), None]
        assert second.next() == ("begin",)
        assert third.next() == ("waiting", 1)
        second.go_on.set()
        third.go_on.set()
        assert [third.next() for _ in range(3)] == [("begin",), ("worked",), None]


def test_who_leaves_the_line_is_not_served():
    requests = [Request() for _ in range(3)]
    with Turns() as turns:
        first, second, third = (turns.take(request.work, request.events.put) for request in requests)
        assert requests[0].next() == ("begin",)
        turns.leave(second)
        assert [requests[2].next(), requests[2].next()] == [("waiting", 2), ("waiting", 1)]
        # The first is being served: its work has to look.
        turns.leave(first)
        assert first.cancelled.is_set() and not third.cancelled.is_set()
        for request in requests:
            request.go_on.set()
        assert [requests[2].next() for _ in range(3)] == [("begin",), ("worked",), None]
    # Nobody listens to those that have left.
    assert requests[0].events.empty()
    assert requests[1].next() == ("waiting", 1) and requests[1].events.empty()


def test_the_line_has_an_end():
    request = Request()
    with Turns() as turns:
        for _ in range(MOST):
            turns.take(request.work, request.events.put)
        with pytest.raises(ForkLeftError, match=f"{MOST} requests are waiting already"):
            turns.take(request.work, request.events.put)
        request.go_on.set()


def test_the_end_cancels_what_is_left():
    requests = [Request(), Request()]
    seen = []

    def work(turn):
        seen.append(turn.cancelled.wait(SECONDS))

    with Turns() as turns:
        waiting = [turns.take(work, request.events.put) for request in requests]
        assert requests[0].next() == ("begin",)
    assert seen == [True]
    assert requests[1].next() == ("waiting", 1)
    for request in requests:
        assert [request.next(), request.next()] == [("error", "the playground was ended"), None]
    assert all(turn.cancelled.is_set() for turn in waiting)
