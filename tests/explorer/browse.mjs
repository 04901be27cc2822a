// Uses the explorer as a reader would, and writes what it saw.
//
//   node browse.mjs ROOT URL CHROMIUM FOLDER
//
// ROOT is the explorer's folder, whose node_modules are used. FOLDER gets
// screenshots and report.json, which explorer_test.py judges.

import { writeFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import path from 'node:path';

import { FAULTS } from './faults.mjs';
import { PANELS } from './panels.mjs';

const [root, url, executablePath, folder] = process.argv.slice(2);
const require = createRequire(path.resolve(root, 'package.json'));
const { chromium } = require('playwright-core');
const axePath = require.resolve('axe-core/axe.min.js');

const report = {
  errors: [], origins: [], ready: {}, times: {}, violations: {}, overflow: [], panels: {},
  faults: {},
};

/**
 * A page in which errors, requests and answers are recorded. Requests for
 * `missing` are answered with 404, and what the page itself says of that is none.
 */
async function open(browser, options, hash = '', missing = null) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  if (missing) await page.route(missing, (route) => route.fulfill({ status: 404, body: 'none' }));
  page.on('console', (message) => {
    if (message.type() === 'error' && !missing) report.errors.push(message.text());
  });
  page.on('pageerror', (error) => report.errors.push(String(error)));
  context.on('request', (request) => {
    const { protocol, origin } = new URL(request.url());
    const own = protocol === 'data:' || protocol === 'blob:';
    if (!own && !report.origins.includes(origin)) report.origins.push(origin);
  });
  await page.addInitScript(() => {
    window.answers = {};
    window.addEventListener('answer', ({ detail: { graph, feeds, outputs } }) => {
      window.answers[graph] = { feeds, outputs };
    });
    // Questions to the worker that have no answer yet, and all so far.
    window.unanswered = 0;
    window.asked = 0;
    window.Worker = class extends window.Worker {
      constructor(...given) {
        super(...given);
        this.addEventListener('message', () => { window.unanswered -= 1; });
      }

      postMessage(...given) {
        window.unanswered += 1;
        window.asked += 1;
        super.postMessage(...given);
      }
    };
  });
  await page.goto(url + hash);
  return { page, context };
}

async function ready(page, name) {
  await page.waitForFunction(
    (mark) => performance.getEntriesByName(mark).length > 0,
    `ready ${name}`,
    { timeout: 60000 },
  );
  const time = await page.evaluate(
    (mark) => performance.getEntriesByName(mark)[0].startTime,
    `ready ${name}`,
  );
  // The least of several loads.
  report.ready[name] = Math.min(time, report.ready[name] ?? Infinity);
}

/** The last question about a graph, and its answer, as lists of numbers. */
function answer(page, graph) {
  return page.evaluate((name) => {
    const { feeds, outputs } = window.answers[name];
    const lists = (arrays) =>
      Object.fromEntries(
        Object.entries(arrays).map(([key, { data, dims }]) => [
          key, { data: Array.from(data), dims: Array.from(dims) },
        ]),
      );
    return { feeds: lists(feeds), outputs: lists(outputs) };
  }, graph);
}

/** Times of a kind that the page measured, in milliseconds. */
function times(page, name) {
  return page.evaluate(
    (key) => performance.getEntriesByName(key, 'measure').map((x) => x.duration),
    name,
  );
}

/** The least time: what it takes where no other program interrupts. */
function least(values) {
  return Math.min(...values);
}

/** The pixels of a canvas. */
function pixels(page, selector) {
  return page.locator(selector).evaluate((canvas) => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return Array.from(data);
  });
}

/** Draws strokes with pointer events; points are shares of the canvas. */
async function draw(page, selector, strokes) {
  const canvas = page.locator(selector);
  await canvas.scrollIntoViewIfNeeded();
  const box = await canvas.boundingBox();
  for (const stroke of strokes) {
    const at = ([x, y]) => [box.x + x * box.width, box.y + y * box.height];
    await page.mouse.move(...at(stroke[0]));
    await page.mouse.down();
    for (const point of stroke.slice(1)) await page.mouse.move(...at(point), { steps: 4 });
    await page.mouse.up();
  }
}

/** Waits until the page has measured something `count` times more. */
async function measuredAgain(page, name, before) {
  await page.waitForFunction(
    ([key, count]) => performance.getEntriesByName(key, 'measure').length > count,
    [name, before],
  );
}

/** Waits until every question is answered and no new one has followed. */
async function settled(page) {
  const asked = () => page.evaluate(() => window.asked);
  let before = -1;
  for (let now = await asked(); now !== before; now = await asked()) {
    before = now;
    await page.waitForTimeout(100); // for what a message or a frame starts
    await page.waitForFunction(() => window.unanswered === 0);
  }
}

async function violations(page) {
  await page.addScriptTag({ path: axePath });
  const { violations: found } = await page.evaluate(() => window.axe.run(document));
  return found.map((x) => `${x.id}: ${x.nodes.map((n) => n.target.join(' ')).join(', ')}`);
}

const tools = { answer, draw, least, measuredAgain, pixels, ready, settled, times };
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
try {
  const wide = { viewport: { width: 1440, height: 1000 }, colorScheme: 'light' };
  {
    const { page, context } = await open(browser, wide);
    await ready(page, Object.keys(PANELS)[0]);
    // By keyboard from tab to tab.
    await page.locator('[role="tab"]').first().focus();
    report.tabs = [];
    for (const name of Object.keys(PANELS)) {
      await page.locator(`#panel-${name}`).waitFor({ state: 'visible' });
      report.tabs.push(
        await page.evaluate(() => document.activeElement.dataset.panel),
      );
      await page.keyboard.press('ArrowRight');
    }
    await context.close();
  }
  for (const [name, check] of Object.entries(PANELS)) {
    const { page, context } = await open(browser, wide, `#${name}`);
    await ready(page, name);
    report.panels[name] = await check(page, tools, report.times);
    await context.close();
  }
  for (const [name, { panel, check, missing }] of Object.entries(FAULTS)) {
    const { page, context } = await open(browser, wide, `#${panel}`, missing);
    if (!missing) await ready(page, panel);
    report.faults[name] = await check(page, tools);
    await context.close();
  }
  for (const width of [360, 1440]) {
    for (const colorScheme of ['light', 'dark']) {
      for (const name of Object.keys(PANELS)) {
        const label = `${name}-${width}-${colorScheme}`;
        const options = { viewport: { width, height: 900 }, colorScheme, reducedMotion: 'reduce' };
        const { page, context } = await open(browser, options, `#${name}`);
        await ready(page, name);
        await page.waitForFunction(
          (id) => !document.querySelector(`#${id} [aria-busy]`), `panel-${name}`,
        );
        await page.waitForTimeout(400); // for all that is painted after
        report.violations[label] = await violations(page);
        const scrolls = await page.evaluate(
          () => document.documentElement.scrollWidth > window.innerWidth,
        );
        if (scrolls) report.overflow.push(label);
        await page.screenshot({ path: path.join(folder, `${label}.png`), fullPage: true });
        await context.close();
      }
    }
  }
} finally {
  await browser.close();
}
await writeFile(path.join(folder, 'report.json'), JSON.stringify(report));
