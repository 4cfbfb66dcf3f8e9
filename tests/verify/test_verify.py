import json
import subprocess
import sys
from dataclasses import fields

import pytest

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import BENCHMARKS, load_benchmark, read_items
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import read_examples
from forkleft.verify import Judgement, extract, judge_batch, verify, verify_batch
from forkleft.verify.pool import NO_VERDICT, Bounds, Pool

# Different answers that are equal: `x=5` is asked for, and 5 is x.
EQUAL_NEIGHBOURS = {"gsm8k": set(), "math500": {"math500-test/algebra/1837"}}


def test_lab_answers():
    assert verify("b=1+1=2;#2", "2", "lab")
    assert not verify("b=1+1=2;#3", "2", "lab")
    assert not verify("b=1+1=2;", "2", "lab")


def test_math_is_the_default():
    assert verify(r"so it is \boxed{\frac{1}{2}}.", "0.5")
    assert not verify(r"so it is \boxed{\frac{1}{3}}.", "0.5")
    assert not verify("I do not know", "0.5")
    assert extract(r"so it is \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert extract("I do not know") is None


def test_choices():
    assert verify('"answer": "C"', "C", "choice")
    assert not verify('"answer": "C"', "B", "choice")
    assert extract('"answer": "F"', "choice") is None
    assert verify('"answer": "F"', "F", "choice", letters="ABCDEF")


def test_a_right_choice_must_be_offered():
    with pytest.raises(ForkLeftError, match="one of the letters ABCD as the right choice, found 'E'"):
        verify("E", "E", "choice")
    with pytest.raises(ForkLeftError, match="found 'AB'"):
        verify("E", "AB", "choice")
    with pytest.raises(ForkLeftError, match="expected capital letters of the offered choices, found 'a-d'"):
        verify("E", "E", "choice", letters="a-d")


def test_unknown_kind_names_what_exists():
    with pytest.raises(ForkLeftError, match="unknown verifier kind 'lap'; there are math, opdlm, choice, lab"):
        verify("#2", "2", "lap")


@pytest.mark.parametrize("kind", ["lab", "math", "opdlm", "choice"])
def test_a_batch_keeps_its_order(kind):
    form = {"lab": "#{}", "math": "\\boxed{{{}}}", "opdlm": "\\boxed{{{}}}", "choice": "answer: {}"}[kind]
    a, b, c = "ABC" if kind == "choice" else "234"
    responses = [form.format(a), form.format(b), "", form.format(c)]
    assert verify_batch(responses, [a, a, a, c], kind) == [True, False, False, True]
    assert judge_batch(responses[1:3], [a, a], kind) == [Judgement(False, b), Judgement(False, None)]
    assert verify_batch([], [], kind) == []
    with pytest.raises(ForkLeftError, match="an answer for each response, found 1 and 2"):
        verify_batch([form.format(a)], [a, b], kind)


def test_extract():
    assert extract("b=1+1=2;#2", "lab") == "2"
    assert extract("b=1+1=2;", "lab") is None


def test_the_import_is_cheap():
    heavy = {"torch", "transformers", "sympy", "math_verify"}
    code = f"import sys, forkleft; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("kind", ["math", pytest.param("opdlm", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["gsm8k", "math500"])
def test_reference_solutions_have_their_own_answers_only(data_folder, name, kind):
    items = load_benchmark(BENCHMARKS[name], data_folder).items
    responses = [f"{item.solution}\n\\boxed{{{item.answer}}}" for item in items]
    own = [item.answer for item in items]
    others = [_next_differing(own, place) for place in range(len(own))]
    verdicts = verify_batch(responses * 2, own + others, kind)
    assert [item.id for item, right in zip(items, verdicts[: len(items)], strict=True) if not right] == []
    confused = {item.id for item, right in zip(items, verdicts[len(items) :], strict=True) if right}
    assert confused == EQUAL_NEIGHBOURS[name], json.dumps(sorted(confused))


def _next_differing(answers, place):
    return next(answer for answer in answers[place + 1 :] + answers[:place] if answer != answers[place])


@pytest.mark.parametrize(
    "file", ["math500.jsonl", "gsm8k_test.jsonl", pytest.param("gsm8k_train.jsonl.gz", marks=pytest.mark.slow)]
)
def test_every_reference_of_training_verifies(data_folder, file):
    rows = [vars(item) for item in read_items(data_folder / file)]
    templates = {field.name: field.default for field in fields(ForkLeftConfig) if field.name.endswith("_template")}
    examples = read_examples(rows, verifier="math", **templates)
    verdicts = verify_batch([one.reference for one in examples], [one.answer for one in examples])
    assert [one.id for one, right in zip(examples, verdicts, strict=True) if not right] == []


def test_what_has_no_verdict_is_not_right_and_is_said(monkeypatch, caplog):
    class Lost:
        def judge(self, requests):
            return [NO_VERDICT if response == "lost" else (True, "5", True) for _, response, _ in requests]

    # Not by its path: forkleft.verify is the function too.
    monkeypatch.setattr(sys.modules["forkleft.verify"], "shared_pool", Lost)
    assert judge_batch(["5", "lost"], ["5", "5"]) == [Judgement(True, "5"), Judgement(False, None, judged=False)]
    assert verify_batch(["5", "lost"], ["5", "5"]) == [True, False]
    assert "no verdict on 1 of 2 responses within the verifier's bounds; they count as wrong" in caplog.text
    assert extract("lost") is None


@pytest.mark.parametrize("kind", ["math", "opdlm"])
def test_a_trigonometric_answer_that_takes_too_long_has_no_verdict(kind):
    pool = Pool(1, Bounds(cpu_seconds=0.5))
    factor = r"\left(2\cos\frac{{{n}\pi}}{{23}}+1\right)"
    slow = "".join(factor.format(n=n) for n in range(1, 12))
    replies = pool.judge([(kind, rf"\boxed{{{slow}}}", "2"), (kind, r"\boxed{2}", "2")])
    pool.close()
    assert replies == [NO_VERDICT, (True, "2", True)]
