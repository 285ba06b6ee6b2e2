"""python -m ropeaudit."""

import sys

from ropeaudit.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
