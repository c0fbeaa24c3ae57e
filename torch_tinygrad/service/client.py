"""This process's side of the compile service: a queue, and a thread that hands one request at a time to the helper.

`request` is called by a flush and never waits. The thread gives the answers, to functions the client was made with.
"""

from __future__ import annotations

import atexit
import os
import pickle
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from .bounds import Failure
from .helper import Broken, Helper, interpreter

MOST_WAITING = 64  # requests; the oldest gives way
IDLE = 120.0  # seconds after which a helper without work is ended
MOST_STARTS = 3  # in vain, after which no more are tried


class Client:
    def __init__(
        self,
        ready: Callable[[bytes, bytes], Any],
        failed: Callable[[bytes, str], Any],
        digest: str = "",
        load_failure: Callable[[bytes], str | None] = lambda key: None,
        save_failure: Callable[[bytes, str], Any] = lambda key, reason: None,
    ):
        """`ready` gets a key and a program's bytes, `failed` a key and the reason; each request is answered once.
        `load_failure` and `save_failure` keep lasting failures from process to process."""
        self._ready, self._failed = ready, failed
        self._load_failure, self._save_failure = load_failure, save_failure
        self._digest = digest
        self._environment = dict(os.environ)  # as it was when the digest was made
        self._failures: dict[bytes, str] = {}
        self._unusable = "" if interpreter() else "no process can be started here"
        self._changed = threading.Condition()
        self._waiting: OrderedDict[bytes, tuple] = OrderedDict()
        self._current: bytes | None = None
        self._thread: threading.Thread | None = None
        self._helper: Helper | None = None
        self._starts_in_vain = 0
        self._is_closed = False
        _clients.add(self)

    # ---- what a flush calls ----

    def available(self) -> bool:
        """Whether a helper runs or can be started, as far as is known."""
        return not self._unusable and not self._is_closed

    def known_failure(self, key: bytes) -> str | None:
        """Why there is no use in asking for it again."""
        reason = self._failures.get(key)
        if reason is None and (reason := self._load_failure(key)) is not None:
            self._failures[key] = reason
        return reason

    def request(
        self, key: bytes, trace: Any, varying: list[int], device_index: int, seen: list[list[int]] | None = None
    ) -> None:
        if (reason := self.known_failure(key)) is not None:
            self._failed(key, reason)
            return
        if not self.available():
            self._failed(key, self._unusable or "the process is about to end")
            return
        if (settings := self._settings()) is None:
            self._failed(key, "no compiler was found")
            return
        dropped = None
        with self._changed:
            if key == self._current:
                return
            self._waiting[key] = (trace, varying, device_index, seen, settings)
            self._waiting.move_to_end(key)
            if len(self._waiting) > MOST_WAITING:
                dropped, _ = self._waiting.popitem(last=False)
            if self._thread is None:
                self._start()
            self._changed.notify_all()
        if dropped is not None:
            self._failed(dropped, "too many others were asked for after it")

    def pending(self) -> int:
        with self._changed:
            return len(self._waiting) + (self._current is not None)

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is being compiled; says whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting and self._current is None, timeout)

    def shutdown(self) -> None:
        """Ends the helper; what was asked for and not answered is not answered any more."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            helper, thread = self._helper, self._thread
            self._changed.notify_all()
        if helper is not None:
            helper.kill()
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)

    def helper_pid(self) -> int | None:
        """Of the process that compiles, while there is one."""
        helper = self._helper
        return helper.process.pid if helper is not None and helper.process.poll() is None else None

    # ---- the thread ----

    @staticmethod
    def _settings() -> dict[str, Any] | None:
        """What a compile depends on here, besides the trace; nothing where there is no compiler."""
        import torch

        from torch_tinygrad import clang
        from torch_tinygrad.choice import chosen_device

        command = clang.command()
        if command is None and chosen_device() == "CPU":
            clang.warn_once()
            return None
        return {"default_dtype": torch.get_default_dtype(), "clang": command}

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._serve, name="tiny: compile service", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no more threads, or the interpreter is ending
            self._thread, self._unusable = None, str(error)
            self._waiting.clear()
        else:
            atexit.register(self.shutdown)

    def _next(self) -> bytes | None:
        """Takes the newest request; nothing at the end."""
        with self._changed:
            while not self._waiting and not self._is_closed:
                if not self._changed.wait(IDLE) and not self._waiting:
                    self._drop_helper()
            if self._is_closed:
                return None
            self._current, self._request = self._waiting.popitem()
            return self._current

    def _serve(self) -> None:
        try:
            self._serve_until_closed()
        finally:
            self._drop_helper()

    def _serve_until_closed(self) -> None:
        while (key := self._next()) is not None:
            outcome = self._outcome()
            if self._is_closed:
                break
            try:
                if isinstance(outcome, bytes):
                    self._ready(key, outcome)
                else:
                    if outcome.lasts:
                        self._failures[key] = outcome.reason
                        self._save_failure(key, outcome.reason)
                    self._failed(key, outcome.reason)
            finally:
                with self._changed:
                    self._current, self._request = None, ()
                    self._changed.notify_all()

    def _outcome(self) -> bytes | Failure:
        try:
            message = pickle.dumps(self._request, protocol=5)
        except Exception as error:
            return Failure(f"the trace cannot be sent: {error}", True)
        try:
            helper = self._running_helper()
            answer = helper.compiled(message)
        except (Broken, OSError) as error:
            self._drop_helper()
            self._starts_in_vain += 1
            if self._starts_in_vain == MOST_STARTS:
                self._unusable = str(error)
            return Failure(str(error), False)
        self._starts_in_vain = 0
        if answer is None:
            self._drop_helper()
            return Failure("the helper process was ended", False)
        return answer

    def _running_helper(self) -> Helper:
        if self._helper is not None and self._helper.process.poll() is not None:
            self._drop_helper()
        if self._helper is None:
            helper = Helper(self._digest, self._environment, self._request[-1]["clang"])
            with self._changed:
                self._helper = helper
                if self._is_closed:  # `shutdown` has not seen it
                    helper.kill()
        return self._helper

    def _drop_helper(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.end()

    def _forget(self) -> None:
        """In a forked process: the helper is the parent's, and its pipes must end with the parent."""
        self._changed = threading.Condition()
        self._waiting.clear()
        self._current, self._thread = None, None
        self._unusable, self._is_closed = "this process was forked from one that used the device", True
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.process.returncode = 0  # not this process's child: nothing to wait for
            helper.forget()


_clients: weakref.WeakSet[Client] = weakref.WeakSet()


def _after_fork() -> None:
    for client in list(_clients):
        client._forget()


os.register_at_fork(after_in_child=_after_fork)
