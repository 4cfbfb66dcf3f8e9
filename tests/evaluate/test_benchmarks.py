import gzip
import hashlib
import json
import logging
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import (
    BENCHMARKS,
    Benchmark,
    HubData,
    Item,
    data_at_hand,
    item_set,
    load_benchmark,
    read_benchmarks,
    read_items,
)
from forkleft.evaluate.prompts import CHOICE, LIVEMATHBENCH, LIVEMATHBENCH_CHINESE, MATH, PLAIN
from forkleft.lab.questions import held_out
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.prompts import prompt_ids
from forkleft.trust import Trust
from forkleft.verify import Verifier

# What is pinned is the digest of a prompt: the text of the benchmarks does not belong into the repository.
SNAPSHOTS = Path(__file__).parent / "snapshots" / "prompts.json"
MATH_ROWS = [
    {"id": "a", "question": "1+1?", "answer": "2", "solution": "2.", "level": 1},
    {"id": "b", "question": "2+2?", "answer": 4},
]
CHOICE_ROW = {"id": "a", "question": "1+1?", "answer": "B", "choices": ["1", "2", "3"], "subject": "sums"}
TWO = Benchmark("two", 2, "generated", "math", MATH, "MIT", files=("two_all.jsonl", "two.jsonl"))
LETTER = Benchmark("letter", 1, "slot", "choice", CHOICE, "MIT", files=("letter.jsonl",))


def write(path, *rows):
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        for row in rows:
            file.write((row if isinstance(row, str) else json.dumps(row)) + "\n")
    return path


def test_the_ten_of_the_paper():
    table = {one.name: (one.items, one.protocol, one.verifier.kind, one.max_new_tokens) for one in BENCHMARKS.values()}
    assert table == {
        "gsm8k": (1319, "generated", "opdlm", 2048),
        "math500": (500, "generated", "opdlm", 2048),
        "aime24": (30, "generated", "opdlm", 2048),
        "aime25": (30, "generated", "opdlm", 2048),
        "livemathbench-hard": (45, "generated", "opdlm", 2048),
        "mt-aime2024": (1650, "generated", "opdlm", 4096),
        "gpqa-diamond": (198, "slot", "choice", 2048),
        "mlogiqa": (800, "slot", "choice", 2048),
        "ceval": (1346, "slot", "choice", 2048),
        "mmlu": (14042, "slot", "choice", 2048),
    }
    assert all(one.licence and one.files for one in BENCHMARKS.values())
    prompts = {name: one.template for name, one in BENCHMARKS.items()}
    assert prompts.pop("livemathbench-hard") == LIVEMATHBENCH
    assert set(prompts.values()) == {MATH, CHOICE}


@pytest.mark.parametrize("name", ["two.jsonl", "two.jsonl.gz"])
def test_a_file(tmp_path, name):
    loaded = load_benchmark(TWO, write(tmp_path / name, *MATH_ROWS, ""))
    assert loaded.items == (Item("a", "1+1?", "2", solution="2."), Item("b", "2+2?", "4"))
    assert (loaded.complete, loaded.count, loaded.source) == (True, "2 items", str(tmp_path / name))
    choices = load_benchmark(LETTER, str(write(tmp_path / "letter.jsonl", CHOICE_ROW)))
    assert choices.items == (Item("a", "1+1?", "B", choices=("1", "2", "3"), subject="sums"),)


def test_another_count_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        loaded = load_benchmark(TWO, write(tmp_path / "x.jsonl", MATH_ROWS[0]))
    assert (loaded.complete, loaded.count) == (False, "1 of 2 items")
    assert caplog.messages == [f"two from {tmp_path / 'x.jsonl'}: 1 of 2 items"]


def test_a_folder_and_its_first_file(tmp_path, monkeypatch):
    write(tmp_path / "two.jsonl", MATH_ROWS[0])
    assert load_benchmark(TWO, tmp_path).source == str(tmp_path / "two.jsonl")
    write(tmp_path / "two_all.jsonl", *MATH_ROWS)
    assert load_benchmark(TWO, tmp_path).source == str(tmp_path / "two_all.jsonl")
    monkeypatch.setenv("FORKLEFT_DATA", str(tmp_path))
    assert data_at_hand(TWO) == tmp_path / "two_all.jsonl"
    assert load_benchmark(TWO).complete
    assert data_at_hand(LETTER) is None


def test_a_letter_is_expected_where_the_question_holds_its_options(tmp_path):
    benchmark = replace(LETTER, protocol="generated")
    row = {"id": "a", "question": "1+1? A. 1 B. 2", "answer": "B"}
    assert load_benchmark(benchmark, write(tmp_path / "letter.jsonl", row)).items[0].answer == "B"
    for wrong in ("E", "b", "2", "AB"):
        with pytest.raises(ForkLeftError, match=rf"item 'a' offers ABCD, and its answer is '{wrong}'"):
            load_benchmark(benchmark, write(tmp_path / "letter.jsonl", row | {"answer": wrong}))


def test_no_data(tmp_path, monkeypatch):
    monkeypatch.delenv("FORKLEFT_DATA", raising=False)
    with pytest.raises(
        ForkLeftError, match=r"two: found no data; .*set FORKLEFT_DATA to a folder with two_all.jsonl or two"
    ):
        load_benchmark(TWO)
    with pytest.raises(ForkLeftError, match=r"two: found no data; .* the fields id, question, answer$"):
        load_benchmark(replace(TWO, files=()))
    with pytest.raises(ForkLeftError, match=r"found none at .*two_all.jsonl or two.jsonl"):
        load_benchmark(TWO, tmp_path)
    with pytest.raises(ForkLeftError, match=r"expected a JSON Lines file, found none at .*gone.jsonl"):
        load_benchmark(TWO, tmp_path / "gone.jsonl")
    with pytest.raises(ForkLeftError, match="expected 2 items, found none"):
        load_benchmark(TWO, write(tmp_path / "empty.jsonl"))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"id": "a", "problem": "1+1?", "answer": "2"},
            "line 2: expected the fields id, question and answer, found id, problem, answer",
        ),
        (["a"], r"line 2: expected a JSON object, found"),
        ('{"id": "a", "question"', "line 2: expected a JSON object, found"),
        ({"id": "c", "question": "", "answer": "2"}, "expected text in question, found ''"),
        ({"id": "c", "question": "?", "answer": None}, "expected text in answer, found null"),
        ({"id": "c", "question": ["?"], "answer": "2"}, r"expected text in question, found \['\?'\]"),
        ({"id": "c", "question": "?", "answer": "A", "choices": ["1"]}, "a list of 2 to 26 texts in choices"),
        ({"id": "c", "question": "?", "answer": "A", "choices": {"A": "1"}}, "a list of 2 to 26 texts in choices"),
        (
            {"id": "c", "question": "?", "answer": "D", "choices": ["1", "2", "3"]},
            "'c' offers ABC, and its answer is 'D'",
        ),
        (
            {"id": "c", "question": "?", "answer": "2", "choices": ["1", "2", "3"]},
            "'c' offers ABC, and its answer is '2'",
        ),
        (
            {"id": "c", "question": "?", "answer": "AB", "choices": ["1", "2", "3"]},
            "'c' offers ABC, and its answer is 'AB'",
        ),
        ({"id": "c", "question": "?", "answer": "A"}, "item 'c' has no choices to compare; add the field choices"),
        (CHOICE_ROW, "id 'a' occurs twice"),
        (CHOICE_ROW | {"question": "\ud83d?"}, "line 2: expected Unicode text in question, found a lone surrogate"),
        (CHOICE_ROW | {"choices": ["1", "\udc00", "3"]}, "line 2: expected Unicode text in choices"),
    ],
)
def test_bad_rows(tmp_path, row, message):
    with pytest.raises(ForkLeftError, match=message):
        load_benchmark(LETTER, write(tmp_path / "letter.jsonl", CHOICE_ROW, row))


def test_files_that_are_broken(tmp_path):
    whole = write(tmp_path / "two.jsonl.gz", *MATH_ROWS).read_bytes()
    for name, content in [("cut.gz", whole[:-12]), ("other.gz", b"{}"), ("latin.jsonl", b'{"id": "\xe9"}')]:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ForkLeftError, match=rf"{name}: expected UTF-8 JSON Lines, cannot read it"):
            read_items(tmp_path / name)


def test_hub_data_through_datasets(tmp_path, monkeypatch):
    monkeypatch.delenv("FORKLEFT_DATA", raising=False)
    (tmp_path / "hub").mkdir()
    write(
        tmp_path / "hub" / "test.jsonl",
        {"question": "1000+1?", "answer": "1001 as <<1000+1>>\n#### 1,001"},
        {"question": "0-1?", "answer": "-1.\n#### -1"},
    )
    hub = replace(BENCHMARKS["gsm8k"].hub, path=str(tmp_path / "hub"), subsets=(None,))
    loaded = load_benchmark(replace(TWO, hub=hub))
    assert [(item.id, item.answer) for item in loaded.items] == [("0", "1001"), ("1", "-1")]
    assert loaded.items[0].solution.startswith("1001 as")
    assert loaded.source == str(tmp_path / "hub")
    with pytest.raises(
        ForkLeftError,
        match=r"two: cannot load .*/none \(split test\) from the hub: .*put two_all.jsonl or two.jsonl into",
    ):
        load_benchmark(TWO, HubData(str(tmp_path / "none")))


def test_a_name_on_the_hub_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr("datasets.load_dataset", lambda *a, **o: asked.append((a, o)) or MATH_ROWS)
    assert load_benchmark(TWO, "owner/two").source == "owner/two"
    assert asked == [(("owner/two", None), {"split": "test"})]
    # A file or a folder of that name counts more, and what is called like a file is one.
    (tmp_path / "owner").mkdir()
    write(tmp_path / "owner" / "two", *MATH_ROWS)
    assert load_benchmark(TWO, "owner/two").items[1].answer == "4"
    for here in ("owner/none.jsonl", "owner/none"):
        with pytest.raises(ForkLeftError, match=rf"found none at {here}"):
            load_benchmark(TWO, here)
    for file in ("nowhere/gsm8k.txt", "nowhere/gsm8k.csv", "nowhere/gsm8k.json", "nowhere/gsm8k.jsonl.gz"):
        with pytest.raises(ForkLeftError, match=f"found none at {file}"):
            load_benchmark(TWO, file)
    assert len(asked) == 1
    assert load_benchmark(TWO, "nobody/gsm-v1.0").source == "nobody/gsm-v1.0"


def test_a_name_that_is_neither_here_nor_on_the_hub(tmp_path, monkeypatch):
    def load_dataset(*names, split):
        raise ConnectionError("no route")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(
        ForkLeftError, match=r"^there is no file or folder nobody/two, and two: cannot load nobody/two .* no route"
    ):
        load_benchmark(TWO, "nobody/two")


def test_livemathbench_asks_in_the_language_of_the_question():
    benchmark = BENCHMARKS["livemathbench-hard"]
    turns = [
        benchmark.messages(Item("a", "?", "1", language=language))[0]["content"]
        for language in ("en", "zh", "cn", None)
    ]
    english, chinese = LIVEMATHBENCH.replace("{question}", "?"), LIVEMATHBENCH_CHINESE.replace("{question}", "?")
    assert turns == [english, chinese, chinese, english]


def test_translations_of_a_question_are_a_cluster():
    benchmark = BENCHMARKS["mt-aime2024"]
    names = ["mt-aime24-welsh-II-09", "mt-aime24-hindi-II-09", "mt-aime24-hindi-I-09"]
    assert [benchmark.cluster_of(Item(name, "?", "1")) for name in names] == ["II-09", "II-09", "I-09"]
    assert TWO.cluster_of(Item("x", "?", "1")) == "x"
    with pytest.raises(ForkLeftError, match=r"expected an id that matches .* found 'x'"):
        benchmark.cluster_of(Item("x", "?", "1"))
    with pytest.raises(ForkLeftError, match=r"found 'x'; rename it, or say in the field cluster"):
        item_set(benchmark, [Item(names[0], "?", "1"), Item("x", "?", "1")], "here")
    said = Item("x", "?", "1", cluster="II-09")
    assert item_set(benchmark, [said], "here").benchmark.cluster_of(said) == "II-09"
    mlogiqa = BENCHMARKS["mlogiqa"]
    for before in ("mlogiqa-", ""):
        ids = [f"{before}{language}-07" for language in ("en", "zh", "ko", "ja")]
        assert [mlogiqa.cluster_of(Item(id_, "?", "A")) for id_ in ids] == ["07", "07", *ids[2:]]


def test_a_cluster_of_the_file(tmp_path):
    rows = [MATH_ROWS[0] | {"cluster": "sum"}, MATH_ROWS[1] | {"cluster": 7}]
    loaded = load_benchmark(TWO, write(tmp_path / "two.jsonl", *rows))
    assert [TWO.cluster_of(item) for item in loaded.items] == ["sum", "7"]


@pytest.mark.parametrize(("name", "protocol"), [("chain-3", "generated"), ("choice-2", "slot")])
def test_a_set_of_the_lab_is_a_benchmark(name, protocol):
    questions = held_out(name, 20)
    benchmark = Benchmark(name, 20, protocol, "lab", PLAIN, "Apache-2.0", max_new_tokens=64)
    items = [Item(one.id, one.question, one.answer, one.solution, one.choices) for one in questions]
    loaded = item_set(benchmark, items, "the lab")
    tokenizer = build_tokenizer()
    for one, item in zip(questions, loaded.items, strict=True):
        expected = prompt_ids(tokenizer, [{"role": "user", "content": one.prompt}])
        assert prompt_ids(tokenizer, benchmark.messages(item)) == expected


COUNTS = {
    "gsm8k": 1319,
    "math500": 500,
    "aime24": 30,
    "aime25": 30,
    "livemathbench-hard": 21,
    "mt-aime2024": 1650,
    "mlogiqa": 240,
    "ceval": 1346,
    "mmlu": 14042,
}


@pytest.mark.parametrize("name", COUNTS)
def test_real_files_and_their_prompts(data_folder, name):
    benchmark = BENCHMARKS[name]
    loaded = load_benchmark(benchmark, data_folder)
    assert len(loaded.items) == COUNTS[name]
    three = [loaded.items[place] for place in (0, COUNTS[name] // 2, -1)]
    digests = {item.id: hashlib.sha256(benchmark.messages(item)[0]["content"].encode()).hexdigest() for item in three}
    assert digests == json.loads(SNAPSHOTS.read_text(encoding="utf-8"))[name]


def test_real_clusters_and_training_data(data_folder):
    mt_aime = load_benchmark(BENCHMARKS["mt-aime2024"], data_folder)
    clusters = [mt_aime.benchmark.cluster_of(item) for item in mt_aime.items]
    assert len(set(clusters)) == 30
    assert {clusters.count(one) for one in clusters} == {55}
    mlogiqa = load_benchmark(BENCHMARKS["mlogiqa"], data_folder)
    found: dict[str, list[Item]] = {}
    for item in mlogiqa.items:
        found.setdefault(mlogiqa.benchmark.cluster_of(item), []).append(item)
    assert Counter(tuple(item.language for item in members) for members in found.values()) == {
        ("en", "zh"): 80,
        ("ko",): 80,
    }
    # Translations of a question have one right answer, and the same options in one order.
    assert all(len({item.answer for item in members}) == 1 for members in found.values())
    assert len(read_items(data_folder / "gsm8k_train.jsonl.gz")) == 7473
    # Every file there is one of these.
    known = {name for one in BENCHMARKS.values() for name in one.files} | {"gsm8k_train.jsonl.gz"}
    assert {name for name in os.listdir(data_folder) if ".jsonl" in name} <= known


def test_a_data_folder_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("FORKLEFT_DATA", str(tmp_path / "nope"))
    with pytest.raises(ForkLeftError, match=r"FORKLEFT_DATA names the folder .*nope, which is not there"):
        load_benchmark(BENCHMARKS["gsm8k"])


MINE = {"name": "mine", "items": 2, "protocol": "generated", "template": "{question} Go."}


def describe(path, **changes):
    described = {name: value for name, value in (MINE | changes).items() if value is not ...}
    path.write_text(yaml.safe_dump(described))
    return path


def test_a_benchmark_is_described_in_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv("FORKLEFT_DATA", raising=False)
    (mine,) = read_benchmarks(describe(tmp_path / "mine.yaml"))
    assert (mine.verifier.kind, mine.licence, mine.max_new_tokens, mine.files) == ("math", "not said", 2048, ())
    with pytest.raises(ForkLeftError, match=r"^mine: found no data; name a JSON Lines file"):
        load_benchmark(mine)
    changes = {"data": ["other.jsonl", "two.jsonl"], "cluster": "^.", "licence": "MIT", "max_new_tokens": 7}
    path = describe(tmp_path / "mine.yml", **changes, templates={"zh": "math"}, verifier="lab")
    (mine,) = read_benchmarks(path)
    with pytest.raises(ForkLeftError, match=rf"a folder with other.jsonl or two.jsonl, or put .* into {tmp_path}$"):
        load_benchmark(mine)
    write(tmp_path / "two.jsonl", *MATH_ROWS)
    # Beside the file that describes it, wherever one is.
    monkeypatch.chdir(tmp_path.parent)
    loaded = load_benchmark(mine)
    assert loaded.complete and loaded.source == str(tmp_path / "two.jsonl")
    assert mine.messages(loaded.items[0])[0]["content"] == f"{loaded.items[0].question} Go."
    assert (mine.templates, mine.verifier, mine.licence) == ({"zh": MATH}, Verifier("lab"), "MIT")
    assert mine.cluster_of(Item("x7", "?", "1")) == "x"
    (hub,) = read_benchmarks(describe(tmp_path / "hub.yaml", data="owner/name", protocol="slot"))
    assert (hub.hub, hub.files, hub.verifier.kind) == (HubData("owner/name"), (), "choice")


def test_several_benchmarks_in_a_file(tmp_path):
    first, second = (describe(tmp_path / f"{name}.yaml", name=name).read_text() for name in ("a", "b"))
    (tmp_path / "both.yaml").write_text(f"{first}---\n{second}")
    assert [one.name for one in read_benchmarks(tmp_path / "both.yaml")] == ["a", "b"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"licens": "MIT"}, "there is no field 'licens' of a benchmark; did you mean licence?"),
        ({"xyz": 1}, "there is no field 'xyz' of a benchmark; there are name, items, protocol"),
        ({"source": "os:system"}, "there is no field 'source' of a benchmark"),
        ({"items": ..., "template": ...}, "name, items, protocol, template, items, template missing; add them"),
        ({"items": "many"}, "items: expected a whole number from 1 on, found 'many'"),
        ({"items": True}, "items: expected a whole number from 1 on, found True"),
        ({"items": 0}, "items: expected a whole number from 1 on, found 0"),
        ({"max_new_tokens": -1}, "max_new_tokens: expected a whole number from 1 on, found -1"),
        ({"name": ""}, "name: expected text, found ''"),
        ({"licence": None}, "licence: expected text, found None"),
        ({"data": []}, r"data: expected text or a list of texts, found \[\]"),
        ({"data": [1]}, r"data: expected text or a list of texts, found \[1\]"),
        ({"templates": {"zh": 1}}, "templates: expected a text for each language, found {'zh': 1}"),
        ({"protocol": "spoken"}, "protocol: expected generated or slot, found 'spoken'"),
        ({"template": "mathe"}, "template: expected a text with {question}, or one of math, choice, .* found 'mathe'"),
        ({"cluster": "("}, r"cluster: '\(' is no pattern: missing \)"),
        ({"verifier": "maths"}, "verifier: unknown verifier kind 'maths'; there are math"),
        ({"verifier": "nowhere:one"}, "verifier: cannot take the verifier nowhere:one: ModuleNotFoundError"),
        ({"verifier": "math", "protocol": "slot"}, "letters are compared in a slot, expected choice, found math"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_descriptions_that_cannot_be(tmp_path, changes, message):
    with pytest.raises(ForkLeftError, match=f"mine.yaml: .*{message}"):
        read_benchmarks(describe(tmp_path / "mine.yaml", **changes))


def test_a_file_cannot_allow_its_own_verifier(tmp_path, monkeypatch):
    (tmp_path / "judges_of_others.py").write_text("def mine(responses, answers): return [True] * len(answers)\n")
    monkeypatch.syspath_prepend(tmp_path)
    path = describe(tmp_path / "mine.yaml", verifier="judges_of_others:mine")
    with pytest.raises(ForkLeftError, match=r"mine.yaml names the verifier judges_of_others:mine, whose code would"):
        read_benchmarks(path, Trust())
    assert "judges_of_others" not in sys.modules
    for trust in (Trust(verifiers=True), Trust(named=("judges_of_others:mine",))):
        assert read_benchmarks(path, trust)[0].verifier.kind == "judges_of_others:mine"


def test_files_that_describe_nothing(tmp_path):
    with pytest.raises(ForkLeftError, match=r"there is no file .*none.yaml that describes a benchmark"):
        read_benchmarks(tmp_path / "none.yaml")
    for text, message in (("a: [", "is no YAML file"), ("", "found None"), ("- a", "expected the fields of a benchm")):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(ForkLeftError, match=message):
            read_benchmarks(tmp_path / "mine.yaml")


def test_items_that_are_made():
    made = Benchmark(
        "mine", 1, "generated", "math", PLAIN, "MIT", source=lambda one: item_set(one, [Item("a", "?", "1")], "here")
    )
    assert load_benchmark(made).complete
    with pytest.raises(ForkLeftError, match=r"mine: its items are made, not read; leave out two.jsonl"):
        load_benchmark(made, "two.jsonl")


def test_built_in_benchmarks_are_read_when_they_are_asked_for():
    code = "from forkleft.evaluate import benchmarks as b; print('_read' in vars(b.BENCHMARKS), len(b.BENCHMARKS))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False 10\n"
    )


def test_words_in_a_description_stay_words(tmp_path):
    """As in recipes: `no` is Norwegian, not false."""
    path = tmp_path / "mine.yaml"
    fields = ["name: mine", "items: 1", "protocol: generated", "template: math", "templates: {no: math}"]
    path.write_text("\n".join(fields), encoding="utf-8")
    (mine,) = read_benchmarks(path)
    assert mine.templates == {"no": MATH}
