"""From an autoregressive checkpoint to a taught diffusion student: every step as the command that a user would type.

    python examples/own_model.py --model SmolLM2-135M-Instruct.Q4_1.gguf --family fast-dllm-v2 --block-size 8 \\
        --adapt recipes/your-own-model/smollm2-adapt.yaml --data gsm8k_train.jsonl.gz --held-out gsm8k_test.jsonl \\
        --train recipes/your-own-model/smollm2-train.yaml --benchmark runs/smollm2/words.yaml --output runs/smollm2

convert → adapt → answers of the autoregressive model → train with it as the teacher → evaluate and compare → report.
Each step is printed, and skipped if what it makes is there; one that was stopped goes on. `make smollm2` runs this with
the files of the repository; docs/your-own-model.md shows what comes out.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from forkleft.evaluate.statistics import clustered_number
from forkleft.files import read_yaml
from forkleft.train import recipes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the path, or what is left of it."""
    parser = argparse.ArgumentParser(description="From an autoregressive checkpoint to a taught diffusion student.")
    parser.add_argument("--model", required=True, help="the autoregressive checkpoint: a folder, or a GGUF file")
    parser.add_argument("--family", required=True, help="what it is to become (docs/models.md)")
    parser.add_argument("--block-size", required=True, help="tokens a block")
    parser.add_argument("--adapt", type=Path, required=True, help="the recipe of forkleft adapt")
    parser.add_argument("--train", type=Path, required=True, help="the recipe of forkleft train")
    parser.add_argument("--data", help="train_data of the adaptation, if not what its recipe says")
    parser.add_argument("--held-out", required=True, help="questions with solutions, for the loss and the agreement")
    parser.add_argument("--held-out-questions", default="40", help="how many of them (default 40)")
    parser.add_argument("--benchmark", nargs="+", required=True, help="as for forkleft eval")
    parser.add_argument("--limit", default="60", help="items of each benchmark (default 60)")
    parser.add_argument("--max-new-tokens", default="64", help="the budget of answers (default 64)")
    parser.add_argument("--verifier", default="math", help="of the held-out answers (default math)")
    parser.add_argument("--output", type=Path, required=True, help="a folder for everything")
    options = parser.parse_args(arguments)

    out = options.output
    student, adapted, trained = out / "student", out / "adapted", out / "trained"
    held_out = ["--eval_data", options.held_out, "--eval_questions", options.held_out_questions]
    data = [*([] if options.data is None else ["--train_data", options.data]), *held_out]
    shape = ["--family", options.family, "--block-size", options.block_size, "--output", student]
    _step(student / "config.json", "convert", "--model", options.model, *shape)
    _training(adapted, "adapt", "--config", options.adapt, "--student", student, *data)
    taught = ["--config", options.train, "--student", adapted, "--teacher", options.model]
    answers = out / "answers.jsonl"
    _step(out / "answered", "answer", *taught, "--output_dir", trained, "--answer_cache", answers, marks=True)
    _training(trained, "train", *taught, "--answer_cache", answers)
    judged = ["--benchmark", *options.benchmark, "--limit", options.limit, "--max-new-tokens", options.max_new_tokens]
    probed = ["--data", options.held_out, "--questions", options.held_out_questions, "--verifier", options.verifier]
    probed += [*_wording(options.adapt), "--teacher", options.model, "--batch-size", "4", "--json"]
    models = {"adapted": [adapted], "trained": [trained], "autoregressive": [options.model, "--ar"]}
    for name, model in models.items():
        _step(out / "results" / name / "done", "eval", "--model", *model, *judged, "--output", out / "results" / name)
    for name, model in {"student": student, "adapted": adapted, "trained": trained}.items():
        _step(out / f"agreement-{name}.json", "probe", "--model", model, *probed, keeps=True)
    _agreements(out, ("student", "adapted", "trained"))
    for pair in (("adapted", "trained"), ("adapted", "autoregressive")):
        _run("compare", *(out / "results" / name for name in pair))
    _run("report", trained)


def _training(folder: Path, *words: str | Path) -> None:
    """A run that is complete once its card is there, and goes on from its newest checkpoint."""
    resume = ["--resume_from_checkpoint", "true"] if list(folder.glob("checkpoint-*")) else []
    _step(folder / "README.md", *words, "--output_dir", folder, *resume)


def _wording(recipe: Path) -> list[str]:
    """The options with which `forkleft probe` reads the text that this recipe lets a student learn."""
    said = recipes.checked_options(read_yaml(recipe, "recipe"), str(recipe), recipes.ADAPT)
    known = recipes.options(recipes.ADAPT)
    names = ("prompt_template", "reference_template", "max_new_tokens")
    values = {name: said.get(name, known[name].default) for name in names}
    return [word for name, value in values.items() for word in (f"--{name.replace('_', '-')}", str(value))]


def _step(made: Path, *words: str | Path, keeps: bool = False, marks: bool = False) -> None:
    """Run a command unless what it makes is there. keeps: that is its output; marks: it makes nothing of that name."""
    if made.exists():
        print(f"{made} is there", flush=True)
        return
    output = _run(*words, shown=not keeps)
    if keeps:
        made.write_text(output)
    elif marks or made.name == "done":
        made.touch()


def _run(*words: str | Path, shown: bool = True) -> str:
    command = ["forkleft", *map(str, words)]
    print(f"\n$ {shlex.join(command)}", flush=True)
    begun = time.monotonic()
    process = [sys.executable, "-m", *command]
    done = subprocess.run(process, check=True, text=True, stdout=None if shown else subprocess.PIPE)
    print(f"({time.monotonic() - begun:.0f} seconds)", flush=True)
    return done.stdout or ""


def _agreements(out: Path, names: Sequence[str]) -> None:
    """The agreement with the teacher at each stage, and its change from the stage before, position by position."""
    print("\nagreement with the autoregressive model after the same text (95% intervals over questions)")
    before = None
    for name in names:
        found = json.loads((out / f"agreement-{name}.json").read_text())
        figures = []
        for column, unit in (("kl", "nats"), ("same", "of top tokens")):
            mean = clustered_number([float(value) for value in found[column]], found["ids"])
            figures.append(f"{column} {mean.value:.3f} ({mean.low:.3f} to {mean.high:.3f}) {unit}")
            if before is not None:
                pairs = zip(found[column], before[column], strict=True)
                change = clustered_number([float(new) - float(old) for new, old in pairs], found["ids"])
                figures.append(f"change {change.value:+.3f} ({change.low:+.3f} to {change.high:+.3f})")
        print(f"  {name:<10} {', '.join(figures)}")
        before = found


if __name__ == "__main__":
    main()
