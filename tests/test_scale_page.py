"""What `docs/scale.md` says: its computed table, and every command that can run without a GPU."""

import os
import re
import shlex
import subprocess
import sys

import pytest
from accelerate.commands.config.config_args import load_config_from_file
from commands import run
from documents import ROOT
from nodes import ENVIRONMENT, SECONDS, free_port

from forkleft.scale.devices import parse_gpus
from forkleft.scale.plan import plan_of
from forkleft.scale.setting import setting_of, with_server
from forkleft.scale.shapes import student_of, teacher_of
from forkleft.train.recipes import planned_here, read_options, recipe_of

PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    (\S.*)$", PAGE, flags=re.MULTILINE)
PLANS = [command for command in COMMANDS if command.startswith("forkleft plan ")]
# On a laptop: the lab, in one process or under torchrun on one node.
LOCAL = [command for command in COMMANDS if "recipes/lab.yaml" in command and "HEAD" not in command]
LOCAL = [command for command in LOCAL if command not in PLANS]


def of_page(name, gpus, processes, served):
    """The plan of a row: a recipe on GPUs."""
    said = read_options(ROOT / "recipes" / f"{name}.yaml")
    recipe, config = recipe_of(planned_here(said)[0])
    student, family, _ = student_of(recipe.student, family=recipe.family, block_size=recipe.block_size)
    given = {"student": student, "teacher": teacher_of(recipe.teacher)[0], "family": family, "prompt": 128}
    setting = setting_of(said, recipe, config, cluster=parse_gpus(gpus), processes=processes, **given)
    return plan_of(with_server(setting, processes=processes) if served else setting)


def figures(plan):
    return f"{plan.time.update:.1f}, {plan.time.update * plan.time.updates / 3600:.1f}"


def rows():
    """Rows of the table: recipe, where the teacher is, processes, memory, and the figures of both GPUs."""
    name, found = "", []
    for line in PAGE.split("## The paper's runs")[1].split("\n## ")[0].splitlines():
        if line.startswith("| ") and "recipe" not in line and "---" not in line:
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            name = cells[0].strip("`") or name
            found.append((name, *cells[1:]))
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}, {row[1]}, {row[2]}")
def test_the_table_of_the_paper_s_runs_is_what_the_plan_computes(row):
    name, teacher, processes, memory, a100, h100 = row
    nodes = "2x" if "two nodes" in teacher else ""
    plans = [of_page(name, f"{nodes}8x{gpu}", int(processes), "server" in teacher) for gpu in ("a100", "h100")]
    plan = plans[0]
    assert memory == f"{plan.memory.peak / 1e9:.1f}" + ("" if plan.fits else ": does not fit")
    assert [a100, h100] == ([figures(plan) for plan in plans] if plan.fits else ["", ""])
    if "server" in teacher:
        assert teacher == f"on a server of {plan.setting.server_gpus} GPUs"


def test_the_recipes_fit_as_their_heads_start_them():
    for path in sorted((ROOT / "recipes").glob("*-*.yaml")):
        text = " ".join(line.lstrip("# ") for line in path.read_text(encoding="utf-8").splitlines())
        nodes = int((re.search(r"--nnodes (\d+)", text) or [0, 1])[1])
        processes = nodes * int(re.search(r"--nproc-per-node (\d+)", text)[1])
        plan = of_page(path.stem, f"{nodes}x8x80GB", processes, served=False)
        assert plan.fits, path
        if said := re.search(r"`forkleft plan` computes (\d+) GB", text):
            assert int(said[1]) == round(plan.memory.peak / 1e9), path


def test_every_command_is_run_or_needs_gpus_or_a_cluster():
    others = [command for command in COMMANDS if command not in PLANS + LOCAL]
    assert [command.split()[0] for command in others] == [
        "accelerate",
        "torchrun",
        "accelerate",
        "sbatch",
        "PER_NODE=4",
    ]
    assert len(PLANS) == 4 and len(LOCAL) == 5


@pytest.mark.parametrize("command", PLANS)
def test_plans(capsys, monkeypatch, command):
    monkeypatch.chdir(ROOT)
    code, out, _ = run(capsys, *shlex.split(command)[1:])
    assert code == 0
    assert "Computed, not measured." in out


def started(words, cwd, **environment):
    """A command of the page. `torchrun` and `forkleft` are those of this environment."""
    programs = {"torchrun": "torch.distributed.run", "forkleft": "forkleft"}
    if words[0] in programs:
        words = [sys.executable, "-m", programs[words[0]], *words[1:]]
    environment = os.environ | ENVIRONMENT | environment
    return subprocess.Popen(words, cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process):
    out, error = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, error[-3000:]
    return out, error


@pytest.fixture
def folder(tmp_path):
    """A working folder with the files that the commands name; runs stay in it."""
    for name in ("recipes", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    return tmp_path


@pytest.mark.slow
def test_the_commands_for_one_machine_in_their_order(folder):
    for command in LOCAL:
        ended(started(shlex.split(command), folder))
    for name in ("one", "node"):
        assert (folder / "runs" / name / "model.safetensors").is_file()
    # The run of two processes went on with one, for one more update.
    assert (folder / "runs" / "node" / "metrics.jsonl").read_text().count('"loss"') == 3
    assert (folder / "runs" / "answers" / "teacher_answers.jsonl").read_text().count("\n") == 16


@pytest.mark.slow
def test_the_command_for_several_nodes(folder):
    (command,) = [command for command in COMMANDS if command.startswith("torchrun --nnodes")]
    words = shlex.split(command.replace("HEAD:29500", f"127.0.0.1:{free_port()}"))
    for node in [started([*words[:1], "--local-addr", "127.0.0.1", *words[1:]], folder) for _ in range(2)]:
        ended(node)
    assert (folder / "runs" / "nodes" / "model.safetensors").is_file()


LAB = (
    "-m forkleft train --config recipes/lab.yaml --use_cpu --max_steps 1 --train_questions 16 --questions_per_update 8"
    " --eval_strategy no --showcase_questions 0"
)


@pytest.mark.parametrize(("name", "nodes"), [("accelerate-one-node", 1), ("accelerate-two-nodes", 2)])
def test_accelerate_reads_its_files(name, nodes):
    """Reads only: without a GPU `accelerate launch` starts a single process."""
    config = load_config_from_file(str(ROOT / "examples" / "cluster" / f"{name}.yaml"))
    assert (config.num_machines, config.num_processes) == (nodes, 8 * nodes)
    assert (config.distributed_type, config.mixed_precision) == ("MULTI_GPU", "no")


SRUN = """#!/usr/bin/env bash
shift
for node in 0 1; do SLURM_NODEID=$node "$@" & pids+=($!); done
for pid in "${pids[@]}"; do wait "$pid" || exit 1; done
"""


@pytest.mark.slow
def test_the_slurm_script_on_two_nodes(folder):
    """The real script, with stand-ins for Slurm's own commands that start both nodes here."""
    programs = folder / "bin"
    programs.mkdir()
    launch = f"exec {sys.executable} -m torch.distributed.run --local-addr 127.0.0.1"
    for name, text in {
        "srun": SRUN,
        "scontrol": "#!/usr/bin/env bash\nprintf '127.0.0.1\\n127.0.0.1\\n'\n",
        "torchrun": f'#!/usr/bin/env bash\n{launch} "$@"\n',
    }.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_ID": str(free_port()),
        "PER_NODE": "1",
    }
    words = ["examples/cluster/slurm.sh", *shlex.split(LAB)[4:], "--output_dir", "runs/slurm"]
    words += ["--save_strategy", "steps", "--save_steps", "1"]
    ended(started(words, folder, **environment))
    assert (folder / "runs" / "slurm" / "checkpoint-1").is_dir()
    # Put in the queue again: it goes on, here for one more update.
    longer = [{"1": "2"}.get(word, word) if words[k - 1] == "--max_steps" else word for k, word in enumerate(words)]
    ended(started(longer, folder, **environment, SLURM_RESTART_COUNT="1"))
    assert (folder / "runs" / "slurm" / "checkpoint-2").is_dir()
