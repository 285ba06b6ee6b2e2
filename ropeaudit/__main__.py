"""python -m ropeaudit, and the command `ropeaudit`."""

import os
import sys

INTERRUPTED = 130


def main() -> int:
    """Run the command line; a Ctrl-C while it is being loaded ends it as any later one does.

    NumPy's OpenBLAS would start threads when it is loaded, and let them spin; an audit has its own instead.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from ropeaudit.runtime import streams

        streams.reserve()
        from ropeaudit.main import main as run
    except KeyboardInterrupt:
        sys.stderr.write("ropeaudit: interrupted\n")
        return INTERRUPTED
    return streams.ended(run())


if __name__ == "__main__":
    sys.exit(main())
