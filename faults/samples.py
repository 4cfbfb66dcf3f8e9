"""What files of each kind hold when they are right: hostile input is made from it."""

import json
import tempfile
from pathlib import Path
from typing import Any

import yaml

from faults import damage
from forkleft.digests import unsealed
from forkleft.study.collect import note_study
from forkleft.study.grid import Grid, make_grid
from forkleft.study.names import RESULTS
from forkleft.study.spec import read_study
from forkleft.trust import Trust


def recipe() -> dict[str, Any]:
    """A recipe of a training."""
    return {
        **{"student": "lab:student-block", "teacher": "lab:teacher-strong", "train_data": "lab:train"},
        **{
            "output_dir": "runs/x",
            "max_steps": 4,
            "learning_rate": 1e-4,
            "rho": 0.5,
            "verifier": "lab",
            "letters": "AB",
        },
        **{"save_at": [1, 2], "columns": {"question": "q"}, "questions_per_update": 4, "use_cpu": True, "passes": 2},
        **{"answers_url": "http://localhost:1/v1", "answers_timeout": 5.0, "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    }


def benchmark() -> dict[str, Any]:
    """A benchmark of the user's own."""
    return {
        **{"name": "mine", "items": 10, "protocol": "generated", "verifier": "math", "template": "{question}"},
        **{"templates": {"zh": "{question}?"}, "data": ["a.jsonl", "b.jsonl"], "cluster": "^[0-9]+", "licence": "MIT"},
        **{"max_new_tokens": 64},
    }


def study() -> dict[str, Any]:
    """A study, whose base recipe is base.yaml."""
    arms = {"a": {}, "b": {"rho": 0.6}, "c": {"passes": 3}, "d": {"with_seed": {"rho": [0.1, 0.2]}}}
    factors = {"f": {"x": ["a", "b"], "y": ["c", "d"]}, "g": {"x": ["a", "c"], "y": ["b", "d"]}}
    return {
        **{"name": "s", "about": "A.", "base": "base.yaml", "arms": arms, "seeds": [1, 2], "effects": factors},
        **{"benchmarks": ["lab-chain-2"], "compare": [["a", "b"]], "limit": 4, "curve": ["50%"], "set": {"passes": 4}},
        **{"decoding": {"static": {}, "fast": {"passes": 2, "seed": 1}}},
    }


def grid_of(said: Any, work: Path) -> Grid:
    """The grid of a study that says this, written to a folder and read as the command line reads it."""
    (work / "base.yaml").write_text(yaml.safe_dump(recipe()), encoding="utf-8")
    path = work / "study.yaml"
    path.write_text(yaml.safe_dump(said, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
    return make_grid(read_study(path, trust=Trust()))


def results(name: str) -> dict[str, Any]:
    """What a file of a study's results holds."""
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if name == RESULTS:
            damage.study_results(work)
        else:
            note_study(work, grid_of(study(), work))
        return unsealed(json.loads((work / name).read_text(encoding="utf-8")))


def run() -> dict[str, Any]:
    """What forkleft.json says of a run."""
    return {
        **{"format": 2, "seed": 1, "max_steps": 4, "num_train_epochs": 3.0, "lr_scheduler_type": "constant"},
        **{"warmup_steps": 0, "processes": 1, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 1},
        **{"verifier": "lab", "adapters": {}, "questions": "d"},
    }


def sidecar() -> dict[str, Any]:
    """What forkleft_student.json says."""
    facts = {"attention": "block", "block_size": 4, "anchor": "absolute", "head": "same", "sub_block": 2}
    return {"family": "sdar", **facts, "mask_id": 9, "stop_ids": [1, 2], "adapted": False}


def record() -> dict[str, Any]:
    """A line of an evaluation's records."""
    return {
        **{"id": "a", "sample": 0, "item": "d", "prompt": "p", "cluster": "a", "answer": "1", "response": "1"},
        **{"extracted": "1", "correct": True, "tokens": 1, "forwards": 1, "stopped": True, "log_probs": None},
    }


def summary() -> dict[str, Any]:
    """The summary of an evaluation."""
    accuracy = {"value": 1.0, "low": 0.2, "high": 1.0}
    results = {"items": 1, "expected_items": 1, "samples": 1, "accuracy": accuracy}
    return {"results": results, "configuration": {"benchmark": "b", "protocol": "generated", "model": {"kind": "x"}}}


def trace() -> dict[str, Any]:
    """A line of traces.jsonl."""
    return {
        **{"step": 1, "id": "q", "route": "LEFTOPD", "order": "confidence", "prompt": "1"},
        **{"messages": [{"role": "user", "content": "1"}]},
        **{"tokens": ["a", "b"], "entropy": [0.1, 0.2], "confidence": [0.5, 0.5], "commit_pass": [1, 2]},
        **{"block_starts": [0], "positions": [1], "kl": [0.1], "contrast": [0.1], "left_entropy": [0.9]},
        **{"student_alternatives": [[["a", 0.5]]], "teacher_alternatives": [[["b", 0.5]]], "student_right": False},
    }


def metrics() -> dict[str, Any]:
    """A line of metrics.jsonl."""
    return {
        **{"step": 1, "loss": 0.1, "questions": 4, "route_ce": 1, "route_leftopd": 1, "route_gold": 1},
        **{"route_exclude": 1, "student_accuracy": 0.5, "teacher_accuracy": 0.5, "eval_accuracy": 0.5, "kl": 0.1},
    }


def config() -> dict[str, Any]:
    """The config.json of a checkpoint."""
    return {"model_type": "sdar", "architectures": ["SDARForCausalLM"], "block_size": 4, "mask_token_id": 9}
