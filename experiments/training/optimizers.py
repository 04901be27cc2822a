"""Optimisers, and schedules of their learning rate."""

import jax.numpy as jnp
import optax


def make_schedule(
  num_steps: int,
  *,
  peak: float,
  kind: str = "exponential",
  warmup_steps: int = 0,
  decay_rate: float = 0.96,
  decay_steps: int | None = 2000,
  final: float = 0.0,
  final_fraction: float | None = None,
) -> optax.Schedule:
  """The learning rate as a function of the step.

  `exponential` is that of the code of Sabour et al. (2017): max(peak *
  decay_rate^(step / decay_steps), final), continuous in the step; with
  `final_fraction` it is max(peak * final_fraction^(step / num_steps), final),
  of steps after the warm-up. `cosine` falls to `final` at the last step.

  Args:
    num_steps: updates in all.
    peak: the rate after the warm-up.
    kind: `exponential` or `cosine`.
    warmup_steps: steps in which the rate rises from 0.
    decay_rate: factor of the rate every `decay_steps`.
    decay_steps: None for a hundredth of `num_steps`.
    final: the rate falls no lower; at most `peak`.
    final_fraction: share of `peak` that an exponential comes to at the last
      step, in the place of `decay_rate` and `decay_steps`.
  """
  final, falling = min(final, peak), max(1, num_steps - warmup_steps)
  if kind == "cosine":
    schedule = optax.cosine_decay_schedule(
      peak, falling, alpha=final / (peak or 1.0)
    )
  else:
    rate, every = decay_rate, decay_steps or num_steps / 100
    if final_fraction is not None:
      rate, every = final_fraction, falling

    # optax's takes a rate of 0 for none, and of 1 for growth.
    def schedule(step):
      return jnp.maximum(peak * rate ** (step / every), final)

  if warmup_steps:
    rise = optax.linear_schedule(0.0, peak, warmup_steps)
    schedule = optax.join_schedules([rise, schedule], [warmup_steps])
  return schedule


def tensorflow_rmsprop(
  schedule: optax.Schedule, *, epsilon: float, momentum: float = 0.9
) -> optax.GradientTransformation:
  """RMSProp as in TensorFlow 1.

  Means of squares start at 1 and forget at 0.9, `epsilon` is added under the
  root, and momentum adds up steps that are already scaled by the learning rate.
  """
  return optax.rmsprop(
    schedule,
    decay=0.9,
    eps=epsilon,
    initial_scale=1.0,
    eps_in_sqrt=True,
    momentum=momentum,
  )
