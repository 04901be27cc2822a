// A square to draw a digit on, by mouse, touch, pen or keyboard.
//
// By keyboard the arrows move a cursor, and the space bar lowers or lifts the pen.

import { announce, showCursor } from './dom.js';
import { SIZE, prepare, trace } from './mnist.js';
import { colours, css, onTheme } from './palette.js';
import { paintInk, sharp } from './pictures.js';

const STEP = 0.04; // of the width of the pad
const WIDTH = 0.075;

export class Pad {
  /**
   * `changed(pixels, time)` is called with the image, uint8 [28 * 28], and the
   * time of the event that changed it. `ink` names a colour of the palette.
   */
  constructor(canvas, changed, { ink = 'ink' } = {}) {
    this.canvas = canvas;
    this.changed = changed;
    this.ink = ink;
    this.strokes = [];
    this.image = null; // a test image in place of strokes
    this.asSeen = false;
    this.cursor = null;
    this.penDown = false;
    this.drawing = null; // id of the pointer that draws
    this.#listen();
    onTheme(() => this.redraw());
    new ResizeObserver(() => this.redraw()).observe(canvas);
  }

  get pixels() {
    return this.image ?? prepare(this.strokes);
  }

  get isEmpty() {
    return !this.image && this.strokes.length === 0;
  }

  show(image, time = performance.now()) {
    this.#lift();
    this.strokes = [];
    this.image = image;
    this.#renew(time);
  }

  clear(time = performance.now()) {
    this.show(null, time);
  }

  undo(time = performance.now()) {
    this.#lift();
    this.strokes.pop();
    this.image = null;
    this.#renew(time);
  }

  /** Whether the 28x28 pixels are shown instead of the strokes. */
  set seen(value) {
    this.asSeen = value;
    this.redraw();
  }

  /** Ends the stroke that is drawn, if there is one. */
  #lift() {
    this.penDown = false;
    this.drawing = null;
  }

  #renew(time) {
    this.redraw();
    this.changed(this.pixels, time);
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener('pointerdown', (event) => {
      if (event.button !== 0 || this.drawing !== null) return;
      event.preventDefault();
      canvas.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      this.drawing = event.pointerId;
      this.cursor = null;
      this.#begin(this.#point(event), event.timeStamp);
    });
    canvas.addEventListener('pointermove', (event) => {
      if (event.pointerId !== this.drawing) return;
      const all = event.getCoalescedEvents?.() ?? [];
      for (const each of all.length ? all : [event]) {
        this.strokes.at(-1).push(this.#point(each));
      }
      this.#renew(event.timeStamp);
    });
    for (const name of ['pointerup', 'pointercancel']) {
      canvas.addEventListener(name, (event) => {
        if (event.pointerId === this.drawing) this.drawing = null;
      });
    }
    canvas.addEventListener('keydown', (event) => this.#key(event));
    canvas.addEventListener('blur', () => {
      this.cursor = null;
      this.penDown = false;
      this.#showCursor();
    });
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    const inside = (value) => Math.min(Math.max(value, 0), 1);
    return {
      x: inside((event.clientX - box.left) / box.width),
      y: inside((event.clientY - box.top) / box.height),
    };
  }

  #begin(point, time) {
    this.image = null;
    this.strokes.push([point]);
    this.#renew(time);
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    const move = moves[event.key];
    if (event.key === ' ' || event.key === 'Enter') {
      event.preventDefault();
      this.cursor ??= { x: 0.5, y: 0.5 };
      this.penDown = !this.penDown;
      announce(this.penDown ? 'Pen down' : 'Pen up');
      if (this.penDown) this.#begin({ ...this.cursor }, event.timeStamp);
    } else if (event.key === 'Backspace' || event.key === 'Delete') {
      event.preventDefault();
      this.undo(event.timeStamp);
    } else if (move) {
      event.preventDefault();
      const { x, y } = this.cursor ?? { x: 0.5, y: 0.5 };
      const inside = (value) => Math.min(Math.max(value, 0), 1);
      this.cursor = { x: inside(x + STEP * move[0]), y: inside(y + STEP * move[1]) };
      if (this.penDown) {
        this.strokes.at(-1).push({ ...this.cursor });
        this.#renew(event.timeStamp);
      }
    }
    this.#showCursor();
  }

  #showCursor() {
    const frame = this.canvas.parentElement;
    frame.classList.toggle('down', this.penDown);
    showCursor(frame, this.cursor);
  }

  redraw() {
    this.#showCursor();
    const ink = colours()[this.ink];
    if (this.image || this.asSeen) {
      paintInk(this.canvas, Float32Array.from(this.pixels, (x) => x / 255), SIZE, ink);
      this.canvas.classList.add('pixels');
      return;
    }
    this.canvas.classList.remove('pixels');
    const { context, width, height } = sharp(this.canvas);
    context.strokeStyle = css(ink);
    context.lineWidth = WIDTH * width;
    context.lineCap = 'round';
    context.lineJoin = 'round';
    for (const stroke of this.strokes) {
      trace(context, stroke, (x) => x * width, (y) => y * height);
    }
  }
}
