// Drawings as images of the kind that MNIST holds, and test images of MNIST.
//
// MNIST scales a digit into a box of 20x20 pixels, without changing the ratio of
// its sides, and shifts its centre of mass to pixel (14, 14) of 28x28.

export const SIZE = 28;
const BOX = 20;
const MIDDLE = 14.5; // the centre of pixel 14, from the edge of the image
const PEN = 2.3; // width of a stroke in pixels, about that of MNIST
const LARGEST = 60; // pixels for the width of the pad, so that a dot stays one
const FINE = 4; // points per pixel along each axis, for soft edges

/**
 * The image of a drawing.
 *
 * `strokes` are lists of {x, y} in [0, 1], y down. Returns uint8 [28 * 28].
 * With `fit` false the drawing stays where and as large as it is.
 */
export function prepare(strokes, { fit = true } = {}) {
  const points = strokes.flat();
  if (points.length === 0) return new Uint8Array(SIZE * SIZE);
  let place = { scale: SIZE, x: 0, y: 0 };
  if (fit) {
    const [left, right] = range(points.map((p) => p.x));
    const [top, bottom] = range(points.map((p) => p.y));
    const extent = Math.max(right - left, bottom - top);
    const scale = Math.min((BOX - PEN) / Math.max(extent, 1e-6), LARGEST);
    place = {
      scale,
      x: SIZE / 2 - (scale * (left + right)) / 2,
      y: SIZE / 2 - (scale * (top + bottom)) / 2,
    };
    const [x, y] = centreOfMass(drawn(strokes, place), SIZE * FINE);
    place.x += MIDDLE - x / FINE;
    place.y += MIDDLE - y / FINE;
  }
  return reduced(drawn(strokes, place));
}

function range(values) {
  return [Math.min(...values), Math.max(...values)];
}

/** Adds the line of a stroke to a path, in units of the canvas. */
export function trace(context, stroke, toX, toY) {
  context.beginPath();
  const [first] = stroke;
  context.moveTo(toX(first.x), toY(first.y));
  if (stroke.length === 1) context.lineTo(toX(first.x) + 0.01, toY(first.y));
  for (let n = 1; n < stroke.length; n += 1) {
    const { x, y } = stroke[n];
    const before = stroke[n - 1];
    const middleX = toX((before.x + x) / 2);
    const middleY = toY((before.y + y) / 2);
    context.quadraticCurveTo(toX(before.x), toY(before.y), middleX, middleY);
    if (n === stroke.length - 1) context.lineTo(toX(x), toY(y));
  }
  context.stroke();
}

/** Intensities in [0, 255] at FINE x FINE points per pixel. */
function drawn(strokes, { scale, x, y }) {
  const size = SIZE * FINE;
  const canvas = new OffscreenCanvas(size, size);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.lineCap = 'round';
  context.lineJoin = 'round';
  context.lineWidth = PEN * FINE;
  for (const stroke of strokes) {
    trace(
      context,
      stroke,
      (u) => FINE * (scale * u + x),
      (v) => FINE * (scale * v + y),
    );
  }
  const { data } = context.getImageData(0, 0, size, size);
  return Float32Array.from({ length: size * size }, (_, n) => data[4 * n + 3]);
}

function centreOfMass(values, size) {
  let [mass, x, y] = [0, 0, 0];
  values.forEach((value, n) => {
    mass += value;
    x += value * ((n % size) + 0.5);
    y += value * (Math.floor(n / size) + 0.5);
  });
  return mass > 0 ? [x / mass, y / mass] : [size / 2, size / 2];
}

/** Means over the points of each pixel. */
function reduced(values) {
  const found = new Float32Array(SIZE * SIZE);
  values.forEach((value, n) => {
    const row = Math.floor(n / (SIZE * FINE * FINE));
    const column = Math.floor((n % (SIZE * FINE)) / FINE);
    found[SIZE * row + column] += value / (FINE * FINE);
  });
  return Uint8Array.from(found, Math.round);
}

let images = null;

/** Test images of MNIST: [{label, index, pixels}], loaded once. */
export function testImages() {
  images ??= loadImages().catch((error) => {
    images = null; // the next call tries again
    throw error;
  });
  return images;
}

async function fetched(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path} cannot be loaded (${response.status})`);
  return response;
}

async function loadImages() {
  const [table, blob] = await Promise.all([
    fetched('images/mnist_test.json').then((x) => x.json()),
    fetched('images/mnist_test.png').then((x) => x.blob()),
  ]);
  const bitmap = await createImageBitmap(blob, { colorSpaceConversion: 'none' });
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height);
  const context = canvas.getContext('2d', { willReadFrequently: true });
  context.drawImage(bitmap, 0, 0);
  return table.images.map(({ label, index }, n) => {
    const { data } = context.getImageData(SIZE * n, 0, SIZE, SIZE);
    const pixels = Uint8Array.from({ length: SIZE * SIZE }, (_, k) => data[4 * k]);
    return { label, index, pixels };
  });
}
