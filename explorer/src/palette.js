// Colours of pictures, which follow the theme of the page.

const THEMES = {
  light: { paper: [252, 251, 248], ink: [24, 27, 33], warm: [201, 72, 20], cool: [11, 98, 135] },
  dark: { paper: [13, 15, 18], ink: [240, 238, 231], warm: [255, 139, 82], cool: [98, 189, 224] },
};
const query = matchMedia('(prefers-color-scheme: dark)');
const listeners = new Set();

/** The theme that is shown: the reader's choice, else that of the system. */
export function theme() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ?? (query.matches ? 'dark' : 'light');
}

export function colours() {
  return THEMES[theme()];
}

/** Calls a function after each change of the theme. */
export function onTheme(redraw) {
  listeners.add(redraw);
}

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
  for (const redraw of listeners) redraw();
}

query.addEventListener('change', () => {
  for (const redraw of listeners) redraw();
});

/**
 * The colour of part number `index` of `count`: hues far apart from neighbour to
 * neighbour, in two lightnesses, as [r, g, b].
 */
export function partColour(index, count) {
  const hue = ((index * 0.381966 * 360) % 360) + 20;
  const dark = theme() === 'dark';
  const high = index % 2 === 0;
  const lightness = dark ? (high ? 0.8 : 0.7) : high ? 0.62 : 0.5;
  return oklch(lightness, dark ? 0.13 : 0.15, hue + (count > 24 ? index : 0));
}

export function css([r, g, b]) {
  return `rgb(${r} ${g} ${b})`;
}

function oklch(lightness, chroma, hue) {
  const angle = (hue * Math.PI) / 180;
  const a = chroma * Math.cos(angle);
  const b = chroma * Math.sin(angle);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ].map((x) => {
    const positive = Math.min(Math.max(x, 0), 1);
    const encoded =
      positive <= 0.0031308 ? 12.92 * positive : 1.055 * positive ** (1 / 2.4) - 0.055;
    return Math.round(255 * encoded);
  });
}
