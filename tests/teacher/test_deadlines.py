"""Replies that never end, byte by byte, whichever part of them it is."""

import socket
import threading
import urllib.error
import urllib.request

import pytest

from forkleft.teacher.connection import Connection
from forkleft.teacher.deadlines import opened

HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n"


@pytest.fixture
def dripping():
    """A server that sends the beginning it is told, and then a byte now and then; gives its address."""
    over, listener, beginning = threading.Event(), socket.create_server(("127.0.0.1", 0)), []

    def serve():
        listener.settimeout(60)
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            try:
                connection.sendall(beginning[0])
                while not over.wait(0.02):
                    connection.sendall(b"0")
            except OSError:
                pass

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/", beginning
    over.set()
    thread.join()
    listener.close()


@pytest.mark.parametrize(
    "beginning",
    [b"", b"HTTP/1.1 200", HEAD, HEAD + b"X: ", HEAD + b"\r\n", HEAD.replace(b"200 OK", b"503 No") + b"\r\n"],
    ids=["status", "rest of the status", "header", "value", "body", "body of an error"],
)
def test_a_reply_is_given_up_in_its_time(dripping, beginning):
    url, said = dripping
    said.append(beginning)
    with pytest.raises(OSError, match="the reply was not whole after 1 s"):
        Connection(url, "m", timeout=0.6).send(url, {"a": 1})


def test_a_reply_in_time_is_as_ever(dripping):
    url, said = dripping
    said.append(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n\r\nok")
    with opened(urllib.request.Request(url), 60.0) as response:
        assert (response.read(), response.headers["X"]) == (b"ok", "y")


def test_an_error_is_as_ever(dripping):
    url, said = dripping
    said.append(b"HTTP/1.1 404 No\r\nContent-Length: 2\r\n\r\nno")
    with pytest.raises(urllib.error.HTTPError, match="HTTP Error 404: No") as raised:
        opened(urllib.request.Request(url), 60.0)
    assert raised.value.read(2) == b"no"
