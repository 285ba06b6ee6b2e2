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
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, cast

from ropeaudit import errors
from ropeaudit.door import IN_PROCESS, ROAD, TIMEOUT, child
from ropeaudit.door.child import ONE_THREAD, never_forks
from ropeaudit.door.messages import (
    OWN_ERRORS,
    Arrays,
    Malformed,
    Message,
    encode,
    read_message,
    rebuild_error,
    send,
)
from ropeaudit.errors import Ended, ForeignError, Late, Raised
from ropeaudit.runtime import doing

LIMIT = 120.0  # seconds without a call that ends
_KNOWN = {"returned", "raised", "ours", "pid", "status", "why_no_forks"}  # an answer has one
_LONGEST_WAIT = 3600.0  # seconds, after which it is waited again
_PIECE = 2**20  # bytes that are read at once
_KEPT = 2**16  # bytes of prints that are kept
_ENDING = 2.0  # seconds in which a process ends by itself
_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}  # large ones, of which a fork copies fewer entries

Heard = Callable[[str], None]  # gets what a function of ours says in the child


class Output:
    """The output of a child to its streams: the first bytes, and the number of all."""

    def __init__(self, streams: Sequence[IO[bytes]]) -> None:
        self.streams, self.kept, self.size = streams, bytearray(), 0

    def read(self, stream: IO[bytes]) -> bool:
        """Read once from a stream; return whether more may follow."""
        data = os.read(stream.fileno(), _PIECE)
        self.size += len(data)
        self.kept += data[: max(_KEPT - len(self.kept), 0)]
        return bool(data)

    def lines(self) -> list[str]:
        """Return the printed lines, each once with its count, and the number of omitted bytes."""
        for stream in self.streams:
            while not stream.closed and select.select([stream], [], [], 0)[0] and self.read(stream):
                pass
        counts = Counter(self.kept.decode(errors="backslashreplace").splitlines())
        lines = [f"{line} ({count} times)" if count > 1 else line for line, count in counts.items()]
        left = self.size - len(self.kept)
        return [*lines, f"... and {left} bytes more"] if left else lines


_outputs: deque[Output] = deque(maxlen=100)  # of the last doors, oldest first


def take_printed() -> list[str]:
    """Return the lines that the children of all doors printed, and clear them."""
    lines = [line for output in _outputs for line in output.lines()]
    _outputs.clear()
    return lines


class _Worker:
    """A process that answers requests one by one, started by this one or forked.

    above: the process that forked it. own: the started process. streams: its stdout and stderr; forks without
    own streams share those of the process above, and its lock.
    """

    def __init__(
        self,
        ends: socket.socket,
        pid: int,
        limit: float,
        streams: Sequence[IO[bytes] | None] = (),
        own: subprocess.Popen[bytes] | None = None,
        above: _Worker | None = None,
    ) -> None:
        self.socket, self.pid, self.limit, self.own, self.above = ends, pid, limit, own, above
        self.owner, self.shares = os.getpid(), above is not None and not streams
        self.output = Output([stream for stream in streams if stream])
        self.lock = threading.RLock()
        if above is not None and self.shares:
            self.output, self.lock = above.output, above.lock
        self._asked = 0  # questions
        self._what, self._late = "", ""  # what it does; why it was ended, if it was

    def ask(
        self,
        header: Mapping[str, Any],
        what: str,
        arrays: Arrays | None = None,
        heard: Heard = lambda text: None,
        passed: Sequence[int] = (),
    ) -> Message:
        """Send a request and return its answer. what: its name in an error. passed: descriptors.

        Raises: RopeAuditError, ForeignError.
        """
        with self.lock:
            if self._late:
                raise Late(self._late)
            self._what, self._asked = what, self._asked + 1
            numbered = {**header, "to": self._asked}
            try:
                if passed:
                    socket.send_fds(self.socket, [b"".join(encode(numbered))], list(passed))
                else:
                    send(self.socket.fileno(), numbered, arrays)
                message = self._answer(heard)
            except OSError:
                raise Ended(f"ended its process in {self._what}: {self.how_it_ended()}") from None
            except Malformed as error:
                _kill_tree(self.pid)
                raise Ended(f"wrote where ropeaudit reads, in {self._what}: {error}") from None
            except KeyboardInterrupt:  # its answer would come to the next question
                _kill_tree(self.pid)
                raise
        if "ours" in message.header:
            raise rebuild_error(str(message.header["ours"]), str(message.header.get("text", "")))
        if "raised" in message.header:
            told = dict(message.header["raised"])
            raise Raised(*(told.get(name, "") for name in ("type", "text", "file", "line")))
        return message

    def _answer(self, heard: Heard) -> Message:
        """Wait for the answer. Raises: Late, OSError, Malformed."""
        deadline = time.monotonic() + self.limit
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            doing.waiting.add(thread := threading.get_ident())
            stack.callback(doing.waiting.discard, thread)
            doing.interrupted()
            selector.register(self.socket, selectors.EVENT_READ)
            for stream in self.output.streams:
                if not stream.closed:
                    selector.register(stream, selectors.EVENT_READ)

            def taken(room: memoryview) -> int:
                """Wait for bytes of the process and read them; meanwhile read its prints."""
                while (left := deadline - time.monotonic()) > 0:
                    for key, _ in selector.select(min(left, _LONGEST_WAIT)):
                        if key.fileobj is self.socket:
                            return self.socket.recv_into(room)
                        if not self.output.read(cast(IO[bytes], key.fileobj)):
                            selector.unregister(key.fileobj)
                _kill_tree(self.pid)
                self._late = f"has not returned after {self.limit:g} s, in {self._what}"
                raise Late(self._late)

            while "began" in (message := read_message(taken)).header:
                self._what, deadline = str(message.header["began"]), time.monotonic() + self.limit
                heard(self._what)
        if message.header.get("to") != self._asked or not _KNOWN & message.header.keys():
            raise Malformed("an answer to nothing that was asked")
        return message

    def fork(self, limit: float, *, prints: bool = False) -> _Worker:
        """Make the process fork; return the fork. prints: to own pipes. Raises: ForeignError."""
        ours, theirs = _sockets()
        pipes = [os.pipe() for _ in range(2 if prints else 0)]
        passed = [theirs.fileno(), *(end for _, end in pipes)]
        try:
            pid = int(self.ask({"fork": len(passed)}, "a fork", passed=passed).header["pid"])
        except BaseException:
            ours.close()
            for out, _ in pipes:
                os.close(out)
            raise
        finally:
            theirs.close()
            for _, end in pipes:
                os.close(end)
        return _Worker(ours, pid, limit, [os.fdopen(out, "rb", 0) for out, _ in pipes], above=self)

    def how_it_ended(self) -> str:
        """Return the signal or exit code with which the process ended."""
        if self.above is not None:
            with contextlib.suppress(ForeignError):
                status = self.above.ask({"ended": self.pid}, "its end").header["status"]
                return "nobody says how" if status is None else _exit_words(os.waitstatus_to_exitcode(status))
            return self.above.how_it_ended()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _exit_words(self.own.wait(_ENDING) if self.own else 0)
        return "it closed the way to it"

    def end(self, patience: float = 0) -> None:
        """End the process and its forks. patience: seconds that it has to end by itself."""
        self.socket.close()
        if self.own is not None and patience:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.own.wait(patience)
        if not self.shares or "coverage" not in sys.modules:  # else it ends itself
            _kill_tree(self.pid)
        if self.own is not None:  # of a fork the other takes note
            self.own.wait()
        for stream in () if self.shares else self.output.streams:
            stream.close()

    def leave(self, number: int) -> None:
        """End a session; also the process, if it serves no other."""
        if number:
            with contextlib.suppress(OSError):
                send(self.socket.fileno(), {"close": number})
        elif self.shares:
            self.end()


class _InProcess:
    """A worker without a process, for a debugger: functions are called in this process."""

    def __init__(self, opened: Any) -> None:
        self._opened, self._sessions = opened, dict[int, child.ChildSession]()

    def ask(
        self,
        header: Mapping[str, Any],
        what: str,
        arrays: Arrays | None,
        heard: Heard,
    ) -> Message:
        """Call one of our functions. Raises: RopeAuditError, ForeignError."""
        new = child.ChildSession(self._opened, heard, shared=True)
        session = self._sessions.setdefault(header["session"], new)
        session.say = heard
        with _as_foreign_errors():
            run: child.Function = child.import_function(header["function"])
            returned, results = run(session, header["arguments"], arrays or {})
        return Message({"returned": returned}, dict(results))

    def leave(self, number: int) -> None:
        """End a session."""
        self._sessions.pop(number, None)


class Door:
    """Opened code that is not ours, usually in a child, and its sessions.

    facts: what the opener reported. why_no_forks: why sessions share one process; empty where each has its
    own. forks: their number.
    """

    def __init__(self, worker: _Worker | _InProcess, facts: Any, why_no_forks: str) -> None:
        self._worker, self.facts, self.why_no_forks = worker, facts, why_no_forks
        self._numbers, self.forks = itertools.count(1), 0
        self.close: Callable[[], object] = lambda: None
        if isinstance(worker, _Worker):
            self.close = weakref.finalize(self, worker.end)

    def session(self, *, first: bool = False) -> Session:
        """Return a new session, which nothing has called yet. Raises: Ended.

        first: whether it is in the process that forks the others, which inherit its state.
        """
        if first or isinstance(self._worker, _InProcess) or self.why_no_forks:
            return Session(self, self._worker, 0 if first else next(self._numbers))
        self.forks += 1
        return Session(self, self._worker.fork(self._worker.limit))

    def ask_whether_it_forks(self) -> None:
        """Ask whether the child still forks. Raises: Ended."""
        if isinstance(self._worker, _Worker):
            told = self._worker.ask({"needed": []}, "a look at its threads")
            self.why_no_forks = told.header["why_no_forks"]


class Session:
    """One state of a door's opened code; our functions call it in the child."""

    def __init__(
        self,
        door: Door,
        worker: _Worker | _InProcess,
        number: int = 0,
    ) -> None:
        """Store the worker. number: among the sessions that share its process."""
        self._door, self.worker, self._number = door, worker, number
        self.close = weakref.finalize(self, worker.leave, number)

    def ask(
        self,
        function: str,
        arguments: Mapping[str, Any] | None = None,
        arrays: Arrays | None = None,
        heard: Heard = lambda text: None,
    ) -> tuple[Any, Arrays]:
        """Call one of our functions in the child; return its JSON and its arrays by name.

        function: `ropeaudit.module:name`, called with the session, the arguments and the arrays. heard: is
        called with what the function says meanwhile.
        Raises: RopeAuditError that the function raised; ForeignError.
        """
        header = {"session": self._number, "function": function, "arguments": dict(arguments or {})}
        reply = self.worker.ask(header, "a call", arrays, heard)
        return reply.header["returned"], reply.arrays


_root: _Worker | None = None  # it has loaded torch, and forks the doors' children
_starting = threading.Lock()


def _started(needed: Sequence[str], limit: float) -> _Worker:
    """Return a process for a door: a fork of the root if possible, else a new one."""
    global _root
    for _ in range(0 if never_forks() else 2):  # a root may have been ended
        with _starting:
            if _root is None or _root.owner != os.getpid():
                _root = _spawn_python(LIMIT)
                weakref.finalize(_root, _root.end, _ENDING)
            root = _root
        try:
            with root.lock:
                ready = root.ask({"needed": list(needed)}, "the import of what is needed")
                if not ready.header["why_no_forks"]:
                    return root.fork(limit, prints=True)
        except ForeignError:
            pass
        with _starting:
            _root = None if _root is root else _root
    return _spawn_python(limit)


def _spawn_python(limit: float) -> _Worker:
    parent = os.getpid() if threading.current_thread() is threading.main_thread() else 0
    ours, theirs = _sockets()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "ropeaudit.door.child", str(theirs.fileno()), str(parent)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_PAGES | os.environ | dict.fromkeys(ONE_THREAD, "1"),
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    return _Worker(ours, process.pid, limit, (process.stdout, process.stderr), process)


def _sockets() -> tuple[socket.socket, socket.socket]:
    """Return two ends of a channel that holds a call's arrays at once, if possible."""
    pair = socket.socketpair()
    for one in pair:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _PIECE)
    return pair


def _kill_tree(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _exit_words(code: int) -> str:
    """Return an exit code in words, as `subprocess` gives it: less than 0 for a signal.

    >>> _exit_words(-11), _exit_words(3)
    ('SIGSEGV', 'exit code 3')
    """
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-code).name
    return f"signal {-code}"


@contextlib.contextmanager
def _as_foreign_errors() -> Iterator[None]:
    """Turn exceptions of others' code into `Raised`, as from a process."""
    try:
        yield
    except tuple(OWN_ERRORS.values()):
        raise
    except Exception as error:
        raise Raised(**child.describe_exception(error)) from error


def limit(otherwise: float = LIMIT) -> float:
    """Return how many seconds a call may take. Raises: UsageError."""
    text = os.environ.get(TIMEOUT) or repr(otherwise)
    with contextlib.suppress(ValueError):
        if (seconds := float(text)) > 0:
            return seconds
    raise errors.UsageError(f"{TIMEOUT}={text} is no time to wait; give seconds, such as 120")


def door(
    opener: str,
    arguments: Mapping[str, Any],
    needed: Sequence[str] = (),
    otherwise: float = LIMIT,
) -> Door:
    """Open code in a new process, or in this one if requested; return the door.

    opener: our function, arguments -> (opened, facts). needed: modules that the child imports before; the
    root imports them once for all doors. otherwise: seconds that a call may take, see `limit`.
    Raises: RopeAuditError of the opener; ForeignError.
    """
    if os.environ.get(ROAD) == IN_PROCESS:
        for name in needed:  # no part of its own import
            child.try_import(name)
        with _as_foreign_errors():
            return in_process(*child.import_function(opener)(dict(arguments)))
    worker = _started(needed, limit(otherwise))
    _outputs.append(worker.output)
    here: dict[str, Any] = {"environment": dict(os.environ), "folder": "", "path": sys.path}
    with contextlib.suppress(OSError):  # it is gone
        here["folder"] = os.getcwd()
    asked = {"open": opener, "arguments": dict(arguments), "here": here, "needed": list(needed)}
    try:
        said = worker.ask(asked, "its import").header["returned"]
    except BaseException:
        worker.end()
        raise
    return Door(worker, said["facts"], said["why_no_forks"])


def in_process(opened: Any, facts: Any) -> Door:
    """Return the door of code that was opened in this process."""
    return Door(_InProcess(opened), facts, IN_PROCESS)


def own_session(needed: Sequence[str] = ()) -> Session:
    """Return a session without others' code; it has no time limit unless one is requested.

    Raises: ForeignError.
    """
    return door("ropeaudit.door.child:open_nothing", {}, needed, math.inf).session()
