"""Rollouts: the student writes responses, block by block, committing some positions in each pass.

    generate(student, prompts, order="high_entropy", passes=32, max_new_tokens=1024)     # training
    generate(student, prompts, order="confidence", max_new_tokens=2048)                  # native inference

Before pass r of a block one native forward gives a distribution over 𝒱 at every unresolved position; the k_r positions
of highest priority each take their argmax token from that same forward (paper eq. `commit`), and all are written before
the next pass. A response ends with its first stop id, as soon as that and all before it is written: what a pass would
write behind it is never read.

A row's tokens do not depend on the other rows of the batch. When a row finishes, another takes its place; each row has
its own block and pass, and random choices are keyed by seed and question.

The state of the rows is on the host; the device has their tokens and keys. A pass sends it which positions are open,
and gets back what was written: for that the host waits once in a pass, whatever the number of rows. Only if it samples
and has a threshold it waits twice, since it must know at how many positions to sample.

Shapes: R rows being written, L columns (sequence positions), B positions of a block, U unresolved positions, C some of
them: those of one table of logits, or those that are written in this pass; V words, W hidden width.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from forkleft.devices import on_device
from forkleft.errors import ForkLeftError, check_count
from forkleft.randomness import ids_key, keyed_generator
from forkleft.rollout.forward import CachedForward, CanvasForward, Forward, Row
from forkleft.rollout.orders import (
    Order,
    Predictions,
    check_order,
    check_priority,
    check_writing,
    choose,
    commits_this_pass,
    priority,
    sample,
    summarise,
)
from forkleft.rollout.trajectory import Trajectory
from forkleft.students.student import Student

Watch = Callable[[int, list[int], list[float]], None]

# Logits exist for so many rows at a time: 128 MB in float32. With fewer the head would be read more often.
TABLE_NUMBERS = 2**25


@torch.no_grad()
def generate(
    student: Student,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    order: Order = "confidence",
    passes: int | None = None,
    threshold: float | None = None,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    ids: Sequence[str] | None = None,
    batch_size: int = 32,
    watch: Watch | None = None,
) -> list[Trajectory]:
    """Write a response to each prompt (token ids) and return the trajectories in the prompts' order.

    max_new_tokens: the response budget.
    order: a name of `orders.ORDERS`, or a function like those there: `Predictions` in, `priority_U` out.
    passes: R, the passes a block, or a sub-block where the family has them, may take (default: one token a pass).
    threshold: in each pass also commit every position whose confidence is above it, in addition to the k_r of the
        schedule (one, unless there are fewer passes than positions).
    temperature, top_p: 0 commits the argmax, as training does; above 0 tokens are sampled.
    seed: for sampling, the random order and the noise that a function gets.
    ids: the questions' names, for errors and for keying random choices (default: the prompt itself); a repeated
        question gets new draws.
    batch_size: rows written at a time.
    watch: called after every pass, for each row, with the number of its prompt, its response so far (masks where
        nothing is written yet) and the entropies at commit.

    Raises ForkLeftError for bad arguments, for a prompt that is empty, too long or contains the mask, and, naming the
    question, when the student's logits are not finite.
    """
    _check(student, prompts, max_new_tokens, order, passes, threshold, temperature, top_p, ids, batch_size)
    if not prompts:
        return []
    modes = [(module, module.training) for module in student.model.modules()]
    student.model.eval()
    try:
        rollout = _Rollout(
            student,
            prompts,
            ids=ids,
            budget=max_new_tokens,
            order=order,
            passes=passes or student.family.sub_block or student.family.block_size,
            threshold=threshold,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            places=min(batch_size, len(prompts)),
            watch=watch,
        )
        return rollout.run()
    finally:
        for module, mode in modes:
            module.training = mode


class _Rollout:
    """The rows being written. `ids_RL` has one row for each place and one column for each sequence position."""

    def __init__(
        self,
        student: Student,
        prompts: Sequence[Sequence[int]],
        *,
        ids: Sequence[str] | None,
        budget: int,
        order: Order,
        passes: int,
        threshold: float | None,
        temperature: float,
        top_p: float,
        seed: int,
        places: int,
        watch: Watch | None,
    ) -> None:
        self.student, self.prompts, self.ids, self.budget = student, prompts, ids, budget
        self.order, self.passes, self.threshold = order, passes, threshold
        self.noisy = order == "random" or callable(order)
        self.temperature, self.top_p, self.seed, self.places, self.watch = temperature, top_p, seed, places, watch
        columns, device = max(map(len, prompts)) + budget, student.device
        self.keys = _keys([ids_key(prompt) for prompt in prompts] if ids is None else ids)
        self.rows: list[Row] = []
        self.forward: Forward = (
            CachedForward(student, places, columns) if student.family.attention == "block" else CanvasForward(student)
        )
        self.ids_RL = torch.full((places, columns), student.vocabulary.mask_id, device=device)
        self.table_rows = max(1, TABLE_NUMBERS // len(student.excluded_V))

    def run(self) -> list[Trajectory]:
        waiting = iter(range(len(self.prompts)))
        done: dict[int, Trajectory] = {}
        while len(done) < len(self.prompts):
            while len(self.rows) < self.places and (number := next(waiting, None)) is not None:
                self.enter(number)
            self.step()
            if self.watch is not None:
                self.show(self.watch)
            # From the last place to the first: a row that moves into a freed place has then been handled already.
            for place in reversed(range(len(self.rows))):
                row = self.rows[place]
                if trajectory := self.close_window(row):
                    done[row.number] = trajectory
                    self.leave(place)
        return [done[number] for number in range(len(self.prompts))]

    def enter(self, number: int) -> None:
        prompt = self.prompts[number]
        row, place = Row(number, prompt, len(prompt) + self.budget), len(self.rows)
        if self.temperature > 0:
            row.generators["sample"] = keyed_generator(self.seed, *self.keys[number], "sample")
        if self.noisy:
            row.generators["order"] = keyed_generator(self.seed, *self.keys[number], "order")
        row.tokens = [self.student.vocabulary.mask_id] * self.budget
        row.commit_pass, row.entropy, row.confidence = [0] * self.budget, [0.0] * self.budget, [0.0] * self.budget
        self.rows.append(row)
        self.ids_RL[place] = self.student.vocabulary.mask_id
        self.ids_RL[place, : len(prompt)] = on_device(prompt, self.ids_RL.device)
        self.forward.enter(place, row)
        self.open_window(row, len(prompt))

    def leave(self, place: int) -> None:
        last = len(self.rows) - 1
        self.forward.leave(place, last)
        self.ids_RL[place] = self.ids_RL[last]
        self.rows[place] = self.rows[last]
        self.rows.pop()

    def open_window(self, row: Row, position: int) -> None:
        """Start to fill the block, or sub-block, that holds `position`, from that position on."""
        family = self.student.family
        start, end = family.segment(position, len(row.prompt))
        row.segment_start, row.segment_end, row.this_pass = start, min(end, row.end), 1
        row.window_start, row.window_end = position, min(family.window(position, len(row.prompt))[1], row.segment_end)
        size = row.window_end - position
        noise = [0.0] * size
        if self.noisy:
            noise = torch.rand(size, generator=row.generators["order"], dtype=torch.float64).tolist()
        row.open = dict(zip(range(position, row.window_end), noise, strict=True))

    def step(self) -> None:
        """One forward and its commits, in all rows."""
        device = self.ids_RL.device
        places = [place for place, row in enumerate(self.rows) for _ in row.open]
        positions = [position for row in self.rows for position in row.open]
        counts = [commits_this_pass(len(row.open), self.passes, row.this_pass) for row in self.rows]
        place_U, position_U = on_device([places, positions], device)
        count_R, start_R = on_device([counts, [row.segment_start for row in self.rows]], device)
        offset_U = position_U - start_R[place_U]
        hidden_UW = self.forward.hidden(self.rows, self.ids_RL, place_U, position_U)
        parts = []
        for part_CW in hidden_UW.split(self.table_rows):
            logits_CV = self.student.logits(part_CW)
            parts.append(summarise(logits_CV))
        entropy_U, confidence_U, token_U = (torch.cat(column) for column in zip(*parts, strict=True))

        noise_U = None
        if self.noisy:
            noise_U = on_device([noise for row in self.rows for noise in row.open.values()], device, entropy_U.dtype)
        priority_U = priority(self.order, Predictions(entropy_U, confidence_U, offset_U, noise_U))
        priority_RB = priority_U.new_full((len(self.rows), self.student.family.block_size), float("-inf"))
        priority_RB[place_U, offset_U] = priority_U
        chosen_U = choose(priority_RB, count_R)[place_U, offset_U]
        if self.threshold is not None:
            chosen_U |= confidence_U > self.threshold
        if self.temperature > 0:
            # With a threshold, only the device knows how many they are.
            count = sum(counts) if self.threshold is None else int(chosen_U.sum())
            chosen_C = chosen_U.int().topk(count).indices
            uniform_C = self.uniform(entropy_U)[place_U, offset_U][chosen_C]
            if len(parts) == 1:
                token_U[chosen_C] = sample(logits_CV[chosen_C], uniform_C, self.temperature, self.top_p)
            else:
                token_U[chosen_C] = self.sample(hidden_UW[chosen_C], uniform_C)
        self.ids_RL[place_U, position_U] = torch.where(chosen_U, token_U, self.student.vocabulary.mask_id)
        # One copy, for which the host waits. Ids are whole numbers far below what even float32 holds exactly.
        columns = (chosen_U, token_U, entropy_U, confidence_U, priority_U)
        self.record(places, positions, torch.stack([column.to(entropy_U.dtype) for column in columns]).cpu())

    def record(self, places: list[int], positions: list[int], found_5U: torch.Tensor) -> None:
        """Note what a pass has written. found_5U: whether a position is, token, entropy, confidence, and priority.

        Raises ForkLeftError for numbers that are not finite.
        """
        chosen_U, _, entropy_U, _, priority_U = found_5U
        if not (finite_U := entropy_U.isfinite()).all():
            row = self.rows[places[finite_U.tolist().index(False)]]
            raise ForkLeftError(
                f"{_name(row.number, self.ids)}: the student's logits are not finite in pass {row.this_pass} of the "
                f"block at position {row.segment_start}; are the weights damaged, or the precision too low?"
            )
        check_priority(self.order, priority_U)
        chosen = chosen_U.nonzero()[:, 0]
        for u, (_, token, entropy, confidence, _) in zip(chosen.tolist(), found_5U.T[chosen].tolist(), strict=True):
            row = self.rows[places[u]]
            k = positions[u] - len(row.prompt)
            row.tokens[k], row.commit_pass[k] = int(token), row.this_pass
            row.entropy[k], row.confidence[k] = entropy, confidence
            del row.open[positions[u]]
        for row in self.rows:
            row.this_pass += 1
            row.forwards += 1

    def show(self, watch: Watch) -> None:
        for row in self.rows:
            written = slice(row.window_end - len(row.prompt))
            watch(row.number, row.tokens[written], row.entropy[written])

    def uniform(self, like: torch.Tensor) -> torch.Tensor:
        """`uniform_RB`: a number in [0, 1) for each position of a block, from the row's own generator."""
        size = self.student.family.block_size
        drawn = [torch.rand(size, generator=row.generators["sample"], dtype=torch.float64) for row in self.rows]
        return torch.stack(drawn).to(like.device, like.dtype, non_blocking=True)

    def sample(self, hidden_CW: torch.Tensor, uniform_C: torch.Tensor) -> torch.Tensor:
        """`token_C`, sampled where the logits of all rows did not fit: the head is applied again, to these alone."""
        parts = zip(hidden_CW.split(self.table_rows), uniform_C.split(self.table_rows), strict=True)
        return torch.cat(
            [sample(self.student.logits(hidden), uniform, self.temperature, self.top_p) for hidden, uniform in parts]
        )

    def close_window(self, row: Row) -> Trajectory | None:
        """If its window is full or holds the end: the trajectory if the response has ended; else start the next one."""
        first, stop_ids = len(row.prompt), self.student.vocabulary.stop_ids
        # The first position that is open or a stop id decides: a stop id ends the response, whatever is open behind it.
        window = range(row.window_start, row.window_end)
        decides = next((p for p in window if p in row.open or row.tokens[p - first] in stop_ids), None)
        if decides in row.open:
            return None
        if decides is None and row.window_end < row.end:
            self.open_window(row, row.window_end)
            return None
        length = (row.window_end if decides is None else decides + 1) - first
        tokens, tokenizer = row.tokens[:length], self.student.tokenizer
        return Trajectory(
            tokens=tokens,
            text=None if tokenizer is None else str(tokenizer.decode(tokens, skip_special_tokens=True)),
            commit_pass=row.commit_pass[:length],
            entropy=row.entropy[:length],
            confidence=row.confidence[:length],
            stopped=decides is not None,
            forwards=row.forwards,
        )


def _keys(names: Sequence[str]) -> list[tuple[str, int]]:
    """The keys of random choices: a question's name, and how often it came before (avg@k repeats questions)."""
    seen: Counter[str] = Counter()
    keys = []
    for name in names:
        keys.append((name, seen[name]))
        seen[name] += 1
    return keys


def _name(number: int, ids: Sequence[str] | None) -> str:
    return f"prompt {number}" if ids is None else f"question {ids[number]}"


def _check(
    student: Student,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    order: Order,
    passes: int | None,
    threshold: float | None,
    temperature: float,
    top_p: float,
    ids: Sequence[str] | None,
    batch_size: int,
) -> None:
    if not isinstance(prompts, Sequence):
        raise ForkLeftError(f"expected a list of prompts, found a {type(prompts).__name__}; use .tolist()")
    check_order(order)
    check_count("max_new_tokens", max_new_tokens)
    check_count("batch_size", batch_size)
    check_writing(passes=passes, threshold=threshold, temperature=temperature, top_p=top_p)
    if ids is not None and len(ids) != len(prompts):
        raise ForkLeftError(f"ids must name each of the {len(prompts)} prompts, found {len(ids)}")
    for number, prompt in enumerate(prompts):
        student.check_prompt(prompt, max_new_tokens, _name(number, ids))
