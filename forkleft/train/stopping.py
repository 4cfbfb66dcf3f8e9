"""How a run ends before its time: after the update that it works on, with a checkpoint, if it is asked to end.

If an update fails, a checkpoint of the one before is saved: until the optimiser's step the weights are those.
"""

import logging
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from signal import Signals
from typing import Any

import torch
from accelerate import Accelerator

from forkleft.errors import CannotSaveError, ForkLeftError, NotFiniteError, StoppedError
from forkleft.signals import EndedBySignal, at_first_signal, ended_by_signal
from forkleft.train.folders import in_main_process
from forkleft.train.hub import UploadingTrainer

_LOG = logging.getLogger(__name__)
# The state of PyTorch's random numbers: of the CPU, and of the GPU of this process.
_Drawn = tuple[torch.Tensor, torch.Tensor | None]


class StopRequest:
    """Whether SIGINT or SIGTERM has come while `heard`.

    alone: this is the only process of the run, which may give up a wait or an evaluation (`ended_by_signal`). Others
    would wait for it there.
    """

    def __init__(self, *, alone: bool) -> None:
        self._number, self._alone = 0, alone

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Take note of a signal within the block, instead of ending there. A second one ends the process at once."""
        with at_first_signal(self._note):
            yield

    def agreed(self, accelerator: Accelerator) -> int:
        """The signal that this process or another of the run got, 0 if none did: the same number in all of them.

        All processes must call it at the same update, and stop there together: signals do not reach them together.
        """
        if accelerator.num_processes == 1:
            return self._number
        mine = torch.tensor([self._number], device=accelerator.device)
        return int(accelerator.gather(mine).max())

    def _note(self, number: int) -> bool:
        self._number = number
        if int(os.environ.get("RANK", 0)) == 0:
            # Not `print`: the signal may have come in the middle of one.
            ends = "ends after this update, with a checkpoint (a wait for a server ends now)"
            text = f"{Signals(number).name}: {ends}; a second signal ends it at once"
            os.write(2, f"\nforkleft: {text}\n".encode())
        return self._alone


class StoppingTrainer(UploadingTrainer):
    """The part of a trainer that ends a run early, and loses nothing.

    A subclass says whether a run can resume from a checkpoint (`_can_resume_from`), and sets `_unevaluated` in a run
    that resumes.
    """

    @abstractmethod
    def _can_resume_from(self, name: str) -> bool:
        """Whether there is a checkpoint of this name, with all that a run needs to go on."""

    def __init__(self, *arguments: Any, stop_on_signals: bool = False, **settings: Any) -> None:
        """stop_on_signals: at SIGINT or SIGTERM, finish the update, save a checkpoint, and raise StoppedError.

        The other arguments are those of Transformers.
        """
        super().__init__(*arguments, **settings)
        self._stop = StopRequest(alone=self.accelerator.num_processes == 1) if stop_on_signals else None
        # Logs and saves what the last update did not.
        self._save_update: Callable[[], None] | None = None
        # Takes back what an update has counted that did not come to its end.
        self._take_back: Callable[[], None] | None = None
        # The state of the random numbers after the last update.
        self._drawn: _Drawn | None = None
        # Whether the evaluation that belongs to the last update is still to be made.
        self._unevaluated = False

    def train(self, *arguments: Any, **settings: Any) -> Any:
        """As in Transformers. Raises StoppedError as `stop_on_signals` says; after another error, saves first."""
        try:
            return super().train(*arguments, **settings)
        except EndedBySignal:
            self._stop_if_asked()
            raise
        except StoppedError:
            raise
        except ForkLeftError as error:
            raise self._kept_despite(error) from error

    def _run_epoch(self, *state: Any, **settings: Any) -> None:
        # Transformers checks for the end of a run only after an update: resumed at the end, it would make one more.
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
        else:
            # Before the iterator of the epoch is made, which draws a random number.
            self._stop_if_asked()
            if self._unevaluated and (self.args.eval_strategy != "no" or self.args.eval_at):
                self._evaluate_late()
                # A callback may end a run by what was measured.
                if self.control.should_training_stop:
                    return
            super()._run_epoch(*state, **settings)

    def get_batch_samples(self, *batches: Any, **settings: Any) -> Any:
        """As in Transformers. Here an update begins, and all that belongs to the last one is done."""
        self._stop_if_asked()
        self._take_back = self._count_of_updates()
        return super().get_batch_samples(*batches, **settings)

    def _count_of_updates(self) -> Callable[[], None]:
        """Note what is counted of the updates so far; the result sets it back to that.

        A checkpoint that is saved after an update has failed must be that of the update before.
        """
        loss, total = self._tr_loss, self._tr_loss.clone()

        def back() -> None:
            loss.copy_(total)
            if self._drawn is not None:
                _set_random_state(self._drawn)

        return back

    def _stop_if_asked(self) -> None:
        """Save what was learned and raise StoppedError, in all processes, if one of them was asked to end."""
        number = 0 if self._stop is None else self._stop.agreed(self.accelerator)
        if not number:
            return
        step, why = self.state.global_step, f"stopped by {Signals(number).name}"
        if step == 0:
            raise StoppedError(f"{why} before the first update ended", step=step, number=number)
        name = self._save_last_update()
        raise StoppedError(f"{why} after update {step}, which {name} holds", step=step, number=number)

    def _save_last_update(self) -> str:
        """Save a checkpoint of the last update that came to its end, unless there is one. Its name."""
        name = f"checkpoint-{self.state.global_step}"
        if self._take_back is not None:
            self._take_back()
        if self._save_update is None:
            return name
        # One from before an evaluation that is not made does not say so.
        if self._unevaluated or in_main_process(lambda: not self._can_resume_from(name)):
            only_model, self.args.save_only_model = self.args.save_only_model, False
            self.control.should_log = self.control.should_save = True
            self.control.should_evaluate = False
            self._save_update()
            self.args.save_only_model = only_model
        return name

    def _kept_despite(self, error: ForkLeftError) -> ForkLeftError:
        """The error of a run, after what it has learned before was saved: the weights are those of the last update.

        Saving needs all processes of a run, and most errors are in one of them alone.
        """
        everywhere = self.accelerator.num_processes == 1 or isinstance(error, NotFiniteError)
        if not everywhere or self._save_update is None or isinstance(error, CannotSaveError):
            return error
        try:
            name = self._save_last_update()
        except ForkLeftError as other:
            _LOG.warning("what was learned since the last checkpoint is lost: %s", other)
            return error
        return ForkLeftError(f"{error}; {name} holds all that was learned before (--resume_from_checkpoint true)")

    def _maybe_log_save_evaluate(self, *state: Any, **settings: Any) -> None:
        # What is not logged before a checkpoint is written would be missing in the log of a run resumed from it.
        if self.control.should_save or (self.args.save_strategy == "best" and self.control.should_evaluate):
            self.control.should_log = True
        self._save_update = partial(super()._maybe_log_save_evaluate, *state, **settings)
        self._take_back, self._unevaluated = None, self.control.should_evaluate
        if self._unevaluated and self.state.global_step < self.state.max_steps:
            # An evaluation may take longer than there is time; it is made when the run goes on.
            self._stop_if_asked()
        super()._maybe_log_save_evaluate(*state, **settings)
        self._drawn = _random_state()

    def _evaluate(self, *arguments: Any, **settings: Any) -> dict[str, float]:
        metrics = super()._evaluate(*arguments, **settings)
        self._unevaluated = False
        return metrics

    def _giving_way(self) -> AbstractContextManager[None]:
        """A block of an evaluation, which a signal ends, but not after the last update: it is made another time."""
        return ended_by_signal() if self.state.global_step < self.state.max_steps else nullcontext()

    def _evaluate_late(self) -> None:
        """Evaluate as the run would have before it was stopped at the update from which it resumes."""
        metrics = self._evaluate(None, None)
        if self._determine_best_metric(metrics, None):
            self.state.best_model_checkpoint = str(self.args.output_path / f"checkpoint-{self.state.global_step}")


def _random_state() -> _Drawn:
    """Of PyTorch, by which dropout draws; all other choices of an update are keyed by its number."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_available() else None


def _set_random_state(state: _Drawn) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1])
