"""PostgreSQL beside SQLite: appends per second under one lock and under eight, and what a row takes on disk.

Needs a server as the tests do: the one of ``EVIDENCE_ARCHIVE_TEST_POSTGRES``, or one started for the run, its files
where temporary files lie. A writer is a process of its own; bare commits of the same run are what ratios refer to.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.surroundings import durable_connection, quantile, real_text, rows, seconds
from evidence_archive import Archive, Principal
from evidence_archive.keys import new_keys
from evidence_archive.ports import OrgRow
from evidence_archive.store import open_store

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests"))
from postgres_server import GIVEN, Server, given_or_own, raw, servers

WRITERS = (1, 2, 4, 8)
SECONDS = 2.0
LEAF_BYTES = 350
"""About what a leaf of an accepted batch takes."""

SHAPES = ((10_000, 1024), (10_000, 16 * 1024))
PER_SESSION = 100
ROW_KEY = bytes(32)


def _leaf(seq: int) -> bytes:
    return b"%d|" % seq + bytes(LEAF_BYTES)


def _org(store: Any, name: str) -> Any:
    row = OrgRow(name, bytes(16), b"wrapped", 1, bytes(16), 1, 0)
    return store.scoped(store.create_org(row, ROW_KEY, [_leaf]), ROW_KEY)


def _writer(url: str, org: str, start: Any, told: Any) -> None:
    with closing(open_store(url)) as store:
        mine, done = _org(store, org), 0
        start.wait()
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            with mine.writing(60_000, audited=True) as writer:
                writer.append([_leaf])
            done += 1
        told.put(done)


def _appends(url: str, orgs: list[str]) -> float:
    """Appends per second, a writer for each of the orgs named."""
    context = multiprocessing.get_context("spawn")
    start, told = context.Barrier(len(orgs)), context.Queue()
    writers = [context.Process(target=_writer, args=(url, org, start, told)) for org in orgs]
    for writer in writers:
        writer.start()
    done = sum(told.get() for _ in writers)
    for writer in writers:
        writer.join()
    return done / SECONDS


def _repeated(commit: Callable[[], Any]) -> float:
    """Times per second."""
    done, ends = 0, time.monotonic() + SECONDS / 2
    while time.monotonic() < ends:
        commit()
        done += 1
    return done / (SECONDS / 2)


def _bare_sqlite(folder: str) -> float:
    with closing(durable_connection(Path(folder) / "bare.db")) as bare:
        bare.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, b BLOB)")
        return _repeated(lambda: bare.execute("INSERT INTO t (b) VALUES (?)", (bytes(100),)))


def _bare_postgres(server: Server) -> float:
    with raw(server.admin) as bare:
        bare.execute("CREATE TABLE IF NOT EXISTS t (n bigserial PRIMARY KEY, b bytea)")
        return _repeated(lambda: bare.execute("INSERT INTO t (b) VALUES (%s)", (bytes(100),)))


def measure(rounds: int) -> dict[str, Any]:
    """Appends per second on both engines, the price of statements that are not prepared, bytes per row."""
    rounds = min(rounds, 3)
    with tempfile.TemporaryDirectory() as folder, given_or_own() if GIVEN else servers(in_memory=False) as server:
        role = server.role()

        def database() -> str:
            return server.database(role).render_as_string(hide_password=False)

        urls = {"sqlite": f"sqlite:///{folder}/evidence.db", "postgresql": database()}
        bare = {"sqlite": lambda: _bare_sqlite(folder), "postgresql": lambda: _bare_postgres(server)}
        appends = []
        for writers, orgs in [*((count, 1) for count in WRITERS), (8, 8)]:
            for engine, url in urls.items():
                names = [f"org{at % orgs}" for at in range(writers)]
                ours, floor = [], []
                for _ in range(rounds):
                    floor.append(bare[engine]())
                    ours.append(_appends(url, names))
                line = {"engine": engine, "writers": writers, "orgs": orgs, "per_s": quantile(ours, 0.5)}
                appends.append(
                    {**line, "bare_per_s": quantile(floor, 0.5), "ratio": line["per_s"] / quantile(floor, 0.5)}
                )
        return {
            "server": server.run("SHOW server_version")[0][0],
            "appends": appends,
            "verbs": _verbs(Path(folder), urls, rounds),
            "sizes": [_sizes(Path(folder), server, database(), count, size) for count, size in SHAPES],
        }


def _messages(texts: list[str]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for at, text in enumerate(texts):
        call = {"id": f"c{at}", "type": "function", "function": {"name": "logs.read", "arguments": "{}"}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": text})
    messages.append({"role": "assistant", "content": "Read."})
    return messages


def _verbs(folder: Path, urls: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """Milliseconds of the verbs of one session, and on PostgreSQL also with statements prepared in the server."""
    from sqlalchemy import event

    owner, lines = Principal("verbs", "agent"), []
    new_keys(folder / "verbs.keys")
    for name in ("sqlite", "postgresql", "postgresql, prepared"):
        took: dict[str, list[float]] = {"view": [], "archive": [], "restore": []}
        with Archive.open(urls[name.split(",", maxsplit=1)[0]], keys=folder / "verbs.keys") as archive:
            if "prepared" in name:
                engine = archive._around.store._engine.engine  # type: ignore[attr-defined]
                engine.dispose()
                event.listen(engine, "connect", lambda connection, _: setattr(connection, "prepare_threshold", 2))
            for turn in range(rounds * 20):
                session = archive.session(f"{name} {turn}", owner)
                messages = _messages([real_text(2_000, skip=at * 2_000) for at in range(4)])
                session.view(messages)
                archived = seconds(lambda s=session: s.archive([("r1", "read"), ("r2", "read")]))
                viewed = [seconds(lambda s=session, m=messages: s.view(m)) for _ in range(5)][-1]
                restored = seconds(lambda s=session: s.restore("r1"))
                if turn > 5:
                    took["archive"].append(archived)
                    took["view"].append(viewed)
                    took["restore"].append(restored)
        lines.append({"engine": name, **{f"{verb}_ms": quantile(times, 0.5) * 1e3 for verb, times in took.items()}})
    return lines


def _sizes(folder: Path, server: Server, url: str, count: int, size: int) -> dict[str, Any]:
    """Bytes on disk per row of every table, after archiving so many results of such a size in batches of 100."""
    keys = folder / f"sizes-{size}.keys"
    new_keys(keys)
    with Archive.open(url, keys=keys) as archive:
        text = real_text(count * 997 + size)
        texts = [text[at * 997 : at * 997 + size] for at in range(count)]
        for number in range(count // PER_SESSION):
            session = archive.session(f"case-{number}", Principal("north-clinic", "agent"))
            session.view(_messages(texts[number * PER_SESSION : (number + 1) * PER_SESSION]))
            session.archive([(f"r{at + 1}", f"read; nothing unusual in part {at}") for at in range(PER_SESSION)])
    name = url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
    server.run("VACUUM (FULL, ANALYZE)", database=name)
    found = server.run(
        "SELECT relname, reltuples::bigint, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND reltuples > 0 ORDER BY relname",
        database=name,
    )
    tables = {
        table: {"rows": total, "table_bytes": data / total, "index_bytes": index / total}
        for table, total, data, index in found
        if table != "evidence_archive_version"
    }
    return {"results": count, "size_bytes": size, "tables": tables}


def table(figures: dict[str, Any]) -> str:
    """The figures for people."""
    appends = [
        [line["engine"], str(line["writers"]), str(line["orgs"]), f"{line['per_s']:.0f}", f"{line['bare_per_s']:.0f}",
         f"{line['ratio']:.2f}"]
        for line in figures["appends"]
    ]  # fmt: skip
    verbs = [
        [line["engine"], *(f"{line[f'{verb}_ms']:.2f}" for verb in ("view", "archive", "restore"))]
        for line in figures["verbs"]
    ]
    sizes = [
        [f"{shape['results']} x {shape['size_bytes'] // 1024} KiB", name, str(line["rows"]),
         f"{line['table_bytes']:.0f}", f"{line['index_bytes']:.0f}"]
        for shape in figures["sizes"]
        for name, line in shape["tables"].items()
    ]  # fmt: skip
    return "\n\n".join(
        [
            f"PostgreSQL {figures['server']}, {os.cpu_count()} cores",
            rows(["appends", "writers", "orgs", "per s", "bare per s", "ratio"], appends),
            rows(["verbs", "view ms", "archive 2 ms", "restore ms"], verbs),
            rows(["sizes", "table", "rows", "table B/row", "index B/row"], sizes),
        ]
    )
