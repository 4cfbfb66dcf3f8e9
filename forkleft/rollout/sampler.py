"""Rollouts: the student writes responses, block by block, committing some positions in each pass.

    generate(student, prompts, order="high_entropy", passes=32, max_new_tokens=1024)     # training
    generate(student, prompts, order="confidence", max_new_tokens=2048)                  # native inference

Before pass r of a block one native forward gives a distribution over 𝒱 at every unresolved position; the k_r positions
of highest priority each take their argmax token from that same forward (paper eq. `commit`), and all are written before
the next pass. A response ends with its first stop id, as soon as that and all before it is written: what a pass would
write behind it is never read.

A row's tokens do not depend on the other rows of the batch. When a row finishes, another takes its place; each row has
its own block and pass, and random choices are keyed by seed and question.

Shapes: R rows being written, L columns (sequence positions), B positions of a block, U unresolved positions.
"""

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from forkleft.errors import ForkLeftError, check_count
from forkleft.randomness import ids_key, keyed_generator
from forkleft.rollout.forward import CachedForward, CanvasForward, Forward, Row
from forkleft.rollout.orders import (
    Order,
    Predictions,
    check_order,
    check_writing,
    choose,
    commits_this_pass,
    entropy_and_confidence,
    priority,
    sample,
)
from forkleft.rollout.trajectory import Trajectory
from forkleft.students.student import Student

Watch = Callable[[int, list[int], list[float]], None]


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
    """The rows being written. Tables have one row for each place and one column for each sequence position."""

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
        self.unresolved_RL = torch.zeros((places, columns), dtype=torch.bool, device=device)
        self.pass_RL = torch.zeros((places, columns), dtype=torch.int32, device=device)
        dtype = torch.promote_types(student.model.dtype, torch.float32)
        self.entropy_RL = torch.zeros((places, columns), dtype=dtype, device=device)
        self.confidence_RL = torch.zeros((places, columns), dtype=dtype, device=device)
        self.noise_RL = torch.zeros((places, columns), dtype=torch.float64)
        self.stop_ids = torch.tensor(student.vocabulary.stop_ids, device=device)
        self.is_stop_RL = torch.zeros((places, columns), dtype=torch.bool, device=device)

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
                if self.closed[place] and (trajectory := self.close_window(place)):
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
        self.rows.append(row)
        self.ids_RL[place] = self.student.vocabulary.mask_id
        self.ids_RL[place, : len(prompt)] = torch.tensor(prompt)
        self.forward.enter(place, row)
        self.open_window(place, len(prompt))

    def leave(self, place: int) -> None:
        last = len(self.rows) - 1
        self.forward.leave(place, last)
        for table in (
            self.ids_RL,
            self.unresolved_RL,
            self.pass_RL,
            self.entropy_RL,
            self.confidence_RL,
            self.noise_RL,
            self.is_stop_RL,
        ):
            table[place] = table[last]
        self.rows[place] = self.rows[last]
        self.rows.pop()

    def open_window(self, place: int, position: int) -> None:
        """Start to fill the block, or sub-block, that holds `position`, from that position on."""
        row, family = self.rows[place], self.student.family
        start, end = family.segment(position, len(row.prompt))
        row.segment_start, row.segment_end, row.this_pass = start, min(end, row.end), 1
        row.window_start, row.window_end = position, min(family.window(position, len(row.prompt))[1], row.segment_end)
        self.unresolved_RL[place] = self.is_stop_RL[place] = False
        self.unresolved_RL[place, position : row.window_end] = True
        if self.noisy:
            noise = torch.rand(row.window_end - position, generator=row.generators["order"], dtype=torch.float64)
            self.noise_RL[place, position : row.window_end] = noise

    def step(self) -> None:
        """One forward and its commits, in all rows."""
        count = len(self.rows)
        index_U2 = self.unresolved_RL[:count].nonzero()
        place_U, position_U = index_U2.unbind(1)
        hidden_UW = self.forward.hidden(self.rows, self.ids_RL, place_U, position_U)
        logits_UV = self.student.logits(hidden_UW)
        entropy_U, confidence_U = entropy_and_confidence(logits_UV)
        self.check_finite(entropy_U, place_U)
        start_R = torch.tensor([row.segment_start for row in self.rows], device=place_U.device)
        offset_U = position_U - start_R[place_U]
        noise_U = self.noise_RL[place_U.cpu(), position_U.cpu()].to(entropy_U) if self.noisy else None
        predictions = Predictions(entropy_U, confidence_U, offset_U, noise_U)

        table = (count, self.student.family.block_size)
        unresolved_RB = torch.zeros(table, dtype=torch.bool, device=place_U.device)
        unresolved_RB[place_U, offset_U] = True
        priority_RB = torch.zeros(table, dtype=entropy_U.dtype, device=place_U.device)
        priority_RB[place_U, offset_U] = priority(self.order, predictions)
        left = unresolved_RB.sum(dim=1).tolist()
        count_R = torch.tensor(
            [commits_this_pass(m, self.passes, row.this_pass) for m, row in zip(left, self.rows, strict=True)],
            device=place_U.device,
        )
        chosen_U = choose(priority_RB, unresolved_RB, count_R)[place_U, offset_U]
        if self.threshold is not None:
            chosen_U |= confidence_U > self.threshold

        pass_R = torch.tensor([row.this_pass for row in self.rows], dtype=torch.int32, device=place_U.device)
        chosen = (place_U[chosen_U], position_U[chosen_U])
        if self.temperature > 0:
            uniform_U = self.uniform(place_U, offset_U)
            token_C = sample(logits_UV[chosen_U], uniform_U[chosen_U], self.temperature, self.top_p)
        else:
            token_C = logits_UV[chosen_U].argmax(dim=-1)
        self.ids_RL[chosen] = token_C
        self.is_stop_RL[chosen] = torch.isin(token_C, self.stop_ids)
        self.pass_RL[chosen] = pass_R[chosen[0]]
        self.entropy_RL[chosen] = entropy_U[chosen_U].to(self.entropy_RL.dtype)
        self.confidence_RL[chosen] = confidence_U[chosen_U].to(self.entropy_RL.dtype)
        self.unresolved_RL[chosen] = False
        # The first position of each row that is open or a stop id decides: a stop id ends the response. If there is
        # neither, the window is full.
        open_RL, stop_RL = self.unresolved_RL[:count], self.is_stop_RL[:count]
        first_R1 = (open_RL | stop_RL).to(torch.uint8).argmax(dim=1, keepdim=True)
        self.closed = (~open_RL.gather(1, first_R1)[:, 0]).tolist()
        for row in self.rows:
            row.this_pass += 1
            row.forwards += 1

    def show(self, watch: Watch) -> None:
        for place, row in enumerate(self.rows):
            written = slice(len(row.prompt), row.window_end)
            watch(row.number, self.ids_RL[place, written].tolist(), self.entropy_RL[place, written].tolist())

    def uniform(self, place_U: torch.Tensor, offset_U: torch.Tensor) -> torch.Tensor:
        """A number in [0, 1) for each unresolved position, from the row's own generator."""
        size = self.student.family.block_size
        drawn = [torch.rand(size, generator=row.generators["sample"], dtype=torch.float64) for row in self.rows]
        return torch.stack(drawn).to(self.entropy_RL)[place_U, offset_U]

    def close_window(self, place: int) -> Trajectory | None:
        """When a window is full or holds the end: the trajectory if the response has ended; else start the next one."""
        row = self.rows[place]
        first = len(row.prompt)
        written = self.ids_RL[place, row.window_start : row.window_end].tolist()
        stop = next((k for k, token in enumerate(written) if token in self.student.vocabulary.stop_ids), None)
        if stop is None and row.window_end < row.end:
            self.open_window(place, row.window_end)
            return None
        end = row.window_end if stop is None else row.window_start + stop + 1
        tokens = self.ids_RL[place, first:end].tolist()
        tokenizer = self.student.tokenizer
        return Trajectory(
            tokens=tokens,
            text=None if tokenizer is None else str(tokenizer.decode(tokens, skip_special_tokens=True)),
            commit_pass=self.pass_RL[place, first:end].tolist(),
            entropy=self.entropy_RL[place, first:end].tolist(),
            confidence=self.confidence_RL[place, first:end].tolist(),
            stopped=stop is not None,
            forwards=row.forwards,
        )

    def check_finite(self, entropy_U: torch.Tensor, place_U: torch.Tensor) -> None:
        if not (finite_U := entropy_U.isfinite()).all():
            row = self.rows[int(place_U[~finite_U][0])]
            raise ForkLeftError(
                f"{_name(row.number, self.ids)}: the student's logits are not finite in pass {row.this_pass} of the "
                f"block at position {row.segment_start}; are the weights damaged, or the precision too low?"
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
