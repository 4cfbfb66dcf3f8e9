"""Losses at the output head: exact for 152k words, without a table of all rows (design: a loss in chunks).

For rows of hidden states h_s and the head W, with p_s = softmax(W h_s) over 𝒱, one primitive gives per row

- nll        −log p_s(y_s)                  live
- kl         KL(t_s ‖ p_s), if a teacher    live
- confidence ℓ_s = max_u log p_s(u)         live
- entropy    H(p_s)                         fixed, like everything of the teacher

so that cross-entropy, KL, their mixtures and the ranking loss follow by arithmetic on short vectors. The gradient
at the logits is, with upstream gradients g (paper eq. `klgradient`, `mixgradient`),

    (g_nll + g_kl − g_conf) p  −  g_nll e_y  −  g_kl t  +  g_conf e_max.

Rows are processed a few at a time: projected, normalised, reduced, and dropped. The backward projects them again. Only
a few tables of one chunk exist at a time. Products run in the precision of the head (or that of autocast), and
everything after them is at least float32. On CUDA the products of low-precision operands give float32 as well; on other
devices they are rounded as the model's own head would round them.

Shapes: S rows, of which the first K have a teacher; C rows of a chunk, V words, D and E the widths of student and
teacher.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from forkleft.devices import on_device
from forkleft.errors import ForkLeftError

# Numbers in one buffer: 55 rows of 152k words. With fewer, the head is read more often; more do not fit into the
# processor's cache.
_CHUNK_NUMBERS = 2**23


@dataclass(frozen=True)
class TeacherRows:
    """The teacher's hidden states at the first K rows, and its own head. Its distributions exist only in chunks."""

    hidden_KE: torch.Tensor
    weight_VE: torch.Tensor


@dataclass(frozen=True)
class HeadRows:
    """The numbers of each row and, against the teacher, of each of the first K."""

    nll_S: torch.Tensor
    confidence_S: torch.Tensor
    entropy_S: torch.Tensor
    kl_K: torch.Tensor
    teacher_entropy_K: torch.Tensor


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

    targets_S: y_s, ids within 𝒱. excluded_V: which ids are outside 𝒱 and get −inf in both models; rows of a head beyond
    V are outside 𝒱 too. merged_ids: ids of 𝒱 that count as one event in the KL (the stop ids, if the models have
    different EOS tokens). Raises ForkLeftError if shapes disagree.
    """
    words, device = len(excluded_V), hidden_SD.device
    if teacher is None:
        teacher = TeacherRows(hidden_SD.detach()[:0], weight_VD.detach())
    _check(hidden_SD, weight_VD, targets_S, teacher, words)
    precision = weight_VD.dtype
    if torch.is_autocast_enabled(device.type):
        precision = torch.get_autocast_dtype(device.type)
    # 𝒱 is known on the CPU, and the copies do not wait for the device.
    excluded = excluded_V.cpu().nonzero().flatten().to(device, non_blocking=True)
    merged = on_device(merged_ids, device, torch.long)
    with torch.autocast(device.type, enabled=False):
        # Autograd handles the cast of the hidden states, which is small. The head is cast again in each direction.
        return HeadRows(
            *_HeadRows.apply(
                hidden_SD.to(precision),
                weight_VD,
                targets_S.to(device, non_blocking=True),
                words,
                excluded,
                merged,
                teacher,
            )
        )


def _check(
    hidden_SD: torch.Tensor, weight_VD: torch.Tensor, targets_S: torch.Tensor, teacher: TeacherRows, words: int
) -> None:
    rows = len(hidden_SD)
    if len(targets_S) != rows or len(teacher.hidden_KE) > rows:
        raise ForkLeftError(
            f"{rows} rows of the student need as many targets and at most as many rows of the teacher, "
            f"found {len(targets_S)} and {len(teacher.hidden_KE)}"
        )
    heads = {"student": (hidden_SD, weight_VD), "teacher": (teacher.hidden_KE, teacher.weight_VE)}
    for name, (hidden, weight) in heads.items():
        if weight.shape[0] < words or weight.shape[1] != hidden.shape[1]:
            raise ForkLeftError(
                f"the {name}'s head is {tuple(weight.shape)}: expected at least {words} rows of width "
                f"{hidden.shape[1]}, that of its hidden states"
            )


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
        teacher: TeacherRows,
    ) -> tuple[torch.Tensor, ...]:
        rows, taught = len(hidden_SD), len(teacher.hidden_KE)
        precision = torch.promote_types(hidden_SD.dtype, torch.float32)
        nll_S, confidence_S, entropy_S, norm_S = (hidden_SD.new_empty(rows, dtype=precision) for _ in range(4))
        kl_K, teacher_entropy_K, teacher_norm_K = (hidden_SD.new_empty(taught, dtype=precision) for _ in range(3))
        best_S = torch.empty_like(targets_S)
        cast_VD = weight_VD[:words].to(hidden_SD.dtype)
        logp_buffer, exp_buffer, log_t_buffer = _buffers(hidden_SD, words, 3)
        for part, with_teacher in _chunks(rows, taught, words):
            logp_CV = _project(hidden_SD[part], cast_VD, excluded, logp_buffer)
            top_C, best_S[part] = logp_CV.max(dim=-1)
            exp_CV = torch.sub(logp_CV, top_C[:, None], out=exp_buffer[: len(top_C)]).exp_()
            sum_C = exp_CV.sum(dim=-1)
            confidence_S[part] = -sum_C.log()
            norm_S[part] = top_C + sum_C.log()
            logp_CV.sub_(norm_S[part, None])
            nll_S[part] = -logp_CV.gather(1, targets_S[part, None])[:, 0]
            # Outside 𝒱 the probability is 0, and 0 · log 0 counts as 0.
            logp_CV.index_fill_(1, excluded, 0.0)
            entropy_S[part] = -exp_CV.mul_(logp_CV).sum(dim=-1) / sum_C
            if not with_teacher:
                continue
            log_t_CV = _project(teacher.hidden_KE[part], teacher.weight_VE[:words], excluded, log_t_buffer)
            top_C = log_t_CV.amax(dim=-1)
            t_CV = torch.sub(log_t_CV, top_C[:, None], out=exp_buffer[: len(top_C)]).exp_()
            sum_C = t_CV.sum(dim=-1)
            t_CV.div_(sum_C[:, None])
            teacher_norm_K[part] = top_C + sum_C.log()
            log_t_CV.sub_(teacher_norm_K[part, None]).index_fill_(1, excluded, 0.0)
            teacher_entropy_K[part] = -(t_CV * log_t_CV).sum(dim=-1)
            if len(merged):
                t_CV[:, merged] = _shared(t_CV[:, merged], logp_CV[:, merged])
                log_t_CV[:, merged] = t_CV[:, merged].log().nan_to_num(neginf=0.0)
            # A sum of rounded terms can fall below 0; the divergence cannot.
            kl_K[part] = log_t_CV.sub_(logp_CV).mul_(t_CV).sum(dim=-1).clamp_(min=0)
        ctx.save_for_backward(hidden_SD, weight_VD, targets_S, excluded, merged, best_S, norm_S, teacher_norm_K)
        ctx.words, ctx.teacher = words, teacher
        ctx.mark_non_differentiable(entropy_S, teacher_entropy_K)
        return nll_S, confidence_S, entropy_S, kl_K, teacher_entropy_K

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any,
        g_nll_S: torch.Tensor,
        g_confidence_S: torch.Tensor,
        _entropy: torch.Tensor,
        g_kl_K: torch.Tensor,
        _teacher_entropy: torch.Tensor,
    ) -> tuple[torch.Tensor | None, ...]:
        hidden_SD, weight_VD, targets_S, excluded, merged, best_S, norm_S, teacher_norm_K = ctx.saved_tensors
        words, teacher = ctx.words, ctx.teacher
        g_all_S = g_nll_S - g_confidence_S
        g_all_S[: len(g_kl_K)] += g_kl_K
        cast_VD = weight_VD[:words].to(hidden_SD.dtype)
        hidden_grad_SD = torch.empty_like(hidden_SD)
        # A sum over the chunks, so it keeps the precision of the reductions until the end.
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=norm_S.dtype) if ctx.needs_input_grad[1] else None
        p_buffer, t_buffer = _buffers(hidden_SD, words, 2)
        for part, with_teacher in _chunks(len(hidden_SD), len(g_kl_K), words):
            logits_CV = _project(hidden_SD[part], cast_VD, excluded, p_buffer)
            if with_teacher:
                t_CV = _project(teacher.hidden_KE[part], teacher.weight_VE[:words], excluded, t_buffer)
                t_CV.sub_(teacher_norm_K[part, None]).exp_()
                if len(merged):
                    t_CV[:, merged] = _shared(t_CV[:, merged], logits_CV[:, merged])
            grad_CV = logits_CV.sub_(norm_S[part, None]).exp_().mul_(g_all_S[part, None])
            if with_teacher:
                grad_CV.addcmul_(t_CV, g_kl_K[part, None], value=-1)
            grad_CV.scatter_add_(1, targets_S[part, None], -g_nll_S[part, None])
            grad_CV.scatter_add_(1, best_S[part, None], g_confidence_S[part, None])
            grad_CV = grad_CV.to(hidden_SD.dtype)
            hidden_grad_SD[part] = grad_CV @ cast_VD
            if weight_grad_VD is None:
                continue
            if grad_CV.dtype == weight_grad_VD.dtype:
                weight_grad_VD[:words].addmm_(grad_CV.T, hidden_SD[part])
            else:
                weight_grad_VD[:words].add_(grad_CV.T @ hidden_SD[part])
        if weight_grad_VD is not None:
            weight_grad_VD = weight_grad_VD.to(weight_VD.dtype)
        return hidden_grad_SD, weight_grad_VD, None, None, None, None, None


def chunk_rows(words: int) -> int:
    """How many rows are projected at a time."""
    return max(1, _CHUNK_NUMBERS // words)


def _chunks(rows: int, taught: int, words: int) -> Iterator[tuple[slice, bool]]:
    """Slices of the rows with a teacher, then of those without; each with whether it has a teacher."""
    size = chunk_rows(words)
    for first, last, with_teacher in ((0, taught, True), (taught, rows, False)):
        for start in range(first, last, size):
            yield slice(start, min(start + size, last)), with_teacher


def _buffers(hidden_SD: torch.Tensor, words: int, count: int) -> list[torch.Tensor]:
    shape = (min(chunk_rows(words), len(hidden_SD)), words)
    precision = torch.promote_types(hidden_SD.dtype, torch.float32)
    return [hidden_SD.new_empty(shape, dtype=precision) for _ in range(count)]


def _project(
    hidden_CD: torch.Tensor, weight_VD: torch.Tensor, excluded: torch.Tensor, buffer: torch.Tensor
) -> torch.Tensor:
    """Logits of a chunk in the buffer, −inf outside 𝒱. The product runs on the device of the head."""
    logits_CV = buffer[: len(hidden_CD)]
    hidden_CD = hidden_CD.to(weight_VD.device, weight_VD.dtype)
    if weight_VD.dtype == buffer.dtype and weight_VD.device == buffer.device:
        torch.mm(hidden_CD, weight_VD.T, out=logits_CV)
    elif weight_VD.is_cuda and weight_VD.dtype in (torch.bfloat16, torch.float16):
        logits_CV.copy_(torch.mm(hidden_CD, weight_VD.T, out_dtype=torch.float32))
    else:
        logits_CV.copy_(hidden_CD @ weight_VD.T)
    return logits_CV.index_fill_(1, excluded, float("-inf"))


def _shared(t_CM: torch.Tensor, logits_CM: torch.Tensor) -> torch.Tensor:
    """The teacher's mass on the merged ids, divided among them in the student's proportions.

    KL to this fixed target equals, in value and gradient, KL between the distributions with the ids as one event.
    """
    return t_CM.sum(dim=-1, keepdim=True) * logits_CM.softmax(dim=-1)
