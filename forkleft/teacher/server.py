"""Answers from an OpenAI-compatible server: vLLM, SGLang, `transformers serve`.

The server gives the teacher's own answers d, which decide the routes. Its distributions on the student's prefixes need
the model in memory (`teacher/local.py`).
"""

import http.client
import json
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.prompts import Message
from forkleft.teacher.answers import Answer, Keep

_LOG = logging.getLogger(__name__)
_KEPT = "skip_special_tokens"
# A running server lists its models within so many seconds.
_REACHED_WITHIN = 10.0


class AnswerServer:
    """A model behind `url` (for instance http://localhost:8000/v1).

    stop: texts that end an answer and are not part of it: those of both models' stop tokens,
    `[teacher.tokenizer.decode([i]) for i in teacher.stop_ids]`. attempts: how often a request is tried, with pauses of
    1, 2, 4 … times `pause` seconds. timeout: seconds for one request. concurrency: requests at the same time.
    patience: after so many seconds without any answer there is a warning, the next after 2, 4 … times as many.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        stop: Sequence[str] = (),
        api_key: str | None = None,
        attempts: int = 5,
        pause: float = 1.0,
        timeout: float = 600.0,
        concurrency: int = 32,
        patience: float = 5.0,
    ) -> None:
        self.url, self.model, self.api_key = url.rstrip("/"), model, api_key
        self.stop = tuple(sorted(set(stop) - {""}))
        self.attempts, self.pause, self.timeout, self.concurrency = attempts, pause, timeout, concurrency
        # `_trouble`: the last error, for the warning.
        self._patience, self._trouble = patience, ""
        # vLLM and SGLang look for `stop` in text without special tokens, unless this option keeps them.
        self._extensions: dict[str, Any] = {_KEPT: False} if self.stop else {}

    @property
    def identity(self) -> str:
        """The name of the model and what ends its answers. A server does not say more, and its address may change."""
        return json.dumps({"model": self.model, "stop": self.stop})

    def answers(
        self, conversations: Sequence[Sequence[Message]], *, max_new_tokens: int, keep: Keep | None = None
    ) -> list[Answer]:
        """A greedy answer to each conversation; `keep` gets the number and the answer as soon as it comes.

        Raises ForkLeftError if the server cannot be reached or understood.
        """
        asked: SimpleQueue[tuple[int, Sequence[Message]]] = SimpleQueue()
        replies: SimpleQueue[tuple[int | None, Any]] = SimpleQueue()
        over = threading.Event()
        for question in enumerate(conversations):
            asked.put(question)

        def work() -> None:
            try:
                while not over.is_set():
                    number, messages = asked.get_nowait()
                    replies.put((number, self._answer(messages, max_new_tokens, over)))
            except Empty:
                pass
            except Exception as error:
                replies.put((None, error))

        for _ in range(min(self.concurrency, len(conversations))):
            # Not a pool: after an error or an interrupt it would wait for the requests under way.
            threading.Thread(target=work, daemon=True).start()
        found: dict[int, Answer] = {}
        try:
            while len(found) < len(conversations):
                number, reply = self._next(replies)
                if number is None:
                    raise reply
                found[number] = reply
                if keep is not None:
                    keep(number, reply)
        finally:
            over.set()
        return [found[number] for number in range(len(conversations))]

    def check(self) -> None:
        """Raise ForkLeftError if the server cannot be reached, does not let us in, or does not serve the model."""
        listed: set[str] = set()
        try:
            listed = {model["id"] for model in self._send("models", None, min(self.timeout, _REACHED_WITHIN))["data"]}
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise ForkLeftError(f"{self.url} does not let us in (HTTP {error.code}); is the key right?") from None
        except (OSError, http.client.HTTPException) as error:
            raise ForkLeftError(
                f"cannot reach {self.url}: {type(error).__name__}: {error}; is the server running, and the address "
                "right?"
            ) from error
        except (ValueError, KeyError, TypeError):  # a server without such a list, or with another kind of list
            pass
        if self.model not in listed:
            # Some servers load a model on request: ask for one token to find out.
            self.answers([[{"role": "user", "content": "1+1=?"}]], max_new_tokens=1)

    def _next(self, replies: SimpleQueue[tuple[int | None, Any]]) -> tuple[int | None, Any]:
        """The next reply. While there is none, warn now and then."""
        waited = 0.0
        while True:
            try:
                return replies.get(timeout=self._patience - waited)
            except Empty:
                waited = self._patience
                # Do not warn of a slow server again and again.
                self._patience *= 2
                _LOG.warning(
                    "no answer from %s for %.0f s%s; a request is given up after %.0f s (answers_timeout), and tried "
                    "%d time(s) (answers_attempts)",
                    self.url,
                    waited,
                    f" ({self._trouble})" if self._trouble else "",
                    self.timeout,
                    self.attempts,
                )

    def _answer(self, messages: Sequence[Message], max_new_tokens: int, over: threading.Event) -> Answer:
        body = {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0.0,
            "max_tokens": max_new_tokens,
            "stream": False,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        if self.stop:
            body |= {"stop": self.stop} | self._extensions
        for attempt in range(self.attempts):
            if attempt and over.wait(self.pause * 2 ** (attempt - 1)):
                break
            try:
                answer = _parsed(self._post(body), self.stop)
                self._trouble = ""
                return answer
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}: {error.read(200).decode(errors='replace')}"
                if error.code in (400, 422) and _KEPT in body and _KEPT in reason:
                    # `transformers serve` refuses fields that OpenAI does not have; it looks for `stop` in all tokens.
                    self._extensions = {}
                    return self._answer(messages, max_new_tokens, over)
                if error.code < 500 and error.code not in (408, 429):
                    break
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError) as error:
                reason = f"{type(error).__name__}: {error}"
            self._trouble = f"attempt {attempt + 1}: {self._without_key(reason)}"
        raise ForkLeftError(
            f"no answer from {self.url} (model {self.model!r}) in {attempt + 1} attempt(s): "
            f"{self._without_key(reason)}; is the server running, and does it serve that model?"
        )

    def _without_key(self, reason: str) -> str:
        """The reason without the key, which a server may repeat in its message."""
        return f"{reason.replace(self.api_key, '***') if self.api_key else reason:.300}"

    def _post(self, body: dict) -> dict:
        return self._send("chat/completions", json.dumps(body).encode(), self.timeout)

    def _send(self, what: str, body: bytes | None, timeout: float) -> Any:
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(f"{self.url}/{what}", body, headers)
        with urllib.request.urlopen(request, timeout=timeout) as response:
            return json.load(response)


def _parsed(reply: dict, stop: Sequence[str]) -> Answer:
    """The answer in a reply. Raises ValueError, KeyError, TypeError or IndexError if it is no finished completion."""
    choice = reply["choices"][0]
    text, reason = choice["message"]["content"], choice["finish_reason"]
    if not isinstance(text, str):
        raise TypeError(f"expected the answer as text, found {text!r:.80}")
    if reason not in ("stop", "length"):
        raise ValueError(f"expected an answer that ended by stop or length, found {reason!r:.80}")
    # Some servers leave the stop text in the answer.
    end = min((text.index(ending) for ending in stop if ending in text), default=None)
    return Answer(text[:end], stopped=reason == "stop" or end is not None)
