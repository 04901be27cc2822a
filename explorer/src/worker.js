// Runs the graphs, so that the page stays responsive.
//
// Takes {id, graph, feeds}, where feeds has {type, data, dims} by name, or
// {id, graph} to load a graph only. Returns {id, outputs} or {id, error}.

import * as ort from 'onnxruntime-web/wasm';

ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = {
  wasm: new URL('ort-wasm-simd-threaded.wasm', self.location.href).href,
};
ort.env.logLevel = 'error';

const sessions = new Map();

function session(graph) {
  if (!sessions.has(graph)) {
    const url = new URL(`models/${graph}.onnx`, self.location.href).href;
    const made = ort.InferenceSession.create(url, {
      executionProviders: ['wasm'],
      graphOptimizationLevel: 'all',
      logSeverityLevel: 3, // errors alone
    });
    sessions.set(graph, made);
    made.catch(() => sessions.delete(graph)); // the next question tries again
  }
  return sessions.get(graph);
}

async function run(graph, feeds) {
  const loaded = await session(graph);
  if (!feeds) return {};
  const tensors = {};
  for (const [name, { type, data, dims }] of Object.entries(feeds)) {
    tensors[name] = new ort.Tensor(type, data, dims);
  }
  const found = await loaded.run(tensors);
  const outputs = {};
  for (const [name, tensor] of Object.entries(found)) {
    // A copy: the tensor may be a view of the memory of the runtime.
    outputs[name] = { data: tensor.data.slice(), dims: tensor.dims };
  }
  return outputs;
}

// One at a time, in the order of the questions.
let last = Promise.resolve();

self.onmessage = ({ data: { id, graph, feeds } }) => {
  last = last.then(async () => {
    try {
      const outputs = await run(graph, feeds);
      const buffers = Object.values(outputs).map((x) => x.data.buffer);
      self.postMessage({ id, outputs }, buffers);
    } catch (error) {
      self.postMessage({ id, error: String(error?.message ?? error) });
    }
  });
};
