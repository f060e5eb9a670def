"""Objects in a bucket: what the server does wrong is noticed, and what it says about credentials is not repeated."""

import copy
import hashlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import traceback
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

obstore = pytest.importorskip("obstore", reason="sweep: obstore is not installed")

from evidence_archive.errors import MisuseError, StoreError, StoreUnavailableError  # noqa: E402
from evidence_archive.objects import open_objects  # noqa: E402
from evidence_archive.objects.s3 import PUTS_MAX, S3Objects, _checked_endpoint  # noqa: E402
from evidence_archive.ports import OBJECT_BYTES_MAX, ObjectStore  # noqa: E402
from evidence_archive.testing.object_contract import ObjectStoreContract  # noqa: E402

KEY = "3f/0123456789abcdef0123456789abcd.00000"
BUCKET = "north-clinic-evidence"
PUBLIC_ID = "AKIDMADEUPFORATEST00"


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> str:
    """Credentials made at run time, and nothing else of AWS in the environment."""
    for name in (name for name in os.environ if name.startswith("AWS_")):
        monkeypatch.delenv(name)
    made = os.urandom(20).hex()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", PUBLIC_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", made)
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"token-{made}")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    return made


# --- a real implementation ----------------------------------------------------------------------------------------

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


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The URL of one server for the whole run."""
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


def new_bucket(url: str, name: str) -> str:
    request = urllib.request.Request(f"{url}/{name}", method="PUT")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
    return name


@pytest.fixture
def bucket(moto: str, tmp_path: Path) -> str:
    """A bucket of the test's own."""
    return new_bucket(moto, f"test-{hashlib.sha256(str(tmp_path).encode()).hexdigest()[:24]}")


class TestContract(ObjectStoreContract):
    @pytest.fixture(autouse=True)
    def _server(self, moto: str, bucket: str) -> None:
        self.url, self.bucket = moto, bucket

    def make(self, folder: Path) -> ObjectStore:
        return open_objects(f"s3://{self.bucket}/{folder.name}?endpoint={self.url}", create=True)


def test_objects_lie_under_the_prefix_and_the_probe_is_gone(moto: str, bucket: str):
    store = open_objects(f"s3://{bucket}/evidence/2026?region=us-east-1&endpoint={quote(moto, safe='')}", create=True)
    store.put(KEY, b"sealed")
    straight = obstore.store.S3Store(bucket, endpoint=moto, client_options={"allow_http": True})
    found = [one["path"] for page in obstore.list(straight) for one in page]
    assert found == [f"evidence/2026/{KEY}"]
    assert store.name == "s3"
    assert repr(store) == f"<S3Objects s3://{bucket}/evidence/2026/>"


def test_a_bucket_that_does_not_exist_is_an_error_and_is_not_made(moto: str):
    for _ in range(2):
        with pytest.raises(StoreUnavailableError, match="NoSuchBucket"):
            open_objects(f"s3://no-such-bucket?endpoint={moto}", create=True)


def test_a_bucket_that_goes_away_is_an_error_never_a_missing_object(moto: str, bucket: str):
    store = S3Objects(bucket, endpoint=moto)
    request = urllib.request.Request(f"{moto}/{bucket}", method="DELETE")
    urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).close()
    for use in (lambda: store.get(KEY), lambda: store.put(KEY, b""), lambda: store.delete(KEY)):
        with pytest.raises(StoreUnavailableError, match="NoSuchBucket"):
            use()
    new_bucket(moto, bucket)
    store.put(KEY, b"sealed")
    assert store.get(KEY) == b"sealed"


# --- a server that does what it should not --------------------------------------------------------------------------

Fault = Callable[["Request", str], bool]


class StandIn(ThreadingHTTPServer):
    """A bucket in memory. A fault looks at each request first and answers it itself by returning True."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Request)
        self.held: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self.seen: list[tuple[str, str]] = []
        self.fault: Fault | None = None
        self.ended = threading.Event()
        self.conditional = True
        self.store_as: Callable[[bytes], bytes | None] = lambda data: data

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hung up is what some of these tests are about."""


class Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StandIn

    def log_message(self, *_: Any) -> None: ...

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content-length": str(len(body)), "etag": '"e"', **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body)

    def refuse(self, status: int, code: str, more: str = "") -> None:
        self.answer(status, f"<Error><Code>{code}</Code><Message>made up</Message>{more}</Error>".encode())

    def cut(self) -> None:
        self.close_connection = True
        self.connection.close()

    def silence(self) -> None:
        self.server.ended.wait(60)
        self.cut()

    def store(self) -> None:
        kept = self.server.store_as(self.body)
        if kept is not None:
            self.server.held[self.path] = kept

    def begin(self) -> bool:
        self.body = self.rfile.read(int(self.headers.get("content-length") or 0))
        self.server.seen.append((self.command, self.path))
        return self.server.fault is not None and self.server.fault(self, self.path)

    def do_PUT(self) -> None:
        if self.begin():
            return
        with self.server.lock:
            taken = self.server.conditional and self.headers.get("if-none-match") and self.path in self.server.held
            if not taken:
                self.store()
        self.refuse(412, "PreconditionFailed") if taken else self.answer(200)

    def do_GET(self) -> None:
        if self.begin():
            return
        found = self.server.held.get(self.path)
        self.refuse(404, "NoSuchKey") if found is None else self.answer(200, found)

    def do_DELETE(self) -> None:
        if not self.begin():
            self.server.held.pop(self.path, None)
            self.answer(204)


@pytest.fixture
def server() -> Iterator[StandIn]:
    made = StandIn()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.ended.set()
    made.shutdown()
    thread.join()
    made.server_close()


def opened(server: StandIn, **options: Any) -> S3Objects:
    return S3Objects(BUCKET, endpoint=server.url, **{"request_ms": 30_000, "retries": 1, **options})


def only(method: str, times: int, act: Callable[[Request], object]) -> Fault:
    """A fault that the next so many requests of this method meet."""
    left = [times]

    def fault(request: Request, path: str) -> bool:
        if request.command != method or not left[0]:
            return False
        left[0] -= 1
        act(request)
        return True

    return fault


class TestContractOnTheStandIn(ObjectStoreContract):
    """The stand-in is a proper bucket as long as no fault is set: what tests below find is the fault's doing."""

    @pytest.fixture(autouse=True)
    def _server(self, server: StandIn) -> None:
        self.server = server

    def make(self, folder: Path) -> ObjectStore:
        return S3Objects(BUCKET, folder.name, endpoint=self.server.url)


def test_a_bucket_that_overwrites_is_refused_and_the_probe_is_removed(server: StandIn):
    server.conditional = False
    with pytest.raises(StoreError, match="overwrites") as caught:
        opened(server)
    assert not isinstance(caught.value, StoreUnavailableError)
    assert server.held == {}


def test_a_bucket_that_refuses_and_overwrites_all_the_same_is_refused(server: StandIn):
    def fault(request: Request, path: str) -> bool:
        if request.command == "PUT" and path in server.held:
            request.store()
            request.refuse(412, "PreconditionFailed")
            return True
        return False

    server.fault = fault
    with pytest.raises(StoreError, match="overwrites"):
        opened(server)


def test_without_the_probe_such_a_bucket_would_lose_the_first_object(server: StandIn):
    server.conditional = False
    straight = obstore.store.S3Store(BUCKET, endpoint=server.url, client_options={"allow_http": True})
    for data in (b"first", b"second"):
        obstore.put(straight, KEY, data, mode="create")
    assert list(server.held.values()) == [b"second"]


def test_a_bucket_that_forbids_deleting_is_used_and_keeps_the_probe(server: StandIn):
    server.fault = only("DELETE", 10, lambda request: request.refuse(403, "AccessDenied"))
    store = opened(server)
    assert [path.split("/")[2] for path in server.held] == ["probe"]
    store.put(KEY, b"sealed")
    assert store.get(KEY) == b"sealed"
    with pytest.raises(StoreUnavailableError, match="AccessDenied"):
        store.delete(KEY)


def test_a_probe_whose_first_answer_got_lost_is_no_verdict_against_the_bucket(server: StandIn):
    def stored_but_cut(request: Request) -> None:
        request.store()
        request.refuse(500, "InternalError")

    server.fault = only("PUT", 1, stored_but_cut)
    opened(server).put(KEY, b"sealed")


def test_a_put_asks_for_no_overwriting_and_reads_back(server: StandIn):
    store = opened(server)
    server.seen.clear()
    headers = []
    server.fault = lambda request, path: (
        headers.append((request.command, request.headers.get("if-none-match"))) or False
    )
    store.put(KEY, b"sealed")
    assert headers == [("PUT", "*"), ("GET", None)]


WHAT_GOES_WRONG: dict[str, Callable[[Request], object]] = {
    "500": lambda request: request.refuse(500, "InternalError"),
    "503 SlowDown": lambda request: request.refuse(503, "SlowDown"),
    "429": lambda request: request.refuse(429, "TooManyRequests"),
    "403": lambda request: request.refuse(403, "AccessDenied"),
    "401": lambda request: request.refuse(401, "Unauthorized"),
    "400": lambda request: request.refuse(400, "ExpiredToken"),
    "301": lambda request: request.refuse(301, "PermanentRedirect"),
    "404 of a proxy": lambda request: request.answer(404, b"<html>not here</html>"),
    "404 of a bucket": lambda request: request.refuse(404, "NoSuchBucket"),
    "a cut connection": Request.cut,
    "a body cut short": lambda request: (request.answer(200, b"", content_length="500"), request.cut()),
    "no HTTP": lambda request: (request.wfile.write(b"made up\r\n\r\n"), request.cut()),
    "silence": lambda request: request.silence(),
}


SILENCE_MS = 2_500
"""How long a request waits where the server stays silent; an answer that comes is there sooner on any machine."""


@pytest.mark.parametrize(
    ("verb", "wrong"),
    [
        (verb, wrong)
        for verb in ("put", "get", "delete", "open")
        for wrong in WHAT_GOES_WRONG
        if (verb, wrong) != ("delete", "a body cut short")  # the answer to a delete has no body
    ],
)
def test_what_goes_wrong_for_good_is_a_typed_error_and_it_recovers(server: StandIn, wrong: str, verb: str):
    options = {"retries": 0, **({"request_ms": SILENCE_MS} if wrong == "silence" else {})}
    store = opened(server, **options)
    other = KEY.replace("3f", "4f")
    store.put(KEY, b"sealed")
    act = WHAT_GOES_WRONG[wrong]
    server.fault = lambda request, path: act(request) or True
    uses: dict[str, Callable[[], object]] = {
        "put": lambda: store.put(other, b"other"),
        "get": lambda: store.get(KEY),
        "delete": lambda: store.delete(KEY),
        "open": lambda: opened(server, **options),
    }
    with pytest.raises(StoreUnavailableError):
        uses[verb]()
    server.fault = None
    assert store.get(KEY) == b"sealed"
    store.put(other, b"other")
    assert store.get(other) == b"other"


@pytest.mark.parametrize("wrong", ["500", "503 SlowDown", "a cut connection"])
@pytest.mark.parametrize("stored", [False, True])
def test_what_goes_wrong_once_is_repeated_and_a_put_that_was_stored_is_a_success(
    server: StandIn, wrong: str, stored: bool
):
    store = opened(server, retries=2)

    def act(request: Request) -> None:
        if stored:
            request.store()
        WHAT_GOES_WRONG[wrong](request)

    server.fault = only("PUT", 1, act)
    store.put(KEY, b"sealed")
    assert server.held[f"/{BUCKET}/{KEY}"] == b"sealed"
    server.fault = only("GET", 1, WHAT_GOES_WRONG[wrong])
    assert store.get(KEY) == b"sealed"


@pytest.mark.parametrize("data", [b"sealed", b"other"])
def test_a_put_whose_answer_never_came_counts_if_the_very_bytes_are_there(server: StandIn, data: bytes):
    store = opened(server, request_ms=SILENCE_MS, retries=0)

    def stored_in_silence(request: Request) -> None:
        server.held[request.path] = data
        request.silence()

    server.fault = only("PUT", 1, stored_in_silence)
    if data == b"sealed":
        store.put(KEY, b"sealed")
    else:
        with pytest.raises(StoreError, match="another object"):
            store.put(KEY, b"sealed")
    assert store.get(KEY) == data


def test_retries_are_bounded(server: StandIn):
    store = opened(server, retries=2)
    server.seen.clear()
    server.fault = lambda request, path: request.refuse(503, "SlowDown") or True
    with pytest.raises(StoreUnavailableError, match="SlowDown"):
        store.get(KEY)
    assert Counter(server.seen) == {("GET", f"/{BUCKET}/{KEY}"): 3}


def test_a_conflict_with_another_request_is_tried_again_within_bounds(server: StandIn):
    store = opened(server, retries=0)
    server.fault = only("PUT", 1, lambda request: request.refuse(409, "ConditionalRequestConflict"))
    store.put(KEY, b"sealed")
    server.seen.clear()
    server.fault = only("PUT", 100, lambda request: request.refuse(409, "ConditionalRequestConflict"))
    with pytest.raises(StoreUnavailableError, match="in progress"):
        store.put(KEY.replace("3f", "4f"), b"sealed")
    assert Counter(method for method, _ in server.seen) == {"PUT": PUTS_MAX, "GET": PUTS_MAX}


DAMAGE: dict[str, Callable[[bytes], bytes | None]] = {
    "a flipped bit": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    "a lost end": lambda data: data[:-1],
    "nothing": lambda data: b"",
    "more": lambda data: data + b"\0",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_bucket_that_stores_other_bytes_is_noticed_by_the_put(server: StandIn, damage: str):
    store = opened(server)
    server.store_as = DAMAGE[damage]
    with pytest.raises(StoreError, match="other bytes than it took"):
        store.put(KEY, b"sealed")


def test_without_reading_back_other_bytes_would_go_unnoticed(server: StandIn):
    server.store_as = DAMAGE["a flipped bit"]
    straight = obstore.store.S3Store(BUCKET, endpoint=server.url, client_options={"allow_http": True})
    obstore.put(straight, KEY, b"sealed", mode="create")
    assert server.held[f"/{BUCKET}/{KEY}"] != b"sealed"


def test_a_bucket_that_does_not_hold_what_it_took_is_noticed_by_the_put(server: StandIn):
    store = opened(server)
    server.store_as = lambda data: None
    with pytest.raises(StoreError, match="lifecycle"):
        store.put(KEY, b"sealed")


def test_an_object_larger_than_one_can_be_is_not_fetched(server: StandIn):
    store = opened(server)
    server.held[f"/{BUCKET}/{KEY}"] = bytes(OBJECT_BYTES_MAX + 1)
    with pytest.raises(StoreError, match="larger"):
        store.get(KEY)


@pytest.mark.parametrize("key", ["", "../x", f"{KEY}/..", f"{KEY}?delete", KEY.upper(), None])
def test_what_is_no_key_is_refused_without_a_request(server: StandIn, key: Any):
    store = opened(server)
    server.seen.clear()
    for use in (lambda: store.put(key, b""), lambda: store.get(key), lambda: store.delete(key)):
        with pytest.raises(StoreError, match="not the key"):
            use()
    with pytest.raises(StoreError, match="at most"):
        store.put(KEY, bytes(OBJECT_BYTES_MAX + 1))
    assert server.seen == []


# --- credentials --------------------------------------------------------------------------------------------------


def all_of(error: BaseException) -> str:
    return "".join(traceback.format_exception(error)) + repr(error.__cause__) + repr(error.__context__)


def test_what_a_server_repeats_of_credentials_is_in_no_error(server: StandIn, secret: str):
    store = opened(server, retries=0)
    echo = f"<AWSAccessKeyId>{PUBLIC_ID}</AWSAccessKeyId><Token-0>token-{secret}</Token-0>"
    for status, code in (
        (403, "InvalidAccessKeyId"),
        (400, "ExpiredToken"),
        (500, "InternalError"),
        (404, "NoSuchKeys"),
    ):
        server.fault = lambda request, path, status=status, code=code: request.refuse(status, code, echo) or True
        for use in (lambda: store.get(KEY), lambda: store.put(KEY, b""), lambda: opened(server, retries=0)):
            with pytest.raises(StoreUnavailableError, match=code) as caught:
                use()
            assert secret not in all_of(caught.value)
            assert PUBLIC_ID not in all_of(caught.value)
    straight = obstore.store.S3Store(
        BUCKET, endpoint=server.url, client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    with pytest.raises(Exception, match=f"token-{secret}"):  # what the driver's own error would have shown
        obstore.get(straight, KEY)


def test_a_store_shows_and_gives_away_no_credentials(server: StandIn, secret: str):
    store = opened(server)
    assert secret not in repr(store)
    assert PUBLIC_ID not in repr(store)
    for travel in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(MisuseError, match="not copied"):
            travel(store)


def test_requests_are_signed_and_the_secret_is_not_sent(server: StandIn, secret: str):
    sent = []
    server.fault = lambda request, path: sent.append(str(request.headers)) or False
    opened(server).put(KEY, b"sealed")
    assert all(f"Credential={PUBLIC_ID}/" in headers for headers in sent)
    assert sent
    assert not any(secret in headers.replace(f"token-{secret}", "") for headers in sent)


# --- what is accepted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://UPPER",
        "s3://ab",
        "s3://who:sekret@north-clinic",
        "s3://sekret@north-clinic",
        "s3://north-clinic:443",
        "s3://north-clinic/a//b",
        "s3://north-clinic/../b",
        "s3://north-clinic/a b",
        "s3://north-clinic/%2e%2e/b",
        "s3://north-clinic?secret=sekret",
        "s3://north-clinic?region=a&region=b",
        "s3://north-clinic?region",
        "s3://north-clinic?region=sekret%20x",
        "s3://north-clinic?region=",
        "s3://north-clinic#sekret",
        "s3://north-clinic?allow_http=sekret",
        "s3://north-clinic?endpoint=ftp://x.test",
        "s3://north-clinic?endpoint=https://who:sekret@x.test",
        "s3://north-clinic?endpoint=https://x.test/sekret",
        "s3://north-clinic?endpoint=https://x.test:port",
        "s3://north-clinic?endpoint=https://",
        "s3://north-clinic?endpoint=http://x.test",
        "s3://north-clinic?endpoint=http://127.0.0.1.x.test",
        "s3://north-clinic?endpoint=http://localhost.x.test",
        "s3://[sekret",
    ],
)
def test_a_url_that_cannot_be_used_is_refused_at_once_and_not_repeated(url: str):
    with pytest.raises(StoreError) as caught:
        open_objects(url, create=True)
    assert not isinstance(caught.value, StoreUnavailableError), "nothing was asked of any network"
    assert "sekret" not in all_of(caught.value)


@pytest.mark.parametrize("name", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
def test_an_endpoint_from_the_environment_is_held_to_the_same_rules(
    server: StandIn, monkeypatch: pytest.MonkeyPatch, name: str
):
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv(name, "http://x.test")
    with pytest.raises(StoreError, match="no TLS"):
        open_objects(f"s3://{BUCKET}", create=True)
    monkeypatch.setenv(name, server.url)
    open_objects(f"s3://{BUCKET}", create=True).put(KEY, b"sealed")
    assert server.held == {f"/{BUCKET}/{KEY}": b"sealed"}


def test_an_endpoint_that_is_given_counts_more_than_the_environment(server: StandIn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    opened(server).put(KEY, b"sealed")
    assert server.held == {f"/{BUCKET}/{KEY}": b"sealed"}


def test_an_endpoint_without_tls_is_used_where_it_is_allowed(server: StandIn, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("evidence_archive.objects.s3._is_loopback", lambda host: False)
    with pytest.raises(StoreError, match="no TLS"):
        opened(server)
    opened(server, allow_http=True)
    open_objects(f"s3://{BUCKET}?endpoint={server.url}&allow_http=true", create=True)


@pytest.mark.parametrize(
    ("host", "local"),
    [("localhost", True), ("127.8.8.8", True), ("::1", True), ("10.0.0.1", False), ("localhost.x.test", False)],
)
def test_only_this_machine_needs_no_tls(host: str, local: bool):
    shown = f"[{host}]" if ":" in host else host
    if local:
        assert _checked_endpoint(f"http://{shown}:9000", False) == (f"http://{shown}:9000", True)
    else:
        with pytest.raises(StoreError, match="no TLS"):
            _checked_endpoint(f"http://{shown}:9000", False)
    assert _checked_endpoint(f"https://{shown}", False) == (f"https://{shown}", local)


def test_a_server_that_says_what_is_deleted_was_not_there_has_deleted_it(server: StandIn):
    store = opened(server)
    server.fault = only("DELETE", 1, lambda request: request.refuse(404, "NoSuchKey"))
    store.delete(KEY)


def test_nobody_listening_is_a_typed_error():
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # taken, so that nobody else listens there either
        with pytest.raises(StoreUnavailableError, match="connect"):
            S3Objects(BUCKET, endpoint=f"http://127.0.0.1:{deaf.getsockname()[1]}", retries=0)


def test_without_the_driver_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(StoreError, match=r"pip install 'evidence-archive\[s3\]'"):
        open_objects(f"s3://{BUCKET}", create=True)


_FORKING = """
import os, sys
from evidence_archive.errors import MisuseError
from evidence_archive.objects.s3 import S3Objects
store = S3Objects(sys.argv[2], endpoint=sys.argv[1])
child = os.fork()
if not child:
    code = 1
    try:
        refused = 0
        for use in (lambda: store.get(sys.argv[3]), lambda: S3Objects(sys.argv[2], endpoint=sys.argv[1])):
            try:
                use()
            except MisuseError as error:
                refused += "forked" in str(error)
        code = 0 if refused == 2 else 2
    finally:
        os._exit(code)
assert os.waitpid(child, 0)[1] == 0
store.put(sys.argv[3], b"sealed")
"""


def test_use_after_a_fork_is_refused_and_does_not_hang(server: StandIn):
    subprocess.run([sys.executable, "-c", _FORKING, server.url, BUCKET, KEY], check=True, timeout=60)
    assert server.held == {f"/{BUCKET}/{KEY}": b"sealed"}
