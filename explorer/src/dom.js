// Small helpers for elements, announcements and measured times.

export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, '');
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function find(selector, within = document) {
  const found = within.querySelector(selector);
  if (!found) throw new Error(`the page has no ${selector}`);
  return found;
}

let timer = 0;

/** Says something to readers of the screen, once the state is at rest. */
export function announce(text) {
  clearTimeout(timer);
  timer = setTimeout(() => {
    find('#announcement').textContent = text;
  }, 400);
}

const faults = new Map(); // the last error of each panel that has one

/** Shows an error of a panel, until the panel works again. */
export function complain(panel, error) {
  faults.delete(panel.id);
  faults.set(panel.id, error);
  showFault();
  console.error(error);
}

/** Hides the error of a panel, which works again. */
export function recover(panel) {
  if (faults.delete(panel.id)) showFault();
}

function showFault() {
  const last = [...faults.values()].at(-1);
  find('#complaint').hidden = !last;
  find('#complaint-text').textContent = last?.message ?? '';
}

/** Shows the cursor of the keyboard in a frame, at {x, y} in [0, 1]; null hides it. */
export function showCursor(frame, cursor) {
  frame.style.setProperty('--cursor', cursor ? 'visible' : 'hidden');
  if (!cursor) return;
  frame.style.setProperty('--cursor-x', `${100 * cursor.x}%`);
  frame.style.setProperty('--cursor-y', `${100 * cursor.y}%`);
}

/** Records how long it took from an event to the picture of its answer. */
export function measured(name, start) {
  performance.measure(name, { start, end: performance.now() });
}

/**
 * A labelled slider with its value.
 *
 * `show` makes the text of a value; `name` is spoken where the label is short.
 */
export function slider(options, changed) {
  const { label, name, min, max, step, value = 0, show = (x) => x.toFixed(2) } = options;
  const output = element('output', {}, show(value));
  const input = element('input', {
    type: 'range', min, max, step, value, 'aria-label': name,
  });
  input.addEventListener('input', (event) => {
    output.textContent = show(Number(input.value));
    input.setAttribute('aria-valuetext', output.textContent);
    changed(Number(input.value), event.timeStamp);
  });
  const row = element('label', { class: 'slider' }, element('span', {}, label), input, output);
  return {
    row,
    input,
    get: () => Number(input.value),
    set(x) {
      input.value = x;
      output.textContent = show(x);
      input.setAttribute('aria-valuetext', output.textContent);
    },
  };
}
