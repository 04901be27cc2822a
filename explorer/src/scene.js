// Dragging in a picture: the inside of a ring moves, its knob turns and scales.

import { element } from './dom.js';

const RADIUS = 0.36; // of the ring, in the frame from -1 to 1

export class Scene {
  /**
   * `frame` holds the canvas. `grab(point)` is called with the place of the
   * pointer in [0, 1] and returns the present {x, y, angle, scale} of what is
   * dragged, or null; `centre()` its place before it was moved, in [-1, 1];
   * `moved(next, time)` is called while it is dragged.
   */
  constructor(frame, { grab, centre, moved }) {
    this.frame = frame;
    this.ring = element('div', { class: 'ring', hidden: true, 'aria-hidden': 'true' });
    this.knob = element('div', { class: 'knob', hidden: true, 'aria-hidden': 'true' });
    frame.append(this.ring, this.knob);
    this.centre = centre;
    this.moved = moved;
    this.place = null;
    this.#drag(frame.querySelector('canvas'), grab, ({ from, to, begun }) => ({
      ...begun,
      x: begun.x + to.x - from.x,
      y: begun.y + to.y - from.y,
    }));
    this.#drag(this.knob, () => this.#state(), ({ from, to, begun }) => {
      const middle = this.centre();
      const x = middle.x + begun.x;
      const y = middle.y + begun.y;
      const [before, after] = [from, to].map((p) => ({
        angle: Math.atan2(p.y - y, p.x - x),
        length: Math.max(Math.hypot(p.x - x, p.y - y), 0.05),
      }));
      const scale = (begun.scale * after.length) / before.length;
      return {
        ...begun,
        angle: begun.angle + after.angle - before.angle,
        scale: Math.min(Math.max(scale, 0.3), 2),
      };
    });
  }

  #state() {
    if (!this.place) return null;
    const middle = this.centre();
    const { x, y, angle, scale } = this.place;
    return { x: x - middle.x, y: y - middle.y, angle, scale };
  }

  /** Shows where the chosen object is: {x, y, angle, scale}, or null. */
  show(place) {
    this.place = place;
    this.ring.hidden = this.knob.hidden = !place;
    if (!place) return;
    const percent = (value) => `${50 * (value + 1)}%`;
    const { x, y, angle, scale } = place;
    this.ring.style.inset = 'auto';
    this.ring.style.insetInlineStart = percent(x);
    this.ring.style.insetBlockStart = percent(y);
    this.ring.style.inlineSize = `${100 * RADIUS * scale}%`;
    this.knob.style.insetInlineStart = percent(x + RADIUS * scale * Math.cos(angle - Math.PI / 4));
    this.knob.style.insetBlockStart = percent(y + RADIUS * scale * Math.sin(angle - Math.PI / 4));
  }

  #drag(target, grab, next) {
    let begun = null;
    let from = null;
    let pointer = null;
    const point = (event) => {
      const box = this.frame.getBoundingClientRect();
      return { x: (event.clientX - box.left) / box.width, y: (event.clientY - box.top) / box.height };
    };
    const framed = ({ x, y }) => ({ x: 2 * x - 1, y: 2 * y - 1 });
    target.addEventListener('pointerdown', (event) => {
      if (event.button !== 0 || pointer !== null) return;
      begun = grab(point(event));
      if (!begun) return;
      event.preventDefault();
      from = framed(point(event));
      pointer = event.pointerId;
      target.setPointerCapture(pointer);
    });
    target.addEventListener('pointermove', (event) => {
      if (event.pointerId !== pointer) return;
      this.moved(next({ from, to: framed(point(event)), begun }), event.timeStamp);
    });
    for (const name of ['pointerup', 'pointercancel']) {
      target.addEventListener(name, (event) => {
        if (event.pointerId === pointer) pointer = null;
      });
    }
  }
}
