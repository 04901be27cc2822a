// Panel of the capsule RBM: chains of Gibbs sampling, and pixels that are held.

import { announce, complain, element, find, measured, recover, slider } from '../dom.js';
import { floats, load, run } from '../engine.js';
import { SIZE } from '../mnist.js';
import { colours, css, onTheme } from '../palette.js';
import { enlarge, paintInk, paintMatrix, sharp } from '../pictures.js';
import { fillStrip } from '../strip.js';
import { holdPixels } from '../holding.js';

const GRAPH = 'boltzmann_mnist-sweep';
const CAPSULES = 40;
const UNITS = 16;
const CHAINS = 6;
const PIXELS = SIZE * SIZE;
const HISTORY = 120; // sweeps in the picture of activity over time

export async function start(panel) {
  const place = (name) => find(`[data-part="${name}"]`, panel);
  const random = generator(1);
  const still = matchMedia('(prefers-reduced-motion: reduce)').matches;
  let running = false;
  let visible = true;
  let loop = 0; // number of the loop of frames that goes on; others end
  let starts = 0; // how often the chains were started by hand
  let last = Promise.resolve(); // the sweep that was asked for last
  let shown = 0; // the chain whose capsules are shown
  let sweeps = 0;
  let images = noise();
  let means = images;
  let answer = null;
  // For each pixel NaN where it is free, else the value at which it is held.
  const held = new Float32Array(PIXELS).fill(NaN);
  const history = Array.from({ length: CHAINS }, () => []);

  function noise() {
    return Float32Array.from({ length: CHAINS * PIXELS }, () => (random() < 0.15 ? 1 : 0));
  }

  function hold() {
    for (let chain = 0; chain < CHAINS; chain += 1) {
      held.forEach((value, n) => {
        if (!Number.isNaN(value)) images[chain * PIXELS + n] = value;
      });
    }
  }

  function uniforms(...dims) {
    const size = dims.reduce((a, b) => a * b);
    return floats({ length: size, [Symbol.iterator]: function* () {
      for (let n = 0; n < size; n += 1) yield random();
    } }, ...dims);
  }

  /** Does a sweep after those that were asked for before it. */
  function sweep() {
    last = last.catch(() => {}).then(sweepNow);
    return last;
  }

  /** Starts the chains from other images; a sweep of former ones is dropped. */
  function startFrom(given) {
    starts += 1;
    images = given;
    means = given.slice();
    draw();
  }

  async function sweepNow() {
    const before = starts;
    hold();
    const known = Float32Array.from(held, (value) => (Number.isNaN(value) ? 0 : 1));
    const all = new Float32Array(CHAINS * PIXELS);
    for (let chain = 0; chain < CHAINS; chain += 1) all.set(known, chain * PIXELS);
    const swept = await run(GRAPH, {
      images: floats(images, CHAINS, SIZE, SIZE, 1),
      known: floats(all, CHAINS, SIZE, SIZE, 1),
      switch_uniforms: uniforms(CHAINS, CAPSULES),
      hidden_uniforms: uniforms(CHAINS, CAPSULES, UNITS),
      image_uniforms: uniforms(CHAINS, SIZE, SIZE, 1),
    });
    recover(panel);
    if (before !== starts) return;
    answer = swept;
    images = answer.samples.data;
    means = answer.means.data;
    sweeps += 1;
    for (let chain = 0; chain < CHAINS; chain += 1) {
      const from = chain * CAPSULES;
      history[chain].push(answer.activities.data.slice(from, from + CAPSULES));
      if (history[chain].length > HISTORY) history[chain].shift();
    }
  }

  const rate = slider(
    { label: 'Sweeps per second', min: 1, max: 30, step: 1, value: 12, show: (x) => String(x) },
    () => {},
  );
  place('rate').append(rate.row);

  let due = 0;
  async function frame(time, own) {
    if (own !== loop || !running || !visible) return;
    if (time >= due) {
      due = Math.max(due + 1000 / rate.get(), time);
      const start = performance.now();
      try {
        await sweep();
      } catch (error) {
        setRunning(false);
        complain(panel, error);
        return;
      }
      draw();
      measured('chains sweep', start);
    }
    requestAnimationFrame((next) => frame(next, own));
  }

  function startLoop() {
    loop += 1;
    const own = loop;
    requestAnimationFrame((time) => frame(time, own));
  }

  function setRunning(value) {
    if (value === running) return;
    running = value;
    place('run').textContent = running ? 'Pause' : 'Run';
    announce(running ? 'Chains run' : `Paused after ${sweeps} sweeps`);
    if (running) startLoop();
  }

  const small = Array.from({ length: CHAINS }, (_, chain) => {
    const canvas = element('canvas', { class: 'pixels', 'aria-hidden': 'true' });
    const input = element('input', {
      type: 'radio', name: 'chain', value: chain, 'aria-label': `Chain ${chain + 1}`,
    });
    input.checked = chain === 0;
    input.addEventListener('change', () => {
      shown = chain;
      draw();
    });
    place('chains').append(element('label', { class: 'chain' }, input, canvas));
    return canvas;
  });

  function picture(chain) {
    const expected = find('input[name="shown"]:checked', panel).value === 'means';
    const values = expected ? means : images;
    return values.subarray(chain * PIXELS, (chain + 1) * PIXELS);
  }

  function draw() {
    small.forEach((canvas, chain) => paintInk(canvas, picture(chain), SIZE));
    paintHeld(place('pad'), picture(shown), held);
    place('sweeps').textContent = sweeps;
    if (!answer) return;
    const activities = answer.activities.data.subarray(shown * CAPSULES, (shown + 1) * CAPSULES);
    paintSpectrum(place('spectrum'), activities);
    const past = history[shown];
    const matrix = new Float32Array(CAPSULES * HISTORY);
    past.forEach((column, n) => {
      const at = HISTORY - past.length + n;
      for (let k = 0; k < CAPSULES; k += 1) matrix[k * HISTORY + at] = column[k];
    });
    paintMatrix(place('history'), matrix, CAPSULES, HISTORY, colours().cool);
    const active = answer.active.data.subarray(
      shown * CAPSULES * UNITS, (shown + 1) * CAPSULES * UNITS,
    );
    const units = new Float32Array(CAPSULES * UNITS);
    active.forEach((value, n) => {
      units[(n % UNITS) * CAPSULES + Math.floor(n / UNITS)] = value;
    });
    paintMatrix(place('units'), units, UNITS, CAPSULES, colours().warm);
  }

  holdPixels(place('pad'), {
    value: () => ({ on: 1, off: 0, free: NaN })[find('input[name="pen"]:checked', panel).value],
    set(pixels, value) {
      for (const n of pixels) held[n] = value;
      hold();
      draw();
    },
  });
  place('release').addEventListener('click', () => {
    held.fill(NaN);
    draw();
    announce('All pixels are free');
  });
  place('run').addEventListener('click', () => setRunning(!running));
  place('step').addEventListener('click', async () => {
    setRunning(false);
    await sweep().catch((error) => complain(panel, error));
    draw();
  });
  place('noise').addEventListener('click', () => {
    startFrom(noise());
    announce('All chains start from noise');
  });
  place('upper').addEventListener('click', () => {
    for (let n = 0; n < PIXELS / 2; n += 1) held[n] = images[shown * PIXELS + n];
    draw();
    announce('The upper half is held; the chains complete the lower half');
  });
  for (const input of panel.querySelectorAll('input[name="shown"]')) {
    input.addEventListener('change', draw);
  }
  onTheme(draw);
  new ResizeObserver(draw).observe(place('spectrum'));
  new IntersectionObserver(([entry]) => {
    const before = visible;
    visible = entry.isIntersecting;
    if (visible && !before && running) startLoop();
  }).observe(panel);

  const tests = await fillStrip(place('strip'), (image) => {
    const values = Float32Array.from(image.pixels, (x) => (x > 127 ? 1 : 0));
    const all = new Float32Array(CHAINS * PIXELS);
    for (let chain = 0; chain < CHAINS; chain += 1) all.set(values, chain * PIXELS);
    startFrom(all);
    announce(`All chains start from a test image of a ${image.label}`);
  });
  await load(GRAPH);
  const first = tests.slice(0, CHAINS);
  first.forEach(({ pixels }, chain) => {
    images.set(Float32Array.from(pixels, (x) => (x > 127 ? 1 : 0)), chain * PIXELS);
  });
  await sweep();
  draw();
  if (!still) setRunning(true);
}

/** Uniform random numbers in [0, 1), the same for the same seed (mulberry32). */
export function generator(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let x = Math.imul(state ^ (state >>> 15), state | 1);
    x ^= x + Math.imul(x ^ (x >>> 7), x | 61);
    // 24 bits: as float32 such a number is never rounded up to 1.
    return ((x ^ (x >>> 14)) >>> 8) / 2 ** 24;
  };
}

/** The picture of a chain, with a mark on each pixel that is held. */
function paintHeld(canvas, values, held) {
  const { context, width } = sharp(canvas);
  const { paper, ink, warm, cool } = colours();
  enlarge(context, width, SIZE, (n) => {
    const free = Number.isNaN(held[n]);
    const colour = free ? ink : held[n] ? warm : cool;
    const share = free ? Math.min(Math.max(values[n], 0), 1) : held[n] ? 1 : 0.3;
    return [...paper.map((x, c) => x + share * (colour[c] - x)), 255];
  });
}

/** A bar for each capsule: the probability that it is on. */
function paintSpectrum(canvas, activities) {
  const { context, width, height } = sharp(canvas);
  const { cool } = colours();
  const step = width / activities.length;
  context.fillStyle = css(cool);
  activities.forEach((value, k) => {
    const tall = Math.max(value * (height - 2), 1);
    context.globalAlpha = 0.35 + 0.65 * value;
    context.fillRect(k * step + step * 0.15, height - tall, step * 0.7, tall);
  });
  context.globalAlpha = 1;
}
