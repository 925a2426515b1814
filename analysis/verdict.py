"""The verdict, by rules written in the study file before the runs. Nothing here looks at a figure.

Reproduced: the gap ViT - ResNet is below zero at the smallest used size and above zero at the largest, both
intervals clear of zero. Trend only: its slope against log size is clear above zero, without such a change of sign.
Not reproduced: the slope is not clear above zero, and its interval excludes the smallest slope that the study calls
interesting. Anything else is inconclusive, with what would decide it.
"""

import math
from dataclasses import dataclass, fields, replace
from statistics import fmean

from scipy.special import stdtrit

from analysis.crossover import SEVERAL, Comparison, Interval, Rules, around, asked_accuracy, compare, sign_change
from analysis.repeats import missing_runs
from analysis.results import TableError, Tables, pairs_of, scores
from analysis.words import counted, images, signed

ROUNDING = 1e-9
INCONCLUSIVE = "inconclusive"
OUTCOMES = ("reproduced", "trend only", "not reproduced", INCONCLUSIVE)
MOST_SEEDS = 1000  # a size; more are asked of nobody


@dataclass(frozen=True)
class Verdict:
    """One pair's outcome, the sentence for it, what would decide it, and the numbers behind it."""

    outcome: str
    sentence: str
    would_decide: str
    comparison: Comparison
    rules: Rules
    metric: str


def rules_of(study: dict[str, object]) -> Rules:
    """The rules that the study names; defaults for what it leaves out. Raises TableError for a rule there is not."""
    given = study.get("rules") or {}
    assert isinstance(given, dict)  # analysis.results.read_study
    known = [field.name for field in fields(Rules)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise TableError(f"study.json: rules.{unknown[0]} is no rule; there are {', '.join(known)}")
    rules = Rules(**given)
    if not 0 < rules.confidence < 1:
        raise TableError(f"study.json: rules.confidence: {rules.confidence}; between 0 and 1")
    for name in known:
        value = getattr(rules, name)
        if not (math.isfinite(value) and value >= 0):
            raise TableError(f"study.json: rules.{name}: {value} is no finite number from 0 on")
    return rules


def judge_all(tables: Tables) -> list[Verdict]:
    """A verdict for every pair of the study; its sentence says so where runs are missing."""
    study = tables.study
    metric = str(study.get("metric", "best_val_top1"))
    rules, table = rules_of(study), scores(tables, metric)
    return [judge_in(tables, compare(table, *pair, rules), metric) for pair in pairs_of(tables)]


def judge_in(tables: Tables, comparison: Comparison, metric: str) -> Verdict:
    """A comparison judged by the study's rules; the sentence says so where runs are missing."""
    verdict, missing = judge(comparison, rules_of(tables.study), metric), interim(tables)
    return replace(verdict, sentence=f"{missing}: {verdict.sentence}") if missing else verdict


def interim(tables: Tables) -> str:
    """'Interim (12 of 20 runs finished)', '' for a study that is finished: its rules are for all of its runs."""
    finished = len(tables.finished)
    expected = int(tables.study.get("expected_runs") or finished + missing_runs(tables.runs))
    return f"Interim ({finished:,} of {counted(expected, 'run')} finished)" if finished < expected else ""


def judge(comparison: Comparison, rules: Rules, metric: str) -> Verdict:
    """Apply the rules to one comparison."""
    outcome = decide(comparison, rules)
    return Verdict(
        outcome=outcome,
        sentence=sentence(outcome, comparison),
        would_decide=what_would_decide(comparison, rules) if outcome == INCONCLUSIVE else "",
        comparison=comparison,
        rules=rules,
        metric=metric,
    )


def decide(comparison: Comparison, rules: Rules) -> str:
    """One of OUTCOMES."""
    used, slope = comparison.used, comparison.slope
    if len(used) < 2 or not slope.known:
        return INCONCLUSIVE
    smallest, largest = used[0].gap, used[-1].gap
    if smallest.high < 0 < largest.low:
        return "reproduced"
    if slope.low > 0:
        return "trend only"
    if slope.high < rules.smallest_interesting_slope_points_per_decade:
        return "not reproduced"
    return INCONCLUSIVE


def sentence(outcome: str, comparison: Comparison) -> str:
    """The outcome and the numbers that decided it, in one sentence."""
    first, second, used = comparison.first, comparison.second, comparison.used
    if not comparison.gaps:
        alike = (
            "one size, one seed and one length of training" if comparison.unequal_lengths else "one size and one seed"
        )
        return f"Inconclusive: {first} and {second} have no finished runs of {alike}."
    if not used:
        return f"Inconclusive: no size at which both {first} and {second} are clear of chance."
    small, large = used[0], used[-1]
    if len(used) == 1:
        return f"Inconclusive: {first} - {second} is {points(small.gap)} at {images(small.size)}, the only size used."
    gaps = (
        f"{first} - {second} is {points(small.gap)} at {images(small.size)} and {points(large.gap)} at "
        f"{large.size:,}, slope {points(comparison.slope)} a decade"
    )
    return f"{outcome.capitalize()}: {gaps}; {crossing(comparison)}."


def crossing(comparison: Comparison) -> str:
    """Where the crossover is, as the end of a sentence."""
    where, used = comparison.crossover, comparison.used
    if where.where == SEVERAL:
        within = f"; all lie within {bounds(comparison)}" if where.size else ""
        return f"{where.reason}, so no single crossover is named{within}"
    if where.size is not None:
        value = rough(where.size.value, where.size.low, where.size.high)
        return f"crossover at {images(where.size.value, value)} ({bounds(comparison)})"
    if where.where == "not determined":
        return "no crossover can be named"
    if where.reaches is None:
        return f"the crossover lies {where.where}, outside what was measured"
    end, side = (used[-1].size, "or more") if where.where.startswith("above") else (used[0].size, "or less")
    reach = images(where.reaches, rough(where.reaches, end))
    return f"the estimate of the crossover lies {where.where}, its interval is {reach} {side}"


def bounds(comparison: Comparison) -> str:
    """'9,000 to 14,000, between the measured 5,000 and 25,000'; a bound at the end of the sizes is open."""
    size, used, change = comparison.crossover.size, comparison.used, sign_change(comparison)
    assert size is not None
    every = [value for value in (size.low, size.value, size.high) if math.isfinite(value)]
    low = rough(size.low, *every) + " or less" * (size.low <= used[0].size * (1 + ROUNDING))
    high = rough(size.high, *every) + " or more" * (size.high >= used[-1].size * (1 - ROUNDING))
    measured = f", between the measured {change.below:,} and {change.above:,}" if change else ""
    return f"{low} to {high}{measured}"


def what_would_decide(comparison: Comparison, rules: Rules) -> str:
    """Seeds, sizes or steps that would settle an inconclusive verdict."""
    used = comparison.used
    if len(used) < 2:
        if len(comparison.gaps) < 2:  # also of a study under way
            return "more sizes: a slope needs at least two at which both models have paired seeds."
        return clear_of_chance(comparison.chance, rules)
    if not comparison.varies:
        return "seeds that differ: the gap is the same in every pair of a size (copies of one run, or a ceiling)."
    if not comparison.slope.known:
        return (
            f"more seeds: {counted(comparison.degrees_of_freedom, 'degree')} of freedom, "
            f"{rules.min_degrees_of_freedom} are needed for an interval."
        )
    fewest, most = min(gap.pairs for gap in used), max(gap.pairs for gap in used)
    tried = range(fewest + 1, MOST_SEEDS + 1)
    seeds = next(
        (count for count in tried if decide(with_seeds(comparison, rules, count), rules) != INCONCLUSIVE), None
    )
    said = f"more than {MOST_SEEDS:,}" if seeds is None else f"about {seeds}"
    now = f"{fewest} to {most}" if fewest < most else str(most)
    provided = "if the gaps and their scatter stay what they are"
    return f"{said} seeds a size (now {now}), or sizes over a wider range, {provided}."


def clear_of_chance(chance: float, rules: Rules) -> str:
    """What would make two sizes clear of chance; of a rule that no accuracy can meet, that it is one."""
    needed = "at least two sizes must be clear of chance"
    if rules.min_times_chance * chance < 1 - ROUNDING:
        return f"longer training or fewer classes: {needed}."
    return (
        f"a smaller rules.min_times_chance, set before the runs, or longer training: {needed}, and the rule asks for "
        f"100 % or more ({capped(chance, rules)})."
    )


def capped(chance: float, rules: Rules) -> str:
    """What analysis.crossover.asked_accuracy asks where that is less than the rule says; '' where it is as the rule."""
    times, asked = rules.min_times_chance, asked_accuracy(chance, rules.min_times_chance)
    if asked >= times * chance - ROUNDING:
        return ""
    return (
        f"{times:g} x chance is {100 * times * chance:.3g} % with {1 / chance:.3g} classes; in its place half-way from "
        f"chance to 100 % is asked, {100 * asked:.3g} %"
    )


def with_seeds(comparison: Comparison, rules: Rules, seeds: int) -> Comparison:
    """The comparison as it would be with so many paired seeds at every used size, the same gaps, slope and scatter."""
    used, freedom = comparison.used, len(comparison.used) * (seeds - 1)
    if freedom < rules.min_degrees_of_freedom:
        return replace(comparison, slope=around(comparison.slope.value, math.nan))
    level = 0.5 + rules.confidence / 2
    first, now = used[0], float(stdtrit(comparison.degrees_of_freedom, level))
    deviation = (first.gap.high - first.gap.value) / now * math.sqrt(first.pairs)  # of one pair, pooled over sizes
    half_width = float(stdtrit(freedom, level)) * deviation / math.sqrt(seeds)
    logs = [math.log10(gap.size) for gap in used]
    spread = math.sqrt(sum((place - fmean(logs)) ** 2 for place in logs))
    gaps = [replace(gap, gap=around(gap.gap.value, half_width), pairs=seeds) for gap in used]
    slope = around(comparison.slope.value, half_width / spread)
    return replace(comparison, gaps=gaps, slope=slope, degrees_of_freedom=freedom)


def points(value: Interval) -> str:
    """'+1.2 points (0.3 to 2.1)'."""
    if not value.known:
        return f"{signed(value.value, 1)} points (no interval)"
    return f"{signed(value.value, 1)} points ({signed(value.low, 1)} to {signed(value.high, 1)})"


def rough(size: float, *beside: float) -> str:
    """Two significant digits, 12,000, or as many as tell it from the sizes `beside` it; whole images at most."""
    digits = math.floor(math.log10(size)) - 1
    others = [other for other in beside if other != size]
    while digits > 0 and any(round(other, -digits) == round(size, -digits) for other in others):
        digits -= 1
    return f"{round(size, -max(0, digits)):,.0f}"
