import json
import subprocess
import sys
from dataclasses import fields

import pytest
from skips import slow

from forkleft.errors import ForkLeftError
from forkleft.evaluate.benchmarks import BENCHMARKS, load_benchmark, read_items
from forkleft.train.config import ForkLeftConfig
from forkleft.train.data import read_examples
from forkleft.verify import Judgement, Verifier, verify
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
    assert Verifier().extract(r"so it is \boxed{\frac{1}{2}}.") == r"\frac{1}{2}"
    assert Verifier().extract("I do not know") is None


def test_choices():
    assert verify('"answer": "C"', "C", "choice")
    assert not verify('"answer": "C"', "B", "choice")
    assert Verifier("choice").extract('"answer": "F"') is None
    assert verify('"answer": "F"', "F", "choice", letters="ABCDEF")


def test_a_right_choice_must_be_offered():
    with pytest.raises(ForkLeftError, match="one of the letters ABCD as the right choice, found 'E'"):
        verify("E", "E", "choice")
    with pytest.raises(ForkLeftError, match="found 'AB'"):
        verify("E", "AB", "choice")
    with pytest.raises(ForkLeftError, match="expected capital letters of the offered choices, found 'a-d'"):
        verify("E", "E", "choice", letters="a-d")


def test_unknown_kind_names_what_exists():
    with pytest.raises(ForkLeftError, match="unknown verifier kind 'lap'; there are math, opdlm, choice, lab, exact"):
        verify("#2", "2", "lap")


@pytest.mark.parametrize("kind", ["lab", "math", "opdlm", "choice", "exact"])
def test_a_batch_keeps_its_order(kind):
    form = {"lab": "#{}", "choice": "answer: {}", "exact": "{}"}.get(kind, "\\boxed{{{}}}")
    a, b, c = "ABC" if kind == "choice" else "234"
    responses = [form.format(a), form.format(b), "", form.format(c)]
    assert Verifier(kind).judge(responses, [a, a, a, c]) == [True, False, False, True]
    assert Verifier(kind).judgements(responses[1:3], [a, a]) == [Judgement(False, b), Judgement(False, None)]
    assert Verifier(kind).judge([], []) == []
    with pytest.raises(ForkLeftError, match="an answer for each response, found 1 and 2"):
        Verifier(kind).judge([form.format(a)], [a, b])


def test_extract():
    assert Verifier("lab").extract("b=1+1=2;#2") == "2"
    assert Verifier("lab").extract("b=1+1=2;") is None
    assert Verifier("exact").extract(" b=1+1=2;#2\n") == "b=1+1=2;#2"


def test_exact_judges_every_step():
    solution = "b=1+1=2;c=2*5=0;#0"
    lucky = "b=1+1=0;c=0*5=0;#0"
    assert verify(lucky, "0", "lab") and verify(solution, "0", "lab")
    assert verify(f"{solution}\n", solution, "exact") and not verify(lucky, solution, "exact")
    assert not verify("", solution, "exact")


def test_the_import_is_cheap():
    heavy = {"torch", "transformers", "sympy", "math_verify"}
    code = f"import sys, forkleft; print({heavy} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["math", "opdlm"])
@pytest.mark.parametrize("name", ["gsm8k", "math500"])
def test_reference_solutions_have_their_own_answers_only(data_folder, name, kind):
    items = load_benchmark(BENCHMARKS[name], data_folder).items
    responses = [f"{item.solution}\n\\boxed{{{item.answer}}}" for item in items]
    own = [item.answer for item in items]
    others = [_next_differing(own, place) for place in range(len(own))]
    verdicts = Verifier(kind).judge(responses * 2, own + others)
    assert [item.id for item, right in zip(items, verdicts[: len(items)], strict=True) if not right] == []
    confused = {item.id for item, right in zip(items, verdicts[len(items) :], strict=True) if right}
    assert confused == EQUAL_NEIGHBOURS[name], json.dumps(sorted(confused))


def _next_differing(answers, place):
    return next(answer for answer in answers[place + 1 :] + answers[:place] if answer != answers[place])


@pytest.mark.parametrize("file", ["math500.jsonl", "gsm8k_test.jsonl", slow("gsm8k_train.jsonl.gz")])
def test_every_reference_of_training_verifies(data_folder, file):
    rows = [vars(item) for item in read_items(data_folder / file)]
    templates = {field.name: field.default for field in fields(ForkLeftConfig) if field.name.endswith("_template")}
    examples = read_examples(rows, verifier=Verifier("math"), **templates)
    verdicts = Verifier().judge([example.reference for example in examples], [example.answer for example in examples])
    assert [example.id for example, right in zip(examples, verdicts, strict=True) if not right] == []


def test_what_has_no_verdict_is_not_right_and_is_said(monkeypatch, caplog):
    class Lost:
        def judge(self, requests):
            return [NO_VERDICT if response == "lost" else (True, "5", True) for _, response, _ in requests]

    # Not by its path: forkleft.verify is the function too.
    monkeypatch.setattr(sys.modules["forkleft.verify"], "shared_pool", Lost)
    assert Verifier().judgements(["5", "lost"], ["5", "5"]) == [
        Judgement(True, "5"),
        Judgement(False, None, judged=False),
    ]
    assert Verifier().judge(["5", "lost"], ["5", "5"]) == [True, False]
    assert "no verdict on 1 of 2 responses within the verifier's bounds; they count as wrong" in caplog.text
    assert Verifier().extract("lost") is None


@pytest.mark.parametrize("kind", ["math", "opdlm"])
def test_a_trigonometric_answer_that_takes_too_long_has_no_verdict(kind):
    pool = Pool(1, Bounds(cpu_seconds=0.5))
    factor = r"\left(2\cos\frac{{{n}\pi}}{{23}}+1\right)"
    slow = "".join(factor.format(n=n) for n in range(1, 12))
    replies = pool.judge([(kind, rf"\boxed{{{slow}}}", "2"), (kind, r"\boxed{2}", "2")])
    pool.close()
    assert replies == [NO_VERDICT, (True, "2", True)]


# The user's own.


def contains(responses, answers):
    return [answer in response for response, answer in zip(responses, answers, strict=True)]


class Strict:
    def __call__(self, responses, answers):
        return tuple(map(str.__eq__, responses, answers))


def test_a_verifier_is_a_value():
    assert Verifier.of("choice", "ABCDE") == Verifier("choice", "ABCDE")
    assert Verifier.of(Verifier("lab"), "XYZ") == Verifier("lab")
    assert Verifier("choice", "ABCDEF").judge(['"answer": "F"'], ["F"]) == [True]


@pytest.mark.parametrize(("function", "name"), [(contains, "contains"), (Strict(), "Strict")])
def test_a_function_is_a_verifier(function, name):
    verifier = Verifier.of(function)
    assert verifier.kind == f"{__name__}:{name}"
    assert verifier.judge(["2", "5", " "], ["2", "4", "1"]) == [True, False, False]
    # It is not asked about nothing, and to it the whole response is the answer.
    assert verifier.judge([], []) == []
    assert verifier.judgements([" 2 ", " "], ["1", "1"]) == [Judgement(False, "2"), Judgement(False, None)]


def test_a_function_is_named_by_its_path(tmp_path, monkeypatch):
    code = "class Known:\n    def always(responses, answers):\n        return [True] * len(answers)\n\nnumber = 3\n"
    (tmp_path / "my_verifiers.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    assert Verifier.of("my_verifiers:Known.always").judge(["a"], ["b"]) == [True]
    for path, message in (
        ("my_verifiers:never", "cannot take the verifier my_verifiers:never: AttributeError: .* PYTHONPATH names"),
        ("nowhere.verifiers:one", "cannot take the verifier nowhere.verifiers:one: ModuleNotFoundError"),
        (":one", "cannot take the verifier :one: ValueError"),
        ("my_verifiers:number", "the verifier my_verifiers:number is no function, but 3"),
    ):
        with pytest.raises(ForkLeftError, match=message):
            Verifier.of(path)
    # Only where the user is asked: a kind alone imports nothing.
    with pytest.raises(ForkLeftError, match="unknown verifier kind 'my_verifiers:number'"):
        Verifier("my_verifiers:number")


def test_a_function_does_not_take_the_name_of_a_kind():
    with pytest.raises(ForkLeftError, match="math is the name of a built-in verifier"):
        Verifier("math", function=contains)
    with pytest.raises(ForkLeftError, match="expected a verifier's kind or a function, found 3"):
        Verifier.of(3)


def fails_on_b(responses, answers):
    if "b" in responses:
        raise KeyError("no b")
    return [True] * len(responses)


def fails_on_two(responses, answers):
    if len(responses) > 1:
        raise MemoryError("too many")
    return [True]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (fails_on_b, "fails_on_b raised KeyError on question q2: 'no b'; what was finished before is kept; mend"),
        (fails_on_two, "fails_on_two raised MemoryError on question q1 to question q3, only together: too many"),
        (lambda responses, answers: [True], "returned 1 verdicts on 3 responses, question q1 to question q3: expected"),
        (lambda responses, answers: [True, 1, True], r"returned 1 \(int\) on question q2: expected True or False"),
        (lambda responses, answers: [True, True, None], r"returned None \(NoneType\) on question q3"),
        (lambda responses, answers: None, "returned None on question q1 to question q3: expected a list of True and"),
        (lambda responses, answers: "yes", "returned 'yes' on question q1 to question q3: expected a list"),
    ],
)
def test_a_function_that_is_no_verifier_is_named_with_the_question(function, message):
    with pytest.raises(ForkLeftError, match=rf"the verifier \S+ {message}|the verifier \S+:{message}"):
        Verifier.of(function).judge(["a", "b", "c"], ["1", "2", "3"], ids=["q1", "q2", "q3"])
