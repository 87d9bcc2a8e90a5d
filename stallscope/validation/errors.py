"""How far predictions are from measurements: by chip, op, dtype and size."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from ..arch import Chip
from .cases import Ask, Case
from .parallel import answers
from .predict import Prediction, Predictor
from .tables import Table

ALL = "all"


@dataclass(frozen=True)
class Compared:
    """A case and its prediction."""

    case: Case
    said: Prediction

    @property
    def error(self) -> float:
        """Predicted / measured - 1."""
        return self.said.ms / self.case.measured_ms - 1


@dataclass(frozen=True)
class Errors:
    """Of the rows of one bucket: the median and the 90th percentile of absolute errors, and the median error."""

    table: str
    chip: str
    op: str
    dtype: str
    bucket: str
    rows: int
    median_ape: float
    p90_ape: float
    bias: float


def compare(
    tables: Sequence[Table], chips: Mapping[str, Chip], sample: int | None, what: str = "rows predicted"
) -> list[Compared]:
    """Every case, or at most `sample` of each table, the same ones each time; what cannot be predicted is counted as
    left out. Equal questions are answered once. `what` stands on the terminal meanwhile."""
    rows = [(table, case) for table in tables for case in _some(table.cases, sample)]
    asks = list(dict.fromkeys((case.chip, case.ask) for _, case in rows))
    predictors = {name: Predictor(chip) for name, chip in chips.items()}
    said = dict(zip(asks, answers(partial(_answer, predictors), asks, what), strict=True))
    out: list[Compared] = []
    for table, case in rows:
        answer = said[case.chip, case.ask]
        if isinstance(answer, str):
            table.left_out[answer] += 1
        else:
            out.append(Compared(case, answer))
    return out


def _answer(predictors: Mapping[str, Predictor], question: tuple[str, Ask]) -> Prediction | str:
    chip, ask = question
    return predictors[chip](ask)


def _some(cases: list[Case], sample: int | None) -> list[Case]:
    if sample is None or sample >= len(cases):
        return cases
    return [cases[i] for i in sorted(random.Random(1).sample(range(len(cases)), sample))]


def errors_of(compared: Iterable[Compared]) -> list[Errors]:
    """By table, chip, op and dtype: the bucket of all rows, then each size in the order in which it first comes."""
    groups: dict[tuple[str, str, str, str], dict[str, list[float]]] = {}
    for c in compared:
        group = groups.setdefault((c.case.table, c.case.chip, c.case.op, c.case.dtype), {ALL: []})
        group[ALL].append(c.error)
        if c.case.bucket != ALL:
            group.setdefault(c.case.bucket, []).append(c.error)
    return [
        Errors(*key, bucket, len(errors), *numbers_of(errors))
        for key, buckets in groups.items()
        for bucket, errors in buckets.items()
    ]


def numbers_of(errors: list[float]) -> tuple[float, float, float]:
    """The median and the 90th percentile of absolute errors, and the median error."""
    values = np.array(errors)
    median, p90 = np.quantile(np.abs(values), (0.5, 0.9))
    return float(median), float(p90), float(np.median(values))


def worst(compared: Sequence[Compared], count: int) -> list[Compared]:
    """The rows of the largest absolute errors."""
    return sorted(compared, key=lambda c: -abs(c.error))[:count]


def errors_json(errors: Sequence[Errors]) -> list[dict[str, Any]]:
    """Errors as plain data."""
    return [asdict(e) for e in errors]
