// The report of the public types, from the .d.ts files of a build. Without arguments it writes api.txt; with --check it
// prints the lines that differ and exits with 1. Another folder than dist/src may follow.

import { existsSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const REPORT = fileURLToPath(new URL('../api.txt', import.meta.url));
const isCheck = process.argv[2] === '--check';
const folder = resolve(process.argv[3] ?? fileURLToPath(new URL('../dist/src', import.meta.url)));

/** Returns the declarations that index.d.ts leads to. Generated code is under `buf breaking`. */
function report() {
  const files = new Map();
  const add = (file) => {
    if (files.has(file) || !existsSync(file)) return;
    const text = readFileSync(file, 'utf8');
    files.set(file, text);
    for (const [, path] of text.matchAll(/from '(\.\/[^']+)\.js'/g)) {
      if (!path.startsWith('./gen/')) add(resolve(dirname(file), `${path}.d.ts`));
    }
  };
  add(`${folder}/index.d.ts`);
  const sorted = [...files].sort(([one], [other]) => (one < other ? -1 : 1));
  return sorted.map(([file, text]) => `// ${relative(folder, file)}\n${text.trim()}\n`).join('\n');
}

const found = report();
if (!isCheck) {
  writeFileSync(REPORT, found);
} else {
  const [before, after] = [readFileSync(REPORT, 'utf8'), found].map((text) => text.split('\n'));
  const changes = [
    ...before.filter((line) => !after.includes(line)).map((line) => `- ${line}`),
    ...after.filter((line) => !before.includes(line)).map((line) => `+ ${line}`),
  ];
  if (before.join('\n') !== after.join('\n')) {
    console.error(`The public types differ from api.txt; accept them with \`npm run api\`:\n${changes.join('\n')}`);
    process.exitCode = 1;
  }
}
