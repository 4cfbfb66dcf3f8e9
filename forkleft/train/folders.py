"""The output folder of a run: only one run writes to it at a time, and never over the files of another run."""

import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from forkleft.errors import ForkLeftError, ToldError
from forkleft.files import check_writable, lock, remove_unfinished, writing_to
from forkleft.train.checkpoints import steps
from forkleft.train.run_files import LOCK_FILE, METRICS, OTHER_FOLDER, RUN_FILE, is_finished, read_run

# The files of a finished run, and those that a run writes before its end.
_ENDED = ("*.safetensors", "*.safetensors.index.json", "config.json", "README.md", "curves.png")
_UNDER_WAY = (METRICS, "routes.jsonl", "traces.jsonl", "showcase.jsonl", "report.html", "recipe.yaml", RUN_FILE)
_OPTION = "output_dir"


class RunFolder:
    """The folder that a run writes to. It is made when it is first held."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._is_held = False

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other runs out while the block runs. Inside another such block of the same object, it does nothing.

        Of several processes, the main one holds the folder. Raises ForkLeftError, in all processes, if another run
        holds the folder, or if it cannot be written to.
        """
        if self._is_held:
            yield
            return
        with ExitStack() as stack:
            in_main_process(lambda: stack.enter_context(_locked(self.path)))
            self._is_held = True
            try:
                yield
            finally:
                self._is_held = False

    def check_usable(self) -> None:
        """Raise ForkLeftError if `held` would raise it. Changes nothing, but removes what killed processes left."""
        check_writable(self.path, _OPTION)
        if not self._is_held and (self.path / LOCK_FILE).exists():
            with _locked(self.path):
                pass

    def check_new(self, run: Mapping[str, Any], *, own: Collection[str] = ()) -> None:
        """Raise ForkLeftError if a run that starts here would write over the files of another.

        run: what decides the run that starts, as far as it is known yet. If the same run was interrupted here before
        its first checkpoint, it may start again, and writes its files anew. own: names of files that this run has
        written itself.
        """
        if steps(self.path) and self.is_finished():
            raise ForkLeftError(
                f"{self.path} holds a finished run; {OTHER_FOLDER}, or make that run longer: raise max_steps, and "
                "resume it (resume_from_checkpoint)"
            )
        if steps(self.path):
            raise ForkLeftError(
                f"{self.path} holds checkpoints of an earlier run; resume it (resume_from_checkpoint), or "
                f"{OTHER_FOLDER}"
            )
        ended, under_way = (self._names(patterns, own) for patterns in (_ENDED, _UNDER_WAY))
        noted = read_run(self.path)
        same = noted is not None and all(noted.get(name) == value for name, value in run.items())
        if ended or (under_way and not same):
            raise ForkLeftError(
                f"{self.path} holds files of an earlier run ({', '.join(ended + under_way)}), which a new one would "
                f"overwrite, and no checkpoint to resume; {OTHER_FOLDER}, or move them away"
            )

    def is_finished(self) -> bool:
        """Whether the run in this folder has finished since it was last started."""
        return is_finished(self.path)

    def _names(self, patterns: Collection[str], own: Collection[str]) -> list[str]:
        return sorted({path.name for pattern in patterns for path in self.path.glob(pattern)} - set(own))


def in_main_process(find: Callable[[], Any]) -> Any:
    """Call a function in the main process only; all processes get its result, or raise its ForkLeftError.

    In the others it is a ToldError: to tell a mistake once is enough.
    """
    if PartialState().num_processes == 1:
        return find()
    shared: list[Any] = [None, None]
    if PartialState().is_main_process:
        try:
            shared = [find(), None]
        except ForkLeftError as error:
            shared = [None, str(error)]
    found, mistake = broadcast_object_list(shared)
    if mistake is not None:
        raise (ForkLeftError if PartialState().is_main_process else ToldError)(mistake)
    return found


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    check_writable(folder, _OPTION)
    with ExitStack() as stack:
        with writing_to(folder, _OPTION):
            folder.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context((folder / LOCK_FILE).open("a+", encoding="utf-8"))
            if not lock(file, wait=False):
                file.seek(0)
                who = file.read().strip()
                raise ForkLeftError(
                    f"another run is writing to {folder}{who and f' ({who})'}; wait for it to end, or {OTHER_FOLDER}"
                )
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            remove_unfinished(folder)
        yield
