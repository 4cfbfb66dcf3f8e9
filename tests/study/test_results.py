import json
import re
from dataclasses import replace

import numpy as np
import pytest
from studies import made_up_results, without

from forkleft.errors import ForkLeftError
from forkleft.study.results import load_results, save_results, tables


def same(first, second):
    """Whether results are equal, their verdicts too."""

    def plain(results):
        cells = {
            name: (cell.kind, cell.label, cell.routes, [(*vars(one).values(),) for one in cell.measured])
            for name, cell in results.cells.items()
        }
        return json.dumps(vars(results) | {"cells": cells}, default=_listed)

    return plain(first) == plain(second)


def _listed(value):
    return value.tolist() if isinstance(value, np.ndarray) else vars(value)


def test_results_are_the_same_after_a_file_and_the_file_is_small(tmp_path):
    results = made_up_results(holes=[("x, seed 9", "not run yet", "forkleft train")], clusters=(0, 0, *range(1, 499)))
    path = tmp_path / "results.json"
    save_results(path, results)
    assert same(load_results(path), results)
    # 32 runs, base and teacher, three benchmarks of 500 items each.
    assert path.stat().st_size < 40_000
    again = tmp_path / "again.json"
    save_results(again, load_results(path))
    assert again.read_bytes() == path.read_bytes()
    # A line for each cell.
    assert sum('"measured"' in line for line in path.read_text().splitlines()) == 34


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format": 1', '"format": 2', "expected format 1"),
        ('"places"', '"palces"', "KeyError"),
        ('"count": 500', '"count": 520', "expected 520 verdicts, found 504"),
        (
            '"measured": [["static", null, "lab-chain-3", ',
            '"measured": [["static", null, "lab-chain-3", 1',
            "right, its",
        ),
        ("{", "", "is damaged"),
    ],
)
def test_a_damaged_file_is_named(tmp_path, old, new, message):
    path = tmp_path / "results.json"
    save_results(path, made_up_results())
    whole = path.read_text()
    path.write_text(whole.replace(old, new, 1))
    with pytest.raises(ForkLeftError, match=r"results\.json is damaged"):
        load_results(path)
    # A file from before there were checksums.
    path.write_text(re.sub(r',\n"sum": "\w+"', "", whole).replace(old, new, 1))
    with pytest.raises(ForkLeftError, match=message):
        load_results(path)
    with pytest.raises(ForkLeftError, match=r"there is no study in .*: expected none.json"):
        load_results(tmp_path / "none.json")


def test_only_whole_seeds_count(tmp_path):
    results = made_up_results()
    assert list(results.of_arm("L-high", "static")) == list(range(1, 9))
    cell = results.cells["L-high-3"]
    torn = replace(results, cells=results.cells | {"L-high-3": replace(cell, measured=cell.measured[:2])})
    assert list(torn.of_arm("L-high", "static")) == [1, 2, 4, 5, 6, 7, 8]
    torn = without(torn, "L-low-1")
    seeds, (first, second) = tables([torn.of_arm("L-high", "static"), torn.of_arm("L-low", "static")])
    assert seeds == [2, 4, 5, 6, 7, 8]
    assert first["lab-chain-3"].shape == second["lab-chain-3"].shape == (6, 500)
    assert tables([torn.of_arm("L-high", "other")]) == ([], [])


def test_checkpoints_begin_with_the_base_and_end_with_the_final_model():
    results = made_up_results(steps={5: 0.2, 25: 0.8}, arms={"L-high": 0.7}, compare=(), effects={})
    assert results.steps("L-high") == [0, 5, 25, 50]
    one = results.of_arm("L-high", "static", 0)[2]["lab-chain-3"]
    assert (one == results.of_base("L-high", "static")[2]["lab-chain-3"]).all()
    last = results.of_arm("L-high", "static", 50)[2]["lab-chain-3"]
    assert (last == results.of_arm("L-high", "static")[2]["lab-chain-3"]).all()
    assert not (last == results.of_arm("L-high", "static", 5)[2]["lab-chain-3"]).all()
