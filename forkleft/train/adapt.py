"""`AdaptTrainer`: a student learns to denoise, as a `transformers.Trainer`.

    student = load_student("students/smollm2")                       # what `forkleft convert` wrote
    trainer = AdaptTrainer(student, AdaptConfig("runs/adapted", max_steps=1000), [{"text": "…"}, …])
    trainer.train()

A thin adapter, as `trainer.py`: `objective/denoising.py` defines what is predicted, `student_trainer.py` and
`saving.py` are the base of both trainers. An update is a function of the seed, its number and the ids of its rows, so
that it does not depend on processes, on how rows share forwards, or on where a run was resumed.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from accelerate.utils import gather_object
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import TrainerCallback, TrainerControl, TrainerState

from forkleft.digests import json_digest
from forkleft.errors import ForkLeftError
from forkleft.objective.denoising import Kind, Sample, Task, causal, draw, packed_tokens, prediction_loss
from forkleft.randomness import keyed_generator
from forkleft.students import Student
from forkleft.train.adapt_config import AdaptConfig
from forkleft.train.adapt_data import Samples, SampleStream, prepare_samples, to_be_answered
from forkleft.train.batches import (
    Batches,
    Loader,
    StreamBatches,
    StreamLoader,
    batches_of,
    filled,
    filled_batches_of,
)
from forkleft.train.card import adapt_card
from forkleft.train.progress import ProgressLine
from forkleft.train.resume import LENGTHENED, decisive, name_of
from forkleft.train.run_files import ADAPTATION
from forkleft.train.student_trainer import StudentTrainer

# The key of what evaluations hide: not of the seed, so that all runs are measured on the same positions.
_HELD_OUT = "held-out"


class _MarkAdapted(TrainerCallback):
    """Marks a student as adapted once it has made, or had made before it was resumed, an update of denoising."""

    def __init__(self, student: Student) -> None:
        self._student = student

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        self.on_step_end(args, state, control)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        if state.global_step and not args.is_causal(state.global_step - 1):
            self._student.adapted = True


class AdaptTrainer(StudentTrainer):
    """Teaches a student to denoise.

    student: from `load_student`; one that `convert` made, or any other. This very object learns, and is marked as
    adapted by its first update of denoising. train_dataset: rows with `text`, `messages`, or question, answer and
    solution (`adapt_rows.py`); a source without a length is streamed, and read again in every epoch. Also what
    `prepare_samples` or `SampleStream` made of such rows. eval_dataset: as train_dataset, but with a length; may be
    several by name. Other arguments are those of `StudentTrainer` and of the Trainer.
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
        self.data = _samples(student, train_dataset, args)
        if isinstance(self.data, SampleStream) and args.max_steps == -1:
            raise ForkLeftError("a source that is streamed has no known length; say with max_steps how long to train")
        held_out: dict[str, Samples] | Samples | None = None
        if isinstance(eval_dataset, Mapping):
            held_out = {name: held_out_samples(student, rows, args) for name, rows in eval_dataset.items()}
        elif eval_dataset is not None:
            held_out = held_out_samples(student, eval_dataset, args)
        progress = ProgressLine(Console(), bar=not args.disable_tqdm)
        rows = self.data if isinstance(self.data, SampleStream) else self.data.samples
        super().__init__(student, args, rows, held_out, progress, **settings)
        self.add_callback(_MarkAdapted(student))
        # Of the updates since the last line of the log, in this process.
        self._sums: list[tuple[Kind, float, float]] = []
        self._rows, self._tokens = 0, 0
        self._update: list[str] = []

    # Updates.

    def get_train_dataloader(self) -> DataLoader:
        """The samples of this process."""
        args, data = self.args, self.data
        if isinstance(data, SampleStream):
            size_of, limit = _filling(self.student, data.budget, args, args.train_batch_size)
            batches = StreamBatches(
                data,
                size_of,
                limit,
                process=args.process_index,
                processes=args.world_size,
                accumulated=args.gradient_accumulation_steps,
            )
            return StreamLoader(batches)
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
        weights = [math.fsum(task.weight for part in tasks for task in part if task.kind == kind) for kind in kinds]
        # As objects, and added on the host: not every device has float64.
        *of_kinds, rows = zip(*gather_object([(*weights, len(self._update))]), strict=True)
        totals = map(math.fsum, of_kinds)
        scales = {kind: 1 / total for kind, total in zip(kinds, totals, strict=True) if total}
        if not self.args.is_causal(update) and "causal" in scales:
            scales["causal"] *= self.args.causal_weight
        self._rows += len(self._update)
        return [{"tasks": part, "scales": scales} for part in tasks], sum(rows)

    def _count_of_updates(self) -> Callable[[], None]:
        take_back, count = super()._count_of_updates(), (list(self._sums), self._rows, self._tokens)

        def back() -> None:
            take_back()
            self._sums, self._rows, self._tokens = count

        return back

    def _tasks(self, samples: Sequence[Sample], update: int) -> list[Task]:
        """What is predicted of the samples of a micro-batch."""
        args, next_tokens = self.args, [causal(sample) for sample in samples]
        if args.is_causal(update):
            return next_tokens
        noisy = self._noisy(samples, self.data.budget, (args.seed, "denoising", update), args.shares_at(update))
        return [*noisy, *next_tokens] if args.causal_weight else noisy

    def _noisy(
        self, samples: Sequence[Sample], budget: int | None, key: Sequence[int | str], shares: tuple[float, float]
    ) -> list[Task]:
        weighting: Any = self.args.weighting
        return [
            draw(
                self.student,
                sample,
                keyed_generator(*key, sample.id),
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
        self._sums += _weighed(tasks, sums)
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
        data = held_out_samples(self.student, rows, self.args)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        self.progress.phase("evaluation")
        training = self.model.training
        self.model.eval()
        sums = gather_object(self._called(partial(self._held_out_sums, data.samples[rank::world], data.budget)))
        self.model.train(training)
        self.progress.phase("")
        losses = _means(sums, prefix)
        # The loss of what is learned is the loss: the one by which the best model is chosen.
        learned = "causal" if self.args.causal_only else "denoising"
        metrics = {f"{prefix}_loss": losses.pop(f"{prefix}_{learned}")}
        metrics |= {f"{name}_loss": value for name, value in losses.items()}
        metrics[f"{prefix}_rows"] = len(data.samples)
        verifier = self.args.named_verifier()
        if verifier is not None and self.args.accuracy_questions and data.examples:
            metrics |= self._accuracy(data.examples, verifier, prefix)
        return metrics

    def _held_out_sums(self, samples: Sequence[Sample], budget: int | None) -> list[tuple[Kind, float, float]]:
        args, found = self.args, []
        low, high = args.mask_shares
        for part in filled(samples, *_filling(self.student, budget, args, args.per_device_eval_batch_size)):
            clean = list(map(causal, part)) if args.predicts_next else []
            noisy = [] if args.causal_only else self._noisy(part, budget, (_HELD_OUT,), (low, high))
            # In one forward where training has both in one; each is as large as there.
            forwards = [[*noisy, *clean]] if args.causal_weight else [tasks for tasks in (noisy, clean) if tasks]
            for tasks in forwards:
                _, sums = prediction_loss(self.student, tasks, {"denoising": 1.0, "causal": 1.0})
                found += _weighed(tasks, sums)
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
    return max(noisy + beside if args.causal_weight else noisy, beside if args.predicts_next else 0)


def held_out_samples(student: Student, rows: Any, args: AdaptConfig) -> Samples:
    """Held-out data, ready to be measured; rows: as for `AdaptTrainer`.

    Raises ForkLeftError for a stream, for a row that does not fit into a batch, and as `prepare_samples` and
    `to_be_answered` do.
    """
    if not isinstance(rows, Samples) and not hasattr(rows, "__len__"):
        raise ForkLeftError("a source that is streamed cannot be evaluated on; take a number of its rows as a list")
    data = to_be_answered(student, rows if isinstance(rows, Samples) else prepare_samples(student, rows, args), args)
    # Made to see whether it can be, before anything is trained.
    list(filled(data.samples, *_filling(student, data.budget, args, args.per_device_eval_batch_size)))
    return data


def _samples(student: Student, rows: Any, args: AdaptConfig) -> Samples | SampleStream:
    if isinstance(rows, Samples | SampleStream):
        return rows
    return prepare_samples(student, rows, args) if hasattr(rows, "__len__") else SampleStream(student, rows, args)


def _filling(student: Student, budget: int | None, args: AdaptConfig, rows: int) -> tuple[Callable[[Sample], int], int]:
    """How much of a batch a sample takes, and how much a batch has: of `tokens_per_batch`, or of so many rows."""
    if args.tokens_per_batch is None:
        return lambda sample: 1, rows
    return partial(forward_tokens, student, budget=budget, args=args), args.tokens_per_batch


def _tokens(task: Task) -> int:
    return len(task.stream.ids) + sum(len(replica.ids) for replica in task.stream.replicas)


def _weighed(tasks: Sequence[Task], sums: Mapping[Kind, float]) -> list[tuple[Kind, float, float]]:
    """The sums of a forward by their kind, each with the weights that it is of."""
    return [(kind, total, sum(task.weight for task in tasks if task.kind == kind)) for kind, total in sums.items()]


def _means(sums: Sequence[tuple[Kind, float, float]], prefix: str) -> dict[str, float]:
    """Mean losses by their kind."""
    found: dict[str, float] = {}
    for kind in dict.fromkeys(kind for kind, _, _ in sums):
        of_kind = [(total, weight) for name, total, weight in sums if name == kind]
        found[f"{prefix}_{kind}"] = sum(total for total, _ in of_kind) / sum(weight for _, weight in of_kind)
    return found
