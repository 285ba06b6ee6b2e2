"""What holds for every test."""

import signal

# Started in the background, a shell script's children ignore Ctrl-C, and theirs would too.
signal.signal(signal.SIGINT, signal.default_int_handler)
