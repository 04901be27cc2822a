"""Trains on FOLDER/CLASS/*.png: python first_model.py FOLDER [FLAG ...]."""

import subprocess
import sys

import numpy as np
import onnxruntime
from PIL import Image

import capjax

words = ["-m", "capjax.experiments.train_capsnet", "--workdir=run", "--dataset"]
if subprocess.run([sys.executable, *words, *sys.argv[1:]]).returncode:
  sys.exit(1)  # The binary has said why.
trained = capjax.load("run")
*size, channels = trained.card["image_shape"]  # which flags may change
options = {"image_size": tuple(size), "grayscale": channels == 1}
images = capjax.data.load(sys.argv[1], "test", **options).images[:4]
print([trained.class_names[n] for n in trained.predict(images).classes])
output = trained(trained.preprocess(images))
moved = output.poses.at[:, :, 0].add(0.25)  # one dimension of every pose
rendered = trained.model.decode(moved, output.activations.argmax(axis=1))
row = np.uint8(255 * np.concatenate(rendered, axis=1)).squeeze()
Image.fromarray(row).save("moved.png")
capjax.exporting.write_onnx(trained, "model.onnx")
session = onnxruntime.InferenceSession("model.onnx")
print(session.run(["activations"], {"images": images})[0].argmax(axis=1))
