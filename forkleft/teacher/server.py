"""Answers from an OpenAI-compatible server: vLLM, SGLang, `transformers serve`.

The server gives the teacher's own answers d, which decide the routes. Its distributions on the student's prefixes come
from the model in memory (`teacher/local.py`) or from another server (`teacher/remote.py`).
"""

import json
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

from forkleft.prompts import Message
from forkleft.teacher.answers import Answer, Keep
from forkleft.teacher.connection import Connection, RefusedError

_KEPT = "skip_special_tokens"


class AnswerServer(Connection):
    """A model behind `url` (for instance http://localhost:8000/v1).

    stop: texts that end an answer and are not part of it: those of both models' stop tokens,
    `[teacher.tokenizer.decode([i]) for i in teacher.stop_ids]`. settings: those of `Connection`.
    """

    _wanted, _options = "answer", "answers"

    def __init__(self, url: str, model: str, *, stop: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(url, model, **settings)
        self.stop = tuple(sorted(set(stop) - {""}))
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
        over = threading.Event()
        hint = "is the server running, and does it serve that model?"
        asks = [partial(self._answer, messages, max_new_tokens) for messages in conversations]
        futures = self.begin([partial(self.tried, ask, over, hint=hint) for ask in asks], over)
        numbers = {future: number for number, future in enumerate(futures)}
        try:
            while numbers:
                # Errors last, so that no answer is lost.
                for future in sorted(self.first_done(numbers), key=lambda future: future.exception() is not None):
                    number, answer = numbers.pop(future), future.result()
                    if keep is not None:
                        keep(number, answer)
        finally:
            over.set()
        return [future.result() for future in futures]

    def check(self) -> None:
        """Raise ForkLeftError if the server cannot be reached, does not let us in, or does not serve the model."""
        if self.model not in self.listed(f"{self.url}/models"):
            # Some servers load a model on request: ask for one token to find out.
            self.answers([[{"role": "user", "content": "1+1=?"}]], max_new_tokens=1)

    def _answer(self, messages: Sequence[Message], max_new_tokens: int) -> Answer:
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
        try:
            reply, _ = self.send(f"{self.url}/chat/completions", body)
        except RefusedError as error:
            if error.status in (400, 422) and _KEPT in body and _KEPT in error.text:
                # `transformers serve` refuses fields that OpenAI does not have; it looks for `stop` in all tokens.
                self._extensions = {}
                return self._answer(messages, max_new_tokens)
            raise
        return _parsed(json.loads(reply), self.stop)


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
