"""The scripted model, the frozen clock and the chat server: what tests of agent loops stand on."""

import json
from http.client import HTTPConnection

import pytest

from evidence_archive.errors import MisuseError
from evidence_archive.testing import (
    HARD_CALL_IDS,
    Call,
    ChatServer,
    FrozenClock,
    ScriptedModel,
    ScriptedObject,
    ScriptedReply,
    call,
    say,
)

MESSAGES = [{"role": "user", "content": "Why is the disk full?"}]
LOOP = [call("logs.read", path="a.log", lines=40), say("The log is full.")]
UGLY = "CRLF\r\n NUL\0 lone \ud800 \N{GRINNING FACE} \u202e"


def ask(model, **options):
    return model.chat.completions.create(model="any", messages=MESSAGES, **options)


# --- the model --------------------------------------------------------------------------------------------------


def test_the_loop_of_the_documentation_runs_to_its_end():
    client = ScriptedModel(LOOP)
    messages = list(MESSAGES)
    while True:
        reply = client.chat.completions.create(model="any", messages=messages, tools=[])
        message = reply.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        messages += [{"role": "tool", "tool_call_id": made.id, "content": "100 %"} for made in message.tool_calls]
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
    assert messages[1].tool_calls[0].function.name == "logs.read"
    assert json.loads(messages[1].tool_calls[0].function.arguments) == {"path": "a.log", "lines": 40}
    assert messages[3].content == "The log is full."


def test_two_models_with_one_script_give_equal_replies():
    assert [ask(ScriptedModel(LOOP)) for _ in range(2)] == [ask(ScriptedModel(LOOP))] * 2


def test_every_request_is_recorded_as_it_was_sent():
    client, messages, tools = ScriptedModel(LOOP), list(MESSAGES), [{"type": "function"}]
    client.create(model="any", messages=messages, tools=tools, temperature=0)
    messages.append({"role": "user", "content": "later"})
    client.create(messages=messages)
    first, second = client.requests
    assert (first.number, first.messages, first.tools) == (0, tuple(MESSAGES), tuple(tools))
    assert first.options == {"model": "any", "temperature": 0}
    assert (second.number, second.tools, len(second.messages)) == (1, (), 2)


def test_a_step_sees_the_request_and_one_function_can_be_the_whole_script():
    def echo(request):
        return say(f"{request.number}: {request.messages[-1]['content']}")

    assert ask(ScriptedModel([echo])).choices[0].message.content == "0: Why is the disk full?"
    endless = ScriptedModel(echo)
    assert [ask(endless).choices[0].message.content[0] for _ in range(3)] == ["0", "1", "2"]


def test_a_script_that_ends_too_early_says_so():
    client = ScriptedModel([say("all")])
    ask(client)
    with pytest.raises(MisuseError, match="1 steps"):
        ask(client)


def test_call_ids_are_counted_given_or_hard():
    twice = ScriptedReply(None, (Call("a"), Call("b", id="mine"), Call("c")))
    ids = [made.id for made in ask(ScriptedModel([twice])).choices[0].message.tool_calls]
    assert ids == ["call_1", "mine", "call_2"]
    hard = ScriptedModel(lambda request: call("a"), call_ids=HARD_CALL_IDS)
    got = [ask(hard).choices[0].message.tool_calls[0].id for _ in range(len(HARD_CALL_IDS) + 1)]
    assert got == [*HARD_CALL_IDS, HARD_CALL_IDS[0]]
    assert {"", "x" * 2_000} < set(got)
    assert len(set(got)) < len(got) - 1


def test_arguments_can_be_text_that_is_not_json():
    reply = ask(ScriptedModel([ScriptedReply(None, (Call("a", '{"cut'),))]))
    assert reply.choices[0].message.tool_calls[0].function.arguments == '{"cut'


def test_objects_are_dicts_with_attributes():
    made = ScriptedObject(a=1)
    assert (made.a, made["a"], made) == (1, 1, {"a": 1})
    with pytest.raises(AttributeError):
        _ = made.b


def joined(chunks):
    text, calls, finish = "", {}, None
    for chunk in chunks:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        for piece in choice.delta.tool_calls or ():
            known = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "arguments": ""})
            known["arguments"] += piece.function.arguments or ""
        finish = choice.finish_reason or finish
    return text, list(calls.values()), finish


def test_a_stream_adds_up_to_the_reply():
    long = "word " * 50
    reply = ScriptedReply(long, (Call("a", {"text": UGLY + long}), Call("b", id="")))
    whole = ask(ScriptedModel([reply])).choices[0].message
    text, calls, finish = joined(ask(ScriptedModel([reply]), stream=True))
    assert text == whole.content == long
    assert [(made["id"], made["name"], made["arguments"]) for made in calls] == [
        (made.id, made.function.name, made.function.arguments) for made in whole.tool_calls
    ]
    assert finish == "tool_calls"
    assert joined(ask(ScriptedModel([say("done")]), stream=True)) == ("done", [], "stop")


def test_evidence_is_in_no_repr():
    client = ScriptedModel([ScriptedReply("secret words", (Call("a", {"key": "secret words"}),))])
    ask(client)
    assert "secret" not in repr(client._script)
    assert "disk" not in repr(client.requests)


# --- the clock --------------------------------------------------------------------------------------------------


def test_a_frozen_clock_moves_only_when_told():
    clock = FrozenClock(1_000_000)
    assert (clock.now_us(), clock.monotonic_ms()) == (clock.now_us(), clock.monotonic_ms()) == (1_000_000, 0)
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic_ms()) == (2_500_000, 1_500)
    with pytest.raises(MisuseError):
        clock.advance(-1)


def test_the_system_clock_counts_microseconds_since_1970_and_never_goes_back():
    from evidence_archive.clock import SystemClock

    clock = SystemClock()
    assert 1_700_000_000_000_000 < clock.now_us() < 10_000_000_000_000_000
    times = [clock.monotonic_ms() for _ in range(100)]
    assert times == sorted(times)


# --- the server -------------------------------------------------------------------------------------------------


@pytest.fixture
def openai():
    return pytest.importorskip("openai")


def test_the_real_sdk_runs_a_loop_against_the_server(openai):
    model = ScriptedModel(LOOP)
    with ChatServer(model) as server, openai.OpenAI(base_url=server.base_url, api_key="unused") as client:
        first = client.chat.completions.create(model="any", messages=MESSAGES)
        made = first.choices[0].message.tool_calls[0]
        answer = {"role": "tool", "tool_call_id": made.id, "content": "100 % \N{GRINNING FACE}\r\n"}
        second = client.chat.completions.create(model="any", messages=[*MESSAGES, first.choices[0].message, answer])
    assert (made.id, made.function.name) == ("call_1", "logs.read")
    assert second.choices[0].message.content == "The log is full."
    assert model.requests[1].messages[2] == answer
    assert model.requests[0].options == {"model": "any"}


def test_the_real_sdk_streams_from_the_server(openai):
    reply = ScriptedReply("looking " * 20, (Call("logs.read", {"path": "\N{GRINNING FACE}" * 30}),))
    model = ScriptedModel([reply])
    with ChatServer(model) as server, openai.OpenAI(base_url=server.base_url, api_key="unused") as client:
        text, calls, finish = joined(client.chat.completions.create(model="any", messages=MESSAGES, stream=True))
    assert text == "looking " * 20
    assert json.loads(calls[0]["arguments"]) == {"path": "\N{GRINNING FACE}" * 30}
    assert finish == "tool_calls"


def test_a_script_that_fails_is_one_clear_error_for_the_sdk(openai):
    def broken(request):
        raise ValueError("words of evidence")

    model = ScriptedModel([broken])
    with ChatServer(model) as server, openai.OpenAI(base_url=server.base_url, api_key="unused") as client:
        with pytest.raises(openai.BadRequestError, match="raised ValueError") as caught:
            client.chat.completions.create(model="any", messages=MESSAGES)
        with pytest.raises(openai.BadRequestError, match="add a step"):
            client.chat.completions.create(model="any", messages=MESSAGES)
    assert "evidence" not in str(caught.value)
    assert len(model.requests) == 2, "an SDK must not try again"


def send(server, method, path, body, headers=None):
    port = int(server.base_url.split(":")[2].split("/")[0])
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/v1/chat/completions", b"not json", None, 400),
        ("POST", "/v1/chat/completions", b"[]", None, 400),
        ("POST", "/v1/chat/completions", b'{"messages": "no list"}', None, 400),
        ("POST", "/v1/chat/completions", b"", {"Content-Length": "many"}, 400),
        ("POST", "/v1/chat/completions", b"", {"Content-Length": "99999999999"}, 400),
        ("POST", "/v1/embeddings", b"{}", None, 400),
        ("GET", "/v1/models", None, None, 501),
    ],
)
def test_a_request_of_another_kind_is_refused_and_not_recorded(method, path, body, headers, status):
    model = ScriptedModel([say("hello")])
    with ChatServer(model) as server:
        assert send(server, method, path, body, headers)[0] == status
        assert model.requests == []
        assert send(server, "POST", "/v1/chat/completions", json.dumps({"messages": MESSAGES}))[0] == 200


def test_a_server_that_does_not_run_has_no_address():
    server = ChatServer(ScriptedModel([]))
    with pytest.raises(MisuseError, match="with"):
        _ = server.base_url
    with server:
        assert server.base_url.startswith("http://127.0.0.1:")
    with pytest.raises(MisuseError):
        _ = server.base_url
    server.__exit__(None, None, None)
