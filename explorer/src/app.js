// The page: tabs, the theme, and panels that start when they are first opened.

import { complain, find, recover } from './dom.js';
import { onTheme, setTheme, theme } from './palette.js';
import * as chains from './panels/chains.js';
import * as classes from './panels/classes.js';
import * as overlap from './panels/overlap.js';
import * as parts from './panels/parts.js';

const PANELS = { classes, parts, chains, overlap };
const started = new Set();
const tabs = [...document.querySelectorAll('[role="tab"]')];

function open(tab, { focus = false } = {}) {
  for (const each of tabs) {
    const chosen = each === tab;
    each.setAttribute('aria-selected', String(chosen));
    each.tabIndex = chosen ? 0 : -1;
    find(`#${each.getAttribute('aria-controls')}`).hidden = !chosen;
  }
  if (focus) tab.focus();
  start(tab.dataset.panel);
}

/** Opens a tab that the reader chose; the address names it. */
function choose(tab, options) {
  open(tab, options);
  history.replaceState(null, '', `#${tab.dataset.panel}`);
}

/** Starts a panel once; after a failure its tab starts it again. */
async function start(name) {
  if (started.has(name)) return;
  started.add(name);
  const panel = find(`#panel-${name}`);
  const fresh = panel.cloneNode(true);
  try {
    await PANELS[name].start(panel);
    panel.removeAttribute('aria-busy');
    recover(panel);
    performance.mark(`ready ${name}`);
  } catch (error) {
    fresh.hidden = panel.hidden;
    fresh.removeAttribute('aria-busy');
    panel.replaceWith(fresh);
    started.delete(name);
    complain(fresh, error);
  }
}

tabs.forEach((tab, n) => {
  tab.addEventListener('click', () => choose(tab));
  tab.addEventListener('keydown', (event) => {
    const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    choose(tabs[(to + tabs.length) % tabs.length], { focus: true });
  });
});

const themeButton = find('#theme');
function describeTheme() {
  const next = theme() === 'dark' ? 'light' : 'dark';
  themeButton.setAttribute('aria-label', `Change to the ${next} theme`);
}
themeButton.addEventListener('click', () => setTheme(theme() === 'dark' ? 'light' : 'dark'));
onTheme(describeTheme);
describeTheme();

const wanted = location.hash.slice(1);
open(tabs.find((tab) => tab.dataset.panel === wanted) ?? tabs[0]);
