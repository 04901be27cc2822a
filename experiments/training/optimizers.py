"""Optimisers and schedules of their learning rate."""

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
  where steps count from the end of the warm-up. `cosine` falls to `final` at
  the last step.

  Args:
    num_steps: total number of updates.
    peak: the learning rate after the warm-up.
    kind: `exponential` or `cosine`.
    warmup_steps: number of steps in which the learning rate rises from 0.
    decay_rate: factor that multiplies the learning rate every `decay_steps`.
    decay_steps: None for a hundredth of `num_steps`.
    final: lower limit of the learning rate; at most `peak`.
    final_fraction: learning rate at the last step as a fraction of `peak`, for
      `exponential`; replaces `decay_rate` and `decay_steps`.
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

    # optax treats a rate of 0 as no decay, and refuses a rate of 1.
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

  The mean squares start at 1 and have a decay of 0.9; `epsilon` is added before
  the root; momentum accumulates steps already scaled by the learning rate.
  """
  return optax.rmsprop(
    schedule,
    decay=0.9,
    eps=epsilon,
    initial_scale=1.0,
    eps_in_sqrt=True,
    momentum=momentum,
  )
