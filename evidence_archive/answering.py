"""Calls of the model: parsed strictly, carried out, and answered whatever happens, so that none stays open."""

from evidence_archive import notes
from evidence_archive.archiving import Archiving
from evidence_archive.batch import (
    parse_batch,
    parse_card_changes,
    parse_claim,
    parse_fact_query,
    parse_restore,
    parse_search,
)
from evidence_archive.carding import Carding
from evidence_archive.errors import (
    AuditBrokenError,
    BatchRejectedError,
    EvidenceArchiveError,
    FormatError,
    IntegrityError,
    KeyringError,
    MisuseError,
    NotAvailableError,
    ShreddedError,
    UnsupportedVersionError,
)
from evidence_archive.excerpt import Selector, parse_selector
from evidence_archive.ledger.claiming import Claiming
from evidence_archive.model import (
    Content,
    Target,
    ToolCall,
    canonical_id,
    format_result_id,
    parse_result_id,
    text_of,
)
from evidence_archive.ports import ResultRow, SessionRow, Writer
from evidence_archive.proof import leaf as audit
from evidence_archive.records import Records
from evidence_archive.restoring import Also, Found, Opened, Restoring
from evidence_archive.searching import Searching, SearchResult
from evidence_archive.vault import facts_of

__all__ = ["Answering"]


class Answering:
    """Answers to the calls of our tools in one session. Callers hold the records' lock.

    Args:
        records: of the session.
        archiving: its write path.
        carding, searching, claiming: its card, the search in what it archived, and its ledger.
    """

    def __init__(
        self, records: Records, archiving: Archiving, carding: Carding, searching: Searching, claiming: Claiming
    ) -> None:
        self._records = records
        self._searching = searching
        self._archiving = archiving
        self._carding = carding
        self._claiming = claiming
        self.restores_this_turn = 0

    def archive(self, call: ToolCall) -> str:
        """The text that answers a call of ``archive_evidence``."""
        self._records.mark_read(call)
        try:
            return self._archiving.archive(
                parse_batch(call.arguments, items_max=self._records.limits.batch_items_max), call, None
            )[1]
        except BatchRejectedError as error:
            text = notes.rejection_text(
                reason=error.reason,
                message="" if error.reason == "targets" else str(error),
                targets=[target for target in error.targets if isinstance(target, Target)],
                last_id=self._records.last_id,
                archivable=self._archivable() if error.reason in ("targets", "empty", "too_many") else (),
            )
            self._archiving.rejected(error, call, text)
        except FormatError as error:
            text = notes.malformed_text(tool=call.name, message=str(error))
            self._archiving.rejected(BatchRejectedError(str(error), reason="malformed"), call, text)
        except MisuseError:
            raise
        except EvidenceArchiveError as error:
            self._records.trouble(error)
            text = notes.rejection_text(reason="store_unavailable", message=str(error))
            self._archiving.rejected(BatchRejectedError(str(error), reason="store_unavailable"), call, text)
        return text

    def search(self, call: ToolCall) -> str:
        """The text that answers a call of ``search_evidence``: lines that were found, or why not."""
        self._records.mark_read(call)
        try:
            query, before = parse_search(call.arguments)
            self._records.refresh(self._records.wait_ms)
            texts: list[str] = []

            def also(result: SearchResult) -> Also:
                texts.append(_search_text(result))
                return self._records.also(call, texts[0], "error")

            self._searching.search(query, before, also=also)
        except MisuseError:
            raise
        except FormatError as error:
            return notes.malformed_text(tool=call.name, message=str(error))
        except EvidenceArchiveError as error:
            self._records.trouble(error)
            return notes.search_failed_text(message=str(error))
        return texts[0]

    def card(self, call: ToolCall) -> str:
        """The text that answers a call of ``update_card``: what changed, or why nothing did."""
        self._records.mark_read(call)
        try:
            _, differences = self._carding.change(parse_card_changes(call.arguments), canonical_id(call.id))
        except MisuseError:
            raise
        except FormatError as error:
            return notes.malformed_text(tool=call.name, message=str(error))
        except EvidenceArchiveError as error:
            self._records.trouble(error)
            return notes.card_failed_text(message=str(error))
        return notes.card_text([(one.item_id, None if one.after is None else one.after.state) for one in differences])

    def claim(self, call: ToolCall) -> str:
        """The text that answers a call of ``post_claim``: which claim it is, or why nothing was claimed."""
        self._records.mark_read(call)
        try:
            claim = self._claiming.claim(*parse_claim(call.arguments), canonical_id(call.id))
        except MisuseError:
            raise
        except FormatError as error:
            return notes.malformed_text(tool=call.name, message=str(error))
        except NotAvailableError:
            return notes.claim_failed_text(message="A source is unknown, or is not available here.")
        except EvidenceArchiveError as error:
            if not isinstance(error, BatchRejectedError | ShreddedError):  # the first has counted itself already
                self._records.trouble(error)
            return notes.claim_failed_text(message=str(error))
        return notes.claim_text(claim.id, [one.reference for one in claim.sources])

    def facts(self, call: ToolCall) -> str:
        """The text that answers a call of ``list_facts``: facts that hold, or why none are told."""
        self._records.mark_read(call)
        try:
            found = self._claiming.facts(parse_fact_query(call.arguments))
        except MisuseError:
            raise
        except FormatError as error:
            return notes.malformed_text(tool=call.name, message=str(error))
        except EvidenceArchiveError as error:
            self._records.trouble(error)
            return notes.facts_failed_text(message=str(error))
        facts = [(one.id, one.is_key, one.text, [at.reference for at in one.sources]) for one in found.facts]
        return notes.facts_text(facts, found=found.found, held=found.held)

    def _archivable(self) -> list[tuple[str, str, int]]:
        """The newest results in view that nothing stands against but a note."""
        found: list[tuple[str, str, int]] = []
        for place in reversed(self._records.timeline.places):
            if place.number is None or len(found) == notes.ARCHIVABLE_MAX:
                continue
            row = self._records.rows[place.number]
            if (
                row.state == "live"
                and row.labelled
                and row.own in (None, "copy")
                and text_of(row.tool_name)
                not in self._records.our_tools - ({notes.RESTORE_TOOL} if row.own else set())
                and place.call is not None
                and self._records.is_read(place)
                and self._records.protection(row, self._records.facts(row, place, self._records.original(place)))
                is None
            ):
                found.append((format_result_id(row.number), text_of(row.tool_name), row.tokens))
        return found

    def restore(self, call: ToolCall) -> Content:
        """The content that answers a call of ``restore_evidence``: the original, or why not."""
        self._records.mark_read(call)
        number, row = 0, None
        try:
            request = parse_restore(call.arguments)
            number = parse_result_id(request.id)
            selector = parse_selector(request.lines, request.pattern, request.context_lines, request.pointer)
            row = self._records.rows.get(number)  # names the tool to ask again where the store does not answer
            self._records.refresh(self._records.wait_ms)
            row = self._records.rows.get(number)
            refusal = self._refusal(number, row)
            if refusal is not None:
                return self._refused(call, number, *refusal)
            self.restores_this_turn += 1
            return self._restored_answer(call, request.id, selector, request.reason)
        except NotAvailableError:
            return notes.not_available_text(last_id=self._records.last_id)  # recorded with the denial
        except UnsupportedVersionError as error:
            return self._failed(call, number, row, error)
        except FormatError as error:
            return self._refused(call, number, "malformed", notes.malformed_text(tool=call.name, message=str(error)))
        except MisuseError:
            raise
        except EvidenceArchiveError as error:
            return self._failed(call, number, row, error)

    def _refusal(self, number: int, row: ResultRow | None) -> tuple[str, str] | None:
        """Why nobody needs to look for the original: the reason in one word, and the answer."""
        restores_max = self._records.limits.restores_per_turn_max
        if self.restores_this_turn >= restores_max:
            return "too_many", notes.restores_exhausted_text(restores_max=restores_max)
        if row is not None and row.state == "live" and number in self._records.timeline.by_number:
            tag, labelled = self._records.row.tag, bool(row.labelled)
            return "live", notes.in_view_text(number=number, tag=tag, labelled=labelled)
        return None

    def _failed(self, call: ToolCall, number: int, row: ResultRow | None, error: EvidenceArchiveError) -> str:
        """A restore that keys, store or stored bytes prevented."""
        # Neither of them is a sign that anything is wrong with the store.
        if not isinstance(error, UnsupportedVersionError | ShreddedError):
            self._records.trouble(error)
        causes: tuple[tuple[str, type[Exception]], ...] = (
            ("version", UnsupportedVersionError),
            ("shredded", ShreddedError),
            ("audit", AuditBrokenError),
            ("integrity", IntegrityError),
            ("keys", KeyringError),
            ("store", Exception),
        )
        cause = next(cause for cause, family in causes if isinstance(error, family))
        text = notes.restore_failed_text(
            number=number,
            cause=cause,
            tool="the tool" if row is None else text_of(self._records.facts_row(row).tool_name),
            live_ask=None if row is None else row.live_ask or None,
        )
        return self._refused(call, number, cause, text)

    def _refused(self, call: ToolCall, number: int, why: str, text: str) -> str:
        """A restore that was not made: audited, and the answer recorded as ours."""
        leaf = self._records.leaf(audit.RESTORE_DENIED, details={"result": format_result_id(number), "why": why})
        self._records.log.warning("evidence_archive.denied", result=format_result_id(number), why=why)
        self._records.record(leaf, call, text, "error")
        return text

    def _restored_answer(self, call: ToolCall, result_id: str, selector: Selector, reason: str | None) -> Content:
        vault = self._records.vault
        not_available = notes.not_available_text(last_id=self._records.last_id)
        restoring = Restoring(vault)
        found = restoring.find(
            self._records.principal,
            self._records.id,
            result_id,
            also=self._records.also(call, not_available, "error"),
        )
        selector = restoring.selected(found, selector)
        tokens_max = self._records.limits.restore_tokens_max
        part = restoring.opened(
            self._records.principal, found, selector, self._records.dialect, tokens_max=tokens_max
        )
        origin, number = found.origin, found.row.number
        tokens = origin.tokens if part.content is None else self._records.tokens_of(part.content)
        if tokens > tokens_max:
            return self._refused(call, number, "too_large", self._too_large(found, part, tokens))
        now_us = self._records.clock.now_us()
        live = vault.policy.live(facts_of(origin).tools)
        max_age = None if live is None else live.max_age_seconds
        what = part.part or f"whole original, {origin.size_chars} characters"
        plain = self._records.dialect.plain_text(part.content)
        head, foot = notes.restored_texts(
            number=number,
            tag=self._records.row.tag,
            tool=text_of(origin.tool_name),
            observed_at_us=origin.observed_at_us,
            observed_by=origin.observed_by,
            restored_at_us=now_us,
            what=what,
            live_ask=None if live is None else live.ask,
            live=live is not None,
            stale=max_age is not None and now_us - origin.observed_at_us > max_age * 1_000_000,
            boundary=notes.boundary(plain or str(part.content), vault.around.entropy),
        )
        content = self._records.dialect.fenced(head, part.content, foot)

        def copied(writer: Writer, session: SessionRow) -> None:
            session.version += 1
            row = self._records.own_row(session, call, content, "copy", origin)
            row.origin = origin.number
            row.part = restoring.close_part(self._records.keys, row.number, selector)
            writer.insert_results([row])

        restoring.granted(self._records.principal, found, part=selector.kind, reason=reason, also=copied)
        return content

    def _too_large(self, found: Found, part: Opened, tokens: int) -> str:
        return notes.too_large_text(
            number=found.row.number,
            what=part.part or f"whole original, {found.origin.size_chars} characters",
            tokens=tokens,
            tokens_estimated=self._records.counter.estimated,
            tokens_max=self._records.limits.restore_tokens_max,
            lines=part.lines,
            is_json=part.is_json,
        )


def _search_text(result: SearchResult) -> str:
    hits = [(hit.result_id, hit.line, hit.tool, hit.excerpt) for hit in result.hits]
    return notes.search_text(
        hits,
        searched=result.searched,
        left_out=result.left_out,
        before=result.before,
        is_cut=result.is_cut,
        absent=result.absent,
    )
