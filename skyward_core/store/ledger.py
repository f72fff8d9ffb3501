"""The durable record on the client: what was asked for, what exists, what ran. SQLite, write-ahead log.

Intents are flushed to disk before the act; what only describes (runs, outcomes) may lose its last moments in a
power cut, never its consistency. Several processes share one ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ..model.errors import LedgerError, PoolExistsError
from ..model.hint import Hint
from ..model.machine import Machine
from ..model.outcome import Outcome, RootCause
from ..model.value import Value, value
from ..wire.frames import encoder
from ..wire.node_paths import NodePaths
from ..wire.safe_text import paragraph
from . import lost_pools
from .home import home

# Entry k brings a ledger of version k to version k + 1.
MIGRATIONS = (
    """
    CREATE TABLE pools (
        token TEXT PRIMARY KEY, name TEXT NOT NULL, provider TEXT NOT NULL, spec TEXT NOT NULL,
        state TEXT NOT NULL, created_at REAL NOT NULL, ended_at REAL, receipt TEXT, pid INTEGER
    );
    CREATE INDEX pools_by_name ON pools (name, created_at);
    CREATE UNIQUE INDEX one_live_pool ON pools (name) WHERE ended_at IS NULL;
    CREATE TABLE machines (
        token TEXT NOT NULL REFERENCES pools, node INTEGER NOT NULL, machine TEXT NOT NULL,
        PRIMARY KEY (token, node)
    );
    """,
    """
    CREATE TABLE runs (
        run TEXT PRIMARY KEY, token TEXT NOT NULL REFERENCES pools, function TEXT NOT NULL, kind TEXT NOT NULL,
        total INTEGER NOT NULL, state TEXT NOT NULL, opened_at REAL NOT NULL, ended_at REAL, root_cause TEXT
    );
    CREATE INDEX runs_by_pool ON runs (token, opened_at);
    CREATE TABLE outcomes (
        run TEXT NOT NULL REFERENCES runs, idx INTEGER NOT NULL, outcome TEXT NOT NULL, log TEXT NOT NULL,
        PRIMARY KEY (run, idx)
    );
    """,
    """
    CREATE TABLE former (token TEXT NOT NULL REFERENCES pools, machine TEXT NOT NULL);
    CREATE INDEX former_by_pool ON former (token);
    CREATE TABLE replacements (
        token TEXT NOT NULL REFERENCES pools, node INTEGER NOT NULL, intent TEXT NOT NULL, owner TEXT NOT NULL,
        made INTEGER NOT NULL, PRIMARY KEY (token, node)
    );
    """,
    """
    CREATE TABLE kept (token TEXT NOT NULL REFERENCES pools, machine TEXT NOT NULL, facts TEXT NOT NULL);
    CREATE INDEX kept_by_pool ON kept (token);
    """,
)
VERSION = len(MIGRATIONS)
RUN = re.compile(r"[0-9a-f]{1,32}")  # what names of runs are made of; hosts tell them, too
PATIENCE = 10.0  # seconds to wait for other processes


@value
class Receipt(Value):
    """The proof of a teardown.

    Attributes:
        pool: the pool's name.
        created: machines, replaced ones too.
        gone: the nodes of those that the provider says are gone, once for each machine.
        unaccounted: what may still run, and cost money, by the provider's own names.
        seconds: that the teardown took.
        notes: what else a person should know of it, in words.
        unwritten: why the ledger does not hold this receipt, or "".
        by: the client that tore it down, in words; "" where it ended itself.
        kept: what nobody had fetched and its hosts keep, in words.
    """

    pool: str
    created: int
    gone: tuple[int, ...]
    unaccounted: tuple[str, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    unwritten: str = ""
    by: str = ""
    kept: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is left, and that stands in the ledger."""
        return not self.unaccounted and not self.unwritten

    def to_json(self) -> dict[str, Any]:
        """Everything as JSON."""
        return asdict(self)

    def __str__(self) -> str:
        text = f"created {self.created}, verified gone {len(self.gone)}, unaccounted {len(self.unaccounted)}"
        text += f": {', '.join(self.unaccounted)}" if self.unaccounted else ""
        text += f"; kept: {'; '.join(self.kept)}" if self.kept else ""
        return paragraph(f"{text}; not written down: {self.unwritten}" if self.unwritten else text)


@value
class Kept(Value):
    """What a host keeps of a pool that has ended, because nobody had fetched it.

    Attributes:
        machine: with it the provider reaches the folder in which it is.
        runs: run -> bytes of its results and logs that were not fetched.
        size: bytes that it takes there.
        until: when the host may remove it, Unix time.
    """

    token: str
    machine: Machine
    runs: dict[str, int]
    size: int
    until: float

    @classmethod
    def of(cls, token: str, machine: Machine) -> Kept | None:
        """From what the provider says of a machine that is gone; None where nothing of it is kept."""
        told, extra = machine.extra.get("kept") or {}, machine.extra
        try:
            sizes = {run: int(size) for run, size in told.get("runs", {}).items() if RUN.fullmatch(run)}
            size, until = int(told.get("bytes", 0)), float(told.get("until", 0.0))
        except (TypeError, ValueError, AttributeError):
            return None
        if not sizes or not 0 < until < 1e11:
            return None
        there = replace(
            machine,
            state="running",
            extra=extra | {"folder": NodePaths(extra["folder"]).kept, "kept": {}, "why": ""},
        )
        return cls(token, there, sizes, size, until)

    def words(self) -> str:
        """What it is and where, in words."""
        runs = ", ".join(f"{run} ({_bytes(size)})" for run, size in self.runs.items())
        return f"run{'s' * (len(self.runs) > 1)} {runs} on node {self.machine.node} ({self.machine.address})"

    def __str__(self) -> str:
        return f"{self.words()} until {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.until))}"


def _bytes(size: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"


@value
class PoolRow(Value):
    """A pool as the ledger knows it."""

    token: str
    name: str
    provider: dict[str, Any]
    spec: dict[str, Any]
    state: str
    created_at: float
    ended_at: float | None
    receipt: dict[str, Any] | None
    pid: int | None

    @property
    def key(self) -> str:
        """Name of the pool's folder on the client; unlike the pool's name it is never used twice."""
        return f"{self.name}.{self.token}"


@value
class RunRow(Value):
    """A run as the ledger knows it. ``state``: running, done, failed, cancelled, lost, or kept (its pool has ended, and
    what came of it waits on the hosts to be fetched)."""

    run: str
    token: str
    function: str
    kind: str
    total: int
    state: str
    opened_at: float
    ended_at: float | None
    root_cause: RootCause | None


@value
class Replacement(Value):
    """Another machine for a node, under way.

    Attributes:
        node: index of the node.
        intent: idempotency token of the machine's creation.
        owner: the client that sees to it, as ``PID.WORD``; its process may be gone.
        made: whether the machine exists, and stands in the ledger as the node's.
    """

    node: int
    intent: str
    owner: str
    made: bool

    @property
    def is_alive(self) -> bool:
        """Whether the process of its owner runs."""
        return process_lives(int(self.owner.partition(".")[0] or 0))


class Ledger:
    """Safe to use from any thread and by several processes at once."""

    def __init__(self, path: Path | None = None) -> None:
        """Open, or make, the ledger.

        A ledger that is no longer a database is kept aside under another name, never overwritten; ``set_aside``
        then holds where.

        Raises:
            LedgerError: it was written by a newer version, or the disk does not let us in.
        """
        self.path = path or home() / "ledger.db"
        self.set_aside: Path | None = None
        self._lock = threading.Lock()
        self._inode = 0
        self._db = self._open()

    def _open(self, *, damaged: bool = False) -> sqlite3.Connection:
        """Open the file, or a new one in place of a damaged one, which is kept aside.

        One process at a time: SQLite does not wait for its turn to switch a new file to the write-ahead log, and of
        several that find the same damage only the first may move the file away.
        """
        try:
            guard = open(self.path.with_name(f"{self.path.name}.lock"), "w")  # noqa: SIM115  closed below
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.path} cannot be opened: {error}: see that its folder is yours and has room, or set "
                "SKYWARD_HOME to another one"
            ) from error
        with guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if damaged and self.path.exists() and self.path.stat().st_ino == self._inode:
                self.set_aside = self._keep_aside()
            try:
                return self._connect()
            except sqlite3.DatabaseError as error:
                if not _is_damage(error):
                    raise LedgerError(f"the ledger {self.path} cannot be opened: {_words(error)}") from error
            self.set_aside = self._keep_aside()
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        self._keep_private()
        db = sqlite3.connect(self.path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
        try:
            self._inode = self.path.stat().st_ino
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            self._migrate(db)
        except BaseException:
            db.close()
            raise
        return db

    def _keep_private(self) -> None:
        """Have the ledger, its log and its index readable by nobody else; SQLite gives the latter the former's mode."""
        with suppress(OSError):  # it is there, or SQLite tells why it cannot be
            os.close(os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        try:
            for part in (
                self.path,
                *(self.path.with_name(f"{self.path.name}-{each}") for each in ("wal", "shm")),
            ):
                if part.exists() and part.stat().st_mode & 0o077:
                    part.chmod(0o600)
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.path} cannot be kept from others' eyes: {error}: see that it is yours, or set "
                "SKYWARD_HOME to another folder"
            ) from error

    def _migrate(self, db: sqlite3.Connection) -> None:
        if self._version(db) == VERSION:
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            found = self._version(db)
            if found > VERSION:
                raise LedgerError(
                    f"the ledger {self.path} was written by a newer version of skyward (schema {found}, this one "
                    f"knows {VERSION}): upgrade, or set SKYWARD_HOME to another folder",
                    hint=Hint("upgrade"),
                )
            for script in MIGRATIONS[found:]:
                for statement in script.split(";"):
                    db.execute(statement)
            if not found:
                self._find_again(db)
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a full disk ends it by itself
                db.execute("ROLLBACK")
            raise

    def _find_again(self, db: sqlite3.Connection) -> None:
        """Enter into a new ledger the pools that their folders tell of: the one before was deleted, or damaged."""
        for row, tables in lost_pools.read(self.path.parent):
            columns = ", ".join(row)
            places = ", ".join("?" for _ in row)
            db.execute(f"INSERT OR IGNORE INTO pools ({columns}) VALUES ({places})", tuple(row.values()))
            for table, found in tables.items():
                for values in found:
                    marks = ", ".join("?" for _ in values)
                    db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", tuple(values))

    def _trace(self, token: str) -> None:
        """Have the pool's folder tell what this ledger knows of it, as long as anything of the pool is left."""
        columns = "token, name, provider, spec, state, created_at, ended_at, receipt, pid"
        rows = self._read(f"SELECT {columns} FROM pools WHERE token=?", (token,))
        if not rows:
            return
        known = dict(zip(columns.split(", "), rows[0], strict=True))
        tables = {
            table: self._read(f"SELECT * FROM {table} WHERE token=? ORDER BY rowid", (token,))
            for table in lost_pools.WIDTHS
        }
        folder = self.path.parent / "pools" / f"{known['name']}.{token}"
        if known["ended_at"] is None or tables["kept"]:
            lost_pools.write(folder, known, tables)
        else:
            lost_pools.remove(folder)

    @staticmethod
    def _version(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    def _keep_aside(self) -> Path:
        now = time.strftime("%Y%m%d-%H%M%S")
        aside = self.path.with_name(f"{self.path.name}.corrupt-{now}-{os.getpid()}-{self._inode}")
        for suffix in ("-wal", "-shm", ""):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.replace(aside.with_name(aside.name + suffix))
        return aside

    def _failed(self, error: sqlite3.Error, what: str) -> LedgerError:
        """What to raise for a statement that failed; of a damaged ledger, after it was kept aside."""
        if not _is_damage(error):
            return LedgerError(f"the ledger {self.path} cannot be {what}: {_words(error)}")
        self._db.close()
        self._db = self._open(damaged=True)
        kept = f" and is kept as {self.set_aside}" if self.set_aside else ""
        return LedgerError(
            f"the ledger {self.path} is damaged ({error}){kept}; a new one begins. Pools that are up are found "
            "again by their folders; try again"
        )

    def close(self) -> None:
        with self._lock:  # another thread may be in the middle of a statement
            self._db.close()

    def _write(
        self,
        statements: Sequence[tuple[str, tuple[Any, ...]]],
        *,
        flush: bool = False,
        patience: float = PATIENCE,
    ) -> None:
        with self._lock:
            try:
                if patience != PATIENCE:
                    self._db.execute(f"PRAGMA busy_timeout={round(patience * 1000)}")
                if len(statements) == 1 and not flush:
                    self._db.execute(*statements[0])  # a transaction by itself
                    return
                if flush:
                    self._db.execute("PRAGMA synchronous=FULL")
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    for sql, alike in groupby(statements, itemgetter(0)):
                        self._db.executemany(sql, [values for _, values in alike])
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.IntegrityError:
                raise
            except sqlite3.DatabaseError as error:
                raise self._failed(error, "written") from error
            finally:
                if flush:
                    self._db.execute("PRAGMA synchronous=NORMAL")
                if patience != PATIENCE:
                    self._db.execute(f"PRAGMA busy_timeout={round(PATIENCE * 1000)}")

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        with self._lock:
            try:
                return self._db.execute(sql, values).fetchall()
            except sqlite3.DatabaseError as error:
                raise self._failed(error, "read") from error

    # -- pools -------------------------------------------------------------------------------------------

    def intend(self, token: str, name: str, provider: dict[str, Any], spec: dict[str, Any]) -> PoolRow:
        """Record, on disk, that a pool is about to be created.

        Raises:
            PoolExistsError: a pool of that name has not ended.
        """
        row = (token, name, json.dumps(provider), json.dumps(spec), "starting", time.time(), os.getpid())
        try:
            sql = "INSERT INTO pools (token, name, provider, spec, state, created_at, pid) VALUES (?,?,?,?,?,?,?)"
            self._write([(sql, row)], flush=True)
        except sqlite3.IntegrityError as error:
            raise PoolExistsError(f"a pool named {name!r} is still up", hint=Hint("attach", name)) from error
        return self.pool(token)

    def created(self, token: str, machines: Iterable[Machine]) -> None:
        """Record the machines that a pool has."""
        sql = "INSERT OR REPLACE INTO machines (token, node, machine) VALUES (?,?,?)"
        self._write([(sql, (token, m.node, json.dumps(m.to_json()))) for m in machines], flush=True)
        self._trace(token)

    def pool_state(self, token: str, state: str) -> None:
        self._write([("UPDATE pools SET state=? WHERE token=? AND ended_at IS NULL", (state, token))])
        self._trace(token)

    def ended(self, token: str, receipt: Receipt, kept: Iterable[Kept] = ()) -> None:
        """Close a pool whose teardown was verified; an unverified one stays open, with its receipt.

        Args:
            kept: what its hosts keep, as nobody has fetched it.
        """
        end = time.time() if receipt.ok else None
        state = "gone" if receipt.ok else "failed"
        sql = "UPDATE pools SET state=?, ended_at=?, receipt=? WHERE token=?"
        statements: list[tuple[str, tuple[Any, ...]]] = [
            (sql, (state, end, json.dumps(receipt.to_json()), token))
        ]
        if receipt.ok:
            statements.append(("DELETE FROM kept WHERE token=?", (token,)))
            statements += [(_KEEP, (token, *_kept_row(each))) for each in kept]
        self._write(statements, flush=True)
        runs = "UPDATE runs SET state='lost', ended_at=? WHERE token=? AND state='running'"
        if receipt.ok:
            self._write([(runs, (end, token)), ("DELETE FROM replacements WHERE token=?", (token,))])
        self._trace(token)

    def kept(self, token: str | None = None) -> list[Kept]:
        """What the hosts of pools that have ended (of one pool, of all) still keep."""
        where, values = ("", ()) if token is None else (" WHERE token=?", (token,))
        rows = self._read(f"SELECT token, machine, facts FROM kept{where} ORDER BY rowid", values)
        return [Kept(each, Machine(**json.loads(m)), **json.loads(facts)) for each, m, facts in rows]

    def unkeep(self, kept: Kept) -> None:
        """A host keeps something no longer: it was fetched, or given up, or its time is over."""
        left = [str(each) for each in self.kept(kept.token) if each != kept]
        receipt = (self.pool(kept.token).receipt or {}) | {"kept": left}
        machine, _ = _kept_row(kept)
        drop = ("DELETE FROM kept WHERE token=? AND machine=?", (kept.token, machine))
        put = ("UPDATE pools SET receipt=? WHERE token=?", (json.dumps(receipt), kept.token))
        self._write([drop, put], flush=True)
        self._trace(kept.token)

    def forget(self, token: str) -> None:
        """Remove all that is known of a pool that has ended, and of its runs."""
        ended = "(SELECT token FROM pools WHERE token=? AND ended_at IS NOT NULL)"
        outcomes = f"DELETE FROM outcomes WHERE run IN (SELECT run FROM runs WHERE token IN {ended})"
        tables = ("runs", "machines", "former", "replacements", "kept", "pools")
        self._write(
            [(outcomes, (token,)), *((f"DELETE FROM {t} WHERE token IN {ended}", (token,)) for t in tables)]
        )

    def pool(self, token: str) -> PoolRow:
        return self._pools("WHERE token=?", (token,))[0]

    def find(self, pool: str) -> PoolRow | None:
        """A pool by its key, or by its name: of those that have it the one that has not ended, else the latest."""
        name, _, token = pool.partition(".")
        if token:
            rows = self._pools("WHERE name=? AND token=?", (name, token))
        else:
            rows = self._pools("WHERE name=? ORDER BY ended_at IS NOT NULL, created_at DESC LIMIT 1", (name,))
        return rows[0] if rows else None

    def live(self) -> list[PoolRow]:
        """Pools that have not ended, newest first."""
        return self._pools("WHERE ended_at IS NULL ORDER BY created_at DESC")

    def names_beginning(self, letters: str) -> list[str]:
        """Names of pools that begin so, each once, the one used last first."""
        sql = "SELECT name FROM pools WHERE substr(name, 1, ?)=? GROUP BY name ORDER BY max(created_at) DESC"
        return [name for (name,) in self._read(sql, (len(letters), letters))]

    def over(self, since: float = 0.0, limit: int = 500) -> list[PoolRow]:
        """Pools that have ended, at a time or after it, the one that was made last first; no more than ``limit``."""
        return self._pools("WHERE ended_at>=? ORDER BY created_at DESC LIMIT ?", (since, limit))

    def _pools(self, where: str, values: tuple[Any, ...] = ()) -> list[PoolRow]:
        sql = f"SELECT token, name, provider, spec, state, created_at, ended_at, receipt, pid FROM pools {where}"
        return [
            PoolRow(
                token, name, json.loads(provider), json.loads(spec), state, created_at, ended_at,
                json.loads(receipt) if receipt else None, pid,
            )
            for token, name, provider, spec, state, created_at, ended_at, receipt, pid in self._read(sql, values)
        ]  # fmt: skip

    def machines(self, token: str) -> list[Machine]:
        rows = self._read("SELECT machine FROM machines WHERE token=? ORDER BY node", (token,))
        return [Machine(**json.loads(text)) for (text,) in rows]

    # -- machines in another's place ---------------------------------------------------------------------

    def intend_replacement(self, token: str, node: int, intent: str, owner: str) -> Replacement | None:
        """Record, on disk, that a node is about to get another machine; takes over from a client that died at it.

        Returns:
            What is to be gone on with: that of the client before, its ``intent`` too, where there was one; None
            when another client sees to it.
        """
        put = "INSERT OR IGNORE INTO replacements (token, node, intent, owner, made) VALUES (?,?,?,?,0)"
        self._write([(put, (token, node, intent, owner))], flush=True)
        (found,) = [each for each in self.replacements(token) if each.node == node]
        if found.owner == owner:
            return found
        if found.is_alive:
            return None
        take = "UPDATE replacements SET owner=? WHERE token=? AND node=? AND owner=?"
        self._write([(take, (owner, token, node, found.owner))], flush=True)
        (found,) = [each for each in self.replacements(token) if each.node == node]
        return found if found.owner == owner else None

    def renew_replacement(self, token: str, node: int, intent: str) -> None:
        """Begin anew with another machine, as the one that was made is of no use."""
        again = "UPDATE replacements SET intent=?, made=0 WHERE token=? AND node=?"
        self._write([(again, (intent, token, node))], flush=True)

    def replaced(self, token: str, machine: Machine) -> bool:
        """Record the machine that a node has got; the one before is kept among the former ones.

        Returns:
            False, and nothing is recorded, when the pool is being torn down.
        """
        live = "EXISTS (SELECT 1 FROM pools WHERE token=? AND state!='stopping' AND ended_at IS NULL)"
        keep = f"INSERT INTO former SELECT token, machine FROM machines WHERE token=? AND node=? AND {live}"
        text = json.dumps(machine.to_json())
        put = f"UPDATE machines SET machine=? WHERE token=? AND node=? AND {live}"
        made = f"UPDATE replacements SET made=1 WHERE token=? AND node=? AND {live}"
        place = (token, machine.node, token)
        self._write([(keep, place), (put, (text, *place)), (made, place)], flush=True)
        self._trace(token)
        return any(each.made for each in self.replacements(token) if each.node == machine.node)

    def release_replacement(self, token: str, node: int, owner: str) -> None:
        """Leave an unfinished replacement to whoever comes next."""
        leave = "UPDATE replacements SET owner='0' WHERE token=? AND node=? AND owner=?"
        self._write([(leave, (token, node, owner))])

    def end_replacement(self, token: str, node: int) -> None:
        """A replacement is over, with a machine that works or without one."""
        self._write([("DELETE FROM replacements WHERE token=? AND node=?", (token, node))], flush=True)

    def replacements(self, token: str) -> list[Replacement]:
        """Those of a pool that are not over."""
        sql = "SELECT node, intent, owner, made FROM replacements WHERE token=? ORDER BY node"
        return [
            Replacement(node, intent, owner, bool(made))
            for node, intent, owner, made in self._read(sql, (token,))
        ]

    def former(self, token: str) -> list[Machine]:
        """Machines of a pool in whose place others were put, in that order. They may still cost money."""
        rows = self._read("SELECT machine FROM former WHERE token=? ORDER BY rowid", (token,))
        return [Machine(**json.loads(text)) for (text,) in rows]

    # -- runs --------------------------------------------------------------------------------------------

    def record(
        self,
        *,
        opened: Iterable[tuple[str, str, str, str, int, float]] = (),
        outcomes: Iterable[tuple[str, Outcome, dict[str, list[int]]]] = (),
        ends: Iterable[tuple[str, str, float, RootCause | None]] = (),
        patience: float = PATIENCE,
    ) -> None:
        """Record what became of runs, all of it or nothing.

        Args:
            opened: runs (token, run, function, kind, total, when); one that is known stays as it is.
            outcomes: of their calls (run, outcome, log ranges).
            ends: of runs (run, state, when, root cause).
            patience: seconds to wait for other processes.

        Raises:
            LedgerError: it cannot be written, or another process has it.
        """
        begin = (
            "INSERT OR IGNORE INTO runs (run, token, function, kind, total, state, opened_at) "
            "VALUES (?,?,?,?,?,'running',?)"
        )
        put = "INSERT OR REPLACE INTO outcomes (run, idx, outcome, log) VALUES (?,?,?,?)"
        end = "UPDATE runs SET state=?, ended_at=?, root_cause=? WHERE run=?"
        # Most are over before they are written: those take one statement.
        both = (
            "INSERT INTO runs (run, token, function, kind, total, state, opened_at, ended_at, root_cause) "
            "VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT (run) DO UPDATE "
            "SET state=excluded.state, ended_at=excluded.ended_at, root_cause=excluded.root_cause"
        )
        ended = {
            run: (state, at, json.dumps(cause.to_json()) if cause else None) for run, state, at, cause in ends
        }
        statements: list[tuple[str, tuple[Any, ...]]] = []
        for token, run, function, kind, total, when in opened:
            row = run, token, function, kind, total
            if run in ended:
                state, *rest = ended.pop(run)
                statements.append((both, (*row, state, when, *rest)))
            else:
                statements.append((begin, (*row, when)))
        statements += [
            (put, (run, out.index, _json(out.to_json()), _json(log))) for run, out, log in outcomes
        ]
        statements += [(end, (*how, run)) for run, how in ended.items()]
        self._write(statements, patience=patience)

    def run(self, run: str) -> RunRow | None:
        rows = self._runs("WHERE run=?", (run,))
        return rows[0] if rows else None

    def runs(self, token: str) -> list[RunRow]:
        """The runs of a pool, oldest first."""
        return self._runs("WHERE token=? ORDER BY opened_at", (token,))

    def runs_beginning(self, letters: str) -> list[RunRow]:
        """Runs whose ids begin so, newest first."""
        return self._runs("WHERE substr(run, 1, ?)=? ORDER BY opened_at DESC", (len(letters), letters))

    def _runs(self, where: str, values: tuple[Any, ...]) -> list[RunRow]:
        sql = f"SELECT run, token, function, kind, total, state, opened_at, ended_at, root_cause FROM runs {where}"
        waiting = {run for kept in self.kept() for run in kept.runs}
        return [
            RunRow(
                run, token, function, kind, total,
                "kept" if run in waiting and state in ("running", "lost") else state, opened_at, ended_at,
                RootCause(**json.loads(cause)) if cause else None,
            )
            for run, token, function, kind, total, state, opened_at, ended_at, cause in self._read(sql, values)
        ]  # fmt: skip

    def outcomes(self, run: str) -> list[tuple[Outcome, dict[str, list[int]]]]:
        """Outcomes of a run by index, each with the byte ranges of its logs: file -> [start, end]."""
        rows = self._read("SELECT outcome, log FROM outcomes WHERE run=? ORDER BY idx", (run,))
        return [(Outcome.from_json(json.loads(outcome)), json.loads(log)) for outcome, log in rows]


_json = encoder(only_ascii=True)  # of what there are thousands a second
_KEEP = "INSERT INTO kept (token, machine, facts) VALUES (?,?,?)"


def _kept_row(kept: Kept) -> tuple[str, str]:
    facts = {"runs": kept.runs, "size": kept.size, "until": kept.until}
    return json.dumps(kept.machine.to_json()), json.dumps(facts)


def process_lives(pid: int) -> bool:
    """Whether a process of this machine runs; 0 is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return pid > 0


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database (any more), rather than out of reach."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _words(error: sqlite3.Error) -> str:
    hint = {
        sqlite3.SQLITE_FULL: "make room on the disk",
        sqlite3.SQLITE_IOERR: "see that the disk is there and has room",
        sqlite3.SQLITE_BUSY: "another process holds it; end that one or try again",
        sqlite3.SQLITE_READONLY: "see that the file and its folder are yours to write",
        sqlite3.SQLITE_CANTOPEN: "see that the file and its folder are yours to write",
    }.get(getattr(error, "sqlite_errorcode", 0) & 0xFF, "move it away, and a new one begins")
    return f"{error}: {hint}, or set SKYWARD_HOME to another folder"
