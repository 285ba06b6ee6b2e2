"""What `rooms.py` counts, on a file of which every line is known."""

import rooms

TEXT = '''"""Two
lines."""

import os
from a import (
    b,
)


@decorated
class C(
    Base,
):
    """One."""

    # a comment
    x = 1  # another


def f(a):
    return """
    text
    """
'''


def test_lines_of_code_are_neither_blank_nor_words_nor_imports_nor_signatures() -> None:
    size = rooms.Size()
    size.add(TEXT)
    assert (size.lines, size.files, size.functions, size.classes) == (23, 1, 1, 1)
    assert size.code == 4  # x, and the return


def test_every_file_has_a_room_and_all_rooms_have_files() -> None:
    counted = rooms.sizes()
    assert all(room.files for room in counted.values())
    assert sum(room.files for room in counted.values()) == len(list(rooms.PACKAGE.rglob("*.py")))
    assert rooms.room_of("subjects/third_party/adapter.py") == "third party"
    assert rooms.room_of("subjects/calling/code.py") == "subjects, calling"
