"""A `transformers.Trainer` whose checkpoints are whole or absent, and whose runs resume where they were.

What it adds to Transformers: checkpoints are staged and renamed (`checkpoints.py`), resuming takes the newest whole one
of the same run (`resumption.py`), files of one row a step go on without holes or repeats, and the final model is
written to the output folder itself.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Trainer

from forkleft import checkpoints
from forkleft.errors import ForkLeftError
from forkleft.metrics import StepFile
from forkleft.resumption import RUN_FILE, check_resumable

# What saving raises where the disk is full or a file cannot be written.
_WRITE_ERRORS = (OSError, SafetensorError, RuntimeError)


class SavingTrainer(Trainer):
    """The saving half of `ForkLeftTrainer`.

    A subclass says what decides its run (`_decisive`), writes the final model (`_write_final`) and its card
    (`create_model_card`), and writes a row of metrics.jsonl in every step that it logs, rows of traces.jsonl in some.
    """

    _decisive: dict[str, Any]

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        output = Path(self.args.output_dir)
        self.metrics_file, self.traces_file = StepFile(output / "metrics.jsonl"), StepFile(output / "traces.jsonl")
        self._saving_to: Path | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, **settings: Any) -> Any:
        """As in Transformers, but `True` resumes from the newest *whole* checkpoint; ends by saving the model.

        Raises ForkLeftError if a checkpoint is damaged or belongs to another configuration.
        """
        output, decisive, step = Path(self.args.output_dir), self._decisive, 0
        if resume_from_checkpoint:
            newest = resume_from_checkpoint is True or resume_from_checkpoint == "true"
            folder = checkpoints.newest_whole(output) if newest else Path(resume_from_checkpoint)
            checkpoints.check_whole(folder)
            check_resumable(folder, decisive)
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
        self._save_final()
        return result

    def _maybe_log_save_evaluate(self, *state: Any, **settings: Any) -> None:
        # What is not logged when a checkpoint is written would be missing in the log of a run resumed from it.
        if self.control.should_save or (self.args.save_strategy == "best" and self.control.should_evaluate):
            self.control.should_log = True
        super()._maybe_log_save_evaluate(*state, **settings)

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
                (staging / name / RUN_FILE).write_text(json.dumps(self._decisive, indent=2) + "\n", encoding="utf-8")
                self.metrics_file.flush()
                checkpoints.publish(staging / name, output / name)
            staging.rmdir()
            checkpoints.rotate(output, self.args.save_total_limit, best=self.state.best_model_checkpoint)
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            super()._push_from_checkpoint(str(output / name))

    @contextmanager
    def _staged(self, staging: Path) -> Iterator[None]:
        """Let what is saved within go to the staging folder; if it cannot be written, clear up and say so."""
        self._saving_to = staging
        try:
            yield
        except _WRITE_ERRORS as error:
            # What is half written would keep the disk full.
            shutil.rmtree(staging, ignore_errors=True)
            whole = [folder.name for folder in checkpoints.steps(staging.parent).values()]
            kept = f"{whole[-1]} is whole: make room, and resume from it" if whole else "make room, and start again"
            raise ForkLeftError(f"could not save to {staging.parent} ({error}); {kept}") from error
        finally:
            self._saving_to = None

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Upload a checkpoint once it has its name; what is staged may move while it is read."""

    def _load_best_model(self) -> None:
        checkpoints.check_whole(Path(self.state.best_model_checkpoint))
        super()._load_best_model()

    def _save_final(self) -> None:
        """The model and its card in output_dir itself, all or nothing of each file."""
        output = Path(self.args.output_dir)
        staging = output / checkpoints.STAGING
        if self.is_fsdp_enabled:
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        with self._staged(staging):
            self._write_final(staging)
            if self.is_world_process_zero():
                checkpoints.move_files(staging, output)
        self.accelerator.wait_for_everyone()
        self.create_model_card()
        if self.args.push_to_hub:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)
