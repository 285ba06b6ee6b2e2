"""What the tests of the door run in the child: an opener that imports a file, and calls of its `f`."""

import importlib.util
import os


def open_file(arguments):
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location("opened", arguments["file"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module, {"pid": os.getpid()}


def call(session, arguments, arrays):
    """Return what `f` returns for an array x, and how often this session called it."""
    session.state["calls"] = session.state.get("calls", 0) + 1
    session.say("call of f")
    return {"calls": session.state["calls"], "pid": os.getpid()}, {"y": session.opened.f(arrays["x"])}
