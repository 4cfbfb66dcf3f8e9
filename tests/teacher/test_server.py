import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from forkleft.errors import ForkLeftError
from forkleft.teacher import Answer, AnswerCache, AnswerServer, cached_answers


def reply(text, finish="stop"):
    return 200, json.dumps({"choices": [{"message": {"content": text}, "finish_reason": finish}]})


@pytest.fixture
def served():
    """A server on loopback that gives scripted replies, the last one for ever, and keeps what it was asked."""
    script, asked = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
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


def test_nobody_there():
    server = AnswerServer("http://127.0.0.1:9", "tiny", attempts=2, pause=0.001)
    with pytest.raises(ForkLeftError, match=r"no answer from http://127.0.0.1:9 .* in 2 attempt\(s\): URLError"):
        server.answers([QUESTION], max_new_tokens=7)
