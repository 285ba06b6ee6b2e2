"""The child of a door: it imports code that is not ours, and forks for each session of calls.

`python -P -m ropeaudit.door.child CONTROL DIES`: CONTROL is a socket, DIES 1 where it ends with its parent's
thread. It imports what the door opens and calls nothing, so that each session begins without a past. Where a
fork would hang, or is not known to be safe (`why_no_forks`), it serves the sessions itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ropeaudit.door.messages import Arrays, Message, Reader, encoded, receive, send, write
from ropeaudit.errors import RopeAuditError, one_line

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_HIGH = 200  # protocol descriptors lie from here on: code that closes the first ones does not meet them
_PIECE = 2**20  # bytes that are read at once
_NEVER_FORKED = ("jax", "jaxlib", "tensorflow", "onnxruntime")  # they start threads at their first use
_LEFT_FREE = 2**30  # bytes of memory that stay for others
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of Linux's prctl.h
_exit, _fork, _waitpid = os._exit, getattr(os, "fork", None), os.waitpid  # before others patch them


@dataclass
class Session:
    """One state of the code: what was opened, what calls before left here, and a voice.

    opened: what the door's opener returned. state: what functions of ours keep from call to call.
    say: tells the parent what begins, from which on its time limit counts.
    """

    opened: Any
    say: Callable[[str], None]
    state: dict[str, Any] = field(default_factory=dict)


Header = Mapping[str, Any]
# a function of ours that a session runs: its arguments and arrays -> what it returns, and arrays
Function = Callable[[Session, Header, Arrays], tuple[Header, Arrays]]
Reply = Callable[[bytes], None]


def named(where: str) -> Any:
    """Return a function of ours, `ropeaudit.module:name`."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def why_no_forks() -> str:
    """Return why this process does not fork; empty where it does."""
    if os.environ.get("ROPEAUDIT_DOOR") == "spawn":
        return "ROPEAUDIT_DOOR=spawn"
    if sys.platform != "linux":
        return f"on {sys.platform} a fork is not safe"
    if loaded := [name for name in _NEVER_FORKED if name in sys.modules]:
        return f"{loaded[0]} is loaded"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialized"
    threads = len(os.listdir("/proc/self/task"))
    return f"importing it started threads: {threads - 1}" if threads > 1 else ""


def answered(function: Function | str, session: Session, request: Message, reply: Reply) -> None:
    """Run a function of ours for a request, and reply with what it returns, or with what it raises."""
    try:
        run: Function = named(function) if isinstance(function, str) else function
        header, arrays = run(session, request.header.get("arguments", {}), request.arrays)
        whole = b"".join(encoded({"returned": header}, arrays))
    except RopeAuditError as error:
        whole = b"".join(encoded({"ours": type(error).__name__, "text": error.typed}))
    except BaseException as error:  # whatever code that is not ours raises
        whole = b"".join(encoded({"raised": described(error)}))
    reply(whole)


def described(error: BaseException) -> dict[str, Any]:
    """Return what is said of an exception: its type, its words, and the last line of others' code in it."""
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_OURS)
    ]
    file, line = frames[-1] if frames else ("", 0)
    try:
        text = one_line(error)
    except BaseException:  # its __str__ is others' code too
        text = type(error).__name__
    return {"type": type(error).__name__, "text": text, "file": file, "line": line}


class _Child:
    """What the process does: messages of the control socket, one after the other."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self.reader, self.waiting, self.passed = Reader(), list[Message](), list[int]()
        self.opened: Any = None
        self.sessions: dict[int, Session] = {}
        self.forks: dict[int, int | None] = {}  # process -> how it ended, once that is known

    def run(self) -> None:
        """Serve until the parent is gone."""
        while (message := self._next()) is not None:
            header = message.header
            if "open" in header:
                self._open(message)
            elif "fork" in header:
                self._fork()
            elif "ended" in header:
                self._say({"status": self._status(header["ended"])})
            elif "close" in header:
                self.sessions.pop(header["close"], None)
            else:
                number = header["session"]
                if number not in self.sessions:
                    self.sessions[number] = Session(self.opened, self._began)
                answered(header["function"], self.sessions[number], message, self._reply)

    def _open(self, message: Message) -> None:
        """Run the opener, whose answer stays here: what it returns is what sessions are of."""

        def opened(session: Session, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
            self.opened, facts = named(message.header["open"])(arguments)
            return {"facts": facts, "why_no_forks": why_no_forks()}, {}

        answered(opened, Session(None, self._began), message, self._reply)

    def _fork(self) -> None:
        """Fork: the new process serves one session on the socket that was passed, and ends."""
        channel = self.passed.pop(0)
        for one in [one for one, status in self.forks.items() if status is None]:
            self._status(one, os.WNOHANG)  # else those that have ended stay in the table of processes
        group: int = _fork() if _fork is not None else -1
        if group:
            os.close(channel)
            self.forks[group] = None
            self._say({"pid": group})
            return
        try:
            os.setpgid(0, 0)
            die_with_parent()
            self.control.close()
            reader, waiting = Reader(), list[Message]()
            session = Session(self.opened, lambda what: send(channel, {"began": what}))
            reply = functools.partial(write, channel)
            while (request := receive(channel, reader, waiting)) is not None:
                answered(request.header["function"], session, request, reply)
        finally:
            save_coverage()
            _exit(0)

    def _status(self, fork: int, wait: int = 0) -> int | None:
        """Return how a fork ended, as `os.waitstatus_to_exitcode` reads it; None where nobody says it."""
        if self.forks.get(fork) is None:
            with contextlib.suppress(ChildProcessError):  # where code ignores the end of its children
                ended, status = _waitpid(fork, wait)
                self.forks[fork] = status if ended else None
        return self.forks.get(fork)

    def _began(self, what: str) -> None:
        self._say({"began": what})

    def _say(self, header: Header) -> None:
        self._reply(b"".join(encoded(header)))

    def _reply(self, message: bytes) -> None:
        write(self.control.fileno(), message)

    def _next(self) -> Message | None:
        """Return the next message of the parent, None where it is gone; descriptors that came are kept."""
        while not self.waiting:
            select.select([self.control], [], [])
            if hasattr(socket, "recv_fds"):
                data, passed, _, _ = socket.recv_fds(self.control, _PIECE, 8)
                self.passed += [_moved_high(one) for one in passed]
            else:
                data = self.control.recv(_PIECE)
            if not data:
                return None
            self.waiting.extend(self.reader.feed(data))
        return self.waiting.pop(0)


def _moved_high(descriptor: int) -> int:
    """Return a copy of a descriptor where code does not look for one, closed in programs that it starts."""
    import fcntl  # in-function: Windows has none

    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(descriptor)
    return high


def die_with_parent() -> None:
    """Let Linux end this process when the thread that started it ends."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)


def limit_memory() -> None:
    """Let this process be the first that a full machine ends, and take no more than is free but for 1 GiB."""
    with contextlib.suppress(OSError, ValueError, ImportError):
        import resource  # in-function: Windows has none

        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
        most = max(free - _LEFT_FREE, _LEFT_FREE)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def save_coverage() -> None:
    """Write what coverage saw, where it is measured: `os._exit` does not."""
    if "coverage" in sys.modules:
        import coverage

        if (running := coverage.Coverage.current()) is not None:
            running.stop()
            running.save()


def main() -> None:
    """Serve the door at the other end of the socket that was given."""
    descriptor, dies = _moved_high(int(sys.argv[1])), sys.argv[2] == "1"
    if dies:
        die_with_parent()
    limit_memory()
    control = socket.socket(fileno=descriptor)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        _Child(control).run()
    save_coverage()
    _exit(0)  # threads and exit handlers of code that is not ours are not waited for


if __name__ == "__main__":
    main()
