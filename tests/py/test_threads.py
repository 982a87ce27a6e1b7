"""One kernel from many threads, and the number of threads a kernel uses."""

import subprocess
import sys
import threading

import dvm
import numpy as np
import pytest

F32 = np.float32


def together(n, work):
    errors = []
    start = threading.Barrier(n)

    def body(i):
        try:
            start.wait()
            work(i)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=body, args=(i,)) for i in range(n)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def test_same_kernel_small_and_large():
    @dvm.kernel
    def f(k, x, y):
        a = k.load(x)
        return k.store(k.sum(k.mul(k.exp(a), k.load(y)), [-1], True))

    def work(i):
        rng = np.random.default_rng(i)
        for n in (3, 200, 300 + i):
            x = rng.standard_normal((n, 257)).astype(F32)
            y = rng.standard_normal(257).astype(F32)
            want = (np.exp(x) * y).sum(-1, keepdims=True)
            for _ in range(5):
                np.testing.assert_allclose(f(x, y), want, rtol=1e-3, atol=1e-3)

    together(6, work)


def test_specialising_from_many_threads():
    @dvm.kernel
    def f(k, x, axes):
        return k.store(k.mean(k.load(x), k.int_array(axes)))

    def work(i):
        x = np.random.default_rng(i).standard_normal((2,) * (1 + i % 4)).astype(F32)
        for axis in range(x.ndim):
            for _ in range(10):
                np.testing.assert_allclose(f(x, [axis]), x.mean(axis), rtol=1e-5, atol=1e-6)

    together(8, work)


def test_results_do_not_depend_on_threads():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((700, 1500)).astype(F32)

    @dvm.kernel
    def f(k, x):
        a = k.load(x)
        return k.store(k.sum(k.exp(a), [1])), k.store(k.sum(a, [0])), k.store(k.sum(a))

    before = dvm.get_num_threads()
    try:
        results = []
        for n in (1, 2, 3, 8):
            dvm.set_num_threads(n)
            assert dvm.get_num_threads() == n
            results.append(f(x))
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)
    finally:
        dvm.set_num_threads(before)


def test_other_threads_run_meanwhile():
    @dvm.kernel
    def f(k, x):
        a = k.load(x)
        for _ in range(40):
            a = k.sin(a)
        return k.store(a)

    x = np.zeros((500, 4000), F32)
    f(x)
    ticks = []
    stop = threading.Event()

    def count():
        while not stop.is_set():
            ticks.append(0)
            stop.wait(0.0005)

    t = threading.Thread(target=count)
    t.start()
    n = len(ticks)
    for _ in range(3):
        f(x)
    stop.set()
    t.join()
    assert len(ticks) > n + 3


def test_bad_numbers_of_threads():
    for n in (0, -1, 65537, 1 << 70, 2.5, "2", None, True):
        with pytest.raises(dvm.ArgumentError):
            dvm.set_num_threads(n)


SHARED = """
import os, sys
import torch, numpy as np
import dvm, _dvm
assert _dvm.default_context().openmp
dvm.set_num_threads(3)

@dvm.kernel
def f(k, x):
    a = k.load(x)
    return k.store(k.sum(k.exp(a), [1]))

x = torch.linspace(-1, 1, 600 * 1000).reshape(600, 1000)
torch.tanh(x)
first = f(x)
assert torch.allclose(first, x.exp().sum(1))
dvm.set_num_threads(1)
assert torch.equal(f(x), first)
dvm.set_num_threads(3)
child = os.fork()
if child == 0:
    os._exit(0 if np.array_equal(f(x.numpy()), first.numpy()) else 3)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_torchs_threads(monkeypatch):
    """On torch's OpenMP runtime: same bits, and a child of fork works."""
    pytest.importorskip("torch")
    monkeypatch.delenv("DVM_OPENMP", raising=False)
    done = subprocess.run(
        [sys.executable, "-c", SHARED], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


# A fork in one thread while another one imports numpy for the first call, and while it prepares
# calls: the child must neither wait for that thread nor find half of its work.
FORKS = """
import os, signal, sys, threading, time
import dvm

@dvm.kernel
def f(k, x, axes):
    return k.store(k.sum(k.load(x), k.int_array(axes)))

data = memoryview(bytearray(16)).cast("f")
one_more = dvm.kernel(lambda k, x: k.store(k.add(k.load(x), 1)))
stop = False

def first():
    one_more(data)

def work():
    while not stop:
        for axes in ([0], [1], [0, 1], []):
            f(x, axes)

def child_is_well(run):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        os._exit(0 if run() else 3)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        os._exit(100 + abs(code))

assert "numpy" not in sys.modules
t = threading.Thread(target=first)
t.start()
while "numpy" not in sys.modules:
    time.sleep(0)
child_is_well(lambda: one_more(data).tolist() == [1, 1, 1, 1])
t.join()

import numpy as np

x = np.ones((2, 3), np.float32)
sys.setswitchinterval(1e-5)
t = threading.Thread(target=work, daemon=True)
t.start()
for i in range(20):
    child_is_well(lambda: f(x, [1]).tolist() == [3, 3])
stop = True
t.join()
"""


def test_fork_while_another_thread_calls():
    done = subprocess.run(
        [sys.executable, "-c", FORKS], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
