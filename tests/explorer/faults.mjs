// What goes wrong for a reader, or is unusual, and what is seen of it.

/** Keys and buttons that come at an unusual moment. */
async function pen(page, { pixels }) {
  const pad = '#panel-classes [data-part="pad"]';
  const cursor = () =>
    page.locator(pad).evaluate((x) => getComputedStyle(x.parentElement, '::after').visibility);
  const hidden = await cursor();
  await page.focus(pad);
  await page.keyboard.press('ArrowRight');
  const shown = await cursor(); // over a test image
  await page.keyboard.press('Backspace');
  const empty = await pixels(page, pad);
  await page.keyboard.press('Space');
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('Backspace'); // the pen is lifted
  await page.keyboard.press('ArrowDown');
  const undone = await pixels(page, pad);
  return { hidden, shown, empty, undone };
}

/** A test image is chosen while a sweep is under way. */
async function start(page, { answer, settled }) {
  await page.click('#panel-chains [data-part="run"]'); // pauses
  await settled(page);
  await page.evaluate(async () => {
    document.querySelector('#panel-chains [data-part="step"]').click();
    while (window.unanswered === 0) await null;
    document.querySelector('#panel-chains [data-part="strip"] button').click();
  });
  await settled(page);
  await page.click('#panel-chains [data-part="step"]');
  await settled(page);
  return (await answer(page, 'boltzmann_mnist-sweep')).feeds.images;
}

/** An object is dragged further than its sliders reach, then turned by keyboard. */
async function drag(page, { measuredAgain, settled, times }) {
  await settled(page);
  const ring = await page.locator('#panel-parts .ring').boundingBox();
  const box = await page.locator('#panel-parts .scene').boundingBox();
  const at = [ring.x + ring.width / 2, ring.y + ring.height / 2];
  await page.mouse.move(...at);
  await page.mouse.down();
  await page.mouse.move(at[0] + 0.6 * box.width, at[1], { steps: 6 });
  await page.mouse.up();
  await settled(page);
  const place = () =>
    page.locator('#panel-parts .ring').evaluate((x) => x.style.insetInlineStart);
  const before = await place();
  await page.locator('#panel-parts [data-part="moves"] input').nth(2).focus();
  const count = (await times(page, 'parts slider')).length;
  await page.keyboard.press('ArrowRight');
  await measuredAgain(page, 'parts slider', count);
  return { before, after: await place() };
}

/** The digits are shifted apart; one of the drawings is then cleared. */
async function shift(page, { answer, settled }) {
  const sum = async () => {
    await settled(page);
    const { feeds } = await answer(page, 'multimnist_quarter-routing');
    return feeds.images.data.reduce((a, b) => a + b, 0);
  };
  await page.click('#panel-overlap [data-part="clear-2"]');
  const sums = [await sum()];
  const sliders = page.locator('#panel-overlap [data-part="apart"] input');
  for (const key of ['Home', 'End']) {
    for (const n of [0, 1]) {
      await sliders.nth(n).focus();
      await page.keyboard.press(key);
    }
    sums.push(await sum());
  }
  const captions = await page.locator('#panel-overlap figcaption').allTextContents();
  return { sums, captions };
}

function complaint(page) {
  return page.locator('#complaint').evaluate((x) => (x.hidden ? '' : x.textContent));
}

/** The test images cannot be loaded at first. */
async function images(page, { ready }) {
  await page.locator('#complaint').waitFor({ state: 'visible' });
  const said = await complaint(page);
  const busy = await page.locator('#panel-classes').getAttribute('aria-busy');
  await page.unroute('**/mnist_test.json');
  await page.click('#tab-classes');
  await ready(page, 'classes');
  return { said, busy, after: await complaint(page) };
}

/** The worker cannot start. */
async function worker(page) {
  await page.locator('#complaint').waitFor({ state: 'visible' });
  return { said: await complaint(page) };
}

// For each: the panel, a check, and a file that is not found when the page opens.
export const FAULTS = {
  pen: { panel: 'classes', check: pen },
  start: { panel: 'chains', check: start },
  drag: { panel: 'parts', check: drag },
  shift: { panel: 'overlap', check: shift },
  images: { panel: 'classes', check: images, missing: '**/mnist_test.json' },
  worker: { panel: 'classes', check: worker, missing: '**/worker.js' },
};
