"""tinygrad's own cache of compiled kernels: usable from every thread and after a fork, and no condition of compiling.

tinygrad keeps one connection, which SQLite ties to the thread that opened it, and fails where it cannot write the file.
Compiles come from any thread here, one at a time.
"""

from __future__ import annotations

import os
import sqlite3

import tinygrad.device
from tinygrad import helpers

_connection: sqlite3.Connection | None = None
_process = 0


def _path() -> str:
    """tinygrad takes an empty `XDG_CACHE_HOME`, which means that there is none, for the current folder."""
    if os.environ.get("CACHEDB") or os.environ.get("XDG_CACHE_HOME") != "":
        return helpers.CACHEDB
    return os.path.expanduser("~/.cache/tinygrad/cache.db")


def _opened() -> sqlite3.Connection:
    try:
        path = _path()
        os.makedirs(os.path.dirname(path), exist_ok=True)
        connection = sqlite3.connect(path, timeout=60, isolation_level="IMMEDIATE", check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL").fetchone()
        connection.execute("PRAGMA synchronous=NORMAL")
        return connection
    except (OSError, sqlite3.Error):  # no home, a full disk, somebody else's file
        return sqlite3.connect(":memory:", check_same_thread=False)


def connection() -> sqlite3.Connection:
    global _connection, _process
    if _connection is None or _process != os.getpid():
        _connection, _process = _opened(), os.getpid()
    return _connection


def close() -> None:
    """Before a fork: a connection must not be in two processes."""
    global _connection
    if _connection is not None:
        _connection.close()
        _connection = None
        helpers._db_tables.clear()


_plain_get, _plain_put = helpers.diskcache_get, helpers.diskcache_put


def _get(table, key):
    try:
        return _plain_get(table, key)
    except sqlite3.Error:
        return None


def _put(table, key, value, prepickled=False):
    try:
        return _plain_put(table, key, value, prepickled)
    except sqlite3.Error:
        return value


def apply() -> None:
    helpers.db_connection = connection
    tinygrad.device.diskcache_get, tinygrad.device.diskcache_put = _get, _put
