"""`ForkLeftTrainer`: the method as a `transformers.Trainer`.

    trainer = ForkLeftTrainer(student, teacher, ForkLeftConfig("runs/first"), train_dataset)
    trainer.train()

A thin adapter: what an update is stands in `collection.py` and `objective/`; devices, processes, optimiser, schedule,
trackers and the hub are the Trainer's. Its own are four things: fresh rollouts in every update, one denominator over
processes and accumulation steps, no step where every question was excluded, and checkpoints that are whole or absent.
"""

import hashlib
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import Trainer, TrainingArguments, set_seed

from forkleft import checkpoints
from forkleft.card import model_card
from forkleft.collection import Clock, Collected, Collector, check_examples
from forkleft.config import ForkLeftConfig
from forkleft.data import Example, read_examples
from forkleft.errors import ForkLeftError
from forkleft.metrics import Observation, StepFile, summarise
from forkleft.objective.update import Record, update_loss
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.students.student import Student
from forkleft.teacher import AnswerCache, Teacher
from forkleft.teacher.answers import Answerer
from forkleft.traces import traces
from forkleft.verify import verify_batch
from forkleft.vocabulary import common_vocabulary

_RUN_FILE = "forkleft.json"
# What decides what is learned, beside the options of the method: a run is not resumed with other values.
_DECISIVE = (
    "seed",
    "data_seed",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "warmup_steps",
    "num_train_epochs",
    "max_steps",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "optim",
    "bf16",
    "fp16",
)
_INDIFFERENT = {"rollout_batch_size", "answer_cache", "trace_steps"}


class ForkLeftTrainer(Trainer):
    """Trains a student from a teacher.

    student, teacher: as `load_student` and `load_teacher` give them. train_dataset, eval_dataset: rows with `question`
    (or `messages`) and `answer`, and where there are any `solution` and `id`. answerer: who gives the teacher's own
    answers, if not the teacher itself (an `AnswerServer`). peft_config: train an adapter instead of all weights.
    Further arguments are the Trainer's.
    """

    def __init__(
        self,
        student: Student,
        teacher: Teacher,
        args: ForkLeftConfig,
        train_dataset: Sequence[Mapping[str, Any]],
        eval_dataset: Sequence[Mapping[str, Any]] | None = None,
        *,
        answerer: Answerer | None = None,
        peft_config: Any = None,
        **settings: Any,
    ) -> None:
        if student.tokenizer is None:
            raise ForkLeftError("the student has no tokenizer, which turns its responses into text to verify")
        model = student.model
        student = _sharing(student, teacher)
        if peft_config is not None:
            from peft import get_peft_model

            set_seed(args.seed)
            # Adapters go into the student's own modules, so that its readouts and rollouts use them.
            model = get_peft_model(model, peft_config)
        self.student, self.teacher = student, teacher
        read = partial(
            read_examples,
            prompt_template=args.prompt_template,
            reference_template=args.reference_template,
            verifier=args.verifier,
        )
        examples = check_examples(student, teacher, read(train_dataset), args)
        held_out = None if eval_dataset is None else check_examples(student, teacher, read(eval_dataset), args)
        super().__init__(
            model=model,
            args=args,
            data_collator=list,
            train_dataset=examples,
            eval_dataset=held_out,
            **settings,
        )
        _answer_calls(model)
        # The loss comes divided by the questions of the whole update.
        self.loss_is_scaled_for_ga = True
        cache = AnswerCache(Path(args.answer_cache or Path(args.output_dir) / "teacher_answers.jsonl"))
        self.collector = Collector(student, teacher, answerer or teacher, cache, args)
        self.metrics_file = StepFile(Path(args.output_dir) / "metrics.jsonl")
        self.traces_file = StepFile(Path(args.output_dir) / "traces.jsonl")
        self._observed: list[Observation] = []
        self._clock, self._logged_at = Clock(), time.perf_counter()
        self._retained = 0
        self._saving_to: Path | None = None

    # Updates.

    def get_batch_samples(
        self, epoch_iterator: Iterator, num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Collected]], int]:
        """Collect an update: its micro-batches, and |B|, its questions over all processes and accumulation steps.

        All of it at once, since the student does not change within an update and writes faster in larger batches.
        """
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        examples, update = [example for batch in batches for example in batch], self.state.global_step
        # Within the wrapped module's forward, where a sharded head is whole.
        with self._clock.phase("rollout"), torch.no_grad(), self.accelerator.autocast():
            trajectories = self.model_wrapped(forkleft_call=partial(self.collector.write, examples, update=update))
        collected = self.collector.collect(examples, trajectories, update=update, clock=self._clock)
        mine = torch.tensor([len(examples), sum(lesson.retained for lesson in collected.lessons)], device=device)
        questions, self._retained = self.accelerator.reduce(mine, "sum").tolist()
        return [{"collected": part} for part in collected.split([len(batch) for batch in batches])], questions

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Collected],
        return_outputs: bool = False,
        num_items_in_batch: int | None = None,
    ) -> torch.Tensor:
        """The loss of a micro-batch, as its part of the whole update."""
        collected, step = inputs["collected"], self.state.global_step + 1
        settings = self.collector.settings
        with self._clock.phase("readout"):
            loss, records = model(
                forkleft_call=partial(
                    update_loss,
                    self.student,
                    collected.lessons,
                    settings,
                    batch_size=num_items_in_batch,
                    teacher_weight_VE=self.teacher.head_weight,
                )
            )
        self._observe(collected, records)
        if self.args.trace_steps and self.state.global_step % self.args.trace_steps == 0:
            self._trace(model, collected, step=step)
        # Gradients are averaged over the processes; the method sums them.
        return loss * self.accelerator.num_processes

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Collected],
        num_items_in_batch: int | None = None,
    ) -> torch.Tensor:
        """Forward and backward of a micro-batch; no gradients are left if every question of the update is out."""
        start, spent = time.perf_counter(), self._clock.seconds.get("readout", 0.0)
        loss = super().training_step(model, inputs, num_items_in_batch)
        taken = time.perf_counter() - start - (self._clock.seconds["readout"] - spent)
        self._clock.seconds["backward"] = self._clock.seconds.get("backward", 0.0) + taken
        if self._retained == 0:
            # Without gradients the optimiser leaves weights, moments and decay alone.
            model.zero_grad(set_to_none=True)
        return loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> float | None:
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and not math.isfinite(norm):
            names = ", ".join(one.record.id for one in self._observed if one.record.retained)
            raise ForkLeftError(
                f"update {self.state.global_step + 1}: the gradient is not finite (questions {names:.200}); lower the "
                "learning rate, or train in higher precision. Nothing was changed by this update"
            )
        return norm

    def _observe(self, collected: Collected, records: list[Record]) -> None:
        for lesson, trajectory, cut, record in zip(
            collected.lessons, collected.trajectories, collected.cut, records, strict=True
        ):
            question = lesson.question
            self._observed.append(
                Observation(
                    record,
                    question.student_right,
                    question.teacher_right,
                    len(trajectory.tokens),
                    trajectory.stopped,
                    cut,
                )
            )

    def _trace(self, model: torch.nn.Module, collected: Collected, *, step: int) -> None:
        read = partial(traces, self.student, self.teacher, collected, self.collector.settings, step=step)
        model.eval()
        with torch.no_grad():
            rows = gather_object(model(forkleft_call=read))
        model.train()
        if self.is_world_process_zero():
            for row in rows:
                self.traces_file.write(row)

    # Logging.

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add what the method has to tell since the last line, and keep the line in metrics.jsonl."""
        if "loss" in logs:
            observed = gather_object(self._observed)
            now = time.perf_counter()
            logs |= summarise(observed)
            logs |= {f"seconds_{phase}": seconds for phase, seconds in self._clock.seconds.items()}
            logs["tokens_per_second"] = sum(one.tokens for one in observed) / (now - self._logged_at)
            logs["peak_memory_mb"] = _peak_memory(self.args.device)
            self._observed, self._clock, self._logged_at = [], Clock(), now
        super().log(logs, start_time)
        if self.is_world_process_zero():
            self.metrics_file.write({"step": self.state.global_step} | logs)

    # Evaluation.

    def evaluate(
        self,
        eval_dataset: Sequence[Example] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Accuracy of the student's native decoding on the held-out examples, divided among the processes."""
        examples = self.eval_dataset if eval_dataset is None else eval_dataset
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = examples[rank::world]
        write = partial(
            generate,
            self.student,
            [prompt_ids(self.student.tokenizer, one.messages) for one in mine],
            max_new_tokens=self.args.max_new_tokens,
            batch_size=self.args.rollout_batch_size,
        )
        with torch.no_grad(), self.accelerator.autocast():
            written = self.model_wrapped(forkleft_call=write)
        right = verify_batch([t.text for t in written], [one.answer for one in mine], self.args.verifier)
        right = gather_object(right)
        metrics = {f"{metric_key_prefix}_accuracy": sum(right) / len(right), f"{metric_key_prefix}_count": len(right)}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Checkpoints.

    def train(self, resume_from_checkpoint: str | bool | None = None, **settings: Any) -> Any:
        """As in Transformers, but `True` resumes from the newest *whole* checkpoint; ends by saving the model.

        Raises ForkLeftError if a checkpoint is damaged or belongs to another configuration.
        """
        output = Path(self.args.output_dir)
        step = 0
        if resume_from_checkpoint:
            newest = resume_from_checkpoint is True or resume_from_checkpoint == "true"
            folder = checkpoints.newest_whole(output) if newest else Path(resume_from_checkpoint)
            checkpoints.check_whole(folder)
            self._check_same_run(folder)
            resume_from_checkpoint = str(folder)
            step = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))["global_step"]
        elif checkpoints.steps(output):
            raise ForkLeftError(
                f"{output} holds checkpoints of an earlier run; resume it (resume_from_checkpoint: true), or name "
                "another folder"
            )
        if self.is_world_process_zero():
            shutil.rmtree(output / checkpoints.STAGING, ignore_errors=True)
            for later, folder in checkpoints.steps(output).items():
                # Of the same run, and written again on the way; left there, they would win at the next resume.
                if later > step:
                    shutil.rmtree(folder)
            self.metrics_file.begin(step)
            if self.args.trace_steps:
                self.traces_file.begin(step)
        result = super().train(resume_from_checkpoint or None, **settings)
        self.save_model()
        self.create_model_card()
        return result

    def create_model_card(self, **settings: Any) -> None:
        """Write README.md beside the weights: what was trained on what, how, and how to generate with it."""
        if self.is_world_process_zero():
            page = model_card(self.student, self.teacher, self.args, len(self.train_dataset), self.state)
            (Path(self.args.output_dir) / "README.md").write_text(page, encoding="utf-8")

    def _decisive(self) -> dict[str, Any]:
        own = {field.name for field in fields(ForkLeftConfig)} - {field.name for field in fields(TrainingArguments)}
        values = {name: getattr(self.args, name) for name in [*_DECISIVE, *sorted(own - _INDIFFERENT)]}
        values |= {"processes": self.accelerator.num_processes, "teacher": self.teacher.identity}
        values |= {"family": asdict(self.student.family), "answerer": self.collector.answerer.identity}
        values |= {"lr_scheduler_kwargs": self.args.lr_scheduler_kwargs, "optim_args": self.args.optim_args}
        adapters = getattr(self.model, "peft_config", {})
        values |= {"adapters": {name: vars(config) for name, config in adapters.items()}}
        questions = [asdict(example) for example in self.train_dataset]
        values["questions"] = hashlib.sha256(json.dumps(questions, sort_keys=True).encode()).hexdigest()
        return json.loads(json.dumps(values, default=str))

    def _check_same_run(self, folder: Path) -> None:
        theirs = json.loads((folder / _RUN_FILE).read_text(encoding="utf-8"))
        ours = self._decisive()
        differing = [name for name in ours | theirs if ours.get(name) != theirs.get(name)]
        if differing:
            told = "; ".join(f"{name} was {theirs.get(name)!r}, is {ours.get(name)!r}" for name in differing)
            raise ForkLeftError(f"{folder} belongs to another configuration: {told}; restore these, or start a new run")

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._saving_to is None else str(self._saving_to)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        output = Path(self._get_output_dir(trial))
        staging, name = output / checkpoints.STAGING, f"checkpoint-{self.state.global_step}"
        if self.is_world_process_zero():
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._saving_to = staging
        try:
            super()._save_checkpoint(model, trial)
        except OSError:
            # A half-written checkpoint would keep the disk full.
            shutil.rmtree(staging, ignore_errors=True)
            raise
        finally:
            self._saving_to = None
        self.accelerator.wait_for_everyone()
        if self.state.best_model_checkpoint == str(staging / name):
            self.state.best_model_checkpoint = str(output / name)
        if self.is_world_process_zero():
            self.state.save_to_json(str(staging / name / "trainer_state.json"))
            (staging / name / _RUN_FILE).write_text(json.dumps(self._decisive(), indent=2) + "\n", encoding="utf-8")
            checkpoints.publish(staging / name, output / name)
            staging.rmdir()
            checkpoints.rotate(output, self.args.save_total_limit, best=self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()

    def _save(self, output_dir: str | None = None, state_dict: dict | None = None) -> None:
        super()._save(output_dir, state_dict)
        self.student.tokenizer.save_pretrained(output_dir or self.args.output_dir)


def _sharing(student: Student, teacher: Teacher) -> Student:
    """The student over the vocabulary that it shares with the teacher. Raises ForkLeftError if there is none."""
    stop_ids = student.vocabulary.stop_ids
    if missing := set(stop_ids) - set(teacher.stop_ids):
        raise ForkLeftError(
            f"the teacher would not stop at the student's stop ids {sorted(missing)}; make it with the union of both "
            "models' stop ids"
        )
    vocabulary = common_vocabulary(
        student.tokenizer,
        teacher.tokenizer,
        student_rows=student.head_weight.shape[0],
        teacher_rows=teacher.head_weight.shape[0],
        mask_id=student.vocabulary.mask_id,
        stop_ids=tuple(dict.fromkeys([*stop_ids, *teacher.stop_ids])),
    )
    return Student(student.model, student.family, vocabulary, student.tokenizer)


def _answer_calls(model: torch.nn.Module) -> None:
    """Let `model(forkleft_call=f)` run f within the module's forward, and any other call do what it did.

    DDP synchronises gradients, and FSDP gathers parameters, only around the forward of the module that they wrap.
    """
    # A method, not a closure: a copy of the model then calls the copy.
    model.forward = MethodType(_answering, model)


def _answering(
    self: torch.nn.Module, *arguments: Any, forkleft_call: Callable[[], Any] | None = None, **settings: Any
) -> Any:
    return type(self).forward(self, *arguments, **settings) if forkleft_call is None else forkleft_call()


def _peak_memory(device: torch.device) -> float:
    """Mebibytes: of the device where it is a GPU, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
