"""What becomes of the messages that leave a window: originals, spans, summaries, lines of the index.

What leaves is archived, each result as an original of its own, so that it is kept, restored and shredded as one, and
the messages around them as a span. A summary of the span and a line of the index are told in the carried message,
once the book of the window says that the span is there. What could not be archived is tried again at the next commit.
"""

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from evidence_archive.archiving import Archiving, Kept
from evidence_archive.carding import Carding
from evidence_archive.curating import Curator
from evidence_archive.dialects.base import Reading
from evidence_archive.errors import EvidenceArchiveError
from evidence_archive.ledger.entries import Fact
from evidence_archive.ledger.keeping import Ledger
from evidence_archive.matching import NOTE
from evidence_archive.model import WindowPolicy, format_result_id
from evidence_archive.notes import SEARCH_TOOL, clean_name
from evidence_archive.records import Records
from evidence_archive.standing import Departure, Quality, Standing
from evidence_archive.vault import SHREDDED
from evidence_archive.window.card import Card
from evidence_archive.window.carrying import Left, carried, indexed
from evidence_archive.window.summaries import Judge, Span, Summarizer, Summary, check_loss, summarised

__all__ = ["Leaving", "Read"]

SUMMARY_TOKENS_MAX = 600
"""Bound on a summary."""


@dataclass(slots=True)
class Read:
    """A message with what is known of it.

    Args:
        message: as it is shown.
        role, reading, texts: what the dialect says of it.
        tokens: of it, as it is sent.
    """

    message: Any = field(repr=False)
    role: str
    reading: Reading
    texts: tuple[str, ...] = field(repr=False)
    tokens: int


class Leaving:
    """What leaves the window of one session. Callers hold the records' lock.

    Args:
        records, archiving, curator, standing, carding, ledger: of the session.
        policy: of its window.
        summarizer: writes summaries of what leaves; the deterministic ones without it.
        judge: says how good some of them are.
    """

    def __init__(
        self,
        records: Records,
        archiving: Archiving,
        curator: Curator,
        standing: Standing,
        *,
        carding: Carding,
        ledger: Ledger,
        policy: WindowPolicy,
        summarizer: Summarizer | None,
        judge: Judge | None,
    ) -> None:
        self._records = records
        self._archiving = archiving
        self._curator = curator
        self._carding = carding
        self._ledger = ledger
        self._standing = standing
        self._policy = policy
        self._summarizer = summarizer
        self._judge = judge

    def let_go(self, read: list[Read], outside: AbstractSet[int], render: Callable[[], list[Read]]) -> list[Read]:
        """The list after messages left: archived, summarised, and told of.

        Args:
            read: the list.
            outside: which messages leave; they stand before the start that the state has now.
            render: gives the list anew, after results were archived.
        """
        spans = [(indexes, self._told(read, indexes)) for indexes in self._in_spans(sorted(outside))]
        have_gone = self._curator.let_go(outside)
        read = render() if outside else read
        self._standing.cut([one.message for one in read[: self._standing.state.start]])
        for indexes, told in spans if have_gone else ():
            self._keep(read, indexes, told)
        return read

    def _in_spans(self, outside: Sequence[int]) -> Iterator[list[int]]:
        """Messages that leave, as many together as an original may hold: of pictures tokens say little."""
        size_max, dialect = self._records.vault.original_bytes_max, self._records.dialect
        indexes: list[int] = []
        size = 0
        for at in outside:
            size_of_one = len(dialect.plain(self._records.timeline.messages[at]).encode("utf-8", "surrogatepass")) + 1
            if indexes and size + size_of_one > size_max:
                yield indexes
                indexes, size = [], 0
            indexes.append(at)
            size += size_of_one
        if indexes:
            yield indexes

    def _line(self, at: int, message: Any) -> str:
        """A message as a span holds it: results that have an original are named, and so is what a search found.

        Whatever else stands in a span would outlive the original when that is shredded.
        """
        records, contents = self._records, {}
        for place in records.timeline.by_index.get(at, ()):
            if place.number is None:
                continue
            content = place.content if place.form == NOTE else records.original(place)
            if records.rows[place.number].state != "live":
                words = f"[{format_result_id(place.number)}: a result that is archived under this id]"
                contents[place.slot] = records.dialect.noted(content, words)
            elif place.call is not None and place.call.name == SEARCH_TOOL:
                contents[place.slot] = records.dialect.noted(content, "[left out: what a search found]")
        return records.dialect.plain(records.dialect.replace(message, contents) if contents else message)

    def _keep(self, read: Sequence[Read], indexes: Sequence[int], told: Span) -> None:
        """Archive messages that left; where that fails they are tried again at the next commit."""
        state, records = self._standing.state, self._records
        lines = [self._line(at, read[at].message) for at in indexes]
        sensitivity = frozenset(
            name
            for at in indexes
            for place in records.timeline.by_index.get(at, ())
            if place.number is not None
            for name in records.rows[place.number].sensitivity.split("\n")
            if name
        )
        line = _tools_line(told.tools)
        try:
            card = self._carding.card_seen()
            entries, facts = self._ledger._established()
            words = line[: records.limits.note_chars_max]
            kept_as = self._archiving.keep(Kept("span", "\n".join(lines), words, sensitivity)).targets[0].result_id
            decisions = [item for item in card.items.values() if item.kind == "decision"]
            summary, refusals = summarised(
                told,
                [] if state.summary is None else [state.summary],
                self._summarizer,
                count=records.counter.count,
                tokens_max=SUMMARY_TOKENS_MAX,
                keys=[item.text for item in decisions if item.state not in ("draft", "dropped")],
                withdrawn=[item.text for item in decisions if item.state == "dropped"],
            )
            quality = self._checked(told, summary, refusals)
            told_as = summary.text(with_unresolved=False)
            new = Left(kept_as, indexes[0] + 1, indexes[-1] + 1, line, told_as, tuple(told.references))
            index = indexed((*state.left, new), _referred(card, facts))
            text = carried(
                [fact.line for fact in facts],
                card,
                index,
                points=(*summary.carried, *summary.unresolved),
                retired=state.spans + 1 - len(index),
                count=records.counter.count,
                budget_tokens=self._standing.carried_tokens_max,
                with_tools=records.with_tools,
            )
            in_index = {one.result_id for one in index}
            retired = [one.result_id for one in state.left if one.result_id not in in_index]
            departure = Departure(indexes, new, index, text, summary, quality, card, facts, entries)
            if self._standing.put_down(departure) and retired:
                records.log.info("evidence_archive.summaries_retired", spans=retired)
        except EvidenceArchiveError as error:
            records.trouble(error)

    def _checked(self, told: Span, summary: Summary, refusals: Sequence[str]) -> Quality:
        """What can be said of a summary: by counting, and of one in so many by the judge."""
        records, loss = self._records, check_loss(told, summary)
        score = None
        if self._judge is not None and len(self._standing.qualities) % self._policy.judge_every == 0:
            try:
                score = float(self._judge.judge(told, summary))
                if not 0 <= score <= 1:
                    raise ValueError
            except Exception as error:  # whatever a judge is, it keeps no turn from leaving
                score = None
                records.log.warning("evidence_archive.judge_failed", error=type(error).__name__)
        quality = Quality(summary.made_by == "host", len(refusals), loss.gone, loss.said, score)
        records.log.info(
            "evidence_archive.summary_checked",
            made_by=summary.made_by,
            refused=len(refusals),
            numbers_lost=loss.numbers[0],
            identifiers_lost=loss.identifiers[0],
            unresolved_lost=loss.unresolved[0],
            why_refused=refusals,
            loss_rate=round(loss.rate, 4),
            score=score,
        )
        return quality

    def _told(self, read: Sequence[Read], indexes: Sequence[int]) -> Span:
        """Turns that leave, as a summariser reads them."""
        dialect = self._records.dialect
        tools: dict[str, int] = {}
        references: dict[str, None] = {}
        said: list[str] = []
        asked: list[str] = []
        for at in indexes:
            one = read[at]
            for call in one.reading.calls:
                name = clean_name(call.name)
                tools[name] = tools.get(name, 0) + 1
            for place in self._records.timeline.by_index.get(at, ()):
                if place.number is not None:
                    references.setdefault(format_result_id(place.number))
            text = "\n".join(dialect.message_texts(one.message))
            if one.role == "assistant" and not one.reading.calls:
                said.append(text)
            elif one.role == "user":
                asked.append(text)
        whole = "\n".join(dialect.plain(self._original(at, read[at].message)) for at in indexes)
        return Span(
            whole,
            indexes[0] + 1,
            indexes[-1] + 1,
            list(tools.items()),
            said,
            asked,
            list(references),
            sum(read[at].tokens for at in indexes),
        )

    def _original(self, index: int, shown: Any) -> Any:
        """A message as the application has it, with no note in it; what was shredded is not told any more."""
        records = self._records
        for place in records.timeline.by_index.get(index, ()):
            if place.number is not None and records.facts_row(records.rows[place.number]).state == SHREDDED:
                return shown
        return records.timeline.messages[index]


def _referred(card: Card, facts: Sequence[Fact]) -> set[str]:
    """The results that an open item of the card or a fact refers to."""
    numbers = {
        reference.number
        for item in card.items.values()
        if item.state not in ("done", "dropped")
        for reference in item.references
        if reference.number is not None
    }
    return {source.result_id for fact in facts for source in fact.sources} | set(map(format_result_id, numbers))


def _tools_line(tools: Sequence[tuple[str, int]]) -> str:
    if not tools:
        return "no calls"
    return ", ".join(f"{count} call{'s' * (count > 1)} of {name}" for name, count in tools[:8])
