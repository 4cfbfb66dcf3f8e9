"""Requests to a server that runs a model: several at a time, each tried again after trouble, each wait told of."""

import http.client
import json
import logging
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from email.message import Message
from queue import Empty, SimpleQueue
from typing import Any, ClassVar, TypeVar

from forkleft.errors import ForkLeftError
from forkleft.files import JSON_ERRORS
from forkleft.signals import end_if_asked, ended_by_signal
from forkleft.teacher.deadlines import opened

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
# A running server lists its models within so many seconds.
_REACHED_WITHIN = 10.0
_LONGEST_PAUSE = 30.0
# A reply that says nothing we understand will hardly get better.
_BAD_REPLIES = 5
# Bytes of a text: a reply must not fill the memory. That of an answer of 100,000 tokens is a few megabytes.
_LARGEST_TEXT = 1 << 24
# Seconds after which a wait looks whether a signal came just before it.
_LONGEST_DEAFNESS = 5.0
# Bytes of a reply that are read at a time.
_PART = 1 << 20


class RefusedError(Exception):
    """The server answered with an HTTP error."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"HTTP {status}: {text}")
        self.status, self.text = status, text

    @property
    def may_pass(self) -> bool:
        """Whether the same request may be answered later."""
        return self.status >= 500 or self.status in (408, 429)


class Connection:
    """A model behind `url`.

    attempts: how often a request is tried, with pauses of 1, 2, 4 … times `pause` seconds, up to half a minute.
    timeout: seconds for one request. concurrency: requests at the same time. patience: after so many seconds without
    any answer there is a warning, the next after 2, 4 … times as many.
    """

    # What is asked for, and how the options are called in a recipe, for messages.
    _wanted: ClassVar[str]
    _options: ClassVar[str]

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        attempts: int = 5,
        pause: float = 1.0,
        timeout: float = 600.0,
        concurrency: int = 32,
        patience: float = 5.0,
    ) -> None:
        if api_key is not None and not re.fullmatch("[!-~]*", api_key):
            # The key is not repeated, here or by Python, which would refuse it as a header.
            raise ForkLeftError(
                f"the key for {url} holds something else than printable ASCII, such as a space or a line end in the "
                "middle; set it again"
            )
        self.url, self.model, self.api_key = url.rstrip("/"), model, api_key
        self.attempts, self.pause, self.timeout, self.concurrency = attempts, pause, timeout, concurrency
        # How often a request found no server, or a broken one: behind it may be another server by now.
        self.losses = 0
        # `_trouble`: the last error, for the warning.
        self._patience, self._trouble = patience, ""

    def send(
        self, address: str, body: Any, timeout: float | None = None, *, most: int = _LARGEST_TEXT
    ) -> tuple[bytes, Message]:
        """The body and the headers of a reply. body: sent as JSON; None only gets what is there. most: its bytes.

        Raises RefusedError, OSError or HTTPException, and ValueError for a reply without end.
        """
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(address, None if body is None else json.dumps(body).encode(), headers)
        try:
            with opened(request, timeout or self.timeout) as response:
                return _body(response, most), response.headers
        except urllib.error.HTTPError as error:
            raise RefusedError(error.code, self._without_key(error.read(4096).decode(errors="replace"))) from None

    def listed(self, address: str) -> dict[str, dict[str, Any]]:
        """The models that the server lists, by name; empty if it keeps no such list.

        Raises ForkLeftError if the server cannot be reached, or does not let us in.
        """
        try:
            body, _ = self.send(address, None, min(self.timeout, _REACHED_WITHIN))
            return {model["id"]: model for model in json.loads(body)["data"]}
        except RefusedError as error:
            if error.status in (401, 403):
                raise ForkLeftError(f"{self.url} does not let us in (HTTP {error.status}); is the key right?") from None
        except (OSError, http.client.HTTPException) as error:
            raise ForkLeftError(
                f"cannot reach {self.url}: {type(error).__name__}: {error}; is the server running, and the address "
                "right?"
            ) from error
        except (KeyError, TypeError, *JSON_ERRORS):  # a server without such a list, or with another kind of list
            pass
        return {}

    def tried(self, ask: Callable[[], T], over: threading.Event, *, name: str = "", hint: str) -> T:
        """What `ask` returns, which is called again after errors that may pass, until `over` is set.

        name, hint: what was asked, and what to do, for the message. Raises ForkLeftError after the last attempt.
        """
        bad_replies = 0
        for attempt in range(self.attempts):
            if attempt and over.wait(min(self.pause * 2 ** (attempt - 1), _LONGEST_PAUSE)):
                break
            try:
                found = ask()
                self._trouble = ""
                return found
            except RefusedError as error:
                reason = str(error)
                if not error.may_pass:
                    break
                self.losses += 1
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
                self.losses += 1
            except (KeyError, TypeError, IndexError, *JSON_ERRORS) as error:
                reason = f"{type(error).__name__}: {error}"
                bad_replies += 1
                if bad_replies == _BAD_REPLIES:
                    break
            self._trouble = f"attempt {attempt + 1}: {self._without_key(reason)}"
        raise ForkLeftError(
            f"{name and f'{name}: '}no {self._wanted} from {self.url} (model {self.model!r}) in {attempt + 1} "
            f"attempt(s): {self._without_key(reason)}; {hint}"
        )

    def begin(self, asks: Sequence[Callable[[], T]], over: threading.Event) -> list[Future[T]]:
        """Begin to call the functions, `concurrency` at a time, and return at once.

        An error sets `over`: those that have not begun by then get the same error.
        """
        futures: list[Future[T]] = [Future() for _ in asks]
        waiting: SimpleQueue[tuple[Future[T], Callable[[], T]]] = SimpleQueue()
        for pair in zip(futures, asks, strict=True):
            waiting.put(pair)
        failed: list[Exception] = []

        def work() -> None:
            try:
                while True:
                    future, ask = waiting.get_nowait()
                    if over.is_set():
                        future.set_exception(failed[0] if failed else ForkLeftError("the request was not sent"))
                        continue
                    try:
                        future.set_result(ask())
                    except Exception as error:
                        failed.append(error)
                        over.set()
                        future.set_exception(error)
            except Empty:
                pass

        for _ in range(min(self.concurrency, len(asks))):
            # Not a pool: after an error or an interrupt it would wait for the requests under way.
            threading.Thread(target=work, daemon=True).start()
        return futures

    def first_done(self, futures: Collection[Future[T]]) -> set[Future[T]]:
        """Wait until some are done, and return those. While none is, warn now and then. A signal may end the wait."""
        waited = 0.0
        while not (done := self._done(futures, pause := min(self._patience - waited, _LONGEST_DEAFNESS))):
            end_if_asked()
            waited += pause
            if waited < self._patience:
                continue
            # Do not warn of a slow server again and again.
            self._patience *= 2
            _LOG.warning(
                "no %s from %s for %.0f s%s; a request is given up after %.0f s (%s_timeout), and tried %d time(s) "
                "(%s_attempts)",
                self._wanted,
                self.url,
                waited,
                f" ({self._trouble})" if self._trouble else "",
                self.timeout,
                self._options,
                self.attempts,
                self._options,
            )
        return done

    def _done(self, futures: Collection[Future[T]], seconds: float) -> set[Future[T]]:
        with ended_by_signal():
            return wait(futures, timeout=seconds, return_when=FIRST_COMPLETED).done

    def _without_key(self, reason: str) -> str:
        """The reason without the key, which a server may repeat in its message."""
        return f"{reason.replace(self.api_key, '***') if self.api_key else reason:.300}"


def _body(response: http.client.HTTPResponse, most: int) -> bytes:
    """The body of a reply. Raises IncompleteRead or ValueError if it is cut or too long."""
    announced, body = response.length, bytearray()
    while len(body) != announced and (part := response.read1(_PART)):
        body += part
        if len(body) > most:
            raise ValueError(f"expected a reply of at most {most} bytes, found more")
    if announced is not None and len(body) < announced:
        raise http.client.IncompleteRead(bytes(body), announced - len(body))
    return bytes(body)
