"""Worker processes that judge mathematical answers, each item within bounds of time and memory.

Workers are fresh interpreters, not forks: the caller may hold threads and a GPU, and its main module is not imported
again. Every item is judged on its own, so other items and the number of workers do not matter. Its time is processor
time, so a busy machine does not matter either.

What an interpreter has computed before may still make an item faster or slower. So the first item of a worker may use
the whole time, and later items only a part of it, which usual items do not come near. An item that needs more is judged
again, as the first item of a fresh worker. So only a worker that has judged nothing before decides that an item has no
verdict. If a worker ends or stalls for another reason, it may be the machine's fault (memory that others took, a
suspended session). Its item is judged again too, and has no verdict if that fails as well.
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

# Responses of 4096 tokens have some 15,000 characters. Of a text longer than this, only the last box is read.
MAX_CHARACTERS = 100_000
MAX_WORKERS = 4
START_SECONDS = 300.0
# How many workers may fail on an item, and how many in a row may fail to start.
_TRIES, _STARTS = 2, 5
# The share of its time that an item may use on a worker that has judged others before.
_LATER_SHARE = 0.2
# A worker gets several items ahead, so that it never waits for us.
_ITEMS_AT_HAND = 4
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[4:]; "
    "from forkleft.verify.worker import main; main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))"
)

# How to judge (`math` or `opdlm`), a response, and the expected answer, or None to only extract the response's.
Request = tuple[str, str, str | None]
# Whether it is right, the answer found, and whether there is a verdict at all.
Reply = tuple[bool, str | None, bool]
WRONG: Reply = (False, None, True)
NO_VERDICT: Reply = (False, None, False)


@dataclass(frozen=True)
class Bounds:
    """How much time and memory one item may use; usual items take 2 to 10 ms.

    Processor time decides, so that a busy machine changes no verdict. `wall_seconds` is for a worker that hangs without
    computing. `memory_bytes`: in addition to what the worker itself uses, on Linux only.
    """

    cpu_seconds: float = 5.0
    wall_seconds: float = 300.0
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

        Raises ForkLeftError if workers cannot be started.
        """
        readable = [(kind, readable_part(response), answer) for kind, response, answer in requests]
        distinct = [item for item in dict.fromkeys(readable) if item[1] and len(item[2] or "") <= MAX_CHARACTERS]
        with self._lock:
            try:
                replies = dict(zip(distinct, self._judge(distinct), strict=True))
            except BaseException:
                # A late reply must not be taken for the reply to the next item.
                for worker in list(self._workers):
                    self._end(worker)
                raise
        return [replies.get(item, WRONG) for item in readable]

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
        waiting, again = deque(range(len(lines))), deque[int]()
        replies: dict[int, Reply] = {}
        failures: Counter[int] = Counter()
        failed_starts = 0
        for worker in [worker for worker in self._workers if worker.process.poll() is not None]:
            self._end(worker)
        while len(replies) < len(lines):
            self._provide(len(lines) - len(replies), len(again))
            self._hand_out(lines, waiting, again)
            for worker in self._heard():
                for item, reply in worker.replies():
                    replies[item] = reply
                if worker.ready:
                    failed_starts = 0
                if worker.ended is None:
                    continue
                code = self._end(worker)
                if not worker.ready:
                    failed_starts += 1
                    self._check_start(code, failed_starts)
                elif worker.ended == "failed":
                    failed = worker.items.popleft()
                    over_time = code == -signal.SIGPROF
                    failures[failed] += not over_time
                    if (over_time and worker.judged == 0) or failures[failed] == _TRIES:
                        replies[failed] = NO_VERDICT
                    else:
                        again.append(failed)
                waiting.extendleft(reversed(worker.items))
        return [replies[item] for item in range(len(lines))]

    def _provide(self, left: int, again: int) -> None:
        """Start workers: no more than there are items left, and a fresh one for each item that is judged again."""
        while len(self._workers) < min(self.size, left):
            self._workers.append(_Worker(self.bounds))
        fresh = sum(not worker.used for worker in self._workers)
        idle = [worker for worker in self._workers if worker.used and not worker.items]
        while fresh < again and (idle or len(self._workers) < self.size):
            if len(self._workers) == self.size:
                self._end(idle.pop())
            self._workers.append(_Worker(self.bounds))
            fresh += 1

    def _hand_out(self, lines: Sequence[bytes], waiting: deque[int], again: deque[int]) -> None:
        for worker in self._workers:
            if again and worker.ready and not worker.used:
                item = again.popleft()
                worker.ask(item, lines[item])
        for depth in range(_ITEMS_AT_HAND):
            for worker in self._workers:
                if waiting and worker.ready and len(worker.items) == depth:
                    item = waiting.popleft()
                    worker.ask(item, lines[item])

    def _heard(self) -> "Iterator[_Worker]":
        """Wait until workers reply, end, or run out of time; return those."""
        busy = [worker for worker in self._workers if worker.items or not worker.ready]
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.output, selectors.EVENT_READ)
                if worker.is_writing:
                    selector.register(worker.input, selectors.EVENT_WRITE)
            patience = min(worker.deadline for worker in busy) - time.monotonic()
            active = {key.fd for key, _ in selector.select(max(0.0, patience))}
        for worker in busy:
            if worker.input in active:
                worker.write()
            if worker.output in active:
                worker.hear()
                yield worker
            elif time.monotonic() > worker.deadline:
                worker.ended = "failed"
                yield worker

    def _check_start(self, code: int, failed_starts: int) -> None:
        """Raise ForkLeftError if a worker ended by itself before it was ready, or workers are killed again and again.

        A worker may be killed without its fault, for instance by a kernel without memory: then another is started.
        """
        if code >= 0:
            raise ForkLeftError(
                f"a worker of the math verifier did not start (exit code {code}); its error is above. "
                f"Is math-verify installed for {sys.executable}?"
            )
        if failed_starts == _STARTS:
            raise ForkLeftError(
                f"{_STARTS} workers of the math verifier in a row were killed while they started (the last by signal "
                f"{-code}); is there enough memory?"
            )

    def _end(self, worker: "_Worker") -> int:
        self._workers.remove(worker)
        return worker.end()


class _Worker:
    """One process, its pipes, and the items it was given; it works on the first of them.

    `ended` is None while it works, `"retired"` after a reply marked as its last, `"failed"` after any other end.
    `used`: whether it was given an item. `judged`: how many it replied to.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        limits = (bounds.cpu_seconds, bounds.cpu_seconds * _LATER_SHARE, bounds.memory_bytes)
        try:
            self.process = subprocess.Popen(
                # The worker looks for modules where this process does.
                [sys.executable, "-c", _PROGRAM, *map(str, limits), *map(str, sys.path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                # SymPy's choices may depend on the order of sets, so that order is the same in all workers and runs.
                env=os.environ | {"PYTHONHASHSEED": "0"},
                bufsize=0,
            )
        except OSError as error:
            raise ForkLeftError(
                f"cannot start a worker of the math verifier: {error.strerror}; is there enough memory, and are more "
                "processes allowed?"
            ) from error
        self._pipes = [pipe for pipe in (self.process.stdin, self.process.stdout) if pipe is not None]
        self.input, self.output = (pipe.fileno() for pipe in self._pipes)
        # A blocked write must not keep us from checking the time.
        os.set_blocking(self.input, False)
        self.deadline = time.monotonic() + START_SECONDS
        self.ready = self.used = False
        self.ended: str | None = None
        self.items: deque[int] = deque()
        self.judged = 0
        self._unwritten = self._heard = b""

    @property
    def is_writing(self) -> bool:
        """Whether some of its items are not written to the worker yet."""
        return bool(self._unwritten)

    def ask(self, item: int, line: bytes) -> None:
        """Give an item to the worker. If the process has ended, this shows when we wait for the reply."""
        if not self.items:
            self.deadline = time.monotonic() + self.bounds.wall_seconds
        self.used = True
        self.items.append(item)
        self._unwritten += line
        self.write()

    def write(self) -> None:
        """Write as much as the worker accepts now."""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[os.write(self.input, self._unwritten) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unwritten = b""

    def hear(self) -> None:
        """Read what the process has written so far."""
        piece = os.read(self.output, 1 << 16)
        self._heard += piece
        if not piece:
            self.ended = "failed"

    def replies(self) -> Iterator[tuple[int, Reply]]:
        """The items that are done, with their replies."""
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            if not self.ready:
                # An interpreter may be configured to print something first.
                self.ready = line == b'"ready"'
                continue
            correct, extracted, last = json.loads(line)
            self.judged += 1
            self.deadline = time.monotonic() + self.bounds.wall_seconds
            if last:
                self.ended = "retired"
            yield self.items.popleft(), (correct, extracted, True)

    def end(self) -> int:
        """Kill the process if it still runs; return its exit code."""
        self.process.kill()
        self.close_pipes()
        return self.process.wait()

    def close_pipes(self) -> None:
        """Our ends of the pipes."""
        for pipe in self._pipes:
            pipe.close()


def readable_part(response: str) -> str:
    """The response. If it is too long: the part from its last box, or nothing if no box is near the end."""
    if len(response) <= MAX_CHARACTERS:
        return response
    start = response.rfind("\\boxed", len(response) - MAX_CHARACTERS)
    return response[start:] if start >= 0 else ""


@functools.cache
def shared_pool() -> Pool:
    """The pool of this process: as many workers as it has processors. They end with the process."""
    processors = (os.cpu_count() or 1) // int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    pool = Pool(max(1, min(MAX_WORKERS, processors)))
    atexit.register(pool.close)
    os.register_at_fork(after_in_child=pool.disown)
    return pool
