"""A real study of the lab, killed in the middle and started again."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from studies import study_file

ROOT = Path(__file__).parents[2]
TINY = {
    **{"max_steps": 2, "save_steps": 1, "train_questions": 8, "questions_per_update": 4, "passes": 4},
    **{"eval_strategy": "no", "trace_steps": 0, "warmup_steps": 0, "use_cpu": True, "dataloader_pin_memory": False},
}


def start(file, root):
    words = ["study", "run", str(file), "--output", str(root), "--jobs", "2"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-m", "forkleft", *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill(runner):
    """A runner and its commands, as when the power fails."""
    commands = Path(f"/proc/{runner.pid}/task/{runner.pid}/children").read_text().split()
    for number in (runner.pid, *map(int, commands)):
        os.kill(number, signal.SIGKILL)


@pytest.mark.slow
def test_a_study_that_was_killed_ends_with_the_same_table(tmp_path):
    arms = {
        "main": {},
        "low": {"rollout_order": "low_entropy"},
        "subset": {"questions_from": {"arm": "main", "route": "LEFTOPD"}, "supervision": "opd"},
    }
    file = study_file(
        tmp_path,
        set=TINY,
        arms=arms,
        seeds=[1],
        limit=8,
        benchmarks=["lab-chain-2"],
        compare=[["main", "low"]],
        curve=["50%"],
    )
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    runner = start(file, whole)
    out, _ = runner.communicate()
    assert runner.returncode == 0, out
    runner = start(file, killed)
    while not list(killed.glob("cells/*/train/checkpoint-1/manifest.json")):
        assert runner.poll() is None, runner.communicate()[0]
        time.sleep(0.05)
    kill(runner)
    runner.communicate()
    assert not list(killed.glob("*/table.md"))
    runner = start(file, killed)
    out, _ = runner.communicate()
    assert runner.returncode == 0, out
    for name in ("table.md", "accuracy.svg", "curve.svg"):
        assert (killed / "small" / name).read_bytes() == (whole / "small" / name).read_bytes(), name
    resumed = [path for path in killed.glob("cells/*/log.txt") if "--resume_from_checkpoint" in path.read_text()]
    assert resumed
