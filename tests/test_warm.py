"""A step that repeats finds in the nearest shared memory what fits there."""

from __future__ import annotations

import pytest
from laws import check_run, system_of

from stallscope import compile_graph, simulate
from stallscope.workloads import add_op, add_tensor, new_graph


def run(n: int, warm: int):  # type: ignore[no-untyped-def]
    graph = new_graph("one product")
    x, w = add_tensor(graph, "x", "activation", (1, 1024)), add_tensor(graph, "w", "weight", (n, 1024))
    add_op(graph, "fc", "linear", {"x": x, "weight": w}, {"out": (1, n)})
    return simulate(compile_graph(graph, system_of("h100-sxm"), warm))


@pytest.mark.parametrize("copies", [1, 5])
def test_what_fits_is_read_near_and_all_of_it_counted_there(copies: int) -> None:
    cold, warm = run(1024, 0), run(1024, copies)
    check_run(warm)
    assert warm.time_fs < cold.time_fs
    assert cold.bytes["hbm"]["read"]["weight"] == warm.bytes["l2"]["read"]["weight"] == 1024 * 1024 * 2
    assert any("the step repeats" in note for note in warm.program.info.notes)


def test_what_does_not_fit_is_not_found_again() -> None:
    assert run(16_384, 5).time_fs == run(16_384, 0).time_fs
