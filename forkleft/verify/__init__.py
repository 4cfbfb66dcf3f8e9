"""Whether a written answer is right: one interface for training and evaluation.

Verifier("math").judge(responses, answers)
Verifier.of("my_package.module:function").judge(responses, answers)
"""

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from operator import attrgetter
from typing import Literal, Union, get_args

from forkleft.errors import ForkLeftError, did_you_mean
from forkleft.trust import names_code
from forkleft.verify.choice import choice_answer
from forkleft.verify.lab import lab_answer
from forkleft.verify.pool import shared_pool

_LOG = logging.getLogger(__name__)

Kind = Literal["math", "opdlm", "choice", "lab", "exact"]
KINDS: tuple[str, ...] = get_args(Kind)
# The kinds that are judged in worker processes.
MATHEMATICAL = ("math", "opdlm")
LETTERS = "ABCD"
# The user's own verifier: gets responses and right answers, gives a verdict on each.
Judge = Callable[[Sequence[str], Sequence[str]], Sequence[bool]]


@dataclass(frozen=True)
class Judgement:
    """The verdict on a response.

    extracted: the final answer found in it, None if there is none. judged: False if there is no verdict, because the
    comparison took too much time or memory; then `correct` is False too.
    """

    correct: bool
    extracted: str | None
    judged: bool = True


@dataclass(frozen=True)
class Verifier:
    """How answers are judged.

    kind: `math` compares values (0.5 is 1/2), in worker processes with bounds of time and memory; `opdlm` does the same
    exactly like OPDLM's scorer, for the paper's figures; `choice` compares the letter chosen among `letters`; `lab` is
    for the lab's chains; `exact` wants the whole response to be the answer, so that no step of it is left unjudged.
    `docs/evaluation.md` has the details. function: the user's own instead; then `kind` is its name in results and
    errors.
    """

    kind: str = "math"
    letters: str = LETTERS
    function: Judge | None = None

    def __post_init__(self) -> None:
        if (self.kind in KINDS) == (self.function is not None):
            if self.function is not None:
                raise ForkLeftError(f"{self.kind} is the name of a built-in verifier; give your function another")
            hint = did_you_mean(self.kind, KINDS)
            raise ForkLeftError(
                f"unknown verifier kind {self.kind!r}; there are {', '.join(KINDS)}, and functions of your own as "
                f"package.module:function{hint}"
            )
        if not re.fullmatch("[A-Z]+", self.letters):
            raise ForkLeftError(f"expected capital letters of the offered choices, found {self.letters!r:.40}")

    @classmethod
    def of(cls, said: Union["Verifier", Judge, str], letters: str = LETTERS) -> "Verifier":
        """The verifier for a `Verifier`, a function, a kind, or `package.module:function`.

        The last is imported, which runs code. So give it only what the user typed or allowed (`forkleft.trust`), never
        what a file of results or a checkpoint says. Raises ForkLeftError if there is no such kind or function.
        """
        if isinstance(said, Verifier):
            return said
        if isinstance(said, str):
            return cls(said, letters, _imported(said) if names_code(said) else None)
        if not callable(said):
            raise ForkLeftError(f"expected a verifier's kind or a function, found {said!r:.60}")
        name = getattr(said, "__qualname__", type(said).__qualname__)
        return cls(f"{said.__module__}:{name}", letters, said)

    def judge(
        self, responses: Sequence[str], answers: Sequence[str], *, ids: Sequence[str] | None = None
    ) -> list[bool]:
        """Whether the final answer in each response is right, in their order.

        A response without a final answer is wrong. A response without a verdict counts as wrong, and their number is
        logged. ids: of the questions, for errors (default: their numbers). Raises what `judgements` raises.
        """
        return verdicts(self.judgements(responses, answers, ids=ids))

    def judgements(
        self, responses: Sequence[str], answers: Sequence[str], *, ids: Sequence[str] | None = None
    ) -> list[Judgement]:
        """The verdict on each response together with the answer found in it, in their order.

        Each judgement depends only on its own item, unless the user's function does otherwise. Raises
        ForkLeftError for unequal numbers of responses and answers, for an expected choice that is not among `letters`,
        and, naming the verifier and the question, for a function that raises or does not return a bool for each
        response.
        """
        if len(responses) != len(answers):
            raise ForkLeftError(f"expected an answer for each response, found {len(responses)} and {len(answers)}")
        if self.kind in MATHEMATICAL:
            requests = [(self.kind, response, answer) for response, answer in zip(responses, answers, strict=True)]
            return [Judgement(*reply) for reply in shared_pool().judge(requests)]
        found = [self.extract(response) for response in responses]
        if self.function is not None:
            names = [f"question {name}" for name in ids or range(len(answers))]
            verdicts = _verdicts(self.kind, self.function, responses, answers, names)
            return [Judgement(*pair) for pair in zip(verdicts, found, strict=True)]
        for answer in answers:
            if self.kind == "choice" and (len(answer) != 1 or answer not in self.letters):
                raise ForkLeftError(
                    f"expected one of the letters {self.letters} as the right choice, found {answer!r:.40}; "
                    "name the offered letters with letters=…"
                )
        return [
            Judgement(choice is not None and choice == answer.strip(), choice)
            for choice, answer in zip(found, answers, strict=True)
        ]

    def extract(self, response: str) -> str | None:
        """The final answer written in `response`, None if there is none. For `exact` and for a function, all of it."""
        if self.kind == "exact" or self.function is not None:
            return response.strip() or None
        if self.kind in MATHEMATICAL:
            return shared_pool().judge([(self.kind, response, None)])[0][1]
        return choice_answer(response, self.letters) if self.kind == "choice" else lab_answer(response)


def verdicts(judgements: Sequence[Judgement]) -> list[bool]:
    """Whether each response is right. One without a verdict counts as wrong, and their number is logged."""
    if lost := sum(not judgement.judged for judgement in judgements):
        _LOG.warning(
            "no verdict on %d of %d responses within the verifier's bounds; they count as wrong", lost, len(judgements)
        )
    return [judgement.correct for judgement in judgements]


def verify(response: str, answer: str, kind: Kind = "math", *, letters: str = LETTERS) -> bool:
    """Whether the final answer written in `response` equals `answer`: `Verifier` for one response."""
    return Verifier(kind, letters).judge([response], [answer])[0]


def _imported(path: str) -> Judge:
    module, _, name = path.partition(":")
    hint = "expected package.module:function, of a package that is installed or whose folder PYTHONPATH names"
    try:
        function = attrgetter(name)(import_module(module))
    except Exception as error:  # the user's module may raise anything
        raise ForkLeftError(f"cannot take the verifier {path}: {type(error).__name__}: {error}; {hint}") from error
    if not callable(function):
        raise ForkLeftError(f"the verifier {path} is no function, but {function!r:.60}; {hint}")
    return function


def _verdicts(
    kind: str, function: Judge, responses: Sequence[str], answers: Sequence[str], names: Sequence[str]
) -> list[bool]:
    """The verdicts of the user's function. names: of the questions, for errors."""
    if not responses:
        return []
    kept = "what was finished before is kept; mend the verifier and start again"
    try:
        found = function(list(responses), list(answers))
        verdicts = list(found) if isinstance(found, Sequence) and not isinstance(found, str) else None
    except Exception as error:
        raise ForkLeftError(
            f"the verifier {kind} raised {type(error).__name__} on {_culprit(function, responses, answers, names)}: "
            f"{error}; {kept}"
        ) from error
    which = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    if verdicts is None:
        raise ForkLeftError(
            f"the verifier {kind} returned {found!r:.60} on {which}: expected a list of True and False; {kept}"
        )
    if len(verdicts) != len(responses):
        raise ForkLeftError(
            f"the verifier {kind} returned {len(verdicts)} verdicts on {len(responses)} responses, {which}: expected "
            f"one each; {kept}"
        )
    for verdict, name in zip(verdicts, names, strict=True):
        if not isinstance(verdict, bool):
            raise ForkLeftError(
                f"the verifier {kind} returned {verdict!r:.60} ({type(verdict).__name__}) on {name}: expected True or "
                f"False; {kept}"
            )
    return verdicts


def _culprit(function: Judge, responses: Sequence[str], answers: Sequence[str], names: Sequence[str]) -> str:
    """Find the question on which the function raises: call it for each alone, after it raised on all together."""
    for response, answer, name in zip(responses, answers, names, strict=True):
        try:
            function([response], [answer])
        except Exception:
            return name
    return f"{names[0]} to {names[-1]}, only together"
