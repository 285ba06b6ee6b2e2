"""A door: the parent's side of a process in which code that is not ours runs."""

from __future__ import annotations

import contextlib
import itertools
import math
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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ropeaudit import errors
from ropeaudit.door import IN_PROCESS, ROAD, TIMEOUT, child
from ropeaudit.door.child import ONE_THREAD, never_forks
from ropeaudit.door.messages import Arrays, Malformed, Message, Reader, encoded, send
from ropeaudit.errors import Ended, ForeignError, Late, Raised

LIMIT = 120.0  # seconds without a call that ends
_KNOWN = {"returned", "raised", "ours", "pid", "status", "why_no_forks"}  # one of them is in an answer
_LONGEST_WAIT = 3600.0  # seconds, after which it is waited again
_PIECE = 2**20  # bytes that are read at once
_KEPT = 2**16  # bytes of prints that are kept
_ENDING = 2.0  # seconds in which the rest of what an ended process printed is read


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


_outputs: deque[Output] = deque(maxlen=100)  # of the last doors, oldest first
_doors: weakref.WeakSet[Door] = weakref.WeakSet()
waiting: set[int] = set()  # threads that wait for an answer, which a signal may end
interrupted: Callable[[], None] = lambda: None  # noqa: E731  raises KeyboardInterrupt if one was held back


def printed() -> list[str]:
    """Return what the children of all doors printed so far, and forget it."""
    for one in list(_doors):
        one.printed()
    lines = [line for output in _outputs for line in output.lines()]
    _outputs.clear()
    return lines


class Door:
    """A child process that opened something of others once, and the sessions in which it is called.

    facts: what the opener said of it. why_no_forks: why sessions share the process; empty where each has its
    own. output: what it printed.
    """

    def __init__(
        self,
        opener: str,
        arguments: Mapping[str, Any],
        limit: float = LIMIT,
        needed: Sequence[str] = (),
        what: str = "its import",
    ) -> None:
        """Start the process. opener: a function of ours, `ropeaudit.module:name`, arguments -> opened, facts.

        needed: modules that the child imports; those that nobody but us wrote are so once for all doors.
        Raises: RopeAuditError of the opener; ForeignError.
        """
        self.limit, self.output = limit, Output()
        self._numbers, self.forks, self.lock = itertools.count(1), 0, threading.RLock()
        ours, theirs = _sockets()
        with theirs:
            self._process = _started(theirs, needed)
        _outputs.append(self.output)
        _doors.add(self)
        self._control = _Channel(ours, self)
        self.close = weakref.finalize(self, _ended, self._process, ours)
        here = {"environment": dict(os.environ), "folder": _folder(), "path": sys.path}
        try:
            asked = {"open": opener, "arguments": dict(arguments), "here": here, "needed": list(needed)}
            said = self._control.ask(asked, what).header
        except BaseException:
            self.close()
            raise
        self.facts: Any = said["returned"]["facts"]
        self.why_no_forks: str = said["returned"]["why_no_forks"]

    def session(self) -> Session:
        """Return a new state that nothing has called yet. Raises: Ended."""
        number = next(self._numbers)
        if self.why_no_forks:
            return Session(self, self._control, number, 0)
        ours, theirs = _sockets()
        with theirs, self.lock:
            pid = self._control.fork([theirs.fileno()])
        self.forks += 1
        return Session(self, _Channel(ours, self), number, pid)

    def first_session(self) -> Session:
        """Return the session of the parent of all forks: later ones inherit its state."""
        return Session(self, self._control, 0, 0)

    def look_again(self) -> None:
        """Ask whether the child still forks. Raises: Ended."""
        with self.lock:
            told = self._control.ask({"needed": []}, "a look at its threads")
        self.why_no_forks = told.header["why_no_forks"]

    @property
    def streams(self) -> list[IO[bytes]]:
        """The child's stdout and stderr, as far as they are open."""
        return [stream for stream in self._process.streams if not stream.closed]

    def printed(self) -> list[str]:
        """Return what the child printed so far, as `Output.lines` does."""
        for stream in self.streams:
            while select.select([stream], [], [], 0)[0] and (data := os.read(stream.fileno(), _PIECE)):
                self.output.feed(data)
        return self.output.lines()

    def how_it_ended(self, pid: int) -> str:
        """Return how a process ended: by which signal, or with which exit code.

        pid: of a session; 0 for the child itself.
        """
        if pid:
            with contextlib.suppress(ForeignError):
                return self._control.how(pid)
        return self._process.how()


@dataclass(frozen=True, slots=True)
class _Process:
    """A process of its own, or one that a root forked."""

    pid: int
    streams: tuple[IO[bytes], ...]
    own: subprocess.Popen[bytes] | None
    root: Door | None = None

    def how(self) -> str:
        """Return how it ended."""
        if self.root is not None:
            with contextlib.suppress(ForeignError), self.root.lock:
                return self.root._control.how(self.pid)
            return "with what it was started from"
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _words(self.own.wait(_ENDING) if self.own else 0)
        return "it closed the way to it"


class _Root(Door):
    """A process that has loaded torch and our modules, and forks the doors' children."""

    def __init__(self) -> None:
        self.limit, self.output, self.forks, self.why_no_forks = LIMIT, Output(), 0, ""
        self.owner, self.lock = os.getpid(), threading.RLock()
        ours, theirs = _sockets()
        with theirs:
            self._process = _spawned(theirs)
        self._control = _Channel(ours, self)
        self.close = weakref.finalize(self, _ended, self._process, ours, _ENDING)

    def child(self, theirs: socket.socket, needed: Sequence[str]) -> _Process:
        """Fork a process that serves the other end of a socket. Raises: ForeignError."""
        with self.lock:
            ready = self._control.ask({"needed": list(needed)}, "the import of what is needed")
            if ready.header["why_no_forks"]:
                raise Ended(f"does not fork: {ready.header['why_no_forks']}")
            (out, out_end), (err, err_end) = os.pipe(), os.pipe()
            try:
                pid = self._control.fork([theirs.fileno(), out_end, err_end])
            except BaseException:
                os.close(out)
                os.close(err)
                raise
            finally:
                os.close(out_end)
                os.close(err_end)
        return _Process(pid, (os.fdopen(out, "rb", 0), os.fdopen(err, "rb", 0)), None, self)


def _sockets() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a channel, which holds a call's arrays at once where the system lets it."""
    pair = socket.socketpair()
    for one in pair:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)
    return pair


_root: _Root | None = None
_starting = threading.Lock()


def _started(theirs: socket.socket, needed: Sequence[str]) -> _Process:
    """Return the process of a door: a fork of the root if possible, else its own."""
    global _root
    if never_forks():
        return _spawned(theirs)
    for _ in range(2):  # a root may have been ended, for want of memory say
        with _starting:
            if _root is None or _root.owner != os.getpid():
                _root = _Root()
            root = _root
        try:
            return root.child(theirs, needed)
        except ForeignError:
            with _starting:
                _root = None if _root is root else _root
    return _spawned(theirs)


def _spawned(theirs: socket.socket) -> _Process:
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "ropeaudit.door.child", str(theirs.fileno()), str(parent)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | dict.fromkeys(ONE_THREAD, "1"),
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    streams = tuple(one for one in (process.stdout, process.stderr) if one is not None)
    return _Process(process.pid, streams, process)


def _folder() -> str:
    """Return this folder; empty where it is gone."""
    try:
        return os.getcwd()
    except OSError:
        return ""


class Session:
    """One state of what a door opened; functions of ours call it in the child."""

    def __init__(self, door: Door, channel: _Channel, number: int, pid: int) -> None:
        self.door, self._channel, self._number, self._pid = door, channel, number, pid
        self.close = weakref.finalize(self, _left, channel, number, pid)

    def ask(
        self,
        function: str,
        arguments: Mapping[str, Any] | None = None,
        arrays: Arrays | None = None,
        what: str = "a call",
        heard: Callable[[str], None] = lambda text: None,
    ) -> tuple[Any, Arrays]:
        """Return what a function of ours returned in the child: values of JSON, and arrays by name.

        function: `ropeaudit.module:name`, called with the session, the arguments and the arrays. what: its
        words in an error. heard: gets what the function says meanwhile.
        Raises: RopeAuditError that the function raised; ForeignError.
        """
        header = {"session": self._number, "function": function, "arguments": dict(arguments or {})}
        with self.door.lock:
            reply = self._channel.ask(header, what, arrays, self._pid, heard)
        return reply.header["returned"], reply.arrays


class _Channel:
    """A socket to the child, on which one answer follows one question."""

    def __init__(self, ends: socket.socket, door: Door) -> None:
        self.socket, self.reader, self._what = ends, Reader(), ""
        self._asked = 0  # questions: an answer says to which it is
        self._late = ""  # why the process was ended, if it was
        self._door = weakref.ref(door)

    def _opened(self) -> Door:
        """Return the door, which whoever asks holds."""
        if (door := self._door()) is None:
            raise Ended("ended its process")
        return door

    def ask(
        self,
        header: Mapping[str, Any],
        what: str,
        arrays: Arrays | None = None,
        pid: int = 0,
        heard: Callable[[str], None] = lambda text: None,
        passed: Sequence[int] = (),
    ) -> Message:
        """Send a question and return its answer. pid: of a fork; 0 for the child itself.

        passed: descriptors that go with it.
        """
        door = self._opened()
        if self._late:
            raise Late(self._late)
        try:
            self._what = what
            self._asked += 1
            numbered = {**header, "to": self._asked}
            if passed:
                socket.send_fds(self.socket, [b"".join(encoded(numbered))], list(passed))
            else:
                send(self.socket.fileno(), numbered, arrays)
            message = self._answer(door, what, pid, heard)
        except OSError:
            raise Ended(f"ended its process in {self._what}: {door.how_it_ended(pid)}") from None
        except Malformed as error:
            _kill(pid or door._process.pid)
            raise Ended(f"wrote where ropeaudit reads, in {self._what}: {error}") from None
        except KeyboardInterrupt:  # its answer would come to the next question
            _kill(pid or door._process.pid)
            raise
        if "ours" in message.header:
            kind = getattr(errors, str(message.header["ours"]), None)
            if not (isinstance(kind, type) and issubclass(kind, errors.RopeAuditError)):
                kind = errors.RopeAuditError
            ours: errors.RopeAuditError = kind.__new__(kind)
            errors.RopeAuditError.__init__(ours, str(message.header.get("text", "")))
            raise ours
        if "raised" in message.header:
            told = dict(message.header["raised"])
            raise Raised(*(told.get(name, "") for name in ("type", "text", "file", "line")))
        return message

    def how(self, pid: int) -> str:
        """Return how a process ended that the child forked. Raises: ForeignError."""
        status = self.ask({"ended": pid}, "its end").header["status"]
        return "nobody says how" if status is None else _words(os.waitstatus_to_exitcode(status))

    def fork(self, passed: Sequence[int]) -> int:
        """Let the child fork, and return the pid. passed: its socket, stdout and stderr."""
        return int(self.ask({"fork": len(passed)}, "a fork", passed=passed).header["pid"])

    def _answer(self, door: Door, what: str, pid: int, heard: Callable[[str], None]) -> Message:
        """Wait for the answer and read the output. Raises: Late, OSError, Malformed."""
        self._what, deadline = what, time.monotonic() + door.limit
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            waiting.add(thread := threading.get_ident())
            stack.callback(waiting.discard, thread)
            interrupted()
            selector.register(self.socket, selectors.EVENT_READ)
            for stream in door.streams:
                selector.register(stream, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                for key, _ in selector.select(min(left, _LONGEST_WAIT)):
                    if key.fileobj is not self.socket:
                        door.output.feed(data := os.read(key.fd, _PIECE))
                        if not data:
                            selector.unregister(key.fileobj)
                        continue
                    if not (count := self.socket.recv_into(self.reader.room())):
                        raise BrokenPipeError
                    for message in self.reader.took(count):
                        if "began" not in message.header:
                            if message.header.get("to") != self._asked or not _KNOWN & message.header.keys():
                                raise Malformed("an answer to nothing that was asked")
                            return message
                        self._what, deadline = str(message.header["began"]), time.monotonic() + door.limit
                        heard(self._what)
        _kill(pid or door._process.pid)
        self._late = f"has not returned after {door.limit:g} s, in {self._what}"
        raise Late(self._late)


class Here(Door):
    """A door without a process, for a debugger: code is opened and called here."""

    def __init__(self, opened: Any, facts: Any) -> None:
        """Keep what was opened, and what is said of it."""
        self.output, self.why_no_forks, self.forks = Output(), IN_PROCESS, 0
        self.opened, self.facts = opened, facts

    def session(self) -> Session:
        """Return a new state of what was opened."""
        return _SessionHere(self)

    def first_session(self) -> Session:
        """Return the same: nothing is forked."""
        return self.session()

    def look_again(self) -> None:
        """Do nothing: nothing is forked."""


class _SessionHere(Session):
    """A session in this process."""

    def __init__(self, door: Here) -> None:
        self.door = door
        self.heard: Callable[[str], None] = lambda text: None
        self.inside = child.Session(door.opened, lambda what: self.heard(what), shared=True)

    def ask(
        self,
        function: str,
        arguments: Mapping[str, Any] | None = None,
        arrays: Arrays | None = None,
        what: str = "a call",
        heard: Callable[[str], None] = lambda text: None,
    ) -> tuple[Any, Arrays]:
        """Return what a function of ours returns. Raises: RopeAuditError, Raised."""
        self.heard = heard
        with _told():
            run: child.Function = child.named(function)
            return run(self.inside, dict(arguments or {}), arrays or {})


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Raise what others' code raises as it comes out of a process."""
    try:
        yield
    except errors.RopeAuditError:
        raise
    except Exception as error:
        raise Raised(**child.described(error)) from error


def limit(otherwise: float = LIMIT) -> float:
    """Return how many seconds a call may take. Raises: UsageError."""
    text = os.environ.get(TIMEOUT) or repr(otherwise)
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise errors.UsageError(f"{TIMEOUT}={text} is no time to wait; give seconds, such as 120")


def door(opener: str, arguments: Mapping[str, Any], needed: Sequence[str] = ()) -> Door:
    """Return the door of an opener, as `Door` takes it: a process, or this one if asked for.

    Raises: RopeAuditError of the opener; ForeignError.
    """
    if os.environ.get(ROAD) == IN_PROCESS:
        for name in needed:  # how long the code itself takes to import is looked at
            child.imported(name)
        with _told():
            return Here(*child.named(opener)(dict(arguments)))
    return Door(opener, arguments, limit(), needed)


def here() -> Session:
    """Return a session in this process."""
    return Here(None, {}).session()


def alone(needed: Sequence[str] = ()) -> Session:
    """Return a session without others' code: it waits for ever, unless a limit is asked for.

    Raises: ForeignError.
    """
    if os.environ.get(ROAD) == IN_PROCESS:
        return here()
    return Door("ropeaudit.door.child:nothing", {}, limit(math.inf), needed).session()


def _kill(group: int) -> None:
    """End a process and all that it started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _ended(process: _Process, control: socket.socket, patience: float = 0) -> None:
    """End a child; processes that it forked end with it. patience: seconds in which it ends them itself."""
    control.close()
    if patience and process.own:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.own.wait(patience)
    _kill(process.pid)
    if process.own:  # of a fork the root takes note
        process.own.wait()
    for stream in process.streams:
        stream.close()


def _left(channel: _Channel, number: int, pid: int) -> None:
    """End a session."""
    if pid:
        channel.socket.close()
        if "coverage" not in sys.modules:  # else it writes what coverage saw, and ends
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
