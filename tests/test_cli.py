"""The command line, read as scripts: exact output, exit codes that say whose move it is, and no traceback ever."""

import base64
import hashlib
import json
import os
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from evidence_archive import Archive, Principal
from evidence_archive.cli import main, render
from evidence_archive.errors import StoreUnavailableError
from evidence_archive.keys import new_keys

ROOT = Path(__file__).resolve().parents[1]
OWNER = Principal("north-clinic", "triage-agent")
UGLY = "CRLF\r\n NUL\0 lone \ud800 \N{GRINNING FACE} \u202e\n" * 30
LOG = "\n".join(f"line {number} of the log" for number in range(1, 101))
PARTS = [{"type": "text", "text": LOG}, {"type": "text", "text": "\N{GRINNING FACE}", "b": 1, "a": [True, 1.0, None]}]
CONTENTS = {"r1": UGLY, "r2": LOG, "r3": PARTS}


def talk(contents):
    messages = [{"role": "user", "content": "Look."}]
    for number, content in enumerate(contents):
        function = {"name": "logs.read", "arguments": "{}"}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": content})
    return [*messages, {"role": "assistant", "content": "Seen."}]


class Store:
    """A store with three archived originals and one live result, and the arguments that name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = folder / "evidence.keys"
        self.database = folder / "evidence.db"
        self.url = f"sqlite:///{self.database}"
        new_keys(self.keys)
        with Archive.open(self.url, keys=self.keys) as archive:
            session = archive.session("case-4711", OWNER)
            session.view(talk([*CONTENTS.values(), "short, live"]))
            session.archive([(result_id, "a secret note") for result_id in CONTENTS])

    def options(self, org="north-clinic", subject="triage-agent", keys=None, url=None):
        given = {"--url": url or self.url, "--keys": str(keys or self.keys), "--org": org, "--subject": subject}
        return [word for option in given.items() for word in option]

    def run(self, *words, **named):
        return main([*words, *self.options(**named)])


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch):
    for name in list(os.environ):
        if name.startswith("EVIDENCE_ARCHIVE_"):
            monkeypatch.delenv(name)


def failed(capsys, code, got):
    """The one sentence on stderr of a command that failed, with nothing on stdout."""
    out, err = capsys.readouterr()
    assert (got, out) == (code, "")
    assert err.startswith("Error: ")
    assert err.count("\n") == 1
    assert err.rstrip().endswith((".", "'"))
    assert "Traceback" not in err
    return err


def exact(content):
    if isinstance(content, str):
        return content.encode("utf-8", "surrogatepass")
    return json.dumps(content, ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode("ascii")


# --- the program ------------------------------------------------------------------------------------------------


COMMANDS = [
    ["demo"],
    ["replay"],
    ["results"],
    ["restore"],
    ["audit", "log"],
    ["resume"],
    ["collect"],
    ["keys", "new"],
    ["policy", "check"],
    ["policy", "explain"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example_and_json(command, capsys):
    assert main([*command, "--help"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"Example: evidence-archive {' '.join(command)}" in out
    assert "--json" in out


def test_without_a_command_the_help_names_them_all(capsys):
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(command[0] in out for command in COMMANDS)


def test_the_version_is_that_of_the_package(capsys):
    from evidence_archive import __version__

    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"evidence-archive {__version__}\n"


@pytest.mark.parametrize(
    ("words", "whose"),
    [
        (["nonsense"], ""),
        (["demo", "--nonsense"], " demo"),
        (["replay"], " replay"),
        (["results", "case"], " results"),
        (["keys"], " keys"),
        (["policy", "check"], " policy check"),
        (["replay", "x", "--batch-min", "0"], " replay"),
    ],
)
def test_wrong_usage_is_one_sentence_and_names_the_help_of_the_command(words, whose, capsys):
    assert f"See 'evidence-archive{whose} --help'" in failed(capsys, 2, main(words))


@pytest.mark.parametrize("command", [[], ["keys"], ["policy"], *COMMANDS], ids=" ".join)
def test_help_cuts_no_sentence_and_names_values_by_what_they_are(command, capsys):
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "..." not in out.replace("[ARGS]...", "").replace("{FILE}...", "")
    assert not any(
        f"-{name} <" in out
        for name in ("url", "keys", "objects", "bytes", "out", "tool", "keep", "min", "lines", "role")
    )


def test_with_json_a_failure_is_one_document_too(capsys):
    assert main(["policy", "check", "none.toml", "--json"]) == 10
    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert (error["type"], error["exit_code"]) == ("PolicyError", 10)
    assert err == f"Error: {error['message']}\n"


def broken(error):
    def run(*args, **named):
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (RuntimeError("words of evidence"), 70, "Unexpected RuntimeError"),
        (KeyboardInterrupt(), 130, "Interrupted"),
        (typer.Abort(), 130, "Interrupted"),
        (OSError(28, "No space left on device", "words of evidence"), 1, "No space left on device"),
    ],
)
def test_what_nobody_expected_is_one_sentence_without_evidence(error, code, words, monkeypatch, capsys):
    monkeypatch.setattr("evidence_archive.policy.Policy.load", broken(error))
    err = failed(capsys, code, main(["policy", "check", "x"]))
    assert words in err
    assert "evidence" not in err.replace("evidence-archive", "")


def test_where_a_sentence_names_the_argument_the_command_line_names_its_option(monkeypatch, capsys):
    said = "Here: open the archive with objects=."
    monkeypatch.setattr("evidence_archive.policy.Policy.load", broken(StoreUnavailableError(said)))
    assert (
        failed(capsys, StoreUnavailableError.exit_code, main(["policy", "check", "x"]))
        == "Error: Here: open the archive with --objects.\n"
    )


def test_for_debugging_the_unexpected_is_raised(monkeypatch):
    monkeypatch.setenv("EVIDENCE_ARCHIVE_DEBUG", "1")
    monkeypatch.setattr("evidence_archive.policy.Policy.load", broken(RuntimeError("where")))
    with pytest.raises(RuntimeError, match="where"):
        main(["policy", "check", "x"])


def program(*words, **named):
    start = "import sys; from evidence_archive.cli import main; sys.exit(main())"
    return subprocess.run([sys.executable, "-c", start, *words], capture_output=True, check=False, **named)


def test_an_interrupt_while_the_program_loads_is_one_sentence():
    start = (
        "import sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'typer': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "from evidence_archive.cli import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", start, "demo", "--json"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (130, b"Error: Interrupted: nothing is half done.\n")
    assert json.loads(done.stdout)["error"]["exit_code"] == 130


def test_a_reader_that_goes_away_ends_the_program_quietly():
    start = "import sys; from evidence_archive.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", start, "policy", "check", str(ROOT / "policies" / "default.toml"), "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 141


def test_an_ascii_only_terminal_gets_ascii(tmp_path):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "NO_COLOR": "1"}
    done = program("policy", "explain", str(ROOT / "policies" / "default.toml"), "--tool", "x\u202e", env=environment)
    assert done.returncode == 0
    assert done.stdout.isascii()
    assert b"\x1b" not in done.stdout
    assert rb"x\u202e" in done.stdout


def test_the_program_starts_without_database_tokenizer_and_tables():
    start = (
        "import sys; from evidence_archive.cli import main; main(['--version']); "
        "print({'sqlalchemy', 'tiktoken', 'rich', 'pydantic', 'cryptography', 'structlog'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[1] == "set()"


# --- keys -------------------------------------------------------------------------------------------------------


def test_new_keys_are_private_and_come_with_a_warning(tmp_path, capsys):
    path = tmp_path / "new.keys"
    assert main(["keys", "new", str(path)]) == 0
    out = capsys.readouterr().out
    assert "WARNING: Losing this file loses everything" in out
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert main(["keys", "new", str(tmp_path / "other.keys"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["path"] == str(tmp_path / "other.keys")
    assert "Losing this file" in document["warning"]
    secrets = json.dumps(path.read_text()).split('\\"')
    assert not any(len(word) > 20 and word in out for word in secrets)


def test_existing_keys_are_never_overwritten(tmp_path, capsys):
    path = tmp_path / "new.keys"
    path.write_text("precious")
    failed(capsys, 20, main(["keys", "new", str(path)]))
    assert path.read_text() == "precious"


# --- results ----------------------------------------------------------------------------------------------------


def test_results_are_listed_for_people(store, capsys):
    assert store.run("results", "case-4711") == 0
    out = capsys.readouterr().out
    assert "4 results, 3 archived." in out
    assert "?" not in out
    assert [line.split()[:1] for line in out.splitlines() if "logs.read" in line] == [["r1"], ["r2"], ["r3"], ["r4"]]
    assert "line 1 of the log" not in out
    assert "secret note" not in out


def test_results_are_listed_for_programs(store, capsys):
    assert store.run("results", "case-4711", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["session"] == "case-4711"
    assert [(info["id"], info["state"]) for info in document["results"]] == [
        ("r1", "archived"),
        ("r2", "archived"),
        ("r3", "archived"),
        ("r4", "live"),
    ]


def test_settings_come_from_the_environment_too(store, monkeypatch, capsys):
    for name, value in {
        "URL": store.url,
        "KEYS_PATH": store.keys,
        "POLICY": ROOT / "policies" / "default.toml",
        "ORG": "north-clinic",
        "SUBJECT": "triage-agent",
    }.items():
        monkeypatch.setenv(f"EVIDENCE_ARCHIVE_{name}", str(value))
    assert main(["results", "case-4711", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 4


def test_keys_can_come_from_the_environment_themselves(store, monkeypatch, capsys):
    monkeypatch.setenv("EVIDENCE_ARCHIVE_KEYS", store.keys.read_text())
    options = store.options()
    at = options.index("--keys")
    assert main(["results", "case-4711", "--json", *options[:at], *options[at + 2 :]]) == 0
    assert len(json.loads(capsys.readouterr().out)["results"]) == 4


def test_a_tool_name_cannot_steer_the_terminal(tmp_path, capsys):
    store = Store(tmp_path)
    messages = talk(["short"])
    messages[1]["tool_calls"][0]["function"]["name"] = "\x1b[31mred\u202e"
    with Archive.open(store.url, keys=store.keys) as archive:
        archive.session("odd", OWNER).view(messages)
    assert store.run("results", "odd") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert r"\u001b" in out


# --- restore ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("result_id", CONTENTS)
def test_an_original_comes_to_stdout_byte_for_byte(store, result_id, capsysbinary):
    assert store.run("restore", "case-4711", result_id) == 0
    out, err = capsysbinary.readouterr()
    assert out == exact(CONTENTS[result_id])
    assert err == b""


@pytest.mark.parametrize("result_id", CONTENTS)
def test_an_original_goes_to_a_new_private_file(store, result_id, tmp_path, capsys):
    path = tmp_path / "original"
    assert store.run("restore", "case-4711", result_id, "--out", str(path)) == 0
    out = capsys.readouterr().out
    assert path.read_bytes() == exact(CONTENTS[result_id])
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert hashlib.sha256(path.read_bytes()).hexdigest() in out
    assert "the whole original" in out
    assert "line 1 of the log" not in out


def test_a_file_that_exists_is_not_overwritten_and_nothing_is_released(store, tmp_path, capsys):
    path = tmp_path / "original"
    path.write_text("precious")
    failed(capsys, 2, store.run("restore", "case-4711", "r1", "--out", str(path)))
    assert path.read_text() == "precious"
    assert store.run("audit", "log", "--json") == 0
    events = [entry["event"] for entry in json.loads(capsys.readouterr().out)["entries"]]
    assert "restore.granted" not in events


def events(store, capsys):
    capsys.readouterr()
    assert store.run("audit", "log", "--json") == 0
    return [entry["event"] for entry in json.loads(capsys.readouterr().out)["entries"]]


def test_a_folder_that_is_not_there_is_named_and_nothing_is_released(store, tmp_path, capsys):
    path = tmp_path / "none" / "original"
    assert str(path) in failed(capsys, 2, store.run("restore", "case-4711", "r1", "--out", str(path)))
    assert "restore.granted" not in events(store, capsys)


def test_a_refused_restore_leaves_no_file_behind(store, tmp_path, capsys):
    path = tmp_path / "original"
    failed(capsys, 12, store.run("restore", "case-4711", "r999", "--out", str(path)))
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_named_and_removed(store, tmp_path, capsys, monkeypatch):
    path = tmp_path / "original"
    full = broken(OSError(28, "No space left on device"))
    for place, words in (
        ("evidence_archive.archive.Archive.restore_to", []),
        ("evidence_archive.cli.inspect._bytes_of", ["--bytes", "0-9"]),
    ):
        monkeypatch.setattr(place, full)
        err = failed(capsys, 1, store.run("restore", "case-4711", "r1", "--out", str(path), *words))
        assert f"{path} could not be written (No space left on device)" in err
        assert not path.exists()


@pytest.mark.parametrize("result_id", CONTENTS)
def test_an_original_comes_as_json_equal_in_type_and_value(store, result_id, capsys):
    assert store.run("restore", "case-4711", result_id, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["content"] == CONTENTS[result_id]
    assert exact(document["content"]) == exact(CONTENTS[result_id])
    assert document["sha256"] == hashlib.sha256(exact(CONTENTS[result_id])).hexdigest()
    assert (document["tool"], document["tool_call_id"], document["part"]) == (
        "logs.read",
        f"call_{int(result_id[1]) - 1}",
        None,
    )


def test_whose_digest_it_is_stands_in_its_name(store, tmp_path, capsys):
    digest = hashlib.sha256(LOG.encode()).hexdigest()
    assert store.run("restore", "case-4711", "r2", "--lines", "1-2", "--json") == 0
    part = json.loads(capsys.readouterr().out)
    assert (part["original_sha256"], part["original_size_bytes"]) == (digest, len(LOG))
    assert part["part"] == "lines 1-2 of 100"
    assert not {"sha256", "size_bytes"} & set(part)
    path = tmp_path / "original"
    assert store.run("restore", "case-4711", "r2", "--json", "--out", str(path)) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["sha256"], whole["out"], "content" in whole) == (digest, str(path), False)
    assert path.read_text() == LOG


def test_stderr_says_which_part_it_is(store, capsys):
    assert store.run("restore", "case-4711", "r2", "--lines", "10-12") == 0
    assert capsys.readouterr().err == "Part of r2 from logs.read: lines 10-12 of 100.\n"


def test_a_search_without_a_match_says_so_loudly(store, capsys):
    assert store.run("restore", "case-4711", "r2", "--pattern", "nowhere") == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("", "WARNING: NOTHING MATCHED in r2: 0 matches of a pattern in 100 lines.\n")


def test_matches_that_were_cut_are_said_loudly_wherever_the_part_goes(store, tmp_path, capsys):
    policy = tmp_path / "few.toml"
    text = (ROOT / "policies" / "default.toml").read_text("utf-8")
    policy.write_text(text + "\n[limits]\npattern_matches_max = 7\n", "utf-8")
    words = ["restore", "case-4711", "r2", "--policy", str(policy), "--pattern"]
    for more in ([], ["--json"], ["--out", str(tmp_path / "part")]):
        assert store.run(*words, "line", *more) == 0
        err = capsys.readouterr().err
        assert err.startswith("WARNING: CUT in r2: 7 of 100 matches")
        assert "93 matches not shown" in err
    assert store.run(*words, "line 77 ") == 0
    assert "WARNING" not in capsys.readouterr().err


def test_only_a_part_gets_a_line_feed_at_its_end_and_only_on_stdout(store, tmp_path, capsysbinary):
    path = tmp_path / "part"
    for lines, end in (("100", b"\n"), ("99-100", b"\n"), ("98-99", b"")):
        assert store.run("restore", "case-4711", "r2", "--lines", lines, "--out", str(path)) == 0
        capsysbinary.readouterr()
        assert store.run("restore", "case-4711", "r2", "--lines", lines) == 0
        assert capsysbinary.readouterr().out == path.read_bytes() + end
        path.unlink()


@pytest.mark.parametrize(
    "words",
    [
        ["--lines", "1-2", "--pattern", "x"],
        ["--lines", "x"],
        ["--pattern", ""],
        ["--context-lines", "3"],
        ["--pattern", "x", "--context-lines", "99"],
        ["--pointer", "x"],
        ["--bytes", "9-1"],
        ["--bytes", "0-1", "--lines", "1"],
    ],
)
def test_a_wrong_selector_is_named_as_an_option(store, words, capsys):
    err = failed(capsys, 40, store.run("restore", "case-4711", "r2", *words))
    assert "--" in err
    assert "null" not in err
    assert "None" not in err
    assert "context_lines" not in err
    assert "byte_range" not in err


def test_a_part_comes_exactly(store, capsysbinary, tmp_path):
    assert store.run("restore", "case-4711", "r2", "--lines", "10-12") == 0
    assert capsysbinary.readouterr().out.rstrip(b"\n") == "\n".join(LOG.split("\n")[9:12]).encode()
    assert store.run("restore", "case-4711", "r2", "--pattern", "line 77 ", "--context-lines", "0") == 0
    assert b"line 77 of the log" in capsysbinary.readouterr().out
    path = tmp_path / "part"
    assert store.run("restore", "case-4711", "r2", "--lines", "10-12", "--out", str(path)) == 0
    assert b"the whole original of" not in capsysbinary.readouterr().out
    assert path.read_text().count("line") == 3


@pytest.mark.parametrize("result_id", CONTENTS)
def test_bytes_come_raw_on_stdout_and_in_a_file_and_as_base64_in_json(store, result_id, tmp_path, capsysbinary):
    part, path = exact(CONTENTS[result_id])[5:16], tmp_path / "part"
    words = ["restore", "case-4711", result_id, "--bytes", "5-15"]
    assert store.run(*words) == 0
    out, err = capsysbinary.readouterr()
    assert out == part
    assert b"bytes 5-15 of" in err
    assert store.run(*words, "--out", str(path)) == 0
    assert path.read_bytes() == part
    capsysbinary.readouterr()
    assert store.run(*words, "--json") == 0
    document = json.loads(capsysbinary.readouterr().out)
    assert base64.b64decode(document["content_base64"]) == part
    assert "content" not in document
    assert document["original_sha256"] == hashlib.sha256(exact(CONTENTS[result_id])).hexdigest()


def test_two_selectors_are_refused(store, capsys):
    failed(capsys, 40, store.run("restore", "case-4711", "r2", "--lines", "1-2", "--pattern", "x"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["case-4711", "r999"], {}),
        (["case-4711", "r4"], {}),
        (["case-4711", "nonsense"], {}),
        (["case-0", "r1"], {}),
        (["case-4711", "r1"], {"subject": "somebody-else"}),
        (["case-4711", "r1"], {"org": "south-clinic"}),
    ],
)
def test_unknown_foreign_and_forbidden_are_one_and_the_same(store, words, named, capsys):
    err = failed(capsys, 12, store.run("restore", *words, **named))
    assert err == "Error: Not available: check the session, the result ID and who is asking.\n"


def test_a_role_opens_what_the_policy_says(store, tmp_path, capsys):
    policy = tmp_path / "open.toml"
    policy.write_text('[policy]\nname = "open"\nversion = 1\ndefault = "allow"\n[[restore]]\nroles = ["auditor"]\n')
    words = ["restore", "case-4711", "r2", "--json", "--policy", str(policy)]
    assert store.run(*words, "--role", "auditor", subject="somebody") == 0
    assert json.loads(capsys.readouterr().out)["content"] == LOG
    failed(capsys, 12, store.run(*words[:3], *words[4:], "--role", "cook", subject="somebody"))


# --- large originals ---------------------------------------------------------------------------------------------

LARGE = "a result of more than one mebibyte\r\n" * 40_000


def large(store, **named):
    """One original outside the database, in a session of its own."""
    with Archive.open(store.url, keys=store.keys, **named) as archive:
        session = archive.session("large", OWNER)
        session.view(talk([LARGE]))
        session.archive([("r1", "a secret note")])


def test_a_large_original_comes_from_the_folder_beside_the_database(store, tmp_path, capsysbinary):
    large(store)
    path = tmp_path / "large.txt"
    assert store.run("restore", "large", "r1", "--out", str(path)) == 0
    assert f"Wrote {len(LARGE):,} bytes to".encode() in capsysbinary.readouterr().out
    assert path.read_bytes() == LARGE.encode()
    assert store.run("restore", "large", "r1") == 0
    assert capsysbinary.readouterr().out == LARGE.encode()
    assert store.run("restore", "large", "r1", "--lines", "40000") == 0
    assert capsysbinary.readouterr().out == b"a result of more than one mebibyte\r\n"


def test_a_large_original_comes_from_the_folder_that_is_named(store, tmp_path, monkeypatch, capsysbinary):
    folder = tmp_path / "elsewhere"
    large(store, objects=folder)
    path = tmp_path / "large.txt"
    assert store.run("restore", "large", "r1", "--out", str(path)) == 51
    assert not path.exists()
    assert b"name the right one" in capsysbinary.readouterr().err
    assert store.run("restore", "large", "r1", "--objects", str(folder)) == 0
    monkeypatch.setenv("EVIDENCE_ARCHIVE_OBJECTS", str(folder))
    assert store.run("restore", "large", "r1", "--out", str(path)) == 0
    assert path.read_bytes() == LARGE.encode()


def test_a_changed_object_leaves_no_file_behind(store, tmp_path, capsys):
    large(store)
    (object_,) = (store.folder / "evidence.db.objects").glob("??/*.00000")
    data = object_.read_bytes()
    object_.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    path = tmp_path / "large.txt"
    failed(capsys, 31, store.run("restore", "large", "r1", "--out", str(path)))
    assert not path.exists()


LOOKS = [
    ["results", "case-4711"],
    ["audit", "log"],
    ["resume", "case-4711"],
    ["restore", "case-4711", "r2"],
    ["collect"],
]


@pytest.mark.parametrize("words", LOOKS, ids=lambda words: words[0])
def test_looking_makes_no_folder_for_objects_and_needs_none(store, words, tmp_path):
    assert store.run(*words) == 0
    assert not (store.folder / "evidence.db.objects").exists()
    folder = tmp_path / "none"
    assert store.run(*words, "--objects", str(folder)) == (51 if words == ["collect"] else 0)
    assert not folder.exists()


def given_up(store, monkeypatch):
    """A batch whose process was gone after its first object; its time is over."""
    with monkeypatch.context() as patched:
        patched.setattr("evidence_archive.envelopes.INTENT_SECONDS", -1)
        patched.setattr("evidence_archive.envelopes.Envelopes.keep", broken(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            large(store)


def test_what_a_batch_that_was_given_up_left_is_collected(store, monkeypatch, capsys):
    given_up(store, monkeypatch)
    folder = store.folder / "evidence.db.objects"
    assert len([*folder.glob("??/*")]) == 1
    assert store.run("collect") == 0
    assert capsys.readouterr().out == (
        "1 original of batches that were given up: objects deleted, and once more in 6 hours.\n"
        "0 originals of that kind forgotten: nothing of them is left.\n"
        "0 unfinished files removed.\n"
    )
    assert [*folder.glob("??/*")] == []
    assert store.run("collect", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"abandoned": 0, "forgotten": 0, "tidied": 0}


# --- under which policy -----------------------------------------------------------------------------------------

CAREFUL = """
[policy]
name = "careful"
version = 1
default = "allow"

[[archive]]
id = "ssn"
tools = ["records.*"]
content = "SSN"
effect = "never"

[[archive]]
id = "old"
tools = ["memory.*"]
age_turns_min = 2
effect = "never"

[[archive]]
id = "signed"
tools = ["consent.*"]
effect = "never"
"""


@pytest.fixture
def careful(store):
    """The arguments that name a store used under a policy with rules on words and age."""
    path = store.folder / "careful.toml"
    path.write_text(CAREFUL, "utf-8")
    names = ["records.read", "memory.read", "consent.read", "logs.read"]
    messages = talk([f"made up {name}" for name in names])
    for at, name in enumerate(names):
        messages[1 + 2 * at]["tool_calls"][0]["function"]["name"] = name
    with Archive.open(store.url, keys=store.keys, policy=path) as archive:
        archive.session("careful", OWNER).view(messages)
    return ["--policy", str(path)]


@pytest.mark.parametrize("words", [["results", "careful"], ["results", "case-4711"], ["restore", "case-4711", "r2"]])
def test_a_policy_that_was_forgotten_is_asked_for(store, careful, words, capsys, monkeypatch):
    err = failed(capsys, 10, store.run(*words))
    assert "--policy or EVIDENCE_ARCHIVE_POLICY" in err
    assert store.run(*words, *careful) == 0
    assert store.run(*words, "--policy", str(ROOT / "policies" / "default.toml")) == 0
    monkeypatch.setenv("EVIDENCE_ARCHIVE_POLICY", careful[1])
    assert store.run(*words) == 0


def test_a_restore_under_a_named_policy_does_not_change_which_one_is_asked_for(store, careful, capsys):
    assert store.run("restore", "case-4711", "r2", "--policy", str(ROOT / "policies" / "default.toml")) == 0
    capsys.readouterr()
    failed(capsys, 10, store.run("restore", "case-4711", "r1"))


@pytest.mark.parametrize("words", [["audit", "log"], ["resume", "case-4711"], ["collect"]])
def test_what_does_not_depend_on_the_policy_does_not_ask_for_it(store, careful, words):
    assert store.run(*words) == 0


def test_protection_that_hangs_on_words_or_age_is_not_guessed(store, careful, capsys):
    assert store.run("results", "careful", *careful, "--json") == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert [(info["tool"], info["protected_by"], info["protection_known"]) for info in found] == [
        ("records.read", None, False),
        ("memory.read", None, False),
        ("consent.read", "signed", True),
        ("logs.read", None, True),
    ]
    assert store.run("results", "careful", *careful) == 0
    out = capsys.readouterr().out
    assert [line.split()[4] for line in out.splitlines() if ".read" in line] == ["?", "?", "signed", "-"]
    assert "? depends on the text or age" in out


# --- what may go wrong with the store ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["results", "case"], ["restore", "case", "r1"], ["audit", "log"], ["resume", "case"], ["collect"]]
)
def test_looking_into_a_store_that_is_not_there_creates_none(store, command, tmp_path, capsys):
    path = tmp_path / "none.db"
    failed(capsys, 51, store.run(*command, url=f"sqlite:///{path}"))
    assert not path.exists()


def test_wrong_keys_are_the_keys_fault_and_change_nothing(store, tmp_path, capsys):
    other = tmp_path / "other.keys"
    new_keys(other)
    before = store.database.read_bytes()
    failed(capsys, 22, store.run("results", "case-4711", keys=other))
    assert store.database.read_bytes() == before


@pytest.mark.parametrize(
    "command", [["results", "case"], ["restore", "case", "r1"], ["audit", "log"], ["resume", "case"], ["collect"]]
)
def test_who_looks_into_a_store_is_told_to_put_its_keys_back(store, command, tmp_path, capsys):
    damaged = tmp_path / "damaged.keys"
    damaged.write_text("{}")
    damaged.chmod(0o600)
    errors = [failed(capsys, 21, store.run(*command, keys=tmp_path / "none.keys"))]
    errors.append(failed(capsys, 20, store.run(*command, keys=damaged)))
    options = store.options()
    at = options.index("--keys")
    errors.append(failed(capsys, 21, main([*command, *options[:at], *options[at + 2 :]])))
    for err in errors:
        assert "put back the key file this store was sealed with" in err
        assert "keys new" not in err


@pytest.mark.parametrize(
    "command", [["results", "case"], ["restore", "case", "r1"], ["audit", "log"], ["resume", "case"], ["collect"]]
)
def test_looking_into_an_org_that_is_not_there_creates_none(store, command, capsys):
    failed(capsys, 12, store.run(*command, org="south-clinic"))
    with sqlite3.connect(store.database) as connection:
        assert b"south-clinic" not in "\n".join(connection.iterdump()).encode()
    connection.close()


# --- audit and resume -------------------------------------------------------------------------------------------


def test_the_audit_log_is_listed_and_verified(store, capsys):
    assert store.run("restore", "case-4711", "r2", "--out", str(store.folder / "out")) == 0
    store.run("restore", "case-4711", "r9")
    capsys.readouterr()
    assert store.run("audit", "log") == 0
    out = capsys.readouterr().out
    assert "INTACT" in out
    for event in ("session.opened", "batch.accepted", "restore.granted", "restore.denied"):
        assert event in out
    assert "secret note" not in out
    assert "line 1 of the log" not in out


def test_the_audit_log_is_there_for_programs(store, capsys):
    assert store.run("audit", "log", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["intact"] is True
    assert len(document["root"]) == 64
    assert [entry["seq"] for entry in document["entries"]] == list(range(document["size"]))
    assert {"time", "event", "session", "subject", "details"} <= set(document["entries"][0])
    assert store.run("audit", "log", "--json", "--start", "2") == 0
    later = json.loads(capsys.readouterr().out)
    assert later["entries"] == document["entries"][2:]


def edited(store):
    """Another subject in one audit entry, as somebody with the database but without keys would write it."""
    with sqlite3.connect(store.database) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        changed = 0
        for table in tables:
            columns = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
            for column in columns:
                for (value,) in connection.execute(f"SELECT {column} FROM {table}").fetchall():
                    if isinstance(value, bytes) and b"batch.accepted" in value and b"triage-agent" in value:
                        forged = value.replace(b"triage-agent", b"somebodyelse")
                        connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (forged, value))
                        changed += 1
    connection.close()
    return changed


def test_an_edited_audit_entry_is_noticed(store, capsys):
    assert edited(store) == 1
    code = store.run("audit", "log")
    out, err = capsys.readouterr()
    assert code == 32
    assert "BROKEN" in out or err.startswith("Error: ")
    assert "INTACT" not in out


def test_a_broken_log_is_listed_with_its_verdict(store, capsys, monkeypatch):
    real = Archive.audit

    def differing(self, **named):
        from dataclasses import replace

        return replace(real(self, **named), intact=False)

    monkeypatch.setattr(Archive, "audit", differing)
    assert store.run("audit", "log") == 32
    out = capsys.readouterr().out
    assert "BROKEN: entries and head disagree" in out
    assert "compare it with a backup" in out
    assert store.run("audit", "log", "--json") == 32
    assert json.loads(capsys.readouterr().out)["intact"] is False


def damaged(store):
    """One changed byte in every sealed original."""
    with sqlite3.connect(store.database) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        (table,) = [name for name in tables if "envelope" in columns_of(connection, name)]
        for (envelope,) in connection.execute(f"SELECT envelope FROM {table}").fetchall():
            forged = envelope[:-1] + bytes([envelope[-1] ^ 1])
            connection.execute(f"UPDATE {table} SET envelope = ? WHERE envelope = ?", (forged, envelope))
    connection.close()


def columns_of(connection, table):
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]


def test_resume_lets_a_suspended_session_archive_again(store, capsys):
    damaged(store)
    for more in ([], ["--json"]):
        failed(capsys, 31, store.run("restore", "case-4711", "r1"))
        assert store.run("resume", "case-4711", *more) == 0
        out = capsys.readouterr().out
        if more:
            assert json.loads(out) == {"session": "case-4711", "was": "integrity", "suspended": None}
        else:
            assert out == "Session case-4711 was suspended (integrity) and may archive again.\n"
    failed(capsys, 12, store.run("resume", "case-0"))


def test_resume_says_when_there_was_nothing_to_resume(store, capsys):
    assert store.run("resume", "case-4711") == 0
    assert "was not suspended" in capsys.readouterr().out
    assert store.run("resume", "case-4711", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"session": "case-4711", "was": None, "suspended": None}
    assert "session.resumed" not in events(store, capsys)


# --- policy -----------------------------------------------------------------------------------------------------

POLICY = """
[policy]
name = "small"
version = 3
default = "allow"

[[archive]]
id = "prescription-basis"
tools = ["prescription.*"]
effect = "never"
reason = "stays in the record"

[[live]]
tools = ["inventory.*"]
ask = "inventory.lookup"
max_age_seconds = 300

[[restore]]
sensitivity = ["clinical"]
roles = ["veterinarian"]

[[retention]]
sensitivity = ["clinical"]
days = 3650
"""
GOOD_TEST = '[[test]]\ntool = "prescription.read"\nexpect = "never"\nrule = "prescription-basis"\n'
BAD_TEST = '[[test]]\ntool = "prescription.read"\nexpect = "allow"\n'


@pytest.fixture
def policy(tmp_path):
    def write(text):
        path = tmp_path / "small.toml"
        path.write_text(text, "utf-8")
        return str(path)

    return write


def test_a_policy_whose_tests_hold_passes(policy, capsys):
    assert main(["policy", "check", policy(POLICY + GOOD_TEST)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PASS  test[0]")
    assert "small version 3: 1 test, 0 failed." in out


def test_a_policy_whose_tests_fail_ends_with_1_and_says_what_to_do(policy, capsys):
    path = policy(POLICY + GOOD_TEST + BAD_TEST)
    assert main(["policy", "check", path]) == 1
    out = capsys.readouterr().out
    assert "FAIL  test[1] prescription.read: got never by prescription-basis (stays in the record), expected" in out
    assert "policy explain" in out
    assert main(["policy", "check", path, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], [test["passed"] for test in document["tests"]]) == (False, [True, False])


def test_a_failing_test_says_when_only_the_missing_text_decided(policy, capsys):
    path = policy(CAREFUL + '[[test]]\ntool = "records.read"\nexpect = "allow"\n')
    assert main(["policy", "check", path]) == 1
    words = "got never by ssn (no text given, so its content rule counts as matched), expected allow\n"
    assert words in capsys.readouterr().out
    path = policy(CAREFUL + '[[test]]\ntool = "records.read"\ntext = "his SSN"\nexpect = "allow"\n')
    assert main(["policy", "check", path]) == 1
    assert "got never by ssn (the rule ssn never allows it)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[policy]\nname", "line 2, column 5: expected '=' after a key in a key/value pair."),
        ("[policy", "line 1, column 8: expected ']' at the end of a table declaration."),
        ("[hunter2]\n[hunter2]", "a table is declared twice."),
        ("a = {hunter2 = 1, hunter2 = 2}", "an inline table holds a key twice."),
        ("a = {b = 1}\na.hunter2 = 1", "an inline table or array is added to."),
        ("a = 'hunter2\x01'", "a character that is not allowed there."),
    ],
)
def test_a_syntax_error_is_a_whole_sentence_without_the_text(policy, text, words, capsys):
    err = failed(capsys, 10, main(["policy", "check", policy(text)]))
    assert err.endswith(f"{words}\n")
    assert "hunter2" not in err


def test_a_policy_without_tests_that_deny_is_warned_about(policy, capsys):
    assert main(["policy", "check", policy(POLICY)]) == 0
    assert "WARNING  no [[test]]" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["check"], ["explain", "--tool", "x"]])
def test_a_broken_policy_is_named_with_its_place(policy, command, capsys):
    path = policy(POLICY + "[[archive]]\nid = 'x'\neffect = 'maybe'\n")
    assert "archive[1].effect" in failed(capsys, 10, main(["policy", command[0], path, *command[1:]]))


def test_explain_says_which_rule_decides_and_why(policy, capsys):
    path = policy(POLICY)
    assert main(["policy", "explain", path, "--tool", "prescription.read", "--sensitivity", "clinical"]) == 0
    out = capsys.readouterr().out
    assert "prescription.read: is never archived" in out
    assert "decided by: prescription-basis (stays in the record)" in out
    assert "restored by: roles veterinarian" in out
    assert "kept: 3650 days" in out
    assert main(["policy", "explain", path, "--tool", "inventory.count"]) == 0
    out = capsys.readouterr().out
    assert "may be archived" in out
    assert "ask inventory.lookup for the present (at the latest after 300 s)" in out
    assert "restored by: the owner only" in out


def test_explain_takes_every_fact_and_speaks_json(policy, capsys):
    path = policy(POLICY)
    facts = ["--tool", "a", "--result-tool", "prescription.b", "--kind", "k", "--age-turns", "3", "--text", "words"]
    assert main(["policy", "explain", path, *facts, "--size-chars", "5", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["decision"]["rule_id"] == "prescription-basis"
    assert [(step["tool"], step["matched"]) for step in document["steps"]] == [("a", False), ("prescription.b", True)]


def test_a_policy_without_rules_is_explained_without_a_table(policy, capsys):
    assert (
        main(["policy", "explain", policy('[policy]\nname = "x"\nversion = 1\ndefault = "never"\n'), "--tool", "x"])
        == 0
    )
    out = capsys.readouterr().out
    assert "x: is never archived" in out
    assert "effect" not in out


# --- rendering --------------------------------------------------------------------------------------------------


def test_the_chart_shows_two_series_by_shape(capsys):
    lines = render.chart([10, 100, 200], [10, 50, 20, 20])
    assert len(lines) == render.CHART_ROWS + 2
    assert "░ whole history" in lines[0] or ". whole history" in lines[0]
    assert lines[1].startswith("      200 |")
    assert sum(line.count(lines[0].split()[3]) for line in lines[1:-1]) == 1 + 5 + 10


def test_a_long_chart_is_thinned_and_keeps_the_last_request():
    assert render._thinned(list(range(100)), 4) == [*range(0, 99, 4), 99]
    assert render._thinned([], 4) == []
    assert len(render.chart(list(range(1, 500)), [])) == render.CHART_ROWS + 2


@pytest.mark.parametrize("columns", [40, 50, 60, 80])
def test_a_chart_fits_the_terminal(columns, monkeypatch):
    monkeypatch.setattr(render, "width_columns", lambda: columns)
    lines = render.chart(list(range(1, 200)), list(range(1, 150)))
    assert max(map(len, lines)) <= columns


HEADS, ROWS = ("id", "tool", "tokens"), [("r1", "logs.read", 123456), ("r2", "\N{GRINNING FACE}\n", None)]


def test_a_table_that_fits_has_columns_and_no_blanks_at_the_end(capsys):
    render.table("session x", HEADS, ROWS, numbers=[2])
    assert capsys.readouterr().out == (
        "session x\n"
        "id  tool       tokens\n"
        "--  ---------  ------\n"
        "r1  logs.read  123456\n"
        "r2  \N{GRINNING FACE}\\n            -\n"
        "\n"
    )


def test_a_table_that_does_not_fit_becomes_a_block_per_record(monkeypatch, capsys):
    monkeypatch.setattr(render, "width_columns", lambda: 20)
    render.table("session x", HEADS, ROWS, numbers=[2])
    render.table("", ("", "whole", ""), [("requests", "12", ""), ("bytes", "", "about 7 of them")])
    render.table("", ("", ""), [("equal", "15 of 15"), ("restored equal", "15 of 15")])
    assert capsys.readouterr().out.splitlines() == [
        "session x",
        *("id: r1", "  tool: logs.read", "  tokens: 123456"),
        *("id: r2", "  tool: \N{GRINNING FACE}\\n", "  tokens: -", ""),
        *("requests", "  whole: 12", "bytes", "  about 7 of them", ""),
        *("equal: 15 of 15", "restored equal", "  15 of 15", ""),
    ]


@pytest.mark.parametrize("columns", [40, 50, 60, 80])
@pytest.mark.parametrize("command", [["results", "case-4711"], ["audit", "log"]], ids=" ".join)
def test_no_terminal_is_too_narrow_for_ids_and_numbers(store, command, columns, monkeypatch, capsys):
    assert store.run(*command) == 0
    wide = capsys.readouterr().out
    assert wide == "".join(f"{line.rstrip()}\n" for line in wide.splitlines())
    monkeypatch.setattr(render, "width_columns", lambda: columns)
    assert store.run(*command) == 0
    narrow = capsys.readouterr().out.split()
    rows = wide.split("--\n")[1]
    assert [word for word in rows.split() if word not in narrow] == []


def test_counts_are_told_with_their_noun():
    said = [render.counted(1, "result"), render.counted(0, "result"), render.counted(2_000, "batch", "batches")]
    assert said == ["1 result", "0 results", "2,000 batches"]


def test_records_sets_and_bytes_become_json():
    assert render.plain({"a": frozenset({"y", "x"}), "b": b"\x01", "c": (1, None, True)}) == {
        "a": ["x", "y"],
        "b": "01",
        "c": [1, None, True],
    }
