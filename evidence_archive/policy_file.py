"""A policy file as its author writes it: its tables and keys, and mistakes in words.

policies/README.md lists every key. What a file means is the matter of :mod:`evidence_archive.policy`.
"""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, StringConstraints, Tag
from pydantic import ValidationError as _ValidationError

from evidence_archive.errors import PolicyError
from evidence_archive.model import Limits, WindowPolicy

__all__ = [
    "FILE_BYTES_MAX",
    "LIMIT_BOUNDS",
    "NO_RULE",
    "REGEX_WORDS",
    "TABLES",
    "TOO_LARGE",
    "WINDOW_BOUNDS",
    "ArchiveTable",
    "Effect",
    "ExampleTable",
    "LiveTable",
    "PolicyFile",
    "RegexTable",
    "RestoreTable",
    "RetentionTable",
    "SelectingTable",
    "read_file",
    "wrong",
]

Effect = Literal["allow", "never"]

FILE_BYTES_MAX = 1024 * 1024
"""Largest policy file, in bytes."""

TOO_LARGE = f"is too large; allowed: {FILE_BYTES_MAX} bytes (1 MiB)"
"""What is said of a larger one."""

NO_RULE = "default"
"""Stands for the rule where none matched."""

_NAME_WORDS = "a string of 1 to 256 characters without control characters"
_NAMES_WORDS = f"a list of 1 to 200 entries, each {_NAME_WORDS}"
_ID_WORDS = "1 to 64 ASCII letters, digits, '.', '_' or '-', the first a letter or digit"
REGEX_WORDS = (
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


LIMIT_BOUNDS: Mapping[str, tuple[int, int]] = {
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
    "quota_originals_max": (1, 2**53),
    "quota_bytes_max": (1, 2**53),
}


def _limit(name: str) -> Any:
    low, high = LIMIT_BOUNDS[name]
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
    quota_originals_max: int = _limit("quota_originals_max")
    quota_bytes_max: int = _limit("quota_bytes_max")


class _Custody(_Table):
    roles: _Names = Field(default=["custodian"], description=_NAMES_WORDS)


class _Ledger(_Table):
    roles: _Names = Field(default=[], description=_NAMES_WORDS)


WINDOW_BOUNDS: Mapping[str, tuple[float, float]] = {
    "window_tokens_max": (1_000, 10_000_000),
    "carried_share": (0.01, 0.5),
    "changes_share": (0.001, 0.1),
    "high": (0.1, 1.0),
    "low": (0.0, 0.9),
    "keep_turns": (1, 1_000),
    "cooldown_turns": (0, 1_000),
    "archive_tokens_min": (50, 1_000_000),
    "horizon_requests": (1, 10_000),
    "reminder_tokens": (0, 10_000_000),
    "reminder_chars": (0, 100_000_000),
    "price_input": (0.0, 1_000_000.0),
    "price_cached_input": (0.0, 1_000_000.0),
    "price_output": (0.0, 1_000_000.0),
    "judge_every": (1, 1_000),
}


def _of_window(name: str) -> Any:
    low, high = WINDOW_BOUNDS[name]
    default = getattr(WindowPolicy(), name)
    what = f"an integer from {low} to {high}" if isinstance(default, int) else f"a number from {low} to {high}"
    return Field(default=default, ge=low, le=high, description=what)


class _Window(_Table):
    window_tokens_max: int = _of_window("window_tokens_max")
    carried_share: float = _of_window("carried_share")
    changes_share: float = _of_window("changes_share")
    high: float = _of_window("high")
    low: float = _of_window("low")
    keep_turns: int = _of_window("keep_turns")
    cooldown_turns: int = _of_window("cooldown_turns")
    archive_tokens_min: int = _of_window("archive_tokens_min")
    horizon_requests: int = _of_window("horizon_requests")
    reminder_tokens: int = _of_window("reminder_tokens")
    reminder_chars: int = _of_window("reminder_chars")
    price_input: float = _of_window("price_input")
    price_cached_input: float = _of_window("price_cached_input")
    price_output: float = _of_window("price_output")
    judge_every: int = _of_window("judge_every")
    trace: Literal["off", "sealed"] = Field(default="off", description="'off' or 'sealed'")


class SelectingTable(_Table):
    """What a rule looks at."""

    tools: _Names | None = Field(default=None, description=_NAMES_WORDS)
    sensitivity: _Names | None = Field(default=None, description=_NAMES_WORDS)
    kind: _Names | None = Field(default=None, description=_NAMES_WORDS)


class RegexTable(_Table):
    """A pattern to find in a result."""

    regex: str = Field(min_length=1, max_length=200, description=REGEX_WORDS)


_Content = Annotated[
    Annotated[str, StringConstraints(min_length=1, max_length=1000), Tag("literal")]
    | Annotated[RegexTable, Tag("table")],
    Discriminator(lambda value: "table" if isinstance(value, dict) else "literal"),
]


class ArchiveTable(SelectingTable):
    """One ``[[archive]]`` rule."""

    id: _Id = Field(description=_ID_WORDS)
    effect: Effect = Field(description="'allow' or 'never'")
    reason: _Line | None = Field(default=None, description="one line of 1 to 500 printable characters")
    size_chars_min: _Count | None = Field(default=None, description="an integer from 0 to 1000000000")
    age_turns_min: _Count | None = Field(default=None, description="an integer from 0 to 1000000000")
    content: _Content | None = Field(
        default=None, description="a literal string of 1 to 1000 characters, or a table {regex = '...'}"
    )


class LiveTable(_Table):
    """One ``[[live]]`` rule."""

    tools: _Names = Field(description=_NAMES_WORDS)
    ask: _Name | None = Field(default=None, description=_NAME_WORDS)
    max_age_seconds: _Count | None = Field(default=None, description="an integer from 0 to 1000000000")


class RestoreTable(SelectingTable):
    """One ``[[restore]]`` rule."""

    id: _Id | None = Field(default=None, description=_ID_WORDS)
    roles: _Names = Field(description=_NAMES_WORDS)


class RetentionTable(SelectingTable):
    """One ``[[retention]]`` rule."""

    days: int = Field(ge=1, le=36_500, description="an integer from 1 to 36500")


class ExampleTable(_Table):
    """One ``[[test]]``."""

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


class PolicyFile(_Table):
    """A whole file."""

    policy: _Head = Field(description="a table, written [policy]")
    limits: _Limits = Field(default=_Limits(), description="a table, written [limits]")
    custody: _Custody = Field(default=_Custody(), description="a table, written [custody]")
    ledger: _Ledger = Field(default=_Ledger(), description="a table, written [ledger]")
    window: _Window | None = Field(default=None, description="a table, written [window]")
    archive: list[ArchiveTable] = _tables("archive")
    live: list[LiveTable] = _tables("live")
    restore: list[RestoreTable] = _tables("restore")
    retention: list[RetentionTable] = _tables("retention")
    test: list[ExampleTable] = _tables("test")


TABLES: Mapping[str, type[BaseModel]] = MappingProxyType(
    {
        "": PolicyFile,
        "policy": _Head,
        "limits": _Limits,
        "custody": _Custody,
        "ledger": _Ledger,
        "window": _Window,
        "archive": ArchiveTable,
        "archive.content": RegexTable,
        "live": LiveTable,
        "restore": RestoreTable,
        "retention": RetentionTable,
        "test": ExampleTable,
    }
)
"""Every table of a policy file, by its dotted name, with the model that holds its keys."""


# --- an author's mistakes, in words -----------------------------------------------------------------------------


def wrong(key: str | None, words: str) -> PolicyError:
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
        return wrong(_place(loc), f"is not a known key; allowed here: {', '.join(table.model_fields)}")
    allowed = table.model_fields[names[-1]].description
    if detail["type"] == "missing":
        what = "is missing"
    elif detail["type"].endswith("_type"):
        what = f"is {_TYPE_WORDS.get(type(detail['input']), 'a date or time')}, which is not allowed"
    else:
        what = "has a value that is not allowed"
    return wrong(_place(loc), f"{what}; allowed: {allowed}")


def _check_meaning(file: PolicyFile) -> None:
    """What no single key can say: ids are unique, keys fit each other.

    Raises:
        PolicyError: they do not.
    """
    ids = {NO_RULE: f"{NO_RULE!r} stands for no rule"}
    named: list[tuple[str, str | None]] = [(f"archive[{at}].id", rule.id) for at, rule in enumerate(file.archive)]
    named += [(f"restore[{at}].id", opening.id) for at, opening in enumerate(file.restore)]
    for key, rule_id in named:
        if rule_id in ids:
            raise wrong(key, f"is taken ({ids[rule_id]}); allowed: an id that no other rule has")
        if rule_id is not None:
            ids[rule_id] = f"{key} is {rule_id!r} too"
    for at, rule in enumerate(file.archive):
        if rule.content is not None and rule.effect != "never":
            raise wrong(f"archive[{at}].content", "needs effect = 'never'; words of a result can only deny")
    window = file.window
    if window is not None and not window.low < window.high:
        raise wrong("window.low", "is not below high; allowed: a share below that of high")
    if window is not None and window.price_cached_input > window.price_input:
        raise wrong("window.price_cached_input", "is above price_input; allowed: at most what reading anew costs")
    known = {rule.id for rule in file.archive} | {NO_RULE}
    for at, test in enumerate(file.test):
        if (test.expect, test.restore, test.live, test.retention_days) == (None, None, None, None):
            raise wrong(f"test[{at}]", "expects nothing; allowed: expect, restore, live, retention_days")
        if test.rule is not None and (test.expect is None or test.rule not in known):
            raise wrong(f"test[{at}].rule", "needs expect, and must be the id of an [[archive]] rule or 'default'")
        if test.restore is None and (test.roles is not None or test.owner is not None):
            key = "roles" if test.roles is not None else "owner"
            raise wrong(f"test[{at}].{key}", "needs restore = 'granted' or 'denied'")


def read_file(text: str) -> tuple[dict[str, Any], PolicyFile]:
    """The tables of a TOML text, as they stand there and checked.

    Raises:
        PolicyError: it is not TOML, or not a policy; ``key`` is the dotted place, counted from 0 in lists.
    """
    data = _parsed(text)
    try:
        file = PolicyFile.model_validate(data)
    except _ValidationError as error:
        raise _mistake_of(error) from None  # a cause would print the author's values
    _check_meaning(file)
    return data, file


def _parsed(text: str) -> dict[str, Any]:
    """The tables of a TOML text.

    Raises:
        PolicyError: it is too large, or not TOML.
    """
    if len(text) > FILE_BYTES_MAX or len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        raise wrong(None, TOO_LARGE)
    try:
        text.encode()
        return tomllib.loads(text.removeprefix("\ufeff"))
    except UnicodeEncodeError:
        raise wrong(None, "holds a lone surrogate; allowed: UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise wrong(None, f"is not TOML: {_syntax(str(error), text)}") from None
    except RecursionError:
        raise wrong(None, "is nested too deep; allowed: the tables that policies/README.md lists") from None
    except ValueError:
        raise wrong(None, "holds a number or date that is not allowed") from None


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
