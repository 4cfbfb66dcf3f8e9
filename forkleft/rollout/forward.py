"""One native forward of the rows that are being written, and the hidden states at their unresolved positions.

`CachedForward` is for block-causal students. A token's keys and values are final once its block is complete, so they
are kept in a buffer with one column for each sequence position. For each row, a forward computes the positions from
the first that is not final yet to the end of the current block. In the first pass of a block these are the block before
it (or the prompt) and the block itself; in later passes, only the block. So no extra forward is needed to make a block
final.

`CanvasForward` is for students with full attention. Every commit changes all of their tokens, so each forward computes
the prompt and the whole response budget.

Shapes: R rows being written, L columns (sequence positions), N tokens in the forward, U unresolved positions; E rows
that enter a new segment, T tokens of the longest row;
H query heads, K key heads, D head width, W hidden width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Protocol

import torch
from torch.nn.functional import scaled_dot_product_attention

from forkleft.devices import on_device
from forkleft.students.attention import PackedLayout, Stream
from forkleft.students.student import Student

_NO_TOKEN = torch.iinfo(torch.int32).max


@dataclass
class Row:
    """A response being written. Positions count from the start of the prompt."""

    number: int
    prompt: Sequence[int]
    end: int  # of prompt and response budget
    segment_start: int = 0
    segment_end: int = 0
    # The positions that are filled together: up to the end of the segment, or of a sub-block.
    window_start: int = 0
    window_end: int = 0
    this_pass: int = 1
    forwards: int = 0
    generators: dict[str, torch.Generator] = field(default_factory=dict)
    # The unresolved positions of the window, each with its noise if the order needs that.
    open: dict[int, float] = field(default_factory=dict)
    # What is known of each token of the response so far; masks and zeros where none is written yet.
    tokens: list[int] = field(default_factory=list)
    commit_pass: list[int] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    confidence: list[float] = field(default_factory=list)


class Forward(Protocol):
    """The part of a rollout that differs between kinds of attention. Rows stand in places 0 … R−1."""

    def enter(self, place: int, row: Row) -> None:
        """A row starts at `place`."""

    def leave(self, place: int, last: int) -> None:
        """The row at `place` has finished and the one at `last` moves there."""

    def hidden(
        self, rows: Sequence[Row], ids_RL: torch.Tensor, place_U: torch.Tensor, position_U: torch.Tensor
    ) -> torch.Tensor:
        """`hidden_UW`, from which each unresolved (place, position) is predicted."""


class CachedForward:
    """Forwards of a block-causal student over what is not final yet."""

    def __init__(self, student: Student, places: int, columns: int) -> None:
        config, device = student.model.config, student.device
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._student = student
        self._shape = (places, config.num_key_value_heads, columns, width)
        # One for each layer, made with its first keys: only they show the precision (autocast may lower it).
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        # Columns without a token are in a block that no query can see.
        self._block_RL = torch.full((places, columns), _NO_TOKEN, dtype=torch.int32, device=device)
        # How many columns of each row are final. For a shifted head, also the hidden state before the segment.
        self._final = [0] * places
        self._before_RW = torch.zeros(places, config.hidden_size, device=device)
        self._step: _Step | None = None

    def buffers(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The keys and values of a layer, `(places, K, L, D)`; created like the given ones at the first call."""
        if layer == len(self._keys):
            self._keys.append(keys.new_zeros(self._shape))
            self._values.append(values.new_zeros(self._shape))
        return self._keys[layer], self._values[layer]

    def enter(self, place: int, row: Row) -> None:
        """See `Forward`."""
        blocks = [self._student.family.block_of(position, len(row.prompt)) for position in range(row.end)]
        blocks += [_NO_TOKEN] * (self._block_RL.shape[1] - row.end)
        self._block_RL[place] = on_device(blocks, self._block_RL.device, torch.int32)
        self._final[place] = 0

    def leave(self, place: int, last: int) -> None:
        """See `Forward`."""
        if place != last:
            for table in (*self._keys, *self._values, self._block_RL, self._before_RW):
                table[place] = table[last]
            self._final[place] = self._final[last]

    def hidden(
        self, rows: Sequence[Row], ids_RL: torch.Tensor, place_U: torch.Tensor, position_U: torch.Tensor
    ) -> torch.Tensor:
        """See `Forward`."""
        spans = tuple((self._final[place], row.segment_start, row.segment_end) for place, row in enumerate(rows))
        if self._step is None or self._step.spans != spans:
            self._step = _Step(self, spans, ids_RL.device)
        step = self._step
        ids_N = ids_RL[step.place_N, step.position_N]
        shift = self._student.family.shift
        source_U = step.first_R[place_U] + position_U - shift
        for place, row in enumerate(rows):
            self._final[place] = row.segment_start
        if not shift:
            return self._student.hidden(ids_N, step.position_N, step, source_U)
        # The first position of a segment is read from the hidden state before it, which only the first forward of the
        # segment computes. Where it is not computed, some other token is read in vain.
        outside_U = position_U == step.start_R[place_U]
        source_U = torch.where(outside_U, step.first_R[place_U] + position_U, source_U)
        hidden_UW, before_EW = self._student.hidden(
            ids_N, step.position_N, step, torch.cat([source_U, step.before_E])
        ).split([len(source_U), len(step.before_E)])
        # Only the hidden states show the precision (autocast may lower it).
        self._before_RW = self._before_RW.to(hidden_UW)
        self._before_RW[step.entered_E] = before_EW
        return torch.where(outside_U[:, None], self._before_RW[place_U], hidden_UW)


class _Step:
    """The layout of one forward: for each row, the positions from its first that is not final to its segment's end.

    spans: for each row, (first position computed, segment start, segment end).
    """

    def __init__(self, cache: CachedForward, spans: tuple[tuple[int, int, int], ...], device: torch.device) -> None:
        self.spans = spans
        # All on the CPU first: a copy to the device does not wait for it, a question to the device would.
        lengths = [end - first for first, _, end in spans]
        length_R, offset_R = torch.tensor(lengths), torch.tensor([0, *accumulate(lengths)][:-1])
        start_R, end_R = torch.tensor([[start, end] for _, start, end in spans]).T
        first_R = offset_R - end_R + length_R
        place_N = torch.repeat_interleave(torch.arange(len(spans)), length_R)
        position_N = torch.arange(sum(lengths)) - first_R[place_N]
        self.place_N, self.position_N = torch.stack([place_N, position_N]).to(device, non_blocking=True)
        # Adding a position to `first` gives the token's index in N.
        self.first_R, self.start_R = torch.stack([first_R, start_R]).to(device, non_blocking=True)
        # The rows that compute the token before their segment, and its index in N.
        entered = [place for place, (first, start, _) in enumerate(spans) if first < start]
        before_E = (first_R + start_R - 1)[entered]
        self.entered_E, self.before_E = torch.stack([torch.tensor(entered, dtype=torch.long), before_E]).to(
            device, non_blocking=True
        )
        self._cache = cache
        self._columns = max(end for _, _, end in spans)
        self._even = len(set(lengths)) == 1
        self._longest = max(lengths)
        if not self._even:
            # The tokens of each row, padded with its first one, and where each token is among them.
            column_T = torch.arange(self._longest)
            row_RT = offset_R[:, None] + torch.where(column_T < length_R[:, None], column_T, 0)
            real_N = place_N * self._longest + position_N - (end_R - length_R)[place_N]
            self._row_RT, self._real_N = (table.to(device, non_blocking=True) for table in (row_RT, real_N))
        # If all rows end alike and compute only their current block, every query sees every column up to the end.
        self._masked = len({end for _, _, end in spans}) > 1 or any(first != start for first, start, _ in spans)
        self._mask: torch.Tensor | None = None  # made in the first layer, where the dtype is known

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
        """See `Layout`: writes the new keys and values to their columns, then all attend over these, always dense."""
        keys, values = self._cache.buffers(layer, key_1KND, value_1KND)
        keys[self.place_N, :, self.position_N] = key_1KND[0].transpose(0, 1)
        values[self.place_N, :, self.position_N] = value_1KND[0].transpose(0, 1)
        rows = len(self.spans)
        keys, values = keys[:rows, :, : self._columns], values[:rows, :, : self._columns]
        heads, width = query_1HND.shape[1], query_1HND.shape[3]
        if self._even:
            query_RHTD = query_1HND[0].view(heads, rows, -1, width).transpose(0, 1)
        else:
            query_RHTD = query_1HND[0][:, self._row_RT].transpose(0, 1)
        # The queries of a group of heads share their keys, so they are treated as more queries of one head.
        groups = heads // keys.shape[1]
        query = query_RHTD.reshape(rows, keys.shape[1], groups * self._longest, width)
        if self._masked and self._mask is None:
            self._mask = self._seen(query.dtype).repeat(1, 1, groups, 1)
        out = scaled_dot_product_attention(query, keys, values, attn_mask=self._mask, scale=scaling)
        out_RTHD = out.view(rows, heads, self._longest, width).transpose(1, 2)
        out_1NHD = out_RTHD.reshape(1, -1, heads, width)
        return out_1NHD if self._even else out_1NHD[:, self._real_N]

    def _seen(self, dtype: torch.dtype) -> torch.Tensor:
        """`(R, 1, T, columns)`: 0 for columns of the query's own and earlier blocks, −inf elsewhere."""
        rows = len(self.spans)
        block_RL = self._cache._block_RL[:rows, : self._columns]
        block_N = self._cache._block_RL[self.place_N, self.position_N]
        block_RT = block_N.view(rows, -1) if self._even else block_N[self._row_RT]
        seen = block_RL[:, None, :] <= block_RT[:, :, None]
        return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, float("-inf"))[:, None]


class CanvasForward:
    """Forwards of a fully attending student over prompt and whole response budget."""

    def __init__(self, student: Student) -> None:
        self._student = student
        self._ends: tuple[int, ...] = ()

    def enter(self, place: int, row: Row) -> None:
        """See `Forward`: nothing is kept."""

    def leave(self, place: int, last: int) -> None:
        """See `Forward`: nothing is kept."""

    def hidden(
        self, rows: Sequence[Row], ids_RL: torch.Tensor, place_U: torch.Tensor, position_U: torch.Tensor
    ) -> torch.Tensor:
        """See `Forward`."""
        ends = tuple(row.end for row in rows)
        if ends != self._ends:
            self._ends = ends
            device = self._student.device
            self._layout = PackedLayout([Stream([0] * end, [0] * end) for end in ends], device)
            place_N = torch.repeat_interleave(torch.arange(len(ends)), torch.tensor(ends))
            self._place_N = place_N.to(device, non_blocking=True)
            self._first_R = on_device(self._layout.clean_index, device)
        positions_N = self._layout.positions_N
        source_U = self._first_R[place_U] + position_U - self._student.family.shift
        return self._student.hidden(ids_RL[self._place_N, positions_N], positions_N, self._layout, source_U)
