import json

import pytest
from commands import run

from forkleft import verify


def test_benchmarks_are_listed_and_results_compared(capsys, tmp_path):
    code, out, _ = run(capsys, "eval", "--list")
    assert code == 0
    assert all(name in out for name in ("gsm8k", "mmlu", "lab-chain-4"))
    for model in ("student-block", "student-shifted"):
        words = ("eval", "--model", f"lab:{model}", "--benchmark", "lab-chain-2", "lab-choice-2", "--limit", "4")
        code, _, err = run(capsys, *words, "--output", str(tmp_path / model), "--device", "cpu", "--batch-size", "4")
        assert code == 0, err
    code, out, _ = run(capsys, "compare", str(tmp_path / "student-block"), str(tmp_path / "student-shifted"), "--json")
    assert code == 0
    assert "lab-chain-2" in out and "lab-choice-2" in out
    words = ("compare", str(tmp_path / "student-block"), str(tmp_path / "student-shifted"), "--markdown")
    row = json.loads(out)["rows"][0]
    for digits in ("1", "2"):
        code, page, _ = run(capsys, *words, "--digits", digits)
        assert f"| {100 * row['a']['value']:.{digits}f} (" in page and f"; {row['right_a']}/4) |" in page


def test_a_teacher_in_another_precision_over_several_devices(capsys, tmp_path, monkeypatch):
    """There is one device here; that all weights of a map come together is tested with load_teacher."""
    from transformers import AutoModelForCausalLM

    asked, load = [], AutoModelForCausalLM.from_pretrained
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_pretrained", lambda *names, **told: asked.append(told) or load(*names, **told)
    )
    words = ("eval", "--model", "lab:teacher-weak", "--benchmark", "lab-chain-2", "--limit", "4", "--output")
    spread = ("--ar", "--device-map", "auto", "--dtype", "bfloat16")
    code, _, err = run(capsys, *words, str(tmp_path / "a"), *spread)
    assert code == 0, err
    assert (asked[0]["device_map"], str(asked[0]["dtype"])) == ("auto", "torch.bfloat16")
    told = json.loads((tmp_path / "a" / "lab-chain-2" / "summary.json").read_text())["configuration"]["model"]
    assert told["dtype"] == "bfloat16"
    code, _, err = run(capsys, *words, str(tmp_path / "b"), "--ar", "--device-map", "somewhere")
    assert (code, "found somewhere" in err) == (2, True)
    for wrong in (spread[1:], (*spread, "--device", "cpu")):
        code, _, err = run(capsys, *words, str(tmp_path / "c"), *wrong)
        assert (code, "it goes with --ar, without --device" in err) == (2, True)


def test_another_verifier_than_the_benchmark_s(capsys, tmp_path):
    (tmp_path / "math500.jsonl").write_text('{"id": "a", "question": "1+1?", "answer": "2"}\n')
    words = ("eval", "--model", "lab:student-block", "--device", "cpu", "--max-new-tokens", "8")
    one = ("--data", str(tmp_path), "--benchmark", "math500", "--limit", "1", "--output")
    for said, used in (((), "opdlm"), (("--verifier", "math"), "math")):
        code, _, err = run(capsys, *words, *one, str(tmp_path / used), *said)
        assert code == 0, err
        told = json.loads((tmp_path / used / "math500" / "summary.json").read_text())["configuration"]
        assert told["verifier"] == used
    code, out, err = run(capsys, "compare", str(tmp_path / "opdlm"), str(tmp_path / "math"))
    assert code == 0, err
    assert "verifier is opdlm in A and math in B" in " ".join(out.split())
    chains = ("--benchmark", "lab-chain-2", "--output", str(tmp_path / "lab"))
    code, _, err = run(capsys, *words, *chains, "--verifier", "math")
    assert code == 2
    assert "--verifier math is for mathematical answers, and those of lab-chain-2 are not" in " ".join(err.split())


def test_a_benchmark_and_a_verifier_of_the_user_s(capsys, tmp_path, monkeypatch):
    """Described in a file, judged by a function; one that fails keeps what was finished."""
    questions = [{"id": f"q{k}", "question": f"a={k};b=a+1;b?", "answer": str(k + 1)} for k in range(4)]
    (tmp_path / "chains.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    (tmp_path / "my_checks.py").write_text(
        "from forkleft import Verifier\n\nbroken = False\n\ndef last(responses, answers):\n"
        "    if broken and '4' in answers:\n        raise ValueError('no 4')\n"
        "    return Verifier('lab').judge(responses, answers)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(
        "name: my-chains\nitems: 4\nprotocol: generated\nverifier: my_checks:last\ntemplate: plain\n"
        "max_new_tokens: 32\ndata: chains.jsonl\nlicence: mine alone\n"
    )
    code, _, err = run(capsys, "eval", "--list", "--benchmark", str(path))
    assert code == 2 and "mine.yaml names the verifier my_checks:last, whose code would run" in err
    code, out, _ = run(capsys, "eval", "--list", "--benchmark", str(path), "--trust-verifier")
    assert code == 0 and "my-chains" in out and "mine alone" in out
    words = ("eval", "--model", "lab:student-block", "--device", "cpu", "--benchmark", str(path), "--batch-size", "2")
    trusting, words = (*words, "--trust-verifier", "--output"), (*words, "--output")
    monkeypatch.setattr("my_checks.broken", True)
    code, _, err = run(capsys, *trusting, str(tmp_path / "mine"))
    assert code == 2
    assert "the verifier my_checks:last raised ValueError on question q3: no 4" in " ".join(err.split())
    (part,) = (tmp_path / "mine" / "my-chains").glob("records.part-*.jsonl")
    assert len(part.read_text().splitlines()) == 2
    monkeypatch.setattr("my_checks.broken", False)
    assert run(capsys, *trusting, str(tmp_path / "mine"))[0] == 0
    # The command line that names the function itself allows it.
    assert run(capsys, *words, str(tmp_path / "lab"), "--verifier", "my_checks:last")[0] == 0
    summaries = [json.loads((tmp_path / name / "my-chains" / "summary.json").read_text()) for name in ("mine", "lab")]
    assert summaries[0] == summaries[1]
    assert summaries[0]["configuration"]["verifier"] == "my_checks:last"
    assert (summaries[0]["results"]["items"], summaries[0]["results"]["complete"]) == (4, True)
    records = [
        json.loads(line) for line in (tmp_path / "mine" / "my-chains" / "records.jsonl").read_text().splitlines()
    ]
    assert [one["correct"] for one in records] == [verify(one["response"], one["answer"], "lab") for one in records]
    code, _, err = run(capsys, "compare", str(tmp_path / "mine"), str(tmp_path / "lab"))
    assert code == 0, err
    choices = ("eval", "--model", "lab:student-block", "--benchmark", "lab-choice-2", "--output", str(tmp_path / "x"))
    for name, message in (
        ("my_checks:last", "judges what is written, and lab-choice-2 compare letters in a slot; add --protocol"),
        (
            "choice",
            "--verifier choice cannot be given to lab-choice-2: expected opdlm, math or package.module:function",
        ),
        ("my_checks:first", "cannot take the verifier my_checks:first: AttributeError"),
    ):
        code, _, err = run(capsys, *choices, "--verifier", name)
        assert code == 2 and message in " ".join(err.split())
    path.write_text(path.read_text().replace("my-chains", "gsm8k"))
    code, _, err = run(capsys, *trusting, str(tmp_path / "x"))
    assert code == 2 and "there is a benchmark gsm8k already; give yours another name" in " ".join(err.split())


def test_another_protocol_than_the_benchmark_s(capsys, tmp_path):
    words = ("eval", "--model", "lab:student-block", "--limit", "4", "--device", "cpu", "--batch-size", "4")
    choices = (*words, "--benchmark", "lab-choice-2", "--output")
    for protocol in ("generated", "slot"):
        code, _, err = run(capsys, *choices, str(tmp_path / protocol), "--protocol", protocol)
        assert code == 0, err
        told = json.loads((tmp_path / protocol / "lab-choice-2" / "summary.json").read_text())["configuration"]
        assert (told["protocol"], told["verifier"]) == (protocol, "choice")
        lines = (tmp_path / protocol / "lab-choice-2" / "records.jsonl").read_text().splitlines()
        assert [json.loads(line)["response"] is not None for line in lines] == [protocol == "generated"] * 4
    code, _, err = run(capsys, *choices, str(tmp_path / "slot"), "--protocol", "generated")
    assert code == 2
    assert "protocol ('slot' there, 'generated' now)" in err
    code, _, err = run(capsys, "compare", str(tmp_path / "generated"), str(tmp_path / "slot"))
    assert code == 2
    assert "the protocol is generated in" in err
    code, _, err = run(
        capsys, *words, "--benchmark", "lab-chain-2", "--output", str(tmp_path / "chain"), "--protocol", "slot"
    )
    assert code == 2
    assert "has no choices to compare; add the field choices, or let the model write its answers (--protocol gen" in err


def test_questions_from_a_data_set_of_the_hub(capsys, tmp_path, monkeypatch):
    asked = []

    def load_dataset(*names, split):
        asked.append((*names, split))
        return [{"question": "1+1?", "answer": "2"}]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    words = ("eval", "--model", "lab:student-block", "--benchmark", "gsm8k", "--max-new-tokens", "16")
    words += ("--device", "cpu", "--data", "owner/name", "--output")
    code, _, err = run(capsys, *words, str(tmp_path / "sums"), "--subset", "sums", "--split", "dev")
    assert code == 0, err
    assert run(capsys, *words, str(tmp_path / "all"))[0] == 0
    assert asked == [("owner/name", "sums", "dev"), ("owner/name", None, "test")]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--benchmark", "gsm8k"], "expected --model"),
        (["--model", "x", "--benchmark", "gsm9k", "--output", "o"], "no benchmark 'gsm9k'; did you mean gsm8k?"),
        (["--model", "x", "--output", "o"], "expected --benchmark"),
        (
            ["--model", "x", "--benchmark", "gsm8k", "mmlu", "--output", "o", "--data", "owner/name"],
            "owner/name holds the questions of one benchmark, and 2 were named",
        ),
        (
            ["--model", "x", "--benchmark", "gsm8k", "--output", "o", "--split", "train"],
            "--subset and --split are of a data set of the hub; name it with --data owner/name",
        ),
        (
            ["--model", "x", "--benchmark", "lab-chain-2", "--output", "o", "--data", "owner/name", "--split", "dev"],
            "the questions of lab-chain-2 are made here, not read; leave out --data and --split, or evaluate other",
        ),
        (
            ["--model", "x", "--benchmark", "gsm8k", "lab-chain-2", "--output", "o", "--data", "."],
            "the questions of lab-chain-2 are made here, not read; leave out --data, or evaluate other",
        ),
    ],
)
def test_evaluations_that_cannot_be(capsys, words, message):
    code, _, err = run(capsys, "eval", *words)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--output", "afile"], "cannot write to afile/lab-chain-2: Not a directory; name another (--output)"),
        (["--output", "taken"], "expected a folder to write to, found a file: taken/lab-choice-2; name another"),
        (["--samples", "0"], "samples must be a whole number of at least 1, found 0"),
        (["--threshold", "7"], "threshold is a probability: expected 0 to 1, found 7.0"),
        (["--limit", "0"], "limit must be at least 1 item, found 0"),
        (["--temperature", "-1"], "temperature must be 0 (the likeliest token) or more, found -1.0"),
        (["--temperature", "0.6"], "lab-choice-2 compares letters in an answer slot, where nothing is sampled"),
        (["--ar", "--passes", "4"], "is evaluated greedily, left to right, and knows no passes"),
        (["--benchmark", "lab-chain-2"], "the benchmark lab-chain-2 is named twice"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_eval_refuses_options_and_folder_before_anything_is_loaded(capsys, tmp_path, monkeypatch, words, message):
    def loads(*given, **said):
        raise AssertionError("something was loaded")

    monkeypatch.setattr("forkleft.evaluate.evaluation.load_evaluated", loads)
    monkeypatch.setattr("forkleft.evaluate.benchmarks.load_benchmark", loads)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "afile").write_text("")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "lab-choice-2").write_text("")
    asked = ("--model", "lab:student-block", "--benchmark", "lab-chain-2", "lab-choice-2", "--output", "results")
    code, _, err = run(capsys, "eval", *asked, *words)
    assert code == 2
    assert message in err
    assert not (tmp_path / "results").exists()
