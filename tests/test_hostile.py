"""Short forms of the hostile input of `make faults`; and what it has found, as tests of their own."""

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import strategies as st

from faults import damage, endurance, hostile, samples, targets
from forkleft import files
from forkleft.digests import sealed, unsealed
from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import read_benchmarks
from forkleft.files import check_writable, is_file, read_appended, read_jsonl, read_yaml
from forkleft.prompts import read_template
from forkleft.report.gather import Gathered, read_run_folder
from forkleft.report.page import page
from forkleft.report.viewer import compact, good_example
from forkleft.students.shards import read_json
from forkleft.study.collect import collect
from forkleft.study.names import RESULTS, STUDY
from forkleft.study.results import load_results
from forkleft.study.spec import read_study
from forkleft.teacher import connection
from forkleft.teacher.answers import Answer, AnswerCache
from forkleft.teacher.connection import Connection
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import read_ids, read_routes
from forkleft.train.recipes import read_options

DEEP = "[" * 100_000


@pytest.mark.parametrize("target", targets.targets(), ids=lambda target: target.name)
def test_readers_give_a_value_or_the_error_that_they_promise(tmp_path, target):
    done, lost = hostile.attacked(target, tmp_path, 20, seed=1)
    assert lost == []
    assert done >= 20


@pytest.mark.parametrize("target", targets.targets(), ids=lambda target: target.name)
def test_hostile_input_is_made_from_what_is_right(tmp_path, target):
    """Else it would be refused at the first check, and try nothing behind that."""
    if target.right is not None:
        target.read(target.right, tmp_path)


def test_memory_that_cases_leave_behind_is_lost(monkeypatch):
    kept = []
    hoards = targets.Target("hoards", st.none(), lambda value, work: kept.append(b"x" * 1000))
    monkeypatch.setattr(hostile, "targets", lambda: [hoards])
    # Counted here: what the tests before this one leave may be freed at any time.
    monkeypatch.setattr(hostile, "in_all", lambda: sum(map(len, kept)))
    monkeypatch.setattr(hostile, "_GROWTH", 1000)
    (tally,) = hostile.run(1, seed=1)
    assert tally.lost == []
    monkeypatch.setattr(hostile, "_GROWTH", 999)
    (tally,) = hostile.run(1, seed=1)
    assert tally.lost == ["1 cases left 1,000 bytes in memory"]


def test_memory_of_workers_counts(monkeypatch):
    program = "import sys; x = b'x' * (1 << 26); print(flush=True); sys.stdin.read()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as worker:
        worker.stdout.readline()
        assert endurance.resident(str(worker.pid)) > 1 << 26
        sizes = {"self": 1, str(worker.pid): 2}
        monkeypatch.setattr(endurance, "resident", lambda process="self": sizes.get(process, 0))
        assert endurance.in_all() == 3
        worker.communicate()


def test_another_error_and_a_case_without_end_are_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(hostile, "_BOUND", 1)

    def never(value, work):
        while True:
            pass

    for read, expected in ((lambda value, work: value["x"], "TypeError"), (never, "TimeoutError: no end after 1 s")):
        target = targets.Target("broken", st.none(), read)
        _, lost = hostile.attacked(target, tmp_path, 1, seed=1)
        assert lost and all(text.startswith(expected) for text in lost)


def test_brackets_without_end_are_no_json(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_text(DEEP + "\n")
    assert [row for _, row in read_appended(path)] == [None]
    for read in (read_jsonl, read_benchmarks, lambda path: read_yaml(path, "recipe")):
        with pytest.raises(ForkLeftError, match=r"deep\.jsonl"):
            read(path)
    server = Connection("http://localhost:1", "m")
    server.send = lambda *request: (DEEP.encode(), None)
    assert server.listed("http://localhost:1/v1/models") == {}


@pytest.mark.parametrize("kind", ["aliases", "merged", "itself"])
def test_a_few_lines_of_yaml_do_not_stand_for_billions(tmp_path, kind):
    path = tmp_path / "bomb.yaml"
    if kind == "aliases":
        # Ten of the level before in each level.
        levels = ["&a0 [x]", *(f"&a{k} [{','.join([f'*a{k - 1}'] * 10)}]" for k in range(1, 12))]
        path.write_text(f"rho: [{', '.join(levels)}]\n")
    elif kind == "merged":
        levels = ["z0: &a0 {x: 1}", *(f"z{k}: &a{k} {{<<: [{','.join([f'*a{k - 1}'] * 10)}]}}" for k in range(1, 12))]
        path.write_text(f"columns: {{{', '.join(levels)}}}\n")
    else:
        path.write_text("rho: &a [*a]\n")
    for read in (read_options, read_benchmarks, read_study):
        with pytest.raises(ForkLeftError, match=r"bomb\.yaml is no YAML file: expected at most 100,000 entries"):
            read(path)


def bomb(kind):
    """Merges of 1,500 entries: by a list of aliases, or by a mapping for each."""
    large = ", ".join(f"k{k}: 1" for k in range(1500))
    if kind == "a list":
        return f"a: &a {{{large}}}\nb: {{<<: [{', '.join(['*a'] * 1000)}]}}\n"
    return f"a: &a {{{large}}}\n" + "".join(f"b{k}: {{<<: *a}}\n" for k in range(1000))


@pytest.mark.parametrize("kind", ["a list", "many mappings"])
def test_merged_entries_are_counted_before_they_are_made(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(files, "_MOST_ENTRIES", 2000)
    path = tmp_path / "bomb.yaml"
    path.write_text(bomb(kind))
    flatten, made = yaml.SafeLoader.flatten_mapping, []

    def counting(loader, node):
        flatten(loader, node)
        made.append(len(node.value))

    monkeypatch.setattr(yaml.SafeLoader, "flatten_mapping", counting)
    with pytest.raises(ForkLeftError, match=r"expected at most 2,000 entries"):
        read_yaml(path, "recipe")
    # Without the bound a million.
    assert sum(made) < 10_000


def test_a_number_of_thousands_of_digits_is_no_json(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"id": ' + "9" * 5000 + "}\n")
    with pytest.raises(ForkLeftError, match=r"data\.jsonl, line 1: expected a JSON object, found"):
        read_jsonl(path)


@pytest.mark.parametrize("kind", ["device", "link", "pipe", "large", "folder"])
def test_what_is_no_regular_file_is_not_read_without_end(tmp_path, monkeypatch, kind):
    path = tmp_path / "given.yaml"
    if kind == "device":
        path = Path("/dev/zero")
    elif kind == "link":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate((1 << 26) + 1)
    for read in (lambda path: read_yaml(path, "recipe"), read_benchmarks, read_ids, read_json):
        with pytest.raises(ForkLeftError, match=r"egular file|Larger than 64 MiB|Is a directory"):
            read(path)
    if kind != "large":
        with pytest.raises(ForkLeftError, match=r"cannot read the chat template .*: Not a regular file"):
            read_template(path)


def test_a_study_whose_base_is_a_device_is_told(tmp_path):
    said = samples.study() | {"arms": {"a": {"base": "/dev/zero"}, "b": {}}, "compare": [], "effects": {}}
    with pytest.raises(ForkLeftError, match=r"/dev/zero is no YAML file: .*Not a regular file"):
        samples.grid_of(said, tmp_path)


def test_a_chat_template_that_can_be_no_path_is_told():
    with pytest.raises(ForkLeftError, match=r"cannot read the chat template a+: File name too long"):
        read_template("a" * 300)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_answers_are_kept_in_a_file_alone(tmp_path, kind):
    path = tmp_path / "answers.jsonl"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(ForkLeftError, match=r"cannot keep answers in .*: Not a regular file; name another"):
        AnswerCache(path)


def test_an_output_that_can_be_no_folder_is_told(tmp_path, monkeypatch):
    with pytest.raises(ForkLeftError, match=r"cannot write to .*: File name too long; name another \(output_dir\)"):
        check_writable(tmp_path / ("a" * 300), "output_dir")
    with pytest.raises(ForkLeftError, match=r"expected a folder to write to, found '.*x00b'; name another"):
        check_writable(tmp_path / "a\0b")

    def denied(path, **settings):
        raise PermissionError(13, "Permission denied")

    # Who runs the tests may be allowed everything.
    monkeypatch.setattr(os, "stat", denied)
    with pytest.raises(ForkLeftError, match=r"cannot write to .*: Permission denied; name another"):
        check_writable(Path("/closed/run"))


def test_aliases_may_be_used(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("arms: {a: &a {rho: 0.5}, b: {<<: *a, passes: 4}, c: *a}\n")
    assert read_yaml(path, "study") == {"arms": {"a": {"rho": 0.5}, "b": {"rho": 0.5, "passes": 4}, "c": {"rho": 0.5}}}


def test_a_line_of_data_must_not_fill_the_memory(tmp_path, monkeypatch):
    path = tmp_path / "data.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"id": "a"}\n{"id": "' + b"b" * 10_000 + b'"}\n'))
    assert len(read_jsonl(path)) == 2
    monkeypatch.setattr(files, "_LONGEST_LINE", 1000)
    with pytest.raises(ForkLeftError, match=r"data\.jsonl\.gz, line 2: expected at most 1,000 characters"):
        read_jsonl(path)


def test_a_date_that_is_none_is_no_yaml(tmp_path):
    path = tmp_path / "benchmark.yaml"
    path.write_text("name: 2001-99-99\n")
    with pytest.raises(ForkLeftError, match=r"benchmark\.yaml is no YAML file: month must be in 1"):
        read_benchmarks(path)


def test_a_number_without_end_is_told_at_once(tmp_path):
    with pytest.raises(ForkLeftError, match=r"batches of 7 do not divide; .* one of 1, 2, 4, 5, 8, 10, .*, 1000$"):
        ForkLeftConfig(str(tmp_path), use_cpu=True, questions_per_update=10**30, per_device_train_batch_size=7)


@pytest.mark.parametrize("part", ["arms", "items", "cells", "effects"])
def test_results_of_a_study_with_a_list_in_place_of_names_are_damaged(tmp_path, part):
    damage.study_results(tmp_path)
    said = unsealed(json.loads((tmp_path / RESULTS).read_text())) | {part: [1]}
    (tmp_path / RESULTS).write_text(json.dumps(sealed(said)))
    with pytest.raises(ForkLeftError, match=r"results\.json is damaged \(AttributeError"):
        load_results(tmp_path / RESULTS)


@pytest.mark.parametrize("part", ["arms", "effects"])
def test_a_noted_study_with_a_list_in_place_of_names_is_damaged(tmp_path, part):
    (tmp_path / STUDY).write_text(json.dumps(samples.results(STUDY) | {part: [1]}))
    with pytest.raises(ForkLeftError, match=r"study\.json is damaged \(AttributeError"):
        collect(tmp_path)


def test_a_trace_without_the_student_s_alternatives_is_no_example():
    row = samples.trace()
    del row["student_alternatives"]
    assert good_example([(0, compact(row))]) is None


def test_a_text_that_can_be_no_path_is_no_file(tmp_path):
    assert not is_file(tmp_path / ("a" * 10_000))
    assert not is_file(tmp_path / "a\0b")
    path = tmp_path / "study.yaml"
    said = {"name": "s", "base": "a" * 10_000, "arms": {"a": {}}, "seeds": [1], "benchmarks": ["lab-chain-2"]}
    path.write_text(json.dumps(said))
    with pytest.raises(ForkLeftError, match="there is no base recipe"):
        read_study(path)


def test_a_level_of_an_effect_must_be_a_list(tmp_path):
    with pytest.raises(ForkLeftError, match="expected a list of arms at each level, found 5"):
        samples.grid_of(samples.study() | {"effects": {"f": {"x": 5, "y": ["b"]}}}, tmp_path)


@pytest.mark.parametrize("row", [{"ids": ["a"], "routes": [[1]]}, {"ids": [{}], "routes": ["CE"]}, {"ids": 1}])
def test_routes_that_are_none_are_told(tmp_path, row):
    path = tmp_path / "routes.jsonl"
    path.write_text(json.dumps(row) + "\n")
    with pytest.raises(ForkLeftError, match=r"routes\.jsonl, line 1"):
        read_routes(path)


@pytest.mark.parametrize("change", [{"kl": [1]}, {"student_accuracy": "high"}, {"route_gold": None}])
def test_rows_of_metrics_without_numbers_are_left_out_of_a_report(tmp_path, change):
    good = samples.metrics()
    (tmp_path / "metrics.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(good | {"step": 2} | change) + "\n")
    run = read_run_folder(tmp_path, "run")
    assert [row["step"] for row in run.updates] == [1]
    assert "1 line torn" in run.notes[0]
    assert page(Gathered(runs=[run])).endswith("</html>\n")


def test_a_report_needs_all_routes_of_an_update(tmp_path):
    row = samples.metrics()
    del row["route_gold"]
    (tmp_path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert read_run_folder(tmp_path, "run").updates == []


def test_a_trace_with_numbers_without_end_is_left_out():
    assert compact(samples.trace()) is not None
    assert compact(samples.trace() | {"commit_pass": [1, float("inf")]}) is None


def test_an_answer_of_another_kind_is_not_trusted_even_if_its_sum_is_right(tmp_path):
    cache = AnswerCache(tmp_path / "answers.jsonl")
    cache.put({"k": Answer("4", True), "l": Answer(5, True), "m": Answer("6", "yes")})
    again = AnswerCache(tmp_path / "answers.jsonl")
    assert (again.get("k"), again.get("l"), again.get("m")) == (Answer("4", True), None, None)


def test_a_reply_must_not_fill_the_memory(monkeypatch):
    class Endless(io.RawIOBase):
        headers = length = None

        def read1(self, size=-1):
            assert size >= 0, "a reply is read without a bound"
            return b"x" * size

    monkeypatch.setattr(connection, "opened", lambda *request: Endless())
    with pytest.raises(ValueError, match="at most 1000 bytes, found more"):
        Connection("http://localhost:1", "m").send("http://localhost:1", {}, most=1000)
    with pytest.raises(ValueError, match="at most 16777216 bytes, found more"):
        Connection("http://localhost:1", "m").send("http://localhost:1", {})
