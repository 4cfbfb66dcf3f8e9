"""The tables against a recomputation from the raw lines, with scipy and plain loops."""

import itertools
import json
import math
import random
import re
from collections import Counter

import numpy as np
import pytest
from evaluation_runs import lab_items
from rich.console import Console
from scipy.stats import binomtest, bootstrap

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import BENCHMARKS
from forkleft.evaluate.compare import compare, compare_results, compare_routes
from forkleft.evaluate.evaluation import load_evaluated, run_evaluation
from forkleft.evaluate.protocols import Settings
from forkleft.evaluate.results import Record, ResultFolder, line_of
from forkleft.lab.models import model_path


def write_results(
    folder, benchmark, verdicts, *, clusters=None, samples=1, protocol="generated", expected=None, **told
):
    """Results with given verdicts: by item id, one or (with samples) a list of them."""
    sampler = {"order": "confidence", "max_new_tokens": 64, "samples": samples, "seed": 0} | told.pop("sampler", {})
    model = {"kind": "diffusion"} | told.pop("model", {})
    configuration = {"benchmark": benchmark, "protocol": protocol, "model": model, "sampler": sampler}
    configuration |= told.pop("also", {})
    asked = told.get("asked", lambda id_: told.get("item", "") + id_)
    open_folder = ResultFolder(folder / benchmark, configuration)
    records = [
        Record(
            **{"id": id_, "sample": k, "item": asked(id_), "prompt": "p"},
            **{"cluster": (clusters or {}).get(id_, id_), "answer": "1", "response": "#1", "extracted": "1"},
            **{"correct": bool(right), "tokens": 4, "forwards": 2, "stopped": True, "log_probs": None},
        )
        for id_, found in verdicts.items()
        for k, right in enumerate(found if isinstance(found, list) else [found])
    ]
    with open_folder.part(0) as part:
        part.writelines(map(line_of, records))
    open_folder.finish([one.key for one in records], {"model": "m"}, expected or len(verdicts))


def lines(folder, benchmark):
    return [json.loads(line) for line in (folder / benchmark / "records.jsonl").read_text().splitlines()]


def random_verdicts(seed, count, share):
    rng = random.Random(seed)
    return {f"q{k}": rng.random() < share for k in range(count)}


@pytest.fixture
def two(tmp_path):
    """Two models on two benchmarks of independent items and one of five translations of each of eight questions."""
    a, b = tmp_path / "a", tmp_path / "b"
    for name, count, share_a, share_b in (("sums", 60, 0.4, 0.65), ("words", 25, 0.7, 0.5)):
        write_results(a, name, random_verdicts(name + "a", count, share_a))
        write_results(b, name, random_verdicts(name + "b", count, share_b))
    names = [f"{language}-I-{question}" for question in range(8) for language in range(5)]
    clusters = {name: name[-1] for name in names}
    rng = random.Random(5)
    hard = {name: clusters[name] in "0367" for name in names}
    write_results(a, "mt", {name: rng.random() < 0.3 + 0.4 * hard[name] for name in names}, clusters=clusters)
    write_results(b, "mt", {name: rng.random() < 0.5 + 0.4 * hard[name] for name in names}, clusters=clusters)
    return a, b


def test_the_table_equals_a_recomputation_from_the_raw_records(two):
    a, b = two
    found = compare_results(a, b)
    assert [row.benchmark for row in found.rows] == ["mt", "sums", "words"]
    assert not found.notes
    p_values = {}
    for row in found.rows:
        right_a, right_b = ({one["id"]: one["correct"] for one in lines(x, row.benchmark)} for x in two)
        n = len(right_a)
        assert row.items == n
        assert row.a.value == pytest.approx(sum(right_a.values()) / n)
        assert row.b.value == pytest.approx(sum(right_b.values()) / n)
        assert (row.right_a, row.tries_a) == (sum(right_a.values()), n)
        assert (row.right_b, row.tries_b) == (sum(right_b.values()), n)
        assert row.gain.value == pytest.approx((sum(right_b.values()) - sum(right_a.values())) / n)
        pairs = Counter((right_a[name], right_b[name]) for name in right_a)
        assert (row.only_a, row.only_b) == (pairs[True, False], pairs[False, True])
        if row.benchmark == "mt":
            assert (row.p, row.holm, row.interval) == (None, None, "clustered bootstrap")
            clusters = {one["id"]: one["cluster"] for one in lines(a, "mt")}
            gains = [
                np.mean([right_b[name] - right_a[name] for name in right_a if clusters[name] == cluster])
                for cluster in sorted(set(clusters.values()))
            ]
            scipy = bootstrap((gains,), np.mean, n_resamples=20_000, method="percentile", rng=1).confidence_interval
            assert row.gain.low == pytest.approx(scipy.low, abs=0.03)
            assert row.gain.high == pytest.approx(scipy.high, abs=0.03)
            continue
        for estimate, right in ((row.a, right_a), (row.b, right_b)):
            wilson = binomtest(sum(right.values()), n).proportion_ci(method="wilson")
            assert (estimate.low, estimate.high) == pytest.approx((wilson.low, wilson.high))
        assert row.gain.low < row.gain.value < row.gain.high
        p_values[row.benchmark] = binomtest(pairs[True, False], pairs[True, False] + pairs[False, True]).pvalue
        assert row.p == pytest.approx(p_values[row.benchmark])
    smaller, larger = sorted(p_values, key=p_values.get)
    corrected = {row.benchmark: row.holm for row in found.rows}
    assert corrected[smaller] == pytest.approx(min(1, 2 * p_values[smaller]))
    assert corrected[larger] == pytest.approx(max(p_values[larger], min(1, 2 * p_values[smaller])))
    for mean, column in ((found.mean_a, "a"), (found.mean_b, "b"), (found.mean_gain, "gain")):
        parts = [getattr(row, column) for row in found.rows]
        assert mean.value == pytest.approx(sum(one.value for one in parts) / 3)
        assert mean.low == pytest.approx(mean.value - math.sqrt(sum((one.value - one.low) ** 2 for one in parts)) / 3)


def test_the_other_way_round_is_the_same_with_another_sign(two):
    one, other = compare_results(*two), compare_results(*two[::-1])
    for row, turned in zip(one.rows, other.rows, strict=True):
        assert (row.a, row.b, row.p, row.holm) == (turned.b, turned.a, turned.p, turned.holm)
        assert row.gain.value == -turned.gain.value


def test_several_samples_are_compared_by_their_shares(tmp_path):
    rng = random.Random(1)
    shares = {}
    for name in "ab":
        verdicts = {f"q{k}": [rng.random() < 0.5 for _ in range(4)] for k in range(20)}
        shares[name] = [sum(found) / 4 for found in verdicts.values()]
        write_results(tmp_path / name, "aime", verdicts, samples=4)
    row = compare_results(tmp_path / "a", tmp_path / "b").rows[0]
    assert row.a.value == pytest.approx(np.mean(shares["a"]))
    assert row.gain.value == pytest.approx(np.mean(shares["b"]) - np.mean(shares["a"]))
    assert (row.only_a, row.p, row.holm, row.interval) == (None, None, None, "clustered bootstrap")
    raw = {name: sum(one["correct"] for one in lines(tmp_path / name, "aime")) for name in "ab"}
    assert (row.right_a, row.right_b, row.tries_a, row.tries_b) == (raw["a"], raw["b"], 80, 80)
    with pytest.raises(ForkLeftError, match="aime: routes need one response"):
        compare_routes(tmp_path / "a", tmp_path / "b")
    write_results(tmp_path / "c", "aime", random_verdicts(0, 20, 0.5))
    found = compare_results(tmp_path / "a", tmp_path / "c")
    assert "aime: 4 samples an item in A, 1 in B" in found.notes
    (row,), right = found.rows, sum(one["correct"] for one in lines(tmp_path / "c", "aime"))
    assert (row.right_a, row.right_b, row.tries_a, row.tries_b) == (raw["a"], right, 80, 20)


def test_models_that_are_never_right_are_not_known_to_be_alike_for_sure(tmp_path):
    for name in "ab":
        write_results(tmp_path / name, "aime", {f"q{k}": [0, 0, 0] for k in range(30)}, samples=3)
    row = compare_results(tmp_path / "a", tmp_path / "b").rows[0]
    assert (row.a.low, row.a.value) == (0.0, 0.0)
    assert row.a.high == pytest.approx(binomtest(0, 30).proportion_ci(method="wilson").high)
    assert row.gain.low == pytest.approx(-row.a.high)
    assert row.gain.high == pytest.approx(row.a.high)


def test_different_item_sets_are_compared_on_what_they_share_and_that_is_said(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    write_results(a, "sums", {"q1": 1, "q2": 0, "q3": 1, "q4": 1}, expected=5)
    write_results(b, "sums", {"q4": 0, "q2": 1, "q5": 1}, expected=5)
    write_results(a, "words", {"q1": 1})
    ResultFolder(b / "long", {"benchmark": "long"})
    found = compare_results(a, b)
    (row,) = found.rows
    assert (row.items, row.a.value, row.b.value, row.only_a, row.only_b) == (2, 0.5, 0.5, 1, 1)
    assert found.notes == (
        f"words: only in {a}, left out",
        f"long: UNFINISHED in {b}, left out",
        "sums: DIFFERENT ITEM SETS, 4 in A and 3 in B; compared on the 2 in common",
        "sums: 2 items, the benchmark has 5",
    )


def test_another_question_under_the_same_id_is_another_item(tmp_path):
    write_results(tmp_path / "a", "sums", {"q1": 1, "q2": 0})
    write_results(tmp_path / "b", "sums", {"q1": 1, "q2": 0}, item="other words: ")
    with pytest.raises(ForkLeftError, match=r"sums: .* have no item in common"):
        compare_results(tmp_path / "a", tmp_path / "b")


def test_what_cannot_be_compared(tmp_path):
    write_results(tmp_path / "a", "sums", {"q1": 1})
    write_results(tmp_path / "b", "words", {"q1": 1})
    with pytest.raises(ForkLeftError, match=r"no benchmark in common: .*a has sums, .*b has words"):
        compare_results(tmp_path / "a", tmp_path / "b")
    write_results(tmp_path / "c", "sums", {"q1": 1}, protocol="slot")
    with pytest.raises(ForkLeftError, match=r"the protocol is generated in .* and slot in"):
        compare_results(tmp_path / "a", tmp_path / "c")
    with pytest.raises(ForkLeftError, match="expected results of `forkleft eval`"):
        compare_results(tmp_path / "a", tmp_path / "d")


def test_other_settings_are_said(tmp_path):
    write_results(tmp_path / "a", "sums", {"q1": 1})
    write_results(tmp_path / "b", "sums", {"q1": 1}, sampler={"max_new_tokens": 32, "seed": 7})
    assert compare_results(tmp_path / "a", tmp_path / "b").notes == ("sums: max_new_tokens is 64 in A and 32 in B",)
    # A teacher and a student are asked differently by nature, but not for answers of another length.
    write_results(tmp_path / "c", "sums", {"q1": 1}, sampler={"order": "l"}, model={"kind": "autoregressive"})
    assert compare_results(tmp_path / "a", tmp_path / "c").notes == ()
    assert compare_results(tmp_path / "b", tmp_path / "c").notes == ("sums: max_new_tokens is 32 in A and 64 in B",)
    assert compare_routes(tmp_path / "c", tmp_path / "b")[1] == ["sums: max_new_tokens is 64 in A and 32 in B"]


def test_all_but_the_weights_the_items_and_the_seed_is_compared(tmp_path):
    for folder, dtype, torch_version, more in (("a", "float32", "2.8", {}), ("b", "bfloat16", "2.9", {"passes": 4})):
        for name in ("sums", "words"):
            write_results(
                tmp_path / folder,
                name,
                {"q1": 1},
                model={"fingerprint": folder, "dtype": dtype},
                sampler=more,
                also={"versions": {"torch": torch_version}, "batch_size": 8, "items": {"digest": folder}},
            )
    assert compare_results(tmp_path / "a", tmp_path / "b").notes == (
        "sums, words: model.dtype is float32 in A and bfloat16 in B",
        "sums, words: passes is None in A and 4 in B",
        "sums, words: versions.torch is 2.8 in A and 2.9 in B",
    )


def test_items_are_paired_by_what_was_asked(tmp_path):
    """A file and the hub name the same items differently; one question is there twice."""
    a = {"gsm8k-1": 1, "gsm8k-2": 0, "gsm8k-3": 1, "same": 0, "gsm8k-4": 1}
    b = {"2": 1, "1": 1, "4": 1, "same": 1, "3": 0}
    question = {"gsm8k-4": "3", "4": "3", "same": "3"}
    write_results(tmp_path / "a", "sums", a, asked=lambda id_: question.get(id_, id_.removeprefix("gsm8k-")))
    write_results(tmp_path / "b", "sums", b, asked=lambda id_: question.get(id_, id_))
    for one, two, only in (("a", "b", (1, 2)), ("b", "a", (2, 1))):
        found = compare_results(tmp_path / one, tmp_path / two)
        (row,) = found.rows
        assert (found.notes, row.items, row.interval, row.p) == ((), 5, "wilson", 1.0)
        assert (row.only_a, row.only_b) == only


def test_clusters_that_only_one_copy_tells_count_for_both(tmp_path):
    verdicts = {f"q{k}": k % 3 == 0 for k in range(12)}
    write_results(tmp_path / "a", "sums", verdicts)
    write_results(tmp_path / "b", "sums", verdicts, clusters={name: str(int(name[1:]) % 4) for name in verdicts})
    for one, two in ("ab", "ba"):
        (row,) = compare_results(tmp_path / one, tmp_path / two).rows
        assert (row.interval, row.p) == ("clustered bootstrap", None)


@pytest.mark.slow
@pytest.mark.parametrize("digits", [1, 2])
def test_nothing_is_cut_at_80_columns(tmp_path, digits):
    rng = random.Random(3)
    folders = tmp_path / "[red]a", tmp_path / "b"
    for benchmark in BENCHMARKS.values():
        ids = [f"q{k}" for k in range(benchmark.items if benchmark.name == "mmlu" else 20)]
        clusters = {id_: id_[-1] for id_ in ids} if benchmark.cluster or benchmark.name.startswith("live") else None
        for folder in folders:
            write_results(folder, benchmark.name, {id_: rng.random() < 0.5 for id_ in ids}, clusters=clusters)
    path = tmp_path / "table"
    with path.open("w") as file:
        compare(*folders, digits=digits, console=Console(file=file, width=80))
    text = path.read_text()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "[red]a" in "".join(text.split())
    rows = compare_results(*folders).rows
    for row in rows:
        mark = "" if row.interval == "wilson" else " †"
        start = text.index(f" {row.benchmark}{mark} ")
        told = " ".join(text[start:].splitlines()[:3]).split()
        figures = [str(row.items), f"{row.only_a}/{row.only_b}"]
        figures += [f"{row.right_a}/{row.items}", f"{row.right_b}/{row.items}"]
        for estimate, sign, comma in ((row.a, "", "–"), (row.b, "", "–"), (row.gain, "+", ", ")):
            value, low, high = (f"{100 * x:{sign}.{digits}f}" for x in (estimate.value, estimate.low, estimate.high))
            figures += [value, *f"{low}{comma}{high}".split()]
        assert set(figures) <= set(told)
    largest = next(row for row in rows if row.benchmark == "mmlu")
    assert largest.items == 14042
    assert min(largest.only_a, largest.only_b) > 1000
    with path.open("w") as file:
        compare(*folders, routes=True, digits=digits, console=Console(file=file, width=80))
    assert "…" not in path.read_text()
    assert all(one in path.read_text() for one in ("livemathbench-hard", "14042", "teacher only", "student only"))


def test_routes_count_who_is_right(tmp_path, capsys):
    four = list(itertools.product((True, False), repeat=2))
    verdicts = {f"q{k}": pair for k, pair in enumerate([four[0]] * 4 + [four[1]] * 3 + [four[2]] * 2 + [four[3]])}
    write_results(tmp_path / "teacher", "sums", {name: pair[0] for name, pair in verdicts.items()})
    write_results(tmp_path / "student", "sums", {name: pair[1] for name, pair in verdicts.items()})
    compare(tmp_path / "teacher", tmp_path / "student", routes=True, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert told["rows"] == [
        {"benchmark": "sums", "items": 10, "both": 4, "teacher_only": 3, "student_only": 2, "neither": 1}
    ]
    compare(tmp_path / "teacher", tmp_path / "student", routes=True, as_markdown=True)
    assert "| sums | 10 | 4 (40.0%) | 3 (30.0%) | 2 (20.0%) | 1 (10.0%) |" in capsys.readouterr().out


def test_routes_from_a_student_to_its_teacher_are_the_wrong_way_round(tmp_path):
    write_results(tmp_path / "teacher", "sums", {"q1": 1}, model={"kind": "autoregressive"})
    write_results(tmp_path / "student", "sums", {"q1": 0})
    assert compare_routes(tmp_path / "teacher", tmp_path / "student")[0][0].teacher_only == 1
    with pytest.raises(ForkLeftError, match=r"teacher first.*swap the two: --routes \S+/teacher \S+/student$"):
        compare_routes(tmp_path / "student", tmp_path / "teacher")


def test_printed_for_a_person_as_json_and_as_markdown(two, capsys, tmp_path):
    a, b = two
    write_results(a, "short", {"q1": 1, "q2": 1})
    write_results(b, "short", {"q1": 0})
    rows = {row.benchmark: row for row in compare_results(a, b).rows}
    compare(a, b, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert {row["benchmark"]: row["gain"]["value"] for row in told["rows"]} == {
        name: row.gain.value for name, row in rows.items()
    }
    assert "DIFFERENT ITEM SETS" in " ".join(told["notes"])
    compare(a, b, as_markdown=True)
    page = capsys.readouterr().out
    table = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    assert len({len(row) for row in table}) == 1
    assert [row[0] for row in table] == ["benchmark", "---", "mt †", "short", "sums", "words", "mean"]
    sums = rows["sums"]
    interval = f"{100 * sums.a.low:.1f}–{100 * sums.a.high:.1f}"
    assert table[4][2] == f"{100 * sums.a.value:.1f} ({interval}; {sums.right_a}/60)"
    assert table[4][4].startswith(f"{100 * sums.gain.value:+.1f} (")
    # As in a terminal: the table, what it shows, and what a reader must know.
    assert page.index("| mean |") < page.index("; † clustered bootstrap\n") < page.index("\n\n**Note.** ")
    assert "\n\n**Note.** short: DIFFERENT ITEM SETS, 2 in A and 1 in B" in page
    path = tmp_path / "table"
    with path.open("w") as file:
        compare(a, b, console=Console(file=file, width=80))
    text = path.read_text()
    for row in table[2:]:
        assert all(part in text for cell in row for part in re.split(r" \(|; ", cell.removesuffix(")")))
    assert "! short: DIFFERENT ITEM SETS" in text and "† clustered bootstrap" in text


def test_the_mark_is_explained_where_it_is(tmp_path, capsys):
    for name in ("a", "b"):
        write_results(tmp_path / name, "sums", {"q1": 1, "q2": 0})
    for as_markdown in (True, False):
        compare(tmp_path / "a", tmp_path / "b", as_markdown=as_markdown)
        out = capsys.readouterr().out
        assert "gain is B minus A" in out and "†" not in out


def test_as_many_digits_as_are_asked_for(tmp_path, capsys):
    write_results(tmp_path / "a", "sums", {f"q{k}": k < 369 for k in range(800)})
    write_results(tmp_path / "b", "sums", {f"q{k}": k < 370 for k in range(800)})
    cells = {}
    for digits in (0, 1, 2):
        compare(tmp_path / "a", tmp_path / "b", digits=digits, as_markdown=True)
        cells[digits] = capsys.readouterr().out.splitlines()[4].split(" | ")
    assert [cells[digits][2].split(" ")[0] for digits in (0, 1, 2)] == ["46", "46.1", "46.12"]
    assert [cells[digits][4].split(" ")[0] for digits in (0, 1, 2)] == ["+0", "+0.1", "+0.12"]
    assert cells[2][2:4] == ["46.12 (42.70–49.59; 369/800)", "46.25 (42.82–49.71; 370/800)"]
    compare(tmp_path / "a", tmp_path / "b", routes=True, digits=2, as_markdown=True)
    assert "| 369 (46.12%) | 0 (0.00%) | 1 (0.12%) | 430 (53.75%) |" in capsys.readouterr().out
    for digits in (-1, 5):
        with pytest.raises(ForkLeftError, match=f"digits must be from 0 to 4, found {digits}"):
            compare(tmp_path / "a", tmp_path / "b", digits=digits)


def test_lab_models_from_evaluation_to_table(tmp_path):
    """Both protocols, a student and a teacher; the figures again from the raw lines."""
    items = [lab_items("chain-2", 16), lab_items("choice-2", 16)]
    quiet = Console(quiet=True)
    for name, autoregressive in (("student-block", False), ("teacher-strong", True)):
        model = load_evaluated(model_path(name), autoregressive=autoregressive)
        run_evaluation(model, items, tmp_path / name, settings=Settings(batch_size=8), console=quiet)
    found = compare_results(tmp_path / "student-block", tmp_path / "teacher-strong")
    assert [row.items for row in found.rows] == [16, 16]
    for row in found.rows:
        student, teacher = (
            [one["extracted"] == one["answer"] for one in lines(tmp_path / name, row.benchmark)]
            for name in ("student-block", "teacher-strong")
        )
        assert (row.a.value, row.b.value) == (sum(student) / 16, sum(teacher) / 16)
        assert row.only_b == sum(not x and y for x, y in zip(student, teacher, strict=True))
