"""A worker process: reads items, one a line, judges each, and replies with a line. Ends when its standard input does.

Line in: JSON `[kind, response, answer or null]`. Line out: `[correct, extracted or null, last]`, where `last` says that
this worker ends now. A first line `"ready"` says that everything is loaded.

The first item of a worker may use `cpu_seconds` of processor time, later ones `later_cpu_seconds`. If an item needs
more, the kernel ends the process (SIGPROF), whatever it is doing.
"""

import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path
from typing import BinaryIO


def main(cpu_seconds: float, later_cpu_seconds: float, memory_bytes: int) -> None:
    """Serve until standard input ends."""
    # An interrupt at the keyboard reaches all processes, as a scheduler's signal may; only the parent decides when its
    # workers end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # The parent may have been started with this signal ignored or blocked.
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    # What libraries print must not mix with the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    _limit(resource.RLIMIT_CORE, 0)

    from sympy.core.cache import clear_cache

    from forkleft.verify import math, opdlm

    judges = {"math": math.judge, "opdlm": opdlm.judge}
    logging.disable(logging.CRITICAL)
    # Building regular expressions and parser tables must not count as time of the first item.
    for judge in judges.values():
        judge(r"so \boxed{\frac{1}{2}}", "0.5")
    # Until now standard error says why a worker did not start. From here on it is not needed.
    os.dup2(nowhere, sys.stderr.fileno())

    loaded, seconds = _address_space(), cpu_seconds
    _send(replies, "ready")
    for line in sys.stdin.buffer:
        kind, response, answer = json.loads(line)
        # What earlier items left in memory must not change the time or memory of this one.
        clear_cache()
        if sys.platform == "linux":  # elsewhere the kernel refuses or ignores it
            _limit(resource.RLIMIT_AS, _address_space() + memory_bytes)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        correct, extracted = judges[kind](response, answer)
        signal.setitimer(signal.ITIMER_PROF, 0)
        last = _address_space() - loaded > memory_bytes // 2
        _send(replies, [correct, extracted, last])
        if last:
            return
        seconds = later_cpu_seconds


def _send(replies: BinaryIO, value: object) -> None:
    replies.write(json.dumps(value).encode() + b"\n")
    replies.flush()


def _limit(kind: int, value: int) -> None:
    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))


def _address_space() -> int:
    """Bytes that count towards RLIMIT_AS; 0 on systems without that bound."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
