"""Statistics against scipy, the referee."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats as referee

from fuselab.statistics import ranks, stats


def times(count: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).lognormal(3.0, 0.2, count)


@pytest.mark.parametrize("count", [1, 2, 5, 40, 101])
def test_median_and_spread(count):
    samples = times(count)
    assert stats.median(samples) == np.median(samples)
    assert stats.spread(samples) == pytest.approx(referee.iqr(samples) / np.median(samples))


@pytest.mark.parametrize("count", [5, 21, 101])
def test_interval_of_an_odd_count_is_the_exact_bootstrap(count):
    """A resample's median is at most the k-th sample if most of n draws fall among the first k."""
    ordered = np.sort(times(count))
    ranks = np.arange(1, count + 1)
    exact = referee.binom.sf(count // 2, count, ranks / count)
    low, high = (np.searchsorted(ordered, end) for end in stats.interval(ordered, resamples=50_000))
    assert abs(low - np.searchsorted(exact, 0.025)) <= 1
    assert abs(high - np.searchsorted(exact, 0.975)) <= 1


@pytest.mark.parametrize("count", [2, 6, 30, 200])
def test_interval_of_an_even_count_agrees_with_scipy(count):
    samples = times(count)
    found = stats.interval(samples, resamples=20_000)
    wanted = referee.bootstrap(
        (samples,), np.median, method="percentile", n_resamples=20_000, batch=1000, rng=1
    ).confidence_interval
    assert found == pytest.approx(tuple(wanted), abs=0.05 * float(np.ptp(samples)) / count**0.5)


def test_interval_covers_the_true_median_about_as_often_as_it_says():
    draws = np.random.default_rng(3).normal(50.0, 5.0, (400, 40))
    hits = sum(low <= 50.0 <= high for low, high in map(stats.interval, draws))
    assert 0.91 <= hits / 400 <= 0.985


def test_interval_is_deterministic_and_narrows():
    few, many = times(10), times(1000)
    assert stats.interval(few) == stats.interval(few[::-1])
    assert stats.interval(few, level=0.5) != stats.interval(few, level=0.99)
    assert stats.summary(many).relative_half_width < stats.summary(few).relative_half_width / 3


def test_summary_holds_together():
    summary = stats.summary([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (summary.count, summary.median, summary.spread) == (5, 3.0, pytest.approx(2 / 3))
    assert summary.low <= summary.median <= summary.high
    assert summary.relative_half_width == pytest.approx((summary.high - summary.low) / 6)


def test_equal_samples_have_no_width():
    summary = stats.summary([2.5] * 9)
    assert (summary.low, summary.high, summary.spread) == (2.5, 2.5, 0.0)


@pytest.mark.parametrize("samples", [[], [1.0, float("nan")], [float("inf")], [[1.0, 2.0]]])
@pytest.mark.parametrize("function", [stats.median, stats.interval, stats.spread, stats.summary])
def test_what_is_no_sample_is_refused(function, samples):
    with pytest.raises(ValueError, match="samples: got"):
        function(samples)


def test_level_must_be_a_probability():
    with pytest.raises(ValueError, match="level: got 95"):
        stats.interval([1.0, 2.0], level=95)


@pytest.mark.parametrize(("first", "second"), [(5, 8), (30, 31), (100, 60)])
def test_interval_of_a_ratio_agrees_with_scipy(first, second):
    a, b = times(first), 1.1 * times(second, seed=8)
    found = stats.ratio_interval(a, b, resamples=20_000)
    wanted = referee.bootstrap(
        (a, b),
        lambda x, y, axis: np.median(y, axis) / np.median(x, axis),
        method="percentile",
        n_resamples=20_000,
        batch=1000,
        rng=1,
    ).confidence_interval
    assert found == pytest.approx(tuple(wanted), rel=0.02)


def test_interval_of_a_ratio_turns_with_its_sides_and_wants_positive_samples():
    a, b = times(40), times(50, seed=8)
    low, high = stats.ratio_interval(a, b)
    assert stats.ratio_interval(b, a) == pytest.approx((1 / high, 1 / low), rel=0.01)
    with pytest.raises(ValueError, match=r"samples: got 0\.0, expected positive"):
        stats.ratio_interval([1.0, 0.0], [1.0])


@pytest.mark.parametrize("digits", [0, 1, 9])
@pytest.mark.parametrize(
    ("first", "second"), [(1, 1), (1, 30), (2, 3), (5, 5), (8, 60), (9, 9), (15, 15), (100, 97)]
)
def test_the_rank_test_agrees_with_scipy(first, second, digits):
    """Digits: 9 leaves no ties, 0 leaves little else."""
    rng = np.random.default_rng(first + second)
    for shift in (0.0, 0.5, 3.0):
        a, b = rng.normal(10, 1, first).round(digits), rng.normal(10 + shift, 1, second)
        b = b.round(digits)
        untied = len(np.unique([*a, *b])) == first + second
        exact = untied and min(first, second) <= ranks.EXACT_COUNT
        wanted = referee.mannwhitneyu(a, b, method="exact" if exact else "asymptotic").pvalue
        if not np.isnan(wanted):
            assert ranks.mann_whitney(a, b) == pytest.approx(wanted)


def test_the_rank_test_of_few_or_like_samples_is_sane():
    assert ranks.mann_whitney([1.0], [2.0]) == 1.0
    assert ranks.mann_whitney([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == pytest.approx(2 / 252)
    assert ranks.mann_whitney([2.0] * 40, [2.0] * 30) == 1.0
    assert ranks.mann_whitney([1.0] * 9, [2.0] * 9) < 1e-3
    with pytest.raises(ValueError, match="samples: got 0 and 1 values"):
        ranks.mann_whitney([], [1.0])
    with pytest.raises(ValueError, match="not finite"):
        ranks.mann_whitney([1.0, float("nan")], [1.0])


@pytest.mark.parametrize("count", [1, 2, 40])
def test_adjusted_p_values_agree_with_scipy(count):
    chances = np.random.default_rng(count).random(count) ** 3
    assert ranks.adjusted(chances) == pytest.approx(referee.false_discovery_control(chances))


def test_nothing_to_adjust_is_nothing():
    assert ranks.adjusted([]) == []
