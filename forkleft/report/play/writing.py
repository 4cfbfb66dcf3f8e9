"""A student writes for the page: every pass becomes an event that says what has changed.

Events of a side (0 for the first model, 1 for the second), in their order:

- `pass`: its number, the `length` of the response so far, and `cells`, what was committed: [position, text, entropy],
  and a fourth entry, true, if the text is the name of a special token;
- `end`: how many tokens were `kept` (those behind a stop token are dropped), the confidences at commit, the figures;
- `verdict`: whether the answer is right, and which answer was found; or why there is no verdict;
- `error`: why the student could not go on.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from forkleft.errors import ForkLeftError
from forkleft.prompts import prompt_ids
from forkleft.report.live import pieces
from forkleft.report.play.settings import Settings
from forkleft.report.play.turns import Turn
from forkleft.rollout import decode, decoding_of
from forkleft.students import Student
from forkleft.verify import Verifier

_LOG = logging.getLogger(__name__)
# A token whose character is not complete yet.
_TORN = "\ufffd"


@dataclass(frozen=True)
class Player:
    """A student on the page. name: as the user said it. plain: it gets questions without the chat template."""

    name: str
    student: Student
    plain: bool = False

    def prompt(self, question: str) -> list[int]:
        """The ids of a question. Raises ForkLeftError if there is no chat template, or it refuses the question."""
        tokenizer = self.student.text_tokenizer
        if self.plain:
            return tokenizer.encode(question)
        return prompt_ids(tokenizer, [{"role": "user", "content": question}])


class _CancelledError(Exception):
    """Nobody watches any more."""


class Passes:
    """What changes from pass to pass: give `after` what `generate` gives to its `watch`."""

    def __init__(self, student: Student) -> None:
        self._student = student
        self._special = {*student.text_tokenizer.all_special_ids, *student.vocabulary.stop_ids}
        self._cells: list[tuple[Any, ...] | None] = []
        self._line = 0
        self.count = 0

    def after(self, ids: Sequence[int], entropies: Sequence[float]) -> dict[str, Any]:
        """The `pass` event, without its side."""
        self.count += 1
        cells = [*self._cells[: self._line], *self._read(ids, entropies)]
        before = [*self._cells, *[None] * (len(cells) - len(self._cells))]
        changed = [
            [place, *cell] for place, (cell, old) in enumerate(zip(cells, before, strict=True)) if cell and cell != old
        ]
        self._cells = cells
        return {"kind": "pass", "pass": self.count, "length": len(ids), "cells": changed}

    def _read(self, ids: Sequence[int], entropies: Sequence[float]) -> list[tuple[Any, ...] | None]:
        """The cells from the last line on that can still change; None for a mask."""
        start, masked = self._line, False
        mask_id = self._student.vocabulary.mask_id
        texts = [_TORN] * (len(ids) - start)
        for text, places in pieces(self._student, ids[start:]):
            masked = masked or ids[start + places[0]] == mask_id
            # The token that completes a character has its text.
            texts[places[0] : places[-1] + 1] = [*[""] * (len(places) - 1), text]
            if text.endswith("\n") and not masked:
                self._line = start + places[-1] + 1
        return [
            None if i == mask_id else self._cell(i, text, round(entropy, 4))
            for i, text, entropy in zip(ids[start:], texts, entropies[start:], strict=True)
        ]

    def _cell(self, i: int, text: str, entropy: float) -> tuple[Any, ...]:
        if i not in self._special:
            return text, entropy
        return str(self._student.text_tokenizer.convert_ids_to_tokens(i)), entropy, True


def write(turn: Turn, side: int, player: Player, settings: Settings, verifier: Verifier) -> None:
    """Let a student answer and tell every pass. An error is told too. Ends within a pass if the turn is cancelled."""
    try:
        text = _decode(turn, side, player, settings)
        if settings.expected.strip():
            turn.tell({"kind": "verdict", "side": side} | _verdict(verifier, text, settings.expected.strip()))
    except _CancelledError:
        pass
    except ForkLeftError as error:
        turn.tell({"kind": "error", "side": side, "message": str(error)})
    except Exception as error:  # a model may raise anything, and the page lives on
        _LOG.exception("%s failed while it wrote", player.name)
        message = f"the model failed while it wrote: {type(error).__name__}: {error}"
        turn.tell({"kind": "error", "side": side, "message": message})


def _decode(turn: Turn, side: int, player: Player, settings: Settings) -> str:
    student = player.student
    prompt = player.prompt(settings.question)
    student.check_prompt(prompt, settings.max_new_tokens, "the question")
    decoding = decoding_of(
        student.family,
        settings.decoding,
        order=settings.order,
        passes=settings.passes,
        threshold=settings.threshold,
    )
    passes = Passes(student)

    def watch(number: int, ids: list[int], entropies: list[float]) -> None:
        if turn.cancelled.is_set():
            raise _CancelledError
        turn.tell({"side": side} | passes.after(ids, entropies))

    begun = time.perf_counter()
    (written,) = decode(
        student,
        [prompt],
        decoding,
        max_new_tokens=settings.max_new_tokens,
        temperature=settings.temperature,
        seed=settings.seed,
        watch=watch,
    )
    turn.tell(
        {
            "kind": "end",
            "side": side,
            "kept": len(written.tokens),
            "stopped": written.stopped,
            "forwards": written.forwards,
            "seconds": round(time.perf_counter() - begun, 3),
            "confidence": [round(value, 4) for value in written.confidence],
        }
    )
    return written.text or ""


def _verdict(verifier: Verifier, text: str, expected: str) -> dict[str, Any]:
    try:
        (judgement,) = verifier.judgements([text], [expected])
    except ForkLeftError as error:
        return {"correct": False, "judged": False, "message": str(error)}
    return {"correct": judgement.correct, "judged": judgement.judged, "extracted": judgement.extracted}
