"""Worker processes that judge mathematical answers, each item within bounds of time and memory.

Workers are fresh interpreters, not forks: the caller may hold threads and a GPU, and its main module is not imported
again. An item that uses up its processor time is wrong. A worker that ends or stalls otherwise may be the machine's
fault (memory that others took, a suspended session), so its item is tried once more on a fresh worker, and is wrong if
that fails too. Every item is judged by itself, so that neither its neighbours nor the number of workers matter.
"""

import atexit
import functools
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forkleft.errors import ForkLeftError

# Responses of 4096 tokens have some 15,000 characters. Of a longer text than this only its last box is read.
MAX_CHARACTERS = 100_000
MAX_WORKERS = 4
START_SECONDS = 300.0
_TRIES = 2
# A worker has its next items at hand and never waits for us. They must fit into a pipe: then writing them never waits
# for the worker either, which may itself be waiting to get rid of a reply.
_ITEMS_AT_HAND = 4
_BYTES_AT_HAND = 1 << 15
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[3:]; "
    "from forkleft.verify.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
)

# A response and the expected answer, or None to look for the response's answer only.
Request = tuple[str, str | None]
# Whether it is right, and the answer found.
Reply = tuple[bool, str | None]
WRONG: Reply = (False, None)


@dataclass(frozen=True)
class Bounds:
    """What one item may cost; usual ones take 2 to 10 ms. Processor time decides, so that a busy machine changes no
    verdict; `wall_seconds` is for a worker that is stuck without computing. Memory is bounded on Linux only."""

    cpu_seconds: int = 5
    wall_seconds: float = 60.0
    memory_bytes: int = 1 << 30


class Pool:
    """Workers that are started when first needed and then kept. Threads may share a pool."""

    def __init__(self, size: int, bounds: Bounds | None = None) -> None:
        self.size = size
        self.bounds = bounds or Bounds()
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def judge(self, requests: Sequence[Request]) -> list[Reply]:
        """A reply to each request, in their order. Equal requests are judged once.

        Raises ForkLeftError if a worker cannot be started.
        """
        readable = [(readable_part(response), answer) for response, answer in requests]
        distinct = [one for one in dict.fromkeys(readable) if one[0] and len(one[1] or "") <= MAX_CHARACTERS]
        with self._lock:
            try:
                replies = dict(zip(distinct, self._judge(distinct), strict=True))
            except BaseException:
                # A reply that nobody waits for any more must not be taken for that of the next item.
                for worker in list(self._workers):
                    self._end(worker)
                raise
        return [replies.get(one, WRONG) for one in readable]

    def close(self) -> None:
        """End the workers. A later call starts new ones."""
        with self._lock:
            for worker in list(self._workers):
                self._end(worker)

    def disown(self) -> None:
        """In a forked child: leave the workers to the parent, and their pipes with them."""
        self._lock = threading.Lock()
        for worker in self._workers:
            worker.close_pipes()
        self._workers = []

    def _judge(self, requests: Sequence[Request]) -> list[Reply]:
        lines = [json.dumps(request).encode() + b"\n" for request in requests]
        waiting = deque(range(len(lines)))
        replies: dict[int, Reply] = {}
        failures: Counter[int] = Counter()
        for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
            self._end(worker)
        while len(replies) < len(lines):
            while len(self._workers) < min(self.size, len(lines) - len(replies)):
                self._workers.append(_Worker(self.bounds))
            for depth in range(_ITEMS_AT_HAND):
                for worker in self._workers:
                    if waiting and len(worker.items) == depth and worker.has_room(lines[waiting[0]]):
                        item = waiting.popleft()
                        worker.ask(item, lines[item])
            for worker in self._heard():
                for item, reply in worker.replies():
                    replies[item] = reply
                if worker.ended is None:
                    continue
                code = self._end(worker)
                if worker.ended == "failed":
                    if not worker.ready:
                        raise ForkLeftError(
                            f"a worker of the math verifier did not start (exit code {code}); its error is above. "
                            f"Is math-verify installed for {sys.executable}?"
                        )
                    failed = worker.items.popleft()
                    failures[failed] += 1
                    if code == -signal.SIGXCPU or failures[failed] == _TRIES:
                        replies[failed] = WRONG
                    else:
                        waiting.appendleft(failed)
                waiting.extendleft(reversed(worker.items))
        return [replies[item] for item in range(len(lines))]

    def _heard(self) -> "Iterator[_Worker]":
        """Wait until workers say something, end, or are out of time, and give those."""
        busy = [worker for worker in self._workers if worker.items or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.output, selectors.EVENT_READ, worker)
            patience = min(worker.deadline for worker in busy) - time.monotonic()
            speaking = {key.fd for key, _ in selector.select(max(0.0, patience))}
        for worker in busy:
            if worker.output in speaking:
                worker.hear()
                yield worker
            elif time.monotonic() > worker.deadline:
                worker.ended = "failed"
                yield worker

    def _end(self, worker: "_Worker") -> int:
        self._workers.remove(worker)
        return worker.end()


class _Worker:
    """One process, its pipes, and the items it has at hand, of which it works on the first.

    `ended` is None while it serves, `"retired"` after a reply it called its last, `"failed"` after any other end.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        limits = (str(bounds.cpu_seconds), str(bounds.memory_bytes))
        self.process = subprocess.Popen(
            # The worker finds modules where this process does.
            [sys.executable, "-c", _PROGRAM, *limits, *map(str, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # SymPy's choices may depend on the order of sets: the same in all workers and runs.
            env=os.environ | {"PYTHONHASHSEED": "0"},
            bufsize=0,
        )
        self.output = self.process.stdout.fileno()
        self.deadline = time.monotonic() + START_SECONDS
        self.ready = False
        self.ended: str | None = None
        self.items: deque[int] = deque()
        self._sizes: deque[int] = deque()
        self._heard = b""

    def has_room(self, line: bytes) -> bool:
        """Whether one more item can be handed over without waiting."""
        return self.ready and (not self.items or sum(self._sizes) + len(line) <= _BYTES_AT_HAND)

    def ask(self, item: int, line: bytes) -> None:
        """Hand over an item. That the process has ended is noticed when its reply is awaited."""
        if not self.items:
            self.deadline = time.monotonic() + self.bounds.wall_seconds
        self.items.append(item)
        self._sizes.append(len(line))
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[self.process.stdin.write(rest) :]
        except BrokenPipeError:
            pass

    def hear(self) -> None:
        """Take what the process has written so far."""
        piece = os.read(self.output, 1 << 16)
        self._heard += piece
        if not piece:
            self.ended = "failed"

    def replies(self) -> Iterator[tuple[int, Reply]]:
        """The items that are done, with their replies."""
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            if not self.ready:
                # An interpreter may be set up to print something of its own first.
                self.ready = line == b'"ready"'
                continue
            correct, extracted, last = json.loads(line)
            self._sizes.popleft()
            self.deadline = time.monotonic() + self.bounds.wall_seconds
            if last:
                self.ended = "retired"
            yield self.items.popleft(), (correct, extracted)

    def end(self) -> int:
        """Kill the process if it still runs; its exit code."""
        self.process.kill()
        self.close_pipes()
        return self.process.wait()

    def close_pipes(self) -> None:
        """Our ends of the pipes."""
        self.process.stdin.close()
        self.process.stdout.close()


def readable_part(response: str) -> str:
    """The response, or of one that is too long the part from its last box, or nothing if none is near the end."""
    if len(response) <= MAX_CHARACTERS:
        return response
    start = response.rfind("\\boxed", len(response) - MAX_CHARACTERS)
    return response[start:] if start >= 0 else ""


@functools.cache
def shared_pool() -> Pool:
    """The pool of this process: as many workers as it has processors to itself, ended with the process."""
    processors = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    pool = Pool(max(1, min(MAX_WORKERS, processors)))
    atexit.register(pool.close)
    os.register_at_fork(after_in_child=pool.disown)
    return pool
