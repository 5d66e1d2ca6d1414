"""What a result says of the server: nothing of where it lies on its machine."""

from __future__ import annotations

from bench.record import unplaced


def test_of_a_path_only_the_last_part_is_kept() -> None:
    said = {"data": [{"root": "/srv/models/small", "id": "small", "size": 3}], "status": "ok"}

    assert {"data": [{"root": "small", "id": "small", "size": 3}], "status": "ok"} == unplaced(said)
