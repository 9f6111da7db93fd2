# SPDX-License-Identifier: BSD-3-Clause
"""The builder of plans, which the provider 'generated' asks if it has no plan for a call.

The builder runs on its own thread, one plan after the other. Modes and contexts of the calling thread must not apply to
it, and Inductor keeps its state per thread. It refuses any operator it cannot prove correct, and records the reason.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_outboard._compat.deprecations import without_own_deprecations
from torch_outboard._compat.imports import import_inductor
from torch_outboard._exit import end_before_close
from torch_outboard.codegen.dialects.units import unit_of
from torch_outboard.codegen.program import DeviceProgram, KernelRecord
from torch_outboard.compile.generators import generators
from torch_outboard.kernels import lists, route
from torch_outboard.kernels.book.table import by_value, check_refused, guarded, without_readers
from torch_outboard.kernels.build_thread import BuildThread, NoThread
from torch_outboard.kernels.disk.files import Answer
from torch_outboard.kernels.disk.key import Sizes, call_key, key_of, scheduled_key, sizes_of
from torch_outboard.kernels.disk.packs import Packs, owner_of, packs_of
from torch_outboard.kernels.disk.store import Store, default_folder
from torch_outboard.kernels.faults import author_of
from torch_outboard.kernels.garbage import defer_collection
from torch_outboard.kernels.operators import base_name
from torch_outboard.kernels.promotion import tensors_in
from torch_outboard.kernels.reasons import code_of
from torch_outboard.kernels.refusal import CallRefusal, ClassRefusal, OperatorRefusal, Refusal
from torch_outboard.kernels.tune.schedule_table import schedules_of
from torch_outboard.kernels.tune.schedules import SCHEDULE

__all__ = [
    "abilities",
    "build",
    "build_chunks",
    "drop",
    "drop_chunks",
    "load",
    "numbers",
    "numbers_of_lists",
    "packs",
    "record",
    "refused",
    "seconds",
    "store",
]

_log = logging.getLogger(__name__)

# Failures that may not recur: a full disk, no more file descriptors, no more memory.
_TRANSIENT_ERRORS = (OSError, MemoryError)
# Codes of refusals after which another try may succeed.
_TRANSIENT_CODES = ("upstream", "no-thread")


def numbers(name: str) -> int:
    """Return a bit mask of the arguments that plans take by value.

    The bits from the 32nd on mark arguments whose integers plans guard.
    """
    return sum(1 << place for place in by_value(name)) | sum(1 << 32 + place for place in guarded(name))


def load(name: str, arguments: Sequence[Any], by_value: int, is_aliased: bool, device: int) -> list[Answer]:
    """Return the stored answers for a call's class: its plans, one refusal, or nothing."""
    try:
        return _THREAD.run(_Request(name, arguments, by_value, is_aliased, device).load)  # type: ignore[no-any-return]
    except NoThread:  # reported when a plan is built
        return []


def abilities() -> int:
    """Return a bit mask of the features of the devices' language; 0 for a device without generated operators.

    Bit 0: attention templates. Bits 1 to 3: gradients of attention masks in float32, float16 and bfloat16. Bit 4:
    matrix units that round, if torch's switches allow rounding.
    """
    if not generators().has_eager:
        return 0
    dialect = generators().eager().dialect  # type: ignore[attr-defined]
    if not (dialect.vectors or dialect.has_groups):
        return 0
    types = (torch.float32, torch.float16, torch.bfloat16)
    units = dialect.units if dialect.has_groups else ()
    exact = tuple(unit for unit in units if not unit.is_rounded)
    bits = 1 + sum(2 << i for i, dtype in enumerate(types) if unit_of(exact, dtype) is not None)
    return bits + (16 if len(exact) < len(units) else 0)


_NAMESPACES = ("aten::", "outboard::")  # namespaces of operators that may have kernels

# The answer if another process has stored a plan or a refusal for the class: `load` returns it.
STORED_MEANWHILE = Answer("", [])


def build(
    name: str,
    arguments: Sequence[Any],
    by_value: int,
    is_aliased: bool,
    device: int,
    strides: Sequence[Sequence[int] | None] = (),
) -> Answer:
    """Build a plan for a call: return its text and kernels, the refusal, or STORED_MEANWHILE.

    `strides` are the results' strides, as far as the operator's meta kernel reports them. OSError and MemoryError are
    raised, because the next request for the same call may succeed.
    """
    request = _Request(name, arguments, by_value, is_aliased, device, strides)
    del arguments  # a failure keeps this frame alive, and the caller keeps the failure
    return _answer_of(request.build)


def seconds() -> float:
    """Return the seconds spent on building plans and on reading them from disk."""
    return _THREAD.seconds


def numbers_of_lists(name: str) -> int:
    """Return a bit mask of the arguments whose numbers launches of a list operator take by value."""
    return lists.numbers_of_lists(name)


def build_chunks(name: str, arguments: Sequence[Any], device: int) -> Answer:
    """Return the plan of a call over lists of tensors, as one or two launches, or the refusal. See `build`."""
    holder = [arguments]
    del arguments
    return _answer_of(lambda: _find_chunks(name, holder.pop(), device))


def drop(
    name: str, arguments: Sequence[Any], by_value: int, is_aliased: bool, device: int, text: str, why: str
) -> None:
    """Forget a plan that `load` returned and that cannot be used."""
    request = _Request(name, arguments, by_value, is_aliased, device)
    with contextlib.suppress(NoThread):  # the plan stays on disk until another process drops it
        _THREAD.run(lambda: request.drop(text, why))


def drop_chunks(name: str, arguments: Sequence[Any], device: int, text: str, why: str) -> bool:
    """Forget a plan that `build_chunks` returned. Return False if the plan did not come from disk."""

    def forget() -> bool:
        key = key_of(name, lists.canonical(name, arguments), (), False, device, form="chunks")
        if key is None or (key, text) not in _kept_chunks:
            return False
        _kept_chunks.remove((key, text))
        _forget(key, device, text, why)
        return True

    try:
        return _THREAD.run(forget)  # type: ignore[no-any-return]
    except NoThread:
        return False


# Class and text of the plans that were read from disk, for operators over lists.
_kept_chunks: set[tuple[str, str]] = set()


def refused(refusal: Refusal) -> Answer:
    """Return the answer for a refusal, which has no plan."""
    return Answer("", [], str(refusal), isinstance(refusal, OperatorRefusal | ClassRefusal))


def _answer_of(ask: Callable[[], Answer]) -> Answer:
    try:
        return _THREAD.run(ask)  # type: ignore[no-any-return]
    except NoThread as error:
        return refused(CallRefusal(str(error)))


# Created when the module is imported, at the first call that needs a plan, so that two concurrent
# first calls share the thread.
_THREAD = BuildThread()
end_before_close(_THREAD.end)


def record(take: Callable[[str, Sequence[Any]], None] | None) -> None:
    """Call `take` with the operator and arguments of each call for which a plan is built. None stops it.

    Calls over lists of tensors, and calls whose arguments share memory with a written argument, are left out.
    """
    global _take
    _take = take


_take: Callable[[str, Sequence[Any]], None] | None = None


@functools.cache
def store() -> Store:
    """Return the store of plans on disk. The first call reads the environment variable that names the folder."""
    return Store(default_folder())


@functools.cache
def packs() -> Packs:
    """Return the packs of the attached driver. The first call reads the environment variable that names other packs."""
    driver = generators().driver
    return Packs(packs_of(type(driver)), driver, owner_of(type(driver)))


def _begin_in_child(forget_store: Callable[[], None], forget_packs: Callable[[], None]) -> None:
    """Start with a new thread, store and packs in a forked child.

    The child inherits the module but not its thread. A thread that does not exist in the child may hold the store's
    lock, and SQLite connections must not be used across a fork.
    """
    global _THREAD
    _THREAD = BuildThread()
    forget_store()
    forget_packs()


os.register_at_fork(after_in_child=functools.partial(_begin_in_child, store.cache_clear, packs.cache_clear))


class _Request:
    """A call to build or to look up, on the builder's thread."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[Any],
        by_value: int,
        is_aliased: bool,
        device: int,
        strides: Sequence[Sequence[int] | None] = (),
    ) -> None:
        self._name = name
        self._strides = strides
        # The build removes the arguments from here and drops them. Log handlers keep exceptions,
        # exceptions keep frames, and frames would keep device memory alive.
        self._holder = [arguments]
        self._places = [index for index in range(len(arguments)) if by_value >> index & 1]
        self._symbols = [index for index in range(len(arguments)) if by_value >> 32 + index & 1]
        self._is_aliased = is_aliased
        self._device = device

    def load(self) -> list[Answer]:
        key = self._key()
        if key is None:
            return []
        return _plans_of_class(key, self._device, sizes_of(self._holder[0]) if Store.serves_own_sizes_only else None)

    def build(self) -> Answer:
        key = self._key()
        place = torch.device(generators().driver.name, self._device)
        if _take is not None and not self._is_aliased:
            _take(self._name, self._holder[0])

        def make() -> Answer:
            return _build_or_refuse(
                self._name, self._holder, self._places, self._is_aliased, place, self._strides, self._symbols
            )

        return _build_and_store(key, self._holder[0], self._name, self._device, make)

    def drop(self, text: str, why: str) -> None:
        if (key := self._key()) is not None:
            _forget(key, self._device, text, why)

    def _key(self) -> str | None:
        if not _keeps():
            return None
        return key_of(
            self._name, self._holder[0], self._places, self._is_aliased, self._device, symbols=tuple(self._symbols)
        )


def _find_chunks(name: str, arguments: Sequence[Any], device: int) -> Answer:
    try:
        stand_ins = lists.canonical(name, arguments)
    except Refusal as refusal:
        return refused(refusal)
    del arguments
    key = key_of(name, stand_ins, (), False, device, form="chunks") if _keeps() else None
    answer = STORED_MEANWHILE
    while answer is STORED_MEANWHILE:
        if key is not None and (kept := _plans_of_class(key, device)):
            _kept_chunks.add((key, kept[0].text))
            return kept[0]
        answer = _build_and_store(key, stand_ins, name, device, lambda: _build_chunks(name, stand_ins, device))
    return answer


def _keeps() -> bool:
    return store().is_usable or bool(packs())


def _plans_of_class(key: str, device: int, sizes: Sizes | None = None) -> list[Answer]:
    """Return the stored plans of a class, or the refusal of the class. `sizes` excludes plans built for other sizes."""
    stored = _stored(key, device, sizes)
    if (scheduled := scheduled_key(key, device, schedules_of(device).digest)) != key:
        stored = [answer for answer in stored if not _has_schedule(answer)] + _stored(scheduled, device, sizes)
    return [answer for answer in stored if not answer.refusal] or stored[:1]


def _stored(key: str, device: int, sizes: Sizes | None) -> list[Answer]:
    def readable(kernel: KernelRecord) -> KernelRecord:
        return kernel._replace(read_binary=functools.partial(_packed_program, kernel, device))

    packed = packs().plans(key, device)
    return [
        *store().plans(key, sizes),
        *(answer._replace(kernels=list(map(readable, answer.kernels))) for answer in packed),
    ]


def _packed_program(kernel: KernelRecord, device: int) -> bytes:
    return packs().program(kernel, device)  # in a forked child, these are the child's packs


def _forget(key: str, device: int, text: str, why: str) -> None:
    reason = " ".join(why.split())[:300]
    for stored_key in dict.fromkeys((key, scheduled_key(key, device, schedules_of(device).digest))):
        store().drop(stored_key, text, reason)
        packs().drop(stored_key, text, reason)


def _build_and_store(
    key: str | None, arguments: Sequence[Any], name: str, device: int, make: Callable[[], Answer]
) -> Answer:
    """Return the answer of `make`, and store its plan, or its refusal of the class or the call.

    If another process has meanwhile stored a plan or a refusal of the class, return STORED_MEANWHILE.
    """
    if refusal := _refusal_of(name, arguments):
        make = functools.partial(_raise, refusal)
    if key is None:
        del arguments  # a failure keeps this frame alive
        return _build(name, make)
    sizes, single = sizes_of(arguments), call_key(key, arguments)
    needs_inductor = refusal is None and "torch._inductor.compile_fx" not in sys.modules
    del arguments  # `make` frees them
    if needs_inductor and (kept := _plans_of_class(single, device)):
        return kept[0]._replace(is_of_class=False)
    scheduled = scheduled_key(key, device, schedules_of(device).digest)
    with store().build_lock(
        *dict.fromkeys((key, scheduled)), prepare=_import_inductor if needs_inductor else None
    ) as is_stored:
        if is_stored:
            return STORED_MEANWHILE
        if kept := _plans_of_class(single, device):
            return kept[0]._replace(is_of_class=False)
        answer = _build(name, make)
        if answer.refusal and not (answer.is_of_class or code_of(answer.refusal) in _TRANSIENT_CODES):
            store().save_single(single, sizes, answer)
        else:
            store().save(scheduled if _has_schedule(answer) else key, sizes, answer)
    return answer


def _refusal_of(name: str, arguments: Sequence[Any]) -> Refusal | None:
    """Return the refusal of an operator or of such tensors, if it is known without tracing."""
    if not name.startswith(_NAMESPACES):
        return OperatorRefusal("it is not one of torch's own operators [foreign]")
    try:
        check_refused(name, tensors_in(arguments))
    except Refusal as refusal:
        return refusal.with_traceback(None)  # without frames, which keep tensors
    return None


def _raise(refusal: Refusal) -> Answer:
    raise refusal


def _import_inductor() -> None:
    with without_own_deprecations(), defer_collection():
        import_inductor()


def _has_schedule(answer: Answer) -> bool:
    """Return True if a kernel has a tunable schedule, which the device's memory and its table of schedules decide."""
    return any(SCHEDULE.encode() in kernel.code for kernel in answer.kernels)


def _build(name: str, make: Callable[[], Answer]) -> Answer:
    route.begin(name)
    try:
        with defer_collection():
            answer = make()
        route.end(answer.text, answer.kernels)
        return answer
    except Refusal as refusal:
        route.end(refusal=str(refusal))
        return refused(refusal)
    except _TRANSIENT_ERRORS as error:
        _log.debug("no plan for %s now", name, exc_info=True)
        error.__context__ = None
        raise error.with_traceback(None) from None  # without frames, which keep tensors
    except Exception as error:  # noqa: BLE001 - becomes the reason of a refusal
        # The arguments are wrong, or no lowering handles the case: the next provider decides.
        _log.debug("no plan for %s", name, exc_info=True)
        first = str(error).strip().partition("\n")[0]
        reason = f"building its plan raised {type(error).__name__}: {first}"[:300]
        reported = CallRefusal(f"{reason} [upstream]")
        route.end(refusal=str(reported))
        if author := author_of(error):
            warnings.warn(
                f"{author} failed while generating a kernel for {name} ({reason}). The call runs without a "
                "generated kernel, which may be slow. Please report this bug, with the log of "
                f"{__name__} at level DEBUG",
                RuntimeWarning,
                stacklevel=1,
            )
        return refused(reported)  # another size, option or attempt may succeed


def _build_chunks(name: str, arguments: Sequence[Any], device: int) -> Answer:
    _import_inductor()
    from torch_outboard.kernels.plans.chunks import chunk_generator, lower_chunks

    generator = chunk_generator(type(generators().eager()), generators().driver)
    place = torch.device(generators().driver.name, device)
    try:
        text, programs = lower_chunks(name, arguments, place, generator)
    finally:
        _forget_fakes()
    return Answer(text, [_kernel(name, number, program) for number, program in enumerate(programs)])


def _build_or_refuse(
    name: str,
    holder: list[Sequence[Any]],
    places: list[int],
    is_aliased: bool,
    device: Any,
    strides: Sequence[Sequence[int] | None],
    symbols: list[int],
) -> Answer:
    _import_inductor()
    from torch_outboard.kernels.plans.lower import eager_generator, lower
    from torch_outboard.kernels.plans.text import NotAFormula
    from torch_outboard.kernels.plans.trace import OperatorCall, trace

    kind = type(generators().eager())
    generator = eager_generator(kind, generators().driver)
    real = generator.dialect.real  # type: ignore[attr-defined]
    unread = without_readers(name)
    call = OperatorCall(
        name, holder.pop(), [place for place in places if place not in unread], is_aliased, device, strides, symbols
    )
    dimensions = next((tensor.dim() for tensor in tensors_in(call.arguments)), 0)
    failure: Exception | None = None
    try:
        for is_static in (False, True):
            try:
                plan, programs = lower(call, trace(call, is_static, real), generator)
                kernels = [_kernel(name, number, program, dimensions) for number, program in enumerate(programs)]
                return Answer(plan.text(), kernels)
            except (Refusal, *_TRANSIENT_ERRORS):
                raise
            except NotAFormula as error:
                failure = error
            except Exception as error:  # noqa: BLE001 - raised below; some decompositions take only known sizes
                failure = failure or error
        assert failure is not None
        raise failure
    finally:
        # Inductor's objects refer to each other, and a failure's traceback refers to them, until
        # Python collects them. Do not let them keep the arguments.
        call.arguments = ()
        del failure
        _forget_fakes()


def _forget_fakes() -> None:
    """Clear torch's caches of fake tensors and of their sizes, which keep each traced graph alive."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    FakeTensorMode.cache_clear()
    for function in vars(ShapeEnv).values():
        if clear := getattr(function, "cache_clear", None):
            clear()


def _kernel(operator: str, number: int, program: DeviceProgram, dimensions: int = 0) -> KernelRecord:
    from torch_outboard.codegen.kernel.checks import of_operator

    checks = tuple(of_operator(check, base_name(operator), dimensions) for check in program.checks)
    return program.record()._replace(name=f"{operator}/{number}", checks=checks)
