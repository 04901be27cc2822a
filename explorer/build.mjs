// Builds the page into a folder: `node build.mjs [FOLDER]`, by default dist.

import { cp, mkdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

import { build } from 'esbuild';

const here = path.dirname(fileURLToPath(import.meta.url));
const out = path.resolve(process.argv[2] ?? path.join(here, 'dist'));
const wasm = 'ort-wasm-simd-threaded.wasm';

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: ['src/app.js', 'src/worker.js', 'src/style.css'],
  outdir: out,
  bundle: true,
  format: 'esm',
  target: 'es2022',
  minify: true,
  logLevel: 'warning',
});
await cp(path.join(here, 'src/index.html'), path.join(out, 'index.html'));
await cp(path.join(here, 'models'), path.join(out, 'models'), { recursive: true });
await cp(path.join(here, 'images'), path.join(out, 'images'), { recursive: true });
await cp(
  path.join(here, 'node_modules/onnxruntime-web/dist', wasm),
  path.join(out, wasm),
);
console.log(`built into ${out}`);
