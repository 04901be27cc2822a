// The page's side of the worker: questions by graph, answers as promises.

const worker = new Worker(new URL('worker.js', document.baseURI), {
  type: 'module',
});
const waiting = new Map();
let count = 0;

worker.onmessage = ({ data: { id, outputs, error } }) => {
  const { resolve, reject } = waiting.get(id);
  waiting.delete(id);
  if (error) reject(new Error(error));
  else resolve(outputs);
};

let failure = null; // why no question is answered any more

function fail(event) {
  failure = new Error(`${event.message || 'the worker could not start'}; reload the page`);
  for (const { reject } of waiting.values()) reject(failure);
  waiting.clear();
}
worker.onerror = fail;
worker.onmessageerror = fail;

function ask(message) {
  if (failure) return Promise.reject(failure);
  count += 1;
  const id = count;
  return new Promise((resolve, reject) => {
    waiting.set(id, { resolve, reject });
    worker.postMessage({ id, ...message });
  });
}

/** Loads a graph, so that the first question about it is answered at once. */
export function load(graph) {
  return ask({ graph });
}

/**
 * Runs a graph; returns {data, dims} of each output by name.
 *
 * The question and the answer are announced by an event `answer` of the window,
 * by which tests compare them with the model in Python.
 */
export async function run(graph, feeds) {
  const outputs = await ask({ graph, feeds });
  const detail = { graph, feeds, outputs };
  window.dispatchEvent(new CustomEvent('answer', { detail }));
  return outputs;
}

/**
 * A function that works on the newest argument only.
 *
 * While `work` is busy, each call replaces the one that waits.
 */
export function newest(work) {
  let busy = false;
  let next = null;
  return async function start(...given) {
    next = given;
    if (busy) return;
    busy = true;
    try {
      while (next) {
        const taken = next;
        next = null;
        await work(...taken);
      }
    } finally {
      busy = false;
    }
  };
}

export function floats(values, ...dims) {
  return { type: 'float32', data: Float32Array.from(values), dims };
}

export function bytes(values, ...dims) {
  return { type: 'uint8', data: Uint8Array.from(values), dims };
}
