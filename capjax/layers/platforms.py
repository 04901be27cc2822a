"""Forms of a layer for platforms, and which of them are traced.

JAX traces and differentiates every form where a function may be compiled for
several platforms, and keeps one when it compiles. Training knows its platform.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from typing import Any

import jax

_KNOWN: contextvars.ContextVar[str | None] = contextvars.ContextVar(
  "platform", default=None
)


@contextlib.contextmanager
def known(platform: str) -> Iterator[None]:
  """Traces the forms for one platform alone; a decorator too.

  What is traced within also runs on other platforms, in the form of this one.

  Args:
    platform: `cpu`, or another as `jax.Device.platform` names it.
  """
  token = _KNOWN.set(platform)
  try:
    yield
  finally:
    _KNOWN.reset(token)


def choose(
  *arguments: Any, cpu: Callable[..., Any], default: Callable[..., Any]
) -> Any:
  """Calls the form for the platform on which it will run.

  Args:
    *arguments: of both forms.
    cpu: the form for CPUs.
    default: the form for all others.
  """
  platform = _KNOWN.get()
  if platform is None:
    return jax.lax.platform_dependent(*arguments, cpu=cpu, default=default)
  return (cpu if platform == "cpu" else default)(*arguments)
