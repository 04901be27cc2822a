r"""Trains a stacked capsule autoencoder: parts and objects without labels.

  python -m experiments.train_scae --workdir=runs/scae --data_dir=DIR \
    --flagfile=experiments/presets/scae/scae_mnist_cpu.cfg

Kosiorek, Sabour, Teh, Hinton (2019), Stacked capsule autoencoders.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from absl import app, flags

from capjax import scae
from capjax.scae import objects as object_capsules
from capjax.specs import Spec

from . import launch
from .evaluation import linear_probes
from .evaluation import scae as objects
from .flags import augmentation, limits, optimizer, runs
from .training import train_step
from .training.task import Task

_NUM_PARTS = flags.DEFINE_integer(
  "num_parts",
  40,
  "Number of part capsules; each has a template.",
  lower_bound=1,
)
_NUM_OBJECTS = flags.DEFINE_integer(
  "num_objects", 32, "Number of object capsules.", lower_bound=1
)
_TEMPLATE_SIZE = flags.DEFINE_integer(
  "template_size",
  11,
  "Height and width of a template, in pixels.",
  lower_bound=2,
)
_NUM_FEATURES = flags.DEFINE_integer(
  "num_features", 16, "Number of special features of a part.", lower_bound=1
)
_ENCODER_FEATURES = flags.DEFINE_integer(
  "encoder_features",
  128,
  "Channels of the part encoder's convolutions.",
  lower_bound=1,
)
_NONLINEARITY = flags.DEFINE_enum(
  "nonlinearity",
  "sigmoid",
  ["sigmoid", "relu1"],
  "Nonlinearity of templates and colours.",
)
_MIXING = flags.DEFINE_enum(
  "mixing",
  "alpha",
  ["alpha", "coupled"],
  "How parts share a pixel: alpha uses learned alpha channels; coupled "
  "prefers brighter parts.",
)
_KIND = flags.DEFINE_enum(
  "kind", "affine", ["affine", "similarity"], "Kind of the poses of objects."
)
_NORMALISE = flags.DEFINE_enum(
  "normalise",
  "none",
  ["none", "votes", "all"],
  "Normalisation of the weights of votes: none, as in the authors' code; "
  "votes, sum 1 over the votes for a part; or all, sum 1 over all votes, as "
  "in the paper.",
)
_MASKING = flags.DEFINE_enum(
  "masking",
  "log_presence",
  ["log_presence", "near_hard"],
  "How attention ignores absent parts; near_hard is that of the authors' code.",
)
_NOISE = flags.DEFINE_bool(
  "noise", True, "Add noise to the logits of presence in training."
)
_EDGES = flags.DEFINE_bool(
  "edges",
  False,
  "Let parts explain the strength of edges instead of intensities.",
)
_WEIGHTS = {
  name: flags.DEFINE_float(f"{name}_weight", default, text, lower_bound=0.0)
  for (name, default), text in zip(
    scae.SCRIPT_WEIGHTS._asdict().items(),
    (
      "Weight of the log-likelihood of parts; that of images has weight 1.",
      "Weight of the squared changes of relations between images.",
      "Weight of the squared error of the number of objects in an image.",
      "Weight of the squared error of the number of images of an object.",
      "Weight of the entropy of the objects that explain one image.",
      "Weight of the entropy of the objects that explain all images.",
    ),
    strict=True,
  )
}
flags.set_default(runs.NUM_STEPS, 300_000)
flags.set_default(augmentation.MAX_SHIFT, 0)


def describe(image_shape: Sequence[int], num_classes: int) -> Spec:
  """The autoencoder that the flags describe."""
  arguments = dict(
    image_shape=augmentation.canvas_of(image_shape),
    num_classes=num_classes,
    num_parts=_NUM_PARTS.value,
    num_objects=_NUM_OBJECTS.value,
    template_size=_TEMPLATE_SIZE.value,
    num_features=_NUM_FEATURES.value,
    encoder_features=_ENCODER_FEATURES.value,
    nonlinearity=_NONLINEARITY.value,
    mixing=_MIXING.value,
    kind=_KIND.value,
    normalise=_NORMALISE.value,
    masking=_MASKING.value,
    edges=_EDGES.value,
  )
  return Spec(scae.SCAE, arguments)


def loss(
  model: scae.SCAE,
  images: jax.Array,
  labels: jax.Array,
  key: jax.Array,
  step: jax.Array,
) -> tuple[jax.Array, train_step.Metrics]:
  """The loss of a batch, its terms, and the shares of inactive objects."""
  del step
  weights = {name: flag.value for name, flag in _WEIGHTS.items()}
  value, terms = scae.loss(
    model,
    images,
    labels,
    key if _NOISE.value else None,
    weights=scae.Weights(**weights),
  )
  return value, {**terms, "flat_templates": scae.flat_templates(model)}


def measure(
  model: scae.SCAE, images: jax.Array, labels: jax.Array
) -> train_step.Metrics:
  """Log-likelihoods, accuracies of the probes, and presences of objects."""
  output = model(images)
  targets = model.targets(images)
  explained = model.decoder.explain(targets, output.parts)
  errors = jnp.abs(explained.mean - targets)
  right = {
    f"{name}_probe_accuracy": jnp.argmax(logits, axis=-1) == labels
    for name, logits in (
      ("prior", output.prior_logits),
      ("posterior", output.posterior_logits),
    )
  }
  return {
    "image_log_prob": explained.log_prob,
    "reconstruction_error": jnp.mean(errors, axis=(1, 2, 3)),
    "part_log_prob": output.objects.log_prob,
    "present_parts": jnp.sum(output.parts.presence, axis=1),
    "activations": scae.shares_won(output.objects),
    **{name: x.astype(jnp.float32) for name, x in right.items()},
  }


def features(model: scae.SCAE, images: jax.Array) -> dict[str, jax.Array]:
  """Posterior presences of objects, and their poses, for linear probes."""
  objects = model(images).objects
  poses = object_capsules.entries(objects.poses)
  return linear_probes.features(objects.posterior_presence(), poses)


TASK = Task(
  describe,
  loss,
  measure,
  sample=train_step.sample_labelled(augmentation.augment_image),
  sample_test=train_step.sample_labelled(augmentation.test_image),
  make_optimizer=optimizer.make_optimizer,
  suites=lambda model: [
    "errors",
    "explanations",
    "objects",
    "clusters",
    "label_curve",
    "affnist_like_clusters",
    "linear",
  ],
  after_training=("errors", "explanations", "objects", "clusters"),
  chosen_by=None,
  warn=lambda scores: objects.warn(scores, _NUM_PARTS.value),
  prepare=augmentation.prepare_image,
  features=features,
)


def main(argv: Sequence[str]) -> None:
  if len(argv) > 1:
    raise app.UsageError(f"unexpected arguments: {argv[1:]}")
  with runs.clear_errors():
    runs.refuse("train_scae", ["stop_accuracy"])
  launch.train(TASK)


if __name__ == "__main__":
  flags.mark_flag_as_required("workdir")
  limits.run(main)
