"""The same verbs, awaited.

One logic: every verb runs the synchronous one in a thread. A cancelled await does not interrupt it: what was begun
is carried through, all of it or none of it, and the next view shows which. Closing waits for it.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from datetime import datetime
from types import TracebackType
from typing import Any, BinaryIO, ParamSpec, Self, TypeVar

from evidence_archive.archive import Archive
from evidence_archive.envelopes import Collected
from evidence_archive.model import Principal, Receipt, Restored, ResultInfo, SessionStats
from evidence_archive.policy import Policy
from evidence_archive.ports import Clock, KeyProvider, ObjectStore, TokenCounter
from evidence_archive.session import Session
from evidence_archive.vault import INLINE_SIZE_MAX, AuditReport

__all__ = ["AsyncArchive", "AsyncSession"]

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

    async def view(self, messages: Iterable[Any]) -> list[Any]:
        """See :meth:`evidence_archive.Session.view`.

        Raises:
            MessageShapeError, MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.view, messages)

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

    async def stats(self) -> SessionStats:
        """See :meth:`evidence_archive.Session.stats`.

        Raises:
            MisuseError: as there.
        """
        return await self._verbs.awaited(self._session.stats)


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

    async def session(self, id: str, principal: Principal, dialect: str = "chat", tools: bool = True) -> AsyncSession:
        """See :meth:`evidence_archive.Archive.session`.

        Raises:
            NotAvailableError, FormatError, KeyringError, StoreError, IntegrityError, MisuseError: as there.
        """
        session = await self._verbs.awaited(self._archive.session, id, principal, dialect, tools)
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
