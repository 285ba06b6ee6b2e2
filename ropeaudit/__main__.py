"""python -m ropeaudit, and the command `ropeaudit`."""

import atexit
import contextlib
import os
import signal
import sys
from typing import Any

from ropeaudit.runtime import doing

INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process; a Ctrl-C while it is loaded or interrupted ends it alike.

    NumPy's OpenBLAS would start threads when it is loaded, and let them spin; an audit has its own instead.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _leave_this_folder()
    try:
        for before in (signal.SIG_DFL, signal.default_int_handler):
            _hear_ends(_end, before)
        from ropeaudit.main import main as run

        code = run()
        _hear_ends(lambda *_: os._exit(code), _end)  # all is said and written
    except KeyboardInterrupt:
        _hear_ends(signal.SIG_IGN)
        sys.stderr.write("ropeaudit: interrupted\n")
        code = INTERRUPTED
    if code == INTERRUPTED:
        _hear_ends(signal.SIG_IGN)  # one was obeyed, and another would change the exit code
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)  # Python's own end has another code where a signal comes while it shuts down


def _end(number: int, frame: Any) -> None:
    """Interrupt, and remember it: C code that imports NumPy makes an ImportError of a KeyboardInterrupt."""
    doing.ended = True
    raise KeyboardInterrupt


def _hear_ends(handler: Any, before: Any = None) -> None:
    """Handle the signals that end a run so: Ctrl-C, a batch system's, that of a terminal that is closed.

    before: the handler that it takes the place of, any by default: what is ignored, as `nohup` wants it,
    stays so.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and before in (None, signal.getsignal(number)):
            signal.signal(number, handler)


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
