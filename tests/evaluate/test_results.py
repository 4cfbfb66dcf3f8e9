import errno
import fcntl
import itertools
import json
import random
import threading

import pytest

from forkleft.digests import sealed, unsealed
from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import BENCHMARKS, Benchmark, Item
from forkleft.evaluate.prompts import PLAIN
from forkleft.evaluate.protocols import Reply, Try
from forkleft.evaluate.results import (
    FORMAT,
    RECORDS,
    SUMMARY,
    Record,
    ResultFolder,
    accuracy_of,
    item_scores,
    line_of,
    pass_at_k,
    read_results,
    record_of,
    summarise,
)
from forkleft.evaluate.statistics import clustered_mean, wilson_interval

BENCHMARK = Benchmark("sums", 3, "generated", "lab", PLAIN, "MIT")
CONFIGURATION = {
    **{"benchmark": "sums", "protocol": "generated", "model": {"kind": "diffusion"}},
    "sampler": {"seed": 0, "passes": None},
}
ABOUT = {"model": "m", "source": "s"}


def record(id_, correct, sample=0, cluster=None, **changes):
    fields = {
        **{"id": id_, "sample": sample, "item": f"item {id_}", "prompt": "p", "cluster": cluster or id_, "answer": "1"},
        **{"response": "#1", "extracted": "1", "correct": correct, "tokens": 4, "forwards": 2, "stopped": True},
    }
    return Record(**fields | {"log_probs": None} | changes)


def write(folder, records, rank=0):
    with folder.part(rank) as part:
        part.writelines(map(line_of, records))


def test_a_record_of_a_reply():
    reply = Reply([1, 2], "#4\n\u2028", "4", True, 3, 2, True)
    benchmark = BENCHMARKS["mt-aime2024"]
    item = Item("mt-aime24-welsh-II-09", "Faint?", "4")
    one = record_of(benchmark, Try(item, 5), reply)
    assert one.key == (item.id, 5)
    assert (one.cluster, one.answer, one.response, one.extracted) == ("II-09", "4", "#4\n\u2028", "4")
    same = record_of(benchmark, Try(item, 6), reply)
    assert (one.item, one.prompt) == (same.item, same.prompt)
    other = Item(item.id, "Pa mor bell?", "4")
    assert record_of(benchmark, Try(other), Reply([1, 3], "", None, False, 1, 1)).item != one.item
    assert record_of(benchmark, Try(other), Reply([1, 3], "", None, False, 1, 1)).prompt != one.prompt


def test_records_survive_the_file(tmp_path):
    folder = ResultFolder(tmp_path, CONFIGURATION)
    records = [
        record("a", True, response='line\nbreak\r\u2028 "quoted" \x00 中'),
        record("b", False, response=None, stopped=None, log_probs={"A": -0.1, "B": -1e-30}),
    ]
    write(folder, records)
    assert folder.records() == {one.key: one for one in records}


def test_only_whole_lines_count_and_the_first_of_two(tmp_path):
    folder = ResultFolder(tmp_path, CONFIGURATION)
    write(folder, [record("a", True), record("b", True)])
    part = tmp_path / "records.part-0.jsonl"
    # A torn line may be good JSON but for its end.
    part.write_bytes(part.read_bytes()[:-1])
    assert list(folder.records()) == [("a", 0)]
    write(folder, [record("b", False)])
    write(folder, [record("a", False), record("c", True)], rank=1)
    assert {key: one.correct for key, one in folder.records().items()} == {
        ("a", 0): True,
        ("b", 0): False,
        ("c", 0): True,
    }
    assert len(part.read_text().splitlines()) == 2
    for damaged in (b"\xff\xfe\n", b"[1]\n", b'{"id": "d"}\n', b"null\n", b"\n"):
        part.write_bytes(damaged)
        assert set(folder.records()) == {("a", 0), ("c", 0)}


def test_a_part_has_one_writer(tmp_path):
    folder = ResultFolder(tmp_path, CONFIGURATION)
    with (
        folder.part(0),
        pytest.raises(ForkLeftError, match="another evaluation is writing"),
        ResultFolder(tmp_path, CONFIGURATION).part(0),
    ):
        pass


def test_records_are_not_read_while_another_process_merges_them(tmp_path):
    folder = ResultFolder(tmp_path, CONFIGURATION)
    write(folder, [record("a", True), record("b", False)])
    found = {}
    reader = threading.Thread(target=lambda: found.update(folder.records()))
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (tmp_path / "records.part-0.jsonl").rename(tmp_path / "merging")
        reader.start()
        reader.join(timeout=0.3)
        assert reader.is_alive()
        (tmp_path / "merging").rename(tmp_path / RECORDS)
    reader.join(timeout=60)
    assert list(found) == [("a", 0), ("b", 0)]


@pytest.mark.parametrize("name", [".lock", "configuration.json", "records.part-0.jsonl"])
def test_a_folder_that_cannot_be_used(tmp_path, name):
    # Not by permissions: they do not hold for root.
    (tmp_path / name).mkdir()
    with pytest.raises(ForkLeftError, match=rf"cannot keep results in {tmp_path}: Is a directory; name another folder"):
        ResultFolder(tmp_path, CONFIGURATION)


def test_a_part_that_cannot_be_written_to(tmp_path):
    folder = ResultFolder(tmp_path, CONFIGURATION)
    (tmp_path / "records.part-0.jsonl").mkdir()
    with pytest.raises(ForkLeftError, match=r"cannot keep results in .*: Is a directory"), folder.part(0):
        pass


def test_parts_are_merged_in_the_order_of_the_items_when_all_is_there(tmp_path):
    folder = ResultFolder(tmp_path, CONFIGURATION)
    keys = [("a", 0), ("b", 0), ("c", 0)]
    write(folder, [record("c", True), record("a", False)])
    assert folder.finish(keys, ABOUT, 3) is None
    assert not (tmp_path / SUMMARY).exists()
    write(folder, [record("b", True)], rank=1)
    summary = folder.finish(keys, ABOUT, 3)
    assert sealed(summary) == json.loads((tmp_path / SUMMARY).read_text())
    assert [json.loads(line)["id"] for line in (tmp_path / RECORDS).read_text().splitlines()] == ["a", "b", "c"]
    assert not list(tmp_path.glob("*part*"))
    assert summary["results"]["complete"]
    # Once is enough.
    assert folder.finish(keys, ABOUT, 3) is None
    found = read_results(tmp_path)["sums"]
    assert [one.id for one in found.records] == ["a", "b", "c"]
    assert found.summary == summary


def test_a_merge_that_was_killed_is_done_again(tmp_path):
    folder = ResultFolder(tmp_path, CONFIGURATION)
    keys = [("a", 0), ("b", 0)]
    write(folder, [record("a", True), record("b", False)])
    line = (tmp_path / "records.part-0.jsonl").read_text()
    summary = folder.finish(keys, ABOUT, 3)
    # After the records were written, before the summary was; and after that, before the parts were removed.
    for missing in ((SUMMARY,), ()):
        (tmp_path / "records.part-0.jsonl").write_text(line)
        for name in missing:
            (tmp_path / name).unlink()
        assert folder.finish(keys, ABOUT, 3) == summary
        assert len((tmp_path / RECORDS).read_text().splitlines()) == 2


def test_another_configuration_is_named(tmp_path):
    write(ResultFolder(tmp_path, CONFIGURATION), [record("a", True)])
    ResultFolder(tmp_path, CONFIGURATION)
    other = CONFIGURATION | {"sampler": {"seed": 1}, "new": 2}
    with pytest.raises(ForkLeftError) as caught:
        ResultFolder(tmp_path, other)
    assert "new (None there, 2 now), sampler.seed (0 there, 1 now); name another" in str(caught.value)
    (tmp_path / "configuration.json").write_text("{")
    with pytest.raises(ForkLeftError, match=r"configuration\.json is damaged"):
        ResultFolder(tmp_path, CONFIGURATION)
    (tmp_path / "file").touch()
    with pytest.raises(ForkLeftError, match="cannot keep results"):
        ResultFolder(tmp_path / "file", CONFIGURATION)


def test_a_configuration_without_a_whole_record_is_replaced(tmp_path):
    first = ResultFolder(tmp_path, CONFIGURATION)
    (tmp_path / "records.part-0.jsonl").write_text('{"id": "a"')
    other = CONFIGURATION | {"batch_size": 2}
    second = ResultFolder(tmp_path, other)
    assert json.loads((tmp_path / "configuration.json").read_text()) == other
    # The first is still alive; its records do not belong here any more.
    with pytest.raises(ForkLeftError, match=r"batch_size \(2 there, None now\)"), first.part(1):
        pass
    # Whoever has a part open is about to write.
    with second.part(0), pytest.raises(ForkLeftError, match=r"batch_size \(2 there, None now\)"):
        ResultFolder(tmp_path, CONFIGURATION)
    (tmp_path / "configuration.json").write_text("{")
    write(ResultFolder(tmp_path, CONFIGURATION), [record("a", True)])
    with pytest.raises(ForkLeftError, match=r"batch_size \(None there, 2 now\)"):
        ResultFolder(tmp_path, other)


def test_only_another_writer_is_taken_for_one(tmp_path, monkeypatch):
    folder = ResultFolder(tmp_path, CONFIGURATION)

    def no_locks(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(OSError, match="No locks available"), folder.part(0):
        pass


def before(folder):
    """Make a finished folder one that was written in format 1: other names, no word of verdicts, and no checksums."""
    for name in ("configuration.json", SUMMARY):
        told = unsealed(json.loads((folder / name).read_text()))
        configuration = told["configuration"] if name == SUMMARY else told
        configuration["format"] = 1
        configuration["verifier"] = {"opdlm": "math"}.get(configuration["verifier"], configuration["verifier"])
        (folder / name).write_text(json.dumps(told))
    rows = [json.loads(line) for line in (folder / RECORDS).read_text().splitlines()]
    left_out = ("judged", "sum")
    lines = [json.dumps({name: value for name, value in row.items() if name not in left_out}) + "\n" for row in rows]
    (folder / RECORDS).write_text("".join(lines))


@pytest.mark.parametrize(
    ("verifier", "protocol", "now"),
    [
        ("opdlm", "generated", "opdlm"),
        ("choice", "slot", "choice"),
        ("lab", "generated", "lab"),
        ("choice", "generated", "choice (format 1)"),
    ],
)
def test_results_of_before_keep_their_scorer(tmp_path, verifier, protocol, now):
    configuration = CONFIGURATION | {"format": FORMAT, "verifier": verifier, "protocol": protocol}
    folder = ResultFolder(tmp_path, configuration)
    write(folder, [record("a", True)])
    folder.finish([("a", 0)], ABOUT, 1)
    before(tmp_path)
    found = read_results(tmp_path)["sums"]
    assert found.summary["configuration"] == configuration | {"verifier": now}
    assert found.records == (record("a", True),)
    if now == verifier:
        assert ResultFolder(tmp_path, configuration).records() == {("a", 0): record("a", True)}
    else:
        with pytest.raises(ForkLeftError, match=r"differ in verifier \('choice \(format 1\)' there, 'choice' now\)"):
            ResultFolder(tmp_path, configuration)


def test_results_of_before_are_not_continued_by_another_scorer_of_the_same_name(tmp_path):
    configuration = CONFIGURATION | {"format": FORMAT, "verifier": "opdlm"}
    folder = ResultFolder(tmp_path, configuration)
    write(folder, [record("a", True)])
    folder.finish([("a", 0)], ABOUT, 1)
    before(tmp_path)
    with pytest.raises(ForkLeftError, match=r"differ in verifier \('opdlm' there, 'math' now\)"):
        ResultFolder(tmp_path, configuration | {"verifier": "math"})


def test_items_without_a_verdict_are_counted_by_themselves():
    lost = record("c", False, extracted=None, judged=False)
    figures = summarise([record("a", True), record("b", False, extracted=None), lost], 3)
    assert (figures["correct"], figures["without_answer"], figures["without_verdict"]) == (1, 1, 1)
    assert figures["accuracy"]["value"] == 1 / 3


def test_what_is_no_number_is_not_written():
    with pytest.raises(ValueError, match="JSON compliant"):
        line_of(record("a", True, log_probs={"A": float("nan")}))


def test_figures_of_one_response_an_item():
    records = [record("a", True), record("b", False, extracted=None, stopped=False), record("c", True, tokens=6)]
    figures = summarise(records, 4)
    low, high = wilson_interval(2, 3)
    assert figures == {
        **{"items": 3, "expected_items": 4, "complete": False, "samples": 1, "correct": 2},
        **{"accuracy": {"value": 2 / 3, "low": low, "high": high}, "interval": "wilson"},
        **{"without_answer": 1, "without_verdict": 0, "cut_by_budget": 1},
        **{"tokens": 14, "forwards": 6, "tokens_per_forward": 14 / 6},
    }


def test_figures_of_several_samples():
    rights = {"a": 0, "b": 1, "c": 4, "d": 6}
    records = [record(name, k < right, sample=k) for name, right in rights.items() for k in range(6)]
    figures = summarise(records, 4)
    assert (figures["items"], figures["samples"], figures["correct"]) == (4, 6, 11)
    assert figures["avg@6"] == figures["accuracy"]["value"] == pytest.approx(11 / 24)
    assert figures["interval"] == "clustered bootstrap"
    assert [name for name in figures if name.startswith("pass@")] == ["pass@1", "pass@2", "pass@4", "pass@6"]
    assert figures["pass@1"] == pytest.approx(11 / 24)
    assert figures["pass@6"] == 3 / 4


def test_pass_at_k_is_the_share_of_subsets_with_a_right_one():
    for samples in range(1, 7):
        for correct in range(samples + 1):
            for k in range(1, samples + 1):
                subsets = list(itertools.combinations([1] * correct + [0] * (samples - correct), k))
                assert pass_at_k(correct, samples, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))
    with pytest.raises(ForkLeftError, match="k <= samples"):
        pass_at_k(1, 2, 3)


def test_translations_are_clusters():
    rng = random.Random(0)
    records = [record(f"{q}-{k}", rng.random() < q / 6, cluster=f"q{q}") for q in range(6) for k in range(5)]
    estimate, kind = accuracy_of(item_scores(records), 1)
    assert kind == "clustered bootstrap"
    assert estimate == clustered_mean([one.correct for one in records], [one.cluster for one in records])
    estimate, _ = accuracy_of(item_scores(records[10:15]), 1)
    assert (estimate.low, estimate.high) == (0.0, 1.0)


def test_what_is_no_result_is_said(tmp_path):
    with pytest.raises(ForkLeftError, match=r"found no summary\.json; name its --output"):
        read_results(tmp_path / "nowhere")
    folder = ResultFolder(tmp_path / "sums", CONFIGURATION)
    for begun in (tmp_path, tmp_path / "sums"):
        with pytest.raises(ForkLeftError, match="unfinished: sums; start the same evaluation again"):
            read_results(begun)
    write(folder, [record("a", True), record("b", True)])
    folder.finish([("a", 0), ("b", 0)], ABOUT, 3)
    path = tmp_path / "sums" / RECORDS
    lines = path.read_text().splitlines(keepends=True)
    for wrong in (lines[:1], [lines[0], lines[0]], [lines[0], lines[1][:-9]], [*lines, lines[0]]):
        path.write_text("".join(wrong))
        with pytest.raises(ForkLeftError, match=r"records\.jsonl is damaged: expected 2 whole records"):
            read_results(tmp_path)
    path.write_text("".join(lines))
    whole = unsealed(json.loads((tmp_path / "sums" / SUMMARY).read_text()))
    assert read_results(tmp_path)["sums"].summary == whole
    for wrong in (
        {"results": {}},
        [],
        whole | {"configuration": None},
        whole | {"results": whole["results"] | {"items": "2"}},
        whole | {"results": whole["results"] | {"accuracy": 1.0}},
        whole | {"configuration": {"benchmark": "sums", "protocol": "generated"}},
    ):
        (tmp_path / "sums" / SUMMARY).write_text(json.dumps(wrong))
        with pytest.raises(ForkLeftError, match=r"summary\.json is damaged"):
            read_results(tmp_path)


def test_other_items_are_told_by_their_number(tmp_path):
    """A digest tells a person nothing; and texts that are cut have both their quotes."""
    text = "the weights of some model or other, and then some"
    there = {"items": {"count": 100, "digest": "a8cf"}, "model": text, "ids": list(range(40))}
    folder = ResultFolder(tmp_path, there)
    folder.path.joinpath(RECORDS).write_text(line_of(record("a", True)))
    now = {"items": {"count": 50, "digest": "77b1"}, "model": "b", "ids": [1]}
    with pytest.raises(ForkLeftError, match=r"count \(100 there, 50 now\), model \('the weights[^']*…' there") as told:
        ResultFolder(tmp_path, now)
    assert "digest" not in str(told.value)
    with pytest.raises(ForkLeftError, match=r"items.digest \('a8cf' there, '77b1' now\)"):
        ResultFolder(tmp_path, there | {"items": {"count": 100, "digest": "77b1"}})
