// Panel of generative capsules: objects that are dragged, and parts that follow.

import { announce, complain, element, find, measured, recover, slider } from '../dom.js';
import { bytes, floats, load, newest, run } from '../engine.js';
import { SIZE } from '../mnist.js';
import { Pad } from '../pad.js';
import { css, onTheme, partColour } from '../palette.js';
import { paintLayers } from '../pictures.js';
import { about, compose } from '../poses.js';
import { Scene } from '../scene.js';
import { fillStrip } from '../strip.js';

const MODEL = 'generative_mnist';
const PARTS = 16;
const OBJECTS = 16;
const PIXELS = SIZE * SIZE;
const STILL = { x: 0, y: 0, angle: 0, scale: 1 };

export async function start(panel) {
  const place = (name) => find(`[data-part="${name}"]`, panel);
  let found = null; // of the graph `model`
  let parents = []; // the object of each part, -1 for none
  let moves = []; // how each object is moved
  let chosen = -1;
  let shares = [];
  const switchedOn = new Array(PARTS).fill(true);

  const checked = (name) => find(`input[name="${name}"]:checked`, panel).value;
  const six = ({ data }, n) => Array.from(data.subarray(6 * n, 6 * n + 6));
  const members = (object) => [...parents.keys()].filter((i) => parents[i] === object);

  function ink(part) {
    const object = parents[part];
    return checked('colour') === 'objects' && object >= 0
      ? partColour(object, OBJECTS)
      : partColour(part, PARTS);
  }

  /** Where an object is: the mean place of its parts, before it was moved. */
  function centre(object) {
    const parts = members(object);
    const mean = (n) => parts.reduce((sum, i) => sum + six(found.part_poses, i)[n], 0) / parts.length;
    return { x: mean(2), y: mean(5) };
  }

  const read = newest(async (pixels, time) => {
    try {
      found = await run(`${MODEL}-model`, { images: bytes(pixels, 1, SIZE, SIZE, 1) });
      parents = Array.from({ length: PARTS }, (_, part) => {
        const row = found.routing.data.subarray(part * (OBJECTS + 1), (part + 1) * (OBJECTS + 1));
        return row.indexOf(Math.max(...row)) - 1;
      });
      moves = Array.from({ length: OBJECTS }, () => ({ ...STILL }));
      showObjects();
      await renderNow(time, 'drawing');
    } catch (error) {
      complain(panel, error);
    }
  });

  async function renderNow(time, what) {
    if (!found) return;
    const poses = [];
    const presences = [];
    let expected = null;
    if (checked('arrangement') === 'expected') {
      const objects = moves.flatMap((move, object) =>
        compose(transform(object, move), six(found.object_poses, object)));
      expected = await run(`${MODEL}-parts`, {
        poses: floats(objects, 1, OBJECTS, 6),
        presences: floats(found.presences_2.data, 1, OBJECTS),
      });
    }
    for (let part = 0; part < PARTS; part += 1) {
      const object = parents[part];
      const pose = six(found.part_poses, part);
      if (object < 0) poses.push(...pose);
      else if (expected) poses.push(...six(expected.part_poses, part * (OBJECTS + 1) + object + 1));
      else poses.push(...compose(transform(object, moves[object]), pose));
      presences.push(switchedOn[part] ? found.presences_1.data[part] : 0);
    }
    const answer = await run(`${MODEL}-decoder`, {
      poses: floats(poses, 1, PARTS, 6),
      presences: floats(presences, 1, PARTS),
    });
    shares = Array.from({ length: PARTS }, (_, part) =>
      answer.shares.data.subarray(part * PIXELS, (part + 1) * PIXELS));
    paint();
    recover(panel);
    measured(`parts ${what}`, time);
  }

  const render = newest((time, what) =>
    renderNow(time, what).catch((error) => complain(panel, error)));

  function transform(object, move) {
    return members(object).length ? about(centre(object), move) : about({ x: 0, y: 0 }, move);
  }

  function paint() {
    const inks = shares.map((_, part) => ink(part));
    if (shares.length) paintLayers(place('scene'), shares, inks, SIZE);
    if (chosen >= 0) {
      const { x, y } = centre(chosen);
      const move = moves[chosen];
      scene.show({ x: x + move.x, y: y + move.y, angle: move.angle, scale: move.scale });
    } else {
      scene.show(null);
    }
  }

  function showObjects() {
    const present = [...new Set(parents)].filter((x) => x >= 0).sort((a, b) => a - b);
    if (!present.includes(chosen)) {
      const sizes = present.map((x) => members(x).length);
      chosen = present[sizes.indexOf(Math.max(...sizes))] ?? -1;
    }
    place('objects').replaceChildren(
      ...present.map((object) => {
        const input = element('input', { type: 'radio', name: 'object', value: object });
        input.checked = object === chosen;
        input.addEventListener('change', () => choose(object));
        const swatches = members(object).map((part) => {
          const swatch = element('i', { class: 'swatch', 'data-swatch': part });
          swatch.style.background = css(ink(part));
          return swatch;
        });
        const count = members(object).length;
        return element('label', { class: 'object' }, input,
          element('span', {}, `Object ${object + 1}`),
          element('span', { class: 'swatches', 'aria-hidden': 'true' }, ...swatches),
          element('span', { class: 'number' }, count === 1 ? '1 part' : `${count} parts`));
      }),
    );
    const free = members(-1).length;
    place('free').textContent =
      free === 0 ? '' : free === 1 ? '1 part belongs to no object.' : `${free} parts belong to no object.`;
    showMove();
  }

  function choose(object) {
    chosen = object;
    for (const input of panel.querySelectorAll('input[name="object"]')) {
      input.checked = Number(input.value) === object;
    }
    showMove();
    paint();
    announce(`Object ${object + 1} is chosen`);
  }

  const degrees = (x) => `${Math.round(x)}°`;
  const controls = {
    x: slider({ label: 'Right', min: -1, max: 1, step: 0.01 }, (x, time) => move({ x }, time)),
    y: slider({ label: 'Down', min: -1, max: 1, step: 0.01 }, (y, time) => move({ y }, time)),
    angle: slider(
      { label: 'Turn', min: -180, max: 180, step: 1, show: degrees },
      (turned, time) => move({ angle: (turned * Math.PI) / 180 }, time),
    ),
    scale: slider(
      { label: 'Scale', min: 0.3, max: 2, step: 0.01, value: 1 },
      (scale, time) => move({ scale }, time),
    ),
  };
  place('moves').append(...Object.values(controls).map((x) => x.row));

  /** Changes one number of the chosen object; a drag may have put others out of range. */
  function move(change, time) {
    if (chosen < 0) return;
    moves[chosen] = { ...moves[chosen], ...change };
    render(time, 'slider');
  }

  function showMove() {
    const { x, y, angle, scale } = chosen >= 0 ? moves[chosen] : STILL;
    const turned = Math.atan2(Math.sin(angle), Math.cos(angle));
    controls.x.set(x);
    controls.y.set(y);
    controls.angle.set((turned * 180) / Math.PI);
    controls.scale.set(scale);
  }

  const scene = new Scene(place('scene').parentElement, {
    /** The object of the part that is brightest here. */
    grab({ x, y }) {
      if (!found) return null;
      const at = Math.floor(y * SIZE) * SIZE + Math.floor(x * SIZE);
      const light = shares.map((share) => share[at] ?? 0);
      const part = light.indexOf(Math.max(...light));
      if (light[part] > 0.1 && parents[part] >= 0) choose(parents[part]);
      return chosen >= 0 ? { ...moves[chosen] } : null;
    },
    centre: () => (chosen >= 0 ? centre(chosen) : null),
    moved(next, time) {
      moves[chosen] = next;
      showMove();
      render(time, 'drag');
    },
  });

  const cards = Array.from({ length: PARTS }, (_, part) => {
    const canvas = element('canvas', { class: 'pixels', 'aria-hidden': 'true' });
    const input = element('input', { type: 'checkbox', 'aria-label': `Part ${part + 1}` });
    input.checked = true;
    input.addEventListener('change', (event) => {
      switchedOn[part] = input.checked;
      announce(`Part ${part + 1} is ${input.checked ? 'on' : 'off'}`);
      render(event.timeStamp, 'switch');
    });
    place('templates').append(
      element('label', { class: 'template' }, input, canvas, element('span', { class: 'number' }, part + 1)),
    );
    return { canvas, input, picture: null };
  });

  /** Each template alone, pixel for pixel, from the decoder. */
  async function loadTemplates() {
    for (const [part, card] of cards.entries()) {
      const presences = Array.from({ length: PARTS }, (_, n) => Number(n === part));
      const { images } = await run(`${MODEL}-decoder`, {
        poses: floats(new Float32Array(6 * PARTS), 1, PARTS, 6),
        presences: floats(presences, 1, PARTS),
      });
      // The middle 14x14 pixels, in which a template lies.
      card.picture = Float32Array.from({ length: 196 }, (_, n) =>
        images.data[(7 + Math.floor(n / 14)) * SIZE + 7 + (n % 14)]);
      paintCard(part);
    }
  }

  function paintCard(part) {
    const { canvas, picture } = cards[part];
    if (picture) paintLayers(canvas, [picture], [ink(part)], 14);
  }

  function recolour() {
    cards.forEach((_, part) => paintCard(part));
    for (const swatch of panel.querySelectorAll('[data-swatch]')) {
      swatch.style.background = css(ink(Number(swatch.dataset.swatch)));
    }
    paint();
  }

  for (const input of panel.querySelectorAll('input[name="colour"]')) {
    input.addEventListener('change', recolour);
  }
  for (const input of panel.querySelectorAll('input[name="arrangement"]')) {
    input.addEventListener('change', (event) => render(event.timeStamp, 'arrangement'));
  }
  place('reset').addEventListener('click', (event) => {
    moves = moves.map(() => ({ ...STILL }));
    switchedOn.fill(true);
    for (const { input } of cards) input.checked = true;
    showMove();
    render(event.timeStamp, 'reset');
  });
  onTheme(recolour);

  const pad = new Pad(place('pad'), read);
  place('clear').addEventListener('click', (event) => pad.clear(event.timeStamp));
  place('undo').addEventListener('click', (event) => pad.undo(event.timeStamp));
  place('seen').addEventListener('change', (event) => {
    pad.seen = event.target.checked;
  });
  const images = await fillStrip(place('strip'), (image, time) => pad.show(image.pixels, time));
  await Promise.all([load(`${MODEL}-model`), load(`${MODEL}-decoder`)]);
  pad.show(images[4].pixels);
  const begun = performance.now();
  loadTemplates().then(() => {
    place('template-set').removeAttribute('aria-busy');
    measured('parts templates', begun);
  }, (error) => complain(panel, error));
}
