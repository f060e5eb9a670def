"""The long demo's three days: logs that are written here, tools that read them, and what its model does in each turn.

The logs are made up, the same on every machine; whatever the tools say of them, and of the standard library's own
source, is read, searched and measured when they are called.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

from evidence_archive.cli.demo_tools import run as run_short_tool
from evidence_archive.notes import ARCHIVE_TOOL, CARD_TOOL, RESTORE_TOOL, SEARCH_TOOL
from evidence_archive.testing import Call, ScriptedReply, ScriptedRequest

__all__ = [
    "DAYS",
    "FULL",
    "FULL_LOG",
    "GOAL",
    "LABEL",
    "LATE_MS",
    "LOOK_BACK",
    "ORDER",
    "SPECS",
    "TURNS_MIN",
    "Block",
    "Figures",
    "figures_of",
    "log_name",
    "plan",
    "report_name",
    "run_tool",
    "write_logs",
]

DAYS = 3
TURNS_MIN = 10
"""Of a day: so many turns hold what the demo's claims are about."""

HOURS = 24
UPLOADS = 60
LATE_MS = 1_000
ORDER = "LAB-77"
FULL = "DISK FULL"

_HOUR_SLOWEST, _LINE_SLOWEST, _HOUR_FULL, _LINE_FULL = 9, 17, 0, 29
_BLOCK_TURNS = 25
_SOURCE_LINES = 100
_MATCHES_MAX = 40
_MODULES = ("http.client", "urllib.request", "subprocess", "socketserver", "logging", "selectors")

GOAL = "Find out why results of the laboratory arrive late, and settle it with figures for each of three days."

LOOK_BACK = (
    "One more thing about the first day: an upload was refused since a disk was full. Which trace was it? Give it to "
    "me as the log of that day has it, word for word."
)


# --- the logs ---------------------------------------------------------------------------------------------------


def log_name(day: int, hour: int) -> str:
    """Where the log of an hour lies.

    Args:
        day: from 1.
        hour: from 0.
    """
    return f"day-{day}/hour-{hour:02}.log"


def report_name(day: int) -> str:
    """Where the model writes its report of a day."""
    return f"reports/day-{day}.json"


FULL_LOG = log_name(1, _HOUR_FULL)
"""The log with the one upload that was refused."""


def write_logs(folder: Path, day: int) -> None:
    """Write the logs of a day: equal on every machine, and the slowest upload of each day is slower than the last.

    Args:
        folder: gets a folder for the day.
        day: from 1.
    """
    dice = random.Random(day)  # noqa: S311 - made-up logs, no secret
    for hour in range(HOURS):
        lines = []
        for at in range(1, UPLOADS + 1):
            second = (at - 1) * 3_600 // UPLOADS
            took_ms = int(dice.lognormvariate(5.6, 0.9)) % 6_000 + 20
            trace = f"{dice.getrandbits(40):010x}"
            if (hour, at) == (_HOUR_SLOWEST, _LINE_SLOWEST):
                took_ms = 7_000 + 500 * day + dice.randrange(400)
            end = "LATE" if took_ms > LATE_MS else "ok"
            if (day, hour, at) == (1, _HOUR_FULL, _LINE_FULL):
                end = f"REFUSED: {FULL}"
            lines.append(
                f"2026-03-{day:02}T{hour:02}:{second // 60:02}:{second % 60:02}Z node-{dice.randint(1, 3)} "
                f"analyser-{dice.randint(1, 6)} trace={trace} took {took_ms} ms {end}\n"
            )
        path = folder / log_name(day, hour)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(lines), "utf-8")


_UPLOAD = re.compile(r"(analyser-\d+) trace=(\w+) took (\d+) ms (.*)")


@dataclass(frozen=True, slots=True)
class Figures:
    """What stands in logs.

    Args:
        uploads, late: how many there are, and how many of them took longer than ``LATE_MS``.
        slowest_ms, slowest_trace: of the slowest.
        median_ms_by_device: half of its uploads were faster.
    """

    uploads: int
    late: int
    slowest_ms: int
    slowest_trace: str
    median_ms_by_device: Mapping[str, float] = field(repr=False)


def figures_of(paths: Sequence[Path]) -> Figures:
    """What stands in these logs, read now.

    Args:
        paths: of at least one log.
    """
    found = [match for path in paths for match in _UPLOAD.findall(path.read_text("utf-8"))]
    devices = sorted({device for device, *_ in found})
    slowest = max(found, key=lambda one: int(one[2]))
    return Figures(
        len(found),
        sum(int(took) > LATE_MS for _, _, took, _ in found),
        int(slowest[2]),
        slowest[1],
        {name: median(int(took) for device, _, took, _ in found if device == name) for name in devices},
    )


# --- the tools --------------------------------------------------------------------------------------------------


def run_tool(name: str, arguments: Mapping[str, str], folder: Path) -> str:
    """What a tool of the long demo says.

    Args:
        name: one of the names in ``SPECS``.
        arguments: as the scripted model gives them.
        folder: with the logs.
    """
    return _TOOLS[name](folder, **arguments)


def _read_log(folder: Path, file: str) -> str:
    """A log, as it is."""
    return (folder / file).read_text("utf-8")


def _measure(folder: Path, files: str) -> str:
    """Counts and times of the logs that a pattern names."""
    found = figures_of(sorted(folder.glob(files)))
    devices = [
        {"device": device, "median_ms": value, "of_all_ms": value / max(found.median_ms_by_device.values())}
        for device, value in found.median_ms_by_device.items()
    ]
    said = {
        "files": files,
        "uploads": found.uploads,
        "late": found.late,
        "late_means_ms_above": LATE_MS,
        "slowest": {"ms": found.slowest_ms, "trace": found.slowest_trace},
        "devices": devices,
    }
    return json.dumps(said, indent=4)


def _search_logs(folder: Path, words: str) -> str:
    """Lines of all logs that hold all of the words, with a count of what is left out."""
    wanted, found = words.split(), []
    for path in sorted(folder.glob("day-*/*.log")):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            if all(word in line for word in wanted):
                found.append(f"{path.parent.name}/{path.name}:{number}: {line}")
    return "\n".join([*found[:_MATCHES_MAX], f"{len(found)} lines in all"])


def _read_source(folder: Path, module: str, first: str) -> str:
    """Some lines of a module of the standard library."""
    lines = run_short_tool("read_source", {"module": module}, folder).splitlines()
    start = int(first) % max(1, len(lines) - _SOURCE_LINES)
    return "\n".join(f"{start + at}: {line}" for at, line in enumerate(lines[start : start + _SOURCE_LINES], 1))


def _read_order(folder: Path, number: str) -> str:
    """The signed order that says what counts as late; the demo's policy keeps it in view."""
    rules = "\n".join(f"Point {at}: analyser-{at} is measured at its own gateway." for at in range(1, 16))
    return (
        f"Order {number} of north-clinic (made up)\nAn upload is late when it takes more than {LATE_MS} ms.\n{rules}"
    )


def _write_report(folder: Path, path: str, content: str) -> str:
    """Write a report into the workspace."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(content, "utf-8")
    return f"{path}: {target.stat().st_size} bytes written"


_TOOLS: Mapping[str, Callable[..., str]] = {
    "read_log": _read_log,
    "measure": _measure,
    "search_logs": _search_logs,
    "read_source": _read_source,
    "read_order": _read_order,
    "write_report": _write_report,
}


def _spec(name: str, *arguments: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"} for argument in arguments},
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": _TOOLS[name].__doc__, "parameters": parameters},
    }


SPECS = [
    _spec("read_log", "file"),
    _spec("measure", "files"),
    _spec("search_logs", "words"),
    _spec("read_source", "module", "first"),
    _spec("read_order", "number"),
    _spec("write_report", "path", "content"),
]
"""Their specs, for the request."""


# --- what the model reads ---------------------------------------------------------------------------------------

LABEL = re.compile(r"\[evidence (r[1-9][0-9]*) ")
"""How a result in view begins that has an ID."""

_HIT = re.compile(r"^(r[1-9][0-9]*)#L([1-9][0-9]*) \((.*)\)$", re.MULTILINE)
_TRACE = re.compile(rf"trace=(\w+) took \d+ ms REFUSED: {FULL}")


@dataclass(frozen=True, slots=True)
class _Shown:
    """A result in view that has a label."""

    result_id: str
    tool: str
    arguments: Mapping[str, Any] = field(repr=False)
    text: str = field(repr=False)


def _shown(request: ScriptedRequest) -> list[_Shown]:
    calls: dict[str, Any] = {}
    found = []
    for message in request.messages:
        for made in message.get("tool_calls") or ():
            calls[made["id"]] = made["function"]
        if message["role"] == "tool" and (match := LABEL.match(message["content"])):
            made = calls[message["tool_call_id"]]
            text = message["content"].partition("\n")[2]
            found.append(_Shown(match[1], made["name"], json.loads(made["arguments"]), text))
    return found


def _newest_result(request: ScriptedRequest) -> str:
    """The newest tool message; what the window says of changes may stand behind it."""
    return next((str(one["content"]) for one in reversed(request.messages) if one["role"] == "tool"), "")


def _note(one: _Shown) -> dict[str, str]:
    lines = [line.strip() for line in one.text.splitlines() if line.strip()]
    return {"id": one.result_id, "note": f"{len(lines)} lines, read. Last: {lines[-1][:120]}"}


# --- what it does -----------------------------------------------------------------------------------------------

Step = Callable[[ScriptedRequest], ScriptedReply]


@dataclass(frozen=True, slots=True)
class Block:
    """A question, and the model's turns until it answers."""

    question: str
    steps: Sequence[Step] = field(repr=False)


def _step(*calls: Call, text: str | None = None, keeps: str = "") -> Step:
    """A turn: these calls, and what the model archives: a log it is done with, and all it has read when reminded.

    Args:
        calls: of the application's tools and of the card.
        text: what it says; without calls it ends the block.
        keeps: the log that is archived in this turn.
    """

    def reply(request: ScriptedRequest) -> ScriptedReply:
        is_reminded = request.messages[-1]["role"] == "user" and ARCHIVE_TOOL in request.messages[-1]["content"]
        done = [
            _note(one)
            for one in _shown(request)
            if one.tool != "read_order" and (is_reminded or (keeps and one.arguments.get("file") == keeps))
        ]
        archiving = [Call(ARCHIVE_TOOL, {"batch": done})] if done and calls else []
        return ScriptedReply(text, (*calls, *archiving))

    return reply


def _card(*changes: Mapping[str, Any]) -> Call:
    return Call(CARD_TOOL, {"changes": changes})


def _reported(day: int) -> Step:
    """Writes what the measurement of the day says, and puts the decision on the card, with that result behind it."""

    def reply(request: ScriptedRequest) -> ScriptedReply:
        measured = next(one for one in reversed(_shown(request)) if one.tool == "measure")
        found = json.loads(measured.text)
        content = json.dumps({"day": day, "late": found["late"], "of": found["uploads"], "slowest": found["slowest"]})
        decision = {
            "add": "decision",
            "text": f"On day {day} {found['late']} of {found['uploads']} uploads were late.",
            "reason": "All logs of the day were measured.",
            "references": [f"{measured.result_id}#/late"],
        }
        return ScriptedReply(
            None,
            (
                Call("write_report", {"path": report_name(day), "content": content}),
                _card({"id": f"s{day}", "to": "done"}, decision),
            ),
        )

    return reply


def _activities(day: int) -> Iterator[Step]:
    """Reading, measuring, searching, looking things up: hour by hour."""
    modules = cycle(_MODULES)
    for nth in cycle(range(HOURS)):
        log = log_name(day, nth)
        yield _step(Call("read_log", {"file": log}))
        yield _step(Call("measure", {"files": log}))
        yield _step(Call("search_logs", {"words": f"T{nth:02}: LATE"}), keeps=FULL_LOG)
        yield _step(Call("read_source", {"module": next(modules), "first": str(nth * 90 + day)}))


def _back() -> list[Step]:
    """The question about the first day: searched, restored, answered."""

    def restored(request: ScriptedRequest) -> ScriptedReply:
        hits = _HIT.findall(_newest_result(request))
        result_id = next((found for found, _, tool in hits if tool == "read_log"), "r999")
        return ScriptedReply(None, (Call(RESTORE_TOOL, {"id": result_id, "reason": "word for word"}),))

    def answered(request: ScriptedRequest) -> ScriptedReply:
        match = _TRACE.search(_newest_result(request))
        return ScriptedReply(f"It was trace {match[1]}." if match else "I do not find it.")

    return [_step(Call(SEARCH_TOOL, {"query": FULL})), restored, answered]


def plan(day: int, turns: int) -> list[Block]:
    """What is asked on a day, and what the model does.

    Args:
        day: from 1.
        turns: of the model, at least ``TURNS_MIN``.
    """
    moves = [{"id": f"s{day}", "to": "confirmed"}, {"id": f"s{day}", "to": "in_progress"}]
    first = [
        _step(Call("read_order", {"number": ORDER}), _card({"goal": GOAL}, *map(_day_step, range(1, DAYS + 1)))),
        _step(_card({"id": "s1", "to": "done"})),  # a jump: refused
    ]
    opening = [*(first if day == 1 else ()), _step(_card(*moves), text=f"I begin with day {day}.")]
    closing = [
        _step(Call("measure", {"files": f"day-{day}/*.log"})),
        _reported(day),
        _step(text=f"The report of day {day} is written."),
    ]
    back = _back() if day == DAYS else []
    left = turns - len(opening) - len(closing) - len(back)
    blocks = max(1, round(turns / _BLOCK_TURNS))
    work, doing = [], _activities(day)
    for nth in range(blocks):
        count = left // blocks + (nth < left % blocks)
        steps = [next(doing) for _ in range(count - (nth < blocks - 1))]
        end = [] if nth == blocks - 1 else [_step(text=f"Part {nth + 1} of day {day} is read.")]
        work.append(Block(f"Day {day}, part {nth + 1}: go on with the logs of this day.", [*steps, *end]))
    work[0] = Block(work[0].question, [*opening, *work[0].steps])
    work[-1] = Block(work[-1].question, [*work[-1].steps, *closing])
    return [*([Block(LOOK_BACK, back)] if back else []), *work]


def _day_step(day: int) -> dict[str, str]:
    return {"add": "step", "text": f"Read and measure the logs of day {day}, and write its report."}
