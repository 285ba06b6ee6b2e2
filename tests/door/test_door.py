"""The door: code that is not ours ends, hangs, floods and breaks its own process, and nothing else."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ropeaudit.door import process
from ropeaudit.door.process import Door, Ended, ForeignError, Late, Raised, Session
from ropeaudit.errors import UsageError
from ropeaudit.runtime import doing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tried on Linux alone")
X = np.arange(6, dtype=np.float32).reshape(2, 3)
F = "\ndef f(x):\n    return x + 1\n"
LIMIT = 1.0  # seconds that what never returns is waited for

# what code does -> what the door says of it; nothing where it is no fault
HOSTILE = {
    "raise ValueError('no')": (Raised, "no"),
    "raise BaseException('worse')": (Raised, "worse"),
    "raise KeyboardInterrupt": (Raised, ""),
    "import sys; sys.exit(0)": (Raised, "0"),
    "class E(Exception):\n    def __str__(self): raise RuntimeError\nraise E": (Raised, ""),
    "import os; os._exit(7)": (Ended, "exit code 7"),
    "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)": (Ended, "SIGSEGV"),
    "import os; os.abort()": (Ended, "SIGABRT"),
    "import os; os.execv('/bin/true', ['true'])": (Ended, "exit code 0"),
    "import ctypes; ctypes.CDLL(None).exit(5)": (Ended, "exit code 5"),
    "import threading, os, time\nthreading.Thread(target=os._exit, args=(9,)).start()\ntime.sleep(9)": (
        Ended,
        "exit code 9",
    ),
    "while True: pass": (Late, ""),
    "import ctypes; ctypes.PyDLL(None).sleep(99)": (Late, ""),  # with the GIL held
    "import signal, time\nfor n in (2, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(99)": (Late, ""),
    "import os; os.closerange(3, 4096)": (Ended, ""),
    "import os\nfor n in range(3, 4096):\n    try: os.write(n, b'x' * 99)\n    except OSError: pass": (
        Ended,
        "",
    ),
    "bytearray(2**46)": (Raised, ""),
    "import os; os.chdir('/'); os.umask(0); os.environ.clear()": None,
    "import atexit; atexit.register(print, 'late')": None,
    "import sys; sys.stdin.read()": None,
    "import numpy; numpy.add = numpy.float32 = None": None,
    "import builtins; builtins.print = builtins.open = None": None,
    "import json, os; json.dumps = json.loads = os.write = None": None,
    "import sys; sys.settrace(lambda *_: None); sys.setprofile(lambda *_: None)": None,
    "print('x' * 10**7)": None,
    "import threading, time; threading.Thread(target=time.sleep, args=(99,)).start()": None,
    "import os\nif os.fork() == 0: import time; time.sleep(99)": None,
    "import os; os.unlink(__file__)": None,
    "import argparse; argparse.ArgumentParser().parse_args()": None,
}


@pytest.fixture(
    params=["fork", pytest.param("spawn", marks=pytest.mark.slow)]
)  # each road takes half a minute
def road(request, monkeypatch) -> str:
    monkeypatch.setenv("ROPEAUDIT_DOOR", request.param)
    return request.param


@pytest.fixture(autouse=True)
def functions(monkeypatch) -> None:
    """Let children find the functions of these tests."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def opened(folder: Path, text: str, limit: float = 60.0) -> Door:
    (folder / "k.py").write_text(text)
    return process.door("door.functions:open_file", {"file": str(folder / "k.py")}, otherwise=limit)


def called(session: Session, x: np.ndarray = X) -> tuple[dict, np.ndarray]:
    header, arrays = session.ask("door.functions:call", {}, {"x": x})
    return header, arrays["y"]


def children() -> set[int]:
    """Return the processes that we started as leaders of a session, and all of those sessions."""
    rows = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            words = path.read_text().rpartition(")")[2].split()  # state, parent, group, session
            rows.append((int(path.parent.name), int(words[1]), int(words[3])))
    own = {pid for pid, parent, session in rows if parent == os.getpid() and session == pid}
    return own | {pid for pid, _, session in rows if session in own}


@pytest.mark.parametrize("where", ["import", "call"])
@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_whatever_code_does_is_a_finding_of_it(where, number, road, tmp_path) -> None:
    text, expected = list(HOSTILE.items())[number]
    if where == "call":
        indented = "\n".join(f"    {line}" for line in text.splitlines())
        text = f"def f(x):\n{indented}\n    return x + 1\n"
    else:
        text += F
    seen = None
    try:
        door = opened(tmp_path, text, LIMIT if expected and expected[0] is Late else 60.0)
        assert np.array_equal(called(door.session())[1], X + 1)
    except ForeignError as error:
        seen = type(error), str(error)
    if expected is None:
        assert seen is None
    else:
        assert seen is not None
        assert seen[0] is expected[0], seen
        assert expected[1] in seen[1]


def test_a_session_has_a_state_and_no_past(road, tmp_path) -> None:
    door = opened(tmp_path, "past = []\ndef f(x):\n    past.append(1)\n    return x * len(past)\n")
    session = door.session()
    for times in (1, 2):
        header, y = called(session)
        assert header["calls"] == times
        assert np.array_equal(y, times * X)
    header, y = called(door.session())
    assert header["calls"] == 1
    forks = road == "fork"
    assert np.array_equal(y, X if forks else 3 * X)
    assert (header["pid"] != door.facts["pid"]) is forks
    assert bool(door.why_no_forks) is not forks


def test_two_sessions_are_open_at_once(road, tmp_path) -> None:
    door = opened(tmp_path, F)
    first, second = door.session(), door.session()
    for session in (first, second, first):
        assert np.array_equal(called(session)[1], X + 1)
        assert not doing.waiting
    assert called(first)[0]["calls"] == 3


UNSAFE = {
    "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()": "threads: 1",
    "import sys, types\nsys.modules['jax'] = types.ModuleType('jax')": "jax is loaded",
}


@pytest.mark.parametrize("text", UNSAFE)
def test_it_does_not_fork_where_that_is_not_safe(text, tmp_path) -> None:
    door = opened(tmp_path, text + F)
    assert UNSAFE[text] in door.why_no_forks
    assert np.array_equal(called(door.session())[1], X + 1)


def test_what_torch_computes_at_import_does_not_hang_a_fork(tmp_path) -> None:
    text = "import torch\na = torch.ones(512, 512) @ torch.ones(512, 512)\n"
    door = opened(
        tmp_path, text + "def f(x):\n    return (torch.from_numpy(x.copy()) @ torch.ones(3, 3)).numpy()\n"
    )
    assert np.array_equal(called(door.session())[1], X @ np.ones((3, 3), np.float32))


def test_arrays_come_back_as_they_were(road, tmp_path) -> None:
    session = opened(tmp_path, "def f(x):\n    return x\n").session()
    large = np.random.default_rng(0).standard_normal(2**22)
    for x in (X, X.astype(complex), X[:, :0], np.float64(2.5).reshape(()), X > 2, X.T, large):
        y = called(session, x)[1]
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        assert np.array_equal(x, y)


def test_objects_are_not_sent(road, tmp_path) -> None:
    door = opened(tmp_path, "import numpy\ndef f(x):\n    return numpy.array([object()])\n")
    with pytest.raises(Raised, match="arrays of object are not sent"):
        called(door.session())


def test_an_exception_says_where_it_was_raised(road, tmp_path) -> None:
    door = opened(tmp_path, "def f(x):\n    y = 1\n    return y / 0\n")
    with pytest.raises(Raised, match="division by zero") as seen:
        called(door.session())
    assert (seen.value.type, seen.value.file, seen.value.line) == (
        "ZeroDivisionError",
        str(tmp_path / "k.py"),
        3,
    )


def test_errors_of_ours_come_home_as_they_are(road, tmp_path) -> None:
    text = (
        "from ropeaudit.errors import UsageError\ndef f(x):\n    raise UsageError('--heads 0 is too few')\n"
    )
    with pytest.raises(UsageError) as seen:
        called(opened(tmp_path, text).session())
    assert seen.value.typed == "--heads 0 is too few"


def test_what_is_printed_is_kept_once(road, tmp_path, capfd) -> None:
    process.take_printed()  # of other tests
    door = opened(
        tmp_path, "print('at import', flush=True)\ndef f(x):\n    print('a call', flush=True)\n    return x\n"
    )
    session = door.session()
    for _ in range(3):
        called(session)
    assert process.take_printed() == ["at import", "a call (3 times)"]
    assert capfd.readouterr() == ("", "")


def test_a_ctrl_c_ends_a_call(road, tmp_path) -> None:
    door = opened(tmp_path, "import time\ndef f(x):\n    time.sleep(99)\n")
    session = door.session()
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        called(session)
    with pytest.raises(Ended, match="SIGKILL"):
        called(session)


def test_nothing_is_left(road, tmp_path) -> None:
    opened(tmp_path, F).close()  # what forks doors stays
    others = children()
    door = opened(tmp_path, F)
    sessions = [door.session() for _ in range(3)]
    for session in sessions:
        called(session)
    assert children() - others
    for session in sessions:
        session.close()
    door.close()
    deadline = time.monotonic() + 10
    while children() - others and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not children() - others


def test_forks_that_have_ended_do_not_stay_in_the_table_of_processes(tmp_path) -> None:
    def ended(parent: int) -> int:
        states = [state(int(one.name)) for one in Path("/proc").iterdir() if one.name.isdigit()]
        return states.count(["Z", str(parent)])

    door = opened(tmp_path, F)
    for _ in range(4):
        session = door.session()
        called(session)
        session.close()
    deadline = time.monotonic() + 10
    while (left := ended(door.facts["pid"])) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left
    door.close()


def test_code_that_ignores_the_end_of_its_children_ends_all_the_same(road, tmp_path) -> None:
    ignores = "import os, signal\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    door = opened(tmp_path, f"{ignores}def f(x):\n    os._exit(7)\n")
    with pytest.raises(Ended, match="ended its process"):
        called(door.session())
    door.close()


def test_the_child_ends_with_its_parent(road, tmp_path) -> None:
    sleeps = "subprocess.Popen(['sleep', '99'], start_new_session=True).pid" if road == "fork" else "0"
    started = f"import subprocess\nopen(__file__ + '.pid', 'w').write(str({sleeps}))\n"
    (tmp_path / "k.py").write_text(f"{started}def f(x):\n    return x\n")
    code = (
        "import sys, time\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[1])!r})\n"
        "from ropeaudit.door.process import door\n"
        f"door = door('door.functions:open_file', {{'file': {str(tmp_path / 'k.py')!r}}})\n"
        "session = door.session()\n"
        "print(door.facts['pid'], session.worker.pid, flush=True)\n"
        "time.sleep(99)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        words = [*parent.stdout.readline().split(), (tmp_path / "k.py.pid").read_text()]
        pids = [int(word) for word in words if word != "0"]
        parent.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not any(alive(pid) for pid in pids)


def state(pid: int) -> list[str]:
    """The state of a process and its parent; of none Z and nothing."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]
    except OSError:
        return ["Z", ""]


def alive(pid: int) -> bool:
    return state(pid)[0] != "Z"


def test_code_that_forks_in_a_call_answers_each_call_once(road, tmp_path) -> None:
    session = opened(tmp_path, "import os\ndef f(x):\n    os.fork()\n    return x + 1\n").session()
    for number in range(4):
        assert np.array_equal(called(session, X + number)[1], X + number + 1)


@pytest.mark.parametrize("forged", [{"returned": {}}, {"returned": {}, "to": 10**6}, {"pid": 3}, {"odd": 1}])
def test_an_answer_to_nothing_that_was_asked_is_not_believed(forged, road, tmp_path) -> None:
    text = f"""import os
from ropeaudit.door.messages import encode
def f(x):
    for number in range(200, 260):
        try:
            os.write(number, b"".join(encode({forged!r})))
        except OSError:
            pass
    return x + 1
"""
    with pytest.raises(Ended, match="wrote where ropeaudit reads"):
        called(opened(tmp_path, text).session())
