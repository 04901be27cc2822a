// A row of test images to choose from.

import { element } from './dom.js';
import { SIZE, testImages } from './mnist.js';
import { onTheme } from './palette.js';
import { paintInk } from './pictures.js';

/** Fills `place` with buttons; `chosen(image, time)` is called for each press. */
export async function fillStrip(place, chosen) {
  const images = await testImages();
  const redraws = images.map((image) => {
    const canvas = element('canvas', { class: 'pixels', 'aria-hidden': 'true' });
    const button = element(
      'button',
      {
        type: 'button',
        class: 'thumbnail',
        'aria-label': `Test image ${image.index}, a ${image.label}`,
        onclick: (event) => chosen(image, event.timeStamp),
      },
      canvas,
    );
    place.append(button);
    const values = Float32Array.from(image.pixels, (x) => x / 255);
    return () => paintInk(canvas, values, SIZE);
  });
  const redraw = () => redraws.forEach((each) => each());
  onTheme(redraw);
  redraw();
  return images;
}
