"""Forms of a layer for platforms, and which of them are traced.

JAX traces and differentiates every form where a function may be compiled for
several platforms, and keeps one when it compiles. Training states its platform
by `known`, so that only one form is traced.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jaxtyping import Array

_KNOWN: contextvars.ContextVar[tuple[str | None, int]] = contextvars.ContextVar(
  "platform", default=(None, 1)
)


@contextlib.contextmanager
def known(platform: str, num_devices: int = 1) -> Iterator[None]:
  """Traces the forms for one platform alone; a decorator too.

  A function that is traced in this context also runs on other platforms, in the
  form for this platform.

  Args:
    platform: `cpu`, `gpu` and so on, as `jax.Device.platform` names it.
    num_devices: number of devices among which batches are split, in order.
  """
  token = _KNOWN.set((platform, num_devices))
  try:
    yield
  finally:
    _KNOWN.reset(token)


def platform() -> str:
  """The platform that is known, else that of JAX's default devices."""
  return _KNOWN.get()[0] or jax.default_backend()


def choose(
  *arguments: Any,
  cpu: Callable[..., Any],
  default: Callable[..., Any],
  gpu: Callable[..., Any] | None = None,
) -> Any:
  """Calls the form for the platform on which it will run.

  Args:
    *arguments: of all forms.
    cpu: the form for CPUs.
    default: the form for all others.
    gpu: the form for GPUs; None for the default.
  """
  stated, _ = _KNOWN.get()
  forms = {"cpu": cpu}
  if gpu is not None:
    forms |= {"cuda": gpu, "rocm": gpu}
  if stated is None:
    return jax.lax.platform_dependent(*arguments, **forms, default=default)
  if stated == "gpu":  # as JAX calls the devices of both
    stated = "cuda"
  return forms.get(stated, default)(*arguments)


def choose_by_gradient(
  *arguments: Any,
  without: Callable[..., Any],
  differentiated: Callable[..., Any],
) -> Any:
  """Calls one form where only values are wanted, another for derivatives.

  All that is differentiated must be among the arguments: a form that refers to
  such an array from outside raises an error of JAX.

  Args:
    *arguments: of both forms, arrays or None.
    without: the form for values without derivatives.
    differentiated: the form for derivatives of all orders, and for the value
      that is computed with them; its result has the same structure, shapes and
      dtypes.

  Returns:
    The result of one of the forms.
  """
  function = jax.custom_jvp(without)
  function.defjvp(functools.partial(jax.jvp, differentiated))
  return function(*arguments)


def split(x: Array) -> Array:
  """Gives each device its part of a batch: [B ...] becomes [devices B' ...].

  Loops over B' then take an example of each device at a time; loops over B
  would gather the whole batch on every device. There is one part if the number
  of devices does not divide B.

  Args:
    x: the batch, with any further axes.
  """
  devices = num_devices()
  parts = devices if len(x) % devices == 0 else 1
  return x.reshape(parts, -1, *x.shape[1:])


def num_devices() -> int:
  """Number of devices among which batches are split; 1 where none is known."""
  return _KNOWN.get()[1]


def map_examples(function: Callable[[Any], Any], arguments: Any) -> Any:
  """Computes `jax.lax.map`, on each device over its own part of a batch.

  Args:
    function: of one example, without effects.
    arguments: a pytree of arrays with leading axis B.

  Returns:
    The results, with leading axis B.
  """
  parts = jax.tree.map(lambda x: split(x).swapaxes(0, 1), arguments)
  if jax.tree.leaves(parts)[0].shape[1] == 1:
    return jax.lax.map(function, arguments)
  found = jax.lax.map(jax.vmap(function), parts)
  return jax.tree.map(
    lambda x: x.swapaxes(0, 1).reshape(-1, *x.shape[2:]), found
  )
