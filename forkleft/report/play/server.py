"""The playground's server: the page, what it may choose from, and responses as server-sent events.

On Starlette and not Gradio: tokens that appear as they are committed, and are replayed later, need our own page; on
it a strict content security policy is possible; and Starlette and uvicorn need only anyio, click, h11 and idna.

Only pages from this server may use it. A page from elsewhere could point a name of its own at this address (DNS
rebinding), so the names under which this server answers are checked, and with every request to write its origin.
"""

import asyncio
import ipaddress
import json
import socket
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forkleft.errors import ForkLeftError
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.report.play.settings import Settings, read_settings
from forkleft.report.play.turns import Event, Turn, Turns
from forkleft.report.play.writing import Player, write
from forkleft.rollout.decoding import DECODINGS
from forkleft.rollout.orders import ORDERS
from forkleft.students.families import KNOWN_FAMILIES
from forkleft.verify import KINDS, Verifier

# A question that is longer than this would fill any context.
LARGEST_REQUEST = 256 * 1024
# Seconds in which it must have come, and connections at a time: some browsers keep several.
_REQUEST_SECONDS, _CONNECTIONS = 30.0, 64
_TYPES = {"play.html": "text/html", "play.css": "text/css", "colours.css": "text/css", "play.js": "text/javascript"}
# The one file that the page shares with the report.
_SHARED = "colours.css"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}
_LAB_EXAMPLE = {"question": "a=7;b=a+5;c=b*3;d=c-b;d?", "expected": "4", "max_new_tokens": 64}


def playground(players: Sequence[Player], verifier: Verifier | None, host: str) -> Starlette:
    """The application. verifier: the one that the page chooses at first. host: the name or address it is bound to."""
    default = verifier or Verifier("lab" if _is_lab(players[0]) else "math")
    verifiers = {default.kind: default} | {kind: Verifier(kind) for kind in KINDS if kind != default.kind}
    turns = Turns()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with turns:
            yield

    async def page(request: Request) -> Response:
        name = request.url.path.removeprefix("/") or "play.html"
        folder = files("forkleft.report") if name == _SHARED else files(__package__)
        return Response((folder / name).read_bytes(), media_type=_TYPES[name])

    async def choices(request: Request) -> Response:
        return JSONResponse(_choices(players, list(verifiers), default.kind))

    async def ask(request: Request) -> Response:
        try:
            settings = read_settings(await _body(request), list(verifiers))
        except ForkLeftError as error:
            return JSONResponse({"error": str(error)}, 400)
        work = partial(_write, players=players, settings=settings, verifier=verifiers[settings.verifier])
        return StreamingResponse(_events(turns, work), media_type="text/event-stream")

    application = Starlette(
        routes=[
            Route("/", page),
            *(Route(f"/{name}", page) for name in ("play.css", _SHARED, "play.js")),
            Route("/choices", choices),
            Route("/write", ask, methods=["POST"]),
        ],
        middleware=[Middleware(_Guard, host=host)],
        lifespan=lifespan,
    )
    application.state.turns = turns
    return application


class Server(uvicorn.Server):
    """Serves a playground: `Server(application).run(sockets=[listener])`."""

    def __init__(self, application: Starlette) -> None:
        super().__init__(uvicorn.Config(application, log_level="error", limit_concurrency=_CONNECTIONS))
        self._turns: Turns = application.state.turns

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what is being written; otherwise the server would wait for it."""
        self._turns.stop()
        await super().shutdown(sockets)


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound to host and port; 0 is a free port. Raises ForkLeftError if that is not possible."""
    if not 0 <= port <= 65535:
        raise ForkLeftError(f"--port: expected a number from 0 to 65535 (0 takes a free one), found {port}")
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        # Python repeats the address in parentheses.
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise ForkLeftError(
            f"cannot listen on {host} port {port}: {reason}; is another program, or another playground, "
            "using it? --port N takes another port, --port 0 a free one, --host another address"
        ) from error


def address_of(listener: socket.socket) -> str:
    """What to type into a browser."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        # Bound to all addresses of this machine.
        host = socket.gethostname()
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_lab(player: Player) -> bool:
    return player.student.text_tokenizer.get_vocab() == build_tokenizer().get_vocab()


def _choices(players: Sequence[Player], verifiers: list[str], default: str) -> dict[str, Any]:
    students = [player.student for player in players]
    native = all(student.family.name in KNOWN_FAMILIES for student in students)
    return {
        "models": [
            {
                "name": player.name,
                "family": player.student.family.name,
                "block_size": player.student.family.block_size,
                "parameters": sum(weights.numel() for weights in player.student.model.parameters()),
                "context": player.student.context,
            }
            for player in players
        ],
        "decodings": DECODINGS if native else DECODINGS[:1],
        # The first is what students use outside of training.
        "orders": sorted(ORDERS, key=lambda name: name != "confidence"),
        "verifiers": verifiers,
        "verifier": default,
        "example": _LAB_EXAMPLE if _is_lab(players[0]) else None,
    }


async def _body(request: Request) -> Any:
    """The JSON of a request. Raises ForkLeftError if it is too large or too slow, or no JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise ForkLeftError("expected a request of type application/json")
    body = b""
    try:
        async with asyncio.timeout(_REQUEST_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > LARGEST_REQUEST:
                    most = f"{LARGEST_REQUEST // 1024} KiB"
                    raise ForkLeftError(f"the request is larger than {most}; shorten the question")
    except TimeoutError:
        raise ForkLeftError(f"the request was not whole after {_REQUEST_SECONDS:.0f} s; ask again") from None
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ForkLeftError(f"expected JSON: {error}") from error


def _write(turn: Turn, players: Sequence[Player], settings: Settings, verifier: Verifier) -> None:
    """Let all students write at the same time, so that they can be watched side by side."""
    with ThreadPoolExecutor(len(players)) as threads:
        for side, player in enumerate(players):
            threads.submit(write, turn, side, player, settings, verifier)


async def _events(turns: Turns, work: Any) -> AsyncIterator[str]:
    """The events of a request, until it is done. It is given up if the browser closes the connection."""
    loop, queue = asyncio.get_running_loop(), asyncio.Queue[Event | None]()

    def tell(event: Event | None) -> None:
        loop.call_soon_threadsafe(queue.put_nowait, event)

    try:
        turn = turns.take(work, tell)
    except ForkLeftError as error:
        yield _sse({"kind": "error", "message": str(error)})
        return
    try:
        while (event := await queue.get()) is not None:
            yield _sse(event)
        yield _sse({"kind": "done"})
    finally:
        turns.leave(turn)


def _sse(event: Event) -> str:
    return f"event: {event['kind']}\ndata: {json.dumps(event)}\n\n"


class _Guard:
    """Refuses requests under names or from pages that are not this server's, and adds the headers."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        headers = Headers(scope=scope)
        host, origin = headers.get("host", ""), headers.get("origin")
        refusal: str | None = None
        if not self._is_known(host):
            refusal = f"this playground does not answer to the name {host!r:.80}; open the address that it printed"
        elif origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            refusal = f"a page of {origin!r:.80} may not use this playground"
        if refusal is None:
            await self._app(scope, receive, with_headers)
        else:
            await JSONResponse({"error": refusal}, 403)(scope, receive, with_headers)

    def _is_known(self, header: str) -> bool:
        """Whether a `Host` header names this server: as the user does, or by an address, which nobody can redirect."""
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if is_loopback(self._host):
            return is_loopback(name)
        try:
            return bool(ipaddress.ip_address(name))
        except ValueError:
            return name in {"localhost", self._host.lower(), socket.gethostname().lower()}
