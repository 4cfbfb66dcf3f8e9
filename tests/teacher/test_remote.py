import json
import socket
import threading
import time
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from state_servers import FakeVllm, hang_up, refuse, reply, serving

from forkleft.errors import ForkLeftError
from forkleft.lab.models import model_path
from forkleft.lab.questions import held_out
from forkleft.prompts import Reading, prompt_ids
from forkleft.students.autoregressive import load_causal_lm
from forkleft.teacher import RemoteTeacher, StateServer, load_teacher

TEACHER = model_path("teacher-weak")


@pytest.fixture(scope="module")
def local():
    return load_teacher(TEACHER)


@pytest.fixture
def fake(local):
    return FakeVllm(local.model)


@pytest.fixture
def url(fake):
    with serving(fake) as address:
        yield address


def remote_at(url, *, dtype=torch.float32, model="teacher", folder=TEACHER, **settings):
    server = StateServer(url, model, **{"pause": 0.001, "attempts": 6} | settings)
    return load_teacher(folder, dtype=dtype, server=server)


def readings_of(teacher, count=3):
    questions = held_out("chain-3", count)
    return [
        Reading(
            f"q{k}",
            prompt_ids(teacher.tokenizer, [{"role": "user", "content": question.prompt}]),
            teacher.tokenizer.encode(question.solution, add_special_tokens=False),
            [0, 2 + k, 5],
        )
        for k, question in enumerate(questions)
    ]


def known(teacher):
    """Solutions, which a teacher of the lab finds likely."""
    return [replace(reading, positions=range(len(reading.response))) for reading in readings_of(teacher)]


def assert_same(found, expected):
    """Up to the rounding of float32: padding and batches change the order of sums."""
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= 1e-4 * other.abs().max()


# ---- What is asked, and what comes back ----


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_hidden_states_and_distributions_are_those_of_the_model_in_memory(local, url, suffix):
    remote = remote_at(url + suffix)
    assert isinstance(remote, RemoteTeacher)
    remote.check(known(local))
    readings = readings_of(local)
    found, expected = remote.hidden(readings), local.hidden(readings)
    assert_same(found, expected)
    for one, other in zip(found, expected, strict=True):
        logp, logq = (local.head_logits(hidden).log_softmax(-1) for hidden in (one, other))
        assert (logp - logq).abs().max() < 1e-4
    assert torch.equal(remote.head_weight, local.head_weight)
    sizes = [(name, parameter.numel()) for name, parameter in remote.model.named_parameters() if not parameter.is_meta]
    assert sizes == [("model.embed_tokens.weight", local.head_weight.numel())]
    assert remote.model.num_parameters() == local.model.num_parameters()


def test_a_request_holds_no_more_than_the_positions_need(local, fake, url):
    (reading, *_) = readings_of(local)
    (hidden_SE,) = remote_at(url, dtype=torch.bfloat16).hidden([reading])
    assert hidden_SE.dtype == torch.bfloat16
    assert fake.asked == [
        {
            "model": "teacher",
            "input": [[*reading.prompt, *reading.response[:5]]],
            "task": "token_embed",
            "encoding_format": "bytes",
            "embed_dtype": "bfloat16",
            "endianness": "little",
            "use_activation": False,
        }
    ]


def test_nothing_is_waited_for_until_it_is_needed(local, fake, url):
    """All requests are sent at once, as many at a time as allowed; the calls wait."""
    go = threading.Event()
    fake.faults, fake.for_ever = [lambda *request: not go.wait(60)], True
    calls = remote_at(url, concurrency=2).ask(readings_of(local, 6))
    while len(fake.asked) < 2:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(fake.asked) == 2
    go.set()
    assert_same([call() for call in calls], local.hidden(readings_of(local, 6)))
    # They may be asked for again, for a trace and then for the loss.
    assert torch.equal(calls[0](), calls[0]())


def test_no_readings_and_no_positions(local, fake, url):
    remote = remote_at(url)
    assert remote.hidden([]) == []
    assert remote.hidden([Reading("q", [5, 6], [7, 8], [])])[0].shape == (0, 48)


def test_an_identity_of_what_is_known_without_the_weights(local, url, tmp_path):
    remote = remote_at(url)
    assert remote.identity == remote_at("http://elsewhere:1", model="other").identity
    others = [remote_at(url, dtype=torch.bfloat16), remote_at(url, folder=model_path("teacher-medium"))]
    model, tokenizer = load_causal_lm(TEACHER)
    with torch.no_grad():
        # A teacher that differs in its layers alone.
        model.base_model.layers[0].mlp.up_proj.weight.add_(0.01)
    for saved in (model, tokenizer):
        saved.save_pretrained(tmp_path)
    others.append(remote_at(url, folder=tmp_path))
    assert len({local.identity, remote.identity, *(other.identity for other in others)}) == 5


def test_it_gives_no_answers_and_says_who_does(url):
    with pytest.raises(ForkLeftError, match=r"1 question.*2\+2.* gives hidden states only.*forkleft answer.*answers_u"):
        remote_at(url).answers([[{"role": "user", "content": "2+2?"}]], max_new_tokens=4)


# ---- Servers that are not what they should be ----


def test_a_server_that_is_down():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        remote = remote_at(f"http://127.0.0.1:{free.getsockname()[1]}", attempts=2)
        with pytest.raises(ForkLeftError, match=r"cannot reach http://127.* refused.*is the server running"):
            remote.check([])
        with pytest.raises(ForkLeftError, match=r"question q0: no hidden states from .* in 2 attempt\(s\): URLError"):
            remote.hidden([Reading("q0", [5, 6], [7, 8], [0])])


def test_a_server_that_is_slow(local, fake, url):
    fake.faults = [lambda *request: threading.Event().wait(60)]
    remote = remote_at(url, timeout=1)
    assert_same(remote.hidden(readings_of(local, 1)), local.hidden(readings_of(local, 1)))
    fake.faults, fake.for_ever = [lambda *request: threading.Event().wait(60)], True
    with pytest.raises(ForkLeftError, match=r"question q0: .* in 2 attempt\(s\): TimeoutError"):
        remote_at(url, timeout=0.2, attempts=2).hidden(readings_of(local, 1))


def test_a_server_that_sends_byte_by_byte(local, fake, url):
    def drip(server, handler, body):
        reply(handler, 200, b"", {"metadata": "{}"}, length=10_000)
        while True:
            handler.wfile.write(b"0")
            time.sleep(0.05)

    fake.faults, fake.for_ever = [drip], True
    message = r"question q0: .* in 1 attempt\(s\): TimeoutError: the reply was not whole after 1 s"
    with pytest.raises(ForkLeftError, match=message):
        remote_at(url, timeout=0.6, attempts=1).hidden(readings_of(local, 1))


def test_a_long_wait_at_the_start_is_told_of(local, fake, url, caplog):
    fake.faults = [lambda *request: time.sleep(0.5) or False]
    remote_at(url, patience=0.1).check(known(local))
    assert f"no hidden states from {url} for 0 s; a request is given up after" in caplog.text


def test_a_server_that_restarts_is_looked_at_again(local, fake, url):
    # One request after the other, so that it is a reading that loses the server.
    remote = remote_at(url, concurrency=1)
    remote.check(known(local))
    before = len(fake.asked)
    remote.hidden(readings_of(local))
    # The three texts of the check, and the three readings.
    assert len(fake.asked) - before == 3 + 3
    fake.faults = [lambda *request: False] * 4 + [hang_up, refuse(503, "starting"), hang_up]
    before = len(fake.asked)
    assert_same(remote.hidden(readings_of(local)), local.hidden(readings_of(local)))
    assert not fake.faults
    # Three attempts failed, and the texts were read once more.
    assert len(fake.asked) - before == 3 + 3 + 3 + 3
    before = len(fake.asked)
    remote.hidden(readings_of(local))
    assert len(fake.asked) - before == 3 + 3


def test_a_server_that_restarts_with_another_model_is_refused(local, fake, url):
    """Of the same name, width and norm: only what it says tells them apart."""
    remote = remote_at(url)
    remote.check(known(local))
    model, _ = load_causal_lm(TEACHER)
    with torch.no_grad():
        for layer in model.base_model.layers:
            layer.mlp.down_proj.weight.normal_(0, 1)

    def restart(server, handler, body):
        server.model = model
        hang_up(server, handler, body)

    fake.faults = [restart]
    with pytest.raises(ForkLeftError, match=r"does not serve the teacher: .* nats a token, no less than a blind guess"):
        remote.hidden(readings_of(local))


def test_a_server_that_was_changed_between_two_updates_is_refused(local, fake, url):
    """No request found it away, and all that it says makes sense; but it does not say what it said."""
    remote = remote_at(url)
    remote.check(known(local))
    fake.model, _ = load_causal_lm(TEACHER)
    with torch.no_grad():
        for layer in fake.model.base_model.layers:
            layer.mlp.down_proj.weight.mul_(0.5)
    message = r"serves another model than before: the same text costs \d\.\d+ nats a token, and cost \d\.\d+ when the"
    with pytest.raises(ForkLeftError, match=message):
        remote.hidden(readings_of(local))


def test_a_server_of_another_model(local, fake, url):
    fake.name = "Qwen/Qwen3-8B"
    with pytest.raises(ForkLeftError, match=r"serves 'Qwen/Qwen3-8B', expected 'teacher'; name what it serves"):
        remote_at(url).check(known(local))


def test_a_server_of_a_model_of_another_width(local, fake, url):
    fake.model, _ = load_causal_lm(model_path("teacher-medium"))
    with pytest.raises(ForkLeftError, match=r"expected hidden states of width 48, found 72: of another model"):
        remote_at(url).check(known(local))
    with pytest.raises(ForkLeftError, match=r"question q\d: .* in 5 attempt\(s\): .* width 48, found 72"):
        remote_at(url).hidden(readings_of(local))


@pytest.mark.parametrize("wrong", ["another norm", "before the norm", "normalised"])
def test_hidden_states_that_did_not_come_out_of_the_norm(local, fake, url, wrong):
    fake.model, _ = load_causal_lm(TEACHER)
    if wrong == "another norm":
        with torch.no_grad():
            fake.model.base_model.norm.weight.mul_(1.1)
    elif wrong == "before the norm":
        fake.model.base_model.norm = torch.nn.Identity()
    else:
        fake.change = lambda hidden_TE: torch.nn.functional.normalize(hidden_TE, dim=-1)
    with pytest.raises(ForkLeftError, match=r"does not serve the teacher: expected .* came out of the teacher's final"):
        remote_at(url).check(known(local))


def test_hidden_states_that_the_head_cannot_read(local, fake, url):
    """They pass through the right norm, but are not those of this text."""
    fake.change = lambda hidden_TE: hidden_TE.roll(1, dims=-1) / norm.roll(1) * norm
    norm = local.model.base_model.norm.weight
    with pytest.raises(ForkLeftError, match=r"costs [\d.]+ nats a token, no less than a blind guess \(4\.\d\)"):
        remote_at(url).check(known(local))


@pytest.mark.parametrize(
    ("served", "wanted", "refused"),
    [
        ("bfloat16", "float32", True),
        ("float16", "float32", True),
        ("float16", "bfloat16", True),
        ("bfloat16", "bfloat16", False),
        ("float32", "bfloat16", False),
        ("float16", "float16", False),
    ],
)
def test_a_server_of_another_precision(local, fake, url, served, wanted, refused):
    fake.dtype = getattr(torch, served)
    remote = remote_at(url, dtype=getattr(torch, wanted))
    if not refused:
        remote.check(known(local))
        return
    message = (
        rf"computes in {served}, expected {wanted}( or float32)?; .*--dtype {wanted}, or .* teacher_dtype: {served}"
    )
    with pytest.raises(ForkLeftError, match=message):
        remote.check(known(local))


def test_the_context_of_the_server_counts(local, fake, url):
    assert remote_at(url).reading_context == local.reading_context == local.context == 512
    fake.context = 20
    remote = remote_at(url)
    assert (remote.reading_context, remote.context) == (20, 512)
    message = r"question q0: no hidden states .* in 1 attempt\(s\): HTTP 400: .*maximum context length is 20"
    with pytest.raises(ForkLeftError, match=message):
        remote.hidden([Reading("q0", [5] * 20, [6] * 9, [8])])
    for said in (None, "abc", -1, [20]):
        fake.context = said
        assert remote_at(url).reading_context == 512


def test_a_reply_is_bounded_by_what_was_asked_for(local, fake, url):
    fake.faults, fake.for_ever = [lambda server, handler, body: reply(handler, 200, bytes(1 << 20))], True
    with pytest.raises(ForkLeftError, match=r"expected a reply of at most \d{1,5} bytes, found more"):
        remote_at(url, attempts=1).hidden(readings_of(local, 1))


FAULTS = {
    "a body that ends early": (
        lambda server, handler, body: reply(handler, 200, b"0000", {"metadata": "{}"}, length=4000),
        "IncompleteRead",
    ),
    "fewer bytes than its header says": (
        lambda server, handler, body: server.send(handler, body, server.states(body["input"][0]), cut=8),
        r"expected \d+ bytes, found \d+: the reply is not whole",
    ),
    "fewer tokens": (
        lambda server, handler, body: server.send(handler, body, server.states(body["input"][0][:-1])),
        r"expected the hidden states of \d+ tokens, found those of \d+",
    ),
    "another dtype": (
        lambda server, handler, body: server.send(handler, body | {"embed_dtype": "float16"}, torch.ones(3, 48)),
        "expected float32, little-endian, found float16, little",
    ),
    "another byte order": (
        lambda server, handler, body: server.send(handler, body, torch.ones(3, 48), endianness="big"),
        "expected float32, little-endian, found float32, big",
    ),
    "no metadata": (
        lambda server, handler, body: server.send(handler, body, torch.ones(3, 48), lacking=True),
        "expected a header `metadata`, as vLLM in pooling mode sends it",
    ),
    "metadata that is no JSON": (
        lambda server, handler, body: reply(handler, 200, b"", {"metadata": "<html>"}),
        "JSONDecodeError",
    ),
    "a page of another program": (lambda server, handler, body: reply(handler, 200, b"<html>"), "header `metadata`"),
    "NaN": (
        lambda server, handler, body: server.send(handler, body, server.states(body["input"][0]) * float("nan")),
        "expected finite hidden states, found NaN or infinity",
    ),
    "the norm left out": (
        lambda server, handler, body: server.send(handler, body, 2 * server.states(body["input"][0])),
        "expected hidden states that came out of the teacher's final norm",
    ),
    "an error inside": (refuse(500, "EngineDeadError"), "HTTP 500: .*EngineDeadError"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_reply_that_is_not_whole_is_asked_for_again_and_never_used(local, fake, url, fault):
    broken, message = FAULTS[fault]
    fake.faults = [broken, broken]
    assert_same(remote_at(url).hidden(readings_of(local)), local.hidden(readings_of(local)))
    fake.faults, fake.for_ever = [broken], True
    with pytest.raises(ForkLeftError, match=rf"question q\d: no hidden states from {url} .*{message}.*; docs/teacher"):
        remote_at(url, attempts=3).hidden(readings_of(local))


def test_a_reply_that_makes_no_sense_is_given_up_before_a_server_that_is_away(local, fake, url):
    fake.faults, fake.for_ever = [FAULTS["NaN"][0]], True
    with pytest.raises(ForkLeftError, match=r"in 5 attempt\(s\)"):
        remote_at(url, attempts=20).hidden(readings_of(local, 1))


def test_after_an_error_nothing_more_is_asked(local, fake, url):
    fake.faults, fake.for_ever = [refuse(400, "no")], True
    remote = remote_at(url, concurrency=1)
    calls = remote.ask(readings_of(local, 6))
    assert len(calls) == 6
    for call in calls:
        with pytest.raises(ForkLeftError, match=r"question q0: .* HTTP 400"):
            call()
    assert len(fake.asked) == 1


def test_the_port_of_something_else(url, fake):
    fake.name = None
    with serving(fake) as address, pytest.raises(ForkLeftError, match="lists no models, as vLLM does; is this its add"):
        remote_at(f"{address}/other").check([])


def test_a_server_that_generates(local, fake, url):
    """vLLM without pooling has no such page."""
    fake.faults, fake.for_ever = [refuse(404, "Not Found")], True
    with pytest.raises(
        ForkLeftError, match=r"a look at the teacher \(q0\): .* 1 attempt.*Not Found.*teacher-server.md"
    ):
        remote_at(url).check(known(local))


def test_a_key_is_sent_and_never_repeated(local, fake, url, caplog):
    remote = remote_at(url, api_key="secret-7", attempts=2)
    remote.check(known(local))
    assert set(fake.keys) == {"Bearer secret-7"}
    fake.faults, fake.for_ever = [refuse(500, "x" * 290 + "secret-7")], True
    with pytest.raises(ForkLeftError) as caught:
        remote.hidden(readings_of(local, 1))
    assert "secret" not in str(caught.value) + caplog.text + repr(remote.__dict__.get("identity", "")) + remote.identity


# ---- Models whose head is not all ----


def saved_with(tmp_path, **changes):
    """The teacher, with another configuration."""
    for file in TEACHER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((TEACHER / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_model_that_scales_its_logits_is_refused(local, url, tmp_path):
    folder = saved_with(tmp_path, logit_scale=0.5)
    with pytest.raises(ForkLeftError, match="changes its logits behind the output head"):
        remote_at(url, folder=folder).check(known(local))


def test_what_a_class_does_behind_its_layers_is_seen_without_them(local, url, monkeypatch):
    remote = remote_at(url)
    forward = type(remote.model).forward

    def scaled(model, *inputs, **settings):
        output = forward(model, *inputs, **settings)
        output.logits = 0.9 * output.logits
        return output

    layers = remote.model.base_model
    monkeypatch.setattr(type(remote.model), "forward", scaled)
    with pytest.raises(ForkLeftError, match="changes its logits behind the output head"):
        remote.hidden(readings_of(local))
    assert remote.model.base_model is layers


def test_a_class_that_cannot_be_tried_is_refused(local, url, monkeypatch):
    remote = remote_at(url)

    def fails(model, *inputs, **settings):
        raise AttributeError("no decoder")

    monkeypatch.setattr(type(remote.model), "forward", fails)
    with pytest.raises(ForkLeftError, match=r"cannot be tried without its weights \(AttributeError: no decoder\)"):
        remote.check(known(local))


def test_a_gguf_file_is_refused(tmp_path):
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ForkLeftError, match="is a GGUF file: the output head of a teacher on a server is read out of"):
        load_teacher(tmp_path / "model.gguf", server=StateServer("http://127.0.0.1:9", "teacher"))


def test_pauses_grow_up_to_half_a_minute():
    """So that the default attempts wait ten minutes for a server that loads its model."""
    pauses = []

    class Over(threading.Event):
        def wait(self, timeout=None):
            pauses.append(timeout)
            return False

    server = StateServer("http://127.0.0.1:9", "teacher")
    with pytest.raises(ForkLeftError, match=r"in 25 attempt"):
        server.tried(lambda: server.states([1], torch.float32, 48), Over(), hint="")
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert max(pauses) == 30
    assert all(one <= other for one, other in pairwise(pauses))
    assert 580 < sum(pauses) < 620
