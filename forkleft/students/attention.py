"""How a diffusion student attends: one function registered with Transformers, steered by a layout.

A stock decoder treats each token on its own everywhere but in attention. So a *layout* may give it any set of tokens as
one row of N, and only attention decides which token sees which. `PackedLayout` is the layout of the readouts (design:
exact packed readouts): clean streams, one for each question, and *replicas*, short copies of a block in which a target
is hidden. The rule, `may_attend`:

- a clean token sees the clean tokens of its question in its own and earlier blocks;
- a replica token sees the clean tokens of its question in blocks *before* its own, and all of its replica;
- nothing sees a replica but the replica itself.

Clean tokens never see a replica, so the clean stream is exactly what the model computes without replicas. A replica has
the position ids of the block that it replaces, so it is exactly what the model computes on the sequence that ends with
it. Gradients flow through the clean stream too.

Only some tokens are read in the end. In the last layer nothing but their own attention output matters, so only they
are queries there (`PackedLayout.read`; `students/reading.py` spares the others the rest of the layer).

Shapes: N tokens in the row, of which S are read; Q questions (clean streams), T tokens in the longest; F rows of folded
replicas, W tokens in the longest; H query heads, K key heads, D head width.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from forkleft.devices import on_device

ATTENTION_NAME = "forkleft"
# The same without FlexAttention, on every device.
DENSE_ATTENTION_NAME = "forkleft_dense"
# Replicas share a row up to this many tokens. Longer rows waste attention inside the row, shorter ones copy the clean
# keys more often. For prompt 128, response 512 and blocks of 32, 96 to 192 measured alike, 64 and 256 slower.
_ROW_TOKENS = 128
# Rows of replicas are attended in this many groups, so that early ones are not compared with keys that they never see
# (12% less time for the whole readout than one group, in the same measurement).
_GROUPS = 4


class Layout(Protocol):
    """Decides which of the N tokens of a forward see which."""

    def attend(
        self,
        layer: int,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KND: torch.Tensor,
        scaling: float,
        *,
        dense: bool,
        last: bool,
    ) -> torch.Tensor:
        """The attention output, `(1, N, H, D)`.

        dense: without FlexAttention. last: only the output of tokens that are read matters.
        """


# A compiled layer stops before it and goes on behind it (`compiling.py`): layouts differ from forward to forward.
@torch.compiler.disable
def forkleft_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    forkleft_layout: Layout | None = None,
    forkleft_last: bool = False,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attention by the layout; without one, Transformers' own `sdpa`, so that plain use of the model still works."""
    if forkleft_layout is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **kwargs)
    dense = module.config._attn_implementation == DENSE_ATTENTION_NAME
    out = forkleft_layout.attend(module.layer_idx, query, key, value, scaling, dense=dense, last=forkleft_last)
    return out, None


for _name in (ATTENTION_NAME, DENSE_ATTENTION_NAME):
    AttentionInterface.register(_name, forkleft_attention)
    AttentionMaskInterface.register(_name, sdpa_mask)


@dataclass(frozen=True)
class Replica:
    """A copy of the tokens of block `block` from sequence position `start` on, with targets and suffix hidden."""

    ids: Sequence[int]
    start: int
    block: int


@dataclass(frozen=True)
class Stream:
    """The clean tokens of one question, the block of each, and the replicas that belong to them."""

    ids: Sequence[int]
    blocks: Sequence[int]
    replicas: Sequence[Replica] = ()


def may_attend(query: tuple[torch.Tensor, ...], key: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Whether query tokens see key tokens, each given as (question, replica, block); replica 0 is the clean stream."""
    question_q, replica_q, block_q = query
    question_k, replica_k, block_k = key
    earlier = (block_k < block_q) | ((block_k == block_q) & (replica_q == 0))
    return (question_q == question_k) & torch.where(replica_k == 0, earlier, replica_q == replica_k)


class PackedLayout:
    """Clean streams and replicas packed into one row of N tokens without any padding.

    ids_N, positions_N: the input of the model; replicas repeat position ids.
    clean_index: for each question, where in N its clean stream begins.
    replica_index: for each question, where in N each of its replicas begins.
    """

    def __init__(self, streams: Sequence[Stream], device: torch.device | str | None = None) -> None:
        ids: list[int] = []
        positions: list[int] = []
        question: list[int] = []
        replica: list[int] = []
        block: list[int] = []
        clean_rows: list[range] = []
        folded: list[_FoldedRow] = []
        self.clean_index: list[int] = []
        self.replica_index: list[list[int]] = []
        replicas = 0
        for q, stream in enumerate(streams):
            self.clean_index.append(len(ids))
            clean_rows.append(range(len(ids), len(ids) + len(stream.ids)))
            ids += stream.ids
            positions += range(len(stream.ids))
            block += stream.blocks
            replica += [0] * len(stream.ids)
            starts = []
            row_start, row_block = len(ids), 0
            for copy in stream.replicas:
                if len(ids) > row_start and len(ids) + len(copy.ids) - row_start > _ROW_TOKENS:
                    folded.append(_FoldedRow(q, range(row_start, len(ids)), bisect_left(stream.blocks, row_block)))
                    row_start = len(ids)
                row_block = copy.block if len(ids) == row_start else max(row_block, copy.block)
                replicas += 1
                starts.append(len(ids))
                ids += copy.ids
                positions += range(copy.start, copy.start + len(copy.ids))
                block += [copy.block] * len(copy.ids)
                replica += [replicas] * len(copy.ids)
            if len(ids) > row_start:
                folded.append(_FoldedRow(q, range(row_start, len(ids)), bisect_left(stream.blocks, row_block)))
            self.replica_index.append(starts)
            question += [q] * (len(ids) - len(question))

        # All on the CPU first: a copy to the device does not wait for it, a question to the device would.
        columns_5N = torch.tensor([ids, positions, question, replica, block]).to(device, non_blocking=True)
        self.ids_N, self.positions_N, *tokens = columns_5N
        self._tokens = tuple(tokens)
        self._one_block = all(len(set(stream.blocks)) == 1 for stream in streams)
        folded.sort(key=lambda row: row.reach)
        size = -(-len(folded) // _GROUPS) or 1
        groups = [folded[start : start + size] for start in range(0, len(folded), size)]
        self._rows: list[list[range]] = [clean_rows, *([row.tokens for row in rows] for rows in groups)]
        self._queries = _Queries(self._rows, device)
        self._read = self._queries
        self._clean, *tables = self._queries.tables
        self._groups = [
            _Group(table, on_device([row.question for row in rows], device), max(row.reach for row in rows))
            for rows, table in zip(groups, tables, strict=True)
        ]
        self._block_mask: BlockMask | None = None

    def read(self, tokens: Sequence[int]) -> torch.Tensor:
        """Say which tokens of N are read in the end, all others being there to be seen; returns them as `rows_S`."""
        ordered = sorted(set(tokens))
        chosen = [
            [ordered[bisect_left(ordered, row.start) : bisect_left(ordered, row.stop)] for row in rows]
            for rows in self._rows
        ]
        self._read = _Queries(chosen, self.ids_N.device)
        return on_device(tokens, self.ids_N.device, torch.long)

    def attend(
        self,
        layer: int,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KND: torch.Tensor,
        scaling: float,
        *,
        dense: bool = False,
        last: bool = False,
    ) -> torch.Tensor:
        """See `Layout`. FlexAttention on CUDA, where it skips what no query sees; gathered rows and SDPA elsewhere.

        Compiled FlexAttention, and its gradient, have never been run: there was no GPU. `forkleft doctor` compares the
        two on the user's.
        """
        if query_1HND.device.type == "cuda" and not dense:
            return self.attend_flex(query_1HND, key_1KND, value_1KND, scaling, *_compiled())
        return self.attend_rows(query_1HND, key_1KND, value_1KND, scaling, last=last)

    def token(self, question: int, replica: int | None, offset: int) -> int:
        """The index in N of a token, given its offset in a replica of a question or, with None, in the clean stream."""
        return offset + (self.clean_index[question] if replica is None else self.replica_index[question][replica])

    def attend_flex(
        self,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KND: torch.Tensor,
        scaling: float,
        flex: Any = flex_attention,
        make_mask: Any = create_block_mask,
    ) -> torch.Tensor:
        """All N tokens against all N, under the rule `may_attend`, with FlexAttention, compiled or not."""
        if self._block_mask is None:
            n = len(self.ids_N)

            def rule(batch: torch.Tensor, head: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
                return may_attend(tuple(x[q] for x in self._tokens), tuple(x[k] for x in self._tokens))

            self._block_mask = make_mask(rule, B=None, H=None, Q_LEN=n, KV_LEN=n, device=query_1HND.device)
        grouped = query_1HND.shape[1] != key_1KND.shape[1]
        out_1HND = flex(
            query_1HND, key_1KND, value_1KND, block_mask=self._block_mask, scale=scaling, enable_gqa=grouped
        )
        return out_1HND.transpose(1, 2)

    def attend_rows(
        self,
        query_1HND: torch.Tensor,
        key_1KND: torch.Tensor,
        value_1KND: torch.Tensor,
        scaling: float,
        *,
        last: bool = False,
    ) -> torch.Tensor:
        """Clean queries against clean keys; replicas, folded into rows, against the clean keys and their own row.

        last: queries are only the tokens that are read; the output of all others is zero.
        """
        queries = self._read if last else self._queries
        query_NHD, key_NKD, value_NKD = (x[0].transpose(0, 1) for x in (query_1HND, key_1KND, value_1KND))
        clean = [x[self._clean.index].transpose(1, 2) for x in (key_NKD, value_NKD)]
        outs = []
        for part, (table, mask) in enumerate(zip(queries.tables, self._masks(queries, query_NHD.dtype), strict=True)):
            if not table.index.shape[1]:
                continue
            keys, values = clean if part == 0 else self._seen_by(self._groups[part - 1], clean, (key_NKD, value_NKD))
            outs.append(_grouped_attention(query_NHD[table.index], keys, values, mask, scaling))
        return queries.in_order(torch.cat(outs), len(query_NHD))[None]

    def _seen_by(
        self, group: "_Group", clean: Sequence[torch.Tensor], all_tokens: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Keys and values for the rows of a group, `(F, K, reach + W, D)`: clean ones of their question, and own."""
        return [
            torch.cat([x_QKTD[group.owner_F, :, : group.reach], x_NKD[group.own.index].transpose(1, 2)], dim=2)
            for x_QKTD, x_NKD in zip(clean, all_tokens, strict=True)
        ]

    def _masks(self, queries: "_Queries", dtype: torch.dtype) -> list[torch.Tensor]:
        """0 where seen, −inf elsewhere: for the clean rows `(Q, 1, T, T)`, or `(Q, 1, 1, T)` if all see all;
        then for each group `(F, 1, W, reach + W)`. Made once for all layers.
        """
        if dtype not in queries.masks:
            clean = tuple(x[self._clean.index] for x in self._tokens)
            masks = []
            for part, table in enumerate(queries.tables):
                keys, key_real = clean, self._clean.real
                if part > 0:
                    group = self._groups[part - 1]
                    keys = tuple(
                        torch.cat([x[group.owner_F, : group.reach], y[group.own.index]], dim=1)
                        for x, y in zip(clean, self._tokens, strict=True)
                    )
                    key_real = torch.cat([key_real[group.owner_F, : group.reach], group.own.real], dim=1)
                # With full attention all rows of the mask are alike.
                some = slice(1 if self._one_block and part == 0 else None)
                asking = tuple(x[table.index[:, some]] for x in self._tokens)
                masks.append(_additive(asking, table.real[:, some], keys, key_real, dtype))
            queries.masks[dtype] = masks
        return queries.masks[dtype]


@dataclass(frozen=True)
class _FoldedRow:
    """Replicas of one question that share a row. They see at most the first `reach` clean tokens."""

    question: int
    tokens: range
    reach: int


@dataclass(frozen=True)
class _Table:
    """Indices in N, row by row, and which of them are real: short rows are padded."""

    index: torch.Tensor
    real: torch.Tensor


@dataclass(frozen=True)
class _Group:
    """Folded rows of similar reach, attended together: F rows of at most W tokens, each owned by a question."""

    own: _Table
    owner_F: torch.Tensor
    reach: int


class _Queries:
    """Which tokens ask, in each row of each part: the clean rows, then the groups of folded rows."""

    def __init__(self, parts: Sequence[Sequence[Sequence[int]]], device: torch.device | str | None) -> None:
        tables = [_padded(rows) for rows in parts]
        index, real = (torch.cat([table.flatten() for table in column]) for column in zip(*tables, strict=True))
        # The place of each asking token among the outputs of all parts.
        self._tokens, order = index[real].sort()
        self._places = torch.arange(len(index))[real][order].to(device, non_blocking=True)
        self._tokens = self._tokens.to(device, non_blocking=True)
        self.tables = [
            _Table(index.to(device, non_blocking=True), real.to(device, non_blocking=True)) for index, real in tables
        ]
        self.masks: dict[torch.dtype, list[torch.Tensor]] = {}

    def in_order(self, out_PHD: torch.Tensor, tokens: int) -> torch.Tensor:
        """The outputs of all parts in the order of the N tokens, zero for those that do not ask."""
        out_AHD = out_PHD[self._places]
        if len(out_AHD) == tokens:
            return out_AHD
        return out_AHD.new_zeros(tokens, *out_AHD.shape[1:]).index_copy(0, self._tokens, out_AHD)


def _additive(
    query: tuple[torch.Tensor, ...],
    query_real: torch.Tensor,
    key: tuple[torch.Tensor, ...],
    key_real: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The rule `may_attend` for rows of query and key tokens: `(rows, 1, queries, keys)`, 0 where seen, else −inf."""
    seen = may_attend(tuple(x[:, :, None] for x in query), tuple(x[:, None, :] for x in key))
    # A padding query sees every real key: the softmax of an empty row, and its gradient, would be NaN.
    seen = (seen | ~query_real[:, :, None]) & key_real[:, None, :]
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))[:, None]


def _grouped_attention(
    query_RTHD: torch.Tensor, key_RKSD: torch.Tensor, value_RKSD: torch.Tensor, mask_R1TS: torch.Tensor, scaling: float
) -> torch.Tensor:
    """Attention with grouped key heads: `(R·T, H, D)`.

    One call for each member of the groups, so that keys and mask are never repeated.
    """
    rows, length, heads, width = query_RTHD.shape
    groups = query_RTHD.view(rows, length, key_RKSD.shape[1], -1, width)
    outs = [
        scaled_dot_product_attention(
            groups[:, :, :, g].transpose(1, 2), key_RKSD, value_RKSD, attn_mask=mask_R1TS, scale=scaling
        )
        for g in range(groups.shape[3])
    ]
    return torch.stack(outs, dim=2).permute(0, 3, 1, 2, 4).reshape(rows * length, heads, width)


def _padded(rows: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of indices as one table, and which entries are real. Short rows are padded with their first index, or 0."""
    longest = max(map(len, rows))
    padded = [[*row, *[row[0] if row else 0] * (longest - len(row))] for row in rows]
    length = torch.tensor([len(row) for row in rows])
    return torch.tensor(padded, dtype=torch.long).view(len(rows), longest), torch.arange(longest) < length[:, None]


@cache
def _compiled() -> tuple[Any, Any]:
    """FlexAttention and the function that makes its masks, compiled: uncompiled, masks would hold all N² pairs."""
    return torch.compile(flex_attention, dynamic=True), torch.compile(create_block_mask, dynamic=True)
