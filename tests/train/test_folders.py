"""No two runs in one folder, and none over the files of another."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from forkleft.errors import ForkLeftError
from forkleft.train.folders import RunFolder, in_main_process
from forkleft.train.run_files import LOCK_FILE, RUN_FILE, write_run

ROOT = Path(__file__).parents[2]
HOLD = """
import sys
from forkleft.train.folders import RunFolder
with RunFolder(sys.argv[1]).held():
    print("held", flush=True)
    sys.stdin.read()
"""
REFUSED_IN_BOTH = """
import sys
from accelerate import PartialState
from forkleft.errors import ForkLeftError
from forkleft.train.folders import RunFolder
PartialState(cpu=True)
try:
    with RunFolder(sys.argv[1]).held():
        print("held")
except ForkLeftError as error:
    print(f"refused: {error}")
"""


@pytest.fixture
def holder(tmp_path):
    """A process that holds the folder `run`."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_a_second_run_is_kept_out_until_the_first_is_gone(tmp_path, holder):
    """Killed without a word, it leaves its file but no lock."""
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(ForkLeftError, match=rf"another run is writing to .*run \(process {holder.pid} on .*output_dir"):
        folder.held().__enter__()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK_FILE).exists()
    with folder.held(), folder.held():
        assert str(os.getpid()) in (tmp_path / "run" / LOCK_FILE).read_text()
        with pytest.raises(ForkLeftError, match="another run is writing"):
            RunFolder(tmp_path / "run").held().__enter__()
    with RunFolder(tmp_path / "run").held():
        pass


@pytest.mark.slow
def test_all_processes_of_a_run_are_kept_out(tmp_path, holder):
    (tmp_path / "program.py").write_text(REFUSED_IN_BOTH)
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(tmp_path / "program.py")]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [*launch, str(tmp_path / "run")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.count(f"refused: another run is writing to {tmp_path / 'run'} (process {holder.pid}") == 2


@pytest.mark.slow
def test_looking_leaves_nothing_behind(tmp_path, holder):
    with pytest.raises(ForkLeftError, match="another run is writing to"):
        RunFolder(tmp_path / "run").check_usable()
    RunFolder(tmp_path / "new" / "run").check_usable()
    assert not (tmp_path / "new").exists()
    with (held := RunFolder(tmp_path / "own")).held():
        held.check_usable()


def test_a_folder_that_cannot_be_one(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for folder in (RunFolder(tmp_path / "file"), RunFolder(tmp_path / "file" / "run")):
        with pytest.raises(ForkLeftError, match=r"file/run: Not a|found a file"):
            folder.check_usable()
    with pytest.raises(
        ForkLeftError, match=r"expected a folder to write to, found a file: .*file; name another \(output_dir\)"
    ):
        RunFolder(tmp_path / "file").held().__enter__()
    with pytest.raises(ForkLeftError, match=r"cannot write to .*file/run: Not a directory; name"):
        RunFolder(tmp_path / "file" / "run").held().__enter__()
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(ForkLeftError, match=r"cannot write to .*: Permission denied"):
        RunFolder(tmp_path / "run").held().__enter__()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], None),
        ([LOCK_FILE, "teacher_answers.jsonl", "log.txt"], None),
        (["checkpoint-4/x"], "holds checkpoints of an earlier run; resume it"),
        (["checkpoint-4/x", "README.md"], "holds a finished run; name another folder .*raise max_steps, and resume it"),
        (["README.md"], r"holds files of an earlier run \(README.md\), which a new one would overwrite"),
        (["model-00001-of-00002.safetensors", "metrics.jsonl"], r"\(model-00001-of-00002.safetensors, metrics.jsonl\)"),
        (["adapter_model.safetensors"], "and no checkpoint to resume; name another folder"),
        (["recipe.yaml"], "recipe.yaml"),
    ],
)
def test_a_new_run_overwrites_nothing(tmp_path, files, message):
    for name in files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    check = RunFolder(tmp_path).check_new
    if message is None:
        check({"seed": 1})
    else:
        with pytest.raises(ForkLeftError, match=message) as caught:
            check({"seed": 1})
        # It is said from Python as well as from the command line.
        assert "--" not in str(caught.value)
    if files == ["README.md"]:
        check({"seed": 1}, own=files)


def test_a_finished_run_that_was_made_longer_and_broken_off_is_to_be_resumed(tmp_path):
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "README.md").touch()
    write_run(tmp_path, {"seed": 1})
    os.utime(tmp_path / "README.md", (1, 1))
    with pytest.raises(ForkLeftError, match="checkpoints of an earlier run; resume it"):
        RunFolder(tmp_path).check_new({"seed": 1})


def test_the_run_that_was_broken_off_before_its_first_checkpoint_may_begin_again(tmp_path):
    folder, run = RunFolder(tmp_path), {"seed": 1, "rho": 0.5}
    write_run(tmp_path, run)
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1}) + "\n")
    folder.check_new(run)
    with pytest.raises(ForkLeftError, match=rf"files of an earlier run \({RUN_FILE}, metrics.jsonl\)"):
        folder.check_new(run | {"rho": 0.25})
    (tmp_path / RUN_FILE).write_text("{")
    with pytest.raises(ForkLeftError, match=f"{RUN_FILE} cannot be read"):
        folder.check_new(run)


def test_a_single_process_is_the_main_one():
    assert in_main_process(lambda: 3) == 3


def test_what_a_killed_process_left_is_removed_when_the_folder_is_held(tmp_path):
    (tmp_path / f".traces.jsonl.{socket.gethostname()}-{10**30}").touch()
    with RunFolder(tmp_path).held():
        assert [path.name for path in tmp_path.iterdir()] == [".lock"]
