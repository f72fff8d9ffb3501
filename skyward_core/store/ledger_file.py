"""The ledger's file: made, opened by several processes, brought to our version, and kept aside when it is damaged."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from contextlib import suppress
from pathlib import Path

from ..model.errors import LedgerError
from ..model.hint import Hint
from . import lost_pools

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
    """Where the ledger is, and what has to be done before it can be asked.

    Args:
        patience: seconds that a connection waits for other processes.

    Attributes:
        set_aside: where a file is kept that was no longer a database.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self.path = path
        self.set_aside: Path | None = None
        self._patience = patience
        self._inode = 0

    def open(self, *, damaged: bool = False) -> sqlite3.Connection:
        """Open the file, or a new one in place of a damaged one, which is kept aside.

        One process at a time: SQLite does not wait for its turn to switch a new file to the write-ahead log, and of
        several that find the same damage only the first may move the file away.
        """
        try:
            guard = open(self.path.with_name(f"{self.path.name}.lock"), "w", opener=_private)  # noqa: SIM115  closed below
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
                if not is_damage(error):
                    raise LedgerError(
                        f"the ledger {self.path} cannot be opened: {in_words(error, self.path)}"
                    ) from error
            self.set_aside = self._keep_aside()
            return self._connect()

    def _connect(self) -> sqlite3.Connection:
        self._keep_private()
        db = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None, check_same_thread=False)
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


def _private(path: str, flags: int) -> int:
    """Open a file as nobody else can: who may read one may lock it."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def is_damage(error: sqlite3.Error) -> bool:
    """Whether the file is no database (any more), rather than out of reach."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def in_words(error: sqlite3.Error, path: Path) -> str:
    """Return what SQLite says about a ledger, and what to do about it."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    hint = {
        sqlite3.SQLITE_FULL: "make room on the disk",
        sqlite3.SQLITE_IOERR: "see that the disk is there and has room",
        sqlite3.SQLITE_READONLY: "see that the file and its folder are yours to write",
        sqlite3.SQLITE_CANTOPEN: "see that the file and its folder are yours to write",
    }.get(code, "move it away, and a new one begins")
    if code == sqlite3.SQLITE_BUSY:
        hint = f"{_writer(path) or 'another process'} holds it; end that one or try again"
    which = getattr(error, "sqlite_errorname", "")
    return f"{error} ({which}): {hint}, or set SKYWARD_HOME to another folder"


def _writer(path: Path) -> str:
    """Return the process that writes to a ledger now, for example one that was stopped; empty if it is unknown."""
    with suppress(OSError):  # not every system lists its locks
        index = path.with_name(f"{path.name}-shm").stat()
        place = f"{os.major(index.st_dev):02x}:{os.minor(index.st_dev):02x}:{index.st_ino}"
        for lock in Path("/proc/locks").read_text().splitlines():
            _, kind, _, _, pid, where, *span = lock.split()
            if (kind, where, span) == (
                "POSIX",
                place,
                ["120", "120"],
            ):  # the byte that a writer locks in WAL mode
                return f"process {pid}"
    return ""
