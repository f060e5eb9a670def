"""Policies: what they decide, how they refuse, and that their documentation is complete."""

import fnmatch
import itertools
import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evidence_archive import policy as policy_module
from evidence_archive.access import may_restore
from evidence_archive.errors import PolicyError
from evidence_archive.model import Facts, Limits, WindowPolicy
from evidence_archive.policy import CONTENT_CHARS_MAX, FILE_BYTES_MAX, TABLES, Policy
from evidence_archive.policy_file import LIMIT_BOUNDS, WINDOW_BOUNDS

POLICIES = Path(__file__).resolve().parent.parent / "policies"
HEAD = '[policy]\nname = "p"\nversion = 1\ndefault = "{}"\n'
DENIAL = '[[test]]\ntool = "a"\nrestore = "denied"\n'


def policy(rules="", default="never"):
    return Policy.loads(HEAD.format(default) + rules)


def facts(*tools, **more):
    more["sensitivity"] = frozenset(more.get("sensitivity", ()))
    return Facts(tools=tools or ("a",), **more)


def effect(rules, facts, default="never"):
    return policy(rules, default).decide_archive(facts).effect


def refusal(rules, head=None):
    with pytest.raises(PolicyError) as caught:
        Policy.loads((HEAD.format("never") if head is None else head) + rules, "p.toml")
    return caught.value


# --- archive rules ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("default", ["allow", "never"])
def test_without_a_matching_rule_the_default_decides(default):
    decision = policy(default=default).decide_archive(facts("a"))
    assert (decision.effect, decision.rule_id) == (default, "default")
    assert default in decision.reason


def test_an_allow_list_keeps_a_tool_that_nobody_thought_of():
    rules = '[[archive]]\nid = "logs"\ntools = ["logs.*"]\neffect = "allow"\n'
    assert effect(rules, facts("logs.search")) == "allow"
    assert effect(rules, facts("web.fetch")) == "never"


def test_a_deny_list_archives_a_tool_that_nobody_thought_of():
    rules = '[[archive]]\nid = "basis"\ntools = ["prescription.*"]\neffect = "never"\n'
    assert effect(rules, facts("prescription.read"), "allow") == "never"
    assert effect(rules, facts("web.fetch"), "allow") == "allow"


RULES = {
    "never-a": '[[archive]]\nid = "never-a"\ntools = ["a*"]\neffect = "never"\n',
    "allow-all": '[[archive]]\nid = "allow-all"\neffect = "allow"\n',
    "allow-ab": '[[archive]]\nid = "allow-ab"\ntools = ["ab"]\neffect = "allow"\n',
    "never-signed": '[[archive]]\nid = "never-signed"\nsensitivity = ["signed"]\neffect = "never"\n',
}


@pytest.mark.parametrize("order", list(itertools.permutations(RULES)))
def test_the_strictest_matching_rule_wins_whatever_the_order(order):
    rules = "".join(RULES[name] for name in order)
    assert effect(rules, facts("ab")) == "never"
    assert effect(rules, facts("x", sensitivity=["signed"])) == "never"
    assert effect(rules, facts("x")) == "allow"


def test_control_letting_the_first_rule_win_depends_on_the_order():
    def first_match(order):
        return next(name for name in order if name != "never-signed").split("-")[0]

    assert {first_match(order) for order in itertools.permutations(RULES)} == {"never", "allow"}


def test_among_rules_of_one_effect_the_first_in_the_file_is_named():
    one, two = RULES["allow-all"], RULES["allow-ab"]
    assert policy(one + two).decide_archive(facts("ab")).rule_id == "allow-all"
    assert policy(two + one).decide_archive(facts("ab")).rule_id == "allow-ab"


SELECTORS = {
    "tools": ('tools = ["x", "logs.*"]', {"tools": ("logs.search",)}, {"tools": ("log",)}),
    "sensitivity": (
        'sensitivity = ["x", "clinical"]',
        {"sensitivity": frozenset({"clinical", "y"})},
        {"sensitivity": frozenset({"y"})},
    ),
    "kind": ('kind = ["x", "prescription"]', {"kind": "prescription"}, {"kind": None}),
    "size_chars_min": ("size_chars_min = 800", {"size_chars": 800}, {"size_chars": 799}),
    "age_turns_min": ("age_turns_min = 3", {"age_turns": 3}, {"age_turns": 2}),
    "content": ('content = "needle"', {"text": "a needle\r\n"}, {"text": "a Needle"}),
}


@given(st.sets(st.sampled_from(sorted(SELECTORS)), min_size=1), st.data())
def test_a_rule_matches_when_every_selector_does_and_not_when_one_does_not(given_selectors, data):
    lines = "\n".join(SELECTORS[name][0] for name in sorted(given_selectors))
    strict = policy(f'[[archive]]\nid = "r"\neffect = "never"\n{lines}\n', "allow")
    fits = {"tools": ("a",)}
    for name in given_selectors:
        fits |= SELECTORS[name][1]
    assert strict.decide_archive(Facts(**fits)).rule_id == "r"
    broken = data.draw(st.sampled_from(sorted(given_selectors)))
    assert strict.decide_archive(Facts(**(fits | SELECTORS[broken][2]))).rule_id == "default"
    (step,) = strict.explain(Facts(**(fits | SELECTORS[broken][2]))).steps
    assert (step.matched, step.why) == (False, f"no match on {broken}")
    (step,) = strict.explain(Facts(**fits)).steps
    assert step.matched
    assert all(name in step.why for name in given_selectors)


GLOB_TEXT = st.text(alphabet="ab.*?[]!-é\n", max_size=8)


@given(st.lists(GLOB_TEXT.filter(lambda glob: glob and "\n" not in glob), min_size=1, max_size=4), GLOB_TEXT)
def test_globs_mean_what_fnmatchcase_means(globs, name):
    rules = f'[[archive]]\nid = "r"\neffect = "never"\ntools = {json.dumps(globs)}\n'
    expected = any(fnmatch.fnmatchcase(name, glob) for glob in globs)
    assert (effect(rules, facts(name), "allow") == "never") is expected


@pytest.mark.parametrize(
    "name", ["*", "prescription.*", "[p]rescription.read", "?rescription.read", "prescription?read"]
)
def test_glob_characters_in_a_called_name_are_never_a_glob(name):
    rules = '[[archive]]\nid = "r"\ntools = ["prescription.read"]\neffect = "allow"\n'
    assert fnmatch.fnmatchcase("prescription.read", name), "control: the sides swapped would match"
    assert effect(rules, facts(name)) == "never"


@pytest.mark.parametrize(
    "name",
    [
        "Logs.search",
        "logs.search\u200b",
        "\uff4cogs.search",
        "l\u043egs.search",
        "logs",
        "",
        "x\nlogs.search",
        "\ud800",
        "x" * 5000,
    ],
)
def test_a_look_alike_name_is_another_name(name):
    rules = '[[archive]]\nid = "r"\ntools = ["logs.search"]\neffect = "allow"\n'
    assert effect(rules, facts("logs.search")) == "allow"
    assert effect(rules, facts(name)) == "never"


def test_composed_and_decomposed_names_are_different():
    rules = '[[archive]]\nid = "r"\ntools = ["caf\u00e9.*"]\neffect = "allow"\n'
    assert effect(rules, facts("caf\u00e9.read")) == "allow"
    assert effect(rules, facts("cafe\u0301.read")) == "never"


def test_a_star_matches_every_name_of_any_length():
    rules = '[[archive]]\nid = "r"\ntools = ["*"]\neffect = "never"\n'
    for name in ("", "\n", "a\x00b", "\ud800", "🙂" * 2000, "x" * 5_000_000):
        assert effect(rules, facts(name), "allow") == "never"


def test_a_glob_of_many_stars_does_not_backtrack():
    rules = f'[[archive]]\nid = "r"\ntools = ["{"*a" * 100}b"]\neffect = "never"\n'
    assert effect(rules, facts("a" * 2000), "allow") == "allow"


def test_a_result_that_names_another_tool_gets_the_stricter_decision():
    strict = Policy.load(POLICIES / "clinical.toml")
    for tools in itertools.permutations(("logs.search", "prescription.read")):
        decision = strict.decide_archive(facts(*tools, size_chars=5000))
        assert (decision.effect, decision.rule_id) == ("never", "prescription-basis")
    rules = '[[archive]]\nid = "note"\ntools = ["clinical_note"]\neffect = "never"\n'
    assert effect(rules, facts("b"), "allow") == "allow", "control: the called name alone would be allowed"
    assert effect(rules, facts("b", "clinical_note"), "allow") == "never"
    rules = '[[archive]]\nid = "b"\ntools = ["b"]\neffect = "allow"\n'
    assert effect(rules, facts("clinical_note", "b")) == "never"
    assert effect(rules, facts("b", "b")) == "allow"


def test_a_result_without_any_name_is_decided_for_the_empty_one():
    rules = '[[archive]]\nid = "r"\ntools = ["*"]\neffect = "never"\n[[restore]]\ntools = ["*"]\nroles = ["x"]\n'
    nameless = Facts(tools=())
    assert effect(rules, nameless, "allow") == "never"
    assert policy(rules).restore_openings(nameless) == (frozenset({"x"}),)
    assert policy('[[live]]\ntools = ["*"]\n').live(()) is not None


# --- content ----------------------------------------------------------------------------------------------------


def content_rule(content):
    return f'[[archive]]\nid = "r"\neffect = "never"\ncontent = {content}\n'


@pytest.mark.parametrize("content", ['"secret"', "{ regex = 's[e]cret' }"])
def test_a_text_that_is_not_at_hand_counts_as_matched(content):
    rules = content_rule(content)
    assert policy(rules).needs_text
    assert effect(rules, facts("a", text=None), "allow") == "never"
    assert effect(rules, facts("a", text=""), "allow") == "allow"
    (step,) = policy(rules).explain(facts("a")).steps
    assert "not at hand" in step.why


def test_a_policy_without_content_needs_no_text():
    assert not policy("".join(RULES.values())).needs_text


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"(?i)\bsecret\b", "a\r\nSECRET\x00", True),
        (r"\bsecret\b", "secretary", False),
        (r"^line 2$", "line 1\nline 2", False),
        (r"(?m)^line 2$", "line 1\nline 2", True),
        (r"\p{Cyrillic}", "l\u043egs", True),
        (r"\x{1F642}", "🙂", True),
        (r"a\{b", "a{b", True),
        (r"\\", "a\\b", True),
        ("secret", "\ud800 secret \udfff", True),
        ("secret", "\u202esecret", True),
    ],
)
def test_a_pattern_is_found_anywhere_in_the_text(pattern, text, found):
    rules = content_rule("{ regex = " + json.dumps(pattern) + " }")
    assert (effect(rules, facts("a", text=text), "allow") == "never") is found


def test_a_literal_is_no_pattern():
    assert effect(content_rule('"a.c"'), facts("a", text="abc"), "allow") == "allow"
    assert effect(content_rule('"(a+)+$"'), facts("a", text="x(a+)+$"), "allow") == "never"


EXPENSIVE = [
    r"(a+)+$",
    r"(a|aa)+$",
    r"(a*)*b",
    r"(.*)*x",
    r"^(a?)*(a?)*(a?)*(a?)*$",
    r"(\w*a)*\?",
    r".*.*.*.*=.*",
    ".*a" * 60 + "b",
]


@pytest.mark.parametrize("pattern", EXPENSIVE)
def test_an_expensive_pattern_takes_time_linear_in_the_text(pattern):
    rules = content_rule(f"{{ regex = '{pattern}' }}")
    text = "a" * (CONTENT_CHARS_MAX - 1) + "!"
    assert effect(rules, facts("a", text=text), "allow") == "allow"
    assert effect(rules, facts("a", text=text + "a"), "allow") == "never", "control: one more is not searched"


def test_control_a_backtracking_engine_does_not_come_back_from_sixty_characters():
    program = "import re; re.search(r'(a+)+$', 'a' * 60 + '!')"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", program], timeout=1.5, check=False)


def test_a_text_too_long_to_search_counts_as_matched_by_a_pattern_but_not_by_a_literal():
    text = "x" * (CONTENT_CHARS_MAX + 1)
    assert effect(content_rule("{ regex = 'secret' }"), facts("a", text=text), "allow") == "never"
    assert effect(content_rule("{ regex = 'secret' }"), facts("a", text=text[1:]), "allow") == "allow"
    assert effect(content_rule('"secret"'), facts("a", text=text), "allow") == "allow"


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        "a(?=b)",
        r"(a)\1",
        "a{3}",
        "a{2,}",
        "a{,9}",
        r"\d{4}",
        "((a{9}){9}){9}",
        r"\\p{3}",
        "(?x)a{ 3 }",
        "(?x)#\\p{\na{3}}",
        r"\p{Nonsense}",
        "x" * 201,
        "",
    ],
)
def test_a_pattern_outside_the_linear_kind_is_refused_when_loaded(pattern):
    error = refusal(content_rule("{ regex = " + json.dumps(pattern) + " }"))
    assert error.key == "archive[0].content.regex"
    assert "linear time" in str(error)


def test_words_of_a_result_can_only_deny():
    error = refusal('[[archive]]\nid = "r"\neffect = "allow"\ncontent = "harmless"\n')
    assert error.key == "archive[0].content"
    assert "never" in str(error)


# --- live, restore, retention -----------------------------------------------------------------------------------


def test_several_live_rules_give_the_shortest_age_and_the_first_tool_to_ask():
    rules = """
[[live]]
tools = ["stock.*"]
max_age_seconds = 300
[[live]]
tools = ["stock.eu"]
ask = "stock.lookup"
max_age_seconds = 60
[[live]]
tools = ["price"]
ask = "price.quote"
"""
    p = policy(rules)
    assert p.live(("logs",)) is None
    assert p.live(("stock.eu",)) == policy_module.Live("stock.lookup", 60, ("stock.*", "stock.eu"))
    assert p.live(("stock.us",)) == policy_module.Live(None, 300, ("stock.*",))
    assert p.live(("logs", "price")) == policy_module.Live("price.quote", None, ("price",))


RESTORE = """
[[restore]]
id = "clinical"
sensitivity = ["clinical"]
roles = ["vet", "auditor"]
[[restore]]
sensitivity = ["clinical"]
kind = ["lab"]
roles = ["technician"]
[[restore]]
sensitivity = ["personal"]
roles = ["vet", "desk"]
[[restore]]
tools = ["scan"]
roles = ["radiologist"]
"""


def test_without_a_restore_rule_only_the_owner_may_restore():
    assert policy().restore_openings(facts("a")) == (None,)
    assert policy(RESTORE).restore_openings(facts("a", sensitivity=["other"])) == (None,)


def test_the_roles_of_all_matching_rules_are_united_for_one_sensitivity():
    p = policy(RESTORE)
    assert p.restore_openings(facts("a", sensitivity=["clinical"])) == (frozenset({"vet", "auditor"}),)
    both = frozenset({"vet", "auditor", "technician"})
    assert p.restore_openings(facts("a", sensitivity=["clinical"], kind="lab")) == (both,)
    assert p.restore_openings(facts("scan")) == (frozenset({"radiologist"}),)


def test_every_sensitivity_of_a_result_must_be_satisfied():
    openings = policy(RESTORE).restore_openings(facts("a", sensitivity=["personal", "clinical", "zz"]))
    assert openings == (frozenset({"vet", "auditor"}), frozenset({"vet", "desk"}), None)
    two = policy(RESTORE).restore_openings(facts("a", sensitivity=["personal", "clinical"]))
    assert frozenset({"auditor"}) & frozenset().union(*two), "control: one union over all would let an auditor in"
    assert not may_restore(False, frozenset({"auditor"}), two)
    assert may_restore(False, frozenset({"auditor", "desk"}), two)
    assert may_restore(False, frozenset({"vet"}), two)


def test_both_names_of_a_result_must_be_satisfied():
    p = policy(RESTORE)
    assert p.restore_openings(facts("a", "scan")) == (None, frozenset({"radiologist"}))
    assert not may_restore(True, frozenset(), p.restore_openings(facts("a", "scan")))
    assert not may_restore(False, frozenset({"radiologist"}), p.restore_openings(facts("a", "scan")))
    assert may_restore(True, frozenset({"radiologist"}), p.restore_openings(facts("a", "scan")))


LABELS = st.frozensets(st.sampled_from(["clinical", "personal", "other"]))


@given(
    LABELS,
    st.sampled_from(["clinical", "personal", "other"]),
    st.booleans(),
    st.frozensets(st.sampled_from(["vet", "desk"])),
)
def test_another_label_on_a_labelled_result_never_opens_it(labels, more, owner, roles):
    p = policy(RESTORE)
    if labels and may_restore(owner, roles, p.restore_openings(facts("a", sensitivity=labels | {more}))):
        assert may_restore(owner, roles, p.restore_openings(facts("a", sensitivity=labels)))


def test_the_longest_retention_counts():
    rules = """
[[retention]]
sensitivity = ["clinical"]
days = 3650
[[retention]]
tools = ["logs.*"]
days = 90
[[retention]]
kind = ["consent"]
days = 36500
"""
    p = policy(rules)
    assert p.retention_days(facts("a")) is None
    assert p.retention_days(facts("a", "logs.x")) == 90
    assert p.retention_days(facts("logs.x", sensitivity=["clinical"])) == 3650
    assert p.retention_days(facts("logs.x", sensitivity=["clinical"], kind="consent")) == 36500


def test_an_explanation_lists_every_rule_for_every_name_and_the_answers():
    p = Policy.load(POLICIES / "clinical.toml")
    asked = facts("logs.search", "price.quote", sensitivity=["clinical"], size_chars=900, text="")
    said = p.explain(asked)
    ids = [table.partition('id = "')[2].partition('"')[0] for table in clinical_tables("archive")]
    assert [(step.tool, step.rule_id) for step in said.steps] == [
        (tool, rule_id) for tool in asked.tools for rule_id in ids
    ]
    assert [(step.rule_id, step.why) for step in said.steps if step.matched] == [
        ("long-logs", "matches on tools, size_chars_min")
    ]
    assert said.decision == p.decide_archive(asked)
    assert said.live == p.live(asked.tools)
    assert said.openings == p.restore_openings(asked)
    assert said.retention_days == 3650


def test_an_explanation_says_that_a_rule_without_selectors_matches_every_result():
    (step,) = policy(RULES["allow-all"]).explain(facts("a")).steps
    assert step == policy_module.Step("a", "allow-all", "allow", True, "matches on no selector, so every result")


# --- a policy's own tests ---------------------------------------------------------------------------------------


def clinical_tables(name):
    text = (POLICIES / "clinical.toml").read_text(encoding="utf-8")
    return [part for part in re.split(r"(?m)^(?=\[)", text) if part.startswith(f"[[{name}]]")]


@pytest.mark.parametrize("name", ["default", "clinical"])
def test_the_policies_in_the_repository_pass_their_tests_without_a_warning(name):
    report = Policy.load(POLICIES / f"{name}.toml").check(may_restore)
    assert report.ok
    assert report.warnings == ()
    assert report.outcomes


@pytest.mark.parametrize("at", range(len(clinical_tables("archive"))))
def test_the_tests_of_the_clinical_policy_notice_every_archive_rule_that_no_longer_matches(at):
    text = (POLICIES / "clinical.toml").read_text(encoding="utf-8")
    table = clinical_tables("archive")[at]
    asleep = re.sub(r"(?m)^size_chars_min.*\n", "", table).replace("effect =", "size_chars_min = 999999\neffect =")
    assert not Policy.loads(text.replace(table, asleep)).check(may_restore).ok


@pytest.mark.parametrize("name", ["live", "restore", "retention"])
def test_the_tests_of_the_clinical_policy_notice_missing_rules(name):
    text = (POLICIES / "clinical.toml").read_text(encoding="utf-8")
    for table in clinical_tables(name):
        text = text.replace(table, "")
    assert not Policy.loads(text).check(may_restore).ok


@pytest.mark.parametrize(
    ("test", "passed", "got", "expected"),
    [
        ('tool = "a"\nexpect = "never"', True, "never", "never"),
        ('tool = "a"\nexpect = "never"\nrule = "default"', False, "never by never-a", "never by default"),
        ('tool = "a"\nexpect = "allow"', False, "never", "allow"),
        ('tool = "x"\nexpect = "allow"\nrule = "allow-all"', True, "allow by allow-all", "allow by allow-all"),
        ('tool = "x"\nresult_tool = "a"\nexpect = "never"', True, "never", "never"),
        ('tool = "x"\nsensitivity = "signed"\nexpect = "never"', True, "never", "never"),
        ('tool = "x"\nsensitivity = ["signed"]\nexpect = "never"', True, "never", "never"),
        ('tool = "x"\nrestore = "granted"\nowner = true', True, "restore granted", "restore granted"),
        ('tool = "x"\nrestore = "granted"', False, "restore denied", "restore granted"),
        ('tool = "x"\nkind = "k"\nrestore = "granted"\nroles = ["r"]', True, "restore granted", "restore granted"),
        ('tool = "x"\nkind = "k"\nrestore = "denied"\nowner = true', True, "restore denied", "restore denied"),
        ('tool = "now"\nlive = true\nretention_days = 0', True, "live, kept 0 days", "live, kept 0 days"),
        ('tool = "x"\nlive = true\nretention_days = 7', False, "not live, kept 0 days", "live, kept 7 days"),
        (
            'tool = "x"\nkind = "k"\nlive = false\nretention_days = 9',
            True,
            "not live, kept 9 days",
            "not live, kept 9 days",
        ),
    ],
)
def test_a_test_entry_says_what_it_got_and_what_it_expected(test, passed, got, expected):
    rules = "".join(RULES.values()) + '[[restore]]\nkind = ["k"]\nroles = ["r"]\n[[live]]\ntools = ["now"]\n'
    rules += '[[retention]]\nkind = ["k"]\ndays = 9\n'
    report = policy(f"{rules}[[test]]\n{test}\n").check(may_restore)
    (outcome,) = report.outcomes
    assert (outcome.index, outcome.passed, outcome.got, outcome.expected) == (0, passed, got, expected)
    assert report.ok is passed


def test_a_test_entry_is_described_by_what_it_asks():
    test = '[[test]]\ntool = "a"\nresult_tool = "b"\nsensitivity = ["s", "t"]\nkind = "k"\nrestore = "denied"\n'
    p = policy(test + 'owner = true\nroles = ["r"]\n' + DENIAL)
    first, second = p.check(may_restore).outcomes
    assert first.description == "a, answered as b, sensitivity s+t, kind k, asked by the owner, r"
    assert second.description == "a, asked by nobody in particular"


def test_the_size_in_a_test_entry_is_that_of_its_text_unless_given():
    rules = '[[archive]]\nid = "long"\nsize_chars_min = 5\neffect = "allow"\n'
    tests = [('text = "12345"', "allow"), ('text = "1234"', "never"), ("size_chars = 5", "allow"), ("", "never")]
    for given_size, expected in tests:
        assert policy(f'{rules}[[test]]\ntool = "a"\nexpect = "{expected}"\n{given_size}\n').check(may_restore).ok


@pytest.mark.parametrize(
    ("test", "warned"),
    [
        ("", True),
        ('[[test]]\ntool = "a"\nexpect = "allow"\n[[test]]\ntool = "a"\nrestore = "granted"\n', True),
        ('[[test]]\ntool = "a"\nexpect = "never"\n', False),
        (DENIAL, False),
    ],
)
def test_a_policy_whose_tests_deny_nothing_is_warned_of(test, warned):
    warnings = policy(test).check(may_restore).warnings
    assert bool(warnings) is warned
    assert all("nothing shows" in warning for warning in warnings)


def rule(rule_id, decided, *selectors):
    return "\n".join(["[[archive]]", f'id = "{rule_id}"', f'effect = "{decided}"', *selectors, ""])


@pytest.mark.parametrize(
    ("rules", "loser"),
    [
        (rule("a", "allow", 'tools = ["x.y"]') + rule("n", "never", 'tools = ["x.*"]'), "a"),
        (rule("a", "allow", 'tools = ["x.y.*"]') + rule("n", "never", 'tools = ["x.*"]'), "a"),
        (rule("a", "allow", 'tools = ["x?"]') + rule("n", "never", 'tools = ["x*"]'), "a"),
        (rule("a", "allow", 'tools = ["x["]') + rule("n", "never", 'tools = ["x["]'), "a"),
        (rule("a", "allow", 'tools = ["xy"]') + rule("n", "never", 'tools = ["x[xyz]"]'), "a"),
        (rule("a", "allow") + rule("n", "never"), "a"),
        (rule("a", "allow") + rule("n", "never", 'tools = ["*"]'), "a"),
        (rule("a", "allow") + rule("b", "allow", 'kind = ["k"]'), "b"),
        (rule("n", "never") + rule("m", "never", 'content = "c"'), "m"),
        (rule("a", "allow", 'kind = ["k"]', "size_chars_min = 9") + rule("n", "never", 'kind = ["k", "l"]'), "a"),
        (rule("a", "allow", 'kind = ["k", "l"]') + rule("n", "never", 'kind = ["k"]'), None),
        (rule("a", "allow", 'sensitivity = ["s"]') + rule("n", "never", 'sensitivity = ["s"]'), "a"),
        (rule("a", "allow", 'kind = ["k"]') + rule("n", "never", 'kind = ["k"]'), "a"),
        (rule("a", "allow") + rule("n", "never", 'sensitivity = ["s"]'), None),
        (rule("a", "allow", 'tools = ["x*"]') + rule("n", "never", 'tools = ["x?"]'), None),
        (rule("a", "allow", 'tools = ["x[*]"]') + rule("n", "never", 'tools = ["x*]"]'), None),
        (rule("a", "allow", 'tools = ["x", "y"]') + rule("n", "never", 'tools = ["x"]'), None),
        (rule("a", "allow") + rule("n", "never", "size_chars_min = 9"), None),
        (rule("a", "allow") + rule("n", "never", "age_turns_min = 9"), None),
        (rule("a", "allow") + rule("n", "never", 'content = "c"'), None),
        (rule("n", "never", 'content = "d"') + rule("m", "never", 'content = "c"'), None),
        (rule("n", "never", 'kind = ["k"]') + rule("m", "never"), None),
    ],
)
def test_a_rule_that_can_never_win_is_warned_of(rules, loser):
    warnings = policy(rules + DENIAL).check(may_restore).warnings
    assert [warning.split()[2] for warning in warnings] == ([] if loser is None else [loser])


def test_every_rule_that_can_never_win_and_every_one_that_changes_nothing_is_warned_of():
    rules = rule("n", "never") + rule("a", "allow") + rule("m", "never") + rule("b", "allow")
    assert [one.split()[2] for one in policy(rules + DENIAL).check(may_restore).warnings] == ["a", "m", "b"]
    assert [one.split()[2] for one in policy(rules + DENIAL, "allow").check(may_restore).warnings] == ["a", "m", "b"]


def test_the_text_of_a_test_entry_is_what_a_content_rule_looks_at():
    rules = rule("open", "allow") + rule("secret", "never", 'content = "secret"')
    for text, expected in (("a secret", "never"), ("nothing of it", "allow")):
        tests = f'[[test]]\ntool = "a"\ntext = "{text}"\nexpect = "{expected}"\n'
        report = policy(rules + tests).check(may_restore)
        assert report.ok
        assert "no text given" not in report.outcomes[0].explained
    (outcome,) = policy(rules + '[[test]]\ntool = "a"\nexpect = "never"\n').check(may_restore).outcomes
    assert (outcome.passed, "no text given" in outcome.explained) == (True, True)
    (outcome,) = policy(rule("n", "never") + '[[test]]\ntool = "a"\nexpect = "never"\n').check(may_restore).outcomes
    assert "no text given" not in outcome.explained


def test_a_policy_tells_its_version_and_the_roles_of_custodians_and_bookkeepers():
    found = policy('[custody]\nroles = ["records", "officer"]\n[ledger]\nroles = ["ward"]\n')
    assert (found.version, found.custodians) == (1, frozenset({"records", "officer"}))
    assert (found.bookkeepers, policy("").bookkeepers) == (frozenset({"ward"}), frozenset())
    with pytest.raises(PolicyError):
        policy("[ledger]\nroles = []\n")
    with pytest.raises(PolicyError):
        policy("[custody]\nroles = 3\n")


SMALL_GLOB = st.text(alphabet="ab*?[]", min_size=1, max_size=4)


@given(st.lists(SMALL_GLOB, min_size=1, max_size=2), st.lists(SMALL_GLOB, min_size=1, max_size=2))
def test_a_rule_that_is_said_never_to_win_wins_for_no_name(wide, narrow):
    p = policy(
        rule("n", "never", f"tools = {json.dumps(wide)}")
        + rule("a", "allow", f"tools = {json.dumps(narrow)}")
        + DENIAL
    )
    if p.check(may_restore).warnings:
        names = ("".join(chars) for size in range(5) for chars in itertools.product("ab*[", repeat=size))
        assert all(p.decide_archive(facts(name)).rule_id != "a" for name in names)


def test_an_allow_rule_under_a_default_that_allows_is_warned_of():
    (warning,) = policy(rule("a", "allow") + DENIAL, "allow").check(may_restore).warnings
    assert "changes nothing" in warning


# --- what is refused --------------------------------------------------------------------------------------------

TABLE_TEXTS = {
    "": "",
    "policy": "",
    "custody": "[custody]\n",
    "ledger": "[ledger]\n",
    "limits": "[limits]\n",
    "window": "[window]\n",
    "archive": '[[archive]]\nid = "r"\neffect = "never"\n',
    "archive.content": '[[archive]]\nid = "r"\neffect = "never"\n[archive.content]\nregex = "a"\n',
    "live": '[[live]]\ntools = ["a"]\n',
    "restore": '[[restore]]\nroles = ["a"]\n',
    "retention": "[[retention]]\ndays = 1\n",
    "test": '[[test]]\ntool = "a"\nexpect = "never"\n',
}
PLACES = {"archive": "archive[0]", "archive.content": "archive[0].content"}


@pytest.mark.parametrize("table", TABLES)
def test_an_unknown_key_is_refused_in_every_table(table):
    head, rest = HEAD.format("never"), TABLE_TEXTS[table]
    Policy.loads(head + rest)
    text = "efect = 1\n" + head if table == "" else head + rest + "efect = 1\n"
    with pytest.raises(PolicyError) as caught:
        Policy.loads(text)
    single = ("policy", "limits", "custody", "ledger", "window")
    place = {"": "", **{name: f"{name}." for name in single}}.get(table, f"{PLACES.get(table, f'{table}[0]')}.")
    assert caught.value.key == f"{place}efect"
    assert "not a known key" in str(caught.value)
    assert all(key in str(caught.value) for key in TABLES[table].model_fields)


@pytest.mark.parametrize("key", ["a b", "é", "x" * 10_000, "\u202e", "a.b", ""])
def test_an_odd_key_is_quoted_escaped_and_short(key):
    error = refusal(f"{json.dumps(key)} = 1\n")
    assert error.key.startswith('policy."')
    assert len(str(error)) < 250
    assert str(error).isascii() or "…" in str(error)


@pytest.mark.parametrize(
    ("rules", "key", "words"),
    [
        ('[[retention]]\ndays = "10"\n', "retention[0].days", "is a string"),
        ("[[retention]]\ndays = 10.0\n", "retention[0].days", "is a float"),
        ("[[retention]]\ndays = true\n", "retention[0].days", "is a boolean"),
        ("[[retention]]\ndays = 0\n", "retention[0].days", "from 1 to 36500"),
        ("[[retention]]\ndays = 99999999999999999999999\n", "retention[0].days", "from 1 to 36500"),
        ("[[retention]]\ndays = 2026-11-30\n", "retention[0].days", "is a date or time"),
        ("[[retention]]\n", "retention[0].days", "is missing"),
        ("[[archive]]\n", "archive[0].id", "is missing"),
        ('[[archive]]\nid = "default"\neffect = "never"\n', "archive[0].id", "no rule"),
        ('[[archive]]\nid = "a b"\neffect = "never"\n', "archive[0].id", "1 to 64"),
        ('[[archive]]\nid = "a\\n"\neffect = "never"\n', "archive[0].id", "1 to 64"),
        ('[[archive]]\nid = "a"\neffect = "deny"\n', "archive[0].effect", "'allow' or 'never'"),
        ('[[archive]]\nid = "a"\neffect = 1\n', "archive[0].effect", "'allow' or 'never'"),
        (RULES["never-a"] + '[[archive]]\nid = "a"\n', "archive[1].effect", "is missing"),
        (RULES["never-a"] * 2, "archive[1].id", "is taken"),
        (RULES["never-a"] + '[[restore]]\nid = "never-a"\nroles = ["a"]\n', "restore[0].id", "is taken"),
        (RULES["never-a"] + 'tools = "a"\n', None, "is not TOML"),
        ('[[archive]]\nid = "a"\neffect = "never"\ntools = "a"\n', "archive[0].tools", "is a string"),
        ('[[archive]]\nid = "a"\neffect = "never"\ntools = []\n', "archive[0].tools", "1 to 200"),
        ('[[archive]]\nid = "a"\neffect = "never"\ntools = ["a", 1]\n', "archive[0].tools[1]", "is an integer"),
        ('[[archive]]\nid = "a"\neffect = "never"\ntools = ["\\u0000"]\n', "archive[0].tools[0]", "control"),
        ('[[archive]]\nid = "a"\neffect = "never"\nreason = "a\\nb"\n', "archive[0].reason", "one line"),
        ('[[archive]]\nid = "a"\neffect = "never"\nreason = "a\\u202eb"\n', "archive[0].reason", "printable"),
        ('[[archive]]\nid = "a"\neffect = "never"\nsize_chars_min = -1\n', "archive[0].size_chars_min", "from 0"),
        ('[[archive]]\nid = "a"\neffect = "never"\ncontent = ""\n', "archive[0].content", "literal"),
        ('[[archive]]\nid = "a"\neffect = "never"\ncontent = 1\n', "archive[0].content", "is an integer"),
        ('[[archive]]\nid = "a"\neffect = "never"\ncontent = {}\n', "archive[0].content.regex", "is missing"),
        ('[[archive]]\nid = "a"\neffect = "never"\ncontent = { regex = 1 }\n', "archive[0].content.regex", "integer"),
        ("[archive]\n", "archive", "written [[archive]]"),
        ("[[limits]]\n", "limits", "written [limits]"),
        ("archive = [1]\n", "policy.archive", "not a known key"),
        ("[limits]\nnote_chars_max = 99\n", "limits.note_chars_max", "from 100 to 20000"),
        ("[limits]\nnote_chars_max = true\n", "limits.note_chars_max", "is a boolean"),
        ("[[live]]\n", "live[0].tools", "is missing"),
        ('[[restore]]\nsensitivity = ["a"]\n', "restore[0].roles", "is missing"),
        ("[[restore]]\nroles = []\n", "restore[0].roles", "1 to 200"),
        ('[[test]]\ntool = "a"\n', "test[0]", "expects nothing"),
        ('[[test]]\ntool = "a"\nexpect = "never"\nrule = "x"\n', "test[0].rule", "must be the id"),
        ('[[test]]\ntool = "a"\nlive = true\nrule = "default"\n', "test[0].rule", "needs expect"),
        ('[[test]]\ntool = "a"\nlive = true\nroles = ["a"]\n', "test[0].roles", "needs restore"),
        ('[[test]]\ntool = "a"\nlive = true\nowner = false\n', "test[0].owner", "needs restore"),
        ('[[test]]\ntool = "a"\nlive = 1\n', "test[0].live", "is an integer"),
        ('[[test]]\ntool = "a"\nlive = true\nsensitivity = 1\n', "test[0].sensitivity", "is an integer"),
    ],
)
def test_a_mistake_names_its_place_what_is_wrong_and_what_is_allowed(rules, key, words):
    error = refusal(rules)
    assert (error.path, error.key) == ("p.toml", key)
    assert words in str(error)
    assert str(error).startswith("Policy p.toml " + (key or ""))
    assert str(error).endswith(".")
    assert "pydantic" not in str(error).lower()


@pytest.mark.parametrize(
    ("head", "key"),
    [
        ("", "policy"),
        ("policy = 1", "policy"),
        ('[policy]\nname = "p"\nversion = 1\n', "policy.default"),
        ('[policy]\nname = "p"\nversion = true\ndefault = "allow"', "policy.version"),
        ('[policy]\nname = "p"\nversion = 1\ndefault = "archive"', "policy.default"),
        ('[policy]\nname = ""\nversion = 1\ndefault = "allow"', "policy.name"),
    ],
)
def test_the_head_of_a_policy_is_required_and_typed(head, key):
    assert refusal("", head).key == key


def test_a_table_occurs_at_most_a_thousand_times():
    assert refusal("[[retention]]\ndays = 1\n" * 1001).key == "retention"
    assert policy("[[retention]]\ndays = 1\n" * 1000).retention_days(facts("a")) == 1


def test_an_unknown_key_is_named_before_what_it_caused():
    assert refusal('[[archive]]\nid = "a"\nefect = "never"\n').key == "archive[0].efect"


@pytest.mark.parametrize(
    "place", ["reason = {}", "tools = [{}]", "effect = {}", "size_chars_min = {}", "content = [{}]"]
)
def test_an_error_never_shows_a_value(place):
    value = json.dumps("hunter2-" * 500 + "\n")
    error = refusal('[[archive]]\nid = "a"\n' + place.format(value) + "\n")
    assert "hunter2" not in str(error)
    assert error.__cause__ is None
    assert error.__suppress_context__


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("x = \n[[[", "line 1, column 5"),
        ("a = 1\nb = = 2\n", "line 2, column 5"),
        ("a = 1\na = 2", "line 2, column 6"),
        ('a = 1\nb = "hunter2', "line 2"),
        ("[hunter2]\n[hunter2]\n", "line 2"),
        ("a = '''hunter2\n", "line 2, column 1"),
        ("\x00", "line 1, column 1"),
        ("a", "line 1, column 2"),
    ],
)
def test_a_syntax_error_names_its_line_and_column_but_not_the_text(text, place):
    error = refusal("", text)
    assert error.key is None
    assert f"is not TOML: {place}" in str(error)
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a = " + "9" * 5000, "number or date"),
        ("a = " + "[" * 100_000, "nested too deep"),
        ("a = '\ud800'", "lone surrogate"),
        ("#" + "x" * FILE_BYTES_MAX, "1 MiB"),
        ("#" + "é" * (FILE_BYTES_MAX // 2), "1 MiB"),
    ],
)
def test_a_text_that_is_no_policy_at_all_is_a_policy_error(text, words):
    assert words in str(refusal("", text))


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_whatever_the_text_the_only_error_is_a_policy_error(text):
    refusals = []
    for candidate in (text, HEAD.format("never") + text):
        try:
            Policy.loads(candidate)
        except PolicyError as error:
            refusals.append(str(error))
    assert all(words.startswith("Policy ") for words in refusals)


# --- files, digest, limits --------------------------------------------------------------------------------------


def test_a_file_with_a_bom_and_crlf_is_the_same_policy(tmp_path):
    text = (POLICIES / "clinical.toml").read_bytes()
    path = tmp_path / "p.toml"
    path.write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    loaded = Policy.load(path)
    assert loaded == Policy.load(str(POLICIES / "clinical.toml"))
    assert loaded.path == str(path)


def test_a_file_that_cannot_be_read_is_a_policy_error(tmp_path):
    for path in (tmp_path / "missing.toml", tmp_path, "a\x00b"):
        with pytest.raises(PolicyError, match="cannot be read") as caught:
            Policy.load(path)
        assert caught.value.path == str(path)


def test_a_file_over_one_mebibyte_is_a_policy_error(tmp_path):
    path = tmp_path / "p.toml"
    text = HEAD.format("never")
    path.write_text(text + "#" * (FILE_BYTES_MAX - len(text)), encoding="ascii")
    assert Policy.load(path).name == "p"
    with path.open("a", encoding="ascii") as file:
        file.write("#")
    with pytest.raises(PolicyError, match="1 MiB") as caught:
        Policy.load(path)
    assert caught.value.path == str(path)


def test_a_file_that_is_not_utf8_is_a_policy_error_that_names_the_line(tmp_path):
    path = tmp_path / "p.toml"
    path.write_bytes(b"[policy]\nname = '\xff'\n")
    with pytest.raises(PolicyError, match="not UTF-8 in line 2") as caught:
        Policy.load(path)
    assert caught.value.path == str(path)


def test_the_default_policy_is_the_file_in_the_repository():
    default = Policy.default()
    assert default == Policy.load(POLICIES / "default.toml")
    assert (default.name, default.limits) == ("default", Limits())
    assert default.decide_archive(facts("anything")).effect == "allow"
    assert default.decide_archive(facts("anything", sensitivity=["signed"])).effect == "never"
    assert default.decide_archive(facts("anything", sensitivity=["x", "user_confirmed"])).effect == "never"
    assert default.restore_openings(facts("anything", sensitivity=["clinical"])) == (None,)


def test_an_installed_wheel_finds_the_default_policy_inside_the_package(tmp_path, monkeypatch):
    package = tmp_path / "evidence_archive"
    (package / "policies").mkdir(parents=True)
    monkeypatch.setattr(policy_module, "__file__", str(package / "policy.py"))
    with pytest.raises(PolicyError, match="cannot be read"):
        Policy.default()
    (package / "policies" / "default.toml").write_bytes((POLICIES / "default.toml").read_bytes())
    installed = Policy.default()
    assert installed.path == str(package / "policies" / "default.toml")
    assert installed == Policy.load(POLICIES / "default.toml")


DIGEST_LINES = ['id = "a"', 'effect = "never"', 'tools = ["x", "y"]', "size_chars_min = 9"]


@given(st.permutations(DIGEST_LINES), st.booleans())
def test_comments_and_the_order_of_keys_do_not_change_the_digest(lines, commented):
    ending = "   # why\n\n" if commented else "\n"
    body = "[[archive]]" + ending + "".join(line + ending for line in lines)
    assert policy(body).digest == policy("[[archive]]\n" + "\n".join(DIGEST_LINES)).digest


def test_everything_else_changes_the_digest():
    body = "[[archive]]\n" + "\n".join(DIGEST_LINES) + "\n"
    changed = [
        body.replace('"x", "y"', '"y", "x"'),
        body.replace("9", "8"),
        body + DENIAL,
        body + DENIAL.replace('"a"', '"b"'),
        body + "[limits]\n",
        body.replace('id = "a"', 'id = "b"'),
    ]
    digests = {policy(text).digest for text in (body, *changed)} | {policy(body, "allow").digest}
    assert len(digests) == len(changed) + 2
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in digests)


def test_the_digest_of_a_text_is_frozen():
    # printf '%s' '{"policy":{"default":"never","name":"p","version":1}}' | sha256sum
    assert policy().digest == "c116012b6452105826db1468ba6e1955fbfcb0bed9f4ec30eb763d4d6396abfe"


def test_a_policy_is_immutable_and_its_repr_is_short():
    p = policy("".join(RULES.values()))
    with pytest.raises(AttributeError):
        p.name = "other"
    assert "never-a" not in repr(p)
    assert p == policy("".join(RULES.values()))
    assert p != policy()
    assert hash(p) == hash(policy("".join(RULES.values())))


def test_limits_are_those_of_the_vocabulary_with_the_bounds_around_the_defaults():
    assert {name: info.default for name, info in TABLES["limits"].model_fields.items()} == {
        limit.name: limit.default for limit in fields(Limits)
    }
    assert policy().limits == Limits()
    assert policy("[limits]\nnote_chars_max = 100\n").limits == Limits(note_chars_max=100)
    for limit in fields(Limits):
        low, high = LIMIT_BOUNDS[limit.name]
        assert 0 < low < limit.default < high
        for value in (low, high):
            assert getattr(policy(f"[limits]\n{limit.name} = {value}\n").limits, limit.name) == value
        for value in (low - 1, high + 1):
            assert refusal(f"[limits]\n{limit.name} = {value}\n").key == f"limits.{limit.name}"


def test_without_the_table_there_is_no_window_and_each_key_has_its_bounds():
    assert policy().window is None
    assert policy("[window]\n").window == WindowPolicy()
    assert {name: info.default for name, info in TABLES["window"].model_fields.items()} == {
        one.name: one.default for one in fields(WindowPolicy)
    }
    room = {"low": "high = 1.0\n", "high": "low = 0.0\n", "price_cached_input": "price_input = 1000000\n"}
    room["price_input"] = "price_cached_input = 0.0\n"
    for name, (low, high) in WINDOW_BOUNDS.items():
        assert low <= getattr(WindowPolicy(), name) <= high
        for value in (low, high):
            found = policy(f"[window]\n{name} = {value}\n{room.get(name, '')}").window
            assert getattr(found, name) == value
            assert type(getattr(found, name)) is type(getattr(WindowPolicy(), name))
        for value in (low - 1, high + 1):
            assert refusal(f"[window]\n{name} = {value}\n").key == f"window.{name}"
    assert policy('[window]\ntrace = "sealed"\n').window == WindowPolicy(trace="sealed")


@pytest.mark.parametrize(
    ("keys", "key"),
    [
        ("low = 0.8\n", "window.low"),
        ("high = 0.2\n", "window.low"),
        ("price_cached_input = 3.1\n", "window.price_cached_input"),
        ("price_input = nan\n", "window.price_input"),
        ("high = true\n", "window.high"),
        ("high = '0.8'\n", "window.high"),
        ("trace = 'plain'\n", "window.trace"),
        ("window_tokens_max = 2000.0\n", "window.window_tokens_max"),
    ],
)
def test_a_window_that_means_nothing_is_refused(keys, key):
    assert refusal(f"[window]\n{keys}").key == key


# --- the documentation ------------------------------------------------------------------------------------------

SECTIONS = {
    "### Tables": "",
    "### `[policy]`": "policy",
    "### `[limits]`": "limits",
    "### `[custody]`": "custody",
    "### `[ledger]`": "ledger",
    "### `[window]`": "window",
    "### `[[archive]]`": "archive",
    "### `[[archive]]` `content`": "archive.content",
    "### `[[live]]`": "live",
    "### `[[restore]]`": "restore",
    "### `[[retention]]`": "retention",
    "### `[[test]]`": "test",
}


def documented(text):
    """The rows of every table of keys, by the table's dotted name: key -> the row's cells by column."""
    found = {}
    for section in re.split(r"(?m)^(?=###? )", text):
        title = section.partition("\n")[0]
        if title.startswith("### "):
            rows = [
                [cell.strip() for cell in line.strip("|").split("|")]
                for line in section.splitlines()
                if line.startswith("|")
            ]
            found[SECTIONS[title]] = {row[0].strip("`"): dict(zip(rows[0], row, strict=True)) for row in rows[2:]}
    return found


def undocumented(found):
    """What README and models disagree on."""
    wrong = sorted(found.keys() ^ TABLES.keys())
    for name, model in TABLES.items():
        rows = found.get(name, {})
        wrong += sorted(rows.keys() ^ model.model_fields.keys())
        for key in rows.keys() & model.model_fields.keys():
            info = model.model_fields[key]
            default = str(info.default) if type(info.default) in (int, float) else "-"
            if info.is_required():
                default = "required"
            if rows[key]["default"] != default:
                wrong.append(f"{key}: {default}")
    return wrong


def test_the_readme_lists_every_key_with_its_default_and_no_other():
    text = (POLICIES / "README.md").read_text(encoding="utf-8")
    found = documented(text)
    assert undocumented(found) == []
    for name, row in found["limits"].items():
        assert (int(row["minimum"]), int(row["maximum"])) == LIMIT_BOUNDS[name]
        assert row["unit"]
    bounds = {name: (row["minimum"], row["maximum"]) for name, row in found["window"].items() if row["minimum"]}
    assert bounds == {name: (str(low), str(high)) for name, (low, high) in WINDOW_BOUNDS.items()}


def test_control_a_readme_with_a_key_too_few_too_many_or_a_wrong_default_is_noticed():
    text = (POLICIES / "README.md").read_text(encoding="utf-8")
    row = "| `days` | integer | days | required |"
    assert row in text
    for changed in (
        re.sub(r"(?m)^\| `days`.*\n", "", text),
        text.replace("| `days` |", "| `dais` |"),
        text.replace(row, "| `days` | integer | days | 10 |"),
        text.replace(
            "| `restores_per_turn_max` | integer | restores | 8 |", "| `restores_per_turn_max` | integer | r | 9 |"
        ),
    ):
        assert changed != text
        assert undocumented(documented(changed))


def test_the_readme_states_the_bounds_of_the_code():
    text = (POLICIES / "README.md").read_text(encoding="utf-8")
    assert f"{CONTENT_CHARS_MAX:,} characters" in text
    assert FILE_BYTES_MAX == 1024 * 1024
