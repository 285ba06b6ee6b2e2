"""A door: the parent's side of a process in which code that is not ours runs."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from typing import IO, Any

from ropeaudit import errors
from ropeaudit.door.messages import Arrays, Malformed, Message, Reader, encoded, send

LIMIT = 120.0  # seconds without a call that ends
_PIECE = 2**20  # bytes that are read at once
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_KEPT = 2**16  # bytes of prints that are kept
_ENDING = 2.0  # seconds in which the rest of what an ended process printed is read


class ForeignError(Exception):
    """What code that is not ours did instead of returning: a finding of it, not a fault of the audit."""


class Raised(ForeignError):
    """It raised an exception. type: the name of its class. file, line: where, the last of others' code."""

    def __init__(self, type: str, text: str, file: str = "", line: int = 0) -> None:
        super().__init__(text)
        self.type, self.text, self.file, self.line = type, text, file, line


class Ended(ForeignError):
    """It ended its process, closed the way to it, or wrote into it what is no message."""


class Late(ForeignError):
    """It did not return in time, and was ended."""


class Output:
    """What a child printed: the first bytes of it, and how many there were."""

    def __init__(self) -> None:
        self.kept, self.size = bytearray(), 0

    def feed(self, data: bytes) -> None:
        """Take in what was printed."""
        self.size += len(data)
        self.kept += data[: max(_KEPT - len(self.kept), 0)]

    def lines(self) -> list[str]:
        """Return the lines, each once with how often it came, and what was left out."""
        counts: dict[str, int] = {}
        for line in self.kept.decode(errors="backslashreplace").splitlines():
            counts[line] = counts.get(line, 0) + 1
        lines = [f"{line} ({count} times)" if count > 1 else line for line, count in counts.items()]
        left = self.size - len(self.kept)
        return [*lines, f"... and {left} bytes more"] if left else lines


class Door:
    """A child process that opened something of others once, and the sessions in which it is called.

    facts: what the opener said of it. why_no_forks: why sessions share the process; empty where each has its
    own. output: what it printed.
    """

    def __init__(self, opener: str, arguments: Mapping[str, Any], limit: float = LIMIT) -> None:
        """Start the process. opener: a function of ours, `ropeaudit.module:name`, arguments -> opened, facts.

        Raises: RopeAuditError of the opener; ForeignError.
        """
        self.limit, self.output = limit, Output()
        self._numbers, self.forks = itertools.count(1), 0
        ours, theirs = socket.socketpair()
        dies = threading.current_thread() is threading.main_thread()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "ropeaudit.door.child", str(theirs.fileno()), str(int(dies))],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=os.environ | dict.fromkeys(_ONE_THREAD, "1"),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = _Channel(ours, self)
        self.close = weakref.finalize(self, _ended, self._process, ours)
        try:
            said = self._control.ask({"open": opener, "arguments": dict(arguments)}, "importing it").header
        except BaseException:
            self.close()
            raise
        self.facts: Any = said["returned"]["facts"]
        self.why_no_forks: str = said["returned"]["why_no_forks"]

    def session(self) -> Session:
        """Return a new state of what was opened, which nothing has called. Raises: Ended."""
        number = next(self._numbers)
        if self.why_no_forks:
            return Session(self, self._control, number, 0)
        ours, theirs = socket.socketpair()
        with theirs:
            pid = self._control.fork(theirs)
        self.forks += 1
        return Session(self, _Channel(ours, self), number, pid)

    @property
    def streams(self) -> list[IO[bytes]]:
        """The child's stdout and stderr, as far as they are open."""
        both = (self._process.stdout, self._process.stderr)
        return [stream for stream in both if stream is not None and not stream.closed]

    def printed(self) -> list[str]:
        """Return what the child printed so far, as `Output.lines` does."""
        for stream in self.streams:
            while select.select([stream], [], [], 0)[0] and (data := os.read(stream.fileno(), _PIECE)):
                self.output.feed(data)
        return self.output.lines()

    def how_it_ended(self, pid: int) -> str:
        """Return how a process ended that is gone: by which signal, or with which exit code."""
        if pid and self._process.poll() is None:
            with contextlib.suppress(ForeignError):
                status = self._control.ask({"ended": pid}, "its end").header["status"]
                return "nobody says how" if status is None else _words(os.waitstatus_to_exitcode(status))
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _words(self._process.wait(_ENDING))
        return "it closed the way to it"


class Session:
    """One state of what a door opened, called by functions of ours that run in the child."""

    def __init__(self, door: Door, channel: _Channel, number: int, pid: int) -> None:
        self.door, self._channel, self._number, self._pid = door, channel, number, pid
        self.close = weakref.finalize(self, _left, channel, number, pid)

    def ask(
        self,
        function: str,
        arguments: Mapping[str, Any] | None = None,
        arrays: Arrays | None = None,
        what: str = "a call",
    ) -> tuple[Any, Arrays]:
        """Return what a function of ours returned in the child: values of JSON, and arrays by name.

        function: `ropeaudit.module:name`, called with the session, the arguments and the arrays. what: its
        words in an error. Raises: RopeAuditError that the function raised; ForeignError.
        """
        header = {"session": self._number, "function": function, "arguments": dict(arguments or {})}
        reply = self._channel.ask(header, what, arrays, self._pid)
        return reply.header["returned"], reply.arrays


class _Channel:
    """A socket to the child, on which one answer follows one question."""

    def __init__(self, ends: socket.socket, door: Door) -> None:
        self.socket, self.reader = ends, Reader()
        self._door = weakref.ref(door)

    def _opened(self) -> Door:
        """Return the door, which whoever asks holds."""
        if (door := self._door()) is None:
            raise Ended("the door is closed")
        return door

    def ask(
        self, header: Mapping[str, Any], what: str, arrays: Arrays | None = None, pid: int = 0
    ) -> Message:
        """Send a question and return its answer. pid: of the process there; 0 for the child itself."""
        door = self._opened()
        try:
            send(self.socket.fileno(), header, arrays)
            message = self._answer(door, what, pid)
        except OSError:
            raise Ended(f"your code ended the process in {what}: {door.how_it_ended(pid)}") from None
        except Malformed as error:
            _kill(pid or door._process.pid)
            raise Ended(f"your code wrote where ropeaudit reads, in {what}: {error}") from None
        except KeyboardInterrupt:  # its answer would come to the next question
            _kill(pid or door._process.pid)
            raise
        if "ours" in message.header:
            kind = getattr(errors, str(message.header["ours"]), errors.RopeAuditError)
            ours: errors.RopeAuditError = kind.__new__(kind)
            errors.RopeAuditError.__init__(ours, str(message.header.get("text", "")))
            raise ours
        if "raised" in message.header:
            raise Raised(**message.header["raised"])
        return message

    def fork(self, theirs: socket.socket) -> int:
        """Let the child fork a process that serves the other end of a socket; return its number."""
        door = self._opened()
        try:
            socket.send_fds(self.socket, [b"".join(encoded({"fork": 1}))], [theirs.fileno()])
            return int(self._answer(door, "a fork", 0).header["pid"])
        except OSError:
            raise Ended(f"your code ended the process: {door.how_it_ended(0)}") from None

    def _answer(self, door: Door, what: str, pid: int) -> Message:
        """Wait for the answer, and read what the child prints meanwhile. Raises: Late, OSError, Malformed."""
        deadline = time.monotonic() + door.limit
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            for stream in door.streams:
                selector.register(stream, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    data = os.read(key.fd, _PIECE)
                    if key.fileobj is not self.socket:
                        door.output.feed(data)
                        if not data:
                            selector.unregister(key.fileobj)
                        continue
                    if not data:
                        raise BrokenPipeError
                    for message in self.reader.feed(data):
                        if "began" not in message.header:
                            return message
                        what, deadline = str(message.header["began"]), time.monotonic() + door.limit
        _kill(pid or door._process.pid)
        raise Late(f"{what} has not returned after {door.limit:g} s")


def _kill(group: int) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _ended(process: subprocess.Popen[bytes], control: socket.socket) -> None:
    """End a child; processes that it forked end with it."""
    control.close()
    _kill(process.pid)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _left(channel: _Channel, number: int, pid: int) -> None:
    """End a session."""
    if pid:
        channel.socket.close()
        _kill(pid)
        return
    with contextlib.suppress(OSError):
        send(channel.socket.fileno(), {"close": number})


def _words(code: int) -> str:
    """Return an exit code in words, as `subprocess` gives it: less than 0 for a signal.

    >>> _words(-11), _words(3)
    ('SIGSEGV', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"
