"""What a label of the host does to a record: it may make the policy's decision stricter, never looser."""

from dataclasses import dataclass, replace

from evidence_archive.errors import PolicyError
from evidence_archive.model import Content, Exact
from evidence_archive.ports import ResultRow
from evidence_archive.vault import Vault, facts_of

__all__ = ["AGE_TURNS_MAX", "LabelFacts", "Labelled", "labelled_row", "loosens"]

SENSITIVITIES_MAX = 64
"""Most sensitivities of one result."""

AGE_TURNS_MAX = 1_000_000_000
"""The oldest that a rule of a policy can ask for, in turns."""


@dataclass(frozen=True, slots=True)
class LabelFacts:
    """What a host attaches to a result."""

    sensitivity: frozenset[str]
    kind: str | None
    observed_at_us: int | None


@dataclass(frozen=True, slots=True)
class Labelled:
    """What a label goes onto.

    Args:
        numbers: of records.
        certain: whether these are surely meant; otherwise what does not take the label is left out.
        new: call id, content, its exact form and its tag, for a record to make that waits for its first view.
    """

    numbers: list[int]
    certain: bool
    new: tuple[bytes, Content, Exact, bytes] | None = None


def labelled_row(vault: Vault, known: ResultRow, facts: LabelFacts) -> ResultRow:
    """A copy of a record with the facts on it; sensitivities add up, a kind is set once.

    Args:
        vault: has the policy.
        known: the record as committed, or as it is about to be.
        facts: what the host says.

    Raises:
        PolicyError: they would loosen the policy's decision, contradict what is known, or come too late.
    """
    row = replace(known)
    names = {*filter(None, known.sensitivity.split("\n")), *facts.sensitivity}
    if len(names) > SENSITIVITIES_MAX:
        raise PolicyError(f"A result has at most {SENSITIVITIES_MAX} sensitivities.", key="sensitivity")
    row.sensitivity = "\n".join(sorted(names))
    if facts.kind is not None:
        if known.kind not in (None, facts.kind):
            raise PolicyError(f"Result r{row.number} has a kind already; a kind is set once.", key="kind")
        row.kind = facts.kind
    if facts.observed_at_us is not None:
        row.observed_at_us, row.observed_by = facts.observed_at_us, "host"
    if known.state == "archived":
        if (row.kind, row.observed_at_us) != (known.kind, known.observed_at_us):
            raise PolicyError(
                f"Result r{row.number} is archived: only sensitivity may be added to it now.", key="kind"
            )
    elif known.seen and loosens(vault, known, row):
        raise PolicyError(
            f"A label on r{row.number} would loosen the policy's decision: label before the first view.",
            key="sensitivity",
        )
    return row


def loosens(vault: Vault, before: ResultRow, after: ResultRow) -> bool:
    """Whether a result of any age and any words, now kept in view, could be archived with the new facts."""

    def effect(row: ResultRow, age_turns: int) -> str:
        return vault.policy.decide_archive(facts_of(row, age_turns=age_turns, text="")).effect

    return any(effect(before, age) == "never" and effect(after, age) == "allow" for age in (0, AGE_TURNS_MAX))
