"""ForkLeft by hand: the paper's algorithm with plain loops, full logits and one forward for every position.

Read it beside the paper; the library is compared with it. No packing, no cache, no chunks. Of the library it takes data
only: a student's `Family` (how it attends, see `block_number`; where its head predicts a token, see `read`), questions
and settings. Positions count from 0, the paper's from 1.
"""

import math
from dataclasses import replace
from fractions import Fraction

import torch
from tiny import MASK, PAD, STOP, VOCABULARY

from forkleft.students import Family

# ---- Reading the student (paper eq. `left`, `coupling`) ----


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
    ids = before + ([MASK] if family.head == "same" else [])
    if geometry == "canvas":
        ids = canvas(family, ids, len(prompt), len(before), budget)
    return read(model, family, ids, len(prompt), len(before))


def target_masked_log_probs(model, family, prompt, response, i, *, budget, geometry="truncated"):
    """The B view: the completed response with only position i hidden."""
    ids = [*prompt, *response[:i], MASK, *response[i + 1 :]]
    if geometry == "canvas":
        ids = canvas(family, ids, len(prompt), len(prompt) + i, budget)
    return read(model, family, ids, len(prompt), len(prompt) + i)


def canvas(family, ids, prompt, place, budget):
    """Masks behind what is known, to the end of the block that holds the place, or of the budget."""
    end = prompt + budget
    if family.attention == "block":
        end = segment_bounds(family, place, prompt, end)[1]
    return ids + [MASK] * (end - len(ids))


def all_mask_log_probs(model, family, prompt, i, *, budget):
    return read(model, family, [*prompt, *[MASK] * budget], len(prompt), len(prompt) + i)


def entropy(logp: torch.Tensor) -> float:
    return -sum(math.exp(x) * x for x in logp.tolist() if x > -math.inf)


# ---- Writing a response (paper eq. `commit`) ----


@torch.no_grad()
def naive_generate(model, family, prompt, *, budget, passes, order, stop_ids=(STOP,), threshold=None, noise=None):
    """The whole canvas encoded anew in every pass; plain loops; one prompt at a time."""
    start, end = len(prompt), len(prompt) + budget
    ids = [*prompt, *[MASK] * budget]
    record = {}
    forwards, position = 0, start
    while position < end:
        begin, stop = segment_bounds(family, position, start, end)
        if family.sub_block:
            stop = min(stop, begin + ((position - begin) // family.sub_block + 1) * family.sub_block)
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
        if ended:
            # Passes that only write behind the end are not needed.
            forwards -= r - 1 - max(record[p][0] for p in range(position, ended[0] + 1))
            return ids[start : ended[0] + 1], [record[p] for p in range(start, ended[0] + 1)], True, forwards
        position = stop
    return ids[start:], [record[p] for p in range(start, end)], False, forwards


# ---- Teaching (paper alg. `method`) ----


def teacher_log_probs(teacher, prompt, y, i):
    """log t_i, from the prefix alone."""
    logits = teacher(input_ids=torch.tensor([[*prompt, *y[:i]]])).logits[0, -1, :VOCABULARY]
    return logits.index_fill(0, torch.tensor([MASK, PAD]), -math.inf).log_softmax(-1)


@torch.no_grad()
def naive_answer(teacher, prompt, *, budget, stop_ids=(STOP,)):
    """The teacher's greedy answer d."""
    d = []
    while len(d) < budget and not (d and d[-1] in stop_ids):
        d.append(int(teacher_log_probs(teacher, prompt, d, len(d)).argmax()))
    return d


def positions(y, rho, draw, stop_ids):
    """S_y: n of the candidates E, which `draw` chooses, and a real EOS (paper eq. `position-sampling`)."""
    candidates = max(0, len(y) - 1)
    n = min(math.ceil(Fraction(str(rho)) * len(y)), candidates)
    end = {len(y) - 1} if y and y[-1] in stop_ids else set()
    return sorted(set(draw(candidates, n)) | end)


def divergence(t, s, merged=()):
    """KL(t ‖ s) from log-probabilities, with the merged ids as one event."""
    if merged:
        rest = [u for u in range(VOCABULARY) if u not in merged]
        t, s = (torch.cat([x[rest], x[list(merged)].logsumexp(0, keepdim=True)]) for x in (t, s))
    valid = t > -math.inf
    return (t[valid].exp() * (t[valid] - s[valid])).sum()


def mean(values):
    """A_S: 0 over nothing."""
    return sum(values) / len(values) if values else torch.zeros(())


def naive_question(student, family, teacher, q, settings, draw, stop_ids=(STOP,)):
    """Content loss, ranking loss and what is recorded of a question, or None if it is excluded."""
    route = {(True, True): "CE", (False, True): "LEFTOPD", (False, False): "GOLD", (True, False): "EXCLUDE"}[
        q.student_right, q.teacher_right
    ]
    if settings.supervision == "routed" and route == "EXCLUDE":
        return None
    prompt, c, g, budget = q.prompt, q.response, q.reference, settings.budget
    merged = stop_ids if settings.merge_stops else ()

    readout_family = family if settings.attention == "native" else Family("full", family.block_size, head=family.head)

    def s(y, i):
        return prefix_log_probs(student, readout_family, prompt, y, i, budget=budget, geometry=settings.geometry)

    def t(y, i):
        return teacher_log_probs(teacher, prompt, y, i).detach()

    S_c = positions(c, settings.rho, lambda E, n: draw(q.id, "response", E, n), stop_ids)
    left = {i: s(c, i) for i in S_c}
    record = {"route": route, "positions": S_c, "kl": [], "teacher_entropy": [], "reference_positions": []}
    content = torch.zeros(())
    kind = route if settings.supervision == "routed" else settings.supervision
    if kind == "CE":
        content = content + mean([-left[i][c[i]] for i in S_c])
    if kind in ("LEFTOPD", "opd", "sft+opd"):
        views = left
        if settings.view == "target_masked":
            options = {"budget": budget, "geometry": settings.geometry}
            views = {i: target_masked_log_probs(student, family, prompt, c, i, **options) for i in S_c}
        losses = [divergence(t(c, i), views[i], merged) for i in S_c]
        content = content + mean(losses)
        record |= {"kl": losses, "teacher_entropy": [entropy(t(c, i)) for i in S_c]}
    if kind in ("GOLD", "sft", "sft+opd", "mix") and g is not None:
        S_g = positions(g, settings.rho, lambda E, n: draw(q.id, "reference", E, n), stop_ids)
        hard = [-s(g, i)[g[i]] for i in S_g]
        losses = hard
        if kind == "mix":
            soft = [divergence(t(g, i), s(g, i), merged) for i in S_g]
            losses = [settings.alpha * kl + (1 - settings.alpha) * ce for kl, ce in zip(soft, hard, strict=True)]
            record |= {"kl": soft, "teacher_entropy": [entropy(t(g, i)) for i in S_g]}
        content = content + mean(losses)
        record |= {"reference_positions": S_g, "reference_nll": hard}

    H_mask = {i: entropy(all_mask_log_probs(student, family, prompt, i, budget=budget)) for i in S_c}
    H_left = {i: entropy(left[i]) for i in S_c}
    # Plain numbers, through which no gradient passes.
    D = {i: max(0.0, H_mask[i] - H_left[i]) for i in S_c}
    confidence = {i: left[i].max() for i in S_c}
    pairs = [(i, j) for i in S_c for j in S_c if D[i] > D[j] + settings.mu]
    rank = mean([(confidence[i] - confidence[j] + settings.delta).clamp(min=0) for i, j in pairs])
    record |= {"pairs": len(pairs), "contrast": [D[i] for i in S_c], "mask_entropy": [H_mask[i] for i in S_c]}
    record |= {"left_entropy": [H_left[i] for i in S_c], "confidence": [confidence[i] for i in S_c]}
    return content, rank, record | {"nll": [-left[i][c[i]] for i in S_c]}


def naive_update(student, family, teacher, batch, settings, draw, stop_ids=(STOP,)):
    """L(θ), whose gradient is the update, or None if every question is excluded (then there is no update)."""
    retained = []
    for q in batch:
        losses = naive_question(student, family, teacher, q, settings, draw, stop_ids)
        if losses is not None:
            content, rank, _ = losses
            retained.append(content + settings.rank_weight * rank)
    return sum(retained) / len(batch) if retained else None


def naive_forkleft(student, family, teacher, questions, verify, settings, draw, *, passes, stop_ids=(STOP,)):
    """The algorithm from its first line: the student writes, the teacher answers, both are verified, the update."""
    batch = []
    for q in questions:
        how = {"budget": settings.budget, "stop_ids": stop_ids}
        c, *_ = naive_generate(student, family, q.prompt, passes=passes, order="high_entropy", **how)
        d = naive_answer(teacher, q.prompt, **how)
        batch.append(replace(q, response=c, student_right=verify(q, c), teacher_right=verify(q, d)))
    return batch, naive_update(student, family, teacher, batch, settings, draw, stop_ids)


# ---- Learning to denoise ----


def hide(first, last, generator, low, high):
    """The rule in words: a share, a spare draw, then one draw for each position; never nothing."""
    draws = torch.rand(last - first + 2, generator=generator, dtype=torch.float64).tolist()
    hidden = [first + k for k, draw in enumerate(draws[2:]) if draw < low + (high - low) * draws[0]]
    return hidden or [first + int(draws[1] * (last - first))]


def naive_denoising_loss(model, family, examples, generators, weighting, budget, shares):
    """One forward for each block: everything before it clean, the block in part hidden, nothing after it."""
    losses, means, lengths = [], [], []
    for example, generator in zip(examples, generators, strict=True):
        prompt = len(example.prompt)
        sequence = [*example.prompt, *example.response]
        stop = len(sequence) if budget is None else prompt + budget
        if family.attention == "block" and sequence[-1] == STOP:
            # Long enough for the last block to end within it.
            far = len(sequence) + family.block_size if budget is None else stop
            stop = segment_bounds(family, len(sequence) - 1, prompt, far)[1]
        sequence += [STOP] * (stop - len(sequence))
        begin = prompt
        while begin < len(sequence):
            last = len(sequence)
            if family.attention == "block":
                last = segment_bounds(family, begin, prompt, len(sequence))[1]
            hidden = hide(begin, last, generator, *shares)
            noisy = [MASK if position in hidden else sequence[position] for position in range(last)]
            logits = plain_logits(model, family, noisy, prompt)
            for position in hidden:
                source = position if family.head == "same" else position - 1
                losses.append(-logits[source].log_softmax(-1)[sequence[position]])
            means.append(torch.stack(losses[-len(hidden) :]).mean())
            lengths.append(last - begin)
            begin = last
    if weighting == "uniform":
        return torch.stack(losses).mean()
    # 1/t at each hidden position makes of a block its mean loss times its length.
    return sum(mean * length for mean, length in zip(means, lengths, strict=True)) / sum(lengths)


def naive_causal_loss(model, examples):
    """One forward for each token, of all before it."""
    losses = []
    for example in examples:
        for i, token in enumerate(example.response):
            before = [*example.prompt, *example.response[:i]]
            logits = plain_logits(model, Family("block", 1, "absolute"), before, len(before))
            losses.append(-logits[-1].log_softmax(-1)[token])
    return torch.stack(losses).mean()
