import signal
import sys

import pytest
import uvicorn
from commands import run

from forkleft.report.play.server import listen

WORDS = ("play", "--model", "lab:student-block", "--device", "cpu")


def test_the_address_is_printed_and_served(capsys, monkeypatch):
    served = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: served.append((server.config.app, *sockets)))
    code, out, err = run(capsys, *WORDS, "--compare", "lab:student-shifted", "--port", "0")
    assert (code, err, len(served)) == (0, "", 1)
    assert out.startswith("http://127.0.0.1:") and out.endswith("/   (Ctrl-C ends)\n")
    code, out, _ = run(capsys, *WORDS, "--host", "0.0.0.0", "--port", "0", "--verifier", "math")
    assert (code, len(served)) == (0, 2) and "there is no password" in out


def test_an_interrupt_is_how_it_ends(capsys, monkeypatch):
    def interrupted(server, sockets):
        raise KeyboardInterrupt

    monkeypatch.setattr(uvicorn.Server, "run", interrupted)
    code, _, err = run(capsys, *WORDS, "--port", "0")
    assert (code, err) == (0, "")


def test_a_signal_is_told_in_the_exit_code(capsys, monkeypatch):
    """uvicorn hears it, shuts down, and raises it again."""
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: signal.raise_signal(signal.SIGTERM))
    code, _, err = run(capsys, *WORDS, "--port", "0")
    assert (code, err) == (143, "forkleft: ended by SIGTERM\n")


@pytest.mark.parametrize("name", ["uvicorn", "starlette.applications"])
def test_a_missing_extra_is_named(capsys, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "forkleft.report.play.server")
    code, _, err = run(capsys, *WORDS)
    assert code == 2 and "pip install 'forkleft[play]'" in err


def test_what_is_wrong_is_told_before_the_models_are_loaded(capsys):
    nowhere = ("play", "--model", "nowhere")
    with listen("127.0.0.1", 0) as taken:
        code, _, err = run(capsys, *nowhere, "--port", str(taken.getsockname()[1]))
    assert code == 2 and "Address already in use" in err and "--port 0" in err
    code, _, err = run(capsys, *nowhere, "--verifier", "maths")
    assert code == 2 and "unknown verifier kind 'maths'" in err


def test_a_tokenizer_without_a_template_is_told_at_the_start(capsys, monkeypatch):
    from forkleft.students import load_student

    student = load_student("lab:student-block")
    student.tokenizer.chat_template = None
    monkeypatch.setattr("forkleft.cli.play.student_of", lambda options: student)
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    code, _, err = run(capsys, *WORDS, "--port", "0")
    assert code == 2 and "has no chat template" in err and "--plain" in err
    assert run(capsys, *WORDS, "--port", "0", "--plain")[0] == 0
