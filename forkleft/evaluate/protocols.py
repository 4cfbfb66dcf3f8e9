"""How a model answers the items of a benchmark: a batch of tries in, a reply to each out.

- `generated`: the model writes and the verifier judges. A student writes as `Settings.decoding` says, most confident
  positions first; an autoregressive model (a `Teacher`) writes greedily, as it does in training.
- `slot`: the offered letters are compared by their likelihood right behind the assistant's words `"answer": "`. A
  student reads one masked slot there, under its native attention (`objective/readouts.py`); an autoregressive model
  reads its next-token distribution.

A try is an item and the number of one of its samples. Its random numbers depend on seed, item and sample alone.

Shapes: B tries of a batch, D width of the model, V rows of its head.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from transformers import PreTrainedTokenizerBase

from forkleft.devices import on_device
from forkleft.errors import ForkLeftError, check_count
from forkleft.evaluate import prompts
from forkleft.evaluate.benchmarks import Benchmark, Item
from forkleft.objective.readouts import Geometry, check_reading, prefix_hidden
from forkleft.prompts import Reading, prompt_ids
from forkleft.rollout import decode, decoding_of
from forkleft.rollout.decoding import check_decoding
from forkleft.rollout.orders import check_writing
from forkleft.students import Student
from forkleft.students.families import Decoding
from forkleft.teacher import Teacher
from forkleft.verify import LETTERS, Judgement

Evaluated = Student | Teacher


@dataclass(frozen=True)
class Settings:
    """How a model is asked.

    samples: responses to each item; more than one needs a temperature. temperature, top_p: 0 takes the likeliest
    token. decoding: how a student writes, `static` or `native` (`forkleft.rollout.decoding`). passes, threshold:
    replace those of the decoding. max_new_tokens: replaces the benchmark's budget. geometry: what a student sees from
    the answer slot on, `truncated` (one mask, the default) or `canvas` (masks to the end of the block, as when it
    writes). batch_size: tries in a batch. seed: for sampling.
    """

    samples: int = 1
    temperature: float = 0.0
    top_p: float = 1.0
    decoding: str = "static"
    passes: int | None = None
    threshold: float | None = None
    max_new_tokens: int | None = None
    geometry: Geometry = "truncated"
    batch_size: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("samples", self.samples)
        check_count("batch_size", self.batch_size)
        if self.max_new_tokens is not None:
            check_count("max_new_tokens", self.max_new_tokens)
        check_writing(passes=self.passes, threshold=self.threshold, temperature=self.temperature, top_p=self.top_p)
        if not isinstance(self.seed, int):
            raise ForkLeftError(f"seed must be a whole number, found {self.seed!r:.60}")
        check_decoding(self.decoding)
        check_reading(self.geometry)
        if self.top_p < 1 and self.temperature == 0:
            raise ForkLeftError(
                f"top_p {self.top_p} does nothing at temperature 0, which takes the likeliest token; give a "
                "temperature, such as 0.6, or leave top_p out"
            )
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
    """An item and the number of one of its samples."""

    item: Item
    sample: int = 0


@dataclass(frozen=True)
class Reply:
    """What a model did with a try.

    prompt: the ids it was given. response: what it wrote, None in a slot. extracted: the answer found, None if there is
    none. tokens, forwards: how many tokens it wrote in how many forwards. stopped: whether it ended by itself, None in
    a slot. log_probs: of each offered letter in the slot, in nats over the whole vocabulary, None where it wrote.
    judged: whether the verifier came to a verdict; without one it is not correct.
    """

    prompt: list[int]
    response: str | None
    extracted: str | None
    correct: bool
    tokens: int
    forwards: int
    stopped: bool | None = None
    log_probs: dict[str, float] | None = None
    judged: bool = True


def check_settings(settings: Settings, benchmark: Benchmark, *, autoregressive: bool) -> None:
    """Raise ForkLeftError for settings that do nothing for a model of this kind, or on this benchmark."""
    if autoregressive:
        only = ("temperature", "decoding", "passes", "threshold", "geometry")
        if said := [name for name in only if getattr(settings, name) != getattr(Settings, name)]:
            raise ForkLeftError(
                f"an autoregressive model is evaluated greedily, left to right, and knows no {' or '.join(said)}; "
                "leave that out, or evaluate a diffusion model"
            )
    if benchmark.protocol == "slot" and settings.temperature > 0:
        raise ForkLeftError(
            f"{benchmark.name} compares letters in an answer slot, where nothing is sampled; evaluate it on its own, "
            "without temperature and samples"
        )


def check_protocol(model: Evaluated, benchmark: Benchmark, items: Sequence[Item], settings: Settings) -> None:
    """Raise ForkLeftError if the model cannot be measured on these items in this way.

    This checks all that can be known before the first batch: settings without effect, letters that are not tokens,
    prompts that do not fit, and a head that cannot be read.
    """
    if not isinstance(model, Evaluated):
        raise ForkLeftError(
            f"expected a Student or a Teacher to evaluate, found a {type(model).__name__}; load a diffusion model with "
            "load_student, an autoregressive one with load_teacher"
        )
    tokenizer = tokenizer_of(model)
    check_settings(settings, benchmark, autoregressive=isinstance(model, Teacher))
    if benchmark.protocol == "slot":
        _offered_ids(model, items)
        if isinstance(model, Teacher):
            # Reads nothing, but checks the head.
            model.hidden([])
    asked = [prompt_ids(tokenizer, benchmark.messages(item)) for item in items]
    _check_prompts(model, benchmark, items, asked, settings)


def tokenizer_of(model: Evaluated) -> PreTrainedTokenizerBase:
    """The tokenizer that puts questions to a model. Raises ForkLeftError if it has none."""
    if model.tokenizer is None:
        raise ForkLeftError("the model has no tokenizer, so that questions cannot be put to it; load it with one")
    return model.tokenizer


@torch.no_grad()
def answer(model: Evaluated, benchmark: Benchmark, tries: Sequence[Try], settings: Settings) -> list[Reply]:
    """The model's replies to a batch of tries, in their order, under the benchmark's protocol.

    Raises ForkLeftError, naming the item, if a prompt and the budget do not fit into the model's context, or the
    likelihood of a letter is not finite.
    """
    items, tokenizer = [attempt.item for attempt in tries], tokenizer_of(model)
    asked = [prompt_ids(tokenizer, benchmark.messages(item)) for item in items]
    _check_prompts(model, benchmark, items, asked, settings)
    if benchmark.protocol == "generated":
        if isinstance(model, Student):
            return _write_decoded(model, benchmark, tries, asked, settings)
        return _write_greedily(model, benchmark, tries, asked, settings)
    offered = _offered_ids(model, items)
    # The model never sees the token in the slot itself; any letter can hold its place.
    response = [*slot_prefix(tokenizer), offered[0]]
    if isinstance(model, Student):
        logp_BV = _masked_slot(model, items, asked, response, _room(model, benchmark, settings), settings.geometry)
    else:
        logp_BV = _causal_slot(model, items, asked, response)
    scores = logp_BV[:, on_device(offered, logp_BV.device)].tolist()
    return [_chosen(item, prompt, row) for item, prompt, row in zip(items, asked, scores, strict=True)]


def letter_ids(tokenizer: PreTrainedTokenizerBase, letters: str) -> list[int]:
    """The id of each letter behind `prompts.ANSWER_PREFIX`. Raises ForkLeftError if one is not a token of its own."""
    prefix = slot_prefix(tokenizer)
    found: list[int] = []
    for letter in letters:
        # With the prefix: a tokenizer may cut a letter differently at the start of a text.
        ids = tokenizer.encode(prompts.ANSWER_PREFIX + letter, add_special_tokens=False)
        if ids[:-1] != prefix or ids[-1] in {*found, tokenizer.unk_token_id}:
            raise ForkLeftError(
                f"expected each of the letters {letters} to be one token behind {prompts.ANSWER_PREFIX!r}, found "
                f"{tokenizer.convert_ids_to_tokens(ids)} for {letter}; with this tokenizer the answer slot cannot be "
                "read, let the model write its answers instead (--protocol generated)"
            )
        found.append(ids[-1])
    return found


def slot_prefix(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The ids of what the assistant has said before the answer slot."""
    return tokenizer.encode(prompts.ANSWER_PREFIX, add_special_tokens=False)


def decoding_for(student: Student, settings: Settings) -> Decoding:
    """How a student writes under these settings. Raises ForkLeftError if its native decoding is not known."""
    return decoding_of(student.family, settings.decoding, passes=settings.passes, threshold=settings.threshold)


def _write_decoded(
    student: Student, benchmark: Benchmark, tries: Sequence[Try], asked: list[list[int]], settings: Settings
) -> list[Reply]:
    written = decode(
        student,
        asked,
        decoding_for(student, settings),
        max_new_tokens=settings.budget(benchmark),
        temperature=settings.temperature,
        top_p=settings.top_p,
        seed=settings.seed,
        # The sample is part of the name: `generate` counts repeated names anew in every batch.
        ids=[
            attempt.item.id if settings.samples == 1 else f"{attempt.item.id} sample {attempt.sample}"
            for attempt in tries
        ],
        batch_size=len(tries),
    )
    judgements = _judge(benchmark, tries, [trajectory.text or "" for trajectory in written])
    return [
        Reply(
            prompt,
            trajectory.text,
            verdict.extracted,
            verdict.correct,
            len(trajectory.tokens),
            trajectory.forwards,
            trajectory.stopped,
            judged=verdict.judged,
        )
        for prompt, trajectory, verdict in zip(asked, written, judgements, strict=True)
    ]


def _write_greedily(
    teacher: Teacher, benchmark: Benchmark, tries: Sequence[Try], asked: list[list[int]], settings: Settings
) -> list[Reply]:
    conversations = [benchmark.messages(attempt.item) for attempt in tries]
    budget = settings.budget(benchmark)
    written = teacher.answers(conversations, max_new_tokens=budget)
    judgements = _judge(benchmark, tries, [answered.text for answered in written])
    replies = []
    for prompt, answered, verdict in zip(asked, written, judgements, strict=True):
        # A teacher returns only text. Each of its tokens took a forward, and so did the stop token. An answer that did
        # not stop has used the whole budget; special tokens count there, but are not in the text.
        ended = len(teacher.tokenizer.encode(answered.text, add_special_tokens=False)) + 1
        tokens = ended if answered.stopped else budget
        found = (verdict.extracted, verdict.correct)
        replies.append(Reply(prompt, answered.text, *found, tokens, tokens, answered.stopped, judged=verdict.judged))
    return replies


def _judge(benchmark: Benchmark, tries: Sequence[Try], texts: list[str]) -> list[Judgement]:
    verifier = benchmark.verifier
    if verifier.kind != "choice":
        answers, ids = [attempt.item.answer for attempt in tries], [attempt.item.id for attempt in tries]
        return verifier.judgements(texts, answers, ids=ids)
    offered = [
        LETTERS if attempt.item.choices is None else prompts.letters_of(attempt.item.choices) for attempt in tries
    ]
    return [
        replace(verifier, letters=letters).judgements([text], [attempt.item.answer])[0]
        for attempt, text, letters in zip(tries, texts, offered, strict=True)
    ]


def _masked_slot(
    student: Student,
    items: Sequence[Item],
    asked: list[list[int]],
    response: list[int],
    budget: int,
    geometry: Geometry,
) -> torch.Tensor:
    """log p over the vocabulary at the slot, the last place of the response: (B, V)."""
    slot = [len(response) - 1]
    readings = [Reading(item.id, prompt, response, slot) for item, prompt in zip(items, asked, strict=True)]
    hidden_BD = prefix_hidden(student, readings, budget=budget, geometry=geometry)
    return student.logits(hidden_BD).log_softmax(-1)


def _causal_slot(teacher: Teacher, items: Sequence[Item], asked: list[list[int]], response: list[int]) -> torch.Tensor:
    """log p over the vocabulary at the last place of the response: (B, V)."""
    slot = [len(response) - 1]
    readings = [Reading(item.id, prompt, response, slot) for item, prompt in zip(items, asked, strict=True)]
    logits_BV = teacher.head_logits(torch.cat(teacher.hidden(readings)))
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)


def _chosen(item: Item, prompt: list[int], logp: list[float]) -> Reply:
    """The likeliest of the item's letters, the first at a tie. logp: of at least these letters, in their order."""
    letters = prompts.letters_of(item.choices or ())
    scores = dict(zip(letters, logp, strict=False))
    if not all(map(math.isfinite, scores.values())):
        raise ForkLeftError(
            f"question {item.id}: expected finite log-likelihoods of the letters, found {scores}; the model's numbers "
            "overflow or its weights are damaged, try --dtype float32 or another checkpoint"
        )
    chosen = max(letters, key=scores.__getitem__)
    return Reply(prompt, None, chosen, chosen == item.answer, tokens=1, forwards=1, log_probs=scores)


def _offered_ids(model: Evaluated, items: Sequence[Item]) -> list[int]:
    """The ids of as many letters as the item with the most choices offers."""
    return letter_ids(tokenizer_of(model), prompts.letters_of(max((item.choices or () for item in items), key=len)))


def _room(model: Evaluated, benchmark: Benchmark, settings: Settings) -> int:
    """How many tokens must fit behind a prompt."""
    if _is_truncated(benchmark, settings):
        # The prefix and the slot: nothing follows them.
        return len(slot_prefix(tokenizer_of(model))) + 1
    return settings.budget(benchmark)


def _is_truncated(benchmark: Benchmark, settings: Settings) -> bool:
    return benchmark.protocol == "slot" and settings.geometry == "truncated"


def _check_prompts(
    model: Evaluated, benchmark: Benchmark, items: Sequence[Item], asked: list[list[int]], settings: Settings
) -> None:
    room = _room(model, benchmark, settings)
    if benchmark.protocol == "slot" and room <= len(slot_prefix(tokenizer_of(model))):
        raise ForkLeftError(
            f"{benchmark.name}: a canvas of {room} tokens has no room for {prompts.ANSWER_PREFIX!r} and a letter; "
            "choose a larger max_new_tokens"
        )
    for item, prompt in zip(items, asked, strict=True):
        if _is_truncated(benchmark, settings) and len(prompt) + room > model.context:
            # Nothing is written here, so a smaller budget would not help.
            raise ForkLeftError(
                f"question {item.id}: a prompt of {len(prompt)} tokens and {room} for the answer slot exceed the "
                f"model's context of {model.context}; the question is too long for this model, leave it out of the data"
            )
        if isinstance(model, Student):
            model.check_prompt(prompt, room, f"question {item.id}")
        elif len(prompt) + room > model.context:
            raise ForkLeftError(
                f"question {item.id}: a prompt of {len(prompt)} tokens and a response of up to {room} exceed the "
                f"model's context of {model.context}; choose a smaller budget with --max-new-tokens "
                "(in Python max_new_tokens)"
            )
