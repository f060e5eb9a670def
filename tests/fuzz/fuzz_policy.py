"""Policies: whatever the text, it is a policy that decides the same each time, or a mistake of its author."""

from evidence_archive.access import may_restore
from evidence_archive.errors import PolicyError
from evidence_archive.model import Facts
from evidence_archive.policy import Policy

_HEAD = '[policy]\nname = "fuzzed"\nversion = 1\ndefault = "allow"\n'
FACTS = (
    Facts(("logs.search",), frozenset(), None, 5, 0, "a line of a log"),
    Facts(("logs.search", "db.query"), frozenset({"phi"}), "lab", 2_000_000, 3, None),
    Facts((), frozenset({"phi", "secret"}), None, 0, 0, "\ud800\x00"),
)

SEEDS = (
    b"",
    _HEAD.encode(),
    b'[[archive]]\nid = "no-labs"\ntools = ["lab.*"]\neffect = "never"\nreason = "a rule"\n',
    b'[[archive]]\nid = "words"\neffect = "never"\ncontent = { regex = "(?i)patient\\\\s+[0-9]+" }\n',
    b'[[archive]]\nid = "words"\neffect = "never"\ncontent = { regex = "(a{1,9}){9}" }\n',
    b'[[archive]]\nid = "words"\neffect = "never"\ncontent = "word"\nsize_chars_min = 3\nage_turns_min = 1\n',
    b'[[restore]]\nsensitivity = ["phi"]\nroles = ["auditor"]\n[[retention]]\ntools = ["*"]\ndays = 30\n',
    b'[[live]]\ntools = ["price.?"]\nask = "price.now"\nmax_age_seconds = 60\n',
    b'[[test]]\ntool = "lab.read"\nexpect = "allow"\n[limits]\nbatch_items_max = 3\n[custody]\nroles = ["officer"]\n',
    b"a = " + b"[" * 300,
    b'[policy]\nname = "\\ud800"\n',
)


def one(data: bytes) -> None:
    """As a whole file, and behind a head that is one."""
    text = data.decode("utf-8", "surrogateescape")
    for candidate in (text, _HEAD + text):
        try:
            policy = Policy.loads(candidate)
        except PolicyError:
            continue
        again = Policy.loads(candidate)
        assert policy == again
        for facts in FACTS:
            assert policy.decide_archive(facts) == again.decide_archive(facts)
            assert policy.decide_archive(facts).effect in ("allow", "never")
            assert policy.restore_openings(facts), "nothing says who may restore"
            policy.explain(facts)
        policy.check(may_restore)
