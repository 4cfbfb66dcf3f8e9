"""`ForkLeftTrainer`: the method as a `transformers.Trainer`.

    trainer = ForkLeftTrainer(student, teacher, ForkLeftConfig("runs/first"), train_dataset)
    trainer.train()

A thin adapter: `collect.py` and `objective/` define an update; devices, processes, optimiser, schedule, trackers and
the hub are the Trainer's. It adds four things: fresh rollouts in every update, one denominator over processes and
accumulation steps, no step if every question was excluded, and checkpoints that are complete or absent.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import gather_object
from rich.console import Console
from torch.utils.data import DataLoader
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from forkleft.errors import ForkLeftError
from forkleft.files import write_text
from forkleft.objective.supervision import Lesson
from forkleft.objective.update import Outcome, update_loss
from forkleft.rollout import Writer, decode, decoding_of, generate
from forkleft.students import Student, save_student
from forkleft.students.adapters import note_base
from forkleft.students.loading import write_sidecar
from forkleft.students.shards import make_readable
from forkleft.teacher import AnswerCache, Teacher
from forkleft.teacher.answers import Answerer
from forkleft.train.batches import Batches, Loader
from forkleft.train.card import model_card
from forkleft.train.collect import Clock, Collected, Collector
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import Example
from forkleft.train.folders import in_main_process
from forkleft.train.lost import named_lost_processes
from forkleft.train.metrics import means, peak_memory
from forkleft.train.prepare import prepare_examples, sharing_vocabulary
from forkleft.train.progress import ProgressLine
from forkleft.train.resume import LENGTHENED, decisive, name_of
from forkleft.train.saving import SavingTrainer
from forkleft.train.showcase import showcase_examples, showcase_rows, write_in_orders
from forkleft.train.signs import new_signs
from forkleft.train.traces import traces
from forkleft.train.wrapped import answer_calls, gathered
from forkleft.verify import Judge, Verifier

# By so many questions a teacher that is elsewhere is recognised.
_KNOWN = 4

Rows = Sequence[Mapping[str, Any]] | Sequence[Example]
T = TypeVar("T")


class ForkLeftTrainer(SavingTrainer):
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
    model: torch.nn.Module
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
        peft_config: Any = None,
        merge_adapters: bool = False,
        **settings: Any,
    ) -> None:
        if student.tokenizer is None:
            raise ForkLeftError("the student has no tokenizer, which turns its responses into text to verify")
        self.verifier = args.named_verifier() if verifier is None else Verifier.of(verifier)
        if verifier is not None:
            # Checkpoints and card name the verifier that is used.
            args = copy(args)
            args.verifier, args.letters = self.verifier.kind, self.verifier.letters
        model = student.model
        student = sharing_vocabulary(student, teacher)
        if peft_config is not None:
            from peft import get_peft_model

            set_seed(args.seed)
            # Adapters go into the student's own modules, so that its readouts and rollouts use them.
            model = get_peft_model(model, peft_config)
        self.student, self.teacher, self.merge_adapters = student, teacher, merge_adapters
        self.decoding = decoding_of(student.family, args.eval_decoding)
        held_out: dict[str, list[Example]] | list[Example] | None
        if isinstance(eval_dataset, Mapping):
            held_out = {name: self._examples(rows, args) for name, rows in eval_dataset.items()}
        else:
            held_out = None if eval_dataset is None else self._examples(eval_dataset, args)
        super().__init__(
            model=model,
            args=args,
            data_collator=list,
            train_dataset=self._examples(train_dataset, args),
            eval_dataset=held_out,
            **settings,
        )
        if self.is_fsdp_enabled and student.family.attention == "full":
            raise ForkLeftError(
                "a student with full attention is read in as many forwards as its responses need, which differ "
                "between processes; FSDP cannot follow that: train it under DDP, with adapters if memory is short"
            )
        answer_calls(model)
        teacher.place(args.device)
        if teacher.head_weight.is_meta:
            raise ForkLeftError(
                "the teacher's output head is not on a device: its device map leaves it in other memory, but every "
                "update multiplies by it; give a map that puts lm_head on a device"
            )
        for printer in (PrinterCallback, ProgressCallback):
            self.remove_callback(printer)
        self.progress = ProgressLine(Console(), student.text_tokenizer, bar=not args.disable_tqdm)
        self.add_callback(self.progress)
        # The loss is already divided by the questions of the whole update.
        self.loss_is_scaled_for_ga = True
        cache = AnswerCache(args.answer_file)
        self.collector = Collector(student, teacher, answerer or teacher, cache, args, self.verifier, writer)
        teacher.check(self.collector.known(self.train_dataset[:_KNOWN]))
        # Outcomes of the questions since the last log line, and how many of them are of the current update.
        self._outcomes: list[Outcome] = []
        self._before_update = 0
        self._clock = Clock(self.progress.phase)
        self._retained = 0

    def _examples(self, rows: Any, args: ForkLeftConfig) -> list[Example]:
        if len(rows) and isinstance(rows[0], Example):
            return list(rows)
        return prepare_examples(self.student, self.teacher, rows, args, self.verifier)

    # Updates.

    def get_train_dataloader(self) -> DataLoader:
        """The questions of this process, in the order of the epoch; none is repeated to fill the last batch."""
        args = self.args
        batches = Batches(
            len(self.train_dataset),
            args.train_batch_size,
            process=args.process_index,
            processes=args.world_size,
            seed=args.order_seed,
            shuffle=args.train_sampling_strategy == "random",
            drop_last=args.dataloader_drop_last,
            accumulated=args.gradient_accumulation_steps,
        )
        batches.check()
        return Loader(self.train_dataset, batches)

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, list[Lesson]]], int]:
        """Collect an update: its micro-batches, and |B|, its questions over all processes and accumulation steps.

        All at once, because the student does not change within an update and writes faster in larger batches.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        if self.state.global_step == 0:
            self._write_showcase()
        self._before_update = len(self._outcomes)
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

    def _called(self, call: Callable[[], T]) -> T:
        """Call a function without gradients, within the wrapped module's forward, where a sharded head is whole."""
        reshard = self.is_fsdp_enabled and self.accelerator.state.fsdp_plugin.reshard_after_forward
        with torch.no_grad(), self.accelerator.autocast(), gathered(self.model_wrapped, reshard=bool(reshard)):
            return self.model_wrapped(forkleft_call=call)

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
        # The readout inside it is its own phase.
        with self._clock.phase("backward"):
            loss = super().training_step(model, inputs, num_items_in_batch)
        if self._retained == 0:
            # Without gradients the optimiser changes nothing: no weights, no moments, no decay.
            model.zero_grad(set_to_none=True)
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> float | None:
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and not math.isfinite(norm):
            retained = [outcome for outcome in self._outcomes[self._before_update :] if outcome.retained]
            names = ", ".join(f"{outcome.id} ({outcome.route})" for outcome in retained)
            raise ForkLeftError(
                f"update {self.state.global_step + 1}: the gradient is not finite; lower the learning rate, or train "
                f"in higher precision. Nothing was changed by this update, whose questions are {names:.500}"
            )
        return norm

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
            for row in rows:
                self.showcase_file.write(row)

    # Logging.

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the numbers of the method since the last line, and write the line to metrics.jsonl."""
        if "loss" in logs:
            outcomes = gather_object(self._outcomes)
            logs |= means(outcomes)
            logs |= {f"seconds_{phase}": seconds for phase, seconds in self._clock.seconds.items()}
            logs["tokens_per_second"] = sum(outcome.tokens for outcome in outcomes) / sum(self._clock.seconds.values())
            logs["peak_memory_mb"] = peak_memory(self.args.device)
            self._outcomes = []
            self._clock.seconds.clear()
        super().log(logs, start_time)
        # Not the summary of the whole training: it is not a step, and a resumed run would have several.
        if self.is_world_process_zero() and "train_runtime" not in logs:
            self.metrics_file.write({"step": self.state.global_step} | logs)
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

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Accuracy on held-out questions, decoded as `eval_decoding` says, divided among the processes.

        eval_dataset: rows, or several by name, as for the trainer itself (default: its own).
        """
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        if given is None:
            raise ForkLeftError("there is nothing to evaluate on; give the trainer an eval_dataset")
        if isinstance(given, Mapping):
            of_all: dict[str, float] = {}
            for name, rows in given.items():
                of_all |= self.evaluate(rows, ignore_keys, f"{metric_key_prefix}_{name}")
            return of_all
        examples = self._examples(given, self.args)
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = examples[rank::world]
        decoded = partial(
            decode,
            self.student,
            [example.prompt for example in mine],
            self.decoding,
            max_new_tokens=self.args.max_new_tokens,
            batch_size=self.args.rollout_batch_size,
        )
        self.progress.phase("evaluation")
        written = self._called(decoded)
        expected, ids = [example.answer for example in mine], [example.id for example in mine]
        right = self.verifier.judge([trajectory.text or "" for trajectory in written], expected, ids=ids)
        right = gather_object(right)
        self.progress.phase("")
        metrics = {f"{metric_key_prefix}_accuracy": sum(right) / len(right), f"{metric_key_prefix}_count": len(right)}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def train(self, *arguments: Any, **settings: Any) -> Any:
        """As in Transformers, but `True` resumes from the newest *whole* checkpoint. Saves the model at the end.

        Raises ForkLeftError if a checkpoint is damaged or belongs to another configuration, and if another process of
        the run is lost.
        """
        try:
            with named_lost_processes(self.args.output_path):
                return super().train(*arguments, **settings)
        finally:
            self.progress.stop()

    # What is saved.

    def create_model_card(  # type: ignore[override]  # Arguments that are not used here are in the others.
        self,
        language: str | None = None,
        license: str | None = None,
        tags: str | list[str] | None = None,
        finetuned_from: str | None = None,
        dataset: str | list[str] | None = None,
        **others: Any,
    ) -> None:
        """Write README.md beside the weights: which student learned from which teacher, how, and how to use the result.

        The arguments go into the metadata that the hub reads; `others` of Transformers' card are not used.
        """
        if not self.is_world_process_zero():
            return
        metadata = {"language": language, "license": license, "base_model": finetuned_from, "datasets": dataset}
        tags = [tags] if isinstance(tags, str) else tags or []
        page = model_card(
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
        write_text(self.args.output_path / "README.md", page)

    @cached_property
    def _decisive(self) -> dict[str, Any]:
        run = decisive(
            self.args,
            self.student,
            self.model,
            self.train_dataset,
            teacher=self.teacher.identity,
            answerer=self.collector.answerer.identity,
        )
        # What a user brings in place of ours is known by its name alone.
        own = {"writer": (self.collector.writer, generate), "trainer": (type(self), ForkLeftTrainer)}
        return run | {name: name_of(found) for name, (found, ours) in own.items() if found is not ours}

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        folder = Path(output_dir or self.args.output_path)
        for path in folder.glob("*.safetensors"):
            make_readable(path)
        self.student.text_tokenizer.save_pretrained(folder)
        write_sidecar(folder, self.student)
        if hasattr(self.model, "peft_config") and self.student.origin is not None:
            # Not given to PEFT, which would look for the base on the hub at every checkpoint.
            note_base(folder, self.student.origin.source)

    @property
    def _leaves_adapters(self) -> bool:
        return hasattr(self.model, "peft_config") and (self.is_fsdp_enabled or not self.merge_adapters)

    def _write_final(self, folder: Path) -> None:
        """Write the student in the format it came from; adapters, and weights under FSDP, as Transformers does."""
        if self._leaves_adapters or self.is_fsdp_enabled:
            self.save_model(str(folder), _internal_call=True)
        elif self.is_world_process_zero():
            save_student(self.student, folder, merge_adapters=self.merge_adapters)
