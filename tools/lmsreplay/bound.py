"""A lower bound on the bytes that any schedule moves per iteration: the linear relaxation of choosing gaps.

Let x_g be 1 if the block is away in gap g, and z_v be 1 if version v was written out. At every moment t the gaps that span
it must have away what does not fit::

    minimise    sum over g of bytes_g * read_g * x_g  +  sum over v of bytes_v * z_v
    subject to  sum over g spanning t of bytes_g * x_g  >=  live_t - limit      for all t
                z_v >= x_g                                                      for all g of v
                0 <= x, z <= 1

Every schedule that repeats itself is a 0/1 point of this, and the average over many iterations of one that does not is a
point too (the constraints are linear and the same in every iteration), so the optimum of the relaxation is below both.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from lmsreplay.gaps import Gaps, spans


def program(gaps: Gaps, limit: int) -> tuple[NDArray[np.float64], list[LinearConstraint], Bounds]:
    """The linear program over (x, z, y): y_t, the bytes away at moment t, keeps the matrix sparse."""
    count, versions, moments = len(gaps.begin), len(gaps.written), len(gaps.live)
    unit = 4096.0
    size = gaps.nbytes / unit
    cost = np.concatenate([size * gaps.read, gaps.written / unit, np.zeros(moments)])
    # y_t - y_(t-1) = (bytes of gaps that begin at t) - (bytes of gaps that end at t), around the iteration.
    rows, columns, values = [], [], []
    for t in range(moments):
        rows += [t, t]
        columns += [count + versions + t, count + versions + (t - 1) % moments]
        values += [1.0, -1.0]
    for g in range(count):
        begin, end = int(gaps.begin[g]) % moments, int(gaps.end[g]) % moments
        if begin != end:
            rows += [begin, end]
            columns += [g, g]
            values += [-size[g], size[g]]
    balance = coo_matrix((values, (rows, columns)), shape=(moments, len(cost))).tocsr()
    # Only differences of y are fixed by these rows: anchor it at one moment.
    anchor_columns = [count + versions] + [
        g
        for g in range(count)
        if any(low <= 0 < high for low, high in spans(int(gaps.begin[g]), int(gaps.end[g]), moments))
    ]
    anchor_values = [1.0] + [-size[g] for g in anchor_columns[1:]]
    anchor = coo_matrix(
        (anchor_values, (np.zeros(len(anchor_columns), int), anchor_columns)), shape=(1, len(cost))
    ).tocsr()
    gap_rows = np.arange(count)
    version_rows = coo_matrix(
        (
            np.concatenate([np.ones(count), -np.ones(count)]),
            (np.concatenate([gap_rows, gap_rows]), np.concatenate([count + gaps.version, gap_rows])),
        ),
        shape=(count, len(cost)),
    ).tocsr()
    needed = np.maximum(0, gaps.live - limit) / unit
    low = np.concatenate([np.zeros(count + versions), needed])
    high = np.concatenate([np.ones(count + versions), np.full(moments, np.inf)])
    constraints = [
        LinearConstraint(balance, 0, 0),
        LinearConstraint(anchor, 0, 0),
        LinearConstraint(version_rows, 0, np.inf),
    ]
    return cost, constraints, Bounds(low, high)


def lower_bound(gaps: Gaps, limit: int) -> float:
    """Bytes (in + out) per steady iteration that no schedule undercuts.

    :raises ValueError: no schedule fits under the limit.
    """
    cost, constraints, bounds = program(gaps, limit)
    result = milp(cost, constraints=constraints, bounds=bounds)
    if result.fun is None:
        raise ValueError(f"no schedule fits under a limit of {limit} bytes: {result.message}")
    return float(result.fun) * 4096.0
