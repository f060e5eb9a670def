"""What stands in a ledger: artifacts, claims, facts and periods, and what a book of such entries adds up to.

Nothing is ever changed: a correction is a new fact that supersedes an old one, and taking a correction back is an
entry as well. An entry is a JSON object with a ``kind``; entries are numbered by kind (``c1``, ``f1``, ``p1``) in the
order they were made.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from evidence_archive.errors import SealBrokenError
from evidence_archive.notes import one_line

__all__ = ["TEXT_CHARS_MAX", "Artifact", "Books", "Claim", "Fact", "Outcome", "Period", "Source", "added_up"]

TEXT_CHARS_MAX = 1_000
"""Longest text of a claim or a fact, in characters."""

SOURCES_MAX = 20


@dataclass(frozen=True, slots=True)
class Source:
    """Where it stands.

    Args:
        reference: as it was cited, such as ``r12#L40-L44``.
        result_id: of the original that holds it.
        sha256: of the exact bytes of the cited part, in hex.
        original_sha256: of the exact bytes of the whole original, in hex.
    """

    reference: str = field(repr=False)
    result_id: str
    sha256: str = field(repr=False)
    original_sha256: str = field(repr=False)

    @property
    def pointer(self) -> str:
        """The reference, behind the id of the original where it names another one: that is what can be restored.

        So of an artifact, and of a result that was still in view when it was cited.
        """
        named = self.reference.partition("#")[0] == self.result_id
        return self.reference if named else f"{self.result_id} {self.reference}"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A product that was kept as an original.

    Args:
        name: such as ``workspace/avg.json``.
        result_id: of the original; the newest one of a name counts.
        sha256: of its exact bytes, in hex.
        size_bytes: of them.
    """

    name: str = field(repr=False)
    result_id: str
    sha256: str = field(repr=False)
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Claim:
    """What somebody says, with sources that exist; nothing follows from it until the host has verified it.

    Args:
        id: ``c1`` and so on.
        text: what is said.
        sources: at least one.
        by: ``model`` or ``host``.
    """

    id: str
    text: str = field(repr=False)
    sources: tuple[Source, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a check of the host found.

    Args:
        check: its name and arguments, in one line.
        details: what it compared, in one line.
    """

    check: str = field(repr=False)
    details: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Fact:
    """A claim that the host has verified.

    Args:
        id: ``f1`` and so on.
        text: what holds.
        sources: where it stands.
        outcome: of the check.
        claim_id: what it was made from.
        is_key: whether every reconciliation reads its sources again.
        supersedes: the fact whose place it took, or ``None``.
        superseded_by: the fact that took its place, or ``None`` while it holds.
        created_at_us: microseconds since 1970-01-01 UTC.
        observed_in: the result that a rule of the host was looking at when it found this, or ``None``.
    """

    id: str
    text: str = field(repr=False)
    sources: tuple[Source, ...]
    outcome: Outcome
    claim_id: str
    is_key: bool = False
    supersedes: str | None = None
    superseded_by: str | None = None
    created_at_us: int = 0
    observed_in: str | None = None

    @property
    def is_current(self) -> bool:
        """Whether nothing stands for it."""
        return self.superseded_by is None

    @property
    def line(self) -> str:
        """The fact and its pointers in one line, as a balance tells it."""
        return one_line(f"{self.id}: {self.text} [{', '.join(source.pointer for source in self.sources)}]")


def in_balance(facts: Iterable[Fact]) -> list[Fact]:
    """Facts in the order of a balance: key facts first, the newest first."""
    return sorted(facts, key=lambda fact: (not fact.is_key, -int(fact.id[1:])))


@dataclass(frozen=True, slots=True)
class Period:
    """What was settled at a milestone.

    Args:
        id: ``p1`` and so on.
        facts: ids of all facts that held when it was closed, in order.
        window_from, window_to: the messages of the session it covers, from 1; 0 where there is no session.
        opening_balance_ref: the period it continues, or ``None`` for the first.
        lossy: always true: a balance is a summary, exactness lives in the originals.
        created_at_us: microseconds since 1970-01-01 UTC.
    """

    id: str
    facts: tuple[str, ...]
    window_from: int
    window_to: int
    opening_balance_ref: str | None
    lossy: bool = True
    created_at_us: int = 0


@dataclass(frozen=True, slots=True)
class Books:
    """What all entries of a ledger add up to.

    Args:
        artifacts: the newest of each name.
        claims, facts, periods: by id, in the order they were made.
        disagreeing: facts that did not agree with their sources when the books were reconciled last.
        looked_at: results that the host's rules looked at, by id, each with why something was not verified; empty
            where all of it was.
    """

    artifacts: Mapping[str, Artifact] = field(default_factory=dict, repr=False)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    facts: Mapping[str, Fact] = field(default_factory=dict)
    periods: Mapping[str, Period] = field(default_factory=dict)
    disagreeing: frozenset[str] = frozenset()
    looked_at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def current(self) -> list[Fact]:
        """The facts that hold, in the order they were made."""
        return [fact for fact in self.facts.values() if fact.is_current]

    def established(self) -> list[Fact]:
        """The facts that hold and agreed with their sources, key facts first, the newest first."""
        return in_balance(fact for fact in self.current() if fact.id not in self.disagreeing)

    def history(self, fact_id: str) -> list[Fact]:
        """A fact with all it superseded and all that superseded it, oldest first; empty for an unknown id."""
        if not isinstance(fact_id, str) or fact_id not in self.facts:
            return []
        beside: dict[str, list[str]] = {}
        for one in self.facts.values():
            for other in filter(None, (one.supersedes, one.superseded_by)):
                beside.setdefault(one.id, []).append(other)
                beside.setdefault(other, []).append(one.id)
        family, waiting = {fact_id}, [fact_id]
        while waiting:
            more = [one for one in beside.get(waiting.pop(), ()) if one not in family]
            family.update(more)
            waiting += more
        return [fact for fact in self.facts.values() if fact.id in family]


NOTHING = Books()


def added_up(entries: Iterable[tuple[Mapping[str, Any], int]], before: Books = NOTHING) -> Books:
    """What entries add up to.

    Args:
        entries: each with its time in microseconds since 1970-01-01 UTC, in order.
        before: what those before them added up to; it stays as it is.

    Raises:
        SealBrokenError: one is not what this library puts down.
    """
    artifacts, claims = dict(before.artifacts), dict(before.claims)
    facts, periods = dict(before.facts), dict(before.periods)
    disagreeing = before.disagreeing
    looked_at = dict(before.looked_at)
    try:
        for entry, at_us in entries:
            match entry["kind"]:
                case "artifact":
                    artifact = Artifact(entry["name"], entry["result_id"], entry["sha256"], entry["size_bytes"])
                    artifacts[artifact.name] = artifact
                case "claim":
                    claim = Claim(f"c{len(claims) + 1}", entry["text"], _sources(entry["sources"]), entry["by"])
                    claims[claim.id] = claim
                case "fact":
                    fact = Fact(
                        f"f{len(facts) + 1}",
                        entry["text"],
                        _sources(entry["sources"]),
                        Outcome(entry["check"], entry["details"]),
                        entry["claim_id"],
                        entry["is_key"],
                        entry["supersedes"],
                        None,
                        at_us,
                        entry.get("observed_in"),
                    )
                    facts[fact.id] = fact
                    if fact.supersedes is not None:
                        facts[fact.supersedes] = replace(facts[fact.supersedes], superseded_by=fact.id)
                case "taken_back":
                    taken = facts[entry["fact_id"]]
                    if taken.supersedes is None or not taken.is_current:
                        raise KeyError(taken.id)
                    # The one before holds again; what was taken back stays, and says what stands for it.
                    facts[taken.id] = replace(taken, superseded_by=taken.supersedes)
                    facts[taken.supersedes] = replace(facts[taken.supersedes], superseded_by=None)
                case "period":
                    period = Period(
                        f"p{len(periods) + 1}",
                        tuple(entry["facts"]),
                        entry["window_from"],
                        entry["window_to"],
                        entry["opening_balance_ref"],
                        True,
                        at_us,
                    )
                    periods[period.id] = period
                case "looked_at":
                    looked_at[entry["result_id"]] = tuple(entry["not_verified"])
                case "reconciled":
                    # Facts that hold were compared; what was found of others stands until they hold again.
                    others = {one for one in disagreeing if not facts[one].is_current}
                    disagreeing = frozenset(others | {*entry["disagreeing"]})
                case other:
                    raise KeyError(other)
    except (KeyError, TypeError, ValueError) as error:
        raise SealBrokenError("An entry of this ledger is not what this library puts down.") from error
    return Books(artifacts, claims, facts, periods, disagreeing, looked_at)


def _sources(plain: Sequence[Mapping[str, str]]) -> tuple[Source, ...]:
    return tuple(Source(one["reference"], one["result_id"], one["sha256"], one["original_sha256"]) for one in plain)
