"""Keys in AWS KMS, one KMS key for each org and version, through ``boto3`` (extra ``kms``).

A key is found by its alias, ``{prefix}/{32 hex digits of the org}/v{version}``. Encrypt, Decrypt, EncryptionContext,
aliases, key states and the errors are those of the AWS KMS API Reference. What a service says in an error can repeat
credentials, so errors of the driver are dropped and only the code in them is told. The driver's own log records of
our requests hold keys, and are held back below the level INFO.
"""

import logging
import os
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from evidence_archive.errors import EvidenceArchiveError, KeyNotFoundError, KeyringError, SealBrokenError
from evidence_archive.keys.endpoints import checked_url
from evidence_archive.keys.remembering import REMEMBER_MS, monotonic_ms
from evidence_archive.keys.service import Known, ServiceKeys, org_name

__all__ = [
    "CONNECT_MS",
    "DELETION_DAYS",
    "PAGES_MAX",
    "READ_MS",
    "TRIES_MAX",
    "KmsKeys",
    "open_kms",
]

CONNECT_MS = 2_000
"""Longest wait for a connection, in milliseconds."""

READ_MS = 5_000
"""Longest wait for the next bytes of an answer, in milliseconds."""

TRIES_MAX = 3
"""Tries of one request in all, with growing pauses of at most a few seconds."""

DELETION_DAYS = 30
"""Days from retiring a version until AWS destroys it; until then its administrators can call that off."""

PAGES_MAX = 1_000
"""Pages of 100 aliases that are looked through."""

_ALIAS = re.compile(r"alias/(?!aws/)[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*", re.ASCII)
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII)
_CODE = re.compile(r"[A-Za-z]{1,64}", re.ASCII)
_CONTEXT = "evidence-archive"
_ALIASES_MAX = 16
_PAUSES_MS = (0, 200, 400, 800, 1_600, 3_200)
_URL_SAYS = "write kms:alias/prefix?region=...&endpoint=... and leave credentials to the environment"
_BROKEN = {"InvalidCiphertextException", "IncorrectKeyException"}
_GONE = {"NotFoundException", "DisabledException"}
_DENIED = {
    "AccessDenied",
    "AccessDeniedException",
    "CredentialRetrievalError",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "NoCredentialsError",
    "NotAuthorizedException",
    "PartialCredentialsError",
    "SSOTokenLoadError",
    "SignatureDoesNotMatch",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
    "UnrecognizedClientException",
}
_SLOWED = {
    "LimitExceededException",
    "RequestLimitExceeded",
    "Throttling",
    "ThrottlingException",
    "TooManyRequestsException",
}

_asking = threading.local()


class _Discreet(logging.Filter):
    """Holds back what the driver tells of requests in detail, where they are ours: its records hold keys."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= logging.INFO or not getattr(_asking, "now", False)


_DISCREET = _Discreet()


class _RefusedError(Exception):
    """The service or the driver says no; of what it said, only the code is kept."""

    def __init__(self, code: str, *, pending_deletion: bool = False) -> None:
        super().__init__(code)
        self.code = code
        self.pending_deletion = pending_deletion


class KmsKeys(ServiceKeys):
    """Keys in AWS KMS: wrapped and unwrapped there, one request each, and bound to their place by EncryptionContext.

    Credentials are those that ``boto3`` finds. Where they are refused, they are looked for again at the next use.

    Args:
        alias_prefix: such as ``alias/evidence-archive``.
        region: such as ``eu-central-1``; else the environment's.
        endpoint: URL of another service that speaks the protocol; without TLS only on this machine.
        connect_ms: longest wait for a connection, in milliseconds.
        read_ms: longest wait for the next bytes of an answer, in milliseconds.
        tries: of one request in all, from 1.
        remember_ms: how long a listing of the aliases counts, in milliseconds; one listing serves all orgs.
        deletion_days: days from retiring a version until its key is destroyed, 7 to 30.
        clock_ms: milliseconds that never go backwards.

    Raises:
        KeyringError: a name or URL cannot be used, or ``boto3`` is not installed.
    """

    _FORM = "kms/1"

    def __init__(
        self,
        alias_prefix: str,
        *,
        region: str | None = None,
        endpoint: str | None = None,
        connect_ms: int = CONNECT_MS,
        read_ms: int = READ_MS,
        tries: int = TRIES_MAX,
        remember_ms: int = REMEMBER_MS,
        deletion_days: int = DELETION_DAYS,
        clock_ms: Callable[[], int] = monotonic_ms,
    ) -> None:
        if not _ALIAS.fullmatch(alias_prefix) or len(alias_prefix) > 200:
            raise KeyringError(f"The alias of the KMS keys cannot be used: {_URL_SAYS}.")
        if region is not None and not _REGION.fullmatch(region):
            raise KeyringError(f"The region of the KMS keys cannot be used: {_URL_SAYS}.")
        if not 7 <= deletion_days <= 30:
            raise KeyringError("A KMS key is destroyed after 7 to 30 days: choose deletion_days among them.")
        super().__init__(remember_ms, clock_ms)
        self._named: dict[str, Any] = {
            "region": region,
            "endpoint": None if endpoint is None else _checked_endpoint(endpoint),
            "connect_ms": connect_ms,
            "read_ms": read_ms,
            "tries": tries,
            "remember_ms": remember_ms,
            "deletion_days": deletion_days,
            "clock_ms": clock_ms,
        }
        self._prefix = alias_prefix
        self._ours = re.compile(re.escape(alias_prefix) + r"/([0-9a-f]{32})/v([1-9][0-9]{0,8})", re.ASCII)
        self._driver = _load_driver()
        self._lock = threading.Lock()
        self._client: tuple[int, Any] | None = None

    def versions(self, org: str) -> tuple[int, ...]:
        """The versions whose keys are enabled, ascending; one request for each besides the listing.

        Raises:
            KeyringError: KMS cannot be asked.
        """
        known = self._anew(org)
        names = {} if known is None else known.names
        return tuple(version for version in sorted(names) if self._state(names[version]) == "Enabled")

    def new_version(self, org: str) -> int:
        """A new KMS key under the next alias, listed and current when this returns; also the first one of an org.

        Where another caller took the alias meanwhile, the next one is taken. A key that was made and got no alias,
        because KMS could not be asked any more, costs money and does no harm; its description has the alias's name.

        Raises:
            KeyringError: KMS cannot be asked, or refuses.
        """
        known = self._anew(org)
        version = 1 if known is None else known.current + 1
        path = f"{self._prefix}/{org_name(org)}"
        made = self._told("create_key", KeyUsage="ENCRYPT_DECRYPT", KeySpec="SYMMETRIC_DEFAULT", Description=path)
        arn = _text_of(made, "KeyMetadata", "Arn")
        for _ in range(_ALIASES_MAX):
            try:
                self._ask("create_alias", AliasName=f"{path}/v{version}", TargetKeyId=arn)
            except _RefusedError as error:
                if error.code != "AlreadyExistsException":
                    raise self._meant(error) from None
            known = self._seen(org, version)
            if known.names[version] == arn:  # not only said to be: an answer can get lost, and its repetition refused
                return version
            version = known.current + 1
        raise KeyringError("Others keep making versions of this org's key in KMS: try again.")

    def retire(self, org: str, version: int) -> None:
        """The version's key is disabled and its destruction scheduled; nothing where that was done already.

        KMS uses it no more when this returns, and destroys it after ``deletion_days``.

        Args:
            org: whose version.
            version: not the current one.

        Raises:
            KeyringError: it is the current one, or shares its key with another version; or KMS cannot be asked.
        """
        known = self._anew(org)
        if known is None or version not in known.names:
            return
        self._check_retirable(version, known)
        arn = known.names[version]
        if list(known.names.values()).count(arn) > 1:
            raise KeyringError(
                f"Key version {version} has its KMS key in common with another version: give it its own."
            )
        state = self._state(arn)
        if state == "Enabled":
            self._told("disable_key", KeyId=arn)
        if state not in ("PendingDeletion", "PendingReplicaDeletion", None):
            self._told("schedule_key_deletion", KeyId=arn, PendingWindowInDays=self._named["deletion_days"])
        self.forget(org)

    def reopened(self) -> "KmsKeys":
        """Another object over the same keys, with nothing remembered and a connection of its own.

        Raises:
            KeyringError: ``boto3`` is not installed any more.
        """
        return KmsKeys(self._prefix, **self._named)

    # --- requests -----------------------------------------------------------------------------------------------

    def _listing(self, org: str) -> str:
        return ""

    def _called(self, org: str) -> str:
        return org_name(org)

    def _list(self, listing: str) -> Mapping[str, Known]:
        found: dict[str, dict[int, str]] = {}
        more: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            page = self._told("list_aliases", Limit=100, **more)
            if not isinstance(page.get("Aliases"), list):
                raise _nonsense()
            for alias in page["Aliases"]:
                match = self._ours.fullmatch(_text_of(alias, "AliasName"))
                if match and alias.get("TargetKeyId"):
                    home = _text_of(alias, "AliasArn").partition(":alias/")[0]
                    found.setdefault(match[1], {})[int(match[2])] = f"{home}:key/{_text_of(alias, 'TargetKeyId')}"
            if not page.get("Truncated"):
                return {name: Known(max(names), names) for name, names in found.items()}
            more = {"Marker": _text_of(page, "NextMarker")}
        raise KeyringError(f"KMS lists more than {PAGES_MAX * 100} aliases: use an account with fewer.")

    def _encrypt(self, org: str, version: int, plaintext: bytes, place: bytes) -> bytes:
        return self._worked(org, version, "encrypt", "CiphertextBlob", place, Plaintext=plaintext)

    def _decrypt(self, org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        return self._worked(org, version, "decrypt", "Plaintext", place, CiphertextBlob=sealed)

    def _worked(self, org: str, version: int, operation: str, field: str, place: bytes, **named: Any) -> bytes:
        arn = self._known(org, version).names[version]
        try:
            answer = self._ask(operation, KeyId=arn, EncryptionContext={_CONTEXT: place.hex()}, **named)
        except _RefusedError as error:
            refused = error
        else:
            worked = answer.get(field)
            if answer.get("KeyId") != arn or not isinstance(worked, bytes):
                raise _nonsense()
            if operation == "encrypt" and len(worked) <= len(named["Plaintext"]):
                raise _nonsense()
            return worked
        if refused.code in _BROKEN and operation == "decrypt":
            raise SealBrokenError("A wrapped key does not open: its bytes or its place are not what was wrapped.")
        self._forget_if_gone(refused, org)
        raise self._meant(refused, version)

    def _seen(self, org: str, version: int) -> Known:
        """What there is once KMS lists the version: what was made is not listed by all of its machines at once."""
        for pause_ms in _PAUSES_MS:
            time.sleep(pause_ms / 1_000)
            known = self._anew(org)
            if known is not None and version in known.names:
                return known
        raise KeyringError("KMS does not list the alias of a new key yet: look with the next use whether it does.")

    def _state(self, arn: str) -> str | None:
        """The key's state; ``None`` where there is no such key any more."""
        try:
            answer = self._ask("describe_key", KeyId=arn)
        except _RefusedError as error:
            if error.code != "NotFoundException":
                raise self._meant(error) from None
            return None
        return _text_of(answer, "KeyMetadata", "KeyState")

    def _told(self, operation: str, **named: Any) -> Mapping[str, Any]:
        try:
            return self._ask(operation, **named)
        except _RefusedError as error:
            refused = error
        raise self._meant(refused)

    def _forget_if_gone(self, refused: _RefusedError, org: str) -> None:
        if refused.pending_deletion or refused.code in _GONE or refused.code in _DENIED:
            self.forget(org)

    def _meant(self, refused: _RefusedError, version: int | None = None) -> EvidenceArchiveError:
        """The error of ours that a refusal is."""
        code = refused.code if _CODE.fullmatch(refused.code) else "no code"
        if version is not None and (refused.pending_deletion or code in _GONE):
            return KeyNotFoundError(
                f"Key version {version} is disabled or destroyed in KMS ({code}): enable it there."
            )
        if code in _DENIED:
            return KeyringError(
                f"KMS refuses ({code}): check the credentials in the environment and what they may do."
            )
        if code in _SLOWED:
            return KeyringError(f"KMS asks to slow down ({code}): try again, and check its quotas.")
        return KeyringError(f"KMS cannot be asked ({code}): check region, endpoint and network, then try again.")

    def _ask(self, operation: str, **named: Any) -> Mapping[str, Any]:
        """What the driver answers; what it raises is not chained, for what services repeat in it."""
        driver = self._driver
        refused: _RefusedError
        _asking.now = True
        try:
            answer = getattr(self._connected(), operation)(**named)
            if isinstance(answer, Mapping):
                return answer
            refused = _RefusedError("nonsense")
        except driver.exceptions.ClientError as error:
            refused = _refusal(error.response)
        except driver.exceptions.BotoCoreError as error:
            refused = _RefusedError(type(error).__name__)
        except (driver.parsers.ResponseParserError, OSError, ValueError, TypeError, KeyError, AttributeError):
            refused = _RefusedError("nonsense")
        finally:
            _asking.now = False
        if refused.code in _DENIED:
            with self._lock:
                self._client = None  # the next one looks for credentials again
        raise refused

    def _connected(self) -> Any:
        """The driver's client, of this process; it may be shared by threads."""
        with self._lock:
            if self._client is None or self._client[0] != os.getpid():
                import boto3.session

                config = self._driver.config.Config(
                    connect_timeout=self._named["connect_ms"] / 1_000,
                    read_timeout=self._named["read_ms"] / 1_000,
                    retries={"total_max_attempts": self._named["tries"], "mode": "standard"},
                )
                client = boto3.session.Session().client(
                    "kms",
                    region_name=self._named["region"],
                    endpoint_url=self._named["endpoint"],
                    config=config,
                )
                for name, logger in list(logging.Logger.manager.loggerDict.items()):
                    if name.partition(".")[0] in ("boto3", "botocore") and isinstance(logger, logging.Logger):
                        logger.addFilter(_DISCREET)  # once, however often
                self._client = os.getpid(), client
            return self._client[1]

    def _source(self) -> str:
        return f"KMS under {self._prefix}"


def open_kms(where: str) -> KmsKeys:
    """The keys in KMS at ``alias/prefix?region=...&endpoint=...``; everything after the alias may be left out.

    Args:
        where: without credentials, which are the environment's.

    Raises:
        KeyringError: it cannot be read; and what :class:`KmsKeys` raises.
    """
    alias, _, query = where.partition("?")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=True) if query else []
    except ValueError:
        pairs = [("", "")]
    options = dict(pairs)
    if len(options) != len(pairs) or not options.keys() <= {"region", "endpoint"}:
        raise KeyringError(f"The place of the KMS keys cannot be read: {_URL_SAYS}.")
    return KmsKeys(alias, region=options.get("region"), endpoint=options.get("endpoint"))


def _checked_endpoint(endpoint: str) -> str:
    parts = checked_url(endpoint, "KMS")
    if parts.query or parts.path.strip("/"):
        raise KeyringError("The address of KMS cannot be used: write https://host:port.")
    return f"{parts.scheme}://{parts.netloc}"


def _load_driver() -> Any:
    try:
        import boto3.session  # noqa: F401  # both or neither
        import botocore
        import botocore.config
        import botocore.exceptions
        import botocore.parsers
    except ImportError as error:
        raise KeyringError("Keys in KMS need the extra kms: run `pip install 'evidence-archive[kms]'`.") from error
    return botocore


def _refusal(response: Any) -> _RefusedError:
    said = response.get("Error") if isinstance(response, Mapping) else None
    code, text = (said.get("Code"), said.get("Message")) if isinstance(said, Mapping) else (None, None)
    pending = code == "KMSInvalidStateException" and "pending deletion" in str(text)
    return _RefusedError(str(code), pending_deletion=pending)


def _text_of(answer: Any, *path: str) -> str:
    """What stands at a place of an answer."""
    for name in path:
        answer = answer.get(name) if isinstance(answer, Mapping) else None
    if not isinstance(answer, str) or not answer:
        raise _nonsense()
    return answer


def _nonsense() -> KeyringError:
    return KeyringError("What answers for KMS is something else: check the endpoint and the network.")
