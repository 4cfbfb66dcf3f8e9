"""Answers from an OpenAI-compatible server: vLLM, SGLang, `transformers serve`.

The server gives the teacher's own answers d, which decide the routes. Its distributions on the student's prefixes need
the model in memory (`teacher/local.py`).
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from forkleft.errors import ForkLeftError
from forkleft.prompts import Message
from forkleft.teacher.answers import Answer


class AnswerServer:
    """A model behind `url` (for instance http://localhost:8000/v1).

    attempts: how often a request is tried, waiting 1, 2, 4 … times `pause` seconds in between. timeout: seconds for one
    request. concurrency: requests under way at a time.
    """

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
    ) -> None:
        self.url, self.model, self.api_key = url.rstrip("/"), model, api_key
        self.attempts, self.pause, self.timeout, self.concurrency = attempts, pause, timeout, concurrency

    @property
    def identity(self) -> str:
        """Where the answers come from; a server does not tell more."""
        return f"{self.url} {self.model}"

    def answers(self, conversations: Sequence[Sequence[Message]], *, max_new_tokens: int) -> list[Answer]:
        """A greedy answer to each conversation. Raises ForkLeftError if the server cannot be reached or understood."""
        with ThreadPoolExecutor(self.concurrency) as pool:
            return list(pool.map(lambda messages: self._answer(messages, max_new_tokens), conversations))

    def _answer(self, messages: Sequence[Message], max_new_tokens: int) -> Answer:
        body = {
            "model": self.model,
            "messages": list(messages),
            "temperature": 0.0,
            "max_tokens": max_new_tokens,
            "stream": False,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        for attempt in range(self.attempts):
            if attempt:
                time.sleep(self.pause * 2 ** (attempt - 1))
            try:
                return _parsed(self._post(body))
            except urllib.error.HTTPError as error:
                reason = f"HTTP {error.code}: {error.read(200).decode(errors='replace')}"
                if error.code < 500 and error.code not in (408, 429):
                    break
            except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, IndexError) as error:
                reason = f"{type(error).__name__}: {error}"
        raise ForkLeftError(
            f"no answer from {self.url} (model {self.model!r}) in {attempt + 1} attempt(s): {reason:.300}; "
            "is the server running, and does it serve that model?"
        )

    def _post(self, body: dict) -> dict:
        headers = {"Content-Type": "application/json"}
        if self.api_key is not None:
            headers["Authorization"] = f"Bearer {self.api_key}"
        request = urllib.request.Request(f"{self.url}/chat/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=self.timeout) as response:
            return json.load(response)


def _parsed(reply: dict) -> Answer:
    """Raises ValueError, KeyError, TypeError or IndexError if the reply is not a chat completion."""
    choice = reply["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str):
        raise TypeError(f"expected the answer as text, found {text!r:.80}")
    return Answer(text, stopped=choice["finish_reason"] == "stop")
