"""A `transformers.Trainer` whose checkpoints are complete or absent, and whose runs resume where they were.

What it adds to Transformers: checkpoints are staged and renamed (`checkpoints.py`), a run resumes from the newest whole
checkpoint of the same run (`resume.py`), files with one row a step continue without gaps or repeats, a run that is
asked to end saves first (`stopping.py`), and the final model is written to the output folder itself.
"""

import logging
import re
import shutil
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import SchedulerType

from forkleft.errors import CannotSaveError, ForkLeftError
from forkleft.train import checkpoints
from forkleft.train.folders import RunFolder, in_main_process
from forkleft.train.metrics import StepFile
from forkleft.train.resume import LENGTHENED, UNEVALUATED, check_resumable, divided_anew, find_checkpoint, step_of
from forkleft.train.run_config import RunConfig
from forkleft.train.run_files import METRICS, read_run, write_run
from forkleft.train.stopping import StoppingTrainer

_LOG = logging.getLogger(__name__)
# What saving raises if the disk is full or a file cannot be written. PyTorch raises a bare error, known by its text.
_WRITE_ERRORS = (OSError, SafetensorError, RuntimeError)
_OF_PYTORCH = re.compile("PytorchStreamWriter|unexpected pos|iostream")
# The logger with which Transformers warns that options differ from the checkpoint's, and how the warning begins.
_COMPARER, _OTHER_ARGUMENTS = "transformers.trainer_utils", "Warning: The following arguments do not match"


class _AtSteps(TrainerCallback):
    """Saves and evaluates after the updates that `save_at` and `eval_at` name."""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        # If epochs decide the number of updates, it is known only now.
        args.check_length(state.max_steps)
        if state.global_step >= state.max_steps and state.is_world_process_zero:
            longer = "num_train_epochs" if args.max_steps == -1 else "max_steps"
            _LOG.warning("the run had ended at update %d; a larger %s makes it longer", state.global_step, longer)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        control.should_save |= state.global_step in (args.save_at or ())
        control.should_evaluate |= state.global_step in (args.eval_at or ())


class SavingTrainer(StoppingTrainer):
    """The half of every trainer that saves.

    A subclass says what decides its run (`_decisive`), and writes the final model (`_write_final`) and its card
    (`create_model_card`). It writes a row of metrics.jsonl in every step that it logs, and may have more files with
    rows of steps (`_step_files`).
    """

    args: RunConfig
    model: torch.nn.Module

    @property
    @abstractmethod
    def _decisive(self) -> dict[str, Any]:
        """All that decides what the run learns."""

    @abstractmethod
    def _write_final(self, folder: Path) -> None:
        """Write the model that the run ends with."""

    @property
    def _step_files(self) -> list[StepFile]:
        """The files that this run writes, with rows of steps."""
        return [self.metrics_file]

    def __init__(self, *arguments: Any, folder: RunFolder | None = None, **settings: Any) -> None:
        """folder: the output folder, if the caller already holds it. The others are those of `StoppingTrainer`."""
        super().__init__(*arguments, **settings)
        self.folder = folder or RunFolder(self.args.output_path)
        if self.args.eval_at and self.eval_dataset is None:
            raise ForkLeftError("eval_at names updates to evaluate after, and there is no data to evaluate on; add it")
        self.add_callback(_AtSteps())
        self.metrics_file = StepFile(self.args.output_path / METRICS)
        self._saving_to: Path | None = None
        # Names of checkpoints whose files were read or written here: gigabytes are digested only once.
        self._known_whole: set[str] = set()

    def train(self, resume_from_checkpoint: str | bool | None = None, *others: Any, **settings: Any) -> Any:
        """As in Transformers, but `True` resumes from the newest *whole* checkpoint. Saves the model at the end.

        Raises ForkLeftError if a checkpoint is damaged or belongs to another configuration, if the output folder holds
        files of another run, or if another run is writing there; StoppedError as `stop_on_signals` says.
        """
        with self.folder.held(), nullcontext() if self._stop is None else self._stop.heard():
            found = in_main_process(partial(self._found, resume_from_checkpoint))
            checkpoint, step, self._unevaluated = found
            # Another process may still read a later checkpoint, from which its student comes, before that is removed.
            self.accelerator.wait_for_everyone()
            in_main_process(partial(self._make_ready, step))
            first_evaluation = self.args.eval_on_start
            # The run was evaluated when it started; resuming is not a new start.
            self.args.eval_on_start = first_evaluation and step == 0
            try:
                result = super().train(checkpoint, *others, **settings)
            finally:
                self.args.eval_on_start = first_evaluation
            if self.args.push_to_hub:
                self.push_to_hub(commit_message="Model save")
            else:
                self.save_model(_internal_call=True)
                self.create_model_card()
            return result

    def _found(self, resume: str | bool | None) -> tuple[str | None, int, bool]:
        """The checkpoint to resume from, its step, and whether it was not evaluated; None and 0 for a new run."""
        if resume:
            return self._resumed(resume)
        own = [file.path.name for file in self._step_files if file.written]
        self.folder.check_new(self._decisive, own=own)
        return None, 0, False

    def _make_ready(self, step: int) -> None:
        """Write into the folder which run this is; what is later than the step from which it resumes goes away."""
        output = self.folder.path
        shutil.rmtree(output / checkpoints.STAGING, ignore_errors=True)
        for later, folder in checkpoints.steps(output).items():
            # They are not whole (`find_checkpoint`), and will be written again.
            if later > step:
                checkpoints.set_aside(folder)
        write_run(output, self._decisive)
        for file in self._step_files:
            file.begin(step)

    def _resumed(self, resume: str | bool) -> tuple[str, int, bool]:
        checkpoint = find_checkpoint(self.folder.path, resume)
        self._known_whole.add(checkpoint.name)
        other_course = check_resumable(checkpoint, self._decisive)
        step = step_of(checkpoint)
        before = read_run(checkpoint) or {}
        if divided_anew(before, self._decisive):
            _LOG.warning(
                "the run had %s process(es) and has %s: each update has the same questions as before, and the result "
                "differs by rounding",
                before["processes"],
                self._decisive["processes"],
            )
        lengthened = before.get(LENGTHENED, [])
        if other_course is not None:
            lengthened.append(f"{other_course} update {step + 1}")
            _LOG.warning(
                "the learning rate (%s) depends on the length of the run, and %s: from update %d on it follows the "
                "longer schedule, so that the result is not that of a run which was as long from the start; with a "
                "constant schedule it would be, byte for byte",
                SchedulerType(self.args.lr_scheduler_type).value,
                other_course,
                step + 1,
            )
        if lengthened:
            self._decisive[LENGTHENED] = lengthened
        return str(checkpoint), step, before.get(UNEVALUATED) is True

    def _init_training_state(self, max_steps: int, *others: Any, **settings: Any) -> tuple[int, int]:
        # `check_resumable` allowed these differences from the checkpoint, and the new values must hold. Transformers
        # would warn, and keep the intervals of the checkpoint.
        log = logging.getLogger(_COMPARER)
        log.addFilter(_is_no_comparison)
        try:
            found = super()._init_training_state(max_steps, *others, **settings)
        finally:
            log.removeFilter(_is_no_comparison)
        self.state.compute_steps(self.args, max_steps)
        return found

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        schedule, optimizer = self.lr_scheduler, self.optimizer
        if checkpoint is not None and optimizer is not None and isinstance(schedule, LambdaLR):
            # The optimiser's state has the rate of the old schedule; in a run that was made longer, the rate differs.
            rates = [
                base * rule(schedule.last_epoch)
                for base, rule in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)
            ]
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            schedule._last_lr = rates

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._saving_to is None else str(self._saving_to)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        output = Path(self._get_output_dir(trial))
        staging, name = output / checkpoints.STAGING, f"checkpoint-{self.state.global_step}"
        if self.is_world_process_zero():
            shutil.rmtree(staging, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        with self._staged(staging):
            super()._save_checkpoint(model, trial)
        self.accelerator.wait_for_everyone()
        if self.state.best_model_checkpoint == str(staging / name):
            self.state.best_model_checkpoint = str(output / name)
        if self.is_world_process_zero():
            with self._staged(staging):
                self.state.save_to_json(str(staging / name / "trainer_state.json"))
                write_run(staging / name, self._decisive | ({UNEVALUATED: True} if self._unevaluated else {}))
                # A pickle, which is not needed to resume, and would keep the token of the hub.
                (staging / name / TRAINING_ARGS_NAME).unlink(missing_ok=True)
                for file in self._step_files:
                    file.flush()
                checkpoints.publish(staging / name, output / name)
                self._known_whole.add(name)
            staging.rmdir()
            if self.args.push_to_hub and self.args.save_total_limit:
                # Do not remove a checkpoint while it is read.
                self._finish_current_push()
            checkpoints.rotate(
                output,
                self.args.save_total_limit,
                best=self.state.best_model_checkpoint,
                kept=self.args.save_at or (),
            )
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self.upload_checkpoint(output / name)

    @contextmanager
    def _staged(self, staging: Path) -> Iterator[None]:
        """Save into the staging folder within the block. If that cannot be written, clean up and raise an error."""
        self._saving_to = staging
        try:
            yield
        except _WRITE_ERRORS as error:
            if isinstance(error, RuntimeError) and not _OF_PYTORCH.search(str(error)):
                raise
            # Half-written files would keep the disk full.
            shutil.rmtree(staging, ignore_errors=True)
            found = reversed(checkpoints.steps(staging.parent).values())
            last = next((folder.name for folder in found if checkpoints.fault(folder, digests=False) is None), None)
            kept = f"{last} is there: make room, and resume from it" if last else "make room, and start again"
            raise CannotSaveError(f"could not save to {staging.parent} ({error}); {kept}") from error
        finally:
            self._saving_to = None

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # A tied head is stored once, as the embedding, and gets its weights from there.
        tied: Any = self.model.all_tied_weights_keys
        missing = [name for name in load_result.missing_keys if name not in tied]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _load_best_model(self) -> None:
        if (found := self.state.best_model_checkpoint) is not None:
            best = Path(found)
            in_main_process(lambda: checkpoints.check_whole(best, digests=best.name not in self._known_whole))
        super()._load_best_model()
        # What is in memory now is not what the last update left.
        self._save_update = None

    def _can_resume_from(self, name: str) -> bool:
        return name in self._known_whole and any((self.folder.path / name).glob("optimizer*"))

    # The final model.

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in Transformers; but in the folder of the run, the model has the format it came from, all or nothing."""
        output = self.args.output_path
        if output_dir is not None and Path(output_dir) != output:
            super().save_model(output_dir, _internal_call)
            return
        staging = output / checkpoints.STAGING
        if self.is_fsdp_enabled:
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        with self._staged(staging):
            self._write_final(staging)
            if self.is_world_process_zero():
                # A pickle, which is not needed beside a model.
                (staging / TRAINING_ARGS_NAME).unlink(missing_ok=True)
                checkpoints.move_files(staging, output)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save")


def _is_no_comparison(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_OTHER_ARGUMENTS)
