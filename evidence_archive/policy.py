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
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag
from pydantic import ValidationError as _ValidationError
from pydantic_core import SchemaError, SchemaValidator, core_schema

from evidence_archive.errors import PolicyError
from evidence_archive.model import Facts, Limits

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

Effect = Literal["allow", "never"]

Openings = tuple[frozenset[str] | None, ...]
"""Who may restore: every entry must let the principal through; ``None`` is "the session's owner"."""

MayRestore = Callable[[bool, frozenset[str], Openings], bool]
"""Answers ``(subject_is_owner, roles, openings)``; the real one is ``access.may_restore``."""

FILE_BYTES_MAX = 1024 * 1024
"""Largest policy file, in bytes."""

CONTENT_CHARS_MAX = 1_000_000
"""Longest text a ``content.regex`` is searched in, in characters; a longer one counts as matched."""

_TOO_LARGE = f"is too large; allowed: {FILE_BYTES_MAX} bytes (1 MiB)"
_CACHED_NAMES_MAX = 1024
_CACHED_NAME_CHARS_MAX = 256
_NO_RULE = "default"


# --- the file ---------------------------------------------------------------------------------------------------

_NAME_WORDS = "a string of 1 to 256 characters without control characters"
_NAMES_WORDS = f"a list of 1 to 200 entries, each {_NAME_WORDS}"
_ID_WORDS = "1 to 64 ASCII letters, digits, '.', '_' or '-', the first a letter or digit"
_REGEX_WORDS = (
    "a pattern of 1 to 200 characters that runs in linear time: no look-around, no back-references, no counted "
    "repetition such as {3}, a brace only as \\{ or in \\p{L}"
)

_Id = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
_Names = Annotated[list[_Name], Field(min_length=1, max_length=200)]
_Line = Annotated[str, StringConstraints(min_length=1, max_length=500, pattern=r"^[^\p{C}\p{Zl}\p{Zp}]*$")]
_Count = Annotated[int, Field(ge=0, le=1_000_000_000)]


def _listed(value: object) -> object:
    """One string stands for a list of one."""
    return [value] if isinstance(value, str) else value


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class _Head(_Table):
    name: _Id = Field(description=_ID_WORDS)
    version: int = Field(ge=1, le=1_000_000_000, description="an integer from 1 to 1000000000")
    default: Effect = Field(description="'allow' or 'never'")


_LIMIT_BOUNDS: Mapping[str, tuple[int, int]] = {
    "label_chars_min": (1, 1_000_000),
    "note_chars_max": (100, 20_000),
    "batch_items_max": (1, 1_000),
    "original_bytes_max": (1_024, 2 * 1024 * 1024 * 1024),  # the most an envelope holds
    "restore_tokens_max": (100, 1_000_000),
    "restores_per_turn_max": (1, 100),
    "pattern_matches_max": (1, 10_000),
    "view_wait_ms_max": (10, 60_000),
    "store_wait_ms_max": (10, 600_000),
    "store_failures_max": (1, 100),
    "suspension_seconds": (1, 86_400),
}


def _limit(name: str) -> Any:
    low, high = _LIMIT_BOUNDS[name]
    return Field(default=getattr(Limits(), name), ge=low, le=high, description=f"an integer from {low} to {high}")


class _Limits(_Table):
    label_chars_min: int = _limit("label_chars_min")
    note_chars_max: int = _limit("note_chars_max")
    batch_items_max: int = _limit("batch_items_max")
    original_bytes_max: int = _limit("original_bytes_max")
    restore_tokens_max: int = _limit("restore_tokens_max")
    restores_per_turn_max: int = _limit("restores_per_turn_max")
    pattern_matches_max: int = _limit("pattern_matches_max")
    view_wait_ms_max: int = _limit("view_wait_ms_max")
    store_wait_ms_max: int = _limit("store_wait_ms_max")
    store_failures_max: int = _limit("store_failures_max")
    suspension_seconds: int = _limit("suspension_seconds")


class _Selecting(_Table):
    tools: _Names | None = Field(default=None, description=_NAMES_WORDS)
    sensitivity: _Names | None = Field(default=None, description=_NAMES_WORDS)
    kind: _Names | None = Field(default=None, description=_NAMES_WORDS)


class _Regex(_Table):
    regex: str = Field(min_length=1, max_length=200, description=_REGEX_WORDS)


_Content = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=1000), Tag("literal")]
    | Annotated[_Regex, Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, dict) else "literal"),
]


class _Archive(_Selecting):
    id: _Id = Field(description=_ID_WORDS)
    effect: Effect = Field(description="'allow' or 'never'")
    reason: _Line | None = Field(default=None, description="one line of 1 to 500 printable characters")
    size_chars_min: _Count | None = Field(default=None, description="an integer from 0 to 1000000000")
    age_turns_min: _Count | None = Field(default=None, description="an integer from 0 to 1000000000")
    content: _Content | None = Field(
        default=None, description="a literal string of 1 to 1000 characters, or a table {regex = '...'}"
    )


class _LiveTable(_Table):
    tools: _Names = Field(description=_NAMES_WORDS)
    ask: _Name | None = Field(default=None, description=_NAME_WORDS)
    max_age_seconds: _Count | None = Field(default=None, description="an integer from 0 to 1000000000")


class _Restore(_Selecting):
    id: _Id | None = Field(default=None, description=_ID_WORDS)
    roles: _Names = Field(description=_NAMES_WORDS)


class _Retention(_Selecting):
    days: int = Field(ge=1, le=36_500, description="an integer from 1 to 36500")


class _Test(_Table):
    tool: _Name = Field(description=_NAME_WORDS)
    result_tool: _Name | None = Field(default=None, description=_NAME_WORDS)
    sensitivity: Annotated[_Names, BeforeValidator(_listed)] | None = Field(
        default=None, description=f"a string, or {_NAMES_WORDS}"
    )
    kind: _Name | None = Field(default=None, description=_NAME_WORDS)
    size_chars: _Count | None = Field(default=None, description="an integer from 0 to 1000000000")
    age_turns: _Count = Field(default=0, description="an integer from 0 to 1000000000")
    text: str | None = Field(default=None, max_length=10_000, description="a string of at most 10000 characters")
    expect: Effect | None = Field(default=None, description="'allow' or 'never'")
    rule: _Id | None = Field(default=None, description="the id of an [[archive]] rule, or 'default'")
    restore: Literal["granted", "denied"] | None = Field(default=None, description="'granted' or 'denied'")
    roles: _Names | None = Field(default=None, description=_NAMES_WORDS)
    owner: bool | None = Field(default=None, description="true or false")
    live: bool | None = Field(default=None, description="true or false")
    retention_days: int | None = Field(
        default=None, ge=0, le=36_500, description="an integer from 0 (no rule) to 36500"
    )


def _tables(name: str) -> Any:
    return Field(default=[], max_length=1000, description=f"at most 1000 tables, each written [[{name}]]")


class _File(_Table):
    policy: _Head = Field(description="a table, written [policy]")
    limits: _Limits = Field(default=_Limits(), description="a table, written [limits]")
    archive: list[_Archive] = _tables("archive")
    live: list[_LiveTable] = _tables("live")
    restore: list[_Restore] = _tables("restore")
    retention: list[_Retention] = _tables("retention")
    test: list[_Test] = _tables("test")


TABLES: Mapping[str, type[BaseModel]] = MappingProxyType(
    {
        "": _File,
        "policy": _Head,
        "limits": _Limits,
        "archive": _Archive,
        "archive.content": _Regex,
        "live": _LiveTable,
        "restore": _Restore,
        "retention": _Retention,
        "test": _Test,
    }
)
"""Every table of a policy file, by its dotted name, with the model that holds its keys."""


# --- an author's mistakes, in words -----------------------------------------------------------------------------


def _wrong(key: str | None, words: str) -> PolicyError:
    """What is wrong at which place; :meth:`Policy.loads` says in which file."""
    return PolicyError(words, key=key)


_TYPE_WORDS = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    list: "a list",
    dict: "a table",
}


def _quoted(part: str) -> str:
    """A key as it may stand in a message: bare where TOML allows it, else escaped, and never long."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,64}", part):
        return part
    return json.dumps(part if len(part) <= 64 else part[:63] + "…", ensure_ascii=True)


def _place(loc: Sequence[int | str]) -> str:
    """``archive[2].effect``, counted from 0."""
    words = "".join(f"[{part}]" if isinstance(part, int) else f".{_quoted(part)}" for part in loc)
    return words.removeprefix(".")


def _mistake_of(error: _ValidationError) -> PolicyError:
    """The first mistake of a file, an unknown key before anything else, since it often explains the rest."""
    details = error.errors(include_url=False, include_context=False)
    detail = min(details, key=lambda each: each["type"] != "extra_forbidden")
    loc = detail["loc"]
    if loc[2:3] == ("content",):  # the tag of the union is pydantic's, not the author's
        loc = loc[:3] + loc[4:]
    names = [part for part in loc if isinstance(part, str)]
    table = TABLES[".".join(names[:-1])]
    if detail["type"] == "extra_forbidden":
        return _wrong(_place(loc), f"is not a known key; allowed here: {', '.join(table.model_fields)}")
    allowed = table.model_fields[names[-1]].description
    if detail["type"] == "missing":
        wrong = "is missing"
    elif detail["type"].endswith("_type"):
        wrong = f"is {_TYPE_WORDS.get(type(detail['input']), 'a date or time')}, which is not allowed"
    else:
        wrong = "has a value that is not allowed"
    return _wrong(_place(loc), f"{wrong}; allowed: {allowed}")


def _check_meaning(file: _File) -> None:
    """What no single key can say: ids are unique, keys fit each other.

    Raises:
        PolicyError: they do not.
    """
    ids = {_NO_RULE: f"{_NO_RULE!r} stands for no rule"}
    named: list[tuple[str, str | None]] = [(f"archive[{at}].id", rule.id) for at, rule in enumerate(file.archive)]
    named += [(f"restore[{at}].id", opening.id) for at, opening in enumerate(file.restore)]
    for key, rule_id in named:
        if rule_id in ids:
            raise _wrong(key, f"is taken ({ids[rule_id]}); allowed: an id that no other rule has")
        if rule_id is not None:
            ids[rule_id] = f"{key} is {rule_id!r} too"
    for at, rule in enumerate(file.archive):
        if rule.content is not None and rule.effect != "never":
            raise _wrong(f"archive[{at}].content", "needs effect = 'never'; words of a result can only deny")
    known = {rule.id for rule in file.archive} | {_NO_RULE}
    for at, test in enumerate(file.test):
        if (test.expect, test.restore, test.live, test.retention_days) == (None, None, None, None):
            raise _wrong(f"test[{at}]", "expects nothing; allowed: expect, restore, live, retention_days")
        if test.rule is not None and (test.expect is None or test.rule not in known):
            raise _wrong(f"test[{at}].rule", "needs expect, and must be the id of an [[archive]] rule or 'default'")
        if test.restore is None and (test.roles is not None or test.owner is not None):
            key = "roles" if test.roles is not None else "owner"
            raise _wrong(f"test[{at}].{key}", "needs restore = 'granted' or 'denied'")


# --- rules, ready to match --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Selector:
    globs: tuple[str, ...] | None
    pattern: re.Pattern[str] | None
    sensitivity: frozenset[str] | None
    kind: frozenset[str] | None

    @classmethod
    def of(cls, table: _Selecting) -> Self:
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
    content: str | _Regex | None
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


def _finder(content: str | _Regex, key: str) -> Callable[[str], bool]:
    """A search that takes time linear in the text, whatever the pattern.

    The engine is the Rust ``regex`` crate inside pydantic-core: finite automata, no backtracking, a bound on the
    compiled size. Counted repetition is refused because it multiplies the automaton, and with it the time per
    character.

    Raises:
        PolicyError: the engine does not take the pattern.
    """
    if isinstance(content, str):
        return lambda text: content in text
    words = f"is not such a pattern; allowed: {_REGEX_WORDS}"
    if "{" in re.sub(r"(?s)\\(?:[pPxuU]\{[^{}\n]*\}|.)", "", content.regex):
        raise _wrong(f"{key}.regex", words)
    try:
        schema = core_schema.str_schema(strict=True, pattern=content.regex, regex_engine="rust-regex")
        engine = SchemaValidator(schema)
    except SchemaError:
        raise _wrong(f"{key}.regex", words) from None

    def found(text: str) -> bool:
        # Lone surrogates become '?': the engine would refuse the text, which must not read as "not found".
        return len(text) > CONTENT_CHARS_MAX or engine.isinstance_python(text.encode("utf-8", "replace").decode())

    return found


def _rule_of(table: _Archive, at: int) -> _Rule:
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
    live: tuple[tuple[re.Pattern[str], _LiveTable], ...]
    restore: tuple[tuple[_Selector, frozenset[str]], ...]
    retention: tuple[tuple[_Selector, int], ...]
    tests: tuple[_Test, ...]
    fallback: Decision
    candidates: Callable[[str], tuple[_Rule, ...]]

    @classmethod
    def of(cls, file: _File) -> Self:
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
            fallback=Decision(default, _NO_RULE, f"no rule matched, and the default of the policy is {default}"),
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
        digest: sha256, 64 hex digits, of the content as canonical JSON: comments and the order of keys do not count,
            tests do.
        path: the file, or ``None``.
    """

    name: str
    version: int
    limits: Limits
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
            raise PolicyError(f"Policy {shown} {_TOO_LARGE}.", path=shown)
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
            data = _parsed(text)
            try:
                file = _File.model_validate(data)
            except _ValidationError as error:
                raise _mistake_of(error) from None  # a cause would print the author's values
            _check_meaning(file)
            compiled = _Compiled.of(file)
        except PolicyError as error:
            where = " ".join(filter(None, ("Policy", path, error.key)))
            raise PolicyError(f"{where} {error}.", path=path, key=error.key) from None
        canonical = json.dumps(data, ensure_ascii=True, sort_keys=True, separators=(",", ":"))
        return cls(
            name=file.policy.name,
            version=file.policy.version,
            limits=Limits(**file.limits.model_dump()),
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

    def _outcome(self, index: int, test: _Test, may_restore: MayRestore) -> Outcome:
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


def _parsed(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        PolicyError: it is too large, or not TOML.
    """
    if len(text) > FILE_BYTES_MAX or len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        raise _wrong(None, _TOO_LARGE)
    try:
        text.encode()
        return tomllib.loads(text.removeprefix("\ufeff"))
    except UnicodeEncodeError:
        raise _wrong(None, "holds a lone surrogate; allowed: UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise _wrong(None, f"is not TOML: {_syntax(str(error), text)}") from None
    except RecursionError:
        raise _wrong(None, "is nested too deep; allowed: the tables that policies/README.md lists") from None
    except ValueError:
        raise _wrong(None, "holds a number or date that is not allowed") from None


def _syntax(words: str, text: str) -> str:
    """The place of a syntax error and what the parser says of it, without the author's text."""
    found = re.search(r"\(at line (\d+), column (\d+)\)", words)
    lines = text.split("\n")
    line, column = found.groups() if found else (len(lines), len(lines[-1]) + 1)
    said = words.partition(" (at ")[0]
    own = next((what for head, what in _SYNTAX_WORDS.items() if said.startswith(head)), None)
    if own is None and (said.startswith(_SYNTAX_SAFE) or not re.search(r"['\"(\[]", said)):
        own = said[:1].lower() + said[1:]
    return f"line {line}, column {column}: {own or 'a syntax error'}"


_SYNTAX_SAFE = ("Expected ", "Unescaped ")
"""What the parser quotes behind these words is TOML's punctuation."""

_SYNTAX_WORDS = {
    "Cannot declare ": "a table is declared twice",
    "Cannot mutate immutable ": "an inline table or array is added to",
    "Cannot redefine ": "a table or key is defined twice",
    "Duplicate inline table key ": "an inline table holds a key twice",
    "Found invalid character ": "a character that is not allowed there",
    "Illegal character ": "a character that is not allowed there",
}
"""What is said instead where the parser quotes the author's text."""


def _facts_of(test: _Test) -> Facts:
    return Facts(
        tools=tuple(dict.fromkeys(name for name in (test.tool, test.result_tool) if name is not None)),
        sensitivity=frozenset(test.sensitivity or ()),
        kind=test.kind,
        size_chars=len(test.text or "") if test.size_chars is None else test.size_chars,
        age_turns=test.age_turns,
        text=test.text,
    )


def _description_of(test: _Test) -> str:
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
