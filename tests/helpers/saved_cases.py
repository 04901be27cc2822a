"""A small model of each family, as specs, with the shape of its images."""

import jax
import numpy as np
from flax import nnx

import capjax
from capjax import baselines, saved
from capjax.data.transforms.preprocessing import Preprocessing
from capjax.generative import amortised
from capjax.specs import Spec

_CAPSNET = dict(
  image_shape=(12, 12, 1), num_classes=3, conv_features=4, conv_kernel=3,
  num_types=2, primary_kernel=3, decoder_features=(8,),
)  # fmt: skip
SPECS = {
  "capsnet": Spec(capjax.CapsNet, _CAPSNET),
  "bfloat16": Spec(capjax.CapsNet, _CAPSNET | {"dtype": "bfloat16"}),
  "self_routing": Spec(capjax.CapsNet, _CAPSNET | {"routing": "self"}),
  "efficient": Spec(
    capjax.EfficientCapsNet,
    dict(
      image_shape=(12, 12, 1), num_classes=3, conv_features=(4, 8),
      conv_kernels=(3, 3), conv_strides=(1, 2), decoder_features=(8,),
    ),
  ),
  "baseline": Spec(
    baselines.CapsNetBaseline,
    dict(
      image_shape=(12, 12, 1), num_classes=3, conv_features=(4,),
      dense_features=(8,),
    ),
  ),
  "matrix": Spec(
    capjax.MatrixCapsules,
    dict(
      image_shape=(20, 20, 2), num_classes=3, features=4, types=(2, 2, 2),
      num_iterations=1,
    ),
  ),
  "scae": Spec(
    capjax.SCAE,
    dict(
      image_shape=(28, 28, 1), num_classes=3, num_parts=3, num_objects=4,
      encoder_features=4, template_size=5, num_features=2,
    ),
  ),
  "constellation": Spec(
    capjax.ConstellationAutoencoder,
    dict(width=8, num_blocks=1, summary=4, code=4, hidden=4),
  ),
  "generative": Spec(
    amortised.amortised_capsules,
    dict(
      image_shape=(12, 12, 1), num_capsules=(3, 2), template_size=5,
      conv_features=(4, 4), width=8, gaussian_poses=True,
    ),
  ),
  "rbm": Spec(
    capjax.CapsuleRBM,
    dict(image_shape=(6, 6, 1), num_capsules=3, capsule_size=2, num_chains=2),
  ),
  "plain_rbm": Spec(
    capjax.CapsuleRBM,
    dict(
      image_shape=(6, 6, 1), num_capsules=3, capsule_size=2, switches=False
    ),
  ),
  "helmholtz": Spec(
    capjax.CapsuleHM,
    dict(image_shape=(6, 6, 1), num_capsules=(3, 2), capsule_size=2),
  ),
  "vae": Spec(
    baselines.ConvVAE,
    dict(image_shape=(12, 12, 1), num_latents=3, features=(4, 4)),
  ),
  "transforming": Spec(
    capjax.TransformingAutoencoder,
    dict(
      image_shape=(12, 12, 1), num_capsules=3, recognition_units=2,
      generation_units=2, pose="affine", output="sigmoid",
    ),
  ),
  "slots": Spec(
    capjax.SlotAutoencoder,
    dict(
      image_shape=(12, 12, 1), num_slots=2, slot_size=4, features=4,
      num_convs=2, invariant=True,
    ),
  ),
}  # fmt: skip
TAKE_POINTS = {"constellation"}


def image_shape(name):
  return SPECS[name].arguments.get("image_shape", (1, 1, 1))


def trained(name, *, seed=0, **options):
  """A model of a family, with every number changed from its initial value."""
  model = SPECS[name].make(nnx.Rngs(seed))
  rng = np.random.default_rng(seed)
  state = jax.tree.map(
    lambda x: x + 0.01 * rng.normal(size=x.shape).astype(x.dtype),
    nnx.state(model),
  )
  nnx.update(model, state)
  options = {
    "image_shape": image_shape(name),
    "class_names": ("a", "b", "c"),
  } | options
  return saved.TrainedModel(model, saved.make_card(SPECS[name], **options))


def images(shape, count=5):
  return np.random.default_rng(1).integers(0, 256, (count, *shape), np.uint8)


STEPS = {
  "none": Preprocessing(),
  "canvas": Preprocessing(canvas=(20, 22)),
  "stereo": Preprocessing(downsample=24, crop=20, standardise=True),
  "crop last": Preprocessing(
    downsample=24, crop=20, standardise=True, crop_last=True
  ),
}
