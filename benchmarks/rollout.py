"""Rollouts against two plain samplers, and against the forwards that cannot be avoided.

Qwen3, 4 layers, 8 rows, prompt 64, 128 new tokens, one a pass, highest entropy first. A: width 128, 8,192 words, blocks
of 8. B: width 256, 151,936 words, blocks of 4. The plain samplers work on the whole batch and are written here as their
public counterparts do it.
"""

from collections.abc import Callable
from functools import partial

import torch
from transformers import DynamicCache, PreTrainedModel

from benchmarks.harness import Result, ratio
from benchmarks.models import plain, random_ids, random_student
from forkleft.rollout import generate
from forkleft.students import Student

VOCABULARY, ROWS, PROMPT, BUDGET, BLOCK = 8192, 8, 64, 128, 8


def commit_highest_entropy(block_ids: torch.Tensor, logits: torch.Tensor, mask_id: int) -> None:
    """One token a pass, in place; `block_ids` (rows, block), `logits` (rows, block, V)."""
    logits[..., mask_id] = float("-inf")
    p = logits.softmax(-1)
    entropy = torch.special.entr(p).sum(-1).masked_fill(block_ids != mask_id, float("-inf"))
    place = entropy.argmax(-1, keepdim=True)
    block_ids.scatter_(1, place, p.argmax(-1).gather(1, place))


@torch.no_grad()
def whole_canvas(model: PreTrainedModel, prompts: list[list[int]], mask_id: int) -> list[list[int]]:
    """Encodes prompt and response budget anew in every pass, as `model(ids).logits` does."""
    length = PROMPT + BUDGET
    ids = torch.full((ROWS, length), mask_id)
    ids[:, :PROMPT] = torch.tensor(prompts)
    blocks = ((torch.arange(length) - PROMPT) // BLOCK).clamp(min=-1)
    seen = (blocks[None, :] <= blocks[:, None])[None, None].expand(ROWS, 1, -1, -1)
    for start in range(PROMPT, length, BLOCK):
        for _ in range(BLOCK):
            block = slice(start, start + BLOCK)
            logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits
            commit_highest_entropy(ids[:, block], logits[:, block], mask_id)
    return ids[:, PROMPT:].tolist()


@torch.no_grad()
def prefix_once_a_block(model: PreTrainedModel, prompts: list[list[int]], mask_id: int) -> list[list[int]]:
    """Encodes the prefix anew for every block, then the block against its keys; full logits everywhere."""
    ids = torch.tensor(prompts)
    for _ in range(BUDGET // BLOCK):
        length = ids.shape[1]
        blocks = ((torch.arange(length) - PROMPT) // BLOCK).clamp(min=-1)
        seen = (blocks[None, :] <= blocks[:, None])[None, None].expand(ROWS, 1, -1, -1)
        cache = DynamicCache(config=model.config)
        model(input_ids=ids, attention_mask=seen, past_key_values=cache, use_cache=True)
        block_ids = torch.full((ROWS, BLOCK), mask_id)
        everything = torch.ones(ROWS, 1, BLOCK, length + BLOCK, dtype=torch.bool)
        positions = torch.arange(length, length + BLOCK)[None]
        for _ in range(BLOCK):
            logits = model(
                input_ids=block_ids,
                attention_mask=everything,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
            ).logits
            cache.crop(-BLOCK)
            commit_highest_entropy(block_ids, logits, mask_id)
        ids = torch.cat([ids, block_ids], dim=1)
    return ids[:, PROMPT:].tolist()


def bare_forwards(
    student: Student, model: PreTrainedModel, rollout: Callable[[], object]
) -> tuple[Callable[[], None], int]:
    """The forwards and head projections of a rollout with nothing in between: the same tokens in the same shapes
    through the stock model, against a cache of Transformers' own that already holds the tokens before them."""
    calls: list[tuple] = []
    rows: list[torch.Tensor] = []
    hidden, logits = student.hidden, student.logits
    student.hidden = lambda *arguments: calls.append(arguments) or hidden(*arguments)
    student.logits = lambda h: rows.append(h) or logits(h)
    rollout()
    del student.hidden, student.logits
    caches: dict[int, DynamicCache] = {}
    for _, positions_N, *_ in calls:
        before = int(positions_N[0])
        if before and before not in caches:
            caches[before] = DynamicCache(config=model.config)
            filler = torch.zeros(ROWS, before, dtype=torch.int64)
            with torch.no_grad():
                model.base_model(input_ids=filler, past_key_values=caches[before], use_cache=True)

    @torch.no_grad()
    def replay() -> None:
        for (ids_N, positions_N, *_), row in zip(calls, rows, strict=True):
            ids, positions = ids_N.view(ROWS, -1), positions_N.view(ROWS, -1)
            before, new = int(positions_N[0]), ids.shape[1]
            cache = caches.get(before)
            model.base_model(
                input_ids=ids,
                position_ids=positions,
                attention_mask=torch.ones(ROWS, 1, new, before + new, dtype=torch.bool),
                past_key_values=cache,
                use_cache=cache is not None,
            )
            if cache is not None:
                cache.crop(-new)
            model.lm_head(row)

    return replay, len(calls)


def run() -> list[Result]:
    """The rollout rows of the table."""
    student = random_student(VOCABULARY, BLOCK)
    model, mask_id = plain(student), student.vocabulary.mask_id
    prompts = random_ids(ROWS, PROMPT, VOCABULARY)

    def ours() -> list[list[int]]:
        return [t.tokens for t in generate(student, prompts, order="high_entropy", passes=BLOCK, max_new_tokens=BUDGET)]

    def same_tokens(theirs: list[list[int]], tokens: list[list[int]]) -> None:
        assert theirs == tokens
        assert all(len(row) == BUDGET for row in tokens), "a stop id was written: the sides would do different work"

    plainly = {
        "whole canvas every pass": (partial(whole_canvas, model, prompts, mask_id), ">= 7"),
        "prefix once a block": (partial(prefix_once_a_block, model, prompts, mask_id), ">= 1.8"),
    }
    return [
        *(
            ratio(f"rollout: {name} / ours", write, ours, goal, check=same_tokens)
            for name, (write, goal) in plainly.items()
        ),
        *_against_bare("A", student),
        *_against_bare("B", random_student(151_936, 4, width=256)),
    ]


def _against_bare(name: str, student: Student) -> list[Result]:
    words, block = student.head_weight.shape[0], student.family.block_size
    prompts = random_ids(ROWS, PROMPT, words)

    def ours() -> None:
        generate(student, prompts, order="high_entropy", passes=block, max_new_tokens=BUDGET)

    bare, forwards = bare_forwards(student, plain(student), ours)
    least = BUDGET // block * block
    assert forwards == least, f"{forwards} forwards, not blocks x passes"
    return [
        ratio(f"rollout: {name}, ours / bare forwards", ours, bare, "<= 1.12"),
        Result(f"rollout: {name}, forwards / (blocks x passes)", forwards / least, "<= 1", (1.0, 1.0)),
    ]
