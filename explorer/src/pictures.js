// Arrays of numbers as pictures on canvases.

import { colours } from './palette.js';

/** Paints intensities in [0, 1] as ink on paper. */
export function paintInk(canvas, values, size, ink = colours().ink) {
  paintLayers(canvas, [values], [ink], size);
}

/**
 * Paints several layers of intensities, each in its colour, on paper.
 *
 * Where their sum is above 1 the colours are averaged by their intensities.
 */
export function paintLayers(canvas, layers, inks, size) {
  const { paper } = colours();
  canvas.width = size;
  canvas.height = size;
  const context = canvas.getContext('2d');
  const image = context.createImageData(size, size);
  for (let pixel = 0; pixel < size * size; pixel += 1) {
    let total = 0;
    const mixed = [0, 0, 0];
    layers.forEach((layer, number) => {
      const value = Math.max(layer[pixel], 0);
      total += value;
      for (let c = 0; c < 3; c += 1) mixed[c] += value * inks[number][c];
    });
    const share = Math.min(total, 1);
    for (let c = 0; c < 3; c += 1) {
      const ink = total > 0 ? mixed[c] / total : 0;
      image.data[4 * pixel + c] = paper[c] + share * (ink - paper[c]);
    }
    image.data[4 * pixel + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** Paints a matrix of numbers in [0, 1] with one colour for 1. */
export function paintMatrix(canvas, values, rows, columns, ink) {
  const { paper } = colours();
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext('2d');
  const image = context.createImageData(columns, rows);
  for (let n = 0; n < rows * columns; n += 1) {
    const share = Math.min(Math.max(values[n], 0), 1);
    for (let c = 0; c < 3; c += 1) {
      image.data[4 * n + c] = paper[c] + share * (ink[c] - paper[c]);
    }
    image.data[4 * n + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

/** Draws a picture enlarged over a square, pixel by pixel without seams. */
export function enlarge(context, side, size, colourAt) {
  const small = new OffscreenCanvas(size, size);
  const from = small.getContext('2d');
  const image = from.createImageData(size, size);
  for (let n = 0; n < size * size; n += 1) image.data.set(colourAt(n), 4 * n);
  from.putImageData(image, 0, 0);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, side, side);
}

/** Sets the pixels of a canvas to those of the screen; returns its context. */
export function sharp(canvas) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  const height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
