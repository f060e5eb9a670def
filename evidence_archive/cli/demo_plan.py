"""What the demo's model does, turn by turn, and how it finds the IDs it names: on the labels of what it reads."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from evidence_archive.cli.demo_tools import SPECS
from evidence_archive.notes import ARCHIVE_TOOL, RESTORE_TOOL
from evidence_archive.testing import Call, ScriptedReply, ScriptedRequest

__all__ = ["PLAN", "QUESTION", "RECORD", "SEARCH", "UNKNOWN_ID", "Turn", "step", "what_is_shown"]

QUESTION = (
    "Our calendar code disagrees with the dose plan of case 4711 about 29 February. Find out what is installed here, "
    "where the standard library works with leap years, and whether our test is right."
)

UNKNOWN_ID = "r999"
_SHOWN_ID = re.compile(r"\[(?:evidence|archived) (r[1-9][0-9]*) ")


@dataclass(frozen=True, slots=True)
class Turn:
    """What the model does in one turn: calls of the application's tools, archiving, one restore, or last words."""

    tools: tuple[tuple[str, dict[str, str]], ...] = ()
    archive: tuple[str, ...] = ()
    restore: tuple[str, dict[str, Any]] | None = None
    text: str | None = None


_PACKAGES, _ENVIRONMENT, _TESTS = "list_packages", "report_environment", "run_tests"
_OUTLINE = "outline_source calendar"
RECORD = "lookup_prescription 4711"
SEARCH = "search_sources leap|datetime|timedelta"
_MODULES = "calendar _strptime argparse sched tarfile plistlib difflib configparser csv mailbox"
_SOURCES = tuple(f"read_source {module}" for module in _MODULES.split())


def _called(key: str) -> tuple[str, dict[str, str]]:
    name, _, value = key.partition(" ")
    required = next(spec["function"] for spec in SPECS if spec["function"]["name"] == name)["parameters"]["required"]
    return name, dict.fromkeys(required, value)


def _tools(*keys: str) -> tuple[tuple[str, dict[str, str]], ...]:
    return tuple(map(_called, keys))


PLAN = (
    Turn(_tools(_PACKAGES, _ENVIRONMENT)),
    Turn(_tools(RECORD, _OUTLINE)),
    Turn(_tools(SEARCH), archive=(_PACKAGES, _ENVIRONMENT)),
    Turn(_tools(_SOURCES[0], _TESTS)),
    Turn(archive=(_OUTLINE, RECORD, UNKNOWN_ID)),
    Turn(archive=(_OUTLINE, SEARCH)),
    *(Turn(_tools(source)) for source in _SOURCES[1:4]),
    Turn(_tools(_SOURCES[4]), archive=_SOURCES[:4]),
    *(Turn(_tools(source)) for source in _SOURCES[5:8]),
    Turn(_tools(_SOURCES[8]), archive=_SOURCES[4:8]),
    Turn(restore=(SEARCH, {})),
    Turn(restore=(_PACKAGES, {"lines": "1-3"})),
    Turn(_tools(_SOURCES[9])),
    Turn(_tools("search_sources timedelta"), archive=(_TESTS, *_SOURCES[8:])),
    Turn(text="Centuries are leap years only when 400 divides them: the test is wrong, the library is right."),
)


@dataclass(frozen=True, slots=True)
class _Shown:
    result_id: str
    text: str = field(repr=False)


def what_is_shown(request: ScriptedRequest) -> dict[str, _Shown]:
    """What the model reads in a view: tool results by what was called, each with the ID on its label or note."""
    shown: dict[str, _Shown] = {}
    keys: dict[str, str] = {}
    for message in request.messages:
        for made in message.get("tool_calls") or ():
            arguments = json.loads(made["function"]["arguments"])
            values = arguments.values() if made["function"]["name"] not in (ARCHIVE_TOOL, RESTORE_TOOL) else ["ours"]
            keys[made["id"]] = " ".join([made["function"]["name"], *values])
        if message["role"] == "tool":
            match = _SHOWN_ID.match(message["content"])
            if match:
                shown[keys[message["tool_call_id"]]] = _Shown(match[1], message["content"])
    return shown


def _note_on(text: str) -> str:
    lines = [line.strip() for line in text.splitlines()[1:] if line.strip()]
    return f"{len(lines)} lines. First: {lines[0][:160]}\nLast: {lines[-1][:160]}"


def step(turn: Turn) -> Callable[[ScriptedRequest], ScriptedReply]:
    """The turn as a step of a script: IDs and notes come from what the request shows.

    Args:
        turn: what the model does.
    """

    def reply(request: ScriptedRequest) -> ScriptedReply:
        shown = what_is_shown(request)
        calls = [Call(name, arguments) for name, arguments in turn.tools]
        if turn.archive:
            items = [
                {"id": shown[key].result_id, "note": _note_on(shown[key].text)}
                if key in shown
                else {"id": key, "note": "There is no such result."}
                for key in turn.archive
            ]
            calls.append(Call(ARCHIVE_TOOL, {"batch": items}))
        if turn.restore is not None:
            key, part = turn.restore
            selectors = dict.fromkeys(("lines", "pattern", "context_lines", "pointer", "reason"))
            calls.append(Call(RESTORE_TOOL, {"id": shown[key].result_id, **selectors, **part}))
        return ScriptedReply(turn.text, tuple(calls))

    return reply
