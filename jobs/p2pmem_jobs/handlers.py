"""Handlers: what runs the jobs of a kind, and what happens when one raises."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, is_dataclass
from enum import Enum, unique
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import trio

from . import codec
from .errors import MisuseError, OutsideError, PermanentError, TransientError

if TYPE_CHECKING:
    from .context import Context

A = TypeVar("A")
R = TypeVar("R")
KIND_CHARACTERS_MAX = 64
FACTOR_MAX = 1_000
CAP_S_MAX = 10 * 365 * 86_400.0


@unique
class ErrorClass(Enum):
    """What an error says about trying again.

    TRANSIENT: the world was not ready; later it may be. PERMANENT: it will be the same for ever. UNKNOWN: nobody
    thought of this one; a few tries, and then it is for a person.
    """

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNKNOWN = "unknown"


def classify(error: BaseException) -> ErrorClass:
    """The class of an error where a handler brings no rule of its own. A group is as bad as the worst in it."""
    if isinstance(error, BaseExceptionGroup):
        classes = {classify(inner) for inner in error.exceptions}
        for worst in (ErrorClass.PERMANENT, ErrorClass.UNKNOWN):
            if worst in classes:
                return worst
        return ErrorClass.TRANSIENT
    if isinstance(error, PermanentError | MisuseError):
        return ErrorClass.PERMANENT
    if isinstance(error, TransientError | OutsideError | OSError | trio.TooSlowError | trio.BrokenResourceError):
        return ErrorClass.TRANSIENT
    return ErrorClass.UNKNOWN


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a failed run is tried again: after `first_s`, `factor` times longer each time, at most `cap_s`.

    jitter: the share of the delay that is random, so that jobs that failed together do not come back together.
    transient_runs, unknown_runs: runs that may end in an error of that class before the job fails.
    """

    first_s: float = 1.0
    factor: float = 2.0
    cap_s: float = 600.0
    jitter: float = 0.25
    transient_runs: int = 12
    unknown_runs: int = 3

    def __post_init__(self) -> None:
        if not (0 <= self.first_s <= self.cap_s <= CAP_S_MAX and 1 <= self.factor <= FACTOR_MAX):
            raise MisuseError(
                f"{self}: first_s >= 0, factor from 1 to {FACTOR_MAX}, and cap_s from first_s to {CAP_S_MAX:.0f}"
            )
        if not 0 <= self.jitter <= 1:
            raise MisuseError(f"{self}: jitter is from 0 to 1")
        if self.transient_runs < 1 or self.unknown_runs < 1:
            raise MisuseError(f"{self}: a job has at least one run")

    def runs(self, error_class: ErrorClass) -> int:
        if error_class is ErrorClass.PERMANENT:
            return 1
        return self.transient_runs if error_class is ErrorClass.TRANSIENT else self.unknown_runs

    def delay_ms(self, failures: int, fraction: float) -> int:
        """How long to wait after that many failed runs. `fraction`, from 0 to 1, is the random part."""
        assert failures >= 1
        assert 0 <= fraction <= 1
        # 64 doublings are far beyond any cap, and a float does not overflow, by FACTOR_MAX neither
        delay_s = min(self.cap_s, self.first_s * self.factor ** min(failures - 1, 64))
        return round(delay_s * (1 - self.jitter * fraction) * 1000)


@dataclass(frozen=True, slots=True)
class Handler(Generic[A, R]):
    """A kind of job. Made by `Queue.handler`; call it directly to test the function alone."""

    kind: str
    version: int
    accepts: frozenset[int]
    fn: Callable[[Context, A], Awaitable[R]]
    args_type: type[A]
    returns: Any
    retry: RetryPolicy
    classify: Callable[[BaseException], ErrorClass]
    concurrency: int

    async def __call__(self, context: Context, args: A) -> R:
        return await self.fn(context, args)


def make_handler(
    fn: Callable[[Context, A], Awaitable[R]],
    kind: str,
    version: int,
    accepts: Collection[int],
    retry: RetryPolicy,
    classify: Callable[[BaseException], ErrorClass],
    concurrency: int,
) -> Handler[A, R]:
    """Checks all that can be checked before there is a job. Errors: `MisuseError`, saying what to change."""
    if not kind or len(kind) > KIND_CHARACTERS_MAX or not kind.isprintable():
        raise MisuseError(f"a kind is 1 to {KIND_CHARACTERS_MAX} printable characters, not {kind!r}")
    if any(type(each) is not int or each < 1 for each in (version, *accepts)):
        raise MisuseError(f"{kind}: versions count from 1")
    if type(concurrency) is not int or concurrency < 1:
        raise MisuseError(f"{kind}: a concurrency of {concurrency} would run nothing; use pause() for that")
    args_type, returns = _types(fn, kind)
    return Handler(kind, version, frozenset({version, *accepts}), fn, args_type, returns, retry, classify, concurrency)


def _types(fn: Callable[..., Any], kind: str) -> tuple[type[Any], Any]:
    if not inspect.iscoroutinefunction(fn):
        raise MisuseError(f"{kind}: a handler is an async function of (context, arguments)")
    parameters = list(inspect.signature(fn).parameters)
    try:
        hints = typing.get_type_hints(fn, localns={"Context": object})
    except NameError as error:
        raise MisuseError(f"{kind}: its annotations cannot be resolved ({error}); define them in a module") from error
    if len(parameters) != 2 or not is_dataclass(hints.get(parameters[1])):
        raise MisuseError(
            f"{kind}: a handler takes (context, arguments), where arguments is annotated with a dataclass"
        )
    if "return" not in hints:
        raise MisuseError(f"{kind}: annotate what the handler returns; the result is stored by that type")
    args_type, returns = hints[parameters[1]], hints["return"]
    codec.check_declared(args_type, f"{kind}: the arguments")
    codec.check_declared(returns, f"{kind}: the result")
    return args_type, returns
