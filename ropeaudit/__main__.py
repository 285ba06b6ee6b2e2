"""Entry point of `python -m ropeaudit` and of the command `ropeaudit`."""

import atexit
import contextlib
import os
import signal
import sys
from typing import Any

from ropeaudit.runtime import doing

INTERRUPTED = 130


def main() -> None:
    """Run the command line and end the process; a Ctrl-C during its imports ends it too.

    OpenBLAS gets one thread: an audit has its own threads, beside which idle ones of BLAS would spin.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    _remove_folder_from_path()
    try:
        for before in (signal.SIG_DFL, signal.default_int_handler):
            _handle_signals(_interrupt, before)
        from ropeaudit.main import main as run

        code = run()
        _handle_signals(lambda *_: os._exit(code), _interrupt)  # everything is written
    except KeyboardInterrupt:
        _handle_signals(signal.SIG_IGN)
        sys.stderr.write("ropeaudit: interrupted\n")
        code = INTERRUPTED
    if code == INTERRUPTED:
        _handle_signals(signal.SIG_IGN)  # a second one would change the exit code
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)  # Python's own exit has another code if a signal arrives meanwhile


def _interrupt(number: int, frame: Any) -> None:
    """Raise KeyboardInterrupt, and note it: NumPy's import turns that into an ImportError."""
    doing.ended = True
    raise KeyboardInterrupt


def _handle_signals(handler: Any, before: Any = None) -> None:
    """Set the handler of Ctrl-C, SIGTERM and SIGHUP.

    before: the handler to replace, any by default; signals that `nohup` ignores stay ignored.
    """
    for name in ("SIGINT", "SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and before in (None, signal.getsignal(number)):
            signal.signal(number, handler)


def _remove_folder_from_path() -> None:
    """Remove the current folder from sys.path, where `python -m` puts it.

    It is moved to the end if this package is in it, not installed.
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
