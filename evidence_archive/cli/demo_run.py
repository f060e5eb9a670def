"""The demo's two runs over the same tools, with the whole history and through a session, and the claims on them.

What is shown is measured, and every claim is checked.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from evidence_archive.archive import Archive
from evidence_archive.cli.demo_plan import PLAN, QUESTION, RECORD, SEARCH, UNKNOWN_ID, Turn, step, what_is_shown
from evidence_archive.cli.demo_tools import SPECS
from evidence_archive.cli.demo_tools import run as run_tool
from evidence_archive.cli.replay import MessageTokens
from evidence_archive.errors import IntegrityError, NotAvailableError
from evidence_archive.keys import new_keys
from evidence_archive.model import Principal
from evidence_archive.session import Session
from evidence_archive.testing import ScriptedModel
from evidence_archive.tokens import default_counter

__all__ = ["OWNER", "SESSION", "Claim", "Report", "is_paired", "run_demo"]

SESSION = "demo"
OWNER = Principal("north-clinic", "triage-agent", {"agent"})
STRANGER = Principal("south-clinic", "triage-agent", {"agent", "auditor"})

POLICY = """\
[policy]
name = "demo"
version = 1
default = "allow"

[[archive]]
id = "prescription-basis"
tools = ["lookup_prescription"]
effect = "never"
reason = "what a prescription rests on stays in view"

[[live]]
tools = ["run_tests"]
ask = "run_tests"

[[test]]
tool = "lookup_prescription"
expect = "never"
rule = "prescription-basis"
"""

_ENVELOPE_MAGIC = b"EVA1\x01"
_ENVELOPE_HEAD_BYTES = 40


# --- the two runs -----------------------------------------------------------------------------------------------


class _Tools:
    """The demo's tools; both runs see the same outputs, since some of them tell the time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.outputs: dict[str, str] = {}

    def answer(self, call: Any) -> dict[str, Any]:
        name, arguments = call.function.name, json.loads(call.function.arguments)
        key = " ".join([name, *arguments.values()])
        if key not in self.outputs:
            self.outputs[key] = run_tool(name, arguments, self._folder)
        return {"role": "tool", "tool_call_id": call.id, "content": self.outputs[key]}


@dataclass(slots=True)
class _Run:
    model: ScriptedModel
    messages: list[Any] = field(repr=False)
    states: list[dict[str, str]]
    view_ms: list[float]


def _opening() -> list[Any]:
    return [{"role": "user", "content": QUESTION}]


def _run_whole(tools: _Tools) -> _Run:
    """The loop without an archive; turns that only archive or restore have no place in it."""
    turns = [Turn(turn.tools, text=turn.text) for turn in PLAN if turn.tools or turn.text]
    client = ScriptedModel([step(turn) for turn in turns])
    messages = _opening()
    while True:
        reply = client.chat.completions.create(model="scripted", messages=messages, tools=SPECS)
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return _Run(client, messages, [], [])
        messages += [tools.answer(call) for call in message.tool_calls]


def _run_archived(session: Session, tools: _Tools, progress: Callable[[str], None]) -> _Run:
    """The loop of the documentation, with the states of all results noted after every turn."""
    client = ScriptedModel([step(turn) for turn in PLAN])
    run = _Run(client, [{"role": "system", "content": session.instructions}, *_opening()], [], [])
    messages = run.messages
    while True:
        started = perf_counter()
        view = session.view(messages)
        run.view_ms.append((perf_counter() - started) * 1000)
        reply = client.chat.completions.create(model="scripted", messages=view, tools=[*SPECS, *session.tools])
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return run
        progress(", ".join(call.function.name for call in message.tool_calls))
        messages += [session.answer(call) or tools.answer(call) for call in message.tool_calls]
        run.states.append({info.id: info.state for info in session.results()})


# --- the claims -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence about the demo's run, and whether it holds."""

    words: str
    holds: bool


@dataclass(slots=True)
class Report:
    """What the demo measured and checked.

    Args:
        tokens_whole, tokens_archived: input tokens of each request without and with the archive, with tool specs.
        originals, bytes_archived, restores: archived originals, their exact bytes, and granted restores.
        originals_equal: how many of them came back with the digest of what the tool said.
        view_ms_median: half of the views were faster, in milliseconds.
        tokens_estimated: whether tokens are estimates.
        claims: all of them, in the order they were checked.
    """

    tokens_whole: list[int]
    tokens_archived: list[int]
    originals: int
    bytes_archived: int
    originals_equal: int
    restores: int
    view_ms_median: float
    tokens_estimated: bool
    claims: list[Claim]

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return all(claim.holds for claim in self.claims)


def run_demo(folder: Path, progress: Callable[[str], None]) -> Report:
    """Run the demo in a folder and check what it claims.

    Args:
        folder: an empty folder; afterwards it holds ``evidence.db``, ``evidence.keys`` and ``policy.toml``.
        progress: is told in words what happens.
    """
    keys, policy = folder / "evidence.keys", folder / "policy.toml"
    new_keys(keys)
    policy.write_text(POLICY, "utf-8")
    with TemporaryDirectory(prefix="evidence-archive-tools-") as scratch:
        tools = _Tools(Path(scratch))
        progress("the loop with its whole history")
        whole = _run_whole(tools)
        with Archive.open(_url(folder), keys=keys, policy=policy) as archive:
            session = archive.session(SESSION, OWNER)
            archived = _run_archived(session, tools, progress)
            stats = session.stats()
            specs = session.tools
    progress("the claims")

    def opened(place: Path) -> Archive:
        return Archive.open(_url(place), keys=keys, policy=policy, create=False)

    originals = _originals(archived, tools)
    with opened(folder) as archive:
        equal = _equal(archive, originals)
        claims = [
            *_claims_of_the_loop(archived, originals, tools),
            Claim(
                "after a restart every original comes back with the sha256 of what the tool said",
                equal == len(originals),
            ),
            Claim("another org is refused, in the very words of an unknown ID", _is_refused(archive, originals)),
        ]
    claims += [
        Claim(
            "no line of an original and no note stands in the database as plain text",
            _is_closed(folder, archived, originals),
        ),
        Claim(
            "one changed byte in a sealed original is detected, and nothing altered is released",
            _damage_is_found(opened, folder, originals),
        ),
    ]
    counter = default_counter()
    return Report(
        tokens_whole=_tokens_of(whole, ()),
        tokens_archived=_tokens_of(archived, specs),
        originals=len(originals),
        bytes_archived=sum(len(text.encode("utf-8", "surrogatepass")) for text in originals.values()),
        originals_equal=equal,
        restores=stats.restores,
        view_ms_median=round(median(archived.view_ms), 3),
        tokens_estimated=counter.estimated,
        claims=claims,
    )


def _url(folder: Path) -> str:
    return f"sqlite:///{folder / 'evidence.db'}"


def _originals(run: _Run, tools: _Tools) -> dict[str, str]:
    """Result ID and what the tool said, for everything that is archived in the end."""
    shown = what_is_shown(run.model.requests[-1])
    ids = {shown[key].result_id: text for key, text in tools.outputs.items() if key in shown}
    return {result_id: text for result_id, text in ids.items() if run.states[-1].get(result_id) == "archived"}


def _archived_ids(states: dict[str, str]) -> set[str]:
    return {result_id for result_id, state in states.items() if state == "archived"}


def _claims_of_the_loop(run: _Run, originals: dict[str, str], tools: _Tools) -> Iterator[Claim]:
    requests = [request.messages for request in run.model.requests]
    last = [str(message["content"]) for message in requests[-1]]
    refused = next(index for index, turn in enumerate(PLAN) if UNKNOWN_ID in turn.archive)
    before, after = _archived_ids(run.states[refused - 1]), _archived_ids(run.states[refused])
    refusal = str(requests[refused + 1][-1]["content"])
    restored = next(index for index, turn in enumerate(PLAN) if turn.restore is not None)
    wanted = sum(len(turn.archive) for index, turn in enumerate(PLAN) if index != refused)
    yield Claim("every call of every request has its one result, in order", all(map(is_paired, requests)))
    yield Claim(
        f"{wanted} originals are archived, and notes stand where they stood",
        len(originals) == wanted == sum(text.startswith("[archived ") for text in last),
    )
    yield Claim("a note, once shown, stays the same byte for byte", _notes_stay(requests))
    yield Claim(
        "a batch with a protected result and an unknown ID is refused as a whole: NOTHING was archived",
        before == after and "NOTHING" in refusal and "protected" in refusal and "unknown" in refusal,
    )
    yield Claim(
        "what a prescription rests on is in full in the last request",
        any(tools.outputs[RECORD] in text for text in last),
    )
    yield Claim(
        "the model restores an original and reads exactly what the tool said",
        tools.outputs[SEARCH] in str(requests[restored + 1][-1]["content"]),
    )
    said = [message["content"] for message in run.messages if message["role"] == "tool"]
    yield Claim("the application's own messages still hold every result", set(tools.outputs.values()) <= set(said))


def is_paired(messages: Sequence[Any]) -> bool:
    """Whether every call in a list has its one result behind it, in the order of the calls.

    Args:
        messages: of the dialect ``chat``.
    """
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not waiting or waiting.pop(0) != message["tool_call_id"]:
                return False
        elif waiting:
            return False
        waiting += [call["id"] for call in message.get("tool_calls") or ()]
    return not waiting


def _notes_stay(requests: Sequence[Sequence[Any]]) -> bool:
    return all(
        later[index] == message
        for earlier, later in pairwise(requests)
        for index, message in enumerate(earlier)
        if str(message["content"]).startswith("[archived ")
    )


def _equal(archive: Archive, originals: dict[str, str]) -> int:
    """How many originals come back with the digest of what the tool said."""
    count = 0
    for result_id, text in originals.items():
        restored = archive.restore(SESSION, result_id, principal=OWNER)
        said = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        got = hashlib.sha256(restored.content.encode("utf-8", "surrogatepass")).hexdigest()
        count += said == got == restored.sha256
    return count


def _is_refused(archive: Archive, originals: dict[str, str]) -> bool:
    words = []
    for principal, result_id in ((STRANGER, next(iter(originals))), (OWNER, UNKNOWN_ID)):
        try:
            archive.restore(SESSION, result_id, principal=principal)
        except NotAvailableError as error:
            words.append(str(error))
    return len(words) == 2 and words[0] == words[1]


def _is_closed(folder: Path, run: _Run, originals: dict[str, str]) -> bool:
    data = b"".join(path.read_bytes() for path in sorted(folder.glob("evidence.db*")))
    notes = [
        line.removeprefix("> ")
        for message in run.model.requests[-1].messages
        if str(message["content"]).startswith("[archived ")
        for line in message["content"].splitlines()[1:]
    ]
    lines = [max(text.splitlines(), key=len) for text in originals.values()]
    return bool(notes) and not any(text.encode("utf-8", "surrogatepass") in data for text in [*notes, *lines])


def _damage_is_found(opened: Callable[[Path], Archive], folder: Path, originals: dict[str, str]) -> bool:
    """Whether one flipped byte in a copy is found, and nothing is found in a copy without."""
    with TemporaryDirectory(prefix="evidence-archive-copy-") as scratch:
        sound, damaged = Path(scratch, "sound"), Path(scratch, "damaged")
        for copy in (sound, damaged):
            copy.mkdir()
            for path in folder.glob("evidence.db*"):
                shutil.copy(path, copy / path.name)
        _flip_a_byte(damaged / "evidence.db")
        with opened(sound) as archive:
            unharmed = _equal(archive, originals) == len(originals)
        broken = 0
        with opened(damaged) as archive:
            for result_id, text in originals.items():
                try:
                    unharmed = unharmed and archive.restore(SESSION, result_id, principal=OWNER).content == text
                except IntegrityError:
                    broken += 1
    return unharmed and broken == 1


def _flip_a_byte(database: Path) -> None:
    """Change one byte of the first sealed original, wherever the file keeps it."""
    data = bytearray(database.read_bytes())
    at = data.find(_ENVELOPE_MAGIC)
    head = bytes(data[at : at + _ENVELOPE_HEAD_BYTES])
    while at >= 0:
        data[at + _ENVELOPE_HEAD_BYTES - 1] ^= 1
        at = data.find(head, at + 1)
    database.write_bytes(data)


def _tokens_of(run: _Run, specs: Sequence[Any]) -> list[int]:
    """Input tokens of each request, tool specs included."""
    tally = MessageTokens(default_counter())
    tools_tokens = tally.text(json.dumps([*SPECS, *specs]))
    return [tools_tokens + sum(tally.each(request.messages)) for request in run.model.requests]
