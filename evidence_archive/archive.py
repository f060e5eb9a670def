"""The door: open a store with keys and a policy, open sessions, restore for whoever may."""

import io
import os
import re
import threading
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from evidence_archive.anchors import open_anchor
from evidence_archive.archiving import Archiving
from evidence_archive.books import Books
from evidence_archive.clock import SystemClock
from evidence_archive.custody import Custody
from evidence_archive.dialects import dialect as dialect_named
from evidence_archive.envelopes import Collected, Envelopes
from evidence_archive.errors import (
    FormatError,
    KeyringError,
    MisuseError,
    NotAvailableError,
    SealBrokenError,
    ShreddedError,
    StoreBusyError,
    StoreError,
)
from evidence_archive.excerpt import WHOLE, parse_selector
from evidence_archive.keys import open_provider
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.ledger.rules import Rule
from evidence_archive.model import (
    Principal,
    Restored,
    ResultInfo,
    checked_name,
    format_result_id,
    format_time,
    text_of,
)
from evidence_archive.policy import Policy
from evidence_archive.ports import (
    Anchor,
    Clock,
    Entropy,
    KeyLifecycle,
    KeyProvider,
    ObjectStore,
    ScopeRow,
    SessionRow,
    Store,
    Surveyable,
    TokenCounter,
    Writer,
)
from evidence_archive.proof import leaf as audit
from evidence_archive.proving import Schedule
from evidence_archive.records import Records
from evidence_archive.register import Register
from evidence_archive.rekeying import Census, Rekeying
from evidence_archive.restoring import Restoring
from evidence_archive.session import Session
from evidence_archive.tokens import default_counter
from evidence_archive.vault import (
    INLINE_SIZE_LIMIT,
    INLINE_SIZE_MAX,
    OTHER_PROCESS,
    AuditReport,
    Surroundings,
    Vault,
    asked_session,
    facts_of,
    open_vault,
)
from evidence_archive.verifying import check_unopened
from evidence_archive.window.summaries import Judge, Summarizer

if TYPE_CHECKING:
    from evidence_archive.vault import ScopeKeys

__all__ = ["LEDGER", "Archive"]

LEDGER = "ledger:"
"""How the ids of the hidden sessions begin that hold shared ledgers."""

_LEDGER_DIALECT = "chat"
"""Of originals without messages it matters only that it stays the same."""

_PASSWORD = re.compile(r"://[^/@]*@")


class Archive:
    """A store of originals with its keys and policy; a context manager. Thread-safe.

    Make one with :meth:`open`; the constructor is for a store of your own.

    Args:
        store: satisfies :class:`evidence_archive.Store`.
        keys: a key provider.
        policy: the rules.
        objects: satisfies :class:`evidence_archive.ObjectStore`; for originals above ``inline_size_max`` bytes. None:
            all lie in the store.
        inline_size_max: 0 to 64 MiB.
        counter: counts tokens; tiktoken's ``o200k_base`` by default.
        clock, entropy: for tests.
        anchors: places outside the store that get a copy of every signed head of the audit log.
        register: path of a file outside the store; it gets a line for every hold, release, longer retention, shred.

    Raises:
        FormatError: ``inline_size_max`` is out of bounds.
    """

    def __init__(
        self,
        store: Store,
        *,
        keys: KeyProvider,
        policy: Policy,
        objects: ObjectStore | None = None,
        inline_size_max: int = INLINE_SIZE_MAX,
        counter: TokenCounter | None = None,
        clock: Clock | None = None,
        entropy: Entropy = os.urandom,
        anchors: Iterable[Anchor] = (),
        register: str | os.PathLike[str] | None = None,
    ) -> None:
        if type(inline_size_max) is not int or not 0 <= inline_size_max <= INLINE_SIZE_LIMIT:
            raise FormatError(f"inline_size_max is a whole number of bytes from 0 to {INLINE_SIZE_LIMIT}.")
        self.policy = policy
        self._around = Surroundings(
            store,
            keys,
            policy,
            counter or default_counter(),
            clock or SystemClock(),
            entropy,
            objects,
            inline_size_max,
        )
        self._anchors = tuple(anchors)
        self._register = None if register is None else Register(register)
        self._vaults: dict[str, Vault] = {}
        self._schedules: dict[str, Schedule] = {}
        self._opening: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._closed = False
        self._url = ""

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
        """An archive that is ready for sessions.

        Args:
            url: ``sqlite:///evidence.db`` (four slashes for an absolute path).
            keys: path of a key file made by ``evidence-archive keys new``, ``"env:NAME"``, or a provider.
            policy: path of a TOML file, a policy, or ``None`` for the built-in default.
            objects: where originals above ``inline_size_max`` lie: a directory, ``s3://bucket/prefix``, or an object
                store of your own. ``None`` is the directory ``evidence.db.objects`` beside an SQLite database, made
                when it is needed; with PostgreSQL it means that all lie in the database, up to 64 MiB each.
            inline_size_max: largest original that lies in the database, in bytes, 0 to 64 MiB.
            create: make the database where it does not exist.
            counter, clock: instead of tiktoken and the system's clock.
            anchors: places outside the store that get a copy of every signed head of the audit log: a file's path,
                ``"log"``, ``"command:PROGRAM ARGUMENTS"``, ``"objects:FOLDER"``, ``"s3://bucket/prefix"``, or one of
                your own.
            register: path of a file outside the store that gets a line for every hold, release, longer retention and
                shred, right after it; what it holds is done again after a backup was put back.

        Raises:
            PolicyError: the policy cannot be used.
            KeyNotFoundError, KeyringError: the keys are missing, malformed, or readable by others.
            StoreUnavailableError: the database cannot be reached, or is missing and ``create`` is false.
            StoreError: the URL cannot be used, the object store is not fit for it, or the database is missing while
                its folder of objects holds some.
            FormatError: ``inline_size_max`` is out of bounds.
            UnsupportedVersionError: a newer version of this library wrote the database.
        """
        if policy is None:
            policy = Policy.default()
        elif not isinstance(policy, Policy):
            policy = Policy.load(policy)
        provider = open_provider(keys)
        kept_at = [open_anchor(anchor) for anchor in anchors]
        from evidence_archive.objects import folder_of, holds_objects, open_objects
        from evidence_archive.objects.directory import MARK
        from evidence_archive.objects.late import LateObjects
        from evidence_archive.store import open_store, path_of  # loads SQLAlchemy, which importing must not

        if create and (database := path_of(url)) is not None and _is_missing(database):
            usual = database.with_name(f"{database.name}.objects")
            folder = usual if objects is None else folder_of(objects)
            if folder is not None and holds_objects(folder) and _is_missing(database):
                raise StoreError(
                    f"There is no database, but {str(folder)!r} holds the objects of one: put the database back."
                )
        store = open_store(url, create=create, wait_ms=policy.limits.store_wait_ms_max)
        try:
            kept: ObjectStore | None
            if objects is not None:
                kept = open_objects(objects, create=create and not store.has_used_objects())
                if isinstance(objects, str | os.PathLike):
                    opening = partial(open_objects, objects)
                    kept = LateObjects(kept.name, opening, using=store.uses_objects, objects=kept)
            elif (beside := store.beside) is not None:
                kept = LateObjects(
                    "directory",
                    lambda may_make: open_objects(beside, create=may_make),
                    exists=lambda: os.path.lexists(beside / MARK),
                    was_used=store.has_used_objects,
                    using=store.uses_objects,
                )
            else:
                kept = None
            archive = cls(
                store,
                keys=provider,
                policy=policy,
                objects=kept,
                inline_size_max=inline_size_max,
                counter=counter,
                clock=clock,
                anchors=kept_at,
                register=register,
            )
        except BaseException:
            store.close()
            raise
        archive._url = _PASSWORD.sub("://", url)
        return archive

    def __repr__(self) -> str:
        return f"Archive({self._url!r}, policy={self.policy.name!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Sign the heads of the logs that grew, and release the store; idempotent.

        Sessions of this archive are then misused.

        In another process than the one that opened it, there is nothing to release.
        """
        if os.getpid() != self._pid:
            return
        try:
            with self._lock:
                schedules = [] if self._closed else [self._schedules[org] for org in self._vaults]
            for schedule in schedules:
                schedule.close()
        finally:
            with self._lock:
                self._closed = True
                for vault in self._vaults.values():
                    vault.closed = True
                self._around.store.close()
                if self._around.objects is not None:
                    self._around.objects.close()

    def _vault(self, principal: Principal, *, create: bool = False) -> Vault:
        if not isinstance(principal, Principal):
            raise FormatError("Who asks must be a Principal: hand one in.")
        if os.getpid() != self._pid:  # before any lock: a fork may have copied one that is held
            raise MisuseError(OTHER_PROCESS)
        org = principal.org
        with self._lock:
            vault = self._known(org)
            if vault is not None:
                return vault
            opening = self._opening.setdefault(org, threading.Lock())
        with opening:  # a lock for each org: the key provider of one must not keep others waiting
            with self._lock:
                vault = self._known(org)
            try:
                if vault is not None:
                    return vault
                made = open_vault(self._around, org, create=create)
                schedule = Schedule(made, self._anchors)
                made.on_appended = schedule.appended
                with self._lock:
                    self._known(org)
                    self._schedules[org] = schedule
                    return self._vaults.setdefault(org, made)
            finally:
                self._opening.pop(org, None)

    def _known(self, org: str) -> Vault | None:
        if self._closed:
            raise MisuseError("This archive was closed: open it again.")
        vault = self._vaults.get(org)
        if vault is not None and vault.closed:  # shredded
            del self._vaults[org]
            return None
        return vault

    # --- sessions -------------------------------------------------------------------------------------------------

    def session(
        self,
        id: str,
        principal: Principal,
        dialect: str = "chat",
        tools: bool = True,
        *,
        summarizer: Summarizer | None = None,
        judge: Judge | None = None,
        rules: Iterable[Rule] = (),
    ) -> Session:
        """A session: opened anew, or gone on with where it stands, in this or any other process.

        Args:
            id: 1 to 256 characters; opaque.
            principal: who asks. The first subject to open a session owns it; nobody else may open it.
            dialect: form of the messages: ``chat`` (OpenAI chat completions).
            tools: whether the model is offered ``archive_evidence`` and ``restore_evidence``, and with a window also
                ``search_evidence``, ``post_claim``, ``list_facts`` and ``update_card``.
            summarizer: writes summaries of turns that leave the window; without it they are deterministic.
            judge: says how good they are, from 0 to 1, of one in ``judge_every``; its mean is in ``session.stats()``.
            rules: of the host, such as :func:`~evidence_archive.ledger.rules.written_file`: they look at every result
                once, and what they verified is a fact in the session's ledger.

        Raises:
            NotAvailableError: another subject owns it.
            FormatError: the id or dialect cannot be used, or the session was opened in another dialect.
            KeyringError, StoreError, IntegrityError: keys, store or stored bytes are not as they should be.
            MisuseError: the archive was closed, or opened in another process.
        """
        checked_name(id, "session id")
        if id.startswith(LEDGER):
            raise FormatError(f"A session's id does not begin with {LEDGER!r}: archive.ledger(...) opens a ledger.")
        for given, name in ((summarizer, "summarize"), (judge, "judge")):
            if given is not None and not callable(getattr(given, name, None)):
                raise FormatError(f"What writes or judges summaries is an object with the method {name}(...).")
        given_rules: object = rules
        if not isinstance(given_rules, Iterable) or not all(map(callable, rules := tuple(given_rules))):
            raise FormatError("rules is a list of functions, such as [written_file(...)].")
        if not isinstance(principal, Principal):
            raise FormatError('Who opens a session is a Principal(org="...", subject="...").')
        lens = dialect_named(dialect)
        vault = self._vault(principal, create=True)
        row, keys = _opened_session(vault, principal, id, dialect)
        if row.dialect != dialect:
            raise FormatError(f"This session was opened in the dialect {row.dialect}: open it in that one.")
        return Session(Records(vault, principal, row, keys, lens, with_tools=tools), summarizer, judge, rules)

    def ledger(self, id: str, principal: Principal) -> Ledger:
        """A ledger that several agents share: with books and originals of its own, made where it is new.

        Args:
            id: 1 to 249 characters; opaque.
            principal: who asks. The first subject to open it may always; others need one of the policy's
                ``[ledger] roles``, and then read all of its originals but those that a rule opens to other roles.

        Raises:
            NotAvailableError: it is somebody else's.
            FormatError: the id cannot be used.
            KeyringError, StoreError, IntegrityError: keys, store or stored bytes are not as they should be.
            MisuseError: the archive was closed, or opened in another process.
        """
        checked_name(id, "ledger id")
        name = checked_name(f"{LEDGER}{id}", "ledger id")
        if not isinstance(principal, Principal):
            raise FormatError('Who opens a ledger is a Principal(org="...", subject="...", roles={...}).')
        vault = self._vault(principal, create=True)
        row, keys = _opened_session(vault, principal, name, _LEDGER_DIALECT, sharing=self.policy.bookkeepers)
        records = Records(vault, principal, row, keys, dialect_named(_LEDGER_DIALECT), with_tools=False)
        return Ledger(records, Archiving(records), Books(records), is_shared=True)

    def custody(self, principal: Principal) -> Custody:
        """Holds, retention, shredding, keys and proofs of the principal's org.

        Args:
            principal: who acts; one of its roles has to be among the policy's ``[custody] roles``.

        Raises:
            NotAvailableError: it has none of them, or the org was never used; a denial is in the log.
            FormatError: the principal is none.
            ShreddedError: the org was shredded, and the principal could have acted on it.
            KeyringError, StoreError, IntegrityError: keys, store or stored bytes are not as they should be.
            MisuseError: the archive was closed, or opened in another process.
        """
        if not isinstance(principal, Principal):
            raise FormatError('Who acts is a Principal(org="...", subject="...", roles={...}).')
        return Custody(
            self._vault(principal),
            principal,
            anchors=self._anchors,
            other_orgs=partial(self._censuses, principal),
            register=self._register,
        )

    def _censuses(self, principal: Principal) -> dict[str, Census]:
        """The census of every other org, where the provider's versions serve all of them.

        Raises:
            SealBrokenError: an org was taken off the list of orgs, or is without its key and was not shredded.
        """
        keys, store = self._around.keys, self._around.store
        if not (isinstance(keys, KeyLifecycle) and keys.shared_by_orgs):
            return {}
        if isinstance(store, Surveyable) and store.unlisted_orgs():
            raise SealBrokenError("An org with keys is not in the list of orgs: verify it, and put its name back.")
        found = {}
        for org in store.orgs():
            if org != principal.org:
                try:
                    found[org] = Rekeying(open_vault(self._around, org, create=False), principal).census()
                except (ShreddedError, NotAvailableError):
                    check_unopened(store, org)
        return found

    # --- for whoever may ------------------------------------------------------------------------------------------

    def restore(
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
        """The exact original of any session of the principal's org that the policy opens to it, or a part of it.

        The grant, or the denial, is in the audit log of the org before this returns or raises. An org that was never
        used has no log, and asking makes none.

        Args:
            session_id, result_id: whose and which; malformed ones are simply unknown.
            principal: who asks.
            lines, pattern, context_lines, pointer: at most one selector, as in ``restore_evidence``.
            byte_range: instead of them, exact bytes such as ``"0-4095"``, counted from 0, both ends included; the
                content is then ``bytes``: of UTF-8 for a text, of compact JSON for a list of parts.
            reason: at most 2,000 characters; kept sealed with the audit entry.

        Raises:
            NotAvailableError: unknown, another org's, not archived, or forbidden; they cannot be told apart.
            FormatError: a selector is malformed or names a part that is not there, the reason is too long or no
                text, or the principal is none; nothing was released.
            SealBrokenError: stored bytes were changed; archiving in that session is suspended.
            KeyringError, StoreError: keys or store are not at hand; nothing was released.
            MisuseError: the archive was closed, or opened in another process.
        """
        selector = parse_selector(lines, pattern, context_lines, pointer, byte_range)
        vault = self._vault(principal)
        restoring = Restoring(vault)
        found = restoring.find(principal, session_id, result_id)
        chosen = restoring.selected(found, selector)
        opened = restoring.opened(principal, found, chosen, dialect_named(found.session.dialect))
        restoring.granted(principal, found, part=selector.kind, reason=reason)
        return opened.restored()

    def restore_to(
        self,
        file: BinaryIO,
        session_id: str,
        result_id: str,
        *,
        principal: Principal,
        reason: str | None = None,
    ) -> Restored:
        """As :meth:`restore`, with the exact bytes of the whole original written to a file, a few MiB in memory.

        The original is read twice where it lies outside the database: the first time it is checked as a whole, the
        second time, once the grant is in the audit log, it is written, each piece checked in its place again.

        Args:
            file: open for writing bytes; UTF-8 (``surrogatepass``) for a text, compact JSON for a list of parts.
                A raw file that takes a part of what it is given is given the rest again.
            session_id, result_id, principal, reason: as in :meth:`restore`.

        Returns:
            What was restored, with ``content`` ``None``; a copy of a part is written as that part, and ``part`` names
            it.

        Raises:
            NotAvailableError, FormatError, SealBrokenError, KeyringError, StoreError, MisuseError: as
                :meth:`restore`; if the second reading fails, what the file holds is authentic, but not the whole.
            OSError: from the file.
        """
        vault = self._vault(principal)
        restoring = Restoring(vault)
        found = restoring.find(principal, session_id, result_id)
        chosen = restoring.selected(found, WHOLE)
        if chosen.is_whole:
            restored = restoring.looked_at(principal, found)
            restoring.granted(principal, found, part=None, reason=reason)
            restoring.released_to(principal, found, partial(_write, file))
            return restored
        opened = restoring.opened(principal, found, chosen, dialect_named(found.session.dialect))
        restoring.granted(principal, found, part=None, reason=reason)
        _write(file, str(opened.content).encode("utf-8", "surrogatepass"))
        return replace(opened.restored(), content=None)

    def collect(self, *, principal: Principal) -> Collected:
        """Delete what batches that never came to their end left in the object store.

        Runs by itself after batches with large originals, too. Nothing that was archived is ever touched; a batch has
        hours for its end before what it stored so far counts as left behind.

        Args:
            principal: whose org.

        Raises:
            NotAvailableError: there is no such org here.
            FormatError: the principal is none.
            KeyringError, StoreError, IntegrityError: keys, store or stored bytes are not as they should be.
            MisuseError: the archive was closed, or opened in another process.
        """
        return Envelopes(self._vault(principal)).collect(tidying=True)

    def results(self, session_id: str, *, principal: Principal) -> list[ResultInfo]:
        """What a session holds, for its owner and for whoever may restore at least one of its originals.

        Others get only the results they may restore; the content of none is shown.

        Args:
            session_id: of a session of the principal's org.
            principal: who asks.

        Raises:
            NotAvailableError: there is no such session here, or nothing in it for this principal.
            FormatError: the principal is none.
            KeyringError, StoreError, IntegrityError: keys, store or stored bytes are not as they should be.
            MisuseError: the archive was closed, or opened in another process.
        """
        vault = self._vault(principal)
        told: list[ResultInfo] = []
        with vault.store.reading(vault.store_wait_ms) as reader:
            session = reader.session(asked_session(session_id))
            # Asked even for no session: a "no" costs the same statements whatever its cause.
            found = reader.results(b"" if session is None else session.scope_id, -1)
        if session is None:
            raise NotAvailableError
        rows = {row.number: row for row in found}
        owner = session.subject == principal.subject
        for row in rows.values():
            origin = row if row.origin is None else rows.get(row.origin)
            if row.own not in (None, "copy") or origin is None or not row.seen:
                continue
            if owner or vault.may_restore(principal, session.subject, row, origin):
                decision = self.policy.decide_archive(facts_of(origin))
                told.append(
                    ResultInfo(
                        id=format_result_id(row.number),
                        tool=text_of(row.tool_name),
                        tokens=row.tokens,
                        state=row.state,
                        protected_by=decision.rule_id if decision.effect == "never" and row.state == "live" else None,
                        restored_from=None if row.origin is None else format_result_id(row.origin),
                        observed_at=format_time(row.observed_at_us),
                    )
                )
        if not owner and not told:
            raise NotAvailableError
        if len(rows) != session.next_number - 1:
            raise SealBrokenError(
                f"Of {session.next_number - 1} results of this session {len(rows)} are there: "
                "the others were removed outside this library."
            )
        return told

    def audit(self, *, principal: Principal, start: int = 0) -> AuditReport:
        """The org's audit log, rehashed from its first entry.

        The host decides who may ask: entries hold ids, counts and statuses, never evidence.

        Args:
            principal: whose org.
            start: sequence number of the first entry to return, from 0; all are rehashed.

        Raises:
            NotAvailableError: there is no such org here.
            FormatError: the principal is none.
            KeyringError, StoreError, IntegrityError: keys, store or stored bytes are not as they should be.
            MisuseError: the archive was closed, or opened in another process.
        """
        return self._vault(principal).audit_report(start)

    def resume(self, session_id: str, *, principal: Principal) -> None:
        """Lift a suspension that stored bytes caused, once the operator has looked into it.

        Args:
            session_id: of a session of the principal's org.
            principal: who answers for it; audited.

        Raises:
            NotAvailableError: there is no such session here.
            ShreddedError: it was shredded, which nothing lifts.
            FormatError: the principal is none.
            StoreError, IntegrityError: the store cannot be written, or is still not as it should be.
            MisuseError: the archive was closed, or opened in another process.
        """
        self._vault(principal).resume(principal, session_id)


def _opened_session(
    vault: Vault, principal: Principal, session_id: str, dialect: str, sharing: frozenset[str] = frozenset()
) -> "tuple[SessionRow, ScopeKeys]":
    """The session's row and keys; made exclusively where it is new, its policy noted in the log where that is new.

    Whoever has one of the roles of ``sharing`` may open it, too.
    """
    with vault.store.reading(vault.store_wait_ms) as reader:
        row = reader.session(session_id)
        scope = None if row is None else reader.scope(row.scope_id)
        known_policy = reader.head().policy_digest == vault.policy.digest
    if row is None or not known_policy:
        new = vault.new_scope() if row is None else None

        def opened(writer: Writer) -> tuple[SessionRow, ScopeRow | None]:
            leaves = []
            if writer.head().policy_digest != vault.policy.digest:
                details = {"name": vault.policy.name, "version": vault.policy.version}
                leaves.append(vault.leaf(audit.POLICY_LOADED, principal.subject, details=details))
            row = writer.session(session_id)
            if row is None:
                if new is None:
                    raise StoreBusyError("The session changed while it was opened: try again.")
                new_scope, new_keys = new
                custody = writer.custody()
                if custody is not None and new_scope.kek_version < custody.kek_floor:
                    raise KeyringError("The keys of this process are from before a rotation: open the archive again.")
                row = SessionRow(
                    session_id=session_id,
                    scope_id=new_keys.scope_id,
                    subject=principal.subject,
                    dialect=dialect,
                    tag=vault.around.entropy(2).hex(),
                    version=0,
                    next_number=1,
                    suspended=None,
                    batches=0,
                    restores=0,
                    tokens_saved=0,
                    created_at_us=vault.around.clock.now_us(),
                )
                writer.insert_session(row, new_scope)
                leaves.append(
                    vault.leaf(
                        audit.SESSION_OPENED,
                        principal.subject,
                        session_id=session_id,
                        details={"dialect": dialect, "kek_version": new_scope.kek_version},
                    )
                )
            scope = writer.scope(row.scope_id)
            if leaves:
                writer.append(leaves, vault.policy.digest)
            return row, scope

        row, scope = vault.transact(opened)
    if row.subject != principal.subject and sharing.isdisjoint(principal.roles):
        denied = [vault.leaf(audit.SESSION_DENIED, principal.subject, session_id=session_id)]
        vault.transact(lambda writer: writer.append(denied))
        raise NotAvailableError
    if scope is None:
        raise NotAvailableError
    return row, vault.scope_keys(scope)


def _is_missing(database: Path) -> bool:
    """Whether there is no file, or one that was emptied; one that SQLite made has at least a page."""
    try:
        return database.stat().st_size == 0
    except (OSError, ValueError):
        return True


def _write(file: BinaryIO, data: bytes) -> None:
    """All of it: a raw file may take less than it is given (https://docs.python.org/3/library/io.html#io.RawIOBase)."""
    rest = memoryview(data)
    while rest:
        written: Any = file.write(rest)
        if written is None and not isinstance(file, io.RawIOBase):
            return  # a file of somebody's own, which does not count
        if not written:
            raise BlockingIOError("The file takes nothing more at the moment, and cannot be waited for.")
        rest = rest[written:]
