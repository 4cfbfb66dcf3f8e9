"""Naive versions of reading and writing, from the paper's definitions: no packing, no cache, one sequence at a time.

Nothing here uses `forkleft.students.attention`, `forkleft.rollout` or `forkleft.objective`.
"""

import copy
import math

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from forkleft.students import Family, Student
from forkleft.students.family import Anchor

VOCABULARY, MASK, PAD, STOP = 40, 39, 38, 37

_CLASSES = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 8}),
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
}
ARCHITECTURES = tuple(_CLASSES)
# The three anchors with both heads, and full attention with both.
FAMILIES = (
    *(Family("block", 4, anchor, head) for anchor in Anchor.__args__ for head in ("same", "shifted")),
    *(Family("full", 4, head=head) for head in ("same", "shifted")),
)


def family_name(family: Family) -> str:
    return f"{family.attention}-{family.anchor}-{family.head}" if family.attention == "block" else f"full-{family.head}"


def tiny_model(architecture: str = "qwen3", seed: int = 0, dtype: torch.dtype = torch.float32, **changes):
    """A random model with spread-out predictions (the usual initialisation is close to uniform)."""
    config_class, model_class, extra = _CLASSES[architecture]
    settings = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "pad_token_id": PAD,
        "bos_token_id": None,
        "eos_token_id": STOP,
    }
    torch.manual_seed(seed)
    model = model_class(config_class(**settings | extra | changes))
    if architecture == "qwen3_moe":
        model.set_experts_implementation("eager")  # the grouped kernel knows no float64
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.35)
    return model.to(dtype).eval()


def tiny_student(family: Family, architecture: str = "qwen3", stop_ids: tuple[int, ...] = (STOP,), **settings):
    return Student.from_model(tiny_model(architecture, **settings), family, MASK, stop_ids)


def plain_copy(student: Student):
    """The same parameters in a model that attends through Transformers' own `sdpa`."""
    model = copy.deepcopy(student.model)
    model.set_attn_implementation("sdpa")
    return model


def block_number(family: Family, position: int, prompt: int) -> int:
    """Which block a position is in, by walking the sequence."""
    if family.attention == "full":
        return 0
    size = family.block_size
    if family.anchor == "absolute":
        return position // size
    if position >= prompt:
        return 1 + (position - prompt) // size
    if family.anchor == "prompt_end":
        return 0
    block, start = 0, prompt - size
    while position < start:
        block, start = block - 1, start - size
    return block


def plain_logits(model, family: Family, ids: list[int], prompt: int) -> torch.Tensor:
    """Logits of one sequence under the family's attention, excluded ids at −inf: `(T, V)`."""
    blocks = torch.tensor([block_number(family, position, prompt) for position in range(len(ids))])
    seen = blocks[None, :] <= blocks[:, None]
    logits = model(input_ids=torch.tensor([ids]), attention_mask=seen[None, None]).logits[0]
    excluded = torch.zeros(VOCABULARY, dtype=torch.bool)
    excluded[[MASK, PAD]] = True
    return logits.masked_fill(excluded, -math.inf)


def read(model, family: Family, ids: list[int], prompt: int, target: int) -> torch.Tensor:
    """log p at sequence position `target`, from where the family's head predicts it."""
    place = target if family.head == "same" else target - 1
    return plain_logits(model, family, ids, prompt)[place].log_softmax(-1)


def segment_bounds(family: Family, target: int, prompt: int, end: int) -> tuple[int, int]:
    """First and last-plus-one position of the block (window) in which `target` is decoded."""
    window = Family("block", family.block_size, "prompt_end") if family.attention == "full" else family
    own = block_number(window, target, prompt)
    inside = [p for p in range(end) if block_number(window, p, prompt) == own]
    return inside[0], inside[-1] + 1


def prefix_log_probs(model, family, prompt, response, i, *, budget, geometry="truncated"):
    """log s_i: target and suffix hidden."""
    before = [*prompt, *response[:i]]
    if geometry == "canvas":
        end = len(prompt) + budget
        if family.attention == "block":
            end = segment_bounds(family, len(before), len(prompt), end)[1]
        ids = before + [MASK] * (end - len(before))
    else:
        ids = before + ([MASK] if family.head == "same" else [])
    return read(model, family, ids, len(prompt), len(before))


def target_masked_log_probs(model, family, prompt, response, i):
    """The B view: the completed response with only position i hidden."""
    ids = [*prompt, *response[:i], MASK, *response[i + 1 :]]
    return read(model, family, ids, len(prompt), len(prompt) + i)


def all_mask_log_probs(model, family, prompt, i, *, budget):
    return read(model, family, [*prompt, *[MASK] * budget], len(prompt), len(prompt) + i)


def entropy(logp: torch.Tensor) -> float:
    return -sum(math.exp(x) * x for x in logp.tolist() if x > -math.inf)


@torch.no_grad()
def naive_generate(model, family, prompt, *, budget, passes, order, stop_ids=(STOP,), threshold=None, noise=None):
    """The whole canvas encoded anew in every pass; plain loops; one prompt at a time."""
    start, end = len(prompt), len(prompt) + budget
    ids = [*prompt, *[MASK] * budget]
    record = {}
    forwards, position = 0, start
    while position < end:
        _, stop = segment_bounds(family, position, start, end)
        unresolved = list(range(position, stop))
        r = 1
        while unresolved:
            logits = plain_logits(model, family, ids, start)
            forwards += 1
            found = {}
            for p in unresolved:
                logp = logits[p if family.head == "same" else p - 1].log_softmax(-1)
                found[p] = (int(logp.argmax()), entropy(logp), math.exp(logp.max()))
            priority = {
                "high_entropy": {p: found[p][1] for p in unresolved},
                "low_entropy": {p: -found[p][1] for p in unresolved},
                "confidence": {p: found[p][2] for p in unresolved},
                "left_to_right": {p: -p for p in unresolved},
                "random": {p: noise[p - start] for p in unresolved} if noise else {},
            }[order]
            count = -(-len(unresolved) // (passes - r + 1))
            ranked = sorted(unresolved, key=lambda p, priority=priority: (-priority[p], p))
            chosen = set(ranked[:count])
            if threshold is not None:
                chosen |= {p for p in unresolved if found[p][2] > threshold}
            for p in chosen:
                ids[p] = found[p][0]
                record[p] = (r, found[p][1], found[p][2])
            unresolved = [p for p in unresolved if p not in chosen]
            r += 1
        ended = [p for p in range(position, stop) if ids[p] in stop_ids]
        position = stop
        if ended:
            return ids[start : ended[0] + 1], [record[p] for p in range(start, ended[0] + 1)], True, forwards
    return ids[start:], [record[p] for p in range(start, end)], False, forwards
