"""Every error this library raises, as one tree.

    EvidenceArchiveError
    ├ MisuseError                                   the calling program: closed, used after fork
    ├ PolicyError            .path .key             the author of the policy
    ├ BatchRejectedError     .targets .reason       the caller: every target with its status
    ├ NotAvailableError                             unknown, other org, other session, forbidden: indistinguishable
    ├ WindowTooSmallError                           the author of the policy, or whoever made a message too long
    ├ CheckFailedError                              whoever claims it: a check of the host did not pass
    ├ KeyringError                                  the holder of the keys (never the same as damaged data)
    │  ├ KeyNotFoundError
    │  └ WrongKeyError
    ├ IntegrityError                                somebody changed stored bytes
    │  ├ SealBrokenError
    │  └ AuditBrokenError
    ├ FormatError                                   the producer of the input
    │  ├ UnsupportedVersionError
    │  └ MessageShapeError
    ├ StoreError                                    the operator
    │  ├ StoreUnavailableError
    │  │  └ ObjectNotFoundError
    │  └ StoreBusyError
    │     └ StoreConflictError
    └ RetentionError                                the records officer
       ├ HeldError
       └ ShreddedError

A family says whose move it is. ``str()`` is one sentence a person can act on. Messages never contain evidence
text or key bytes; errors of drivers are the ``__cause__``, what an SDK's object raised is dropped.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

__all__ = [
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
    "RejectedTarget",
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
]


class EvidenceArchiveError(Exception):
    """Root of the tree; ``exit_code`` is what the command line ends with."""

    exit_code: ClassVar[int] = 1


class MisuseError(EvidenceArchiveError):
    """The calling program used an object that was closed, or that belongs to another process."""

    exit_code = 70


class PolicyError(EvidenceArchiveError):
    """A policy cannot be used as written.

    Args:
        message: one sentence for the policy's author.
        path: file the policy came from, or ``None`` when it was not a file.
        key: dotted place in the file, such as ``archive[2].effect``, or ``None`` when the whole file is meant.
    """

    exit_code = 10

    def __init__(self, message: str, *, path: str | None = None, key: str | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.key = key


class RejectedTarget(Protocol):
    """What a rejection says of one target of a batch."""

    @property
    def result_id(self) -> str:
        """Result ID as named in the batch."""
        ...

    @property
    def status(self) -> str:
        """What stands against it, or ``ok``."""
        ...

    @property
    def reason(self) -> str:
        """One sentence: why, and what to do."""
        ...


class BatchRejectedError(EvidenceArchiveError):
    """A batch was refused as a whole: NOTHING was archived.

    With one exception: where the store went away while it committed, and stayed away, the reason is ``unknown``. The
    next view tells; whichever it is, all of the batch is archived or none of it.

    Args:
        message: one sentence for the caller.
        targets: every target of the batch with its status, in the batch's order; empty when the batch as a whole
            was refused.
        reason: batch-level reason (``empty``, ``too_many``, ``store_unavailable``, ``suspended``, ``quota``,
            ``unknown``), or ``targets``.
    """

    exit_code = 11

    def __init__(self, message: str, *, targets: Sequence[RejectedTarget] = (), reason: str = "targets") -> None:
        super().__init__(message)
        self.targets = tuple(targets)
        self.reason = reason


class NotAvailableError(EvidenceArchiveError):
    """There is nothing here for this principal: unknown, foreign and forbidden all look like this.

    The text is fixed, so that no caller learns which of the three it was.
    """

    exit_code = 12

    def __init__(self) -> None:
        super().__init__("Not available: check the session, the result ID and who is asking.")

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is copied and unpickled by calling its class with its ``args``, which this one does not take.
        return type(self), (), self.__dict__


class WindowTooSmallError(EvidenceArchiveError):
    """What has to be in the window is larger than its budget; nothing was cut.

    Args:
        message: one sentence that names the part and both sizes.
    """

    exit_code = 13


class CheckFailedError(EvidenceArchiveError):
    """A check of the host did not pass, so a claim stays a claim.

    Args:
        message: one sentence that names the check; never what was compared.
    """

    exit_code = 14


class KeyringError(EvidenceArchiveError):
    """Keys are missing, unreadable or wrong; stored data is not the problem."""

    exit_code = 20


class KeyNotFoundError(KeyringError):
    """The key, or the version of it that is asked for, is not at the provider."""

    exit_code = 21


class WrongKeyError(KeyringError):
    """The keys at hand are not the ones this store was sealed with; nothing was changed."""

    exit_code = 22


class IntegrityError(EvidenceArchiveError):
    """Stored bytes are not what this library wrote."""

    exit_code = 30


class SealBrokenError(IntegrityError):
    """A sealed original, a wrapped key or a row seal does not verify."""

    exit_code = 31


class AuditBrokenError(IntegrityError):
    """The audit log and its head disagree."""

    exit_code = 32


class FormatError(EvidenceArchiveError):
    """The input is not in a form this library accepts."""

    exit_code = 40


class UnsupportedVersionError(FormatError):
    """A stored format or schema is newer than this library."""

    exit_code = 41


class MessageShapeError(FormatError):
    """A message list does not have the shape its dialect prescribes."""

    exit_code = 42


class StoreError(EvidenceArchiveError):
    """The store refused or failed; nothing was half done."""

    exit_code = 50


class StoreUnavailableError(StoreError):
    """The store cannot be reached, read or written."""

    exit_code = 51


class ObjectNotFoundError(StoreUnavailableError):
    """An object of one original is not in the object store at hand; others may be."""

    exit_code = 54


class StoreBusyError(StoreError):
    """The store is locked by another writer for longer than the caller may wait."""

    exit_code = 52


class StoreConflictError(StoreBusyError):
    """The transaction met another one and was rolled back: run again, it can succeed."""

    exit_code = 53


class RetentionError(EvidenceArchiveError):
    """A retention rule forbids what was asked."""

    exit_code = 60


class HeldError(RetentionError):
    """A legal hold covers the original."""

    exit_code = 61


class ShreddedError(RetentionError):
    """The original was shredded; its tombstone remains."""

    exit_code = 62
