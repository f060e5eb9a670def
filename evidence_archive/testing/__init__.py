"""What tests of agent loops need: a scripted model, a local chat server, a clock that stands still."""

from evidence_archive.testing.chat_server import ChatServer
from evidence_archive.testing.scripted import (
    HARD_CALL_IDS,
    Call,
    FrozenClock,
    ScriptedModel,
    ScriptedObject,
    ScriptedReply,
    ScriptedRequest,
    call,
    say,
)

__all__ = [
    "HARD_CALL_IDS",
    "Call",
    "ChatServer",
    "FrozenClock",
    "ScriptedModel",
    "ScriptedObject",
    "ScriptedReply",
    "ScriptedRequest",
    "call",
    "say",
]
