import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml
from naive import prefix_log_probs
from tiny import FAMILIES, family_name, plain_copy, tiny_student, tiny_tokenizer

from forkleft.errors import ForkLeftError
from forkleft.evaluate.harness import log_likelihoods, main, model_class
from forkleft.lab.models import load_model
from forkleft.lab.questions import held_out
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.students import KNOWN_FAMILIES, Family, load_student, save_student
from forkleft.students.families import Decoding

if os.environ.get("FORKLEFT_NO_SKIPS") == "1":
    from lm_eval.api.instance import Instance
else:
    Instance = pytest.importorskip("lm_eval.api.instance").Instance

QUESTIONS = [
    {"question": "3#7abc", "choices": ["4", "7", "9"], "gold": 1},
    {"question": "12abz#", "choices": ["0", "1", "2"], "gold": 0},
    {"question": "zz9", "choices": ["a1", "a2", "bcdefg"], "gold": 2},
    {"question": "#q", "choices": ["k", "mn", "opq"], "gold": 0},
]
CHOICE = {
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "choices",
    "doc_to_target": "gold",
    "metric_list": [{"metric": "acc"}],
}


def run_task(folder: Path, rows: list[dict], settings: dict, *arguments: str) -> tuple[dict, list[dict]]:
    """Run a task of local rows through lm_eval's command line; its metrics and the samples it logged."""
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    task = {
        "task": "tiny",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}, "cache_dir": str(folder / "cache")},
        "test_split": "test",
        "target_delimiter": "",
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(task | settings), encoding="utf-8")
    output = folder / "results"
    told = ["--output_path", str(output), "--log_samples", *arguments]
    assert main(["--tasks", str(folder / "tiny.yaml"), *told]) == 0
    results = json.loads(next(output.rglob("results_*.json")).read_text(encoding="utf-8"))
    samples = next(output.rglob("samples_*.jsonl")).read_text(encoding="utf-8").splitlines()
    return results["results"]["tiny"], sorted(map(json.loads, samples), key=lambda sample: sample["doc_id"])


@pytest.fixture(autouse=True)
def only_local_tasks(monkeypatch, tmp_path):
    """No network; and lm_eval, which reads all of its 14,000 task files in every run, finds none of its own."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    # As lm_eval leaves it behind.
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    (tmp_path / "none").mkdir()
    monkeypatch.setattr("lm_eval.tasks.manager.__file__", str(tmp_path / "none" / "manager.py"))


@pytest.fixture
def saved(tmp_path) -> Path:
    student = tiny_student(Family("block", 4), tokenizer=tiny_tokenizer(), dtype=torch.float64)
    save_student(student, tmp_path / "student")
    return tmp_path / "student"


def model_of(folder: Path, **settings):
    return model_class()(pretrained=str(folder), **settings)


def asked(context: str, options: dict, item: int = 0) -> Instance:
    return Instance("generate_until", {}, (context, options), 0, ("tiny", item, 1))


def test_generated_answers_of_a_lab_student_equal_its_native_sampler(tmp_path):
    items = held_out("chain-3", 12)
    rows = [{"question": item.prompt, "answer": item.answer} for item in items]
    settings = {
        "output_type": "generate_until",
        "doc_to_text": "{{question}}",
        "doc_to_target": "{{answer}}",
        "generation_kwargs": {"until": ["#"], "max_gen_toks": 48, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
        "filter_list": [{"name": "last", "filter": [{"function": "regex", "regex_pattern": r"=(\d);?\s*$"}]}],
    }
    options = [
        "--model_args",
        "pretrained=lab:student-block,passes=8,dtype=float64",
        "--apply_chat_template",
        "--batch_size",
        "5",
    ]
    results, samples = run_task(tmp_path, rows, settings, *options)

    lab = load_model("student-block")
    lab.model.double()
    prompts = [prompt_ids(lab.tokenizer, [{"role": "user", "content": item.prompt}]) for item in items]
    texts = [one.text for one in generate(lab.student, prompts, max_new_tokens=48, passes=8)]
    assert any("#" in text for text in texts)
    cut = [text.split("#")[0] for text in texts]
    assert [sample["resps"] for sample in samples] == [[[text]] for text in cut]
    answers = [(text.rstrip().rstrip(";"))[-1:] for text in cut]
    right = [answer == item.answer for answer, item in zip(answers, items, strict=True)]
    assert sum(right) > 0
    assert results["exact_match,last"] == pytest.approx(sum(right) / len(items))


def test_multiple_choice_equals_one_forward_for_every_slot(tmp_path, saved):
    options = ["--model_args", f"pretrained={saved}", "dtype=float64", "batch_size=3"]
    results, samples = run_task(tmp_path, QUESTIONS, CHOICE, *options)

    student = tiny_student(Family("block", 4), tokenizer=tiny_tokenizer(), dtype=torch.float64)
    model, tokenizer = plain_copy(student), student.tokenizer
    right = []
    for row, sample in zip(QUESTIONS, samples, strict=True):
        context = tokenizer.encode(row["question"])
        expected = []
        for choice in row["choices"]:
            expected.append(naive_score(model, student.family, context, tokenizer.encode(choice))[0])
        found = [float(one[0][0]) for one in sample["resps"]]
        assert found == pytest.approx(expected, abs=1e-12)
        right.append(max(range(3), key=expected.__getitem__) == row["gold"])
    assert results["acc,none"] == sum(right) / len(QUESTIONS)
    assert 0 < sum(right) < len(QUESTIONS)


def naive_score(model, family, context, continuation) -> tuple[float, bool]:
    total, greedy = 0.0, True
    for i, token in enumerate(continuation):
        logp_V = prefix_log_probs(model, family, context, continuation, i, budget=len(continuation))
        total += logp_V[token].item()
        greedy &= logp_V.argmax().item() == token
    return total, greedy


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_log_likelihoods_of_every_family_equal_the_naive_ones(family):
    student = tiny_student(family, dtype=torch.float64)
    model = plain_copy(student)
    pairs = [([5, 6, 7], [1]), ([5, 6, 7], [2]), ([9], [3, 4, 5, 6, 7]), ([9], [3, 4, 5, 6, 8]), ([9], [3, 3])]
    # What is likeliest everywhere is greedy.
    likeliest: list[int] = []
    for i in range(3):
        row_V = prefix_log_probs(model, family, [5, 6, 7], [*likeliest, 0], i, budget=3)
        likeliest.append(row_V.argmax().item())
    pairs.append(([5, 6, 7], likeliest))
    for batch_size in (1, 4):
        found = dict(log_likelihoods(student, pairs, batch_size=batch_size))
        assert sorted(found) == list(range(len(pairs)))
        for number, pair in enumerate(pairs):
            score, greedy = naive_score(model, family, *pair)
            assert found[number] == (pytest.approx(score, abs=1e-12), greedy)
        assert found[len(pairs) - 1][1]


def test_letters_of_one_question_share_one_reading(monkeypatch):
    from forkleft.evaluate import harness

    counts = []
    real = harness.prefix_hidden
    monkeypatch.setattr(
        harness,
        "prefix_hidden",
        lambda student, readings, **rest: counts.append(len(readings)) or real(student, readings, **rest),
    )
    pairs = [([one, 6], [letter]) for one in range(3) for letter in (1, 2, 3, 4)]
    assert len(dict(log_likelihoods(tiny_student(Family("block", 4)), pairs, batch_size=2))) == 12
    assert counts == [2, 1]


def test_requests_with_different_options_come_back_in_order(saved):
    model = model_of(saved, dtype="float64", batch_size="2", max_new_tokens=6)
    student, tokenizer = model.student, model.tokenizer
    contexts = ["3#7abc", "12abz#", "zz9", "#q"]
    options = [{"max_gen_toks": 8}, {}, {"max_new_tokens": 8, "until": "a"}, {"until": ["zzzz", ""], "num_beams": 1}]
    requests = [asked(context, one, i) for i, (context, one) in enumerate(zip(contexts, options, strict=True))]
    found = model.generate_until(requests, disable_tqdm=True)
    for text, context, budget, until in zip(found, contexts, (8, 6, 8, 6), (None, None, "a", None), strict=True):
        (alone,) = generate(student, [tokenizer.encode(context)], max_new_tokens=budget)
        assert text == (alone.text.split(until)[0] if until else alone.text)


def test_sampling_follows_the_seed_and_repeats_draw_anew(saved):
    model = model_of(saved, max_new_tokens=12)
    requests = [asked("zz9", {"do_sample": True, "temperature": 2.0})] * 10

    def drawn(seed: int) -> list[str]:
        torch.manual_seed(seed)
        return model.generate_until(requests, disable_tqdm=True)

    first = drawn(1)
    # More than are written at once, so that the sampler alone could not tell all repeats apart.
    assert len(set(first)) == 10
    assert drawn(1) == first
    assert drawn(2) != first
    greedy = [asked("zz9", {"do_sample": False, "temperature": 2.0}), asked("zz9", {"temperature": 0.0})]
    (alone,) = generate(model.student, [model.tokenizer.encode("zz9")], max_new_tokens=12)
    assert model.generate_until(greedy, disable_tqdm=True) == [alone.text] * 2


def test_the_cache_of_lm_eval_answers_a_second_time(tmp_path, saved):
    from lm_eval.api.model import CachingLM

    model = model_of(saved, max_new_tokens=6)
    cached = CachingLM(model, str(tmp_path / "cache.db"))
    requests = [asked("zz9", {}), asked("#q", {}, 1)]
    choices = [Instance("loglikelihood", {}, ("zz9", one), 0, ("tiny", 0, 1)) for one in ("a", "b")]
    first = cached.generate_until(requests), cached.loglikelihood(choices)
    del model.student
    assert (cached.generate_until(requests), [tuple(one) for one in cached.loglikelihood(choices)]) == first


def test_chat_template_and_special_tokens(saved):
    model = model_of("lab:student-block")
    messages = [{"role": "user", "content": "a=1;b=a+2;b?"}]
    text = model.apply_chat_template(messages)
    assert model.tok_encode(text) == prompt_ids(model.tokenizer, messages)
    opened = model.apply_chat_template([*messages, {"role": "assistant", "content": "b="}], add_generation_prompt=False)
    assert opened == text + "b="
    assert model.chat_template(True) == model.tokenizer.chat_template
    assert "/" not in model.tokenizer_name
    model.tokenizer.chat_template = None
    with pytest.raises(ForkLeftError, match="no chat template"):
        model.apply_chat_template(messages)

    plain = model_of(saved)
    plain.tokenizer.bos_token = "#"
    plain.tokenizer.encode = lambda text, add_special_tokens: [text, add_special_tokens]
    assert plain.tok_encode("ab") == ["ab", True]
    assert plain.tok_encode("#ab") == ["#ab", False]
    assert plain.tok_encode("ab", add_special_tokens=False) == ["ab", False]


def test_a_chat_template_can_be_given(saved, monkeypatch):
    messages = [{"role": "user", "content": "ab1"}]
    model = model_of(saved, chat_template="zz{{ messages[0].content }}")
    assert model.apply_chat_template(messages) == "zzab1"
    made = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: made.append(model_of(saved)))
    assert main(["--tasks", "x"], chat_template="yy{{ messages[0].content }}") == 0
    assert made[0].apply_chat_template(messages) == "yyab1"
    assert model_of(saved).apply_chat_template(messages) == "ab1"


def test_decodings(saved, tmp_path):
    asking = [asked("zz9", {"max_gen_toks": 12})]
    named = tiny_student(KNOWN_FAMILIES["sdar"].family, tokenizer=tiny_tokenizer(), dtype=torch.float64)
    save_student(named, tmp_path / "named")
    default, native = (model_of(tmp_path / "named", decoding=name) for name in ("static", "native"))
    assert default.get_model_info() == {"decoding": "static"} | asdict(Decoding())
    assert native.get_model_info() == {"decoding": "native"} | asdict(Decoding(threshold=0.85))
    by_hand = model_of(tmp_path / "named", threshold=0.85)
    assert native.generate_until(asking) == by_hand.generate_until(asking)
    assert model_of(tmp_path / "named", decoding="native", threshold=0.5).decoding == Decoding(threshold=0.5)
    with pytest.raises(ForkLeftError, match="the native decoding is known of the families"):
        model_of(saved, decoding="native")


def test_facts_of_the_student_can_be_given(saved):
    model = model_of(saved, block_size=8, mask_token="<mask>", dtype="bfloat16", device="cpu")
    assert model.student.family == Family("block", 8)
    assert model.student.model.dtype == torch.bfloat16
    assert model.student.family != load_student(saved).family


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"parallelize": True}, "no argument parallelize; there are pretrained, family"),
        ({"pretrained": None}, "pretrained=FOLDER"),
        ({"dtype": "int8"}, "dtype must be one of float32"),
        ({"batch_size": "auto"}, "batch_size must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
    ],
)
def test_bad_arguments_are_refused(saved, settings, message):
    with pytest.raises(ForkLeftError, match=message):
        model_class()(**{"pretrained": str(saved)} | settings)


def test_what_cannot_be_asked_of_a_student_is_refused(saved):
    model = model_of(saved, max_new_tokens=6)
    with pytest.raises(ForkLeftError, match="num_beams=4, repetition_penalty=2"):
        model.generate_until([asked("zz9", {"num_beams": 4, "repetition_penalty": 2})])
    with pytest.raises(ForkLeftError, match="tiny/1/0: a prompt of 3 tokens and a response of up to 900"):
        model.generate_until([asked("zz9", {}), asked("zz9", {"max_gen_toks": 900}, 1)])
    with pytest.raises(ForkLeftError, match="perplexity of running text"):
        model.loglikelihood_rolling([])
    with pytest.raises(ForkLeftError, match="request 1: the continuation adds no token"):
        list(log_likelihoods(model.student, [([1], [2]), ([1], [])], batch_size=1))
    with pytest.raises(ForkLeftError, match="request 0: the continuation holds 1 id"):
        list(log_likelihoods(model.student, [([1], [model.student.vocabulary.mask_id])], batch_size=1))


def test_the_command_line_is_the_real_one(tmp_path, capsys, monkeypatch):
    before = list(sys.argv)
    assert main(["--help"]) == 0
    assert "Language Model Evaluation Harness" in capsys.readouterr().out
    assert main(["run", "--no_such_option"]) == 2
    assert "--no_such_option" in capsys.readouterr().err
    with pytest.raises(ForkLeftError, match="no lab model 'nothing'"):
        run_task(tmp_path, QUESTIONS, CHOICE, "--model_args", "pretrained=lab:nothing")
    assert sys.argv == before

    seen = []
    monkeypatch.setattr("lm_eval.__main__.cli_evaluate", lambda: seen.append(sys.argv[1:]))
    own = ["--model", "forkleft"]
    for arguments, expected in [
        (["--tasks", "x"], [*own, "--tasks", "x"]),
        (["run", "--tasks", "x"], ["run", *own, "--tasks", "x"]),
        (["--tasks", "x", "--model", "hf"], [*own, "--tasks", "x", "--model", "hf"]),
        (["--confirm_run_unsafe_code", "-s"], [*own, "--confirm_run_unsafe_code", "-s"]),
        (["run", "--config", "x.yaml"], ["run", "--config", "x.yaml"]),
        (["-C", "x.yaml"], ["-C", "x.yaml"]),
        (["ls", "tasks"], ["ls", "tasks"]),
        (["run"], ["run"]),
        ([], []),
    ]:
        assert main(arguments) == 0
        assert seen.pop() == expected


def test_tasks_that_cannot_be_had(tmp_path, saved, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    absent = CHOICE | {"dataset_path": "no-such-owner/no-such-set", "dataset_kwargs": {}}
    with pytest.raises(ForkLeftError, match=r"lm_eval cannot read .*no-such-owner/no-such-set.*is the hub within"):
        run_task(tmp_path, QUESTIONS, absent, "--model_args", f"pretrained={saved}")
    with pytest.raises(ForkLeftError, match="lm_eval: Tasks not found: nothing; `forkleft lm-eval ls tasks`"):
        main(["--tasks", "nothing", "--model_args", f"pretrained={saved}"])


def test_without_lm_eval_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval.__main__", None)
    with pytest.raises(ForkLeftError, match=r"pip install 'forkleft\[lm-eval\]'"):
        main(["--tasks", "x"])
