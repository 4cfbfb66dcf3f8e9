"""Adaptations of a tiny student that tests compare; also a program, to spread a run over processes or kill it:

python adapt_runs.py OUTPUT '{"max_steps": 4}' [resume] [fatal-call]
"""

import json
import sys
from pathlib import Path

import torch
from exact import float64_throughout
from peft import LoraConfig
from tiny import FAMILIES, tiny_student, tiny_tokenizer
from trainer_runs import KillAt, state_digest

from forkleft.train import checkpoints
from forkleft.train.adapt import AdaptTrainer
from forkleft.train.adapt_config import AdaptConfig

ROWS = [
    {
        "id": f"r{k}",
        "messages": [{"role": "user", "content": f"a{k}b"}, {"role": "assistant", "content": "xyz" * (k % 4 + 1)}],
    }
    for k in range(11)
]
SETTINGS = {
    "max_steps": 4,
    "per_device_train_batch_size": 4,
    "learning_rate": 1e-2,
    "weight_decay": 0.1,
    "max_new_tokens": 16,
    "save_strategy": "no",
    "disable_tqdm": True,
    "dataloader_pin_memory": False,
    "use_cpu": True,
}


class Stream:
    """Rows without a length, that can be read again."""

    def __init__(self, rows=ROWS):
        self.rows = rows

    def __iter__(self):
        return iter(list(self.rows))


def make_trainer(output, *, rows=ROWS, held_out=None, family=FAMILIES[0], dtype=torch.float32, lora=False, **changes):
    settings = changes.pop("trainer", {})
    if lora:
        settings["peft_config"] = LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    student = changes.pop("student", None) or tiny_student(family, tokenizer=tiny_tokenizer(), dtype=dtype)
    return AdaptTrainer(student, AdaptConfig(str(output), **SETTINGS | changes), rows, held_out, **settings)


def main(output, changes, resume="", moment=""):
    killer = KillAt(moment)
    checkpoints.publish = killer.in_publish
    changes = json.loads(changes)
    changes["dtype"] = getattr(torch, changes.get("dtype", "float32"))
    rows = Stream() if changes.pop("stream", False) else ROWS
    trainer = make_trainer(Path(output), rows=rows, trainer={"callbacks": [killer]}, **changes)
    trainer.train(resume_from_checkpoint=resume == "resume")
    if trainer.is_world_process_zero():
        (Path(output) / "digest").write_text(state_digest(trainer))
        torch.save(trainer.model.state_dict(), Path(output) / "weights.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    float64_throughout()
    main(*sys.argv[1:])
