// The page: tabs, the theme, and panels that start when they are first opened.

import { complain, find } from './dom.js';
import { setTheme, theme } from './palette.js';
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
  const name = tab.dataset.panel;
  if (started.has(name)) return;
  started.add(name);
  const panel = find(`#panel-${name}`);
  PANELS[name]
    .start(panel)
    .then(() => {
      panel.removeAttribute('aria-busy');
      performance.mark(`ready ${name}`);
    })
    .catch(complain);
}

tabs.forEach((tab, n) => {
  tab.addEventListener('click', () => {
    open(tab);
    history.replaceState(null, '', `#${tab.dataset.panel}`);
  });
  tab.addEventListener('keydown', (event) => {
    const to = { ArrowRight: n + 1, ArrowLeft: n - 1, Home: 0, End: tabs.length - 1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    open(tabs[(to + tabs.length) % tabs.length], { focus: true });
  });
});

const themeButton = find('#theme');
function describeTheme() {
  const next = theme() === 'dark' ? 'light' : 'dark';
  themeButton.setAttribute('aria-label', `Change to the ${next} theme`);
}
themeButton.addEventListener('click', () => {
  setTheme(theme() === 'dark' ? 'light' : 'dark');
  describeTheme();
});
describeTheme();

const wanted = location.hash.slice(1);
open(tabs.find((tab) => tab.dataset.panel === wanted) ?? tabs[0]);
