"""Rows as the data sets on the hub have them, made up; nothing is downloaded."""

import logging

import pytest
from huggingface_hub.utils import http_backoff

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import BENCHMARKS, Item, load_benchmark
from forkleft.evaluate.hub import SOURCES, HubData, hub_rows

GPQA_ROW = {
    "Record ID": "rec1",
    "Question": " Which? ",
    "Correct Answer": "right\n",
    "Incorrect Answer 1": "wrong 1",
    "Incorrect Answer 2": "wrong 2",
    "Incorrect Answer 3": "wrong 3",
    "Subdomain": "Optics",
}


@pytest.fixture
def hub(monkeypatch):
    """Rows for every subset of every data set, and what was asked for."""

    def serve(rows):
        asked = []
        monkeypatch.setattr("datasets.load_dataset", lambda *a, **options: asked.append((*a, options["split"])) or rows)
        return asked

    return serve


def items(name):
    return load_benchmark(BENCHMARKS[name], SOURCES[name]).items


def test_every_benchmark_is_on_the_hub():
    assert {name: one.hub for name, one in BENCHMARKS.items()} == SOURCES


def test_columns_of_our_names_are_taken_as_they_are(hub):
    hub([{"id": "a", "question": "?", "answer": "1"}, {"question": "?", "answer": 1, "choices": ["x", "y"]}])
    rows = [row for _, row in hub_rows(HubData("owner/name"))]
    assert [(row["id"], row["answer"]) for row in rows] == [("a", "1"), ("1", "B")]
    ids = [row["id"] for _, row in hub_rows(HubData("owner/name", ("x", "y")))]
    assert ids == ["a", "x-1", "a", "y-1"]


@pytest.mark.parametrize(
    ("name", "row", "item", "asked"),
    [
        (
            "gsm8k",
            {"question": "1000+1?", "answer": "<<1000+1>>\n#### 1,001"},
            Item("0", "1000+1?", "1001", solution="<<1000+1>>\n#### 1,001"),
            ("openai/gsm8k", "main", "test"),
        ),
        (
            "math500",
            {"problem": "1+1?", "solution": "2.", "answer": "2", "subject": "Algebra", "unique_id": "test/algebra/1"},
            Item("test/algebra/1", "1+1?", "2", solution="2.", subject="Algebra"),
            ("HuggingFaceH4/MATH-500", None, "test"),
        ),
        (
            "aime24",
            {"id": 60, "problem": "1+1?", "answer": "2", "solution": "2.", "year": "2024"},
            Item("60", "1+1?", "2"),
            ("HuggingFaceH4/aime_2024", None, "train"),
        ),
        ("aime25", {"problem": "1+1?", "answer": "2"}, Item("0", "1+1?", "2"), ("math-ai/aime25", None, "test")),
        (
            "mmlu",
            {"question": "1+1?", "subject": "sums", "choices": ["1", "2"], "answer": 1},
            Item("all-0", "1+1?", "B", choices=("1", "2"), subject="sums"),
            ("cais/mmlu", "all", "test"),
        ),
    ],
)
def test_one_row_is_one_item(hub, name, row, item, asked):
    calls = hub([row])
    assert items(name) == (item,)
    assert calls == [asked]


def test_livemathbench_has_a_subset_for_each_language(hub):
    calls = hub([{"question": "1+1?", "answer": "$2$", "question_type": "fill-in"}])
    english, chinese = items("livemathbench-hard")
    assert english == Item("en-00", "1+1?", "2", subject="fill-in", language="en")
    assert (chinese.id, chinese.language) == ("cn-00", "cn")
    assert [call[1] for call in calls] == ["v202412_hard_en", "v202412_hard_cn"]
    hub([{"question": "?", "answer": "$x$ or $y$", "question_type": "fill-in"}])
    assert items("livemathbench-hard")[0].answer == "$x$ or $y$"


def test_a_row_of_mt_aime_is_a_question_in_all_languages(hub):
    hub([{"en": "1+1?", "cy": "1+1 yw?", "answer": 2}, {"en": "2+2?", "cy": "2+2 yw?", "answer": 4}])
    loaded = items("mt-aime2024")
    assert loaded[1] == Item("cy-00", "1+1 yw?", "2", language="cy", cluster="00")
    assert [BENCHMARKS["mt-aime2024"].cluster_of(item) for item in loaded] == ["00", "00", "01", "01"]


def test_gpqa_shuffles_its_options_in_one_order_for_everyone(hub):
    hub([GPQA_ROW | {"Record ID": f"rec{number}"} for number in range(40)])
    loaded = items("gpqa-diamond")
    assert all(item.choices["ABCD".index(item.answer)] == "right" for item in loaded)
    assert {item.answer for item in loaded} == set("ABCD")
    assert (loaded[0].question, loaded[0].subject) == ("Which?", "Optics")
    assert items("gpqa-diamond") == loaded


def test_mlogiqa_has_a_subset_for_each_language(hub):
    hub([{"context": "All A are B.", "question": "Is A B?", "options": "['no', 'yes']", "answer": "1"}])
    loaded = items("mlogiqa")
    assert len(loaded) == 10
    assert loaded[0] == Item("en-00", "All A are B.\nIs A B?", "B", choices=("no", "yes"), language="en")


def test_ceval_has_a_subset_for_each_subject(hub):
    calls = hub([{"id": 0, "question": "?", "A": "1", "B": "2", "C": "3", "D": "4", "answer": "C", "explanation": ""}])
    loaded = items("ceval")
    assert len({call[1] for call in calls}) == len(loaded) == 52
    told = {"choices": ("1", "2", "3", "4"), "subject": "accountant", "language": "zh"}
    assert loaded[0] == Item("accountant-000", "?", "C", **told)


def test_a_place_that_no_choice_has(hub):
    hub([{"question": "?", "choices": ["1", "2"], "answer": 2}])
    with pytest.raises(ForkLeftError, match="row 0: expected text in answer"):
        items("mmlu")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("gsm8k", {"problem": "?", "answer": "1"}),
        ("gpqa-diamond", GPQA_ROW | {"Correct Answer": None}),
        ("mlogiqa", {"context": "", "question": "?", "options": "[no", "answer": "0"}),
    ],
)
def test_other_columns_than_expected(hub, name, row):
    hub([row])
    with pytest.raises(ForkLeftError, match=rf"{name}: .*row 0: expected the columns that this data set had"):
        items(name)


def test_a_hub_that_is_not_reached_is_told_once(monkeypatch, caplog):
    """The hub's client tries again less often, says nothing meanwhile, and is as before afterwards."""
    usual, seen = http_backoff.__kwdefaults__["max_retries"], []

    def load_dataset(*names, split):
        seen.append(http_backoff.__kwdefaults__["max_retries"])
        logging.getLogger("huggingface_hub.utils._http").warning("Retrying in 1s")
        raise ConnectionError("Couldn't reach the Hub\nand more")

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    with pytest.raises(ForkLeftError, match=r"cannot load owner/name .* the hub: Couldn't reach the Hub$"):
        list(hub_rows(HubData("owner/name")))
    assert seen[0] < usual == http_backoff.__kwdefaults__["max_retries"]
    assert not caplog.messages
