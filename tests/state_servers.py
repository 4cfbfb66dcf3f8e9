"""A small stand-in for vLLM in pooling mode: it answers as vLLM 0.32 does, with a model of Transformers behind it."""

import json
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import torch


class FakeVllm:
    """What the server does, which tests change.

    model: a causal LM. name, context: as it lists them. faults: what the next requests get instead, each a function of
    the server, the handler and the request, which returns False if it leaves the answer to the server; the last one
    stays if `for_ever`. change: what is done to hidden states before they are sent. dtype: in which it computes.
    """

    def __init__(self, model, name="teacher", context=512):
        self.model, self.name, self.context = model, name, context
        self.faults, self.for_ever = [], False
        self.change = lambda hidden_TE: hidden_TE
        self.dtype = torch.float32
        self.asked, self.keys = [], []
        self.lock = threading.Lock()

    @torch.no_grad()
    def states(self, ids):
        hidden_TE = self.model.base_model(input_ids=torch.tensor([ids]), use_cache=False)[0][0]
        # What is computed in fewer bits is sent in more.
        wide = torch.promote_types(self.dtype, torch.float32)
        return self.change(hidden_TE.to(self.dtype).to(wide))

    def answer(self, handler, body):
        with self.lock:
            self.asked.append(body)
            fault = None
            if self.faults:
                fault = self.faults[0] if self.for_ever else self.faults.pop(0)
        if fault is None or fault(self, handler, body) is False:
            self.answer_well(handler, body)

    def answer_well(self, handler, body):
        (ids,) = body["input"]
        if body["model"] != self.name:
            return refuse(404, f"The model `{body['model']}` does not exist.")(self, handler, body)
        if len(ids) > self.context:
            text = f"This model's maximum context length is {self.context} tokens. However, your prompt contains "
            return refuse(400, f"{text}{len(ids)} input tokens")(self, handler, body)
        self.send(handler, body, self.states(ids))

    def send(self, handler, body, hidden_TE, *, cut=0, lacking=False, **changes):
        dtype = getattr(torch, body["embed_dtype"])
        sent = hidden_TE.to(dtype).contiguous().view(torch.uint8).numpy().tobytes()
        item = {"index": 0, "embed_dtype": body["embed_dtype"], "endianness": "little", "start": 0, "end": len(sent)}
        metadata = {"model": self.name, "data": [item | {"shape": list(hidden_TE.shape)} | changes]}
        reply(handler, 200, sent[: len(sent) - cut], {} if lacking else {"metadata": json.dumps(metadata)})


def reply(handler, status, body, headers=(), length=None):
    handler.send_response(status)
    for name, value in dict(headers).items():
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(body) if length is None else length))
    handler.end_headers()
    handler.wfile.write(body)


def refuse(status, text):
    return lambda server, handler, body: reply(handler, status, json.dumps({"error": {"message": text}}).encode())


def hang_up(server, handler, body):
    """As a server that is killed."""
    handler.connection.shutdown(socket.SHUT_RDWR)


@contextmanager
def serving(fake, port=0):
    """The address of a server on loopback that does what `fake` says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            fake.keys.append(self.headers.get("Authorization"))
            listed = [{"id": fake.name, "object": "model", "max_model_len": fake.context}]
            found = self.path == "/v1/models"
            reply(self, 200 if found else 404, json.dumps({"object": "list", "data": listed}).encode())

        def do_POST(self):
            fake.keys.append(self.headers.get("Authorization"))
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/pooling":
                fake.answer(self, body)
            else:
                reply(self, 404, b'{"detail":"Not Found"}')

        def log_message(self, *arguments):
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request, client):
            """A client that gave up, or a connection that a test closed."""

    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
