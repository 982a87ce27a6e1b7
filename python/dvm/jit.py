"""@dvm.kernel: functions that are kernels.

Two spellings, told apart by the keyword used or the number of parameters.

Placeholders (`dynamic=`), for arrays and tensors of any shape:

    @dvm.kernel
    def add(k, x, y):
        return k.store(k.add(k.load(x, dvm.float32), k.load(y, dvm.float32)))

    z = add(a, b)

Declared loads (`dyn_shape=`), as torch's generated code writes them; inputs are numbered in the
order of load and scalar calls, outputs in the order of stores:

    @dvm.kernel(ktype="split", dyn_shape=False)
    def add(k):
        x = k.load([2, 3], dvm.float32)
        k.store(k.add(x, 1.0))

    z = add(t)
    add.run(t, out)

Arrays of numpy give arrays of numpy, tensors of torch give tensors of torch. Kernels are not
recorded for backward: a tensor that requires grad is refused unless torch.no_grad() holds (pass
x.detach(), or let torch.compile(f, backend="dvm") differentiate).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, overload

from _dvm import ArgumentError, StateError

from . import arrays, builder
from .arrays import plural
from .builder import Build, Kernel, LoadSpec
from .record import IntArrayRef, NDObject, ScalarRef
from .threads import guard


class Parameter:
    """A parameter of a kernel function while its lines are recorded: what load(), scalar() and
    int_array() take. It is no number, so that a load that was forgotten is not its position.
    """

    __slots__ = ("index", "name")

    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name

    def __repr__(self) -> str:
        return (
            f"the parameter {self.name} itself (its tensor is k.load({self.name}, dtype), "
            f"its number k.scalar({self.name}))"
        )

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"there is no {name!r} in {self!r}; in a class, write @staticmethod above @dvm.kernel"
        )

    def _operate(self, *_: Any) -> Any:
        raise ArgumentError(f"an operator was given {self!r}")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _operate
    __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _operate
    __matmul__ = __rmatmul__ = __and__ = __rand__ = __or__ = __ror__ = __xor__ = _operate
    __rxor__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __abs__ = __invert__ = _operate


class PlaceholderKernel(Kernel):
    """A kernel whose loads and references name call arguments by position."""

    def __init__(self, ker_type: str, names: Sequence[str], **options: Any) -> None:
        super().__init__(ker_type, **options)
        self._names, self._count = names, len(names)
        self._parameters: dict[ScalarRef | IntArrayRef, int] = {}

    def _parameter(self, index: Any) -> int:
        i = index.index if type(index) is Parameter else index
        if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < self._count:
            raise ArgumentError(
                f"expected a parameter of the kernel function (a placeholder), given {index!r}"
            )
        return i

    def parameter_of(self, ref: NDObject | ScalarRef | IntArrayRef) -> int:
        """The position of the call argument behind a load or reference."""
        return ref._with.parameter if isinstance(ref, NDObject) else self._parameters[ref]

    def _input_names(self, b: Build) -> tuple[str, ...]:
        return tuple(self._names[self.parameter_of(n)] for n in b.inputs)

    def _load_spec(self, index: Any, dtype: Any, strides: Any = None) -> LoadSpec:
        spec = super()._load_spec((), dtype, strides)
        spec.parameter = self._parameter(index)
        return spec

    def load(  # type: ignore[override]
        self, index: Any, dtype: Any = "float32", shape: Sequence[int] | None = None
    ) -> NDObject:
        """The call argument of a parameter as a tensor; `shape` is needed in static kernels."""
        if shape is None and not self.dynamic:
            raise ArgumentError(
                "load: a static kernel (dynamic=False) takes the shape of every tensor, as in "
                "k.load(x, dvm.float32, [2, 3])"
            )
        spec = super()._load_spec(() if shape is None else shape, dtype)
        spec.parameter = self._parameter(index)
        return self._emit("load", spec.dtype, builder.low_load, spec, spec=spec)

    def scalar(  # type: ignore[override]
        self, index: Any = None, dtype: Any = None
    ) -> ScalarRef:
        """The call argument of a parameter as a number."""
        ref = ScalarRef(dtype)
        self._parameters[ref] = self._parameter(index)
        self._use(ref)
        return ref

    def int_array(self, index: Any = None) -> IntArrayRef:
        """The call argument of a parameter as a list of integers."""
        ref = IntArrayRef()
        self._parameters[ref] = self._parameter(index)
        return ref

    dims = intref = int_array

    def make_int(self, index: Any = None) -> ScalarRef:
        """Older name of scalar(index, int64)."""
        return self.scalar(index, "int64")

    def make_float(self, index: Any = None) -> ScalarRef:
        """Older name of scalar(index, float32)."""
        return self.scalar(index, "float32")


def _name(function: Callable[..., Any]) -> str:
    """Objects with __call__ and functools.partial have no name of their own."""
    inner = getattr(function, "func", function)
    return getattr(inner, "__name__", type(inner).__name__)


class KernelFunction:
    """What @dvm.kernel makes of a builder function.

    `fn(*inputs)` returns new outputs, `fn.run(*inputs, *outputs)` or `fn.run(*inputs, out=outputs)`
    fills given ones, `fn.kobj` is the Kernel (dump(), das(), explain()). Inputs that are parameters
    of the builder may be given by name.
    """

    kobj: Kernel
    run: Callable[..., None]

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]
        self.__name__ = _name(function)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        if not parameters:
            parameters = [inspect.Parameter("inputs", inspect.Parameter.VAR_POSITIONAL)]
        self.__signature__ = inspect.Signature(parameters)

    def __call__(self, *args: Any, **named: Any) -> Any:
        """New outputs for these inputs."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<dvm kernel {self.__name__}>"

    def __reduce__(self) -> str:
        """Copies are the kernel itself, and it is pickled by its name, as functions are."""
        return getattr(self, "__qualname__", self.__name__)

    def dump(self) -> str:
        """The program as text."""
        return self.kobj.dump()

    def das(self) -> str:
        """The instructions of the newest run as text."""
        return self.kobj.das()


def _allocate(shape: Sequence[int], strides: Sequence[int], store: NDObject, torch: Any) -> Any:
    """Memory for a view_store and the view that is its output."""
    if torch is not None:
        return torch.empty_strided(shape, strides, dtype=getattr(torch, store._dtype.name))
    with guard:
        import numpy as np

        from .runner import _extent, _strided

    memory = np.empty(_extent(shape, strides), store._dtype.numpy_name)
    return _strided(memory, 0, shape, strides)


def _dense(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * max(shape[i + 1], 1)
    return strides


def _call(b: Build, args: Sequence[Any], prefer_torch: bool) -> tuple[Any, ...]:
    """New outputs of one run in the order of stores."""
    if not any(s._with.strides is not None for s in b.outputs):
        out = (b.kernel.call_torch if prefer_torch else b.kernel.call)(*args)
        return (out,) if len(b.outputs) == 1 else out
    torch = sys.modules.get("torch")
    if not any(torch is not None and isinstance(a, torch.Tensor) for a in args):
        torch = None
    with guard:
        from .runner import _numbers
    outs = []
    for store, (shape, _) in zip(b.outputs, b.kernel.infer(*args), strict=True):
        declared = None if store._with.strides is None else _numbers(store._with.strides)
        strides = _dense(shape) if declared is None else declared
        outs.append(_allocate(shape, strides, store, torch))
    b.kernel.run(*args, *outs)
    return tuple(outs)


class DeclaredFunction(KernelFunction):
    """A kernel whose builder declares its loads in order. They have no names."""

    def __init__(
        self, function: Callable[..., Any], ker_type: str, options: dict[str, Any]
    ) -> None:
        super().__init__(function)
        k = Kernel(ker_type, **options)
        k._rank_given = True
        k._label = self.__name__
        self.kobj = k
        function(k)
        b = k._specialize()
        self._fixed = None if k._arrays or k._untyped else b
        if self._fixed is not None:
            self.run = b.kernel.run
            if not any(s._with.strides is not None for s in b.outputs):
                self._fast = b.kernel.call_torch if "torch" in sys.modules else b.kernel.call
        else:
            self.run = self._run

    _fast: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **named: Any) -> Any:
        """New outputs: one object, or a tuple of several."""
        if named:
            arrays.by_name(None, 0, args, named)  # refuses them
        if self._fast is not None:
            return self._fast(*args)
        outs = _call(self._fixed or self._specialize(args), args, "torch" in sys.modules)
        return outs[0] if len(outs) == 1 else outs

    def _run(self, *args: Any, **named: Any) -> None:
        self._specialize(args).kernel.run(*args, **named)

    def _specialize(self, args: Sequence[Any]) -> Build:
        with guard:
            inputs = [n for n in self.kobj._nodes if _is_input(n)]
            for ref, value in zip(inputs, args, strict=False):
                if type(ref) is ScalarRef:
                    ref.update(value)
            return self.kobj._specialize()


def _is_input(n: Any) -> bool:
    return type(n) is ScalarRef or (type(n._with) is LoadSpec and n._with.bound is None)


class PlaceholderFunction(KernelFunction):
    """A kernel whose parameters are its call arguments."""

    def __init__(
        self,
        function: Callable[..., Any],
        names: Sequence[str],
        ker_type: str,
        options: dict[str, Any],
    ) -> None:
        super().__init__(function)
        k = PlaceholderKernel(ker_type, names, **options)
        k._label = self.__name__
        self.kobj: PlaceholderKernel = k
        self._count = len(names)
        result = function(k, *[Parameter(i, name) for i, name in enumerate(names)])
        self._stores = self._results(result)
        self._one = isinstance(result, NDObject)
        refs = k._parameters.items()
        self._changing = [(r, i) for r, i in refs if type(r) is IntArrayRef or r in k._untyped]
        self._fast: Callable[..., Any] | None = None
        if not k.dynamic:
            self._settle(k._specialize())

    def _results(self, result: Any) -> list[NDObject]:
        stores = [n for n in self.kobj._nodes if type(n) is NDObject and _is_store(n)]
        if result is None:
            return stores
        if not isinstance(result, (NDObject, list, tuple)):
            raise ArgumentError(
                f"{self!r}: the function returns what store() gave it, one or a list of several, "
                f"not {result!r}"
            )
        chosen = [result] if isinstance(result, NDObject) else list(result)
        for s in chosen:
            if s not in stores:
                raise ArgumentError(
                    f"{self!r}: the function returns what store() gave it, not {s!r}"
                )
        return chosen

    def _settle(self, b: Build) -> None:
        """Uses the compiled kernel directly when calls need nothing else."""
        k = self.kobj
        order = [k.parameter_of(n) for n in b.inputs]
        direct = order == list(range(self._count)) and b.outputs == self._stores
        strided = any(s._with.strides is not None for s in b.outputs)
        if direct and self._one and not strided and not self._changing and not k._needs_ranks:
            self._fast = b.kernel.call
            self.run = b.kernel.run  # type: ignore[method-assign]

    def __call__(self, *args: Any, **named: Any) -> Any:
        """New outputs: one array, or a list of several, as the function returns them."""
        if named:
            args = arrays.by_name(self.kobj._names, 0, args, named)
        if self._fast is not None:
            return self._fast(*args)
        b, inputs = self._ready(args)
        outs = _call(b, inputs, False)
        if self._one:
            return outs[b.outputs.index(self._stores[0])]
        return [outs[b.outputs.index(s)] for s in self._stores]

    def run(self, *args: Any, **named: Any) -> None:
        """Computes into given outputs: `run(*inputs, *outputs)`, the outputs also as `out=`."""
        if named:
            args = arrays.by_name(self.kobj._names, len(self._stores), args, named)
        want = self._count + len(self._stores)
        if len(args) != want:
            raise ArgumentError(
                f"expected {plural(want, 'argument')} ({plural(self._count, 'input')}, "
                f"{plural(len(self._stores), 'output')}), given {len(args)}"
            )
        b, inputs = self._ready(args[: self._count])
        outs = dict(zip(self._stores, args[self._count :], strict=True))
        missing = [s for s in b.outputs if s not in outs]
        if missing:
            raise StateError("run needs a function that returns all its stores")
        b.kernel.run(*inputs, *[outs[s] for s in b.outputs])

    def _ready(self, args: Sequence[Any]) -> tuple[Build, list[Any]]:
        k = self.kobj
        if len(args) != self._count:
            names = ", ".join(k._names)
            raise ArgumentError(
                f"expected {plural(self._count, 'argument')} ({names}), given {len(args)}"
            )
        with guard:
            for ref, i in self._changing:
                ref.update(args[i])
            first = not k._builds
            b = k._specialize(lambda load: _rank(args[k.parameter_of(load)]))
            if first:
                self._settle(b)
        return b, [args[k.parameter_of(n)] for n in b.inputs]


def _rank(value: Any) -> int:
    n = getattr(value, "ndim", None)
    if n is None:
        shape = getattr(value, "shape", None)
        if shape is None:
            raise ArgumentError(f"expected an array or tensor, given {value!r}")
        n = len(shape)
    return n


def _is_store(n: NDObject) -> bool:
    return type(n._with) is builder.StoreSpec and not n._with.temp


def _parameters(function: Callable[..., Any]) -> list[str]:
    """Names of the kernel and of the call arguments; parameters with a default are neither."""
    for test, what in [
        (inspect.isgeneratorfunction, "a generator"),
        (inspect.iscoroutinefunction, "a coroutine"),
        (inspect.isasyncgenfunction, "an asynchronous generator"),
        (inspect.isclass, "a class"),
    ]:
        if test(function):
            raise ArgumentError(f"a kernel function is a plain function, not {what}: {function!r}")
    if isinstance(function, KernelFunction):
        raise ArgumentError(f"{function!r} is a kernel already")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError as error:
        raise ArgumentError(f"a kernel function says its parameters: {error}") from error
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL or (p.kind is p.KEYWORD_ONLY and p.default is p.empty):
            raise ArgumentError(
                f"every parameter of a kernel function is a name and positional, given {p} "
                f"in {_name(function)}{inspect.signature(function)}"
            )
    names = [p.name for p in parameters if p.kind in named and p.default is p.empty]
    if not names:
        raise ArgumentError(
            f"the first parameter of a kernel function is the kernel: {_name(function)}(k, ...)"
        )
    return names


def _type_text(ktype: str, dynamic: bool) -> str:
    if ktype == "spec":
        ktype = "vector:spec"
    if dynamic and "dyn" not in ktype.partition(":")[2].split(","):
        ktype += ",dyn" if ":" in ktype else ":dyn"
    builder.parse_kind(ktype)
    return ktype


@overload
def kernel(ktype: Callable[..., Any], /) -> KernelFunction: ...


@overload
def kernel(
    ktype: str = "split",
    dynamic: bool | None = None,
    dyn_shape: bool | None = None,
    strict: bool = False,
) -> Callable[[Callable[..., Any]], KernelFunction]: ...


def kernel(
    ktype: Any = "split",
    dynamic: bool | None = None,
    dyn_shape: bool | None = None,
    strict: bool = False,
) -> Any:
    """Makes a kernel of a builder function, which records one line after another on `k`.

    Parameters (`dynamic=`): for arrays and tensors of any shape, given by position or by name.

        @dvm.kernel
        def scaled(k, x, factor):
            return k.store(k.load(x, dvm.float32) * k.scalar(factor))

        y = scaled(np.ones((4, 8), np.float32), 2.0)

    Declared loads (`dyn_shape=`): inputs in the order of load() and scalar(), outputs in that of
    store().

        @dvm.kernel(ktype="vector", dyn_shape=False)
        def doubled(k):
            k.store(k.load([4, 8], dvm.float32) * 2)

        doubled.run(x, y)

    Args:
        ktype: vector, spec (vector:spec), split, seq, parallel, cube, mix or eager.
        dynamic: placeholders; True (default) compiles for the shapes of each call.
        dyn_shape: declared loads; False (default) holds arguments to the sizes as written, where -1
            is any size; True takes rank and sizes of each call's arguments, whatever is written.
        strict: 16-bit floats are rounded after every operation.

    Raises:
        Error: what the builder's lines raise, and KindError for a wrong type. A call raises an
            Error that names the argument when one does not fit.
    """
    if callable(ktype):
        return kernel()(ktype)
    if not isinstance(ktype, str):
        raise ArgumentError(f"a kernel type is a string such as 'split', given {ktype!r}")

    def decorate(function: Callable[..., Any]) -> KernelFunction:
        names = _parameters(function)
        declared = dyn_shape is not None or (dynamic is None and len(names) == 1)
        if declared:
            if len(names) != 1:
                raise ArgumentError(
                    "dyn_shape= belongs to a builder with the kernel as its only parameter; "
                    "with placeholders write dynamic="
                )
            text = _type_text(ktype, bool(dyn_shape))
            return DeclaredFunction(function, text, {"strict": strict})
        text = _type_text(ktype, dynamic is None or dynamic)
        return PlaceholderFunction(function, names[1:], text, {"strict": strict})

    return decorate


builder.own_file(KernelFunction.dump)
