"""Times a training step of the stacked capsule autoencoder, and its renderer.

  python -m experiments.benchmarks.scae

First times the whole step, as trained on MNIST, on one device and on the cores
of a CPU as several devices, each in a process of its own. Then times components
of the step. Finally compares the rendering of the parts of a batch and their
mixture, and its gradient, with the textbook's four gathers, in turns in one
process.

The step has two lower bounds: the operations of its products divided by the
matmul rate; and the bytes of every pixel of every part, once for the image and
once for the gradient, divided by the memory rate.
"""

import functools
import math

import jax
import jax.numpy as jnp
from absl import flags
from flax import nnx

from capjax import scae
from capjax.kernels import geometry, rendering

from ..flags import limits
from ..training import train_step
from . import harness, rows, step_cost, textbook

_BATCH = flags.DEFINE_integer("batch", 128, "Images.", lower_bound=1)
_CANVAS = flags.DEFINE_integer(
  "canvas", 40, "Pixels along a side.", lower_bound=23
)
_NUM_PARTS = flags.DEFINE_integer(
  "num_parts", 40, "Part capsules.", lower_bound=1
)
_NUM_OBJECTS = flags.DEFINE_integer(
  "num_objects", 32, "Object capsules.", lower_bound=1
)
_ENCODER_FEATURES = flags.DEFINE_integer(
  "encoder_features", 128, "Channels.", lower_bound=1
)
_STEPS = 10  # timed, of the whole step


def time_step(
  batch: int, side: int, num_steps: int, **sizes: int
) -> step_cost.StepCost:
  """Trains an autoencoder on noise.

  Args:
    batch: number of images in a step.
    side: pixels along a side of an image.
    num_steps: number of timed steps.
    **sizes: counts of the model, as for `scae.SCAE`.
  """
  shape = (side, side, 1)

  def loss(model, images, labels, key, step):
    del step
    return scae.loss(model, images, labels, key)

  return step_cost.time_step(
    scae.SCAE(shape, 10, **sizes, rngs=nnx.Rngs(0)),
    loss,
    train_step.sample_labelled(lambda key, image: image),
    image_shape=shape,
    num_classes=10,
    batch=batch,
    num_steps=num_steps,
  )


def mix(warp, templates: jax.Array, poses: jax.Array, images: jax.Array):
  """Renders the parts of each image, and mixes them; returns a likelihood."""

  @jax.checkpoint
  def one(arguments):
    poses, image = arguments
    rendered = jax.vmap(warp, (0, 0, None))(
      templates, poses, (_CANVAS.value,) * 2
    )
    parts, logits = jnp.split(rendered, 2, axis=-1)
    presence, zero = jnp.ones(len(parts)), jnp.zeros(1)
    mixture = rendering.explain_image(
      image, parts, logits, presence, zero, zero
    )
    return mixture.log_prob

  return jnp.sum(jax.lax.map(one, (poses, images)))


def num_operations(parameters, batch: int) -> int:
  """Operations of the products of a step: three times the forward pass."""
  size, total = _CANVAS.value, 0
  for conv, stride in zip(
    parameters["encoder"]["convs"].values(), (2, 2, 1, 1), strict=True
  ):
    size = (size - 3) // stride + 1
    total += size**2 * conv["kernel"].size
  # Attention maps and the sums that they weight, then the numbers of each part.
  width = parameters["encoder"]["maps"]["kernel"].shape[2]
  total += 2 * size**2 * width * _NUM_PARTS.value
  total += parameters["encoder"]["maps"]["kernel"].size
  total += sum(
    math.prod(x.shape) for x in jax.tree.leaves(parameters["objects"])
  )
  return 3 * 2 * batch * total


def time_steps(setting: str, floor: tuple[float, float], **sizes: int) -> None:
  """Times whole training steps on one device, and on the cores of a CPU.

  Args:
    setting: canvas and batch, for the rows.
    floor: lower bounds in seconds, from operations and from bytes.
    **sizes: arguments of the autoencoder.
  """
  batch = _BATCH.value
  for devices in step_cost.cpu_divisions(batch):
    cost = step_cost.in_process(
      functools.partial(time_step, **sizes),
      batch,
      _CANVAS.value,
      _STEPS,
      environment=devices.environment,
    )
    name = f"whole step{devices.remark}"
    row = cost.row(f"SCAE, {name}", setting)
    rows.note(row._replace(operations=floor[0], transfer=floor[1]))
    print(f"{name:30s} {cost.describe(batch)}", flush=True)


def time_parts(model: scae.SCAE, images: jax.Array, setting: str) -> None:
  """Times the encoder and the likelihood of images, with their gradients."""
  graph, parameters, rest = nnx.split(model, nnx.Param, ...)
  output = jax.jit(lambda model: model(images))(model)

  def encode(parameters):
    parts = nnx.merge(graph, parameters, rest).encoder(images)
    return sum(map(jnp.sum, parts))

  def explain(decoder, parts):
    graph, _, rest = nnx.split(model.decoder, nnx.Param, ...)
    return jnp.sum(nnx.merge(graph, decoder, rest).log_prob(images, parts))

  explained = nnx.state(model.decoder, nnx.Param), output.parts
  batch = len(images)
  print(f"batch {batch:28d}      seconds  images/s  temporary MB")
  for name, function, arguments in (
    ("encoder, gradient", jax.grad(encode), (parameters,)),
    ("image likelihood", explain, explained),
    ("image likelihood, gradient", jax.grad(explain, (0, 1)), explained),
  ):
    (cost,) = harness.measure_all([function], *arguments)
    rows.note(rows.Row(f"SCAE, {name}", setting, cost.seconds))
    print(
      f"{name:30s} {1e3 * cost.seconds:9.1f} ms {batch / cost.seconds:9.0f}"
      f" {cost.temporary_bytes / 1e6:13.1f}",
      flush=True,
    )


def race_mixtures(model: scae.SCAE, images: jax.Array, setting: str) -> None:
  """Times rendered parts in a mixture beside the textbook's form."""
  templates = jnp.concatenate(
    [model.decoder.templates(), model.decoder.alphas[...]], axis=-1
  )
  shape = (len(images), _NUM_PARTS.value, 6)
  raw = jax.random.normal(jax.random.key(1), shape) / 2
  poses = geometry.pose_matrix(raw)
  for name, form in (
    ("parts in a mixture", lambda f: f),
    ("parts in a mixture, gradient", lambda f: jax.grad(f, (0, 1))),
  ):
    own, other = harness.measure_all(
      [
        form(functools.partial(mix, rendering.warp)),
        form(functools.partial(mix, textbook.warp)),
      ],
      templates,
      poses,
      images,
    )
    rows.note(rows.Row(f"SCAE, {name}", setting, own.seconds, other.seconds))
    print(
      f"{name:30s} {1e3 * own.seconds:9.1f} ms, textbook "
      f"{1e3 * other.seconds:.1f} ms: {other.seconds / own.seconds:.2f}x faster"
    )


def main() -> None:
  flops, transfer = harness.rates()
  batch, side = _BATCH.value, _CANVAS.value
  sizes = dict(
    num_parts=_NUM_PARTS.value,
    num_objects=_NUM_OBJECTS.value,
    encoder_features=_ENCODER_FEATURES.value,
  )
  model = scae.SCAE((side, side, 1), 10, **sizes, rngs=nnx.Rngs(0))
  images = jax.random.uniform(jax.random.key(0), (batch, side, side, 1))
  parameters = nnx.to_pure_dict(nnx.state(model, nnx.Param))
  pixels = batch * _NUM_PARTS.value * side**2 * 2 * 4
  floor = num_operations(parameters, batch) / flops, 2 * pixels / transfer
  setting = f"{side}x{side}, batch {batch}"
  time_steps(setting, floor, **sizes)
  time_parts(model, images, setting)
  print(
    f"{'floor':30s} {1e3 * floor[0]:9.1f} ms of products, "
    f"{1e3 * floor[1]:.1f} ms of bytes"
  )
  race_mixtures(model, images, setting)


if __name__ == "__main__":
  limits.run(main)
