"""The next state has the same bits on every machine: no step towards it uses an operation whose result
follows from processor or library (docs/protocol.md 7.9).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from strategies.base import PhaseContext
from strategies.phases.evaluation import Evaluation

ROOT = Path(__file__).resolve().parents[2]
# from a stored sum to the next state: decoding, and all that a method declares
MODULES = (
    "crypto/fixed_point/ring.py",
    "crypto/fixed_point/projection.py",
    "crypto/masking/stored_sum.py",
    "chorale/job.py",
    *sorted(
        str(path.relative_to(ROOT))
        for path in (ROOT / "strategies").rglob("*.py")
        # figures of an evaluation and their intervals, of which no array goes into the state
        if path.parent.name != "tasks" and path.name not in ("figure.py", "intervals.py")
    ),
)
# by numpy or math: the order of addition, a fused product, or the last bit is the library's own
REFUSED = frozenset(
    {
        *("sum", "nansum", "cumsum", "add_reduce", "reduce", "accumulate", "reduceat", "fsum", "sumprod"),
        *("mean", "average", "nanmean", "var", "std", "median", "trace", "prod", "cumprod"),
        *("dot", "vdot", "inner", "matmul", "tensordot", "einsum", "kron", "convolve", "correlate", "cross"),
        *("linalg", "solve", "inv", "pinv", "qr", "svd", "eigh", "eigvalsh", "lstsq", "norm", "det", "fft"),
        *("power", "float_power", "pow", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "cbrt"),
        *("sin", "cos", "tan", "tanh", "sinh", "cosh", "arctan", "arctan2", "hypot", "logaddexp", "fma"),
        *("reciprocal", "rsqrt", "random", "torch", "scipy", "numba"),
    }
)
# (file, function) -> why no state follows from its result, or why its result is exact
SIZES = "adds or multiplies sizes, which are whole numbers"
FIRST_STATE = "the first state: drawn once, then carried as bytes"
COUNTS = "adds counts, which are whole numbers, for a record: no state follows"
EXEMPT = {
    ("strategies/analysis/subgroups.py", "SubgroupsPhase.tables"): COUNTS,
    ("strategies/analysis/subgroups.py", "SubgroupsPhase._parts"): COUNTS,
    ("strategies/analysis/cox.py", "cells_of"): SIZES,
    ("strategies/analysis/partition.py", "Tables.cells"): SIZES,
    ("strategies/analysis/partition.py", "Tables.joint_cells"): SIZES,
    ("strategies/analysis/partition.py", "Tables.factor_cells"): SIZES,
    ("strategies/number_stream.py", "ordered_sum"): "a running sum adds one element after the other",
    ("strategies/parts/heads.py", "etf_head"): FIRST_STATE,
    ("strategies/base.py", "PhaseContext.trained_values"): SIZES,
    ("strategies/phases/columns.py", "ColumnMomentsPhase.quantities"): SIZES,
    ("strategies/phases/training.py", "TrainPhase._values"): SIZES,
    ("strategies/phases/trees.py", "TreesPhase.edges"): SIZES,
    ("strategies/phases/trees.py", "best_split"): "a running sum adds one element after the other",
    ("strategies/phases/training.py", "_size"): SIZES,
    ("strategies/phases/training.py", "unflatten"): SIZES,
    ("strategies/update_scale.py", "with_mean_square"): "what one silo puts into its input",
}


def found(path: str) -> Iterator[tuple[str, str]]:
    """Function and operation, for everything that a module does and may not."""
    yield from _in(ast.parse((ROOT / path).read_text()), "")


def _in(node: ast.AST, function: str) -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inside = f"{function}.{child.name}".lstrip(".")
        if operation := _refused(child):
            yield function, operation
        yield from _in(child, inside)


def _refused(node: ast.AST) -> str:
    if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.MatMult | ast.Pow):
        return "@" if isinstance(node.op, ast.MatMult) else "**"
    if isinstance(node, ast.Attribute) and node.attr in REFUSED:
        return node.attr
    if isinstance(node, ast.Name) and node.id in ("sum", "pow"):
        return node.id
    if isinstance(node, ast.alias) and node.name.split(".")[-1] in REFUSED:
        return node.name
    return ""


@pytest.mark.parametrize("path", MODULES)
def test_no_step_towards_a_state_uses_what_differs_between_machines(path: str) -> None:
    used = {(path, function): operation for function, operation in found(path)}
    assert {place: operation for place, operation in used.items() if place not in EXEMPT} == {}


def test_no_array_of_an_evaluation_goes_into_the_state() -> None:
    """Which is why strategies/tasks/ may divide and take logarithms as it likes."""
    sums = {name: np.array(1.0) for name in ("correct", "tested", "loss_sum")}
    context = PhaseContext(round=1, members=3, classes=2, state={}, trained=())
    assert Evaluation(is_closing=True).arrays(context, sums) == {}


def test_no_exemption_is_left_over() -> None:
    assert {(path, function) for path in MODULES for function, _ in found(path)} == EXEMPT.keys()


@pytest.mark.parametrize(
    ("line", "operation"),
    [
        ("np.dot(a, b)", "dot"),
        ("a.sum()", "sum"),
        ("sum(a)", "sum"),
        ("np.add.reduce(a)", "reduce"),
        ("a @ b", "@"),
        ("a @= b", "@"),
        ("a ** 0.5", "**"),
        ("a **= b", "**"),
        ("np.linalg.cholesky(a)", "linalg"),
        ("math.exp(a)", "exp"),
        ("from numpy import einsum", "einsum"),
        ("from math import exp as e", "exp"),
        ("import numpy.linalg as la", "numpy.linalg"),
    ],
)
def test_each_way_of_writing_one_is_seen(line: str, operation: str) -> None:
    assert ("f", operation) in set(_in(ast.parse(f"def f():\n    {line}\n"), ""))


def test_what_is_exact_is_not_refused() -> None:
    line = "a = np.sqrt(b * b + c / d - e); np.multiply(a, b, out=a); total(a); product(a, b)"
    assert not list(_in(ast.parse(f"def f():\n    {line}\n"), ""))
