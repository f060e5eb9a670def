"""The scripted conversation of a sweep, and what each of its operations tells.

It views three tool results, archives them as one batch, views again, and restores: through a call of the model,
whole, and in part.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from evidence_archive import access
from evidence_archive.archive import Archive
from evidence_archive.errors import BatchRejectedError, EvidenceArchiveError, PolicyError
from evidence_archive.model import Facts, Principal, same_value
from evidence_archive.policy import Policy
from evidence_archive.session import Session
from evidence_archive.testing.faults import Crashed

__all__ = [
    "CLEAN",
    "PROBE_NOTE",
    "PROBE_TOOL",
    "Conversation",
    "Probe",
    "Told",
    "probe_facts",
    "tell",
    "tool_allowed_by",
]

PROBE_TOOL = "faults.probe"
PROBE_NOTE = "A probe of the fault sweep; nothing in it matters."
PROBE_CHARS = 4_000
AGE_TURNS = 4
"""Turns of the model after the probe's results, so that rules on age let them be archived."""


@dataclass(frozen=True, slots=True)
class Probe:
    """Who archives what in a sweep. Equal probes make equal conversations, in any process.

    Args:
        principal: owns the sessions.
        tool: whose results they seem to be; the policy has to let them be archived.
        large_chars: length of the second result, which is restored whole, where that is more than the others have;
            for an archive that keeps large originals elsewhere.
    """

    principal: Principal
    tool: str = PROBE_TOOL
    large_chars: int = 0

    @property
    def contents(self) -> tuple[str, str, str]:
        """The three tool results."""
        return (_lines("a", PROBE_CHARS), _lines("b", max(PROBE_CHARS, self.large_chars)), _lines("c", PROBE_CHARS))

    @property
    def batch(self) -> list[tuple[str, str]]:
        """All three, with a note each."""
        return [(result_id, PROBE_NOTE) for result_id in ("r1", "r2", "r3")]

    def messages(self) -> list[dict[str, Any]]:
        """The conversation as the application holds it, in chat completions."""
        calls = [
            {"id": f"probe_{at}", "type": "function", "function": {"name": self.tool, "arguments": "{}"}}
            for at in range(len(self.contents))
        ]
        talk: list[dict[str, Any]] = [
            {"role": "user", "content": "Look at the probes."},
            {"role": "assistant", "content": None, "tool_calls": calls},
            *(
                {"role": "tool", "tool_call_id": call["id"], "content": content}
                for call, content in zip(calls, self.contents, strict=True)
            ),
        ]
        for _ in range(AGE_TURNS):
            talk += [{"role": "assistant", "content": "Read."}, {"role": "user", "content": "Go on."}]
        return talk

    def shown(self, view: Sequence[Any]) -> str:
        """What a view shows: ``old`` (all originals), ``new`` (all notes), or ``mixed``, which must never be."""
        messages = self.messages()
        if len(view) != len(messages):
            return "mixed"
        kinds = set()
        for message, seen in zip(messages, view, strict=True):
            text = seen["content"]
            if seen == message or (message["role"] == "tool" and _labelled(text, message["content"])):
                kinds |= {"old"} if message["role"] == "tool" else set()
            elif message["role"] == "tool" and text.startswith("[archived r") and text.endswith(PROBE_NOTE):
                kinds.add("new")
            else:
                return "mixed"
        return kinds.pop() if len(kinds) == 1 else "mixed"


def _lines(name: str, size_chars: int) -> str:
    line = "{name}{number:08} nothing is the matter here, all is as it was\n"
    count = size_chars // len(line.format(name=name, number=0)) + 1
    return "".join(line.format(name=name, number=number) for number in range(count))


def _labelled(text: str, content: str) -> bool:
    return text.startswith("[evidence r") and text.partition("\n")[2] == content


@dataclass(frozen=True, slots=True)
class Told:
    """What a caller was told by one operation.

    Args:
        operation: such as ``archive``.
        word: what came back: ``old`` or ``new`` for a view, ``receipt``, ``restored``, ``unequal``, ``refused``, or
            the name of an error.
        error: what was raised.
    """

    operation: str
    word: str
    error: BaseException | None = field(default=None, repr=False, compare=False)


def tell(operation: str, verb: Callable[[], str]) -> Told:
    """What a caller is told by an operation, whatever it raises.

    Args:
        operation: its name.
        verb: gives the word for what came back.
    """
    try:
        return Told(operation, verb())
    except BatchRejectedError as error:
        return Told(operation, f"rejected: {error.reason}", error)
    except EvidenceArchiveError as error:
        return Told(operation, type(error).__name__, error)
    except Crashed as error:
        return Told(operation, "crashed", error)
    except Exception as error:
        return Told(operation, f"untyped {type(error).__name__}", error)


class Conversation:
    """The scripted conversation of one session.

    Args:
        probe: what it is about.
        session_id: where it takes place.
        heard: is called with what each operation told, at once; a process that may be killed prints it.
        begins: is called with the name of each operation before it.
    """

    def __init__(
        self,
        probe: Probe,
        session_id: str,
        *,
        heard: Callable[[Told], object] = lambda told: None,
        begins: Callable[[str], object] = lambda operation: None,
    ) -> None:
        self.probe = probe
        self.session_id = session_id
        self.told: list[Told] = []
        self._heard = heard
        self._begins = begins

    def run(self, archive: Archive) -> None:
        """Say and do everything; what fails is told, and the next operation follows, as in an agent loop.

        Args:
            archive: where.
        """
        session = self.open(archive, "open") or self.open(archive, "open again")
        if session is None:
            return
        probe, first, messages = self.probe, self.probe.contents[0], self.probe.messages()
        self._told("view", lambda: probe.shown(session.view(messages)))
        self._told("archive", lambda: _acknowledged(session.archive(probe.batch, idempotency_key=self.session_id)))
        self._told("next view", lambda: probe.shown(session.view(messages)))
        self._told("restore by call", lambda: self._answered(session, first))
        self._told("restore", lambda: _equal(session.restore("r2").content, probe.contents[1]))
        part = "".join(first.splitlines(keepends=True)[1:3])
        self._told("restore part", lambda: _equal(session.restore("r1", lines="2-3").content.strip(), part.strip()))

    def open(self, archive: Archive, operation: str) -> Session | None:
        """The session, or ``None`` when it could not be opened.

        Args:
            archive: where.
            operation: what this is called in what is told.
        """
        opened: list[Session] = []

        def open_session() -> str:
            opened.append(archive.session(self.session_id, self.probe.principal))
            return "opened"

        self._told(operation, open_session)
        return opened[0] if opened else None

    def _told(self, operation: str, verb: Callable[[], str]) -> None:
        self._begins(operation)
        told = tell(operation, verb)
        self.told.append(told)
        self._heard(told)
        if isinstance(told.error, Crashed):
            raise told.error

    def _answered(self, session: Session, content: str) -> str:
        function = {"name": "restore_evidence", "arguments": _WHOLE}
        answer = session.answer({"id": "restore_1", "type": "function", "function": function})
        return "restored" if answer is not None and content in answer["content"] else "refused"


_WHOLE = (
    '{"id": "r1", "lines": null, "pattern": null, "context_lines": null, "pointer": null, '
    '"reason": "the fault sweep asks"}'
)


def _acknowledged(receipt: Any) -> str:
    return "receipt" if receipt.result_ids == ("r1", "r2", "r3") else "receipt of something else"


def _equal(restored: Any, content: str) -> str:
    return "restored" if same_value(restored, content) else "unequal"


CLEAN = {
    "open": "opened",
    "view": "old",
    "archive": "receipt",
    "next view": "new",
    "restore by call": "restored",
    "restore": "restored",
    "restore part": "restored",
}
"""What a conversation without faults tells."""


def probe_facts(tool: str) -> Facts:
    """What a policy may know of a small result of the probe.

    Args:
        tool: whose result it seems to be.
    """
    return Facts(
        tools=(tool,),
        sensitivity=frozenset(),
        kind=None,
        size_chars=PROBE_CHARS,
        age_turns=AGE_TURNS,
        text=_lines("a", PROBE_CHARS),
    )


def tool_allowed_by(policy: Policy, principal: Principal, tools: Iterable[str]) -> str:
    """The first of some tools whose results the policy lets this principal archive and have back.

    Args:
        policy: the rules.
        principal: who would own the session.
        tools: names.

    Raises:
        PolicyError: it lets none of them.
    """
    tried = []
    for tool in tools:
        facts = probe_facts(tool)
        openings = policy.restore_openings(facts)
        may = access.decide(principal, principal.org, principal.subject, openings)
        if policy.decide_archive(facts).effect != "never" and may:
            return tool
        tried.append(tool)
    raise PolicyError(
        f"The policy lets no result of {', '.join(map(repr, tried)) or 'any tool'} be archived by who sweeps: "
        "name a tool that it does, and the roles it asks for."
    )
