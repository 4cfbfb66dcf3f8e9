"""`AdaptTrainer`: a student learns to denoise, as a `transformers.Trainer`.

    student = load_student("students/smollm2")                       # what `forkleft convert` wrote
    trainer = AdaptTrainer(student, AdaptConfig("runs/adapted", max_steps=1000), [{"text": "…"}, …])
    trainer.train()

A thin adapter, as `trainer.py`: `objective/denoising.py` defines what is predicted, `student_trainer.py` and
`saving.py` are the base of both trainers. An update is a function of the seed, its number and the ids of its rows, so
that it does not depend on processes, on how rows share forwards, or on where a run was resumed.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from accelerate.utils import gather_object
from rich.console import Console
from torch.utils.data import DataLoader

from forkleft.digests import json_digest
from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import Kind, Sample, Task, causal, draw, packed_tokens, prediction_loss
from forkleft.randomness import keyed_generator
from forkleft.students import Student
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.adapt_data import Samples, SampleStream, prepare_samples
from forkleft.train.batches import (
    Batches,
    Loader,
    StreamBatches,
    StreamLoader,
    batches_of,
    filled_batches_of,
)
from forkleft.train.card import adapt_card
from forkleft.train.progress import ProgressLine
from forkleft.train.resume import LENGTHENED, decisive, name_of
from forkleft.train.run_files import ADAPTATION
from forkleft.train.student_trainer import StudentTrainer

# What evaluations hide, instead of the number of an update: always the same.
_HELD_OUT = "held-out"


class AdaptTrainer(StudentTrainer):
    """Teaches a student to denoise.

    student: from `load_student`; one that `convert` made, or any other. train_dataset: rows with `text`, `messages`, or
    question, answer and solution (`adapt_data.py`); a source without a length is streamed, and read again in every
    epoch. Also what `prepare_samples` or `SampleStream` made of such rows. eval_dataset: as train_dataset, but with a
    length; may be several by name. Other arguments are those of `StudentTrainer` and of the Trainer.
    """

    args: AdaptConfig

    def __init__(
        self,
        student: Student,
        args: AdaptConfig,
        train_dataset: Any,
        eval_dataset: Any = None,
        **settings: Any,
    ) -> None:
        student = student.but(adapted=True)
        self.data = _samples(student, train_dataset, args)
        if isinstance(self.data, SampleStream) and args.max_steps == -1:
            raise ForkLeftError("a source that is streamed has no known length; say with max_steps how long to train")
        held_out: dict[str, Samples] | Samples | None = None
        if isinstance(eval_dataset, Mapping):
            held_out = {name: _held_out(student, rows, args) for name, rows in eval_dataset.items()}
        elif eval_dataset is not None:
            held_out = _held_out(student, eval_dataset, args)
        progress = ProgressLine(Console(), bar=not args.disable_tqdm)
        rows = self.data if isinstance(self.data, SampleStream) else self.data.samples
        super().__init__(student, args, rows, held_out, progress, **settings)
        # Of the updates since the last line of the log, in this process.
        self._sums: list[tuple[Kind, float, float]] = []
        self._rows, self._tokens = 0, 0
        self._update: list[str] = []

    # Updates.

    def get_train_dataloader(self) -> DataLoader:
        """The samples of this process."""
        args, data = self.args, self.data
        if isinstance(data, SampleStream):
            limit, place = args.tokens_per_batch, {"process": args.process_index, "processes": args.world_size}
            if limit is None:
                return StreamLoader(StreamBatches(data, lambda sample: 1, args.train_batch_size, **place))
            size_of = partial(forward_tokens, self.student, budget=data.budget, args=args)
            return StreamLoader(StreamBatches(data, size_of, limit, **place))
        return Loader(data.samples, sample_batches(self.student, data, args))

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], int]:
        """The tasks of an update in its micro-batches, with the scales of its losses, and its rows over all processes.

        Scales: one over the weights of the whole update, over all processes and accumulation steps.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        update = self.state.global_step
        with self._clock.phase("noise"):
            tasks = [self._tasks(batch, update) for batch in batches]
        self._update = [sample.id for batch in batches for sample in batch]
        kinds: tuple[Kind, Kind] = ("denoising", "causal")
        weights = [sum(task.weight for part in tasks for task in part if task.kind == kind) for kind in kinds]
        mine = torch.tensor([*weights, len(self._update)], dtype=torch.float64, device=device)
        *totals, rows = self.accelerator.reduce(mine, "sum").tolist()
        scales = {kind: 1 / total for kind, total in zip(kinds, totals, strict=True) if total}
        if update >= self.args.causal_steps and "causal" in scales:
            scales["causal"] *= self.args.causal_weight
        self._rows += len(self._update)
        return [{"tasks": part, "scales": scales} for part in tasks], int(rows)

    def _tasks(self, samples: Sequence[Sample], update: int) -> list[Task]:
        """What is predicted of the samples of a micro-batch."""
        args, next_tokens = self.args, [causal(sample) for sample in samples]
        if update < args.causal_steps:
            return next_tokens
        noisy = self._noisy(samples, self.data.budget, update, args.shares_at(update))
        return [*noisy, *next_tokens] if args.causal_weight else noisy

    def _noisy(
        self, samples: Sequence[Sample], budget: int | None, key: int | str, shares: tuple[float, float]
    ) -> list[Task]:
        weighting: Any = self.args.weighting
        return [
            draw(
                self.student,
                sample,
                keyed_generator(self.args.seed, "denoising", key, sample.id),
                budget=budget,
                shares=shares,
                weighting=weighting,
            )
            for sample in samples
        ]

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The loss of a micro-batch, as its part of the whole update; inputs: as `get_batch_samples` gives them."""
        tasks = inputs["tasks"]
        with self._clock.phase("forward"):
            loss, sums = model(forkleft_call=partial(prediction_loss, self.student, tasks, inputs["scales"]))
        for kind, total in sums.items():
            self._sums.append((kind, total, sum(task.weight for task in tasks if task.kind == kind)))
        self._tokens += sum(_tokens(task) for task in tasks)
        # Gradients are averaged over the processes, but the parts of an update add up.
        return loss * self.accelerator.num_processes

    def _names(self) -> str:
        return f"rows are {', '.join(self._update):.500}"

    def _figures(self) -> tuple[dict[str, float], int]:
        found = gather_object([(self._sums, self._rows, self._tokens)])
        self._sums, self._rows, self._tokens = [], 0, 0
        figures: dict[str, float] = {"rows": sum(rows for _, rows, _ in found)}
        figures |= _means([entry for sums, _, _ in found for entry in sums], "loss")
        return figures, sum(tokens for _, _, tokens in found)

    # Evaluation.

    def _measured(self, rows: Any, prefix: str) -> dict[str, float]:
        """The loss on held-out rows, where always the same is hidden, and accuracy on `accuracy_questions` of them."""
        data = _held_out(self.student, rows, self.args)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        self.progress.phase("evaluation")
        training = self.model.training
        self.model.eval()
        sums = gather_object(self._called(partial(self._held_out_sums, data.samples[rank::world], data.budget)))
        self.model.train(training)
        self.progress.phase("")
        losses = _means(sums, prefix)
        # The loss of denoising is the loss: the one by which the best model is chosen.
        metrics = {f"{prefix}_loss": losses.pop(f"{prefix}_denoising")}
        metrics |= {f"{name}_loss": value for name, value in losses.items()}
        metrics[f"{prefix}_rows"] = len(data.samples)
        verifier, count = self.args.named_verifier(), self.args.accuracy_questions
        if verifier is not None and count and data.examples:
            metrics |= self._accuracy(data.examples[:count], verifier, prefix)
        return metrics

    def _held_out_sums(self, samples: Sequence[Sample], budget: int | None) -> list[tuple[Kind, float, float]]:
        found = []
        low, high = self.args.mask_shares
        size = self.args.per_device_eval_batch_size
        for start in range(0, len(samples), size):
            part = samples[start : start + size]
            tasks = self._noisy(part, budget, _HELD_OUT, (low, high))
            if self.args.causal_steps or self.args.causal_weight:
                tasks += map(causal, part)
            _, sums = prediction_loss(self.student, tasks, {"denoising": 1.0, "causal": 1.0})
            found += [
                (kind, total, sum(task.weight for task in tasks if task.kind == kind)) for kind, total in sums.items()
            ]
        return found

    # What is saved.

    def _card(self, tags: Sequence[str], metadata: Mapping[str, Any]) -> str:
        return adapt_card(
            self.student,
            self.args,
            "a stream of rows" if isinstance(self.data, SampleStream) else f"{len(self.data.samples)} rows",
            self.state,
            hub_id=self.hub_model_id,
            adapters=self._leaves_adapters,
            lengthened=self._decisive.get(LENGTHENED, ()),
            tags=tags,
            metadata=metadata,
        )

    @cached_property
    def _decisive(self) -> dict[str, Any]:
        run = decisive(self.args, self.student, self.model, digests=data_digests(self.data), objective=ADAPTATION)
        # What a user brings in place of ours is known by its name alone.
        return run if type(self) is AdaptTrainer else run | {"trainer": name_of(type(self))}


def data_digests(data: Samples | SampleStream) -> dict[str, str]:
    """What tells one data set from another; of a stream, its first rows."""
    if isinstance(data, SampleStream):
        return {"first_rows": data.digest}
    return {"rows": json_digest([[sample.id, list(sample.prompt), list(sample.response)] for sample in data.samples])}


def sample_batches(student: Student, data: Samples, args: AdaptConfig) -> Batches:
    """The batches of a run in this process. Raises ForkLeftError if there is none."""
    if args.tokens_per_batch is None:
        return batches_of(args, len(data.samples))
    sizes = [forward_tokens(student, sample, budget=data.budget, args=args) for sample in data.samples]
    return filled_batches_of(args, sizes, args.tokens_per_batch)


def forward_tokens(student: Student, sample: Sample, *, budget: int | None, args: AdaptConfig) -> int:
    """Tokens of a sample in a forward, at most."""
    noisy, beside = packed_tokens(student, sample, budget), len(sample.prompt) + len(sample.response)
    return max(noisy + beside if args.causal_weight else noisy, beside if args.causal_steps else 0)


def _samples(student: Student, rows: Any, args: AdaptConfig) -> Samples | SampleStream:
    if isinstance(rows, Samples | SampleStream):
        return rows
    return prepare_samples(student, rows, args) if hasattr(rows, "__len__") else SampleStream(student, rows, args)


def _held_out(student: Student, rows: Any, args: AdaptConfig) -> Samples:
    if isinstance(rows, Samples):
        return rows
    if not hasattr(rows, "__len__"):
        raise ForkLeftError("a source that is streamed cannot be evaluated on; take a number of its rows as a list")
    return prepare_samples(student, rows, args)


def _tokens(task: Task) -> int:
    return len(task.stream.ids) + sum(len(replica.ids) for replica in task.stream.replicas)


def _means(sums: Sequence[tuple[Kind, float, float]], prefix: str) -> dict[str, float]:
    """Mean losses by their kind."""
    found: dict[str, float] = {}
    for kind in dict.fromkeys(kind for kind, _, _ in sums):
        of_kind = [(total, weight) for name, total, weight in sums if name == kind]
        found[f"{prefix}_{kind}"] = sum(total for total, _ in of_kind) / sum(weight for _, weight in of_kind)
    return found
