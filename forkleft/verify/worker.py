"""A worker process: reads a question a line, judges it, answers with a line. Ends when its standard input does.

Line in: JSON `[response, answer or null]`. Line out: `[correct, extracted or null, last]`, where `last` says that this
worker ends now. A first line `"ready"` says that everything is loaded.
"""

import json
import logging
import os
import resource
import signal
import sys
import time
from pathlib import Path


def main(cpu_seconds: int, memory_bytes: int) -> None:
    """Serve until standard input ends. The kernel ends the process over `cpu_seconds` for one item."""
    # An interrupt at the keyboard reaches the whole group; the parent decides what becomes of its workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # What libraries print must not get between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    _limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":  # elsewhere the kernel refuses or ignores it
        _limit(resource.RLIMIT_AS, memory_bytes)

    from forkleft.verify.math import judge

    logging.disable(logging.CRITICAL)
    # The first item builds regular expressions and parser tables, which must not count as its own time.
    judge(r"so \boxed{\frac{1}{2}}", "0.5")
    # From here on nothing on standard error is about us; before, it tells why a worker did not start.
    os.dup2(nowhere, sys.stderr.fileno())

    _send(replies, "ready")
    for line in sys.stdin.buffer:
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + cpu_seconds)
        correct, extracted = judge(*json.loads(line))
        # What an item leaves behind must not count against the next one.
        last = _address_space() > memory_bytes // 2
        _send(replies, [correct, extracted, last])
        if last:
            return


def _send(replies, value: object) -> None:
    replies.write(json.dumps(value).encode() + b"\n")
    replies.flush()


def _limit(kind: int, value: int) -> None:
    _, most = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))


def _address_space() -> int:
    """Bytes that count towards RLIMIT_AS; 0 where there is no such bound."""
    if sys.platform != "linux":
        return 0
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
