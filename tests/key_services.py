"""Services that hold keys, on this machine, behind doors that count what is asked and fail when they are told to.

KMS is moto, made as strict as KMS is. Vault is a stand-in for its transit engine, after Vault's API documentation
("Transit secrets engine (API)", "HTTP API": status codes and ``{"errors": [...]}``); it is not Vault.
"""

import base64
import hmac
import json
import os
import re
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
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

__all__ = ["Answer", "Door", "Drop", "KmsDoor", "VaultDoor", "kms_error", "moto_server", "vault_error"]

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
            wbufsize = 65_536  # head and body in one packet: two would wait for an acknowledgement in between

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
                    self.wfile.flush()
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


def vault_error(status: int, *errors: str) -> Answer:
    """An error as Vault has it."""
    return status, {"errors": list(errors)}


class TransitKey:
    """A named key of the transit engine."""

    def __init__(self, name: str, given: dict[str, Any]) -> None:
        self.name = name
        self.type = given.get("type", "aes256-gcm96")
        self.derived = given.get("derived", False)
        self.secrets: dict[int, tuple[bytes, bytes]] = {}
        self.latest = self.available = self.least_encryption = 0
        self.least_decryption = 1
        self.rotate()

    def rotate(self) -> None:
        self.latest += 1
        self.secrets[self.latest] = os.urandom(32), os.urandom(32)

    def described(self) -> Answer:
        return 200, {
            "data": {
                "name": self.name,
                "type": self.type,
                "derived": self.derived,
                "deletion_allowed": False,
                "exportable": False,
                "keys": {str(one): 1_790_000_000 for one in self.secrets if one >= self.least_decryption},
                "latest_version": self.latest,
                "min_available_version": self.available,
                "min_decryption_version": self.least_decryption,
                "min_encryption_version": self.least_encryption,
                "supports_encryption": True,
                "supports_decryption": True,
            }
        }

    def configure(self, given: dict[str, Any]) -> Answer:
        decryption = given.get("min_decryption_version", self.least_decryption)
        encryption = given.get("min_encryption_version", self.least_encryption)
        if max(decryption, encryption) > self.latest:
            return vault_error(400, f"cannot set min version, latest key version is {self.latest}")
        if 0 < encryption < decryption or min(decryption, encryption) < self.available:
            return vault_error(400, "cannot set min encryption/decryption values")
        self.least_decryption, self.least_encryption = decryption, encryption
        return self.described()

    def trim(self, given: dict[str, Any]) -> Answer:
        least = given["min_available_version"]
        if least < self.available:
            return vault_error(400, "minimum available version cannot be decremented")
        if not self.least_encryption:
            return vault_error(
                400, "minimum available version cannot be set when minimum encryption version is not set"
            )
        if least > min(self.least_encryption, self.least_decryption):
            return vault_error(400, "minimum available version cannot be greater than minimum decryption version")
        self.available = least
        self.secrets = {version: secret for version, secret in self.secrets.items() if version >= least}
        return self.described()

    def encrypt(self, given: dict[str, Any]) -> Answer:
        version = given.get("key_version") or self.latest
        if version > self.latest:
            return vault_error(400, "requested version for encryption is higher than the latest key version")
        if version < self.least_encryption:
            return vault_error(
                400, "requested version for encryption is less than the minimum encryption key version"
            )
        nonce = os.urandom(12)
        sealed = nonce + AESGCM(self.secrets[version][0]).encrypt(
            nonce, base64.b64decode(given["plaintext"]), base64.b64decode(given.get("associated_data", ""))
        )
        text = f"vault:v{version}:{base64.b64encode(sealed).decode()}"
        return 200, {"data": {"ciphertext": text, "key_version": version}}

    def decrypt(self, given: dict[str, Any]) -> Answer:
        match = re.fullmatch(r"vault:v(\d+):(.*)", given["ciphertext"])
        if match is None:
            return vault_error(400, "invalid ciphertext: no prefix")
        version = int(match[1])
        if version > self.latest:
            return vault_error(400, "invalid ciphertext: version is too new")
        if version < self.least_decryption:
            return vault_error(400, "ciphertext or signature version is disallowed by policy (too old)")
        sealed = base64.b64decode(match[2])
        if len(sealed) < 12:
            return vault_error(400, "invalid ciphertext length")
        try:
            plaintext = AESGCM(self.secrets[version][0]).decrypt(
                sealed[:12], sealed[12:], base64.b64decode(given.get("associated_data", ""))
            )
        except (InvalidTag, ValueError):
            return vault_error(400, "cipher: message authentication failed")
        return 200, {"data": {"plaintext": base64.b64encode(plaintext).decode()}}

    def hmac(self, given: dict[str, Any]) -> Answer:
        version = given.get("key_version") or self.latest
        if version < self.least_encryption or version not in self.secrets:
            return vault_error(400, "cannot generate HMAC: version is too old (disallowed by policy)")
        made = hmac.digest(self.secrets[version][1], base64.b64decode(given["input"]), "sha256")
        return 200, {"data": {"hmac": f"vault:v{version}:{base64.b64encode(made).decode()}"}}


class VaultDoor(Door):
    """A stand-in for Vault with a transit engine; its keys outlive a restart."""

    def __init__(self) -> None:
        super().__init__()
        self.mount = "transit"
        self.keys: dict[str, TransitKey] = {}
        self.tokens: set[str] = set()
        self.namespaces: set[str | None] = set()
        self.seen: list[dict[str, Any]] = []
        self.lock = threading.Lock()

    def operation(self, request: BaseHTTPRequestHandler) -> str:
        path = request.path.removeprefix(f"/v1/{self.mount}/").split("/")
        if path[0] != "keys":
            return path[0]
        return path[2] if len(path) > 2 else "read" if request.command == "GET" else "create"

    def answered(self, request: BaseHTTPRequestHandler, operation: str, body: bytes) -> Answer:
        self.namespaces.add(request.headers.get("X-Vault-Namespace"))
        given = json.loads(body or b"{}")
        self.seen.append(given)
        if request.headers.get("X-Vault-Token") not in self.tokens:
            return vault_error(403, "permission denied")
        if not request.path.startswith(f"/v1/{self.mount}/"):
            return vault_error(404, f"no handler for route {request.path!r}. route entry not found.")
        name = request.path.removeprefix(f"/v1/{self.mount}/").split("/")[1]
        with self.lock:
            if operation == "create":
                created = name not in self.keys
                key = self.keys.setdefault(name, TransitKey(name, given))
                status, answer = key.described()
                return status, answer if created else {**answer, "warnings": [f"key {name} already existed"]}
            if name not in self.keys:
                if operation == "encrypt":  # who may update and not create makes no key in passing
                    return vault_error(403, "1 error occurred:", "permission denied")
                return vault_error(404) if operation == "read" else vault_error(400, "encryption key not found")
            key = self.keys[name]
            if operation == "read":
                return key.described()
            if operation == "rotate":
                key.rotate()
                return 204, None  # newer versions describe the key instead
            work = {"config": key.configure, "encrypt": key.encrypt, "decrypt": key.decrypt, "trim": key.trim}
            return {**work, "hmac": key.hmac}[operation](given)
