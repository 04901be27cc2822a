// A square of 28x28 pixels that are painted by mouse, touch, pen or keyboard.
//
// By keyboard the arrows move a cursor, and the space bar paints below it.

import { announce, showCursor } from './dom.js';
import { SIZE } from './mnist.js';

/**
 * Calls `set(pixels, value())` with the indices of the pixels below the pen.
 */
export function holdPixels(canvas, { value, set }) {
  let drawing = null;
  let last = null;
  let cursor = null;
  const frame = canvas.parentElement;

  function at(event) {
    const box = canvas.getBoundingClientRect();
    return {
      x: ((event.clientX - box.left) / box.width) * SIZE,
      y: ((event.clientY - box.top) / box.height) * SIZE,
    };
  }

  /** The pixels of a pen of 2x2 along the way from one point to another. */
  function paint(from, to) {
    const steps = Math.max(1, Math.ceil(2 * Math.hypot(to.x - from.x, to.y - from.y)));
    const pixels = new Set();
    for (let n = 0; n <= steps; n += 1) {
      const x = Math.round(from.x + ((to.x - from.x) * n) / steps);
      const y = Math.round(from.y + ((to.y - from.y) * n) / steps);
      for (const [column, row] of [[x - 1, y - 1], [x, y - 1], [x - 1, y], [x, y]]) {
        if (column >= 0 && column < SIZE && row >= 0 && row < SIZE) pixels.add(row * SIZE + column);
      }
    }
    set(pixels, value());
  }

  canvas.addEventListener('pointerdown', (event) => {
    if (event.button !== 0 || drawing !== null) return;
    event.preventDefault();
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    drawing = event.pointerId;
    last = at(event);
    paint(last, last);
  });
  canvas.addEventListener('pointermove', (event) => {
    if (event.pointerId !== drawing) return;
    const all = event.getCoalescedEvents?.() ?? [];
    for (const each of all.length ? all : [event]) {
      const point = at(each);
      paint(last, point);
      last = point;
    }
  });
  for (const name of ['pointerup', 'pointercancel']) {
    canvas.addEventListener(name, (event) => {
      if (event.pointerId === drawing) drawing = null;
    });
  }

  canvas.addEventListener('keydown', (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (event.key === ' ' || event.key === 'Enter') {
      event.preventDefault();
      cursor ??= { x: SIZE / 2, y: SIZE / 2 };
      paint(cursor, cursor);
      announce(`Row ${cursor.y}, column ${cursor.x}`);
    } else if (move) {
      event.preventDefault();
      const { x, y } = cursor ?? { x: SIZE / 2, y: SIZE / 2 };
      const inside = (number) => Math.min(Math.max(number, 1), SIZE - 1);
      const before = cursor;
      cursor = { x: inside(x + move[0]), y: inside(y + move[1]) };
      if (event.shiftKey && before) paint(before, cursor);
    }
    showCursor(frame, cursor && { x: cursor.x / SIZE, y: cursor.y / SIZE });
  });
  canvas.addEventListener('blur', () => {
    cursor = null;
    showCursor(frame, null);
  });
}
