"""Ledger: the durable SQLite record of pools, machines, replacements, purchases and runs on the client.

Intents are flushed to disk before the action that they announce. Descriptive rows (runs, outcomes) may lose their
latest changes in a power failure, but stay consistent. Several processes share one ledger.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import MISSING, fields, replace
from functools import cache
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from skyward_core.model.errors import Hint, LedgerError, PoolExistsError, UsageError, convert_errors
from skyward_core.model.machines_checks_and_gpu_use import Machine
from skyward_core.model.outcomes_states_and_alerts import Outcome, RootCause
from skyward_core.protocol.frame_codec import encode_record
from skyward_core.store.ledger_rows import PoolRow, Purchase, Replacement, RetainedResults, Row, RunRow, process_mark
from skyward_core.store.receipts_and_bills import Receipt
from skyward_core.store.state_folder import state_home
from skyward_core.util.safe_file_access import read_own_json

R = TypeVar("R", bound=Row)

POOL_FILE = "pool.json"
ROWS: tuple[type[Row], ...] = (PoolRow, RunRow, Purchase, Replacement)
# Tables of whose rows a pool's file has a copy, with their numbers of columns. The file also has the pool's row of
# ``pools``.
TABLE_WIDTHS = {"machines": 3, "former": 2, "kept": 3}

Rows = Sequence[Sequence[Any]]


def write_pool_file(folder: Path, pool: dict[str, Any], tables: Mapping[str, Rows]) -> None:
    """Write the ledger's rows about a pool into the pool's folder, so that a lost ledger can be restored."""
    partial = folder / f"{POOL_FILE}.part"
    with suppress(OSError):  # ignore errors, because the file is only a copy: the ledger contains the data
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.touch(mode=0o600)
        partial.write_text(json.dumps({"pool": pool, **tables}), encoding="utf-8")
        partial.replace(folder / POOL_FILE)


def read_pool_files(home: Path) -> Iterator[tuple[dict[str, Any], dict[str, Rows]]]:
    """Yield the saved rows of each pool folder: the row of the pool, and its rows in the tables of ``TABLE_WIDTHS``."""
    for path in sorted(home.glob(f"pools/*/{POOL_FILE}")):
        try:
            saved = read_own_json(path)
            pool = dict(saved["pool"])
            tables: dict[str, Rows] = {table: list(saved.get(table, ())) for table in TABLE_WIDTHS}
        except (OSError, ValueError, KeyError, TypeError):
            # Skip a first version that a crash cut off; later versions replace the file only when they are complete.
            continue
        whole = all(len(row) == TABLE_WIDTHS[table] for table, rows in tables.items() for row in rows)
        needed = {each.name for each in fields(PoolRow) if each.default is MISSING}
        if needed <= pool.keys() <= {each.name for each in fields(PoolRow)} and whole:
            yield pool, tables


# Entry k migrates a ledger from version k to k + 1. A new column of a class of ``ROWS`` needs no entry.
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
    """
    CREATE TABLE purchases (
        token TEXT PRIMARY KEY, offering TEXT NOT NULL, provider TEXT NOT NULL, block TEXT NOT NULL,
        asked_at REAL NOT NULL, state TEXT NOT NULL, told TEXT NOT NULL
    );
    CREATE UNIQUE INDEX one_purchase ON purchases (offering) WHERE state != 'refused';
    """,
    "ALTER TABLE runs ADD COLUMN pid INTEGER;",
    "ALTER TABLE runs ADD COLUMN nodes TEXT;",
)
VERSION = len(MIGRATIONS)


class LedgerFile:
    """Opening, migration and replacement of the ledger's file.

    Args:
        path: Path of the file.
        patience: Seconds that a connection waits for other processes.

    Attributes:
        set_aside: Path of the copy of a damaged file.
        read_only_reason: Why the file was opened for reading only; "" if it can be written.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self.set_aside: Path | None = None
        self.read_only_reason = ""
        self._patience = patience
        self._inode = 0

    def open(self, *, damaged: bool = False) -> sqlite3.Connection:
        """Open the file. A damaged file is renamed and replaced by a new one.

        One process at a time: SQLite cannot switch a new file to the write-ahead log concurrently, and only the first
        process that finds a damage may rename the file.
        """
        try:
            guard = open(self.path.with_name(f"{self.path.name}.lock"), "w", opener=_open_private)  # noqa: SIM115  closed below
        except OSError as error:
            if not damaged and (db := self._open_read_only(str(error))) is not None:
                return db
            raise LedgerError(
                f"Cannot open the ledger {self.path}: {error}. Check the owner and free space of its folder, or set "
                "SKYWARD_HOME to another folder."
            ) from error
        with guard:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if damaged and self.path.exists() and self.path.stat().st_ino == self._inode:
                self.set_aside = self._move_damaged()
            try:
                return self._connect()
            except sqlite3.DatabaseError as error:
                if not is_damaged_error(error):
                    if _is_unwritable(error) and (db := self._open_read_only(str(error))) is not None:
                        return db
                    raise LedgerError(
                        f"Cannot open the ledger {self.path}: {describe_error(error, self.path)}"
                    ) from error
            self.set_aside = self._move_damaged()
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        self._restrict_permissions()
        db = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None, check_same_thread=False)
        try:
            self._inode = self.path.stat().st_ino
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            self._migrate(db)
            self.read_only_reason = ""
        except BaseException:
            db.close()
            raise
        return db

    def _open_read_only(self, reason: str) -> sqlite3.Connection | None:
        """Open a ledger whose disk accepts no writes, so that its pools can still be listed and torn down.

        Args:
            reason: Why the disk accepts no writes.

        Returns:
            A connection that only reads. None if the ledger cannot be read, or would have to be migrated.
        """
        log = self.path.with_name(f"{self.path.name}-wal")
        db: sqlite3.Connection | None = None
        # On an error return None, because the caller reports why the ledger cannot be written.
        with suppress(OSError, sqlite3.Error):
            # If there is no write-ahead log, SQLite would try to create one, which fails on this disk. SQLite does not
            # need a log for a file that is declared immutable.
            mode = "mode=ro" if log.exists() and log.stat().st_size else "immutable=1"
            place = f"{self.path.absolute().as_uri()}?{mode}"
            db = sqlite3.connect(place, uri=True, timeout=self._patience, isolation_level=None, check_same_thread=False)
            if self._version(db) == VERSION and not _missing_columns(db):
                self.read_only_reason = reason
                return db
        if db is not None:
            db.close()
        return None

    def _restrict_permissions(self) -> None:
        """Make the ledger and its side files readable by the owner only. SQLite gives new side files the ledger's
        mode.
        """
        with suppress(OSError):  # ignore an error: the file exists, or SQLite will report why it cannot be created
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
                f"Cannot make the ledger {self.path} private: {error}. Check its owner, or set "
                "SKYWARD_HOME to another folder."
            ) from error

    def _migrate(self, db: sqlite3.Connection) -> None:
        if self._version(db) == VERSION and not _missing_columns(db):
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            found = self._version(db)
            if found > VERSION:
                raise LedgerError(
                    f"Cannot use the ledger {self.path}: a newer version of skyward wrote it (schema {found}; "
                    f"supported: {VERSION}). Upgrade skyward, or set SKYWARD_HOME to another folder.",
                    hint=Hint("upgrade"),
                )
            for script in MIGRATIONS[found:]:
                for statement in script.split(";"):
                    db.execute(statement)
            for table, column in _missing_columns(db):
                db.execute(f"ALTER TABLE {table} ADD COLUMN {column}")
            if not found:
                self._restore_pools(db)
            db.execute(f"PRAGMA user_version={VERSION}")
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:  # a transaction that failed because of a full disk has already been ended by SQLite
                db.execute("ROLLBACK")
            raise

    def _restore_pools(self, db: sqlite3.Connection) -> None:
        """Add the pools of all pool folders to a new ledger, because the old one was deleted or damaged."""
        for row, tables in read_pool_files(self.path.parent):
            columns = ", ".join(row)
            places = ", ".join("?" for _ in row)
            db.execute(f"INSERT OR IGNORE INTO pools ({columns}) VALUES ({places})", tuple(row.values()))
            for table, found in tables.items():
                for values in found:
                    marks = ", ".join("?" for _ in values)
                    db.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", tuple(values))

    @staticmethod
    def _version(db: sqlite3.Connection) -> int:
        return int(db.execute("PRAGMA user_version").fetchone()[0])

    def _move_damaged(self) -> Path:
        now = time.strftime("%Y%m%d-%H%M%S")
        aside = self.path.with_name(f"{self.path.name}.corrupt-{now}-{os.getpid()}-{self._inode}")
        for suffix in ("-wal", "-shm", ""):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.replace(aside.with_name(aside.name + suffix))
        return aside


def _missing_columns(db: sqlite3.Connection) -> list[tuple[str, str]]:
    """Return the columns of row classes that an older ledger lacks, each with its table."""
    required = [(row.table, name) for row in ROWS for name in row.column_names()]
    tables = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type='table'"
    known = set(db.execute(tables))
    return [column for column in required if column not in known]


def _open_private(path: str, flags: int) -> int:
    """Open a private file, because any user who can read a file can also lock it."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_damaged_error(error: sqlite3.Error) -> bool:
    """Check whether an SQLite error means that the file is damaged or not a database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_unwritable(error: sqlite3.Error) -> bool:
    """Check whether an error means that the disk accepts no writes."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


def describe_error(error: sqlite3.Error, path: Path) -> str:
    """Return the text of an SQLite error, with advice on how to fix its cause."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    hint = {
        sqlite3.SQLITE_FULL: "free space on the disk",
        sqlite3.SQLITE_IOERR: "check that the disk is mounted and has free space",
        sqlite3.SQLITE_READONLY: "check that you can write to the file and its folder",
        sqlite3.SQLITE_CANTOPEN: "check that you can write to the file and its folder",
    }.get(code, "rename it to start a new ledger")
    if code == sqlite3.SQLITE_BUSY:
        hint = f"{_find_writer(path) or 'another process'} has locked it; end that process or try again"
    which = getattr(error, "sqlite_errorname", "")
    return f"{error} ({which}): {hint}, or set SKYWARD_HOME to another folder"


def _find_writer(path: Path) -> str:
    """Return the process that holds a ledger's write lock, for example a suspended one; "" if unknown."""
    with suppress(OSError):  # the name of the process stays unknown on systems without /proc/locks
        index = path.with_name(f"{path.name}-shm").stat()
        place = f"{os.major(index.st_dev):02x}:{os.minor(index.st_dev):02x}:{index.st_ino}"
        for lock in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, pid, where, *span = lock.split()
            if (kind, where, span) == (
                "POSIX",
                place,
                ["120", "120"],
            ):  # offset of the byte that a writer locks in SQLite's WAL mode
                return f"process {pid}"
    return ""


LOCK_TIMEOUT = 10.0  # seconds to wait for other processes that lock the ledger
REOPEN_SECONDS = 5.0  # minimum seconds between attempts to open a read-only ledger for writing


class Ledger:
    """Access to the ledger from any thread; several processes may use it at once."""

    def __init__(self, path: Path | None = None) -> None:
        """Open or create the ledger.

        A damaged ledger is renamed, never overwritten; see :attr:`damaged_copy`.

        Args:
            path: Path of the ledger. None: in the state folder.

        Raises:
            LedgerError: If a newer version wrote the ledger, or it cannot be opened.
        """
        self.path = path or state_home() / "ledger.db"
        self._lock = threading.Lock()
        self._patience = LOCK_TIMEOUT
        self._file = LedgerFile(self.path, self._patience)
        self._db = self._file.open()
        self._reopen_at = 0.0  # monotonic time of the next attempt to open a read-only ledger for writing

    @property
    def damaged_copy(self) -> Path | None:
        """Path of the damaged ledger that this ledger replaced. None if there was no damaged ledger."""
        return self._file.set_aside

    @property
    def read_only_reason(self) -> str:
        """Reason why nothing can be recorded, because the disk accepts no writes; "" if the ledger can be written."""
        return self._file.read_only_reason

    def _to_error(self, error: sqlite3.Error, what: str) -> LedgerError:
        """Return the error for a failed SQL statement. If the ledger is damaged, first replace it by a new one."""
        if not is_damaged_error(error) or self._file.read_only_reason:
            return LedgerError(f"the ledger {self.path} cannot be {what}: {describe_error(error, self.path)}")
        self._db.close()
        self._db = self._file.open(damaged=True)
        copy = f". Its copy is {self.damaged_copy}" if self.damaged_copy else ""
        return LedgerError(
            f"The ledger {self.path} is damaged ({error}){copy}. A new one was created; running pools are restored "
            "from their folders. Try again."
        )

    def close(self) -> None:
        with self._lock:  # do not close the connection while another thread executes a statement
            self._db.close()

    def _write(
        self,
        statements: Sequence[tuple[str, Any]],
        *,
        flush: bool = False,
        patience: float | None = None,
    ) -> None:
        with self._lock:
            if self._file.read_only_reason and time.monotonic() >= self._reopen_at:
                self._reopen_at = time.monotonic() + REOPEN_SECONDS
                # Open the ledger again, because the disk may accept writes by now.
                before, self._db = self._db, self._file.open()
                before.close()
            db = self._db
            try:
                if patience is not None:
                    db.execute(f"PRAGMA busy_timeout={round(patience * 1000)}")
                if len(statements) == 1 and not flush:
                    db.execute(*statements[0])  # a single statement needs no explicit transaction
                    return
                if flush:
                    db.execute("PRAGMA synchronous=FULL")
                db.execute("BEGIN IMMEDIATE")
                try:
                    for sql, alike in groupby(statements, itemgetter(0)):
                        db.executemany(sql, [values for _, values in alike])
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            except sqlite3.IntegrityError:
                raise
            except sqlite3.DatabaseError as error:
                raise self._to_error(error, "written") from error
            finally:
                # A damaged ledger has been closed and replaced, so its connection rejects the statement.
                with suppress(sqlite3.ProgrammingError):
                    if flush:
                        db.execute("PRAGMA synchronous=NORMAL")
                    if patience is not None:
                        db.execute(f"PRAGMA busy_timeout={round(self._patience * 1000)}")

    def _read(self, sql: str, values: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        if not self._lock.acquire(blocking=False):
            # Read over another connection, because a reader must not wait for another thread's write, which may wait
            # for other processes.
            with suppress(sqlite3.Error), self._connect_separately("ro") as db:
                return db.execute(sql, values).fetchall()
            self._lock.acquire()
        try:
            return self._db.execute(sql, values).fetchall()
        except UnicodeEncodeError:
            # No row matches a text with an isolated surrogate, because SQLite cannot store such a text.
            return []
        except sqlite3.DatabaseError as error:
            raise self._to_error(error, "read") from error
        finally:
            self._lock.release()

    def _select(self, row: type[R], where: str, values: tuple[Any, ...] = ()) -> list[R]:
        sql = f"SELECT {row.columns()} FROM {row.table} {where}"
        return [row.from_stored(stored) for stored in self._read(sql, values)]

    def _connect_separately(self, mode: str) -> closing[sqlite3.Connection]:
        """Open a connection that waits for no thread, waits 20 ms for other processes, and creates no file."""
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        return closing(sqlite3.connect(uri, uri=True, timeout=0.02, isolation_level=None))

    def _write_trace(self, token: str) -> None:
        """Update the copy of a pool's ledger rows in the pool's folder. Remove the copy after the pool's end."""
        rows = self._read(f"SELECT {PoolRow.columns()} FROM pools WHERE token=?", (token,))
        if not rows:
            return
        known = dict(zip(PoolRow.columns().split(", "), rows[0], strict=True))
        tables = {
            table: self._read(f"SELECT * FROM {table} WHERE token=? ORDER BY rowid", (token,)) for table in TABLE_WIDTHS
        }
        folder = self.path.parent / "pools" / f"{known['name']}.{token}"
        if known["ended_at"] is None or tables["kept"]:
            write_pool_file(folder, known, tables)
        else:
            with suppress(OSError):  # ignore errors, because the whole folder may have been deleted already
                (folder / POOL_FILE).unlink(missing_ok=True)

    # -- pools ---------------------------------------------------------------------------------------------

    def record_intent(self, token: str, name: str, provider: dict[str, Any], spec: dict[str, Any]) -> PoolRow:
        """Record on disk that a pool is about to be created.

        Args:
            token: Token of the pool.
            name: Name of the pool.
            provider: The provider as JSON.
            spec: The specification as JSON.

        Returns:
            The new row.

        Raises:
            PoolExistsError: If a pool of that name has not ended.
        """
        row = (token, name, json.dumps(provider), json.dumps(spec), "starting", time.time(), process_mark())
        try:
            sql = "INSERT INTO pools (token, name, provider, spec, state, created_at, pid) VALUES (?,?,?,?,?,?,?)"
            self._write([(sql, row)], flush=True)
        except sqlite3.IntegrityError as error:
            raise PoolExistsError(f"A pool named {name!r} is still running.", hint=Hint("attach", name)) from error
        return self.pool(token)

    def record_created(self, token: str, machines: Iterable[Machine]) -> None:
        """Record the machines of a pool. Their number becomes the pool's number of nodes."""
        machines = list(machines)
        sql = "INSERT OR REPLACE INTO machines (token, node, machine) VALUES (?,?,?)"
        rows = [(sql, (token, m.node, json.dumps(m.to_json()))) for m in machines]
        self._write([*rows, self._node_count_statement(token, machines)], flush=True)
        self._write_trace(token)

    def _node_count_statement(self, token: str, machines: Iterable[Machine]) -> tuple[str, tuple[Any, ...]]:
        """Return the statement that sets the number of nodes, which is unknown at first if the spec has a range."""
        last = max((each.node for each in machines), default=-1)
        # Update only this key of the spec, because other clients may change other keys, such as the budget.
        put = "UPDATE pools SET spec=json_set(spec, '$.nodes', ?) WHERE token=? AND ?"
        return put, (last + 1, token, last >= 0)

    def record_discovered(self, token: str, machines: Iterable[Machine]) -> None:
        """Record unrecorded machines of a pool: as the machine of their node, or as former machines if the node has
        another machine.
        """
        free = "NOT EXISTS (SELECT 1 FROM machines WHERE token=? AND node=?)"
        keep = f"INSERT INTO former SELECT ?, ? WHERE NOT {free}"
        put = "INSERT OR IGNORE INTO machines (token, node, machine) VALUES (?,?,?)"
        statements: list[tuple[str, tuple[Any, ...]]] = []
        machines = list(machines)
        # The creating client has not recorded the number of nodes, so count the machines found so far.
        if self.pool(token).state == "starting":
            statements.append(self._node_count_statement(token, (*self.machines(token), *machines)))
        for each in machines:
            text = json.dumps(each.to_json())
            statements += [(keep, (token, text, token, each.node)), (put, (token, each.node, text))]
        self._write(statements, flush=True)
        self._write_trace(token)

    def set_pool_state(self, token: str, state: str) -> None:
        self._write([("UPDATE pools SET state=? WHERE token=? AND ended_at IS NULL", (state, token))])
        self._write_trace(token)

    def set_budget(self, token: str, dollars: float) -> None:
        """Set the budget of a pool in US dollars, for all clients."""
        put = "UPDATE pools SET spec=json_set(spec, '$.options.budget', ?) WHERE token=?"
        self._write([(put, (dollars, token))], flush=True)
        self._write_trace(token)

    def record_purchase_intent(self, token: str, provider: dict[str, Any], block: dict[str, Any]) -> bool:
        """Record on disk that a capacity block is about to be bought. Returns False if it was, or may have been,
        bought before.
        """
        put = "INSERT INTO purchases VALUES (?,?,?,?,?,'asked','')"
        row = token, block["id"], json.dumps(provider), json.dumps(block), time.time()
        try:
            self._write([(put, row)], flush=True)
        except sqlite3.IntegrityError:
            return False
        return True

    def record_purchase(self, token: str, state: str, result: str) -> None:
        """Record the result of a purchase, as in ``ledger_rows.Purchase``. The state "bought" is final."""
        put = "UPDATE purchases SET state=?, told=? WHERE token=? AND state!='bought'"
        self._write([(put, (state, result, token))], flush=True)

    def purchases(self) -> list[Purchase]:
        """Return all purchases, newest first."""
        return self._select(Purchase, "ORDER BY asked_at DESC")

    def release_pool(self, token: str) -> None:
        """Record that this process no longer starts a pool, although the process continues to run."""
        self._write([("UPDATE pools SET pid=NULL WHERE token=? AND state='starting'", (token,))])
        self._write_trace(token)

    def record_teardown(
        self, token: str, receipt: Receipt, retained: Iterable[RetainedResults] = (), at: float | None = None
    ) -> None:
        """Close a pool after a verified teardown, or save the receipt of an incomplete one.

        Args:
            token: Token of the pool.
            receipt: Receipt of the teardown.
            retained: Results that hosts retain.
            at: Unix time of the end. None for now. An end that was recorded earlier is kept.
        """
        end = (time.time() if at is None else at) if receipt.ok else None
        state = "gone" if receipt.ok else "failed"
        sql = "UPDATE pools SET state=?, ended_at=COALESCE(ended_at, ?), receipt=? WHERE token=?"
        statements: list[tuple[str, tuple[Any, ...]]] = [(sql, (state, end, json.dumps(receipt.to_json()), token))]
        if receipt.ok:
            statements.append(("DELETE FROM kept WHERE token=?", (token,)))
            statements += [(_INSERT_RETAINED, (token, *_retained_row(each))) for each in retained]
        self._write(statements, flush=True)
        runs = "UPDATE runs SET state='lost', ended_at=? WHERE token=? AND state='running'"
        if receipt.ok:
            self._write([(runs, (end, token)), ("DELETE FROM replacements WHERE token=?", (token,))])
        self._write_trace(token)

    def save_receipt_text(self, token: str, text: str) -> None:
        """Save a receipt's text until it is printed."""
        put = "UPDATE pools SET receipt=json_set(receipt, '$.unshown', ?) WHERE token=?"
        # A short wait for a locked ledger, because the user waits for the receipt.
        self._write([(put, (text, token))], patience=1.0)

    def unprinted_receipts(self) -> dict[str, str]:
        """Return the texts of unprinted receipts by token, oldest first."""
        text = "json_extract(receipt, '$.unshown')"
        return dict(self._read(f"SELECT token, {text} FROM pools WHERE {text} IS NOT NULL ORDER BY ended_at"))

    def mark_receipts_printed(self, tokens: Iterable[str]) -> None:
        """Remove the texts of receipts that were printed."""
        drop = "UPDATE pools SET receipt=json_remove(receipt, '$.unshown') WHERE token=?"
        self._write([(drop, (token,)) for token in tokens])

    def retained_results(self, token: str | None = None) -> list[RetainedResults]:
        """Return the results that hosts of ended pools retain, of one pool or of all."""
        where, values = ("", ()) if token is None else (" WHERE token=?", (token,))
        rows = self._read(f"SELECT token, machine, facts FROM kept{where} ORDER BY rowid", values)
        return [RetainedResults(each, Machine(**json.loads(m)), **json.loads(facts)) for each, m, facts in rows]

    def unfetched_results(self, token: str | None = None) -> list[RetainedResults]:
        """Return the retained results that a user may want. Ended runs without results and logs are omitted."""
        return self.select_wanted(self.retained_results(token))

    def select_wanted(self, retained: Iterable[RetainedResults]) -> list[RetainedResults]:
        """Return the retained results that a user may want; see :meth:`unfetched_results`."""

        def is_wanted(run: str, size: int) -> bool:
            row = None if size else self.run(run)
            return row is None or row.state not in ("done", "failed", "cancelled")

        parts = (each.for_runs([run for run, size in each.runs.items() if is_wanted(run, size)]) for each in retained)
        return list(filter(None, parts))

    def remove_retained(self, results: RetainedResults) -> None:
        """Remove an entry of retained results that were fetched, deleted or expired."""
        remaining = list(
            map(str, self.select_wanted(each for each in self.retained_results(results.token) if each != results))
        )
        receipt = (self.pool(results.token).receipt or {}) | {"kept": remaining}
        machine, _ = _retained_row(results)
        drop = ("DELETE FROM kept WHERE token=? AND machine=?", (results.token, machine))
        put = ("UPDATE pools SET receipt=? WHERE token=?", (json.dumps(receipt), results.token))
        self._write([drop, put], flush=True)
        self._write_trace(results.token)

    def delete_pool(self, token: str) -> None:
        """Delete all rows about an ended pool and its runs."""
        ended = "(SELECT token FROM pools WHERE token=? AND ended_at IS NOT NULL)"
        outcomes = f"DELETE FROM outcomes WHERE run IN (SELECT run FROM runs WHERE token IN {ended})"
        tables = ("runs", "machines", "former", "replacements", "kept", "pools")
        self._write([(outcomes, (token,)), *((f"DELETE FROM {t} WHERE token IN {ended}", (token,)) for t in tables)])

    def pool(self, token: str) -> PoolRow:
        return self._select(PoolRow, "WHERE token=?", (token,))[0]

    def find_pool(self, pool: str) -> PoolRow | None:
        """Find a pool by its key or name. If several pools have the name: the running pool, or else the latest one."""
        name, _, token = pool.partition(".")
        if token:
            rows = self._select(PoolRow, "WHERE name=? AND token=?", (name, token))
        else:
            rows = self._select(PoolRow, "WHERE name=? ORDER BY ended_at IS NOT NULL, created_at DESC LIMIT 1", (name,))
        return rows[0] if rows else None

    def change_stamp(self) -> tuple[int, ...]:
        """Return a value that changes with each write of any process. No table is read.

        Raises:
            LedgerError: If the ledger cannot be read.
        """
        ((by_others,),) = self._read("PRAGMA data_version")
        return id(self._db), by_others, self._db.total_changes

    def live_pools(self) -> list[PoolRow]:
        """Return the pools that have not ended, newest first."""
        return self._select(PoolRow, "WHERE ended_at IS NULL ORDER BY created_at DESC")

    def providers(self, *, used: bool = False) -> list[dict[str, Any]]:
        """Return the JSON of the providers of all pools, without repetitions.

        Args:
            used: Whether to skip pools whose receipt proves that nothing was created.
        """
        empty = "json_extract(receipt, '$.created', '$.unaccounted', '$.notes')='[0,[],[]]'"
        where = f" WHERE receipt IS NULL OR NOT {empty}" if used else ""
        return [json.loads(provider) for (provider,) in self._read(f"SELECT DISTINCT provider FROM pools{where}")]

    def pool_names_with_prefix(self, letters: str) -> list[str]:
        """Return the names of pools with a prefix, without repetitions, the last used first."""
        sql = "SELECT name FROM pools WHERE substr(name, 1, ?)=? GROUP BY name ORDER BY max(created_at) DESC"
        return [name for (name,) in self._read(sql, (len(letters), letters))]

    def ended_pools(self, since: float = 0.0, limit: int = 500) -> list[PoolRow]:
        """Return at most ``limit`` pools that ended at or after a Unix time, newest first."""
        return self._select(PoolRow, "WHERE ended_at>=? ORDER BY created_at DESC LIMIT ?", (since, limit))

    def machines(self, token: str) -> list[Machine]:
        rows = self._read("SELECT machine FROM machines WHERE token=? ORDER BY node", (token,))
        return [Machine(**json.loads(text)) for (text,) in rows]

    # -- replacement machines ------------------------------------------------------------------------------

    def record_replacement_intent(self, token: str, node: int, intent: str, owner: str) -> Replacement | None:
        """Record on disk that a node is about to get another machine, or continue a replacement that a client began
        before it died.

        Args:
            token: Token of the pool.
            node: Index of the node.
            intent: Idempotency token of the machine's creation.
            owner: This client.

        Returns:
            The replacement to perform. It has the intent of the former client if there was one. None if another client
            performs the replacement.
        """
        put = "INSERT OR IGNORE INTO replacements (token, node, intent, owner, made) VALUES (?,?,?,?,0)"
        self._write([(put, (token, node, intent, owner))], flush=True)
        (found,) = [each for each in self.replacements(token) if each.node == node]
        if found.owner == owner:
            return found
        if found.is_owner_alive:
            return None
        take = "UPDATE replacements SET owner=? WHERE token=? AND node=? AND owner=?"
        self._write([(take, (owner, token, node, found.owner))], flush=True)
        (found,) = [each for each in self.replacements(token) if each.node == node]
        return found if found.owner == owner else None

    def restart_replacement(self, token: str, node: int, intent: str) -> None:
        """Restart a replacement, because the machine that was created is unusable."""
        restart = "UPDATE replacements SET intent=?, made=0 WHERE token=? AND node=?"
        self._write([(restart, (intent, token, node))], flush=True)

    def record_replacement(self, token: str, machine: Machine) -> bool:
        """Record the new machine of a node. The old one becomes a former machine.

        Returns:
            Whether it was recorded. False if the pool is being torn down.
        """
        live = "EXISTS (SELECT 1 FROM pools WHERE token=? AND state!='stopping' AND ended_at IS NULL)"
        keep = f"INSERT INTO former SELECT token, machine FROM machines WHERE token=? AND node=? AND {live}"
        text = json.dumps(machine.to_json())
        put = f"UPDATE machines SET machine=? WHERE token=? AND node=? AND {live}"
        made = f"UPDATE replacements SET made=1 WHERE token=? AND node=? AND {live}"
        place = (token, machine.node, token)
        # The machine may already be recorded as a former machine, because it was found by its tags.
        # An SSH host that has replaced itself keeps its ID, and its former folder still has to be ended.
        host, folder = (f"json_extract(machine, '$.extra.{key}')" for key in ("host", "folder"))
        same = f"json_extract(machine, '$.id')=? AND ({host} IS NULL OR {folder} IS ?)"
        drop = f"DELETE FROM former WHERE token=? AND {same} AND {live}"
        once = drop, (token, machine.id, machine.extra.get("folder"), token)
        self._write([once, (keep, place), (put, (text, *place)), (made, place)], flush=True)
        self._write_trace(token)
        return any(each.made for each in self.replacements(token) if each.node == machine.node)

    def release_replacement(self, token: str, node: int, owner: str) -> None:
        """Release an unfinished replacement for the next client."""
        release = "UPDATE replacements SET owner='0' WHERE token=? AND node=? AND owner=?"
        self._write([(release, (token, node, owner))])

    def end_replacement(self, token: str, node: int) -> None:
        """Record the end of a replacement, successful or not."""
        self._write([("DELETE FROM replacements WHERE token=? AND node=?", (token, node))], flush=True)

    def replacements(self, token: str) -> list[Replacement]:
        """Return the unfinished replacements of a pool."""
        return self._select(Replacement, "WHERE token=? ORDER BY node", (token,))

    def replaced_machines(self, token: str) -> list[Machine]:
        """Return the former machines of a pool, in the order of their replacements. They may still cost money."""
        rows = self._read("SELECT machine FROM former WHERE token=? ORDER BY rowid", (token,))
        return [Machine(**json.loads(text)) for (text,) in rows]

    # -- runs ----------------------------------------------------------------------------------------------

    def adopt_run(self, run: str) -> bool:
        """Make this process the client of a running run whose client has exited. Return whether that succeeded.

        Return False if the ledger is locked, because the event loop must not wait. The caller tries again.
        """
        row, mark = self.run(run), process_mark()
        if row is None or row.ended_at is not None or row.has_client:
            return False
        with suppress(sqlite3.Error), self._connect_separately("rw") as db:
            db.execute("UPDATE runs SET pid=? WHERE run=? AND pid IS ?", (mark, run, row.pid))
        row = self.run(run)
        return row is not None and row.pid == mark

    def record_runs(
        self,
        runs: Mapping[str, Mapping[str, Any]],
        outcomes: Iterable[tuple[str, Outcome, dict[str, list[int]]]] = (),
        patience: float | None = None,
        restarted: Mapping[str, int] | None = None,
        texts: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        """Record runs and outcomes in one transaction.

        Args:
            runs: Run -> its changed columns. A run that may be new needs the column ``token``.
            outcomes: Outcomes of calls: run, outcome, log ranges.
            patience: Seconds to wait for other processes. None: as long as other writes.
            restarted: Restarted run -> number of the attempt to which ``runs`` and ``outcomes`` belong. They replace
                records of earlier attempts, but not of later ones.
            texts: ``id()`` of an outcome -> the outcome as JSON, if it is already encoded.

        Raises:
            LedgerError: If the ledger cannot be written or is locked.
        """
        attempts = restarted or {}
        statements: list[tuple[str, Any]] = [
            (sql, (run, attempts[run])) for run in runs if run in attempts for sql in _FORGET_ATTEMPTS
        ]
        statements += [
            (
                _run_statement(tuple(columns)),
                {name: _to_stored(each) for name, each in columns.items()}
                | {"run": run, "attempt": attempts.get(run, 1)},
            )
            for run, columns in runs.items()
        ]
        statements += [
            (
                _PUT_OUTCOME,
                (
                    run,
                    out.index,
                    texts.get(id(out)) or encode_record(out.to_json()),
                    encode_record(log),
                    attempts.get(run, 1),
                ),
            )
            for run, out, log in outcomes
        ]
        self._write(statements, patience=patience)

    def run(self, run: str) -> RunRow | None:
        rows = self._runs("WHERE run=?", (run,))
        return rows[0] if rows else None

    def require_run(self, run: str) -> RunRow:
        """Return the row of a run that must exist.

        Raises:
            UsageError: If the ledger has no such run.
        """
        if (row := self.run(run)) is None:
            raise UsageError(f"no run {run!r} in the ledger", hint=Hint("list-all"))
        return row

    def runs(self, token: str) -> list[RunRow]:
        """Return the runs of a pool, oldest first."""
        return self._runs("WHERE token=? ORDER BY opened_at", (token,))

    def unfinished_runs(self, token: str) -> list[RunRow]:
        """Return the runs of a pool without a recorded end, oldest first."""
        return self._runs("WHERE token=? AND state='running' ORDER BY opened_at", (token,))

    def latest_runs(self, since: float, limit: int) -> list[RunRow]:
        """Return at most ``limit`` runs of all pools that began at or after a Unix time, newest first."""
        return self._runs("WHERE opened_at>=? ORDER BY opened_at DESC LIMIT ?", (since, limit))

    def failed_runs(self, since: float, limit: int) -> list[RunRow]:
        """Return at most ``limit`` failed or lost runs that began at or after a Unix time, newest first."""
        where = "WHERE state IN ('failed', 'lost') AND opened_at>=? ORDER BY opened_at DESC LIMIT ?"
        return self._runs(where, (since, limit))

    def pools_without_runs(self, since: float, limit: int) -> list[PoolRow]:
        """Return at most ``limit`` pools without runs, created at or after a Unix time, newest first."""
        no_run = "NOT EXISTS (SELECT 1 FROM runs WHERE runs.token=pools.token)"
        return self._select(
            PoolRow, f"WHERE created_at>=? AND {no_run} ORDER BY created_at DESC LIMIT ?", (since, limit)
        )

    def runs_with_prefix(self, letters: str) -> list[RunRow]:
        """Return the runs whose ids have a prefix, newest first."""
        return self._runs("WHERE substr(run, 1, ?)=? ORDER BY opened_at DESC", (len(letters), letters))

    def _runs(self, where: str, values: tuple[Any, ...]) -> list[RunRow]:
        waiting = {run for results in self.retained_results() for run in results.runs}
        rows = self._select(RunRow, where, values)
        return [
            replace(row, state="kept") if row.run in waiting and row.state in ("running", "lost") else row
            for row in rows
        ]

    def outcomes(self, run: str) -> list[tuple[Outcome, dict[str, list[int]]]]:
        """Return the outcomes of a run by index, each with the byte ranges of its logs: file -> [start, end]."""
        return list(self.iter_outcomes(run))

    def iter_outcomes(self, run: str) -> Iterator[tuple[Outcome, dict[str, list[int]]]]:
        """Yield the outcomes of a run by index while they are parsed, because parsing 20,000 outcomes takes 0.5 s."""
        for outcome, log in self._read("SELECT outcome, log FROM outcomes WHERE run=? ORDER BY idx", (run,)):
            yield Outcome.from_json(json.loads(outcome)), json.loads(log)

    def outcome_texts(self, runs: Sequence[str], most: int) -> list[tuple[str, str]]:
        """Return run and stored JSON of the outcomes that may have metrics, at most ``most`` of each run."""
        places = ", ".join("?" * len(runs))
        where = f"run IN ({places}) AND idx<? AND instr(outcome, '\"numbers\"')"
        return self._read(f"SELECT run, outcome FROM outcomes WHERE {where} ORDER BY run, idx", (*runs, most))


# Columns of a run whose values never change.
_FIXED_COLUMNS = ("token", "function", "kind", "total", "opened_at")
# "lost" may mean that a client's pool ended during its run, so it never replaces an end that another client recorded.
_END_COLUMNS = ("state", "ended_at", "root_cause")
# Change rows only if they belong to an earlier attempt, because some clients do not know the latest attempt yet.
_FORGET_ATTEMPTS = (
    "DELETE FROM outcomes WHERE run=?1 AND EXISTS (SELECT 1 FROM runs WHERE run=?1 AND coalesce(attempts, 1)<?2)",
    "UPDATE runs SET state='running', ended_at=NULL, root_cause=NULL WHERE run=?1 AND coalesce(attempts, 1)<?2",
)
_PUT_OUTCOME = """INSERT OR REPLACE INTO outcomes (run, idx, outcome, log)
SELECT ?1, ?2, ?3, ?4 WHERE NOT EXISTS (SELECT 1 FROM runs WHERE run=?1 AND attempts>?5)"""


@cache
def _run_statement(columns: tuple[str, ...]) -> str:
    """Return the statement that updates columns of a run. It also inserts the row if the columns identify the run."""
    sees_end = "(state='running' OR :state!='lost') AND coalesce(attempts, 1)<=:attempt"
    changes = ", ".join(
        f"{name}=CASE WHEN {sees_end} THEN :{name} ELSE {name} END"
        if name in _END_COLUMNS
        else f"{name}=max(coalesce({name}, 1), :{name})"
        if name == "attempts"
        else f"{name}=:{name}"
        for name in columns
        if name not in _FIXED_COLUMNS
    )
    if "token" not in columns:
        return f"UPDATE runs SET {changes} WHERE run=:run"
    values = {name: f":{name}" for name in ("run", *columns)}
    values.setdefault("state", "'running'")
    insert = f"INSERT INTO runs ({', '.join(values)}) VALUES ({', '.join(values.values())})"
    return f"{insert} ON CONFLICT (run) DO {f'UPDATE SET {changes}' if changes else 'NOTHING'}"


def _to_stored(value: Any) -> Any:
    """Convert a column's value to a type that SQLite stores. Mappings, lists and tuples become JSON."""
    if value is None or type(value) in (str, int, float, bool, bytes):
        return value
    return json.dumps(value.to_json() if isinstance(value, RootCause) else value)


_INSERT_RETAINED = "INSERT INTO kept (token, machine, facts) VALUES (?,?,?)"


def _retained_row(results: RetainedResults) -> tuple[str, str]:
    facts = {"runs": results.runs, "size": results.size, "until": results.until}
    return json.dumps(results.machine.to_json()), json.dumps(facts)


def ledger_id(provider: str) -> str:
    """Return the id of this client's ledger for a provider, creating the id on first use.

    Raises:
        PoolError: If the id cannot be written.
    """
    if known := known_ledger_id(provider):
        return known
    path = state_home() / provider / "ledger-id"
    with convert_errors(f"cannot tag resources as created by this client: {path} cannot be written"):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+", encoding="ascii") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # a lock, so that only one of several clients without an id creates it
            name = file.read().strip()
            if not name:
                name = secrets.token_hex(8)
                file.write(name)
            return name


def known_ledger_id(provider: str) -> str:
    """Return the id of :func:`ledger_id` without creating it; "" if there is none."""
    with suppress(FileNotFoundError):
        return (state_home() / provider / "ledger-id").read_text(encoding="ascii").strip()
    return ""
