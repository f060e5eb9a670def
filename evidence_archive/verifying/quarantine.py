"""What is done about findings: sessions with damage stop archiving. Nothing is deleted, rewritten or repaired."""

from dataclasses import dataclass
from functools import partial

from evidence_archive.errors import IntegrityError
from evidence_archive.model import Principal
from evidence_archive.ports import Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.vault import Vault
from evidence_archive.verifying.findings import VerifyReport

__all__ = ["FsckReport", "Quarantine", "quarantined"]

WHY = "integrity"
"""Why such a session is suspended; a restore that finds damage suspends for the same reason."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """What is to be done about one session, or was.

    Args:
        session_id: which.
        findings: how many are of it.
        status: ``proposed`` (nothing was done), ``suspended`` (now), ``already`` (suspended before), or
            ``not_possible`` (its row is gone or does not hold, so nothing can be written to it: only a backup helps).
    """

    session_id: str
    findings: int
    status: str


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What was found, and what follows from it.

    Args:
        report: of the verification.
        quarantines: the sessions with findings.
        elsewhere: how many findings are of no session: of the log, of keys of the org, of anchors, of strays.
        dry_run: nothing was changed.
    """

    report: VerifyReport
    quarantines: tuple[Quarantine, ...]
    elsewhere: int
    dry_run: bool


def quarantined(vault: Vault, principal: Principal, report: VerifyReport, *, dry_run: bool) -> FsckReport:
    """Every session with findings, suspended, unless this is a dry run.

    Args:
        vault: of the org.
        principal: who does it; the suspension is in the log.
        report: what was found.
        dry_run: only propose.

    Raises:
        StoreError: the store cannot be written.
    """
    done = tuple(
        Quarantine(session_id, count, _status(vault, principal, session_id, dry_run=dry_run))
        for session_id, count in report.damaged.items()
    )
    return FsckReport(report, done, report.findings_count - sum(report.damaged.values()), dry_run)


def _status(vault: Vault, principal: Principal, session_id: str, *, dry_run: bool) -> str:
    if dry_run:
        try:
            with vault.store.reading(vault.store_wait_ms) as reader:
                session = reader.session(session_id)
        except IntegrityError:
            session = None
        if session is None:
            return "not_possible"
        return "proposed" if session.suspended is None else "already"
    entry = vault.leaf(audit.SESSION_SUSPENDED, principal.subject, session_id=session_id, details={"why": WHY})

    def suspended(writer: Writer, *, audited: bool) -> str:
        session = writer.session(session_id)
        if session is None:
            return "not_possible"
        if session.suspended is not None:
            return "already"
        session.suspended = WHY
        session.version += 1
        writer.update_session(session)
        if audited:
            writer.append([entry])
        return "suspended"

    for audited in (True, False):  # perhaps it is the log that is broken; the suspension counts all the same
        try:
            return vault.transact(partial(suspended, audited=audited), audited=audited)
        except IntegrityError:
            continue
    return "not_possible"
