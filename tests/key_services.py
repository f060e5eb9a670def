"""Services that hold keys, on this machine: moto behind a door that counts, fails and is as strict as KMS is."""

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

__all__ = ["Answer", "Door", "Drop", "KmsDoor", "kms_error", "moto_server"]

_MOTO = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
application = DomainDispatcherApplication(create_backend_app)
one_at_a_time = threading.Lock()  # it looks and then writes: of two requests at once both could win

def serve(environ, start_response):
    with one_at_a_time:
        return list(application(environ, start_response))

server = make_server("127.0.0.1", 0, serve, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("port", server.server_port, flush=True)
sys.stdin.read()
"""


@contextmanager
def moto_server() -> Iterator[str]:
    """The URL of a server that ends with the block."""
    pytest.importorskip("moto", reason="sweep: moto is not installed")
    server = subprocess.Popen(
        [sys.executable, "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        line = next((line for line in server.stdout if line.startswith("port ")), None)
        assert line is not None, "the server did not start"
        yield f"http://127.0.0.1:{line.split()[1]}"
    finally:
        server.stdin.close()
        server.wait(timeout=30)
        server.stdout.close()


Answer = tuple[int, Any]
"""A status, and what is sent as JSON; bytes are sent as they are."""


class Drop(Exception):
    """The connection ends without an answer."""


Fault = Callable[[str, dict[str, Any]], Answer | None]
"""From an operation and its request to the answer it gets instead of the true one, or ``None`` for that."""


class Door:
    """A server on this machine that answers as :meth:`answered` says, unless a fault is set."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: Fault | None = None
        self.over = threading.Event()
        self.server: ThreadingHTTPServer | None = None
        self.port = 0
        self.connections = 0

    def answered(self, request: BaseHTTPRequestHandler, operation: str, body: bytes) -> Answer:
        raise NotImplementedError

    def operation(self, request: BaseHTTPRequestHandler) -> str:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take_asked(self) -> list[str]:
        """What was asked since the last time."""
        taken, self.asked = self.asked, []
        return taken

    def slow(self, operation: str, request: dict[str, Any]) -> Answer | None:
        """A fault: the true answer, but ten seconds late, or when the test is over."""
        self.over.wait(10)
        return None

    def open(self) -> None:
        """Begin to answer, on the port of the last time."""
        door = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                door.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                operation = door.operation(self)
                door.asked.append(operation)
                try:
                    answer = door.fault(operation, json.loads(body or b"{}")) if door.fault is not None else None
                    status, data = answer or door.answered(self, operation, body)
                except Drop:
                    self.close_connection = True
                    return
                sent = data if isinstance(data, bytes) else b"" if data is None else json.dumps(data).encode()
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(sent)))
                    self.end_headers()
                    self.wfile.write(sent)
                except OSError:
                    self.close_connection = True

            do_GET = do_PUT = do_POST

            def log_message(self, *given: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False
            sockets: set[Any]

            def process_request(self, request: Any, client_address: Any) -> None:
                self.sockets.add(request)
                super().process_request(request, client_address)

            def shutdown_request(self, request: Any) -> None:
                self.sockets.discard(request)
                super().shutdown_request(request)

            def handle_error(self, *given: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", self.port), Handler)
        self.server.sockets = set()
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """No more answers; connections that stand are cut."""
        server: Any = self.server
        if server is not None:
            self.server = None
            server.shutdown()
            server.server_close()
            for one in list(server.sockets):
                server.shutdown_request(one)

    def __enter__(self) -> "Door":
        self.open()
        return self

    def __exit__(self, *raised: object) -> None:
        self.over.set()
        self.close()


def kms_error(code: str, message: str = "") -> Answer:
    """An error as AWS's JSON protocol has it."""
    return 400, {"__type": code, "message": message}


class KmsDoor(Door):
    """In front of moto: lists aliases by pages, and refuses keys that are disabled or not those of a ciphertext.

    moto lists all at once, uses keys in any state, says AccessDenied where KMS says IncorrectKey, and disables no key
    by its ARN.
    """

    def __init__(self, moto: str) -> None:
        super().__init__()
        self.moto = urlsplit(moto).netloc
        self.page = 100
        self.session_token: str | None = None
        """The only one that is not expired, where it is set."""

    def reset(self) -> None:
        """No keys and no aliases any more."""
        connection = HTTPConnection(self.moto, timeout=30)
        try:
            connection.request("POST", "/moto-api/reset")
            connection.getresponse().read()
        finally:
            connection.close()

    def operation(self, request: BaseHTTPRequestHandler) -> str:
        return str(request.headers.get("X-Amz-Target")).partition(".")[2]

    def answered(self, request: BaseHTTPRequestHandler, operation: str, body: bytes) -> Answer:
        asked = json.loads(body)
        if self.session_token not in (None, request.headers.get("X-Amz-Security-Token")):
            return kms_error("ExpiredTokenException", "The security token included in the request is expired")
        if operation in ("Encrypt", "Decrypt"):
            status, described = self._straight(request, "DescribeKey", {"KeyId": asked["KeyId"]})
            state = described.get("KeyMetadata", {}).get("KeyState")
            if status != 200:
                return kms_error("NotFoundException", "Key does not exist")
            if state == "Disabled":
                return kms_error("DisabledException", f"{asked['KeyId']} is disabled.")
            if state != "Enabled":
                return kms_error("KMSInvalidStateException", f"{asked['KeyId']} is pending deletion.")
        if operation in ("DisableKey", "ScheduleKeyDeletion"):
            asked["KeyId"] = asked["KeyId"].rpartition("/")[2]
        status, answer = self._straight(request, operation, asked)
        if operation == "Decrypt" and answer.get("__type") == "AccessDeniedException":
            return kms_error("IncorrectKeyException")
        if operation == "ListAliases":
            start = int(asked.get("Marker") or 0)
            page = answer["Aliases"][start : start + min(self.page, asked["Limit"])]
            more = start + len(page) < len(answer["Aliases"])
            answer = {"Aliases": page, "Truncated": more}
            if more:
                answer["NextMarker"] = str(start + len(page))
        return status, answer

    def _straight(self, request: BaseHTTPRequestHandler, operation: str, asked: dict[str, Any]) -> tuple[int, Any]:
        body = json.dumps(asked)
        headers = {name: value for name, value in request.headers.items() if name != "Content-Length"}
        headers |= {"X-Amz-Target": f"TrentService.{operation}", "Connection": "close"}
        connection = HTTPConnection(self.moto, timeout=30)
        try:
            connection.request("POST", "/", body=body, headers=headers)
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        return answer.status, json.loads(data or b"{}") or {}
