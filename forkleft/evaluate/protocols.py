"""How a model answers the items of a benchmark: a batch of tries in, one reply each out.

- `generated`: the model writes and the verifier judges. A student writes with its native sampler, most confident
  positions first; an autoregressive model (a `Teacher`) writes greedily, as it does in training.
- `slot`: the offered letters are compared by their likelihood right behind the assistant's words `"answer": "`. A
  student reads one masked slot there, under its native attention (`objective/readouts.py`); an autoregressive model
  reads its next-token distribution.

A try is an item and the number of a sample of it. What a try draws is keyed by seed, item and sample.

Shapes: B tries of a batch, D width of the model, V rows of its head.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from forkleft.errors import ForkLeftError
from forkleft.evaluate import prompts
from forkleft.evaluate.benchmarks import Benchmark, Item
from forkleft.objective.readouts import Geometry, Reading, prefix_hidden
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.students import Student
from forkleft.teacher import Teacher
from forkleft.teacher.local import Asked
from forkleft.verify import LETTERS, Judgement, judge_batch

Evaluated = Student | Teacher


@dataclass(frozen=True)
class Settings:
    """How a model is asked.

    samples: responses to each item; more than one needs a temperature. temperature, top_p: 0 takes the likeliest
    token. passes, threshold: of the native sampler (`forkleft.rollout.generate`). max_new_tokens: instead of the
    benchmark's own budget. geometry: what a student sees from the answer slot on, `truncated` (one mask, the default)
    or `canvas` (masks to the end of the block, as when it writes). batch_size: tries in a batch. seed: for sampling.
    """

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    passes: int | None = None
    threshold: float | None = None
    max_new_tokens: int | None = None
    geometry: Geometry = "truncated"
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("samples", "batch_size", "max_new_tokens", "passes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ForkLeftError(f"{name} must be at least 1, found {value}")
        if not 0 <= self.temperature < float("inf"):
            raise ForkLeftError(f"temperature must be 0 (the likeliest token) or more, found {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ForkLeftError(f"top_p must be above 0 and at most 1, found {self.top_p}")
        if self.samples > 1 and self.temperature == 0:
            raise ForkLeftError(
                f"{self.samples} samples at temperature 0 are {self.samples} times the same response; "
                "give a temperature, such as 0.6"
            )

    def budget(self, benchmark: Benchmark) -> int:
        """How many tokens a response may have."""
        return benchmark.max_new_tokens if self.max_new_tokens is None else self.max_new_tokens


@dataclass(frozen=True)
class Try:
    """An item and which sample of it."""

    item: Item
    sample: int = 0


@dataclass(frozen=True)
class Reply:
    """What a model did with a try.

    prompt: the ids it was given. response: what it wrote, None in a slot. extracted: the answer found, None if there is
    none. tokens, forwards: how many tokens it wrote in how many forwards. stopped: whether it ended by itself, None in
    a slot. log_probs: of each offered letter in the slot, in nats over the whole vocabulary, None where it wrote.
    """

    prompt: list[int]
    response: str | None
    extracted: str | None
    correct: bool
    tokens: int
    forwards: int
    stopped: bool | None = None
    log_probs: dict[str, float] | None = None


def check_protocol(model: Evaluated, benchmark: Benchmark, items: Sequence[Item], settings: Settings) -> None:
    """Raise ForkLeftError if the model cannot be measured on the benchmark in this way."""
    if not isinstance(model, Evaluated):
        raise ForkLeftError(
            f"expected a Student or a Teacher to evaluate, found a {type(model).__name__}; load a diffusion model with "
            "load_student, an autoregressive one with load_teacher"
        )
    if model.tokenizer is None:
        raise ForkLeftError("the model has no tokenizer, so that questions cannot be put to it; load it with one")
    if isinstance(model, Teacher):
        only = {"temperature": 0.0, "passes": None, "threshold": None}
        if said := [name for name, default in only.items() if getattr(settings, name) != default]:
            raise ForkLeftError(
                f"an autoregressive model is evaluated greedily, left to right, and knows no {' or '.join(said)}; "
                "leave that out, or evaluate a diffusion model"
            )
    if benchmark.protocol == "slot":
        if settings.temperature > 0:
            raise ForkLeftError(
                f"{benchmark.name} compares letters in an answer slot, where nothing is sampled; evaluate it on its "
                "own, without temperature and samples"
            )
        letter_ids(model.tokenizer, prompts.letters_of(max((item.choices for item in items), key=len)))


@torch.no_grad()
def answer(model: Evaluated, benchmark: Benchmark, tries: Sequence[Try], settings: Settings) -> list[Reply]:
    """The model's replies to a batch of tries, in their order, under the benchmark's protocol.

    Raises ForkLeftError, naming the item, if a prompt and the budget do not fit into the model's context.
    """
    asked = [prompt_ids(model.tokenizer, benchmark.messages(one.item)) for one in tries]
    if benchmark.protocol == "generated":
        write = _write_natively if isinstance(model, Student) else _write_greedily
        return write(model, benchmark, tries, asked, settings)
    logp_BV = (_masked_slot if isinstance(model, Student) else _causal_slot)(model, benchmark, tries, asked, settings)
    return [
        _chosen(one.item, prompt, model.tokenizer, logp_V)
        for one, prompt, logp_V in zip(tries, asked, logp_BV, strict=True)
    ]


def letter_ids(tokenizer: PreTrainedTokenizerBase, letters: str) -> list[int]:
    """The id of each letter behind `prompts.ANSWER_PREFIX`. Raises ForkLeftError if one is not a token of its own."""
    prefix = slot_prefix(tokenizer)
    found = []
    for letter in letters:
        # In its place: a tokenizer may cut a letter differently at the start of a text.
        ids = tokenizer.encode(prompts.ANSWER_PREFIX + letter, add_special_tokens=False)
        if ids[:-1] != prefix or ids[-1] in {*found, tokenizer.unk_token_id}:
            raise ForkLeftError(
                f"expected each of the letters {letters} to be one token behind {prompts.ANSWER_PREFIX!r}, found "
                f"{tokenizer.convert_ids_to_tokens(ids)} for {letter}; with this tokenizer the answer slot cannot be "
                "read, let the model write its answers instead (protocol generated)"
            )
        found.append(ids[-1])
    return found


def slot_prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of what the assistant has said before the answer slot."""
    return tokenizer.encode(prompts.ANSWER_PREFIX, add_special_tokens=False)


def _write_natively(
    student: Student, benchmark: Benchmark, tries: Sequence[Try], asked: list[list[int]], settings: Settings
) -> list[Reply]:
    written = generate(
        student,
        asked,
        max_new_tokens=settings.budget(benchmark),
        order="confidence",
        passes=settings.passes,
        threshold=settings.threshold,
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=settings.seed,
        # The sample is part of the name: `generate` counts repeated names anew in every batch.
        ids=[one.item.id if settings.samples == 1 else f"{one.item.id} sample {one.sample}" for one in tries],
        batch_size=len(tries),
    )
    judged = _judge(benchmark, tries, [one.text for one in written])
    return [
        Reply(prompt, one.text, verdict.extracted, verdict.correct, len(one.tokens), one.forwards, one.stopped)
        for prompt, one, verdict in zip(asked, written, judged, strict=True)
    ]


def _write_greedily(
    teacher: Teacher, benchmark: Benchmark, tries: Sequence[Try], asked: list[list[int]], settings: Settings
) -> list[Reply]:
    budget = settings.budget(benchmark)
    for one, prompt in zip(tries, asked, strict=True):
        _check_context(teacher, one.item, prompt, budget)
    written = teacher.answers([benchmark.messages(one.item) for one in tries], max_new_tokens=budget)
    judged = _judge(benchmark, tries, [one.text for one in written])
    replies = []
    for prompt, one, verdict in zip(asked, written, judged, strict=True):
        # A teacher hands out text; a token is a forward, and so is the stop token that ended it.
        tokens = len(teacher.tokenizer.encode(one.text, add_special_tokens=False)) + one.stopped
        replies.append(Reply(prompt, one.text, verdict.extracted, verdict.correct, tokens, tokens, one.stopped))
    return replies


def _judge(benchmark: Benchmark, tries: Sequence[Try], texts: list[str]) -> list[Judgement]:
    if benchmark.verifier != "choice":
        return judge_batch(texts, [one.item.answer for one in tries], benchmark.verifier)
    offered = [LETTERS if one.item.choices is None else prompts.letters_of(one.item.choices) for one in tries]
    return [
        judge_batch([text], [one.item.answer], "choice", letters=letters)[0]
        for one, text, letters in zip(tries, texts, offered, strict=True)
    ]


def _masked_slot(
    student: Student, benchmark: Benchmark, tries: Sequence[Try], asked: list[list[int]], settings: Settings
) -> torch.Tensor:
    """log p over the vocabulary at the slot: (B, V). The slot's own token is hidden; any letter holds its place."""
    prefix = slot_prefix(student.tokenizer)
    response = prefix + letter_ids(student.tokenizer, "A")
    readings = [Reading(one.item.id, prompt, response, [len(prefix)]) for one, prompt in zip(tries, asked, strict=True)]
    # Room for the slot is enough where nothing stands behind it.
    budget = len(response) if settings.geometry == "truncated" else settings.budget(benchmark)
    hidden_BD = prefix_hidden(student, readings, budget=budget, geometry=settings.geometry)
    return student.logits(hidden_BD).log_softmax(-1)


def _causal_slot(
    teacher: Teacher, benchmark: Benchmark, tries: Sequence[Try], asked: list[list[int]], settings: Settings
) -> torch.Tensor:
    """log p over the vocabulary behind the prefix: (B, V)."""
    prefix = slot_prefix(teacher.tokenizer)
    for one, prompt in zip(tries, asked, strict=True):
        _check_context(teacher, one.item, prompt, len(prefix) + 1)
    response = prefix + letter_ids(teacher.tokenizer, "A")
    hidden = teacher.hidden([Asked(prompt, response, [len(prefix)]) for prompt in asked])
    weight_VD = teacher.head_weight
    logits_BV = torch.cat(hidden).to(weight_VD.device, weight_VD.dtype) @ weight_VD.T
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)


def _chosen(item: Item, prompt: list[int], tokenizer: PreTrainedTokenizerBase, logp_V: torch.Tensor) -> Reply:
    """The likeliest of the offered letters, the first at a tie."""
    letters = prompts.letters_of(item.choices)
    scores = dict(zip(letters, logp_V[letter_ids(tokenizer, letters)].tolist(), strict=True))
    chosen = max(letters, key=scores.__getitem__)
    return Reply(prompt, None, chosen, chosen == item.answer, tokens=1, forwards=1, log_probs=scores)


def _check_context(teacher: Teacher, item: Item, prompt: list[int], budget: int) -> None:
    if len(prompt) + budget > teacher.context:
        raise ForkLeftError(
            f"question {item.id}: a prompt of {len(prompt)} tokens and a response of up to {budget} exceed the model's "
            f"context of {teacher.context}; choose a smaller budget with max_new_tokens"
        )
