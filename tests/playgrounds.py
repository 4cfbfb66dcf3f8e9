"""Playgrounds for the tests: students on a real server, and models that misbehave."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from forkleft.report.play.server import Server, address_of, listen, playground
from forkleft.report.play.writing import Player

QUESTION, ANSWER = "a=7;b=a+5;c=b-a;c?", "5"
SETTINGS = {"question": QUESTION, "max_new_tokens": 32, "verifier": "lab"}


@contextmanager
def served(players: Sequence[Player]) -> Iterator[str]:
    """A playground on a free port of this machine; gives its address."""
    with listen("127.0.0.1", 0) as listener:
        server = Server(playground(players, None, "127.0.0.1"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield address_of(listener)
        finally:
            server.should_exit = True
            thread.join()


class Endless:
    """Stands in for `decode`: shows the same pass again and again, until it is cancelled."""

    def __init__(self) -> None:
        self.passes, self.ended = 0, threading.Event()

    def __call__(self, student, prompts, decoding, *, watch, **settings):
        try:
            while True:
                self.passes += 1
                watch(0, [student.vocabulary.mask_id] * 8, [0.0] * 8)
                time.sleep(0.01)
        finally:
            self.ended.set()


def saying(text: str):
    """Stands in for `decode`: all of a text in one pass."""
    from forkleft.rollout import Trajectory

    def decode(student, prompts, decoding, *, watch, **settings):
        ids = student.tokenizer.encode(text)
        numbers = [0.0] * len(ids)
        watch(0, ids, numbers)
        return [Trajectory(ids, text, [1] * len(ids), numbers, [1.0] * len(ids), stopped=False, forwards=1)]

    return decode


def failing(student, prompts, decoding, *, watch, **settings):
    """Stands in for `decode`: fails after its first pass."""
    watch(0, [student.vocabulary.mask_id] * 8, [0.0] * 8)
    raise RuntimeError("no memory is left <b>here</b>")
