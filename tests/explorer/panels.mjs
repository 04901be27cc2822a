// What a reader does in each panel, and what is seen of it.

const SEVEN = [[[0.25, 0.25], [0.72, 0.25], [0.5, 0.55], [0.42, 0.85]]];

async function classes(page, { answer, draw, measuredAgain, pixels, times, typical }, timings) {
  await page.click('#panel-classes [data-part="clear"]');
  await draw(page, '#panel-classes [data-part="pad"]', SEVEN);
  await page.waitForTimeout(300);
  const read = await answer(page, 'mnist_quarter-routing');
  timings.drawing = typical(await times(page, 'classes drawing'));
  const picture = '#panel-classes [data-part="reconstruction"]';
  const before = await pixels(page, picture);
  const slider = page.locator('#panel-classes [data-part="dimensions"] input').first();
  await slider.focus();
  for (let n = 0; n < 15; n += 1) {
    const count = (await times(page, 'classes slider')).length;
    await page.keyboard.press('ArrowRight');
    await measuredAgain(page, 'classes slider', count);
  }
  timings.slider = typical(await times(page, 'classes slider'));
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
  await page.waitForTimeout(300);
  const keyed = await answer(page, 'mnist_quarter-routing');
  await page.getByText('As the network sees it').click();
  const seen = await pixels(page, '#panel-classes [data-part="pad"]');
  // A test image.
  await page.locator('#panel-classes [data-part="strip"] button').nth(7).click();
  await page.waitForTimeout(300);
  const tested = await answer(page, 'mnist_quarter-routing');
  return { read, decoded, shown, before, after, shares, agreements, keyed, seen, tested };
}

async function chains(page, { answer, draw, pixels, times, typical }, timings) {
  await page.click('#panel-chains [data-part="run"]'); // pauses
  await page.waitForTimeout(200);
  timings.sweep = typical(await times(page, 'chains sweep'));
  const running = Number(await page.locator('[data-part="sweeps"]').textContent());
  const step = async () => {
    await page.click('#panel-chains [data-part="step"]');
    await page.waitForTimeout(200);
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

// The panels of the page, in the order of its tabs.
export const PANELS = { classes, chains };
