"""Sketches: within their error, of bounded size, the same bits for the same steps, at any number of merges."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windrow.core import aggregations as wr
from windrow.operators.aggregations import Arguments, Parts, concat_parts, kll, make_kernel
from windrow.operators.aggregations.base import Kernel
from windrow.operators.steps.groups import Groups


def state_of(kernel: Kernel, values: pa.Array, steps: int) -> Parts:
    """The state of one group after `values` came in `steps` commits."""
    state: Parts = {}
    size = -(-len(values) // steps)
    for start in range(0, len(values), size):
        part = values.slice(start, size)
        rows = Arguments(pa.array(np.zeros(len(part), dtype=np.int64)), None, (part,))
        step = kernel.merge(kernel.lift(rows), Groups([], len(part)), [])
        pieces = [(state, 1), (step, 1)] if state else [(step, 1)]
        state = kernel.merge(concat_parts(pieces), Groups([], len(pieces)), [])
    return state


# -- approx_count_distinct --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize(("lg_k", "error"), [(4, 0.6), (8, 0.15), (12, 0.04), (21, 0.002)])
def test_distinct_counts_stay_within_three_standard_errors(lg_k: int, error: float, steps: int) -> None:
    kernel = make_kernel(wr.approx_count_distinct("x", lg_k=lg_k), [pa.int64()])
    values = np.random.default_rng(1).integers(0, 2**62, 20_000)
    state = state_of(kernel, pa.array(np.concatenate([values, values])), steps)
    assert kernel.finish(state, 1)[0].as_py() == pytest.approx(len(np.unique(values)), rel=error)


def test_a_sketch_of_distinct_counts_has_bounded_size() -> None:
    kernel = make_kernel(wr.approx_count_distinct("x", lg_k=10), [pa.int64()])
    state = state_of(kernel, pa.array(np.arange(100_000)), 3)
    assert set(state) == {"s"}
    assert len(state["s"][0].as_py()) < 1024 + 100


def test_empty_text_and_texts_with_zero_bytes_are_values() -> None:
    for column in (pa.array(["", "\x00", "a\x00b", "a"]), pa.array([b"", b"\x00", b"a\x00b", b"a"])):
        kernel = make_kernel(wr.approx_count_distinct("x"), [column.type])
        assert kernel.finish(state_of(kernel, column, 2), 1).to_pylist() == [4]


# -- approx_percentile ------------------------------------------------------------------------------------------------


def shapes() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {
        "uniform": rng.random(50_000),
        "sorted": np.arange(50_000.0),
        "reversed": np.arange(50_000.0)[::-1],
        "zigzag": np.where(np.arange(50_000) % 2 == 0, 1.0, -1.0) * np.arange(50_000.0),
        "few values": rng.integers(0, 5, 50_000).astype(np.float64),
        "heavy tail": rng.pareto(0.5, 50_000),
    }


@pytest.mark.parametrize("steps", [1, 50])
@pytest.mark.parametrize("shape", list(shapes()))
def test_percentiles_stay_within_the_rank_error_of_the_sketch(shape: str, steps: int) -> None:
    values = shapes()[shape]
    kernel = make_kernel(wr.approx_percentile("x", 0.5), [pa.float64()])
    state = state_of(kernel, pa.array(values), steps)
    for fraction in (0.01, 0.25, 0.5, 0.75, 0.95, 0.99):
        finisher = make_kernel(wr.approx_percentile("x", fraction), [pa.float64()])
        estimate = finisher.finish(state, 1)[0].as_py()
        below, at_most = np.mean(values < estimate), np.mean(values <= estimate)
        assert below - 0.0133 <= fraction <= at_most + 0.0133
    for fraction, extreme in ((0.0, values.min()), (1.0, values.max())):
        finisher = make_kernel(wr.approx_percentile("x", fraction), [pa.float64()])
        assert finisher.finish(state, 1)[0].as_py() == extreme


def test_the_error_of_many_sketches_has_no_bias() -> None:
    rng = np.random.default_rng(3)
    groups = 300
    codes = np.repeat(np.arange(groups), 2000)
    values = rng.random(len(codes))
    items = kll.compress(kll.Items(codes, values, np.zeros(len(codes), dtype=np.uint8)), groups, 50)
    quantiles, _ = kll.quantile(items, groups, 0.5)
    ranks = np.array([np.mean(values[codes == g] <= quantiles[g]) for g in range(groups)])
    assert abs(ranks.mean() - 0.5) < 3 * ranks.std() / np.sqrt(groups)
    assert ranks.std() < 0.03


def test_the_same_steps_leave_the_same_bits() -> None:
    kernel = make_kernel(wr.approx_percentile("x", 0.5), [pa.float64()])
    values = pa.array(np.random.default_rng(4).random(30_000))
    first, second = (state_of(kernel, values, 10) for _ in range(2))
    assert first["v"].equals(second["v"]) and first["l"].equals(second["l"])


def test_a_sketch_of_percentiles_has_bounded_size() -> None:
    kernel = make_kernel(wr.approx_percentile("x", 0.5, k=200), [pa.float64()])
    state = state_of(kernel, pa.array(np.arange(200_000.0)), 20)
    assert len(state["v"][0]) < 3 * 200 + 8 * 20


def test_nan_is_the_largest_value_of_a_sketch_too() -> None:
    column = pa.array([float("nan")] * 3000 + [1.0] * 7000)
    for fraction, is_nan in ((0.5, False), (0.8, True), (1.0, True), (0.0, False)):
        kernel = make_kernel(wr.approx_percentile("x", fraction), [pa.float64()])
        estimate = kernel.finish(state_of(kernel, column, 4), 1)[0].as_py()
        assert np.isnan(estimate) == is_nan


@settings(max_examples=50)
@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.integers(1, 12))
def test_weights_always_add_up_to_the_values_seen(sizes: list[int], k: int) -> None:
    codes = np.repeat(np.arange(len(sizes)), sizes)
    values = np.random.default_rng(sum(sizes)).integers(0, 9, len(codes)).astype(np.float64)
    np.random.default_rng(k).shuffle(codes)
    items = kll.Items(codes, values, np.zeros(len(codes), dtype=np.uint8))
    packed = kll.compress(items, len(sizes), k)
    weights = np.bincount(packed.codes, weights=2.0**packed.levels, minlength=len(sizes))
    assert weights.tolist() == sizes
    assert np.all(np.diff(packed.codes) >= 0)
    again = kll.compress(packed, len(sizes), k)
    assert again.values.tolist() == packed.values.tolist()


def test_groups_do_not_influence_each_other() -> None:
    rng = np.random.default_rng(5)
    codes = rng.integers(0, 3, 9000)
    values = rng.random(9000)
    levels = np.zeros(9000, dtype=np.uint8)
    together = kll.compress(kll.Items(codes, values, levels), 3, 20)
    for g in range(3):
        own = codes == g
        alone = kll.compress(kll.Items(codes[own] * 0, values[own], levels[own]), 1, 20)
        assert alone.values.tolist() == together.values[together.codes == g].tolist()
        assert alone.levels.tolist() == together.levels[together.codes == g].tolist()
