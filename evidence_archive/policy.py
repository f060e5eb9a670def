"""Policies: what may never be archived, who may restore what, what is live, how long things are kept.

A policy is a TOML file (policies/README.md lists every key). It decides on :class:`~evidence_archive.model.Facts`
only. Everything here is pure but for :meth:`Policy.load`, which reads one file. An author's mistake is always a
:class:`~evidence_archive.errors.PolicyError` that names the place, what is wrong and what is allowed.
"""

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Self

from pydantic_core import SchemaError, SchemaValidator, core_schema

from evidence_archive.errors import PolicyError
from evidence_archive.model import Facts, Limits, WindowPolicy
from evidence_archive.policy_file import (
    FILE_BYTES_MAX,
    NO_RULE,
    REGEX_WORDS,
    TABLES,
    TOO_LARGE,
    ArchiveTable,
    Effect,
    ExampleTable,
    LiveTable,
    PolicyFile,
    RegexTable,
    SelectingTable,
    read_file,
    wrong,
)

__all__ = [
    "CONTENT_CHARS_MAX",
    "FILE_BYTES_MAX",
    "TABLES",
    "Decision",
    "Effect",
    "Explanation",
    "Live",
    "MayRestore",
    "Openings",
    "Outcome",
    "Policy",
    "PolicyReport",
    "Step",
]

Openings = tuple[frozenset[str] | None, ...]
"""Who may restore: every entry must let the principal through; ``None`` is "the session's owner"."""

MayRestore = Callable[[bool, frozenset[str], Openings], bool]
"""Answers ``(subject_is_owner, roles, openings)``; the real one is ``access.may_restore``."""

CONTENT_CHARS_MAX = 1_000_000
"""Longest text a ``content.regex`` is searched in, in characters; a longer one counts as matched."""

_CACHED_NAMES_MAX = 1024
_CACHED_NAME_CHARS_MAX = 256


# --- rules, ready to match --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Selector:
    globs: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    sensitivity: frozenset[str] | None
    kind: frozenset[str] | None

    @classmethod
    def of(cls, table: SelectingTable) -> Self:
        return cls(
            globs=None if table.tools is None else tuple(table.tools),
            pattern=None if table.tools is None else _compiled(table.tools),
            sensitivity=None if table.sensitivity is None else frozenset(table.sensitivity),
            kind=None if table.kind is None else frozenset(table.kind),
        )

    def names(self, tool: str) -> bool:
        return self.pattern is None or self.pattern.match(tool) is not None

    def miss(self, sensitivity: frozenset[str], kind: str | None) -> str | None:
        """Which selector does not match, the tool's name aside."""
        if self.sensitivity is not None and self.sensitivity.isdisjoint(sensitivity):
            return "sensitivity"
        if self.kind is not None and kind not in self.kind:
            return "kind"
        return None

    def takes(self, tool: str, sensitivity: frozenset[str], kind: str | None) -> bool:
        return self.names(tool) and self.miss(sensitivity, kind) is None

    def covers(self, other: "_Selector") -> bool:
        """Whether it certainly matches wherever the other does."""
        return (
            (self.sensitivity is None or (other.sensitivity is not None and other.sensitivity <= self.sensitivity))
            and (self.kind is None or (other.kind is not None and other.kind <= self.kind))
            and (self.globs is None or all(self._covers_glob(glob) for glob in other.globs or ("*",)))
        )

    def _covers_glob(self, narrow: str) -> bool:
        for wide in self.globs or ():
            # Matching a glob's own text proves it is covered only where neither side has a set, nor a '?' that
            # could stand for the other's '*'.
            comparable = not set("*?[") & set(narrow) or ("[" not in narrow and not set("?[") & set(wide))
            if wide == narrow or (comparable and fnmatch.fnmatchcase(narrow, wide)):
                return True
        return False


@dataclass(frozen=True, slots=True)
class _Rule:
    selector: _Selector
    size_chars_min: int
    age_turns_min: int
    content: str | RegexTable | None
    found: Callable[[str], bool] | None = field(compare=False)
    decision: "Decision"

    def miss(self, facts: Facts) -> str | None:
        """Which selector does not match, the tool's name aside; the text is looked at last."""
        wrong = self.selector.miss(facts.sensitivity, facts.kind)
        if wrong is not None:
            return wrong
        if facts.size_chars < self.size_chars_min:
            return "size_chars_min"
        if facts.age_turns < self.age_turns_min:
            return "age_turns_min"
        # A text that is not at hand cannot acquit.
        if self.found is not None and facts.text is not None and not self.found(facts.text):
            return "content"
        return None

    def covers(self, other: "_Rule") -> bool:
        return (
            self.selector.covers(other.selector)
            and self.size_chars_min <= other.size_chars_min
            and self.age_turns_min <= other.age_turns_min
            and self.content in (None, other.content)
        )

    def given(self) -> str:
        """The selectors the rule has, for people."""
        selector = self.selector
        names = {
            "tools": selector.globs is not None,
            "sensitivity": selector.sensitivity is not None,
            "kind": selector.kind is not None,
            "size_chars_min": self.size_chars_min > 0,
            "age_turns_min": self.age_turns_min > 0,
            "content": self.content is not None,
        }
        return ", ".join(name for name, given in names.items() if given) or "no selector, so every result"


def _compiled(globs: Iterable[str]) -> re.Pattern[str]:
    # fnmatch.translate writes atomic groups, so that no glob backtracks.
    return re.compile("|".join(map(fnmatch.translate, globs)))


def _finder(content: str | RegexTable, key: str) -> Callable[[str], bool]:
    """A search that takes time linear in the text, whatever the pattern.

    The engine is the Rust ``regex`` crate inside pydantic-core: finite automata, no backtracking, a bound on the
    compiled size. Counted repetition is refused because it multiplies the automaton, and with it the time per
    character.

    Raises:
        PolicyError: the engine does not take the pattern.
    """
    if isinstance(content, str):
        return lambda text: content in text
    words = f"is not such a pattern; allowed: {REGEX_WORDS}"
    if "{" in re.sub(r"(?s)\\(?:[pPxuU]\{[^{}\n]*\}|.)", "", content.regex):
        raise wrong(f"{key}.regex", words)
    try:
        schema = core_schema.str_schema(strict=True, pattern=content.regex, regex_engine="rust-regex")
        engine = SchemaValidator(schema)
    except SchemaError:
        raise wrong(f"{key}.regex", words) from None

    def found(text: str) -> bool:
        # Lone surrogates become '?': the engine would refuse the text, which must not read as "not found".
        return len(text) > CONTENT_CHARS_MAX or engine.isinstance_python(text.encode("utf-8", "replace").decode())

    return found


def _rule_of(table: ArchiveTable, at: int) -> _Rule:
    verb = "allows it" if table.effect == "allow" else "never allows it"
    return _Rule(
        selector=_Selector.of(table),
        size_chars_min=table.size_chars_min or 0,
        age_turns_min=table.age_turns_min or 0,
        content=table.content,
        found=None if table.content is None else _finder(table.content, f"archive[{at}].content"),
        decision=Decision(table.effect, table.id, table.reason or f"the rule {table.id} {verb}"),
    )


# --- answers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether a result may be archived.

    Args:
        effect: ``allow`` or ``never``.
        rule_id: the rule that decides, ``default`` when none matched.
        reason: one line for people and models.
    """

    effect: Effect
    rule_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Live:
    """What a tool says holds for a moment only: it must be asked again.

    Args:
        ask: the tool to ask for the present, or ``None`` for the same one.
        max_age_seconds: from this age on a restore says in words how old it is; ``None`` when no bound is given.
        tools: the globs of the rules that matched.
    """

    ask: str | None
    max_age_seconds: int | None
    tools: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One rule against one tool name, in :class:`Explanation`.

    Args:
        tool: the name that was looked at.
        rule_id: the ``[[archive]]`` rule.
        effect: what it would decide.
        matched: whether all its selectors match.
        why: the selectors that matched, or the first that did not.
    """

    tool: str
    rule_id: str
    effect: Effect
    matched: bool
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """All a policy says of some facts, and why: every rule in the file's order, then the answers."""

    steps: tuple[Step, ...]
    decision: Decision
    live: Live | None
    openings: Openings
    retention_days: int | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """One ``[[test]]`` of a policy.

    Args:
        index: its place in the file, from 0.
        description: what was asked.
        passed: ``got`` meets ``expected``.
        got, expected: in words.
        explained: ``got`` with the rule that decided and its reason.
    """

    index: int
    description: str
    passed: bool
    got: str
    expected: str
    explained: str = ""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """What a policy's own tests say.

    Args:
        outcomes: every ``[[test]]``, in the file's order.
        warnings: what is probably not meant; they do not make the report fail.
    """

    outcomes: tuple[Outcome, ...]
    warnings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether every test passed."""
        return all(outcome.passed for outcome in self.outcomes)


# --- the policy -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Compiled:
    archive: tuple[_Rule, ...]
    live: tuple[tuple[re.Pattern[str], LiveTable], ...]
    restore: tuple[tuple[_Selector, frozenset[str]], ...]
    retention: tuple[tuple[_Selector, int], ...]
    tests: tuple[ExampleTable, ...]
    fallback: Decision
    candidates: Callable[[str], tuple[_Rule, ...]]

    @classmethod
    def of(cls, file: PolicyFile) -> Self:
        archive = tuple(_rule_of(table, at) for at, table in enumerate(file.archive))
        strictest_first = sorted(archive, key=lambda rule: rule.decision.effect != "never")

        def candidates(tool: str) -> tuple[_Rule, ...]:
            return tuple(rule for rule in strictest_first if rule.selector.names(tool))

        cached = lru_cache(maxsize=_CACHED_NAMES_MAX)(candidates)
        default = file.policy.default
        return cls(
            archive=archive,
            live=tuple((_compiled(table.tools), table) for table in file.live),
            restore=tuple((_Selector.of(table), frozenset(table.roles)) for table in file.restore),
            retention=tuple((_Selector.of(table), table.days) for table in file.retention),
            tests=tuple(file.test),
            fallback=Decision(default, NO_RULE, f"no rule matched, and the default of the policy is {default}"),
            candidates=lambda tool: (cached if len(tool) <= _CACHED_NAME_CHARS_MAX else candidates)(tool),
        )

    def decide(self, tool: str, facts: Facts) -> Decision:
        for rule in self.candidates(tool):
            if rule.miss(facts) is None:
                return rule.decision
        return self.fallback


def _names_of(facts: Facts) -> tuple[str, ...]:
    """The tool names to decide for; a result without any is decided for the empty name, never skipped."""
    return facts.tools or ("",)


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of one policy file; immutable. Two are equal when their content is, whatever their paths.

    Args:
        name, version: as the author calls it.
        limits: bounds it sets; those it does not name keep their defaults.
        custodians: roles that may hold, shred, rotate keys, verify, export and back up.
        bookkeepers: roles that may use the shared ledgers of others.
        window: how much of a conversation is shown at once; ``None`` for all of it.
        digest: sha256, 64 hex digits, of the content as canonical JSON: comments and the order of keys do not count,
            tests do.
        path: the file, or ``None``.
    """

    name: str
    version: int
    limits: Limits
    custodians: frozenset[str]
    bookkeepers: frozenset[str]
    window: WindowPolicy | None
    digest: str
    path: str | None = field(compare=False)
    _compiled: _Compiled = field(repr=False, compare=False)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The policy in a file.

        Args:
            path: a TOML file in UTF-8 (with or without a BOM), of at most 1 MiB.

        Raises:
            PolicyError: the file cannot be read or used; see :meth:`loads`.
        """
        shown = os.fspath(path)
        try:
            with open(path, "rb") as file:
                data = file.read(FILE_BYTES_MAX + 1)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "this is not a file name"
            raise PolicyError(f"Policy {shown} cannot be read: {why}.", path=shown) from error
        if len(data) > FILE_BYTES_MAX:
            raise PolicyError(f"Policy {shown} {TOO_LARGE}.", path=shown)
        try:
            return cls.loads(data.decode(), shown)
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise PolicyError(f"Policy {shown} is not UTF-8 in line {line}.", path=shown) from error

    @classmethod
    def loads(cls, text: str, path: str | None = None) -> Self:
        """The policy in a TOML text.

        Args:
            text: at most 1 MiB as UTF-8.
            path: what errors call it.

        Raises:
            PolicyError: it is not TOML, or not a policy. ``key`` is the dotted place, counted from 0 in lists.
        """
        try:
            data, file = read_file(text)
            compiled = _Compiled.of(file)
        except PolicyError as error:
            where = " ".join(filter(None, ("Policy", path, error.key)))
            raise PolicyError(f"{where} {error}.", path=path, key=error.key) from None
        canonical = json.dumps(data, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
        return cls(
            name=file.policy.name,
            version=file.policy.version,
            limits=Limits(**file.limits.model_dump()),
            custodians=frozenset(file.custody.roles),
            bookkeepers=frozenset(file.ledger.roles),
            window=None if file.window is None else WindowPolicy(**file.window.model_dump()),
            digest=hashlib.sha256(canonical.encode("ascii")).hexdigest(),
            path=path,
            _compiled=compiled,
        )

    @classmethod
    def default(cls) -> Self:
        """The built-in policy, equal to ``policies/default.toml``.

        Raises:
            PolicyError: the installation lacks the file.
        """
        package = Path(__file__).resolve().parent
        installed = package / "policies" / "default.toml"
        return cls.load(installed if installed.is_file() else package.parent / "policies" / "default.toml")

    @property
    def needs_text(self) -> bool:
        """Whether a rule looks at the text of results, so that ``Facts.text`` should be given."""
        return any(rule.found is not None for rule in self._compiled.archive)

    def decide_archive(self, facts: Facts) -> Decision:
        """Whether a result may be archived.

        The strictest matching rule wins, whatever the order; among equals the first in the file; with none the
        default. With two tool names each is decided for, and the stricter decision counts.
        """
        decide = self._compiled.decide
        if len(facts.tools) == 1:
            return decide(facts.tools[0], facts)
        return min(
            (decide(tool, facts) for tool in _names_of(facts)), key=lambda decision: decision.effect != "never"
        )

    def live(self, tools: tuple[str, ...]) -> Live | None:
        """What must be asked again for the present, or ``None`` when no rule names any of these tools.

        Where several rules match, the shortest age counts, and the first ``ask`` in the file.

        Args:
            tools: the tool's name as called, and the name on the result where it differs.
        """
        found = [table for pattern, table in self._compiled.live if any(map(pattern.match, tools or ("",)))]
        if not found:
            return None
        return Live(
            ask=next((table.ask for table in found if table.ask is not None), None),
            max_age_seconds=min(
                (table.max_age_seconds for table in found if table.max_age_seconds is not None), default=None
            ),
            tools=tuple(glob for table in found for glob in table.tools),
        )

    def restore_openings(self, facts: Facts) -> Openings:
        """Who may restore a result: one entry per sensitivity (sorted) and tool name, all of which must let through.

        A result without sensitivity has one entry per tool name. An entry is the union of the roles of all rules
        that match the result as if it had that one sensitivity and that one name; ``None`` when no rule matches,
        which means the session's owner only.
        """
        one_by_one = [frozenset((label,)) for label in sorted(facts.sensitivity)] or [frozenset[str]()]
        return tuple(self._opening(tool, only, facts.kind) for only in one_by_one for tool in _names_of(facts))

    def _opening(self, tool: str, sensitivity: frozenset[str], kind: str | None) -> frozenset[str] | None:
        rules = self._compiled.restore
        found = [roles for selector, roles in rules if selector.takes(tool, sensitivity, kind)]
        return frozenset().union(*found) if found else None

    def retention_days(self, facts: Facts) -> int | None:
        """How long an original is kept, in days: the longest of all matching rules, or ``None`` without any."""
        rules = self._compiled.retention
        return max(
            (
                days
                for selector, days in rules
                for tool in _names_of(facts)
                if selector.takes(tool, facts.sensitivity, facts.kind)
            ),
            default=None,
        )

    def explain(self, facts: Facts) -> Explanation:
        """What the policy says of some facts, and which rule decides why."""
        return Explanation(
            steps=tuple(_step(tool, rule, facts) for tool in _names_of(facts) for rule in self._compiled.archive),
            decision=self.decide_archive(facts),
            live=self.live(facts.tools),
            openings=self.restore_openings(facts),
            retention_days=self.retention_days(facts),
        )

    def check(self, may_restore: MayRestore) -> PolicyReport:
        """What the policy's own ``[[test]]`` entries say, and what its author should look at.

        Args:
            may_restore: decides on openings; the real one is ``access.may_restore``.
        """
        tests = self._compiled.tests
        return PolicyReport(
            outcomes=tuple(self._outcome(index, test, may_restore) for index, test in enumerate(tests)),
            warnings=tuple(self._warnings()),
        )

    def _outcome(self, index: int, test: ExampleTable, may_restore: MayRestore) -> Outcome:
        facts = _facts_of(test)
        got: list[str] = []
        expected: list[str] = []
        decided: list[str] = []
        if test.expect is not None:
            decision = self.decide_archive(facts)
            decided.append(f"{decision.effect} by {decision.rule_id} ({self._reason(decision, facts)})")
            got.append(decision.effect + (f" by {decision.rule_id}" if test.rule else ""))
            expected.append(test.expect + (f" by {test.rule}" if test.rule else ""))
        if test.restore is not None:
            roles = frozenset(test.roles or ())
            granted = may_restore(bool(test.owner), roles, self.restore_openings(facts))
            got.append("restore granted" if granted else "restore denied")
            expected.append(f"restore {test.restore}")
        if test.live is not None:
            got.append("not live" if self.live(facts.tools) is None else "live")
            expected.append("live" if test.live else "not live")
        if test.retention_days is not None:
            got.append(f"kept {self.retention_days(facts) or 0} days")
            expected.append(f"kept {test.retention_days} days")
        explained = decided + got[len(decided) :]
        return Outcome(
            index, _description_of(test), got == expected, ", ".join(got), ", ".join(expected), ", ".join(explained)
        )

    def _reason(self, decision: Decision, facts: Facts) -> str:
        """Why a rule decided: its author's reason, unless it only did so for want of a text."""
        rules = self._compiled.archive
        if facts.text is None and any(rule.found and rule.decision.rule_id == decision.rule_id for rule in rules):
            return "no text given, so its content rule counts as matched"
        return decision.reason

    def _warnings(self) -> Iterator[str]:
        compiled = self._compiled
        if not any(test.expect == "never" or test.restore == "denied" for test in compiled.tests):
            yield "no [[test]] expects 'never' or 'denied': nothing shows that this policy protects anything"
        for at, rule in enumerate(compiled.archive):
            rule_id, effect = rule.decision.rule_id, rule.decision.effect
            if effect == "allow" and compiled.fallback.effect == "allow":
                yield f"the rule {rule_id} changes nothing: the default allows already"
                continue
            for other_at, other in enumerate(compiled.archive):
                stronger = other.decision.effect == "never" and effect == "allow"
                earlier = other.decision.effect == effect and other_at < at
                if (stronger or earlier) and other.covers(rule):
                    yield f"the rule {rule_id} can never win: {other.decision.rule_id} covers it"
                    break


def _facts_of(test: ExampleTable) -> Facts:
    return Facts(
        tools=tuple(dict.fromkeys(name for name in (test.tool, test.result_tool) if name is not None)),
        sensitivity=frozenset(test.sensitivity or ()),
        kind=test.kind,
        size_chars=len(test.text or "") if test.size_chars is None else test.size_chars,
        age_turns=test.age_turns,
        text=test.text,
    )


def _description_of(test: ExampleTable) -> str:
    words = [test.tool]
    if test.result_tool is not None:
        words.append(f"answered as {test.result_tool}")
    if test.sensitivity is not None:
        words.append(f"sensitivity {'+'.join(test.sensitivity)}")
    if test.kind is not None:
        words.append(f"kind {test.kind}")
    if test.restore is not None:
        who = ["the owner"] if test.owner else []
        words.append("asked by " + (", ".join(who + (test.roles or [])) or "nobody in particular"))
    return ", ".join(words)


def _step(tool: str, rule: _Rule, facts: Facts) -> Step:
    miss = rule.miss(facts) if rule.selector.names(tool) else "tools"
    if miss is not None:
        why = f"no match on {miss}"
    else:
        why = f"matches on {rule.given()}"
        if rule.found is not None and facts.text is None:
            why += " (the text is not at hand, so content counts as found)"
    return Step(tool, rule.decision.rule_id, rule.decision.effect, miss is None, why)
