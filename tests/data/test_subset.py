"""Sizes, nesting and disjointness of subsets, as properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.data.subset import Window, parse_size, van_der_corput, window
from harness.errors import ConfigError


@pytest.mark.parametrize(
    "text, total, size",
    [("9M", None, 9_000_000), ("300k", None, 300_000), ("1234", None, 1234), ("10%", 1234, 123), ("1.5k", None, 1500)],
)
def test_sizes_read_like_the_papers(text: str, total: int | None, size: int) -> None:
    assert parse_size(text, total) == size


@pytest.mark.parametrize("text", ["", "many", "-5", "0", "10 km", "1.2345k5", "1e3", "0.0001%", "1.5"])
def test_nonsense_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(ConfigError, match="size"):
        parse_size(text, 1000)


def test_more_than_there_are_says_how_many_there_are() -> None:
    with pytest.raises(ConfigError, match="1,000 images"):
        parse_size("2k", 1000)
    with pytest.raises(ConfigError, match="share of what"):
        parse_size("10%", None)


def positions(w: Window) -> set[int]:
    return set(w.split_positions(np.arange(w.size)).tolist())


@given(st.integers(1, 500), st.integers(0, 40), st.data())
def test_a_window_holds_size_distinct_positions_of_the_split(total: int, draw: int, data: st.DataObject) -> None:
    size = data.draw(st.integers(1, total))
    found = positions(window(total, size, draw))
    assert len(found) == size
    assert found <= set(range(total))


@given(st.integers(2, 500), st.integers(0, 40), st.data())
def test_sizes_are_nested_within_a_draw(total: int, draw: int, data: st.DataObject) -> None:
    large = data.draw(st.integers(2, total))
    small = data.draw(st.integers(1, large))
    assert positions(window(total, small, draw)) <= positions(window(total, large, draw))


@given(st.integers(1, 6), st.integers(0, 20))
def test_draws_are_disjoint_while_they_fit(power: int, rest: int) -> None:
    """2^power draws of total / 2^power, rounded down, never meet."""
    draws = 2**power
    total = draws * 7 + rest
    found = [positions(window(total, total // draws, draw)) for draw in range(draws)]
    assert sum(map(len, found)) == len(set.union(*found))


def test_draw_zero_is_the_prefix() -> None:
    assert window(100, 30, 0).split_positions(np.arange(30)).tolist() == list(range(30))
    assert window(100, 30, 1).start == 50


def test_van_der_corput_by_hand() -> None:
    assert [van_der_corput(k) for k in range(8)] == [0, 1 / 2, 1 / 4, 3 / 4, 1 / 8, 5 / 8, 3 / 8, 7 / 8]


def test_sizes_and_draws_that_cannot_be() -> None:
    for size, draw in ((0, 0), (11, 0), (5, -1)):
        with pytest.raises(ConfigError):
            window(10, size, draw)
