"""python -m ropeaudit, and the command `ropeaudit`."""

import atexit
import contextlib
import os
import signal
import sys

INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process; a Ctrl-C while it is loaded or interrupted ends it alike.

    NumPy's OpenBLAS would start threads when it is loaded, and let them spin; an audit has its own instead.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _leave_this_folder()
    try:
        _hear_as_ctrl_c()
        from ropeaudit.main import main as run

        code = run()
        _end_with(code)
    except KeyboardInterrupt:
        _deafen()
        sys.stderr.write("ropeaudit: interrupted\n")
        code = INTERRUPTED
    if code == INTERRUPTED:
        _deafen()
    _leave(code)


def _leave(code: int) -> None:
    """End the process with this code: Python's own is another where a signal comes while it shuts down."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _ends() -> list[signal.Signals]:
    """Return the signals that end a run: Ctrl-C, a batch system's, that of a terminal that is closed."""
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _hear_as_ctrl_c() -> None:
    """Take what ends a run for a Ctrl-C; what is ignored, as `nohup` wants it, stays so."""
    for number in _ends():
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, signal.default_int_handler)


def _end_with(code: int) -> None:
    """Let what ends a run end it with its own exit code from here on: all is said and written."""
    for number in _ends():
        if signal.getsignal(number) == signal.default_int_handler:
            signal.signal(number, lambda *_: os._exit(code))


def _deafen() -> None:
    """Ignore them from here on: one was obeyed, and another would change the exit code."""
    for number in _ends():
        signal.signal(number, signal.SIG_IGN)


def _leave_this_folder() -> None:
    """Take the current folder off sys.path, where `python -m` puts it: nothing there is for this package.

    It stays, at the end, where the package lies in it and is not installed.
    """
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        return
    if sys.flags.safe_path or sys.path[:1] not in ([here], [""]):
        return
    del sys.path[0]
    if os.path.dirname(os.path.dirname(os.path.abspath(__file__))) == here:
        sys.path.append(here)


if __name__ == "__main__":
    main()
