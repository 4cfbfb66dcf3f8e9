"""`ForkLeftTrainer`: the method as a `transformers.Trainer`.

    trainer = ForkLeftTrainer(student, teacher, ForkLeftConfig("runs/first"), train_dataset)
    trainer.train()

A thin adapter: `collect.py` and `objective/` define an update; devices, processes, optimiser, schedule, trackers and
the hub are the Trainer's. It adds four things: fresh rollouts in every update, one denominator over processes and
accumulation steps, no step if every question was excluded, and checkpoints that are complete or absent.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import islice
from typing import Any

import torch
from accelerate.utils import gather_object
from rich.console import Console

from forkleft.errors import ForkLeftError
from forkleft.objective.supervision import Lesson
from forkleft.objective.update import Outcome, update_loss
from forkleft.rollout import Writer, generate
from forkleft.students import Student
from forkleft.teacher import AnswerCache, Teacher
from forkleft.teacher.answers import Answerer
from forkleft.train.card import model_card
from forkleft.train.collect import Collected, Collector
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example
from forkleft.train.folders import in_main_process
from forkleft.train.metrics import StepFile, means
from forkleft.train.prepare import check_adapted, prepare_examples, sharing_vocabulary
from forkleft.train.progress import ForkProgress
from forkleft.train.resume import LENGTHENED, decisive, name_of, questions_digest
from forkleft.train.showcase import showcase_examples, showcase_rows, write_in_orders
from forkleft.train.signs import new_signs
from forkleft.train.student_trainer import StudentTrainer
from forkleft.train.traces import traces
from forkleft.verify import Judge, Verifier

# By so many questions a teacher that is elsewhere is recognised.
_KNOWN = 4

Rows = Sequence[Mapping[str, Any]] | Sequence[Example]


class ForkLeftTrainer(StudentTrainer):
    """Trains a student from a teacher.

    student, teacher: from `load_student` and `load_teacher`. train_dataset, eval_dataset: rows with `question` (or
    `messages`) and `answer`, and if there are any `solution` and `id`; or what `prepare_examples` made of such rows.
    eval_dataset may be several by name.
    answerer: gives the teacher's own answers, if not the teacher itself (an `AnswerServer`). verifier: judges answers,
    instead of the one that `args` names; it may be your own function. writer: writes the rollouts, instead of
    `generate`. peft_config: train an adapter instead of all weights; merge_adapters: save the final model with it
    merged. Other arguments are the Trainer's.
    """

    args: ForkLeftConfig
    progress: ForkProgress
    train_dataset: list[Example]

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        args: ForkLeftConfig,
        train_dataset: Rows,
        eval_dataset: Rows | Mapping[str, Rows] | None = None,
        *,
        answerer: Answerer | None = None,
        verifier: Verifier | Judge | None = None,
        writer: Writer = generate,
        **settings: Any,
    ) -> None:
        if student.tokenizer is None:
            raise ForkLeftError("the student has no tokenizer, which turns its responses into text to verify")
        self.verifier = args.named_verifier() if verifier is None else Verifier.of(verifier)
        if verifier is not None:
            # Checkpoints and card name the verifier that is used.
            args = copy(args)
            args.verifier, args.letters = self.verifier.kind, self.verifier.letters
        check_adapted(student, args)
        self.student, self.teacher = student, teacher = sharing_vocabulary(student, teacher), teacher
        held_out: dict[str, list[Example]] | list[Example] | None
        if isinstance(eval_dataset, Mapping):
            held_out = {name: self._examples(rows, args) for name, rows in eval_dataset.items()}
        else:
            held_out = None if eval_dataset is None else self._examples(eval_dataset, args)
        super().__init__(
            student,
            args,
            self._examples(train_dataset, args),
            held_out,
            ForkProgress(Console(), student.text_tokenizer, bar=not args.disable_tqdm),
            **settings,
        )
        output = args.output_path
        self.routes_file, self.showcase_file, self.traces_file = (
            StepFile(output / f"{name}.jsonl", sealed=True) for name in ("routes", "showcase", "traces")
        )
        if self.is_fsdp_enabled and student.family.attention == "full":
            raise ForkLeftError(
                "a student with full attention is read in as many forwards as its responses need, which differ "
                "between processes; FSDP cannot follow that: train it under DDP, with adapters if memory is short"
            )
        teacher.place(args.device)
        if teacher.head_weight.is_meta:
            raise ForkLeftError(
                "the teacher's output head is not on a device: its device map leaves it in other memory, but every "
                "update multiplies by it; give a map that puts lm_head on a device"
            )
        cache = AnswerCache(args.answer_file)
        self.collector = Collector(student, teacher, answerer or teacher, cache, args, self.verifier, writer)
        teacher.check(self.collector.known(self.train_dataset[:_KNOWN]))
        # Outcomes of the questions since the last log line, and how many of them are of the current update.
        self._outcomes: list[Outcome] = []
        self._before_update = 0
        self._retained = 0

    def _examples(self, rows: Any, args: ForkLeftConfig) -> list[Example]:
        if len(rows) and isinstance(rows[0], Example):
            return list(rows)
        return prepare_examples(self.student, self.teacher, rows, args, self.verifier)

    # Updates.

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, list[Lesson]]], int]:
        """Collect an update: its micro-batches, and |B|, its questions over all processes and accumulation steps.

        All at once, because the student does not change within an update and writes faster in larger batches.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.state.global_step == 0:
            self._write_showcase()
        examples, update = [example for batch in batches for example in batch], self.state.global_step
        with self._clock.phase("rollout"):
            trajectories = self._called(partial(self.collector.write, examples, update=update))
        collected = self.collector.collect(examples, trajectories, update=update, clock=self._clock)
        self._note_routes(collected.lessons, step=update + 1)
        if self.args.trace_steps and update % self.args.trace_steps == 0:
            with self._clock.phase("trace"):
                self._trace(collected, [len(batch) for batch in batches], step=update + 1)
        mine = torch.tensor([len(examples), sum(lesson.retained for lesson in collected.lessons)], device=device)
        questions, self._retained = self.accelerator.reduce(mine, "sum").tolist()
        lessons = iter(collected.lessons)
        return [{"lessons": list(islice(lessons, len(batch)))} for batch in batches], questions

    def _count_of_updates(self) -> Callable[[], None]:
        take_back, self._before_update = super()._count_of_updates(), len(self._outcomes)

        def back() -> None:
            take_back()
            del self._outcomes[self._before_update :]

        return back

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The loss of a micro-batch, as its part of the whole update; inputs: as `get_batch_samples` gives them."""
        if num_items_in_batch is None:
            raise ForkLeftError("the loss needs to know how many questions the update has; let `train` call it")
        with self._clock.phase("readout"):
            loss, outcomes = model(
                forkleft_call=partial(
                    update_loss,
                    self.student,
                    inputs["lessons"],
                    self.collector.settings,
                    batch_size=int(num_items_in_batch),
                    teacher_weight_VE=self.teacher.head_weight,
                    watch=self.progress.watch_fork,
                )
            )
        self._outcomes += outcomes
        # Gradients are averaged over the processes, but the method sums them.
        return loss * self.accelerator.num_processes

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Forward and backward of a micro-batch. No gradients are left if every question of the update is excluded."""
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self._retained == 0:
            # Without gradients the optimiser changes nothing: no weights, no moments, no decay.
            model.zero_grad(set_to_none=True)
        return loss

    def _names(self) -> str:
        retained = [outcome for outcome in self._outcomes[self._before_update :] if outcome.retained]
        names = ", ".join(f"{outcome.id} ({outcome.route})" for outcome in retained)
        return f"questions are {names:.500}"

    @property
    def _step_files(self) -> list[StepFile]:
        traced = [self.traces_file] if self.args.trace_steps else []
        shown = [self.showcase_file] if self.args.showcase_questions else []
        return [*super()._step_files, self.routes_file, *traced, *shown]

    def _note_routes(self, lessons: Sequence[Lesson], *, step: int) -> None:
        """Write the questions of an update, and the route of each, to `routes.jsonl`."""
        pairs = gather_object([(lesson.id, lesson.route) for lesson in lessons])
        if self.is_world_process_zero():
            ids, routes = zip(*pairs, strict=True)
            self.routes_file.write({"step": step, "ids": ids, "routes": routes})

    def _trace(self, collected: Collected, sizes: Sequence[int], *, step: int) -> None:
        """Write how the responses of an update were written to `traces.jsonl`. sizes: questions read in one forward."""
        read = partial(traces, self.student, self.teacher, collected, self.collector.settings, sizes, step=step)
        self.model.eval()
        rows = gather_object(self._called(read))
        self.model.train()
        if self.is_world_process_zero():
            for row in rows:
                self.traces_file.write(row)

    def _finalize_training(self, *state: Any, **settings: Any) -> Any:
        result = super()._finalize_training(*state, **settings)
        self._write_showcase()
        return result

    def _write_showcase(self) -> None:
        """Write how a few questions are answered now to `showcase.jsonl`, unless it says so; processes divide them."""
        step = self.state.global_step
        examples = showcase_examples(self.args.showcase_questions, self.eval_dataset, self.train_dataset)
        if not examples or in_main_process(lambda: self.showcase_file.holds(step)):
            return
        self.progress.phase("showcase")
        mine = examples[self.accelerator.process_index :: self.accelerator.num_processes]
        in_orders = self._called(partial(write_in_orders, self.student, mine, self.args))
        rows = gather_object(showcase_rows(self.student, self.verifier, mine, in_orders, step=step))
        self.progress.phase("")
        if self.is_world_process_zero():
            # Of a run that is killed here, a part would look like the whole.
            self.showcase_file.write_together(rows)

    # Logging.

    def _figures(self) -> tuple[dict[str, float], int]:
        outcomes = gather_object(self._outcomes)
        self._outcomes = []
        return means(outcomes), sum(outcome.tokens for outcome in outcomes)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the numbers of the method since the last line, write the line to metrics.jsonl, and warn of bad signs."""
        super().log(logs, start_time)
        if "loss" in logs:
            self._warn()

    def _warn(self) -> None:
        """Warn once, here and in metrics.jsonl, if the log shows that teaching does not work.

        The warning is kept in the log, which every checkpoint and process has: a resumed run repeats and loses nothing.
        """
        # Transformers declares only numbers; our rows hold more.
        history: list[dict[str, Any]] = self.state.log_history
        step = self.state.global_step
        for name, text in new_signs(history, routed=self.args.supervision == "routed").items():
            row = {"step": step, "warning": name, "text": text}
            history.append(row)
            if self.is_world_process_zero():
                self.metrics_file.write(row)
                self.progress.warn(f"update {step}  warning: {text}")

    # Evaluation.

    def _measured(self, rows: Any, prefix: str) -> dict[str, float]:
        """Accuracy on questions, decoded as `eval_decoding` says."""
        return self._accuracy(self._examples(rows, self.args), self.verifier, prefix)

    # What is saved.

    def _card(self, tags: Sequence[str], metadata: Mapping[str, Any]) -> str:
        return model_card(
            self.student,
            self.teacher,
            self.args,
            len(self.train_dataset),
            self.state,
            hub_id=self.hub_model_id,
            adapters=self._leaves_adapters,
            lengthened=self._decisive.get(LENGTHENED, ()),
            tags=tags,
            metadata=metadata,
        )

    @cached_property
    def _decisive(self) -> dict[str, Any]:
        run = decisive(
            self.args,
            self.student,
            self.model,
            digests={"questions": questions_digest(self.train_dataset)},
            teacher=self.teacher.identity,
            answerer=self.collector.answerer.identity,
        )
        # What a user brings in place of ours is known by its name alone.
        own = {"writer": (self.collector.writer, generate), "trainer": (type(self), ForkLeftTrainer)}
        return run | {name: name_of(found) for name, (found, ours) in own.items() if found is not ours}
