"""`StudentTrainer`: what all trainings of a student have in common, whatever their objective.

A subclass gives the micro-batches of an update (`get_batch_samples`) and their loss (`compute_loss`), the numbers of a
log line (`_figures`), and the card (`_card`). Everything else is here and in `saving.py`: adapters, calls within the
wrapped module, accuracy on questions, the log, the saved student.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from accelerate.utils import DynamoBackend, gather_object
from torch.utils.data import DataLoader
from transformers import set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from forkleft.errors import ForkLeftError, NotFiniteError
from forkleft.files import write_text
from forkleft.rollout import decode, decoding_of
from forkleft.students import Student, save_student
from forkleft.students.adapters import note_base
from forkleft.students.compiling import compile_layers
from forkleft.students.loading import write_sidecar
from forkleft.students.saving import check_mergeable
from forkleft.students.shards import make_readable
from forkleft.train.batches import Loader, batches_of
from forkleft.train.collect import Clock
from forkleft.train.data import Example
from forkleft.train.lost import named_lost_processes
from forkleft.train.metrics import peak_memory
from forkleft.train.progress import ProgressLine
from forkleft.train.run_config import RunConfig
from forkleft.train.saving import SavingTrainer
from forkleft.train.wrapped import answer_calls, gathered
from forkleft.verify import Verifier

T = TypeVar("T")


class StudentTrainer(SavingTrainer):
    """The base of all trainers.

    student: what learns; data: for training and evaluation, as the subclass reads it; progress: shows people how far it
    is. peft_config: train an adapter instead of all weights; merge_adapters: save the final model with it merged. Other
    arguments are the Trainer's.
    """

    args: RunConfig
    model: torch.nn.Module

    @abstractmethod
    def _figures(self) -> tuple[dict[str, float], int]:
        """The numbers of the objective since the last line of the log, over all processes, and the tokens of them."""

    @abstractmethod
    def _names(self) -> str:
        """The rows of the current update in this process, for an error."""

    @abstractmethod
    def _measured(self, rows: Any, prefix: str) -> dict[str, float]:
        """The figures of held-out rows, whose names begin with the prefix."""

    @abstractmethod
    def _card(self, tags: Sequence[str], metadata: Mapping[str, Any]) -> str:
        """The model card."""

    def __init__(
        self,
        student: Student,
        args: RunConfig,
        train_dataset: Any,
        eval_dataset: Any,
        progress: ProgressLine,
        *,
        peft_config: Any = None,
        merge_adapters: bool = False,
        **settings: Any,
    ) -> None:
        model: Any = student.model
        if peft_config is not None:
            from peft import get_peft_model

            set_seed(args.seed)
            # Adapters go into the student's own modules, so that its readouts and rollouts use them.
            model = get_peft_model(model, peft_config)
            if merge_adapters:
                # Now, and not when all is learned and to be saved.
                check_mergeable(student.model)
        self.student, self.merge_adapters = student, merge_adapters
        self.decoding = decoding_of(student.family, args.eval_decoding)
        super().__init__(
            model=model,
            args=args,
            data_collator=list,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            **settings,
        )
        if args.torch_compile:
            # Not the whole model, as Accelerate would: it is called for rollouts and readouts, by our own attention.
            self.accelerator.state.dynamo_plugin.backend = DynamoBackend.NO
            compile_layers(student, backend=args.torch_compile_backend or "inductor", mode=args.torch_compile_mode)
        answer_calls(model)
        for printer in (PrinterCallback, ProgressCallback):
            self.remove_callback(printer)
        self.progress = progress
        self.add_callback(progress)
        # The loss is already divided by the size of the whole update.
        self.loss_is_scaled_for_ga = True
        self._clock = Clock(progress.phase)

    def get_train_dataloader(self) -> DataLoader:
        """The examples of this process, in the order of the epoch; none is repeated to fill the last batch."""
        examples: Any = self.train_dataset
        return Loader(examples, batches_of(self.args, len(examples)))

    def _called(self, call: Callable[[], T]) -> T:
        """Call a function without gradients, within the wrapped module's forward, where a sharded head is whole."""
        reshard = self.is_fsdp_enabled and self.accelerator.state.fsdp_plugin.reshard_after_forward
        with torch.no_grad(), self.accelerator.autocast(), gathered(self.model_wrapped, reshard=bool(reshard)):
            return self.model_wrapped(forkleft_call=call)

    def training_step(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """Forward and backward of a micro-batch."""
        # The forward inside it is its own phase.
        with self._clock.phase("backward"):
            return super().training_step(model, inputs, num_items_in_batch)

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> float | None:
        norm = super()._get_grad_norm(model, grad_norm)
        if norm is not None and not math.isfinite(norm):
            raise NotFiniteError(
                f"update {self.state.global_step + 1}: the gradient is not finite; lower the learning rate, or train "
                f"in higher precision. Nothing was changed by this update, whose {self._names()}"
            )
        return norm

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the numbers of the objective since the last line, and write the line to metrics.jsonl."""
        if "loss" in logs:
            figures, tokens = self._figures()
            logs |= figures
            logs |= {f"seconds_{phase}": seconds for phase, seconds in self._clock.seconds.items()}
            logs["tokens_per_second"] = tokens / sum(self._clock.seconds.values())
            logs["peak_memory_mb"] = peak_memory(self.args.device)
            self._clock.seconds.clear()
        super().log(logs, start_time)
        # Not the summary of the whole training: it is not a step, and a resumed run would have several.
        if self.is_world_process_zero() and "train_runtime" not in logs:
            self.metrics_file.write({"step": self.state.global_step} | logs)

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Measure the student on held-out data, as the objective does (`_measured`), divided among the processes.

        eval_dataset: rows, or several by name, as for the trainer itself (default: its own).
        """
        given = self.eval_dataset if eval_dataset is None else eval_dataset
        if given is None:
            raise ForkLeftError("there is nothing to evaluate on; give the trainer an eval_dataset")
        sets = {metric_key_prefix: given}
        if isinstance(given, Mapping):
            sets = {f"{metric_key_prefix}_{name}": rows for name, rows in given.items()}
        # All are measured before one is logged: a signal may end it, and then all are measured again later.
        with self._giving_way():
            found = [self._measured(rows, prefix) for prefix, rows in sets.items()]
        of_all: dict[str, float] = {}
        for metrics in found:
            self.log(dict(metrics))
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
            of_all |= metrics
        return of_all

    def _accuracy(self, examples: Sequence[Example], verifier: Verifier, prefix: str) -> dict[str, float]:
        """How many questions are answered right, decoded as `eval_decoding` says, divided among the processes."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = examples[rank::world]
        expected, ids = [example.answer for example in mine], [example.id for example in mine]
        decoded = partial(
            decode,
            self.student,
            [example.prompt for example in mine],
            self.decoding,
            max_new_tokens=self.args.max_new_tokens,
            ids=ids,
            batch_size=self.args.rollout_batch_size,
        )
        self.progress.phase("evaluation")
        written = self._called(decoded)
        right = gather_object(verifier.judge([trajectory.text or "" for trajectory in written], expected, ids=ids))
        self.progress.phase("")
        return {f"{prefix}_accuracy": sum(right) / len(right), f"{prefix}_count": len(right)}

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
        """Write README.md beside the weights: how the student learned what, and how to use the result.

        The arguments go into the metadata that the hub reads; `others` of Transformers' card are not used.
        """
        if not self.is_world_process_zero():
            return
        metadata = {"language": language, "license": license, "base_model": finetuned_from, "datasets": dataset}
        page = self._card([tags] if isinstance(tags, str) else tags or [], metadata)
        write_text(self.args.output_path / "README.md", page)

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
