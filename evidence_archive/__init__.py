"""A reversible archive for the tool results of LLM agents.

Everything public is importable from here and loaded on first use: importing the package loads neither the database
layer nor the tokenizer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evidence_archive.aio import AsyncArchive, AsyncCustody, AsyncSession
    from evidence_archive.archive import Archive
    from evidence_archive.custody import Custody
    from evidence_archive.errors import (
        AuditBrokenError,
        BatchRejectedError,
        CheckFailedError,
        EvidenceArchiveError,
        FormatError,
        HeldError,
        IntegrityError,
        KeyNotFoundError,
        KeyringError,
        MessageShapeError,
        MisuseError,
        NotAvailableError,
        ObjectNotFoundError,
        PolicyError,
        RetentionError,
        SealBrokenError,
        ShreddedError,
        StoreBusyError,
        StoreConflictError,
        StoreError,
        StoreUnavailableError,
        UnsupportedVersionError,
        WindowTooSmallError,
        WrongKeyError,
    )
    from evidence_archive.keys import EnvironmentKeys, FileKeys
    from evidence_archive.model import (
        Facts,
        Limits,
        Principal,
        Provenance,
        Receipt,
        Restored,
        ResultInfo,
        SessionStats,
        Target,
        ToolCall,
    )
    from evidence_archive.policy import Policy
    from evidence_archive.ports import Anchor, Clock, KeyLifecycle, KeyProvider, ObjectStore, Store, TokenCounter
    from evidence_archive.session import Session
    from evidence_archive.tokens import TiktokenCounter

    __version__: str
    from evidence_archive.vault import AuditReport

_HOMES = {
    "aio": ("AsyncArchive", "AsyncCustody", "AsyncSession"),
    "archive": ("Archive",),
    "custody": ("Custody",),
    "errors": (
        "AuditBrokenError",
        "BatchRejectedError",
        "CheckFailedError",
        "EvidenceArchiveError",
        "FormatError",
        "HeldError",
        "IntegrityError",
        "KeyNotFoundError",
        "KeyringError",
        "MessageShapeError",
        "MisuseError",
        "NotAvailableError",
        "ObjectNotFoundError",
        "PolicyError",
        "RetentionError",
        "SealBrokenError",
        "ShreddedError",
        "StoreBusyError",
        "StoreConflictError",
        "StoreError",
        "StoreUnavailableError",
        "UnsupportedVersionError",
        "WindowTooSmallError",
        "WrongKeyError",
    ),
    "keys": ("EnvironmentKeys", "FileKeys"),
    "model": (
        "Facts",
        "Limits",
        "Principal",
        "Provenance",
        "Receipt",
        "Restored",
        "ResultInfo",
        "SessionStats",
        "Target",
        "ToolCall",
    ),
    "policy": ("Policy",),
    "ports": ("Anchor", "Clock", "KeyLifecycle", "KeyProvider", "ObjectStore", "Store", "TokenCounter"),
    "session": ("Session",),
    "tokens": ("TiktokenCounter",),
    "vault": ("AuditReport",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Anchor",
    "Archive",
    "AsyncArchive",
    "AsyncCustody",
    "AsyncSession",
    "AuditBrokenError",
    "AuditReport",
    "BatchRejectedError",
    "CheckFailedError",
    "Clock",
    "Custody",
    "EnvironmentKeys",
    "EvidenceArchiveError",
    "Facts",
    "FileKeys",
    "FormatError",
    "HeldError",
    "IntegrityError",
    "KeyLifecycle",
    "KeyNotFoundError",
    "KeyProvider",
    "KeyringError",
    "Limits",
    "MessageShapeError",
    "MisuseError",
    "NotAvailableError",
    "ObjectNotFoundError",
    "ObjectStore",
    "Policy",
    "PolicyError",
    "Principal",
    "Provenance",
    "Receipt",
    "Restored",
    "ResultInfo",
    "RetentionError",
    "SealBrokenError",
    "Session",
    "SessionStats",
    "ShreddedError",
    "Store",
    "StoreBusyError",
    "StoreConflictError",
    "StoreError",
    "StoreUnavailableError",
    "Target",
    "TiktokenCounter",
    "TokenCounter",
    "ToolCall",
    "UnsupportedVersionError",
    "WindowTooSmallError",
    "WrongKeyError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is not None:
        value = getattr(import_module(f"{__name__}.{home}"), name)
    elif name == "__version__":
        value = import_module("importlib.metadata").version("evidence-archive")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
