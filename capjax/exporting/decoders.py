"""The decoders of trained models, as functions of one example.

There is one function for each family of models; `graphs.graph` lists inputs and
outputs.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy.special
from flax import nnx

from capjax import baselines
from capjax.capsnet import CapsNet
from capjax.efficient_capsnet import EfficientCapsNet
from capjax.generative.guides import AmortisedCapsules
from capjax.generative.model import GenerativeCapsules
from capjax.kernels.matching.selection import Capsules
from capjax.kernels.routing import Frames
from capjax.scae import SCAE, ConstellationAutoencoder, parts
from capjax.slot_autoencoder import SlotAutoencoder
from capjax.transforming import TransformingAutoencoder

Inputs = dict[str, jax.ShapeDtypeStruct]


def decoder(model: nnx.Module) -> tuple[Callable, Inputs]:
  """Returns the decoder of a model as a function of one example.

  Args:
    model: a trained model.

  Returns:
    A function of the inputs, in order, which returns outputs by name; and the
    shape and dtype of each input.

  Raises:
    ValueError: if the model has no decoder.
  """
  for known, decoder_of in _DECODERS.items():
    if isinstance(model, known) and getattr(model, "decoder", True) is not None:
      return decoder_of(model)
  remedy = (
    ""
    if isinstance(model, ConstellationAutoencoder)
    else ("; export the graph 'model'")
  )
  raise ValueError(
    f"this {type(model).__name__} has no decoder that takes poses or latents"
    f"{remedy}."
  )


def floats(**shapes: tuple[int, ...]) -> Inputs:
  """Inputs in float32 with these shapes, by name."""
  return {
    name: jax.ShapeDtypeStruct(shape, jnp.float32)
    for name, shape in shapes.items()
  }


def _of_class_capsules(model):
  poses = jax.eval_shape(model, _blank(model)).poses

  def decode(poses):
    return {"images": model.decoder(poses[None])[0]}

  return decode, floats(poses=poses.shape[1:])


def _of_scae(model):
  count = model.encoder.num_parts
  inputs = floats(
    poses=(count, 3, 3),
    presences=(count,),
    features=(count, model.decoder.num_features),
  )

  def render(poses, presences, features):
    found = parts.Parts(poses[None], presences[None], features[None])
    canvas = jnp.zeros((1, *model.image_shape))  # only the likelihood reads it
    return {"images": model.decoder.explain(canvas, found).mean[0]}

  return render, inputs


def _of_amortised(model):
  return _of_generative(model.capsules)


def _of_generative(model):
  count = model.num_capsules[0]

  def render(poses, presences):
    logits = jax.scipy.special.logit(presences)
    shares = model.shares(Capsules(logits[None], poses[None]))[0]
    return {"images": jnp.sum(shares, axis=0), "shares": shares}

  return render, floats(poses=(count, 6), presences=(count,))


def _of_vae(model):
  means, _ = jax.eval_shape(model.encode, _blank(model))

  def decode(latents):
    return {"images": jax.nn.sigmoid(model.decode(latents[None]))[0]}

  return decode, floats(latents=means.shape[1:])


def _of_slots(model):
  found = jax.eval_shape(model.encode, _blank(model))
  frames = found.frames._asdict() if found.frames else {}
  shapes = {"slots": found.contents, **frames}

  def render(slots, *frames):
    frames = Frames(*(x[None] for x in frames)) if frames else None
    return {"images": model.decode(slots[None], frames)[0][0]}

  return render, floats(**{n: x.shape[1:] for n, x in shapes.items()})


def _of_transforming(model):
  poses, presences = jax.eval_shape(model.recognise, _blank(model))[:2]

  def generate(poses, presences):
    return {"images": model.generate(poses[None], presences[None])[0]}

  return generate, floats(poses=poses.shape[1:], presences=presences.shape[1:])


_DECODERS = {
  CapsNet: _of_class_capsules,
  EfficientCapsNet: _of_class_capsules,
  SCAE: _of_scae,
  AmortisedCapsules: _of_amortised,
  GenerativeCapsules: _of_generative,
  baselines.ConvVAE: _of_vae,
  SlotAutoencoder: _of_slots,
  TransformingAutoencoder: _of_transforming,
}


def _blank(model) -> jax.ShapeDtypeStruct:
  """A batch of one image, as shape and dtype."""
  return jax.ShapeDtypeStruct((1, *model.image_shape), jnp.float32)
