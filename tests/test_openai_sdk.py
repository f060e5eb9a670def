"""The loops of the documents with the real ``openai`` SDK against a scripted model on 127.0.0.1."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import BaseModel

from evidence_archive import AsyncArchive, Principal
from evidence_archive.keys import new_keys
from evidence_archive.session import Session
from evidence_archive.testing import Call, ChatServer, ScriptedModel, ScriptedReply, call, say

ROOT = Path(__file__).resolve().parents[1]
OWNER = Principal(org="north-clinic", subject="triage-agent", roles={"agent"})
FILES = {
    "a.log": "".join(f"01:{n % 60:02} node 3 timeout, disk sdc\r\n" for n in range(200)),
    "b.log": "alles gut \N{GRINNING FACE} \u202e\x00\n" * 100,
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "logs.read",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]
TEN_LINES = """\
from evidence_archive import Archive, Principal

with Archive.open("sqlite:///evidence.db", keys="evidence.keys", policy="policies/clinical.toml") as archive:
    session = archive.session("case-4711", Principal(org="north-clinic", subject="triage-agent", roles={"agent"}))
    while True:
        reply = client.chat.completions.create(
            model=MODEL, messages=session.view(messages), tools=[*TOOLS, *session.tools])
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += [session.answer(call) or run_tool(call) for call in message.tool_calls]
"""
RESTORE = {"lines": None, "pattern": None, "context_lines": None, "pointer": None, "reason": "to quote it"}


def script() -> list[ScriptedReply]:
    """Read two files at once, archive both, have one back whole, and answer."""
    return [
        ScriptedReply(None, (Call("logs.read", {"path": "a.log"}), Call("logs.read", {"path": "b.log"}))),
        call("archive_evidence", batch=[{"id": "r1", "note": "disk sdc"}, {"id": "r2", "note": "nothing"}]),
        call("restore_evidence", id="r1", **RESTORE),
        say("Disk sdc of node 3 is failing."),
    ]


class Tools:
    """Tools that really run; results are plain dicts beside the SDK's objects."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    def __call__(self, made: Any) -> dict[str, Any]:
        plain = made if isinstance(made, dict) else made.model_dump()
        path = json.loads(plain["function"]["arguments"])["path"]
        self.ran.append(path)
        return {"role": "tool", "tool_call_id": plain["id"], "content": FILES[path]}


def as_sent(messages: list[Any]) -> list[Any]:
    """A list as JSON has it: SDK objects with the fields that were set, as the SDK sends them."""
    plain = [m.model_dump(exclude_unset=True) if isinstance(m, BaseModel) else m for m in messages]
    return json.loads(json.dumps(plain))


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with ChatServer(ScriptedModel(script())) as running:
        yield running


@pytest.fixture
def client(server: ChatServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.base_url, api_key="unused", max_retries=0) as made:
        yield made


@pytest.fixture
def views(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """Every view that was made, as JSON has it."""
    made: list[list[Any]] = []
    real = Session.view

    def view(self: Session, messages: Any, **named: Any) -> list[Any]:
        shown = real(self, messages, **named)
        made.append(as_sent(shown))
        return shown

    monkeypatch.setattr(Session, "view", view)
    return made


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "policies").symlink_to(ROOT / "policies")
    new_keys(tmp_path / "evidence.keys")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def readme_loop() -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    assert found is not None
    return found[1]


def streamed_of_the_docs() -> Any:
    """The function that docs/loops.md gives for streams."""
    page = (ROOT / "docs" / "loops.md").read_text("utf-8")
    source = page[page.index("def streamed(") : page.index("def run_named(")]
    names: dict[str, Any] = {}
    exec(source, names)
    return names["streamed"]


def held(messages: list[Any], requests: list[Any]) -> None:
    """What every loop over the script must have led to."""
    roles = [m["role"] if isinstance(m, dict) else m.role for m in messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant", "tool", "assistant"]
    assert messages[2]["content"] == FILES["a.log"]
    assert messages[3]["content"] == FILES["b.log"]
    receipt, restored = messages[5]["content"], messages[7]["content"]
    assert "r1" in receipt
    assert "r2" in receipt
    assert FILES["a.log"] in restored
    before, after = requests[1].messages, requests[2].messages
    assert before[2]["content"].endswith(FILES["a.log"])
    assert before[2]["content"].startswith("[evidence r1 tag=")
    assert after[2]["content"].startswith("[archived r1 tag=")
    assert after[3]["content"].startswith("[archived r2 tag=")
    assert after[2]["tool_call_id"] == before[2]["tool_call_id"]
    assert requests[3].messages[:6] == after[:6], "a restore left the conversation's prefix as it was"


# --- the ten lines ------------------------------------------------------------------------------------------------


def test_the_readme_prints_the_ten_lines():
    assert readme_loop() == TEN_LINES


def test_the_ten_lines_archive_and_restore_with_the_real_sdk(folder, server, client, views):
    run_tool = Tools()
    messages: list[Any] = [{"role": "user", "content": "What is wrong?"}]
    names = {"client": client, "MODEL": "any", "TOOLS": TOOLS, "run_tool": run_tool, "messages": messages}
    exec(TEN_LINES, names)
    assert run_tool.ran == ["a.log", "b.log"]
    assert isinstance(messages[1], ChatCompletionMessage)
    held(messages, server.model.requests)
    assert [list(request.messages) for request in server.model.requests] == views


def test_the_tools_on_the_wire_are_the_sessions_own_after_the_applications(folder, server, client):
    exec(TEN_LINES, {"client": client, "MODEL": "m", "TOOLS": TOOLS, "run_tool": Tools(), "messages": []})
    for request in server.model.requests:
        names = [tool["function"]["name"] for tool in request.tools]
        assert names == ["logs.read", "archive_evidence", "restore_evidence"]
        assert request.tools == server.model.requests[0].tools
        assert request.options == {"model": "m"}


def test_the_applications_sdk_objects_are_not_changed_by_views(folder, server, client, views):
    messages: list[Any] = [{"role": "user", "content": "go on"}]
    names = {"client": client, "MODEL": "any", "TOOLS": TOOLS, "run_tool": Tools(), "messages": messages}
    exec(TEN_LINES, names)
    before = as_sent(messages)
    with names["Archive"].open("sqlite:///evidence.db", keys="evidence.keys") as archive:
        session = archive.session("case-4711", OWNER)
        shown = session.view(messages)
        assert as_sent(session.view(shown)) == as_sent(shown)
        assert shown[1] is messages[1]
    assert as_sent(messages) == before


def test_a_list_as_json_gives_the_same_view_as_the_sdks_objects(folder, server, client):
    messages: list[Any] = [{"role": "user", "content": "go on"}]
    names = {"client": client, "MODEL": "any", "TOOLS": TOOLS, "run_tool": Tools(), "messages": messages}
    exec(TEN_LINES, names)
    with names["Archive"].open("sqlite:///evidence.db", keys="evidence.keys") as archive:
        as_objects = archive.session("case-4711", OWNER).view(messages)
        as_dicts = archive.session("case-4711", OWNER).view(as_sent(messages))
    assert as_sent(as_objects) == as_dicts


# --- streamed -----------------------------------------------------------------------------------------------------


def test_a_streamed_loop_archives_and_restores(desk, server, client, views):
    streamed, run_tool = streamed_of_the_docs(), Tools()
    messages: list[Any] = [{"role": "user", "content": "What is wrong?"}]
    with desk.open() as archive:
        session = archive.session("streamed", OWNER)
        while True:
            chunks = client.chat.completions.create(
                model="any", messages=session.view(messages), tools=[*TOOLS, *session.tools], stream=True
            )
            message = streamed(chunks)
            messages.append(message)
            if "tool_calls" not in message:
                break
            messages += [session.answer(made) or run_tool(made) for made in message["tool_calls"]]
    assert run_tool.ran == ["a.log", "b.log"]
    held(messages, server.model.requests)
    assert [list(request.messages) for request in server.model.requests] == views


def test_a_loop_that_answers_half_streamed_calls_is_refused_and_archives_nothing(desk, server, client):
    messages: list[Any] = [{"role": "user", "content": "What is wrong?"}]
    with desk.open() as archive:
        session = archive.session("cut", OWNER)
        first = client.chat.completions.create(model="any", messages=session.view(messages)).choices[0].message
        messages += [first, *map(Tools(), first.tool_calls)]
        whole = client.chat.completions.create(model="any", messages=session.view(messages)).choices[0].message
        cut = whole.model_dump()["tool_calls"][0]
        cut["function"]["arguments"] = cut["function"]["arguments"][:-3]
        messages += [{"role": "assistant", "content": None, "tool_calls": [cut]}, session.answer(cut)]
        assert "othing was archived" in messages[-1]["content"] or "NOTHING" in messages[-1]["content"]
        assert {info.state for info in session.results()} == {"live"}


# --- async --------------------------------------------------------------------------------------------------------


async def async_loop(desk: Any, base_url: str, name: str, run_tool: Tools, *, stream: bool) -> list[Any]:
    streamed = streamed_of_the_docs()
    messages: list[Any] = [{"role": "user", "content": "What is wrong?"}]
    async with (
        openai.AsyncOpenAI(base_url=base_url, api_key="unused", max_retries=0) as client,
        AsyncArchive.open(desk.url, keys=desk.keys) as archive,
    ):
        session = await archive.session(name, OWNER)
        while True:
            reply = await client.chat.completions.create(
                model="any",
                messages=await session.view(messages),
                tools=[*TOOLS, *session.tools],
                **({"stream": True} if stream else {}),
            )
            if stream:
                message = streamed([chunk async for chunk in reply])
                calls = message.get("tool_calls")
            else:
                message = reply.choices[0].message
                calls = message.tool_calls
            messages.append(message)
            if not calls:
                return messages
            messages += [await session.answer(made) or run_tool(made) for made in calls]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_the_ten_lines_awaited_archive_and_restore(desk, server, views, stream):
    run_tool = Tools()
    messages = asyncio.run(async_loop(desk, server.base_url, "async", run_tool, stream=stream))
    assert run_tool.ran == ["a.log", "b.log"]
    held(messages, server.model.requests)
    assert [list(request.messages) for request in server.model.requests] == views


def test_conversations_side_by_side_do_not_touch_each_other(desk):
    async def all_of_them(urls: list[str]) -> list[list[Any]]:
        return await asyncio.gather(
            *(async_loop(desk, url, f"side-{n}", Tools(), stream=False) for n, url in enumerate(urls))
        )

    with (
        ChatServer(ScriptedModel(script())) as one,
        ChatServer(ScriptedModel(script())) as two,
        ChatServer(ScriptedModel(script())) as three,
    ):
        servers = [one, two, three]
        for messages, server in zip(asyncio.run(all_of_them([s.base_url for s in servers])), servers, strict=True):
            held(messages, server.model.requests)
    with desk.open() as archive:
        assert archive.audit(principal=OWNER).intact
