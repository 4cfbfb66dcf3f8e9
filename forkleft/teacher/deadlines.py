"""HTTP requests whose reply is whole within its time, however it comes.

The timeout of a socket is for each part that arrives: a server that sends headers or a body byte by byte never exceeds
it. Here each wait gets only what is left of the time for all.
"""

import http.client
import io
import socket
import time
import urllib.request
from functools import cache
from typing import Any


class _InTime(io.RawIOBase):
    """What a socket receives, until a deadline. timeout: the seconds to it, for the message."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        super().__init__()
        self._socket, self._timeout = connection, timeout
        self._received: Any = connection.makefile("rb", buffering=0)
        self._deadline = time.monotonic() + timeout

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """As of a socket. Raises TimeoutError at the deadline."""
        left = self._deadline - time.monotonic()
        try:
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            return self._received.readinto(buffer)
        except TimeoutError:
            raise TimeoutError(f"the reply was not whole after {self._timeout:.0f} s") from None

    def close(self) -> None:
        """Close our end."""
        self._received.close()
        super().close()


class _Response(http.client.HTTPResponse):
    def __init__(self, sock: socket.socket, *arguments: Any, **settings: Any) -> None:
        super().__init__(sock, *arguments, **settings)
        timeout = sock.gettimeout()
        assert timeout is not None, "`opened` sets one"
        self.fp.close()
        self.fp = io.BufferedReader(_InTime(sock, timeout))


class _Connection(http.client.HTTPConnection):
    response_class = _Response


class _SafeConnection(http.client.HTTPSConnection):
    response_class = _Response


class _Handler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_Connection, req)


class _SafeHandler(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_SafeConnection, req)


@cache
def _opener() -> urllib.request.OpenerDirector:
    """One for all requests: to make it may read the certificates of the system, which takes its time."""
    return urllib.request.build_opener(_Handler, _SafeHandler)


def opened(request: urllib.request.Request, timeout: float) -> Any:
    """As `urllib.request.urlopen`: the reply, once its headers are there. timeout: seconds for all of it."""
    return _opener().open(request, timeout=timeout)
