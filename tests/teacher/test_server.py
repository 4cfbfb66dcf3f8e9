import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forkleft.errors import ForkLeftError
from forkleft.lab.models import load_model, model_path
from forkleft.lab.questions import held_out
from forkleft.teacher import Answer, AnswerCache, AnswerServer, Teacher, cached_answers
from forkleft.vocabulary import resolve_stop_ids


def reply(text, finish="stop"):
    return 200, json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish}]})


@pytest.fixture
def served():
    """A server on loopback that gives scripted replies, the last one for ever, and keeps what it was asked."""
    script, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body):
            asked.append((self.path, body, self.headers.get("Authorization")))
            status, text = script.pop(0) if len(script) > 1 else script[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", script, asked
    server.shutdown()
    server.server_close()


QUESTION = [{"role": "user", "content": "1+1?"}]


@pytest.mark.parametrize("key", ["secret\nkey", "secret key", "secret\r", "sécret", "secret\x7f"])
def test_a_key_that_is_none_is_refused_without_being_repeated(key):
    with pytest.raises(ForkLeftError, match=r"the key for http://h holds something else than printable") as raised:
        AnswerServer("http://h", "m", api_key=key)
    assert "cret" not in str(raised.value)


def test_a_greedy_chat_completion(served):
    url, script, asked = served
    script.append(reply("2"))
    server = AnswerServer(url + "/", "tiny", api_key="secret")
    assert server.answers([QUESTION], max_new_tokens=7) == [Answer("2", stopped=True)]
    path, body, authorization = asked[0]
    assert path == "/v1/chat/completions"
    assert (body["model"], body["messages"], body["max_tokens"], body["temperature"]) == ("tiny", QUESTION, 7, 0.0)
    assert body["chat_template_kwargs"] == {"enable_thinking": False}
    assert authorization == "Bearer secret"


def test_a_server_is_checked_before_it_is_needed(served):
    url, script, asked = served
    server = AnswerServer(url, "tiny", api_key="secret")
    script.append((200, json.dumps({"data": [{"id": "tiny"}]})))
    server.check()
    assert asked == [("/v1/models", None, "Bearer secret")]
    # What is not listed may be served all the same.
    for listed in ((200, json.dumps({"data": [{"id": "other"}]})), (200, "[]"), (404, "no such page")):
        script[:] = [listed, reply("2")]
        server.check()
        assert asked[-1][1]["max_tokens"] == 1
    script[:] = [(404, ""), (404, "no model tiny")]
    with pytest.raises(ForkLeftError, match=r"no answer from .* \(model 'tiny'\).*no model tiny"):
        server.check()
    script[:] = [(401, "")]
    with pytest.raises(ForkLeftError, match=r"does not let us in \(HTTP 401\); is the key right"):
        server.check()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        away = AnswerServer(f"http://127.0.0.1:{free.getsockname()[1]}/v1", "tiny")
        with pytest.raises(ForkLeftError, match=r"cannot reach .* refused.*is the server running"):
            away.check()


def test_answers_end_where_either_model_would_end_them(served):
    """The server is told what ends an answer, and what it leaves of that in the text is cut."""
    url, script, asked = served
    script += [reply("2"), reply("2<|im_end|>\n3<|endoftext|>", "length"), reply("2", "length")]
    server = AnswerServer(url, "tiny", stop=["<|im_end|>", "", "<|endoftext|>"], concurrency=1)
    found = server.answers([QUESTION] * 3, max_new_tokens=7)
    assert found == [Answer("2", stopped=True), Answer("2", stopped=True), Answer("2", stopped=False)]
    assert all(body["stop"] == ["<|endoftext|>", "<|im_end|>"] for _, body, _ in asked)
    # Or vLLM would remove them before it looks for them.
    assert all(body["skip_special_tokens"] is False for _, body, _ in asked)


def test_a_server_that_knows_the_fields_of_openai_alone(served):
    url, script, asked = served
    script += [(422, "Unexpected fields in the request: {'skip_special_tokens'}"), reply("2")]
    server = AnswerServer(url, "tiny", stop=["<|im_end|>"], attempts=1)
    assert server.answers([QUESTION], max_new_tokens=7) == [Answer("2", stopped=True)]
    assert server.answers([QUESTION], max_new_tokens=7) == [Answer("2", stopped=True)]
    assert ["skip_special_tokens" in body for _, body, _ in asked] == [True, False, False]
    assert all(body["stop"] == ["<|im_end|>"] for _, body, _ in asked)


def test_a_server_that_moved_is_not_asked_again(served, tmp_path):
    url, script, asked = served
    script.append(reply("2"))
    cache = AnswerCache(tmp_path / "answers.jsonl")
    here = AnswerServer(url, "tiny", stop=["a", "b"])
    moved = AnswerServer(url.replace("127.0.0.1", "localhost"), "tiny", stop=["b", "a"])
    for server in (here, moved):
        assert cached_answers(server, cache, [QUESTION], max_new_tokens=7)[0].text == "2"
    assert len(asked) == 1
    assert here.identity == moved.identity
    assert here.identity not in (
        AnswerServer(url, "other", stop=["a", "b"]).identity,
        AnswerServer(url, "tiny", stop=["a"]).identity,
    )


def test_answers_keep_the_order_of_the_questions(served):
    url, script, _ = served
    script += [reply(str(k), "length") for k in range(5)]
    found = AnswerServer(url, "tiny", concurrency=1).answers([QUESTION] * 5, max_new_tokens=7)
    assert found == [Answer(str(k), stopped=False) for k in range(5)]


def test_a_server_that_recovers(served):
    url, script, asked = served
    script += [(503, "busy"), (200, "nonsense"), (200, '{"choices": []}'), reply("2")]
    server = AnswerServer(url, "tiny", attempts=5, pause=0.001)
    assert server.answers([QUESTION], max_new_tokens=7)[0].text == "2"
    assert len(asked) == 4


@pytest.mark.parametrize(
    ("answer", "attempts", "message"),
    [
        ((500, "out of memory"), 3, r"3 attempt\(s\): HTTP 500: out of memory"),
        ((404, "no such model"), 1, r"1 attempt\(s\): HTTP 404: no such model"),
        ((200, "<html>"), 3, r"3 attempt\(s\): JSONDecodeError"),
        (reply(None), 3, "expected the answer as text, found None"),
        *(
            (reply("2", reason), 3, f"expected an answer that ended by stop or length, found {reason!r}")
            for reason in ("abort", "content_filter", "error", None)
        ),
    ],
)
def test_a_server_that_does_not(served, tmp_path, answer, attempts, message):
    """A clear stop, and nothing is kept."""
    url, script, asked = served
    script.append(answer)
    cache = AnswerCache(tmp_path / "answers.jsonl")
    with pytest.raises(ForkLeftError, match=message):
        cached_answers(
            AnswerServer(url, "tiny", attempts=3, pause=0.001), cache, [QUESTION, QUESTION], max_new_tokens=7
        )
    assert len(asked) == attempts
    assert cache.path.read_bytes() == b""


def test_every_answer_is_kept_when_it_comes(served, tmp_path):
    """The second question fails for good; the first answer is on disk."""
    url, script, _ = served
    script += [reply("2"), (404, "no")]
    cache = AnswerCache(tmp_path / "answers.jsonl")
    server = AnswerServer(url, "tiny", attempts=1, concurrency=1)
    with pytest.raises(ForkLeftError, match="HTTP 404"):
        cached_answers(server, cache, [QUESTION, [{"role": "user", "content": "2+2?"}]], max_new_tokens=7)
    assert len(AnswerCache(cache.path)) == 1


@pytest.fixture
def silent():
    """A server that answers nothing before it is allowed to, but refuses the question "no"."""
    allowed, answered = threading.Event(), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.answer(None)

        def do_POST(self):
            self.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def answer(self, body):
            refused = body["messages"][0]["content"] == "no"
            if not refused:
                allowed.wait(60)
                answered.append(body)
            self.send_response(404 if refused else 200)
            self.end_headers()
            self.wfile.write(reply("2")[1].encode())

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1", allowed, answered
    allowed.set()
    server.shutdown()
    server.server_close()


class Warned(logging.Handler):
    """Allows the server to answer once there were three warnings."""

    def __init__(self, allowed):
        super().__init__()
        self.allowed, self.lines = allowed, []

    def emit(self, record):
        self.lines.append(record.getMessage())
        if len(self.lines) == 3:
            self.allowed.set()


def test_those_who_wait_hear_of_it_after_seconds_and_what_went_wrong(silent):
    url, allowed, _ = silent
    warned = Warned(allowed)
    logger = logging.getLogger("forkleft.teacher.connection")
    logger.addHandler(warned)
    server = AnswerServer(url, "tiny", patience=0.01, timeout=50)
    server._trouble = "attempt 1: HTTP 503: busy"
    try:
        assert server.answers([QUESTION], max_new_tokens=7) == [Answer("2", stopped=True)]
    finally:
        logger.removeHandler(warned)
    assert warned.lines[0] == (
        f"no answer from {url} for 0 s (attempt 1: HTTP 503: busy); a request is given up after 50 s "
        "(answers_timeout), and tried 5 time(s) (answers_attempts)"
    )
    # It is answered now: that is past.
    assert server._trouble == ""


def test_requests_under_way_do_not_hold_up_an_error(silent):
    url, _, answered = silent
    with pytest.raises(ForkLeftError, match="HTTP 404"):
        AnswerServer(url, "tiny").answers([QUESTION, QUESTION, [QUESTION[0] | {"content": "no"}]], max_new_tokens=7)
    assert not answered


def test_a_key_is_never_repeated(served, caplog):
    url, script, _ = served
    script.append((401, "Incorrect API key: secret-7"))
    with pytest.raises(ForkLeftError, match=r"HTTP 401: Incorrect API key: \*\*\*; is") as caught:
        AnswerServer(url, "tiny", api_key="secret-7").answers([QUESTION], max_new_tokens=7)
    assert "secret-7" not in str(caught.value) + caplog.text


def test_nobody_there():
    server = AnswerServer("http://127.0.0.1:9", "tiny", attempts=2, pause=0.001)
    with pytest.raises(ForkLeftError, match=r"no answer from http://127.0.0.1:9 .* in 2 attempt\(s\): URLError"):
        server.answers([QUESTION], max_new_tokens=7)
    assert server._trouble.startswith("attempt 2: URLError: ")


@pytest.fixture(scope="module")
def transformers_serve():
    """The real server of Transformers on loopback, with a teacher of the lab."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    model = str(model_path("teacher-strong"))
    command = [str(Path(sys.executable).with_name("transformers")), "serve", model, "--host", "127.0.0.1"]
    command += ["--port", str(port), "--device", "cpu", "--dtype", "float32"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(240):
            assert process.poll() is None, "transformers serve ended"
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.5)
        yield f"{url}/v1", model
    finally:
        process.terminate()
        process.wait()


@pytest.mark.slow
def test_answers_of_a_real_server_equal_those_of_the_model_in_memory(transformers_serve, tmp_path):
    url, name = transformers_serve
    lab_model = load_model("teacher-strong")
    teacher = Teacher(
        lab_model.model, lab_model.tokenizer, stop_ids=resolve_stop_ids(lab_model.tokenizer, None), batch_size=1
    )
    questions = held_out("chain-3", 4)
    asked = [[{"role": "user", "content": question.prompt}] for question in questions]
    stop = [teacher.tokenizer.decode([i]) for i in teacher.stop_ids]
    server = AnswerServer(url, name, stop=stop, concurrency=2)
    cache = AnswerCache(tmp_path / "answers")
    found = cached_answers(server, cache, asked, max_new_tokens=60)
    assert found == teacher.answers(asked, max_new_tokens=60)
    assert [answer.text for answer in found] == [question.solution for question in questions]
    cut = server.answers(asked[:1], max_new_tokens=5)
    assert cut == teacher.answers(asked[:1], max_new_tokens=5)
    assert not cut[0].stopped
    first_step = AnswerServer(url, name, stop=[*stop, ";"]).answers(asked[:1], max_new_tokens=60)
    assert first_step == [Answer(questions[0].solution.partition(";")[0], stopped=True)]
    with pytest.raises(ForkLeftError, match="does it serve that model"):
        AnswerServer(url, "no/such-model", attempts=1).answers(asked[:1], max_new_tokens=5)
