"""The child of a door: it imports code that is not ours, and forks for each session of calls.

`python -P -m ropeaudit.door.child CONTROL PARENT`: CONTROL is a socket, PARENT the process with which it
ends, or 0. It imports what the door opens and calls nothing, so that each session begins without a past.
Where a fork would hang, or is not known to be safe (`why_no_forks`), it serves the sessions itself.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ropeaudit.door import ROAD, SPAWN
from ropeaudit.door.messages import OWN_ERRORS, Arrays, Message, encode, read_message, write
from ropeaudit.errors import one_line

_OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_HIGH = 200  # beyond descriptors that code may close
_PASSED = 8 * 4  # bytes of descriptors that come with a message, at most
ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_NEVER_FORKED = ("jax", "jaxlib", "tensorflow", "onnxruntime")  # they start threads when used
_DEBUGGED = "a debugger has no terminal in this process; give --in-process"
_REAPED = 0.5  # seconds between two looks at which forks have ended
_ENDING = 1.0  # seconds in which all that was started is ended
_LEFT_FREE = 2**30  # bytes of memory that stay for others
DIE_WITH_PARENT, _ADOPT = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of Linux's prctl.h
_TRIM, _MMAP = -1, -3  # M_TRIM_THRESHOLD and M_MMAP_THRESHOLD of glibc's malloc.h
# before others patch them
_exit, _fork, _waitpid, _getpid = os._exit, getattr(os, "fork", None), os.waitpid, os.getpid
_select = select.select


def never_forks() -> str:
    """Return why no process can fork on this system; empty if some can."""
    if os.environ.get(ROAD) == SPAWN:
        return f"{ROAD}={SPAWN}"
    return "" if sys.platform == "linux" else f"on {sys.platform} a fork is not safe"


@dataclass
class ChildSession:
    """One state of the opened code, which its calls share.

    opened: the result of the door's opener. state: values that our functions keep from call to call. say:
    tells the parent which call begins; its time limit counts from there. shared: whether the process serves
    other sessions too.
    """

    opened: Any
    say: Callable[[str], None]
    shared: bool = False
    state: dict[str, Any] = field(default_factory=dict)


Header = Mapping[str, Any]
# our function that a session runs: arguments and arrays -> result and arrays
Function = Callable[[ChildSession, Header, Arrays], tuple[Header, Arrays]]
Reply = Callable[[bytes], None]


def import_function(where: str) -> Any:
    """Import one of our functions, `ropeaudit.module:name`."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def why_no_forks() -> str:
    """Return why this process does not fork; empty where it does."""
    if never := never_forks():
        return never
    if loaded := [name for name in _NEVER_FORKED if name in sys.modules]:
        return f"{loaded[0]} is loaded"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA is initialized"
    threads = len(os.listdir("/proc/self/task"))
    return f"importing it started threads: {threads - 1}" if threads > 1 else ""


def answer(function: Function | str, session: ChildSession, request: Message, reply: Reply) -> None:
    """Run a function for a request, and reply with its result or exception."""
    to = {"to": request.header.get("to")}
    try:
        run: Function = import_function(function) if isinstance(function, str) else function
        header, arrays = run(session, request.header.get("arguments", {}), request.arrays)
        whole = b"".join(encode(to | {"returned": header}, arrays))
    except tuple(OWN_ERRORS.values()) as error:
        kind = next(one.__name__ for one in type(error).__mro__ if one.__name__ in OWN_ERRORS)
        whole = b"".join(encode(to | {"ours": kind, "text": getattr(error, "typed", str(error))}))
    except BaseException as error:  # whatever code that is not ours raises
        whole = b"".join(encode(to | {"raised": describe_exception(error)}))
    reply(whole)


def describe_exception(error: BaseException) -> dict[str, Any]:
    """Return an exception's type and text, and the innermost line of code that is not ours."""
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
    if type(error).__name__ == "BdbQuit":
        text = f"BdbQuit: {_DEBUGGED}"
    return {"type": type(error).__name__, "text": text, "file": file, "line": line}


class _Child:
    """Serves the messages of the control socket. ours: whether only our code ran in this process."""

    def __init__(
        self,
        control: socket.socket,
        opened: Any,
        shares: bool,
        ours: bool,
    ) -> None:
        self.control, self.opened, self.shares, self.ours = control, opened, shares, ours
        self.passed, self.sessions = list[int](), dict[int, ChildSession]()
        self.forks: dict[int, int | None] = {}  # process -> how it ended, once that is known
        self.pid, self.to = _getpid(), None  # to: number of the question that is answered

    def run(self) -> None:
        """Serve until the parent is gone. Raises: BrokenPipeError then."""
        while True:
            message = read_message(self._read_control)
            header, self.to = message.header, message.header.get("to")
            if "open" in header:
                self._run_opener(message)
            elif "fork" in header:
                self._fork([self.passed.pop(0) for _ in range(header["fork"])])
            elif "needed" in header:
                for name in header["needed"]:
                    try_import(name)
                self._say({"why_no_forks": why_no_forks()})
            elif "ended" in header:
                fork = header["ended"]  # its status stays None where nobody knows it
                if self.forks.get(fork) is None:
                    with contextlib.suppress(ChildProcessError):  # where code ignores SIGCHLD
                        self.forks[fork] = _waitpid(fork, 0)[1]
                self._say({"status": self.forks.get(fork)})
            elif "close" in header:
                self.sessions.pop(header["close"], None)
            else:
                number = header["session"]
                if number not in self.sessions:
                    self.sessions[number] = ChildSession(self.opened, self._report_call, self.shares)
                answer(header["function"], self.sessions[number], message, self._reply)

    def _run_opener(self, message: Message) -> None:
        """Run the opener; its result stays in the child, for the sessions."""

        def opened(session: ChildSession, arguments: Header, arrays: Arrays) -> tuple[Header, Arrays]:
            self.ours = False
            enter(message.header["here"])
            for name in message.header["needed"]:
                try_import(name)
            gc.enable()
            self.opened, facts = import_function(message.header["open"])(arguments)
            return {"facts": facts, "why_no_forks": why_no_forks()}, {}

        answer(opened, ChildSession(None, self._report_call), message, self._reply)

    def _fork(self, passed: list[int]) -> None:
        """Fork a process that serves the passed socket, and then ends.

        passed: the socket, and stdout and stderr if the process gets its own.
        """
        gc.freeze()  # a collection in the fork would copy shared memory
        if self.ours:  # it ends what it has started
            process_control(_ADOPT, 1)
            process_control(DIE_WITH_PARENT, 0)
        group: int = _fork() if _fork is not None else -1
        if group:
            for descriptor in passed:
                os.close(descriptor)
            self.forks[group] = None
            self._say({"pid": group})
            return
        code = 1
        try:
            os.setpgid(0, 0)
            process_control(DIE_WITH_PARENT, signal.SIGKILL)
            self.control.close()
            for number, descriptor in enumerate(passed[1:], 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                _Child(socket.socket(fileno=passed[0]), self.opened, len(passed) > 1, self.ours).run()
            code = 0
        except BaseException:  # shown with the code's prints
            traceback.print_exc()
        finally:
            save_coverage()
            _exit(code)

    def _report_call(self, what: str) -> None:
        self._say({"began": what})

    def _say(self, header: Header) -> None:
        self._reply(b"".join(encode({"to": self.to} | dict(header))))

    def _reply(self, message: bytes) -> None:
        if _getpid() != self.pid:
            _exit(0)  # a fork that code made itself must not answer
        write(self.control.fileno(), message)

    def _read_control(self, room: memoryview) -> int:
        """Wait for bytes of the parent and read them; store passed descriptors."""
        while True:
            left = [one for one, status in self.forks.items() if status is None or self.ours]
            if _select([self.control], [], [], _REAPED if left else None)[0]:
                break
            for one in [-1] if self.ours else left:  # else those that have ended stay zombies
                with contextlib.suppress(ChildProcessError):
                    while (ended := _waitpid(one, os.WNOHANG))[0]:
                        self.forks[ended[0]] = ended[1]
        if not hasattr(socket, "recv_fds"):
            return self.control.recv_into(room)
        count, passed, *_ = self.control.recvmsg_into([room], socket.CMSG_LEN(_PASSED))
        for *_, sent in passed:
            self.passed += [_moved_high(one) for one in array.array("i", sent)]
        return count


def enter(here: Header) -> None:
    """Set the parent's folder, environment and import path."""
    with contextlib.suppress(OSError):  # a folder that is gone
        os.chdir(here["folder"])
    os.environ.clear()
    os.environ.update(here["environment"] | dict.fromkeys(ONE_THREAD, "1"))
    sys.path[:] = [place for place in here["path"] if place not in ("", here["folder"])]


def try_import(name: str) -> None:
    """Import a module; ignore a failure, which its user will report."""
    with contextlib.suppress(Exception):
        importlib.import_module(name)


def open_nothing(arguments: Header) -> tuple[None, Header]:
    """Open no code, for sessions of functions that need none."""
    return None, {}


def _moved_high(descriptor: int) -> int:
    """Move a descriptor to a high number, which other code leaves alone and programs do not inherit."""
    import fcntl  # in-function: Windows has none

    high = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    os.close(descriptor)
    return high


def process_control(option: int, value: int) -> None:
    """Let Linux end this process with its parent, or make it adopt orphans."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def limit_memory() -> None:
    """Reuse a call's memory, as new pages cost more than the computing, and leave 1 GiB to others.

    Where memory is short, this process is killed first.
    """
    with contextlib.suppress(OSError, ValueError, ImportError):
        import resource  # in-function: Windows has none

        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        with open("/proc/meminfo") as lines:
            free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
        most = max(free - _LEFT_FREE, _LEFT_FREE)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    with contextlib.suppress(OSError, AttributeError, TypeError):  # of glibc alone
        for threshold, size in ((_MMAP, 2**25), (_TRIM, 2**27)):
            ctypes.CDLL(None).mallopt(threshold, size)


def save_coverage() -> None:
    """Save coverage data if it is measured, as `os._exit` does not."""
    if "coverage" in sys.modules:
        import coverage

        if (running := coverage.Coverage.current()) is not None:
            running.stop()
            running.save()


def _no_breakpoint(*_: Any, **__: Any) -> None:
    raise RuntimeError(_DEBUGGED)


def main() -> None:
    """Serve the door at the other end of the socket that was given."""
    descriptor, parent = _moved_high(int(sys.argv[1])), int(sys.argv[2])
    del sys.argv[1:]
    if parent:
        process_control(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended already
            return
    limit_memory()
    gc.disable()  # while what is imported is all that is made
    sys.breakpointhook = _no_breakpoint
    child = _Child(socket.socket(fileno=descriptor), None, True, True)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        child.run()
    save_coverage()
    listed, end = f"/proc/self/task/{_getpid()}/children", time.monotonic() + _ENDING
    with contextlib.suppress(OSError):  # what was started ends
        while child.ours and time.monotonic() < end and (left := Path(listed).read_text().split()):
            for one in left:
                os.kill(int(one), signal.SIGKILL)
            for one in left:
                _waitpid(int(one), 0)
    _exit(0)  # threads and exit handlers are not waited for


if __name__ == "__main__":
    main()
