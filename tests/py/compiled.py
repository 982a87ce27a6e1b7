"""What tests of torch.compile call: compiling without graph breaks, comparing NaN with NaN."""

import dvm.torch
import torch


def compiled(f, **options):
    return torch.compile(f, backend="dvm", **{"fullgraph": True, **options})


def same(got, want, **tolerance):
    torch.testing.assert_close(got, want, equal_nan=True, **tolerance)


def graphs():
    return dvm.torch.summary().graphs
