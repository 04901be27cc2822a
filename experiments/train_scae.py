r"""Trains a stacked capsule autoencoder: parts and objects without labels.

  python -m experiments.train_scae --workdir=runs/scae --data_dir=DIR \
    --flagfile=experiments/presets/scae/scae_mnist_cpu.cfg

Kosiorek, Sabour, Teh, Hinton (2019), Stacked capsule autoencoders.
"""

from absl import flags

from capjax.scae import SCAE, SCRIPT_WEIGHTS, Weights
from capjax.specs import Spec

from . import launch
from .flags import (
  arithmetic,
  augmentation,
  errors,
  hosts,
  limits,
  optimizer,
  runs,
  scenes,
)
from .tasks import scae
from .tasks.scenes import Scene
from .training.augmentation import Placement
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
_NUM_CLASSES = flags.DEFINE_integer(
  "num_classes",
  None,
  "For images without labels: the number of kinds of objects that they show, "
  "on which the sparsity of presences depends; 10 by default. With labels it "
  "is the number of their classes.",
  lower_bound=1,
)
_TEMPLATE_SIZE = flags.DEFINE_integer(
  "template_size",
  11,
  "Height and width of a template, in pixels.",
  lower_bound=2,
)
_NUM_FEATURES = flags.DEFINE_integer(
  "num_features",
  16,
  "Number of special features of a part; with 0 templates have no colours.",
  lower_bound=0,
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
_PART_ENCODER = flags.DEFINE_enum(
  "part_encoder",
  "attention",
  ["attention", "conv", "linear", "pixels"],
  "What follows the convolutions of the part encoder: attention, a map for "
  "each part, as in the paper; conv, means over positions; linear, one dense "
  "layer. pixels is one dense layer of the image, for which "
  "--encoder_features has no effect.",
)
_OBJECT_ENCODER = flags.DEFINE_enum(
  "object_encoder",
  "set_transformer",
  ["set_transformer", "mlp"],
  "Network that finds objects from parts: the paper's set transformer, or an "
  "MLP with one hidden layer.",
)
_DEFORMATIONS = flags.DEFINE_bool(
  "deformations",
  True,
  "Let the relations of objects to their parts depend on the image; without it "
  "--dynamics_weight has no effect.",
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
    SCRIPT_WEIGHTS._asdict().items(),
    (
      "Weight of the log-likelihood of parts; that of images has weight 1.",
      "Weight of half the squared deformations of objects (--deformations).",
      "Weight of the squared error of the number of objects in an image.",
      "Weight of the squared error of the number of images of an object.",
      "Weight of the entropy of the objects that explain one image.",
      "Weight of the entropy of the objects that explain all images of a "
      "batch; this entropy is maximised.",
    ),
    strict=True,
  )
}
flags.set_default(runs.NUM_STEPS, 300_000)
flags.set_default(augmentation.MAX_SHIFT, 0)
flags.set_default(hosts.CPU_DEVICES, 0)


def make_task() -> Task:
  """The task that the flags describe."""
  arguments = dict(
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
    part_encoder=_PART_ENCODER.value,
    object_encoder=_OBJECT_ENCODER.value,
    deformations=_DEFORMATIONS.value,
    edges=_EDGES.value,
    dtype=arithmetic.dtype(),
  )
  if _NUM_CLASSES.value:
    arguments["num_classes"] = _NUM_CLASSES.value
  weights = {name: flag.value for name, flag in _WEIGHTS.items()}
  scene = _scene()
  placed = {"scene": scene} if scene else {"placement": _placement()}
  return scae.make_task(
    Spec(SCAE, arguments),
    optimizer.make_optimizer(),
    **placed,
    weights=Weights(**weights),
    noise=_NOISE.value,
  )


def _placement() -> Placement:
  """How images of one object are placed."""
  limits.refuse("training without --scene", ["pad"])
  return augmentation.placement()


def _scene() -> Scene | None:
  """How two images are combined into one; None for images of one object.

  Raises:
    ValueError: if a flag is not used, or there is no canvas to move objects on.
  """
  kind = scenes.SCENE.value
  if kind is None:
    return None
  unused = [name for name in augmentation.DEFORMATIONS if name != "canvas"]
  unused += ["canvas"] if kind == "multimnist" else ["pad", "max_shift"]
  limits.refuse(f"--scene={kind}", unused)
  canvas = augmentation.CANVAS.value
  if kind == "affnist_like" and not canvas:
    raise ValueError(
      "--scene=affnist_like moves objects on a canvas; give its side, such as "
      "--canvas=40"
    )
  max_shift = augmentation.MAX_SHIFT
  if kind == "multimnist" and not max_shift.present:
    raise ValueError(
      "--scene=multimnist shifts the images that it overlays; say how far, "
      "such as --max_shift=4, or 0 for images that stay where they are"
    )
  return Scene(kind, scenes.PAD.value, max_shift.value, canvas)


def main() -> None:
  with errors.clear_errors():
    optimizer.check_flags()
    limits.refuse("train_scae", ["stop_accuracy"])
    if _OBJECT_ENCODER.value == "mlp":
      limits.refuse("--object_encoder=mlp", ["masking"])
  launch.train(make_task)


if __name__ == "__main__":
  limits.require_folder_of_run()
  limits.run(main)
