"""Objects in a bucket of Amazon S3 or of a store that speaks its protocol, through ``obstore`` (extra ``s3``).

An object is put with ``If-None-Match: *`` (RFC 9110, 13.1.2; Amazon S3 User Guide, "Conditional writes") and read
back before it counts. Some stores accept that header and overwrite all the same: every bucket is probed once when it
is opened. What a server says in an error can repeat credentials, so errors of the driver are dropped and only the
code in them is told.
"""

import contextlib
import ipaddress
import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

from evidence_archive.errors import MisuseError, StoreError, StoreUnavailableError
from evidence_archive.objects.naming import check_data, split_key
from evidence_archive.ports import OBJECT_BYTES_MAX, Entropy

__all__ = [
    "CONNECT_MS_MAX",
    "PUTS_MAX",
    "REQUEST_MS_MAX",
    "RETRIES_MAX",
    "RETRYING_MS_MAX",
    "S3Objects",
    "open_s3",
]

CONNECT_MS_MAX = 5_000
"""Longest wait for a connection, in milliseconds."""

REQUEST_MS_MAX = 60_000
"""Longest wait for one request from first to last byte, in milliseconds."""

RETRIES_MAX = 3
"""Repetitions of a request that the server or the network refused, with growing pauses of at most two seconds."""

RETRYING_MS_MAX = 90_000
"""Milliseconds from the first request after which none is repeated."""

PUTS_MAX = 3
"""Tries of one put that another writer's request got in the way of."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_SEGMENT = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9_.=-]{1,128}", re.ASCII)
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")
_STATUS = re.compile(r"non-2xx status code: ([0-9]{3})")
_KIND = re.compile(r"\bkind: ([A-Z][a-z]{1,16})\b")
_URL_SAYS = "write s3://bucket/prefix?region=...&endpoint=... and leave credentials to the environment"
_FORKED = (
    "S3 was used before this process was forked, and its driver does not work after that: start processes with spawn."
)

_driver_pids: set[int] = set()
"""The process whose threads the driver has; a child that was forked from it would wait for them for ever."""

_Got = TypeVar("_Got")


class S3Objects:
    """Objects in a bucket, each put once and read back; the bucket is probed when it is opened.

    Credentials are those of the environment as ``obstore`` finds them (``AWS_ACCESS_KEY_ID`` and so on, a web
    identity, a container's or an instance's role) and appear in no error and no representation.

    Args:
        bucket: its name; it must exist.
        prefix: path inside the bucket, ``""`` for none.
        region: such as ``eu-central-1``; else the environment's ``AWS_REGION``.
        endpoint: URL of a store other than Amazon's; else the environment's ``AWS_ENDPOINT_URL_S3``,
            ``AWS_ENDPOINT_URL`` or ``AWS_ENDPOINT``.
        allow_http: also talk to an endpoint without TLS that is not on this machine.
        connect_ms: longest wait for a connection, in milliseconds.
        request_ms: longest wait for one request, in milliseconds.
        retries: repetitions of a request that failed, from 0.
        entropy: source of random bytes.

    Raises:
        StoreError: a name or URL cannot be used, ``obstore`` is not installed, or the bucket overwrites objects in
            spite of ``If-None-Match: *``.
        StoreUnavailableError: the bucket cannot be reached, or refuses the probe.
        MisuseError: this process was forked from one that had used S3.
    """

    __slots__ = ("_bucket", "_driver", "_path", "_store")

    def __init__(
        self,
        bucket: str,
        prefix: str = "",
        *,
        region: str | None = None,
        endpoint: str | None = None,
        allow_http: bool = False,
        connect_ms: int = CONNECT_MS_MAX,
        request_ms: int = REQUEST_MS_MAX,
        retries: int = RETRIES_MAX,
        entropy: Entropy = os.urandom,
    ) -> None:
        self._bucket = _checked_bucket(bucket)
        self._path = _checked_prefix(prefix)
        config: dict[str, Any] = {"conditional_put": "etag", "disable_bulk_delete": True}
        if region is not None:
            config["region"] = _checked_region(region)
        named = (endpoint, *map(os.environ.get, _ENDPOINT_VARIABLES))
        if (used := next(filter(None, named), None)) is not None:
            # Under this name nothing in the environment takes precedence.
            config["aws_endpoint_url_s3"], allow_http = _checked_endpoint(used, allow_http)
        self._driver = _load_driver()
        self._store: Any = self._tell(
            lambda: self._driver.store.S3Store(
                self._bucket,
                config=config,
                client_options={
                    "allow_http": allow_http,
                    "connect_timeout": timedelta(milliseconds=connect_ms),
                    "timeout": timedelta(milliseconds=request_ms),
                },
                retry_config={
                    "max_retries": retries,
                    "retry_timeout": timedelta(milliseconds=RETRYING_MS_MAX),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=100),
                        "max_backoff": timedelta(seconds=2),
                        "base": 2,
                    },
                },
            )
        )
        self._probe(entropy)

    @property
    def name(self) -> str:
        """``s3``."""
        return "s3"

    def put(self, key: str, data: bytes) -> None:
        """The object, read back and compared when this returns; nothing is ever overwritten.

        Args:
            key: of the form that :class:`~evidence_archive.ports.ObjectStore` gives.
            data: at most ``OBJECT_BYTES_MAX`` bytes.

        Raises:
            StoreError: another object has this key, or the bucket does not give back what it took.
            StoreUnavailableError: the bucket cannot be reached or refuses; it may or may not hold the object.
            MisuseError: the store was closed, or this process was forked.
        """
        check_data(data)
        split_key(key)
        path = self._path + key
        for _ in range(PUTS_MAX):
            failure: StoreUnavailableError | None = None
            created = False
            try:
                created = self._create(path, data)
            except StoreUnavailableError as error:  # no answer, perhaps: then only a look can tell what became of it
                failure = error
            found = self._read(path) if failure is None else self._looked_up(path)
            if found == data:
                return
            if failure is not None and found is None:
                raise failure
            if found is not None:
                raise StoreError(
                    "The bucket gives back other bytes than it took: do not use it, and check what is between."
                    if created
                    else "There is another object of this key already; nothing was overwritten."
                )
            if created:
                raise StoreError(
                    "The bucket does not hold the object that it took: check its lifecycle rules and its consistency."
                )
        raise StoreUnavailableError("Another request for the same object is in progress: try again.")

    def get(self, key: str) -> bytes | None:
        """The object, or ``None`` when the bucket says that there is no such key.

        Args:
            key: as in :meth:`put`.

        Raises:
            StoreError: what is there is larger than an object can be.
            StoreUnavailableError: the bucket cannot be reached or refuses.
            MisuseError: the store was closed, or this process was forked.
        """
        split_key(key)
        return self._read(self._path + key)

    def delete(self, key: str) -> None:
        """No such object any more, whether or not there was one.

        Args:
            key: as in :meth:`put`.

        Raises:
            StoreUnavailableError: the bucket cannot be reached or refuses.
            MisuseError: the store was closed, or this process was forked.
        """
        split_key(key)
        self._delete(self._path + key)

    def tidy(self) -> int:
        """0: a put that did not come to its end leaves nothing in a bucket."""
        return 0

    def close(self) -> None:
        """The driver's connections are given up; afterwards every use is refused."""
        self._store = None

    def __repr__(self) -> str:
        return f"<S3Objects s3://{self._bucket}/{self._path}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise MisuseError("Object stores are not copied or pickled: open them again where they are needed.")

    # --- requests ---------------------------------------------------------------------------------------------------

    def _create(self, path: str, data: bytes) -> bool:
        """Whether the object was made; not when there is one already or another request is about to make it."""
        taken = (self._driver.exceptions.AlreadyExistsError, self._driver.exceptions.PreconditionError)

        def create() -> bool:
            try:
                self._driver.put(self._opened(), path, data, mode="create", use_multipart=False)
            except taken:
                return False
            return True

        return self._tell(create)

    def _read(self, path: str) -> bytes | None:
        def read() -> bytes | None:
            try:
                found = self._driver.get(self._opened(), path)
            except FileNotFoundError as error:
                if _code(error) == "NoSuchKey":  # anything else may be a missing bucket or a page of some proxy
                    return None
                raise
            if found.meta["size"] > OBJECT_BYTES_MAX:
                raise StoreError("What is in the place of an object is larger than one can be: remove it.")
            return bytes(found.bytes())

        return self._tell(read)

    def _looked_up(self, path: str) -> bytes | None:
        try:
            return self._read(path)
        except StoreUnavailableError:
            return None

    def _delete(self, path: str) -> None:
        def delete() -> None:
            try:
                self._driver.delete(self._opened(), path)
            except FileNotFoundError as error:
                if _code(error) != "NoSuchKey":
                    raise

        self._tell(delete)

    def _opened(self) -> Any:
        if self._store is None:
            raise MisuseError("This object store was closed: open it again.")
        if os.getpid() not in _driver_pids:
            raise MisuseError(_FORKED)
        return self._store

    def _tell(self, ask: Callable[[], _Got]) -> _Got:
        """What the driver answers; its errors become ours, and are not chained, for what servers repeat in them."""
        exceptions = self._driver.exceptions
        try:
            return ask()
        except (exceptions.BaseError, OSError, ValueError) as error:
            said = _said(error, (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError))
        raise StoreUnavailableError(said)

    def _probe(self, entropy: Entropy) -> None:
        """Nothing, when this bucket keeps what is there already.

        Both the answer and the object are looked at. Where deleting is forbidden, the probe (49 bytes) stays.
        """
        path = f"{self._path}probe/{entropy(16).hex()}"
        first, second = (b"evidence-archive probe %d " % number + entropy(12).hex().encode() for number in (1, 2))
        self._create(path, first)  # what this answers may be that of a repetition: the second one tells
        try:
            kept = not self._create(path, second) and self._read(path) == first
        finally:
            with contextlib.suppress(StoreUnavailableError):
                self._delete(path)
        if not kept:
            raise StoreError(
                "The bucket overwrites objects in spite of If-None-Match, or does not give back what it took:"
                " use one with conditional writes."
            )


def open_s3(url: str, *, entropy: Entropy = os.urandom) -> S3Objects:
    """The bucket at a URL ``s3://bucket/prefix?region=...&endpoint=...&allow_http=true``.

    Everything after the bucket may be left out.

    Args:
        url: without credentials, which are the environment's.
        entropy: source of random bytes.

    Raises:
        StoreError: the URL cannot be read; and what :class:`S3Objects` raises.
        StoreUnavailableError: as in :class:`S3Objects`.
        MisuseError: as in :class:`S3Objects`.
    """
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        parts, pairs = urlsplit(""), []
    options = dict(pairs)
    if (
        parts.scheme != "s3"
        or parts.fragment
        or len(options) != len(pairs)
        or not options.keys() <= {"region", "endpoint", "allow_http"}
        or options.get("allow_http", "false") not in ("true", "false")
    ):
        raise StoreError(f"The URL of the bucket cannot be read: {_URL_SAYS}.")
    return S3Objects(
        parts.netloc,
        unquote(parts.path).strip("/"),
        region=options.get("region"),
        endpoint=options.get("endpoint"),
        allow_http=options.get("allow_http") == "true",
        entropy=entropy,
    )


# --- what is accepted -------------------------------------------------------------------------------------------
# None of these repeats what it refuses: whoever writes credentials into a URL does not find them in a log.


def _checked_bucket(bucket: str) -> str:
    if not _BUCKET.fullmatch(bucket):
        raise StoreError(f"The name of the bucket cannot be used: {_URL_SAYS}.")
    return bucket


def _checked_prefix(prefix: str) -> str:
    if prefix and (len(prefix) > 512 or not all(map(_SEGMENT.fullmatch, prefix.split("/")))):
        raise StoreError("The prefix in the bucket has letters, digits, '_', '.', '=', '-' and single slashes only.")
    return f"{prefix}/" if prefix else ""


def _checked_region(region: str) -> str:
    if not _REGION.fullmatch(region):
        raise StoreError(f"The region cannot be used: {_URL_SAYS}.")
    return region


def _checked_endpoint(endpoint: str, allow_http: bool) -> tuple[str, bool]:
    """The endpoint, and whether it may be without TLS."""
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname or ""
        usable = bool(host) and parts.port != 0 and parts.scheme in ("http", "https")
    except ValueError:
        parts, host, usable = urlsplit(""), "", False
    if not usable or "@" in parts.netloc or parts.query or parts.fragment or parts.path.strip("/"):
        raise StoreError(f"The endpoint cannot be used, it is https://host:port: {_URL_SAYS}.")
    plain = allow_http or _is_loopback(host)
    if parts.scheme == "http" and not plain:
        raise StoreError("The endpoint has no TLS: use https://, or say allow_http where the network is trusted.")
    return f"{parts.scheme}://{parts.netloc}", plain


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- the driver -------------------------------------------------------------------------------------------------


def _load_driver() -> Any:
    if _driver_pids - {os.getpid()}:
        raise MisuseError(_FORKED)
    try:
        import obstore
        import obstore.exceptions
        import obstore.store
    except ImportError as error:
        raise StoreError("Objects in S3 need the extra s3: run `pip install 'evidence-archive[s3]'`.") from error
    _driver_pids.add(os.getpid())
    return obstore


def _code(error: Exception) -> str | None:
    """The code in a server's answer, such as ``NoSuchKey`` (Amazon S3 API Reference, "Error responses")."""
    found = _CODE.search(str(error))
    return found[1] if found else None


def _said(error: Exception, denied: tuple[type[Exception], ...]) -> str:
    text = str(error)
    code = _code(error)
    status = _STATUS.search(text)
    kind = _KIND.search(text)
    what = code or (f"status {status[1]}" if status else (kind[1].lower() if kind else "no answer"))
    if isinstance(error, denied):
        return f"The bucket refuses ({what}): check the credentials in the environment and what they may do."
    if isinstance(error, FileNotFoundError):
        return f"The bucket is not there ({what}): check its name, its region and the endpoint."
    if status and not status[1].startswith("5"):
        return f"The bucket refuses ({what}): check its name, its region, the endpoint and the credentials."
    return f"The bucket cannot be reached ({what}): check the endpoint and the network, then try again."
