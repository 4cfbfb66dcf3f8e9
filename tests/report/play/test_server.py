import http.client
import json
import socket
import threading
from contextlib import ExitStack, closing
from urllib.parse import urlsplit

import pytest
from playgrounds import ANSWER, QUESTION, SETTINGS, Endless, failing, served
from starlette.testclient import TestClient

from forkleft.errors import ForkLeftError
from forkleft.report.play import server, writing
from forkleft.report.play.server import LARGEST_REQUEST, address_of, is_loopback, listen, playground
from forkleft.report.play.turns import MOST
from forkleft.report.play.writing import Player
from forkleft.rollout import generate
from forkleft.students import load_student
from forkleft.verify import Verifier

BASE = "http://127.0.0.1:8642"


@pytest.fixture(scope="module")
def player():
    return Player("lab:student-block", load_student("lab:student-block"))


@pytest.fixture
def client(player):
    with TestClient(playground([player], None, "127.0.0.1"), BASE) as client:
        yield client


def events(text):
    """The events of a stream."""
    found = []
    for part in text.split("\n\n")[:-1]:
        kind, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['kind']}"
    return found


def test_the_page_is_whole_and_brings_its_policy(client):
    for path, kind in (
        ("/", "text/html"),
        ("/play.css", "text/css"),
        ("/colours.css", "text/css"),
        ("/play.js", "text/javascript"),
    ):
        reply = client.get(path)
        assert reply.status_code == 200 and reply.headers["content-type"].startswith(kind)
        policy = reply.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ") and "unsafe" not in policy
        assert "set-cookie" not in reply.headers and reply.headers["x-content-type-options"] == "nosniff"
    assert client.get("/../server.py").status_code == client.get("/server.py").status_code == 404
    page = client.get("/").text
    assert "<script src=" in page and "style=" not in page and "onclick" not in page and "https:" not in page


def test_the_page_knows_what_there_is_to_choose(client, player):
    choices = client.get("/choices").json()
    assert choices["models"][0]["name"] == "lab:student-block" and choices["models"][0]["context"] == 512
    # The lab's students are of no family with settings of its own; their answers have a verifier of their own.
    assert choices["decodings"] == ["static"] and choices["orders"][0] == "confidence"
    assert choices["verifier"] == "lab" and set(choices["verifiers"]) == {"math", "opdlm", "choice", "lab", "exact"}
    own = Verifier("my.judge:function", function=lambda responses, answers: [True] * len(answers))
    with TestClient(playground([player], own, "127.0.0.1"), BASE) as other:
        assert other.get("/choices").json()["verifiers"][0] == "my.judge:function"
        said = SETTINGS | {"verifier": "my.judge:function", "expected": "?"}
        assert events(other.post("/write", json=said).text)[-2]["correct"] is True


@pytest.mark.parametrize("host", ["localhost:8642", "127.0.0.1", "127.0.0.7:1", "[::1]:8642", "LOCALHOST:8642"])
def test_it_answers_to_the_names_of_this_machine(client, host):
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8642", "localhost.evil.example", "10.0.0.1", "", "[:"])
def test_it_answers_to_no_other_name(client, host):
    reply = client.get("/", headers={"host": host})
    assert reply.status_code == 403 and "open the address that it printed" in reply.json()["error"]
    assert "content-security-policy" in reply.headers


def test_bound_to_all_addresses_it_answers_to_addresses_and_to_the_machines_name(player):
    with TestClient(playground([player], None, "0.0.0.0"), BASE) as client:
        for host in ("10.0.0.1:8642", "[fd00::1]:8642", "localhost:8642", socket.gethostname()):
            assert client.get("/", headers={"host": host}).status_code == 200
        assert client.get("/", headers={"host": "evil.example"}).status_code == 403


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8642", "http://["]
)
def test_pages_from_elsewhere_may_not_ask(client, origin):
    reply = client.post("/write", json=SETTINGS, headers={"origin": origin})
    assert reply.status_code == 403 and "may not use this playground" in reply.json()["error"]


def test_a_response_comes_pass_by_pass_with_its_verdict(client, player):
    reply = client.post("/write", json=SETTINGS | {"expected": ANSWER}, headers={"origin": BASE})
    assert reply.headers["content-type"].startswith("text/event-stream")
    begin, *passes, end, verdict, done = events(reply.text)
    (written,) = generate(player.student, [player.prompt(QUESTION)], max_new_tokens=32)
    assert (begin["kind"], done["kind"]) == ("begin", "done")
    assert len(passes) == end["forwards"] == written.forwards and end["kept"] == len(written.tokens)
    cells = {cell[0]: cell[1] for event in passes for cell in event["cells"] if len(cell) == 3}
    assert "".join(cells[place] for place in sorted(cells) if place < end["kept"]) == written.text
    assert verdict["correct"] == (verdict["extracted"] == ANSWER)


def test_two_models_get_the_same_question(player):
    other = Player("lab:student-shifted", load_student("lab:student-shifted"))
    with TestClient(playground([player, other], None, "localhost"), BASE) as client:
        found = events(client.post("/write", json=SETTINGS).text)
    ends = {event["side"]: event["kept"] for event in found if event["kind"] == "end"}
    for side, asked in enumerate((player, other)):
        (written,) = generate(asked.student, [asked.prompt(QUESTION)], max_new_tokens=32)
        assert ends[side] == len(written.tokens)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"json": SETTINGS | {"passes": 0}}, "passes must be a whole number"),
        ({"content": "{", "headers": {"content-type": "application/json"}}, "expected JSON"),
        ({"content": "[" * 100_000, "headers": {"content-type": "application/json"}}, "expected JSON"),
        ({"content": b"\xff", "headers": {"content-type": "application/json"}}, "expected JSON"),
        # A form of another site can send text, but no JSON.
        ({"content": json.dumps(SETTINGS), "headers": {"content-type": "text/plain"}}, "of type application/json"),
        ({"json": SETTINGS | {"question": "a" * LARGEST_REQUEST}}, "larger than 256 KiB"),
    ],
    ids=["setting", "torn", "deep", "bytes", "type", "large"],
)
def test_bad_requests_are_refused(client, request_, message):
    reply = client.post("/write", **request_)
    assert reply.status_code == 400 and message in reply.json()["error"]


def test_a_model_that_fails_is_told_and_the_server_lives_on(client, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(writing, "decode", failing)
        *_, error, done = events(client.post("/write", json=SETTINGS).text)
        assert "RuntimeError: no memory is left" in error["message"] and done["kind"] == "done"
    assert events(client.post("/write", json=SETTINGS).text)[-2]["kind"] == "end"


class Connection:
    """A request whose stream is read event by event, and can be closed."""

    def __init__(self, address):
        self._http = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
        headers = {"Content-Type": "application/json"}
        self._http.request("POST", "/write", json.dumps(SETTINGS), headers)
        self._reply = self._http.getresponse()

    def next(self):
        lines = [self._reply.readline() for _ in range(3)]
        return json.loads(lines[1].removeprefix(b"data: "))

    def close(self):
        self._reply.close()
        self._http.close()


def test_two_browsers_are_served_in_turn_and_who_goes_away_is_not(player, monkeypatch):
    endless = Endless()
    monkeypatch.setattr(writing, "decode", endless)
    with served([player]) as address:
        first = Connection(address)
        assert [first.next()["kind"] for _ in range(3)] == ["begin", "pass", "pass"]
        second = Connection(address)
        assert second.next() == {"kind": "waiting", "ahead": 1}
        more = [Connection(address) for _ in range(MOST - 2)]
        assert [connection.next()["ahead"] for connection in more] == list(range(2, MOST))
        refused = Connection(address)
        assert "requests are waiting already" in refused.next()["message"]
        more[0].close()
        assert more[1].next() == {"kind": "waiting", "ahead": 2}
        first.close()
        assert endless.ended.wait(60)
        assert second.next()["kind"] == "begin"
        assert second.next()["kind"] == "pass"
        # What is still going on does not keep the server from its end.
        endless.ended.clear()
    assert endless.ended.wait(60)
    for connection in (second, *more, refused):
        connection.close()


def test_ports():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert address_of(taken) == f"http://127.0.0.1:{port}/"
        with pytest.raises(ForkLeftError, match=rf"port {port}: Address already in use; .* --port 0 a free one"):
            listen("127.0.0.1", port)
    with pytest.raises(ForkLeftError, match="expected a number from 0 to 65535"):
        listen("127.0.0.1", 70_000)
    with pytest.raises(ForkLeftError, match=r"cannot listen on no\.such\.name\.invalid port 0"):
        listen("no.such.name.invalid", 0)
    with listen("0.0.0.0", 0) as everywhere:
        assert urlsplit(address_of(everywhere)).hostname == socket.gethostname().lower()


def test_which_addresses_are_of_this_machine_only():
    assert [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1")] == [True] * 3
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org")] == [False] * 4


def test_threads_end_with_the_server(player):
    before = threading.active_count()
    with TestClient(playground([player], None, "127.0.0.1"), BASE) as client:
        client.post("/write", json=SETTINGS)
    assert threading.active_count() == before


def unfinished(url):
    """A connection with a request of which only the beginning comes."""
    host = urlsplit(url).netloc
    slow = socket.create_connection(host.split(":"), timeout=60)
    head = f"POST /write HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    slow.sendall(f"{head}{{".encode())
    return slow


def test_a_request_that_does_not_come_is_given_up(player, monkeypatch):
    monkeypatch.setattr(server, "_REQUEST_SECONDS", 0.2)
    with served([player]) as url, unfinished(url) as slow:
        assert b"the request was not whole after 0 s; ask again" in slow.makefile("rb").read(4096)


def test_connections_are_bounded(player, monkeypatch):
    monkeypatch.setattr(server, "_CONNECTIONS", 3)
    with served([player]) as url, ExitStack() as stack:
        host = urlsplit(url).netloc
        for _ in range(2):
            stack.enter_context(unfinished(url))
        # The server takes connections when it comes to it: on a busy machine it may not have seen these two yet.
        statuses = (_status_of(host) for _ in range(1000))
        assert next(status for status in statuses if status != 200) == 503


def _status_of(host):
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection:
        connection.request("GET", "/")
        return connection.getresponse().status
