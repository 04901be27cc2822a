// Panel of class capsules: CapsNet reads a digit and draws it again.

import { announce, complain, element, find, measured, recover, slider } from '../dom.js';
import { bytes, floats, load, newest, run } from '../engine.js';
import { SIZE } from '../mnist.js';
import { Pad } from '../pad.js';
import { colours, css, onTheme } from '../palette.js';
import { enlarge, paintInk, sharp } from '../pictures.js';
import { fillStrip } from '../strip.js';

const CLASSES = 10;
const REACH = 0.25; // how far a slider moves one number of a pose
// A primary capsule at (row, column) reads 17x17 pixels; its middle, in pixels.
const FIRST = 8.5;
const STRIDE = 2;

export async function start(panel) {
  const place = (name) => find(`[data-part="${name}"]`, panel);
  let found = null; // the answer of the graph `routing`
  let chosen = 0;
  let picture = new Float32Array(SIZE * SIZE);
  let pixels = new Uint8Array(SIZE * SIZE);

  const rows = Array.from({ length: CLASSES }, (_, digit) => {
    const input = element('input', { type: 'radio', name: 'class', value: digit });
    const bar = element('span', { class: 'bar' });
    const value = element('span', { class: 'number' }, '0.00');
    const row = element(
      'label',
      { class: 'class-row' },
      input,
      element('span', { class: 'digit' }, String(digit)),
      element('span', { class: 'track' }, bar),
      value,
    );
    input.addEventListener('change', (event) => choose(digit, event.timeStamp));
    return { row, input, bar, value };
  });
  place('classes').append(...rows.map((x) => x.row));

  const dimensions = Array.from({ length: 16 }, (_, n) =>
    slider(
      {
        label: String(n + 1),
        name: `Dimension ${n + 1}`,
        min: -REACH,
        max: REACH,
        step: 0.01,
        show: (x) => (x > 0 ? '+' : x < 0 ? '−' : '±') + Math.abs(x).toFixed(2),
      },
      (_, time) => decode(time, 'slider'),
    ),
  );
  place('dimensions').append(...dimensions.map((x) => x.row));

  function reset() {
    for (const each of dimensions) each.set(0);
  }

  function choose(digit, time) {
    chosen = digit;
    reset();
    showRouting();
    decode(time, 'class');
  }

  const ask = newest(async (image, time) => {
    try {
      const answer = await run('mnist_quarter-routing', {
        images: bytes(image, 1, SIZE, SIZE, 1),
      });
      found = answer;
      pixels = image;
      const lengths = lastOf(answer.activations, CLASSES);
      const best = lengths.indexOf(Math.max(...lengths));
      rows.forEach(({ bar, value, row, input }, digit) => {
        bar.style.inlineSize = `${100 * lengths[digit]}%`;
        value.textContent = lengths[digit].toFixed(2);
        row.classList.toggle('best', digit === best);
        input.checked = digit === best;
      });
      chosen = best;
      reset();
      showRouting();
      await decodeNow(time, 'drawing');
      announce(`Digit ${best}, length ${lengths[best].toFixed(2)}`);
    } catch (error) {
      complain(panel, error);
    }
  });

  async function decodeNow(time, what) {
    if (!found) return;
    const size = found.poses.dims.at(-1);
    const last = lastOf(found.poses, CLASSES * size);
    const poses = new Float32Array(CLASSES * size);
    for (let d = 0; d < size; d += 1) {
      poses[chosen * size + d] = last[chosen * size + d] + dimensions[d].get();
    }
    const { images } = await run('mnist_quarter-decoder', {
      poses: floats(poses, 1, CLASSES, size),
    });
    picture = images.data;
    paintInk(place('reconstruction'), picture, SIZE);
    recover(panel);
    measured(`classes ${what}`, time);
  }

  const decode = newest((time, what) =>
    decodeNow(time, what).catch((error) => complain(panel, error)));

  function showRouting() {
    if (!found) return;
    const [, iterations, height, width, types] = found.coefficients.dims;
    const measure = find('input[name="measure"]:checked', panel).value;
    const positions = height * width;
    const all = [];
    for (let r = 0; r < iterations; r += 1) {
      const strengths = new Float32Array(positions);
      for (let p = 0; p < positions; p += 1) {
        for (let t = 0; t < types; t += 1) {
          const at = ((r * positions + p) * types + t) * CLASSES + chosen;
          const vote = found.part_activations.data[p * types + t];
          strengths[p] +=
            measure === 'shares'
              ? found.coefficients.data[at] * vote
              : Math.max(found.agreements.data[at], 0);
        }
      }
      all.push(strengths);
    }
    const most = Math.max(...all.map((x) => Math.max(...x)), 1e-9);
    all.forEach((strengths, r) => {
      const length = found.activations.data[r * CLASSES + chosen];
      place(`length-${r + 1}`).textContent = length.toFixed(2);
      paintVotes(place(`votes-${r + 1}`), pixels, strengths, most, height, width);
    });
    place('routed-class').textContent = chosen;
  }

  const pad = new Pad(place('pad'), ask);
  place('clear').addEventListener('click', (event) => pad.clear(event.timeStamp));
  place('undo').addEventListener('click', (event) => pad.undo(event.timeStamp));
  place('seen').addEventListener('change', (event) => {
    pad.seen = event.target.checked;
  });
  place('reset').addEventListener('click', (event) => {
    reset();
    decode(event.timeStamp, 'reset');
  });
  for (const input of panel.querySelectorAll('input[name="measure"]')) {
    input.addEventListener('change', showRouting);
  }
  onTheme(() => {
    paintInk(place('reconstruction'), picture, SIZE);
    showRouting();
  });
  new ResizeObserver(showRouting).observe(place('votes-1'));
  const images = await fillStrip(place('strip'), (image, time) =>
    pad.show(image.pixels, time),
  );
  await Promise.all([load('mnist_quarter-routing'), load('mnist_quarter-decoder')]);
  pad.show(images[0].pixels);
}

function lastOf({ data }, count) {
  return data.slice(data.length - count);
}

/** The digit in pale ink, and a dot for each position by its strength. */
function paintVotes(canvas, pixels, strengths, most, height, width) {
  const { context, width: side } = sharp(canvas);
  const { ink, warm } = colours();
  const pixel = side / SIZE;
  enlarge(context, side, SIZE, (n) => [...ink, 0.22 * pixels[n]]);
  context.fillStyle = css(warm);
  for (let p = 0; p < height * width; p += 1) {
    const x = (FIRST + STRIDE * (p % width)) * pixel;
    const y = (FIRST + STRIDE * Math.floor(p / width)) * pixel;
    const share = Math.sqrt(strengths[p] / most);
    context.globalAlpha = 0.3 + 0.65 * share;
    context.beginPath();
    context.arc(x, y, Math.max(0.98 * pixel * share, 0.4), 0, 2 * Math.PI);
    context.fill();
  }
  context.globalAlpha = 1;
}
