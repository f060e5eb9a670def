"""Where the key-encryption keys of orgs are kept, and how they are opened; docs/keys.md tells which is for whom."""

import hmac
import os

from evidence_archive.errors import KeyringError, SealBrokenError, WrongKeyError
from evidence_archive.keys.roots import EnvironmentKeys, FileKeys, added_version, new_keys, removed_version
from evidence_archive.keys.service import ServiceKeys
from evidence_archive.ports import KeyProvider

__all__ = [
    "SCHEMES",
    "EnvironmentKeys",
    "FileKeys",
    "added_version",
    "new_keys",
    "open_provider",
    "removed_version",
    "unwrap_checked",
    "wrap_checked",
]

SCHEMES = frozenset({"env", "command", "kms", "transit"})
"""What stands before a colon where keys are not in a file."""


def open_provider(keys: str | os.PathLike[str] | KeyProvider) -> KeyProvider:
    """The key provider that is meant.

    Args:
        keys: ``"env:NAME"`` for :class:`EnvironmentKeys`; ``"command:PROGRAM ARG..."`` for
            :class:`~evidence_archive.keys.command.CommandKeys`; ``"kms:alias/prefix?region=..."`` for
            :class:`~evidence_archive.keys.kms.KmsKeys`; ``"transit:https://host:8200/mount?key=..."`` for
            :class:`~evidence_archive.keys.transit.TransitKeys`; any other string or path for :class:`FileKeys`; or a
            provider, which is returned as it is.

    Raises:
        KeyringError: it is none of these, or the keys cannot be used.
    """
    if isinstance(keys, str):
        scheme, separator, rest = keys.partition(":")
        if separator and scheme == "env":
            return EnvironmentKeys(rest)
        if separator and scheme == "command":
            from evidence_archive.keys.command import open_command

            return open_command(rest)
        if separator and scheme == "kms":
            from evidence_archive.keys.kms import open_kms

            return open_kms(rest)
        if separator and scheme == "transit":
            from evidence_archive.keys.transit import open_transit

            return open_transit(rest)
    if isinstance(keys, str | os.PathLike):
        return FileKeys(keys)
    verbs = ("current_version", "fingerprint", "wrap", "unwrap")
    if isinstance(keys, type) or not all(callable(getattr(keys, verb, None)) for verb in verbs):
        raise KeyringError(
            "Keys are a path, 'env:NAME', 'command:PROGRAM', 'kms:alias/...', 'transit:https://...' or a provider."
        )
    return keys


def unwrap_checked(
    provider: KeyProvider, org: str, *, version: int, fingerprint: bytes, wrapped: bytes, context: bytes
) -> bytes:
    """The key that was wrapped, with a wrong key told apart from damaged bytes.

    Args:
        provider: where the KEK is.
        org, version: which KEK.
        fingerprint: of the KEK the stored key was wrapped under, as stored beside it.
        wrapped: the stored message.
        context: from :func:`~evidence_archive.sealing.keyring.wrap_context`.

    Raises:
        WrongKeyError: the provider's key is not the one it was wrapped under.
        KeyNotFoundError: the provider does not have the version.
        SealBrokenError: the key is right, the bytes or their place are not.
    """
    found = provider.fingerprint(org, version)
    if found != fingerprint and isinstance(provider, ServiceKeys):
        provider.forget(org)  # what is remembered may be of a key that was there by mistake, and is gone
        found = provider.fingerprint(org, version)
    if found != fingerprint:
        raise WrongKeyError(
            f"Key version {version} at the provider is not the one this store was sealed with: use the right keys."
        )
    return provider.unwrap(org, version, wrapped, context)


def wrap_checked(provider: KeyProvider, org: str, version: int, key: bytes, context: bytes) -> tuple[bytes, bytes]:
    """A key, wrapped, and the fingerprint of what it was wrapped under; returned only if it unwraps again.

    What a provider wrapped wrongly would be lost with everything sealed under it.

    Args:
        provider: where the KEK is.
        org, version: which KEK.
        key: 32 bytes.
        context: from :func:`~evidence_archive.sealing.keyring.wrap_context`.

    Raises:
        KeyringError: it does not unwrap to the same bytes, or the provider cannot be asked.
    """
    wrapped = provider.wrap(org, version, key, context)
    fingerprint = provider.fingerprint(org, version)
    try:
        again = unwrap_checked(
            provider, org, version=version, fingerprint=fingerprint, wrapped=wrapped, context=context
        )
    except SealBrokenError:
        again = b""
    if not wrapped or not hmac.compare_digest(again, key):
        raise KeyringError("The key provider does not give back what it wrapped: nothing was stored under it.")
    return wrapped, fingerprint
