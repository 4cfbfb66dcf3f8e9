"""Studies for tests: files, results made of nothing, and a `forkleft` that makes up its models in a moment.

python studies.py train|answer|eval …       # what cells call, without models; FAKE says what goes wrong
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAB = ROOT / "recipes" / "lab.yaml"
PROGRAM = (sys.executable, str(Path(__file__)))
ITEMS = 40
ORDER_VIEW = {
    "L-high": {},
    "L-low": {"rollout_order": "low_entropy"},
    "B-high": {"view": "target_masked"},
    "B-low": {"rollout_order": "low_entropy", "view": "target_masked"},
}
FACTORS = {
    "view": {"L": ["L-high", "L-low"], "B": ["B-high", "B-low"]},
    "order": {"high": ["L-high", "B-high"], "low": ["L-low", "B-low"]},
}


def study_file(folder, **changes):
    """A study file, JSON being YAML; a key that is None is left out."""
    said = {
        "name": "small",
        "about": "A small study.",
        "base": str(LAB),
        "set": {"max_steps": 10, "eval_strategy": "no"},
        "arms": {"L-high": {}, "L-low": {"rollout_order": "low_entropy"}},
        "seeds": [1, 2],
        "benchmarks": ["lab-chain-3", "lab-chain-4"],
        "limit": ITEMS,
        "compare": [["L-high", "L-low"]],
    }
    path = Path(folder) / "study.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({key: value for key, value in (said | changes).items() if value is not None}))
    return path


def made_up_results(**changes):
    """Results of an order-view study with a known rise, by the arm and by the seed, and a hole."""
    import numpy as np

    from forkleft.study.grid import Place
    from forkleft.study.results import ArmFacts, CellResults, Hole, Items, Measured, Routes, StudyResults

    shape = {
        "seeds": tuple(range(1, 9)),
        "benchmarks": ("lab-chain-3", "lab-chain-4", "lab-chain-5"),
        "decoding": {"static": {}},
        "arms": dict(zip(ORDER_VIEW, (0.72, 0.66, 0.60, 0.59), strict=True)),
        "teachers": {},
        "steps": {},
        "compare": (("L-high", "L-low"), ("L-high", "B-high")),
        "effects": {factor: {k: tuple(v) for k, v in levels.items()} for factor, levels in FACTORS.items()},
        "items": 500,
        "clusters": None,
    } | changes
    generator = np.random.default_rng(0)
    difficulty = {name: generator.normal(0, 0.25, shape["items"]) for name in shape["benchmarks"]}

    def measured(level, decoding="static", step=None):
        rows = []
        for number, name in enumerate(shape["benchmarks"]):
            chance = np.clip(level - 0.06 * number + difficulty[name], 0, 1)
            verdicts = generator.random(shape["items"]) < chance
            rows.append(Measured(decoding, step, name, verdicts, 40 * shape["items"], 10 * shape["items"]))
        return rows

    cells, places, arms = {}, [], {}
    cells["base"] = CellResults("base", "base lab:s", tuple(m for d in shape["decoding"] for m in measured(0.52, d)))
    for arm, level in shape["arms"].items():
        teacher, strength = shape["teachers"].get(arm, ("lab:t", 0.97))
        cells.setdefault(teacher, CellResults("teacher", teacher, tuple(measured(strength, "greedy"))))
        arms[arm] = ArmFacts(ORDER_VIEW.get(arm, {}), ("lab:s",), teacher, 50)
        for seed in shape["seeds"]:
            of_seed = level + generator.normal(0, 0.025)
            rows = [m for k, d in enumerate(shape["decoding"]) for m in measured(of_seed - 0.05 * k, d)]
            for step, share in shape["steps"].items():
                rows += [m for d in shape["decoding"] for m in measured(0.52 + share * (of_seed - 0.52), d, step)]
            taught = [int(300 * (1 - level) * (1 - part / 20)) for part in range(10)]
            parts = tuple((300 - t - 20, t, 15, 5) for t in taught)
            cells[f"{arm}-{seed}"] = CellResults("train", f"{arm}, seed {seed}", tuple(rows), Routes(parts[0], parts))
            places.append(Place(arm, seed, f"{arm}-{seed}", "base", teacher))
    clusters = shape["clusters"]
    return StudyResults(
        name="made-up",
        about="Is it seen that an arm is better?",
        shared={"max_steps": 50},
        arms=arms,
        seeds=shape["seeds"],
        benchmarks=shape["benchmarks"],
        limit=None,
        decoding=shape["decoding"],
        curve=bool(shape["steps"]),
        compare=shape["compare"],
        effects=shape["effects"],
        places=tuple(places),
        items={name: Items(shape["items"], "digest", clusters) for name in shape["benchmarks"]},
        cells=cells,
        holes=shape.get("holes", ()) and tuple(Hole(*hole) for hole in shape["holes"]),
    )


def without(results, *cells):
    """The results as they are where some cells are missing."""
    from dataclasses import replace

    return replace(results, cells={name: cell for name, cell in results.cells.items() if name not in cells})


# The made-up `forkleft`.


def main(verb, *words):
    options = _options(words)
    faults = json.loads(os.environ.get("FAKE", "{}"))
    output = Path(options["output"][0] if verb == "eval" else Path(options["config"][0]).parent)
    with Path(os.environ["FAKE_CALLS"]).open("a") as calls:
        calls.write(json.dumps([verb, *words, os.environ["OMP_NUM_THREADS"]]) + "\n")
    while faults.get("gate") and not Path(faults["gate"]).exists():
        time.sleep(0.02)
    if faults.get("fail") in (verb, f"{verb} {output.name}") and faults.get("in", "") in _about(output):
        print("some words\nforkleft: this cannot be")
        sys.exit(faults.get("code", 2))
    if verb == "train":
        _train(output / "train", options)
    if verb == "eval" and not faults.get("nothing"):
        for name in options["benchmark"]:
            _evaluate(output / name, name, options)


def _options(words):
    found = {}
    for word in words:
        if word.startswith("--"):
            found[word[2:]] = []
        else:
            found[list(found)[-1]].append(word)
    return found


def _about(folder):
    """What the cell of a folder is."""
    for parent in [folder, *folder.parents]:
        if (parent / "cell.json").exists():
            return (parent / "cell.json").read_text()
    return ""


def _train(folder, options):
    folder.mkdir(parents=True, exist_ok="resume_from_checkpoint" in options)
    ids, routes = [f"q{k}" for k in range(8)], ["CE", "LEFTOPD"] * 4
    rows = [{"step": step, "ids": ids, "routes": routes} for step in range(1, 11)]
    (folder / "routes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "README.md").write_text("trained")


def _evaluate(folder, name, options):
    folder.mkdir(parents=True)
    count, records = int(options["limit"][0]), []
    for k in range(count):
        key = hashlib.sha256(f"{_about(folder)}{options['model']}{name}{k}".encode()).digest()
        record = {"id": f"{name}-{k}", "sample": 0, "item": str(k), "prompt": "p", "cluster": f"{name}-{k}"}
        record |= {"answer": "1", "response": "1", "extracted": "1", "correct": key[0] < 150, "tokens": 30}
        records.append(record | {"forwards": 10, "stopped": True, "log_probs": None})
    right = sum(record["correct"] for record in records)
    results = {"items": count, "expected_items": count, "samples": 1, "correct": right, "tokens": 30 * count}
    results |= {"forwards": 10 * count, "accuracy": {"value": right / count, "low": 0.0, "high": 1.0}}
    configuration = {"benchmark": name, "protocol": "generated", "model": {"kind": "diffusion"}}
    configuration["items"] = {"count": count, "digest": f"{name} {count}"}
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    summary = {"results": results, "configuration": configuration}
    (folder / "summary.json").write_text(json.dumps(summary))


if __name__ == "__main__":
    main(*sys.argv[1:])
