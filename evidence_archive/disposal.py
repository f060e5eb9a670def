"""What may never go, and what goes for good: legal holds, retention, shredding. The one place that destroys.

A shred destroys keys: those of the original, of a session or of the org; envelopes and objects go with them. What is
left is a tombstone. Every path here passes :meth:`Disposal._allowed` inside its own transaction, so that a hold that
was placed before it is always met, and a group that holds one held original is not touched at all.

An old copy of the store still holds the keys, wrapped: a shred is ``pending`` until every version of the
key-encryption key that ever wrapped them is destroyed at the provider, and ``complete`` only then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from evidence_archive.batch import REASON_CHARS_MAX
from evidence_archive.envelopes import Envelopes
from evidence_archive.errors import (
    EvidenceArchiveError,
    FormatError,
    HeldError,
    NotAvailableError,
    RetentionError,
    SealBrokenError,
    ShreddedError,
    StoreBusyError,
    StoreError,
    StoreUnavailableError,
)
from evidence_archive.logged import LoggedActs
from evidence_archive.model import Principal, format_result_id, parse_result_id
from evidence_archive.ports import (
    HoldRow,
    KeyLifecycle,
    ResultRow,
    ScopeRow,
    SessionRow,
    ShredRow,
    Writer,
)
from evidence_archive.proof import leaf as audit
from evidence_archive.sealing.keyring import close_original, unwrap, wrap
from evidence_archive.vault import (
    SESSIONS_PER_READ,
    SHREDDED,
    ScopeKeys,
    Vault,
    asked_session,
    part_context,
)

__all__ = ["Disposal", "Due", "Earlier", "Hold", "Shred"]

DUE_MAX = 10_000
"""Most originals that one run looks at whose retention is over."""

KEK_VERSION_MAX = 2**31 - 1
"""Above every version that a provider has."""

EVER_US = 2**62
"""A time when every intent is over."""

OBJECT_ROWS_MAX = 2**31 - 1
"""All of them."""

_TRIES_MAX = 5


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold.

    Args:
        id: 32 hex digits.
        session_id: which session, ``None`` for the whole org.
        result_id: which original of it, ``None`` for all.
        reason: why, as it was given.
        placed_by, placed_at_us: who and when.
        released_by, released_at_us: likewise; ``None`` while it holds.
    """

    id: str
    session_id: str | None
    result_id: str | None
    reason: str = field(repr=False)
    placed_by: str
    placed_at_us: int
    released_by: str | None = None
    released_at_us: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it still holds."""
        return self.released_at_us is None


@dataclass(frozen=True, slots=True)
class Shred:
    """What was shredded, and how far that is true.

    Args:
        id: 32 hex digits; empty for an org, whose own record went with its keys.
        session_id: which session, ``None`` for the whole org.
        result_id: which original of it, ``None`` for all.
        status: ``pending`` while the provider still has a key version that opens an old copy of the store;
            ``complete`` when it has none.
        kek_version: the highest version under which the keys were ever wrapped; that one and all below must go.
        originals: how many originals went; 0 when the record is read again.
        requested_by, requested_at_us: who and when.
        same_content: of one original, what else of its session holds the very same content, such as what its ledger
            kept of it: each is an original of its own, and stays until it is shredded. Empty when the record is read
            again.
    """

    id: str
    session_id: str | None
    result_id: str | None
    status: str
    kek_version: int
    originals: int
    requested_by: str
    requested_at_us: int
    same_content: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Due:
    """An original whose retention is over.

    Args:
        session_id, result_id: which.
        retention_until_us: when it was over.
        size_bytes: of the original.
        held: a legal hold keeps it all the same.
    """

    session_id: str
    result_id: str
    retention_until_us: int
    size_bytes: int
    held: bool


@dataclass(frozen=True, slots=True)
class Earlier:
    """An act that a store which was put back has lost, and that is done again.

    Args:
        subject, time_us: who did it, and when.
        seq: the place of its entry in the log that was lost.
    """

    subject: str
    time_us: int
    seq: int


class Disposal:
    """Holds, retention and shredding of one org.

    Args:
        vault: the org's keys, store and log.
        principal: who acts; already permitted.
        earlier: the act that is done again; rows and entries keep who did it first.
    """

    def __init__(self, vault: Vault, principal: Principal, earlier: Earlier | None = None) -> None:
        self._vault = vault
        self._principal = principal
        self._earlier = earlier
        self._logged = LoggedActs()

    # --- holds ----------------------------------------------------------------------------------------------------

    def hold(self, reason: str, session_id: str | None, result_id: str | None) -> Hold:
        """A new hold, in force when this returns.

        Raises:
            NotAvailableError: there is no such session or archived original.
            ShreddedError: it was shredded.
            FormatError: an original without its session, or no reason.
        """
        _check_reason(reason)
        number = _asked_number(session_id, result_id)
        vault, hold_id = self._vault, self._vault.around.entropy(16)

        def placed(writer: Writer) -> HoldRow:
            scope_id, of = None, number
            if session_id is not None:
                session = self._session(writer, session_id)
                scope_id = session.scope_id
                scope = writer.scope(scope_id)
                if scope is not None and not scope.wrapped:
                    raise ShreddedError("This session was shredded: nothing of it is left to be held.")
                if number is not None:
                    of = self._original(writer, session_id, number)[1].number
            row = HoldRow(
                hold_id=hold_id,
                scope_id=scope_id,
                number=of,
                reason=vault.sealed_text(reason, b"hold", hold_id),
                placed_by=self._principal.subject,
                placed_at_us=vault.around.clock.now_us(),
            )
            writer.insert_holds([row])
            vault.counted(writer, holds=1)
            self._append(writer, audit.HOLD_PLACED, session_id, of, {"hold": hold_id.hex()})
            return row

        return self._told(vault.transact(placed), {} if session_id is None else {b"": session_id})

    def release(self, hold_id: str) -> Hold:
        """The hold, released; it stays in the record.

        Raises:
            NotAvailableError: there is no such hold.
            FormatError: it was released before.
        """

        def released(writer: Writer) -> HoldRow:
            row = next((row for row in writer.holds() if row.hold_id.hex() == hold_id), None)
            if row is None:
                raise NotAvailableError
            if row.released_at_us is not None:
                raise FormatError("This hold was released before.")
            by, at_us = self._done_first()
            row = replace(row, released_by=by, released_at_us=at_us)
            session_id = None if row.scope_id is None else names.get(row.scope_id)
            writer.update_holds([row])
            self._append(writer, audit.HOLD_RELEASED, session_id, row.number, {"hold": hold_id})
            return row

        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            names = self._session_names([row for row in reader.holds() if row.hold_id.hex() == hold_id])
        return self._told(self._vault.transact(released), names)

    def holds(self) -> list[Hold]:
        """All holds, released ones included, by time."""
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            rows = reader.holds()
        names = self._session_names(rows)
        return [self._told(row, names) for row in rows]

    def _told(self, row: HoldRow, names: dict[bytes, str]) -> Hold:
        session_id = None if row.scope_id is None else names.get(row.scope_id, names.get(b"", "?"))
        return Hold(
            id=row.hold_id.hex(),
            session_id=session_id,
            result_id=None if row.number is None else format_result_id(row.number),
            reason=self._vault.opened_text(row.reason, b"hold", row.hold_id),
            placed_by=row.placed_by,
            placed_at_us=row.placed_at_us,
            released_by=row.released_by,
            released_at_us=row.released_at_us,
        )

    def _session_names(self, rows: Sequence[HoldRow | ShredRow | ResultRow]) -> dict[bytes, str]:
        wanted = {row.scope_id for row in rows if row.scope_id is not None}
        if not wanted:
            return {}
        return {
            session.scope_id: session.session_id for session in self._vault.sessions() if session.scope_id in wanted
        }

    # --- retention ------------------------------------------------------------------------------------------------

    def retain(self, session_id: str, result_id: str, until_us: int) -> None:
        """An original is kept at least until then.

        Raises:
            RetentionError: it is kept longer already; a retention is never shortened.
            NotAvailableError: there is no such archived original.
            ShreddedError: it was shredded.
            FormatError: it is no time.
        """
        if type(until_us) is not int or not 0 <= until_us < 2**63:
            raise FormatError("A retention ends at a whole number of microseconds since 1970.")
        number = _asked_number(session_id, result_id)

        def extended(writer: Writer) -> None:
            session, row = self._original(writer, session_id, number or 0)
            if row.retention_until_us is not None and until_us < row.retention_until_us:
                raise RetentionError("This original is kept for longer already: a retention is never shortened.")
            session.version += 1
            row = replace(row, retention_until_us=until_us, version=session.version)
            writer.update_results([row])
            writer.update_session(session)
            self._append(writer, audit.RETENTION_EXTENDED, session_id, row.number, {"until_us": until_us})

        self._vault.transact(extended)

    def due(self) -> list[Due]:
        """The originals whose retention is over, the longest over first; at most ``DUE_MAX``."""
        now_us = self._vault.around.clock.now_us()
        with self._vault.store.reading(self._vault.store_wait_ms) as reader:
            rows = [row for row in reader.expired(now_us, DUE_MAX) if row.origin is None]
            active = [hold for hold in reader.holds() if hold.released_at_us is None]
        names = self._session_names(rows)
        return [
            Due(
                names[row.scope_id],
                format_result_id(row.number),
                row.retention_until_us or 0,
                row.size_bytes,
                any(_holds(hold, row) for hold in active),
            )
            for row in rows
            if row.scope_id in names
        ]

    # --- the choke point --------------------------------------------------------------------------------------------

    def _allowed(self, writer: Writer, originals: Iterable[ResultRow], touches: Callable[[HoldRow], bool]) -> None:
        """Return only if all of these originals may be destroyed now, in the transaction that destroys them.

        Args:
            writer: of that transaction.
            originals: all that it would destroy.
            touches: whether a hold that is not on the whole org is on something that it would destroy.

        Raises:
            HeldError: a hold keeps something of it.
            RetentionError: the retention of one of them is not over.
            SealBrokenError: a hold was removed or exchanged outside this library, and nobody can say what it was on.
            AuditBrokenError: the log, which says what holds there are, is not what its head says.
        """
        holds, kept = writer.holds(), writer.custody()
        if len(holds) != (0 if kept is None else kept.holds):
            raise SealBrokenError("Nothing was destroyed: a hold was removed from the database. Put it back first.")
        self._logged.read_on(writer)
        if not self._logged.has_holds(holds):
            raise SealBrokenError(
                "Nothing was destroyed: a hold is not as the log has it, but as in another copy of the store. "
                "Put it back first."
            )
        for hold in holds:
            if hold.released_at_us is None and (hold.scope_id is None or touches(hold)):
                raise HeldError(
                    f"Nothing was destroyed: hold {hold.hold_id.hex()} is on something of it. Release it first."
                )
        now_us = self._vault.around.clock.now_us()
        for row in originals:
            if row.retention_until_us is not None and row.retention_until_us > now_us:
                raise RetentionError(
                    f"Nothing was destroyed: the retention of {format_result_id(row.number)} is not over."
                )

    def _check_kept(self, session_id: str | None) -> None:
        """Return only if the log keeps nothing of a session, or of any, whatever became of the rows."""
        if self._logged.keeps(self._vault.around.clock.now_us(), session_id):
            raise RetentionError(
                "Nothing was destroyed: the log keeps an original of it for longer. Verify the store."
            )

    # --- shredding ------------------------------------------------------------------------------------------------

    def shred_original(self, session_id: str, result_id: str) -> Shred:
        """One original and all copies of it, destroyed; the session goes on under a new key.

        Raises:
            HeldError, RetentionError: it has to be kept; nothing was destroyed.
            NotAvailableError: there is no such archived original.
            KeyringError: the provider does not wrap the session's new key; nothing was destroyed.
            SealBrokenError: a hold was removed, or the session's key put back from before a shred.
            StoreBusyError: other processes keep giving the session new keys.
        """
        number = _asked_number(session_id, result_id)
        with self._refusals(session_id, number):
            for _ in range(_TRIES_MAX):
                found = self._once(session_id, number or 0)
                if found is not None:
                    return found
        raise StoreBusyError("The session's key changed while an original was shredded: try again.")

    def _once(self, session_id: str, number: int) -> Shred | None:
        """One try; ``None`` where another process gave the session a new key meanwhile."""
        vault = self._vault
        with vault.store.reading(vault.store_wait_ms) as reader:
            found = reader.find(asked_session(session_id), number)
            if found is not None:
                self._logged.read_on(reader)  # most of it here, where nobody waits for it
        if found is None:
            raise NotAvailableError
        old_scope, old = found[1], vault.scope_keys(found[1])
        new = ScopeKeys(old.scope_id, old.generation + 1, vault.around.entropy(32), old.tag)
        # The provider is asked before the transaction: nobody waits for it with a lock.
        new_scope = vault.wrapped_scope(new, old_scope.created_at_us)
        shred_id = vault.around.entropy(16)

        def shredded(writer: Writer) -> Shred | None:
            session = self._session(writer, session_id)
            custody = writer.custody()
            if writer.scope(session.scope_id) != old_scope or (
                custody is not None and new_scope.kek_version < custody.kek_floor
            ):
                return None
            rows = {row.number: row for row in writer.results(session.scope_id, -1)}
            asked = rows.get(number)
            root = None if asked is None else rows.get(asked.origin or asked.number)
            if asked is None or root is None or root.state == "live":
                raise NotAvailableError
            if root.state == SHREDDED:
                raise ShreddedError("This original was shredded before.")
            self._logged.read_on(writer)
            if self._logged.generation(session.session_id) != old_scope.generation:
                # What was shredded before would be sealed anew with all that stays.
                raise SealBrokenError(
                    "Nothing was destroyed: the key of this session is from before a shred, and was put back. Verify "
                    "the store."
                )
            root = self._logged.kept(session.session_id, root)
            family = [row for row in rows.values() if root.number in (row.number, row.origin)]
            self._allowed(
                writer, [root], lambda hold: hold.scope_id == root.scope_id and hold.number in (None, root.number)
            )
            session.version += 1
            gone = [_emptied(row, session.version) for row in family]
            taken = {row.number for row in gone}
            kept = [
                self._rekeyed(row, old, new, session.version)
                for row in rows.values()
                if row.number not in taken and (row.closed is not None or row.part is not None)
            ]
            writer.update_results([*gone, *kept])
            writer.update_scopes([new_scope])
            writer.update_session(session)
            self._destroy(writer, [root])
            row = self._shred_row(shred_id, session.scope_id, root.number, old_scope)
            writer.insert_shreds([row])
            self._append(writer, audit.SHRED_REQUESTED, session_id, root.number, {"shred": shred_id.hex()})
            same = sorted(one.number for one in rows.values() if _is_twin(one, root))
            done = self._shred(row, session_id, originals=1)
            return replace(done, same_content=tuple(map(format_result_id, same)))

        done = vault.transact(shredded)
        if done is not None:
            vault.forget_scope(old.scope_id)
            self._swept()
        return done

    def shred_session(self, session_id: str) -> Shred:
        """A session's key and everything sealed under it, destroyed.

        Raises:
            HeldError, RetentionError: one of its originals has to be kept; nothing was destroyed.
            NotAvailableError: there is no such session.
            ShreddedError: it was shredded before.
        """
        shred_id = self._vault.around.entropy(16)

        def shredded(writer: Writer) -> tuple[Shred, bytes]:
            session = self._session(writer, session_id)
            scope = writer.scope(session.scope_id)
            if scope is None:
                raise NotAvailableError
            if not scope.wrapped:
                raise ShreddedError("This session was shredded before.")
            rows = writer.results(session.scope_id, -1)
            roots = self._roots(writer, session, rows)
            self._allowed(writer, roots, lambda hold: hold.scope_id == scope.scope_id)
            self._check_kept(session.session_id)
            self._end(writer, session, scope, rows)
            self._destroy(writer, roots)
            row = self._shred_row(shred_id, scope.scope_id, None, scope)
            writer.insert_shreds([row])
            self._append(writer, audit.SHRED_REQUESTED, session_id, None, {"shred": shred_id.hex()})
            return self._shred(row, session_id, originals=len(roots)), scope.scope_id

        with self._refusals(session_id, None):
            done, scope_id = self._vault.transact(shredded)
        self._vault.forget_scope(scope_id)
        self._swept()
        return done

    def shred_org(self) -> Shred:
        """All keys of the org, destroyed: nothing of it can be opened any more, by anybody.

        The audit log stays, and so does its last checkpoint, which says that the org was shredded.

        Raises:
            HeldError, RetentionError: one of its originals has to be kept; nothing was destroyed.
            ShreddedError: it was shredded before.
            StoreUnavailableError: it is shredded, and objects are left, which nobody can open.
        """
        vault = self._vault

        def shredded(writer: Writer) -> tuple[int, list[str], int]:
            # As it is now: another process may have wrapped it under a newer version, or destroyed it.
            org = writer.org_row()
            if not org.aux_wrapped:
                raise ShreddedError("This org was shredded before.")
            originals, after, version = 0, "", org.kek_version
            # What the collector was to delete later: nobody can run it for this org any more.
            lapsed = writer.lapsed_objects(EVER_US, OBJECT_ROWS_MAX)
            objects = [key for place in lapsed for key in Envelopes.object_keys(place)]
            while sessions := writer.sessions(after, SESSIONS_PER_READ):
                after = sessions[-1].session_id
                for one in sessions:
                    session = self._session(writer, one.session_id)
                    scope, rows = writer.scope(session.scope_id), writer.results(session.scope_id, -1)
                    roots = self._roots(writer, session, rows)
                    self._allowed(writer, roots, lambda hold: True)
                    for row in roots:
                        place = writer.object(row.original_id or b"")
                        objects += [] if place is None else Envelopes.object_keys(place)
                    if scope is not None:
                        version = max(version, scope.kek_version)
                        self._end(writer, session, scope, rows)
                    self._destroy(writer, roots)
                    originals += len(roots)
            self._allowed(writer, [], lambda hold: True)
            self._check_kept(None)
            self._append(writer, audit.SHRED_REQUESTED, None, None, {"originals": originals})
            vault.sign_head(writer)
            # No process that holds keys in memory can open a session any more, and none can start one.
            vault.counted(writer, kek_floor=KEK_VERSION_MAX)
            writer.update_org(replace(org, aux_wrapped=b""))
            return originals, objects, version

        with self._refusals(None, None):
            originals, objects, version = vault.transact(shredded)
        vault.closed = True
        vault.store.scrub()
        self._delete_for_good(objects)
        return Shred("", None, None, self._status(version), version, originals, *self._done_first())

    def shreds(self) -> list[Shred]:
        """All shreds of originals and sessions, by time; one that is found complete is recorded as such."""
        vault = self._vault
        with vault.store.reading(vault.store_wait_ms) as reader:
            rows = reader.shreds()
        now_us = vault.around.clock.now_us()
        done = [
            replace(row, completed_at_us=now_us)
            for row in rows
            if row.completed_at_us is None and self._status(row.kek_version) == "complete"
        ]
        names = self._session_names(rows)
        if done:

            def completed(writer: Writer) -> None:
                known = {row.shred_id: row for row in writer.shreds()}
                fresh = [row for row in done if known[row.shred_id].completed_at_us is None]
                writer.update_shreds(fresh)
                for row in fresh:
                    details = {"shred": row.shred_id.hex()}
                    session_id = names.get(row.scope_id or b"")
                    self._append(writer, audit.SHRED_COMPLETED, session_id, row.number, details)

            vault.transact(completed)
        settled = {row.shred_id: row for row in done}
        return [
            self._shred(settled.get(row.shred_id, row), names.get(row.scope_id or b"", "?"), originals=0)
            for row in rows
        ]

    def collect_due(self, *, dry_run: bool) -> list[Due]:
        """The originals whose retention is over; destroyed where this is no dry run and no hold keeps them."""
        due = self.due()
        if dry_run:
            return due
        kept = set()
        for one in due:
            if not one.held:
                try:
                    self.shred_original(one.session_id, one.result_id)
                except (HeldError, RetentionError):  # since it was listed
                    kept.add(one)
                except ShreddedError:  # by somebody else
                    pass
        return [replace(one, held=True) if one in kept else one for one in due]

    @contextmanager
    def _refusals(self, session_id: str | None, number: int | None) -> Iterator[None]:
        """What a hold or a retention refuses in this block is in the log; one block at a time."""
        try:
            with self._logged.turn:
                yield
        except (HeldError, RetentionError) as error:
            why = {"why": "held" if isinstance(error, HeldError) else "retention"}
            self._vault.transact(lambda writer: self._append(writer, audit.SHRED_REFUSED, session_id, number, why))
            raise

    def _delete_for_good(self, objects: Sequence[str]) -> None:
        """The objects of an org that was shredded: no collector can open it any more, so all are tried now."""
        left, failure = 0, None
        for key in objects:
            try:
                self._vault.objects.delete(key)
            except StoreError as error:
                left, failure = left + 1, error
        if failure is not None:
            raise StoreUnavailableError(
                f"The org was shredded, and {left} of its objects, which nothing opens any more, could not be "
                "deleted: delete them where they lie."
            ) from failure

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _session(self, writer: Writer, session_id: str) -> SessionRow:
        session = writer.session(asked_session(session_id))
        if session is None:
            raise NotAvailableError
        return session

    def _original(self, writer: Writer, session_id: str, number: int) -> tuple[SessionRow, ResultRow]:
        """An archived original by its own ID or that of a copy of it, locked."""
        found = writer.find(asked_session(session_id), number)
        if found is not None and found[2].origin is not None:
            found = writer.find(asked_session(session_id), found[2].origin)
        if found is None or found[2].state == "live":
            raise NotAvailableError
        if found[2].state == SHREDDED:
            raise ShreddedError("This original was shredded: it was destroyed on purpose and cannot come back.")
        return found[0], found[2]

    def _roots(self, writer: Writer, session: SessionRow, rows: Iterable[ResultRow]) -> list[ResultRow]:
        """The originals among a session's results that can be restored, to be kept for as long as the log says."""
        self._logged.read_on(writer)
        found = (row for row in rows if row.original_id is not None and row.state == "archived")
        return [self._logged.kept(session.session_id, row) for row in found]

    @staticmethod
    def _end(writer: Writer, session: SessionRow, scope: ScopeRow, rows: Sequence[ResultRow]) -> None:
        """A session without its key: its results that were archived, and all copies of them, are tombstones."""
        session.version += 1
        session.suspended = SHREDDED
        touched = [row for row in rows if row.state != "live" or row.origin is not None]
        writer.update_results([_emptied(row, session.version) for row in touched])
        writer.update_scopes([replace(scope, wrapped=b"")])
        writer.update_session(session)

    def _destroy(self, writer: Writer, roots: Sequence[ResultRow]) -> None:
        """Envelopes go, objects are given to the collector, and the org has less in keeping."""
        ids = [row.original_id for row in roots if row.original_id is not None]
        writer.destroy_originals(ids)
        Envelopes.give_up(writer, ids, self._vault.around.clock.now_us())
        self._vault.counted(writer, -len(ids), -sum(row.size_bytes for row in roots))

    def _rekeyed(self, row: ResultRow, old: ScopeKeys, new: ScopeKeys, version: int) -> ResultRow:
        """What of a row is sealed under the session's key, sealed under the next one."""
        vault = self._vault
        closed, part = row.closed, row.part
        if closed is not None:
            dek, words = vault.open_closed(old, row)
            closed = close_original(
                new.key,
                deployment=vault.deployment,
                org=vault.org,
                scope_id=new.scope_id,
                original_id=row.original_id,
                dek_id=row.dek_id,
                result_id=format_result_id(row.number),
                dek=dek,
                note=words,
            )
        if part is not None:
            context = part_context(vault, new.scope_id, row.number)
            part = wrap(new.key, unwrap(old.key, part, context), context)
        return replace(row, closed=closed, part=part, version=version)

    def _shred_row(self, shred_id: bytes, scope_id: bytes, number: int | None, scope: ScopeRow) -> ShredRow:
        by, at_us = self._done_first()
        return ShredRow(
            shred_id=shred_id,
            scope_id=scope_id,
            number=number,
            kek_version=scope.kek_version,
            requested_by=by,
            requested_at_us=at_us,
        )

    def _shred(self, row: ShredRow, session_id: str, *, originals: int) -> Shred:
        return Shred(
            id=row.shred_id.hex(),
            session_id=session_id,
            result_id=None if row.number is None else format_result_id(row.number),
            status="pending" if row.completed_at_us is None else "complete",
            kek_version=row.kek_version,
            originals=originals,
            requested_by=row.requested_by,
            requested_at_us=row.requested_at_us,
        )

    def _status(self, kek_version: int) -> str:
        """Whether the provider still has a version that opens an old copy; one that cannot be asked may have it."""
        keys = self._vault.around.keys
        if not isinstance(keys, KeyLifecycle):
            return "pending"
        return "pending" if any(one <= kek_version for one in keys.versions(self._vault.org)) else "complete"

    def _append(
        self, writer: Writer, event: str, session_id: str | None, number: int | None, details: Mapping[str, object]
    ) -> None:
        told = {**details} if number is None else {**details, "result": format_result_id(number)}
        if self._earlier is not None:
            told |= {"replayed": self._earlier.seq, "requested_by": self._earlier.subject}
        writer.append([self._vault.leaf(event, self._principal.subject, session_id=session_id, details=told)])

    def _done_first(self) -> tuple[str, int]:
        """Who did it, and when: now, unless it is done again."""
        if self._earlier is not None:
            return self._earlier.subject, self._earlier.time_us
        return self._principal.subject, self._vault.around.clock.now_us()

    def _swept(self) -> None:
        """What was destroyed leaves the files, as far as the engine can, and the object store."""
        self._vault.store.scrub()
        try:
            Envelopes(self._vault).collect()
        except EvidenceArchiveError as error:  # the keys are gone; a later run takes the objects
            self._vault.log.warning("evidence_archive.not_collected", error=type(error).__name__)


def _holds(hold: HoldRow, row: ResultRow) -> bool:
    """Whether an active hold keeps an original."""
    return hold.scope_id is None or (
        hold.scope_id == row.scope_id and hold.number in (None, row.origin or row.number)
    )


def _is_twin(row: ResultRow, root: ResultRow) -> bool:
    """Whether a row has an original of its own that holds just what another one holds."""
    is_other = row.number != root.number and row.state == "archived" and row.origin is None
    return is_other and row.content_tag == root.content_tag


def _emptied(row: ResultRow, version: int) -> ResultRow:
    """The tombstone of a result: what it was, and nothing that opens it."""
    return replace(row, state=SHREDDED, closed=None, part=None, version=version)


def _check_reason(reason: object) -> None:
    if not isinstance(reason, str) or not reason.strip() or len(reason) > REASON_CHARS_MAX:
        raise FormatError(f"A reason is 1 to {REASON_CHARS_MAX:,} characters.")


def _asked_number(session_id: object, result_id: object) -> int | None:
    if result_id is None:
        return None
    if session_id is None:
        raise FormatError("Say which session the original is of.")
    try:
        return parse_result_id(result_id)
    except FormatError:
        raise NotAvailableError from None
