"""What a records officer, a holder of keys and an auditor do with an org's archive; permission is asked first.

Made by :meth:`evidence_archive.Archive.custody`. Everything here is in the audit log.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from evidence_archive.anchors import open_anchor
from evidence_archive.backup import Backup, make_backup
from evidence_archive.disposal import Disposal, Due, Hold, Shred
from evidence_archive.errors import FormatError, IntegrityError, NotAvailableError, StoreError
from evidence_archive.evidence import Exported, export_bundle
from evidence_archive.model import Principal
from evidence_archive.ports import Anchor
from evidence_archive.proof import leaf as audit
from evidence_archive.proof.checkpoint import Checkpoint
from evidence_archive.proving import ProvenEntry, Proving
from evidence_archive.register import Register, register_lines
from evidence_archive.rekeying import Census, Rekeying, Rotation
from evidence_archive.vault import Vault
from evidence_archive.verifying import FsckReport, Progress, VerifyReport, quarantined, verify_vault

__all__ = ["Custody"]


class Custody:
    """Holds, retention, shredding, keys and proofs of one org.

    Args:
        vault: the org's keys, store and log.
        principal: who acts; one of its roles has to be among the policy's ``[custody] roles``.
        anchors: get a copy of every signed head.
        other_orgs: the census of every other org of the store, for key versions that all orgs share.
        register: a file that gets a line for every hold, release, longer retention and shred.

    Raises:
        NotAvailableError: the principal has none of the roles; the denial is in the log.
        StoreUnavailableError: the register cannot be written.
    """

    def __init__(
        self,
        vault: Vault,
        principal: Principal,
        *,
        anchors: Sequence[Anchor] = (),
        other_orgs: Callable[[], Mapping[str, Census]] = dict,
        register: Register | None = None,
    ) -> None:
        if vault.policy.custodians.isdisjoint(principal.roles):
            denied = [vault.leaf(audit.CUSTODY_DENIED, principal.subject)]
            vault.transact(lambda writer: writer.append(denied))
            raise NotAvailableError
        self._vault = vault
        self._principal = principal
        self._disposal = Disposal(vault, principal)
        self._rekeying = Rekeying(vault, principal)
        self._proving = Proving(vault, anchors)
        self._other_orgs = other_orgs
        self._register = register
        with self._registered():  # what was done where there was no register, or before it could be written
            pass

    @contextmanager
    def _registered(self) -> Iterator[None]:
        """What is done in this block, or was done of it before it failed, gets its lines in the register."""
        try:
            yield
        finally:
            if self._register is not None:
                self._register.append(self._vault, self._proving)

    # --- holds and retention ----------------------------------------------------------------------------------------

    def hold(self, reason: str, *, session_id: str | None = None, result_id: str | None = None) -> Hold:
        """A legal hold on an original, a session, or the whole org, in force when this returns.

        While any hold is on it, nothing of it is destroyed, by whatever path.

        Args:
            reason: 1 to 2,000 characters; kept sealed.
            session_id: which session; ``None`` for the whole org.
            result_id: which original of it, by its own ID or that of a restored copy; ``None`` for all.

        Raises:
            NotAvailableError: there is no such session or archived original.
            ShreddedError: it was shredded.
            FormatError: an original without its session, or no reason.
        """
        with self._registered():
            return self._disposal.hold(reason, session_id, result_id)

    def release(self, hold_id: str) -> Hold:
        """The hold, released; others on the same original still hold.

        Args:
            hold_id: 32 hex digits.

        Raises:
            NotAvailableError: there is no such hold.
            FormatError: it was released before.
        """
        with self._registered():
            return self._disposal.release(hold_id)

    def holds(self) -> list[Hold]:
        """All holds, released ones included, by time."""
        return self._disposal.holds()

    def retain(self, session_id: str, result_id: str, until_us: int) -> None:
        """An original is kept at least until then, and longer if it was to be kept longer.

        Args:
            session_id, result_id: which.
            until_us: microseconds since 1970-01-01 UTC.

        Raises:
            RetentionError: it is kept longer already; a retention is never shortened.
            NotAvailableError: there is no such archived original.
            ShreddedError: it was shredded.
            FormatError: it is no time.
        """
        with self._registered():
            self._disposal.retain(session_id, result_id, until_us)

    def due(self) -> list[Due]:
        """The originals whose retention is over, the longest over first; at most 10,000 at once."""
        return self._disposal.due()

    # --- destroying -------------------------------------------------------------------------------------------------

    def shred(self, *, session_id: str | None = None, result_id: str | None = None) -> Shred:
        """An original, a session or the whole org, destroyed: its keys are gone from the store when this returns.

        The status is ``pending`` until the provider has no version of the key-encryption key any more that opens an
        older copy of the store. Copies that the application's messages hold are not touched, but views show the
        tombstone in their place.

        Args:
            session_id: which session; ``None`` for the whole org, after which nothing of it can be opened.
            result_id: which original of it, with all restored copies of it; ``None`` for all.

        Raises:
            HeldError, RetentionError: something of it has to be kept; nothing was destroyed.
            ShreddedError: it was shredded before.
            NotAvailableError: there is no such session or archived original.
            FormatError: an original without its session.
        """
        if session_id is None:
            if result_id is not None:
                raise FormatError("Say which session the original is of.")
            with self._registered():
                return self._disposal.shred_org()
        with self._registered():
            if result_id is None:
                return self._disposal.shred_session(session_id)
            return self._disposal.shred_original(session_id, result_id)

    def shreds(self) -> list[Shred]:
        """All shreds of originals and sessions with their status now; what has become complete is recorded."""
        return self._disposal.shreds()

    def gc(self, *, dry_run: bool = True) -> list[Due]:
        """The originals whose retention is over; without ``dry_run``, those that no hold keeps are shredded.

        Args:
            dry_run: only say which.
        """
        with self._registered():
            return self._disposal.collect_due(dry_run=dry_run)

    # --- keys -------------------------------------------------------------------------------------------------------

    def rotate(self, *, new_version: bool = True) -> Rotation:
        """Every key of the org wrapped under a new version of the key-encryption key; no original is touched.

        Killed at any moment, it can be run again with ``new_version=False`` and goes on.

        Args:
            new_version: have the provider make one; ``False`` sweeps to the version that is current already.

        Raises:
            KeyringError: the provider makes no version, or one that fails its self-test; nothing was wrapped.
            SealBrokenError: the key of a session was put back from before a shred.
            AuditBrokenError: the log is not what its head says.
            StoreBusyError: other processes keep wrapping under the old version: open their archives again.
        """
        return self._rekeying.rotate(new_version=new_version)

    def census(self) -> Census:
        """How many of the org's keys are wrapped under which version."""
        return self._rekeying.census()

    def check_keys(self) -> int:
        """How many wrapped keys of the org these keys unwrapped: all there are.

        Raises:
            WrongKeyError, KeyNotFoundError: they are not the keys of one of them.
            SealBrokenError: one was changed.
        """
        return self._rekeying.check()

    def retire(self, version: int) -> None:
        """A key version, destroyed at the provider; refused while anything is wrapped under it.

        Args:
            version: not the current one.

        Raises:
            KeyringError: keys of this org, or of another one that shares the version, are still wrapped under it.
            SealBrokenError: another org that shares it is not in the list of orgs, or has lost its key otherwise than
                by being shredded.
            FormatError: it is no version, or the current one.
        """
        self._rekeying.retire(version, others=self._other_orgs())

    # --- proof ------------------------------------------------------------------------------------------------------

    def checkpoint(self) -> str:
        """The head of the audit log as a signed note (C2SP ``tlog-checkpoint``), stored and at every anchor.

        Raises:
            AuditBrokenError: the log is shorter than one that was signed before, here or at an anchor.
            StoreError: the store cannot be written, or an anchor does not take it.
        """
        return self._proving.checkpoint()

    def reanchor(self) -> str:
        """The head of a log that was put back on purpose, signed, in the store and at every anchor.

        After a backup was put back an anchor still knows the longer log, and :meth:`checkpoint` refuses. This gives
        that history up: an entry ``log.reanchored`` names the heads that are lost, and the new head has it in it.
        Where every anchor's head is one that this log begins with, it does what :meth:`checkpoint` does.

        Raises:
            AuditBrokenError: the log is not what its own head and the heads in the store say.
            StoreError: the store cannot be written, or an anchor cannot be used.
        """
        return self._proving.reanchor(self._principal.subject)

    def key(self) -> str:
        """The public key that verifies this log's checkpoints and proofs, as one line for an auditor to keep."""
        return self._proving.key()

    def prove(self, seq: int) -> ProvenEntry:
        """An entry of the audit log with its proof (C2SP ``tlog-proof``), verifiable with the public key alone.

        Args:
            seq: place in the log, from 0.

        Raises:
            NotAvailableError: there is no such entry.
            AuditBrokenError: the log is not what its head says.
        """
        return self._proving.prove(seq)

    def entries(self, session_id: str, result_id: str | None = None) -> list[int]:
        """The places in the log of all entries that name a session, or one result of it.

        Args:
            session_id, result_id: which; a result that was never there has none.

        Raises:
            FormatError: the result ID is none.
            AuditBrokenError: an entry is missing or not one this library wrote.
        """
        return self._proving.entries_of(session_id, result_id)

    def consistent(self, note: str) -> Checkpoint:
        """What an older checkpoint says, once the log was shown to begin with it.

        Args:
            note: a checkpoint that was kept outside.

        Raises:
            AuditBrokenError: the log does not begin with what was signed, or this log's key did not sign it.
        """
        return self._proving.consistent(note)

    # --- verification -----------------------------------------------------------------------------------------------

    def verify(
        self,
        level: str = "seals",
        *,
        sample: float | None = None,
        since_us: int | None = None,
        anchors: Iterable[str | os.PathLike[str] | Anchor] = (),
        progress: Progress | None = None,
    ) -> VerifyReport:
        """Whether the store is what the audit log says; the run itself is in the log.

        Writers may go on meanwhile. It never stops at a finding, and one damaged row hides no other.

        Args:
            level: ``keyless`` (hashes, counts, references), ``seals`` (also every row's seal and every
                session's key), ``full`` (also every original and note, opened as a restore opens them).
            sample: share of the originals whose bytes are looked at, above 0 up to 1; drawn anew each time.
            since_us: only originals archived then or later, in microseconds since 1970.
            anchors: each has to know a head that this log begins with; written as for ``Archive.open``.
            progress: is told a phase, how much of it is done, and of how much.

        Raises:
            FormatError: level, sample, time or an anchor cannot be used.
            StoreError: the database or an anchor cannot be read.
            KeyringError: the key provider cannot be asked.
        """
        report = self._verified(level, sample, since_us, anchors, progress)
        details = {"level": level, "counts": dict(report.counts), "findings": report.findings_count}
        entry = self._vault.leaf(audit.STORE_VERIFIED, self._principal.subject, details=details)
        try:
            self._vault.transact(lambda writer: writer.append([entry]))
        except (IntegrityError, StoreError):
            return replace(report, unchecked=(*report.unchecked, "This run could not be recorded in the audit log."))
        return report

    def fsck(
        self,
        *,
        dry_run: bool = True,
        level: str = "full",
        anchors: Iterable[str | os.PathLike[str] | Anchor] = (),
        progress: Progress | None = None,
    ) -> FsckReport:
        """What :meth:`verify` finds, and the sessions that should stop archiving because of it.

        Without ``dry_run`` those are suspended (``integrity``) until somebody resumes them. Nothing is ever deleted,
        rewritten or repaired: damage is for a backup to mend, and what is whole can still be restored.

        Args:
            dry_run: change nothing, not even the log.
            level, anchors, progress: as for :meth:`verify`.

        Raises:
            FormatError, StoreError, KeyringError: as :meth:`verify`.
        """
        report = self._verified(level, None, None, anchors, progress)
        return quarantined(self._vault, self._principal, report, dry_run=dry_run)

    def _verified(
        self,
        level: str,
        sample: float | None,
        since_us: int | None,
        anchors: Iterable[str | os.PathLike[str] | Anchor],
        progress: Progress | None,
    ) -> VerifyReport:
        kept_at = [open_anchor(anchor, create=False) for anchor in anchors]
        return verify_vault(
            self._vault, level=level, sample=sample, since_us=since_us, anchors=kept_at, progress=progress
        )

    # --- taking it elsewhere ----------------------------------------------------------------------------------------

    def export(
        self, file: BinaryIO, session_id: str, result_id: str | None = None, *, include_original: bool = True
    ) -> Exported:
        """An original or a session as an evidence bundle: one zip file that verifies with the public key alone.

        Each original is granted and logged as a restore is, and the export has an entry of its own.

        Args:
            file: open for writing bytes; after an error, what it holds is no bundle.
            session_id: which session.
            result_id: which original of it; ``None`` for all that it archived.
            include_original: with the bytes, and the key of their envelope; else the history only.

        Raises:
            NotAvailableError: there is no such session or archived original, or the policy does not let the principal
                restore it; nothing was exported.
            ShreddedError: it was shredded.
            FormatError: the result is a copy of another one, or a bundle cannot hold so much.
            SealBrokenError, AuditBrokenError: stored bytes were changed.
            KeyringError, StoreError: keys or store are not at hand.
            OSError: from the file.
        """
        return export_bundle(
            self._vault,
            self._proving,
            self._principal,
            file,
            session_id=session_id,
            result_id=result_id,
            include_original=include_original,
        )

    def register(self, after_seq: int = -1) -> list[str]:
        """The lines of a register: holds, releases, longer retentions and shreds, each with its proof.

        Args:
            after_seq: place in the log; only what was done after it.

        Raises:
            AuditBrokenError: the log is not what its head says.
            StoreError: the store cannot be read or written.
        """
        return register_lines(self._vault, self._proving, max(after_seq + 1, 0))[0]

    def append_to(self, register: Register) -> int:
        """How many lines a register got, of what was done since its last one.

        Raises:
            StoreUnavailableError: the file cannot be used.
            AuditBrokenError: the log is not what its head says, or a line of the file is not one of this log.
        """
        return register.append(self._vault, self._proving)

    def backup(self, folder: str | os.PathLike[str]) -> Backup:
        """The whole store in a new folder, opened there and verified, while others write to it.

        All orgs of the store are in it, sealed as they are; keys never are.

        Args:
            folder: is made with mode 0700; it must not exist, or be empty.

        Raises:
            FormatError: there is something in the folder.
            StoreError: the store makes no copies, or cannot be read, or the folder cannot be written.
            IntegrityError: something in the copy is not what was written; the folder says that it is no backup.
            KeyringError: the keys of one of the orgs are not at hand.
        """
        return make_backup(self._vault, self._principal, Path(folder))
