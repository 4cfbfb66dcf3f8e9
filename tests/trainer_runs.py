"""Training runs of a tiny student that tests compare; also a program, so that a run can be spread over processes or
killed:

    python trainer_runs.py OUTPUT '{"max_steps": 4}' [resume] [fatal-call]
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from exact import float64_throughout
from peft import LoraConfig
from tiny import FAMILIES, STOP, tiny_model, tiny_student, tiny_tokenizer
from transformers import TrainerCallback

from forkleft.teacher import StateServer, Teacher, load_teacher
from forkleft.train import checkpoints
from forkleft.train.config import ForkLeftConfig
from forkleft.train.trainer import ForkLeftTrainer
from forkleft.verify import Judgement

ROWS = [{"id": f"q{k}", "question": f"a{k}b{k % 3}", "answer": str(k % 4), "solution": "xyz#5"} for k in range(12)]
SETTINGS = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-3,
    "weight_decay": 0.1,
    "max_new_tokens": 12,
    "teacher_max_new_tokens": 12,
    "passes": 2,
    "rho": 0.5,
    "mu": 0.02,
    "verifier": "lab",
    "prompt_template": "{question}",
    "reference_template": "{solution}",
    "save_strategy": "no",
    "showcase_questions": 0,
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "use_cpu": True,
}


def scripted_verdicts(student_right, teacher_right):
    """A verifier whose verdicts follow the answers: random models are never right."""

    def judgements(responses, answers, *, ids):
        judgements.calls += 1
        who, right = ("student", student_right) if judgements.calls % 2 else ("teacher", teacher_right)
        return [
            Judgement(right(answer), f"{who}: {response[:4]}")
            for response, answer in zip(responses, answers, strict=True)
        ]

    judgements.calls = 0
    return SimpleNamespace(judgements=judgements)


# Whether the student, and whether the teacher, is right, by the expected answer.
VERDICTS = {
    "all-routes": (lambda answer: int(answer) % 2 == 0, lambda answer: int(answer) < 2),
    "excluded": (lambda answer: True, lambda answer: False),
    "one-in-four": (lambda answer: answer != "3", lambda answer: answer == "3"),
    "neither": (lambda answer: False, lambda answer: False),
}


def make_trainer(output, *, rows=ROWS, verdicts="all-routes", dtype=torch.float32, lora=False, served=None, **changes):
    """served: the folder of the teacher, and the address of the server that runs it."""
    tokenizer = tiny_tokenizer()
    settings = changes.pop("trainer", {})
    if lora:
        settings["peft_config"] = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    student = tiny_student(FAMILIES[0], tokenizer=tokenizer, dtype=dtype)
    if served is None:
        teacher = local_teacher(dtype, tokenizer)
    else:
        folder, url = served
        server = StateServer(url, "teacher", pause=0.01)
        teacher = load_teacher(folder, dtype=dtype, server=server)
        # That of the folder cuts unknown letters in another way.
        teacher.tokenizer = tokenizer
    config = ForkLeftConfig(str(output), **SETTINGS | changes)
    trainer = ForkLeftTrainer(student, teacher, config, rows, **settings)
    # The collector's verifier sees the students' responses, then the teacher's, in every batch.
    if verdicts is not None:
        trainer.collector.verifier = scripted_verdicts(*VERDICTS[verdicts])
    return trainer


def local_teacher(dtype, tokenizer):
    return Teacher(tiny_model("qwen2", seed=9, hidden_size=24, dtype=dtype), tokenizer, stop_ids=[STOP])


def state_digest(trainer) -> str:
    """Of weights and optimiser state, bit for bit."""
    digest = hashlib.sha256()
    for name, tensor in trainer.model.state_dict().items():
        digest.update(name.encode() + tensor.numpy().tobytes())
    for index, moments in sorted(trainer.optimizer.state_dict()["state"].items()):
        for name, value in sorted(moments.items()):
            digest.update(f"{index}{name}".encode() + torch.as_tensor(value).numpy().tobytes())
    return digest.hexdigest()


def run_program(program, output, changes, *words, processes=1):
    """A run of such a program in processes of its own; says whether it was killed."""
    launch = [sys.executable]
    if processes > 1:
        launch += ["-m", "torch.distributed.run", "--nproc-per-node", str(processes), "--master-port", "0"]
        launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, program.parents[:2])), "OMP_NUM_THREADS": "1"}
    command = [*launch, str(program), str(output), json.dumps(changes), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    killed = "Signal 9" in done.stderr or done.returncode == -9
    if done.returncode and not killed:
        raise AssertionError(done.stderr[-3000:])
    return "killed" if killed else "ended"


def in_float32(loss):
    """The sum in which Transformers logs a loss has a few of float32's last digits as its error."""
    return pytest.approx(loss, rel=4 * torch.finfo(torch.float32).eps)


def without_times(path):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    timed = ("seconds", "runtime", "per_second", "memory")
    return [{k: v for k, v in row.items() if not any(word in k for word in timed)} for row in rows if "loss" in row]


class KillAt(TrainerCallback):
    """Ends the process without a word, as a power cut would; with `@1` behind the moment, only process 1."""

    def __init__(self, moment):
        moment, _, process = moment.partition("@")
        self.moment = moment if process in ("", os.environ.get("RANK")) else ""
        self.publish = checkpoints.publish

    def on_step_end(self, args, state, control, **others):
        if self.moment == f"step-{state.global_step}":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_pre_optimizer_step(self, args, state, control, **others):
        if self.moment == f"update-{state.global_step}":
            os.kill(os.getpid(), signal.SIGKILL)

    def on_save(self, args, state, control, **others):
        if self.moment == f"saved-{state.global_step}":
            os.kill(os.getpid(), signal.SIGKILL)

    def in_publish(self, staged, final):
        if self.moment == f"save-{final.name}":
            (staged / "model.safetensors").write_bytes(b"half")
            os.kill(os.getpid(), signal.SIGKILL)
        self.publish(staged, final)


def main(output, changes, resume="", moment=""):
    killer = KillAt(moment)
    checkpoints.publish = killer.in_publish
    changes = json.loads(changes)
    rows = ROWS[: changes.pop("questions", len(ROWS))]
    changes["dtype"] = getattr(torch, changes.get("dtype", "float32"))
    trainer = make_trainer(Path(output), rows=rows, trainer={"callbacks": [killer]}, **changes)
    trainer.train(resume_from_checkpoint=resume == "resume")
    if trainer.is_world_process_zero():
        schedule = json.dumps(trainer.lr_scheduler.state_dict(), default=str)
        (Path(output) / "digest").write_text(state_digest(trainer) + schedule)
        torch.save(trainer.model.state_dict(), Path(output) / "weights.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    float64_throughout()
    main(*sys.argv[1:])
