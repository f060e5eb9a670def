"""Whether an org's store is what its audit log says: entries rehashed, rows compared, originals looked at.

Three levels, each with all that the one before does. ``keyless`` hashes, counts and compares, and needs no key;
``seals`` checks the seal of every row and unwraps every session's key; ``full`` opens every original and every note
by the path a restore takes.

The log comes first, up to its head; then every session in a reading transaction of its own, in which the log is read
on to where it stands then, so that whatever was committed meanwhile explains what is met and nothing is held for
long. Nothing stops at a finding, and a damaged row hides no other. In memory are at most ``ROWS_PER_READ`` rows, the
rows of one session, one original, and some hundred bytes for each session, batch, hold and checkpoint there is.
"""

from collections.abc import Iterable

from evidence_archive.errors import SealBrokenError, StoreError
from evidence_archive.ports import Anchor, ObjectStore, Store, Surveyable
from evidence_archive.proof.checkpoint import VerifierKey
from evidence_archive.vault import Vault
from evidence_archive.verifying.findings import CODES, Finding, VerifyReport
from evidence_archive.verifying.quarantine import FsckReport, Quarantine, quarantined
from evidence_archive.verifying.run import LEVELS, Progress, Run

__all__ = [
    "CODES",
    "LEVELS",
    "Finding",
    "FsckReport",
    "Progress",
    "Quarantine",
    "VerifyReport",
    "check_unopened",
    "quarantined",
    "verify_keyless",
    "verify_vault",
]

_NEVER_MADE = frozenset({"head_missing", "nothing_checked", "org_missing"})
"""What is found where there is the name of an org and nothing else."""


def verify_vault(
    vault: Vault,
    *,
    level: str = "seals",
    sample: float | None = None,
    since_us: int | None = None,
    anchors: Iterable[Anchor] = (),
    progress: Progress | None = None,
) -> VerifyReport:
    """What is found in the store of an org whose keys are at hand.

    Args:
        vault: of the org.
        level: one of ``LEVELS``.
        sample: share of the originals whose bytes are looked at, above 0 up to 1; drawn anew each time, one at least.
            Log and rows are always looked at as a whole.
        since_us: only originals that were archived then or later, in microseconds since 1970.
        anchors: each has to know a head that the log begins with.
        progress: is told how far it is.

    Raises:
        FormatError: level, sample or time are out of bounds.
        StoreError: the database or an anchor cannot be read.
        KeyringError: the key provider cannot be asked.
    """
    found = Run(
        vault.around.store,
        vault.org,
        vault.surveying,
        objects=vault.around.objects,
        vault=vault,
        key=vault.signer.verifier,
    )
    return found.run(level, sample, since_us, anchors, progress)


def verify_keyless(
    store: Store,
    org: str,
    *,
    objects: ObjectStore | None = None,
    key: VerifierKey | None = None,
    sample: float | None = None,
    since_us: int | None = None,
    anchors: Iterable[Anchor] = (),
    progress: Progress | None = None,
    wait_ms: int = 5_000,
) -> VerifyReport:
    """What is found at level ``keyless`` by somebody who has no key of the org.

    Args:
        store, org: whose rows.
        objects: where large originals lie; without it they are findings.
        key: of the log; without it signatures are not checked, and the report says so.
        sample, since_us, anchors, progress: as for :func:`verify_vault`.
        wait_ms: bound on waiting for a lock, in milliseconds.

    Raises:
        FormatError: sample or time are out of bounds.
        StoreError: the database or an anchor cannot be read.
    """
    if not isinstance(store, Surveyable):
        raise StoreError("This store shows no damaged rows, so it cannot be verified.")
    looking: Surveyable = store
    found = Run(store, org, lambda: looking.surveying(org, None, wait_ms), objects=objects, vault=None, key=key)
    return found.run("keyless", sample, since_us, anchors, progress)


def check_unopened(store: Store, org: str) -> None:
    """Return only if an org that opens no more was shredded, or never made, as far as can be seen without keys.

    Args:
        store, org: whose rows.

    Raises:
        SealBrokenError: its rows say otherwise.
        StoreError: the database cannot be read.
    """
    report = verify_keyless(store, org)
    if not report.is_clean and {one.code for one in report.findings} != _NEVER_MADE:
        raise SealBrokenError(f"An org that opens no more is not as a shred leaves it: {report.findings[0].sentence}")
