"""The one write path: decide on a batch, seal its originals, commit all of it in one transaction."""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from evidence_archive import notes
from evidence_archive.batch import Candidate, Item, decide
from evidence_archive.envelopes import Envelopes, Outside
from evidence_archive.errors import (
    BatchRejectedError,
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    SealBrokenError,
    StoreBusyError,
    StoreError,
)
from evidence_archive.matching import NOTE
from evidence_archive.model import (
    Content,
    Encoded,
    Exact,
    Facts,
    Receipt,
    Target,
    ToolCall,
    bytes_of,
    canonical_id,
    ce,
    encode_exact,
    format_result_id,
    parse_result_id,
    text_of,
)
from evidence_archive.ports import BatchRow, CustodyRow, ResultRow, SessionRow, StoredOriginal, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.records import TOOL_NAME_CHARS_MAX, Records, clone, rendering
from evidence_archive.sealing.envelope import seal_original
from evidence_archive.sealing.keyring import close_original, request_tag

__all__ = ["Archiving", "Kept"]

TRUST = "tool-output"
"""What every original is: the output of a tool, which nobody vouches for."""

COMMIT_TRIES_MAX = 20
KEEP_TRIES_MAX = 200
"""How often a batch, or what is kept besides, is prepared anew because others changed the session meanwhile."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Something to be archived that is no result of a tool.

    Args:
        own: what it is: ``span`` (turns that left the window) or ``artifact``.
        content: its exact content.
        words: what is said of it, sealed with its key; at most ``note_chars_max`` of the limits.
        sensitivity: of everything that is in it.
        tool, kind: of the result it was taken from, whose rules then hold for it; without a tool, those for ``own``.
    """

    own: str
    content: Content = field(repr=False)
    words: str = field(repr=False)
    sensitivity: frozenset[str] = frozenset()
    tool: str | None = None
    kind: str | None = None


@dataclass(slots=True)
class _Draft:
    """A target with the row it would get."""

    candidate: Candidate
    row: ResultRow
    encoded: Exact | None
    facts: Facts
    note: str


@dataclass(slots=True)
class _Prepared:
    """One target, sealed and ready for the transaction."""

    row: ResultRow
    original: StoredOriginal | Outside | None
    note: str


class Archiving:
    """Batches of one session. Callers hold the records' lock.

    Args:
        records: of the session.
    """

    def __init__(self, records: Records) -> None:
        self._records = records
        self._envelopes = Envelopes(records.vault)
        self._ending = False
        """Whether a transaction got as far as its end, so that an error leaves open what became of it."""

    def archive(
        self, items: tuple[Item, ...], call: ToolCall | None, key: str | None, *, is_leaving: bool = False
    ) -> tuple[Receipt, str]:
        """The one write path: decide, seal, commit; the receipt and its text.

        Args:
            items: the parsed batch.
            call: the model's call, or ``None`` for a program's batch.
            key: a program's idempotency key.
            is_leaving: their turns leave the window, so that a note may be longer than what it stands for.

        Raises:
            BatchRejectedError: NOTHING was archived, unless its reason is ``unknown``.
            FormatError: the key was used with another batch.
            KeyringError: the keys are not at hand.
        """
        call_id = None if call is None else canonical_id(call.id)
        tag = request_tag(
            self._records.keys.tag,
            call_id if call_id is not None else (key or "").encode() or self._records.vault.around.entropy(16),
            [(item.id, item.note) for item in items],
        )
        return self._until_committed(items, call, tag, key, is_leaving=is_leaving)

    def keep(self, kept: Kept) -> Receipt:
        """Archive what is no result of a tool, as a batch of its own: it gets the session's next result ID.

        It is sealed, counted, held, kept and shredded as every original, and restored under its ID.

        Raises:
            BatchRejectedError: NOTHING was archived, unless its reason is ``unknown``.
            KeyringError: the keys are not at hand.
        """
        random = self._records.vault.around.entropy(16)
        tag = request_tag(self._records.keys.tag, random, [(kept.own, kept.words)])
        return self._until_committed(kept, None, tag, None)[0]

    def _until_committed(
        self,
        what: "tuple[Item, ...] | Kept",
        call: ToolCall | None,
        tag: bytes,
        key: str | None,
        *,
        is_leaving: bool = False,
    ) -> tuple[Receipt, str]:
        """Try again while other processes change the session, and find out what became of a commit."""
        outside: dict[int, Outside] = {}
        self._ending = False
        try:
            # What is kept depends on nothing that others change but the next number: several agents may be at it.
            for _ in range(KEEP_TRIES_MAX if isinstance(what, Kept) else COMMIT_TRIES_MAX):
                self._records.refresh(self._records.wait_ms)
                replayed = self._replayed(tag, key, call) if call is not None or key is not None else None
                if replayed is not None:
                    return replayed
                suspension = self._records.suspension()
                if suspension is not None:
                    raise BatchRejectedError(
                        f"Nothing was archived: archiving in this session is suspended ({suspension}).",
                        reason="suspended",
                    )
                try:
                    done = self._commit(what, call, tag, key, outside, is_leaving=is_leaving)
                except StoreBusyError:  # rolled back, even at its end
                    self._ending = False
                    raise
                except StoreError:
                    done = self._committed(tag, key, call) if self._ending else None
                    if done is None:
                        raise
                if done is not None:
                    self._records.failures = 0
                    return done
            # Others were faster, every time; the store is well, so this does not count as its failure.
            raise BatchRejectedError(
                "Nothing was archived: the session keeps changing under this batch; try again.",
                reason="store_unavailable",
            )
        except StoreError as error:
            self._records.trouble(error)
            told = f"{str(error)[0].lower()}{str(error)[1:]}"
            if self._ending:
                raise BatchRejectedError(
                    f"It is not known whether the batch was archived, the next view tells: {told}", reason="unknown"
                ) from error
            raise BatchRejectedError(f"Nothing was archived: {told}", reason="store_unavailable") from error
        except IntegrityError as error:
            self._records.trouble(error)
            raise BatchRejectedError(
                "Nothing was archived: stored bytes were changed, and archiving in this session is suspended.",
                reason="suspended",
            ) from error

    def _committed(self, tag: bytes, key: str | None, call: ToolCall | None) -> tuple[Receipt, str] | None:
        """The batch, where a commit that was reported as failed took place.

        It is looked up under the lock that the commit held: what is not there then, will not come later.
        """
        seen: list[BatchRow | None] = []
        settled = False
        with suppress(EvidenceArchiveError):
            self._records.transact(lambda writer: seen.append(self._settled(writer, tag, key)))
            settled = True
        if not seen or (seen[-1] is not None and not settled):
            return None
        self._ending = False
        row = seen[-1]
        if row is None:
            return None
        with suppress(EvidenceArchiveError):
            self._records.refresh(self._records.wait_ms)
        return self._receipt(row, tag, call, replayed=False)

    def _replayed(self, tag: bytes, key: str | None, call: ToolCall | None) -> tuple[Receipt, str] | None:
        with self._records.vault.store.peeking(self._records.wait_ms) as reader:
            row = reader.batch(self._records.keys.scope_id, tag, key)
        if row is None:
            return None
        found = self._receipt(row, tag, call)
        self._ending = True  # it is there: where it cannot be settled, nobody may say that it is not
        self._records.transact(lambda writer: self._settled(writer, tag, key), audited=False)
        self._ending = False
        return found

    def _settled(self, writer: Writer, tag: bytes, key: str | None) -> BatchRow | None:
        """The batch, if it is there; it is durable once this transaction is committed.

        A commit whose last sync failed, or whose process died before it, can be seen and still go with the power.
        Only what is committed behind it makes sure, so something is written.
        """
        row = writer.batch(self._records.keys.scope_id, tag, key)
        if row is not None:
            session = self._records.session_under_lock(writer)
            session.version += 1
            writer.update_session(session)
        return row

    def _receipt(
        self, row: BatchRow, tag: bytes, call: ToolCall | None, *, replayed: bool = True
    ) -> tuple[Receipt, str]:
        """The receipt of a batch, and its text: the one that was recorded, unless it is given once more."""
        if row.request_tag != tag:
            raise FormatError("This idempotency key was used with another batch: use a new key for new content.")
        receipt = replace(_receipt_of(row), replayed=replayed)
        return receipt, self._receipt_text(receipt, call)

    def _commit(
        self,
        what: "tuple[Item, ...] | Kept",
        call: ToolCall | None,
        tag: bytes,
        key: str | None,
        outside: dict[int, Outside],
        *,
        is_leaving: bool,
    ) -> tuple[Receipt, str] | None:
        """One try; ``None`` when another process changed the session since it was looked at.

        Args:
            what, call, tag, key: the batch, or what is archived besides results.
            outside: what earlier tries put into objects, by result number; what still fits is not put again.
            is_leaving: notes may be longer than what they stand for.
        """
        now_us, batch_id = self._records.clock.now_us(), self._records.vault.around.entropy(16)
        kept = what if isinstance(what, Kept) else None
        if isinstance(what, Kept):
            items, drafts = self._draft_kept(what, now_us, batch_id)
        else:
            items, drafts = what, self._drafts(what, now_us, batch_id, is_leaving)
        self._refuse_unless_ok(items, drafts)
        self._put(drafts, outside)
        random = memoryview(self._records.vault.around.entropy(64 * len(items)))
        prepared = [
            self._prepared(drafts[item.id], item.note, random[64 * at : 64 * at + 64].tobytes(), outside)
            for at, item in enumerate(items)
        ]
        receipt = Receipt(
            batch_id=batch_id.hex(),
            targets=tuple(Target(item.id, "ok", "", drafts[item.id].row.tokens) for item in items),
            tokens_before=sum(one.row.tokens for one in prepared),
            # A note that leaves with its turn is in no request, however long it is, and an artifact never was in one.
            tokens_after=sum(
                one.row.tokens if one.row.own == "artifact" else min(one.row.note_tokens, one.row.tokens)
                for one in prepared
            ),
            tokens_estimated=self._records.counter.estimated,
        )
        text = self._receipt_text(receipt, call)
        details = {
            "results": [format_result_id(one.row.number) for one in prepared],
            "envelopes": [one.row.envelope_sha256.hex() if one.row.envelope_sha256 else None for one in prepared],
        }
        inline = [one.original for one in prepared if isinstance(one.original, StoredOriginal)]
        stored = [one.original for one in prepared if isinstance(one.original, Outside)]

        def committed(writer: Writer) -> tuple[SessionRow, list[ResultRow]] | None:
            self._ending = False
            row = self._records.session_under_lock(writer)
            if row.version != self._records.row.version:
                return None
            row.version += 1
            row.batches += 1
            row.tokens_saved += receipt.tokens_saved
            for one in prepared:
                one.row.version = row.version
            writer.insert_originals(inline)
            self._envelopes.keep(writer, stored)
            if kept is None:
                writer.update_results([one.row for one in prepared])
            else:
                writer.insert_results([one.row for one in prepared])
                row.next_number += len(prepared)
            new = [one.row for one in prepared if one.original is not None]
            custody = self._records.vault.counted(writer, len(new), sum(row.size_bytes for row in new))
            self._refuse_over_quota(custody)
            writer.insert_batch(
                BatchRow(row.scope_id, batch_id, tag, key, json.dumps(_receipt_data(receipt)), now_us)
            )
            own = [] if call is None else [self._records.own_row(row, call, text, "receipt")]
            writer.insert_results(own)
            writer.update_session(row)
            writer.append([self._records.leaf(audit.BATCH_ACCEPTED, batch_id=batch_id.hex(), details=details)])
            self._ending = True
            return row, own

        changed = self._records.transact(committed)
        if changed is None:
            return None
        row, own = changed
        self._records.notes.update((one.row.number, one.note) for one in prepared)
        self._records.absorb([*(one.row for one in prepared), *own])
        self._records.row = row
        self._records.log.info(
            "evidence_archive.archived",
            batch=receipt.batch_id,
            results=details["results"],
            tokens_saved=receipt.tokens_saved,
        )
        if stored:
            self._envelopes.tidy(wait_ms=self._records.wait_ms)
        return receipt, text

    def _refuse_over_quota(self, custody: CustodyRow) -> None:
        """Nothing is ever evicted to make room: what does not fit is not archived."""
        limits = self._records.limits
        for name, kept, kept_max in (
            ("originals", custody.originals, limits.quota_originals_max),
            ("bytes", custody.original_bytes, limits.quota_bytes_max),
        ):
            if kept > kept_max:
                raise BatchRejectedError(
                    f"NOTHING was archived: the org would keep {kept} {name}, and its quota is {kept_max}.",
                    reason="quota",
                )

    def _put(self, drafts: Mapping[str, _Draft], outside: dict[int, Outside]) -> None:
        """Large originals into objects, unless an earlier try put just them."""
        new = []
        for draft in drafts.values():
            row, encoded = draft.row, draft.encoded
            if row.origin is not None or encoded is None or not self._envelopes.is_outside(encoded.size_bytes):
                continue
            slot, acl = self._records.vault.slot(self._records.id, row), self._acl(row)
            put = outside.get(row.number)
            if put is None or (put.slot, put.acl, put.encoded.digest) != (slot, acl, encoded.digest):
                new.append((row.number, self._envelopes.sealing(slot, encoded, acl, TRUST)))
        self._envelopes.put([one for _, one in new], wait_ms=self._records.wait_ms)
        outside.update(new)

    def _acl(self, row: ResultRow) -> bytes:
        return ce(self._records.row.subject, row.sensitivity, row.kind)

    def _receipt_text(self, receipt: Receipt, call: ToolCall | None) -> str:
        if call is None:
            return ""
        spent = self._records.counter.count(str(call.arguments)) + self._records.counter.count(
            notes.receipt_text(receipt, net_tokens=receipt.tokens_saved)
        )
        return notes.receipt_text(receipt, net_tokens=receipt.tokens_saved - spent)

    def _refuse_unless_ok(self, items: tuple[Item, ...], drafts: Mapping[str, _Draft]) -> None:
        targets = decide(
            items,
            {result_id: draft.candidate for result_id, draft in drafts.items()},
            note_chars_max=self._records.limits.note_chars_max,
            original_bytes_max=self._records.vault.original_bytes_max,
            last_id=self._records.last_id,
        )
        bad = [target for target in targets if target.status != "ok"]
        if bad:
            raise BatchRejectedError(
                f"NOTHING was archived: {len(bad)} of {len(targets)} targets cannot be. "
                f"{bad[0].result_id} is {bad[0].status}: {bad[0].reason}",
                targets=targets,
            )

    def _drafts(self, items: Iterable[Item], now_us: int, batch_id: bytes, is_leaving: bool) -> dict[str, _Draft]:
        """What is known of each target that was issued, with the row it would get and the note it would show."""
        return {
            item.id: draft
            for item in items
            if (draft := self._draft(parse_result_id(item.id), item.note, now_us, batch_id, is_leaving)) is not None
        }

    def _draft_kept(self, kept: Kept, now_us: int, batch_id: bytes) -> tuple[tuple[Item, ...], dict[str, _Draft]]:
        """What is archived besides results, as the only target of a batch, under the session's next number."""
        records = self._records
        encoded = encode_exact(kept.content)
        if encoded is None:
            raise FormatError("What is to be kept would not come back equal in type and value.")
        tokens = records.tokens_of(kept.content)
        row = records.identity_row(
            records.row,
            call_id=b"",
            content=kept.content,
            encoded=encoded,
            tokens=tokens,
            tag=records.tag(kept.content) or b"",
            tool_name=kept.own if kept.tool is None else kept.tool,
            own=kept.own,
            bare=True,
            kind=kept.kind,
            sensitivity="\n".join(sorted(kept.sensitivity)),
        )
        row.state, row.batch_id, row.archived_at_us = "archived", batch_id, now_us
        row.rendering = rendering(with_tools=records.with_tools, estimated=records.counter.estimated)
        item = Item(format_result_id(row.number), kept.words)
        note = records.note_text(row, kept.words)
        facts = records.facts(row, None, kept.content)
        # No note stands in its place, so none has to be smaller: what is kept may be empty.
        candidate = Candidate(read=True, size_bytes=encoded.size_bytes, tokens=tokens, note_tokens=-1)
        return (item,), {item.id: _Draft(candidate, row, encoded, facts, note)}

    def _draft(self, number: int, words: str, now_us: int, batch_id: bytes, is_leaving: bool) -> _Draft | None:
        known = self._records.rows.get(number)
        if known is None or not known.seen:
            return None
        place = self._records.timeline.by_number.get(number)
        content = None if place is None or place.form == NOTE else self._records.original(place)
        encoded = None if content is None else encode_exact(content)
        exact = (
            encoded is not None
            and place is not None
            and content is not None
            and self._records.tag_at(place, content) == known.content_tag
        )
        facts = self._records.facts(known, place, content)
        called = text_of(known.tool_name)
        row = clone(known)
        live = self._records.vault.policy.live(facts.tools)
        row.state, row.batch_id, row.archived_at_us = "archived", batch_id, now_us
        also_named = [name for name in facts.tools if name != called]
        if known.origin is None and len(also_named) == 1:
            row.result_tool_name = bytes_of(also_named[0][:TOOL_NAME_CHARS_MAX])  # both names count from now on
        row.rendering = rendering(with_tools=self._records.with_tools, estimated=self._records.counter.estimated)
        row.live_ask = None if live is None else live.ask or ""
        blank = known.state == "archived" or content is None or len(words) > self._records.limits.note_chars_max
        note = "" if blank else self._records.note_text(row, words)
        if content is not None and not blank:
            row.note_tokens = self._records.counter.count(note)
            row.note_tag = self._records.tag(self._records.dialect.noted(content, note))
        return _Draft(
            Candidate(
                archived=known.state == "archived",
                in_view=content is not None,
                read=place is not None and self._records.is_read(place),
                orphan=place is not None and place.call is None,
                own=known.own or ("answer" if called in self._records.our_tools else None),
                exact=exact or content is None,
                name_fits=all(len(name) < TOOL_NAME_CHARS_MAX for name in (called, *facts.tools)),
                protected=(
                    ("names", "it is known under the names of more than two tools")
                    if known.origin is None and len(also_named) > 1
                    else self._records.protection(known, facts)
                ),
                size_bytes=known.size_bytes,
                tokens=known.tokens,
                note_tokens=-1 if is_leaving else row.note_tokens,
            ),
            row,
            encoded,
            facts,
            note,
        )

    def _prepared(self, draft: _Draft, words: str, random: bytes, outside: Mapping[int, Outside]) -> _Prepared:
        """One target sealed; a restored copy keeps only its note, because its bytes are kept already."""
        row, vault, keys = draft.row, self._records.vault, self._records.keys
        original: StoredOriginal | Outside | None = outside.get(row.number)
        dek = b""
        if isinstance(original, Outside):
            dek, row.original_id, row.dek_id = original.dek, original.row.original_id, original.dek_id
            row.envelope_sha256, row.sealed_size = original.envelope_sha256, original.sealed_size
        elif row.origin is None:
            if draft.encoded is None:
                raise SealBrokenError("A result lost its content while it was archived.")
            dek, row.original_id, row.dek_id = random[:32], random[32:48], random[48:]
            sealed = seal_original(
                slot=vault.slot(self._records.id, row),
                encoded=Encoded(draft.encoded.data, draft.encoded.encoding),
                dek=dek,
                original_id=row.original_id,
                dek_id=row.dek_id,
                acl=self._acl(row),
                trust=TRUST,
            )
            row.envelope_sha256, row.sealed_size = sealed.envelope_sha256, sealed.sealed_size
            original = StoredOriginal(row.original_id, sealed.envelope)
        if original is not None:
            days = vault.policy.retention_days(draft.facts)
            row.retention_until_us = None if days is None else (row.archived_at_us or 0) + days * 86_400_000_000
        row.closed = close_original(
            keys.key,
            deployment=vault.deployment,
            org=vault.org,
            scope_id=keys.scope_id,
            original_id=row.original_id,
            dek_id=row.dek_id,
            result_id=format_result_id(row.number),
            dek=dek,
            note=words,
        )
        return _Prepared(row, original, draft.note)

    def rejected(self, error: BatchRejectedError, call: ToolCall | None, text: str = "") -> None:
        """Audit a rejection, together with the record of the message that tells it; never raises."""
        targets = [[target.result_id, target.status] for target in error.targets]
        details = {"reason": error.reason, "targets": targets}
        self._records.log.warning("evidence_archive.rejected", reason=error.reason, targets=len(targets))
        self._records.record(self._records.leaf(audit.BATCH_REJECTED, details=details), call, text, "rejection")


def _receipt_data(receipt: Receipt) -> dict[str, Any]:
    return {
        "targets": [[target.result_id, target.tokens] for target in receipt.targets],
        "before": receipt.tokens_before,
        "after": receipt.tokens_after,
        "estimated": receipt.tokens_estimated,
    }


def _receipt_of(row: BatchRow) -> Receipt:
    data = json.loads(row.receipt)
    return Receipt(
        batch_id=row.batch_id.hex(),
        targets=tuple(Target(result_id, "ok", "", tokens) for result_id, tokens in data["targets"]),
        tokens_before=data["before"],
        tokens_after=data["after"],
        tokens_estimated=data["estimated"],
        replayed=True,
    )
