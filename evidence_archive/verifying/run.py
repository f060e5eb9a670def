"""The run: the log, then every session, then what belongs to none, each in a short transaction of its own."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

from evidence_archive.books import open_posting, posting_key
from evidence_archive.envelopes import Envelopes
from evidence_archive.errors import (
    AuditBrokenError,
    FormatError,
    IntegrityError,
    KeyNotFoundError,
    SealBrokenError,
    StoreError,
    WrongKeyError,
)
from evidence_archive.excerpt import Selector
from evidence_archive.model import decode_exact, format_result_id
from evidence_archive.ports import (
    OBJECT_BYTES_MAX,
    Anchor,
    BatchRow,
    CheckpointRow,
    CustodyRow,
    HeadRow,
    HoldRow,
    ObjectRow,
    ObjectStore,
    OrgRow,
    PostingRow,
    ResultRow,
    ScopeRow,
    Seen,
    SessionRow,
    ShredRow,
    Store,
    Survey,
)
from evidence_archive.proof.checkpoint import VerifierKey, open_checkpoint, read_checkpoint
from evidence_archive.sealing.envelope import envelope_bytes
from evidence_archive.sealing.keyring import unwrap
from evidence_archive.vault import INLINE_SIZE_LIMIT, SHREDDED, ScopeKeys, Vault, part_context
from evidence_archive.verifying.findings import FINDINGS_MAX, Findings, VerifyReport, key_text, place_of
from evidence_archive.verifying.rows import POSTINGS_PER_READ, SessionRows
from evidence_archive.verifying.told import Log, Told, ToldHold

__all__ = ["LEVELS", "Progress", "Run"]

LEVELS = ("keyless", "seals", "full")

ROWS_PER_READ = 1_000
"""Rows fetched at once where they are not a session's."""

_Heads = list[tuple[int, bytes]]
"""Sizes and roots of logs."""

ROUNDS_MAX = 5
"""How often a session is looked at again because it was written to while its originals were opened."""

Progress = Callable[[str, int, int], object]
"""Is told ``log``, ``sessions`` or ``originals``, how many are done, and of how many."""

OBJECTS_MAX = 100_000
"""Most objects that one envelope lies in: what their names have digits for."""

R = TypeVar("R")


@dataclass(slots=True)
class _Session:
    """One session as one transaction saw it."""

    id: str
    scope: ScopeRow | None
    rows: dict[int, ResultRow]
    shredded: set[int]


class Run:
    """One run over one org."""

    def __init__(
        self,
        store: Store,
        org: str,
        surveying: Callable[[], AbstractContextManager[Survey]],
        *,
        objects: ObjectStore | None,
        vault: Vault | None,
        key: VerifierKey | None,
    ) -> None:
        self._store = store
        self._org = org
        self._surveying = surveying
        self._objects = objects
        self._vault = vault
        self._key = key
        self._findings = Findings()
        self._log = Log(org, self._findings)
        self._counts: Counter[str] = Counter()
        self._round: Counter[str] = Counter()
        self._unchecked: list[str] = []
        self._level = "keyless"
        self._sample = 1.0
        self._since_us: int | None = None
        self._salt = os.urandom(16)
        self._drew = False
        self._kek_floor = 0
        self._anchored: int | None = None
        self._org_is_open: bool | None = None
        self._in_keeping = 0
        self._visited: set[str] = set()
        self._progress: Progress = lambda phase, done, total: None

    def run(
        self,
        level: str,
        sample: float | None,
        since_us: int | None,
        anchors: Iterable[Anchor],
        progress: Progress | None,
    ) -> VerifyReport:
        """What is found: heads, log, sessions, and then what belongs to none.

        Args:
            level, sample, since_us, anchors, progress: as for :func:`~evidence_archive.verifying.verify_vault`.

        Raises:
            FormatError: level, sample or time are out of bounds.
        """
        if level not in LEVELS:
            raise FormatError("A store is verified at level keyless, seals or full.")
        if sample is not None and not (isinstance(sample, int | float) and 0 < sample <= 1):
            raise FormatError("A sample is a share of the originals, above 0 and at most 1.")
        if since_us is not None and (type(since_us) is not int or since_us < 0):
            raise FormatError("A time is a whole number of microseconds since 1970.")
        self._level, self._since_us = level, since_us
        self._sample = 1.0 if sample is None else float(sample)
        self._progress = progress or self._progress

        origin = self._check_org()
        anchored, stored = self._heads_of_anchors(anchors, origin), self._heads_of_store(origin)
        self._read_log()
        signed = [size for _, heads in anchored for size, _ in heads] + [size for _, size, _ in stored]
        self._check_shredded_org(signed)
        self._check_custody()
        self._check_sessions()
        self._check_holds()
        self._check_shreds()
        self._check_objects()
        self._check_strays()
        for place, heads in anchored:
            self._check_anchor(place, heads)
        for place, size, root in stored:
            self._check_head("checkpoints", place, size, root)
        return self._report()

    def _report(self) -> VerifyReport:
        log = self._log
        self._counts["entries"] = log.entries
        if not log.entries:
            self._add("nothing_checked", "audit_leaves", self._org, "The log has no entry: nothing was checked.")
        if not self._counts["anchors"]:
            self._unchecked.append("No anchor was asked: an older copy of everything would not be noticed.")
        elif self._anchored is not None and self._anchored < log.size:
            self._unchecked.append(
                f"The anchors know the first {self._anchored} of {log.size} entries, and no others would be missed."
            )
        if self._counts["left_out"]:
            self._unchecked.append(f"The bytes of {self._counts['left_out']} originals were left out, as asked for.")
        return VerifyReport(
            org=self._org,
            level=self._level,
            size=log.size,
            root_hex=log.frontier.root().hex() if log.whole else "",
            counts=dict(sorted(self._counts.items())),
            findings=tuple(self._findings.kept.values()),
            findings_count=self._findings.count,
            damaged=dict(sorted(self._findings.of_sessions.items())),
            unchecked=tuple(self._unchecked),
        )

    def _add(self, code: str, table: str, place: str, sentence: str, session_id: str | None = None) -> None:
        self._findings.add(code, table, place, sentence, session_id)

    # --- the org, its heads and its log ---------------------------------------------------------------------------

    def _check_org(self) -> str | None:
        """The org's row and name; the name of its log, where that is known."""
        try:
            if self._org not in self._store.orgs():
                self._add("org_unlisted", "org_names", self._org, "The org is not in the list of orgs.")
        except IntegrityError:
            self._add("row_malformed", "org_names", self._org, "A name in the list of orgs is no text.")
        with self._surveying() as survey:
            seen, custody = survey.one(OrgRow), survey.one(CustodyRow)
        if custody is not None and custody.row is not None:
            self._kek_floor = custody.row.kek_floor
        known = None if self._key is None else self._key.name
        if seen is None:
            self._add("org_missing", "orgs", self._org, "The row of this org is gone: nothing of it opens.")
            return known
        self._findings.row("orgs", self._org, seen)
        if seen.row is None:
            return known
        self._org_is_open = bool(seen.row.aux_wrapped)
        if seen.row.aux_wrapped and seen.row.kek_version < self._kek_floor:
            self._add("org_differs", "orgs", self._org, "The org's key is an older copy, from before a rotation.")
        origin = f"evidence-archive/{seen.row.deployment.hex()}"
        if known not in (None, origin):
            self._add("org_differs", "orgs", self._org, "The org's row names another log than the key is for.")
        return known or origin

    def _check_shredded_org(self, signed: Sequence[int]) -> None:
        """An org without its key is one that the log shredded, under a head that was signed with the last of it."""
        if self._org_is_open is None:
            return
        if not self._org_is_open and not self._log.org_shredded:
            self._add("key_missing", "orgs", self._org, "The key of this org is gone, and nothing shredded it.")
        elif self._org_is_open and self._log.org_shredded:
            with self._surveying() as survey:
                seen = survey.one(OrgRow)
            if seen is not None and seen.row is not None and seen.row.aux_wrapped:  # not shredded meanwhile
                self._add("shred_undone", "orgs", self._org, "This org was shredded, and its key is there again.")
        elif self._log.org_shredded and all(size <= self._log.org_shredded_at for size in signed):
            sentence = "The log says that this org was shredded, and no signed head has the entry: it was put in."
            self._add("checkpoint_missing", "checkpoints", self._org, sentence)

    def _heads_of_anchors(self, anchors: Iterable[Anchor], origin: str | None) -> list[tuple[str, _Heads]]:
        """The heads of each anchor: place, then sizes and roots."""
        found = []
        for at, anchor in enumerate(anchors):
            place = f"{anchor.name} {at + 1}"
            self._counts["anchors"] += 1
            notes = [] if origin is None else list(anchor.heads(origin))
            if not notes:
                sentence = "This anchor knows no head of this log, so it shows nothing."
                self._add("anchor_empty", "anchor", place, sentence)
            heads = [self._head_of(note, origin, "anchor", place) for note in dict.fromkeys(notes)]
            found.append((place, [head for head in heads if head is not None]))
        return found

    def _check_anchor(self, place: str, heads: _Heads) -> None:
        """The longest head that counts; those that were given up are to be followed by one that says so."""
        given_up = [self._log.given_up[head] for head in heads if head in self._log.given_up]
        longest = max((head for head in heads if head not in self._log.given_up), default=None)
        if given_up and (longest is None or longest[0] <= max(given_up)):
            sentence = (
                "An anchor knows only signed heads from before the log was put back and anchored anew, and some were "
                f"given up then: entry {max(given_up)} says so."
            )
            self._add("reanchored", "anchor", place, sentence)
        if longest is not None:
            self._anchored = max(self._anchored or 0, longest[0])
            self._check_head("anchor", place, *longest)
        for size, root in heads:  # a longer one may be of a history that was given up for this one, and put back
            if (size, root) not in self._log.given_up and (size, root) != longest and self._log.roots[size] != root:
                self._check_head("anchor", place, size, root)

    def _heads_of_store(self, origin: str | None) -> list[tuple[str, int, bytes]]:
        """Every head that was signed: place, size, root."""
        found = []
        for seen in self._rows(CheckpointRow):
            place = place_of(seen, "size")
            self._counts["checkpoints"] += 1
            self._findings.row("checkpoints", place, seen)
            if seen.row is None:
                continue
            head = self._head_of(seen.row.note, origin, "checkpoints", place)
            if head is not None and head[0] != seen.row.size:
                self._add("checkpoint_broken", "checkpoints", place, "A stored head stands under another size.")
            elif head is not None:
                found.append((place, *head))
        if self._key is None and self._counts["checkpoints"] + self._counts["anchors"]:
            self._unchecked.append("Signatures of heads were not checked: the public key of the log was not given.")
        return found

    def _head_of(self, note: str, origin: str | None, table: str, place: str) -> tuple[int, bytes] | None:
        try:
            head = read_checkpoint(note) if self._key is None else open_checkpoint(note, self._key)
            if origin not in (None, head.origin):
                raise AuditBrokenError("It is of another log.")
        except AuditBrokenError:
            code = "anchor_broken" if table == "anchor" else "checkpoint_broken"
            self._add(code, table, place, "This is no head that was signed for this log.")
            return None
        self._log.wants_root(head.size)
        return head.size, head.root

    def _check_head(self, table: str, place: str, size: int, root: bytes) -> None:
        """A signed head with the log: it has to be as long, and to begin with just this."""
        kept = "An anchor knows" if table == "anchor" else "There is"
        if size > self._log.size:
            sentence = f"{kept} a signed head of {size} entries, and the log has {self._log.size}: it was put back."
            self._add("rolled_back", table, place, sentence)
        elif self._log.roots[size] is None and table != "anchor":
            return  # entries before it are missing, which is found already
        elif self._log.roots[size] != root:
            sentence = f"{kept} a signed head of {size} entries that this log does not begin with: it was rewritten."
            self._add("rewritten", table, place, sentence)
        if table == "anchor":
            with self._surveying() as survey:
                if survey.one(CheckpointRow, size) is None:
                    sentence = f"The signed head of {size} entries that an anchor knows is not in the store."
                    self._add("checkpoint_missing", "checkpoints", str(size), sentence)

    def _read_log(self) -> None:
        done = False
        while not done:
            with self._surveying() as survey:
                done = self._log.read_on(survey, pages_max=1)
                seen = survey.one(HeadRow)
            size = seen.row.size if seen is not None and seen.row is not None else self._log.size
            self._progress("log", self._log.size, max(size, self._log.size))

    def _rows(self, kind: type[R]) -> Iterator[Seen[R]]:
        """All rows of a kind by key, some at a time, each read in a transaction of its own."""
        after: R | None = None
        skip = 0
        while True:
            with self._surveying() as survey:
                page = survey.rows(kind, after, skip, ROWS_PER_READ)
            for seen in page:
                after, skip = (after, skip + 1) if seen.row is None else (seen.row, 0)
            yield from page
            if len(page) < ROWS_PER_READ:
                return

    def _check_custody(self) -> None:
        with self._surveying() as survey:
            self._log.read_on(survey)
            head, seen = survey.one(HeadRow), survey.one(CustodyRow)
            kept = survey.in_keeping()
        self._in_keeping = kept[0]
        known = None if head is None or head.row is None else head.row.custody_version
        if seen is None:
            if known:  # a store of an earlier version has none before its first batch under this one
                sentence = "The row that counts what the org has in keeping is gone, and the version floor with it."
                self._add("custody_missing", "custody", self._org, sentence)
            return
        self._findings.row("custody", self._org, seen)
        if seen.row is not None and known is not None and seen.row.version != known:
            sentence = "The row that counts what the org has in keeping is another than the log's head knows."
            self._add("custody_differs", "custody", self._org, sentence)
        if seen.row is not None and (seen.row.originals, seen.row.original_bytes) != kept:
            sentence = (
                f"The org counts {seen.row.originals} originals of {seen.row.original_bytes} bytes in keeping; "
                f"{kept[0]} of {kept[1]} bytes are there."
            )
            self._add("custody_differs", "custody", self._org, sentence)

    # --- sessions -------------------------------------------------------------------------------------------------

    def _check_sessions(self) -> None:
        for seen in self._rows(SessionRow):
            name = seen.stored["session_id"]
            if seen.row is not None:
                self._check_session(seen.row.session_id)
            elif type(name) is str:
                self._check_session(name)
            else:
                self._findings.row("sessions", place_of(seen, "session_id"), seen)
        while fresh := [
            name for name, told in self._log.sessions.items() if told.owner is not None and name not in self._visited
        ]:
            for name in fresh:  # opened while this ran, or removed
                self._check_session(name)

    def _check_session(self, session_id: str) -> None:
        self._visited.add(session_id)
        for left in reversed(range(ROUNDS_MAX)):
            with self._surveying() as survey:
                self._log.read_on(survey)
                session = self._compared(survey, session_id)
            if session is None:
                return
            self._round.clear()
            if self._opened(session, is_last=not left):
                break
        self._counts += self._round
        self._counts["sessions"] += 1
        self._progress("sessions", self._counts["sessions"], max(len(self._visited), len(self._log.sessions)))

    def _compared(self, survey: Survey, session_id: str) -> _Session | None:
        """A session's rows with each other and with the log, as one transaction sees all of it."""
        told = self._log.sessions.get(session_id)
        seen = survey.one(SessionRow, session_id)
        if seen is None:
            if told is not None and told.owner is not None:
                sentence = "The log opened this session, and it has no row: it was removed."
                self._add("session_missing", "sessions", session_id, sentence, session_id)
            return None
        self._findings.row("sessions", session_id, seen, session_id)
        if told is None or told.owner is None:
            told = told or Told()
            sentence = "The log did not open this session: its row was put in or moved."
            self._add("session_unlogged", "sessions", session_id, sentence, session_id)
        scope_id = seen.stored["scope_id"]
        if type(scope_id) is not bytes:
            return None
        batches = survey.of_scope(BatchRow, scope_id)
        scope = survey.one(ScopeRow, scope_id)
        looked = SessionRows(self._findings, survey, session_id, told, survey.of_scope(ResultRow, scope_id))
        looked.check_results()
        looked.check_batches(batches)
        looked.check_postings(scope_id)
        looked.check_scope(scope, self._log.org_shredded, self._kek_floor)
        if seen.row is not None:
            looked.check_session(seen.row, batches, self._log.org_shredded)
        shredded = looked.shredded(self._log.org_shredded)
        looked.check_shredded(shredded)
        return _Session(session_id, None if scope is None else scope.row, looked.rows, shredded)

    def _opened(self, session: _Session, *, is_last: bool) -> bool:
        """The bytes of a session's originals, and what its key opens; False if they changed and that explains all."""
        problems = Findings()
        keys = self._session_keys(session, problems)
        if problems.count and not is_last and self._is_rekeyed(session):
            return False
        self._adopt(problems, session.id)
        if keys is not None and self._level == "full":
            self._check_books(session.id, keys)
        for number, row in sorted(session.rows.items()):
            self._round["results"] += 1
            self._round["shredded"] += row.state == SHREDDED
            if row.state == SHREDDED or (row.origin or number) in session.shredded:
                continue
            problems = Findings()
            if row.state == "archived" and row.origin is None:
                self._check_original(session.id, row, keys, problems)
            if (row.closed is not None or row.part is not None) and keys is not None and self._level == "full":
                self._check_note(session.id, row, keys, problems)
            if problems.count and not is_last and self._changed(row):
                return False  # shredded, or under another key by now: looked at again, as it is then
            self._adopt(problems, session.id)
        return True

    def _adopt(self, problems: Findings, session_id: str) -> None:
        for one in problems.kept.values():
            self._add(one.code, one.table, one.place, one.sentence, session_id)

    def _is_rekeyed(self, session: _Session) -> bool:
        """Whether a session's key was wrapped anew, or destroyed, since it was read."""
        if session.scope is None:
            return False
        with self._surveying() as survey:
            seen = survey.one(ScopeRow, session.scope.scope_id)
        return seen is not None and seen.row is not None and seen.row != session.scope

    def _changed(self, row: ResultRow) -> bool:
        with self._surveying() as survey:
            seen = survey.one(ResultRow, row.scope_id, row.number)
        return seen is not None and seen.row is not None and seen.row != row

    def _session_keys(self, session: _Session, problems: Findings) -> ScopeKeys | None:
        scope, vault = session.scope, self._vault
        if vault is None or self._level == "keyless" or scope is None or not scope.wrapped:
            return None
        vault.forget_scope(scope.scope_id)  # a key that is only in memory would say nothing about the provider
        try:
            keys = vault.unwrapped_scope(scope)
        except SealBrokenError:
            sentence = "The key of this session does not open: it was changed, or put back from before a rotation."
            problems.add("key_unopened", "scope_keys", session.id, sentence)
        except (KeyNotFoundError, WrongKeyError):
            sentence = "The key provider has not the version that this session's key is wrapped under."
            problems.add("key_missing", "scope_keys", session.id, sentence)
        else:
            self._round["keys"] += 1
            return keys
        return None

    # --- originals ------------------------------------------------------------------------------------------------

    def _is_drawn(self, row: ResultRow) -> bool:
        """Whether the bytes of an original are looked at; the first that may be always is."""
        self._round["originals"] += 1
        if self._since_us is None or (row.archived_at_us or 0) >= self._since_us:
            draw = int.from_bytes(sha256(self._salt + (row.original_id or b"")).digest()[:8]) / 2**64
            if not self._drew or draw < self._sample:
                self._drew = True
                return True
        self._round["left_out"] += 1
        return False

    def _check_original(self, session_id: str, row: ResultRow, keys: ScopeKeys | None, problems: Findings) -> None:
        place = f"{session_id} {format_result_id(row.number)}"
        if row.original_id is None or row.envelope_sha256 is None or row.sealed_size is None or row.dek_id is None:
            problems.add("result_differs", "results", place, "An archived result names no original.")
            return
        if not self._is_drawn(row):
            return
        opening = self._level == "full" and keys is not None
        if opening and keys is not None and self._opens(session_id, row, keys):
            self._round["opened"] += 1
        elif self._check_bytes(place, row, row.original_id, row.envelope_sha256, problems) and opening:
            sentence = "The original does not open the way a restore opens it, or a newer version sealed it."
            problems.add("original_unopened", "originals", place, sentence)
        self._round["envelopes"] += 1
        hashed = self._counts["envelopes"] + self._round["envelopes"]
        self._progress("originals", hashed, max(hashed, self._in_keeping))

    def _opens(self, session_id: str, row: ResultRow, keys: ScopeKeys) -> bool:
        """Whether an original opens by the path of a restore: key, place, digest, cipher, length, encoding."""
        vault = self._vault
        if vault is None:
            return False
        pieces: list[bytes] = []
        is_held, size_bytes = row.size_bytes <= INLINE_SIZE_LIMIT, 0

        def take(piece: bytes) -> None:
            nonlocal size_bytes
            size_bytes += len(piece)
            if is_held:
                pieces.append(piece)

        try:
            dek, _ = vault.open_closed(keys, row)
            opened = Envelopes(vault).open(row, vault.slot(session_id, row), dek, take)
            if is_held:
                decode_exact(b"".join(pieces), opened.encoding)
        except (IntegrityError, FormatError, StoreError, UnicodeError):
            return False
        return size_bytes == row.size_bytes

    def _check_bytes(self, place: str, row: ResultRow, original_id: bytes, digest: bytes, problems: Findings) -> bool:
        """Whether the bytes of an envelope are those that were stored, in the database or in objects."""
        with self._surveying() as survey:
            envelope = survey.envelope(original_id)
            seen = survey.one(ObjectRow, original_id) if envelope is None else None
        if envelope is not None:
            if type(envelope) is bytes and sha256(envelope).digest() == digest:
                return True
            sentence = "The envelope is not the bytes that were stored: it was changed, or is that of another."
            problems.add("original_changed", "originals", place, sentence)
            return False
        if seen is None:
            sentence = "The original is gone: it was not shredded, so it was removed outside this library."
            problems.add("original_missing", "originals", place, sentence)
            return False
        where = seen.row
        if where is None:
            return False  # found where the rows of objects are
        if (
            where.state != "stored"
            or where.part_bytes != OBJECT_BYTES_MAX
            or where.size_bytes != envelope_bytes(row.sealed_size or 0)
            or where.size_bytes > OBJECTS_MAX * OBJECT_BYTES_MAX
        ):
            sentence = "The row that says where this original lies is not what its result needs: it was changed."
            problems.add("original_missing", "objects", place, sentence)
            return False
        return self._check_objects_of(place, where, digest, problems)

    def _check_objects_of(self, place: str, where: ObjectRow, digest: bytes, problems: Findings) -> bool:
        if self._objects is None:
            sentence = "This original lies in an object store, and none was given."
            problems.add("object_unread", "objects", place, sentence)
            return False
        whole, left = sha256(), where.size_bytes
        for key in Envelopes.object_keys(where):
            try:
                data = self._objects.get(key)
            except StoreError:  # away, or no key that an object can have
                sentence = "An object of this original could not be read: check its row and the object store."
                problems.add("object_unread", "objects", place, sentence)
                return False
            if data is None:
                sentence = "An object of this original is not in the object store: put it back."
                problems.add("object_missing", "objects", place, sentence)
                return False
            whole.update(data)
            if len(data) != min(left, where.part_bytes):
                break
            left -= len(data)
        self._round["outside"] += 1
        if left or whole.digest() != digest:
            problems.add("object_changed", "objects", place, "The objects are not the bytes that were stored.")
            return False
        return True

    def _check_note(self, session_id: str, row: ResultRow, keys: ScopeKeys, problems: Findings) -> None:
        """What the session's key opens: key and note of a result, and which part a copy is."""
        vault = self._vault
        if vault is None:
            return
        try:
            if row.closed is not None:
                vault.open_closed(keys, row)
            if row.part is not None:
                part = unwrap(keys.key, row.part, part_context(vault, keys.scope_id, row.number))
                Selector.from_canonical(part.decode())
        except (IntegrityError, FormatError, UnicodeError):
            place = f"{session_id} {format_result_id(row.number)}"
            sentence = "The sealed key and note of this result do not open: they were changed, or are an older copy."
            problems.add("note_unopened", "results", place, sentence)
        else:
            self._round["notes"] += 1

    def _check_books(self, session_id: str, keys: ScopeKeys) -> None:
        """What the session's key opens of its books; it opens in all generations of that key."""
        vault = self._vault
        if vault is None:
            return
        key, after = posting_key(keys.tag), ("", -1)
        while True:
            with self._surveying() as survey:
                page = survey.postings(keys.scope_id, after, POSTINGS_PER_READ)
            for row in (seen.row for seen in page if seen.row is not None):
                after = (row.book, row.seq)
                try:
                    open_posting(vault, key, row)
                except IntegrityError:
                    sentence = "This posting does not open: it was changed, or it is that of another place."
                    self._add(
                        "posting_unopened", "postings", f"{session_id} {row.book} {row.seq}", sentence, session_id
                    )
                else:
                    self._round["postings"] += 1
            if len(page) < POSTINGS_PER_READ or all(seen.row is None for seen in page):
                return

    # --- holds, shreds, objects, strays ---------------------------------------------------------------------------

    def _check_holds(self) -> None:
        met = set()
        for page in self._rows(HoldRow):
            place = place_of(page, "hold_id")
            met.add(place)
            self._counts["holds"] += 1
            with self._surveying() as survey:
                self._log.read_on(survey)
                seen = survey.one(HoldRow, page.stored["hold_id"]) or page
                told = self._log.holds.get(place)
                self._findings.row("holds", place, seen)
                if told is None:
                    self._add("hold_unlogged", "holds", place, "The log did not place this hold: it was put in.")
                elif seen.row is not None and _hold_of(survey, told) != (
                    seen.row.scope_id,
                    seen.row.number,
                    seen.row.placed_by,
                    seen.row.released_by,
                    seen.row.released_at_us is not None,
                ):
                    sentence = (
                        "This hold is not what the log says: what it is on, by whom, or whether it is released."
                    )
                    self._add("hold_differs", "holds", place, sentence, told.session_id)
        for name, told in list(self._log.holds.items()):
            if name not in met and not self._is_there(HoldRow, name):
                self._add(
                    "hold_missing", "holds", name, "The log placed this hold, and it has no row.", told.session_id
                )

    def _is_there(self, kind: type[R], name: str) -> bool:
        with self._surveying() as survey:
            return survey.one(kind, bytes.fromhex(name)) is not None

    def _check_shreds(self) -> None:
        met = set()
        for page in self._rows(ShredRow):
            place = place_of(page, "shred_id")
            met.add(place)
            self._counts["shreds"] += 1
            with self._surveying() as survey:
                self._log.read_on(survey)
                seen = survey.one(ShredRow, page.stored["shred_id"]) or page
                told = self._log.shreds.get(place)
                self._findings.row("shreds", place, seen)
                if told is None:
                    self._add("shred_unlogged", "shreds", place, "The log knows no such shred: the row was put in.")
                elif seen.row is not None and (
                    _scope_of(survey, told.session_id),
                    told.number,
                    told.requested_by,
                    told.completed,
                ) != (
                    seen.row.scope_id,
                    seen.row.number,
                    seen.row.requested_by,
                    seen.row.completed_at_us is not None,
                ):
                    sentence = "This shred is not what the log says: of what, by whom, or how far it is."
                    self._add("shred_differs", "shreds", place, sentence, told.session_id)
        for name, told in list(self._log.shreds.items()):
            if name not in met and not self._is_there(ShredRow, name):
                sentence = "The log says that this was shredded, and the record of it has no row."
                self._add("shred_missing", "shreds", name, sentence, told.session_id)

    def _check_objects(self) -> None:
        for seen in self._rows(ObjectRow):
            self._counts["places"] += 1
            self._findings.row("objects", place_of(seen, "original_id"), seen)

    def _check_strays(self) -> None:
        kinds: tuple[tuple[type[Any], str, tuple[str, ...]], ...] = (
            (ScopeRow, "scope_keys", ("scope_id",)),
            (ResultRow, "results", ("scope_id", "number")),
            (BatchRow, "batches", ("scope_id", "batch_id")),
            (PostingRow, "postings", ("scope_id", "book", "seq")),
            (ObjectRow, "objects", ("original_id",)),
        )
        for kind, table, names in kinds:
            for seen in self._paged(partial(_strays, kind)):
                place = " ".join(key_text(seen.stored[name]) for name in names)
                self._add("stray", table, place, "Nothing refers to this row: it was put in, or what did is gone.")
                self._findings.row(table, place, seen)
        for original_id in self._paged(lambda survey, skip: survey.stray_originals(skip, ROWS_PER_READ)):
            sentence = "No result names this envelope: it was put in, or its result is gone."
            self._add("stray", "originals", key_text(original_id), sentence)

    def _paged(self, read: Callable[[Survey, int], Sequence[Any]]) -> Iterator[Any]:
        skip = 0
        while True:
            with self._surveying() as survey:
                page = read(survey, skip)
            yield from page
            skip += len(page)
            if len(page) < ROWS_PER_READ or skip > FINDINGS_MAX:
                return


def _strays(kind: type[R], survey: Survey, skip: int) -> list[Seen[R]]:
    return survey.strays(kind, skip, ROWS_PER_READ)


def _scope_of(survey: Survey, session_id: str) -> bytes | None:
    seen = survey.one(SessionRow, session_id)
    return None if seen is None or seen.row is None else seen.row.scope_id


def _hold_of(survey: Survey, told: ToldHold) -> tuple[bytes | None, int | None, str, str | None, bool]:
    scope_id = None if told.session_id is None else _scope_of(survey, told.session_id)
    return scope_id, told.number, told.placed_by, told.released_by, told.released_by is not None
