// Panel of overlapping digits: two drawings in one image, decoded apart.

import { announce, complain, element, find, measured, recover, slider } from '../dom.js';
import { bytes, floats, load, newest, run } from '../engine.js';
import { SIZE, testImages } from '../mnist.js';
import { Pad } from '../pad.js';
import { colours, onTheme } from '../palette.js';
import { paintInk, paintLayers } from '../pictures.js';

const MODEL = 'multimnist_quarter';
const CLASSES = 10;
const APART = 4; // pixels, the largest shift in training

export async function start(panel) {
  const place = (name) => find(`[data-part="${name}"]`, panel);
  const blank = new Float32Array(SIZE * SIZE);
  let both = blank;
  let decoded = null; // {images: [two of them], size}

  const rows = Array.from({ length: CLASSES }, (_, digit) => {
    const bar = element('span', { class: 'bar' });
    const value = element('span', { class: 'number' }, '0.00');
    const row = element(
      'div',
      { class: 'class-row plain' },
      element('span', { class: 'digit' }, String(digit)),
      element('span', { class: 'track' }, bar),
      value,
    );
    return { row, bar, value };
  });
  place('classes').append(...rows.map((x) => x.row));

  const pixels = (x) => `${x > 0 ? '+' : ''}${x}`;
  const shifts = ['Right', 'Down'].map((label, n) =>
    slider(
      { label, min: -APART, max: APART, step: 1, value: n === 0 ? 3 : 1, show: pixels },
      (_, time) => read(time),
    ));
  place('apart').append(...shifts.map((x) => x.row));

  const pads = [1, 2].map((number) =>
    new Pad(place(`pad-${number}`), (_, time) => read(time), {
      ink: number === 1 ? 'warm' : 'cool',
    }));

  /** Each digit in its place: the first shifted by minus the sliders, the second by plus. */
  function placed() {
    const [x, y] = shifts.map((each) => each.get());
    return pads.map((pad, number) => {
      const sign = number === 0 ? -1 : 1;
      return shifted(pad.pixels, sign * x, sign * y);
    });
  }

  const read = newest(async (time) => {
    try {
      const digits = placed();
      const image = digits[0].map((value, n) => Math.min(value + digits[1][n], 255));
      const { activations, poses } = await run(`${MODEL}-routing`, {
        images: bytes(image, 1, SIZE, SIZE, 1),
      });
      both = Float32Array.from(image, (x) => x / 255);
      const lengths = activations.data.slice(-CLASSES);
      const order = [...lengths.keys()].sort((a, b) => lengths[b] - lengths[a]);
      const found = order.slice(0, 2);
      const size = poses.dims.at(-1);
      const last = poses.data.slice(-CLASSES * size);
      const masked = new Float32Array(2 * CLASSES * size);
      found.forEach((digit, n) => {
        const at = digit * size;
        masked.set(last.subarray(at, at + size), n * CLASSES * size + at);
      });
      const { images } = await run(`${MODEL}-decoder`, {
        poses: floats(masked, 2, CLASSES, size),
      });
      const side = images.dims[1];
      let pictures = [0, 1].map((n) => images.data.subarray(n * side * side, (n + 1) * side * side));
      // Each decoded image has the colour of the drawing that it is more like.
      const like = pictures.map((picture) => digits.map((digit) => product(picture, side, digit)));
      if (like[0][1] + like[1][0] > like[0][0] + like[1][1]) {
        pictures.reverse();
        found.reverse();
      }
      // Without a drawing there is nothing that its capsule would explain.
      const isDrawn = pads.map((pad) => !pad.isEmpty);
      pictures = pictures.map((picture, n) => (isDrawn[n] ? picture : new Float32Array(side * side)));
      decoded = { size: side, images: pictures };
      rows.forEach(({ bar, value, row }, digit) => {
        bar.style.inlineSize = `${100 * lengths[digit]}%`;
        value.textContent = lengths[digit].toFixed(2);
        row.classList.toggle('best', isDrawn[0] && digit === found[0]);
        row.classList.toggle('second', isDrawn[1] && digit === found[1]);
      });
      found.forEach((digit, n) => {
        place(`class-${n + 1}`).textContent = isDrawn[n]
          ? `Digit ${digit}, length ${lengths[digit].toFixed(2)}`
          : 'Nothing drawn';
      });
      paint();
      recover(panel);
      measured('overlap drawing', time);
      const named = found.filter((_, n) => isDrawn[n]);
      const noun = named.length === 1 ? 'Digit' : 'Digits';
      announce(named.length ? `${noun} ${named.join(' and ')}` : 'Nothing drawn');
    } catch (error) {
      complain(panel, error);
    }
  });

  function paint() {
    const { warm, cool } = colours();
    paintInk(place('both'), both, SIZE);
    if (!decoded) return;
    const { images, size } = decoded;
    paintLayers(place('decoded'), images, [warm, cool], size);
    images.forEach((image, n) => paintInk(place(`decoded-${n + 1}`), image, size, [warm, cool][n]));
  }

  const images = await testImages();
  const next = [3, 16];
  pads.forEach((pad, n) => {
    const show = (time) => {
      pad.show(images[next[n] % images.length].pixels, time);
      next[n] += 1;
    };
    place(`next-${n + 1}`).addEventListener('click', (event) => show(event.timeStamp));
    place(`clear-${n + 1}`).addEventListener('click', (event) => pad.clear(event.timeStamp));
  });
  onTheme(paint);
  await Promise.all([load(`${MODEL}-routing`), load(`${MODEL}-decoder`)]);
  pads.forEach((pad, n) => {
    pad.show(images[next[n]].pixels);
    next[n] += 1;
  });
}

/**
 * An image shifted by whole pixels, but only as far as no ink leaves it: the
 * model was trained on digits that are whole.
 */
export function shifted(pixels, x, y) {
  const inked = [...pixels.keys()].filter((n) => pixels[n] > 0);
  const columns = inked.map((n) => n % SIZE);
  const rows = inked.map((n) => Math.floor(n / SIZE));
  const limited = (shift, places) =>
    Math.min(Math.max(shift, -Math.min(...places)), SIZE - 1 - Math.max(...places));
  const image = new Uint8Array(SIZE * SIZE);
  const by = limited(y, rows) * SIZE + limited(x, columns);
  for (const n of inked) image[n + by] = pixels[n];
  return image;
}

/** The scalar product of a decoded image with a digit in its middle. */
function product(picture, side, digit) {
  const edge = (side - SIZE) / 2;
  return digit.reduce((sum, value, n) => {
    const at = (Math.floor(n / SIZE) + edge) * side + (n % SIZE) + edge;
    return sum + value * picture[at];
  }, 0);
}
