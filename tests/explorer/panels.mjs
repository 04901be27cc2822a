// What a reader does in each panel, and what is seen of it.

const SEVEN = [[[0.25, 0.25], [0.72, 0.25], [0.5, 0.55], [0.42, 0.85]]];

async function classes(page, { answer, draw, measuredAgain, pixels, settled, times, least }, timings) {
  await page.click('#panel-classes [data-part="clear"]');
  await draw(page, '#panel-classes [data-part="pad"]', SEVEN);
  await settled(page);
  const read = await answer(page, 'mnist_quarter-routing');
  timings.drawing = least(await times(page, 'classes drawing'));
  const picture = '#panel-classes [data-part="reconstruction"]';
  const before = await pixels(page, picture);
  const slider = page.locator('#panel-classes [data-part="dimensions"] input').first();
  await slider.focus();
  for (let n = 0; n < 15; n += 1) {
    const count = (await times(page, 'classes slider')).length;
    await page.keyboard.press('ArrowRight');
    await measuredAgain(page, 'classes slider', count);
  }
  timings.slider = least(await times(page, 'classes slider'));
  const after = await pixels(page, picture);
  const decoded = await answer(page, 'mnist_quarter-decoder');
  const shown = await page
    .locator('#panel-classes .class-row .number').allTextContents();
  const votes = '#panel-classes [data-part="votes-3"]';
  const shares = await pixels(page, votes);
  await page.getByText('Agreement', { exact: true }).click();
  const agreements = await pixels(page, votes);
  // By keyboard: two strokes down from the middle, then what the network sees.
  await page.click('#panel-classes [data-part="clear"]');
  await page.focus('#panel-classes [data-part="pad"]');
  await page.keyboard.press('Space');
  for (let n = 0; n < 8; n += 1) await page.keyboard.press('ArrowDown');
  await settled(page);
  const keyed = await answer(page, 'mnist_quarter-routing');
  await page.locator('#panel-classes [data-part="seen"]').check();
  const seen = await pixels(page, '#panel-classes [data-part="pad"]');
  // A test image.
  await page.locator('#panel-classes [data-part="strip"] button').nth(7).click();
  await settled(page);
  const tested = await answer(page, 'mnist_quarter-routing');
  return { read, decoded, shown, before, after, shares, agreements, keyed, seen, tested };
}

async function chains(page, { answer, draw, pixels, settled, times, least }, timings) {
  await page.click('#panel-chains [data-part="run"]'); // pauses
  await settled(page);
  timings.sweep = least(await times(page, 'chains sweep'));
  const running = Number(await page.locator('[data-part="sweeps"]').textContent());
  const step = async () => {
    await page.click('#panel-chains [data-part="step"]');
    await settled(page);
  };
  const before = await pixels(page, '#panel-chains [data-part="spectrum"]');
  await step();
  const after = await pixels(page, '#panel-chains [data-part="spectrum"]');
  const free = await answer(page, 'boltzmann_mnist-sweep');
  await draw(page, '#panel-chains [data-part="pad"]', [[[0.3, 0.3], [0.7, 0.3]]]);
  await page.getByText('Hold off').click();
  await draw(page, '#panel-chains [data-part="pad"]', [[[0.2, 0.8], [0.8, 0.8]]]);
  await step();
  const held = await answer(page, 'boltzmann_mnist-sweep');
  await page.focus('#panel-chains [data-part="pad"]');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Space');
  await step();
  const keyed = await answer(page, 'boltzmann_mnist-sweep');
  await page.click('#panel-chains [data-part="release"]');
  await step();
  const released = await answer(page, 'boltzmann_mnist-sweep');
  return { running, before, after, free, held, keyed, released };
}

async function parts(page, { answer, draw, measuredAgain, pixels, settled, times, least }, timings) {
  const scene = '#panel-parts [data-part="scene"]';
  await measuredAgain(page, 'parts templates', 0);
  await page.click('#panel-parts [data-part="clear"]');
  await draw(page, '#panel-parts [data-part="pad"]', SEVEN);
  await settled(page);
  const read = await answer(page, 'generative_mnist-model');
  const before = await answer(page, 'generative_mnist-decoder');
  timings.parts = least(await times(page, 'parts drawing'));
  const chosen = Number(
    await page.locator('#panel-parts input[name="object"]:checked').getAttribute('value'),
  );
  // The chosen object is dragged to the right, by the middle of its ring.
  const box = await page.locator('#panel-parts .scene').boundingBox();
  const ring = await page.locator('#panel-parts .ring').boundingBox();
  await page.mouse.move(ring.x + ring.width / 2, ring.y + ring.height / 2);
  await page.mouse.down();
  const grabbed = Number(
    await page.locator('#panel-parts input[name="object"]:checked').getAttribute('value'),
  );
  await page.mouse.move(
    ring.x + ring.width / 2 + box.width / 10, ring.y + ring.height / 2, { steps: 8 },
  );
  await page.mouse.up();
  await settled(page);
  const dragged = await answer(page, 'generative_mnist-decoder');
  // Its knob turns it. Each move waits for the last one's picture: a move that is
  // asked for while another is rendered would be timed from before its turn.
  const knob = await page.locator('#panel-parts .knob').boundingBox();
  await page.mouse.move(knob.x + knob.width / 2, knob.y + knob.height / 2);
  await page.mouse.down();
  for (let n = 1; n <= 15; n += 1) {
    const count = (await times(page, 'parts drag')).length;
    await page.mouse.move(knob.x + knob.width / 2, knob.y + 4 * n);
    await measuredAgain(page, 'parts drag', count);
  }
  await page.mouse.up();
  timings.drag = least(await times(page, 'parts drag'));
  await settled(page);
  const turned = await answer(page, 'generative_mnist-decoder');
  // By keyboard.
  await page.locator('#panel-parts [data-part="moves"] input').nth(1).focus();
  for (let n = 0; n < 15; n += 1) {
    const count = (await times(page, 'parts slider')).length;
    await page.keyboard.press('ArrowRight');
    await measuredAgain(page, 'parts slider', count);
  }
  timings.object = least(await times(page, 'parts slider'));
  const keyed = await answer(page, 'generative_mnist-decoder');
  await page.click('#panel-parts [data-part="reset"]');
  await settled(page);
  const reset = await answer(page, 'generative_mnist-decoder');
  const shown = await pixels(page, scene);
  const { data, dims: [, count, ...rest] } = reset.outputs.shares;
  const size = rest.reduce((a, b) => a * b);
  const light = Array.from({ length: count }, (_, n) =>
    Math.max(...data.slice(n * size, (n + 1) * size)));
  const brightest = light.indexOf(Math.max(...light));
  await page.locator('#panel-parts [data-part="templates"] input').nth(brightest).uncheck();
  await settled(page);
  const without = await answer(page, 'generative_mnist-decoder');
  const hidden = await pixels(page, scene);
  await page.getByText('as objects expect').click();
  await measuredAgain(page, 'parts arrangement', 0);
  const expected = await answer(page, 'generative_mnist-parts');
  return {
    read, before, chosen, grabbed, dragged, turned, keyed, reset, shown, without, hidden,
    expected, brightest,
  };
}

async function overlap(page, { answer, draw, pixels, settled, times, least }, timings) {
  const three = [[[0.3, 0.2], [0.65, 0.25], [0.45, 0.48], [0.7, 0.65], [0.3, 0.82]]];
  for (const [number, strokes] of [[1, SEVEN], [2, three]]) {
    await page.click(`#panel-overlap [data-part="clear-${number}"]`);
    await draw(page, `#panel-overlap [data-part="pad-${number}"]`, strokes);
  }
  await settled(page);
  const read = await answer(page, 'multimnist_quarter-routing');
  timings.overlap = least(await times(page, 'overlap drawing'));
  const both = await pixels(page, '#panel-overlap [data-part="both"]');
  const decoded = await pixels(page, '#panel-overlap [data-part="decoded"]');
  const alone = await answer(page, 'multimnist_quarter-decoder');
  const classes = await page.locator('#panel-overlap figcaption').allTextContents();
  await page.locator('#panel-overlap [data-part="apart"] input').first().focus();
  await page.keyboard.press('ArrowLeft');
  await settled(page);
  const moved = await pixels(page, '#panel-overlap [data-part="both"]');
  await page.getByLabel('Next test image for the first digit').click();
  await settled(page);
  const tested = await answer(page, 'multimnist_quarter-routing');
  return { read, both, decoded, alone, classes, moved, tested };
}

// The panels of the page, in the order of its tabs.
export const PANELS = { classes, parts, chains, overlap };
