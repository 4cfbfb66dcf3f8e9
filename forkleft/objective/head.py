"""Losses at the output head, exact at 152k words without holding the table of all rows (design: a loss in chunks).

For rows of hidden states h_s and the head W, with p_s = softmax(W h_s) over 𝒱, one primitive gives per row

- nll        −log p_s(y_s)                  live
- kl         KL(t_s ‖ p_s), if a teacher    live
- confidence ℓ_s = max_u log p_s(u)         live
- entropy    H(p_s)                         fixed, like everything of the teacher

so that cross-entropy, KL, their mixtures and the ranking loss all come out of it by arithmetic on short vectors. The
gradient at the logits is, with upstream gradients g (paper eq. `klgradient`, `mixgradient`),

    (g_nll + g_kl − g_conf) p  −  g_nll e_y  −  g_kl t  +  g_conf e_max.

Rows are taken a few at a time: projected, normalised, reduced, forgotten; the backward projects them again. The buffers
are reused from one chunk to the next. Products run in the precision of their operands (under autocast, its precision);
everything after them is at least float32.

Shapes: S rows, C rows of a chunk, V words, D and E the widths of student and teacher.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from forkleft.errors import ForkLeftError

# Numbers in one buffer: 55 rows of 152k words. Fewer read the head more often, more leave the processor's cache.
_CHUNK_NUMBERS = 2**23


@dataclass(frozen=True)
class TeacherRows:
    """The teacher's hidden states at the same rows, and its own head. Its distributions exist only chunk by chunk."""

    hidden_SE: torch.Tensor
    weight_VE: torch.Tensor


@dataclass(frozen=True)
class HeadRows:
    """What is known of each row; `kl_S` and `teacher_entropy_S` only with a teacher."""

    nll_S: torch.Tensor
    confidence_S: torch.Tensor
    entropy_S: torch.Tensor
    kl_S: torch.Tensor | None = None
    teacher_entropy_S: torch.Tensor | None = None


def head_rows(
    hidden_SD: torch.Tensor,
    weight_VD: torch.Tensor,
    targets_S: torch.Tensor,
    excluded_V: torch.Tensor,
    *,
    teacher: TeacherRows | None = None,
    merged_ids: tuple[int, ...] = (),
) -> HeadRows:
    """Losses, entropy and confidence of every row; gradients flow to `hidden_SD` and `weight_VD`.

    targets_S: y_s, ids within 𝒱. excluded_V: ids outside 𝒱, which get −inf in both models; heads may have more rows
    than V, which are not of 𝒱 either. merged_ids: ids that count as one event in the KL (the stop ids, where the models
    name EOS differently). Raises ForkLeftError if shapes disagree.
    """
    rows, words = hidden_SD.shape[0], excluded_V.shape[0]
    if targets_S.shape != (rows,) or (teacher is not None and teacher.hidden_SE.shape[0] != rows):
        theirs = "" if teacher is None else f" and {teacher.hidden_SE.shape[0]} rows of the teacher"
        raise ForkLeftError(f"{rows} rows of the student need as many targets, found {targets_S.shape[0]}{theirs}")
    for name, weight in (("student", weight_VD), ("teacher", teacher.weight_VE if teacher else weight_VD)):
        if weight.shape[0] < words:
            raise ForkLeftError(f"the {name}'s head has {weight.shape[0]} rows, fewer than the vocabulary's {words}")
    device = hidden_SD.device
    if torch.is_autocast_enabled(device.type):
        hidden_SD, weight_VD = (x.to(torch.get_autocast_dtype(device.type)) for x in (hidden_SD, weight_VD))
    excluded = excluded_V.nonzero().flatten().to(device)
    merged = torch.tensor(merged_ids, dtype=torch.long, device=device)
    with torch.autocast(device.type, enabled=False):
        return HeadRows(*_HeadRows.apply(hidden_SD, weight_VD, targets_S.to(device), words, excluded, merged, teacher))


class _HeadRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_SD: torch.Tensor,
        weight_VD: torch.Tensor,
        targets_S: torch.Tensor,
        words: int,
        excluded: torch.Tensor,
        merged: torch.Tensor,
        teacher: TeacherRows | None,
    ) -> tuple[torch.Tensor | None, ...]:
        precision = torch.promote_types(hidden_SD.dtype, torch.float32)
        nll_S, confidence_S, entropy_S, norm_S, kl_S, teacher_entropy_S, teacher_norm_S = (
            hidden_SD.new_empty(len(hidden_SD), dtype=precision) for _ in range(7)
        )
        best_S = torch.empty_like(targets_S)
        logp_buffer, exp_buffer, log_t_buffer = _buffers(hidden_SD, words, 3 if teacher else 2)
        for part in _chunks(hidden_SD, words):
            logp_CV = _project(hidden_SD[part], weight_VD, excluded, logp_buffer)
            top_C, best_S[part] = logp_CV.max(dim=-1)
            exp_CV = torch.sub(logp_CV, top_C[:, None], out=exp_buffer[: len(top_C)]).exp_()
            sum_C = exp_CV.sum(dim=-1)
            confidence_S[part] = -sum_C.log()
            norm_S[part] = top_C + sum_C.log()
            logp_CV.sub_(norm_S[part, None])
            nll_S[part] = -logp_CV.gather(1, targets_S[part, None])[:, 0]
            # Outside 𝒱 the probability is 0, and 0 · log 0 counts as 0.
            logp_CV.index_fill_(1, excluded, 0.0)
            entropy_S[part] = -torch.linalg.vecdot(exp_CV, logp_CV) / sum_C
            if teacher is None:
                continue
            log_t_CV = _project(teacher.hidden_SE[part], teacher.weight_VE, excluded, log_t_buffer)
            top_C = log_t_CV.amax(dim=-1)
            t_CV = torch.sub(log_t_CV, top_C[:, None], out=exp_CV).exp_()
            sum_C = t_CV.sum(dim=-1)
            t_CV.div_(sum_C[:, None])
            teacher_norm_S[part] = top_C + sum_C.log()
            log_t_CV.sub_(teacher_norm_S[part, None]).index_fill_(1, excluded, 0.0)
            teacher_entropy_S[part] = -torch.linalg.vecdot(t_CV, log_t_CV)
            if len(merged):
                t_CV[:, merged] = _shared(t_CV[:, merged], logp_CV[:, merged])
                log_t_CV[:, merged] = t_CV[:, merged].log().nan_to_num(neginf=0.0)
            # A sum of rounded terms can miss 0 from below; the divergence cannot.
            kl_S[part] = torch.linalg.vecdot(t_CV, log_t_CV.sub_(logp_CV)).clamp_(min=0)
        ctx.save_for_backward(hidden_SD, weight_VD, targets_S, excluded, merged, best_S, norm_S, teacher_norm_S)
        ctx.words, ctx.teacher = words, teacher
        if teacher is None:
            ctx.mark_non_differentiable(entropy_S)
            return nll_S, confidence_S, entropy_S, None, None
        ctx.mark_non_differentiable(entropy_S, teacher_entropy_S)
        return nll_S, confidence_S, entropy_S, kl_S, teacher_entropy_S

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        g_nll_S: torch.Tensor,
        g_confidence_S: torch.Tensor,
        _entropy: torch.Tensor,
        g_kl_S: torch.Tensor | None,
        _teacher_entropy: torch.Tensor | None,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_SD, weight_VD, targets_S, excluded, merged, best_S, norm_S, teacher_norm_S = ctx.saved_tensors
        words, teacher = ctx.words, ctx.teacher
        g_all_S = g_nll_S - g_confidence_S if teacher is None else g_nll_S - g_confidence_S + g_kl_S
        hidden_grad_SD = torch.empty_like(hidden_SD)
        weight_grad_VD = None
        if ctx.needs_input_grad[1]:
            # Summed over the chunks, so in the precision of the reductions until the end.
            weight_grad_VD = torch.zeros_like(weight_VD, dtype=norm_S.dtype)
        p_buffer, t_buffer = _buffers(hidden_SD, words, 2 if teacher else 1)[:2]
        for part in _chunks(hidden_SD, words):
            logits_CV = _project(hidden_SD[part], weight_VD, excluded, p_buffer)
            if teacher is not None:
                t_CV = _project(teacher.hidden_SE[part], teacher.weight_VE, excluded, t_buffer)
                t_CV.sub_(teacher_norm_S[part, None]).exp_()
                if len(merged):
                    t_CV[:, merged] = _shared(t_CV[:, merged], logits_CV[:, merged])
            grad_CV = logits_CV.sub_(norm_S[part, None]).exp_().mul_(g_all_S[part, None])
            if teacher is not None:
                grad_CV.addcmul_(t_CV, g_kl_S[part, None], value=-1)
            grad_CV.scatter_add_(1, targets_S[part, None], -g_nll_S[part, None])
            grad_CV.scatter_add_(1, best_S[part, None], g_confidence_S[part, None])
            grad_CV = grad_CV.to(hidden_SD.dtype)
            hidden_grad_SD[part] = grad_CV @ weight_VD[:words]
            if weight_grad_VD is not None:
                _add_product(weight_grad_VD[:words], grad_CV.T, hidden_SD[part])
        if weight_grad_VD is not None:
            weight_grad_VD = weight_grad_VD.to(weight_VD.dtype)
        return hidden_grad_SD, weight_grad_VD, None, None, None, None, None


def _chunk_rows(words: int) -> int:
    return max(1, _CHUNK_NUMBERS // words)


def _chunks(hidden_SD: torch.Tensor, words: int) -> Iterator[slice]:
    for start in range(0, len(hidden_SD), _chunk_rows(words)):
        yield slice(start, min(start + _chunk_rows(words), len(hidden_SD)))


def _buffers(hidden_SD: torch.Tensor, words: int, count: int) -> list[torch.Tensor | None]:
    """Three buffers for a chunk of logits, of which `count` are needed and exist."""
    shape = (min(_chunk_rows(words), len(hidden_SD)), words)
    precision = torch.promote_types(hidden_SD.dtype, torch.float32)
    return [hidden_SD.new_empty(shape, dtype=precision) if k < count else None for k in range(3)]


def _project(
    hidden_CD: torch.Tensor, weight_VD: torch.Tensor, excluded: torch.Tensor, buffer: torch.Tensor
) -> torch.Tensor:
    """Logits of a chunk in the buffer, −inf outside 𝒱."""
    logits_CV = buffer[: len(hidden_CD)]
    weight_VD = weight_VD[: buffer.shape[1]]
    if hidden_CD.dtype == weight_VD.dtype == buffer.dtype:
        torch.mm(hidden_CD, weight_VD.T, out=logits_CV)
    else:
        logits_CV.copy_(hidden_CD.to(weight_VD.dtype) @ weight_VD.T)
    return logits_CV.index_fill_(1, excluded, float("-inf"))


def _add_product(sum_VD: torch.Tensor, grad_VC: torch.Tensor, hidden_CD: torch.Tensor) -> None:
    if sum_VD.dtype == grad_VC.dtype:
        sum_VD.addmm_(grad_VC, hidden_CD)
    else:
        sum_VD.add_(grad_VC @ hidden_CD)


def _shared(t_CM: torch.Tensor, logits_CM: torch.Tensor) -> torch.Tensor:
    """The teacher's mass on the merged ids, shared out among them in the student's proportions.

    KL to this fixed target equals, in value and gradient, KL between the distributions with the ids as one event.
    """
    return t_CM.sum(dim=-1, keepdim=True) * logits_CM.softmax(dim=-1)
