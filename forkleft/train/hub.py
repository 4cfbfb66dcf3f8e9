"""Uploads of a run to the hub: its model and, if wanted, its checkpoints.

Transformers' own upload would overwrite the final model in another format, use files that are still staged, and publish
the questions and answers beside it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import upload_folder
from transformers import Trainer
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import HubStrategy
from transformers.utils import PushInProgress

from forkleft.manifests import MANIFEST
from forkleft.train.run_config import RunConfig
from forkleft.train.run_files import RUN_FILE

# The lock, and what a process left that was killed while it wrote: `.traces.jsonl.node-4711`.
_HIDDEN = ".*"
# An upload of the model leaves these out: the state for resuming, and questions and answers, which may not be ours to
# publish.
_NOT_THE_MODEL = (
    *(_HIDDEN, "_*", "checkpoint-*", "optimizer*", "scheduler*", "scaler*", "rng_state*", "pytorch_model_fsdp*"),
    *("trainer_state.json", "traces.jsonl", "showcase.jsonl", "routes.jsonl", RUN_FILE, MANIFEST),
    # The report shows the traces.
    "report.html",
    TRAINING_ARGS_NAME,
)


class UploadingTrainer(Trainer):
    """The part of a trainer that uploads.

    A subclass saves the model (`save_model`), and calls `upload_checkpoint` once a checkpoint has its final name.
    """

    args: RunConfig

    def push_to_hub(
        self,
        commit_message: str | None = "End of training",
        blocking: bool = True,
        token: str | None = None,
        revision: str | None = None,
        **settings: Any,
    ) -> Any:
        """Save the model, write its card (`settings` are for that), and upload both.

        Returns the commit, or its future if the upload runs in the background; None in all processes but the main one.
        """
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        if self.hub_model_id is None:
            self.init_hf_repo(token=token)
        self.save_model(_internal_call=True)
        self.create_model_card(**settings)
        if not self.is_world_process_zero():
            return None
        self._finish_current_push()
        return self._upload(
            self.args.output_path,
            commit_message,
            leave_out=[*_NOT_THE_MODEL, *self.args.private_files],
            run_as_future=not blocking,
            token=token,
            revision=revision,
            # Weights that were uploaded during the run, and are in other files now.
            delete_patterns=["*.safetensors", "*.safetensors.index.json"],
        )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: when Transformers calls this, the checkpoint is staged and does not have its name yet."""

    def upload_checkpoint(self, folder: Path) -> None:
        """Upload the model of a checkpoint and, if the strategy says so, the checkpoint itself, in the background."""
        strategy = self.args.hub_strategy
        running: Any = self.push_in_progress
        if not self.is_world_process_zero() or strategy == HubStrategy.END:
            return
        if not self.args.hub_always_push and running is not None and not running.is_done():
            return
        self.callback_handler.on_push_begin(self.args, self.state, self.control)
        message = f"Training in progress, step {self.state.global_step}"
        jobs = [self._upload(folder, message, leave_out=_NOT_THE_MODEL, run_as_future=True)]
        if strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = "last-checkpoint" if strategy == HubStrategy.CHECKPOINT else folder.name
            jobs.append(
                self._upload(
                    folder, f"{message}, checkpoint", path_in_repo=place, leave_out=[_HIDDEN], run_as_future=True
                )
            )
        if running is None or running.is_done():
            # As Transformers does, though it declares a single job, and None at the start.
            self.push_in_progress = PushInProgress(jobs)  # type: ignore[arg-type, assignment]
        else:
            running.jobs.extend(jobs)

    def _upload(
        self,
        folder: Path,
        message: str | None,
        *,
        leave_out: Sequence[str] = (),
        token: str | None = None,
        revision: str | None = None,
        **settings: Any,
    ) -> Any:
        return upload_folder(
            repo_id=self.hub_model_id or "",
            folder_path=str(folder),
            commit_message=message,
            ignore_patterns=list(leave_out),
            token=token or self.args.hub_token,
            revision=revision or self.args.hub_revision,
            **settings,
        )
