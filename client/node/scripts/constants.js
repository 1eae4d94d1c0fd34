// Writes src/gen/constants.ts: a bundle of the package must not look for files at run time.

import { readFileSync, writeFileSync } from 'node:fs';

const { version } = JSON.parse(readFileSync(new URL('../package.json', import.meta.url), 'utf8'));
writeFileSync(
  new URL('../src/gen/constants.ts', import.meta.url),
  `// Written by scripts/constants.js.\nexport const VERSION = ${JSON.stringify(version)};\n`,
);
