"""Losses at the output head: exact for 152k words, without a table of all rows and words (design: a loss in chunks).

For rows of hidden states h_s and the head W, with p_s = softmax(W h_s) over 𝒱, one primitive gives per row

- nll        −log p_s(y_s)                  live
- kl         KL(t_s ‖ p_s), if a teacher    live
- confidence ℓ_s = max_u log p_s(u)         live
- entropy    H(p_s)                         fixed, like everything of the teacher

so that cross-entropy, KL, their mixtures and the ranking loss follow by arithmetic on short vectors. The gradient
at the logits is, with upstream gradients g (paper eq. `klgradient`, `mixgradient`),

    (g_nll + g_kl − g_conf) p  −  g_nll e_y  −  g_kl t  +  g_conf e_max.

Logits z exist a *tile* at a time: some rows, some words. A tile is computed, reduced and dropped. What is kept of the
words before are sums for each row, relative to the highest logit m so far: Σ e^(z−m) and Σ e^(z−m)·(z−m), which give
the normaliser and the entropy, and with the teacher's z' and m' Σ e^(z'−m')·(z−m), which gives the KL. The backward
computes the tiles again. So the head is read once for many rows, and a tile stays in the processor's cache.

Products run in the precision of the head (or that of autocast), and everything after them is at least float32. On CUDA
the products of low-precision operands give float32 as well; on other devices logits are rounded as the model's own head
would round them.

Shapes: S rows, of which the first K have a teacher; R rows of a tile, of which J have one, and its C words; V words, M
of them merged; D and E the widths of student and teacher.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from forkleft.devices import on_device
from forkleft.errors import ForkLeftError
from forkleft.rollout.orders import maximum

# Numbers of a tile: four megabytes on a CPU, eight times as many elsewhere, where few large operations are better.
_CPU_NUMBERS, _DEVICE_NUMBERS = 2**20, 2**23
# With many rows, so many words: with fewer, finding the highest would take as long as the products. With few rows, no
# more than so many: products with the head's part have that size, too.
_TILE_WORDS, _MOST_WORDS = 2048, 2**15
# A logit outside 𝒱: its exponential is 0 beside any other's, and times that it is 0, as −inf would not be.
_OUTSIDE = -1e30


@dataclass(frozen=True)
class TeacherRows:
    """The teacher's hidden states at the first K rows, and its own head. Its distributions exist only in tiles."""

    hidden_KE: torch.Tensor
    weight_VE: torch.Tensor

    def rows(self, rows: slice) -> "TeacherRows":
        """Those of some of the student's rows."""
        return TeacherRows(self.hidden_KE[rows], self.weight_VE)


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

    targets_S: y_s, ids within 𝒱. excluded_V: which ids are outside 𝒱 and have no probability in either model; so
    are rows of a head beyond V. merged_ids: ids of 𝒱 that count as one event in the KL (the stop ids, if the models
    have different EOS tokens). Raises ForkLeftError if shapes disagree.
    """
    words, device = len(excluded_V), hidden_SD.device
    if teacher is None:
        teacher = TeacherRows(hidden_SD.detach()[:0], weight_VD.detach())
    _check(hidden_SD, weight_VD, targets_S, teacher, words)
    precision = weight_VD.dtype
    if torch.is_autocast_enabled(device.type):
        precision = torch.get_autocast_dtype(device.type)
    rows_R, words_C = tile_shape(len(hidden_SD), words, device.type)
    # Without rows one tile is enough: it connects the head to the loss.
    tiles = _tiles(words if len(hidden_SD) else words_C, words_C, excluded_V, merged_ids, device)
    with torch.autocast(device.type, enabled=False):
        # Autograd handles the cast of the hidden states, which is small. The head is cast tile by tile.
        targets_S = targets_S.to(device, non_blocking=True)
        return HeadRows(*_HeadRows.apply(hidden_SD.to(precision), weight_VD, targets_S, tiles, rows_R, teacher))


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
        tiles: "Sequence[_Tile]",
        group: int,
        teacher: TeacherRows,
    ) -> tuple[torch.Tensor, ...]:
        found = [
            _reduced(hidden_SD[rows], weight_VD, targets_S[rows], tiles, teacher.rows(rows))
            for rows in _groups(len(hidden_SD), group)
        ]
        columns = [torch.cat(column) for column in zip(*found, strict=True)]
        nll_S, confidence_S, entropy_S, kl_K, teacher_entropy_K, *kept = columns
        ctx.save_for_backward(hidden_SD, weight_VD, targets_S, *kept)
        ctx.tiles, ctx.group, ctx.teacher = tiles, group, teacher
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
        hidden_SD, weight_VD, targets_S, best_S, norm_S, norm_K, merged_norm_K, merged_mass_K = ctx.saved_tensors
        g_all_S = g_nll_S - g_confidence_S
        g_all_S[: len(g_kl_K)] += g_kl_K
        # Sums over the tiles, so they keep the precision of the reductions until the end.
        hidden_grad_SD = torch.zeros_like(hidden_SD, dtype=norm_S.dtype)
        weight_grad_VD = torch.zeros_like(weight_VD, dtype=norm_S.dtype) if ctx.needs_input_grad[1] else None
        for rows in _groups(len(hidden_SD), ctx.group):
            hidden_RD, taught = hidden_SD[rows], ctx.teacher.rows(rows)
            buffers = _buffers(norm_S, (len(hidden_RD), len(taught.hidden_KE)), ctx.tiles)
            for tile in ctx.tiles:
                weight_CD = weight_VD[tile.words].to(hidden_SD.dtype)
                grad_RC = _project(hidden_RD, weight_CD, tile, buffers[0])
                t_JC = _project(taught.hidden_KE, taught.weight_VE[tile.words], tile, buffers[1])
                t_JC.sub_(norm_K[rows, None]).exp_()
                if len(tile.merged):
                    # The teacher's mass on these, divided in the student's proportions: the KL to this fixed target
                    # has the value and the gradient of the KL with the ids as one event.
                    z_JM = grad_RC[: len(t_JC), tile.merged]
                    shared_JM = merged_mass_K[rows, None] * (z_JM - merged_norm_K[rows, None]).exp()
                    t_JC.index_copy_(1, tile.merged, shared_JM)
                grad_RC.sub_(norm_S[rows, None]).exp_().mul_(g_all_S[rows, None])
                grad_RC[: len(t_JC)].addcmul_(t_JC, g_kl_K[rows, None], value=-1)
                for ids_S, g_S in ((targets_S, -g_nll_S), (best_S, g_confidence_S)):
                    here_R, place_R = tile.find(ids_S[rows])
                    grad_RC.scatter_add_(1, place_R[:, None], (here_R * g_S[rows])[:, None])
                _add_product(hidden_grad_SD[rows], grad_RC, weight_CD)
                if weight_grad_VD is not None:
                    _add_product(weight_grad_VD[tile.words], grad_RC.T, hidden_RD)
        if weight_grad_VD is not None:
            weight_grad_VD = weight_grad_VD.to(weight_VD.dtype)
        return hidden_grad_SD.to(hidden_SD.dtype), weight_grad_VD, None, None, None, None


class _Sums:
    """Of the logits z of each row so far: the highest, m, and Σ e^(z−m) and Σ e^(z−m)·(z−m)."""

    def __init__(self, rows: int, like: torch.Tensor) -> None:
        self.top_R = like.new_full((rows,), _OUTSIDE)
        self.mass_R, self.weighted_R = like.new_zeros(rows), like.new_zeros(rows)

    def rise(self, top_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """A new highest logit where it is higher; by how much logits move relative to it, and e to that."""
        higher_R = torch.maximum(self.top_R, top_R)
        moved_R = self.top_R - higher_R
        factor_R = moved_R.exp()
        self.weighted_R = factor_R * (self.weighted_R + self.mass_R * moved_R)
        self.mass_R = factor_R * self.mass_R
        self.top_R = higher_R
        return moved_R, factor_R

    def add(self, relative_RC: torch.Tensor, exp_RC: torch.Tensor, product_RC: torch.Tensor) -> None:
        """Logits minus the highest. Their exponentials are written to `exp_RC`; `product_RC`, which may be either of
        the two, is overwritten: new memory for each tile would not stay in the cache, and leave holes.
        """
        self.mass_R = self.mass_R + torch.exp(relative_RC, out=exp_RC).sum(dim=-1)
        self.weighted_R = self.weighted_R + torch.mul(exp_RC, relative_RC, out=product_RC).sum(dim=-1)

    @property
    def log_mass_R(self) -> torch.Tensor:
        """log Σ e^(z−m): minus the log-probability of the likeliest word."""
        return self.mass_R.log()

    @property
    def entropy_R(self) -> torch.Tensor:
        """−Σ p log p."""
        return self.log_mass_R - self.weighted_R / self.mass_R


def _reduced(
    hidden_RD: torch.Tensor,
    weight_VD: torch.Tensor,
    targets_R: torch.Tensor,
    tiles: "Sequence[_Tile]",
    teacher: TeacherRows,
) -> tuple[torch.Tensor, ...]:
    """The numbers of `HeadRows` for a group of rows, the first J with a teacher; then what the backward needs: the
    likeliest words, log-normalisers of student and teacher, and, of the merged ids, the log of the student's Σ e^z and
    the teacher's mass.
    """
    rows, taught = len(hidden_RD), len(teacher.hidden_KE)
    like = hidden_RD.new_empty(0, dtype=torch.promote_types(hidden_RD.dtype, torch.float32))
    own, theirs, cross_J = _Sums(rows, like), _Sums(taught, like), like.new_zeros(taught)
    # A target that no tile holds has no probability.
    logit_R, best_R = like.new_full((rows,), float("-inf")), torch.zeros_like(targets_R)
    merged: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    z_buffer, exp_buffer, teacher_buffer = _buffers(like, (rows, rows, taught), tiles)
    for tile in tiles:
        z_RC = _project(hidden_RD, weight_VD[tile.words].to(hidden_RD.dtype), tile, z_buffer)
        top_R, place_R = maximum(z_RC)
        best_R = torch.where(top_R > own.top_R, tile.words.start + place_R, best_R)
        here_R, place_R = tile.find(targets_R)
        logit_R = torch.where(here_R, z_RC.gather(1, place_R[:, None])[:, 0], logit_R)
        merged[0].append(z_RC[:taught, tile.merged])
        moved_R, _ = own.rise(top_R)
        exp_RC = exp_buffer[: z_RC.numel()].view_as(z_RC)
        own.add(z_RC.sub_(own.top_R[:, None]), exp_RC, exp_RC)
        if not taught:
            continue
        teacher_JC = _project(teacher.hidden_KE, teacher.weight_VE[tile.words], tile, teacher_buffer)
        merged[1].append(teacher_JC[:, tile.merged])
        cross_J = cross_J + theirs.mass_R * moved_R[:taught]
        _, factor_J = theirs.rise(teacher_JC.amax(dim=-1))
        exp_JC = exp_RC[:taught]
        theirs.add(teacher_JC.sub_(theirs.top_R[:, None]), exp_JC, teacher_JC)
        cross_J = factor_J * cross_J + exp_JC.mul_(z_RC[:taught]).sum(dim=-1)
    logit_R = logit_R.masked_fill(logit_R == _OUTSIDE, float("-inf"))
    norm_R, norm_J = own.top_R + own.log_mass_R, theirs.top_R + theirs.log_mass_R
    kl_J = own.log_mass_R[:taught] - cross_J / theirs.mass_R - theirs.entropy_R
    merged_norm_J, merged_mass_J = torch.zeros_like(kl_J), torch.zeros_like(kl_J)
    if taught and any(len(tile.merged) for tile in tiles):
        log_p_JM = torch.cat(merged[0], dim=1) - norm_R[:taught, None]
        log_t_JM = torch.cat(merged[1], dim=1) - norm_J[:, None]
        log_p_J, log_t_J = log_p_JM.logsumexp(dim=-1), log_t_JM.logsumexp(dim=-1)
        apart_J = (log_t_JM.exp() * (log_t_JM - log_p_JM)).sum(dim=-1)
        merged_norm_J, merged_mass_J = log_p_J + norm_R[:taught], log_t_J.exp()
        kl_J = kl_J - apart_J + merged_mass_J * (log_t_J - log_p_J)
    return (
        norm_R - logit_R,
        -own.log_mass_R,
        own.entropy_R,
        # A sum of rounded terms can fall below 0; the divergence cannot.
        kl_J.clamp(min=0),
        theirs.entropy_R,
        best_R,
        norm_R,
        norm_J,
        merged_norm_J,
        merged_mass_J,
    )


@dataclass(frozen=True)
class _Tile:
    """Some words, and which of them, counted from the first, are outside 𝒱 and which are merged."""

    words: slice
    outside: torch.Tensor
    merged: torch.Tensor

    def find(self, ids_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Which ids are in this tile, and the place of each; that of the others is some place."""
        place_R = ids_R - self.words.start
        within_R = place_R.clamp(0, self.words.stop - self.words.start - 1)
        return place_R == within_R, within_R


def tile_shape(rows: int, words: int, device: str) -> tuple[int, int]:
    """How many rows and words a tile has on a kind of device."""
    numbers = _CPU_NUMBERS if device == "cpu" else _DEVICE_NUMBERS
    group = max(1, min(rows, numbers // _TILE_WORDS))
    tiles = math.ceil(words / min(words, _MOST_WORDS, numbers // group))
    return group, math.ceil(words / tiles)


def _tiles(
    words: int, size: int, excluded_V: torch.Tensor, merged_ids: Sequence[int], device: torch.device
) -> list[_Tile]:
    # 𝒱 is known on the CPU, and the copies do not wait for the device.
    excluded_V = excluded_V.cpu()
    tiles = []
    for start in range(0, words, size):
        chosen = slice(start, min(start + size, words))
        outside = excluded_V[chosen].nonzero().flatten().to(device, non_blocking=True)
        merged = [id_ - start for id_ in merged_ids if chosen.start <= id_ < chosen.stop]
        tiles.append(_Tile(chosen, outside, on_device(merged, device, torch.long)))
    return tiles


def _groups(rows: int, size: int) -> Iterator[slice]:
    """Slices of the rows; one at least, so that nothing is special without rows."""
    for start in range(0, max(1, rows), size):
        yield slice(start, min(start + size, rows))


def _buffers(like: torch.Tensor, rows: Sequence[int], tiles: Sequence[_Tile]) -> list[torch.Tensor]:
    """Memory for tiles of so many rows each."""
    words = tiles[0].words.stop
    return [like.new_empty(count * words) for count in rows]


def _project(hidden_RD: torch.Tensor, weight_CD: torch.Tensor, tile: _Tile, buffer: torch.Tensor) -> torch.Tensor:
    """The logits of a tile, in the buffer. The product runs on the device of the head."""
    logits_RC = buffer[: len(hidden_RD) * len(weight_CD)].view(len(hidden_RD), len(weight_CD))
    hidden_RD = hidden_RD.to(weight_CD.device, weight_CD.dtype)
    if weight_CD.dtype == buffer.dtype and weight_CD.device == buffer.device:
        torch.mm(hidden_RD, weight_CD.T, out=logits_RC)
    elif weight_CD.is_cuda and weight_CD.dtype in (torch.bfloat16, torch.float16):
        logits_RC.copy_(torch.mm(hidden_RD, weight_CD.T, out_dtype=torch.float32))
    else:
        logits_RC.copy_(hidden_RD @ weight_CD.T)
    return logits_RC.index_fill_(1, tile.outside, _OUTSIDE)


def _add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Add a product of gradients and operands to a sum. On CUDA operands of low precision stay as they are."""
    if right.is_cuda and right.dtype != total.dtype:
        total.add_(torch.mm(left.to(right.dtype), right, out_dtype=total.dtype))
    else:
        total.addmm_(left, right.to(total.dtype))
