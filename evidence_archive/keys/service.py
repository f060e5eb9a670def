"""What providers that ask a service or a program share: what is sent there, what is believed of the answer.

A service is handed the key together with a check value that only this key, org, version and context have. So a
service that binds no context, or answers with something else, is noticed here, and not later as damaged data.
"""

import hashlib
import hmac
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NoReturn

from evidence_archive.errors import FormatError, KeyNotFoundError, KeyringError, MisuseError, SealBrokenError
from evidence_archive.keys.remembering import Remembered
from evidence_archive.model import ce, ce_read
from evidence_archive.sealing.keyring import KEY_BYTES

__all__ = ["Known", "ServiceKeys", "org_name"]

FINGERPRINT_BYTES = 16
WRAPPED_BYTES_MAX = 16 * 1024

_PLACE = b"evidence-archive/v1/key-service-place\x00"
_CHECK = b"evidence-archive/v1/key-service-check\x00"
_FINGERPRINT = b"evidence-archive/v1/key-service-fingerprint\x00"


def org_name(org: str) -> str:
    """What an org is called at a service: 32 hexadecimal digits of the SHA-256 of its name."""
    return hashlib.sha256(org.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Known:
    """What a service says of one org's keys.

    Args:
        current: the version that new keys are wrapped under, from 1.
        names: of every version that may unwrap, what names its key for ever.
    """

    current: int
    names: Mapping[int, str]


class ServiceKeys(ABC):
    """Keys that never leave where they are: they wrap and unwrap there, one request each.

    Args:
        remember_ms: how long the service's word on which versions there are counts, in milliseconds.
        clock_ms: milliseconds that never go backwards.
    """

    shared_by_orgs = False
    _FORM: ClassVar[str]
    """What the wrapped bytes begin with."""

    def __init__(self, remember_ms: int, clock_ms: Callable[[], int]) -> None:
        self._remember_ms = remember_ms
        self._clock_ms = clock_ms
        self._memory: Remembered[str, Mapping[str, Known]] = Remembered(self._list, remember_ms, clock_ms)

    # --- what a provider says -----------------------------------------------------------------------------------

    @abstractmethod
    def _list(self, listing: str) -> Mapping[str, Known]:
        """What there is, by org or by what an org is called there."""

    @abstractmethod
    def _encrypt(self, org: str, version: int, plaintext: bytes, place: bytes) -> bytes:
        """Encrypted at the service, with 32 bytes of associated data."""

    @abstractmethod
    def _decrypt(self, org: str, version: int, sealed: bytes, place: bytes) -> bytes:
        """The inverse; ``SealBrokenError`` only where the service has the key and says that the bytes are not its."""

    @abstractmethod
    def _source(self) -> str:
        """Where they are, for errors; without credentials."""

    def _listing(self, org: str) -> str:
        """Which listing an org is in."""
        return org

    def _called(self, org: str) -> str:
        """What an org is called in a listing."""
        return org

    def _identity(self, org: str, version: int, name: str) -> bytes:
        """What no other key has."""
        return name.encode("utf-8", "surrogatepass")

    # --- what everybody may ask ---------------------------------------------------------------------------------

    def current_version(self, org: str) -> int:
        """The version that new keys are wrapped under, from 1; asked for again when the last answer is too old.

        Raises:
            KeyNotFoundError: the org has no key there.
            KeyringError: the service cannot be asked, or answers with something else.
        """
        return self._known(org).current

    def fingerprint(self, org: str, version: int) -> bytes:
        """16 public bytes that name the org's key of this version, from what names it at the service.

        Raises:
            KeyNotFoundError: the version is not there, also when the service is asked again.
            KeyringError: the service cannot be asked, or answers with something else.
        """
        name = self._known(org, version).names[version]
        identity = self._identity(org, version, name)
        return hashlib.sha256(_FINGERPRINT + ce(self._FORM, org, version, identity)).digest()[:FINGERPRINT_BYTES]

    def wrap(self, org: str, version: int, key: bytes, context: bytes) -> bytes:
        """The key, encrypted by the service in one request.

        Args:
            org, version: under which key.
            key: 32 bytes.
            context: what it is bound to.

        Raises:
            KeyNotFoundError: the version is not there.
            KeyringError: the service cannot be asked, refuses, or answers with something else.
            FormatError: the key does not have 32 bytes.
        """
        if len(key) != KEY_BYTES:
            raise FormatError("A key has exactly 32 bytes.")
        self._known(org, version)
        place = _place(org, version, context)
        wrapped = ce(self._FORM, version, self._encrypt(org, version, key + _check(key, place), place))
        if len(wrapped) > WRAPPED_BYTES_MAX:
            raise KeyringError(
                f"What {self._source()} answers is larger than a wrapped key can be: check what it is."
            )
        return wrapped

    def unwrap(self, org: str, version: int, wrapped: bytes, context: bytes) -> bytes:
        """The key that was wrapped for this org, version and context, decrypted by the service in one request.

        Raises:
            KeyNotFoundError: the version is not there, or not any more.
            WrongKeyError: the service has another key under this name than it had.
            SealBrokenError: the key is the right one, the bytes are not what it wrapped, or belong to another place.
            KeyringError: the service cannot be asked, refuses, or answers with something else.
        """
        self._known(org, version)
        place = _place(org, version, context)
        plaintext = self._decrypt(org, version, self._sealed(wrapped, version), place)
        key = plaintext[:KEY_BYTES]
        if len(plaintext) == 2 * KEY_BYTES and hmac.compare_digest(plaintext[KEY_BYTES:], _check(key, place)):
            return key
        raise KeyringError(
            f"What {self._source()} answers is not what was wrapped here: check what it is, and that it binds the"
            " data that belongs to a key."
        )

    def forget(self, org: str) -> None:
        """What the service said of an org's keys is asked for again at the next use."""
        self._memory.forget(self._listing(org))

    def _known(self, org: str, version: int | None = None) -> Known:
        """What there is of an org, with this version in it; asked for again before anything is said to be missing."""
        called = self._called(org)

        def suffices(found: Mapping[str, Known]) -> bool:
            return called in found and (version is None or version in found[called].names)

        found = self._memory.get(self._listing(org), suffices)
        if suffices(found):
            return found[called]
        if version is None:
            raise KeyNotFoundError(
                f"This org has no key at {self._source()}: for a new org make its first version with "
                "`evidence-archive keys new WHERE --org ORG`; one that had a key needs that one back."
            )
        raise KeyNotFoundError(
            f"Key version {version} is not at {self._source()}: use the service that this store was sealed with."
        )

    def _anew(self, org: str) -> Known | None:
        """What there is of an org now, whatever is remembered."""
        self.forget(org)
        return self._memory.get(self._listing(org)).get(self._called(org))

    def _sealed(self, wrapped: bytes, version: int) -> bytes:
        """What the service made of a wrapped key; all else of it is as :meth:`wrap` writes it."""
        try:
            sealed = ce_read(wrapped)[2] if len(wrapped) <= WRAPPED_BYTES_MAX else None
        except (FormatError, IndexError):
            sealed = None
        if sealed is None or ce(self._FORM, version, sealed) != wrapped:
            raise SealBrokenError("A wrapped key is not what was written, or belongs to another version or provider.")
        return sealed

    def _check_retirable(self, version: int, known: Known) -> None:
        if version == known.current:
            raise KeyringError(
                f"Key version {version} is the current one: make a new version before this one is retired."
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._source()}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise MisuseError("Key providers are not copied or pickled: open the keys again where they are needed.")


def _place(org: str, version: int, context: bytes) -> bytes:
    """32 bytes that stand for where a key belongs."""
    return hashlib.sha256(_PLACE + ce(org, version, context)).digest()


def _check(key: bytes, place: bytes) -> bytes:
    """The check value of a key at its place, 32 bytes (HMAC-SHA256, RFC 2104)."""
    return hmac.digest(key, _CHECK + place, "sha256")
