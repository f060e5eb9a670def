"""A chat-completions server on this machine, so that real SDKs can be tested against a scripted model."""

import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from evidence_archive.errors import EvidenceArchiveError, MisuseError
from evidence_archive.testing.scripted import ScriptedModel

__all__ = ["ChatServer"]

BODY_BYTES_MAX = 64 * 1024 * 1024
"""Longest request body that is read, in bytes."""


class ChatServer:
    """A context manager: an HTTP server on 127.0.0.1 whose answers come from a script.

    It speaks ``POST /v1/chat/completions`` (the path's ending counts), as one JSON document or, for
    ``"stream": true``, as server-sent events. Give ``base_url`` to the SDK, with any key::

        with ChatServer(ScriptedModel([say("Hello.")])) as server:
            client = openai.OpenAI(base_url=server.base_url, api_key="unused")

    Args:
        model: answers and records the requests, one at a time.
    """

    def __init__(self, model: ScriptedModel) -> None:
        self.model = model
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def base_url(self) -> str:
        """What the SDK calls ``base_url``, ending in ``/v1``.

        Raises:
            MisuseError: the server does not run: use it in a ``with`` statement.
        """
        if self._server is None:
            raise MisuseError("The chat server does not run: use it in a 'with' statement.")
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        def build(*args: Any) -> _Exchange:
            return _Exchange(self, *args)

        self._server = _Server(("127.0.0.1", 0), build)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is not None and thread is not None:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, body: dict[str, Any]) -> Any:
        """What the model answers to a request body: a completion, or a list of its chunks.

        Args:
            body: the decoded JSON of a request.

        Raises:
            MisuseError: the script has no step for this request.
        """
        with self._lock:
            reply = self.model.create(**body)
            return list(reply) if body.get("stream") else reply


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: a client that hangs up is its own business, and a traceback would show requests."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, chat: ChatServer, *args: Any) -> None:
        self._chat = chat
        super().__init__(*args)

    def do_POST(self) -> None:
        try:
            answer = self._chat.answer(self._body())
        except Exception as error:  # a failing script must reach the caller; 400, because SDKs retry other statuses
            message = (
                str(error)
                if isinstance(error, EvidenceArchiveError)
                else f"The script raised {type(error).__name__}."
            )
            return self._send(400, [json.dumps({"error": {"message": message, "type": "invalid_request_error"}})])
        if isinstance(answer, list):
            events = [*(json.dumps(chunk) for chunk in answer), "[DONE]"]
            return self._send(200, (f"data: {event}\n\n" for event in events), "text/event-stream")
        return self._send(200, [json.dumps(answer)])

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests hold evidence."""

    def _body(self) -> dict[str, Any]:
        size = self.headers.get("Content-Length", "")
        if not (size.isascii() and size.isdigit()) or int(size) > BODY_BYTES_MAX:
            self.close_connection = True
            raise MisuseError(f"A request needs a Content-Length of at most {BODY_BYTES_MAX} bytes.")
        data = self.rfile.read(int(size))
        if not self.path.split("?")[0].endswith("/chat/completions"):
            raise MisuseError("Only POST /v1/chat/completions is answered here.")
        try:
            body = json.loads(data)
        except ValueError:
            body = None
        if not isinstance(body, dict) or not isinstance(body.get("messages"), list):
            raise MisuseError("The body must be a JSON object with a list of messages.")
        return body

    def _send(self, status: int, pieces: Iterable[str], media_type: str = "application/json") -> None:
        data = "".join(pieces).encode("ascii")
        self.send_response(status)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
