"""Keys in the transit engine of HashiCorp Vault, a named key for each org, through ``hvac`` (extra ``transit``).

Vault's versions of a key are ours. The HTTP interface is that of Vault's "Transit secrets engine (API)" page. What a
service says in an error can repeat what it was sent, so errors of the driver are dropped and only their kind is told.
"""

import base64
import contextlib
import hmac
import io
import os
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote

from evidence_archive.errors import KeyNotFoundError, KeyringError, SealBrokenError, WrongKeyError
from evidence_archive.keys.endpoints import checked_url
from evidence_archive.keys.remembering import REMEMBER_MS, Remembered, monotonic_ms
from evidence_archive.keys.service import Known, ServiceKeys, org_name

__all__ = ["ANSWER_BYTES_MAX", "CONNECT_MS", "READ_MS", "TransitKeys", "open_transit"]

CONNECT_MS = 2_000
"""Longest wait for a connection, in milliseconds."""

READ_MS = 5_000
"""Longest wait for the next bytes of an answer, in milliseconds."""

ANSWER_BYTES_MAX = 256 * 1024
"""Longest answer of Vault, in bytes; a key with thousands of versions has one as long."""

TOKEN_BYTES_MAX = 8 * 1024

_TYPE = "aes256-gcm96"
_MARK = b"evidence-archive/v1/transit-fingerprint\x00"
_SEALED_BYTES_MIN = 12 + 16
_MOUNT = re.compile(r"[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,62}[A-Za-z0-9_])?", re.ASCII)
_CIPHERTEXT = re.compile(r"vault:v([1-9][0-9]{0,8}):([A-Za-z0-9+/]+={0,2})", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_TOKEN = re.compile(r"[!-~]{1,8192}", re.ASCII)
_BROKEN = ("message authentication failed", "invalid ciphertext")
_URL_SAYS = "write transit:https://host:8200/mount?key=name and leave the token to the environment"
_SAID = {
    "Unauthorized": "refuses (401): check the token and its policy",
    "Forbidden": "refuses (403): check the token and its policy",
    "RateLimitExceeded": "asks to slow down (429): try again, and check its quotas",
    "VaultDown": "is sealed or in maintenance (503): try again",
    "InvalidPath": "has nothing there (404): check the mount and the namespace",
    "InvalidRequest": "cannot do what it was asked (400): check the key's type and its versions",
}


class _RefusedError(Exception):
    """Vault or the driver says no; of what was said, only the kind is kept."""

    def __init__(self, kind: str, *, broken: bool = False) -> None:
        super().__init__(kind)
        self.kind = kind
        self.broken = broken


class TransitKeys(ServiceKeys):
    """Keys in Vault's transit engine: wrapped and unwrapped there, one request each, and bound by associated data.

    The token is ``VAULT_TOKEN``, or what is in the file that ``VAULT_TOKEN_FILE`` names; where it is refused, it is
    read again and the request made once more if it is another one. The namespace is ``VAULT_NAMESPACE``, certificates
    are ``VAULT_CACERT``, ``VAULT_CAPATH``, ``VAULT_CLIENT_CERT`` and ``VAULT_CLIENT_KEY``; no redirection is taken.

    Args:
        address: ``https://host:port``; without TLS only on this machine.
        mount: path of the transit engine.
        key: what the names of the keys begin with.
        connect_ms: longest wait for a connection, in milliseconds.
        read_ms: longest wait for the next bytes of an answer, in milliseconds.
        remember_ms: how long Vault's word on an org's versions counts, in milliseconds.
        clock_ms: milliseconds that never go backwards.

    Raises:
        KeyringError: a name or the address cannot be used, or ``hvac`` is not installed.
    """

    _FORM = "transit/1"

    def __init__(
        self,
        address: str,
        *,
        mount: str = "transit",
        key: str = "evidence-archive",
        connect_ms: int = CONNECT_MS,
        read_ms: int = READ_MS,
        remember_ms: int = REMEMBER_MS,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        parts = checked_url(address, "Vault")
        if parts.query or parts.path.strip("/"):
            raise KeyringError(f"The address of Vault cannot be used: {_URL_SAYS}.")
        if not _MOUNT.fullmatch(mount) or len(mount) > 256 or not _NAME.fullmatch(key):
            raise KeyringError(f"The mount or the name of the keys in Vault cannot be used: {_URL_SAYS}.")
        super().__init__(remember_ms, clock_ms)
        self._address = f"{parts.scheme}://{parts.netloc}"
        self._named: dict[str, Any] = {
            "mount": mount,
            "key": key,
            "connect_ms": connect_ms,
            "read_ms": read_ms,
            "remember_ms": remember_ms,
            "clock_ms": clock_ms,
        }
        self._marks: Remembered[tuple[str, int], bytes] = Remembered(self._mark, remember_ms, clock_ms)
        self._driver = _load_driver()
        self._lock = threading.Lock()
        self._client: tuple[int, Any] | None = None

    def versions(self, org: str) -> tuple[int, ...]:
        """The versions that Vault may decrypt with, ascending.

        Raises:
            KeyringError: Vault cannot be asked.
        """
        known = self._anew(org)
        return () if known is None else tuple(sorted(known.names))

    def new_version(self, org: str) -> int:
        """A new version by rotating the org's key, current when this returns; its first one by making the key.

        Raises:
            KeyringError: Vault cannot be asked, or refuses.
        """
        if self._described(org) is None:
            self._told(
                "create_key", org, key_type=_TYPE, derived=False, exportable=False, allow_plaintext_backup=False
            )
        else:
            self._told("rotate_key", org)
        known = self._anew(org)
        if known is None:
            raise self._nonsense()
        return known.current

    def retire(self, org: str, version: int) -> None:
        """The version is trimmed: Vault destroys it for good; nothing where that was done already.

        Vault destroys versions from the oldest on. What its storage keeps of it in snapshots and backups stays there.

        Args:
            org: whose version.
            version: the oldest one that there is, and not the current one.

        Raises:
            KeyringError: it is the current one, or there is an older one; or Vault cannot be asked, or refuses.
        """
        described = self._described(org)
        if described is None or version < max(1, described["min_available_version"]):
            return
        self._check_retirable(version, Known(described["latest_version"], {}))
        if version > described["latest_version"]:
            return
        oldest = max(1, described["min_available_version"])
        if oldest < version:
            raise KeyringError(f"Vault destroys key versions from the oldest on: retire version {oldest} first.")
        least = version + 1
        # What may be trimmed is below both of them; the driver refuses two equal ones in one request.
        if described["min_encryption_version"] < least:
            floor = max(least, described["min_decryption_version"])
            self._told("update_key_configuration", org, min_encryption_version=floor)
        if described["min_decryption_version"] < least:
            self._told("update_key_configuration", org, min_decryption_version=least)
        self._told("trim_key", org, min_version=least)
        self.forget(org)

    def reopened(self) -> "TransitKeys":
        """Another object over the same keys, with nothing remembered and a connection of its own.

        Raises:
            KeyringError: ``hvac`` is not installed any more.
        """
        return TransitKeys(self._address, **self._named)

    def forget(self, org: str) -> None:
        """What Vault said of an org's keys is asked for again at the next use."""
        known = self._memory.peek(org)
        for version in known[org].names if known and org in known else ():
            self._marks.forget((org, version))
        super().forget(org)

    # --- requests -----------------------------------------------------------------------------------------------

    def _list(self, listing: str) -> Mapping[str, Known]:
        described = self._described(listing)
        if described is None:
            return {}
        names = {
            int(version): "" for version in described["keys"] if int(version) >= described["min_decryption_version"]
        }
        if described["latest_version"] not in names:
            raise self._nonsense()
        return {listing: Known(described["latest_version"], names)}

    def _described(self, org: str) -> Mapping[str, Any] | None:
        """What Vault says of the org's key; ``None`` where there is none."""
        try:
            data = self._data(self._ask("read_key", org))
        except _RefusedError as error:
            refused = error
        else:
            numbers = ("latest_version", "min_decryption_version", "min_encryption_version")
            if not all(type(data.get(name)) is int for name in numbers) or not isinstance(data.get("keys"), Mapping):
                raise self._nonsense()
            if not all(isinstance(version, str) and _VERSION.fullmatch(version) for version in data["keys"]):
                raise self._nonsense()
            if data.get("type") != _TYPE or data.get("derived") is not False:
                raise KeyringError(
                    f"The org's key in Vault is not of type {_TYPE}, or is derived: make it from here."
                )
            available = data.get("min_available_version", 0)
            if type(available) is not int:
                raise self._nonsense()
            return {**data, "min_available_version": available}
        if refused.kind != "InvalidPath":
            raise self._meant(refused)
        return None

    def _identity(self, org: str, version: int, name: str) -> bytes:
        return self._marks.get((org, version))

    def _mark(self, asked: tuple[str, int]) -> bytes:
        """What only this version of this key makes of a label (HMAC-SHA256): its times of creation can coincide."""
        org, version = asked
        label = _text(_MARK + self._called_there(org).encode("ascii"))
        answer = self._told("generate_hmac", org, hash_input=label, key_version=version, algorithm="sha2-256")
        mark = self._of_version(self._data(answer).get("hmac"), version)
        if len(mark) != 32:
            raise self._nonsense()
        return mark

    def _encrypt(self, org: str, version: int, plaintext: bytes, place: bytes) -> bytes:
        try:
            answer = self._ask(
                "encrypt_data",
                org,
                plaintext=_text(plaintext),
                associated_data=_text(place),
                key_version=version,
            )
        except _RefusedError as error:
            refused = error
        else:
            sealed = self._of_version(self._data(answer).get("ciphertext"), version)
            if len(sealed) != len(plaintext) + _SEALED_BYTES_MIN:
                raise self._nonsense()
            return sealed
        raise self._explained(refused, org, version)

    def _decrypt(self, org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        remembered = self._marks.peek((org, version))
        try:
            answer = self._ask(
                "decrypt_data",
                org,
                ciphertext=f"vault:v{version}:{_text(sealed)}",
                associated_data=_text(place),
            )
        except _RefusedError as error:
            refused = error
        else:
            return self._decoded(self._data(answer).get("plaintext"))
        explained = self._explained(refused, org, version)
        if refused.broken:
            if remembered is not None and not hmac.compare_digest(self._marks.get((org, version)), remembered):
                raise WrongKeyError(
                    f"Key version {version} in Vault is another one than it was: use the Vault of this store."
                )
            raise SealBrokenError("A wrapped key does not open: its bytes or its place are not what was wrapped.")
        raise explained

    def _explained(self, refused: _RefusedError, org: str, version: int) -> KeyringError:
        """The error of ours, once it was looked whether the version is still there."""
        if refused.kind in ("InvalidRequest", "InvalidPath", "Forbidden"):
            self.forget(org)
            try:
                self._known(org, version)
            except KeyNotFoundError as error:
                return error
            except KeyringError:  # then what was said first is said
                pass
        return self._meant(refused)

    def _told(self, verb: str, org: str, **named: Any) -> Any:
        try:
            return self._ask(verb, org, **named)
        except _RefusedError as error:
            refused = error
        raise self._meant(refused)

    def _meant(self, refused: _RefusedError) -> KeyringError:
        said = _SAID.get(
            refused.kind, f"cannot be asked ({refused.kind}): check the address and the network, try again"
        )
        return KeyringError(f"Vault {said}.")

    def _nonsense(self) -> KeyringError:
        return KeyringError("What answers for Vault is something else: check the address and the mount.")

    def _called_there(self, org: str) -> str:
        return f"{self._named['key']}-{org_name(org)}"

    def _data(self, answer: Any) -> Mapping[str, Any]:
        data = answer.get("data") if isinstance(answer, Mapping) else None
        if not isinstance(data, Mapping):
            raise self._nonsense()
        return data

    def _of_version(self, text: object, version: int) -> bytes:
        """The bytes in ``vault:vN:base64``, where N is the version that was asked for."""
        match = _CIPHERTEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None or int(match[1]) != version:
            raise self._nonsense()
        return self._decoded(match[2])

    def _decoded(self, text: object) -> bytes:
        data = b""
        with contextlib.suppress(ValueError):
            data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
        if not data or _text(data) != text:
            raise self._nonsense()
        return data

    def _ask(self, verb: str, org: str, **named: Any) -> Any:
        """What the driver answers; what it raises is not chained, for what services repeat in it."""
        client = self._connected()
        for again in (True, False):
            token = client.token
            try:
                answer = getattr(client.secrets.transit, verb)(
                    self._called_there(org), mount_point=self._named["mount"], **named
                )
                # No other status is taken for done: a redirection is not followed.
                if isinstance(answer, Mapping) or getattr(answer, "status_code", None) == 204:
                    return answer
                refused = _RefusedError("nonsense")
            except self._driver.exceptions.VaultError as error:
                said = error.errors if isinstance(error.errors, list) else []
                broken = any(words in str(one) for one in said for words in _BROKEN)
                refused = _RefusedError(type(error).__name__, broken=broken)
            except self._driver.lost as error:
                refused = _RefusedError(type(error).__name__)
            if not again or refused.kind not in ("Forbidden", "Unauthorized"):
                break
            fresh = _token()
            if fresh == token:
                break
            client.token = fresh
        if refused.kind == "nonsense":
            raise self._nonsense()
        raise refused

    def _connected(self) -> Any:
        """The driver's client, of this process; it may be shared by threads."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                client = self._driver.hvac.Client(
                    url=self._address,
                    token=_token(),
                    timeout=(self._named["connect_ms"] / 1_000, self._named["read_ms"] / 1_000),
                    allow_redirects=False,
                    namespace=os.environ.get("VAULT_NAMESPACE") or None,
                )
                client.session.mount(self._address, self._driver.bounded())
                self._client = os.getpid(), client
            return self._client[1]

    def _source(self) -> str:
        return f"Vault at {self._address}/{self._named['mount']}"


def open_transit(where: str) -> TransitKeys:
    """The keys in Vault at ``https://host:8200/mount?key=name``; the key's name may be left out.

    Args:
        where: without credentials, which are the environment's.

    Raises:
        KeyringError: it cannot be read; and what :class:`TransitKeys` raises.
    """
    parts = checked_url(where, "Vault")
    try:
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True) if parts.query else []
    except ValueError:
        pairs = [("", "")]
    options = dict(pairs)
    if len(options) != len(pairs) or not options.keys() <= {"key"}:
        raise KeyringError(f"The place of the keys in Vault cannot be read: {_URL_SAYS}.")
    return TransitKeys(
        f"{parts.scheme}://{parts.netloc}",
        mount=unquote(parts.path).strip("/"),
        key=options.get("key", "evidence-archive"),
    )


class _Driver:
    """What is used of ``hvac`` and of ``requests`` under it."""

    def __init__(self) -> None:
        import hvac
        import hvac.exceptions
        import requests
        import requests.adapters
        import urllib3.exceptions

        class Bounded(requests.adapters.HTTPAdapter):
            """Reads answers to their end, or to their bound."""

            def send(self, request: Any, stream: bool = False, *given: Any, **named: Any) -> Any:
                response = super().send(request, True, *given, **named)
                body = response.raw.read(ANSWER_BYTES_MAX + 1, decode_content=True)
                if len(body) > ANSWER_BYTES_MAX:
                    response.raw.close()
                    raise ValueError("too long")
                response.raw = io.BytesIO(body)
                return response

        self.hvac = hvac
        self.exceptions = hvac.exceptions
        self.lost = (
            requests.RequestException,
            urllib3.exceptions.HTTPError,
            OSError,
            ValueError,
            TypeError,
            AttributeError,
        )
        self.bounded = Bounded


def _load_driver() -> Any:
    try:
        return _Driver()
    except ImportError as error:
        raise KeyringError(
            "Keys in Vault need the extra transit: `pip install 'evidence-archive[transit]'`."
        ) from error


def _token() -> str:
    """The token as it is now.

    Raises:
        KeyringError: there is none.
    """
    token, file = os.environ.get("VAULT_TOKEN", "").strip(), os.environ.get("VAULT_TOKEN_FILE")
    if not token and file:
        try:
            with open(file, "rb") as source:
                token = source.read(TOKEN_BYTES_MAX + 1).decode("ascii", "replace").strip()
        except (OSError, ValueError) as error:
            raise KeyringError(
                "The file that VAULT_TOKEN_FILE names cannot be read: check its path and mode."
            ) from error
    if not _TOKEN.fullmatch(token):
        raise KeyringError("There is no token for Vault: set VAULT_TOKEN, or VAULT_TOKEN_FILE to a file with one.")
    return token


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
