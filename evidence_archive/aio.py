"""The same verbs, awaited.

One logic: every verb runs the synchronous one in a thread. A cancelled await does not interrupt it: what was begun
is carried through, all of it or none of it, and the next view shows which. Closing waits for it.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, BinaryIO, ParamSpec, Self, TypeVar

from evidence_archive.archive import Archive
from evidence_archive.backup import Backup
from evidence_archive.custody import Custody
from evidence_archive.disposal import Due, Hold, Shred
from evidence_archive.envelopes import Collected
from evidence_archive.evidence import Exported
from evidence_archive.ledger.checks import Check
from evidence_archive.ledger.entries import Artifact, Books, Claim, Fact, Period
from evidence_archive.ledger.keeping import OPENING_TOKENS, Cited, Ledger, Report, Sourced
from evidence_archive.ledger.rules import Rule
from evidence_archive.model import Principal, Receipt, Restored, ResultInfo, SessionStats
from evidence_archive.policy import Policy
from evidence_archive.ports import Anchor, Clock, KeyProvider, ObjectStore, TokenCounter
from evidence_archive.proof.checkpoint import Checkpoint
from evidence_archive.proving import ProvenEntry
from evidence_archive.register import Register
from evidence_archive.rekeying import Census, Rotation
from evidence_archive.searching import SearchResult
from evidence_archive.session import Session
from evidence_archive.tracing import TraceEntry
from evidence_archive.vault import INLINE_SIZE_MAX, AuditReport
from evidence_archive.verifying import FsckReport, Progress, VerifyReport
from evidence_archive.window.card import Card
from evidence_archive.window.summaries import Judge, Summarizer

__all__ = ["AsyncArchive", "AsyncCustody", "AsyncLedger", "AsyncSession"]

P = ParamSpec("P")
R = TypeVar("R")


class _Verbs:
    """The verbs of one archive that run in threads."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    async def awaited(self, verb: Callable[P, R], *args: P.args, **named: P.kwargs) -> R:
        """What the verb returns; a cancelled await leaves its thread to finish."""
        return await self._carried(asyncio.to_thread(verb, *args, **named))

    async def last(self, verb: Callable[[], None]) -> None:
        """Run a verb once all that were begun before have ended, the cancelled ones too."""
        others = set(self._running)

        async def after_others() -> None:
            if others:
                await asyncio.wait(others)
            await asyncio.to_thread(verb)

        await self._carried(after_others())

    async def _carried(self, work: Coroutine[Any, Any, R]) -> R:
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        await asyncio.wait([task])  # unlike a plain await, being cancelled here does not cancel the task
        return task.result()

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # seen: a cancelled await has nobody left to tell


class AsyncSession:
    """A :class:`~evidence_archive.Session` whose verbs are awaited; made by ``await archive.session(...)``.

    Args:
        session: the synchronous session.
        verbs: those of its archive, which closing waits for.
    """

    def __init__(self, session: Session, verbs: _Verbs) -> None:
        self._session = session
        self._verbs = verbs

    def __repr__(self) -> str:
        return f"Async{self._session!r}"

    @property
    def id(self) -> str:
        """The session's id."""
        return self._session.id

    @property
    def principal(self) -> Principal:
        """Its owner."""
        return self._session.principal

    @property
    def instructions(self) -> str:
        """See :attr:`evidence_archive.Session.instructions`."""
        return self._session.instructions

    @property
    def tools(self) -> list[dict[str, Any]]:
        """See :attr:`evidence_archive.Session.tools`."""
        return self._session.tools

    async def view(self, messages: Iterable[Any], *, is_cache_cold: bool = False) -> list[Any]:
        """See :meth:`evidence_archive.Session.view`.

        Raises:
            MessageShapeError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.view, messages, is_cache_cold=is_cache_cold)

    async def answer(self, call: Any) -> Any | None:
        """See :meth:`evidence_archive.Session.answer`.

        Raises:
            MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.answer, call)

    async def archive(self, batch: Iterable[tuple[str, str]], *, idempotency_key: str | None = None) -> Receipt:
        """See :meth:`evidence_archive.Session.archive`.

        Raises:
            BatchRejectedError, FormatError, KeyringError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.archive, batch, idempotency_key=idempotency_key)

    async def restore(
        self,
        result_id: str,
        *,
        lines: str | None = None,
        pattern: str | None = None,
        context_lines: int | None = None,
        pointer: str | None = None,
        byte_range: str | None = None,
        reason: str | None = None,
    ) -> Restored:
        """See :meth:`evidence_archive.Session.restore`.

        Raises:
            NotAvailableError, FormatError, SealBrokenError, KeyringError, StoreError, MisuseError: as there.
        """
        return await self._verbs.awaited(
            self._session.restore,
            result_id,
            lines=lines,
            pattern=pattern,
            context_lines=context_lines,
            pointer=pointer,
            byte_range=byte_range,
            reason=reason,
        )

    async def label(
        self,
        target: Any,
        *,
        sensitivity: str | Iterable[str] = (),
        kind: str | None = None,
        observed_at: datetime | None = None,
    ) -> str:
        """See :meth:`evidence_archive.Session.label`.

        Raises:
            MessageShapeError, NotAvailableError, PolicyError, FormatError, StoreError, MisuseError: as there.
        """
        return await self._verbs.awaited(
            self._session.label, target, sensitivity=sensitivity, kind=kind, observed_at=observed_at
        )

    async def results(self) -> list[ResultInfo]:
        """See :meth:`evidence_archive.Session.results`.

        Raises:
            StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.results)

    async def card(self) -> Card:
        """See :meth:`evidence_archive.Session.card`.

        Raises:
            StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.card)

    async def update_card(self, changes: Sequence[Mapping[str, Any]]) -> Card:
        """See :meth:`evidence_archive.Session.update_card`.

        Raises:
            FormatError, ShreddedError, StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.update_card, changes)

    async def search(self, query: str, *, before: str | None = None) -> SearchResult:
        """See :meth:`evidence_archive.Session.search`.

        Raises:
            FormatError, SealBrokenError, KeyringError, StoreError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.search, query, before=before)

    async def trace(self) -> list[TraceEntry]:
        """See :meth:`evidence_archive.Session.trace`.

        Raises:
            ShreddedError, SealBrokenError, KeyringError, StoreError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.trace)

    async def trace_request(self, request: int) -> list[dict[str, Any]]:
        """See :meth:`evidence_archive.Session.trace_request`.

        Raises:
            FormatError, NotAvailableError, ShreddedError, SealBrokenError, KeyringError, StoreError, MisuseError: as
                there.
        """
        return await self._verbs.awaited(self._session.trace_request, request)

    @property
    def ledger(self) -> "AsyncLedger":
        """See :attr:`evidence_archive.Session.ledger`; its verbs are awaited."""
        return AsyncLedger(self._session.ledger, self._verbs)

    async def stats(self) -> SessionStats:
        """See :meth:`evidence_archive.Session.stats`.

        Raises:
            MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.stats)


class AsyncLedger:
    """A :class:`~evidence_archive.ledger.keeping.Ledger` whose verbs are awaited; ``session.ledger``.

    Args:
        ledger: the synchronous one.
        verbs: those of its archive, which closing waits for.
    """

    def __init__(self, ledger: Ledger, verbs: _Verbs) -> None:
        self._ledger = ledger
        self._verbs = verbs

    async def books(self) -> Books:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.books`.

        Raises:
            SealBrokenError, StoreError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._ledger.books)

    async def store(self, name: str, data: bytes | str) -> Artifact:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.store`.

        Raises:
            FormatError, BatchRejectedError, StoreError, KeyringError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._ledger.store, name, data)

    async def claim(
        self, text: str, sources: Iterable[str], by: str = "host", *, session: Sourced | None = None
    ) -> Claim:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.claim`.

        Raises:
            FormatError, NotAvailableError, BatchRejectedError, StoreError, KeyringError, IntegrityError, MisuseError:
                as there.
        """
        given = session._session if isinstance(session, AsyncSession) else session
        return await self._verbs.awaited(self._ledger.claim, text, sources, by, session=given)

    async def verify(self, claim: Claim, check: Check, *, key: bool = False, supersedes: str | None = None) -> Fact:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.verify`; the check runs in a thread.

        Raises:
            CheckFailedError, FormatError, NotAvailableError, StoreError, KeyringError, IntegrityError, MisuseError:
                as there.
        """
        return await self._verbs.awaited(self._ledger.verify, claim, check, key=key, supersedes=supersedes)

    async def post(
        self,
        text: str,
        sources: Iterable[str],
        check: Check,
        *,
        key: bool = False,
        supersedes: str | None = None,
        session: Sourced | None = None,
    ) -> Fact:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.post`; the check runs in a thread.

        Raises:
            CheckFailedError, FormatError, NotAvailableError, BatchRejectedError, StoreError, KeyringError,
                IntegrityError, MisuseError: as there.
        """
        given = session._session if isinstance(session, AsyncSession) else session
        return await self._verbs.awaited(
            self._ledger.post, text, sources, check, key=key, supersedes=supersedes, session=given
        )

    async def take_back(self, fact_id: str) -> Fact:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.take_back`.

        Raises:
            FormatError, StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._ledger.take_back, fact_id)

    async def reconcile(self, *, strong: bool = False) -> Report:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.reconcile`.

        Raises:
            StoreError, KeyringError, SealBrokenError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._ledger.reconcile, strong=strong)

    async def close(self, *, window_from: int | None = None, window_to: int | None = None) -> Period:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.close`.

        Raises:
            CheckFailedError, FormatError, StoreError, KeyringError, SealBrokenError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._ledger.close, window_from=window_from, window_to=window_to)

    async def opening(
        self, period_id: str | Period | None = None, budget_tokens: int | None = OPENING_TOKENS
    ) -> list[str]:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.opening`.

        Raises:
            FormatError, StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._ledger.opening, period_id, budget_tokens)

    async def audit(self, fact_id: str) -> tuple[Cited, ...]:
        """See :meth:`evidence_archive.ledger.keeping.Ledger.audit`.

        Raises:
            FormatError, NotAvailableError, ShreddedError, SealBrokenError, StoreError, KeyringError, MisuseError: as
                there.
        """
        return await self._verbs.awaited(self._ledger.audit, fact_id)


class AsyncCustody:
    """A :class:`~evidence_archive.custody.Custody` whose verbs are awaited; made by ``await archive.custody(...)``.

    Args:
        custody: the synchronous one.
        verbs: those of its archive, which closing waits for.
    """

    def __init__(self, custody: Custody, verbs: _Verbs) -> None:
        self._custody = custody
        self._verbs = verbs

    async def hold(self, reason: str, *, session_id: str | None = None, result_id: str | None = None) -> Hold:
        """See :meth:`evidence_archive.custody.Custody.hold`.

        Raises:
            NotAvailableError, ShreddedError, FormatError: as there.
        """
        return await self._verbs.awaited(self._custody.hold, reason, session_id=session_id, result_id=result_id)

    async def release(self, hold_id: str) -> Hold:
        """See :meth:`evidence_archive.custody.Custody.release`.

        Raises:
            NotAvailableError, FormatError: as there.
        """
        return await self._verbs.awaited(self._custody.release, hold_id)

    async def holds(self) -> list[Hold]:
        """See :meth:`evidence_archive.custody.Custody.holds`."""
        return await self._verbs.awaited(self._custody.holds)

    async def retain(self, session_id: str, result_id: str, until_us: int) -> None:
        """See :meth:`evidence_archive.custody.Custody.retain`.

        Raises:
            RetentionError, NotAvailableError, ShreddedError, FormatError: as there.
        """
        await self._verbs.awaited(self._custody.retain, session_id, result_id, until_us)

    async def due(self) -> list[Due]:
        """See :meth:`evidence_archive.custody.Custody.due`."""
        return await self._verbs.awaited(self._custody.due)

    async def shred(self, *, session_id: str | None = None, result_id: str | None = None) -> Shred:
        """See :meth:`evidence_archive.custody.Custody.shred`.

        Raises:
            HeldError, RetentionError, ShreddedError, NotAvailableError, FormatError: as there.
        """
        return await self._verbs.awaited(self._custody.shred, session_id=session_id, result_id=result_id)

    async def shreds(self) -> list[Shred]:
        """See :meth:`evidence_archive.custody.Custody.shreds`."""
        return await self._verbs.awaited(self._custody.shreds)

    async def gc(self, *, dry_run: bool = True) -> list[Due]:
        """See :meth:`evidence_archive.custody.Custody.gc`."""
        return await self._verbs.awaited(self._custody.gc, dry_run=dry_run)

    async def rotate(self, *, new_version: bool = True) -> Rotation:
        """See :meth:`evidence_archive.custody.Custody.rotate`.

        Raises:
            KeyringError, StoreBusyError: as there.
        """
        return await self._verbs.awaited(self._custody.rotate, new_version=new_version)

    async def census(self) -> Census:
        """See :meth:`evidence_archive.custody.Custody.census`."""
        return await self._verbs.awaited(self._custody.census)

    async def check_keys(self) -> int:
        """See :meth:`evidence_archive.custody.Custody.check_keys`.

        Raises:
            WrongKeyError, KeyNotFoundError, SealBrokenError: as there.
        """
        return await self._verbs.awaited(self._custody.check_keys)

    async def retire(self, version: int) -> None:
        """See :meth:`evidence_archive.custody.Custody.retire`.

        Raises:
            KeyringError, FormatError: as there.
        """
        await self._verbs.awaited(self._custody.retire, version)

    async def checkpoint(self) -> str:
        """See :meth:`evidence_archive.custody.Custody.checkpoint`.

        Raises:
            AuditBrokenError, StoreError: as there.
        """
        return await self._verbs.awaited(self._custody.checkpoint)

    async def reanchor(self) -> str:
        """See :meth:`evidence_archive.custody.Custody.reanchor`.

        Raises:
            EvidenceArchiveError: as there.
        """
        return await self._verbs.awaited(self._custody.reanchor)

    async def key(self) -> str:
        """See :meth:`evidence_archive.custody.Custody.key`."""
        return await self._verbs.awaited(self._custody.key)

    async def prove(self, seq: int) -> ProvenEntry:
        """See :meth:`evidence_archive.custody.Custody.prove`.

        Raises:
            NotAvailableError, AuditBrokenError: as there.
        """
        return await self._verbs.awaited(self._custody.prove, seq)

    async def entries(self, session_id: str, result_id: str | None = None) -> list[int]:
        """See :meth:`evidence_archive.custody.Custody.entries`.

        Raises:
            FormatError, AuditBrokenError: as there.
        """
        return await self._verbs.awaited(self._custody.entries, session_id, result_id)

    async def consistent(self, note: str) -> Checkpoint:
        """See :meth:`evidence_archive.custody.Custody.consistent`.

        Raises:
            AuditBrokenError: as there.
        """
        return await self._verbs.awaited(self._custody.consistent, note)

    async def verify(
        self,
        level: str = "seals",
        *,
        sample: float | None = None,
        since_us: int | None = None,
        anchors: Iterable[str | os.PathLike[str] | Anchor] = (),
        progress: Progress | None = None,
    ) -> VerifyReport:
        """See :meth:`evidence_archive.custody.Custody.verify`.

        Raises:
            FormatError, StoreError, KeyringError: as there.
        """
        return await self._verbs.awaited(
            self._custody.verify, level, sample=sample, since_us=since_us, anchors=anchors, progress=progress
        )

    async def fsck(
        self,
        *,
        dry_run: bool = True,
        level: str = "full",
        anchors: Iterable[str | os.PathLike[str] | Anchor] = (),
        progress: Progress | None = None,
    ) -> FsckReport:
        """See :meth:`evidence_archive.custody.Custody.fsck`.

        Raises:
            FormatError, StoreError, KeyringError: as there.
        """
        return await self._verbs.awaited(
            self._custody.fsck, dry_run=dry_run, level=level, anchors=anchors, progress=progress
        )

    async def export(
        self, file: BinaryIO, session_id: str, result_id: str | None = None, *, include_original: bool = True
    ) -> Exported:
        """See :meth:`evidence_archive.custody.Custody.export`.

        Raises:
            NotAvailableError, ShreddedError, FormatError, SealBrokenError, AuditBrokenError, KeyringError: as there.
            StoreError, OSError: as there.
        """
        return await self._verbs.awaited(
            self._custody.export, file, session_id, result_id, include_original=include_original
        )

    async def register(self, after_seq: int = -1) -> list[str]:
        """See :meth:`evidence_archive.custody.Custody.register`.

        Raises:
            AuditBrokenError, StoreError: as there.
        """
        return await self._verbs.awaited(self._custody.register, after_seq)

    async def append_to(self, register: Register) -> int:
        """See :meth:`evidence_archive.custody.Custody.append_to`.

        Raises:
            StoreUnavailableError, AuditBrokenError: as there.
        """
        return await self._verbs.awaited(self._custody.append_to, register)

    async def backup(self, folder: str | os.PathLike[str]) -> Backup:
        """See :meth:`evidence_archive.custody.Custody.backup`.

        Raises:
            FormatError, StoreError, IntegrityError, KeyringError: as there.
        """
        return await self._verbs.awaited(self._custody.backup, folder)


class AsyncArchive:
    """An :class:`~evidence_archive.Archive` whose verbs are awaited; an async context manager.

    ``async with AsyncArchive.open(...) as archive:`` opens without an await of its own; ``open`` blocks for the
    moment it takes to open the database.

    Args:
        archive: the synchronous archive.
    """

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._verbs = _Verbs()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        keys: str | os.PathLike[str] | KeyProvider,
        policy: str | os.PathLike[str] | Policy | None = None,
        objects: str | os.PathLike[str] | ObjectStore | None = None,
        inline_size_max: int = INLINE_SIZE_MAX,
        create: bool = True,
        counter: TokenCounter | None = None,
        clock: Clock | None = None,
        anchors: Iterable[str | os.PathLike[str] | Anchor] = (),
        register: str | os.PathLike[str] | None = None,
    ) -> Self:
        """See :meth:`evidence_archive.Archive.open`.

        Raises:
            PolicyError, KeyringError, StoreError, FormatError, UnsupportedVersionError: as there.
        """
        return cls(
            Archive.open(
                url,
                keys=keys,
                policy=policy,
                objects=objects,
                inline_size_max=inline_size_max,
                create=create,
                counter=counter,
                clock=clock,
                anchors=anchors,
                register=register,
            )
        )

    def __repr__(self) -> str:
        return f"Async{self._archive!r}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def policy(self) -> Policy:
        """The rules in force."""
        return self._archive.policy

    async def close(self) -> None:
        """See :meth:`evidence_archive.Archive.close`; waits for verbs that were begun, cancelled ones too."""
        await self._verbs.last(self._archive.close)

    async def session(
        self,
        id: str,
        principal: Principal,
        dialect: str = "chat",
        tools: bool = True,
        *,
        summarizer: Summarizer | None = None,
        judge: Judge | None = None,
        rules: Iterable[Rule] = (),
    ) -> AsyncSession:
        """See :meth:`evidence_archive.Archive.session`.

        Raises:
            NotAvailableError, FormatError, KeyringError, StoreError, IntegrityError, MisuseError: as there.
        """
        session = await self._verbs.awaited(
            self._archive.session, id, principal, dialect, tools, summarizer=summarizer, judge=judge, rules=rules
        )
        return AsyncSession(session, self._verbs)

    async def restore(
        self,
        session_id: str,
        result_id: str,
        *,
        principal: Principal,
        lines: str | None = None,
        pattern: str | None = None,
        context_lines: int | None = None,
        pointer: str | None = None,
        byte_range: str | None = None,
        reason: str | None = None,
    ) -> Restored:
        """See :meth:`evidence_archive.Archive.restore`.

        Raises:
            NotAvailableError, FormatError, SealBrokenError, KeyringError, StoreError, MisuseError: as there.
        """
        return await self._verbs.awaited(
            self._archive.restore,
            session_id,
            result_id,
            principal=principal,
            lines=lines,
            pattern=pattern,
            context_lines=context_lines,
            pointer=pointer,
            byte_range=byte_range,
            reason=reason,
        )

    async def restore_to(
        self,
        file: BinaryIO,
        session_id: str,
        result_id: str,
        *,
        principal: Principal,
        reason: str | None = None,
    ) -> Restored:
        """See :meth:`evidence_archive.Archive.restore_to`.

        Raises:
            NotAvailableError, FormatError, SealBrokenError, KeyringError, StoreError, MisuseError, OSError: as there.
        """
        return await self._verbs.awaited(
            self._archive.restore_to, file, session_id, result_id, principal=principal, reason=reason
        )

    async def collect(self, *, principal: Principal) -> Collected:
        """See :meth:`evidence_archive.Archive.collect`.

        Raises:
            NotAvailableError, KeyringError, StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._archive.collect, principal=principal)

    async def ledger(self, id: str, principal: Principal) -> AsyncLedger:
        """See :meth:`evidence_archive.Archive.ledger`.

        Raises:
            NotAvailableError, FormatError, KeyringError, StoreError, IntegrityError, MisuseError: as there.
        """
        return AsyncLedger(await self._verbs.awaited(self._archive.ledger, id, principal), self._verbs)

    async def custody(self, principal: Principal) -> AsyncCustody:
        """See :meth:`evidence_archive.Archive.custody`.

        Raises:
            NotAvailableError, ShreddedError, FormatError, KeyringError, StoreError, IntegrityError, MisuseError: as
                there.
        """
        return AsyncCustody(await self._verbs.awaited(self._archive.custody, principal), self._verbs)

    async def results(self, session_id: str, *, principal: Principal) -> list[ResultInfo]:
        """See :meth:`evidence_archive.Archive.results`.

        Raises:
            NotAvailableError, KeyringError, StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._archive.results, session_id, principal=principal)

    async def audit(self, *, principal: Principal, start: int = 0) -> AuditReport:
        """See :meth:`evidence_archive.Archive.audit`.

        Raises:
            KeyringError, StoreError, IntegrityError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._archive.audit, principal=principal, start=start)

    async def resume(self, session_id: str, *, principal: Principal) -> None:
        """See :meth:`evidence_archive.Archive.resume`.

        Raises:
            NotAvailableError, StoreError, IntegrityError, MisuseError: as there.
        """
        await self._verbs.awaited(self._archive.resume, session_id, principal=principal)
