"""What generated call code uses while it runs."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dvm import Error, OutOfRangeError

log = logging.getLogger("dvm.torch")

empty_strided = torch.empty_strided

try:  # torch's own short cut for generated code: a third of the cost of torch.empty_strided
    from torch._C._dynamo.guards import _empty_strided_cpu as empty_cpu
except ImportError:

    def empty_cpu(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty_strided(size, stride, dtype=dtype)


def unboxed(call: Callable) -> Callable:
    """A function of a list of arguments as a function of arguments."""
    return lambda *args: call(list(args))


def count_rescue(counts: Counter, name: str, error: Error) -> None:
    """torch takes over for a refused run: said once for each reason, counted each time."""
    reason = type(error).__name__
    if not counts[name, reason]:
        log.warning("%s is run by torch, op by op: %s", name, error)
    counts[name, reason] += 1


class Rescue:
    """What happens when the engine refuses arguments that a kernel was not built for: torch runs
    the kernel's nodes, op by op. Kept as `rescue` of the kernel; counted in the run summary.

    An index out of range is found in the middle of a run. Then torch raises the error that eager
    code would raise, unless the kernel writes its inputs, whose old contents are gone.
    """

    def __init__(
        self, name: str, reference: Callable, outputs: int, in_place: bool, counts: Counter
    ):
        self.name = name
        self.reference = reference
        self.outputs = outputs
        self.in_place = in_place
        self.counts = counts

    def __call__(self, error: Error, *arguments: Any) -> None:
        if isinstance(error, OutOfRangeError):
            if self.in_place:
                raise error
        else:
            count_rescue(self.counts, self.name, error)
        inputs, outputs = arguments[: -self.outputs], arguments[-self.outputs :]
        with torch.no_grad():
            values = self.reference(*inputs)
            for out, value in zip(outputs, values, strict=True):
                out.copy_(value if value.layout is torch.strided else value.to_dense())


# (rtol, atol) of option `check`: torch.testing's own, widened by one digit for sums of long rows.
TOLERANCE = {
    torch.float32: (1.3e-5, 1e-5),
    torch.float16: (1e-2, 1e-4),
    torch.bfloat16: (3.2e-2, 1e-4),
}


class CheckError(AssertionError):
    """Option `check`: a kernel differs from torch."""


def check(reference: Callable, name: str, *tensors: Any) -> None:
    """Compares outputs of a kernel run with `reference(*inputs)`, which runs its nodes in torch."""
    expected = reference(*tensors)
    outputs = tensors[len(tensors) - len(expected) :]
    for i, (got, want) in enumerate(zip(outputs, expected, strict=True)):
        rtol, atol = TOLERANCE.get(want.dtype, (0.0, 0.0))
        close = torch.isclose(got, want, rtol, atol, equal_nan=True)
        if bool(close.all()):
            continue
        difference = (got.double() - want.double()).abs()
        raise CheckError(
            f"{name}, output {i} of {len(expected)} ({want.dtype}, {tuple(want.shape)}) differs"
            f" from torch in {int((~close).sum())} of {close.numel()} elements, at most by"
            f" {float(difference.nan_to_num(0).max()):.3g} (rtol {rtol}, atol {atol})"
        )


def example(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: Any) -> Any:
    """A tensor for the main program of output_code.py: random, and small where it is an integer."""
    needed = sum((n - 1) * st for n, st in zip(size, stride, strict=True)) + 1 if all(size) else 0
    if dtype.is_floating_point or dtype.is_complex:
        data = torch.randn(needed, device=device).to(dtype)
    else:
        data = torch.randint(0, 2, (needed,), device=device).to(dtype)
    return torch.as_strided(data, size, stride)
