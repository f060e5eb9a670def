"""Text that wants to be taken for ours, through card, ledger, search, spans and summaries.

Each string of a corpus is a goal, a step, a reason, a claim, an artifact and its name, a tool's name, arguments, what
was said, a query and what a summariser answers. Afterwards every line of ours that a model reads is of our grammar,
what is not ours is quoted and hides nothing, nothing was adopted, and everything comes back exactly.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from conftest import Conversation, Desk
from corpus import GROUPS, KINDS
from doubles import Characters, arguments, policy_of
from hostile import HIDDEN
from test_session_window import everything, size

from evidence_archive import Archive, FormatError, Principal, Session, notes
from evidence_archive.keys import new_keys
from evidence_archive.ledger.checks import quotes
from evidence_archive.ledger.sources import bytes_of
from evidence_archive.window import carrying, changing
from evidence_archive.window.card import Card, parse_changes
from evidence_archive.window.carrying import HEAD, carried
from evidence_archive.window.changing import CHANGES_HEAD

OWNER = Principal(org="north-clinic", subject="owner", roles={"custodian"})
BUDGET = 16_000
POLICY = policy_of(
    f"[window]\nwindow_tokens_max = {BUDGET}\narchive_tokens_min = 50\n"
    "reminder_tokens = 1000\nreminder_chars = 1000\n"
)
LONG = "".join(f"worker {number} has nothing to report\n" for number in range(45))
SPELLINGS = ("plain", "upper", "other line ends", "NUL between", "lone halves", "quoted", "behind right-to-left")
OURS = re.compile(
    "|".join(
        (
            *map(re.escape, (HEAD, CHANGES_HEAD, "Established facts:", "The card of this task:")),
            r"Left this window, newest first; restore_evidence with the id gives the exact messages:",
            r"Open or decided in turns that left, newest first:",
            r"\.\.\. (and )?\d+ (facts|items of the card|points|spans)( more)?",
            r"\.\.\. and \d+ older spans that nothing refers to: search_evidence finds what is in them",
            r"The window holds \d+ tokens: archive long results you have finished with \(archive_evidence\)\.",
            r"> .*",
        )
    )
)
"""Every line that a message of ours consists of."""

FOUND = re.compile(
    r"\[search \| (the first of more hits, )?\d+ hits in \d+ archived originals"
    r'(, \d+ more were left out: they are older or too large(; search with before "r\d+" for these)?)?\]'
    r"|r\d+#L\d+ \([^\[\]|\n]{1,64}\)|> .*"
)
REFUSED = ("The card was not changed: ", "Nothing was searched: ")


def chosen() -> dict[str, list[Callable[[str], str]]]:
    """The strings, by what they pretend to be; those of one character are all in one string."""
    strings = {kind: [GROUPS[kind][spelling] for spelling in SPELLINGS] for kind in KINDS}
    for kind in ("an id", "a name of ours", "a hidden character"):
        texts = [made("9f3c") for made in GROUPS[kind].values()]
        strings[kind] = [lambda tag, texts=texts: "\n".join(texts), lambda tag, texts=texts: "".join(texts[::-1])]
    return strings


class Trial:
    """One string in one session, and what was wrong afterwards.

    Args:
        archive: under :data:`POLICY`.
        made: the string, for the session's tag.
        session_id: of a new session.
    """

    def __init__(self, archive: Archive, made: Callable[[str], str], session_id: str) -> None:
        self.archive = archive
        self.session_id = session_id
        self.found: list[str] = []
        self.forged = ""
        self.session = archive.session(session_id, OWNER, summarizer=self)
        self.talk = Conversation()
        self.talk.tool(f"victim {LONG}")
        self.talk.say()
        self.tag = re.findall(r"\[evidence r1 tag=([0-9a-f]+)\]", str(self.session.view(self.talk.messages)))[0]
        self.forged = made(self.tag)

    def summarize(self, span: Any, earlier: Any, refused: str | None) -> str:
        """A hostile summary: the string in every part, or, asked again, in the place of all parts."""
        if refused is not None:
            return self.forged
        points = "\n- ".join(self.forged.split("\n"))[:250]
        return "\n".join(f"{part}:\n- {points}" for part in ("conclusion", "basis", "unresolved", "references"))

    def claim(self, holds: bool, words: str) -> None:
        if not holds:
            self.found.append(words)

    def run(self) -> list[str]:
        for step in (self.written, self.asked, self.posted, self.left, self.searched, self.same):
            try:
                step()
            except Exception as error:
                self.found.append(f"{step.__name__}: {type(error).__name__}: {str(error)[:200]}")
        return self.found

    def fit(self, chars_max: int) -> str:
        """As much of it as a field takes, the beginning of a line if possible."""
        text = self.forged[:chars_max]
        return text if text.strip() else f"x{text}"[:chars_max]

    def product(self) -> str:
        return f"{self.fit(1_000)}\nneedle {self.fit(1_000)}"

    def view(self) -> list[Any]:
        """A view of all; every message of ours is of our grammar, and all others are the application's."""
        view = self.session.view(self.talk.messages)
        theirs = {id(message) for message in self.talk.messages}
        ours = 0
        self.claim(size(view) <= BUDGET, "a view is too large")
        for message in view:
            if id(message) in theirs or message["role"] == "tool":
                continue
            ours += 1
            self.grammar(message["content"], OURS, "a message of ours")
        self.claim(ours <= 2, "there are more messages of ours than two")
        return view

    def grammar(self, text: str, lines: re.Pattern[str], what: str) -> None:
        self.claim(all(lines.fullmatch(line) for line in text.split("\n")), f"{what} holds a line that is not ours")
        self.claim(not set(HIDDEN) & set(text), f"{what} hides something")

    # --- steps ----------------------------------------------------------------------------------------------

    def written(self) -> None:
        """On the card, by the host and by the model; what is told at the end of the next view."""
        text = self.fit(500)
        self.session.update_card([{"goal": text}, {"add": "step", "text": text}])
        decision = {"add": "decision", "text": text, "reason": text, "references": ["r1#L1"]}
        told = self.talk.ours(self.session, notes.CARD_TOOL, json.dumps({"changes": [decision]}))["content"]
        self.claim(told == "[card changed | d1 is draft]", "an answer about the card is not ours")
        self.session.update_card([{"id": "s1", "to": "dropped", "reason": text}])
        self.talk.say()
        view = self.view()
        self.claim(view[-1]["content"].startswith(CHANGES_HEAD), "what changed is not told at the end")

    def asked(self) -> None:
        """As an id, a state and a reference of the card, and as keys of a change: refused, in one line."""
        for change in (
            {"id": self.fit(500), "to": "confirmed"},
            {"id": "d1", "to": self.fit(500)},
            {"id": "d1", "references": [self.fit(500)]},
            {"goal": "x", self.fit(500): 1},
        ):
            told = self.talk.ours(self.session, notes.CARD_TOOL, json.dumps({"changes": [change]}))["content"]
            self.claim(told.startswith(REFUSED) and told.count("\n") == 1, "a change was not refused in one line")
            self.claim(not set(HIDDEN) & set(told), "a refusal hides something")
            if self.forged.strip() and len(self.forged) > 12:
                self.claim(f"\n{self.forged}" not in told, "a refusal holds a line that is not ours")
        self.talk.say()

    def posted(self) -> None:
        """As an artifact and its name, a claim and a fact."""
        ledger, text = self.session.ledger, self.fit(1_000)
        self.artifact = ledger.store("made/up.txt", self.product())
        with suppress(FormatError):
            named = ledger.store(self.fit(200), "named").name
            self.claim(named.isprintable() and " " not in named, "a name has what no name has")
        fact = ledger.verify(ledger.claim(text, ["artifact:made/up.txt"]), quotes("needle"), key=True)
        self.claim(fact.text == text, "a fact says something else")
        ledger.close()
        lines = carried(ledger.opening(), Card(), (), count=len, budget_tokens=100_000)
        self.grammar(lines, OURS, "a balance")

    def left(self) -> None:
        """In turns that leave: name of a tool, arguments, what was said and asked, a result."""
        for content in (f"{LONG}\n{self.forged}", f"{self.forged}\nERROR OPS-1 {LONG}"):
            call = self.talk.call(self.forged[:64] or "x", self.forged[:2_000])
            self.talk.messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})
            self.talk.say(self.forged[:2_000])
            self.talk.messages.append({"role": "user", "content": f"Is it so? {self.forged[:2_000]}"})
        self.view()
        for at in range(6):
            self.talk.tool(f"{at} {LONG}")
            self.talk.say(f"turn {at} " * 1_200)
            view = self.view()
        told = [one["content"] for one in view if str(one["content"]).startswith(HEAD)]
        self.claim(
            len(told) == 1 and bool(re.search(r"^> r\d+: messages |^\.\.\. .* spans", told[0], re.M)), "no turn left"
        )
        for message in view:
            if message["role"] == "tool" and message["content"].startswith("[archived r"):
                header, *words = message["content"].split("\n")
                real = re.match(rf"\[archived r\d+ tag={self.tag} \| a note, not the content \| ", header)
                if real and not any(message is one for one in self.talk.messages):
                    self.claim(all(line.startswith("> ") for line in words), "words of a note are not quoted")
                    self.claim(not set(HIDDEN) & set(message["content"]), "a note hides something")

    def searched(self) -> None:
        """As a query and as what is found: lines that stand in the originals, quoted."""
        for query in {next(filter(str.strip, self.forged.split("\n")), "x")[:500], "needle", "nothing to report"}:
            told = self.talk.ours(self.session, notes.SEARCH_TOOL, arguments(query=query))["content"]
            self.grammar(told, FOUND, "an answer of a search")
            for hit in self.session.search(query).hits:
                line = self.session.restore(hit.result_id, lines=str(hit.line)).content
                self.claim(hit.excerpt.strip("…") in line, "an excerpt does not stand in its original")
        self.talk.say()

    def same(self) -> None:
        """Nothing was adopted; all is there exactly, in another process too."""
        view = self.view()
        other = self.archive.session(self.session_id, OWNER)
        shown = [one for one in view if not str(one["content"]).startswith(CHANGES_HEAD)]  # it is reminded anew
        again = [one for one in other.view(self.talk.messages) if not str(one["content"]).startswith(CHANGES_HEAD)]
        self.claim(again == shown, "another process sees something else")
        self.claim(everything(other, view, self.talk.messages) == [], "a message is lost")
        text = self.fit(500)
        card = other.card()
        called = json.loads(json.dumps(text))  # JSON joins halves of a pair
        self.claim((card.goal, card.items["s1"].reason) == (text, text), "the card is another")
        self.claim((card.items["d1"].text, card.items["d1"].reason) == (called, called), "the card is another")
        kept = bytes_of(other.restore(self.artifact.result_id).content)
        self.claim(kept.decode("utf-8", "surrogatepass") == self.product(), "an artifact is another")
        self.claim(other.ledger.reconcile(strong=True).agrees, "a fact does not agree")
        results = [one for one in self.talk.messages if one["role"] == "tool"]
        ours = {one["tool_call_id"] for one in self.talk.messages if one["role"] == "tool"} - {
            call["id"]
            for one in self.talk.messages
            for call in one.get("tool_calls") or ()
            if call["function"]["name"] not in (notes.CARD_TOOL, notes.SEARCH_TOOL)
        }
        self.claim(len(other.results()) == len(results) - len(ours), "a result was adopted, or given twice")
        for info in other.results():
            if info.state == "archived":
                content = other.restore(info.id).content
                self.claim(content in [one["content"] for one in results], f"{info.id} comes back as something else")


def findings(archive: Archive, made: list[Callable[[str], str]]) -> list[str]:
    return [
        wrong
        for number, one in enumerate(made)
        for wrong in Trial(archive, one, f"case {number} {len(archive.audit(principal=OWNER).entries)}").run()
    ]


@pytest.fixture
def windowed() -> Iterator[Archive]:
    # Thousands of commits, and none of them is about durability: in memory where there is such a place.
    memory = Path("/dev/shm")
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        new_keys(Path(folder) / "evidence.keys")
        with Desk(Path(folder)).open(policy=POLICY, counter=Characters()) as archive:
            archive.session("first", OWNER)
            yield archive


@pytest.mark.parametrize("kind", chosen())
def test_no_text_is_taken_for_ours_on_cards_in_facts_summaries_and_searches_and_all_comes_back(windowed, kind):
    assert findings(windowed, chosen()[kind]) == []


# --- controls ---------------------------------------------------------------------------------------------------


def words_as_they_are(module: Any) -> Callable[[pytest.MonkeyPatch], None]:
    """Break the core: words that are not ours stand there as they were written."""

    def broken(patch: pytest.MonkeyPatch) -> None:
        for name in {"clean", "in_one_line"} & vars(module).keys():
            patch.setattr(module, name, str)

    return broken


def told_without_quotes(patch: pytest.MonkeyPatch) -> None:
    """Break the core: what is carried over is cleaned, and not quoted."""
    patch.setattr("evidence_archive.window.carrying._quoted", carrying.clean)


def changes_without_quotes(patch: pytest.MonkeyPatch) -> None:
    """Break the core: what changed on the card is cleaned, and not quoted."""
    naive = changing.changes
    patch.setattr("evidence_archive.windowing.changes", lambda *a, **k: naive(*a, **k).replace("\n> ", "\n"))


def lines_as_they_are(patch: pytest.MonkeyPatch) -> None:
    """Break the core: lines that were found stand in the answer as in the original."""

    def naive(hits: Any, **named: Any) -> str:
        return "\n".join(["[search | 1 hits in 1 archived originals]", *(excerpt for *_, excerpt in hits)])

    patch.setattr(notes, "search_text", naive)


def refusals_that_repeat(patch: pytest.MonkeyPatch) -> None:
    """Break the core: a refusal repeats what was asked for as it was written."""

    def naive(changes: Any) -> Any:
        try:
            return parse_changes(changes)
        except FormatError:
            raise FormatError(" ".join(map(str, changes[0].values()))) from None

    patch.setattr("evidence_archive.carding.parse_changes", naive)
    patch.setattr(notes, "malformed_text", lambda *, tool, message: f"The card was not changed: {message}\nExample: ")


def adopted_by_its_text(patch: pytest.MonkeyPatch) -> None:
    """Break the core: a result that says it is the answer to a search is one, and no evidence."""
    results = Session.results
    patch.setattr(
        Session,
        "results",
        lambda self: [
            one
            for one in results(self)
            if not (place := self._records.timeline.by_number.get(int(one.id[1:])))
            or "[evidence r" not in str(place.content)
        ],
    )


@pytest.mark.parametrize(
    ("broken", "kind", "spelling"),
    [
        (words_as_they_are(carrying), "a label of nothing", "behind right-to-left"),
        (words_as_they_are(changing), "a label of nothing", "NUL between"),
        (told_without_quotes, "a label of nothing", "plain"),
        (changes_without_quotes, "a label of nothing", "plain"),
        (lines_as_they_are, "a label of nothing", "plain"),
        (refusals_that_repeat, "a label of nothing", "other line ends"),
        (adopted_by_its_text, "a label of nothing", "plain"),
    ],
)
def test_must_fail_control_the_same_checks_catch_a_naive_core(windowed, broken, kind, spelling, monkeypatch):
    assert findings(windowed, [GROUPS[kind][spelling]]) == []
    broken(monkeypatch)
    assert findings(windowed, [GROUPS[kind][spelling]]) != []
